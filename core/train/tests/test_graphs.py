"""Whole runs of models whose layers read others by name: joins and residual blocks."""
import json
import re
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

LAYERS = """
  - conv: {channels: 6, padding: 1, name: stem}
  - relu
  - residual: [{conv: {channels: 6, padding: 1}}, batchnorm, relu, {conv: {channels: 6, padding: 1}}]
  - relu
  - residual: {layers: [{conv: {channels: 8, padding: 1, stride: 2}}, layernorm, relu, {dropout: 0.2}], name: down}
  - avgpool: {size: 2, from: stem}
  - concat: {of: down, name: both}
  - multiply: both
  - global_avgpool
  - residual: {layers: [{dense: 14}, gelu], shortcut: [tanh]}
  - dense: 4
"""
JOB = """
device: {{kind: cpu}}
data: {{train: synthetic, test: synthetic, synthetic: {{samples: 150, shape: [2, 8, 8], classes: 4}}}}
model:
  type: sequential
  layers:{layers}
batch: {{global: 40, micro: 7}}
optimizer: {{type: adam, lr: 0.003}}
train: {{epochs: 3, clip_norm: 0.5}}
checkpoint: {{every: 5 steps}}
log: {{every: 1 steps}}
comm: {{reduction: reproducible}}
"""


@pytest.fixture
def job(tmp_path):
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(layers=LAYERS))


def last_bytes(folder):
    return (folder / "checkpoints" / "latest").read_bytes()


@pytest.mark.parametrize("kind", ["ref", "cpu"])
def test_it_learns_and_ranks_change_nothing(job, tmp_path, kind):
    """On 1, 2 and 3 ranks, and stopped and resumed on another number of them."""
    words = ["--set", f"device.kind={kind}", "--set"]
    dpt.train(job, tmp_path / "1", *words, "train.epochs=12")
    losses = [event["loss"] for event in dpt.events(tmp_path / "1", "train")]
    assert losses[-1] < 0.7 * losses[0]
    for ranks in (2, 3):
        dpt.train(job, tmp_path / f"{ranks}", *words, "train.epochs=12", ranks=ranks)
        assert last_bytes(tmp_path / f"{ranks}") == last_bytes(tmp_path / "1")
    dpt.train(job, tmp_path / "parts", *words, "train.epochs=5", ranks=2)
    result = dpt.run(job, "--output", tmp_path / "parts", *words, "train.epochs=12", ranks=3)
    assert result.code == 0 and "resum" in result.out + result.err, result
    assert last_bytes(tmp_path / "parts") == last_bytes(tmp_path / "1")


def test_the_resolved_job_and_the_checkpoints_one_are_the_same_model(job, tmp_path):
    dpt.train(job, tmp_path / "run")
    dpt.train(tmp_path / "run" / "job.yaml", tmp_path / "again")
    assert last_bytes(tmp_path / "again") == last_bytes(tmp_path / "run")
    said = dpt.run("eval", job, "--checkpoint", tmp_path / "run")
    assert said.code == 0, said
    with h5py.File(tmp_path / "run" / "checkpoints" / "latest") as file:
        kept = file["job"][()].decode()
        assert {"stem", "conv1", "conv2", "conv3", "conv4", "layernorm2", "dense2"} <= set(file["params"])
    assert kept.count("from:") == 1, "only where a layer reads another one than that before it"


def test_the_plan_and_the_bench_know_joins(job):
    found = json.loads(dpt.run("plan", job, "--json").out)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["down"]["reads"] == ["dropout1", "layernorm2"] and layers["conv4"]["reads"] == ["relu3"]
    assert layers["both"]["output"] == "14x4x4" and layers["multiply1"]["reads"] == ["both", "both"]
    text = dpt.run("plan", job).out
    assert "\nboth " in text and "\n  reads avgpool1, down\n" in text and max(map(len, text.splitlines())) <= 80, text
    rows = json.loads(dpt.run("bench", job, "--json", "--quiet", "--steps", 4).out)["rows"]
    cost = {(row["part"], row["pass"]): row["bytes"] for row in rows}
    # Forward reads both and writes the sum; backward reads its gradient and writes one for each.
    assert cost["both", "forward"] == cost["both", "backward-data"] == 40 * 4 * 16 * (6 + 8 + 14)
    assert cost["multiply1", "forward"] == 40 * 4 * 16 * (14 + 14), "the same value is read once"


def test_what_is_not_finite_is_found_in_a_graph(job, tmp_path):
    result = dpt.run(job, "--output", tmp_path / "run", "--set", "train.clip_norm=null",
                     "--set", "optimizer={type: sgd, lr: 1e6, momentum: 0.9}")
    said = re.search(r"step \d+: not a number: rank 0 .*, output of layer (\w+), synthetic sample", result.err)
    assert result.code == 1 and said and said[1] in ("conv1", "conv2", "conv3", "residual1", "multiply1"), result


@pytest.mark.parametrize("layers, says", [
    ("\n  - relu: {from: b}\n  - tanh: {name: b}\n  - flatten\n  - dense: 4\n",
     ":7:5: model.layers[0] (relu1): reads 'b', which comes later"),
    ("\n  - conv: 6\n  - add: input\n  - flatten\n  - dense: 4\n",
     ":8:5: model.layers[1] (add1): joins 6x6x6 (conv1) and 2x8x8 (input), whose shapes must be equal"),
    ("\n  - relu\n  - add: [input]\n  - flatten\n  - dense: 4\n", ":8:10: model.layers[1].add.of: a join of one"),
])
def test_mistakes_have_their_place(tmp_path, layers, says):
    path = dpt.write_job(tmp_path / "job.yaml", JOB.format(layers=layers))
    result = dpt.run(path, "--output", tmp_path / "run", ranks=2)
    assert result.code == 78 and f"{path}{says}" in result.err and result.err.count(says) == 1, result


def test_blocks_can_begin_as_their_shortcuts(tmp_path):
    """zero_init: the last norm of each block begins at 0, and `scale` says so in the written out job."""
    path = dpt.write_job(tmp_path / "job.yaml", "data: {train: synthetic, synthetic: {samples: 8, shape: [3, 8, 8], classes: 2}}\n"
                         "model: {type: resnet, depth: 20, outputs: 2, zero_init: true}\nbatch: {global: 8}\n"
                         "optimizer: {type: sgd, lr: 1.0e-300}\ntrain: {steps: 1}\n")
    dpt.train(path, tmp_path / "run", "--quiet")
    with h5py.File(tmp_path / "run/checkpoints/latest") as file:
        scales = {layer: item["weight"][()] for layer, item in file["params"].items() if "bn" in layer or layer.endswith("downsample.1")}
    assert len(scales) == 21
    for layer, scale in scales.items():
        assert np.array_equal(scale, np.full_like(scale, 0 if layer.endswith("bn2") else 1)), layer
