"""parallel.pipeline: the ranks have stages of the model, and the bytes are those of one rank that has all of it."""
import json
import os
import pathlib
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
from running import Paused  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"

JOB = """
data: {{train: synthetic, valid: 0.1, synthetic: {{samples: 111, shape: {shape}{more}}}}}
model: {model}
loss: {loss}
batch: {{global: 40, micro: 10}}
optimizer: {optimizer}
schedule: {{type: cosine, warmup: 3}}
train: {{steps: 7, clip_norm: 0.4}}
checkpoint: {{every: 3 steps}}
log: {{hashes: true}}
comm: {{reduction: reproducible, timeout: 20 s}}
"""
SGD, ADAM = "{type: sgd, lr: 0.05, momentum: 0.9}", "{type: adam, lr: 0.003}"
MODELS = {
    "mlp": ("{type: sequential, layers: [flatten, {dense: 512}, relu, {dropout: 0.2}, {dense: 512}, relu, {dense: 10}]}",
            "[1, 28, 28]", ADAM),
    "cnn": ("{type: sequential, layers: [{conv: {channels: 6, padding: same}}, relu, {maxpool: 2}, {conv: 9}, batchnorm, relu,"
            " {dropout: 0.3}, flatten, {dense: 20}, batchnorm, gelu, {dense: 10}]}", "[3, 10, 10]", SGD),
    "resnet": ("{type: sequential, layers: [{conv: {channels: 8, padding: same}}, {relu: {name: in}}, {conv: {channels: 8, padding: same}},"
               " relu, {conv: {channels: 8, padding: same}}, {add: in}, {relu: {name: middle}}, {conv: {channels: 16, stride: 2,"
               " padding: 1}}, batchnorm, relu, {conv: {channels: 16, padding: same, name: second}}, {conv: {channels: 16, kernel: 1,"
               " stride: 2, from: middle}}, {add: second}, relu, global_avgpool, {dense: 10}]}", "[3, 8, 8]",
               "{type: rmsprop, lr: 0.001}"),
    "flat": ("{type: sequential, layers: [flatten, {dense: 40}, batchnorm, gelu, {dropout: 0.2}, {dense: 30}, layernorm, relu, {dense: 10}]}",
             "[1, 5, 5]", ADAM),
    "numbers": ("{type: mlp, hidden: [40, 30], outputs: 3}", "[7]", ADAM),
}


def job(tmp_path, name):
    model, shape, optimizer = MODELS[name]
    numbers = name == "numbers"
    return dpt.write_job(tmp_path / f"{name}.yaml",
                         JOB.format(model=model, shape=shape, optimizer=optimizer, more=", outputs: 3" if numbers else "",
                                    loss="mse" if numbers else "cross_entropy"))


def stages(words):
    return "--set", f"parallel.pipeline={words}"


def same(a, b):
    lines = [(folder / "hashes.jsonl").read_text() for folder in (a, b)]
    return dpt.newest(a) == dpt.newest(b) and lines[0] == lines[1]


def evaluations(folder):
    return [{k: v for k, v in e.items() if k not in ("seconds", "samples_per_s", "time")} for e in dpt.events(folder, "eval")]


CASES = [("mlp", 3, "{stages: 3, schedule: gpipe}", 1, "cpu", "none"), ("mlp", 6, "3", 1, "cpu", "gradients"),
         ("cnn", 4, "2", 1, "cpu", "optimizer"), ("resnet", 4, "2", 2, "cpu", "parameters"), ("cnn", 3, "3", 2, "ref", "none"),
         ("numbers", 2, "2", 1, "cpu", "none"), ("cnn", 2, "{stages: 1, schedule: gpipe}", 1, "cpu", "parameters")]
MORE = [("mlp", 2, "2", 3, "cpu", "none"), ("cnn", 4, "{stages: 4, schedule: gpipe}", 2, "cpu", "none"),
        ("cnn", 8, "{stages: 4, schedule: gpipe}", 1, "cpu", "parameters"), ("resnet", 3, "3", 1, "ref", "none"),
        ("resnet", 2, "{stages: 2, schedule: gpipe}", 1, "cpu", "none"), ("mlp", 3, "3", 1, "ref", "none"),
        ("resnet", 6, "2", 3, "cpu", "gradients"), ("numbers", 6, "2", 1, "ref", "parameters"), ("flat", 4, "2", 2, "cpu", "parameters")]


