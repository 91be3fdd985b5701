"""Targets that are scaled in training: everybody is told numbers in the units of the files."""
import os
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, os.path.abspath("scripts/lib"))
sys.path.insert(0, os.path.abspath("core/train/tests"))
import dpt  # noqa: E402
import formats  # noqa: E402

# Two outputs of very different size and place.
SIZES, PLACES = [60000, 0.002], [250000, -1]


def samples(n, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, 4)).astype(np.float32)
    values = np.stack([x @ [1, -0.5, 0.3, 0] + 0.3 * x[:, 0] * x[:, 1], np.tanh(x @ [0.2, 0.4, -1, 0.6])], axis=1)
    return x, (values * SIZES + PLACES + draw.normal(size=(n, 2)) * SIZES * 0.02).astype(np.float32)


def scores(truth, predicted):
    """What scikit-learn's mean_absolute_error, root_mean_squared_error and r2_score compute."""
    off = predicted.astype(np.float64) - truth
    spread = ((truth - truth.mean(axis=0, dtype=np.float64)) ** 2).sum(axis=0)
    return {"mae": np.abs(off).mean(), "rmse": np.sqrt((off ** 2).mean(axis=0)).mean(), "r2": (1 - (off ** 2).sum(axis=0) / spread).mean()}


class Trained:
    def __init__(self, folder):
        self.folder = folder
        self.run = folder / "run"
        self.train, self.test = samples(400, 0), samples(130, 1)
        for name in ("train", "test"):
            with h5py.File(folder / f"{name}.h5", "w") as f:
                f["images"], f["labels"] = getattr(self, name)
        self.job = self.write("job.yaml", "auto")
        assert dpt.run(self.job, "--quiet", "--set", f"output={self.run}").code == 0

    def write(self, name, normalize, loss="mse", outputs=2):
        return dpt.write_job(self.folder / name, f"""
name: targets
data: {{train: {self.folder}/train.h5, test: {self.folder}/test.h5, targets: {{normalize: {normalize}}}}}
model: {{type: mlp, hidden: [32], outputs: {outputs}}}
loss: {loss}
batch: {{global: 20, micro: 5}}
optimizer: {{type: adamw, lr: 0.01}}
train: {{epochs: 30}}
checkpoint: {{every: 10 epochs}}
comm: {{reduction: reproducible}}
output: {self.folder}/other
""")

    def predict(self, *words, ranks=1):
        out = self.folder / "out.h5"
        result = dpt.run("predict", self.job, "--checkpoint", self.run, "--input", self.folder / "test.h5", "--out", out, *words, ranks=ranks)
        self.said = result.err
        assert result.code == 0, result
        with h5py.File(out) as f:
            return f["predictions"][()], f["targets"][()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("targets"))


def test_the_scale_is_the_training_targets_and_is_kept(trained):
    with h5py.File(trained.run / "checkpoints" / "latest") as f:
        np.testing.assert_allclose(f["targets/mean"], trained.train[1].mean(axis=0, dtype=np.float64), rtol=1e-6)
        np.testing.assert_allclose(f["targets/std"], trained.train[1].std(axis=0, dtype=np.float64), rtol=1e-6)
        assert f.attrs["format_version"] == 3


def test_a_run_tells_scores_in_the_units_of_the_targets(trained):
    """Those of the predictions, which are in these units, too."""
    predicted, targets = trained.predict()
    assert np.array_equal(targets, trained.test[1])
    expected = scores(trained.test[1], predicted)
    assert expected["r2"] > 0.95 and 1000 < expected["rmse"] < 12000
    told = [e for e in dpt.events(trained.run, "eval") if e["split"] == "test"][-1]
    for name, value in expected.items():
        assert told[name] == pytest.approx(value, rel=1e-6), name
    line = f"MAE {expected['mae']:.5g}, RMSE {expected['rmse']:.5g}, R2 {expected['r2']:.4f} on 130 samples"
    one, three = (dpt.run("eval", trained.job, "--checkpoint", trained.run, ranks=n) for n in (0, 3))
    assert line in one.out and one.out == three.out, (one, three)
    assert "of scaled targets" in one.out, one
    for n in (1, 3):
        trained.predict(ranks=n)
        assert "of scaled targets" in trained.said and line in trained.said, trained.said


def test_onnx_gives_the_units_of_the_targets(trained):
    out = trained.folder / "m.onnx"
    assert dpt.run("export", trained.run, out).code == 0
    predicted, _ = trained.predict()
    np.testing.assert_allclose(formats.Onnx(out).run(trained.test[0]), predicted, rtol=1e-5)


def test_a_run_goes_on_with_its_scale_at_any_rank_count(trained):
    early = sorted((trained.run / "checkpoints").glob("step-*.h5"))[0]
    folder = trained.folder / "resumed"
    result = dpt.run(trained.job, "--quiet", "--resume", early, "--output", folder, ranks=3)
    assert result.code == 0, result
    latest = [run / "checkpoints" / "latest" for run in (trained.run, folder)]
    assert latest[0].read_bytes() == latest[1].read_bytes()


@pytest.mark.parametrize("normalize, loss, outputs, said", [
    ("{mean: [1, 2, 3], std: 1}", "mse", 2, "data.targets.normalize.mean has 3 numbers, the model has 2 outputs"),
    ("{mean: 1, std: 0}", "mse", 2, "std"),
    ("some", "mse", 2, "none, auto"),
    ("auto", "cross_entropy", 2, "is for numbers to predict, with `loss: mse`, l1 or huber"),
])
def test_wrong_scales_are_refused(trained, normalize, loss, outputs, said):
    result = dpt.run(trained.write("wrong.yaml", normalize, loss, outputs))
    assert result.code == 78 and said in result.err, result


def test_given_numbers_are_taken(trained):
    job = trained.write("given.yaml", f"{{mean: {PLACES}, std: {SIZES}}}")
    folder = trained.folder / "given"
    assert dpt.run(job, "--quiet", "--set", f"output={folder}").code == 0
    with h5py.File(folder / "checkpoints" / "latest") as f:
        assert np.array_equal(f["targets/std"], np.float32(SIZES)) and np.array_equal(f["targets/mean"], np.float32(PLACES))


def test_weights_of_elsewhere_need_the_numbers(trained):
    out = trained.folder / "m.safetensors"
    assert dpt.run("export", trained.run, out).code == 0
    result = dpt.run("eval", trained.job, "--checkpoint", out)
    assert result.code == 78 and "do not say what theirs were" in result.err, result
