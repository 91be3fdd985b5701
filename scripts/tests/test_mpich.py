"""dptrain with MPICH, built beside the one with Open MPI: trains to byte-identical results, is stopped, killed and resumed by its own launcher."""
import contextlib
import glob
import os
import pty
import re
import shutil
import signal
import subprocess
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

MPIEXEC = "mpiexec.mpich"
OPEN_MPI = dpt.BINARY
HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"
CORES = len(os.sched_getaffinity(0))


def first_lines(binary):
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()


def without_make():
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}


@pytest.fixture(scope="module")
def mpich(tmp_path_factory):
    """The program. Only the other build's objects that see MPI are compiled again."""
    if shutil.which("mpicc.mpich") is None or shutil.which(MPIEXEC) is None:
        pytest.skip("needs mpich and libmpich-dev beside Open MPI, as scripts/setup.sh --test installs them on Debian")
    if not first_lines(OPEN_MPI)[1].startswith("Open MPI"):
        pytest.skip(f"{OPEN_MPI} is not built with Open MPI")
    built, folder = os.path.dirname(OPEN_MPI), str(tmp_path_factory.mktemp("build") / "mpich")
    shutil.copytree(f"{built}/obj", f"{folder}/obj", ignore=shutil.ignore_patterns("tests"))
    for name in os.listdir(built):
        if name in ("flags", "sources") or name.startswith("kernels.fatbin"):
            copy = shutil.copytree if os.path.isdir(f"{built}/{name}") else shutil.copy2
            copy(f"{built}/{name}", f"{folder}/{name}")
    made = subprocess.run(["make", f"-j{CORES}", f"BUILD={folder}", "MPICC=mpicc.mpich", "WERROR=1"], env=without_make(),
                          capture_output=True, text=True, timeout=600)
    assert made.returncode == 0 and "warning" not in made.stderr, made.stdout[-2000:] + made.stderr
    return f"{folder}/dptrain"


@pytest.fixture(autouse=True)
def linked(monkeypatch, request):
    """dpt.run and dpt.start take this build; mpirun is Open MPI's still."""
    monkeypatch.setattr(dpt, "BINARY", request.getfixturevalue("mpich"))


@pytest.fixture
def job(tmp_path):
    return dpt.write_small_job(tmp_path / "job.yaml", train="{epochs: 2}")


@pytest.fixture
def long_job(tmp_path):
    return dpt.write_small_job(tmp_path / "long.yaml", train="{epochs: 100000}")


def command(launcher, ranks, *words, binary=None, env=None):
    done = subprocess.run([launcher, "-np", str(ranks), binary or dpt.BINARY, *map(str, words)], timeout=100, capture_output=True,
                          env={**os.environ, **dpt.MPI_ENVIRONMENT, **(env or {})}, stdin=subprocess.DEVNULL)
    return dpt.Result(done)


# --- what it is -----------------------------------------------------------------------------------

def test_version_names_it():
    number = re.search(r"Version:\s+(\S+)", subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, check=True).stdout)[1]
    assert first_lines(dpt.BINARY)[1] == f"MPICH {number}"


def test_doctor_knows_it(tmp_path):
    """On more ranks than cores Open MPI has a variable to set, which MPICH does not heed."""
    result = dpt.run("doctor", "--ranks", CORES + 1, cwd=tmp_path, env={"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_mpi_yield_when_idle": "0"})
    found = dict(re.findall(r"^  (?:ok|warning) +(library|launcher|ranks|cores)  +(.*)", result.out, re.M))
    assert found["library"].startswith("MPICH ") and "built with" not in found["library"], result
    assert found["launcher"] == "Hydra, started by --ranks" and found["ranks"].startswith(f"{CORES + 1} on "), result
    assert "they take turns" in result.out and "OMPI" not in result.out and "Open MPI" not in result.out, result


@pytest.mark.skipif(not HEAVY, reason="packs for ten seconds")
def test_debian_package_needs_its_launcher(mpich):
    folder = os.path.dirname(mpich)
    made = subprocess.run(["make", "deb", f"BUILD={folder}", "MPICC=mpicc.mpich", "WERROR=1"], env=without_make(), capture_output=True,
                          text=True, timeout=100)
    assert made.returncode == 0, made
    package, = glob.glob(f"{folder}/dist/*.deb")
    needs = subprocess.run(["dpkg-deb", "-f", package, "Depends"], capture_output=True, text=True, check=True).stdout
    assert re.search(r"\blibmpich\d", needs) and re.search(r"\bmpich(,|$)", needs) and "openmpi" not in needs, needs


# --- it trains ------------------------------------------------------------------------------------

WIDE = {"parallel": "{tensor: 2}", "model": "{type: mlp, hidden: [512], outputs: 10}"}


@pytest.mark.parametrize("ranks, sections", [(1, {}), (2, {}), (3, {}), (2, WIDE), (2, {"parallel": "{pipeline: {stages: 2}}"}),
                                             (2, {"parallel": "{shard: parameters}"})])
def test_same_bytes_as_open_mpi(tmp_path, ranks, sections):
    job = dpt.write_small_job(tmp_path / "job.yaml", train="{epochs: 2}", comm="{reduction: reproducible}", **sections)
    for folder, result in (("theirs", lambda *words: dpt.run(*words, "--ranks", ranks)),
                           ("launched", lambda *words: command(MPIEXEC, ranks, *words)),
                           ("open-mpi", lambda *words: command("mpirun", ranks, *words, binary=OPEN_MPI))):
        done = result("train", job, "--output", tmp_path / folder)
        assert done.code == 0 and "30 steps in" in done.out, done
        assert dpt.events(tmp_path / folder, "run")[0]["ranks"] == ranks
        assert dpt.newest(tmp_path / folder) == dpt.newest(tmp_path / "theirs")
    mpi = [dpt.events(tmp_path / folder, "run")[0]["mpi"].split()[0] for folder in ("theirs", "open-mpi")]
    assert mpi == ["MPICH", "Open"]


