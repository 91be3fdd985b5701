"""The benchmarks beside the units still run; what they print is for people."""
import os
import re
import subprocess
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

TESTS = os.path.join(os.path.dirname(dpt.BINARY), "tests")


@pytest.mark.parametrize("command, rows", [
    (["bench_conv", "cnn", "4", "1"], 6),
    (["bench_conv", "mnistcnn", "4", "1"], 8),
    (["bench_product", "1"], 8),
    (["mpirun", "-np", "2", "bench_reduce", "100000"], 3),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_prints_a_table(command, rows):
    command = [os.path.join(TESTS, word) if word.startswith("bench_") else word for word in command]
    program = next(word for word in command if word.startswith(TESTS))
    if not os.path.exists(program):
        pytest.skip("not built (make check-units makes it)")
    done = subprocess.run(command, env={**os.environ, **dpt.MPI_ENVIRONMENT}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    if "built without oneDNN" in done.stdout:
        pytest.skip("built without oneDNN")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(lines) >= rows + 2, done.stdout
    assert all(re.search(r"\d", line) for line in lines[2:]) and "nan" not in done.stdout, done.stdout
