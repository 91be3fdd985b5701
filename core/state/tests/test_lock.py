"""Two runs never share a run folder: the second refuses, what was left behind is taken over, who was replaced stops."""
import os
import re
import signal
import subprocess
import sys
import time

import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
from running import Paused, job, newest, start, steps_logged, wait_for_step  # noqa: E402

DEEP = "{type: sequential, layers: [flatten, {dense: 16}, {dense: 10}]}"  # nothing that keeps it from diverging
ELSEWHERE = ("dptrain host=elsewhere pid=99 start=12345 boot=11111111-2222-3333-4444-555555555555 pids=4026531836 "
             "slurm={slurm} restart={restart} generation={generation} since=2026-11-21T08:00:00\n")


def lock_line(slurm="-", restart=0, generation=7):
    return ELSEWHERE.format(slurm=slurm, restart=restart, generation=generation)


def field(path, name):
    return re.search(rf" {name}=(\S+)", path.read_text()).group(1)


def all_files(folder):
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("ranks, second", [(1, ["--resume", "none"]), (2, []), (2, ["--set", "optimizer.lr=1"])])
def test_the_second_run_refuses(tmp_path, ranks, second):
    path = job(tmp_path)
    dpt.train(path, tmp_path / "whole", ranks=ranks)
    first = Paused(path, tmp_path / "out", ranks, step=10)
    before = all_files(tmp_path / "out")
    pid = int(field(tmp_path / "out" / ".lock", "pid"))
    assert pid in first.pids
    result = dpt.run(path, "--output", tmp_path / "out", *second, ranks=ranks)
    assert result.code == 2, result
    assert f"{tmp_path}/out is in use by process {pid} on " in result.err, result
    assert "choose another --output, or wait" in result.err, result
    assert all_files(tmp_path / "out") == before, "the second one touched nothing"
    code, err = first.go_on()
    assert code == 0, err
    assert newest(tmp_path / "out") == newest(tmp_path / "whole")
    assert steps_logged(tmp_path / "out") == list(range(1, 91))
    assert not (tmp_path / "out" / ".lock").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_left_behind_by_a_killed_run(tmp_path, ranks):
    path = job(tmp_path)
    dpt.train(path, tmp_path / "whole", ranks=ranks)
    first = Paused(path, tmp_path / "out", ranks, step=30)
    first.kill()
    assert (tmp_path / "out" / ".lock").exists()
    result = dpt.run(path, "--output", tmp_path / "out", ranks=ranks)
    assert result.code == 0 and "which is gone: taking it over" in result.err, result
    assert newest(tmp_path / "out") == newest(tmp_path / "whole")
    assert steps_logged(tmp_path / "out") == list(range(1, 91))
    assert field(tmp_path / "out" / ".lock.last", "generation") == "2"


def test_what_was_left_while_taking_the_lock_goes(tmp_path):
    """By a process that is gone, here or elsewhere; what a living one is about to use stays."""
    path = job(tmp_path, epochs=1)
    first = Paused(path, tmp_path / "first", 1, step=3)
    folder = tmp_path / "out"
    folder.mkdir()
    line = (tmp_path / "first" / ".lock").read_text()
    alive, dead, elsewhere, young = (folder / f".lock.tmp-{name}" for name in ("here-1", "here-2", "there-3", "there-4"))
    alive.write_text(line)
    dead.write_text(re.sub(r" start=\d+", " start=1", line))
    for file in (elsewhere, young):
        file.write_text(lock_line())
    os.utime(elsewhere, (time.time() - 90, time.time() - 90))
    result = dpt.run(path, "--output", folder)
    first.kill()
    assert result.code == 0, result
    assert {file for file in (alive, dead, elsewhere, young) if file.exists()} == {alive, young}


