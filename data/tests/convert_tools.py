"""What the tests of the converters share: running `dptrain convert` and reading what it wrote with h5py."""

import csv
import gzip
import io
import os
import random
import resource
import signal
import struct
import subprocess
import time
import zlib

import h5py
import numpy as np
import pytest

DPTRAIN = os.path.abspath(os.environ.get("DPTRAIN", "build/dptrain"))
MNIST = os.path.abspath("data/mnist")
USAGE, BAD_DATA, IO = 2, 65, 74


def convert(*args, **more):
    return subprocess.run([DPTRAIN, "convert", *map(str, args)], capture_output=True, text=True, timeout=120, **more)


def good(*args, warns=False, **more):
    result = convert(*args, **more)
    assert result.returncode == 0, result.stderr
    assert warns or "warning" not in result.stderr
    return result.stdout


def bad(code, said, folder, *args, **more):
    """Ends with `code` and one line with each of `said` in it, of words for numbers with advice below; nothing is left in the folder of the output."""
    result = convert(*args, "--output", folder / "out" / "x", **more)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 or all(line.startswith(("  ", "This command", "No column")) for line in lines[1:]), result.stderr
    for text in [said] if isinstance(said, str) else said:
        assert text in result.stderr, result.stderr
    left = os.listdir(folder / "out") if (folder / "out").exists() else []
    assert left == []
    return result.stderr


def text(folder, content, name="t.csv"):
    """A file of such a text, or of bytes; its path."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def shards(prefix, n):
    return [f"{prefix}-{i:05d}-of-{n:05d}.h5" for i in range(n)]


def load(prefix, n=1):
    """Images and labels of all shards; checks on the way what holds for each shard."""
    images, labels, sizes = [], [], []
    for path in shards(prefix, n):
        with h5py.File(path, "r") as f:
            assert set(f) - {"columns", "id"} == {"images", "labels"}
            for data in f["images"], f["labels"]:
                assert data.chunks is None and data.compression is None
                offset = data.id.get_offset()
                raw = open(path, "rb").read()[offset:offset + data.nbytes]
                assert raw == data[()].tobytes()
                assert data.attrs["crc32"].dtype == np.uint32
                assert int(data.attrs["crc32"]) == zlib.crc32(raw)
            images.append(f["images"][()])
            labels.append(f["labels"][()])
            assert len(images[-1]) == len(labels[-1])
            sizes.append(len(images[-1]))
    assert max(sizes) - min(sizes) <= 1
    folder = os.path.dirname(prefix)
    assert [f for f in os.listdir(folder) if ".tmp" in f] == []
    return np.concatenate(images), np.concatenate(labels)


def no_times(path):
    """No 32-bit number around the present second in what HDF5 wrote."""
    with h5py.File(path) as f:
        spans = [(d.id.get_offset(), d.nbytes) for d in (f["images"], f["labels"])]
    rest = bytearray(open(path, "rb").read())
    for offset, n in spans:
        rest[offset:offset + n] = bytes(n)
    words = [struct.unpack_from("<I", rest, i)[0] for i in range(len(rest) - 3)]
    return not any(abs(w - time.time()) < 300 for w in words)


def write_idx(path, array, type_code=8, opener=open):
    with opener(path, "wb") as f:
        f.write(struct.pack(">BBBB", 0, 0, type_code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape))
        f.write(array.tobytes())
    return path


def idx_pair(folder, n=23, shape=(5, 4), seed=1):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    labels = rng.integers(0, 7, n, dtype=np.uint8)
    labels[0] = 6
    return images, labels, write_idx(folder / "i", images), write_idx(folder / "l", labels)
