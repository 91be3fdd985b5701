"""comm.reduction: reproducible: the checkpoint is a function of the job, the data and the machine's numerics, of nothing else.
Here are chosen jobs; test_random_jobs.py draws others, on meshes of all kinds."""
import itertools
import os
import random
import sys

import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
import running  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY") == "1"

JOB = """
seed: {seed}
data: {{train: synthetic, valid: 0.1, synthetic: {synthetic}}}
model: {model}
loss: {loss}
batch: {batch}
optimizer: {optimizer}
schedule: {{type: cosine, warmup: 3}}
train: {{epochs: {epochs}, clip_norm: 0.5}}
checkpoint: {{every: {every}}}
log: {{every: 1 steps}}
comm: {{reduction: reproducible}}
"""
SGD = "{type: sgd, lr: 0.05, momentum: 0.9}"
ADAM = "{type: adam, lr: 0.003}"
IMAGES = "{samples: 509, shape: [1, 10, 10], classes: 10}"
MODELS = {
    "linreg": ("{type: linear, outputs: 2}", "{samples: 509, shape: [7], outputs: 2}", "mse"),
    "mlp": ("{type: mlp, hidden: [31], outputs: 10}", IMAGES, "cross_entropy"),
    "cnn": ("{type: cnn, channels: [5, 9], outputs: 10}", IMAGES, "cross_entropy"),
    "wide": ("{type: mlp, hidden: [300, 530], outputs: 10}", IMAGES, "cross_entropy"),
    "dropout": ("{type: sequential, layers: [{conv: {channels: 6, padding: same}}, relu, {maxpool: 2}, flatten,"
                " {dropout: 0.3}, {dense: 20}, gelu, {dropout: 0.2}, {dense: 10}]}", IMAGES, "cross_entropy"),
    "norms": ("{type: sequential, layers: [{conv: {channels: 18, padding: same}}, batchnorm, relu, {maxpool: 2}, {conv: 5}, batchnorm,"
              " {dropout: 0.3}, flatten, {dense: 20}, batchnorm, gelu, {dense: 10}]}", IMAGES, "cross_entropy"),
    "chain": ("{type: sequential, layers: [flatten, {dense: 300}, relu, {dropout: 0.2}, {dense: 530}, gelu, {dense: 200}, batchnorm,"
              " {dense: 10}]}", "{samples: 509, shape: [1, 16, 16], classes: 10}", "cross_entropy"),
    "augmented": ("{type: cnn, channels: [5, 9], outputs: 10}", "{samples: 509, shape: [3, 10, 10], classes: 10}, augment: "
                  "{crop_area: [0.3, 1], crop_padding: 1, flip: true, vertical_flip: true, rotate: 20, shift: 0.2, brightness: 0.3, "
                  "contrast: 0.3, saturation: 0.3, hue: 0.1, erase: 0.3, noise: 0.1, mixup: 0.3, cutmix: 1}", "cross_entropy"),
    "norms-team": ("{type: sequential, layers: [flatten, {dense: 300}, batchnorm, relu, {dropout: 0.2}, {dense: 530}, batchnorm,"
                   " relu, {dense: 10}]}", IMAGES, "cross_entropy"),
}


def job(tmp_path, name, optimizer, seed=3, batch="{global: 60, micro: 7}", epochs=2, every="5 steps"):
    model, synthetic, loss = MODELS[name]
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(model=model, synthetic=synthetic, loss=loss, optimizer=optimizer,
                                                           seed=seed, batch=batch, epochs=epochs, every=every))


def bytes_of(folder):
    return (folder / "checkpoints" / "latest").read_bytes()


def shards(dice):
    """Whose the optimizer's state, the gradient and the weights are changes nothing either."""
    return "--set", f"parallel.shard={dice.choice(('none', 'optimizer', 'gradients', 'parameters', 'parameters'))}"


def run(path, folder, ranks, threads, *words, ok=(0,)):
    result = dpt.run(path, "--output", folder, "--quiet", "--set", f"device.threads={threads}", *words, ranks=ranks)
    assert result.code in ok, result
    return result


def stop_at(path, folder, step, ranks, *words):
    code, err = running.stop_at(path, folder, step, ranks, "--quiet", *words)
    assert code == 75 and step <= dpt.steps_logged(folder)[-1] < step + 5, err


GRID = list(itertools.product((1, 2, 3, 4, 5, 7, 8), (1, 2, 3)))


