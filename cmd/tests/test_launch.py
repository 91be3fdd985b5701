"""`--ranks N`: an mpirun that does not end with its ranks is ended, and a signal that comes while all starts is a request, too."""
import contextlib
import glob
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"
REQUESTS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT]

# --- an mpirun that stays -------------------------------------------------------------------------

# Starts the ranks by the real one, and then ignores signals, as Open MPI's can.
DEAF = """#!/bin/sh
trap '' TERM USR1
echo $$ >'{folder}/pid'
{real} "$@"
echo gone >'{folder}/gone'
sleep 1000 &
while :; do wait; done
"""


@pytest.fixture
def deaf(tmp_path):
    """The environment in which mpirun is that one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mpirun").write_text(DEAF.format(folder=tmp_path, real=shutil.which("mpirun")))
    (folder / "mpirun").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def group(leader):
    """The living processes of a process group."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            state, _, its = file.read().rsplit(")", 1)[1].split()[:3]
            if its == leader and state != "Z":
                found.append(path)
    return found


@pytest.mark.parametrize("data, fault, code", [("bad.h5", None, 65), ("synthetic", "kill:rank=1:step=0", 71)])
def test_a_deaf_mpirun_is_ended(tmp_path, deaf, data, fault, code):
    (tmp_path / "bad.h5").write_text("no such format")
    job = dpt.write_small_job(tmp_path / "job.yaml", data=f"{{train: {data}}}", comm="{timeout: 2 s}")
    result = dpt.run(job, "--ranks", 2, "--quiet", "--output", tmp_path / "out", cwd=tmp_path, timeout=100,
                     env={**deaf, **({"DPTRAIN_FAULT": fault} if fault else {})})
    assert result.code == code, result
    last = result.err.splitlines()[-1]
    assert re.match(f"warning: mpirun had not ended 5 s after its last rank, and was killed; the exit code {code} is", last), result
    # What was killed may have a moment to go.
    end = time.monotonic() + 30
    while group((tmp_path / "pid").read_text().strip()):
        assert time.monotonic() < end, "nothing is left behind"
    assert (tmp_path / "gone").exists()


@pytest.mark.skipif(not HEAVY, reason="waits for longer than mpirun may")
def test_a_stopped_mpirun_is_waited_for(tmp_path, deaf):
    """Nobody can end while he is stopped, as by a batch system; then its ranks' code is 0 still."""
    job = dpt.write_small_job(tmp_path / "job.yaml", comm="{timeout: 2 s}")
    process = dpt.start(job, tmp_path / "out", 1, "--ranks", "2", "--quiet", **deaf)
    assert dpt.wait_until(process, lambda: (tmp_path / "gone").exists())
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    assert process.poll() is None
    os.kill(pid, signal.SIGCONT)
    err = finish(process)
    assert process.returncode == 0 and "was killed" in err, err


# --- signals while it starts ----------------------------------------------------------------------

def catches(pid, number):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return bool(int(re.search(r"^SigCgt:\s*(\w+)$", file.read(), re.M)[1], 16) >> (number - 1) & 1)
    except OSError:
        return False


def start(*words):
    return subprocess.Popen([dpt.BINARY, *map(str, words)], env={**os.environ, **dpt.MPI_ENVIRONMENT},
                            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process):
    """What it wrote to stderr; one that hangs is ended first, with its ranks."""
    try:
        return process.communicate(timeout=100)[1].decode()
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its mpirun gets HUP then
        raise


def begin(*words):
    """Starts a run, and returns as soon as its handlers are installed."""
    process = start(*words)
    while process.poll() is None and not catches(process.pid, signal.SIGINT):
        pass
    return process


def descendants(pid):
    """(name, pid) of each process below another."""
    found = []
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
            for child in file.read().split():
                with open(f"/proc/{child}/comm", encoding="utf-8", errors="replace") as name:
                    found.append((name.read().strip(), int(child)))
                found += descendants(child)
    return found


def below(pid):
    """The names of a process's descendants."""
    return [name for name, _ in descendants(pid)]


MPIRUN = {"mpirun", "orterun", "prterun"}

# What has happened when the signal is sent; it is sent right then.
MOMENTS = {
    "handlers": lambda pid: True,
    "fork": lambda pid: below(pid),
    "mpirun": lambda pid: MPIRUN & set(below(pid)),
    "ranks": lambda pid: "dptrain" in below(pid),  # forked a moment ago: the libraries are being loaded
}


@pytest.fixture
def long_job(tmp_path):
    return dpt.write_small_job(tmp_path / "long.yaml", train="{epochs: 100000}", log="{every: 100 steps}")


