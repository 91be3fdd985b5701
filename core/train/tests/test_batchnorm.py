"""batchnorm in whole runs: the running statistics that they keep, and what is computed with them.

The layers' numbers are compared with PyTorch's in core/backend/tests; here it is steps, ranks and files.
"""
import json
import os
import re
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
sys.path.insert(0, "core/train/engines/tests")
import dpt  # noqa: E402
import formats  # noqa: E402
import test_device  # noqa: E402
import whole_batch  # noqa: E402

JOB = """
data: {{train: t.h5, valid: v.h5, shuffle: none}}
model: {{type: sequential, layers: [{layers}]}}
batch: {{global: 21, micro: {micro}}}
train: {{{train}}}
comm: {{reduction: {reduction}}}
"""
LAYERS = "batchnorm: {decay: 0.75}}, {conv: 4}, batchnorm, relu, flatten, {dense: 3}, batchnorm, {dense: 2}"


def make(folder, layers="{" + LAYERS, micro="8", train="epochs: 1", reduction="reproducible", seed=5):
    """A job on 42 samples of 3x5x4 floats with mean 2 and a deviation of 3, channel by channel a little more."""
    dice = np.random.default_rng(seed)
    for name, n in (("t", 42), ("v", 17)):
        x = (dice.normal(2, 3, (n, 3, 5, 4)) * np.array([1, 1.5, 2])[:, None, None]).astype("f4")
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["images"], file["labels"] = x, (x[:, 0].mean(axis=(1, 2)) > 2).astype("i4")
    return dpt.write_job(folder / "job.yaml", JOB.format(layers=layers, micro=micro, train=train, reduction=reduction))


def read(run):
    """{"state/batchnorm1/running_mean": array}, attributes."""
    found = {}
    with h5py.File(run / "checkpoints/latest") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        return found, dict(file.attrs)


