"""Which tests scripts/test.sh runs: the builds that a pattern asks for, and one function of a program (-k)."""
# C programs: test_str
import os
import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
PROGRAM = "core/base/tests/test_str.c"
TWO = """
def test_one(): pass
def test_other(): assert False
"""


def listed(*words):
    done = subprocess.run([TOP / "scripts/test.sh", *words, "--list"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_pattern_says_which_build():
    plain, sanitized = f"build unit {PROGRAM} 0", f"build/sanitize unit {PROGRAM} 0"
    assert listed(PROGRAM) == listed(PROGRAM, "-k", "any") == listed("--quick", PROGRAM) == [plain]
    assert listed(f"sanitize.*{PROGRAM}") == [sanitized]
    assert listed(f"sanitize.*{PROGRAM}", "--no-sanitize") == []
    assert {"build style . 0", plain, sanitized} <= set(listed())
    assert not [line for line in listed("-k", "any") if "style" in line or "sanitize" in line]


def run(logs, kind, file, name):
    """What run-test.sh prints, and its counts: passed, failed, skipped."""
    done = subprocess.run(["scripts/lib/run-test.sh", "build", kind, file, "0"], cwd=TOP, capture_output=True, text=True, timeout=100,
                          env={**os.environ, "DPT_LOGS": str(logs), "DPT_ONLY": name, "DPT_HEAVY": "0", "DPT_PYTHON": "/usr/bin/python3"})
    assert done.returncode == 0, done.stderr
    (count,) = logs.glob("*.count")
    return done.stdout, list(map(int, count.read_text().split()))


@pytest.mark.skipif(not (TOP / "build/tests/test_str").exists(), reason="build/tests/test_str is not built")
def test_one_function_of_a_c_program(tmp_path):
    names = re.findall(r"cmocka_unit_test\((\w+)\)", (TOP / PROGRAM).read_text())
    assert len(names) > 3
    said, counts = run(tmp_path, "unit", PROGRAM, names[2])
    assert counts == [1, 0, 0] and PROGRAM in said
    (log,) = tmp_path.glob("*.log")
    assert re.findall(r"^\[ +OK \] (\w+)", log.read_text(), re.M) == [names[2]]
    assert run(tmp_path, "unit", PROGRAM, "no_such") == ("", [0, 0, 0])


def test_one_function_of_a_file_of_pytest(tmp_path):
    file = tmp_path / "test_two.py"
    file.write_text(TWO)
    assert run(tmp_path, "pytest", file, "one")[1] == [1, 0, 0]
    said, counts = run(tmp_path, "pytest", file, "one or other")
    assert counts == [1, 1, 0] and "FAILED" in said
    assert run(tmp_path, "pytest", file, "no_such") == ("", [0, 0, 0])
