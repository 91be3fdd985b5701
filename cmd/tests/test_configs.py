"""Every job file in configs/ is loaded and run, shortened, on 1 to 8 ranks."""
import glob
import json
import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SHORT = ["--set", "train={steps: 3}", "--set", "log.every=1 steps"]


LEARNED = r"^(?:w\[0\]\[\d\]|b\[0\]) +(\S+) +(\S+)$"


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


PICTURES = ["configs/resnet18-pictures.yaml", "configs/resnet50-imagenet.yaml"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("path", sorted(set(glob.glob("configs/*.yaml")) - set(PICTURES)))
def test_runs(path, ranks, mnist, tmp_path):
    """And nobody is left idle."""
    text = open(path, encoding="utf-8").read()
    words = list(SHORT)
    for part in ("train", "test"):
        if re.search(rf"^ *{part}: *data/(fashion-)?mnist", text, re.M):
            words += ["--set", f"data.{part}={mnist}/{part}-*.h5"]
    if "data.train" not in "".join(words):
        words += ["--set", "data.synthetic.samples=1024"]
    if "fashion" in path:  # the model of another file
        words += ["--set", "batch.global=64"]
    if "resnet20" in path and ranks > 1:  # images of the real size take seconds
        words += ["--set", "data.synthetic.shape=[3, 16, 16]"]
    result = dpt.train(path, tmp_path / "out", *words, ranks=ranks)
    assert "results in" in result.out and "idle" not in result.err, result
    assert len(dpt.events(tmp_path / "out", "train")) == 3
    assert dpt.events(tmp_path / "out", "end")[0]["reason"] == "done"


@pytest.mark.parametrize("path", PICTURES)
def test_pictures_run(path, tmp_path):
    """From files, smaller than theirs; and from weights of another file, of which one fits."""
    pixels = np.random.default_rng(1).integers(0, 256, (32, 40, 48, 3), np.uint8)
    for i, picture in enumerate(pixels):
        (tmp_path / f"in/{i % 2}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(tmp_path / f"in/{i % 2}/{i}.png")
    for part in ("train", "test"):
        done = dpt.run("convert", "pictures", tmp_path / "in", "--keep-files", "--size", "36x36", "--fit", "crop", "--output", tmp_path / part)
        assert done.code == 0, done
    weight = np.full((64, 3, 7, 7), 0.01, np.float32)
    header = json.dumps({"conv1.weight": {"dtype": "F32", "shape": weight.shape, "data_offsets": [0, weight.nbytes]}}).encode()
    (tmp_path / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weight.tobytes())
    words = ["--set", f"data.train={tmp_path}/train-*.h5", "--set", f"data.test={tmp_path}/test-*.h5", "--set", "data.crop=32",
             "--set", "batch={global: 8, micro: 4}", "--set", "device={kind: cpu}", "--set", "train.epochs=1"]
    if "\ninit:" in open(path, encoding="utf-8").read():
        words += ["--set", f"init.from={tmp_path}/weights.safetensors"]
    result = dpt.train(path, tmp_path / "out", *words, ranks=2)
    assert "test accuracy" in result.out and dpt.events(tmp_path / "out", "end")[0]["reason"] == "done", result


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


def test_linear_regression_on_4_and_8_ranks(tmp_path):
    found = []
    for ranks in (4, 8):
        result = dpt.train("configs/linreg.yaml", tmp_path / str(ranks), ranks=ranks)
        found.append(np.array(re.findall(LEARNED, result.out, re.M), dtype=float))
        assert found[-1].shape == (6, 2) and np.max(np.abs(found[-1][:, 0] - found[-1][:, 1])) < 3e-3, result
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
    # As configs/README.md shows it.
    shown = re.findall(LEARNED.replace("^", "^ +"), open("configs/README.md", encoding="utf-8").read(), re.M)
    np.testing.assert_allclose(np.array(shown, dtype=float), found[0], atol=2e-4)


@pytest.mark.parametrize("path, batch, micro", [("configs/cnn-cifar.yaml", 128, 16), ("configs/mnist-mlp.yaml", 1024, 128)])
def test_eight_ranks_are_as_one(path, batch, micro, mnist, tmp_path):
    """A micro-batch for each of 8 ranks: the same means, steps and predictions as of one rank."""
    words = ["--set", "train={steps: 3}", "--set", f"batch={{global: {batch}, micro: {micro}}}", "--set", "log.every=1 step", "--set",
             "eval.every=never", "--quiet"]
    if "mnist" in path:
        words += ["--set", f"data.train={mnist}/whole-*.h5", "--set", "data.test=null"]
    else:
        words += ["--set", "data.synthetic={samples: 1000, shape: [3, 32, 32]}", "--set", "data.test=null"]
    said = []
    for ranks in (1, 8):
        dpt.train(path, tmp_path / str(ranks), *words, ranks=ranks)
        said.append([(e["samples"], e["loss"], e["accuracy"]) for e in dpt.events(tmp_path / str(ranks), "train")])
        event = dpt.events(tmp_path / str(ranks), "run")[0]
        assert (event["global"], event["micro"], event["ranks"]) == (batch, micro, ranks)
    np.testing.assert_allclose(said[1], said[0], rtol=2e-3)
    assert [line[0] for line in said[0]] == [batch, 2 * batch, 3 * batch]


def test_sixteen_samples_on_eight_ranks(mnist, tmp_path):
    dpt.train("configs/mnist-mlp.yaml", tmp_path / "run", "--set", "train={steps: 3}", "--set", f"data.train={mnist}/whole-*.h5", "--set",
              "data.test=null", "--quiet")
    with h5py.File(f"{mnist}/whole-00000-of-00001.h5") as whole, h5py.File(tmp_path / "sixteen.h5", "w") as part:
        for name in ("images", "labels"):
            part[name] = whole[name][:16]
    for ranks in (1, 8):
        result = dpt.run("predict", tmp_path / "run" / "job.yaml", "--checkpoint", tmp_path / "run", "--input", tmp_path / "sixteen.h5", "--out",
                         tmp_path / f"{ranks}.h5", ranks=ranks)
        assert result.code == 0 and "on 16 samples" in result.err, result
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "8.h5").read_bytes()
    with h5py.File(tmp_path / "8.h5") as file:
        assert file["probabilities"].shape == (16, 10)