def test_running_statistics_are_those_of_the_micro_batches(tmp_path):
    """Of the first layer, from the data: after each step the mean over the micro-batches, 8, 8 and 5 samples, by their sizes."""
    dpt.train(make(tmp_path), tmp_path / "run", "--quiet", cwd=tmp_path)
    found, attributes = read(tmp_path / "run")
    with h5py.File(tmp_path / "t.h5") as file:
        x = file["images"][()].astype(float)
    mean, variance = np.zeros(3), np.ones(3)
    for step in (x[:21], x[21:]):
        parts = [step[:8], step[8:16], step[16:]]
        mean = 0.75 * mean + 0.25 * sum(len(p) * p.mean(axis=(0, 2, 3)) for p in parts) / 21
        variance = 0.75 * variance + 0.25 * sum(len(p) * p.var(axis=(0, 2, 3), ddof=1) for p in parts) / 21
    np.testing.assert_allclose(found["state/batchnorm1/running_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(found["state/batchnorm1/running_var"], variance, rtol=1e-5)
    assert attributes["format_version"] == 2
    assert sorted(k for k in found if "running" in k) == \
        [f"state/batchnorm{i}/running_{what}" for i in (1, 2, 3) for what in ("mean", "var")]
    # What is learned: weights and biases, and only these have slots and count.
    learned = [k for k in found if k.startswith("params/")]
    assert attributes["parameters"] == sum(found[k].size for k in learned)


def flat(folder, samples, words, layers="batchnorm, {dense: 2}", shape=(4,)):
    """A run of 15 epochs, in steps of 32, on normal numbers of deviation 3; its running variance and mean, what it said, the samples' variances."""
    x = np.random.default_rng(3).normal(1, 3, (samples, *shape)).astype("f4")
    with h5py.File(folder / "f.h5", "w") as file:
        file["images"], file["labels"] = x, (np.arange(samples) % 2).astype("i4")
    job = dpt.write_job(folder / "f.yaml", f"data: {{train: f.h5}}\nmodel: {{type: sequential, layers: [{layers}]}}\n"
                        "batch: {global: 32}\ntrain: {epochs: 15}\n")
    sets = [word for setting in words for word in ("--set", setting)]
    result = dpt.run(job, "--output", folder / "run", "--overwrite", *sets, cwd=folder, ranks=2 if "device.kind=cuda" in words else 0,
                     env=test_device.Machine(folder).environment if "device.kind=cuda" in words else None)
    assert result.code == 0, result
    found = read(folder / "run")[0]
    axes = (0, *range(2, 1 + len(shape)))
    return found["state/batchnorm1/running_var"] / x.var(axis=axes, ddof=1), found["state/batchnorm1/running_mean"] - x.mean(axis=axes), result.err


TINY = [("device.kind=ref",), ("device.kind=cpu", "batch.micro=32"), ("device.kind=cpu", "device.precision=bf16"),
        pytest.param(("device.kind=cuda", "batch.micro=16"), marks=test_device.pytestmark)]


@pytest.mark.parametrize("words", TINY, ids=lambda words: words[-1])
def test_a_tiny_last_step_counts_little(tmp_path, words):
    """Of 129 or 130 samples in steps of 32 the last one or two alone, once an epoch: the running variance stays that of the samples."""
    for samples in (129, 130):
        variance, mean, err = flat(tmp_path, samples, words)
        assert np.abs(variance - 1).max() < 0.12 and np.abs(mean).max() < 0.6, (samples, variance, mean)
        warns = "batchnorm1: an epoch's last step is one sample, for which a batchnorm gives the same outputs" in err
        assert warns == (samples == 129), err
    variance, _, err = flat(tmp_path, 130, (*words, "batch.micro=3"))
    assert "batchnorm1: " not in err and np.abs(variance - 1).max() < 0.3, (variance, err)
    variance, _, err = flat(tmp_path, 129, (*words, "batch.global=33", "batch.micro=16"))
    assert "batchnorm1: each step of 33 ends with a micro-batch of one sample" in err and "batch.micro: 15 would do" in err, err
    assert np.abs(variance - 1).max() < 0.12, variance


def test_a_tiny_last_step_of_synchronized_norms_counts_little(tmp_path):
    for shape, layers in (((4,), "{batchnorm: {statistics: batch}}, {dense: 2}"), ((3, 4, 4), "{batchnorm: {statistics: batch}}, flatten, {dense: 2}")):
        variance, _, err = flat(tmp_path, 129, ("batch.micro=8", "comm.reduction=reproducible"), layers, shape)
        assert np.abs(variance - 1).max() < 0.12, (shape, variance)
        assert ("data.drop_last: true leaves that step out" in err) == (len(shape) == 1), err
    err = flat(tmp_path, 129, ("data.drop_last=true",))[2]
    assert "batchnorm1: " not in err, err


def test_evaluation_is_by_the_running_statistics(tmp_path):
    """`eval` on any ranks gives what the run's validation gave, but for the rounding of batch norms in weights, and what the exported
    model gives in NumPy."""
    job = make(tmp_path, train="epochs: 4")
    dpt.train(job, tmp_path / "run", "--quiet", cwd=tmp_path)
    last = dpt.events(tmp_path / "run", "eval")[-1]
    for ranks in (1, 2):
        result = dpt.run("eval", job, "--checkpoint", tmp_path / "run", "--split", "valid", ranks=ranks, cwd=tmp_path)
        said = re.fullmatch(rf"valid accuracy {last['accuracy']:.4f}, loss ([\d.]+) on 17 samples\n", result.out)
        assert said and float(said[1]) == pytest.approx(last["loss"], rel=1e-5), result
    assert dpt.run("export", tmp_path / "run", tmp_path / "m.onnx").code == 0
    with h5py.File(tmp_path / "v.h5") as file:
        x, labels = file["images"][()], file["labels"][()]
    logits = formats.Onnx(tmp_path / "m.onnx").run(x)
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(17), labels])
    np.testing.assert_allclose(last["loss"], loss, rtol=1e-4)


