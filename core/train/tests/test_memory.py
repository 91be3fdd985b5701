"""Memory that a run really has: what the ranks of a node share is there once, and `dptrain plan` counts it so."""
import json
import os
import re
import subprocess
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
from test_device_nodes import NODES  # noqa: E402
from running import Paused  # noqa: E402

# 5.3 million weights, nearly all in convolutions; activations are small beside them.
JOB = """
data: {train: synthetic, synthetic: {samples: 64, shape: [3, 8, 8], classes: 10}}
model: {type: cnn, channels: [16, 512, 1024], kernel: 3, padding: same, outputs: 10}
batch: {global: 8, micro: 4}
train: {steps: 5}
checkpoint: {every: never}
"""
SANITIZED = dpt.sanitized()


def shared_once(pids, *kinds):
    """Bytes that processes have in memory together: all, or of some kinds."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as file:
            text = file.read()
        total += sum(1024 * int(re.search(rf"^{kind}:\s+(\d+)", text, re.M)[1]) for kind in kinds or ["Pss"])
    return total


@pytest.mark.skipif(SANITIZED, reason="the sanitizer has memory of its own for each block")
def test_a_large_model_on_two_ranks_of_a_node(tmp_path):
    path = dpt.write_job(tmp_path / "job.yaml", JOB)
    plan = dpt.run("plan", path, "--json", "--no-time", "--ranks", 2, "--ranks-per-node", 2, cwd=tmp_path)
    memory = json.loads(plan.out)["memory"]
    parts, of = memory["parts"], memory["of"]
    weights = parts["weights"]
    assert of["copies"] == of["gradients_shared"] == of["optimizer"] == of["weights"] == "node", memory
    assert parts["optimizer"] == 2 * weights
    assert parts["gradients"] == 0 and 2 * weights < parts["gradients_shared"] < 2.01 * weights, "two gradients and nothing beside them"

    run = Paused(path, tmp_path / "run", 2, step=3)
    try:
        found = shared_once(run.pids)
    finally:
        run.kill()
    # Less where other programs have the same libraries in memory.
    assert 0.85 * memory["node"] < found < 1.02 * memory["node"], (found, memory)


WIDE = """
data: {{train: synthetic, synthetic: {{samples: 64, shape: [512], classes: 10}}}}
model: {{type: mlp, hidden: {hidden}, outputs: 10}}
batch: {{global: 32, micro: 2}}
train: {{steps: 9}}
comm: {{reduction: reproducible}}
parallel: {{shard: parameters}}
""".format(hidden=[512] * 20)


@pytest.mark.skipif(SANITIZED, reason="the sanitizer has memory of its own for each block")
def test_no_rank_holds_a_whole_model(tmp_path):
    """Its weights, gradient and Adam's state take more than twice what any of 8 ranks has, also while rank 0 saves and goes on; beside
    copies for that, which are made where memory is free."""
    path = dpt.write_job(tmp_path / "job.yaml", WIDE)
    plan = dpt.run("plan", path, "--json", "--no-time", "--ranks", 8, "--ranks-per-node", 8, cwd=tmp_path)
    found = json.loads(plan.out)
    whole = 4 * 4 * found["parameters"]
    for step in (3, 6):  # at the beginning, and gone on with what the first one saved
        run = Paused(path, tmp_path / "run", 8, "--set", "checkpoint={every: 1 steps, background: false}", step=step)
        try:
            each = [shared_once([pid]) for pid in run.pids]
        finally:
            run.kill()
        assert len(each) == 8 and 2 * max(each) < whole, (each, whole)
        # Less where other programs have the same libraries in memory.
        least = found["memory"]["node"] - found["memory"]["parts"]["libraries"]
        assert 0.85 * least < sum(each) < 1.05 * found["memory"]["node"], (each, found["memory"])


def test_weights_of_a_node_are_those_of_one_rank(tmp_path):
    """Ranks that have weights and slots together write what one rank alone does, and find those of another node that differ."""
    def train(name, ranks, *words, **environment):
        words = ["--set", "comm.reduction=reproducible", "--set", "checkpoint.every=5 steps", "--set", "train.clip_norm=0.1", *words]
        return dpt.run(path, "--output", tmp_path / str(name), *words, ranks=ranks, env=environment)

    path = dpt.write_job(tmp_path / "job.yaml", JOB.replace("512, 1024", "256, 1024") + "optimizer: {type: adamw, lr: 1.0e-3}\n")
    ends = []
    for ranks in (1, 3):
        assert train(ranks, ranks).code == 0
        ends.append((tmp_path / str(ranks) / "checkpoints/latest").read_bytes())
    assert ends[0] == ends[1]
    if SANITIZED:
        return  # a library that is loaded first gets in the sanitizer's way
    shim = {"LD_PRELOAD": dpt.library(tmp_path, "nodes", NODES, "mpicc"), "NODES": "0,0,1"}
    assert train("nodes", 3, **shim).code == 0
    assert (tmp_path / "nodes/checkpoints/latest").read_bytes() == ends[0]
    result = train("flipped", 3, "--set", "train.check_replicas=1 step", DPTRAIN_FAULT="flip-weight:rank=2:step=3:word=100", **shim)
    assert result.code == 1 and "step 3: the replicas differ: rank 2 (vm) holds other weights than the majority" in result.err, result


@pytest.mark.skipif(SANITIZED, reason="the sanitizer has memory of its own for each block")
def test_a_pipeline_needs_no_more_memory_for_a_larger_batch(tmp_path):
    """1f1b has as many groups of micro-batches under way whatever the batch is, of at most 256 samples; gpipe all of them."""
    layers = ", ".join(["{dense: 128}, relu"] * 12)
    path = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: synthetic, synthetic: {{samples: 32768, shape: [16], classes: 10}}}}
model: {{type: sequential, layers: [{layers}, {{dense: 10}}]}}
batch: {{global: 4096, micro: 32}}
train: {{steps: 3}}
checkpoint: {{every: never}}
comm: {{reduction: reproducible}}
""")

    def words(batch, schedule):
        return ["--set", f"batch.global={batch}", "--set", f"parallel.pipeline={{stages: 2, schedule: {schedule}}}"]

    def planned(batch, schedule="1f1b"):
        return json.loads(dpt.run("plan", path, *words(batch, schedule), "--json", "--no-time", "--ranks", 2, cwd=tmp_path).out)

    found, plans = [], [planned(4096), planned(32768)]
    assert plans[0]["memory"]["parts"]["activations"] == plans[1]["memory"]["parts"]["activations"]
    assert [stage["under_way"] for stage in plans[1]["pipeline"]["stages"]] == [16, 8]
    gpipe = planned(4096, "gpipe")["memory"]["parts"]["activations"]
    assert planned(32768, "gpipe")["memory"]["parts"]["activations"] == pytest.approx(8 * gpipe, rel=0.05)
    for batch in (4096, 32768):
        run = Paused(path, tmp_path / str(batch), 2, *words(batch, "1f1b"), step=2)
        try:
            found.append(shared_once(run.pids, "Pss_Anon", "Pss_Shmem"))
        finally:
            run.kill()
    more = plans[1]["memory"]["node"] - plans[0]["memory"]["node"]  # levels of the gradients' tree
    assert abs(found[1] - found[0] - more) < 1e6, (found, plans)


