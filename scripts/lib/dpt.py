"""What the end-to-end tests share: run the binary, with and without mpirun, and read what it wrote."""
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import time

BINARY = os.path.abspath(os.environ.get("DPTRAIN", "build/dptrain"))

# The numbers are the CPU's: where there is a GPU, `kind: auto` does not see it. Tests of GPUs say which they mean.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    # Open MPI 5's names for the two before.
    "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "HWLOC_COMPONENTS": "-gl,-opencl,-pci,-linuxio",
}

# For runs that stop or fail once they train: mpirun waits two seconds after an exit code that is not 0, though all ranks end together.
# Not where a rank dies, or before MPI starts: there the others need that time to say what is wrong.
ENDS_AT_ONCE = {"OMPI_MCA_odls_base_sigkill_timeout": "0", "PRTE_MCA_odls_base_sigkill_timeout": "0"}

# A job whose steps take a millisecond, with something of everything that a resumed run must continue: 15 steps per epoch.
SMALL_JOB = {
    "seed": "5",
    "data": "{train: synthetic, valid: 0.1, synthetic: {samples: 1009, shape: [1, 12, 12]}}",
    "model": "{type: sequential, layers: [{conv: {channels: 6, padding: same}}, relu, {maxpool: 2}, flatten, {dropout: 0.3}, "
             "{dense: 10}]}",
    "batch": "{global: 64, micro: 8}",
    "optimizer": "{type: adam, lr: 0.01}",
    "train": "{epochs: 6}",
    "checkpoint": "{every: 7 steps, keep: 3}",
    "log": "{every: 1 steps}",
}


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out, self.err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        # Open MPI 5 adds a text of its own where a rank ends with another code than 0, and has no option against it; another one
        # ends in a byte of 0.
        self.err = re.sub(r"^-{70,}\nprterun (?:detected|noticed) that .*?\n-{70,}\n", "", self.err.replace("\0", ""), flags=re.M | re.S)

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run(*words, ranks=0, cwd=None, timeout=300, env=None, given=None):
    """Runs `dptrain words`, under `mpirun -np ranks` where ranks > 0. given: text for its standard input."""
    command = [BINARY, *map(str, words)]
    if ranks:
        command = ["mpirun", "-np", str(ranks), *command]
    environment = {**os.environ, **MPI_ENVIRONMENT, **(env or {})}
    stdin = {"stdin": subprocess.DEVNULL} if given is None else {"input": given.encode()}
    return Result(subprocess.run(command, cwd=cwd, env=environment, timeout=timeout, **stdin,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE))


TICKING = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *t)
{
    static _Thread_local long long now[2];
    const int own = clock == CLOCK_THREAD_CPUTIME_ID;

    if (clock != CLOCK_MONOTONIC && !own)
        return (int)syscall(SYS_clock_gettime, clock, t);
    now[own] += own ? 100000 : 10000000;
    *t = (struct timespec){1000 + now[own] / 1000000000, now[own] % 1000000000};
    return 0;
}
"""


@functools.cache
def sanitized():
    """Whether the program is one of AddressSanitizer, which keeps memory, reserves terabytes of addresses and must be the first library."""
    with open(BINARY, "rb") as file:
        return b"__asan_init" in file.read()


def library(folder, name, source, compiler="gcc"):
    """Compiles C source into a library to preload; returns its path."""
    path = os.path.join(folder, f"{name}.so")
    with open(f"{path}.c", "w", encoding="utf-8") as file:
        file.write(source)
    subprocess.run([compiler, "-std=gnu11", "-shared", "-fPIC", "-O1", "-o", path, f"{path}.c", "-ldl"], check=True, timeout=60)
    return path


def ticking(folder):
    """An environment in which whatever is measured takes as long on any machine: each look of a thread at the clock is 10 ms after
    its last one, and of its processor time 0.1 ms."""
    return {"LD_PRELOAD": library(folder, "ticking", TICKING), "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


def each_rank(*scripts):
    """mpirun with a shell line for each rank: several programs with `:` between them end Debian 13's Open MPI with SIGSEGV."""
    cases = " ".join(f"{rank}) {script};;" for rank, script in enumerate(scripts))
    return ["mpirun", "-np", str(len(scripts)), "sh", "-c", f"case $OMPI_COMM_WORLD_RANK in {cases} esac"]


def write_job(path, text):
    """Writes a job file; returns its path as text."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def write_small_job(path, **sections):
    """SMALL_JOB with some sections instead of, or beside, its own; returns the file's path as text."""
    return write_job(path, "".join(f"{key}: {text}\n" for key, text in {**SMALL_JOB, **sections}.items()))


def start(job, folder, ranks, *words, mpirun=False, output=subprocess.PIPE, **environment):
    """A run beside the caller, under mpirun where it has several ranks or that is asked for."""
    command = [BINARY, job, "--output", str(folder), *map(str, words)]
    if ranks > 1 or mpirun:
        command = ["mpirun", "-np", str(ranks), *command]
    return subprocess.Popen(command, env={**os.environ, **MPI_ENVIRONMENT, **environment}, start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=output, stderr=output)


def ranks_of(process):
    """The processes of a run that train: children of mpirun, or the process itself."""
    found, pids = [], [process.pid]
    for children in glob.glob(f"/proc/{process.pid}/task/*/children"):
        try:
            with open(children, encoding="utf-8") as file:
                pids += map(int, file.read().split())
        except OSError:
            continue
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, state = re.match(r"\d+ \((.*)\) (\S)", file.read()).groups()
        except (OSError, AttributeError):
            continue
        if name == "dptrain" and state != "Z":
            found.append(pid)
    return sorted(found)


def wait_until(process, true, seconds=100):
    """Returns once true() holds or the process has ended; whether the former."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if true():
            return True
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.002)
    return False


def runs_begun(folder):
    file = os.path.join(folder, "metrics.jsonl")
    if not os.path.exists(file):
        return 0
    with open(file, encoding="utf-8") as stream:
        return stream.read().count('"event": "run"')


def wait_for_step(process, folder, step, begun=0):
    """Waits until a run, the one after `begun` others in its folder, has logged a step; False where it ended before."""
    file = os.path.join(folder, "metrics.jsonl")

    def reached():
        if not os.path.exists(file):
            return False
        with open(file, encoding="utf-8") as stream:
            text = stream.read()
        return text.count('"event": "run"') > begun and f'"train", "step": {step},' in text
    return wait_until(process, reached)


def newest(folder):
    """The bytes of the newest checkpoint."""
    with open(os.path.join(folder, "checkpoints", "latest"), "rb") as file:
        return file.read()


def steps_logged(folder):
    return [e["step"] for e in events(folder, "train")]


def events(folder, kind=None):
    """The objects of metrics.jsonl, all or of one kind."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [e for e in lines if kind is None or e["event"] == kind]


def losses(*kinds):
    """Names of the losses by what their labels are, as the list in core/backend/backend.h has them: CLASSES, NUMBERS, COUNTS, LABELS."""
    with open("core/backend/backend.h", encoding="utf-8") as file:
        text = file.read().replace("\\\n", "")
    return [name for kind in kinds for name in re.findall(r"[A-Z]+\([A-Z0-9_]+, (\w+)\)", re.search(rf"#define DPT_LOSSES_OF_{kind}\(.*?\)(.*)", text)[1])]


def train(job, output, *words, ranks=0, **options):
    """Trains into a fresh folder and demands success."""
    shutil.rmtree(output, ignore_errors=True)
    result = run("train", job, "--output", output, *words, ranks=ranks, **options)
    assert result.code == 0, result
    return result
