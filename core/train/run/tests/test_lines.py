"""What a run tells while it goes on: lines of means, and each epoch's at its end, on the screen and in metrics.jsonl."""
import re
import signal
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

# 1009 is prime: the last of an epoch's 16 steps has 49 samples.
JOB = """
data: {{train: synthetic, synthetic: {{samples: 1009, shape: [1, 12, 12]}}}}
model: {{type: mlp, hidden: [32], outputs: 10}}
batch: {{global: 64, micro: 8}}
optimizer: {{type: sgd, lr: 0.05, momentum: 0.9}}
comm: {{reduction: reproducible}}
checkpoint: {{every: never}}
train: {{{length}}}
"""
LINREG = """
data: {train: synthetic, synthetic: {samples: 64, shape: [5], outputs: 1}}
model: {type: linear, outputs: 1}
loss: mse
batch: {global: 64}
checkpoint: {every: never}
"""
LINE = re.compile(r"epoch (\d+)(?:/\d+)?  step (\d+)(?:/\d+)?  mean loss (\S+)  accuracy (\S+)  ")
EPOCH = re.compile(r"epoch (\d+)  step (\d+)  train loss (\S+)  accuracy (\S+?)(?:  \((.*) samples\))?")


def job(tmp_path, length="epochs: 3"):
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(length=length))


def found(pattern, result):
    """The groups of the lines that are all of that pattern or begin with it."""
    lines = [pattern.match(line) if pattern is LINE else pattern.fullmatch(line) for line in result.err.splitlines()]
    return [match.groups() for match in lines if match]


def told(folder, kind):
    return [(e["epoch"], e["step"], e["loss"], e["accuracy"]) for e in dpt.events(folder, kind)]


def as_shown(numbers):
    return [(str(epoch), str(step), f"{loss:.4g}", f"{accuracy:.4f}") for epoch, step, loss, accuracy in numbers]


def test_means_are_of_all_samples_on_any_rank_count(tmp_path):
    """A line of each step says what each step gave; longer lines and the epoch's are their means by samples."""
    path = job(tmp_path)
    dpt.train(path, tmp_path / "single", "--set", "log.every=1 step")
    singles = dpt.events(tmp_path / "single", "train")
    sizes = np.array([64] * 15 + [49])
    for ranks in (1, 2, 3, 5):
        folder = tmp_path / str(ranks)
        result = dpt.train(path, folder, "--set", "log.every=8 steps", ranks=ranks)
        epochs, lines = dpt.events(folder, "epoch"), dpt.events(folder, "train")
        assert [(e["epoch"], e["step"], e["samples"]) for e in epochs] == [(1, 16, 1009), (2, 32, 1009), (3, 48, 1009)]
        for key in ("loss", "accuracy"):
            each = np.array([e[key] for e in singles]).reshape(3, 16)
            np.testing.assert_allclose([e[key] for e in epochs], each @ sizes / 1009, rtol=1e-12)
            parts = (each * sizes).reshape(6, 8).sum(1) / sizes.reshape(2, 8).sum(1)[[0, 1] * 3]
            np.testing.assert_allclose([e[key] for e in lines], parts, rtol=1e-12)
        assert found(LINE, result) == as_shown(told(folder, "train"))
        assert [line[:4] for line in found(EPOCH, result)] == as_shown(told(folder, "epoch"))
        assert all(line[4] is None for line in found(EPOCH, result))
        assert told(folder, "epoch") == told(tmp_path / "1", "epoch") and told(folder, "train") == told(tmp_path / "1", "train")
    assert epochs[2]["accuracy"] > epochs[0]["accuracy"] > 0.1


def test_an_epoch_that_was_resumed_says_of_how_many_samples_it_tells(tmp_path):
    path = job(tmp_path)
    saved = ["--set", "checkpoint.every=1000 steps", "--set", "log.every=1 step"]
    first = dpt.train(path, tmp_path / "out", *saved, "--set", "train={steps: 20}")
    assert [line[1] for line in found(EPOCH, first)] == ["16"]  # the second one did not end
    second = dpt.run("train", path, "--output", tmp_path / "out", *saved, ranks=2)
    assert second.code == 0, second
    assert [(line[1], line[4]) for line in found(EPOCH, second)] == [("32", "753"), ("48", None)]
    events = dpt.events(tmp_path / "out", "epoch")
    assert [(e["step"], e["samples"]) for e in events] == [(16, 1009), (32, 1009 - 4 * 64), (48, 1009)]
    steps = dpt.events(tmp_path / "out", "train")[20:32]
    assert np.isclose(events[1]["loss"], np.dot([e["loss"] for e in steps], [64] * 11 + [49]) / 753, rtol=1e-12)


