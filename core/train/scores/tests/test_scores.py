"""What evaluations say of classes is what NumPy computes from the same predictions, with scikit-learn's conventions."""
import csv
import json
import os
import re
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = [os.path.abspath("scripts/lib"), os.path.abspath("core/train/tests")]
import dpt  # noqa: E402
import formats  # noqa: E402


def auc(positive, probability, weight):
    """The chance that a positive is given more than a negative; half of it where both are given the same."""
    p, q = probability[positive][:, None], probability[~positive][None, :]
    w = weight[positive][:, None] * weight[~positive][None, :]
    return (w * ((p > q) + 0.5 * (p == q))).sum() / w.sum() if w.size > 0 else np.nan


def scores(truth, given, weight):
    classes = given.shape[1]
    chosen = given.argmax(axis=1)
    confusion = np.zeros((classes, classes))
    np.add.at(confusion, (truth, chosen), weight)
    right = np.diag(confusion)
    there, said = confusion.sum(axis=1), confusion.sum(axis=0)
    ratio = lambda a, b: np.divide(a, b, out=np.zeros(classes), where=b > 0)  # noqa: E731
    each = {"precision": ratio(right, said), "recall": ratio(right, there), "f1": ratio(2 * right, there + said)}
    known = there + said > 0
    found = {name: value[1] if classes == 2 else value[known].mean() for name, value in each.items()}
    found["accuracy"] = right.sum() / weight.sum()
    found["balanced_accuracy"] = each["recall"][there > 0].mean()
    areas = [auc(truth == k, given[:, k], weight) for k in range(classes)]
    found["roc_auc"] = areas[1] if classes == 2 else np.mean(areas)
    if classes > 5:
        among = (np.argsort(given, axis=1)[:, -5:] == truth[:, None]).any(axis=1)
        found["top5_accuracy"] = (among * weight).sum() / weight.sum()
    return found, each, confusion, areas


class Trained:
    def __init__(self, folder, classes, weighted, soft=False, names=None):
        draw = np.random.default_rng(classes)
        centres = draw.normal(size=(classes, 5))
        shares = {2: [0.92, 0.08], 7: [1 / 6] * 6 + [0]}.get(classes)  # of seven, the last one has no test sample
        self.folder, self.classes = folder, classes
        for name, n in (("train", 300), ("test", 203)):
            labels = draw.choice(classes, size=n, p=shares if name == "test" or classes == 2 else None)
            weights = draw.choice([0, 0.25, 1, 2.5], size=n) if weighted else np.ones(n)
            with h5py.File(folder / f"{name}.h5", "w") as f:
                images = centres[labels] + draw.normal(size=(n, 5))
                f["images"] = (np.sign(images) if weighted else images).astype("f4")  # of 32 kinds at most: many are said the same of
                shares_of = np.eye(classes) + draw.random((classes, classes))  # the largest share is the class's
                f["labels"] = (shares_of / shares_of.sum(axis=1)[:, None])[labels].astype("f4") if soft else labels
                if names and name == "train":
                    f["labels"].attrs["classes"] = names
                if weighted:
                    f["weights"] = weights.astype("f4")
        self.truth, self.weight = labels, weights
        self.job = dpt.write_job(folder / "job.yaml", f"""
data: {{train: {folder}/train.h5, test: {folder}/test.h5}}
model: {{type: mlp, hidden: [16], outputs: {classes}}}
optimizer: {{type: adam, lr: 0.01}}
batch: {{global: 30, micro: 7}}
train: {{epochs: 6}}
checkpoint: {{every: 6 epochs}}
output: {folder}/run
""")
        self.ran = dpt.run(self.job, "--quiet")
        assert self.ran.code == 0, self.ran
        result = dpt.run("predict", self.job, "--checkpoint", folder / "run", "--input", folder / "test.h5", "--out", folder / "p.h5")
        assert result.code == 0, result
        with h5py.File(folder / "p.h5") as f:
            self.given = f["probabilities"][()]

    def eval(self, *words, **options):
        result = dpt.run("eval", self.job, "--checkpoint", self.folder / "run", *words, **options)
        assert result.code == 0 and result.err == "", result
        return result.out


@pytest.mark.parametrize("classes, weighted, soft", [(2, False, False), (2, True, False), (3, True, False), (4, True, True), (7, True, False),
                                                     (1030, False, False)])