def test_the_backends_agree(tmp_path):
    """With plain steps: in front of a norm biases have gradients of nothing but rounding, which Adam makes large."""
    job = make(tmp_path, train="epochs: 3")
    for kind in ("cpu", "ref"):
        dpt.train(job, tmp_path / kind, "--quiet", "--set", f"device.kind={kind}", "--set", "optimizer={type: sgd, lr: 0.1}", cwd=tmp_path)
    (ours, _), (theirs, _) = read(tmp_path / "cpu"), read(tmp_path / "ref")
    for name in (k for k in ours if k.startswith(("params", "state"))):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=2e-4, err_msg=name)


def test_micro_batch_follows_from_the_job(tmp_path):
    """Also where the sums do not have to be the same: the statistics are a micro-batch's."""
    job = make(tmp_path, micro="auto", train="steps: 1", reduction="allreduce")
    found = {}
    for ranks, threads in ((1, 1), (3, 1), (2, 2)):
        run = tmp_path / f"{ranks}"
        dpt.train(job, run, "--quiet", "--set", f"device.threads={threads}", ranks=ranks, cwd=tmp_path)
        found[ranks] = read(run)[0]
        assert dpt.events(run, "run")[0]["micro"] == 3
    for name in (k for k in found[1] if k.startswith("state")):
        for ranks in (2, 3):
            np.testing.assert_allclose(found[ranks][name], found[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_stops_and_goes_on(tmp_path):
    """Hashes of each step, the sum of the state among them, are those of a run in one go on other ranks."""
    job = make(tmp_path, train="epochs: 5, clip_norm: 0.2, check_replicas: 1 steps")
    words = ("--quiet", "--set", "log.hashes=true")
    dpt.train(job, tmp_path / "one", *words, cwd=tmp_path)
    dpt.train(job, tmp_path / "parts", *words, "--set", "train.epochs=2", ranks=3, cwd=tmp_path)
    assert dpt.run(job, "--output", tmp_path / "parts", *words, ranks=2, cwd=tmp_path).code == 0
    result = dpt.run("inspect", "--audit", tmp_path / "one", tmp_path / "parts")
    assert result.code == 0 and "10 steps agree" in result.out, result
    assert dpt.newest(tmp_path / "one") == dpt.newest(tmp_path / "parts")
    line = json.loads((tmp_path / "one/hashes.jsonl").read_text().splitlines()[-1])
    assert "batchnorm2/running_var" in [name for name, *_ in line["layers"]]


@pytest.mark.parametrize("form", ["m.safetensors", "m.npz", "by-order.safetensors", "by-order.npz", "torch.safetensors"])
def test_state_goes_to_files_and_comes_back(tmp_path, form):
    job = make(tmp_path)
    dpt.train(job, tmp_path / "run", "--quiet", cwd=tmp_path)
    want, _ = read(tmp_path / "run")
    path, words = tmp_path / form, ()
    if form.startswith("m."):
        assert dpt.run("export", tmp_path / "run", path).code == 0
    else:
        arrays = {k.partition("/")[2].replace("/", "."): v for k, v in want.items() if k.startswith(("params", "state"))}
        numbers = {layer: str(i) for i, layer in enumerate(("batchnorm1", "conv1", "batchnorm2", "dense1", "batchnorm3", "dense2"))}
        if form.startswith("by-order"):
            arrays = {f"{numbers[k.split('.')[0]]}.{k.split('.')[1]}": v for k, v in arrays.items()}
            order = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
            words = ("--map-by-order",)
        arrays |= {k.replace("running_mean", "num_batches_tracked"): np.array([7.0], "f4")
                   for k in list(arrays) if "running_mean" in k}
        if form == "by-order.npz":  # keeps the order that it is given
            arrays = {k: arrays[k] for k in sorted(arrays, key=lambda k: (k.split(".")[0], order.index(k.split(".")[1])))}
        np.savez(path, **arrays) if form.endswith("npz") else formats.write_safetensors(path, arrays)
    # A rate of 0 leaves what is learned, a decay of 1 the state.
    still = dpt.write_job(tmp_path / "still.yaml", JOB.format(
        layers="{" + LAYERS.replace("0.75", "1").replace(", batchnorm,", ", {batchnorm: {decay: 1}},"), micro=8,
        train="steps: 1", reduction="allreduce") + "optimizer: {type: sgd, lr: 0}\n")
    result = dpt.run(still, "--output", tmp_path / "next", "--init-from", path, *words, cwd=tmp_path)
    assert result.code == 0 and "randomly initialised" not in result.err and "nothing in this model" not in result.err, result
    found, _ = read(tmp_path / "next")
    for name in (k for k in want if k.startswith(("params", "state"))):
        np.testing.assert_array_equal(found[name], want[name], err_msg=name)


REFUSALS = [
    ("{batchnorm: {decay: 2}}, flatten, {dense: 2}", "8", "decay"),
    ("{batchnorm: {statistics: sample}}, flatten, {dense: 2}", "8", "statistics: 'sample' is none of micro, batch"),
    ("flatten, batchnorm, {dense: 2}", "1", "job.yaml:3:45: model (batchnorm1): gets 60, and micro-batches of 1 sample "
     "(batch.micro: 1, batch.global: 21): one number of a channel has no variance; batch.micro: 16 would do"),
    ("{conv: {channels: 2, kernel: [5, 4]}}, batchnorm, flatten, {dense: 2}", "1", "model (batchnorm1): gets 2x1x1, and"),
]


@pytest.mark.parametrize("layers, micro, says", REFUSALS, ids=["decay", "statistics", "flat", "planes"])
def test_mistakes_are_told(tmp_path, layers, micro, says):
    job = make(tmp_path, layers=layers, micro=micro)
    for command in ((), ("plan",)):
        result = dpt.run(*command, job, *([] if command else ["--output", tmp_path / "run"]), cwd=tmp_path)
        assert result.code == 78 and says in result.err, result
    assert not (tmp_path / "run").exists()


def test_planes_do_with_one_sample(tmp_path):
    """They have many numbers of each channel."""
    dpt.train(make(tmp_path, layers="batchnorm, flatten, {dense: 2}", micro="1"), tmp_path / "run", "--quiet", cwd=tmp_path)


def test_statistics_that_are_no_numbers_are_told(tmp_path):
    """A variance that overflows leaves outputs and gradients finite; its step has no update of anything."""
    job = make(tmp_path, layers="{" + LAYERS, train="epochs: 1, on_nan: skip")
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["images"][30] *= 1e30
    for kind in ("cpu", "ref"):
        run = tmp_path / kind
        result = dpt.run(job, "--output", run, "--quiet", "--set", f"device.kind={kind}", cwd=tmp_path)
        assert result.code == 0 and "(vm), batchnorm1/running_var, micro-batch that begins with t.h5, sample 29; the step" in result.err, result
        found, attributes = read(run)
        assert (attributes["step"], attributes["updates"]) == (2, 1)
        assert all(np.isfinite(v).all() for k, v in found.items() if k.startswith("state"))


FAR = {"flat": ("{dense: 16}, %s, relu, {dense: 3}", (8,)), "planes": ("{conv: 16}, %s, relu, flatten, {dense: 3}", (3, 6, 6)),
       "few": ("{conv: 5}, %s, relu, flatten, {dense: 3}", (3, 6, 6))}


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("norm", ["batchnorm", "{batchnorm: {statistics: batch}}", "{groupnorm: 1}", "instance"])
def test_gradients_far_from_zero(tmp_path, name, norm):
    """The sums of what a norm passes back are 0, and the layer before multiplies them by samples of some 1e4: as in double, which ref computes in."""
    layers, shape = FAR[name]
    norm = norm.replace("instance", f"{{groupnorm: {re.search('[0-9]+', layers)[0]}}}")
    if "groupnorm" in norm and len(shape) == 1:
        norm = "layernorm"
    dice = np.random.default_rng(1)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["images"], file["labels"] = dice.normal(1e4, 1, (64, *shape)).astype("f4"), dice.integers(0, 3, 64)
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: t.h5}}\nmodel: {{type: sequential, layers: [{layers % norm}]}}\n"
                        "batch: {global: 64, micro: 32}\ntrain: {steps: 1}\nlog: {every: 1 step}\ncomm: {reduction: reproducible}\n")
    found = {}
    for kind in ("ref", "cpu", *("cuda",) * os.path.exists(test_device.FAKE)):
        environment = test_device.Machine(tmp_path).environment if kind == "cuda" else None
        dpt.train(job, tmp_path / kind, "--quiet", "--set", f"device.kind={kind}", cwd=tmp_path, env=environment)
        found[kind] = dpt.events(tmp_path / kind, "train")[0]["gradient_norm"]
    for kind in found:
        assert found[kind] == pytest.approx(found["ref"], rel=2e-3), found