@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_and_threads_change_nothing(tmp_path, name, optimizer):
    path = job(tmp_path, name, optimizer)
    run(path, tmp_path / "one", 1, 1)
    want = bytes_of(tmp_path / "one")
    losses = [e["loss"] for e in dpt.events(tmp_path / "one", "train")]
    dice = random.Random(name + optimizer)
    for ranks, threads in GRID[1:] if HEAVY else dice.sample(GRID[1:], 2):
        folder = tmp_path / f"{ranks}-{threads}"
        words = shards(dice)
        run(path, folder, ranks, threads, *words)
        assert bytes_of(folder) == want, (ranks, threads, words)
        assert [e["loss"] for e in dpt.events(folder, "train")] == losses
        for ours, theirs in zip(dpt.events(folder, "eval"), dpt.events(tmp_path / "one", "eval")):
            assert (ours["loss"], ours["accuracy" if "accuracy" in ours else "loss"]) == \
                (theirs["loss"], theirs["accuracy" if "accuracy" in theirs else "loss"])


@pytest.mark.parametrize("name", ["cnn", "dropout", "norms"])
def test_stopped_and_resumed_on_other_ranks(tmp_path, name):
    """Stopped at a random step and resumed on another number of ranks, three times in a row."""
    path = job(tmp_path, name, ADAM, epochs=5, every="1 steps")
    run(path, tmp_path / "one", 1, 1)
    dice = random.Random(name)
    last = 0
    for _ in range(3):
        last += dice.randrange(3, 10)
        stop_at(path, tmp_path / "parts", last, dice.choice((1, 2, 3, 4)), *shards(dice))
    run(path, tmp_path / "parts", dice.choice((2, 3, 5)), 1, *shards(dice))
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "one")
    assert [e["step"] for e in dpt.events(tmp_path / "parts", "train")] == list(range(1, 41))


def test_micro_batch_follows_from_the_job_alone(tmp_path):
    path = job(tmp_path, "mlp", SGD, batch="{global: 60}")
    for ranks, threads in ((1, 1), (2, 3), (5, 1)):
        run(path, tmp_path / f"{ranks}", ranks, threads)
        assert bytes_of(tmp_path / f"{ranks}") == bytes_of(tmp_path / "1")
    assert {e["micro"] for r in ("1", "2", "5") for e in dpt.events(tmp_path / r, "run")} == {8}


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_idle_ranks_change_nothing(tmp_path, name):
    """Three micro-batches, the last one short, on 5 ranks, and on 2 where it goes on; whatever ranks do together they do."""
    path = job(tmp_path, name, ADAM, batch="{global: 60, micro: 25}")
    sets = ("schedule=constant", "log.hashes=true", "train.check_replicas=1 steps", "data.test=synthetic")
    words = [word for setting in sets for word in ("--set", setting)]
    run(path, tmp_path / "one", 1, 1, *words)
    run(path, tmp_path / "idle", 5, 1, *words, "--set", "parallel.shard=parameters")
    run(path, tmp_path / "parts", 5, 1, *words, "--set", "train.epochs=1", "--set", "parallel.shard=optimizer")
    run(path, tmp_path / "parts", 2, 2, *words)
    for other in ("idle", "parts"):
        result = dpt.run("inspect", "--audit", tmp_path / "one", tmp_path / other)
        assert result.code == 0 and bytes_of(tmp_path / other) == bytes_of(tmp_path / "one"), result
    evals = [[{**e, "seconds": 0} for e in dpt.events(tmp_path / folder, "eval")] for folder in ("one", "idle")]
    assert evals[0] == evals[1] and len(evals[0]) == 3
    said = [dpt.run("eval", path, "--checkpoint", tmp_path / "idle", *words, ranks=ranks) for ranks in (1, 5)]
    assert said[0].code == said[1].code == 0 and said[0].out == said[1].out and "idle" not in said[1].err, said


@pytest.mark.skipif(not HEAVY, reason="64 ranks on few cores: with DPT_HEAVY=1")
def test_many_ranks(tmp_path):
    path = job(tmp_path, "mlp", SGD, batch="{global: 256, micro: 4}", epochs=1)
    run(path, tmp_path / "one", 1, 1)
    run(path, tmp_path / "many", 64, 1)
    assert bytes_of(tmp_path / "many") == bytes_of(tmp_path / "one")


def test_allreduce_resumes_on_other_ranks_to_rounding(tmp_path):
    path = job(tmp_path, "mlp", SGD, epochs=5, every="1 steps")
    words = ("--set", "comm.reduction=allreduce")
    run(path, tmp_path / "one", 1, 1, *words)
    stop_at(path, tmp_path / "parts", 9, random.Random(1).choice((1, 2, 3, 4)), *words)
    run(path, tmp_path / "parts", 3, 1, *words)
    ours, theirs = ([e["loss"] for e in dpt.events(tmp_path / f, "train")] for f in ("parts", "one"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-2)
