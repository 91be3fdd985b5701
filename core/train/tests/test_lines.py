"""What a run tells while it goes on: lines of means, and each epoch's at its end, on the screen and in metrics.jsonl."""
import re
import signal
import sys

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
    """Of a hundred epochs some are shown, and all are in metrics.jsonl; who ends far above the first step's loss is told so."""
    path = dpt.write_job(tmp_path / "job.yaml", LINREG)
    result = dpt.train(path, tmp_path / "many", "--set", "train.epochs=100", "--set", "log.every=10 steps")
    shown = re.findall(r"^epoch (\d+)  step \d+  train loss", result.err, re.M)
    assert [int(epoch) for epoch in shown] == list(range(10, 101, 10)) and len(dpt.events(tmp_path / "many", "epoch")) == 100
    rates = [int(text.replace(" ", "")) for text in re.findall(r"  ([\d ]+) samples/s  ", result.err)]
    assert len(rates) == 10 and all(rate % 10 ** (len(str(rate)) - 3) == 0 for rate in rates), rates
    assert "the training loss rose" not in result.err
    result = dpt.train(path, tmp_path / "far", "--set", "train.epochs=8", "--set", "optimizer.lr=3")
    assert re.search(r"warning: the training loss rose from \S+ at the first step to \S+: a smaller optimizer.lr than 3,", result.err), result
