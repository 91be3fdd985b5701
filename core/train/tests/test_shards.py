"""parallel.shard: each rank keeps and updates a part of its own, and the bytes are those of one rank. test_reproducible.py,
test_nodes.py and test_device.py have it among what changes nothing; here is what is left."""
import os
import re
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
data: {{train: synthetic, synthetic: {{samples: 101, shape: [1, 6, 6]}}}}
model:
  type: sequential
  layers: [{{conv: {{channels: 5, name: conv1}}}}, batchnorm, relu, flatten, {{dropout: 0.2}}, {{dense: {{outputs: 90, name: body}}}}, relu,
           {{dense: {{outputs: 10, name: head}}}}]
batch: {{global: 24, micro: 4}}
optimizer: {optimizer}
schedule: {{type: constant, warmup: 3}}
train: {{steps: 9, clip_norm: 0.4, freeze: [conv1/bias]}}
checkpoint: {{every: 4 steps}}
comm: {{reduction: reproducible}}
parallel: {{shard: {shard}}}
"""
GROUPS = "groups: [{match: head, lr_scale: 0.2}, {match: body/bias, weight_decay: 0.1}]"
OPTIMIZERS = {
    "nesterov": "{type: sgd, lr: 0.05, momentum: 0.9, nesterov: true, " + GROUPS + "}",
    "lion": "{type: lion, lr: 0.001, weight_decay: 0.1}",
    "rmsprop": "{type: rmsprop, lr: 0.001, momentum: 0.9}",
    "plain": "{type: sgd, lr: 0.05}",
}
HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"


def job(tmp_path, optimizer, shard, norm="batchnorm"):
    return dpt.write_job(tmp_path / f"{shard}.yaml", JOB.format(optimizer=OPTIMIZERS[optimizer], shard=shard).replace("batchnorm", norm))


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS)[:None if HEAVY else 1])
def test_every_optimizer(tmp_path, optimizer):
    """A short last step, a frozen tensor, groups; resumed with shards on more ranks, and without on one."""
    whole, parts = (job(tmp_path, optimizer, shard) for shard in ("none", "optimizer"))
    dpt.train(whole, tmp_path / "one", "--quiet")
    for ranks, steps, words in ((4, 3, ()), (2, 5, ("--set", "log.tensorboard=true", "--set", "parallel.shard=gradients")), (8, 7, ())):
        result = dpt.run("train", parts, "--output", tmp_path / "parts", "--quiet", "--set", f"train.steps={steps}", *words, ranks=ranks)
        assert result.code == 0 and dpt.events(tmp_path / "parts", "end")[-1]["step"] == steps, result
    assert dpt.run("train", whole, "--output", tmp_path / "parts", "--quiet").code == 0
    assert dpt.newest(tmp_path / "parts") == dpt.newest(tmp_path / "one")
    assert len(dpt.events(tmp_path / "parts", "run")) == 4


def test_a_weight_that_differs_is_found_in_a_step_with_a_check(tmp_path):
    """Before the owners' weights take its place: whoever owns it, and also where the checkpoint asks for the check."""
    for word, step, every, shard in ((3, 4, "never", "gradients"), (2000, 3, "1 step", "optimizer")):
        path, folder = job(tmp_path, "plain", shard), tmp_path / shard
        result = dpt.run(path, "--output", folder, "--quiet", "--set", f"train.check_replicas={every}", ranks=3,
                         env={"DPTRAIN_FAULT": f"flip-weight:rank=1:step={step}:word={word}"})
        assert result.code == 1 and f"step {step}: the replicas differ: rank 1 " in result.err, result
        assert not (folder / "checkpoints/latest").exists()


def test_a_rank_that_dies_is_named(tmp_path):
    path = job(tmp_path, "nesterov", "optimizer")
    result = dpt.run(path, "--output", tmp_path / "run", "--ranks", 3, env={"DPTRAIN_FAULT": "kill:rank=2:step=6"})
    told = [line for line in result.err.splitlines() if re.match(r"rank 2 \(\S+\) died at step 6", line)]
    assert result.code == 71 and len(told) == 1, result
    assert dpt.run("train", path, "--output", tmp_path / "run", "--quiet", ranks=3).code == 0
    dpt.train(path, tmp_path / "one", "--quiet")
    assert dpt.newest(tmp_path / "run") == dpt.newest(tmp_path / "one")


def test_a_rank_without_samples_or_with_a_failure(tmp_path):
    """Ranks take part in what the others exchange, also where they have no micro-batch, or their part of a step failed."""
    path = job(tmp_path, "plain", "gradients")
    dpt.train(path, tmp_path / "one", "--quiet", "--set", "batch.micro=12")
    words = ("--quiet", "--set", "batch.micro=12")
    dpt.train(path, tmp_path / "idle", *words, ranks=3)
    assert dpt.newest(tmp_path / "idle") == dpt.newest(tmp_path / "one")
    result = dpt.run(path, "--output", tmp_path / "fail", *words, ranks=3, env={"DPTRAIN_FAULT": "fail:rank=1:step=5"})
    assert result.code not in (0, 71) and "step 5" in result.err, result


def test_what_does_not_go_together_is_refused(tmp_path):
    path = job(tmp_path, "plain", "gradients", norm="{batchnorm: {statistics: batch}}")
    result = dpt.run(path, "--output", tmp_path / "run", ranks=2)
    assert result.code == 78 and "parallel.shard: gradients does not go with" in result.err, result


def test_other_sums_are_refused(tmp_path):
    path = job(tmp_path, "plain", "optimizer")
    result = dpt.run(path, "--output", tmp_path / "run", "--set", "comm.reduction=allreduce")
    assert result.code == 78 and "parallel.shard: needs comm.reduction: reproducible" in result.err, result