@pytest.mark.parametrize("steps, lines", [(7, 7), (24, 12), (499, 10), (1200, 24)])
def test_short_runs_have_ten_lines(tmp_path, steps, lines):
    path = dpt.write_job(tmp_path / "job.yaml", LINREG + f"train: {{steps: {steps}}}\n")
    result = dpt.train(path, tmp_path / "out")
    events = dpt.events(tmp_path / "out", "train")
    assert len(events) == len(re.findall(r"^epoch .*  mean loss \S+  [\d ]+(?: samples)?/s  0:\d\d left$", result.err, re.M)) == lines
    # An epoch is one step here, and of more than 100 of them as many are told of as there are lines, and the last one.
    told_of = {e["step"] for e in dpt.events(tmp_path / "out", "epoch")}
    assert told_of == (set(range(1, steps + 1)) if steps <= 100 else {e["step"] for e in events} | {steps})


def test_a_run_begins_with_what_it_is(tmp_path):
    """What the job says, its model has and the data gives, for whoever reads metrics.jsonl without the job."""
    folder = tmp_path / "run"
    dpt.train(dpt.write_job(tmp_path / "job.yaml", JOB.format(length="epochs: 2") + "name: first\n"), folder, "--set", "data.valid=0.1")
    run = dpt.events(folder, "run")[0]
    want = {"name": "first", "ranks": 1, "hosts": 1, "parameters": 145 * 32 + 33 * 10, "train_samples": 908, "valid_samples": 101,
            "global": 64, "micro": 8, "steps": 30, "steps_per_epoch": 15, "lr": 0.05}
    assert {key: run[key] for key in want} == want and "test_samples" not in run and "resumed_from_step" not in run


def test_never_is_quiet(tmp_path):
    result = dpt.train(job(tmp_path, "epochs: 1"), tmp_path / "out", "--set", "log.every=never")
    assert not dpt.events(tmp_path / "out", "epoch") and not re.search("^epoch|^  lines", result.err, re.M), result


def test_lines_fit_a_terminal(tmp_path):
    """However long the numbers, in the header and in what follows."""
    path = job(tmp_path, "epochs: 1000000")
    process = dpt.start(path, tmp_path / "out", 1, "--set", "log.every=5 steps", "--set", "optimizer.lr=1e-9", "--set",
                        "checkpoint.every=1000000 steps")
    assert dpt.wait_for_step(process, tmp_path / "out", 100)
    process.send_signal(signal.SIGUSR1)
    process.stdout, process.stderr = process.communicate(timeout=60)
    result = dpt.Result(process)
    assert result.code == 75 and len(found(LINE, result)) > 3, result
    lines = [line for line in result.err.splitlines() if re.match(r"epoch|  (?!output)\w", line)]
    assert len(lines) > 10 and max(map(len, lines)) < 80, max(lines, key=len)
    shapes = [re.sub(r"[\d.:e+-]+", "#", line) for line in lines if LINE.match(line)]
    assert len(set(shapes[1:])) <= 3, set(shapes)


def test_many_short_epochs_and_a_loss_that_rose(tmp_path):
    """Of a hundred epochs some are shown, and all are in metrics.jsonl; who ends far above the first epoch's loss is told so."""
    path = dpt.write_job(tmp_path / "job.yaml", LINREG)
    result = dpt.train(path, tmp_path / "many", "--set", "train.epochs=100", "--set", "log.every=10 steps")
    shown = re.findall(r"^epoch (\d+)  step \d+  train loss", result.err, re.M)
    assert [int(epoch) for epoch in shown] == list(range(10, 101, 10)) and len(dpt.events(tmp_path / "many", "epoch")) == 100
    rates = [int(text.replace(" ", "")) for text in re.findall(r"  ([\d ]+) samples/s  ", result.err)]
    assert len(rates) == 10 and all(rate % 10 ** (len(str(rate)) - 3) == 0 for rate in rates), rates
    assert "the training loss rose" not in result.err
    result = dpt.train(path, tmp_path / "far", "--set", "train.epochs=8", "--set", "optimizer.lr=3")
    losses = [e["loss"] for e in dpt.events(tmp_path / "far", "epoch")]
    assert f"warning: the training loss rose from {losses[0]:.4g} in epoch 1 to {losses[-1]:.4g} in epoch 8: a smaller optimizer.lr than 3," in result.err
    result = dpt.train(path, tmp_path / "steps", "--set", "batch.global=8", "--set", "train.steps=7", "--set", "optimizer.lr=3")
    assert re.search(r"warning: the training loss rose from \S+ at the first step to \S+: a smaller", result.err), result


