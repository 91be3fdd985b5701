"""Scores rank by logits, where probabilities round to 0 and 1, and what is not a number has none: as scikit-learn on float64 has it."""
import csv
import io
import json
import os
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = [os.path.abspath("scripts/lib")]
import dpt  # noqa: E402

KINDS = {"two": 2, "three": 3, "label": 1, "labels": 3}


class Given:
    """A model whose outputs are its inputs, so that a test chooses the logits."""

    def __init__(self, folder, kind, logits, truth):
        n = KINDS[kind]
        self.folder, labels = folder, kind.startswith("label")
        with h5py.File(folder / "x.h5", "w") as f:
            f["images"] = logits
            f["labels"] = truth.astype("f4") if labels else truth
        np.savez(folder / "w.npz", **{"dense1.weight": np.eye(n, dtype="f4"), "dense1.bias": np.zeros(n, "f4")})
        self.job = dpt.write_job(folder / "job.yaml", f"""
data: {{train: {folder}/x.h5, test: {folder}/x.h5}}
model: {{type: linear, outputs: {n}}}
loss: {"binary_cross_entropy" if labels else "cross_entropy"}
batch: {{global: 30, micro: 7}}
output: {folder}/run
""")

    def run(self, command, *words, code=0, **options):
        result = dpt.run(command, self.job, "--checkpoint", self.folder / "w.npz", *words, env=dpt.ENDS_AT_ONCE, **options)
        assert result.code == code, result
        return result


def area(positive, odds):
    p, q = odds[positive][:, None], odds[~positive][None, :]
    return ((p > q) + 0.5 * (p == q)).mean()


def odds_of(kind, logits):
    """log(p / (1 - p)) of each class, or label."""
    if kind.startswith("label"):
        return logits
    other = np.stack([np.delete(logits, k, axis=1) for k in range(logits.shape[1])], axis=1)
    top = other.max(axis=2)
    return logits - top - np.log(np.exp(other - top[:, :, None]).sum(axis=2))


def draw(kind):
    """Logits that are all large, by which the classes can be told nearly everywhere."""
    rng, n = np.random.default_rng(4), KINDS[kind]
    truth = rng.integers(0, 2, (240, n)) if kind == "labels" else rng.integers(0, max(n, 2), 240)
    one = truth[:, None] if truth.ndim == 1 else truth
    own = np.eye(n)[truth] if kind in ("two", "three") else one
    return (rng.normal(size=(240, n)) + own * 3 + (20 if kind.startswith("label") else [20, 0, 0][:n])).astype("f4"), truth


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_go_by_logits(tmp_path, kind):
    logits, truth = draw(kind)
    given = Given(tmp_path, kind, logits, truth.reshape(240, -1) if kind == "label" else truth)
    odds, k = odds_of(kind, logits.astype("f8")), 0
    is_of = truth[:, k] == 1 if kind == "labels" else truth == (1 if kind == "label" else k)
    assert len(np.unique((1 / (1 + np.exp(-odds[:, k]))).astype("f4"))) < 60, "this is about those that are the same in fp32"
    name = "1" if kind == "label" else str(k)
    text = given.run("eval", "--json", "--positive", name).out
    assert given.run("eval", "--json", "--positive", name, ranks=2).out == text
    assert json.loads(text)["roc_auc"] == pytest.approx(area(is_of, odds[:, k]), abs=1e-12) and area(is_of, odds[:, k]) > 0.9
    # The largest threshold, of those that a double can tell from each other.
    for recall in (0.3, 0.9):
        wished = json.loads(given.run("eval", "--json", "--positive", name, "--recall", str(recall)).out)["wished"]
        p = 1 / (1 + np.exp(-odds[:, k]))
        reached = [t for t in np.unique(p) if (is_of & (p >= t)).sum() >= recall * is_of.sum()]
        said = p >= max(reached)
        assert (wished["recall"], wished["precision"]) == pytest.approx((said[is_of].mean(), is_of[said].mean()), abs=1e-12)
        assert p[~said].max(initial=0) < wished["threshold"] < p[said].min()
        option = ["--threshold", f"{name}={wished['threshold']!r}"]
        decided = json.loads(given.run("eval", "--json", "--positive", name, *option).out)
        assert (decided["recall"], decided["precision"]) == (wished["recall"], wished["precision"])
        table = list(csv.reader(io.StringIO(given.run("predict", "--input", tmp_path / "x.h5", *option).out)))
        column = table[0].index("class_1" if kind == "labels" else "class")
        assert [row[column] for row in table[1:]] == [(name if kind in ("two", "three") else "1") if s else row[column]
                                                      for s, row in zip(said, table[1:])]
        assert sum(row[column] == ("1" if kind.startswith("label") else name) for row in table[1:]) == said.sum()


