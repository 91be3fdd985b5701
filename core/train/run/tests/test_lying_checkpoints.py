"""Checkpoints whose checksums are right and which lie all the same: counters, weights, sizes. Told by name, with exit code 65."""
import os
import resource
import shutil
import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
data: {train: synthetic, test: synthetic, synthetic: {samples: 64, shape: [1, 6, 6]}}
model: {type: mlp, hidden: [6], outputs: 10}
batch: {global: 8}
train: {epochs: 2}
checkpoint: {every: 4 steps}
"""
MEMORY = 300 << 20  # more than any of these commands needs by much


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    job = dpt.write_job(folder / "job.yaml", JOB)
    dpt.train(job, folder / "run", "--quiet")
    return folder


def lie(made, folder, change):
    """A run folder whose only checkpoint was changed, with right checksums."""
    (folder / "run" / "checkpoints").mkdir(parents=True)
    path = folder / "run" / "checkpoints" / "step-00000012.h5"
    shutil.copy(made / "run" / "checkpoints" / "step-00000012.h5", path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-44])
    with h5py.File(path, "r+") as file:
        change(file)
    whole = path.read_bytes()
    path.write_bytes(whole + b"dptrain crc32 %08x %020d\n" % (zlib.crc32(whole), len(whole)))
    return path


def commands(made, folder, path):
    job = str(made / "job.yaml")
    data = dpt.write_job(folder / "in.csv", "".join(",".join(["0"] * 36) + "\n" for _ in range(2)))
    return {
        "train": [job, "--output", folder / "run"],
        "resume": [job, "--output", folder / "other", "--resume", path],
        "eval": ["eval", job, "--checkpoint", path],
        "predict": ["predict", job, "--checkpoint", path, "--input", data, "--label", "none", "--header", "no"],
        "export": ["export", path, "--to", "npz", folder / "out.npz"],
        "init": [job, "--output", folder / "new", "--init-from", path],
    }


def run(words):
    """With its peak of memory, in bytes."""
    with open(os.devnull) as none:
        process = subprocess.Popen([dpt.BINARY, *map(str, words)], stdin=none, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, **dpt.MPI_ENVIRONMENT})
        out, err = process.stdout.read().decode(), process.stderr.read().decode()
        _, state, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(state)
    return process.returncode, out, err, usage.ru_maxrss << 10


@pytest.mark.parametrize("name, value", [("step", -7), ("epoch", -5), ("epoch_step", -1), ("updates", -1), ("samples", -3),
                                         ("best_step", -2), ("updates", 13), ("best_step", 13), ("epoch", 40), ("epoch_step", 12),
                                         ("step", 2**62)])
def test_counters(tmp_path, made, name, value):
    def change(file):
        file.attrs.modify(name, np.int64(value))
    path = lie(made, tmp_path, change)
    for which in ("resume", "export", "eval", "predict", "init"):
        code, out, err, _ = run(commands(made, tmp_path, path)[which])
        assert code == 65 and f"{path}: its attribute {name} is {value}, " in err, (which, err)


def test_a_step_behind_the_epoch(tmp_path, made):
    def change(file):
        file.attrs.modify("epoch", np.int64(0))
        file.attrs.modify("epoch_step", np.int64(12))
    path = lie(made, tmp_path, change)
    code, _, err, _ = run(commands(made, tmp_path, path)["train"])
    assert code == 65 and "its attribute epoch_step is 12, an epoch has 8 steps" in err, err
    code, _, err, _ = run(commands(made, tmp_path, path)["resume"])
    assert code == 0, "on purpose"


@pytest.mark.parametrize("bad, says", [(np.nan, "NaN"), (-np.inf, "infinite")])
def test_weights_that_are_no_numbers(tmp_path, made, bad, says):
    def change(file):
        weights = file["params/dense1/weight"]
        values = weights[()]
        values[0, 5] = values[2, 1] = bad
        weights[...] = values
        weights.attrs.modify("crc32", np.uint32(zlib.crc32(values.tobytes())))
    path = lie(made, tmp_path, change)
    for which, words in commands(made, tmp_path, path).items():
        code, _, err, _ = run(words)
        assert code == 65 and f"number 5 of /params/dense1/weight is {says}" in err, (which, err)
        if which == "init":
            continue
        code, _, err, _ = run([*words, "--allow-nan"])
        assert code == 0 or (code == 1 and which in ("train", "resume", "eval", "predict")), (which, err)
        assert which != "eval" or (code == 1 and "not a number: outputs for" in err), err


def test_optimizer_that_has_no_numbers(tmp_path, made):
    def change(file):
        folder = file["optimizer"][sorted(file["optimizer"])[0]]
        folder["dense2/bias"][3] = np.nan
        folder["dense2/bias"].attrs.modify("crc32", np.uint32(zlib.crc32(folder["dense2/bias"][()].tobytes())))
    path = lie(made, tmp_path, change)
    words = commands(made, tmp_path, path)
    code, _, err, _ = run(words["train"])
    assert code == 65 and "number 3 of /optimizer/" in err, err
    assert run(words["eval"])[0] == 0, "which does not need it"


MUCH = 1 << 29


def packed():
    """So many zeros, packed piece by piece: what this process once took would count as its children's."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(MUCH >> 20)) + packer.flush()