MANY = """
seed: 3
device: {threads: 1}
data: {train: synthetic, valid: 0.5, synthetic: {samples: 400000, shape: [3], outputs: 10, noise: 0.5}}
model: {type: sequential, layers: [{dense: 10}]}
loss: mse
batch: {global: 8, micro: 1}
train: {steps: 4}
eval: {every: 4 steps}
comm: {reduction: reproducible}
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer has memory of its own for each block")
def test_an_evaluation_does_not_need_more_memory_for_more_micro_batches(tmp_path):
    """Beside the samples themselves; and their scores are the same on any ranks."""
    path, peaks = dpt.write_job(tmp_path / "job.yaml", MANY), []
    for samples in (2000, 400000):
        process = dpt.start(path, tmp_path / f"{samples}", 1, "--quiet", "--set", f"data.synthetic.samples={samples}", output=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(usage.ru_maxrss * 1024)
    assert peaks[1] - peaks[0] < 1.5 * 4 * 13 * 400000, peaks
    dpt.train(path, tmp_path / "three", "--quiet", ranks=3)
    one, three = ([{k: v for k, v in e.items() if k != "seconds"} for e in dpt.events(tmp_path / name, "eval")] for name in ("400000", "three"))
    assert one == three and one[0]["samples"] == 200000
