"""What evaluations decide: when a run stops early, which checkpoint is the best and is taken, and when a plateau lowers the rate."""
import os
import sys

import h5py
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/engines/tests"]
import dpt  # noqa: E402
from running import stop_at  # noqa: E402
from test_device import MLP, fixture_machine, pytestmark as needs_device  # noqa: E402, F401

OVERFITS = {
    "seed": "3", "name": "it",
    "data": "{train: synthetic, valid: 0.2, test: synthetic, synthetic: {samples: 120, shape: [6], classes: 3, noise: 2}}",
    "model": "{type: mlp, hidden: [40]}",
    "batch": "{global: 24, micro: 8}",
    "optimizer": "{type: adam, lr: 0.02}",
    "train": "{epochs: 60, early_stop: {patience: 4}}",
    "comm": "{reduction: reproducible}",
    "log": "{every: 1 steps}",
}
NUMBERS = {**OVERFITS, "loss": "mse",
           "data": "{train: synthetic, valid: 0.2, test: synthetic, synthetic: {samples: 120, shape: [6], outputs: 2, noise: 2}}"}
LOWER = {"loss", "mae", "rmse"}


def job(tmp_path, sections=OVERFITS, **more):
    return dpt.write_job(tmp_path / "job.yaml", "".join(f"{key}: {text}\n" for key, text in {**sections, **more}.items()))


def go_on(path, folder, *words, ranks=0):
    result = dpt.run(path, "--output", folder, *words, ranks=ranks)
    assert result.code == 0 and "resuming at step" in result.err, result
    return result


def values(folder, name):
    """(step, value, loss) of each evaluation of data.valid, less being better."""
    sign = 1 if name in LOWER else -1
    return [(e["step"], sign * e[name], e["loss"]) for e in dpt.events(folder, "eval") if e["split"] == "valid"]


def stops_at(told, patience, min_delta=0.0):
    """By the rule: the step of the evaluation that is one too many; None: there is none."""
    best, waits = None, 0
    for step, value, _ in told:
        better = best is None or value < best - min_delta
        best, waits = (value, 0) if better else (best, waits + 1)
        if waits == patience:
            return step
    return None


def waits_at(told):
    """By the rule: how many evaluations have brought no better value at the last of these."""
    best, waits = None, 0
    for _, value, _ in told:
        best, waits = (value, 0) if best is None or value < best else (best, waits + 1)
    return waits


def best_of(told):
    return min(told, key=lambda one: (one[1], one[2], one[0]))[0]


def link(folder):
    return int(os.readlink(folder / "checkpoints" / "best")[5:-3])


def attributes(folder):
    with h5py.File(folder / "checkpoints" / "latest") as file:
        return {key: value.item() if hasattr(value, "item") else value for key, value in file.attrs.items()}


@pytest.mark.parametrize("sections, name, stop", [
    (OVERFITS, "loss", "{patience: 4}"), (OVERFITS, "loss", "{patience: 3, min_delta: 0.05}"), (OVERFITS, "accuracy", "{patience: 3, monitor: valid.accuracy}"),
    (OVERFITS, "f1", "{patience: 3, monitor: valid.f1}"), (OVERFITS, "roc_auc", "{patience: 2, monitor: valid.roc_auc}"),
    (NUMBERS, "mae", "{patience: 4, monitor: valid.mae}"), (NUMBERS, "r2", "{patience: 4, monitor: valid.r2}")])
def test_ends_where_it_should(tmp_path, sections, name, stop):
    """By the evaluations that metrics.jsonl tells: where it stops, which is the best, what is said of both."""
    folder = tmp_path / "run"
    result = dpt.train(job(tmp_path, sections, train=f"{{epochs: 60, early_stop: {stop}}}"), folder)
    told, end, last = values(folder, name), dpt.events(folder, "end")[0], sum(line.startswith(("last test", "best test")) for line in result.out.splitlines())
    delta = 0.05 if "min_delta" in stop else 0
    assert end["step"] == told[-1][0] == stops_at(told, int(stop[11]), delta) < 240 and end["reason"] == "done"
    assert f"valid.{name} has not " in end["stopped_early"] and end["stopped_early"] in result.out and end["stopped_early"] in result.err
    assert f"stopped early at epoch {end['step'] // 4}, step {end['step']} of at most 240: " in result.err, result
    best = best_of(told)
    assert link(folder) == best == attributes(folder)["best_step"]
    assert f"at epoch {best // 4}, step {best}" in result.out.split("best by")[1], result
    assert [e["step"] for e in dpt.events(folder, "eval") if e.get("best") == f"valid.{name}"][-1] == best
    tested = dpt.events(folder, "best")
    assert [e["step"] for e in tested] == [best] * (best != end["step"]) and last == 2 * len(tested)