# --- statistics: batch --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A job on whole_batch's samples, and how its weights begin; batches of 5 micro-batches and a sample."""
    folder = tmp_path_factory.mktemp("whole")
    with h5py.File(folder / "t.h5", "w") as file:
        file["images"], file["labels"] = whole_batch.samples()
    np.savez(folder / "start.npz", **whole_batch.beginning())
    job = JOB.format(layers=whole_batch.LAYERS, micro=f"4, global: {whole_batch.BATCH}", train=f"steps: {whole_batch.STEPS}",
                     reduction="reproducible").replace("global: 21, ", "").replace(", valid: v.h5", "")
    optimizer = f"optimizer: {{type: sgd, lr: {whole_batch.LR}, momentum: 0.9}}\nlog: {{every: 1 steps}}\n"
    dpt.write_job(folder / "job.yaml", job + optimizer)
    return folder


@pytest.mark.parametrize("ranks, words", [(1, ["device.kind=ref"]), (3, ["device.kind=cpu"]),
                                          (2, ["comm.reduction=allreduce", "device.threads=2"]),
                                          pytest.param(1, ["device.kind=cuda", "comm.reduction=allreduce"], marks=test_device.pytestmark),
                                          pytest.param(2, ["device.kind=cuda"], marks=test_device.pytestmark)])
