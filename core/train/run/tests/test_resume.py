"""Stopped anywhere and started again, a run ends with the same bytes as one that nobody disturbed."""
import os
import random
import shutil
import signal
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
from dpt import newest, ranks_of, runs_begun, start, steps_logged, wait_for_step  # noqa: E402
from running import Paused  # noqa: E402

ADAM = "{type: adam, lr: 0.01}"
SGD = "{type: sgd, lr: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.001}"


def job(tmp_path, name="job.yaml", optimizer=ADAM, epochs=4, every="7 steps"):
    return dpt.write_small_job(tmp_path / name, optimizer=optimizer, schedule="{type: cosine, warmup: 10}",
                               train=f"{{epochs: {epochs}, clip_norm: 0.5}}", checkpoint=f"{{every: {every}, keep: 3}}")


def finish(path, folder, ranks, tries=40):
    for _ in range(tries):
        result = dpt.run(path, "--output", folder, ranks=ranks)
        if result.code == 0:
            return result
        assert result.code == 75, result
    raise AssertionError("never came to its end")


@pytest.mark.parametrize("optimizer", [ADAM, SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stopped_by_signals_ends_with_the_same_bytes(tmp_path, optimizer, ranks):
    path = job(tmp_path, optimizer=optimizer)
    dpt.train(path, tmp_path / "whole", ranks=ranks)
    dice = random.Random(f"{optimizer}{ranks}")
    folder = tmp_path / "parts"
    for step in sorted(dice.sample(range(2, 50, 12), 3)):
        paused = Paused(path, folder, ranks, step=step)
        os.kill(dice.choice(paused.pids), dice.choice([signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT]))
        code, err = paused.go_on()
        assert code == 75 and "all is saved" in err, err
        assert step < steps_logged(folder)[-1] < step + 12, "stopped soon"
    finish(path, folder, ranks)
    assert newest(folder) == newest(tmp_path / "whole")
    assert steps_logged(folder) == list(range(1, 61)), "no step twice, none missing"


@pytest.mark.parametrize("ranks", [1, 3])
def test_killed_ends_with_the_same_bytes(tmp_path, ranks):
    path = job(tmp_path, every="5 steps")
    dpt.train(path, tmp_path / "whole", ranks=ranks)
    dice = random.Random(ranks)
    folder = tmp_path / "parts"
    for step in sorted(dice.sample(range(3, 55), 4)):
        begun = runs_begun(folder)
        process = start(path, folder, ranks)
        wait_for_step(process, folder, step, begun)
        pids = ranks_of(process)
        if pids:
            os.kill(dice.choice(pids), signal.SIGKILL)
        process.communicate(timeout=60)
    finish(path, folder, ranks)
    assert newest(folder) == newest(tmp_path / "whole")
    assert steps_logged(folder) == list(range(1, 61))


def test_time_is_up(tmp_path):
    path = job(tmp_path, epochs=100000, every="1000 epochs")
    result = dpt.run(path, "--output", tmp_path / "out", "--set", "train.max_time=3 s", "--quiet", ranks=2, timeout=100)
    assert result.code == 75 and "the time is up" in result.err and "all is saved" in result.err, result
    end = dpt.events(tmp_path / "out", "end")[-1]
    assert 0 < end["step"] < 15 * 100000
    with h5py.File(tmp_path / "out" / "checkpoints" / "latest") as file:
        assert file.attrs["step"] == end["step"]


def test_ranks_option_turns_ctrl_c_into_a_stop(tmp_path):
    path = job(tmp_path, epochs=100000)
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / str(number)
        process = start(path, folder, 1, "--ranks", "2")
        wait_for_step(process, folder, 5)
        os.killpg(process.pid, number)  # as a terminal does it: to the whole foreground group
        out, err = process.communicate(timeout=60)
        assert process.returncode == 75, err.decode()
        assert f"({number.name}), all is saved".encode() in err


def test_running_longer_is_accepted_and_told(tmp_path):
    dpt.train(job(tmp_path, epochs=2), tmp_path / "out", "--set", "schedule=constant", ranks=2)
    dpt.run(job(tmp_path, epochs=4), "--output", tmp_path / "out", "--set", "schedule=constant", ranks=2)
    dpt.train(job(tmp_path, epochs=4), tmp_path / "whole", "--set", "schedule=constant", ranks=2)
    assert newest(tmp_path / "out") == newest(tmp_path / "whole")
    log = (tmp_path / "out" / "log.txt").read_text()
    result = dpt.run(job(tmp_path, epochs=5), "--output", tmp_path / "out", "--set", "schedule=constant")
    assert "train.epochs: 4 -> 5" in result.err and "resuming at step 60" in result.err, result
    assert log.count("dptrain ") == 2


def test_finished_says_so(tmp_path):
    path = job(tmp_path, epochs=1)
    dpt.train(path, tmp_path / "out", ranks=2)
    before = newest(tmp_path / "out")
    result = dpt.run(path, "--output", tmp_path / "out", ranks=2)
    assert result.code == 0 and "is finished, step 15 of 15" in result.err, result
    assert newest(tmp_path / "out") == before


@pytest.mark.parametrize("change, says", [
    ("optimizer.lr=0.5", "optimizer.lr: 0.01 -> 0.5"),
    ("seed=6", "seed: 5 -> 6"),
    ("model.layers[0].conv.channels=8", "model.layers[0].conv.channels: 6 -> 8"),
    ("optimizer=sgd", "optimizer.type: adam -> sgd"),
    ("batch.global=32", "batch.global: 64 -> 32"),
    ("data.synthetic.samples=2000", "data.synthetic.samples: 1009 -> 2000"),
])
def test_another_job_is_refused_in_words(tmp_path, change, says):
    path = job(tmp_path, epochs=1)
    dpt.train(path, tmp_path / "out")
    before = newest(tmp_path / "out"), (tmp_path / "out" / "metrics.jsonl").read_bytes()
    result = dpt.run(path, "--output", tmp_path / "out", "--set", change, ranks=2)
    assert result.code == 78 and says in result.err and "--resume" in result.err, result
    assert before == (newest(tmp_path / "out"), (tmp_path / "out" / "metrics.jsonl").read_bytes())


def test_watching_and_saving_may_change(tmp_path):
    path = job(tmp_path)
    dpt.train(path, tmp_path / "whole")
    for words in (["train.max_time=2.3 s"], ["log.every=9 steps", "checkpoint={every: 3 steps, keep: 9}", "device.threads=1"]):
        result = dpt.run(path, "--output", tmp_path / "out", *[w for s in words for w in ("--set", s)])
        assert result.code in (0, 75), result
    finish(path, tmp_path / "out", 0)
    with h5py.File(tmp_path / "out/checkpoints/latest") as ours, h5py.File(tmp_path / "whole/checkpoints/latest") as theirs:
        for name in ("params/conv1/weight", "optimizer/v/dense1/weight"):
            np.testing.assert_allclose(ours[name][...], theirs[name][...], rtol=1e-2, atol=1e-4)


def test_from_a_path_on_purpose(tmp_path):
    path = job(tmp_path, epochs=2)
    dpt.train(path, tmp_path / "a")
    result = dpt.run(path, "--output", tmp_path / "b", "--resume", tmp_path / "a", "--set", "optimizer.lr=0.001",
                     "--set", "train.epochs=3")
    assert result.code == 0 and "optimizer.lr: 0.01 -> 0.001" in result.err, result
    assert dpt.events(tmp_path / "b", "run")[0]["resumed_from_step"] == 30
    assert steps_logged(tmp_path / "b") == list(range(31, 46))
    result = dpt.run(path, "--output", tmp_path / "b", "--resume", tmp_path / "a")
    assert result.code == 2 and "holds an earlier run" in result.err, result
    result = dpt.run(path, "--output", tmp_path / "a", "--resume", "none")
    assert result.code == 2 and "holds an earlier run" in result.err, result
    result = dpt.run(path, "--output", tmp_path / "c", "--resume", tmp_path / "a", "--set",
                     "model.layers[0].conv.channels=8")
    assert result.code == 65 and "/params/conv1/weight is [6, 1, 3, 3] there and [8, 1, 3, 3]" in result.err, result
    result = dpt.run(path, "--output", tmp_path / "c", "--resume", tmp_path / "nothing")
    assert result.code == 65 and "nothing: No such file" in result.err, result


@pytest.mark.parametrize("ranks", [1, 2])
def test_saving_in_the_background_or_not(tmp_path, ranks):
    """The same bytes; of a size that divides nothing, large enough to go past the system's cache."""
    path = dpt.write_small_job(tmp_path / "job.yaml", model="{type: sequential, layers: [flatten, {dense: 611}, relu, {dense: 10}]}")
    dpt.train(path, tmp_path / "beside", ranks=ranks)
    dpt.train(path, tmp_path / "waits", "--set", "checkpoint.background=false", ranks=ranks)
    assert newest(tmp_path / "beside") == newest(tmp_path / "waits")
    beside, waits = ([e["step"] for e in dpt.events(tmp_path / name, "checkpoint")] for name in ("beside", "waits"))
    assert beside == waits and set(waits) >= {*range(7, 90, 7), 90}
    order = [(e["step"], e["event"]) for e in dpt.events(tmp_path / "waits") if e["event"] in ("train", "checkpoint")]
    assert order == sorted(order, key=lambda entry: (entry[0], entry[1] == "checkpoint")), "each was told before the next step"
    result = dpt.run("inspect", tmp_path / "beside")
    assert result.code == 0 and "that of the whole file matches" in result.out, result


def test_differences_are_shown_safely(tmp_path):
    """Whatever a value holds, the terminal gets one line of printable characters."""
    text = 'data: {train: "%s"}\nmodel: {type: sequential, layers: [flatten, {dense: 10}]}\ntrain: {steps: 2}\n'
    for name, labels in (("a.h5", np.arange(8)), ("b\x1b[31m.h5", np.arange(8)[::-1])):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"], file["y"] = np.zeros((8, 3), "f4"), labels
    first = dpt.write_job(tmp_path / "first.yaml", text % "a.h5")
    second = dpt.write_job(tmp_path / "second.yaml", text % "b\\e[31m.h5")
    result = dpt.run(first, "--output", tmp_path / "out", cwd=tmp_path)
    assert result.code == 0, result
    result = dpt.run(second, "--output", tmp_path / "out", cwd=tmp_path)
    assert result.code == 78 and "a.h5 -> b\\x1b[31m.h5" in result.err and "\x1b" not in result.err, result


def test_a_job_too_long_to_be_read_again_is_refused(tmp_path):
    """The file is short enough, but with its defaults written out it is not."""
    layers = ", ".join(["relu"] * 9000)
    path = dpt.write_small_job(tmp_path / "job.yaml", model=f"{{type: sequential, layers: [flatten, {layers}, {{dense: 10}}]}}")
    assert os.path.getsize(path) < 65536
    result = dpt.run(path, "--output", tmp_path / "out")
    assert result.code == 78 and "bytes with all that it leaves to defaults" in result.err, result
    assert not (tmp_path / "out").exists()


def test_an_end_half_written_is_no_end(tmp_path):
    """All steps are made and saved, but the last line of the metrics was cut off behind its reason."""
    path = job(tmp_path, epochs=1)
    dpt.train(path, tmp_path / "out")
    metrics = tmp_path / "out" / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole[:whole.index('"reason": "done"') + 25])
    assert dpt.run(path, "--output", tmp_path / "out").code == 0
    assert dpt.events(tmp_path / "out", "end")[-1]["reason"] == "done"
    assert steps_logged(tmp_path / "out") == list(range(1, 16))


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2:]
    elif how == "empty":
        data = b""
    else:
        data[len(data) // 3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["flip", "cut", "empty"])
def test_damaged_newest_is_passed_over(tmp_path, how):
    path = job(tmp_path)
    dpt.train(path, tmp_path / "whole", ranks=2)
    dpt.train(path, tmp_path / "out", ranks=2)
    files = sorted((tmp_path / "out" / "checkpoints").glob("step-*.h5"))
    damage(files[-1], how)
    result = dpt.run(path, "--output", tmp_path / "out", ranks=2)
    assert result.code == 0, result
    warnings = [line for line in result.err.splitlines() if line.startswith("warning")]
    assert len(warnings) == 1 and files[-1].name in warnings[0] and "damaged" in warnings[0], result
    assert newest(tmp_path / "out") == newest(tmp_path / "whole")
    assert steps_logged(tmp_path / "out") == list(range(1, 61))


def damages(whole):
    """Name and bytes of what may become of a checkpoint: cut anywhere, also beside what it is known by, or overwritten."""
    dice = random.Random(3)
    cuts = [1, 8, 9, 47, 48, 100] + [len(whole) - n for n in (1000, 46, 45, 44, 37, 36, 35, 1)]
    yield from ((f"cut to {n}", whole[:n]) for n in cuts)
    yield from ((f"{n} random bytes", dice.randbytes(n)) for n in (1, 48, 5000, len(whole)))
    yield "its beginning random", dice.randbytes(512) + whole[512:]
    yield "its end random", whole[:-512] + dice.randbytes(512)
    yield "all behind the signature random", whole[:8] + dice.randbytes(len(whole) - 8)


def test_any_damage_is_passed_over(tmp_path):
    path = job(tmp_path, epochs=1)
    out = tmp_path / "out"
    dpt.train(path, out)
    newest_file = out / "checkpoints" / os.readlink(out / "checkpoints" / "latest")
    whole, before = newest_file.read_bytes(), tmp_path / "before"
    shutil.copytree(out, before, symlinks=True)
    for how, damaged in damages(whole):
        newest_file.write_bytes(damaged)
        result = dpt.run(path, "--output", out)
        assert result.code == 0 and result.err.count("; taking the one before it, of step 14\n") == 1, (how, result)
        assert newest_file.read_bytes() == whole, how
        shutil.rmtree(out)
        shutil.copytree(before, out, symlinks=True)


def test_other_files_are_no_damaged_checkpoints(tmp_path):
    """What is named on purpose is told by its name; a whole HDF5 file of somebody else's is left where it lies."""
    path = job(tmp_path, epochs=1)
    (tmp_path / "notes").write_text("no checkpoint at all, and longer than a checkpoint's last line")
    for words in (["--resume", tmp_path / "notes"], ["--init-from", tmp_path / "notes"]):
        result = dpt.run(path, "--output", tmp_path / "out", *words)
        assert result.code == 65 and result.err.startswith(f"{tmp_path}/notes: "), result
    foreign = tmp_path / "out" / "checkpoints" / "step-00000020.h5"
    foreign.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(foreign, "w") as file:
        file["mine"] = np.arange(100)
    before = foreign.read_bytes()
    result = dpt.run(path, "--output", tmp_path / "out", "--overwrite")
    assert result.code == 2 and f"{foreign.name} was not written by dptrain" in result.err and foreign.read_bytes() == before, result


def test_all_damaged_is_an_error(tmp_path):
    path = job(tmp_path, epochs=1)
    dpt.train(path, tmp_path / "out")
    for file in (tmp_path / "out" / "checkpoints").glob("step-*.h5"):
        damage(file, "flip")
    result = dpt.run(path, "--output", tmp_path / "out", ranks=2)
    assert result.code == 65 and "no checkpoint in" in result.err, result


def test_best_is_kept(tmp_path):
    """By data.valid: the best stays beside the newest, and the link to it is right."""
    path = job(tmp_path, epochs=8, every="5 steps")
    dpt.train(path, tmp_path / "out", "--set", "checkpoint.keep=1", "--set", "optimizer.lr=0.1")
    valid = [(e["accuracy"], -e["step"]) for e in dpt.events(tmp_path / "out", "eval")]
    best = -max(valid)[1]
    folder = tmp_path / "out" / "checkpoints"
    assert os.readlink(folder / "best") == f"step-{best:08d}.h5"
    assert set(os.listdir(folder)) == {"best", "latest", f"step-{best:08d}.h5", "step-00000120.h5"}
    with h5py.File(folder / "best") as file:
        assert file.attrs["best_metric"] == max(valid)[0] and file.attrs["best_step"] == best