def test_a_first_step_of_easy_samples_is_no_loss_that_rose(tmp_path):
    """Four samples of a target that hardly varies, and then others: the epochs' means fall."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 3)).astype("f4")
    y = (x.sum(1, keepdims=True) + 2 * rng.normal(size=(40, 1))).astype("f4")
    x[:4], y[:4] = 0, 0.3
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["images"], f["labels"] = x, y
    path = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/x.h5, shuffle: none}}\nmodel: {{type: linear, outputs: 1}}\n"
                         "loss: mse\nbatch: {global: 4}\noptimizer: {type: sgd, lr: 0.001}\ncheckpoint: {every: never}\n")
    result = dpt.train(path, tmp_path / "run", "--set", "train.epochs=4", "--set", "log.every=1 step")
    lines, epochs = ([e["loss"] for e in dpt.events(tmp_path / "run", kind)] for kind in ("train", "epoch"))
    assert epochs[-1] < epochs[0] and epochs[-1] > 10 * lines[0]
    assert "the training loss rose" not in result.err, result


@pytest.mark.parametrize("loss, last, inside", [("cross_entropy", "relu", "softmax"), ("focal", "sigmoid", "softmax"), ("binary_cross_entropy", "sigmoid", "sigmoid"),
                                                ("binary_cross_entropy", "leaky_relu", ""), ("mse", "relu", "")])
def test_a_last_layer_that_the_loss_has_in_it_is_told(tmp_path, loss, last, inside):
    numbers = "outputs" if loss in ("mse", "binary_cross_entropy") else "classes"
    if loss == "binary_cross_entropy":
        with h5py.File(tmp_path / "x.h5", "w") as f:
            f["images"], f["labels"] = np.random.default_rng(1).normal(size=(32, 4)).astype("f4"), np.eye(2, dtype="f4")[np.arange(32) % 2]
        data = f"{{train: {tmp_path}/x.h5}}"
    else:
        data = f"{{train: synthetic, synthetic: {{samples: 32, shape: [4], {numbers}: 2}}}}"
    path = dpt.write_job(tmp_path / "job.yaml", f"data: {data}\nmodel: {{type: sequential, layers: [{{dense: 2}}, {last}]}}\nloss: {loss}\n"
                         "train: {steps: 1}\ncheckpoint: {every: never}\n")
    told = [line for line in dpt.train(path, tmp_path / "run").err.splitlines() if "last layer" in line]
    assert told == [f"warning: model: the last layer is {last}, and loss {loss} has the {inside} in it, so it takes outputs of any size: "
                    "leave that layer out"] * bool(inside)


def test_rates_that_train_nothing_are_told(tmp_path):
    path = job(tmp_path, "steps: 20")
    for sets, told in ((["optimizer.lr=0"], "optimizer.lr is 0: the run changes no weight"),
                       (["schedule.warmup=50"], "schedule.warmup is 50 steps, and the run has 20: it ends at 0.02, and never reaches its learning rate, 0.05"),
                       (["schedule.warmup=2 epochs"], "schedule.warmup is 32 steps, and the run has 20: it ends at 0.0312, "),
                       (["schedule.warmup=20"], None), (["schedule.type=onecycle"], None)):
        result = dpt.train(path, tmp_path / "run", "--overwrite", *(word for key in sets for word in ("--set", key)))
        warned = [line for line in result.err.splitlines() if line.startswith("warning: ") and ("warmup" in line or ".lr" in line)]
        assert len(warned) == (told is not None) and (told is None or told in warned[0]), result
