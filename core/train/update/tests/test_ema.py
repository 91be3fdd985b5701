"""train.ema: the moving average of the weights, which is evaluated, saved, and taken by eval, predict and export."""
import json
import os
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/engines/tests"]
import dpt  # noqa: E402
from test_device import FAKE, Machine  # noqa: E402

KEEPS = 0.8
JOB = {
    "model": "{type: sequential, layers: [{conv: {channels: 6, padding: same, bias: false}}, batchnorm, relu, {maxpool: 2}, flatten, "
             "{dense: 20}, relu, {dense: 10}]}",
    "data": "{train: synthetic, valid: 0.1, test: synthetic, synthetic: {samples: 300, shape: [1, 12, 12]}}",
    "train": f"{{steps: 6, ema: {KEEPS}, freeze: [dense1/bias]}}",
    "eval": "{every: 3 steps}",
    "checkpoint": "{every: 1 steps, keep: all}",
}


def job(path, **sections):
    return dpt.write_small_job(path, **{**JOB, **sections})


def train(path, folder, *words, ranks=0, sets=()):
    sets = [word for text in sets for word in ("--set", text)]
    result = dpt.run(path, "--output", folder, "--quiet", *words, *sets, ranks=ranks)
    assert result.code == 0, result


def arrays(folder, step):
    """The weights and their average, by the names of their tensors."""
    found = {"params": {}, "optimizer/ema": {}}
    with h5py.File(folder / "checkpoints" / f"step-{step:08}.h5") as file:
        for group, into in found.items():
            file[group].visititems(lambda name, item, into=into: into.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
    assert found["params"].keys() == found["optimizer/ema"].keys()
    return found.values()


def assert_averages(folder, steps, average=None):
    """Each step's average follows from the one before and from the step's weights, to the last bit."""
    for step in range(1, steps + 1):
        weights, got = arrays(folder, step)
        for name, w in weights.items() if average is not None else ():
            want = average[name] + (w - average[name]) * np.float32(1 - KEEPS)
            np.testing.assert_array_equal(got[name], want, f"{name}, step {step}")
        average = got


def validated(folder):
    return [(e["step"], e["loss"]) for e in dpt.events(folder, "eval") if e["split"] == "valid"]


def evaluate(path, weights, *words):
    result = dpt.run("eval", path, "--checkpoint", weights, *words)
    assert result.code == 0, result
    return result.out, result.err


@pytest.mark.parametrize("ranks, sets", [(0, ()), (3, ("comm.reduction=reproducible", "parallel.shard=gradients"))])
def test_it_begins_as_the_weights_and_follows_them(tmp_path, ranks, sets):
    """Also where the weights come from a file: a checkpoint's average there."""
    path = job(tmp_path / "job.yaml")
    train(path, tmp_path / "other", sets=["train.steps=1", "seed=9"])
    train(path, tmp_path / "run", "--init-from", tmp_path / "other", ranks=ranks, sets=sets)
    assert_averages(tmp_path / "run", 6, list(arrays(tmp_path / "other", 1))[1])


def test_it_is_what_is_evaluated(tmp_path):
    """While training and after it, with the model's running statistics; --weights raw takes the others."""
    path, run = job(tmp_path / "job.yaml"), tmp_path / "run"
    train(path, run)
    plain = dpt.run("eval", path, "--checkpoint", run, "--json").out
    tested = [e for e in dpt.events(run, "eval") if e["split"] == "test"][-1]
    assert abs(json.loads(plain)["loss"] - tested["loss"]) < 1e-6
    out, err = evaluate(path, run)
    assert "moving average" in err and evaluate(path, run, "--weights", "ema")[0] == out
    raw, err = evaluate(path, run, "--weights", "raw")
    assert raw != out and "moving average" not in err
    for words, want in (((), out), (("--weights", "raw"), raw)):
        exported = dpt.run("export", run, tmp_path / "w.npz", *words)
        assert exported.code == 0 and ("moving average" in exported.out) == (words == ()), exported
        assert evaluate(path, tmp_path / "w.npz")[0] == want


def test_a_run_without_it_is_as_before(tmp_path):
    """Evaluating the average leaves no trace in the weights; a checkpoint without it has none to give."""
    path = job(tmp_path / "job.yaml")
    train(path, tmp_path / "with")
    train(path, tmp_path / "without", sets=["train.ema=null"])
    with h5py.File(tmp_path / "without" / "checkpoints" / "latest") as file:
        assert "ema" not in file["optimizer"] and b"ema" not in file["job"][()]
        for name, weights in list(arrays(tmp_path / "with", 6))[0].items():
            np.testing.assert_array_equal(file["params"][name][...], weights)
    for command in (("eval", path, "--checkpoint", tmp_path / "without"), ("export", tmp_path / "without", tmp_path / "w.npz")):
        result = dpt.run(*command, "--weights", "ema")
        assert result.code == 65 and "no moving average" in result.err, result
    result = dpt.run("eval", path, "--checkpoint", tmp_path / "with", "--weights", "all")
    assert result.code == 2 and "none of ema, raw" in result.err, result


def test_meshes_have_the_bytes_of_one_rank(tmp_path):
    """Each with all slots, slices, stages, and parts of layers; stopped and resumed."""
    path = job(tmp_path / "job.yaml", model="{type: mlp, hidden: [5600], outputs: 10}", optimizer="{type: adam}",
               comm="{reduction: reproducible}", train="{steps: 3, ema: 0.5}", checkpoint="{every: never}", eval="{every: 1 steps}")
    sets = ["checkpoint.every=1 epochs"]
    train(path, tmp_path / "one", sets=sets)
    meshes = [(2, "{}"), (3, "{shard: optimizer}"), (2, "{shard: parameters}"), (2, "{tensor: 2}"), (2, "{pipeline: 2}")]
    for number, (ranks, mesh) in enumerate(meshes):
        folder = tmp_path / str(number)
        if number == 0:
            train(path, folder, sets=[*sets, "train.steps=1"])
        train(path, folder, ranks=ranks, sets=[*sets, f"parallel={mesh}"])
        assert dpt.newest(folder) == dpt.newest(tmp_path / "one"), mesh
        assert validated(folder) == validated(tmp_path / "one"), mesh


def test_weights_that_a_node_shares_have_the_bytes_of_one_rank(tmp_path):
    """From 16 MiB on: each rank updates a part of them and of the average, which is evaluated with all of it; one has the statistics. Stopped and resumed."""
    path = job(tmp_path / "job.yaml", optimizer="{type: adam}", batch="{global: 16, micro: 4}",
               model="{type: sequential, layers: [flatten, {dense: 9200}, batchnorm, relu, {dense: 10}]}",
               data="{train: synthetic, valid: 0.1, synthetic: {samples: 100, shape: [1, 12, 12]}}",
               comm="{reduction: reproducible}", train="{steps: 2, ema: 0.5}", checkpoint="{every: 1 epochs}", eval="{every: 1 steps}")
    planned = dpt.run("plan", path, "--json", "--no-time", "--ranks", 2)
    assert json.loads(planned.out)["memory"]["of"]["weights"] == "node", planned
    train(path, tmp_path / "3", ranks=2, sets=["train.steps=1"])
    for ranks in (0, 2, 3):
        train(path, tmp_path / str(ranks), ranks=ranks)
        assert validated(tmp_path / str(ranks)) == validated(tmp_path / "0") and dpt.newest(tmp_path / str(ranks)) == dpt.newest(tmp_path / "0")


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libcublasLt.so.13")), reason="no fake device")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_device_keeps_it(tmp_path, ranks):
    machine = Machine(tmp_path)
    path = machine.job({**dpt.SMALL_JOB, **JOB})
    machine.train("run", path, ranks=ranks)
    machine.train("host", path, kind="cpu")
    assert_averages(tmp_path / "run", 6)
    machine.assert_same_run("run", "host", 1e-3)
    np.testing.assert_allclose(machine.evaluations("run"), machine.evaluations("host"), rtol=1e-3)
