"""eval and predict with weights that no run has made: safetensors and npz files, and the job's init.from."""
import os
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
import dpt  # noqa: E402
import formats  # noqa: E402

N, D, H, K = 23, 5, 7, 3
DICE = np.random.default_rng(4)
X, Y = DICE.normal(size=(N, D)).astype("f4"), DICE.integers(0, K, N)
WEIGHTS = {"dense1.weight": DICE.normal(size=(H, D)), "dense1.bias": DICE.normal(size=H),
           "dense2.weight": DICE.normal(size=(K, H)), "dense2.bias": DICE.normal(size=K)}
WEIGHTS = {name: array.astype("f4") for name, array in WEIGHTS.items()}
LOGITS = np.maximum(X @ WEIGHTS["dense1.weight"].T + WEIGHTS["dense1.bias"], 0) @ WEIGHTS["dense2.weight"].T + WEIGHTS["dense2.bias"]
LOSS = float(np.mean(np.log(np.exp(LOGITS).sum(1)) - LOGITS[np.arange(N), Y]))
LINE = f"accuracy {np.mean(LOGITS.argmax(1) == Y):.4f}, loss "


@pytest.fixture(name="job")
def fixture_job(tmp_path):
    with h5py.File(tmp_path / "test.h5", "w") as file:
        file["x"], file["y"] = X, Y
    return dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/test.h5, test: {tmp_path}/test.h5}}\n"
                         f"model: {{type: mlp, hidden: [{H}], outputs: {K}}}\n")


def safetensors(path, weights=None):
    formats.write_safetensors(path, weights or WEIGHTS)
    return path


def npz(path, weights=None):
    np.savez(path, **(weights or WEIGHTS))
    return path


def check_line(line, start):
    assert line.startswith(start + LINE), line
    assert abs(float(line[len(start + LINE):].split()[0]) - LOSS) < 1e-5 * LOSS


@pytest.mark.parametrize("write", [safetensors, npz], ids=["safetensors", "npz"])
@pytest.mark.parametrize("ranks", [0, 3])
def test_nothing_is_trained_first(tmp_path, job, write, ranks):
    file = write(tmp_path / f"w.{write.__name__}")
    said = dpt.run("eval", job, "--checkpoint", file, ranks=ranks)
    assert said.code == 0 and f"4 tensors of {file} ({write.__name__})" in said.err, said
    check_line(said.out, "test ")
    said = dpt.run("predict", job, "--checkpoint", file, "--input", tmp_path / "test.h5", "--out", tmp_path / "out.h5", ranks=ranks)
    assert said.code == 0, said
    check_line(said.err.splitlines()[-2], "")
    with h5py.File(tmp_path / "out.h5") as out:
        np.testing.assert_allclose(out["logits"][...], LOGITS, rtol=1e-5, atol=1e-5)
        assert out.attrs["checkpoint"] in (file.name, file.name.encode())
    assert not os.path.exists("runs/job")


def test_the_jobs_own(tmp_path, job):
    """Without --checkpoint those that the job begins with; with one, that, also where the job's are gone."""
    sets = ("--set", f"init.from={npz(tmp_path / 'w.npz')}")
    check_line(dpt.run("eval", job, *sets).out, "test ")
    check_line(dpt.run("predict", job, *sets, "--input", tmp_path / "test.h5", "--out", tmp_path / "out.h5").err.splitlines()[-2], "")
    said = dpt.run("train", job, *sets, "--set", "train.steps=1", "--set", "optimizer={type: sgd, lr: 1e-300}", "--output", tmp_path / "run")
    assert said.code == 0, said
    os.remove(tmp_path / "w.npz")
    check_line(dpt.run("eval", job, *sets, "--checkpoint", tmp_path / "run").out, "test ")
    check_line(dpt.run("eval", job, "--set", f"init.from={tmp_path / 'run'}").out, "test ")


def test_other_names(tmp_path, job):
    file = safetensors(tmp_path / "w.safetensors", {name.replace("dense1", "fc.in").replace("dense2", "fc.out"): array
                                                    for name, array in WEIGHTS.items()})
    for words in (["--map-by-order"], ["--map", "fc.in=dense1", "--map", "fc.out=dense2"]):
        check_line(dpt.run("eval", job, "--checkpoint", file, *words).out, "test ")
        said = dpt.run("predict", job, "--checkpoint", file, *words, "--input", tmp_path / "test.h5", "--out", tmp_path / "out.h5")
        check_line(said.err.splitlines()[-2], "")


def test_what_does_not_fit_is_told(tmp_path, job):
    safetensors(tmp_path / "fewer.safetensors", {name: array for name, array in WEIGHTS.items() if name != "dense2.bias"})
    safetensors(tmp_path / "wide.safetensors", {**WEIGHTS, "dense2.weight": np.zeros((K, H + 1), "f4")})
    (tmp_path / "no.safetensors").write_bytes(b"no")
    for name, words in (("fewer", "dense2.bias"), ("wide", "dense2.weight"), ("no", "no.safetensors"), ("none", "none.safetensors")):
        for command in (["eval"], ["predict", "--input", tmp_path / "test.h5", "--out", tmp_path / "out.h5"]):
            said = dpt.run(command[0], job, "--checkpoint", tmp_path / f"{name}.safetensors", *command[1:], ranks=2)
            assert said.code == 65 and words in said.err and not said.out, said
    safetensors(tmp_path / "more.safetensors", {**WEIGHTS, "batches": np.zeros(3, "f4")})
    assert "(--init-partial takes the 4 of its 4 tensors that do)" in dpt.run("eval", job, "--checkpoint", tmp_path / "more.safetensors").err
    said = dpt.run("eval", job, "--checkpoint", tmp_path / "more.safetensors", "--init-partial")
    check_line(said.out, "test ")
    assert "matches nothing in this model:\n  batches [3]: not in the model\n" in said.err
    said = dpt.run("eval", job)
    assert said.code == 2 and "no checkpoint: give --checkpoint FILE, a run folder (its best or newest checkpoint), or weights in safetensors or npz" in said.err