def is_kept(process, folder, number):
    """The run stops at its first step, or soon after it, and is saved."""
    err = finish(process)
    assert process.returncode == 75 and f"({signal.Signals(number).name}), all is saved" in err, (process.returncode, number, err)
    return dpt.events(folder, "end")[-1]["step"]


@pytest.mark.parametrize("number", REQUESTS)
def test_the_earliest_signal_to_a_lone_run(tmp_path, monkeypatch, long_job, number):
    """The run stands still at its first step, so that the signal comes before it ends, however late this test is."""
    monkeypatch.setenv("DPTRAIN_FAULT", "stop:rank=0:step=1")
    process = begin(long_job, "--output", tmp_path / "out")
    os.kill(process.pid, number)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    os.kill(process.pid, signal.SIGCONT)
    assert is_kept(process, tmp_path / "out", number) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_early_signal_to_ranks(tmp_path, long_job, moment):
    number = REQUESTS[list(MOMENTS).index(moment)]
    process = begin(long_job, "--ranks", 2, "--output", tmp_path / "out")
    while process.poll() is None and not MOMENTS[moment](process.pid):
        pass
    os.killpg(process.pid, number)  # as a terminal does it: to the whole foreground group
    assert is_kept(process, tmp_path / "out", number) == 1


@pytest.mark.parametrize("ranks", [0, 2])
def test_signals_at_random_moments(tmp_path, long_job, ranks):
    """Through the loading of the job, MPI_Init and the set-up, into the first steps."""
    dice = random.Random(ranks)
    for i in range(300 if HEAVY else 3):
        number, folder = dice.choice(REQUESTS), tmp_path / str(i)
        process = begin(long_job, *(["--ranks", ranks] if ranks else []), "--output", folder)
        time.sleep(dice.random() * (0.8 if ranks else 0.15))  # it may come at any moment
        os.killpg(process.pid, number)
        is_kept(process, folder, number)
        shutil.rmtree(folder)


# --- signals that come several times --------------------------------------------------------------

# Whom the signal is sent to: each process, as a batch system and systemd do it; the launcher, several times; mpirun alone.
WAYS = {
    "all": lambda process: [process.pid, *(pid for _, pid in descendants(process.pid))],
    "twice": lambda process: [process.pid] * 3,
    "mpirun": lambda process: [pid for name, pid in descendants(process.pid) if name in MPIRUN],
}


@pytest.mark.parametrize("number, way", [(signal.SIGTERM, "all"), (signal.SIGINT, "all"), (signal.SIGTERM, "twice"),
                                         (signal.SIGUSR2, "twice"), (signal.SIGTERM, "mpirun")])
def test_several_signals_to_ranks_are_one_request(tmp_path, long_job, number, way):
    process = begin(long_job, "--ranks", 2, "--output", tmp_path / "out", "--set", "log.every=1 steps")
    assert dpt.wait_for_step(process, tmp_path / "out", 10)
    for pid in WAYS[way](process):
        os.kill(pid, number)
    is_kept(process, tmp_path / "out", number)


def test_several_signals_under_a_bare_mpirun_are_one_request(tmp_path, long_job):
    """USR2 to mpirun and its ranks, which mpirun passes on once more, also while they end."""
    process = dpt.start(long_job, tmp_path / "out", 2, "--set", "log.every=1 steps")
    assert dpt.wait_for_step(process, tmp_path / "out", 10)
    for pid in (process.pid, *dpt.ranks_of(process)):
        os.kill(pid, signal.SIGUSR2)
    is_kept(process, tmp_path / "out", signal.SIGUSR2)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])
def test_timeout_asks_twice(tmp_path, long_job, number):
    """timeout(1) signals its child, then its whole group."""
    process = dpt.start(long_job, tmp_path / "out", 1, "--set", "log.every=1 steps")
    assert dpt.wait_for_step(process, tmp_path / "out", 10)
    os.kill(process.pid, number)
    os.killpg(process.pid, number)
    is_kept(process, tmp_path / "out", number)


def test_a_later_signal_to_ranks_ends_them(tmp_path, long_job):
    """One that a person sends, since the run does not end: rank 0 hangs."""
    process = dpt.start(long_job, tmp_path / "out", 1, "--ranks", "2", DPTRAIN_FAULT="hang:rank=0:step=1")
    assert dpt.wait_until(process, lambda: dpt.runs_begun(tmp_path / "out") > 0)
    started = [pid for _, pid in descendants(process.pid)]
    while process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.02)
    finish(process)
    assert process.returncode == 128 + signal.SIGTERM
    assert len(started) == 3
    end = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in started):  # the kernel ends them
        assert time.monotonic() < end, "ranks are left"
        time.sleep(0.02)


