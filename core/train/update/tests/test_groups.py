"""train.freeze and optimizer.groups: PyTorch's numbers, what stays as it was, and what is refused."""
import json
import pathlib
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
sys.path.insert(0, "core/train/update/tests")
sys.path.insert(0, "core/train/engines/tests")
import dpt  # noqa: E402
import formats  # noqa: E402
import golden_groups as golden  # noqa: E402
import test_device  # noqa: E402

GOLDEN = json.loads(pathlib.Path("core/train/update/tests/golden_groups.json").read_text(encoding="utf-8"))
JOB = """
data: {{train: t.h5, shuffle: none}}
model:
  type: sequential
  layers: [{{conv: {{channels: 4, kernel: 3, name: conv1}}}}, {{batchnorm: {{name: bn1}}}}, relu,
           {{conv: {{channels: 5, kernel: 3, name: conv2}}}}, {{batchnorm: {{name: bn2}}}}, relu, {{batchnorm: {{name: bn3}}}},
           flatten, {{dense: {{outputs: 3, name: head}}}}]
init: {{from: w.safetensors}}
batch: {{global: 8, micro: 8}}
optimizer: {optimizer}
train: {{steps: {steps}, clip_norm: 0.4, freeze: {freeze}}}
comm: {{reduction: reproducible}}
"""
FREEZE = "[conv1/weight, bn2, bn3/weight]"
GROUPS = "[{match: [conv1/bias, bn1, 'conv2*'], lr_scale: 0.2}, {match: head, weight_decay: 0}]"


def optimizer(kind, groups=GROUPS):
    options = ", ".join(f"{key}: {value}" for key, value in golden.OPTIMIZERS[kind].items())
    return f"{{type: {kind}, lr: {golden.RATE}, {options}, groups: {groups}}}"


def make(folder, kind="sgd", groups=GROUPS, freeze=FREEZE, steps=golden.STEPS, job=JOB):
    x, labels = golden.samples()
    with h5py.File(folder / "t.h5", "w") as file:
        file["images"], file["labels"] = x, labels
    formats.write_safetensors(folder / "w.safetensors", golden.weights())
    return dpt.write_job(folder / "job.yaml", job.format(optimizer=optimizer(kind, groups), freeze=freeze, steps=steps))


def read(run):
    found = {}
    with h5py.File(run / "checkpoints/latest") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def tensor(found, name):
    layer, what = name.rsplit(".", 1)
    return found[f"{'state' if 'running' in what else 'params'}/{layer}/{what}"]


@pytest.mark.parametrize("device", ["cpu", "ref", pytest.param("cuda", marks=test_device.pytestmark)])
@pytest.mark.parametrize("kind", golden.OPTIMIZERS)
def test_steps_are_those_of_pytorch(tmp_path, kind, device):
    job = make(tmp_path, kind)
    result = dpt.train(job, tmp_path / "run", "--set", f"device.kind={device}", "--set",
                       f"comm.reduction={'reproducible' if kind == 'sgd' else 'allreduce'}", cwd=tmp_path,
                       env=test_device.Machine(tmp_path).environment if device == "cuda" else None)
    assert "learns 340 of 427 parameters" in result.err, result.err
    found, start = read(tmp_path / "run"), golden.weights()
    for name, want in GOLDEN[kind].items():
        has = tensor(found, name).ravel()
        assert np.abs(has - want).max() <= (1e-5 if device == "cuda" else 1e-6) * max(1, np.abs(want).max()), (name, np.abs(has - want).max())
    for name in ("conv1.weight", "bn2.weight", "bn2.running_mean", "bn2.running_var", "bn3.weight"):
        assert np.array_equal(tensor(found, name), start[name]), name
    slots = {key: value for key, value in found.items() if key.startswith("optimizer/")}
    for key, value in slots.items():
        assert any(value.ravel()) != any(part in key for part in ("conv1/weight", "bn2/", "bn3/weight")), key


def test_plan_lists_what_a_group_gives(tmp_path):
    """A tensor gets its rate and its decay from the first group that matches it and gives them, of whatever size."""
    groups = "[{match: 'dense1*', lr_scale: 0.2}, {match: dense1/weight, lr: 0.1}, {match: '*/bias', weight_decay: 0.5}]"
    job = dpt.write_small_job(tmp_path / "job.yaml", optimizer=f"{{type: adam, groups: {groups}}}")
    done = dpt.run("plan", job, "--json", "--no-time")
    assert done.code == 0, done
    found = [pattern["tensors"] for group in json.loads(done.out)["groups"] for pattern in group["match"]]
    assert found[0] == ["dense1/weight", "dense1/bias"] and found[1] == found[2] == [], "biases do not decay"


