"""Deciding by thresholds is what NumPy makes of the probabilities that `predict` writes; curves and areas are scikit-learn's by their formulas."""
import csv
import io
import json
import os
import re
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = [os.path.abspath(p) for p in ("scripts/lib", "cmd/tests")]
import dpt  # noqa: E402
from page import Page  # noqa: E402

KINDS = ["two", "three", "label", "labels"]


class Trained:
    """A model of two or three named classes, of a label that holds or not, or of three of these, and what it says."""

    def __init__(self, folder, kind):
        draw = np.random.default_rng(3)
        self.folder, self.kind = folder, kind
        self.names = {"two": ["well", "very ill"], "three": ["x", "y", "z"], "label": ["not ill", "ill"], "labels": ["old", "red", "big"]}[kind]
        for name, n in (("train", 300), ("test", 211)):
            x = draw.normal(size=(n, 4))
            many = (x[:, :3] + draw.normal(size=(n, 3)) > [1, 0, -1]).astype(int)
            truth = {"three": many[:, 0] + many[:, 1], "labels": many}.get(kind, many[:, 0])
            if kind in ("label", "labels"):  # a table, since only that has names of its labels
                heads = ["ill"] if kind == "label" else self.names
                rows = [["a", "b", "c", "d", *heads], *([*map(str, r), *map(str, np.atleast_1d(t))] for r, t in zip(x, truth))]
                (folder / f"{name}.csv").write_text("\n".join(map(",".join, rows)) + "\n")
                dpt_run("convert", "csv", folder / f"{name}.csv", "--regression", "--label", ",".join(heads), "--output", folder / name)
            with h5py.File(folder / f"{name}-00000-of-00001.h5", "a") as f:
                if kind in ("two", "three"):
                    f["images"], f["labels"] = x.astype("f4"), truth
                    f["labels"].attrs["classes"] = self.names
                    if kind == "two":
                        f["weights"] = draw.choice([0, 0.5, 1, 2.5], size=n).astype("f4")
                self.weight = f["weights"][()].astype("f8") if "weights" in f else np.ones(n)
        self.truth, self.data = truth, folder / "test-00000-of-00001.h5"
        loss = "binary_cross_entropy" if kind in ("label", "labels") else "cross_entropy"
        self.job = dpt.write_job(folder / "job.yaml", f"""
data: {{train: {folder}/train-*.h5, test: {self.data}}}
model: {{type: linear, outputs: {1 if kind == 'label' else len(self.names)}}}
loss: {loss}
optimizer: {{type: adam, lr: 0.05}}
batch: {{global: 30, micro: 7}}
train: {{epochs: 3}}
output: {folder}/run
""")
        dpt_run(self.job, "--quiet")
        self.predict("--out", folder / "p.h5")
        with h5py.File(folder / "p.h5") as f:
            self.given = f["probabilities"][()]
            assert "thresholds" not in f.attrs and ("labels" in f) == (loss == "cross_entropy")
            if kind == "label":  # that it does not hold is as likely as the other logit says
                self.given = np.stack([1 / (1 + np.exp(f["logits"][:, 0].astype("f8"))), self.given[:, 0]], axis=1).astype("f4")

    def run(self, *words, **options):
        return dpt.run(words[0], self.job, "--checkpoint", self.folder / "run", *words[1:], **options)

    def predict(self, *words, **options):
        return done(self.run("predict", "--input", self.data, *words, **options))

    def eval(self, *words, **options):
        return done(self.run("eval", *words, **options))

    def is_of(self, k):
        return self.truth[:, k] == 1 if self.kind == "labels" else self.truth == k

    def decide(self, thresholds):
        """The class of each sample, or of each label whether it holds."""
        if self.kind == "labels":
            return (self.given >= [thresholds.get(k, 0.5) for k in range(3)]).astype(int)
        said = []
        for row in self.given:
            reached = [k for k in thresholds if row[k] >= np.float32(thresholds[k])]
            said.append(max(reached or [k for k in range(len(row)) if k not in thresholds], key=lambda k: row[k]))
        return np.array(said)


