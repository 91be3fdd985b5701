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
train: {{steps: 9, clip_norm: 0.4, freeze: [conv1/bias, body/weight]}}
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
    """A short last step, frozen tensors, whose weights are in no norm that clips, groups; resumed with shards on more ranks, and without on one."""
    whole, parts = (job(tmp_path, optimizer, shard) for shard in ("none", "optimizer"))
    dpt.train(whole, tmp_path / "one", "--quiet")
    for ranks, steps, words in ((4, 3, ()), (2, 5, ("--set", "log.tensorboard=true", "--set", "parallel.shard=gradients")),
                                (8, 7, ("--set", "parallel.shard=parameters"))):
        result = dpt.run("train", parts, "--output", tmp_path / "parts", "--quiet", "--set", f"train.steps={steps}", *words, ranks=ranks)
        assert result.code == 0 and dpt.events(tmp_path / "parts", "end")[-1]["step"] == steps, result
    assert dpt.run("train", whole, "--output", tmp_path / "parts", "--quiet").code == 0
    assert dpt.newest(tmp_path / "parts") == dpt.newest(tmp_path / "one")
    assert len(dpt.events(tmp_path / "parts", "run")) == 4


COUNTER = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static long calls;
int MPI_Allgather(const void *a, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c)
{
    calls++;
    return PMPI_Allgather(a, n, t, b, m, u, c);
}
int MPI_Finalize(void)
{
    FILE *file = fopen(getenv("COUNT_CALLS"), "a");
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (file && rank == 0) fprintf(file, "%ld", calls);
    if (file) fclose(file);
    return PMPI_Finalize();
}
"""


def test_a_save_asks_nobody_what_all_know(tmp_path):
    """Which floats a rank owns follows from the shards: what a checkpoint gathers takes one collective a piece, which is no allgather."""
    if dpt.sanitized():
        pytest.skip("AddressSanitizer must be the first library")
    library = dpt.library(tmp_path, "count", COUNTER, "mpicc")
    path, calls = job(tmp_path, "nesterov", "parameters"), {}
    for every in ("1 step", "never"):
        counts = tmp_path / f"counts-{every}"
        dpt.train(path, tmp_path / every, "--quiet", "--set", f"checkpoint.every={every}", ranks=3,
                  env={"LD_PRELOAD": library, "COUNT_CALLS": str(counts)})
        calls[every] = int(counts.read_text())
    assert calls["1 step"] - calls["never"] <= 9, (calls, "one a save, which compares the replicas")


def test_a_weight_that_differs_is_found_in_a_step_with_a_check(tmp_path):
    """Before the owners' weights take its place: whoever owns it, and also where the checkpoint asks for the check."""
    for word, step, every, shard in ((3, 4, "never", "gradients"), (2000, 3, "1 step", "optimizer")):
        path, folder = job(tmp_path, "plain", shard), tmp_path / shard
        result = dpt.run(path, "--output", folder, "--quiet", "--set", f"train.check_replicas={every}", ranks=3,
                         env={"DPTRAIN_FAULT": f"flip-weight:rank=1:step={step}:word={word}"})
        assert result.code == 1 and f"step {step}: the replicas differ: rank 1 " in result.err, result
        assert not (folder / "checkpoints/latest").exists()


@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
def test_a_rank_that_dies_is_named(tmp_path, shard):
    path = job(tmp_path, "nesterov", shard)
    result = dpt.run(path, "--output", tmp_path / "run", "--ranks", 3, env={"DPTRAIN_FAULT": "kill:rank=2:step=6"})
    told = [line for line in result.err.splitlines() if re.match(r"rank 2 \(\S+\) died at step 6", line)]
    assert result.code == 71 and len(told) == 1, result
    assert dpt.run("train", path, "--output", tmp_path / "run", "--quiet", ranks=3).code == 0
    dpt.train(path, tmp_path / "one", "--quiet")
    assert dpt.newest(tmp_path / "run") == dpt.newest(tmp_path / "one")


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_a_rank_without_samples_or_with_a_failure(tmp_path, shard):
    """Ranks take part in what the others exchange, also where they have no micro-batch, or their part of a step failed."""
    path = job(tmp_path, "plain", shard)
    dpt.train(path, tmp_path / "one", "--quiet", "--set", "batch.micro=12")
    words = ("--quiet", "--set", "batch.micro=12")
    dpt.train(path, tmp_path / "idle", *words, ranks=3)
    assert dpt.newest(tmp_path / "idle") == dpt.newest(tmp_path / "one")
    result = dpt.run(path, "--output", tmp_path / "fail", *words, ranks=3, env={"DPTRAIN_FAULT": "fail:rank=1:step=5"})
    assert result.code not in (0, 71) and "step 5" in result.err, result