def test_ranks_and_resuming_change_nothing(tmp_path):
    """With a frozen body, where backward ends early, and groups that overlap; stopped in the middle, on other ranks."""
    job = make(tmp_path, groups="[{match: [head], lr: 0.01}, {match: ['*'], lr_scale: 0.5, weight_decay: 0.3}]",
               freeze="[conv1, bn1, 'conv2/*']", job=JOB.replace("micro: 8", "micro: 3"))
    dpt.train(job, tmp_path / "one", "--quiet", cwd=tmp_path)
    want = (tmp_path / "one/checkpoints/latest").read_bytes()
    dpt.train(job, tmp_path / "two", "--quiet", "--set", "train.steps=2", "--set", "parallel.shard=optimizer", cwd=tmp_path,
              ranks=3)
    assert dpt.run(job, "--output", tmp_path / "two", "--quiet", cwd=tmp_path, ranks=2).code == 0
    assert (tmp_path / "two/checkpoints/latest").read_bytes() == want
    # A group's lr is its own: head's learning rate is 0.2 of the base, everybody else's a half.
    again = make(tmp_path, groups="[{match: head, lr_scale: 0.2}, {match: ['*'], lr: 0.025}, {match: '*', weight_decay: 0.3}]",
                 freeze="[conv1, bn1, 'conv2/*']", job=JOB.replace("micro: 8", "micro: 3"))
    dpt.train(again, tmp_path / "again", "--quiet", cwd=tmp_path)
    one, other = read(tmp_path / "one"), read(tmp_path / "again")
    assert all(np.array_equal(one[key], other[key]) for key in one if key.startswith("params"))
    result = dpt.run(again, "--output", tmp_path / "one", "--quiet", "--set", "train.steps=7", cwd=tmp_path)
    assert result.code != 0 and "optimizer.groups" in result.err, result


MISTAKES = [
    ("sgd", GROUPS, "[conv1, con2]", 'job.yaml:11:51: train.freeze: \'con2\' matches no tensor and no layer; did you mean \'conv2\'?'),
    ("sgd", GROUPS, "stem", "job.yaml:11:43: train.freeze: 'stem' matches no tensor and no layer; layers are conv1, bn1, "
                            "conv2, bn2, bn3, head"),
    ("sgd", GROUPS, "'*'", "train.freeze: matches all parameters: nothing is learned"),
    ("sgd", GROUPS, "bn1/running_mean", "train.freeze: bn1: one of its running statistics without the other"),
    ("sgd", "[{match: heat, lr: 1}]", "[]", "job.yaml:10:85: optimizer.groups[0].match: 'heat' matches no tensor and no layer; "
                                            "did you mean 'head'?"),
    ("sgd", "[{match: head}]", "[]", "optimizer.groups[0]: gives its tensors nothing of their own"),
    ("sgd", "[{match: head, lr: 1, lr_scale: 2}]", "[]", "give either"),
    ("sgd", "[{lr: 1}]", "[]", "optimizer.groups[0].match"),
    ("sgd", "head", "[]", "optimizer.groups: expected a list of groups"),
    ("sgd", "[head]", "[]", "optimizer.groups[0]: expected a group"),
]


@pytest.mark.parametrize("kind, groups, freeze, message", MISTAKES)
def test_what_fits_nothing_is_refused(tmp_path, kind, groups, freeze, message):
    result = dpt.run(make(tmp_path, kind, groups, freeze), "--quiet", cwd=tmp_path)
    assert result.code == 78 and message in result.err, result


HEAD = """
data: {{train: t.h5, shuffle: none}}
model: {{type: resnet, depth: 20, outputs: {outputs}}}
batch: {{global: 7, micro: 3}}
train: {{steps: 2}}
comm: {{reduction: reproducible}}
"""
ON_BODY = "init: {from: body, partial: true}\noptimizer: {type: sgd, lr: 0.1, momentum: 0.9, groups: [{match: 'layer3*', lr_scale: 0.1}]}\n"


def test_a_new_head_on_an_old_body(tmp_path):
    """From a run with 10 outputs to 3: what is frozen keeps its bytes, what is not moves, by its own rate; on any ranks and devices."""
    dice = np.random.default_rng(2)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["images"], file["labels"] = dice.normal(0, 1, (14, 3, 8, 8)).astype("f4"), (np.arange(14) % 3).astype("i4")
    dpt.train(dpt.write_job(tmp_path / "old.yaml", HEAD.format(outputs=10)), tmp_path / "body", "--quiet", cwd=tmp_path)
    job = dpt.write_job(tmp_path / "job.yaml", HEAD.format(outputs=3) + ON_BODY)
    runs = [("one", 1, "cpu"), ("three", 3, "cpu")] + ([] if test_device.pytestmark.args[0] else [("cuda", 1, "cuda")])
    for name, ranks, device in runs:
        result = dpt.train(job, tmp_path / name, "--set", "train.freeze=[conv1, bn1, 'layer[12]*', layer3.0.bn1]", "--set",
                           f"device.kind={device}", ranks=ranks, cwd=tmp_path,
                           env=test_device.Machine(tmp_path).environment if device == "cuda" else None)
        assert "warning: 2 of the model's 107 tensors are randomly initialised, not loaded from body:\n  fc.weight" in result.err, result.err
    old, one, cuda = read(tmp_path / "body"), read(tmp_path / "one"), read(tmp_path / runs[-1][0])
    assert dpt.newest(tmp_path / "one") == dpt.newest(tmp_path / "three")
    for key in (key for key in old if key.startswith(("params", "state")) and "/fc/" not in key):
        frozen = any(part in key for part in ("/conv1/", "/bn1/", "layer1", "layer2", "layer3.0.bn1"))
        assert np.array_equal(one[key], old[key]) == np.array_equal(cuda[key], old[key]) == frozen, key
        np.testing.assert_allclose(cuda[key], one[key], rtol=1e-4, atol=1e-5, err_msg=key)
    assert one["params/fc/weight"].shape == (3, 64)