def done(result):
    assert result.code == 0, result
    return result.out


def dpt_run(*words):
    return done(dpt.run(*words))


@pytest.fixture(scope="module", params=KINDS)
def trained(request, tmp_path_factory):
    return Trained(tmp_path_factory.mktemp(request.param), request.param)


def precision_recall(is_of, said, weight):
    right, chosen, there = ((weight * which).sum() for which in (is_of & said, said, is_of))
    return right / chosen if chosen > 0 else 0, right / there


def words_of(trained, k):
    """--positive, where it is not said which one is."""
    return ["--positive", trained.names[k]] if trained.kind in ("three", "labels") else []


@pytest.mark.parametrize("recall", [0.3, 1])
def test_the_threshold_of_a_wished_recall(trained, recall):
    """It is the largest one, so the least probability of a sample that it takes is that of one of the class."""
    k = 2 if trained.kind == "three" else 1
    words = [*words_of(trained, k), "--recall", str(recall)]
    text = trained.eval(*words, "--json")
    if recall < 1:
        assert trained.eval(*words, "--json", ranks=3) == text
    found = json.loads(text)
    wished, of, p = found["wished"], trained.is_of(k), trained.given[:, k]
    assert found["positive"] == k and wished["at_least"] == recall
    said = p >= np.float32(wished["threshold"])
    assert [wished["precision"], wished["recall"]] == pytest.approx(precision_recall(of, said, trained.weight), abs=1e-9)
    assert wished["recall"] >= recall
    fewer = p > p[said & (trained.weight > 0)].min()
    assert precision_recall(of, fewer, trained.weight)[1] < recall
    # There are as few digits as tell it from the next samples' probabilities.
    assert p[~said & (trained.weight > 0)].max(initial=0) < wished["threshold"] < p[said & (trained.weight > 0)].min()
    name = trained.names[k]
    option = f"--threshold '{name}={wished['threshold']:.9g}'" if " " in name else f"--threshold {name}={wished['threshold']:.9g}"
    line = f"\n  recall {recall}: {option} gives recall {wished['recall']:.4f}, precision {wished['precision']:.4f}\n"
    told = trained.eval(*words)
    assert line in told and re.search(rf"\n  positive: {name} \((as told|rarer), {{0,1}}", told), (line, told)
    # Which is what that option gives.
    decided = json.loads(trained.eval(*words_of(trained, k), "--threshold", f"{name}={wished['threshold']:.9g}", "--json"))
    assert [decided["precision"], decided["recall"]] == pytest.approx([wished["precision"], wished["recall"]], abs=1e-9)