@pytest.mark.parametrize("name, ranks, words, threads, kind, shard", CASES + (MORE if HEAVY else []))
def test_the_bytes_are_those_of_one_rank(tmp_path, name, ranks, words, threads, kind, shard):
    """Weights, statistics and slots, the fingerprints of each step, and what the evaluations say; also in shards of stages."""
    path = job(tmp_path, name)
    dpt.train(path, tmp_path / "one", "--quiet", "--set", f"device.kind={kind}")
    dpt.train(path, tmp_path / "stages", "--quiet", *stages(words), "--set", f"device.threads={threads}", "--set",
              f"device.kind={kind}", "--set", f"parallel.shard={shard}", ranks=ranks)
    assert same(tmp_path / "one", tmp_path / "stages")
    assert evaluations(tmp_path / "one") == evaluations(tmp_path / "stages") != []


@pytest.mark.parametrize("ranks, threads, words", [(6, 1, "2"), (2, 2, "{stages: 2, schedule: gpipe}")])
def test_micro_batches_in_groups(tmp_path, ranks, threads, words):
    """A team takes several at once; replicas' runs of 13 and 14, and of 6 and 7 in a short step, are groups of many sizes."""
    path, small = job(tmp_path, "flat"), ("--set", "batch.micro=2", "--set", "batch.global=80")
    found = json.loads(dpt.run("plan", path, *small, *stages(words), "--ranks", ranks, "--json", "--no-time").out)["pipeline"]
    assert found["stages"][1]["under_way"] > 1
    dpt.train(path, tmp_path / "one", "--quiet", *small)
    dpt.train(path, tmp_path / "stages", "--quiet", *small, *stages(words), "--set", f"device.threads={threads}", ranks=ranks)
    assert same(tmp_path / "one", tmp_path / "stages")


def test_an_evaluation_with_probabilities_after_training_with_classes(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (64, 1, 8, 8), dtype=np.uint8)
    for name, targets in (("train", np.arange(64, dtype=np.uint8) % 10),
                          ("valid", np.random.default_rng(1).dirichlet(np.ones(10), 64).astype(np.float32))):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["images"], file["labels"] = images, targets
    path = dpt.write_job(tmp_path / "job.yaml", JOB.format(model=MODELS["mlp"][0], shape="[1]", optimizer=ADAM, more="", loss="cross_entropy"))
    words = "--quiet", "--set", f"data={{train: {tmp_path}/train.h5, valid: {tmp_path}/valid.h5}}"
    dpt.train(path, tmp_path / "one", *words)
    dpt.train(path, tmp_path / "stages", *words, *stages("2"), "--set", "device.threads=2", ranks=2)
    assert same(tmp_path / "one", tmp_path / "stages")
    assert evaluations(tmp_path / "one") == evaluations(tmp_path / "stages") != []


def test_the_first_stage_alone_reads_samples(tmp_path):
    """Of shards that are read while training; the others know the labels."""
    dice = np.random.default_rng(1)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["images"] = dice.random((256, 1, 64, 64), np.float32)
        file["labels"] = dice.integers(0, 10, 256).astype(np.int32)
    path = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: {tmp_path}/data.h5, valid: 0.25, cache: none, verify: false}}
