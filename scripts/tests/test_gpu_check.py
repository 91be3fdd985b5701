"""scripts/gpu-check.sh: what it does without a GPU, and its steps and report with libraries that stand in for one."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "scripts/gpu-check.sh"
PROGRAM = Path(os.environ.get("DPTRAIN", TOP / "build/dptrain")).resolve()
TESTS = PROGRAM.parent / "tests"
FAKE = TESTS / "fakegpu"
HEAVY = os.environ.get("DPT_HEAVY") == "1"
SANITIZED = b"__asan_init" in PROGRAM.read_bytes() if PROGRAM.exists() else False

has_gpu = any(Path("/dev", name).exists() for name in ("nvidia0", "dxg"))
needs_fake = pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists() or SANITIZED,
                                reason="the libraries that stand in for a GPU are not built, or as the sanitizers want them")


def check(tmp_path, *words, fake=True, env=None):
    """The exit code, what it printed, the report's rows {step: (state, why)} and its text."""
    report = tmp_path / "report.md"
    given = ["--program", PROGRAM, "--tests", TESTS, "--fake", FAKE, "--quick", "--work", tmp_path / "work", "--report", report]
    # DPT_HEAVY would send all of the kernels' tests to a device that takes its time.
    done = subprocess.run([SCRIPT, *(given if fake else []), *words], cwd=tmp_path, env={**os.environ, "DPT_HEAVY": "0", **(env or {})}, timeout=600,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    text = report.read_text() if report.exists() else ""
    rows = {name: (state, why) for name, state, why
            in re.findall(r"^\| ([\w-]+) \| [^|]* \| (ok|failed|skipped) \| \d+ s \| (.*) \|$", text, re.M)}
    return done.returncode, done.stdout, rows, text


def steps():
    listed = subprocess.run([SCRIPT, "--list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


@pytest.mark.skipif(has_gpu or shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu(tmp_path):
    code, printed, _, _ = check(tmp_path, fake=False)
    assert code == 77, printed
    assert printed.count("\n") == 1 and "no NVIDIA GPU" in printed
    assert not list(tmp_path.iterdir()), "nothing is made"


def test_words(tmp_path):
    names = steps()
    assert len(names) == len(set(names)) > 25
    assert {"kernels", "convolutions", "products", "memcheck", "mnist-cnn", "reproducible", "where-it-goes"} <= set(names)
    assert check(tmp_path, "--nonsense", fake=False)[0] == 2
    assert check(tmp_path, "--report", fake=False)[0] == 2
    code, printed, _, _ = check(tmp_path, "--help", fake=False)
    assert code == 0 and "--peers DIR" in printed and "shellcheck" not in printed


@needs_fake
def test_no_such_step(tmp_path):
    code, printed, _, _ = check(tmp_path, "--steps", "nonsense")
    assert code == 2 and "no step matches" in printed


@needs_fake
def test_steps_and_report(tmp_path):
    names = ["build", "machine", "products", "linreg", "to-cpu", "reproducible"]
    if shutil.which("compute-sanitizer") is None:
        names.insert(3, "memcheck")
    code, printed, rows, text = check(tmp_path, "--steps", "|".join(names))
    assert code == 0, printed
    assert list(rows) == names
    assert rows["build"][0] == "skipped"
    assert rows["machine"][0] == "ok" and "Fake GPU" in rows["machine"][1]
    assert rows["products"][0] == rows["linreg"][0] == rows["to-cpu"][0] == rows["reproducible"][0] == "ok", text
    assert rows.get("memcheck", ("skipped",))[0] == "skipped"
    assert "the same" in rows["reproducible"][1]
    assert "stand in for a GPU" in text and "## Machine" in text
    for name in rows:
        assert (tmp_path / "work" / f"{name}.log").exists()


@needs_fake
def test_a_device_that_fails(tmp_path):
    code, printed, rows, text = check(tmp_path, "--steps", "machine|two-ranks",
                                      env={"FAKEGPU_FAIL": "cuStreamCreateWithPriority:1+", "FAKEGPU_QUIET": "1"})
    assert code == 1, printed
    assert {state for state, _ in rows.values()} == {"failed"}
    assert "cuStreamCreateWithPriority" in rows["machine"][1]
    assert "## Log of machine" in text


PEER = """import sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if words["--framework"] == "jax":
    sys.exit("no module named jax")
us = {"eager": %s, "compile": 5e8, "graph": 4e8}[words["--mode"]]
print(f"torch {words['--mode']} us/step={us} samples/s=1")
"""


@needs_fake
@pytest.mark.parametrize("eager, state, verdict", [("9e8", "ok", "met"), ("1", "failed", "missed")])
def test_goals(tmp_path, eager, state, verdict):
    """Beside peers that are slower, or quicker, than the libraries that stand in; one of them does not run."""
    (tmp_path / "gpu_step.py").write_text(PEER % eager)
    code, printed, rows, text = check(tmp_path, "--steps", "speed-1024-bf16" if eager == "1" else "speed-128-tf32", "--peers", tmp_path,
                                      "--python", "python3")
    assert code == (state == "failed"), printed
    (name, (found, why)), = rows.items()
    assert found == state, why
    cells = re.search(r"^\| mlp \| (.*) \|$", text, re.M)[1].split(" | ")
    assert float(cells[0]) > 0 and float(cells[1]) == float(eager) and cells[4] == "-" and cells[-1] == verdict, text


@needs_fake
@pytest.mark.skipif(not HEAVY, reason="minutes; with DPT_HEAVY=1")
def test_all_steps(tmp_path):
    code, printed, rows, _ = check(tmp_path)
    assert code == 0, printed
    assert list(rows) == steps()