def test_a_lock_of_another_host(tmp_path):
    """Its age decides, measured by the file system; a clock of ours plays no part."""
    path = job(tmp_path, epochs=1)
    folder = tmp_path / "out"
    folder.mkdir()
    lock = folder / ".lock"
    for text, who in ((lock_line(), "process 99 on elsewhere (since 2026-11-21T08:00:00)"),
                      ("rubbish\n" * 1000, "an unknown process")):
        lock.write_text(text)
        os.utime(lock, (time.time() - 40, time.time() - 40))
        result = dpt.run(path, "--output", folder)
        assert result.code == 2 and f"{folder} is in use by {who}: " in result.err, result
        assert os.listdir(folder) == [".lock"] and lock.read_text() == text
    lock.write_text(lock_line())
    os.utime(lock, (time.time() - 90, time.time() - 90))
    result = dpt.run(path, "--output", folder)
    assert result.code == 0 and "left behind by process 99 on elsewhere" in result.err, result
    assert field(folder / ".lock.last", "generation") == "8"
    assert not lock.exists()


@pytest.mark.parametrize("text", ["", "\0" * 200])
def test_a_lock_that_a_power_cut_left_empty(tmp_path, text):
    """It is taken over, even if it is from the future; what lies half written beside it goes."""
    path = job(tmp_path, epochs=1)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / ".lock").write_text(text)
    os.utime(folder / ".lock", (time.time() + 1e6, time.time() + 1e6))
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = os.uname().nodename.split(".")[0]
    for name, line in ((f".lock.tmp-{host}-{dead.pid}", text), (f".lock.tmp-{host}-{os.getpid()}", text)):
        (folder / name).write_text(line)
    result = dpt.run(path, "--output", folder)
    assert result.code == 0 and result.err.count(f"{folder}/.lock is empty, as a power cut leaves it: taking the folder over") == 1, result
    assert {name for name in os.listdir(folder) if name.startswith(".lock")} == {".lock.last", f".lock.tmp-{host}-{os.getpid()}"}


def test_the_owner_shows_that_it_lives(tmp_path):
    if os.environ.get("DPT_HEAVY") != "1":
        pytest.skip("takes half a minute (DPT_HEAVY=1)")
    path = job(tmp_path, epochs=1000000)
    process = start(path, tmp_path / "out", 1)
    wait_for_step(process, tmp_path / "out", 1)
    lock = tmp_path / "out" / ".lock"
    first = lock.stat().st_mtime
    assert dpt.wait_until(process, lambda: lock.stat().st_mtime >= first + 19, 300)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 75


def test_a_number_used_again(tmp_path):
    """A process of this machine that has the number, but began at another time, is not the owner."""
    path = job(tmp_path, epochs=1)
    dpt.train(path, tmp_path / "out")
    line = (tmp_path / "out" / ".lock.last").read_text()
    with open("/proc/self/stat", encoding="utf-8") as file:
        begun = file.read().rsplit(")", 1)[1].split()[19]
    ours = re.sub(r"pid=\d+", f"pid={os.getpid()}", line)
    lock = tmp_path / "out" / ".lock"
    lock.write_text(re.sub(r"start=\d+", f"start={begun}", ours))
    os.utime(lock, (0, 0))
    result = dpt.run(path, "--output", tmp_path / "out")
    assert result.code == 2 and f"process {os.getpid()} on" in result.err, result
    lock.write_text(re.sub(r"start=\d+", f"start={int(begun) + 1}", ours))
    result = dpt.run(path, "--output", tmp_path / "out")
    assert result.code == 0 and "taking it over" in result.err, result


