"""Instructions of a training step, our own code's, beside those written down in instructions.json: within 3 %.

They do not depend on the machine's load. Callgrind knows no AVX-512, so what is counted is the AVX2 form of the loops, or the
plain one where the machine has none; oneDNN's and libc's instructions, which follow the processor, are left out. After a
change that is meant: DPT_RECORD=1 scripts/test.sh instructions, and say in the commit why.
"""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TOP / "scripts/lib"))
import dpt  # noqa: E402

BASELINE = Path(__file__).with_name("instructions.json")
STEPS = 2
CONVS = "{conv: {channels: 16, padding: same}}, relu, {maxpool: 2}, {conv: {channels: 32, padding: same}}, relu, {maxpool: 2}, flatten"
JOBS = {
    "linreg": ("[5]", "outputs: 1", "mse", "[{dense: 1}]", "allreduce"),
    "mlp": ("[784]", "classes: 10", "cross_entropy", "[{dense: 256}, relu, {dense: 10}]", "allreduce"),
    "cnn": ("[3, 16, 16]", "classes: 10", "cross_entropy", f"[{CONVS}, {{dense: 10}}]", "allreduce"),
    "cnn-reproducible": ("[3, 16, 16]", "classes: 10", "cross_entropy", f"[{CONVS}, {{dense: 10}}]", "reproducible"),
}


def compiler():
    """What built the binary: another one makes other instructions."""
    text = subprocess.run(["readelf", "-p", ".comment", dpt.BINARY], capture_output=True, text=True).stdout
    found = re.search(r"GCC: \(.*\) (\S+)", text)
    return f"gcc {found[1]}" if found and "clang" not in text else None


def vectors():
    return "avx2" if re.search(r"^flags\b.*\bavx2\b", Path("/proc/cpuinfo").read_text(), re.M) else "plain"


def count(name, folder):
    """Instructions a step in the binary's own functions."""
    shape, targets, loss, layers, reduction = JOBS[name]
    job = folder / "job.yaml"
    job.write_text(f"""
data: {{train: synthetic, synthetic: {{samples: 128, shape: {shape}, {targets}}}}}
model: {{type: sequential, layers: {layers}}}
loss: {loss}
batch: {{global: 64, micro: 8}}
optimizer: {{type: adam, lr: 1.0e-3}}
train: {{steps: {STEPS}, clip_norm: 1}}
device: {{threads: 1}}
comm: {{reduction: {reduction}}}
checkpoint: {{every: never}}
""")
    out = folder / "callgrind.out"
    done = subprocess.run(["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=dpt_trainer_step",
                           f"--callgrind-out-file={out}", dpt.BINARY, job, "--output", folder / "run", "--quiet"],
                          env={**os.environ, **dpt.MPI_ENVIRONMENT}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    table = subprocess.run(["callgrind_annotate", "--threshold=100", "--auto=no", out], capture_output=True, text=True, check=True)
    ours = re.findall(rf"^ *([\d,]+) .*\[{re.escape(os.path.realpath(dpt.BINARY))}\]$", table.stdout, re.M)
    assert ours, table.stdout
    return sum(int(number.replace(",", "")) for number in ours) // STEPS


@pytest.mark.parametrize("name", JOBS)
def test_instructions_of_a_step(name, tmp_path):
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    if b"__asan_" in Path(dpt.BINARY).read_bytes():
        pytest.skip("the sanitizers' instructions are not counted")
    if "oneDNN" not in dpt.run("--version").out:
        pytest.skip("what is written down is of programs with oneDNN")
    key = f"{compiler()}, {vectors()}"
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if os.environ.get("DPT_RECORD") == "1":
        baseline.setdefault(key, {})[name] = count(name, tmp_path)
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
        return
    if key not in baseline:
        pytest.skip(f"nothing is written down for {key}")
    assert count(name, tmp_path) == pytest.approx(baseline[key][name], rel=0.03)
