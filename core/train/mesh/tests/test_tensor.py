"""parallel.tensor: ranks divide wide dense layers, and the bytes are those of one rank that has all of them."""
import os
import re
import subprocess
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"

JOB = """
data: {{train: synthetic, valid: 0.1, synthetic: {{samples: 111, shape: {shape}}}}}
model: {{type: sequential, layers: [{layers}]}}
batch: {{global: 40, micro: 10}}
optimizer: {optimizer}
train: {{steps: 6, clip_norm: 0.4}}
checkpoint: {{every: 3 steps}}
log: {{hashes: true}}
comm: {{reduction: reproducible, timeout: 20 s}}
"""
ADAM = "{type: adam, lr: 0.003}"
WIDE = "flatten, {{dense: {{outputs: {0}, init: {{normal: 0.02}}}}}}, relu, {{dense: {{outputs: 10, init: {{normal: 0.02}}}}}}"
MODELS = {
    "8192": (WIDE.format(8192), "[1, 28, 28]", ADAM),
    "1000": (WIDE.format(1000), "[1, 28, 28]", "{type: lion, lr: 0.001}"),
    "530": (WIDE.format(530), "[1, 28, 28]", "{type: rmsprop, lr: 0.001}"),
    "chain": ("flatten, {dense: {outputs: 512, init: orthogonal}}, relu, {dropout: 0.2}, {dense: 530}, gelu, {dense: 200}, {dense: 10}",
              "[1, 28, 28]", ADAM),
    "cnn": ("{conv: {channels: 6, padding: same}}, batchnorm, relu, {maxpool: 2}, flatten, {dense: 256}, batchnorm, relu, {dense: 300},"
            " relu, {dense: 10}", "[3, 12, 12]", "{type: sgd, lr: 0.05, momentum: 0.9}"),
    "shared": ("flatten, {dense: {outputs: 256, name: in}}, relu, {dense: 256}, {add: in}, relu, {dense: 10}", "[1, 20, 20]", ADAM),
}


def job(tmp_path, name):
    layers, shape, optimizer = MODELS[name]
    return dpt.write_job(tmp_path / f"{name}.yaml", JOB.format(layers=layers, shape=shape, optimizer=optimizer))


def sets(*words):
    return [word for key in words for word in ("--set", key)]


def same(a, b):
    lines = [(folder / "hashes.jsonl").read_text() for folder in (a, b)]
    return dpt.newest(a) == dpt.newest(b) and lines[0] == lines[1]


def evaluations(folder):
    return [{k: v for k, v in e.items() if k not in ("seconds", "samples_per_s", "time")} for e in dpt.events(folder, "eval")]


# A model, data x tensor x stages, threads of a rank, backend, shards.
CASES = [("8192", (2, 4, 1), 1, "cpu", "none"), ("1000", (2, 3, 1), 1, "cpu", "optimizer"), ("530", (1, 2, 1), 2, "cpu", "none"),
         ("chain", (2, 2, 2), 2, "cpu", "parameters"), ("cnn", (2, 2, 1), 2, "cpu", "gradients"), ("chain", (1, 3, 1), 1, "ref", "none"),
         ("shared", (2, 3, 1), 1, "cpu", "parameters")]
MORE = [("8192", (1, 8, 1), 1, "cpu", "none"), ("8192", (2, 1, 1), 1, "cpu", "none"), ("8192", (2, 3, 1), 1, "cpu", "none"),
        ("1000", (1, 8, 1), 1, "cpu", "none"), ("530", (1, 8, 1), 1, "cpu", "none"), ("chain", (2, 2, 2), 1, "cpu", "none"),
        ("cnn", (1, 2, 3), 1, "cpu", "none"), ("cnn", (1, 4, 1), 1, "ref", "none"), ("shared", (2, 2, 1), 2, "ref", "none"),
        ("chain", (1, 2, 2), 2, "cpu", "none"), ("shared", (1, 3, 1), 1, "cpu", "none"),
        *((name, mesh, 1, "cpu", shard) for name in ("chain", "cnn", "530") for mesh in ((2, 2, 1), (3, 2, 1), (2, 2, 2))
          for shard in ("optimizer", "gradients", "parameters"))]


@pytest.mark.parametrize("name, mesh, threads, kind, shard", CASES + (MORE if HEAVY else []))
def test_the_bytes_are_those_of_one_rank(tmp_path, name, mesh, threads, kind, shard):
    """Weights, statistics and slots, the fingerprints of each step, and what the evaluations say."""
    path, (data, tensor, stages) = job(tmp_path, name), mesh
    dpt.train(path, tmp_path / "one", "--quiet", *sets(f"device.kind={kind}"))
    dpt.train(path, tmp_path / "mesh", "--quiet", *sets(f"device.kind={kind}", f"device.threads={threads}", f"parallel.tensor={tensor}",
                                                       f"parallel.pipeline={stages}", f"parallel.shard={shard}"),
              ranks=data * tensor * stages)
    assert same(tmp_path / "one", tmp_path / "mesh")
    assert evaluations(tmp_path / "one") == evaluations(tmp_path / "mesh") != []