def test_goes_on_as_long_as_either_becomes_better(tmp_path):
    """By the rule for each of two values; the counts of both are in the checkpoint, and a run that goes on has them."""
    monitors = "patience: 5, monitor: valid.accuracy, also: valid.loss"
    path, folder = job(tmp_path, train=f"{{epochs: 60, early_stop: {{{monitors}}}}}"), tmp_path / "run"
    result = dpt.train(path, folder)
    both = [values(folder, name) for name in ("accuracy", "loss")]
    waits = [[waits_at(told[:i + 1]) for i in range(len(told))] for told in both]
    wanted = next(i for i, pair in enumerate(zip(*waits)) if min(pair) >= 5)
    assert dpt.events(folder, "end")[0]["step"] == both[0][wanted][0] < 240 and len(both[0]) == wanted + 1
    assert any(max(pair) >= 5 > min(pair) for pair in zip(*waits)), "neither ever waited for the other"
    assert [attributes(folder)[f"early_stop_{key}waits"] for key in ("", "also_")] == [each[-1] for each in waits]
    assert [attributes(folder)[key] for key in ("early_stop_also_monitor", "best_monitor")] == [b"valid.loss", b"valid.accuracy"]
    assert "sooner where 5 evaluations bring no better valid.accuracy or valid.loss" in result.err
    assert "valid.accuracy has not risen above" in result.out and ", and valid.loss has not fallen below" in result.out
    assert link(folder) == best_of(both[0])
    code, err = stop_at(path, tmp_path / "parts", both[0][wanted][0] - 6, 2)
    assert code == 75, err
    go_on(path, tmp_path / "parts")
    assert (tmp_path / "parts/checkpoints/latest").read_bytes() == (folder / "checkpoints/latest").read_bytes()


@pytest.mark.parametrize("sections, length, longer", [
    ({"model": "{type: linear}", "optimizer": "{type: sgd, lr: 1.0e-3}", "train": "{epochs: 5}"}, 20, "train.epochs=10"),
    ({"model": "{type: linear}", "optimizer": "{type: sgd, lr: 1.0e-3}", "train": "{steps: 9}", "eval": "{every: 3 steps}"}, 9, "train.steps=18"),
    ({"model": "{type: linear}", "optimizer": "{type: sgd, lr: 1.0e-3}", "train": "{epochs: 1}"}, 4, None),  # one evaluation says nothing
    ({"train": "{epochs: 60}"}, 240, None), ({}, None, None)])
def test_a_run_that_still_learns_at_its_end_says_so(tmp_path, sections, length, longer):
    folder = tmp_path / "run"
    result = dpt.train(job(tmp_path, NUMBERS, **sections), folder)
    told = values(folder, "loss")
    assert (best_of(told) == told[-1][0] and len(told) > 1) == (longer is not None) and (length is None or told[-1][0] == length), told
    line = f"it still got better at its end: train longer, as by --set {longer}\n"
    assert ("still got better" in result.out) == (longer is not None) == (line in result.out), result


def test_a_folder_stands_for_its_best(tmp_path):
    """eval, predict, export, report and --init-from take it, and say so; --resume and inspect take the newest."""
    path, folder = job(tmp_path), tmp_path / "run"
    dpt.train(path, folder)
    best, newest = (os.readlink(folder / "checkpoints" / name) for name in ("best", "latest"))
    said = f"{folder}: taking its best checkpoint by valid.loss, {best}; its newest is {folder}/checkpoints/latest"
    ways = [dpt.run("eval", path, "--checkpoint", tmp_path / at) for at in ("run", "run/checkpoints/best", "run/checkpoints/latest")]
    assert ways[0].out == ways[1].out != ways[2].out and said in ways[0].err and all("taking" not in way.err for way in ways[1:]), ways
    assert float(ways[0].out.split("loss ")[1].split()[0]) == pytest.approx(dpt.events(folder, "best")[0]["loss"], rel=1e-5)
    both = dpt.run("eval", path, "--checkpoint", folder, ranks=3)
    assert both.out == ways[0].out and both.err.count(said) == 1, both
    exported = dpt.run("export", folder, tmp_path / "it.npz")
    assert f"step {int(best[5:-3])}" in exported.out and said in exported.err, exported
    page = dpt.run("report", folder, "-o", tmp_path / "it.html")
    assert said in page.err and f"<code>{best}, the best</code>" in (tmp_path / "it.html").read_text(), page
    fine = dpt.run(path, "--output", tmp_path / "fine", "--init-from", folder, "--set", "train.epochs=1")
    assert said in fine.err, fine
    assert newest in dpt.run("inspect", folder).out
    result = dpt.run(path, "--output", tmp_path / "on", "--resume", folder, "--set", "train.early_stop.patience=6")
    assert f"resuming at step {int(newest[5:-3])} from" in result.err and result.code == 0, result
    told = dpt.run("compare", folder, tmp_path / "fine").out.split()
    assert [f"{dpt.events(folder, kind)[-1]['loss']:.4g}" in told for kind in ("best", "eval")] == [True, False], told
    assert "stopped early: valid.loss has not fallen below" in dpt.run("watch", folder, "--once").out
    os.unlink(folder / "checkpoints" / "best")  # as of a run that has not been evaluated
    assert dpt.run("eval", path, "--checkpoint", folder).out == ways[2].out


