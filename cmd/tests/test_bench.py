"""`dptrain bench`: the table adds up to the step whatever is measured, names what runs, and leaves nothing behind."""
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

CONV = """
data: {train: synthetic, synthetic: {samples: 500, shape: [2, 10, 10], classes: 7}}
model:
  type: sequential
  layers: [{conv: {channels: 5, padding: same}}, relu, {maxpool: 2}, {conv: {channels: 6}}, flatten, {dense: 7}]
batch: {global: 24, micro: 3}
"""
WITH_PARAMETERS = ("conv1", "conv2", "dense1")
LINEAR = """
data: {train: synthetic, synthetic: {samples: 100, shape: [5], outputs: 1}}
model: {type: linear, outputs: 1}
loss: mse
batch: {global: 16}
"""


def bench(tmp_path, text, *words, **options):
    """Runs it in an empty folder, which must stay empty."""
    folder = tmp_path / "cwd"
    folder.mkdir(exist_ok=True)
    path = dpt.write_job(tmp_path / "job.yaml", text)
    result = dpt.run("bench", path, *words, cwd=folder, **options)
    assert os.listdir(folder) == [], "no run folder, no checkpoint"
    return result


def measured(*arguments, **options):
    result = bench(*arguments, "--json", "--quiet", **options)
    assert result.code == 0 and result.err == "" and len(result.out.splitlines()) == 1, result
    return json.loads(result.out)


def check_sums(found):
    rows = found["rows"]
    total = found["sum"]
    assert all(row["seconds"] >= 0 and row["limit_s"] >= 0 for row in rows)
    assert sum(row["seconds"] for row in rows) == pytest.approx(total["seconds"], rel=1e-9)
    assert sum(row["limit_s"] for row in rows) == pytest.approx(total["limit_s"], rel=1e-9)
    assert total["of_limit"] == pytest.approx(total["limit_s"] / total["seconds"], rel=1e-9)
    timed = found["timed_s"]
    if found["steps"] >= 4:  # they are a mean of these steps, and nothing of them is lost or told twice
        scale = found["scale"]
        assert timed["low"] * 0.98 * scale - 2e-7 <= total["seconds"] <= timed["high"] * 1.02 * scale, found
        assert scale == 1 if found["timed_every"] == 2 else 0 < scale <= 1
    for spread in (found["step_s"], timed):
        assert 0 < spread["least"] <= spread["low"] <= spread["median"] <= spread["high"] <= spread["most"]
    assert found["samples_per_s"] == pytest.approx(found["batch"]["global"] / found["step_s"]["median"])
    machine = found["machine"]
    assert machine["flop_per_s_thread"] > 0 and all(m["bytes_per_s"] > 0 for m in machine["bandwidth_thread"])


def passes_of(found):
    """Layer -> the passes in which it is computed."""
    passes = {}
    for row in found["rows"]:
        for layer in row["part"].split("+") if row["pass"] else []:
            passes.setdefault(layer, []).append(row["pass"])
    return passes


TINY = """
data: {train: synthetic, synthetic: {samples: 64, shape: [2], outputs: 1}}
model: {type: linear, outputs: 1}
loss: mse
batch: {global: 4}
optimizer: {type: sgd, lr: 0.01}
device: {threads: 1}
"""


def test_steps_of_microseconds_have_timelines_seldom(tmp_path):
    """And the table is scaled to a step without: what they cost is told of all steps together."""
    found = measured(tmp_path, TINY, "--steps", "300")
    check_sums(found)
    assert found["steps"] == 300 and found["timed_every"] in (2, 8), "2 on a machine that is much slower or loaded"
    assert measured(tmp_path, TINY, "--steps", "20", env=dpt.ticking(tmp_path))["timed_every"] == 2, "those of 10 ms often"
    out = bench(tmp_path, TINY, "--steps", "300", "--quiet").out
    assert "timelines, in one of 8 steps, cost " in out and "the table is scaled by " in out or "timelines cost " in out


STANDING = """
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (clock != CLOCK_THREAD_CPUTIME_ID)
        return (int)syscall(SYS_clock_gettime, clock, t);
    *t = (struct timespec){1, 0};
    return 0;
}
"""


def test_a_processor_time_that_stands_still(tmp_path):
    """A virtual machine's clock of a thread's CPU time leaves out intervals: rates were infinite, and null in JSON."""
    (tmp_path / "standing.c").write_text(STANDING)
    shim = tmp_path / "standing.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, tmp_path / "standing.c"], check=True)
    check_sums(measured(tmp_path, CONV, "--steps", 9, "--set", "device.threads=2", env={"LD_PRELOAD": str(shim)}))