def test_whole_batches_are_pytorchs(whole, tmp_path, ranks, words):
    """Weights, running statistics and losses of BatchNorm over all samples of a batch; the last micro-batches and batch are short."""
    sets = [word for setting in words for word in ("--set", setting)]
    dpt.train("job.yaml", tmp_path / "run", "--quiet", "--init-from", "start.npz", *sets, ranks=ranks, cwd=whole,
              env=test_device.Machine(tmp_path).environment if "device.kind=cuda" in words else None)
    with open("core/train/tests/golden_batchnorm.json", encoding="utf-8") as file:
        golden = json.load(file)
    found, _ = read(tmp_path / "run")
    np.testing.assert_allclose([e["loss"] for e in dpt.events(tmp_path / "run", "train")], golden.pop("loss"), rtol=1e-5)
    for name, want in golden.items():
        name = ("state/" if "running" in name else "params/") + name.replace(".", "/")
        got = found[name].ravel()
        assert np.abs(got - want).max() < 1e-5 * max(1, np.abs(want).max()), (name, got, want)


@pytest.mark.parametrize("kind", ["cpu", "ref"])
def test_a_batch_of_one_micro_batch_is_as_micro(whole, tmp_path, kind):
    found = {}
    for statistics in ("micro", "batch"):
        text = (whole / "job.yaml").read_text().replace("statistics: batch", f"statistics: {statistics}").replace("micro: 4", "micro: 21")
        dpt.write_job(whole / f"{kind}-{statistics}.yaml", text)
        dpt.train(f"{kind}-{statistics}.yaml", tmp_path / statistics, "--quiet", "--set", f"device.kind={kind}", cwd=whole)
        found[statistics] = {k: v for k, v in read(tmp_path / statistics)[0].items() if k.startswith(("params", "state"))}
    assert len(found["batch"]) == 22
    # By passes over units, too, the first of which begins with such a norm.
    dpt.train(f"{kind}-batch.yaml", tmp_path / "units", "--quiet", "--set", f"device.kind={kind}", "--set", "parallel.shard=parameters", "--set",
              "comm.reduction=reproducible", ranks=2, cwd=whole)
    for name, want in found["micro"].items():
        np.testing.assert_array_equal(found["batch"][name], want, err_msg=name)


