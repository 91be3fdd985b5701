"""The benchmarks beside the units still run; what they print is for people."""
# C programs: bench_*
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

TESTS = os.path.join(os.path.dirname(dpt.BINARY), "tests")


@pytest.mark.parametrize("command, rows", [
    (["bench_conv", "cnn", "4", "1"], 6),
    (["bench_conv", "mnistcnn", "4", "1"], 8),
    (["bench_primitives", "resnet20", "fp32", "4", "1"], 30),
    (["bench_gemm", "1"], 9),
    (["mpirun", "-np", "2", "bench_allreduce", "100000"], 3),
], ids=lambda value: "-".join(value) if isinstance(value, list) else "")
def test_prints_a_table(command, rows):
    command = [os.path.join(TESTS, word) if word.startswith("bench_") else word for word in command]
    program = next(word for word in command if word.startswith(TESTS))
    assert list(Path().glob(f"core/**/tests/{os.path.basename(program)}.c")), "there is no such program"
    if not os.path.exists(program):
        pytest.skip("not built (make check-units makes it; those that compare with oneDNN need it)")
    done = subprocess.run(command, env={**os.environ, **dpt.MPI_ENVIRONMENT}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(lines) >= rows + 2, done.stdout
    assert all(re.search(r"\d", line) for line in lines[2:]) and "nan" not in done.stdout, done.stdout


# Stands in for a Python that has PyTorch and Keras and no JAX, and says how fast it would be: at a first look, of few steps, as well as later.
PEER = """#!/bin/sh
case "$*" in
*import*torch* | *import*keras*) echo 2.0 ;;
*import*) exit 1 ;;
*keras*--xla*--bf16*) echo samples_per_s 5000 ;;
*keras*) echo samples_per_s 1500 ;;
*"--ranks 2 --fused --bf16"*) echo samples_per_s 4000 ;;
*bf16*) echo samples_per_s 3000 ;;
*"--ranks 1 --threads 2 --fused") echo samples_per_s 2000 ;;
*) echo samples_per_s 1000 ;;
esac
echo peak_mb 1
"""


def test_peers_are_compared_by_their_precision(tmp_path):
    """The fastest form in fp32, whichever it is, beside it bf16's, each named; the fastest of all; and who had no rounds."""
    python = Path(dpt.write_job(tmp_path / "python", PEER))
    python.chmod(0o755)
    done = subprocess.run([sys.executable, "scripts/bench/compare.py", "--python", python, "--rounds", "1", "--models", "linreg:1024"],
                          env={**os.environ, **dpt.MPI_ENVIRONMENT, "DPTRAIN": dpt.BINARY, "BENCH_SECONDS": "0.05"},
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "jax is left out" in done.stderr and "keras is left out" not in done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows[0] == ["model", "dptrain, fp32", "as", "dptrain, bf16", "as", "fastest fp32 peer", "which", "ratio to it", "fastest bf16 peer",
                       "which", "ratio to it", "ratio of the fastest"]
    assert [row[0] for row in rows[2:]] == ["linreg, batch 1024"]
    row = rows[2]
    assert row[5:7] == ["2 000", "PyTorch, 2 threads, fused"] and row[8:10] == ["5 000", "Keras, 2 threads, xla, bf16"], row
    fp32, bf16 = (float(row[i].replace(" ", "")) for i in (1, 3))
    for cell, ratio in zip((row[7], row[10], row[11]), (fp32 / 2000, bf16 / 5000, max(fp32, bf16) / 5000)):
        assert abs(float(cell.split()[0]) / ratio - 1) < 0.01, row
    slow = done.stdout.split("so given no rounds")[1]
    assert "PyTorch DDP, 2 ranks (1 000)" in slow and "Keras, 2 threads, bf16 (1 500)" in slow
    assert "threads, fused (" not in slow and "3 000" not in slow and "4 000" not in slow
