"""Where ranks keep parts of the state, each writes its own to the checkpoint and reads its own from it, and the bytes are those of one rank."""
import os
import re
import shutil
import sys
import zlib

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
seed: 3
data: {train: synthetic, synthetic: {samples: 96, shape: [1, 16, 16]}}
model: {type: sequential, layers: [{conv: {channels: 4, name: c1}}, batchnorm, relu, flatten, {dense: 1500}, relu, {dense: 300}, relu, {dense: 10}]}
batch: {global: 24, micro: 4}
optimizer: {type: adam, lr: 0.001}
train: {steps: 4}
checkpoint: {every: 2 steps}
comm: {reduction: reproducible}
"""
MESHES = {
    "optimizer": (4, "{shard: optimizer}"),
    "gradients": (4, "{shard: gradients}"),
    "parameters": (4, "{shard: parameters}"),
    "three": (3, "{shard: parameters}"),
    "two": (2, "{shard: optimizer}"),
    "tensor": (4, "{tensor: 2, shard: gradients}"),
    "pipeline": (4, "{pipeline: {stages: 2}}"),
    "both": (4, "{pipeline: {stages: 2}, shard: parameters}"),
}


class Parts:
    """The job, its run on one rank, and runs of it under the shim, whose counts come by rank."""

    def __init__(self, folder):
        self.folder = folder
        self.job = dpt.write_job(folder / "job.yaml", JOB)
        with open("core/comm/tests/parts_shim.c", encoding="utf-8") as file:
            self.shim = None if dpt.sanitized() else dpt.library(folder, "parts", file.read(), "mpicc")
        for steps in (4, 6):
            dpt.train(self.job, folder / f"one{steps}", "--quiet", "--set", f"train.steps={steps}")
        self.size = len(dpt.newest(folder / "one4"))

    def run(self, folder, mesh, steps, **env):
        """The result, and a line of counts for each rank."""
        ranks, parallel = MESHES[mesh]
        counts = self.folder / "counts"
        counts.write_text("")
        result = dpt.run(self.job, "--output", folder, "--set", f"parallel={parallel}", "--set", f"train.steps={steps}", ranks=ranks,
                         env={"LD_PRELOAD": self.shim, "PARTS_COUNTS": str(counts), **dpt.ENDS_AT_ONCE, **env})
        return result, [line[1:] for line in sorted([*map(int, line.split())] for line in counts.read_text().splitlines())]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return Parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture
def shimmed(parts):
    if parts.shim is None:
        pytest.skip("AddressSanitizer must be the first library")
    return parts


@pytest.mark.parametrize("mesh", MESHES)
def test_the_bytes_are_those_of_one_rank(parts, tmp_path, mesh):
    """Written in parts, and read in others."""
    ranks, parallel = MESHES[mesh]
    dpt.train(parts.job, tmp_path / "run", "--quiet", "--set", f"parallel={parallel}", ranks=ranks)
    assert dpt.newest(tmp_path / "run") == dpt.newest(parts.folder / "one4")
    for steps, other in ((5, "three"), (6, mesh)):
        ranks, parallel = MESHES[other]
        result = dpt.run(parts.job, "--output", tmp_path / "run", "--quiet", "--set", f"parallel={parallel}", "--set", f"train.steps={steps}",
                         ranks=ranks)
        assert result.code == 0, result
    assert dpt.newest(tmp_path / "run") == dpt.newest(parts.folder / "one6")


@pytest.mark.parametrize("mesh", ["optimizer", "gradients", "parameters"])
def test_each_rank_writes_and_reads_its_part(shimmed, tmp_path, mesh):
    """About a quarter of two saves, and of a resume the checksum of a quarter and what it keeps: no more than ends of parts go through rank 0.
    None but rank 0 syncs, whose system has in memory what the others have written."""
    size = shimmed.size
    result, counts = shimmed.run(tmp_path / "run", mesh, 4)
    assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(shimmed.folder / "one4"), result
    assert len(counts) == 4 and sum(written for written, *_ in counts) == pytest.approx(2 * size, rel=1e-3)
    for written, _, _, moved in counts:
        assert 0.2 * 2 * size < written < 0.32 * 2 * size and moved < 0.04 * 2 * size, counts
    assert [syncs > 0 for *_, syncs, _ in counts] == [True, False, False, False], counts
    shutil.copytree(tmp_path / "run", tmp_path / "again", symlinks=True)
    for folder, steps in (("run", 4), ("again", 6)):
        result, counts = shimmed.run(tmp_path / folder, mesh, steps)
        assert result.code == 0, result
        for _, read, _, moved in counts:
            assert 0.4 * size < read < 0.6 * size, (steps, counts)
            assert moved < 0.02 * size or steps == 6, counts
    assert dpt.newest(tmp_path / "again") == dpt.newest(shimmed.folder / "one6")


@pytest.mark.parametrize("how", ["blind", "old"])
def test_a_rank_that_does_not_see_the_file(shimmed, tmp_path, how):
    """All of it goes through rank 0, when it is written and when it is read, and that is told once a run."""
    env = {"PARTS_RANK": "2", "PARTS_DO": how, "PARTS_OLD": str(shimmed.folder / "one4/checkpoints/step-00000002.h5")}
    for steps in (4, 6):
        result, counts = shimmed.run(tmp_path / "run", "parameters", steps, **env)
        assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(shimmed.folder / f"one{steps}"), result
        told = [line for line in result.err.splitlines() if " does not see " in line]
        assert len(told) == 1 and told[0].startswith("rank 2 (") and "/run/checkpoints/step-" in told[0], result
        assert counts[0][0] > shimmed.size and counts[0][1] > 2 * shimmed.size * (steps == 6), counts
        assert [written for written, *_ in counts[1:]] == [0, 0, 0], counts
        assert max(read for _, read, *_ in counts[1:]) < 1000, counts


def test_a_rank_that_cannot_write(shimmed, tmp_path):
    """It is named, nothing is left of the save, and the checkpoint before it is there."""
    folder = tmp_path / "run"
    result, _ = shimmed.run(folder, "parameters", 2)
    assert result.code == 0, result
    result, _ = shimmed.run(folder, "parameters", 6, PARTS_RANK="3", PARTS_DO="ENOSPC")
    told = [line for line in result.err.splitlines() if "step-00000004.h5: No space left on device" in line]
    assert result.code == 74 and len(told) == 1 and told[0].startswith("rank 3 ("), result
    assert set(os.listdir(folder / "checkpoints")) == {"latest", "step-00000002.h5"}
    result, _ = shimmed.run(folder, "parameters", 6)
    assert result.code == 0 and dpt.newest(folder) == dpt.newest(shimmed.folder / "one6"), result


def test_a_rank_that_cannot_read(shimmed, tmp_path):
    folder = tmp_path / "run"
    result, _ = shimmed.run(folder, "parameters", 4)
    assert result.code == 0, result
    before = sorted(os.listdir(folder / "checkpoints"))
    result, _ = shimmed.run(folder, "parameters", 6, PARTS_RANK="3", PARTS_DO="EIO")
    told = [line for line in result.err.splitlines() if "step-00000004.h5: Input/output error" in line]
    assert result.code == 74 and len(told) == 1 and told[0].startswith("rank 3 ("), result
    assert sorted(os.listdir(folder / "checkpoints")) == before


def lie(path, change):
    """Changes what is in a checkpoint, which then ends with the right line."""
    with open(path, "rb") as file:
        data = file.read()[:-44]
    with open(path, "wb") as file:
        file.write(data)
    with h5py.File(path, "r+") as file:
        change(file)
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "ab") as file:
        file.write(b"dptrain crc32 %08x %020d\n" % (zlib.crc32(data), len(data)))


def spoil(values, where):
    def change(file):
        for name, value in values.items():
            data = file[name][...]
            data.reshape(-1)[where] = value
            file[name][...] = data
            file[name].attrs["crc32"] = np.uint32(zlib.crc32(data.tobytes()))
    return change


def forget(file):
    file["optimizer/v/dense2/weight"].attrs["crc32"] = np.uint32(1)


def big_endian(file):
    for name in ("params/dense1/weight", "optimizer/m/dense2/bias"):
        data, attributes = file[name][...], dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, data=data.astype(">f4")).attrs.update(attributes)


@pytest.mark.parametrize("change", [spoil({"params/dense1/weight": np.nan, "optimizer/m/dense1/weight": np.inf}, [-7, 900000]), forget, big_endian,
                                    spoil({"state/batchnorm1/running_mean": -np.inf}, 1)], ids=["nan", "checksum", "order", "state"])
def test_what_is_wrong_in_a_file_is_told_as_on_one_rank(parts, tmp_path, change):
    """And what another program has written in its own order of bytes is read."""
    shutil.copytree(parts.folder / "one4", tmp_path / "made", symlinks=True)
    lie(tmp_path / "made/checkpoints/step-00000004.h5", change)
    told, ends = [], []
    for ranks, words in ((0, ()), (4, ("--set", "parallel.shard=parameters")), (4, ("--set", "parallel={tensor: 2, shard: optimizer}"))):
        folder = tmp_path / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "made", folder, symlinks=True)
        result = dpt.run(parts.job, "--output", folder, "--quiet", "--set", "train.steps=6", *words, ranks=ranks, env=dpt.ENDS_AT_ONCE)
        told.append((result.code, [re.sub(r"^rank 0 \(.*?\): ", "", line) for line in result.err.splitlines() if "step-00000004" in line]))
        ends.append(dpt.newest(folder))
    assert told[0] == told[1] == told[2] and ends[0] == ends[1] == ends[2], told
    assert told[0][0] == (0 if change is big_endian else 65), told


def test_damage_is_passed_over(parts, tmp_path):
    """Whichever rank has read it."""
    for place in (0.1, 0.45, 0.9):
        folder = tmp_path / f"{place}"
        shutil.copytree(parts.folder / "one4", folder, symlinks=True)
        with open(folder / "checkpoints/step-00000004.h5", "r+b") as file:
            file.seek(int(place * parts.size))
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 4]))
        result = dpt.run(parts.job, "--output", folder, "--quiet", "--set", "parallel.shard=gradients", "--set", "train.steps=6", ranks=4)
        assert result.code == 0 and "step-00000004.h5 is damaged" in result.err and "of step 2" in result.err, result
        assert dpt.newest(folder) == dpt.newest(parts.folder / "one6")