def test_scores_are_those_of_the_predictions(tmp_path, classes, weighted, soft):
    trained = Trained(tmp_path, classes, weighted, soft)
    expected, each, confusion, areas = scores(trained.truth, trained.given, trained.weight)
    text = trained.eval("--json")
    assert trained.eval("--json", ranks=3) == text
    found = json.loads(text)
    if classes > 4:  # some classes have no sample, and so no curve
        assert "roc_auc" not in found and expected.pop("roc_auc") is not None
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert ("confusion" in found) == (classes <= 1024)
    np.testing.assert_allclose(found.get("confusion", confusion), confusion)
    for k, area in enumerate(areas):
        assert found["classes"][k].get("roc_auc", np.nan) == pytest.approx(area, abs=1e-6, nan_ok=True), k
    for name, values in each.items():
        np.testing.assert_allclose([c[name] for c in found["classes"]], values, atol=1e-6)
    logged = [e for e in dpt.events(tmp_path / "run", "eval")][-1]
    for name in expected.keys() - ({"roc_auc"} if classes > 2 else set()):
        assert logged[name] == found[name], name
    table = [line.split() for line in trained.eval("--classes").splitlines()[-classes:]]
    assert [row[0] for row in table] == [str(k) for k in range(classes)]
    assert [row[3] for row in table] == [f"{v:.4f}" for v in each["recall"]]


@pytest.mark.parametrize("names", [None, ["well", "«ill»"]])
def test_uneven_classes_are_told(tmp_path, names):
    """By their names, also where the training data alone have them."""
    trained = Trained(tmp_path, 2, False, names=names)
    rare = (trained.truth == 1).mean()
    recall = (trained.given.argmax(axis=1) == 1)[trained.truth == 1].mean()
    zero, one = [f"'{n}'" for n in names] if names else "01"
    said = f"classes are imbalanced: {100 * rare:.1f} % of these are of class {one}, of which {100 * recall:.1f} % are found; "
    said += f"always saying class {zero} has accuracy {1 - rare:.4f}; balanced accuracy is"
    told = trained.eval("--classes")
    assert said in " ".join(told.split()) and said in " ".join(trained.ran.out.split()), trained.ran
    assert max(map(len, told.splitlines())) < 80
    assert "data.class_weights: balanced has rare classes count more\n" in trained.ran.out
    rows = [line.split() for line in told.splitlines()[-2:]]
    assert [row[0] for row in rows] == (names or ["0", "1"]) and {len(row) for row in rows} == {6}
    assert [c.get("name") for c in json.loads(trained.eval("--json"))["classes"]] == (names or [None, None])
    last = dpt.events(tmp_path / "run", "eval")[-1]
    assert last["rare_recall"] == pytest.approx(recall, abs=1e-6)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("train, test, positive", [((90, 210), (60, 40), 0), ((210, 90), (40, 60), 1), ((150, 150), (40, 60), 1), ((0, 90), (5, 60), 1)])
def test_the_rarer_of_two_classes_is_positive(tmp_path, train, test, positive, soft):
    """In the training data, however many of each are evaluated; of equal ones class 1."""
    draw = np.random.default_rng(7)
    for name, counts in (("train", train), ("test", test)):
        labels = np.repeat([0, 1], counts)
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f["images"] = (draw.normal(size=(len(labels), 3)) + labels[:, None]).astype("f4")
            f["labels"] = np.array([[0.8, 0.2], [0.3, 0.7]], "f4")[labels] if soft else labels
            f["labels"].attrs["classes"] = ["Sick", "well"]
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/train.h5, test: {tmp_path}/test.h5, valid: 0.2}}\n"
                        "model: {type: linear, outputs: 2}\nbatch: {global: 30, micro: 7}\noptimizer: {type: adam, lr: 0.05}\ntrain: {epochs: 2}\n")
    dpt.train(job, tmp_path / "run")

    def evaluate(*words, **ranks):
        result = dpt.run("eval", job, "--checkpoint", tmp_path / "run", *words, **ranks)
        assert result.code == 0, result
        return result.out

    text = evaluate("--json")
    assert evaluate("--json", ranks=3) == text
    found, events = json.loads(text), dpt.events(tmp_path / "run", "eval")
    assert found["positive"] == positive and {e["positive"] for e in events} == {positive}
    for name in ("precision", "recall", "f1"):
        assert found[name] == found["classes"][positive][name] == events[-1][name]
    name, rarer = ["Sick", "well"][positive], {True: "rarer, "}.get(train[positive] < train[1 - positive], "")
    rarer = "no rarer than the other, " if train[0] == train[1] else rarer
    assert f"\n  positive: {name} ({rarer}{train[positive]} of {sum(train)} training samples)\n" in evaluate("--classes")
    # Without the training data those that are evaluated tell it.
    alone = evaluate("--classes", "--set", f"data.train={tmp_path}/none.h5")
    k = int(test[1] <= test[0])
    assert f"\n  positive: {['Sick', 'well'][k]} (rarer, {test[k]} of {sum(test)} test samples)\n" in alone
    assert re.search(rf"  precision {found['classes'][k]['precision']:.4f}\n", alone)


