"""`dptrain report`: the table of the model's layers, and of models of numbers how far off they are, in the units of the data."""
import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402
from page import Page  # noqa: E402

NET = """
data: {train: synthetic, test: synthetic, synthetic: {samples: 64, shape: [1, 8, 8], classes: 4}}
model:
  type: sequential
  layers:
    - conv: {channels: 6, kernel: 3, padding: same, name: stem}
    - relu
    - conv: {channels: 6, padding: same}
    - add: stem
    - global_avgpool
    - dense: 4
batch: {global: 32}
train: {steps: 2}
"""


def page_of(folder, *words):
    result = dpt.run("report", *words, "-o", folder / "r.html", "--quiet")
    assert result.code == 0, result
    return Page(Path(folder / "r.html"))


def number(text):
    return float(text.replace(" ", "").replace("\u00a0", ""))


def test_the_layers_of_a_model(tmp_path):
    dpt.train(dpt.write_job(tmp_path / "net.yaml", NET), tmp_path / "net")
    section = page_of(tmp_path, tmp_path / "net").section("model")
    assert section.one("table").rows() == [
        ["layer", "kind", "reads", "output", "parameters"],
        ["input", "input", "", "1x8x8", ""],
        ["stem", "conv", "input", "6x8x8", "60"],
        ["relu1", "relu", "stem", "6x8x8", ""],
        ["conv1", "conv", "relu1", "6x8x8", "330"],
        ["add1", "add", "conv1, stem", "6x8x8", ""],
        ["global_avgpool1", "global_avgpool", "add1", "6", ""],
        ["dense1", "dense", "global_avgpool1", "4", "28"],
        ["all", "", "", "", "418"]]
    plain = "data: {train: synthetic, synthetic: {samples: 64, shape: [5], classes: 2}}\nmodel: {type: mlp, hidden: [3], outputs: 2}\ntrain: {steps: 1}\n"
    for name in "ab":
        dpt.train(dpt.write_job(tmp_path / "plain.yaml", plain), tmp_path / name)
    page = page_of(tmp_path, tmp_path / "a", tmp_path / "net", tmp_path / "b")
    assert "names neither data.test nor data.valid" in page.section("predictions").words, "but its layers are known"
    assert [s.words for s in page.section("model").all("summary")] == ["a b layers", "net layers"]
    assert page.section("model").all("table")[0].rows()[1:] == [
        ["input", "input", "5", ""], ["dense1", "dense", "3", "18"], ["relu1", "relu", "3", ""], ["dense2", "dense", "2", "8"], ["all", "", "", "26"]]


@pytest.mark.parametrize("soft", [False, True])
def test_each_class(tmp_path, soft):
    """As `eval` has it, by the samples' weights; and where one is rare, how many of it are found."""
    draw = np.random.default_rng(4)
    for name, n in (("train", 300), ("test", 200)):
        labels = (draw.random(n) < 0.1).astype(int)
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f["images"] = (draw.normal(size=(n, 3)) + 1.5 * labels[:, None]).astype("f4")
            f["labels"] = np.array([[0.8, 0.2], [0.3, 0.7]], "f4")[labels] if soft else labels
            f["labels"].attrs["classes"] = ["well", "<ill>"]
            f["weights"] = draw.choice([0, 0.5, 1, 2], size=n).astype("f4")
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/train.h5, test: {tmp_path}/test.h5}}\n"
                        "model: {type: linear, outputs: 2}\nbatch: {global: 30}\noptimizer: {type: adam, lr: 0.05}\ntrain: {epochs: 5}\n")
    dpt.train(job, tmp_path / "a")
    dpt.train(job, tmp_path / "b", "--set", "seed=2")
    page = page_of(tmp_path, tmp_path / "a")
    want = json.loads(dpt.run("eval", job, "--checkpoint", tmp_path / "a", "--json").out)
    section = page.section("predictions")
    head, *rows = section.one("table", klass="each").rows()
    assert head == ["class", "samples", "precision", "recall", "F1", "ROC AUC"]
    for row, c in zip(rows, want["classes"], strict=True):
        assert row[0] == c["name"] and number(row[1]) == c["samples"]
        assert row[2:] == [f"{c[k]:.4f}" for k in ("precision", "recall", "f1", "roc_auc")]
    assert f"{100 * want['accuracy']:.2f} % by their weights" in section.words and "other samples" not in section.words
    assert f"balanced accuracy {want['balanced_accuracy']:.4f}, precision {want['precision']:.4f}" in section.words
    assert "positive: <ill> (rarer, " in section.words and "of 300 training samples)" in section.words
    rare = want["classes"][1]
    assert page.root.one("p", klass="warn").words.startswith(
        f"Classes are imbalanced: {100 * rare['samples'] / want['weight']:.1f} % of the test samples are of class '<ill>', of which "
        f"{100 * rare['recall']:.1f} % are found; always saying class 'well' has accuracy")
    assert page.tiles()["test balanced accuracy"].startswith(f"{100 * want['balanced_accuracy']:.2f}")
    page = page_of(tmp_path, tmp_path / "a", tmp_path / "b")
    assert "Classes are imbalanced in 2 of 2 runs" in page.root.all("p", klass="warn")[0].words
    assert len(page.section("predictions").all("p", klass="warn")) == 2
    for run in range(9):
        (tmp_path / f"link{run}").symlink_to(tmp_path / "a")
    page = page_of(tmp_path, *(tmp_path / f"link{run}" for run in range(9)))
    assert f"{100 * want['accuracy']:.2f} %, balanced {100 * want['balanced_accuracy']:.2f} %" in page.section("predictions").all("summary")[8].words
    assert "Classes are imbalanced: accuracy can hide" in page_of(tmp_path, tmp_path / "a", "--no-predictions").root.one("p", klass="warn").words


