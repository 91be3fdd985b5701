"""Standard streams of every command: closed at the start, onto a full disk, read by someone who leaves."""
import os
import subprocess
import sys

import numpy
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SMOKE = "configs/smoke.yaml"
SHORT = ("--set", "train={steps: 8}", "--set", "eval.every=never", "--set", "checkpoint.every=8 steps")
# What each command does that prints results; R stands for a run folder, O for one to write into.
WORDS = {
    "train": [SMOKE, *SHORT, "--output", "O/run"],
    "eval": [SMOKE, "--checkpoint", "R"],
    "predict": [SMOKE, "--checkpoint", "R", "--input", "R/three.npy"],
    "bench": [SMOKE, "--steps", "10", "--json"],
    "plan": [SMOKE],
    "report": ["R", "--no-predictions", "-o", "O/page.html"],
    "export": ["R", "O/out.npz"],
    "convert": ["csv", "R/a.csv", "--output", "O/shard"],
    "inspect": ["R"],
    "watch": ["R", "--once"],
    "compare": ["R", "R"],
    "doctor": ["--output", "O"],
    "layers": [],
    "schema": [],
    "completion": ["bash"],
    "man": [],
    "init": ["--output", "-"],
}
SILENT = {"report"}  # whose result is the file alone
RANKS = (SMOKE, *SHORT, "--ranks", "2", "--output")

full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")


def commands():
    listed = dpt.run("--help").out.split("commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams") / "run"
    dpt.train(SMOKE, folder, *SHORT)
    numpy.save(folder / "three.npy", numpy.zeros((3, 1, 16, 16), numpy.uint8))
    (folder / "a.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    return folder


def words_of(name, trained, folder):
    folder.mkdir(exist_ok=True)
    put = {"R": str(trained), "O": str(folder)}
    return [name, *(os.path.join(put[word[0]], word[2:]) if word in put or word[:2] in ("R/", "O/") else word
                    for word in WORDS[name])]


def run_into(stdout, *words, stderr=subprocess.PIPE):
    environment = {**os.environ, **dpt.MPI_ENVIRONMENT}
    done = subprocess.run([dpt.BINARY, *map(str, words)], env=environment, timeout=120, stdin=subprocess.DEVNULL,
                          stdout=stdout, stderr=stderr)
    return done.returncode, (done.stderr or b"").decode()


def gone():
    """A pipe whose reader has left."""
    ends = os.pipe()
    os.close(ends[0])
    return os.fdopen(ends[1], "wb")


def test_every_command_has_its_row():
    assert set(commands()) == set(WORDS)


@full
@pytest.mark.parametrize("name", WORDS)
def test_a_full_disk_and_a_reader_that_left(name, trained, tmp_path):
    with open("/dev/full", "wb") as stdout:
        code, err = run_into(stdout, *words_of(name, trained, tmp_path / "full"))
        assert code == (0 if name in SILENT else 74), err
        assert name in SILENT or err.splitlines()[-1].startswith("standard output: "), err
        code, err = run_into(stdout, name, "--help")
        assert code == 74 and len(err.splitlines()) == 1 and err.startswith("standard output: "), err
    with gone() as stdout:
        code, err = run_into(stdout, *words_of(name, trained, tmp_path / "gone"))
        assert code == 0 and "standard output" not in err and "ipe" not in err, err
        assert run_into(stdout, name, "--help") == (0, "")


@full
@pytest.mark.parametrize("words", [(), ("--help",), ("--version",), ("help", "plan")])
def test_help_and_version_too(words):
    with open("/dev/full", "wb") as stdout:
        code, err = run_into(stdout, *words)
        assert code == 74 and len(err.splitlines()) == 1, err
    with gone() as stdout:
        assert run_into(stdout, *words) == (0, "")


@full
def test_what_went_wrong_comes_before_a_full_disk(tmp_path):
    with open("/dev/full", "wb") as stdout:
        code, err = run_into(stdout, "inspect", tmp_path / "none.h5")
    assert code == 65 and "none.h5" in err and len(err.splitlines()) == 1, err


@full
def test_ranks_onto_a_full_disk(tmp_path):
    with open("/dev/full", "wb") as stdout:
        code, err = run_into(stdout, *RANKS, tmp_path / "full")
    assert code == 74 and err.splitlines()[-1] == "standard output: cannot write: No space left on device", err
    assert dpt.events(tmp_path / "full", "end")[-1]["reason"] == "done"


@pytest.mark.parametrize("which", ["stdout", "stderr", "both"])
def test_ranks_whose_reader_leaves(tmp_path, which):
    """As `| head -1` does."""
    words = [dpt.BINARY, *RANKS, str(tmp_path / "out"), "--set", "log.every=1 steps"]
    put = {"stdout": "2>/dev/null", "stderr": "2>&1 >/dev/null", "both": "2>&1"}[which]
    script = f'( "$@" {put}; echo $? >&3 ) | head -1'
    done = subprocess.run(["bash", "-c", f"{{ {script}; }} 3>&1 1>&2", "bash", *words], timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, **dpt.MPI_ENVIRONMENT})
    assert done.stdout == b"0\n" and len(done.stderr.splitlines()) == 1, done
    assert dpt.events(tmp_path / "out", "end")[-1]["reason"] == "done"


def test_ranks_keep_the_order_of_both_streams(tmp_path):
    done = subprocess.run([dpt.BINARY, *RANKS, tmp_path / "out"], env={**os.environ, **dpt.MPI_ENVIRONMENT}, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0 and b"results in" in done.stdout and done.stdout.startswith(b"dptrain "), done


@pytest.mark.parametrize("ranks", [(), ("--ranks", "2")])
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams(tmp_path, closed, ranks):
    words = [dpt.BINARY, SMOKE, *SHORT, "--output", str(tmp_path / "out"), *ranks]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], timeout=120, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **dpt.MPI_ENVIRONMENT})
    assert done.returncode == 0, done
    assert (b"results in" in done.stdout) == ("1>" not in closed), done
    assert done.stderr.startswith(b"dptrain ") == ("2>" not in closed), done
    assert b"results in" not in done.stderr
    wrote = dpt.events(tmp_path / "out")
    assert wrote[0]["event"] == "run" and wrote[-1]["event"] == "end"
    assert dpt.run("inspect", tmp_path / "out").code == 0, "nothing was printed into a file"
