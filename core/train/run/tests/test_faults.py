"""A rank that dies, stops, hangs or fails alone ends the job soon, with one line that says which rank and why."""
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import h5py
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SECTIONS = {"train": "{epochs: 6, check_replicas: 4 steps}", "comm": "{timeout: 2 s}"}
# A run that is disturbed from outside has so many steps that it is met in their middle.
LONG = {**SECTIONS, "train": "{epochs: 16, check_replicas: 4 steps}"}
HOST = socket.gethostname().split(".")[0]


@pytest.fixture
def job(tmp_path):
    return dpt.write_small_job(tmp_path / "job.yaml", **SECTIONS)


@pytest.fixture
def long_job(tmp_path):
    return dpt.write_small_job(tmp_path / "long.yaml", **LONG)


def undisturbed(folder, sections):
    """The final checkpoint of a run that nobody disturbed, by rank count."""
    path = dpt.write_small_job(folder / "job.yaml", **sections)
    made = {}

    def get(ranks):
        if ranks not in made:
            dpt.train(path, folder / str(ranks), ranks=ranks)
            made[ranks] = dpt.newest(folder / str(ranks))
        return made[ranks]
    return get


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"), SECTIONS)


@pytest.fixture(scope="module")
def whole_long(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"), LONG)


def need_limits():
    with open(dpt.BINARY, "rb") as binary:
        if b"__asan_init" in binary.read():
            pytest.skip("the sanitizer reserves terabytes of addresses")


def told(err):
    """The lines that dptrain itself printed as the cause."""
    return [line for line in err.splitlines() if re.match(r"(rank|ranks|a rank) |step \d+: |not enough", line)]


def the_line(result, *wanted):
    lines = told(result.err)
    assert len(lines) == 1, result
    for text in wanted:
        assert re.search(text, lines[0]), (text, lines[0])
    return lines[0]


def goes_on(job, folder, ranks, whole):
    """Started again it ends with the bytes of the undisturbed run."""
    result = dpt.run(job, "--output", folder, ranks=ranks)
    assert result.code == 0, result
    assert "damaged" not in result.err, result
    assert dpt.newest(folder) == whole(ranks)


def says_why(folder, line):
    """The run's files end with the cause, and so does who watches it."""
    end = dpt.events(folder, "end")[-1]
    assert end["reason"] == line and (folder / "log.txt").read_text().splitlines()[-1].endswith(f" {line}"), end
    assert "failed" in dpt.run("watch", folder).out.splitlines()[0]


def with_fault(job, folder, fault, ranks, *words, launcher="mpirun"):
    """It ends: a hang is ended by the time-out here."""
    env = {"DPTRAIN_FAULT": fault}
    if launcher == "mpirun":
        result = dpt.run(job, "--output", folder, *words, ranks=ranks, env=env, timeout=60)
    else:
        result = dpt.run(job, "--output", folder, "--ranks", ranks, *words, env=env, timeout=60)
    return result


# What is done to a rank; how the job is started; its exit code (mpirun returns that of a killed rank itself, and does not say
# that a rank left without a word); what the line says.
FAULTS = [
    ("kill", "mpirun", 137, "died", "killed"),
    ("kill", "--ranks", 71, "died", "killed"),
    ("exit", "mpirun", 1, "died", "its process is gone"),
    ("stop", "--ranks", 71, "has not arrived", "is stopped"),
    ("hang", "mpirun", 71, "has not arrived", "Its last word: reading its samples"),
    ("read", "--ranks", 74, "reading failed", ""),
    ("memory", "mpirun", 71, "not enough memory", ""),
    ("fail", "--ranks", 70, "an error", ""),
]


@pytest.mark.parametrize("fault, launcher, code, what, why", FAULTS, ids=[f"{f[0]} {f[1]}" for f in FAULTS])
def test_one_rank_at_a_step(tmp_path, job, whole, fault, launcher, code, what, why):
    if fault == "memory":
        need_limits()
    dice = random.Random(fault + launcher)
    ranks = dice.choice([2, 3, 4])
    folder = tmp_path / "out"
    rank, step = dice.randrange(ranks), dice.randrange(8, 56)
    result = with_fault(job, folder, f"{fault}:rank={rank}:step={step}", ranks, launcher=launcher)
    line = the_line(result, rf"\brank {rank} \({HOST}\)", rf"\bstep {step}\b", what, why)
    assert result.code == code, result
    says_why(folder, line)
    goes_on(job, folder, ranks, whole)


@pytest.mark.parametrize("fault", ["memory:rank=0:step=9", "memory-evaluation:rank=0:step=15"])
def test_no_advice_without_memory(tmp_path, job, fault):
    """Advice on what would fit means planning, for which there is no memory either; and the job did fit when it began."""
    need_limits()
    result = dpt.run(job, "--output", tmp_path / "out", env={"DPTRAIN_FAULT": fault})
    assert result.code == 71, result
    assert re.search(rf"\bstep {fault.split('=')[-1]}: not enough memory", result.err.splitlines()[-1]), result


@pytest.mark.parametrize("fault, code", [("kill", 71), ("hang", 71), ("memory", 71)])
def test_one_rank_at_the_start(tmp_path, job, fault, code):
    if fault == "memory":
        need_limits()
    result = with_fault(job, tmp_path / "out", f"{fault}:rank=1:step=0", 3, "--set", "comm.start_timeout=4 s", launcher="--ranks")
    assert result.code == code, result
    the_line(result, rf"\brank 1 \({HOST}\)")


@pytest.mark.parametrize("ranks", [2, 3])
def test_flipped_bit_is_noticed(tmp_path, job, whole, ranks):
    """At the next comparison, before anything is saved; of two that differ both are named."""
    folder = tmp_path / "out"
    result = with_fault(job, folder, "flip-weight:rank=1:step=22:word=100", ranks)
    assert result.code == 1, result
    line = the_line(result, "^step 24: the replicas differ", rf"\b1 \({HOST}\)")
    assert (f"0 ({HOST})" in line) == (ranks == 2) and line.endswith("; the checkpoint of step 21 is from before"), line
    unsaved = with_fault(job, tmp_path / "unsaved", "flip-weight:rank=1:step=2:word=100", ranks, "--set", "checkpoint.every=never")
    assert unsaved.code == 1 and "no checkpoint was written before" in unsaved.err, unsaved
    with h5py.File(folder / "checkpoints" / "latest") as file:
        assert file.attrs["step"] == 21
    goes_on(job, folder, ranks, whole)


def test_fault_is_read_at_the_start(tmp_path, job):
    for text in ("explode:rank=1:step=2", "kill", "kill:rank=x:step=1", "kill:rank=1:step=1:day=2"):
        result = dpt.run(job, "--output", tmp_path / "out", env={"DPTRAIN_FAULT": text})
        assert result.code == 2 and "flip-weight" in result.err, result
    result = dpt.run(job, "--output", tmp_path / "out", env={"DPTRAIN_FAULT": "kill:rank=1:step=1"})
    assert result.code == 0, result
    assert "warning: this run breaks on purpose: DPTRAIN_FAULT=kill:rank=1:step=1 is in the env" in result.err, result
    assert dpt.events(tmp_path / "out", "run")[0]["fault"] == "kill:rank=1:step=1"
    assert "breaks on purpose" not in dpt.run(job, "--output", tmp_path / "out").err


def test_a_fault_of_one_rank_is_announced(tmp_path, job):
    """Also where rank 0 has no such variable."""
    words = f"'{dpt.BINARY}' '{job}' --output '{tmp_path}/out' --set train.epochs=1"
    done = subprocess.run(dpt.each_rank(f"exec {words}", f"DPTRAIN_FAULT=kill:rank=7:step=1 exec {words}"),
                          env={**os.environ, **dpt.MPI_ENVIRONMENT}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.count("DPTRAIN_FAULT is in the environment of rank 1") == 1, done


def pids_by_rank(mpirun):
    """{} when mpirun is gone."""
    found = {}
    for pid in dpt.ranks_of(mpirun):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", file.read())
        except OSError:
            continue
        if rank:
            found[int(rank.group(1))] = pid
    return found


def disturb(job, folder, ranks, rank, step, action):
    """Runs a job and sends a rank a signal at a step; None where it was too fast."""
    process = dpt.start(job, folder, ranks)
    if dpt.wait_for_step(process, folder, step):
        pid = pids_by_rank(process).get(rank)
        if pid:
            try:
                action(pid)
            except ProcessLookupError:
                pass
    process.stdout, process.stderr = process.communicate(timeout=60)
    return dpt.Result(process)


@pytest.mark.parametrize("ranks", [2, 4])
def test_killed_from_outside(tmp_path, long_job, whole_long, ranks):
    """Wherever the rank is just then: computing, waiting, saving, evaluating."""
    dice = random.Random(ranks)
    tried = 0
    for i in range(50 if os.environ.get("DPT_HEAVY", "0") != "0" else 2):
        folder = tmp_path / str(i)
        rank = dice.randrange(ranks)
        result = disturb(long_job, folder, ranks, rank, dice.randrange(1, 50),
                                  lambda pid: os.kill(pid, signal.SIGKILL))
        if result.code == 0:
            continue
        tried += 1
        assert result.code == 137, result
        # The file tells whether nobody noticed or the launcher lost the line.
        assert told(result.err), (result, (folder / "log.txt").read_text()[-300:])
        the_line(result, rf"^rank {rank} \({HOST}\) died at step \d+")
        goes_on(long_job, folder, ranks, whole_long)
    assert tried > 0


def test_stopped_from_outside(tmp_path, long_job, whole_long):
    """Stopped inside of a collective it is named all the same, and continued in time nothing happens."""
    def pause(pid):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.7)
        os.kill(pid, signal.SIGCONT)

    result = disturb(long_job, tmp_path / "stop", 3, 0, 9, lambda pid: os.kill(pid, signal.SIGSTOP))
    assert result.code == 71, result
    the_line(result, rf"^rank 0 \({HOST}\) has not arrived at step \d+ for 2 s; ranks 1-2 wait", "is stopped")
    goes_on(long_job, tmp_path / "stop", 3, whole_long)
    result = disturb(long_job, tmp_path / "pause", 3, 1, 9, pause)
    assert result.code == 0 and not told(result.err), result
    assert dpt.newest(tmp_path / "pause") == whole_long(3)


def test_nothing_follows_the_cause(tmp_path):
    """mpirun has a stopped rank go on to end it: what the ranks were waiting for is there then, but no step is made of it."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**LONG, "comm": "{timeout: 1 s}"})
    process = dpt.start(job, tmp_path / "out", 2, DPTRAIN_FAULT="stop:rank=1:step=9")
    lines = []
    for text in process.stderr:
        lines.append(text.decode())
        if "has not arrived" in lines[-1]:
            with contextlib.suppress(KeyError, ProcessLookupError):  # mpirun may be quicker
                os.kill(pids_by_rank(process)[1], signal.SIGCONT)
    process.wait(timeout=60)
    line = next(line for line in lines if "has not arrived" in line).rstrip()
    assert process.returncode == 71 and told("".join(lines)) == [line], lines
    assert dpt.events(tmp_path / "out")[-1]["event"] == "end"
    says_why(tmp_path / "out", line)


def test_suspended_as_a_whole(tmp_path):
    """As a batch system does; far longer than the timeout, and nobody is late."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**LONG, "comm": "{timeout: 1 s}"})
    process = dpt.start(job, tmp_path / "out", 3)
    assert dpt.wait_for_step(process, tmp_path / "out", 20)
    pids = dpt.ranks_of(process)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(2.5)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()


def test_no_timeout(tmp_path):
    """Without one a stopped rank is waited for; a dead one is not."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**SECTIONS, "comm": "{timeout: never}"})
    result = with_fault(job, tmp_path / "dead", "kill:rank=1:step=9", 2)
    the_line(result, rf"^rank 1 \({HOST}\) died at step 9")
    bad = dpt.write_small_job(tmp_path / "bad.yaml", **{**SECTIONS, "comm": "{timeout: 3 steps}"})
    result = dpt.run(bad)
    assert result.code == 78 and "comm.timeout" in result.err, result


def test_timeout_is_no_part_of_the_job(tmp_path, job, whole):
    other = dpt.write_small_job(tmp_path / "other.yaml", **{**SECTIONS, "comm": "{timeout: 20 min}"})
    with_fault(job, tmp_path / "out", "fail:rank=0:step=30", 2)
    goes_on(other, tmp_path / "out", 2, whole)


def test_one_rank_short_of_memory(tmp_path, job):
    """Real limits, from too small for the program to just large enough: a line of ours, or success."""
    wrapper = tmp_path / "limit.sh"
    wrapper.write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" != 1 ] || ulimit -v "$1"\nshift\nexec "$@"\n')
    wrapper.chmod(0o755)
    need_limits()
    failed = 0
    for kilobytes in (250000, 370000, 3000000):
        done = subprocess.run(["mpirun", "-np", "2", wrapper, str(kilobytes), dpt.BINARY, job, "--output",
                               str(tmp_path / str(kilobytes))], env={**os.environ, **dpt.MPI_ENVIRONMENT},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60)
        result = dpt.Result(done)
        if result.code == 0:
            continue
        failed += 1
        assert result.code == 71, result
        the_line(result, rf"^rank 1 \({HOST}\): ", "not enough memory")
    assert 0 < failed < 3