def bombs():
    def text(file):
        del file["job"]
        file.create_dataset("job", shape=(1,), dtype=f"S{MUCH}", chunks=(1,), compression="gzip")
        file["job"].id.write_direct_chunk((0,), packed())

    def chunk(file):
        shape, crc = file["params/dense1/weight"].shape, file["params/dense1/weight"].attrs["crc32"]
        del file["params/dense1/weight"]
        file.create_dataset("params/dense1/weight", shape=shape, dtype="f4", maxshape=(None, None), chunks=(1 << 13, 1 << 14),
                            compression="gzip")
        file["params/dense1/weight"].id.write_direct_chunk((0, 0), packed())
        file["params/dense1/weight"].attrs["crc32"] = crc

    def shape(file):
        del file["params/dense1/weight"]
        file.create_dataset("params/dense1/weight", shape=(1 << 12, 1 << 13), dtype="f4", chunks=(1 << 10, 1 << 10),
                            compression="gzip", fillvalue=0)
        file["params/dense1/weight"][:1024, :1024] = 1
        file["params/dense1/weight"].attrs["crc32"] = np.uint32(0)
    return {"chunk": (chunk, "a chunk of /params/dense1/weight unpacks to 537 MB"), "shape": (shape, "is [4096, 8192] there"),
            "text": (text, "its /job says it holds 536870912 bytes")}


@pytest.mark.parametrize("kind", ["chunk", "shape", "text"])
def test_bombs(tmp_path, made, kind):
    """Some kilobytes that unpack to a gigabyte or more are refused by what they say, before there is room for them."""
    change, says = bombs()[kind]
    path = lie(made, tmp_path, change)
    for which in ("resume", "export"):
        code, _, err, memory = run(commands(made, tmp_path, path)[which])
        assert code == 65 and says in err, err
        assert memory < MEMORY, (which, memory)


def test_a_small_stack_is_told(made, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_STACK, (64 << 10, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    for words in ([str(made / "job.yaml"), "--output", str(tmp_path / "x")], ["eval", "x.yaml"], ["plan", str(made / "job.yaml")]):
        done = subprocess.run([dpt.BINARY, *words], preexec_fn=limit, capture_output=True, text=True)
        assert done.returncode == 71 and "64 kB here, 256 are needed: ulimit -s" in done.stderr, done


@pytest.mark.parametrize("labels", [["cat", "dog"] * 8, np.array([b"cat", b"dog"] * 8)], ids=["variable", "fixed"])
def test_labels_that_are_words(tmp_path, made, labels):
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["images"] = np.zeros((16, 1, 6, 6), np.uint8)
        file["labels"] = labels
    result = dpt.run(made / "job.yaml", "--set", f"data.train={tmp_path}/s.h5", "--output", tmp_path / "run")
    assert result.code == 65 and "/labels holds string values: it must be numbers, or class names" in result.err, result


@pytest.mark.parametrize("older", [True, False])
def test_a_norm_in_another_order_is_told(tmp_path, older):
    job = dpt.write_job(tmp_path / "job.yaml", JOB.replace("epochs: 2", "epochs: 2, clip_norm: 0.5") + "comm: {reduction: reproducible}\n")
    dpt.train(job, tmp_path / "run", "--quiet")
    lie(tmp_path, tmp_path / "old", lambda file: file.attrs.pop("norm_chunks") if older else None)
    result = dpt.run(job, "--output", tmp_path / "old" / "run")
    told = [line for line in result.err.splitlines() if "another order" in line]
    assert result.code == 0 and len(told) == older, result
    assert not older or ("step-00000012.h5" in told[0] and "clip_norm" in told[0]), result


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("backend, older, told", [("cpu", True, 1), ("cpu", False, 0), ("ref", True, 0)])
def test_older_numerics_are_told_once(tmp_path, backend, older, told, ranks):
    """A run that another version of the same backend's arithmetic began; `ref` still has its first one."""
    job = dpt.write_job(tmp_path / "job.yaml", JOB + f"device: {{kind: {backend}}}\n")
    dpt.train(job, tmp_path / "run", "--quiet")
    path = lie(tmp_path, tmp_path / "old", lambda file: file.attrs.pop("numerics", None) if older else None)
    result = dpt.run(job, "--output", tmp_path / "old" / "run", ranks=ranks)
    lines = [line for line in result.err.splitlines() if "from here on" in line]
    assert result.code == 0 and "resuming at step 12" in result.err and len(lines) == told, result
    assert not told or all(word in lines[0] for word in (path.name, "numerics are version 1", "resume with the dptrain that made it")), result
    with h5py.File(tmp_path / "old" / "run" / "checkpoints" / "latest") as file:
        assert file.attrs.get("numerics", 1) == (2 if backend == "cpu" else 1)
