#!/usr/bin/env python3
"""Makes the first corpus of fuzz_convert, convert/seed-*. Run anywhere; what is there is overwritten."""
import gzip
import io
import struct
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent / "convert"
IDX, CIFAR, CSV, NPY = range(4)


def idx(*dims, first=0):
    n = int(np.prod(dims))
    return struct.pack(">I", 0x800 + len(dims)) + struct.pack(f">{len(dims)}I", *dims) + bytes((first + i) % 10 for i in range(n))


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


def packed(data):
    return gzip.compress(data, mtime=0)


CIFAR_ROW = bytes([3]) + bytes(3072)
IRIS = b"sepal,petal,kind\n5.1,1.4,setosa\n6.2,4.5,virginica\n5.9,3.0,setosa\n"

# Options behind those of old: as many values of each, the first is "not given" (fuzz_convert.c).
OLD = 8 * 4 * 4 * 2 * 2 * 2 * 2
SEMICOLON, MISSING, CATEGORIES, ID, DROP = (OLD << i for i in range(5))
DECIMAL, SPLIT, STRATIFY = 12, 24, 48
MESSY = b"\xef\xbb\xbfnr;colour;size;note;kind\r\na;red;1,5;\"x\r\ny\";good\r\nb;blue;NA;;bad\r\nc;;3;?;good\r\n"

SEEDS = {
    "idx": (IDX, 0, idx(3, 4, 5), idx(3)),
    "idx-gz": (IDX, 0, packed(idx(3, 4, 5)), packed(idx(3))),
    "idx-4d": (IDX + 4, 0, idx(3, 3, 2, 2), idx(3)),
    "idx-short": (IDX, 0, idx(3, 4, 5)[:-1], idx(3)),
    "idx-swapped": (IDX, 0, idx(3), idx(3, 4, 5)),
    "idx-huge": (IDX, 0, struct.pack(">IIII", 0x803, 2**32 - 1, 2**32 - 1, 2), idx(3)),
    "cifar": (CIFAR, 0, packed(CIFAR_ROW * 2)),
    "cifar-two": (CIFAR, 0, packed(CIFAR_ROW), packed(CIFAR_ROW)),
    "cifar-short": (CIFAR, 0, packed(CIFAR_ROW[:-1])),
    "csv": (CSV, 0, IRIS),
    "csv-numbers": (CSV + 8, 0, b"1,2,0\n3,4,1\n5,6,1\r\n"),
    "csv-quotes": (CSV, 0, b'\xef\xbb\xbfa,b\r"1","x ""y"""\r2,"x\ny"\r'),
    "csv-two": (CSV, 0, IRIS, IRIS),
    "csv-regression": (CSV, 1 + 8 * 4 * 4 * 2 * 2, b"1.5,2\n-3e-2,4\n"),
    "csv-holes": (CSV, 0, b"1,,0\n2,nan,1\n3,NA,1\n"),
    "csv-messy": (CSV + DECIMAL + SPLIT + STRATIFY, SEMICOLON + MISSING + CATEGORIES + ID + DROP, MESSY),
    "csv-columns": (CSV, MISSING + CATEGORIES, IRIS),
    "csv-split": (CSV + SPLIT, ID, IRIS),
    "npy": (NPY, 0, npy(np.arange(24, dtype="u1").reshape(2, 3, 2, 2)), npy(np.array([1, 0]))),
    "npy-float": (NPY, 0, npy(np.linspace(-1, 1, 6, dtype=">f4").reshape(3, 2)), npy(np.eye(3, dtype="f8"))),
    "npy-fortran": (NPY, 0, npy(np.asfortranarray(np.arange(12, dtype="f8").reshape(3, 4))), npy(np.array([1, 0, 2], "i2"))),
    "npy-2.0": (NPY, 0, npy(np.ones((2, 2), "f2"), (2, 0)), npy(np.array([True, False]))),
    "npy-object": (NPY, 0, b"\x93NUMPY\x01\x00\x2a\x00{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", b""),
    "npy-nan": (NPY, 0, npy(np.full((2, 2), np.nan, "f4")), npy(np.array([1, 0]))),
}

HERE.mkdir(exist_ok=True)
for name, (form, options, *files) in SEEDS.items():
    (HERE / f"seed-{name}").write_bytes(bytes([form]) + struct.pack("<H", options) + b"FUZZ".join(files))