def test_the_largest_threshold_is_told(tmp_path):
    """And no other one of those that lie between two samples' probabilities."""
    logit = np.float32(1.5)  # 0.817574...
    logits = np.array([[0, -4], [0, logit], [0, 3]], "f4")
    given = Given(tmp_path, "two", logits, np.array([0, 1, 1]))
    assert "recall 1: --threshold 1=0.8175 gives recall 1.0000, precision 1.0000" in given.run("eval", "--recall", "1", "--positive", "1").out
    shown = list(csv.reader(io.StringIO(given.run("predict", "--input", tmp_path / "x.h5").out)))[2][3]
    for threshold, said in ((shown, "1"), (f"{float(shown) + 1e-7:.9g}", "0")):  # a probability as it is shown is reached
        rows = given.run("predict", "--input", tmp_path / "x.h5", "--threshold", f"1={threshold}").out.splitlines()
        assert rows[2].split(",")[2] == said


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_has_no_scores(tmp_path, kind):
    """The samples are named, on any number of ranks; the others are predicted."""
    logits, truth = draw(kind)
    logits[[61, 230]] = 3e38
    given = Given(tmp_path, kind, logits, truth.reshape(240, -1) if kind == "label" else truth)
    n = KINDS[kind]
    np.savez(tmp_path / "w.npz", **{"dense1.weight": np.eye(n, dtype="f4") * 2, "dense1.bias": np.zeros(n, "f4")})
    for options in ({}, {"ranks": 2}):
        result = given.run("eval", "--json", "--classes", code=1, **options)
        assert result.out == "" and result.err.count("data.test: not a number: outputs for 2 of 240 samples; the first is x.h5, sample 61\n") == 1
        assert f"{tmp_path}/x.h5" not in result.err
    words = ["--input", tmp_path / "x.h5", "--threshold", "1=0.7"]
    table = given.run("predict", *words, code=1)
    assert "not a number: outputs for 2 of 240 samples, written as nan: x.h5, sample 61; x.h5, sample 230\n" in table.err.replace(f"{tmp_path}/", "")
    assert given.run("predict", *words, code=1, ranks=2).out == table.out
    rows = [row.split(",") for row in table.out.splitlines()[1:]]
    assert len(rows) == 240 and "-nan" not in table.out
    for i, row in enumerate(rows):
        if kind in ("two", "three"):
            assert (row[2:] == ["", "nan"]) == (i in (61, 230)) and (row[2] == "") == (i in (61, 230))
        else:
            assert ("" in row) == (i in (61, 230)), row


def test_a_model_that_is_not_a_number_is_not_the_best(tmp_path):
    """Its run ends with 1 before it is saved, or goes on where the job says so; `report` says why it has no predictions."""
    job = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: synthetic, valid: 0.2, synthetic: {{samples: 200, shape: [4], classes: 2}}}}
model: {{type: mlp, hidden: [8, 8, 8, 8, 8, 8, 8, 8]}}
batch: {{global: 32, micro: 8}}
optimizer: {{type: sgd, lr: 1.0e+6}}
train: {{steps: 2}}
eval: {{every: 1 steps}}
checkpoint: {{every: 1 steps, monitor: valid.roc_auc}}
output: {tmp_path}/run
""")
    folder = tmp_path / "run" / "checkpoints"
    for ranks in (0, 2):
        result = dpt.run(job, "--overwrite", ranks=ranks, env=dpt.ENDS_AT_ONCE)
        assert result.code == 1 and result.err.count("step 2: data.valid: not a number: outputs for 40 of 40 samples; the first is synthetic sample ") >= 1
        assert "a lower learning rate or train.clip_norm may help" in result.err, result
        assert sorted(os.listdir(folder)) == ["best", "latest", "step-00000001.h5"]
    for monitor in ("valid.roc_auc", "valid.f1", "valid.accuracy", "auto"):
        words = ["--set", f"checkpoint.monitor={monitor}"] if monitor != "auto" else ["--set", "checkpoint.monitor=null"]
        result = dpt.run(job, "--overwrite", "--set", "train.on_nan=skip", *words)
        assert result.code == 0 and "warning: step 2: data.valid: not a number: outputs for 40 of 40 samples" in result.err, result
        assert os.readlink(folder / "best") == "step-00000001.h5" and os.readlink(folder / "latest") == "step-00000002.h5"
        told = dpt.events(tmp_path / "run", "eval")[-1]
        assert told["loss"] is None and "f1" not in told and "roc_auc" not in told
    page = tmp_path / "r.html"
    os.unlink(folder / "best")
    os.symlink("step-00000002.h5", folder / "best")
    assert dpt.run("report", tmp_path / "run", "-o", page).code == 0
    assert "the checkpoint&#39;s outputs are not numbers" in page.read_text() or "the checkpoint's outputs are not numbers" in page.read_text()