def test_few_samples_a_class_are_uneven_by_chance(tmp_path):
    trained = Trained(tmp_path, 30, False)
    assert "uneven" not in trained.eval() and json.loads(trained.eval("--json"))["uneven"] is False


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A table with several labels at once, and the job that init writes for it, trained."""
    folder, names, draw = tmp_path_factory.mktemp("labels"), ["old", "ä, b", "red"], np.random.default_rng(5)
    x = draw.normal(size=(420, 6)).astype("f4")
    y = (x @ draw.normal(size=(6, 3)) + draw.normal(size=(420, 3)) > [-1, 0, 1]).astype(int)
    for name, rows in (("train", range(300)), ("test", range(300, 420))):
        (folder / f"{name}.csv").write_text("a,b,c,d,e,f,old,\"ä, b\",red\n" + "".join(
            ",".join(map(str, [*x[i], *y[i]])) + "\n" for i in rows), encoding="utf-8")
    words = ["--label", "7,8,9"]
    for line in (["convert", "csv", "train.csv", *words, "--output", "train"],
                 ["convert", "csv", "test.csv", *words, "--output", "test"],
                 ["init", "train-00000-of-00001.h5", "test-00000-of-00001.h5", "--output", "job.yaml"],
                 ["job.yaml", "--quiet", "--output", "run", "--set", "train.epochs=9", "--set", "eval.every=9 epochs"]):
        result = dpt.run(*line, cwd=folder)
        assert result.code == 0, result
        if line[0] == "init":  # whose losses have the same bits on any ranks
            job = (folder / "job.yaml").read_text(encoding="utf-8")
            (folder / "job.yaml").write_text(job.replace("reduction: allreduce", "reduction: reproducible"), encoding="utf-8")
    return folder, names, y[300:].astype(bool), x[300:], result


def test_several_labels_at_once(labelled, tmp_path):
    folder, names, truth, x, ran = labelled
    given = {}
    for end in ("npy", "h5", "csv"):
        result = dpt.run("predict", "job.yaml", "--checkpoint", "run", "test.csv", "--out", tmp_path / f"p.{end}", cwd=folder)
        assert result.code == 0, result
    given = np.load(tmp_path / "p.npy")
    with h5py.File(tmp_path / "p.h5") as f:
        assert set(f) == {"logits", "probabilities", "targets", "loss"}
        np.testing.assert_array_equal(f["probabilities"][()], given)
        np.testing.assert_allclose(1 / (1 + np.exp(-f["logits"][()].astype("f8"))), given, rtol=1e-6)
    with open(tmp_path / "p.csv", encoding="utf-8", newline="") as f:
        rows = list(csv.reader(f))
    assert rows[0] == ["sample", *("true_" + n for n in names), *names]
    np.testing.assert_array_equal(np.array([r[4:] for r in rows[1:]], "f4"), given)
    said = given > 0.5
    right, chosen, there = (said & truth).sum(0), said.sum(0), truth.sum(0)
    each = {"precision": right / chosen, "recall": right / there, "f1": 2 * right / (chosen + there)}
    expected = {name: values.mean() for name, values in each.items()}
    each |= {"accuracy": (said == truth).mean(0), "base_rate": truth.mean(0)}
    expected["accuracy"] = (said == truth).all(1).mean()
    expected["label_accuracy"] = (said == truth).mean()
    expected["roc_auc"] = np.mean([auc(truth[:, k], given[:, k], np.ones(120)) for k in range(3)])
    p = given.astype("f8")
    expected["loss"] = -np.log(np.where(truth, p, 1 - p)).mean()
    text, alike = (dpt.run("eval", "job.yaml", "--checkpoint", "run", "--json", cwd=folder, **ranks).out for ranks in ({}, {"ranks": 2}))
    found = json.loads(text)
    assert alike == text
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert found["label_accuracy"] > 0.75 and found["roc_auc"] > 0.8
    each |= {"samples": there, "chosen": chosen, "roc_auc": [auc(truth[:, k], given[:, k], np.ones(120)) for k in range(3)]}
    for name, values in each.items():
        np.testing.assert_allclose([c[name] for c in found["labels"]], values, atol=1e-6)
    assert [c["name"] for c in found["labels"]] == names
    rows = dpt.run("eval", "job.yaml", "--checkpoint", "run", "--classes", cwd=folder).out.splitlines()[-4:]
    assert re.split(r"\s{2,}", rows[0].replace(" base", "  base")) == ["", "label", "samples", "base rate", "accuracy", "precision", "recall",
                                                                        "F1", "ROC AUC"]
    for k, row in enumerate(rows[1:]):
        assert row[2:].startswith(names[k])
        assert row.split()[-7:] == [str(there[k]), *(f"{each[n][k]:.4f}" for n in ("base_rate", "accuracy", "precision", "recall", "f1", "roc_auc"))]
    logged = [e for e in dpt.events(folder / "run", "eval") if e["split"] == "test"][-1]
    assert all(logged[name] == found[name] for name in expected), logged
    assert f"test exact match {found['accuracy']:.4f}" in ran.out and f"label accuracy {found['label_accuracy']:.4f}" in ran.out
    assert " accuracy" not in ran.out.replace("label accuracy", "")
    assert dpt.events(folder / "run", "run")[0]["labels"] == 3
    onnx = tmp_path / "m.onnx"
    assert dpt.run("export", folder / "run", onnx, "--softmax").code == 0
    np.testing.assert_allclose(formats.Onnx(onnx).run(x), given, atol=1e-6)


def test_labels_are_from_0_to_1(labelled, tmp_path):
    folder = labelled[0]
    with h5py.File(tmp_path / "t.h5", "w") as f:
        f["images"], f["labels"] = np.zeros((8, 6), "f4"), np.array([[0, 1, 0]] * 5 + [[0, 2, 1]] * 3, "f4")
    result = dpt.run(folder / "job.yaml", "--set", f"data.train={tmp_path}/t.h5", "--set", "data.test=[]", "--set", "data.valid=[]", "--set",
                     f"output={tmp_path}/run", "--set", "train.early_stop=null", "--set", "checkpoint.monitor=null", cwd=folder)
    assert result.code == 65 and "/labels[5] holds 2: loss binary_cross_entropy requires labels from 0 to 1" in result.err, result
    result = dpt.run(folder / "job.yaml", "--set", "loss=BCEWithLogitsLoss")
    assert result.code == 78 and "did you mean 'binary_cross_entropy'?" in result.err, result


def test_training_samples_are_evaluated_as_they_are(tmp_path):
    """Neither augmented nor mixed with others, whose labels are no classes."""
    text = ("data: {train: synthetic, synthetic: {samples: 60, shape: [3, 6, 6], classes: 4}%s}\n"
            "model: mlp\nbatch: {global: 20}\ntrain: {steps: 2}\n")
    job = dpt.write_job(tmp_path / "job.yaml", text % ", augment: {crop_padding: 2, noise: 0.5, mixup: 1}")
    plain = dpt.write_job(tmp_path / "plain.yaml", text % "")
    assert dpt.run(job, "--output", tmp_path / "run", "--quiet").code == 0
    said = [dpt.run("eval", path, "--checkpoint", tmp_path / "run", "--split", "train", "--json", "--classes") for path in (job, plain)]
    assert said[0].code == 0 and said[0].out == said[1].out, said


@pytest.mark.parametrize("samples, size, micro", [(78, 18, 4), (33, 8, 5), (40, 7, 3)])
def test_each_training_sample_is_evaluated_once(tmp_path, samples, size, micro):
    """Also where a step is no whole number of micro-batches, and where an epoch leaves out its short last step: as those of a test set of the same file."""
    draw = np.random.default_rng(samples)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f["images"] = draw.normal(size=(samples, 6)).astype("f4")
        f["labels"] = draw.integers(0, 4, samples)
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/a.h5, test: {tmp_path}/a.h5, drop_last: true}}\nmodel: mlp\n"
                        f"batch: {{global: {size}, micro: {micro}}}\ntrain: {{steps: 2}}\ncomm: {{reduction: reproducible}}\n")
    assert dpt.run(job, "--output", tmp_path / "run", "--quiet").code == 0
    said = {}
    for split in ("test", "train"):
        for ranks in (0, 2):
            result = dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--split", split, "--json", "--classes", ranks=ranks)
            assert result.code == 0, result
            said[split, ranks] = json.loads(result.out)
    assert said["train", 0] == said["train", 2] and said["test", 0] == said["test", 2]
    train, test = said["train", 0], said["test", 0]
    assert train["samples"] == samples and train["loss"] == pytest.approx(test["loss"], rel=1e-12)
    for key in ("accuracy", "roc_auc", "classes", "confusion"):
        assert train[key] == test[key], key