# --- it ends --------------------------------------------------------------------------------------

def test_killed_and_resumed(tmp_path, job):
    """The rank that died is named, though Hydra has killed all of them; the run is resumed, and its result is byte-identical."""
    dpt.train(job, tmp_path / "whole", "--ranks", 2)
    for rank, fault in ((0, "kill:rank=0:step=9"), (1, "exit:rank=1:step=17"), (1, "kill:rank=1:step=25")):
        result = dpt.run(job, "--ranks", 2, "--quiet", "--output", tmp_path / "out", env={"DPTRAIN_FAULT": fault})
        step = fault.split("=")[-1]
        said = [line for line in result.err.splitlines() if not line.startswith("warning: ")]
        assert result.code == 71 and result.out == "" and len(said) == 1, result
        assert re.match(rf"rank {rank} \(\S+\) died at step {step}: its process is gone ", said[0]), result
    assert dpt.run(job, "--ranks", 2, "--output", tmp_path / "out").code == 0
    assert dpt.newest(tmp_path / "out") == dpt.newest(tmp_path / "whole")


def test_a_rank_that_dies_early_is_named(tmp_path, job):
    result = dpt.run(job, "--ranks", 2, "--quiet", "--output", tmp_path / "out", env={"DPTRAIN_FAULT": "kill:rank=1:step=0"})
    assert result.code == 71 and re.match(r"(rank 1|a rank) \(\S+\) died before the first step", result.err.splitlines()[-1]), result


def test_a_rank_that_hangs_is_named(tmp_path, job):
    """By another rank, whose MPI_Abort adds nothing."""
    result = dpt.run(job, "--ranks", 2, "--quiet", "--output", tmp_path / "out", "--set", "comm.timeout=1 s",
                     env={"DPTRAIN_FAULT": "hang:rank=1:step=3"})
    assert result.code == 71 and re.match(r"rank 1 \(\S+\) has not arrived at step 3 for 1 s", result.err.splitlines()[-1]), result


@pytest.mark.parametrize("text, says, code", [("data: {{train: synthetic}}\nx: 1\n", ":2:1: x: unknown key", 78),
                                              ("data: {{train: {folder}/bad.h5}}\nmodel: {{type: linear}}\n", "bad.h5 is not an HDF5 file", 65)])
@pytest.mark.parametrize("launcher", ["--ranks", MPIEXEC])
def test_errors_are_told_once(tmp_path, launcher, text, says, code):
    (tmp_path / "bad.h5").write_text("no such format")
    job = dpt.write_job(tmp_path / "job.yaml", text.format(folder=tmp_path))
    result = dpt.run(job, "--ranks", 2) if launcher == "--ranks" else command(launcher, 2, job)
    assert result.code == code and result.out == "" and result.err.count(says) == 1 and "====" not in result.err, result


def test_a_terminal_sees_no_text_of_hydra(tmp_path, job):
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal can be made here: {error}")
    process = subprocess.Popen([dpt.BINARY, job, "--ranks", "2", "--output", str(tmp_path / "out")], stdin=theirs, stdout=theirs,
                               stderr=theirs, env={**os.environ, "DPTRAIN_FAULT": "kill:rank=1:step=5"})
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # its end
        while piece := os.read(ours, 1 << 16):
            seen += piece
    os.close(ours)
    assert process.wait() == 71 and b"rank 1 (" in seen and b"TERMINAT" not in seen and b"====" not in seen, seen.decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_stopped_when_asked(tmp_path, long_job, number):
    process = dpt.start(long_job, tmp_path / "out", 1, "--ranks", 2)
    assert dpt.wait_for_step(process, tmp_path / "out", 10)
    os.kill(process.pid, number)
    err = process.communicate(timeout=100)[1].decode()
    assert process.returncode == 75 and f"({number.name}), all is saved" in err, err


def test_stopped_under_a_bare_mpiexec(tmp_path, long_job):
    """Hydra 4.0 loses the code where it has passed on a signal, one time in ten."""
    process = subprocess.Popen([MPIEXEC, "-np", "2", dpt.BINARY, long_job, "--output", str(tmp_path / "out")], start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert dpt.wait_for_step(process, tmp_path / "out", 10)
    os.kill(process.pid, signal.SIGUSR1)
    err = process.communicate(timeout=100)[1].decode()
    assert process.returncode in (0, 75) and "(SIGUSR1), all is saved" in err, err


# --- another MPI's launcher -----------------------------------------------------------------------

def test_launcher_of_another_mpi_is_refused(tmp_path, job):
    for launcher, binary, says in ((MPIEXEC, OPEN_MPI, r"Hydra \(MPICH\) started 3 ranks, but this dptrain is linked with Open MPI \S+, "
                                                       "which knows of 1: use that MPI's mpirun, "),
                                   ("mpirun", dpt.BINARY, r"Open MPI's mpirun started 3 ranks, but this dptrain is linked with MPICH \S+, "
                                                          "which knows of 1: use that MPI's mpiexec, ")):
        result = command(launcher, 3, job, "--output", tmp_path / "out", binary=binary, env={"OMPI_MCA_orte_execute_quiet": "1"})
        assert result.code == 2 and len(re.findall(says, result.err)) == 1 and result.err.count("is linked with") == 1, result
        assert not (tmp_path / "out").exists()
