"""Checkpoints of an earlier version are gone on with, to the same bytes, whatever was added since.

old/*.h5 were written by that version at step 5 of JOBS below (`dptrain JOB --set device.kind=ref`), and SUMS are of what it had at
step 12. Neither is to be made again: where this test fails, a job's text or a step has become another one. The jobs keep to
operations whose results do not depend on the C library, so that the sums hold on every machine.
"""
import hashlib
import json
import os
import shutil
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

OLD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "old")
REST = """
data: {train: t.h5, normalize: {mean: [0.5], std: [0.25]}}
loss: mse
batch: {global: 8, micro: 2}
train: {steps: 12}
checkpoint: {every: 5 steps}
comm: {reduction: reproducible}
"""
JOBS = {
    "mlp": "model: {type: mlp, hidden: [6], outputs: 2}\noptimizer: {type: sgd, lr: 0.01, momentum: 0.9}\n" + REST,
    "cnn": """
model:
  type: sequential
  layers: [{conv: {channels: 3, padding: same}}, relu, {maxpool: 2}, flatten, {dropout: 0.25}, {dense: 2}]
optimizer: {type: adam, lr: 0.01}
""" + REST,
}
SUMS = json.load(open(os.path.join(OLD, "sums.json"))) if os.path.exists(os.path.join(OLD, "sums.json")) else {}


def content(path):
    """Of everything that a later version may not change: all data sets, and how far the run is."""
    total = hashlib.sha256()
    with h5py.File(path) as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in sorted(names):
            total.update(name.encode() + b"\0" + np.asarray(file[name][()]).tobytes() + b"\0")
        for name in ("step", "updates", "samples", "epoch", "epoch_step", "seed", "input_shape"):
            total.update(f"{name}={file.attrs[name]}\0".encode())
    return total.hexdigest()


def prepare(folder, kind):
    """A folder with the data, the job, and a run that has come to the old checkpoint."""
    dice = np.arange(30 * 36, dtype=np.int64)
    with h5py.File(folder / "t.h5", "w") as file:
        file["x"] = (dice * 7919 % 251).astype(np.uint8).reshape(30, 1, 6, 6)
        file["y"] = (np.arange(60) * 31 % 17 / 16).astype(np.float32).reshape(30, 2)
    dpt.write_job(folder / "job.yaml", JOBS[kind])
    checkpoint = folder / "run" / "checkpoints" / "step-00000005.h5"
    checkpoint.parent.mkdir(parents=True)
    shutil.copy(os.path.join(OLD, f"{kind}.h5"), checkpoint)
    return checkpoint


def go_on(folder, device, *words, ranks=0):
    result = dpt.run("job.yaml", "--output", "run", "--set", f"device.kind={device}", *words, cwd=folder, ranks=ranks)
    assert result.code == 0, result
    return result


@pytest.mark.parametrize("kind", JOBS)
def test_the_same_bytes(tmp_path, kind):
    prepare(tmp_path, kind)
    result = go_on(tmp_path, "ref", ranks=2)
    assert "resuming at step 5 from run/checkpoints/step-00000005.h5" in result.err, result
    assert "changed since then" not in result.err and "another job" not in result.err, result
    assert content(tmp_path / "run" / "checkpoints" / "step-00000012.h5") == SUMS[kind]


@pytest.mark.parametrize("kind", JOBS)
def test_on_the_cpu_as_without_a_stop(tmp_path, kind):
    """As this machine computes: in one go from the old checkpoint, and with a stop in between."""
    ends = []
    for name, first in (("once", 12), ("twice", 9)):
        folder = tmp_path / name
        folder.mkdir()
        prepare(folder, kind)
        go_on(folder, "cpu", "--set", f"train.steps={first}")
        if first < 12:
            assert "train.steps: 9 -> 12" in go_on(folder, "cpu", ranks=2).err
        ends.append((folder / "run" / "checkpoints" / "step-00000012.h5").read_bytes())
    assert ends[0] == ends[1]