BOTH = ("{{conv: {{channels: 18, padding: same}}}}, {0}, relu, {{residual: {{layers: [{{conv: {{channels: 9, padding: same}}}}, {0}, relu,"
        " {{dropout: 0.3}}, {{conv: {{channels: 7, padding: same}}}}, batchnorm]}}}}, relu, {{maxpool: 2}}, flatten, {0}, {{dense: 3}}"
        ).format("{batchnorm: {statistics: batch}}")


def test_whole_batches_on_any_ranks(tmp_path):
    """Both kinds of statistics, dropout and clipping: the same bytes, also where a run stops and goes on elsewhere."""
    job = make(tmp_path, layers=BOTH, micro="4", train="epochs: 2, clip_norm: 0.2, check_replicas: 1 steps")
    grid = [(r, t) for r in (1, 2, 3, 8) for t in (1, 2)]
    for ranks, threads in grid if os.environ.get("DPT_HEAVY") == "1" else ((1, 1), (2, 2), (3, 1), (8, 2)):
        dpt.train(job, tmp_path / f"{ranks}-{threads}", "--quiet", "--set", f"device.threads={threads}", ranks=ranks, cwd=tmp_path)
        assert dpt.newest(tmp_path / f"{ranks}-{threads}") == dpt.newest(tmp_path / "1-1"), (ranks, threads)
    dpt.train(job, tmp_path / "parts", "--quiet", "--set", "train.epochs=1", ranks=3, cwd=tmp_path)
    result = dpt.run("train", job, "--output", tmp_path / "parts", "--quiet", "--set", "device.threads=2", ranks=2, cwd=tmp_path)
    assert result.code == 0 and dpt.newest(tmp_path / "parts") == dpt.newest(tmp_path / "1-1")


def test_what_whole_batches_statistics_send(tmp_path):
    """A block of the tree to one rank after another, log2(ranks) of them, counted between dptrain and MPI: no more than the plan says, which
    grows with the ranks' logarithm alone. Where there are not 2^k ranks there may be some blocks in a message."""
    if dpt.sanitized():
        pytest.skip("AddressSanitizer must be the first library")
    with open("core/comm/tests/count_messages.c", encoding="utf-8") as file:
        library = dpt.library(tmp_path, "count", file.read(), "mpicc")
    channels, norms, steps = 96, 2, 2
    norm, block = f"{{dense: {channels}}}, {{batchnorm: {{statistics: batch}}}}, ", 2 * 8 * channels

    def write(ranks):
        return dpt.write_job(tmp_path / f"{ranks}.yaml", f"""
data: {{train: synthetic, synthetic: {{samples: {4 * ranks * steps}, shape: [6], classes: 2}}}}
model: {{type: sequential, layers: [{norm * norms}{{dense: 2}}]}}
batch: {{global: {4 * ranks}, micro: 2}}
train: {{steps: {steps}}}
comm: {{reduction: reproducible}}
device: {{kind: cpu, threads: 1}}
""")

    def planned(ranks):
        plan = dpt.run("plan", write(ranks), "--json", "--no-time", "--ranks", ranks, "--nodes", ranks)
        return json.loads(plan.out)["exchange_bytes"]

    for ranks in (2, 3, 4, 5, 8, 16):
        counts = tmp_path / f"counts{ranks}"
        dpt.train(write(ranks), tmp_path / f"run{ranks}", "--quiet", ranks=ranks, env={"LD_PRELOAD": library, "COUNT_MESSAGES": str(counts)})
        sent = [tuple(map(int, line.split()))[1:3] for line in counts.read_text().splitlines()]
        sent = [(n / steps / norms / 2, size / steps / norms / 2) for n, size in sent if n > 0]  # of each norm, forward and back
        rounds, power = ranks.bit_length() - 1, ranks & (ranks - 1) == 0
        if power:
            assert sent == [(rounds, rounds * block)] * ranks and planned(ranks) == rounds * block
        else:
            assert len(sent) == ranks and max(sent)[0] == rounds + 1, (ranks, sent)
            assert max(size for _, size in sent) <= planned(ranks) <= 3 * (rounds + 1) * block, (ranks, sent)
    assert planned(4096) == 12 * block and planned(4095) <= 3 * 13 * block