def test_requeued_by_slurm(tmp_path):
    """The job that SLURM has restarted need not wait for what is left of it elsewhere."""
    path = job(tmp_path, epochs=1)
    folder = tmp_path / "out"
    folder.mkdir()
    slurm = {"SLURM_JOB_ID": "77", "SLURM_CLUSTER_NAME": "here", "SLURM_JOB_END_TIME": str(int(time.time()) + 9999)}
    for env, line, taken in (
            ({}, lock_line("here/77", 0), False),
            ({"SLURM_RESTART_COUNT": "1"}, lock_line("here/78", 0), False),
            ({"SLURM_RESTART_COUNT": "1"}, lock_line("there/77", 0), False),
            ({"SLURM_RESTART_COUNT": "1"}, lock_line("here/77", 1), False),
            ({"SLURM_RESTART_COUNT": "1"}, lock_line("-", 0), False),
            ({"SLURM_RESTART_COUNT": "1"}, lock_line("here/77", 0), True)):
        (folder / ".lock").write_text(line)
        result = dpt.run(path, "--output", folder, env={**slurm, **env})
        assert result.code == (0 if taken else 2), (env, line, result)
    assert field(folder / ".lock.last", "slurm") == "here/77" and field(folder / ".lock.last", "restart") == "1"


@pytest.mark.parametrize("how", ["replaced", "removed", "only saving"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_who_was_replaced_writes_no_more(tmp_path, ranks, how):
    path = job(tmp_path, epochs=1000)
    folder = tmp_path / "out"
    latest = folder / "checkpoints" / "latest"
    # Saves are far apart, so that none is in flight when the process is stopped.
    if how == "only saving":
        run = Paused(path, folder, ranks, "--set", "checkpoint.every=1000 steps", "--set", "log.every=1000000 steps", "--set",
                     "eval.every=never", until=lambda: latest.exists() and os.readlink(latest) == "step-00002000.h5")
    else:
        run = Paused(path, folder, ranks, "--set", "checkpoint.every=1000000 steps", "--set", "eval.every=never", step=20)
    if how == "removed":
        (folder / ".lock").unlink()
    else:
        other = folder / "other"
        other.write_text(lock_line())
        other.rename(folder / ".lock")
    before = {name: data for name, data in all_files(folder).items() if ".tmp-" not in name}
    newest_before = os.readlink(latest) if latest.exists() else None
    code, err = run.go_on()
    assert code == 71, err
    if how == "removed":
        assert f"{folder}/.lock is gone: another run may have had {folder} since: this run ends" in err
    else:
        assert f"{folder} was taken over by process 99 on elsewhere (since 2026-11-21T08:00:00): this run ends" in err
    assert err.count("this run ends") == 1, err
    after = all_files(folder)
    progress = str(folder / "log.txt")
    assert {n: d for n, d in after.items() if n != progress} == {n: d for n, d in before.items() if n != progress}
    assert (os.readlink(latest) if latest.exists() else None) == newest_before


def test_given_back_whatever_the_end(tmp_path):
    path = job(tmp_path, epochs=3)
    for code, words in ((0, ()), (1, ("--set", "optimizer={type: sgd, lr: 1.0e6, momentum: 0.9}", "--set", f"model={DEEP}")), (75, ("--set", "train.max_time=0.1 s")),
                        (2, ("--resume", tmp_path / "0")), (78, ("--set", "batch.global=32")),
                        (74, ("--resume", "none"))):
        folder = tmp_path / (str(code) if code < 78 else "0")
        if code == 2:
            (folder).mkdir()
            (folder / "metrics.jsonl").write_text("")
        if code == 74:
            folder.mkdir()
            (folder / "checkpoints").write_text("")
        result = dpt.run(path, "--output", folder, *words, ranks=2 if code in (1, 75) else 0)
        assert result.code == code, result
        assert not (folder / ".lock").exists() and (folder / ".lock.last").exists(), (code, result)
        assert [n for n in os.listdir(folder) if ".tmp" in n] == []


def test_nothing_is_left_of_a_run_that_did_not_begin(tmp_path):
    path = job(tmp_path)
    result = dpt.run(path, "--output", tmp_path / "out", "--resume", tmp_path / "nothing")
    assert result.code == 65 and not (tmp_path / "out").exists(), result