@pytest.mark.parametrize("number", REQUESTS)
def test_other_commands_end_at_once(tmp_path, long_job, number):
    """As they start, whether the handlers are there or not, and in their work."""
    for early in (True, False):
        process = start("bench", long_job, "--steps", "1000000")
        assert early or process.stderr.readline() == b"measuring the machine\n"
        os.kill(process.pid, number)
        finish(process)
        assert process.returncode == -number


def opened(pid):
    """What a process has open; some is closed while one looks."""
    for link in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            yield os.readlink(link)
        except FileNotFoundError:
            pass


def test_a_command_without_requests_ends_with_its_ranks(tmp_path, long_job):
    """`bench` on ranks: one signal is enough."""
    process = start("bench", long_job, "--steps", "1000000", "--ranks", 2)
    assert dpt.wait_until(process, lambda: below(process.pid).count("dptrain") == 2)
    name, mpirun = next(of for of in descendants(process.pid) if of[0] in MPIRUN)
    # Where epoll fails on what is being closed libevent prints a warning; Open MPI 5 knows no other way to wait.
    assert name == "prterun" or "anon_inode:[eventpoll]" not in opened(mpirun)
    os.kill(process.pid, signal.SIGTERM)
    err = finish(process)
    assert process.returncode == 128 + signal.SIGTERM and "[warn]" not in err, err


# --- how many -------------------------------------------------------------------------------------

CORES = len(os.sched_getaffinity(0))


LOAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* What is on the machine, as the test says. */
FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");

    return real(strcmp(path, "/proc/loadavg") == 0 ? getenv("LOADAVG") : path, mode);
}
"""


@pytest.fixture(scope="module", name="load")
def fixture_load(tmp_path_factory):
    """The environment of a machine on which so many others compute: in the mean of a minute, and now."""
    folder = tmp_path_factory.mktemp("load")
    (folder / "load.c").write_text(LOAD)
    subprocess.run([*shlex.split(os.environ.get("CC", "gcc")), "-shared", "-fPIC", "-o", folder / "load.so", folder / "load.c", "-ldl"], check=True)

    def machine(mean, now):
        path = folder / f"{mean}-{now}"
        path.write_text(f"{mean} 0.50 0.10 {now + 1}/321 4711\n")
        return {"LD_PRELOAD": str(folder / "load.so"), "LOADAVG": str(path)}
    return machine


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_auto_leaves_out_cores_that_others_use(tmp_path, long_job, load):
    """Where the last minute and this moment say so: what has just ended counts for a minute more, what has just begun may be a moment's."""
    online = os.cpu_count()
    for mean, now, ranks in ((0.1, 0, CORES), (online - 1, online - 1, 1), (3.0 * online, 3 * online, 1), (3.0 * online, 0, CORES), (0.2, 3 * online, CORES)):
        folder = tmp_path / f"{mean}-{now}"
        result = dpt.run(long_job, "--ranks", "auto", "--output", folder, "--set", "train.max_time=1 s", env=load(mean, now))
        assert result.code == 75 and dpt.events(folder, "run")[0]["ranks"] == ranks, result
        busy = f"--ranks auto: {ranks} rank on {CORES} cores: others keep about {min(mean, now):.1f} of this machine's {online} cores busy"
        assert result.err.startswith(busy) == (ranks < CORES), result


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_auto_starts_ranks_where_they_are_worth_it(tmp_path, long_job, load):
    """For a moment of training mpirun takes too long; a run of hours gets a rank per core."""
    short = dpt.write_small_job(tmp_path / "short.yaml")
    asks = dpt.write_job(tmp_path / "asks.yaml", "data: {train: synthetic, synthetic: {samples: 64, shape: [8], classes: 3}}\n"
                         "model: {type: mlp, hidden: [16]}\nbatch: {global: 8}\ntrain: {steps: 10}\n")  # the data for its outputs
    for job, ranks in ((short, 1), (asks, 1), (long_job, CORES)):
        folder = tmp_path / f"{os.path.basename(job)}-{ranks}"
        result = dpt.run(job, "--ranks", "auto", "--output", folder, "--set", "train.max_time=1 s", env=load(0.1, 0))
        assert result.code in (0, 75), result
        assert dpt.events(folder, "run")[0]["ranks"] == ranks, result
        assert result.err.startswith("--ranks auto: one rank; to start ") == (ranks == 1), result
    assert "--ranks auto" not in dpt.run("eval", short, "--checkpoint", tmp_path / "short.yaml-1", "--ranks", "auto", env=load(0.1, 0)).err


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_auto_takes_one_rank_where_more_would_be_slower(tmp_path):
    """A large model and few samples: summing its gradient takes longer than computing it."""
    job = dpt.write_small_job(tmp_path / "job.yaml", data="{train: synthetic, synthetic: {samples: 64, shape: [1024]}}",
                              model="{type: mlp, hidden: [2048, 2048], outputs: 10}", batch="{global: 2, micro: 2}",
                              optimizer="{type: sgd, lr: 0.01}", train="{epochs: 1000}", checkpoint="{every: never}")
    result = dpt.run(job, "--ranks", "auto", "--output", tmp_path / "out", "--set", "train.max_time=1 s", "--set", "log.every=1000 steps")
    assert re.match(r"--ranks auto: one rank; \d+ would be slower: a step takes about \S+ ms on one, and exchanging \S+ ms\n", result.err), result
    assert dpt.events(tmp_path / "out", "run")[0]["ranks"] == 1


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
@pytest.mark.parametrize("ranks, words, told", [(2, (), True), (2, ("parallel.shard=optimizer", "comm.reduction=reproducible"), False),
                                                (2, ("model.hidden=[16]",), False), (1, (), False)])