@pytest.mark.parametrize("kind", ["cpu", "ref"])
def test_whole_batches_in_shards(tmp_path, kind):
    """Ranks that take micro-batches in turn: the same bytes, also in a last step of one micro-batch, with a frozen tensor, and on other ranks."""
    job = make(tmp_path, layers=BOTH, micro="3", train="epochs: 2, clip_norm: 0.2, check_replicas: 4 steps, freeze: [conv2/bias]")
    words = ("--quiet", "--set", "batch.global=13", "--set", "log.hashes=true", "--set", f"device.kind={kind}")
    dpt.train(job, tmp_path / "one", *words, cwd=tmp_path)
    for ranks, threads in ((2, 1), (2, 2), (3, 1), (3, 2)) if kind == "cpu" or os.environ.get("DPT_HEAVY") == "1" else ((3, 2),):
        words = (*words, "--set", "parallel.shard=gradients", "--set", f"device.threads={threads}")
        if threads == 1:
            dpt.train(job, tmp_path / f"{ranks}-{threads}", *words, "--set", "train.epochs=1", "--set", "parallel.shard=none", cwd=tmp_path)
        result = dpt.run("train", job, "--output", tmp_path / f"{ranks}-{threads}", *words, ranks=ranks, cwd=tmp_path)
        assert result.code == 0 and dpt.newest(tmp_path / f"{ranks}-{threads}") == dpt.newest(tmp_path / "one"), (ranks, threads, result)
        assert (tmp_path / f"{ranks}-{threads}/hashes.jsonl").read_text() == (tmp_path / "one/hashes.jsonl").read_text()


@test_device.pytestmark
def test_whole_batches_on_any_ranks_of_a_device(tmp_path):
    job = make(tmp_path, layers=BOTH, micro="4", train="steps: 4, clip_norm: 0.2, check_replicas: 1 steps")
    for name, ranks, steps, shard in (("one", 1, 4, "none"), ("parts", 3, 1, "none"), ("parts", 2, 3, "gradients"), ("parts", 2, 4, "none")):
        result = dpt.run(job, "--output", tmp_path / name, "--quiet", "--set", "device.kind=cuda", "--set", f"train.steps={steps}", "--set",
                         f"parallel.shard={shard}", ranks=ranks, cwd=tmp_path, env=test_device.Machine(tmp_path).environment)
        assert result.code == 0, result
    assert dpt.newest(tmp_path / "parts") == dpt.newest(tmp_path / "one")


@test_device.pytestmark
def test_micro_batches_of_a_device_share_its_parameters(tmp_path):
    """The plan counts the values of all that are under way, and a gradient for each level of their tree; those that find no memory are told."""
    job = make(tmp_path, layers="{conv: {channels: 40, padding: 1}}, {batchnorm: {statistics: batch}}, flatten, {dense: 800}, {dense: 2}",
               micro="3", train="steps: 1")
    environment = test_device.Machine(tmp_path).environment
    words = ("--set", "device.kind=cuda", "--set", "batch.global=42")

    def run(memory):
        return dpt.run(job, "--output", tmp_path / f"{memory}", *words, cwd=tmp_path, env=environment | {"FAKEGPU_MEMORY": str(memory)})

    rows = [json.loads(dpt.run("plan", job, "--json", "--no-time", *words, "--ranks", ranks, cwd=tmp_path, env=environment).out)
            ["device"]["parts"] for ranks in (1, 14)]
    assert rows[0] == rows[1] | {"activations": 14 * rows[1]["activations"], "gradients": 4 * rows[1]["gradients"]}
    # By halves to where one fits, which is less than is said of it, since its workspace is a guess, and all do not.
    none, all_of_them = 4096, int(1e6 * float(re.search(r"micro-batches of 3: ([\d.]+) MB are needed", run(4096).err)[1]))
    told = "the GPU's memory is too small for `statistics: batch`: all 14 micro-batches"
    assert run(all_of_them).code == 0
    while all_of_them - none > 200000:
        middle = (none + all_of_them) // 2
        result = run(middle)
        if told in result.err:
            break
        none, all_of_them = (middle, all_of_them) if result.code else (none, middle)
    assert result.code == 78 and told in result.err, result


