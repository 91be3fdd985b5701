#!/usr/bin/env python3
"""Makes the first corpus of fuzz_checkpoint, checkpoint/seed-*. Run anywhere; what is there is overwritten.

Bytes behind the mode are choices of data/tests/forge.h: the file's format, nine attributes, six tensors, the job, the plans. The other
files of checkpoint/ are inputs that once broke something, or that a fuzzer found to reach further.
"""
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent / "checkpoint"
LOUD, QUIET = 0xC0, 0
BYTES, COMPLETED, CHOICES, DAMAGED = range(4)
ATTRIBUTES, TENSORS = 9, 6


def line(body):
    return b"dptrain crc32 %08x %020d\n" % (zlib.crc32(body), len(body))


def whole(body):
    return bytes([BYTES]) + body + line(body)


def at(place, *choices):
    """Choices for one object; those before it stay as they ought to be."""
    return bytes([CHOICES, 1] + [QUIET] * place + [LOUD, *choices])


SEEDS = {
    "usual": bytes([CHOICES]),
    "usual-latest": bytes([CHOICES, 2]),
    "damaged": bytes([DAMAGED, 0, 7, 9, 1, 0]),
    "damaged-end": bytes([DAMAGED, 255, 255, 255, 255]),
    "completed": bytes([COMPLETED]) + b"some bytes",
    "completed-hdf5": bytes([COMPLETED]) + b"\x89HDF\r\n\x1a\n",
    "bytes-whole": whole(b"\x89HDF\r\n\x1a\n"),
    "bytes-one": whole(b"x"),
    "bytes-cut": whole(b"abcdef")[:-1],
    "bytes-longer": whole(b"abcdef") + b"\n",
    "bytes-capitals": whole(b"J").replace(b"crc32 a", b"crc32 A"),
    "bytes-negative": bytes([BYTES]) + b"a" + line(b"a").replace(b" 000", b" -00"),
    "bytes-line-only": bytes([BYTES]) + line(b""),
    "bytes-none": bytes([BYTES]),
}
for i in range(ATTRIBUTES):
    SEEDS[f"attribute-{i}-none"] = at(i, 1)
    SEEDS[f"attribute-{i}-several"] = at(i, 3, 0, 4, 0, 6)
    SEEDS[f"attribute-{i}-text"] = at(i, 2, 18)
for element in range(1, 28):
    SEEDS[f"attribute-type-{element}"] = at(2, 2, element)
    SEEDS[f"tensor-type-{element}"] = at(ATTRIBUTES, 0, element, 0, 0, 0, 0)
    SEEDS[f"job-type-{element}"] = at(ATTRIBUTES + TENSORS, 0, element, 0, 0, 0, 0)
    SEEDS[f"plans-type-{element}"] = at(ATTRIBUTES + TENSORS + 1, 0, element, 0, 0, 0, 0)
for kind in range(9, 16):
    SEEDS[f"tensor-kind-{kind}"] = at(ATTRIBUTES + 1, kind)
    SEEDS[f"job-kind-{kind}"] = at(ATTRIBUTES + TENSORS, kind)
    SEEDS[f"plans-kind-{kind}"] = at(ATTRIBUTES + TENSORS + 1, kind)
for storage in range(1, 12):
    SEEDS[f"tensor-storage-{storage}"] = at(ATTRIBUTES + 2, 0, 0, 0, storage)
SEEDS["tensor-fewer"] = at(ATTRIBUTES, 0, 0, 3, 0, 1)
SEEDS["tensor-huge"] = at(ATTRIBUTES, 0, 0, 4, 1, 10, 10, 0)
SEEDS["tensor-never-written"] = at(ATTRIBUTES, 0, 0, 0, 0, 7)
SEEDS["tensor-crc-none"] = at(ATTRIBUTES, 0, 0, 0, 0, 0, 0, LOUD, 1)
SEEDS["tensor-crc-several"] = at(ATTRIBUTES, 0, 0, 0, 0, 0, 0, LOUD, 3, 0, 4, 0, 6)
SEEDS["job-several"] = at(ATTRIBUTES + TENSORS, 0, 0, 3, 7)
SEEDS["job-several-long"] = at(ATTRIBUTES + TENSORS, 0, 17, 9, 4, 0, 6)
SEEDS["job-null"] = at(ATTRIBUTES + TENSORS, 0, 0, 2)

HERE.mkdir(exist_ok=True)
for name, data in SEEDS.items():
    (HERE / f"seed-{name}").write_bytes(data)