def test_each_label(tmp_path):
    """Multi-label figures are those that NumPy counts from the predictions; a sample with all labels right is not called accuracy."""
    draw = np.random.default_rng(4)
    for name, n in (("train", 300), ("test", 160)):
        x = draw.normal(size=(n, 3)).astype("f4")
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f["images"], f["labels"] = x, (x + draw.normal(size=(n, 3)) > [0, 1, -1]).astype("f4")
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/train.h5, test: {tmp_path}/test.h5}}\nmodel: {{type: linear, outputs: 3}}\n"
                        "loss: binary_cross_entropy\nbatch: {global: 30}\noptimizer: {type: adam, lr: 0.05}\ntrain: {epochs: 5}\n")
    dpt.train(job, tmp_path / "a")
    page = page_of(tmp_path, tmp_path / "a")
    assert dpt.run("predict", job, "--checkpoint", tmp_path / "a", "--input", tmp_path / "test.h5", "--out", tmp_path / "p.h5").code == 0
    with h5py.File(tmp_path / "p.h5") as f:
        truth, said = f["targets"][()] >= 0.5, f["probabilities"][()] > 0.5
    section = page.section("predictions")
    head, *table = section.one("table", klass="each").rows()
    assert head == ["label", "samples", "base rate", "accuracy", "precision", "recall", "F1", "ROC AUC"]
    right, chosen, there = (said & truth).sum(0), said.sum(0), truth.sum(0)
    for k, row in enumerate(table):
        want = [truth[:, k].mean(), (said == truth)[:, k].mean(), right[k] / chosen[k], right[k] / there[k], 2 * right[k] / (chosen[k] + there[k])]
        assert row[:2] == [str(k), str(there[k])] and row[2:7] == [f"{v:.4f}" for v in want]
    exact, each = (said == truth).all(1), (said == truth).mean()
    assert len(table) == 3 and f"{exact.sum()} of 160 test samples with all labels right (exact match)" in section.words
    assert f"label accuracy {each:.4f}" in section.words
    tiles = page.tiles()
    assert tiles["test exact match"].startswith(f"{100 * exact.mean():.2f}") and tiles["test label accuracy"].startswith(f"{100 * each:.2f}")
    assert "test accuracy" not in tiles and page.root.one("figure", id="accuracy").one("figcaption").words.startswith("Exact match")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A model of two columns of a table, far from 0 and from each other; its predictions as `predict` has them."""
    folder = tmp_path_factory.mktemp("numbers")
    draw = np.random.default_rng(2)
    x = draw.normal(size=(300, 2))
    y = np.stack([40000 + 9000 * x[:, 0] + 900 * draw.normal(size=300), 3 * x[:, 1]], 1)
    (folder / "t.csv").write_text('a,b,"price, EUR",<days>\n' + "".join(",".join(f"{v:.6g}" for v in row) + "\n" for row in np.hstack([x, y])))
    assert dpt.run("convert", "csv", folder / "t.csv", "--label", '"price, EUR",<days>', "--split", "70/30", "--output", f"{folder}/").code == 0
    job = dpt.write_job(folder / "job.yaml", f"data: {{train: {folder}/train-*.h5, test: {folder}/test-*.h5}}\nmodel: {{type: linear, outputs: 2}}\n"
                        "loss: mse\nbatch: {global: 42}\noptimizer: {type: adam, lr: 30}\ntrain: {epochs: 40}\n")
    dpt.train(job, folder / "run")
    shard = folder / "test-00000-of-00001.h5"
    assert dpt.run("predict", job, "--checkpoint", folder / "run", "--input", shard, "--out", folder / "p.h5").code == 0
    with h5py.File(folder / "p.h5") as f:
        return folder, f["targets"][()].astype(float), f["predictions"][()].astype(float)


def test_how_far_off_numbers_are(numbers, tmp_path):
    folder, truth, predicted = numbers
    section = page_of(tmp_path, folder / "run").section("predictions")
    head, *rows = section.one("table", klass="errors").rows()
    assert head[:4] == ["target", "mean absolute error", "root of the mean squared error", "R²"]
    assert [row[0] for row in rows] == ["price, EUR", "<days>"]
    for k, row in enumerate(rows):
        error = predicted[:, k] - truth[:, k]
        want = [abs(error).mean(), (error**2).mean()**0.5, 1 - (error**2).sum() / ((truth[:, k] - truth[:, k].mean())**2).sum(), truth[:, k].mean(),
                truth[:, k].std()]
        assert [number(c) for c in row[1:]] == pytest.approx(want, rel=1e-3), row
    for chart in ("cloud0", "errors0"):
        assert len(section.one("figure", id=chart).all("circle", klass="cloud")) == len(truth)
    assert "price, EUR" in section.one("figure", id="errors0").one("figcaption").words


def test_rows_go_by_their_names(tmp_path):
    """The worst rows, of classes and of regression, are listed by the table's id."""
    draw = np.random.default_rng(3)
    rows = "".join(f"row <{i}>,{x:.3f},{draw.integers(2)}\n" for i, x in enumerate(draw.normal(size=60)))
    (tmp_path / "t.csv").write_text(f"nr,x,y\n{rows}")
    for loss, words, table in (("cross_entropy", [], "pairs"), ("mse", ["--regression"], "off")):
        folder = tmp_path / loss
        assert dpt.run("convert", "csv", tmp_path / "t.csv", "--id", "nr", *words, "--split", "1/1", "--output", f"{folder}/").code == 0
        job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {folder}/train-*.h5, test: {folder}/test-*.h5}}\nloss: {loss}\n"
                            f"model: {{type: linear, outputs: {1 if words else 2}}}\nbatch: {{global: 30}}\ntrain: {{steps: 3}}\n")
        dpt.train(job, folder / "run")
        with h5py.File(folder / "test-00000-of-00001.h5") as f:
            ids, labels = [i.decode() for i in f["id"][()]], np.squeeze(f["labels"][()])
        listed = page_of(tmp_path, folder / "run").section("predictions").all("table", klass=table)[-1].rows()[1:]
        assert len(listed) > 5
        for row in listed:
            assert number(row[1]) == labels[ids.index(row[0])], row


def test_the_samples_that_are_farthest_off(numbers, tmp_path):
    folder, truth, predicted = numbers
    off = page_of(tmp_path, folder / "run").section("predictions").one("table", klass="off").rows()[1:]
    assert len(off) == 20
    order = np.argsort(-((predicted - truth)**2).mean(1))[:20]
    assert [int(row[0]) for row in off] == order.tolist()
    for row, i in zip(off, order):
        k = int(abs(predicted[i] - truth[i]).argmax())
        assert row[1] == ["price, EUR", "<days>"][k]
        assert number(row[2]) == pytest.approx(truth[i, k], rel=1e-3, abs=1) and number(row[3]) == pytest.approx(predicted[i, k], rel=1e-3, abs=1)
        assert number(row[4]) == pytest.approx(predicted[i, k] - truth[i, k], rel=1e-3, abs=1)