@pytest.mark.parametrize("shard, fault, code, says", [
    ("none", "fail:rank=1:step=2:exchange=3", 70, "step 2: an error, as DPTRAIN_FAULT asks"),
    ("gradients", "fail:rank=1:step=2:exchange=5", 70, "step 2: an error, as DPTRAIN_FAULT asks"),
    ("none", "kill:rank=1:step=2:exchange=2", 137, "Its last word: exchanging the statistics of batchnorm"),
    ("none", "stop:rank=2:step=2:exchange=5", 71, "its last word: exchanging the statistics of batchnorm"),
], ids=lambda value: str(value).split(":", maxsplit=1)[0])
def test_a_rank_fails_in_an_exchange(tmp_path, shard, fault, code, says):
    """All learn of it, or name it and what it did."""
    job = make(tmp_path, layers=BOTH, micro="4")
    result = dpt.run(job, "--output", tmp_path / "run", "--set", "comm.timeout=1 s", "--set", f"parallel.shard={shard}", ranks=3, cwd=tmp_path, env={"DPTRAIN_FAULT": fault},
                     timeout=60)
    assert result.code == code and says in result.err, result
    assert result.err.count(says) == 1, result


@pytest.mark.parametrize("shard", ["none", "gradients"])
def test_values_that_are_no_numbers_are_traced_to_their_rank(tmp_path, shard):
    """Though the statistics bring them to every micro-batch."""
    job = make(tmp_path, layers=BOTH, micro="4", train="epochs: 1, on_nan: skip")
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["images"][30] *= 1e36
    result = dpt.run(job, "--output", tmp_path / "run", "--set", f"parallel.shard={shard}", ranks=2, cwd=tmp_path)
    assert result.code == 0 and "step 2: not a number: rank 0" in result.err, result
    assert read(tmp_path / "run")[1]["updates"] == 1


def test_statistics_of_a_batch_that_are_no_numbers(tmp_path):
    """Each micro-batch has a variance of 0, and together theirs overflows: none of them is to blame."""
    job = make(tmp_path, layers="{batchnorm: {statistics: batch}}, flatten, {dense: 2}", micro="4", train="epochs: 1, on_nan: skip")
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["images"][21:] = -3e19
        file["images"][25:29] = 3e19
    result = dpt.run(job, "--output", tmp_path / "run", ranks=2, cwd=tmp_path)
    assert result.code == 0, result
    assert "step 2: not a number: no micro-batch by itself gives one, so the statistics of the whole batch" in result.err, result
    assert read(tmp_path / "run")[1]["updates"] == 1


def test_statistics_are_named_before_gradients(tmp_path):
    """Variances overflow, and so do gradients, by seven layers of large weights: the statistics were first."""
    steep = "{dense: {outputs: 16, init: {normal: 1.0e+6}}}"
    layers = "batchnorm, flatten, {dense: {outputs: 16, init: {normal: 1.0e-36}}}, " + ", ".join([steep] * 7) + ", {dense: 2}"
    job = make(tmp_path, layers=layers, micro="4")
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["images"][:] = -3e19
        file["images"][::2] = 3e19
    result = dpt.run(job, "--output", tmp_path / "run", "--set", "parallel.shard=parameters", ranks=2, cwd=tmp_path, env=dpt.ENDS_AT_ONCE)
    assert result.code == 1 and "step 1: not a number: batchnorm1/running_var;" in result.err, result


def test_a_batch_needs_two_samples(tmp_path):
    """Its micro-batches do not."""
    job = make(tmp_path, layers="flatten, {batchnorm: {statistics: batch}}, {dense: 2}", micro="1")
    dpt.train(job, tmp_path / "run", "--quiet", cwd=tmp_path)
    result = dpt.run("plan", job, "--set", "batch.global=1", cwd=tmp_path)
    assert result.code == 78 and "one number of a channel has no variance; batch.global: 2 or more is needed" in result.err, result