@pytest.mark.parametrize("kind", JOBS)
def test_a_new_run_writes_the_old_job(tmp_path, kind):
    old = prepare(tmp_path, kind)
    with h5py.File(old) as file:
        text = file["job"][()]
    shutil.rmtree(tmp_path / "run")
    go_on(tmp_path, "ref", "--set", "train.steps=12")
    with h5py.File(tmp_path / "run" / "checkpoints" / "latest") as file:
        assert file["job"][()] == text


@pytest.mark.parametrize("change", ["data.cache=none", "data.verify=false", "data.test=t.h5", "comm.timeout=50 s", "eval.every=never"])
def test_what_changes_no_byte_is_no_other_job(tmp_path, change):
    prepare(tmp_path, "mlp")
    result = go_on(tmp_path, "ref", "--set", change)
    assert "resuming at step 5" in result.err, result
    with h5py.File(tmp_path / "run" / "checkpoints" / "latest") as now:
        assert now.attrs["step"] == 12
    assert "changed since then" not in result.err, result


@pytest.mark.parametrize("change", ["seed=2", "data.shuffle=none", "data.drop_last=true", "batch.micro=4", "comm.reduction=allreduce",
                                    "optimizer.lr=0.02", "train.clip_norm=1", "loss=cross_entropy", "device.precision=bf16"])
def test_what_changes_bytes_is_another_job(tmp_path, change):
    prepare(tmp_path, "mlp")
    result = dpt.run("job.yaml", "--output", "run", "--set", change, "--set", "data.verify=false", cwd=tmp_path)
    assert result.code in (65, 78), result
    assert result.code == 65 or change.startswith(("device", "loss")) or "was made by another job" in result.err, result
    assert "data.verify" not in result.err, result  # which changes no byte, and keeps nobody from going on


def test_what_a_text_lacks_is_its_default(tmp_path):
    """As the job of a version that did not know some keys yet."""
    old = prepare(tmp_path, "mlp")
    result = dpt.run("inspect", old, "--job", cwd=tmp_path)
    lines = [line for line in result.out.splitlines() if "drop_last" not in line and "clip_norm" not in line]
    assert len(lines) == len(result.out.splitlines()) - 2
    rewrite(old, "\n".join(lines) + "\n")
    assert "resuming at step 5" in go_on(tmp_path, "ref").err
    assert content(tmp_path / "run" / "checkpoints" / "step-00000012.h5") == SUMS["mlp"]


def rewrite(path, text):
    """Gives a checkpoint another job, and both its checksums."""
    import zlib
    with h5py.File(path, "r+") as file:
        del file["job"]
        file.create_dataset("job", data=np.bytes_(text))
        file["job"].attrs["crc32"] = np.uint32(zlib.crc32(text.encode()))
    whole = path.read_bytes()
    at = whole.rfind(b"dptrain crc32 ")
    whole = whole[:at] if at > 0 and at + 44 == len(whole) else whole
    path.write_bytes(whole + b"dptrain crc32 %08x %020d\n" % (zlib.crc32(whole), len(whole)))


def test_what_changes_no_byte_leaves_no_trace_in_a_checkpoint(tmp_path):
    """Of every row of the table test_job.c compares the text that a checkpoint keeps; here whole files, as cmp does."""
    job = dpt.write_small_job(tmp_path / "job.yaml", train="{steps: 4}", comm="{reduction: reproducible}")
    files = []
    for i, sets in enumerate([[], ["data.cache=none", "data.verify=false", "data.test=synthetic", "device.threads=2", "name=other",
                                   "comm.timeout=50 s", "log={every: 2 steps, hashes: true}", "checkpoint.keep=7"]]):
        dpt.train(job, tmp_path / str(i), *(word for text in sets for word in ("--set", text)))
        files.append((tmp_path / str(i) / "checkpoints" / "latest").read_bytes())
    assert files[0] == files[1]