def test_ranks_that_are_slower_than_one_are_told(tmp_path, ranks, words, told):
    """Ranks of one's own mpirun are told, too: each updates all of many weights for a few samples."""
    job = dpt.write_small_job(tmp_path / "job.yaml", data="{train: synthetic, synthetic: {samples: 64, shape: [1024]}}",
                              model="{type: mlp, hidden: [2048, 2048], outputs: 10}", batch="{global: 4, micro: 2}",
                              train="{steps: 2}", checkpoint="{every: never}")
    result = dpt.run(job, "--output", tmp_path / "out", *(word for text in words for word in ("--set", text)), ranks=ranks)
    line = "one rank with all cores would be faster than 2: each of them reads and updates all weights (--ranks auto chooses)\n"
    assert result.code == 0 and (line in result.err) == told and ("would be faster" in result.err) == told, result


CPU = open("/proc/cpuinfo", encoding="utf-8").read()
BF16 = "AMX tiles" if "amx_bf16" in CPU else "AVX-512 BF16" if "avx512_bf16" in CPU and "GenuineIntel" not in CPU else None
WIDE = {"data": "{train: synthetic, synthetic: {samples: 4096, shape: [1024]}}", "model": "{type: mlp, hidden: [2048, 2048], outputs: 10}",
        "batch": "{global: 1024, micro: 512}"}
PICTURES = {"data": "{train: synthetic, synthetic: {samples: 64, shape: [3, 32, 32]}}", "model": "{type: resnet, depth: 20, outputs: 10}",
            "batch": "{global: 32, micro: 16}"}


@pytest.mark.skipif(BF16 is None, reason="this CPU multiplies no bf16")
@pytest.mark.parametrize("sections, epochs, words, told", [
    (WIDE, 1000, (), True), (WIDE, 1, (), False), (WIDE, 1000, ("device.precision=bf16",), False), (WIDE, 1000, ("model.hidden=[8]",), False),
    (PICTURES, 100000, (), BF16 == "AMX tiles")])
def test_bf16_is_told_where_it_is_quicker(tmp_path, sections, epochs, words, told):
    """In a run that is long enough to matter; of convolutions only where tiles multiply it."""
    job = dpt.write_small_job(tmp_path / "job.yaml", train=f"{{epochs: {epochs}, max_time: 1 s}}", checkpoint="{every: never}", **sections)
    result = dpt.run(job, "--output", tmp_path / "out", *(word for text in words for word in ("--set", text)))
    line = re.search(rf"^device.precision: bf16 would be about \d+\.\d times as fast: {BF16} multiply it$", result.err, re.M)
    assert (line is not None) == told == ("bf16 would" in result.err), result


def test_ranks_that_share_cores_are_told(tmp_path):
    job = dpt.write_small_job(tmp_path / "job.yaml", train="{steps: 2}")
    result = dpt.run(job, "--ranks", CORES + 1, "--output", tmp_path / "out")
    assert result.code == 0 and f"warning: {CORES + 1} ranks share {CORES} core" in result.err.splitlines()[0], result
    assert "ranks share" not in dpt.run(job, "--ranks", CORES, "--output", tmp_path / "few").err
