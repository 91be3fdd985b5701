"""Shards as h5py users write them, for test_shards.py; by hand: make_h5.py FOLDER."""

import sys
import zlib
from pathlib import Path

import h5py
import numpy as np

N = 64


def pixels(n=N, shape=(1, 8, 8), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def floats(n=N, shape=(1, 8, 8), seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


def classes(n=N, k=10):
    return (np.arange(n) * 7 % k).astype(np.uint8)


def checksum(data):
    """The attribute crc32: of the values as they are stored, little-endian, in row-major order."""
    values = data[...]
    little = values.astype(values.dtype.newbyteorder("<"))
    data.attrs["crc32"] = np.uint32(zlib.crc32(little.tobytes()))


def write(path, images, labels, names=("images", "labels"), layout=None, crc=False, weights=None, **how):
    with h5py.File(path, "w") as f:
        x = f.create_dataset(names[0], data=images, **how)
        y = f.create_dataset(names[1], data=labels)
        if weights is not None:
            w = f.create_dataset("weights", data=weights)
        if layout is not None:
            x.attrs["layout"] = layout
        if crc:
            checksum(x)
            checksum(y)
            if weights is not None:
                checksum(w)
    return path


def nhwc(images):
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


# Files that must all train: name -> how it is written.
GOOD = {
    "contiguous": lambda p: write(p, pixels(), classes(), crc=True),
    "chunked": lambda p: write(p, pixels(), classes(), chunks=(5, 1, 8, 8), crc=True),
    "gzip": lambda p: write(p, pixels(), classes(), compression="gzip", shuffle=True, crc=True),
    "fletcher32": lambda p: write(p, pixels(), classes(), chunks=True, fletcher32=True),
    "resizable": lambda p: write(p, pixels(), classes(), maxshape=(None, 1, 8, 8)),
    "nhwc": lambda p: write(p, nhwc(pixels(shape=(3, 8, 8))), classes(), layout="NHWC"),
    "nhwc_bytes": lambda p: write(
        p, nhwc(pixels(shape=(3, 8, 8))), classes(), layout=np.bytes_("nhwc")
    ),
    "no_channel": lambda p: write(p, pixels(shape=(8, 8)), classes()),
    "flat": lambda p: write(p, floats(shape=(20,)), classes(), names=("x", "y")),
    "float32": lambda p: write(p, floats(), classes().astype(np.int64), crc=True),
    "float64": lambda p: write(p, floats().astype(np.float64), classes(), crc=True),
    "big_endian": lambda p: write(p, floats().astype(">f4"), classes().astype(">i4"), crc=True),
    "column_of_labels": lambda p: write(p, pixels(), classes().reshape(-1, 1).astype(np.int16)),
    "weights": lambda p: write(p, pixels(), classes(), weights=np.linspace(0, 2, N).astype("f4"), crc=True),
    "weights_big_endian": lambda p: write(p, pixels(), classes(), weights=np.arange(N).astype(">f8")),
    "weights_bool": lambda p: write(p, pixels(), classes(), weights=np.arange(N) % 3 > 0),
    "weights_int": lambda p: write(p, pixels(), classes(), weights=np.arange(N).astype("i2"), crc=True),
    "classes_as_floats": lambda p: write(p, pixels(), classes().astype("f4"), crc=True),
    "column_of_doubles": lambda p: write(p, pixels(), classes().reshape(-1, 1).astype("f8")),
    "one_hot": lambda p: write(p, pixels(), np.eye(10, dtype=np.uint8)[classes()], crc=True),
    "probabilities": lambda p: write(p, pixels(), np.eye(10, dtype=np.float32)[classes()]),
}


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in GOOD.items():
        print(make(folder / f"{name}.h5"))


if __name__ == "__main__":
    main()
