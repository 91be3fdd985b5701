"""What happens in a process when MPI_Init, which changes the environment, is called (before_mpi.c): which threads there are, and that
none of them reads the environment then; and that dptrain changes it only while it has one thread."""
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

FAKE = os.path.join(os.path.dirname(dpt.BINARY), "tests", "fakegpu")
JOB = """
data: {train: synthetic, synthetic: {samples: 64, shape: [8]}}
model: {type: mlp, hidden: [8], outputs: 10}
batch: {global: 16}
train: {steps: 2}
checkpoint: {every: never}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("shim") / "before_mpi.so"
    subprocess.run([*shlex.split(os.environ.get("CC", "gcc")), "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared",
                    "-fPIC", "-o", library, os.path.join("core", "comm", "tests", "before_mpi.c"), "-ldl"], check=True)
    return str(library)


def look(shim, folder, kind, *words, ranks=0, codes=(0,), **more):
    """The lines of before_mpi.c, without the processes' numbers, of a command of its own or under mpirun."""
    log = folder / "threads.txt"
    log.unlink(missing_ok=True)
    library_path = FAKE if kind == "cuda" else str(folder / "none")
    own = {"LD_PRELOAD": shim, "BEFORE_MPI_LOG": str(log), "LD_LIBRARY_PATH": library_path, "FAKEGPU_IDLE_MS": "1", **more}
    line = ["mpirun", "-np", str(ranks)] if ranks else []
    line += ["env", *(f"{name}={text}" for name, text in own.items()), dpt.BINARY, *words]
    kept = {name: text for name, text in os.environ.items() if not re.match(r"CUDA_|CUDNN_|DPTRAIN_|FAKEGPU_|SLURM_", name)}
    options = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    done = dpt.Result(subprocess.run(line, env={**kept, **dpt.MPI_ENVIRONMENT, "ASAN_OPTIONS": options, "XDG_CACHE_HOME": str(folder)},
                                     cwd=folder, timeout=120, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    assert done.code in codes, done
    look.err = done.err
    return sorted(line.split(" ", 1)[1] for line in log.read_text().splitlines())


def train(shim, folder, kind, *words, **more):
    dpt.write_job(folder / "job.yaml", JOB)
    return look(shim, folder, kind, "job.yaml", "--set", f"device.kind={kind}", "--output", f"run-{len(os.listdir(folder))}", *words, **more)


def test_on_processors(shim, tmp_path):
    """A lone process has no other thread; a rank has its watchdog, which watches over MPI_Init."""
    assert train(shim, tmp_path, "cpu") == ["init 1"]
    assert train(shim, tmp_path, "cpu", "--ranks", "auto") == ["init 1"], "planning leaves none behind"
    assert train(shim, tmp_path, "cpu", ranks=2) == ["init 2"] * 2


def test_a_rank_that_is_stopped_as_mpi_starts(shim, tmp_path):
    """It is told within the job's comm.timeout, as in any other place."""
    train(shim, tmp_path, "cpu", "--set", "comm.timeout=1 s", ranks=2, codes=[71], BEFORE_MPI_STOP="1")
    assert re.search(r"^rank 1 \(\S+\) has not arrived at the start of MPI for 1 s: it is stopped \(SIGSTOP\)$", look.err, re.M), look.err


def test_lone_ranks_wait_for_each_other(shim, tmp_path):
    """Another MPI's launcher started two: the second one is still in MPI_Init, and does not take the first one for a dead rank."""
    job = dpt.write_job(tmp_path / "job.yaml", JOB)
    log = tmp_path / "threads.txt"
    ranks = [subprocess.Popen([dpt.BINARY, job, "--output", tmp_path / "out"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True,
                              env={**os.environ, **dpt.MPI_ENVIRONMENT, "LD_PRELOAD": shim, "BEFORE_MPI_LOG": str(log), "BEFORE_MPI_STOP": "1",
                                   "PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank)}) for rank in (1, 0)]
    state = lambda process: Path(f"/proc/{process.pid}/stat").read_text().split()[2]
    name = lambda process: Path(f"/proc/{process.pid}/comm").read_text().strip()
    assert dpt.wait_until(ranks[1], lambda: state(ranks[0]) == "T" and name(ranks[1]) == "dptrain-alone")
    os.kill(ranks[0].pid, signal.SIGCONT)
    said = [process.communicate(timeout=100)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2] and "died" not in "".join(said), said
    assert sum("is linked with Open MPI" in text for text in said) == 1, said


needs_fake = pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libcuda.so.1")),
                                reason="built without CUDA, or without its tests (make check-units)")


@needs_fake
def test_on_gpus(shim, tmp_path):
    """The driver is started before MPI, and has a thread of its own."""
    assert train(shim, tmp_path, "cuda") == ["init 2"]
    assert train(shim, tmp_path, "cuda", ranks=2) == ["init 3"] * 2
    # Where there is none the driver runs all the same.
    assert train(shim, tmp_path, "cuda", CUDA_VISIBLE_DEVICES="7", codes=[78]) == ["init 2"]


@needs_fake
def test_counting_gpus_starts_the_driver(shim, tmp_path):
    assert "change" not in " ".join(train(shim, tmp_path, "cuda", "--ranks", "auto"))


@needs_fake
def test_doctor(shim, tmp_path):
    """Its child asks the driver, and starts an MPI of its own."""
    found = look(shim, tmp_path, "cuda", "doctor", FAKEGPU_PROTECT="0")
    assert found == ["init 2"] * 2
    found = look(shim, tmp_path, "cuda", "doctor", ranks=2, FAKEGPU_DEVICES="2")
    assert [line for line in found if not line.startswith("init")] == []


def test_a_launcher_of_another_mpi(tmp_path):
    """It says in the environment how many ranks it has started; this MPI knows of one, which must not train alone."""
    (tmp_path / "job.yaml").write_text(JOB)
    done = dpt.run("train", tmp_path / "job.yaml", "--output", tmp_path / "run", env={"PMI_RANK": "0", "PMI_SIZE": "2"})
    assert done.code == 2 and re.match("the launcher started 2 ranks, but this dptrain is linked with .*, which knows of 1: use ", done.err), done
    assert len(done.err.splitlines()) == 1 and not (tmp_path / "run").exists()