def test_what_does_not_go_together_is_refused(tmp_path):
    path = job(tmp_path, "plain", "parameters", norm="{batchnorm: {statistics: batch}}")
    result = dpt.run(path, "--output", tmp_path / "run", ranks=2)
    assert result.code == 78 and "parallel.shard: parameters does not go with" in result.err, result


RESIDUAL = """
data: {train: synthetic, valid: 0.2, synthetic: {samples: 61, shape: [3, 8, 8], classes: 7}}
model: {type: resnet, depth: 20, outputs: 7}
batch: {global: 24, micro: 4}
optimizer: {type: adam}
train: {steps: 5, clip_norm: 0.4}
checkpoint: {every: 2 steps}
eval: {every: 2 steps}
comm: {reduction: reproducible}
log: {hashes: true}
"""


@pytest.mark.parametrize("ranks, kind", [(2, "cpu"), (3, "cpu"), (5, "cpu"), (8, "cpu"), (2, "ref")][:None if HEAVY else 4])
def test_weights_in_units(tmp_path, ranks, kind):
    """A residual net in some 20 units, with a short step: weights, statistics, slots, fingerprints and what evaluations say."""
    path = dpt.write_job(tmp_path / "job.yaml", RESIDUAL)
    dpt.train(path, tmp_path / "one", "--quiet", "--set", f"device.kind={kind}")
    dpt.train(path, tmp_path / "units", "--quiet", "--set", "parallel.shard=parameters", "--set", f"device.kind={kind}", ranks=ranks)
    for name in ["hashes.jsonl", *(f"checkpoints/{file}" for file in os.listdir(tmp_path / "one/checkpoints"))]:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "units" / name).read_bytes(), name
    said = [[{**e, "seconds": 0} for e in dpt.events(tmp_path / folder, "eval")] for folder in ("one", "units")]
    assert said[0] == said[1] != []


def test_units_begin_with_given_weights(tmp_path):
    """Those that a file has not begin at random, as on one rank."""
    path = dpt.write_job(tmp_path / "job.yaml", RESIDUAL)
    dpt.train(path, tmp_path / "given", "--quiet", "--set", "train.steps=1", "--set", "seed=9", "--set", "model.outputs=6",
              "--set", "data.synthetic.classes=6")
    given = "--set", f"init={{from: {tmp_path}/given/checkpoints/latest, partial: true}}"
    for folder, ranks in (("one", 1), ("units", 3)):
        dpt.train(path, tmp_path / folder, "--quiet", *given, "--set", "parallel.shard=parameters", ranks=ranks)
    assert dpt.newest(tmp_path / "units") == dpt.newest(tmp_path / "one")


def test_what_is_not_a_number_is_found_in_units(tmp_path):
    """Told with the first layer whose values are none, and passed over where the job wants that."""
    path = job(tmp_path, "plain", "parameters", norm="relu")
    words = "--set", "optimizer={type: sgd, lr: 1.0e+6, momentum: 0.9}", "--set", "train.clip_norm=null"
    found = r"step \d: not a number: rank \d \(\S+\), output of layer (body|head), synthetic sample \d+"
    result = dpt.run(path, "--output", tmp_path / "run", *words, ranks=3)
    assert result.code == 1 and re.search(found, result.err), result
    result = dpt.run(path, "--output", tmp_path / "skip", *words, "--set", "train.on_nan=skip", ranks=3)
    assert result.code == 0 and re.search(found, result.err) and dpt.events(tmp_path / "skip", "end")[-1]["step"] == 9, result


def test_other_sums(tmp_path):
    """Ranks that divide only the update do so whatever order the gradients are added in: on hosts it is the tree's."""
    words = "--set", "comm.reduction=allreduce"
    losses = []
    for shard, more in (("none", words), ("optimizer", words), ("optimizer", ())):
        path = job(tmp_path, "plain", shard)
        result = dpt.run(path, "--output", tmp_path / f"{shard}{len(more)}", *more, ranks=3)
        assert result.code == 0, result
        losses.append(dpt.events(tmp_path / f"{shard}{len(more)}", "train")[-1]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[1] == losses[2], losses
    path = job(tmp_path, "plain", "gradients")
    result = dpt.run(path, "--output", tmp_path / "run", *words)
    assert result.code == 78 and "parallel.shard: needs comm.reduction: reproducible" in result.err, result
