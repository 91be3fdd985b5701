"""Permutation importance: the mean over shuffles is what NumPy finds over all of them, and categories are shuffled whole."""
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

TOWNS = ["Ashford", "Bywater", "Corfe"]


def table(folder, name, n, seed, price):
    draw = np.random.default_rng(seed)
    rows = ["area,town,\"rooms, all\",colour,price"]
    for _ in range(n):
        area, town, rooms, colour = draw.normal(), draw.integers(0, 3), draw.integers(1, 6), draw.normal()
        rows.append(f"{area:.4f},{TOWNS[town]},{rooms},{colour:.4f},{price(3 * area + [0, 2, -2][town] + 0.3 * rooms + 0.2 * draw.normal())}")
    (folder / name).write_text("\n".join(rows) + "\n")


def trained(folder, price, options, model, loss):
    for name, n, seed in (("train", 300, 0), ("test", 120, 1)):
        table(folder, f"{name}.csv", n, seed, price)
        like = ["--like", folder / "train-00000-of-00001.h5"] if name == "test" else ["--label", "price", "--categories", "town", *options]
        done = dpt.run("convert", "csv", folder / f"{name}.csv", "--output", folder / name, *like)
        assert done.code == 0, done
    job = dpt.write_job(folder / "job.yaml", f"""
name: importance
data: {{train: {folder}/train-*.h5, test: {folder}/test-*.h5}}
model: {model}
loss: {loss}
batch: {{global: 30, micro: 10}}
optimizer: {{type: adam, lr: 0.02}}
train: {{epochs: 20}}
output: {folder}/run
""")
    assert dpt.run(job, "--quiet").code == 0
    return job


def test_means_are_those_over_all_shuffles(tmp_path):
    """Of a linear model: each sample gets every sample's value of a column as often."""
    job = trained(tmp_path, "{:.4f}".format, ["--regression"], "{type: linear, outputs: 1}", "mse")
    out = tmp_path / "m.safetensors"
    assert dpt.run("export", tmp_path / "run", out).code == 0
    tensors = formats.read_safetensors(out)[0]
    weight = next(t for t in tensors.values() if t.ndim == 2)[0].astype(float)
    bias = next(t for t in tensors.values() if t.ndim == 1).astype(float)
    with h5py.File(tmp_path / "test-00000-of-00001.h5") as f:
        x, y = f["images"][()].astype(float), f["labels"][()].reshape(-1).astype(float)
    off, spread = y - x @ weight - bias, ((y - y.mean()) ** 2).mean()
    expected = {}
    for name, columns in {"area": [0], "town": [1, 2, 3], "rooms, all": [4], "colour": [5]}.items():
        share = x[:, columns] @ weight[columns]
        all_pairs = off[:, None] + share[:, None] - share[None, :]
        expected[name] = ((all_pairs ** 2).mean() - (off ** 2).mean()) / spread
    said = json.loads(dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--importance", "--repeats", "60", "--json").out)
    found = said["importance"]
    assert found["score"] == "R2" and found["repeats"] == 60 and said["r2"] > 0.95
    assert [c["column"] for c in found["columns"]] == sorted(expected, key=expected.get, reverse=True) == ["area", "town", "rooms, all", "colour"]
    for c in found["columns"]:
        assert c["mean"] == pytest.approx(expected[c["column"]], abs=5 * c["std"] / np.sqrt(60) + 1e-6), c
    # A line a column for a person, the same whoever computes, behind the same results as ever.
    plain = dpt.run("eval", job, "--checkpoint", tmp_path / "run").out
    one, three = (dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--importance", ranks=n).out for n in (1, 3))
    assert one == three and one.startswith(plain) and [line.split("  ")[1] for line in one.splitlines()[3:]] == [c["column"] for c in found["columns"]]
    # And in the report, by the five shuffles that eval takes by default.
    page = tmp_path / "r.html"
    assert dpt.run("report", tmp_path / "run", "-o", page, "--quiet").code == 0
    cells = re.search(r'pairs importance.*?<tbody>(.*?)</tbody>', page.read_text(), re.S)[1]
    assert [line.split() for line in one.splitlines()[3:]] == [re.sub("<[^>]*>", " ", row).split() for row in cells.strip().split("\n")]


def test_accuracy_is_what_classes_lose(tmp_path):
    job = trained(tmp_path, lambda v: "dear" if v > 1 else "cheap", [], "{type: mlp, hidden: [16], outputs: 2}", "cross_entropy")
    said = json.loads(dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--importance", "--json").out)
    found = {c["column"]: c["mean"] for c in said["importance"]["columns"]}
    assert said["importance"]["score"] == "accuracy" and said["importance"]["repeats"] == 5
    assert found["area"] > found["town"] > 0.05 > abs(found["colour"]), said
    # Accuracies are whole numbers of samples.
    assert all(abs(m * 5 * 120 - round(m * 5 * 120)) < 1e-6 for m in found.values())


def test_what_is_no_table_is_refused(tmp_path):
    job = dpt.write_job(tmp_path / "job.yaml", f"""
name: pictures
data: {{train: synthetic, test: synthetic, synthetic: {{samples: 40, shape: [1, 4, 4], classes: 2}}}}
model: {{type: linear}}
batch: {{global: 10, micro: 10}}
train: {{epochs: 1}}
output: {tmp_path}/run
""")
    assert dpt.run(job, "--quiet").code == 0
    result = dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--importance")
    assert result.code == 2 and "importance is of tables" in result.err, result
    result = dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--repeats", "3")
    assert result.code == 2 and "--repeats belongs to --importance" in result.err, result