def test_deciding(trained, tmp_path):
    """By names or numbers; in a table, a file and the scores; over any number of ranks."""
    thresholds = {1: 0.15, **({0: 0.35} if trained.kind in ("three", "labels") else {})}
    words = [w for k, p in thresholds.items() for w in ("--threshold", f"{trained.names[k] if k == 1 else k}={p}")]
    said = trained.decide(thresholds)
    assert (said != trained.decide({})).any()
    right = (said == trained.truth).all(1) if trained.kind == "labels" else said == trained.truth
    found = json.loads(trained.eval(*words, "--json"))
    assert found["accuracy"] == pytest.approx((right * trained.weight).sum() / trained.weight.sum(), abs=1e-9)
    assert [t["threshold"] for t in found["thresholds"]] == [thresholds[k] for k in sorted(thresholds)]
    if trained.kind != "labels":
        confusion = np.zeros((len(trained.names),) * 2)
        np.add.at(confusion, (trained.truth, said), trained.weight)
        np.testing.assert_allclose(found["confusion"], confusion)
    for k, c in enumerate(found["labels" if trained.kind == "labels" else "classes"]):
        chosen = said[:, k] == 1 if trained.kind == "labels" else said == k
        assert c["name"] == trained.names[k]
        assert [c["precision"], c["recall"]] == pytest.approx(precision_recall(trained.is_of(k), chosen, trained.weight), abs=1e-9)
    table = trained.predict(*words)
    assert trained.predict(*words, ranks=3) == table
    head, *rows = list(csv.reader(io.StringIO(table)))
    if trained.kind in ("two", "three"):
        assert head == ["sample", "true", "class", "probability"]
        assert [row[2] for row in rows] == [trained.names[k] for k in said]
        assert [np.float32(row[3]) for row in rows] == list(trained.given[range(len(said)), said])
    else:
        at = [n for n, name in enumerate(head) if name.startswith("class")]
        assert [head[n] for n in at] == (["class"] if trained.kind == "label" else [f"class_{n}" for n in trained.names])
        np.testing.assert_array_equal(np.array([[row[n] for n in at] for row in rows], int), said.reshape(len(said), -1))
    result = trained.run("predict", "--input", trained.data, *words, "--out", tmp_path / "p.h5")
    assert result.code == 0, result
    with h5py.File(tmp_path / "p.h5") as f:
        np.testing.assert_array_equal(f["labels"][()], said.reshape(f["labels"].shape))
        told = [f"{trained.names[k]}={thresholds[k]}" for k in sorted(thresholds)]
        assert f.attrs["thresholds"].decode() == " ".join(f"'{t}'" if " " in t else t for t in told)
    accuracy = f"{'exact match' if trained.kind == 'labels' else 'accuracy'} {right.mean():.4f}, of "  # predict takes no notice of weights
    assert accuracy in result.err, result
    result = trained.run("predict", "--input", trained.data, *words, "--out", tmp_path / "p.npy")
    assert result.code == 2 and "p.npy holds probabilities alone; .csv and .h5 hold what is decided" in result.err, result


def test_a_threshold_alone_is_of_the_one_label(trained):
    if trained.kind == "label":
        assert trained.eval("--threshold", "0.3", "--json") == trained.eval("--threshold", "ill=0.3", "--json")
    else:
        result = trained.run("eval", "--threshold", "0.3")
        assert result.code == 2 and f"as in --threshold {'well' if trained.kind == 'two' else trained.names[1]}=0.3" in result.err, result


def test_all_probabilities(trained):
    head, *rows = list(csv.reader(io.StringIO(trained.predict("--probabilities"))))
    said = np.array([row[-trained.given.shape[1]:] for row in rows], "f4") if trained.kind != "label" else None
    if trained.kind in ("two", "three"):
        assert head[2:] == ["class", "probability", *(f"probability_{n}" for n in trained.names)]
        np.testing.assert_array_equal(said, trained.given)
    elif trained.kind == "labels":
        np.testing.assert_array_equal(said, trained.given)
    else:
        assert head == ["sample", "true", "ill"]  # which it has anyhow


def test_the_positive_class(trained):
    """The one that is told, which the rarer one is not."""
    k = 0
    found = json.loads(trained.eval("--positive", trained.names[k], "--json"))
    each = found["labels" if trained.kind == "labels" else "classes"]
    assert found["positive"] == k
    for name in ("precision", "recall", "f1", "roc_auc"):
        assert found[name] == each[k][name]
    with h5py.File(next(trained.folder.glob("train-0*.h5"))) as f:
        labels = f["labels"][()]
    of = labels[:, k] >= 0.5 if trained.kind == "labels" else np.ravel(labels) == k
    assert f"  positive: {trained.names[k]} (as told, {of.sum()} of 300 training samples)\n" in trained.eval("--positive", str(k))