def test_a_job_that_monitors_nothing_keeps_its_ways(tmp_path):
    path, folder = job(tmp_path, train="{epochs: 12}"), tmp_path / "run"
    dpt.train(path, folder)
    assert link(folder) != 48 and not [key for key in attributes(folder) if "monitor" in key or "waits" in key]
    evals = [dpt.run("eval", path, "--checkpoint", folder / at) for at in ("", "checkpoints/latest")]
    assert evals[0].out == evals[1].out and "taking" not in evals[0].err, evals
    assert dpt.events(folder, "best") == [] and all("best" not in e for e in dpt.events(folder, "eval"))


def test_it_goes_on_with_more_patience(tmp_path):
    """And ends as if it had had that from the start; without, it says that it is finished."""
    path, folder = job(tmp_path), tmp_path / "run"
    dpt.train(path, folder)
    before = dpt.newest(folder)
    result = dpt.run(path, "--output", folder)
    assert result.code == 0 and "stopped early at step" in result.err and "give it more train.early_stop.patience" in result.err, result
    assert dpt.newest(folder) == before and len(dpt.events(folder, "end")) == 1
    more = ("--set", "train.early_stop.patience=9")
    go_on(path, folder, *more)
    dpt.train(path, tmp_path / "whole", *more)
    assert dpt.newest(folder) == dpt.newest(tmp_path / "whole")
    assert attributes(folder)["early_stop_waits"] == 9


