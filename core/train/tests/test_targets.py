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
    ("auto", "cross_entropy", 2, "is for regression targets, with loss " + " or ".join(", ".join(dpt.losses("NUMBERS")).rsplit(", ", 1))),
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


AMOUNTS = (100, 0.001)  # two outputs, over orders of magnitude


class Skewed(Trained):
    """Amounts that are log-normal, of which log1p takes some that are 0."""

    def __init__(self, folder, transform):
        self.folder, self.run, self.transform = folder, folder / "run", transform
        self.sets = {}
        for name, n, seed in (("train", 400, 0), ("test", 130, 1)):
            x, values = samples(n, seed)
            amounts = np.exp((values - PLACES) / SIZES) * AMOUNTS
            if transform == "log1p":
                amounts[::10] = 0
            self.sets[name] = x, amounts.astype(np.float32)
            with h5py.File(folder / f"{name}.h5", "w") as f:
                f["images"], f["labels"] = self.sets[name]
        self.train, self.test = self.sets["train"], self.sets["test"]
        self.job = self.write("job.yaml", f"auto, transform: {transform}")
        done = dpt.run(self.job, "--quiet", "--set", f"output={self.run}")
        assert done.code == 0, done


@pytest.mark.parametrize("transform, forward, inverse", [("log1p", np.log1p, np.expm1), ("log", np.log, np.exp)])
def test_logarithms_are_learned_and_undone(tmp_path, transform, forward, inverse):
    """What scikit-learn's TransformedTargetRegressor does, with NumPy's functions: scale, predictions, scores, exports."""
    trained = Skewed(tmp_path, transform)
    logs = forward(trained.train[1].astype(np.float64))
    with h5py.File(trained.run / "checkpoints" / "latest") as f:
        np.testing.assert_allclose(f["targets/mean"], logs.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(f["targets/std"], logs.std(axis=0), rtol=1e-5)
        assert f.attrs["format_version"] == 4 and f.attrs["target_transform"] in (transform, transform.encode())
        mean, std = f["targets/mean"][()], f["targets/std"][()]
    predicted, targets = trained.predict()
    assert np.array_equal(targets, trained.test[1])
    told = [e for e in dpt.events(trained.run, "eval") if e["split"] == "test"][-1]
    for name, value in scores(trained.test[1], predicted).items():
        assert told[name] == pytest.approx(value, rel=1e-5), name
    # The loss is that of what is trained.
    off = (forward(predicted.astype(np.float64)) - forward(trained.test[1].astype(np.float64))) / std
    assert told["loss"] == pytest.approx((off ** 2).mean(), rel=1e-3)
    three, _ = trained.predict(ranks=3)
    assert np.array_equal(predicted, three)
    out = tmp_path / "m.onnx"
    assert dpt.run("export", trained.run, out).code == 0
    np.testing.assert_allclose(formats.Onnx(out).run(trained.test[0]), predicted, rtol=2e-5, atol=1e-6)
    out = tmp_path / "m.safetensors"
    said = dpt.run("export", trained.run, out)
    assert f"({ {'log1p': 'expm1', 'log': 'exp'}[transform]} of y * std + mean)" in said.out, said
    metadata = formats.read_safetensors(out)[1]
    assert metadata["target_inverse"] == inverse.__name__
    assert "of scaled targets" in dpt.run("eval", trained.run).out


def test_counts_are_predicted_as_rates(tmp_path):
    """Loss poisson: what PyTorch's PoissonNLLLoss says of the logarithms, and rates everywhere else."""
    x, test = samples(400, 0)[0], samples(130, 1)[0]
    draw = np.random.default_rng(0)
    rates = lambda x: np.stack([np.exp(x @ [0.7, -0.5, 0.3, 0] + 1), 20 + 0 * x[:, 0]], 1)  # noqa: E731
    for name, images in (("train", x), ("test", test)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f["images"], f["labels"] = images, draw.poisson(rates(images)).astype("f4")
    job = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: {tmp_path}/train.h5, test: {tmp_path}/test.h5}}
