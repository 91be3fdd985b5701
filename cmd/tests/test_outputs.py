"""The width of a model's last layer, left to the data: the same model, wherever the job is read."""
import os
import shutil
import sys

import h5py
import numpy
import pytest

sys.path[:0] = ["scripts/lib", os.path.dirname(os.path.abspath(__file__))]
import dpt  # noqa: E402
import jobs  # noqa: E402

HEAD = """name: same
data: {train: data/train-*.h5, valid: 0.2, test: data/test.h5}
batch: {global: 20, micro: 10}
train: {steps: 6}
checkpoint: {every: 3 steps}
comm: {reduction: reproducible}
"""
LISTED = "model:\n  type: sequential\n  layers: [flatten, dense: 8, relu, %s]\n"
# The model of a job without `outputs`, and, filled in, of one with it.
MODELS = {
    "mlp": "model: {type: mlp, hidden: [8]%s}\n",
    "linear": "model: {type: linear%s}\n",
    "cnn": "model: {type: cnn, channels: [4]%s}\n",
    "lenet": "model: {type: lenet%s}\n",
    "vgg": "model: {type: vgg, depth: 11%s}\n",
    "resnet": "model: {type: resnet, depth: 20%s}\n",
    "mobilenet_v2": "model: {type: mobilenet_v2%s}\n",
}


def write(folder, labels, test_labels=None, **attributes):
    """Two shards to train on, the second with the largest label, and one to test."""
    rng = numpy.random.default_rng(1)
    (folder / "data").mkdir()
    half = len(labels) // 2
    for name, part in (("train-a", labels[:half]), ("train-b", labels[half:]), ("test", labels if test_labels is None else test_labels)):
        with h5py.File(folder / "data" / f"{name}.h5", "w") as file:
            file["images"] = rng.normal(size=(len(part), 1, 8, 8)).astype("float32")
            file["labels"] = part
            file["labels"].attrs.update(attributes)


def jobs_of(folder, model, width, more=""):
    """The job that leaves the width out, and the one that says it."""
    left = model % "dense" if "%s]" in model else model % ""
    said = model % f"dense: {width}" if "%s]" in model else model % f", outputs: {width}"
    for name, text in (("left", left), ("said", said)):
        dpt.write_job(folder / f"{name}.yaml", HEAD + text + more)


