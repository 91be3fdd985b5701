"""Every job file in configs/ is loaded and run, shortened, on 1 to 8 ranks."""
import glob
import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SHORT = ["--set", "train={steps: 6}", "--set", "log.every=2 steps"]


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A little of the real data, for both parts of the job files that name it."""
    folder = tmp_path_factory.mktemp("mnist")
    result = dpt.run("convert", "idx", "data/mnist/t10k-images-idx3-ubyte.gz", "data/mnist/t10k-labels-idx1-ubyte.gz",
                     "--output", folder / "whole")
    assert result.code == 0, result
    with h5py.File(folder / "whole-00000-of-00001.h5") as whole:
        for part, first in (("train", 0), ("test", 2000)):
            with h5py.File(folder / f"{part}-0.h5", "w") as file:
                for name in ("images", "labels"):
                    file[name] = whole[name][first:first + 1000]
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("path", sorted(glob.glob("configs/*.yaml")))
def test_runs(path, ranks, mnist, tmp_path):
    """And nobody is left idle."""
    text = open(path, encoding="utf-8").read()
    words = list(SHORT)
    for part in ("train", "test"):
        if re.search(rf"^ *{part}: *data/mnist", text, re.M):
            words += ["--set", f"data.{part}={mnist}/{part}-*.h5"]
    if "data.train" not in "".join(words):
        words += ["--set", "data.synthetic.samples=1024"]
    result = dpt.train(path, tmp_path / "out", *words, ranks=ranks)
    assert "results in" in result.out and "idle" not in result.err, result
    assert len(dpt.events(tmp_path / "out", "train")) == 3
    assert dpt.events(tmp_path / "out", "end")[0]["reason"] == "done"


def test_mpirun_as_root_with_few_cores(tmp_path):
    """The line that the pages put beside mpirun is all that it needs."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OMPI_")}
    command = f". scripts/lib/mpi-env.sh; mpirun -np 8 {dpt.BINARY} configs/smoke.yaml --set train.epochs=1 --output {tmp_path}/out"
    done = subprocess.run(["sh", "-c", command], env=plain, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "8 ranks on " in done.stderr and "test accuracy" in done.stdout, done


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