model: {{type: linear, outputs: 2}}
loss: poisson
batch: {{global: 20, micro: 5}}
optimizer: {{type: adam, lr: 0.03}}
train: {{epochs: 20}}
output: {tmp_path}/run
""")
    assert dpt.run(job, "--quiet").code == 0
    out = tmp_path / "out.h5"
    assert dpt.run("predict", job, "--checkpoint", tmp_path / "run", "--input", tmp_path / "test.h5", "--out", out, ranks=2).code == 0
    with h5py.File(out) as f:
        predicted, truth = f["predictions"][()].astype(float), f["targets"][()]
    assert np.corrcoef(np.log(predicted[:, 0]), np.log(rates(test)[:, 0]))[0, 1] > 0.98 and abs(predicted[:, 1].mean() - 20) < 2
    told = [e for e in dpt.events(tmp_path / "run", "eval") if e["split"] == "test"][-1]
    assert told["loss"] == pytest.approx((predicted - truth * np.log(predicted)).mean(), rel=1e-5)
    assert told["mae"] == pytest.approx(np.abs(predicted - truth).mean(), rel=1e-5)
    for ending in ("onnx", "safetensors"):
        said = dpt.run("export", tmp_path / "run", tmp_path / f"m.{ending}")
        assert said.code == 0
    np.testing.assert_allclose(formats.Onnx(tmp_path / "m.onnx").run(test), predicted, rtol=1e-5)
    assert "outputs are logarithms of rates (exp of y)" in said.out and formats.read_safetensors(tmp_path / "m.safetensors")[1]["target_inverse"] == "exp"
    with h5py.File(tmp_path / "train.h5", "a") as f:
        f["labels"][7] = -1
    result = dpt.run(job, "--output", tmp_path / "other")
    assert result.code == 65 and "train.h5, sample 7: the target is -1; loss poisson is for counts" in result.err, result
    result = dpt.run(job, "--set", "data.targets.normalize=auto")
    assert result.code == 78 and "data.targets: does not go with loss poisson" in result.err, result


def test_numbers_without_a_logarithm_are_refused(trained):
    for transform, said in (("log1p", "is for numbers from 0"), ("log", "is for numbers above 0")):
        result = dpt.run(trained.write("log.yaml", f"none, transform: {transform}"))
        assert result.code == 65 and said in result.err and "data.train: train.h5, sample" in result.err, result
    result = dpt.run(trained.write("log.yaml", "none, transform: log1p", "cross_entropy"))
    assert result.code == 78 and "data.targets.transform" in result.err, result


def test_init_proposes_a_logarithm_where_few_targets_are_large(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3)).astype(np.float32)
    kinds = {"prices": np.exp(draw.normal(size=200) + 9), "rates": np.exp(draw.normal(size=200) - 4), "heights": draw.normal(170, 9, 200),
             "losses": -np.exp(draw.normal(size=200))}
    said = {}
    for kind, values in kinds.items():
        with h5py.File(tmp_path / f"{kind}.h5", "w") as f:
            f["images"], f["labels"] = x, values.astype(np.float32)
        said[kind] = [dpt.run("init", tmp_path / f"{kind}.h5", "--output", "-", *more) for more in ([], ["--log-target"])]
    assert "Few are large: {normalize: auto, transform: log1p}" in said["prices"][0].out
    assert "\n  targets: {normalize: auto, transform: log1p}\n" in said["prices"][1].out
    assert "\n  targets: {normalize: auto, transform: log}\n" in said["rates"][1].out
    assert "transform" not in said["heights"][0].out and "transform" not in said["losses"][0].out
    assert said["losses"][1].code == 65 and "the smallest target is -" in said["losses"][1].err


def test_weights_of_elsewhere_need_the_numbers(trained):
    out = trained.folder / "m.safetensors"
    assert dpt.run("export", trained.run, out).code == 0
    result = dpt.run("eval", trained.job, "--checkpoint", out)
    assert result.code == 78 and "which these weights do not keep" in result.err, result