def same(folder, ranks=0):
    for name in ("left", "said"):
        done = dpt.run("train", f"{name}.yaml", "--output", name, ranks=ranks, cwd=folder)
        assert done.code == 0, done
    paths = [folder / name / "checkpoints" / "step-00000006.h5" for name in ("left", "said")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    jobs_left, jobs_said = (jobs.load((folder / name / "job.yaml").read_text()) for name in ("left", "said"))
    assert {**jobs_left, "output": ""} == {**jobs_said, "output": ""}  # the run folder holds the number


def test_classes_on_three_ranks(tmp_path):
    """The largest label, which one shard alone has, gives the outputs; results are byte-identical to those of a job that sets them."""
    write(tmp_path, numpy.array([0, 1, 2] * 10 + [0, 1, 2, 5] * 10, "int32"))
    jobs_of(tmp_path, MODELS["mlp"], 6)
    same(tmp_path, ranks=3)


def test_classes_that_have_names_only(tmp_path):
    """A class without a sample counts, where the shards name it."""
    write(tmp_path, numpy.array([0, 1] * 30, "int32"), classes=["cat", "dog", "ibex"])
    jobs_of(tmp_path, MODELS["linear"], 3)
    same(tmp_path)
    assert dpt.run("train", "left.yaml", "--set", "loss=mse", "--output", "mse", cwd=tmp_path).code == 0  # then numbers


def test_classes_that_are_learned_as_numbers_are_warned_of(tmp_path):
    """By train, plan and bench, each in a line; float32 labels are amounts. So is a step that takes more than there is."""
    write(tmp_path, numpy.array([0, 1, 2] * 20, "int32"))
    jobs_of(tmp_path, MODELS["linear"], 1, "loss: mse\n")
    classes = ("warning: train-a.h5: /labels holds whole numbers, as of classes, and `loss: mse` learns them as amounts: "
               "`loss: cross_entropy` tells classes apart (amounts are stored as float32)")
    large = "warning: batch.global: a step of 49 is more than the 48 training samples, so an epoch is one step of 48; batch.global: 24 or less would give it more"
    for words, warned in (((), [classes]), (("--set", "batch.global=49"), [large, classes]), (("--set", "batch.global=48"), [classes]),
                          (("--set", "loss=cross_entropy", "--set", "model.outputs=3"), [])):
        for command in (("train", "--overwrite"), ("plan", "--no-time"), ("bench", "--steps", 1)):
            told = dpt.run(command[0], "said.yaml", *command[1:], *words, cwd=tmp_path)
            assert told.code == 0 and [line for line in told.err.splitlines() if line.startswith("warning: ")] == warned, told
    for name in ("train-a", "train-b", "test"):
        with h5py.File(tmp_path / "data" / f"{name}.h5", "a") as file:
            amounts = file["labels"][...].astype("float32")
            del file["labels"]
            file["labels"] = amounts
    assert "warning" not in dpt.run("train", "said.yaml", "--overwrite", cwd=tmp_path).err


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_checkpoint_of_another_job(tmp_path, ranks):
    """What differs is told, before a label of the job's data is found out of that model's range, or a sample is read."""
    write(tmp_path, numpy.array([0, 1, 2, 3] * 15, "int32"))
    jobs_of(tmp_path, MODELS["mlp"], 4)
    for name, shape, classes, hidden in (("thin", 13, 2, 7), ("wide", 64, 4, 9), ("same", 64, 4, 9)):
        dpt.write_job(tmp_path / f"{name}.yaml", f"data: {{train: synthetic, synthetic: {{samples: 20, shape: [{shape}], classes: {classes}}}}}\n"
                      f"model: {{type: mlp, hidden: [{hidden}], outputs: {classes}}}\ntrain: {{steps: 1}}\nbatch: {{global: 20}}\n")
        assert dpt.run("train", f"{name}.yaml", cwd=tmp_path).code == 0
    for job, name, says in (("left", "thin", "runs/thin: its model takes 13 inputs (13), the job's samples have 64 (1x8x8): it is another job's checkpoint"),
                            ("said", "thin", "runs/thin: its model takes 13 inputs"),
                            ("said", "wide", "runs/wide: its model takes 64 inputs (64), the job's samples have 64 (1x8x8)"),
                            ("same", "thin", "runs/thin: its model takes 13 inputs")):
        more = ["--set", "data.test=synthetic"] if job == "same" else []
        told = dpt.run("eval", f"{job}.yaml", "--checkpoint", f"runs/{name}", *more, ranks=ranks, cwd=tmp_path)
        assert told.code == 65 and says in told.err and told.out == "", told
    told = dpt.run("eval", "same.yaml", "--checkpoint", "runs/wide", "--set", "data.test=synthetic", "--set", "model.hidden=[8]", ranks=ranks, cwd=tmp_path)
    assert told.code == 65 and "runs/wide: its model's dense1/weight is 9x64, the job's is 8x64: it is another job's checkpoint" in told.err, told
    assert dpt.run("eval", "same.yaml", "--checkpoint", "runs/wide", "--set", "data.test=synthetic", ranks=ranks, cwd=tmp_path).code == 0
    told = dpt.run("eval", "left.yaml", "--set", "loss=mse", "--checkpoint", "runs/wide", ranks=ranks, cwd=tmp_path)
    assert told.code == 65 and "runs/wide: its model predicts classes, the job's numbers (`loss`): it is another job's" in told.err, told
    told = dpt.run("eval", "same.yaml", "--checkpoint", "runs/wide", ranks=ranks, cwd=tmp_path)
    assert told.code == 78 and "data.test: the job names none to evaluate on; --split valid or train takes others" in told.err, told


def test_a_label_that_is_no_class(tmp_path):
    write(tmp_path, numpy.array([0, 1, -1] * 20, "int32"))
    jobs_of(tmp_path, MODELS["linear"], 2)
    for command in ("plan", "train"):
        told = dpt.run(command, "left.yaml", cwd=tmp_path)
        assert told.code == 65 and "data/train-a.h5: /labels[2] is -1, no class (0 to 1048575)" in told.err, told


def test_targets(tmp_path):
    """A model has as many outputs as samples have targets; the last layer of a list may leave them out."""
    write(tmp_path, numpy.random.default_rng(2).normal(size=(60, 2)).astype("float32"))
    jobs_of(tmp_path, LISTED, 2, "loss: mse\n")
    same(tmp_path)


@pytest.mark.parametrize("shape", [(60,), (60, 1)])
def test_numbers_under_a_loss_of_classes(tmp_path, shape):
    write(tmp_path, numpy.random.default_rng(2).normal(size=shape).astype("float32"))
    jobs_of(tmp_path, MODELS["mlp"], 1)
    told = dpt.run("train", "left.yaml", cwd=tmp_path)
    assert told.code == 65 and "data/train-a.h5: /labels[0] is 0.189053, no class (0 to 1048575); `loss: mse` learns regression targets" in told.err, told


@pytest.mark.parametrize("model", MODELS)
def test_every_model(model, tmp_path):
    """The layers that `plan` tells, of data that are made up."""
    text = "data: {train: synthetic, synthetic: {samples: 64, shape: [3, 32, 32], classes: 7}}\n"
    plans = []
    for outputs in ("", ", outputs: 7", ", outputs: auto"):
        job = dpt.write_job(tmp_path / "job.yaml", text + MODELS[model] % outputs)
        done = dpt.run("plan", job, "--no-time", "--json")
        assert done.code == 0, done
        plans.append(jobs.load(done.out)["layers"])
    assert plans[0] == plans[1] == plans[2] and plans[0][-1]["output"] == "7"


@pytest.mark.parametrize("setting", ["model.layers[3].dense.outputs=4", "model.layers[3].dense=4", "model.layers[3]={dense: 4}"])
def test_set_of_a_layer_without_options(setting, tmp_path):
    text = "data: {train: synthetic, synthetic: {samples: 64, shape: [1, 8, 8], classes: 4}}\n"
    job = dpt.write_job(tmp_path / "job.yaml", text + LISTED % "dense")
    done = dpt.run("plan", job, "--no-time", "--json", "--set", setting)
    assert done.code == 0 and jobs.load(done.out)["layers"][-1]["output"] == "4", done
    wrong = dpt.run("plan", job, "--set", "model.layers[2].relu.slope=4")
    assert wrong.code == 78 and "model.layers[2].relu.slope: unknown key" in wrong.err, wrong


def test_without_the_training_data(tmp_path):
    """A checkpoint says it to eval and predict, and the job's copy in the run folder to everyone; else the message
    says what is missing. A run continues, also under a job that says the number."""
    write(tmp_path, numpy.array([0, 1, 2, 3] * 15, "int32"), test_labels=numpy.array([0, 1] * 10, "int32"))
    jobs_of(tmp_path, MODELS["mlp"], 4)
    done = dpt.run("train", "left.yaml", "--output", "run", "--set", "train.steps=3", cwd=tmp_path)
    assert done.code == 0, done
    for job, steps in (("said", 6), ("left", 9)):
        done = dpt.run("train", f"{job}.yaml", "--output", "run", "--set", f"train.steps={steps}", cwd=tmp_path)
        assert done.code == 0 and f"at step {steps - 3} from" in done.err, done
    other = dpt.run("train", "left.yaml", "--output", "run", "--set", "model.outputs=5", cwd=tmp_path)
    assert other.code == 78 and "model.outputs" in other.err and "4" in other.err, other
    assert dpt.run("export", "run", "model.safetensors", cwd=tmp_path).code == 0
    shutil.move(tmp_path / "data" / "train-a.h5", tmp_path)
    shutil.move(tmp_path / "data" / "train-b.h5", tmp_path)
    for ranks in (0, 2):
        told = dpt.run("eval", "left.yaml", "--checkpoint", "run", ranks=ranks, cwd=tmp_path)
        assert told.code == 0 and "on 20 samples" in told.out, told
    told = dpt.run("predict", "left.yaml", "--checkpoint", "run", "data/test.h5", cwd=tmp_path)
    assert told.code == 0 and len(told.out.splitlines()) == 21, told
    foreign = ("predict", "left.yaml", "--checkpoint", "model.safetensors", "data/test.h5")
    for words in (("plan", "left.yaml"), ("train", "left.yaml"), ("bench", "left.yaml"), foreign):
        told = dpt.run(*words, cwd=tmp_path)
        assert told.code == 78, told
        assert "left.yaml: data.train: no file " \
               "matches 'data/train-*.h5'" in told.err, told
    assert dpt.run(*foreign, "--set", "model.outputs=4", cwd=tmp_path).code == 0
    assert dpt.run("schema", "--check", "left.yaml", cwd=tmp_path).code == 0