model: {{type: sequential, layers: [{{conv: 4}}, relu, {{maxpool: 4}}, {{conv: 4}}, relu, flatten, {{dense: 10}}]}}
batch: {{global: 32, micro: 8}}
train: {{epochs: 3}}
log: {{hashes: true}}
comm: {{reduction: reproducible}}
""")
    dpt.train(path, tmp_path / "one", "--quiet")
    run = Paused(path, tmp_path / "stages", 2, "--quiet", *stages(2), step=17)
    read = [int(re.search(r"^rchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text("ascii"), re.M)[1]) for pid in run.pids]
    code, err = run.go_on()
    assert code == 0 and same(tmp_path / "one", tmp_path / "stages"), err
    assert read[0] - read[1] > 2 * 256 * 64 * 64 * 4, "two epochs at least"


def test_a_run_goes_on_on_another_mesh(tmp_path):
    """And begins with the weights of a file."""
    path = job(tmp_path, "cnn")
    dpt.train(path, tmp_path / "given", "--quiet", "--set", "train.steps=1", "--set", "seed=9")
    given = "--set", f"init.from={tmp_path}/given/checkpoints/latest", "--set", "schedule=constant"
    dpt.train(path, tmp_path / "one", "--quiet", *given)
    for steps, ranks, words, shard in ((2, 6, "3", "parameters"), (4, 2, "2", "none"), (5, 1, "1", "none"),
                                       (7, 4, "{stages: 4, cut: [conv2, dense1, dense2]}", "optimizer")):
        result = dpt.run(path, "--output", tmp_path / "stages", "--quiet", *given, *stages(words), "--set", f"train.steps={steps}",
                         "--set", f"parallel.shard={shard}", ranks=ranks)
        assert result.code == 0, result
    assert len(dpt.events(tmp_path / "stages", "run")) == 4 and same(tmp_path / "one", tmp_path / "stages")


@pytest.mark.parametrize("words, ranks, says", [
    ("pipeline=3", 8, "parallel.pipeline: 8 ranks are no multiple of 3 stages: start 6 or 9"),
    ("pipeline={stages: 2, cut: [relu1]}", 2, "no stage may begin with relu1; a stage may begin with conv2, dense1, dense2"),
    ("pipeline=5", 5, "5 stages are more than the 4 that this model can have"),
    ("data=3", 2, "parallel.data: 3, and 2 ranks are started: start 3"),
], ids=["ranks", "cut", "stages", "data"])
def test_mistakes(tmp_path, words, ranks, says):
    result = dpt.run("plan", job(tmp_path, "cnn"), "--ranks", ranks, "--set", f"parallel.{words}")
    assert result.code == 78 and says in result.err, result


@pytest.mark.parametrize("words, says", [
    ("comm.reduction=allreduce", "parallel.pipeline: needs comm.reduction: reproducible"),
    ("parallel.pipeline={stages: 3, cut: [conv2]}", "1 layer makes 2 stages, and stages says 3"),
])
def test_what_does_not_go_together(tmp_path, words, says):
    result = dpt.run(job(tmp_path, "cnn"), "--output", tmp_path / "run", *stages(2), "--set", words)
    assert result.code == 78 and says in result.err, result


def test_faults_name_their_rank(tmp_path):
    """One that dies, one whose weights differ from its replicas', and a value that is no number, with its stage."""
    path, folder = job(tmp_path, "cnn"), tmp_path / "run"
    result = dpt.run(path, "--output", folder, "--ranks", 4, *stages(2), env={"DPTRAIN_FAULT": "kill:rank=2:step=5"})
    assert result.code == 71 and re.search(r"^rank 2 \(\S+, stage 2 of 2\) died at step 5", result.err, re.M), result
    if HEAVY:
        result = dpt.run(path, "--output", folder, "--ranks", 4, *stages(2), "--set", "train.check_replicas=1 step",
                         env={"DPTRAIN_FAULT": "flip-weight:rank=3:step=5:word=3"})
        assert result.code == 1 and re.search(r"the replicas differ: ranks 2 \(\S+, stage 2 of 2\), 3 ", result.err), result
    for ranks, shard in ((3, "none"), (6, "parameters")):
        result = dpt.run(path, "--output", tmp_path / shard, "--quiet", *stages(3), "--set", "optimizer.lr=1000000", "--set",
                         "train.clip_norm=null", "--set", f"parallel.shard={shard}", "--ranks", ranks)
        assert result.code == 1 and re.search(r"not a number: rank \d \(\S+, stage \d of 3\), output of layer \w+, synthetic sample \d", result.err), result


def test_no_more_is_sent_than_crosses_the_cuts(tmp_path):
    """Each value that crosses goes on once, and its gradient comes back once: counted between dptrain and MPI, to the byte."""
    library, counts = tmp_path / "count.so", tmp_path / "counts"
    subprocess.run(["mpicc", "-shared", "-fPIC", "-O1", "core/comm/tests/count_messages.c", "-o", library], check=True)
    with open(dpt.BINARY, "rb") as file:
        if b"libasan.so" in file.read():
            pytest.skip("AddressSanitizer must be the first library")
    dpt.train(job(tmp_path, "mlp"), tmp_path / "run", "--quiet", *stages(3), "--set", "eval.every=never", "--set", "data.valid=null",
              "--set", "data.synthetic.samples=120", "--set", "batch.global=120", ranks=3, env={"LD_PRELOAD": str(library), "COUNT_MESSAGES": str(counts)})
    sent = sorted(tuple(map(int, line.split())) for line in counts.read_text().splitlines() if not line.endswith(" 0 0 0"))
    n, size = 7 * 3, 4 * 10 * 512 * 4  # groups of four micro-batches, of all steps, and bytes of one's values
    assert sent == [(0, n, n * size, 0), (1, 2 * n, 2 * n * size, 0), (2, n, n * size, 0)]