def test_the_page_draws_the_curve(trained):
    """Of two classes of the rarer one, with the thresholds of some recalls; else of all."""
    dpt_run("report", trained.folder / "run", "-o", trained.folder / "r.html")
    section = Page(trained.folder / "r.html").section("predictions")
    figure = section.one("figure", id="recall0")
    classes = [1] if trained.kind in ("two", "label") else range(3)
    names, lines = [li.words for li in figure.one("ul").all("li")], figure.all("polyline")
    assert len(lines) == len(names) == len(classes)
    for k, name, line in zip(classes, names, lines):
        of, p = trained.is_of(k) & (trained.weight > 0), trained.given[:, k]
        points = [precision_recall(of, p >= t, trained.weight) for t in sorted(set(p[trained.weight > 0]), reverse=True)]
        precision, recall = np.array(points).T
        assert name == f"{trained.names[k]}, average precision {(np.diff(recall, prepend=0) * precision).sum():.4f}"
        assert 3 < len(line.attributes["points"].split()) <= 258
    tables = [t.rows() for t in section.all("table", klass="pairs") if t.all("caption") and "The largest threshold" in t.one("caption").words]
    assert len(tables) == (len(classes) == 1)
    for row in (tables or [[]])[0][1:]:
        threshold = float(row[2].strip("'").split("=")[1])
        assert row[:2] == [f"{v:.4f}" for v in precision_recall(trained.is_of(1), trained.given[:, 1] >= np.float32(threshold), trained.weight)[::-1]]


def test_what_cannot_be_decided(tmp_path):
    trained = Trained(tmp_path, "two")
    for command, words, said in (
            ("eval", ["--positive", "very il"], "--positive: there is no class 'very il'; did you mean 'very ill'? There are 0 (well), 1 (very ill)"),
            ("eval", ["--positive", "2"], "--positive: there is no class '2'; there are 0 (well), 1 (very ill)"),
            ("eval", ["--positive", "-1"], "there is no class '-1'"),
            ("eval", ["--recall", "95"], "--recall 95: must be above 0 and at most 1, as 0.95 is"),
            ("eval", ["--recall", "0.9x"], "--recall 0.9x: must be"),
            ("predict", ["--threshold", "0.3"],
             "--threshold 0.3: must be CLASS=PROBABILITY, as in --threshold well=0.3 or --threshold 'very ill=0.3'"),
            ("predict", ["--threshold", "=0.3"], "as in --threshold well=0.2 or --threshold 'very ill=0.2'"),
            ("predict", ["--threshold", "well="], "--threshold well=: '' is no probability from 0 to 1"),
            ("eval", ["--threshold", "1=nan"], "--threshold 1=nan: 'nan' is no probability"),
            ("predict", ["--threshold", "sick=0.1"], "--threshold: there is no class 'sick'"),
            ("predict", ["--threshold", "0=0.1", "--threshold", "1=0.1"], "one of two classes has a threshold; the other one is what is left")):
        words = [*words, "--input", trained.data] if command == "predict" else words
        for ranks in ({}, {"ranks": 2}) if command == "eval" and len(said) > 90 else ({},):
            result = trained.run(command, *words, **ranks)
            assert result.code == 2 and result.err.count(said) == 1, result
    with h5py.File(tmp_path / "none.h5", "w") as f:
        f["images"], f["labels"] = np.zeros((9, 4), "f4"), np.zeros(9, int)
    result = trained.run("eval", "--recall", "0.9", "--set", f"data.test={tmp_path}/none.h5")
    assert result.code == 65 and "--recall: none of the test samples is of the positive class" in result.err, result
    (tmp_path / "more").mkdir()
    three = Trained(tmp_path / "more", "three")
    result = three.run("eval", "--recall", "0.9")
    assert result.code == 2 and "--recall: one of the 3 classes is needed: give --positive" in result.err, result
    numbers = dpt.write_job(tmp_path / "n.yaml", "data: {train: synthetic, test: synthetic, synthetic: {samples: 64, shape: [4]}}\n"
                            "model: {type: linear, outputs: 1}\nloss: mse\ntrain: {steps: 1}\n")
    dpt.train(numbers, tmp_path / "n")
    result = dpt.run("eval", numbers, "--checkpoint", tmp_path / "n", "--positive", "1")
    assert result.code == 2 and "with loss mse the model predicts numbers: there are no classes to decide for" in result.err, result
