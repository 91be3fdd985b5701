"""What evaluations say of classes is what NumPy computes from the same predictions, with scikit-learn's conventions."""
import json
import os
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, os.path.abspath("scripts/lib"))
import dpt  # noqa: E402


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
    return found, each, confusion


class Trained:
    def __init__(self, folder, classes, weighted):
        draw = np.random.default_rng(classes)
        centres = draw.normal(size=(classes, 5))
        shares = {2: [0.92, 0.08], 7: [1 / 6] * 6 + [0]}.get(classes)  # of seven, the last one has no test sample
        self.folder, self.classes = folder, classes
        for name, n in (("train", 300), ("test", 203)):
            labels = draw.choice(classes, size=n, p=shares if name == "test" or classes == 2 else None)
            weights = draw.choice([0, 0.25, 1, 2.5], size=n) if weighted else np.ones(n)
            with h5py.File(folder / f"{name}.h5", "w") as f:
                f["images"] = (centres[labels] + draw.normal(size=(n, 5))).astype("f4")
                f["labels"] = labels
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


@pytest.mark.parametrize("classes, weighted", [(2, False), (2, True), (3, True), (7, True)])
def test_scores_are_those_of_the_predictions(tmp_path, classes, weighted):
    trained = Trained(tmp_path, classes, weighted)
    expected, each, confusion = scores(trained.truth, trained.given, trained.weight)
    text = trained.eval("--json")
    assert trained.eval("--json", ranks=3) == text
    found = json.loads(text)
    if classes == 7:  # no sample is of the last class, which has no curve
        assert "roc_auc" not in found and expected.pop("roc_auc") is not None
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    np.testing.assert_allclose(found["confusion"], confusion)
    for name, values in each.items():
        np.testing.assert_allclose([c[name] for c in found["classes"]], values, atol=1e-6)
    logged = [e for e in dpt.events(tmp_path / "run", "eval")][-1]
    for name in expected.keys() - ({"roc_auc"} if classes > 2 else set()):
        assert logged[name] == found[name], name
    table = [line.split() for line in trained.eval("--classes").splitlines()[-classes:]]
    assert [row[0] for row in table] == [str(k) for k in range(classes)]
    assert [row[3] for row in table] == [f"{v:.4f}" for v in each["recall"]]


def test_uneven_classes_are_told(tmp_path):
    trained = Trained(tmp_path, 2, False)
    rare = (trained.truth == 1).mean()
    recall = (trained.given.argmax(axis=1) == 1)[trained.truth == 1].mean()
    said = f"classes are uneven: {100 * rare:.1f} % of these are of class 1, of which {100 * recall:.1f} % are found;"
    assert said in trained.eval() and said in trained.ran.out, trained.ran
    assert f"always saying class 0 has accuracy {1 - rare:.4f}" in trained.eval()
