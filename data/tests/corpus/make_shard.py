#!/usr/bin/env python3
"""Makes the first corpus of fuzz_shard, shard/seed-*. Run anywhere; what is there is overwritten.

Each byte is a choice of forge.h: first how the set is opened, then the file's format, then the images, then the labels, then the
weights. The other files of shard/ are inputs that once broke something, or that a fuzzer found to reach further.
"""
from pathlib import Path

HERE = Path(__file__).resolve().parent / "shard"
LOUD, QUIET = 0xC0, 0
VECTORS, UNVERIFIED, TWICE, FLOATS, FLAT, NHWC, SHORT, WEIGHTS = (1 << i for i in range(8))
FILES = FLAT | NHWC


def data(kind=0, element=0, space=(0,), storage=0, written=0, values=0, crc=(QUIET,), layout=(QUIET,)):
    """The choices of one data set that is not as it ought to be. `values` is asked for only where something is written."""
    body = [element, *space, storage, written, *([values] if written != 7 else []), *crc, *layout]
    return [LOUD, kind, *(body if kind < 9 else [])]


SEEDS = {
    "usual": [0, 0],
    "vectors": [VECTORS, 1],
    "twice-floats": [TWICE | FLOATS | NHWC | SHORT, 2],
    "flat": [FLAT | UNVERIFIED, 0],
    "weights": [WEIGHTS, 0],
    "mask-twice": [WEIGHTS | SHORT | TWICE, 0],
    "files": [FILES, 0],
    "files-twice": [FILES | WEIGHTS | TWICE, 1],
    "files-garbage": [FILES, 0, *data(written=1, values=3)],
    "files-shape-none": [FILES, 0, *data(layout=(LOUD, 1))],
    "files-shape-float": [FILES, 0, *data(layout=(LOUD, 2, 9))],
    "files-shape-text": [FILES, 0, *data(layout=(LOUD, 2, 17, 9))],
    "files-shorter": [FILES | UNVERIFIED, 0, *data(space=(3, 0, 2))],
    "offsets-garbage": [FILES | UNVERIFIED, 0, QUIET, *data(values=3), *b"\1\2\3"],
    "offsets-fewer": [FILES | UNVERIFIED, 0, QUIET, *data(space=(3, 0, 2))],
    "offsets-huge": [FILES | UNVERIFIED, 0, QUIET, *data(space=(4, 0, 10), storage=4, written=7)],
    "offsets-scalar": [FILES, 0, QUIET, *data(space=(1,))],
}
for kind in range(9, 16):  # no data set, a group, links, a type
    SEEDS[f"images-kind-{kind}"] = [0, 0, *data(kind)]
    SEEDS[f"labels-kind-{kind}"] = [0, 0, QUIET, *data(kind)]
    SEEDS[f"files-kind-{kind}"] = [FILES, 0, *data(kind)]
    SEEDS[f"offsets-kind-{kind}"] = [FILES, 0, QUIET, *data(kind)]
for element in range(1, 28):
    SEEDS[f"images-type-{element}"] = [UNVERIFIED, 0, *data(element=element)]
    SEEDS[f"labels-type-{element}"] = [element % 2, element % 3, QUIET, *data(element=element)]
    SEEDS[f"offsets-type-{element}"] = [FILES | UNVERIFIED, 0, QUIET, *data(element=element)]
for element in range(1, 28, 3):
    SEEDS[f"files-type-{element}"] = [FILES | UNVERIFIED, 0, *data(element=element)]
    SEEDS[f"weights-type-{element}"] = [WEIGHTS | UNVERIFIED, 0, QUIET, QUIET, *data(element=element)]
for storage in range(1, 12):
    SEEDS[f"storage-{storage}"] = [0, storage % 3, *data(storage=storage), *data(storage=storage)]
SEEDS["scalar"] = [0, 0, *data(space=(1,))]
SEEDS["null"] = [0, 0, *data(space=(2,))]
SEEDS["fewer"] = [0, 0, *data(space=(3, 0, 2))]
SEEDS["huge"] = [0, 0, *data(space=(4, 4, 10, 10, 10, 10, 10))]
SEEDS["empty"] = [0, 0, *data(space=(4, 3, 1, 1, 1, 1))]
SEEDS["never-written"] = [0, 0, *data(written=7)]
SEEDS["crc-none"] = [0, 0, *data(crc=(LOUD, 1))]
SEEDS["crc-wrong"] = [0, 0, *data(crc=(LOUD, 2, 0))]
SEEDS["crc-text"] = [0, 0, *data(crc=(LOUD, 2, 17, 9))]
SEEDS["crc-several"] = [0, 0, *data(crc=(LOUD, 3, 6, 4, 0, 5))]
SEEDS["crc-unwritten"] = [0, 0, *data(crc=(LOUD, 5, 6, 0))]
SEEDS["layout-none"] = [NHWC, 0, *data(layout=(LOUD, 1))]
SEEDS["layout-number"] = [0, 0, *data(layout=(LOUD, 2, 5))]
SEEDS["layout-variable"] = [0, 0, *data(layout=(LOUD, 2, 18)), *b"CWHN"]

HERE.mkdir(exist_ok=True)
for name, choices in SEEDS.items():
    (HERE / f"seed-{name}").write_bytes(bytes(choices))
