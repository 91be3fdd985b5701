"""The real counterparts of export and --init-from: onnx, onnxruntime, safetensors, PyTorch (DPT_HEAVY=1).

They live in a virtual environment, build/peers-venv or the one that DPT_VENV names, which is made where it is not there.
test_export.py and test_init_from.py say the same without them.
"""
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
sys.path.insert(0, "core/interchange/tests")
import dpt  # noqa: E402
import formats  # noqa: E402
import test_export  # noqa: E402
import vision  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("DPT_HEAVY") != "1", reason="installs PyTorch: DPT_HEAVY=1 runs it")

HERE = Path(__file__).resolve().parent
# As in peers_weights.make_model.
TORCH_MODEL = ("[{conv: {channels: 6, kernel: [3, 5], stride: [1, 2], padding: [1, 2]}}, gelu, "
               "{conv: {channels: 8, groups: 2, dilation: 2, bias: false, name: mid}}, tanh, "
               "{maxpool: {size: [3, 1], stride: 2, padding: [1, 0]}}, {avgpool: {size: 2, stride: [1, 3], padding: [0, 1]}}, "
               "flatten, {dense: 12}, sigmoid, {dense: {outputs: 3, name: head}}]")


@pytest.fixture(scope="module")
def peer():
    venv = Path(os.environ.get("DPT_VENV", "build/peers-venv")).resolve()
    if subprocess.run([venv / "bin/python", "-c", "import torch, torchvision, onnx, onnxruntime, safetensors, numpy, h5py"],
                      capture_output=True).returncode != 0 if (venv / "bin/python").exists() else True:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "--quiet", "torch", "torchvision", "onnx", "onnxruntime", "safetensors",
                        "numpy", "h5py"],
                       check=True, timeout=3600)

    def run(*words, program="peers_weights.py"):
        done = subprocess.run([venv / "bin/python", HERE / program, *map(str, words)], capture_output=True, text=True,
                              timeout=600)
        print(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr
    return run


def predict(job, checkpoint, folder):
    """dptrain's logits for all samples of data.h5, which are also the peers' in x.npy and logits.npy."""
    result = dpt.run("predict", job, "--checkpoint", checkpoint, "--input", folder / "data.h5", "--out", folder / "predicted.h5",
                     ranks=2)
    assert result.code == 0, result
    with h5py.File(folder / "predicted.h5") as file:
        logits = file["logits"][()]
    return logits


def train(folder, layers, flat):
    x, _ = test_export.shard(folder / "data.h5", flat)
    mean, std = (test_export.MEAN, test_export.STD) if not flat else (test_export.MEAN[:1], test_export.STD[:1])
    job = dpt.write_job(folder / "job.yaml", test_export.JOB.format(data=folder / "data.h5", layers=layers, mean=mean, std=std))
    dpt.train(job, folder / "run", "--quiet")
    np.save(folder / "x.npy", x.astype("f4"))
    np.save(folder / "logits.npy", predict(job, folder / "run", folder))
    for end in ("onnx", "safetensors", "npz"):
        test_export.export(folder / "run", folder / f"m.{end}", *(["--normalized"] if end == "onnx" else []))
    return job


@pytest.mark.parametrize("name", test_export.MODELS)
def test_onnxruntime_computes_the_same(peer, tmp_path, name):
    train(tmp_path, test_export.layers_of(name), name in ("vectors", "linear"))
    peer("onnx", tmp_path)


def test_pytorch_loads_by_name_and_agrees_both_ways(peer, tmp_path):
    job = train(tmp_path, TORCH_MODEL, False)
    peer("onnx", tmp_path)
    peer("torch", tmp_path)
    want = np.load(tmp_path / "torch.npy")
    still = ("--set", "optimizer={type: sgd, lr: 1.0e-300}", "--set", "train.epochs=null", "--set", "train.steps=1")
    for name, words in [("bf16.safetensors", []), ("ddp.safetensors", []), ("torch.npz", []),
                        ("sequential.safetensors", ["--map-by-order"])]:
        run = tmp_path / f"run-{name}"
        result = dpt.run(job, "--output", run, "--init-from", tmp_path / name, *words, *still)
        assert result.code == 0, result
        found = predict(job, run, tmp_path)
        assert np.abs(found - want).max() <= 1e-5 * max(1, np.abs(want).max()), name
    result = dpt.run(job, "--output", tmp_path / "no", "--init-from", tmp_path / "pickle.pt")
    assert result.code == 65 and "safetensors.torch.save_file" in result.err, result


@pytest.mark.parametrize("name, size", [("resnet18", 64), ("resnet50", 64), ("mobilenet_v2", 64)])
def test_torchvision_computes_the_same_and_takes_the_same_step(peer, tmp_path, name, size):
    """Weights, statistics and logits within 1e-4 of the largest value; there and back by name."""
    peer("step", name, size, tmp_path, program="peers_vision.py")
    job, logits = vision.write_job(tmp_path, name, size), np.load(tmp_path / "logits.npz")
    print(name, "before:", vision.assert_near("before", vision.predict(tmp_path, job, "before.safetensors"), logits["before"]))
    found, (want, _) = vision.step(tmp_path, job), formats.read_safetensors(tmp_path / "after.safetensors")
    assert set(found) == set(want)
    print(name, "step:", max((vision.assert_near(key, found[key], want[key]), key) for key in want if found[key].ndim > 0))
    print(name, "after:", vision.assert_near("after", vision.predict(tmp_path, job, "run"), logits["after"]))
    test_export.export(tmp_path / "run", tmp_path / "m.onnx")
    peer("load", name, size, tmp_path, program="peers_vision.py")
