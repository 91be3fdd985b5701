"""A rank of a mesh that dies, stops, hangs or fails is named with its place in it, whatever it did last and whoever waits for it."""
import os
import re
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"
JOB = """
data: {train: synthetic, valid: 0.1, synthetic: {samples: 400, shape: [1, 12, 12]}}
model: {type: sequential, layers: [{conv: 4}, relu, {conv: 4}, relu, flatten, {dense: 16}, relu, {dense: 10}]}
batch: {global: 40, micro: 10}
train: {steps: 100}
eval: {every: 3 steps}
checkpoint: {every: 4 steps}
comm: {reduction: reproducible, timeout: 1.5 s}
"""
WHO = r"rank {rank} \(\S+, stage {stage} of 2\)"
SAYS = {
    "kill": r"^{who} died at step {step}: its process is gone",
    "exit": r"^{who} died at step {step}: its process is gone",
    "stop": r"^{who} has not arrived at step {step} for 1.5 s; .*It is stopped \(SIGSTOP\)",
    "hang": r"^{who} has not arrived at step {step} for 1.5 s; ",
    "fail": r"^{who}: ",
    "read": r"^{who}: ",
}
CASES = [("kill", 1, 5), ("kill", 2, 3), ("stop", 0, 4), ("stop", 3, 6), ("fail", 2, 3)]
MORE = [(action, rank, 4) for action in SAYS for rank in range(4) if (action, rank) not in {case[:2] for case in CASES}]


@pytest.mark.parametrize("action, rank, step", CASES + (MORE if HEAVY else []))
def test_named_with_its_stage(tmp_path, action, rank, step):
    """Of two stages that two ranks each have."""
    shard = "parameters" if rank in (0, 2) else "none"
    path = dpt.write_job(tmp_path / "job.yaml", JOB + f"parallel: {{pipeline: 2, shard: {shard}}}\n")
    result = dpt.run(path, "--output", tmp_path / "run", "--ranks", 4, env={"DPTRAIN_FAULT": f"{action}:rank={rank}:step={step}"})
    who = WHO.format(rank=rank, stage=1 + rank // 2)
    assert result.code == 71 or action not in ("kill", "stop", "hang"), result
    assert re.search(SAYS[action].format(who=who, step=step), result.err, re.M), result
    assert len(re.findall(r"^(?:ranks? \d.*(?:died|not arrived|wait))", result.err, re.M)) <= 1, "one line says it"


def test_without_a_mesh_a_rank_has_no_place(tmp_path):
    result = dpt.run(dpt.write_job(tmp_path / "job.yaml", JOB), "--output", tmp_path / "run", "--ranks", 2,
                     env={"DPTRAIN_FAULT": "kill:rank=1:step=3"})
    assert result.code == 71 and re.search(r"^rank 1 \([^ ,]+\) died at step 3", result.err, re.M), result