def test_killed_between_the_last_save_and_the_end(tmp_path):
    """Started again, it makes no step more, and tells all that it would have told."""
    path, folder = job(tmp_path), tmp_path / "run"
    whole = dpt.train(path, folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines(True)
    (folder / "metrics.jsonl").write_text("".join(line for line in lines if not any(f'"{kind}"' in line for kind in ("test", "end"))))
    result = go_on(path, folder)
    assert [line for line in result.out.splitlines() if line.startswith(("test", "last", "best", "stopped"))] == \
        [line for line in whole.out.splitlines() if line.startswith(("test", "last", "best", "stopped"))]
    assert [e["step"] for e in dpt.events(folder, "end")] == [e["step"] for e in dpt.events(folder, "eval")][-1:]


def test_another_value_is_watched_again(tmp_path):
    """What is known of one value says nothing of another."""
    path, folder = job(tmp_path, train="{epochs: 3}", checkpoint="{keep: 1, monitor: valid.loss}"), tmp_path / "run"
    dpt.train(path, folder)
    result = go_on(path, folder, "--set", "train.epochs=5", "--set", "checkpoint.monitor=valid.accuracy",
                   "--set", "train.early_stop={patience: 50, monitor: valid.accuracy}")
    assert "the best checkpoint is chosen again: by valid.accuracy from here on, not by valid.loss" in result.err, result
    since = [one for one in values(folder, "accuracy") if one[0] > 12]
    assert link(folder) == best_of(since) and len(since) == 2 and attributes(folder)["best_monitor"] == b"valid.accuracy"
    assert "valid.accuracy" in dpt.run("inspect", folder).out


def test_without_a_checkpoint(tmp_path):
    """It stops all the same; there is no best to be taken or tested, and started again it says so."""
    path, folder = job(tmp_path, checkpoint="{every: never}"), tmp_path / "run"
    result = dpt.train(path, folder)
    assert "stopped early, of at most 240 steps" in result.out and "best" not in result.out.replace("best by", "") and os.listdir(folder / "checkpoints") == []
    again = dpt.run(path, "--output", folder)
    assert again.code == 0 and f"is finished, stopped early at step {dpt.events(folder, 'end')[0]['step']}, and has saved nothing" in again.err, again


@pytest.mark.parametrize("sets, says", [
    (["data.valid=[]"], "train.early_stop: goes by samples that are not trained on, and the job has none: give a file of them as data.valid"),
    (["eval.every=never"], "train.early_stop: goes by evaluations, and eval.every is never"),
    (["train.early_stop={monitor: valid.f1}"], "train.early_stop: patience says after how many evaluations"),
    (["train.early_stop.monitor=valid.r2"], "train.early_stop: valid.r2 is not available with `loss: cross_entropy`; valid.loss is with every loss"),
    (["train.early_stop=null", "schedule={type: plateau, monitor: valid.mae}"], "schedule: valid.mae is not available with"),
    (["train.early_stop=null", "checkpoint.monitor=valid.accuracy", "data.valid=[]"], "checkpoint.monitor: goes by samples"),
    (["checkpoint.monitor=valid.los"], "did you mean 'valid.loss'"),
    (["train.early_stop.monitor=valid.top5_accuracy"], "valid.top5_accuracy is to be monitored, and the 24 samples of data.valid do not give it")])
def test_what_cannot_be_monitored(tmp_path, sets, says):
    result = dpt.run(job(tmp_path), "--output", tmp_path / "run", *[word for text in sets for word in ("--set", text)])
    assert result.code == 78 and says in result.err, result


def test_a_plateau_lowers_the_rate(tmp_path):
    """At the evaluations where PyTorch's ReduceLROnPlateau does, down to min_lr."""
    schedule = "{type: plateau, factor: 0.3, patience: 1, min_delta: 0.01, min_lr: 0.001}"
    path, folder = job(tmp_path, train="{epochs: 14}", schedule=schedule), tmp_path / "run"
    result = dpt.train(path, folder)
    rates, rate, best, bad, lowered = {}, 0.02, float("inf"), 0, 0
    for step, loss, _ in values(folder, "loss"):
        rates.update({s: rate for s in range(step - 3, step + 1)})
        best, bad = (loss, 0) if loss < best * (1 - 0.01) else (best, bad + 1)
        if bad > 1:
            rate, bad, lowered = max(rate * 0.3, 0.001), 0, lowered + (rate > 0.001)
    assert {e["step"]: e["lr"] for e in dpt.events(folder, "train")} == pytest.approx(rates, rel=1e-12) and lowered >= 2
    assert result.err.count("the learning rate goes from ") == lowered, result


MESHES = [(2, ()), (3, ("parallel.shard=parameters",)), (4, ("parallel.pipeline=2", "parallel.shard=optimizer")), (8, ())]


def test_all_meshes_decide_alike(tmp_path):
    """The same steps, rates and bytes on ranks that divide whatever they can, and of a run that is stopped and resumed on others."""
    path = job(tmp_path, train="{epochs: 30, early_stop: {patience: 5, monitor: valid.accuracy}}", checkpoint="{monitor: valid.f1}",
               schedule="{type: plateau, factor: 0.5, patience: 0}")
    dpt.train(path, tmp_path / "one", "--set", "device.threads=1")
    want, end = dpt.newest(tmp_path / "one"), dpt.events(tmp_path / "one", "end")[0]["step"]
    assert end < 120 and attributes(tmp_path / "one")["plateau_drops"] > 1
    for ranks, sets in MESHES:
        words = [word for text in sets for word in ("--set", text)]
        folder = tmp_path / str(ranks)
        dpt.train(path, folder, *words, ranks=ranks)
        assert dpt.newest(folder) == want and link(folder) == link(tmp_path / "one"), ranks
        for ours, theirs in zip(dpt.events(folder, "best"), dpt.events(tmp_path / "one", "best"), strict=True):
            assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    code, err = stop_at(path, tmp_path / "parts", end - 6, 3, "--set", "parallel.shard=gradients")
    assert code == 75, err
    go_on(path, tmp_path / "parts", "--set", "parallel.pipeline=2", ranks=2)
    assert dpt.newest(tmp_path / "parts") == want


@needs_device
def test_a_device_decides_as_the_cpu(machine):
    """Where it stops and which is the best; the rate falls in whole steps' graphs, too; the best is tested, with its own weights."""
    job = machine.job(MLP, train="{epochs: 40, early_stop: {patience: 3}}", schedule="{type: plateau, factor: 0.5, patience: 0}",
                      data="{train: synthetic, valid: 0.2, test: synthetic, synthetic: {samples: 110, shape: [6], classes: 10, noise: 3}}")
    for name, options in (("cpu", {"kind": "cpu"}), ("device", {}), ("parts", {"sets": ["train.epochs=2"]})):
        machine.train(name, job, **options)
    machine.train("parts", job)
    assert machine.newest("parts") == machine.newest("device")
    want = machine.weights("cpu")[1]
    assert want["step"] < 200 and want["plateau_drops"] > 0 and want["best_step"] < want["step"], want
    tested = dpt.events(machine.path / "cpu", "best")
    machine.assert_same_run("device", "cpu", 1e-3)
    got = machine.weights("device")[1]
    assert all(got[key] == want[key] for key in ("plateau_drops", "early_stop_waits", "early_stop_step")), got
    assert [e["loss"] for e in dpt.events(machine.path / "device", "best")] == pytest.approx([e["loss"] for e in tested], rel=1e-3) and tested