def test_the_row_of_samples_says_what_is_done_to_them(tmp_path):
    found = measured(tmp_path, CONV, "--steps", 4, "--set", "data.augment.flip=true")
    assert "data: augmentation" in [row["part"] for row in found["rows"]]


@pytest.mark.parametrize("kind", ["ref", "cpu"])
@pytest.mark.parametrize("ranks, threads", [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_the_rows_add_up_to_the_step(tmp_path, kind, ranks, threads):
    found = measured(tmp_path, CONV, "--steps", 9, "--set", f"device.kind={kind}",
                     "--set", f"device.threads={threads}", ranks=ranks)
    assert (found["ranks"], found["threads"], found["steps"]) == (ranks, ranks * threads, 9)
    check_sums(found)
    parts = [row["part"] for row in found["rows"]]
    assert ("waiting for ranks" in parts) == (ranks > 1)
    assert ("waiting for threads" in parts) == (threads > 1)
    assert {"data", "loss", "reduction", "gradient norm", "optimizer", "other", "waiting for samples"} <= set(parts)
    passes = passes_of(found)
    for layer in WITH_PARAMETERS:
        assert passes[layer].count("forward") == 1, passes
        back = [p for p in passes[layer] if p != "forward"]
        assert back == ["backward"] or "backward-weights" in back, passes
    assert "backward-data" not in passes["conv1"], "nobody wants the gradient of the images"


def test_the_limits_count_what_the_layers_do(tmp_path):
    found = measured(tmp_path, CONV, "--steps", 2, "--set", "device.kind=ref")
    flop = {(row["part"], row["pass"]): row["flop"] for row in found["rows"]}
    # An image of 10x10 padded by one: of its three positions a kernel's edge misses the image once at each side.
    assert flop["conv1", "forward"] == 24 * 2 * (10 * 3 - 2) ** 2 * 2 * 5
    assert flop["conv2", "forward"] == 24 * 2 * (3 * 3) ** 2 * 5 * 6
    assert flop["dense1", "forward"] == 24 * 2 * (6 * 3 * 3) * 7
    assert all(row["flop"] == 0 for row in found["rows"] if row["part"] in ("relu1", "maxpool1", "optimizer"))
    optimizer = next(row for row in found["rows"] if row["part"] == "optimizer")
    assert optimizer["bytes"] == 4 * 7 * found["parameters"], "adam: weights and two optimizer states in and out, the gradient in"


def test_the_way_of_each_pass_is_named(tmp_path):
    """What computes a convolution's or dense layer's pass follows from its shape; other layers have one way, and so has plain C."""
    found = measured(tmp_path, CONV, "--steps", 2, "--set", "device.kind=cpu")
    ways = {(row["part"], row["pass"]): row["way"] for row in found["rows"]}
    assert ways["dense1", "forward"] == ways["dense1", "backward-weights"] == "tiles"
    assert ways["conv1+relu1+maxpool1", "backward-weights"] == "lists", ways
    assert all(way for (part, computed), way in ways.items() if "conv" in part)
    assert all(way is None for (part, _), way in ways.items() if part in ("optimizer", "flatten1", "data"))
    small = measured(tmp_path, LINEAR, "--steps", 2, "--set", "device.kind=cpu")
    assert {row["way"] for row in small["rows"] if row["part"] == "dense1"} == {"small"}
    table = bench(tmp_path, CONV, "--steps", 2, "--set", "device.kind=cpu").out
    assert re.search(r"^where it goes .* of limit way$", table, re.M) and re.search(r"^dense1 forward .* tiles$", table, re.M), table
    plain = bench(tmp_path, CONV, "--steps", 2, "--set", "device.kind=ref").out
    assert re.search(r"^where it goes .* of limit$", plain, re.M) and "tiles" not in plain


@pytest.mark.parametrize("words", [["--set", "comm.reduction=reproducible"], ["--set", "batch.micro=5"],
                                   ["--set", "optimizer={type: sgd, momentum: 0.9}", "--set", "data.drop_last=true"]])
def test_other_ways_of_training(tmp_path, words):
    check_sums(measured(tmp_path, CONV, "--steps", 5, *words, ranks=2))


def test_a_small_model(tmp_path):
    found = measured(tmp_path, LINEAR, "--steps", 50)
    check_sums(found)
    assert "dense1" in passes_of(found)


def test_the_table_fits_a_terminal(tmp_path):
    name = "a_convolution_with_a_rather_long_name"
    text = CONV.replace("{channels: 5, padding: same}", "{channels: 5, padding: same, name: %s}" % name)
    for columns in (80, 76):
        out = bench(tmp_path, text, "--steps", 4, "--ranks", 2,
                    env={"DPTRAIN_TTY": "1", "COLUMNS": str(columns)}).out
        lines = out.splitlines()
        table = lines[next(i for i, line in enumerate(lines) if line.startswith("where it goes")):]
        assert max(map(len, table)) <= columns, out
        assert max(map(len, lines)) <= 80, out
        assert name not in out and name[:4] in out and "name forward" in out and " backward-weights" in out, out
    out = bench(tmp_path, text, "--steps", 4).out
    assert name in out and " forward" in out, "nothing is cut where there is no terminal"
    assert "\r" not in out and "\033" not in out


def test_shares_add_up_in_the_table(tmp_path):
    out = bench(tmp_path, CONV, "--steps", 8, "--ranks", 2).out
    rows = [line for line in out.splitlines() if " %" in line and "the limit" not in line]
    shares = [float(line.split(" %")[0].split()[-1]) for line in rows]
    assert shares[-1] == 100.0 and rows[-1].startswith("step "), out
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.05 * len(shares)), out
    assert "% of the limit" in out.splitlines()[-1]


@pytest.mark.parametrize("words, code, says", [
    (["--steps", "0"], 2, "a whole number"),
    (["--steps", "many"], 2, "a whole number"),
    (["--jsno"], 2, "did you mean --json?"),
    (["--html", "lr.html"], 2, "for --find-lr"),
    (["--find-lr", "--lr-range", "1,0.1"], 2, "the smaller one first"),
    (["--find-lr", "--lr-range", "0.1"], 2, "two rates above 0"),
    (["--find-lr", "--steps", "1"], 2, "from 2 to"),
    (["--find-lr", "--html", "lr.pdf"], 2, "ends in .html"),
    (["--set", "batch.mirco=3"], 78, "did you mean 'micro'?"),
    (["--set", "data.train=[nothing-*.h5]"], 78, "nothing-*.h5"),
])
def test_mistakes(tmp_path, words, code, says):
    result = bench(tmp_path, CONV, *words)
    assert result.code == code and says in result.err and result.out == "", result


def test_find_lr(tmp_path):
    """The rate grows by a factor from step to step; the loss is a mean around each; and half the rate at which it is lowest is suggested."""
    text = CONV + "optimizer: {type: sgd}\nschedule: {type: onecycle, scale_lr: {rule: sqrt, base_batch: 6}}\ncomm: {reduction: reproducible}\n"
    page = tmp_path / "lr.html"
    found = measured(tmp_path, text, "--find-lr", "--steps", 60, "--lr-range", "1e-3,30", "--html", page)
    rates, raw, loss = (np.array(found[key]) for key in ("lr", "raw_loss", "loss"))
    assert found["diverged"] and 20 < len(rates) == len(raw) == len(loss) < 60, "it ends where the loss has grown"
    np.testing.assert_allclose(rates, 1e-3 * 30000 ** (np.arange(len(rates)) / 59), rtol=1e-9)
    weights = 1 - abs(np.arange(-3, 4)) / 4  # a twentieth of the steps to each side
    np.testing.assert_allclose(loss, np.convolve(raw, weights, "same") / np.convolve(np.ones(len(raw)), weights, "same"))
    lowest = loss.argmin()
    suggested = rates[rates <= rates[lowest] / 2][-1]
    assert found["lowest"] == pytest.approx(rates[lowest] / 2) and found["suggestion"] == pytest.approx(suggested / 2), "lr, before scale_lr"
    drawn = page.read_text()
    assert "<svg" in drawn and "suggestion" in drawn and '">0.001</text>' in drawn, "rates, not their logarithms"
    low, high = (float(number) for number in re.search(r'data-y="(\S+) (\S+)"', drawn).groups())
    assert low < loss.min() and loss[0] < high < loss.min() + 2 * max(loss[0] - loss.min(), loss.min()), "a loss without end hides no other"
    shared = measured(tmp_path, text, "--find-lr", "--steps", 60, "--lr-range", "1e-3,30", ranks=3)
    assert shared == found
    told = bench(tmp_path, text, "--find-lr", "--steps", 60, "--lr-range", "1e-3,30", "--quiet").out
    assert f"optimizer.lr={found['suggestion']:.2g}, half the rate at which the loss is lowest, {found['lowest']:.2g}\n" in told and " suggested" in told and "grows without end" in told
    assert "no suggestion" in bench(tmp_path, text, "--find-lr", "--steps", 20, "--lr-range", "1e-9,1e-8", "--quiet").out


def test_help():
    for words in (["bench", "--help"], ["help", "bench"]):
        result = dpt.run(*words)
        assert result.code == 0 and "--json" in result.out and "--steps N" in result.out, result
    assert "  bench " in dpt.run("--help").out
