#!/usr/bin/env python3
"""Makes the first corpus of fuzz_weights, weights/seed-*. Run anywhere; what is there is overwritten.

The other files of weights/ are inputs that once broke something, or that a fuzzer found to reach further.
"""
import io
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import formats  # noqa: E402

FILE, HEADER = b"\0", b"\1"
WEIGHT, BIAS = np.arange(6, dtype="<f4").reshape(3, 2), np.array([1, 2, np.inf], "<f4")
BOTH = {"dense1.weight": WEIGHT, "dense1.bias": BIAS}


def npz(save=np.savez, **arrays):
    file = io.BytesIO()
    save(file, **arrays)
    return FILE + file.getvalue()



def text(of):
    return HEADER + of.encode()


ENTRY = '"%s": {"dtype": "%s", "shape": %s, "data_offsets": %s}'
SEEDS = {
    "safetensors": FILE + formats.safetensors_bytes(BOTH),
    "safetensors-module": FILE + formats.safetensors_bytes({"module." + k: v for k, v in BOTH.items()}),
    "safetensors-metadata": FILE + formats.safetensors_bytes(BOTH, head={"__metadata__": {"format": "pt"}}),
    "safetensors-types": FILE + formats.safetensors_bytes(
        {"0.weight": WEIGHT.astype("<f8"), "10.bias": BIAS.astype("<f2"), "n": np.array(7), "b": BIAS.astype("<f2")},
        types={"b": "BF16"}),
    "safetensors-empty": FILE + formats.safetensors_bytes({}),
    "header-overlap": text("{" + ENTRY % ("a", "F32", "[8]", "[0, 32]") + "," + ENTRY % ("b", "U8", "[32]", "[31, 63]") + "}"),
    "header-full": text("{" + ENTRY % ("a.weight", "F16", "[4, 8]", "[0, 64]") + "}"),
    "header-huge": text("{" + ENTRY % ("a", "F64", "[4294967296, 4294967296, 0]", "[0, 0]") + "}"),
    "header-zero": text("{" + ENTRY % ("dense1/weight", "F32", "[3, 2]", "[0, 24]") + ","
                        + ENTRY % ("a.bias", "F32", "[10]", "[24, 64]") + "," + ENTRY % ("e", "F32", "[0]", "[24, 24]") + "}"),
    "header-escapes": text('{"\\u0000\\ud83d\\ude42": {"dtype": "BOOL", "shape": [], "data_offsets": [0, 1]}}'),
    "header-deep": text('{"a": ' + "[" * 70 + "]" * 70 + "}"),
    "npz": npz(**BOTH),
    "npz-compressed": npz(np.savez_compressed, **BOTH),
    "npz-fortran": npz(**{"a/b.weight": np.asfortranarray(WEIGHT), "c": np.asfortranarray(np.ones((2, 3, 2), ">f8"))}),
    "npz-types": npz(a=np.array(3), b=BIAS.astype("<f2"), c=np.array([True]), d=np.zeros((0, 4), "<f4")),
    "npz-objects": npz(a=np.array([None], dtype=object)),
    "npz-one": npz(np.savez_compressed, a=np.zeros((100, 100), "<f4")),
    "hdf5": FILE + b"\x89HDF\r\n\x1a\n",
    "nothing": FILE,
}

for name, data in SEEDS.items():
    (HERE / "weights").mkdir(exist_ok=True)
    (HERE / "weights" / f"seed-{name}").write_bytes(data)
