"""Thousands of shards on a file server: how often it is asked for each, and how many are open at a time."""
import collections
import os
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

# Writes a line for each call that asks about a file *.h5: by its name, or of an open one.
COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
struct stat;
static void tell(const char *call, const char *path)
{
    static int log = -1;
    const size_t n = path ? strlen(path) : 0;
    char line[4200];
    if (n < 3 || n > 4096 || strcmp(path + n - 3, ".h5") != 0) return;
    if (log < 0) log = (int)syscall(SYS_openat, AT_FDCWD, getenv("COUNT_CALLS"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    syscall(SYS_write, log, line, (size_t)sprintf(line, "%s %s\n", call, path));
}
static void tell_fd(const char *call, int fd)
{
    char link[64], path[4097];
    ssize_t n;
    sprintf(link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, 4096);
    path[n > 0 ? n : 0] = 0;
    tell(call, path);
}
#define NEXT(name) static int (*next)(); if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name)
#define MODE int mode = 0; if (flags & O_CREAT) { va_list args; va_start(args, flags); mode = va_arg(args, int); va_end(args); }
#define OPEN(name) int name(const char *p, int flags, ...) { MODE NEXT(name); tell("open", p); return next(p, flags, mode); }
#define OPENAT(name) int name(int d, const char *p, int flags, ...) { MODE NEXT(name); tell("open", p); return next(d, p, flags, mode); }
#define STAT(name) int name(const char *p, struct stat *s) { NEXT(name); tell("stat", p); return next(p, s); }
#define FSTAT(name) int name(int fd, struct stat *s) { NEXT(name); tell_fd("fstat", fd); return next(fd, s); }
#define XSTAT(name) int name(int v, const char *p, struct stat *s) { NEXT(name); tell("stat", p); return next(v, p, s); }
#define FXSTAT(name) int name(int v, int fd, struct stat *s) { NEXT(name); tell_fd("fstat", fd); return next(v, fd, s); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) STAT(stat) STAT(stat64) STAT(lstat) STAT(lstat64) FSTAT(fstat) FSTAT(fstat64)
XSTAT(__xstat) XSTAT(__xstat64) XSTAT(__lxstat) XSTAT(__lxstat64) FXSTAT(__fxstat) FXSTAT(__fxstat64)
"""
JOB = """
seed: 1
device: {threads: 1}
data: {train: ["FOLDER/*.h5"], shuffle: SHUFFLE, cache: CACHE}
model: {type: mlp, hidden: [8], outputs: 10}
batch: {global: GLOBAL, micro: 16}
train: {steps: 6}
log: {every: never}
"""


def shards(folder, n, samples, **options):
    """Copies of one file under n names. options: of its images."""
    folder.mkdir()
    dice = np.random.default_rng(1)
    with h5py.File(folder / "0000.h5", "w") as file:
        file.create_dataset("images", data=dice.integers(0, 256, (samples, 1, 4, 4), dtype=np.uint8), **options)
        file["labels"] = dice.integers(0, 10, samples)
    for i in range(1, n):
        shutil.copyfile(folder / "0000.h5", folder / f"{i:04}.h5")
    return folder


def job(tmp_path, folder, cache, shuffle="full", batch=64):
    text = JOB.replace("FOLDER", str(folder)).replace("CACHE", cache).replace("SHUFFLE", shuffle).replace("GLOBAL", str(batch))
    return dpt.write_job(tmp_path / f"{cache}.yaml", text)


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    if dpt.sanitized():
        pytest.skip("AddressSanitizer stands before the same calls")
    return dpt.library(tmp_path_factory.mktemp("counter"), "count", COUNTER)


def calls(counter, tmp_path, *words, ranks=0, ticking=False):
    """How many calls of each kind there were for each file."""
    log = tmp_path / "calls"
    log.unlink(missing_ok=True)
    preload = [counter, dpt.ticking(tmp_path)["LD_PRELOAD"]] if ticking else [counter]
    dpt.train(*words, ranks=ranks, env={"LD_PRELOAD": ":".join(preload), "COUNT_CALLS": str(log)})
    lines = collections.Counter(line for line in log.read_text().splitlines() if f" {tmp_path}/data/" in line)
    return {(kind, os.path.basename(path)): n for line, n in lines.items() for kind, path in [line.split(" ", 1)]}


@pytest.mark.parametrize("ranks", [0, 2, 4])
@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_start_asks_little_of_a_file_server(tmp_path, counter, cache, ranks):
    """One rank reads a shard's header for all; ranks that stream open what they read."""
    folder = shards(tmp_path / "data", 64, 4)
    counts = calls(counter, tmp_path, job(tmp_path, folder, cache), tmp_path / "out", ranks=ranks)
    opens, stats = ({name: n for (kind, name), n in counts.items() if kind == which} for which in ("open", "stat"))
    assert sorted(opens) == sorted(os.listdir(folder))
    for name in ("0000.h5", "0016.h5", "0032.h5", "0048.h5"):  # for the advice on ranks
        del opens[name], stats[name]
    assert max(stats.values()) <= 3, stats
    assert max(opens.values()) <= (3 if cache == "memory" or ranks == 0 else 2 + ranks), opens


def test_shards_that_are_not_read_are_left_alone(tmp_path, counter):
    """However long others are streamed; each look at the clock is 10 ms after the one before."""
    folder = shards(tmp_path / "data", 30, 2000)
    path = job(tmp_path, folder, "none", shuffle="none", batch=16)
    few, many = (calls(counter, tmp_path, path, tmp_path / f"out{steps}", "--set", f"train.steps={steps}", ticking=True)
                 for steps in (5, 400))
    assert many["fstat", "0002.h5"] > few["fstat", "0002.h5"], "samples of it were read"
    last = {call: n for call, n in few.items() if call[1] >= "0010.h5"}
    assert len(last) == 3 * 20 and last == {call: n for call, n in many.items() if call[1] >= "0010.h5"}


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_thousand_shards_and_few_descriptors(tmp_path, cache, ranks):
    folder = shards(tmp_path / "data", 1000, 2)
    path = job(tmp_path, folder, cache, batch=256)
    dpt.train(path, tmp_path / "free", ranks=ranks)
    run = ["sh", "-c", f"ulimit -n 64; exec '{dpt.BINARY}' '{path}' --output '{tmp_path}/out'"]
    done = subprocess.run(run if ranks == 0 else ["mpirun", "-np", str(ranks), *run], env={**os.environ, **dpt.MPI_ENVIRONMENT},
                          capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert dpt.newest(tmp_path / "out") == dpt.newest(tmp_path / "free")


def test_compressed_shards_take_memory_while_they_are_read(tmp_path):
    """HDF5 needs half a megabyte and more for each that is open."""
    if dpt.sanitized():
        pytest.skip("AddressSanitizer keeps what is freed")
    most = {}
    for n in (150, 900):
        path = job(tmp_path, shards(tmp_path / f"data{n}", n, 2, compression="gzip"), "none", batch=2 * n)
        run = subprocess.Popen([dpt.BINARY, path, "--output", tmp_path / f"out{n}", "--quiet"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        assert run.returncode == 0
        most[n] = usage.ru_maxrss
    assert most[900] - most[150] < 100 << 10, most
