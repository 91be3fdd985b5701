"""Every job file in configs/ is loaded and run, shortened, on two ranks."""
import glob
import re
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SHORT = ["--set", "train={steps: 6}", "--set", "log.every=2 steps"]


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A little of the real data, where the job files that name it look for it."""
    folder = tmp_path_factory.mktemp("mnist")
    for name, files in (("train", "train"), ("test", "t10k")):
        source = [f"data/mnist/{files}-images-idx3-ubyte.gz", f"data/mnist/{files}-labels-idx1-ubyte.gz"]
        result = dpt.run("convert", "idx", *source, "--output", folder / name)
        assert result.code == 0, result
    return folder


@pytest.mark.parametrize("path", sorted(glob.glob("configs/*.yaml")))
def test_runs(path, mnist, tmp_path):
    text = open(path, encoding="utf-8").read()
    words = list(SHORT)
    for part in ("train", "test"):
        if re.search(rf"^ *{part}: *data/mnist", text, re.M):
            words += ["--set", f"data.{part}={mnist}/{part}-*.h5"]
    result = dpt.train(path, tmp_path / "out", *words, ranks=2)
    assert "results in" in result.out
    assert len(dpt.events(tmp_path / "out", "train")) == 3
    assert dpt.events(tmp_path / "out", "end")[0]["reason"] == "done"


def test_linreg_learns_the_true_weights(tmp_path):
    result = dpt.train("configs/linreg.yaml", tmp_path / "out", ranks=2)
    rows = [line.split() for line in result.out.splitlines() if re.match(r"[wb]\[", line)]
    assert len(rows) == 6, result
    learned, true = (np.array([float(r[i]) for r in rows]) for i in (1, 2))
    assert np.max(np.abs(learned - true)) < 1e-2
    assert len(set(true)) == 6 and np.max(np.abs(true)) > 0.1, "the truth is not trivial"
    with h5py.File(tmp_path / "out" / "checkpoints" / "latest") as file:
        np.testing.assert_allclose(file["params/dense1/weight"][0], learned[:5], atol=6e-6)


def test_smoke_learns(tmp_path):
    dpt.train("configs/smoke.yaml", tmp_path / "out", ranks=2)
    losses = [e["loss"] for e in dpt.events(tmp_path / "out", "train")]
    assert losses[-1] < 0.5 * losses[0], losses
