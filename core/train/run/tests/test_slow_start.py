"""A rank that opens, reads or verifies slowly, by slow_shim.c, keeps nobody waiting: comm.timeout ends a job that stands still, not one that starts."""
import os
import re
import shlex
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SHARDS = 12
COMM = "{timeout: 1 s, start_timeout: 1 s}"
JOB = """
data: {{train: {data}/*.h5, cache: {cache}}}
model: {{type: mlp, hidden: [{hidden}], outputs: 3}}
batch: {{global: 40, micro: 10}}
optimizer: adam
train: {{steps: {steps}}}
comm: {comm}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("shim") / "slow_shim.so"
    subprocess.run([*shlex.split(os.environ.get("CC", "gcc")), "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared",
                    "-fPIC", "-o", library, os.path.join("core", "train", "run", "tests", "slow_shim.c"), "-ldl"], check=True)
    return str(library)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    dice = np.random.default_rng(1)
    for i in range(SHARDS):
        with h5py.File(folder / f"{i:03}.h5", "w") as file:
            file["x"], file["y"] = dice.normal(size=(4, 8)).astype("f4"), dice.integers(0, 3, 4)
    return folder


def write(tmp_path, data, cache="none", hidden=8, steps=2, comm=COMM):
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(data=data, cache=cache, hidden=hidden, steps=steps, comm=comm))


def train(shim, job, run, rank, folder, ms, *words):
    """Two ranks, of which one is slow below that folder."""
    env = {"LD_PRELOAD": shim, "SLOW_RANK": str(rank), "SLOW_FOLDER": str(folder), "SLOW_MS": str(ms),
           "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}
    return dpt.run("train", job, "--output", run, *words, ranks=2, env=env)


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_opening_and_reading_shards(shim, tmp_path, data, cache):
    """Each call takes 20 ms, all together several times the limits."""
    result = train(shim, write(tmp_path, data, cache), tmp_path / "run", 0, data, 10)
    assert result.code == 0 and "has not arrived" not in result.err, result


@pytest.mark.parametrize("start", [True, False], ids=["told", "ended"])
def test_one_call_that_lasts(shim, tmp_path, data, start):
    """Nothing moves meanwhile: the start's own limit ends that, and each comm.timeout says who is waited for."""
    job = write(tmp_path, data, comm="{timeout: 1 s, start_timeout: 5 min}" if start else COMM)
    result = train(shim, job, tmp_path / "run", 0, data / "001.h5", 250)
    line = r"rank 0 \(\S+\) has not arrived before the first step for 1 s; rank 1 waits\. Its last word: .*"
    if start:
        assert result.code == 0, result
        assert re.search(rf"^warning: {line}\. The start may take 300 s \(comm\.start_timeout\)$", result.err, re.M), result
    else:
        assert result.code == 71 and re.search(f"^{line}$", result.err, re.M), result


def test_verifying_a_checkpoint(shim, tmp_path, data):
    """A megabyte at a time; the other rank waits for all of them."""
    job, run = write(tmp_path, data, hidden=60_000), tmp_path / "run"
    dpt.train(job, run, "--set", "train.steps=1")
    assert len(dpt.newest(run)) > 6 << 20
    result = train(shim, job, run, 0, run / "checkpoints", 60)
    assert result.code == 0 and "has not arrived" not in result.err and "resum" in result.out, result