def test_a_run_goes_on_on_another_mesh(tmp_path):
    """And begins with the weights of a file."""
    path = job(tmp_path, "chain")
    dpt.train(path, tmp_path / "given", "--quiet", *sets("train.steps=1", "seed=9"))
    given = sets(f"init.from={tmp_path}/given/checkpoints/latest")
    dpt.train(path, tmp_path / "one", "--quiet", *given)
    for steps, ranks, mesh in ((2, 4, ["tensor=4"]), (3, 2, ["shard=optimizer"]), (5, 8, ["tensor=2", "pipeline=2", "shard=parameters"]),
                               (6, 3, ["tensor=3"])):
        result = dpt.run(path, "--output", tmp_path / "mesh", "--quiet", *given, *sets(f"train.steps={steps}"),
                         *sets(*(f"parallel.{word}" for word in mesh)), ranks=ranks)
        assert result.code == 0, result
    assert len(dpt.events(tmp_path / "mesh", "run")) == 4 and same(tmp_path / "one", tmp_path / "mesh")


@pytest.mark.parametrize("name, words, ranks, says", [
    ("chain", ["tensor=4"], 6, "parallel.tensor: 6 ranks are no multiple of tensor 4: start 4 or 8"),
    ("chain", ["tensor=2", "pipeline=2"], 6, "parallel.pipeline: 6 ranks are no multiple of 2 stages x tensor 2: start 4 or 8"),
    ("chain", ["tensor=2", "data=3"], 4, "parallel.data: 3 x tensor 2 are 6 ranks, and 4 are started: start 6"),
    ("narrow", ["tensor=2"], 2, "and this model has none (the largest is dense1/weight, 40 x 400)"),
])
def test_mistakes(tmp_path, name, words, ranks, says):
    MODELS["narrow"] = ("flatten, {dense: 40}, relu, {dense: 10}", "[1, 20, 20]", ADAM)
    result = dpt.run("plan", job(tmp_path, name), "--ranks", ranks, *sets(*(f"parallel.{word}" for word in words)))
    assert result.code == 78 and says in result.err, result
    if name != "narrow":
        result = dpt.run(job(tmp_path, name), *sets(*(f"parallel.{word}" for word in words), "comm.reduction=allreduce"))
        assert result.code == 78 and "parallel.tensor: needs comm.reduction: reproducible" in result.err, result


def test_faults_name_their_rank(tmp_path):
    """One that dies, one whose weights differ from its replica's, what each layer tells the others, and a value that is no number."""
    path, folder = job(tmp_path, "chain"), tmp_path / "run"
    mesh = sets("parallel.tensor=2")
    result = dpt.run(path, "--output", folder, "--ranks", 4, *mesh, env={"DPTRAIN_FAULT": "kill:rank=2:step=4"})
    assert result.code == 71 and re.search(r"^rank 2 \(\S+, part 1 of 2\) died at step 4", result.err, re.M), result
    result = dpt.run(path, "--output", folder, "--ranks", 8, *sets("parallel={tensor: 2, pipeline: 2, shard: parameters}"),
                     env={"DPTRAIN_FAULT": "kill:rank=5:step=5"})
    assert result.code == 71 and re.search(r"^rank 5 \(\S+, stage 2 of 2, part 2 of 2\) died at step 5", result.err, re.M), result
    result = dpt.run(path, "--output", folder, *mesh, "--set", "parallel.shard=gradients", ranks=4)
    dpt.train(path, tmp_path / "one", "--quiet")
    assert result.code == 0 and dpt.newest(folder) == dpt.newest(tmp_path / "one"), "nothing is lost"
    result = dpt.run(path, "--output", tmp_path / "flip", "--ranks", 4, *mesh, "--set", "train.check_replicas=1 step",
                     env={"DPTRAIN_FAULT": "flip-weight:rank=3:step=5:word=3"})
    assert result.code == 1 and "the replicas differ: ranks 1 (" in result.err and ", 3 (" in result.err, result
    result = dpt.run(job(tmp_path, "cnn"), "--output", tmp_path / "nan", "--quiet", *mesh, "--set", "optimizer.lr=1000000", "--set", "train.clip_norm=null",
                     "--ranks", 2)
    assert result.code == 1 and re.search(r"not a number: rank 0 \([^)]*\), output of layer \w+, synthetic sample \d+", result.err), result


def test_true_weights_are_compared_with_all_of_the_learned_ones(tmp_path):
    """Rank 0 has a part of a divided layer: its end compares nothing, where one rank compares all."""
    path = dpt.write_job(tmp_path / "line.yaml", """
data: {train: synthetic, synthetic: {samples: 80, shape: [1024], outputs: 64, noise: 0.1}}
model: {type: linear}
loss: mse
batch: {global: 40, micro: 10}
train: {steps: 2}
comm: {reduction: reproducible, timeout: 20 s}
""")
    one, two = (dpt.run(path, "--output", tmp_path / str(ranks), "--ranks", ranks, "--set", f"parallel.tensor={ranks}") for ranks in (1, 2))
    assert one.code == 0 and "largest difference" in one.out, one
    assert two.code == 0 and "largest difference" not in two.out, two
    assert dpt.newest(tmp_path / "1") == dpt.newest(tmp_path / "2")
