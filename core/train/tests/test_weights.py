"""Weights of samples: loss and gradient are sum(w x .) / sum(w) over all ranks and micro-batches of a step."""
import os
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

FAKE = os.path.join(os.path.dirname(dpt.BINARY), "tests", "fakegpu")
N, D, K = 61, 6, 4

JOB = """
seed: 1
data: {{train: {data}/train*.h5, test: {data}/test.h5, shuffle: none}}
model: {model}
loss: {{type: cross_entropy, label_smoothing: 0.1}}
batch: {{global: 40, micro: 3}}
optimizer: {{type: sgd, lr: 0.5, momentum: 0.9}}
train: {{steps: 6, clip_norm: 0.4}}
checkpoint: {{every: 1 steps, keep: 10}}
log: {{every: 1 steps}}
eval: {{every: 1 steps}}
"""
MLP = "{type: mlp, hidden: [9], outputs: 4}"


def samples(n, seed):
    dice = np.random.default_rng(seed)
    return (dice.normal(size=(n, D)).astype("f4"), dice.integers(0, K, n),
            dice.choice([0, 1, 0.25, 2.7], n).astype("f4"))


def write(path, x, y, w=None, name="weights"):
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = x, y
        if w is not None:
            file[name] = w


def make_job(path, weights=True, model="{type: linear, outputs: 4}", **sections):
    """Three shards of training samples and one of test samples; *weights*: what becomes of theirs, or whether they have any."""
    x, y, w = samples(N, 1)
    for i, part in enumerate(np.split(np.arange(N), (7, 40))):
        mine = weights(w[part]) if callable(weights) else w[part] if weights else None
        write(path / f"train-{i}.h5", x[part], y[part], mine)
    write(path / "test.h5", *samples(33, 2))
    text = JOB.format(data=path, model=model)
    return dpt.write_job(path / "job.yaml", "\n".join(
        f"{line.split(':')[0]}: {sections[line.split(':')[0]]}" if line.split(":")[0] in sections else line
        for line in text.splitlines()))


def train(job, folder, *sets, ranks=0, threads=1, **environment):
    words = [word for text in (f"device.threads={threads}", *sets) for word in ("--set", text)]
    result = dpt.run(job, "--output", folder, *words, ranks=ranks, env=environment)
    assert result.code == 0, result
    return result


def mean(values, weights):
    return float((values * weights).sum() / weights.sum())


def forward(w, b, x, y):
    z = x @ w + b
    z -= z.max(1, keepdims=True)
    log = z - np.log(np.exp(z).sum(1, keepdims=True))
    target = 0.9 * np.eye(K)[y] + 0.1 / K
    return np.exp(log) - target, -(target * log).sum(1), z.argmax(1) == y


def in_numpy():
    """The job in double precision: parameters, and what the lines of the log and the evaluations say."""
    (x, y, weight), test = samples(N, 1), samples(33, 2)
    w, b, mw, mb = np.zeros((D, K)), np.zeros(K), 0, 0
    lines, evals = [], []
    for step in range(6):
        at = slice(0, 40) if step % 2 == 0 else slice(40, N)
        dy, loss, right = forward(w, b, x[at].astype(float), y[at])
        share = weight[at].astype(float) / weight[at].astype(float).sum()
        gw, gb = x[at].T @ (dy * share[:, None]), (dy * share[:, None]).sum(0)
        norm = np.sqrt((gw ** 2).sum() + (gb ** 2).sum())
        lines.append((mean(loss, weight[at]), mean(right, weight[at]), norm))
        cut = min(1, 0.4 / norm)
        mw, mb = 0.9 * mw + gw * cut, 0.9 * mb + gb * cut
        w, b = w - 0.5 * mw, b - 0.5 * mb
        _, loss, right = forward(w, b, test[0].astype(float), test[1])
        evals.append((mean(loss, test[2]), mean(right, test[2])))
    return w, b, lines, evals


def check(folder, want):
    w, b, lines, evals = want
    with h5py.File(folder / "checkpoints" / "latest") as file:
        for name, values in (("weight", w.T), ("bias", b)):
            np.testing.assert_allclose(next(iter(file["params"].values()))[name][...], values, rtol=2e-5, atol=2e-6)
    got = [(e["loss"], e["accuracy"], e["gradient_norm"]) for e in dpt.events(folder, "train")]
    np.testing.assert_allclose(got, lines, rtol=2e-5)
    got = dpt.events(folder, "eval")
    np.testing.assert_allclose([(e["loss"], e["accuracy"]) for e in got], evals, rtol=2e-5)
    assert {(e["samples"], e["weight"]) for e in got} == {(33, float(samples(33, 2)[2].astype(float).sum()))}


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_as_in_numpy_at_any_rank_count(tmp_path, reduction):
    job, want = make_job(tmp_path), in_numpy()
    for ranks, cache, kind in ((3, "memory", "cpu"), (1, "memory", "ref"), (2, "none", "cpu"), (5, "none", "ref")):
        if reduction == "reproducible" and ranks in (1, 2):  # their bytes are those of the others, below
            continue
        folder = tmp_path / str(ranks)
        said = train(job, folder, f"comm.reduction={reduction}", f"data.cache={cache}", f"device.kind={kind}", ranks=ranks)
        assert "61 train (weighted), 33 test (weighted); samples" in said.err
        check(folder, want)
    said = dpt.run("eval", job, "--checkpoint", tmp_path / "3", "--set", "device.threads=2", ranks=2)
    weights = float(samples(33, 2)[2].sum())
    assert said.out.startswith(f"test accuracy {want[3][-1][1]:.4f}, loss {want[3][-1][0]:.6g} on 33 samples "
                               f"(weights sum to {weights:.6g})\n"), said


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libcublasLt.so.13")), reason="no fake device")
@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])  # whole steps on the device, or arenas on the host
def test_as_in_numpy_on_a_device(tmp_path, reduction):
    job, want = make_job(tmp_path), in_numpy()
    fake = {"LD_LIBRARY_PATH": FAKE, "CUDA_HOME": "", "CUDNN_ROOT": "", "CUDA_VISIBLE_DEVICES": "0,1,2",
            "XDG_CACHE_HOME": str(tmp_path / "cache"), "FAKEGPU_EAGER": "1"}
    for ranks, cache in ((1, "memory"), (3, "none")):
        folder = tmp_path / str(ranks)
        train(job, folder, "device.kind=cuda", f"comm.reduction={reduction}", f"data.cache={cache}",
              "log.tensorboard=true", ranks=ranks, **fake)
        check(folder, want)


def checkpoint(folder, step=None):
    return (folder / "checkpoints" / ("latest" if step is None else f"step-{step:08d}.h5")).read_bytes()


def test_same_bytes_at_any_rank_and_thread_count(tmp_path):
    job = make_job(tmp_path, model=MLP, data=f"{{train: {tmp_path}/train*.h5, valid: 0.2}}")
    for ranks, threads in ((1, 1), (3, 2), (5, 1)):
        train(job, tmp_path / str(ranks), "comm.reduction=reproducible", "data.cache=none", ranks=ranks, threads=threads)
        assert checkpoint(tmp_path / str(ranks)) == checkpoint(tmp_path / "1")
        assert [e["loss"] for e in dpt.events(tmp_path / str(ranks), "eval")] == \
            [e["loss"] for e in dpt.events(tmp_path / "1", "eval")]


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_weights_of_one_change_no_bit(tmp_path, reduction):
    kind = np.float32 if reduction == "allreduce" else np.int64
    for name, weights in (("none", None), ("ones", lambda w: np.ones(len(w), kind))):
        train(make_job(tmp_path, weights, model=MLP), tmp_path / name, f"comm.reduction={reduction}", ranks=2, threads=2)
        assert checkpoint(tmp_path / name) == checkpoint(tmp_path / "none")


def test_a_mask_is_as_if_its_samples_were_not_there(tmp_path):
    """Of one batch of all samples; a bool as h5py writes it."""
    x, y, w = samples(N, 3)
    kept = w > 0
    ends = []
    for name, parts in (("mask", (x, y, kept, "mask")), ("without", (x[kept], y[kept]))):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.h5", *parts)
        job = dpt.write_job(tmp_path / f"{name}.yaml", JOB.format(data="", model=MLP).replace(
            "train: /train*.h5, test: /test.h5", f"train: {tmp_path}/{name}/a.h5"))
        train(job, tmp_path / f"{name}-run", "batch.global=64", ranks=3)
        ends.append([(e["loss"], e["accuracy"]) for e in dpt.events(tmp_path / f"{name}-run", "train")])
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-5)


@pytest.mark.parametrize("how", ["cpu", "cpu, reproducible", "cuda"])
def test_a_step_that_weighs_nothing_has_no_update(tmp_path, how):
    """Every other step, of Adam, whose moments would show it. It has a number, on hosts as on devices, and a line's norm is that of no gradient."""
    environment = {}
    if how == "cuda":
        if not os.path.exists(os.path.join(FAKE, "libcublasLt.so.13")):
            pytest.skip("no fake device")
        environment = {"LD_LIBRARY_PATH": FAKE, "CUDA_HOME": "", "CUDNN_ROOT": "", "CUDA_VISIBLE_DEVICES": "0,1",
                       "XDG_CACHE_HOME": str(tmp_path / "cache"), "FAKEGPU_EAGER": "1"}
    x, y, w = samples(80, 4)
    w[:40] = 0
    write(tmp_path / "train-0.h5", x, y, w)
    write(tmp_path / "test.h5", *samples(33, 2))
    job = dpt.write_job(tmp_path / "job.yaml", JOB.format(data=tmp_path, model=MLP).replace(
        "{type: sgd, lr: 0.5, momentum: 0.9}", "{type: adam, lr: 0.1}"))
    sets = (f"device.kind={how.split(',')[0]}", f"comm.reduction={'reproducible' if ',' in how else 'allreduce'}")
    said = train(job, tmp_path / "run", *sets, ranks=2, **environment)
    assert said.err.count("sum to 0, so it has no update") == 1
    assert "6 steps (3 without an update: weights sum to 0) in" in said.out
    states = []
    for step in range(1, 7):
        with h5py.File(tmp_path / "run" / "checkpoints" / f"step-{step:08d}.h5") as file:
            states.append(np.concatenate([v[...].ravel() for layer in file["params"].values() for v in layer.values()]))
            assert file.attrs["updates"] == step
    assert np.isfinite(states).all()
    assert [bool((a == b).all()) for a, b in zip(states, states[1:])] == [False, True, False, True, False]
    losses = [e["loss"] for e in dpt.events(tmp_path / "run", "train")]
    assert [loss is None for loss in losses] == [True, False] * 3, losses
    assert [e["gradient_norm"] == 0 for e in dpt.events(tmp_path / "run", "train")] == [True, False] * 3
    assert [e["lr"] for e in dpt.events(tmp_path / "run", "train")] == [0.1] * 6


def test_nothing_that_weighs_anything(tmp_path):
    job = make_job(tmp_path, np.zeros_like)
    said = dpt.run(job, "--output", tmp_path / "run", ranks=2)
    assert said.code == 65 and "data.train: all its 61 samples have weight 0: none counts" in said.err, said


def test_what_is_not_used_is_told_once(tmp_path):
    job = make_job(tmp_path)
    for i in range(3):
        with h5py.File(tmp_path / f"train-{i}.h5", "a") as file:
            file["weigths"] = np.ones(len(file["x"]))
            if i == 1:
                file["meta/ids"] = np.arange(3)
    said = train(job, tmp_path / "run", ranks=3)
    lines = [line for line in said.err.splitlines() if "not used" in line]
    known = "(known: /images or /x, /labels or /y, /weights or /mask)"
    assert lines == [f"warning: {tmp_path}/train-0.h5: /weigths is not used {known}, nor in the other files",
                     f"warning: {tmp_path}/train-1.h5: /meta/, /weigths are not used {known}"]


def test_predict_takes_no_notice(tmp_path):
    job = make_job(tmp_path)
    train(job, tmp_path / "run")
    outs = []
    for weights in (None, np.full(33, -1.0)):  # no job would learn from them
        write(tmp_path / "in.h5", *samples(33, 2)[:2], weights)
        said = dpt.run("predict", job, "--checkpoint", tmp_path / "run", "--input", tmp_path / "in.h5", "--out", tmp_path / "out.h5")
        assert said.code == 0, said
        outs.append(said.err.splitlines()[0])
    assert outs[0] == outs[1]


def test_inspect_shows_them(tmp_path):
    make_job(tmp_path)
    w = samples(N, 1)[2][:7]
    said = dpt.run("inspect", tmp_path / "train-0.h5")
    assert said.code == 0 and f"of /weights: sum {w.sum():.6g}, {(w == 0).sum()} of 7 samples count nothing" in said.out, said


@pytest.mark.parametrize("weighted", [False, True])
def test_balanced_classes_are_weights(tmp_path, weighted):
    """As if the file had them: w / (sum of w in the class), scaled so that all weigh what they did."""
    job = make_job(tmp_path, weights=weighted)
    for ranks in (0, 3):
        train(job, tmp_path / f"balanced{ranks}", "data.class_weights=balanced", "comm.reduction=reproducible", ranks=ranks)
    x, y, w = samples(N, 1)
    w = w.astype(float) if weighted else np.ones(N)
    of = np.zeros(K)
    np.add.at(of, y, w)
    balanced = (w * of.sum() / (K * of[y])).astype("f4")
    assert np.bincount(y, balanced) == pytest.approx(of.sum() / K)
    for i, part in enumerate(np.split(np.arange(N), (7, 40))):
        write(tmp_path / f"train-{i}.h5", x[part], y[part], balanced[part])
    train(job, tmp_path / "given", "comm.reduction=reproducible")
    for ranks in (0, 3):
        assert [e["loss"] for e in dpt.events(tmp_path / f"balanced{ranks}", "train")] == [e["loss"] for e in dpt.events(tmp_path / "given", "train")]
        with h5py.File(tmp_path / f"balanced{ranks}/checkpoints/latest") as a, h5py.File(tmp_path / "given/checkpoints/latest") as b:
            for name in ("weight", "bias"):
                assert (a[f"params/dense1/{name}"][()] == b[f"params/dense1/{name}"][()]).all()
            assert b"class_weights" in a["job"][()] and b"class_weights" not in b["job"][()]


GIVEN = np.array([0.5, 3, 1, 0])


@pytest.mark.parametrize("given", ["[0.5, 3, 1, 0]", "{1: 3, 0: 0.5, 3: 0}", "{odd one: 3, '0': 0.5, last: 0}"])
def test_classes_have_weights_of_their_own(tmp_path, given):
    """As if the file had them: PyTorch's weights of CrossEntropyLoss, as a list or by names and numbers."""
    assert K == len(GIVEN)
    job = make_job(tmp_path)
    if "odd" in given:
        for i in range(3):
            with h5py.File(tmp_path / f"train-{i}.h5", "a") as file:
                file["y"].attrs["classes"] = ["none", "odd one", "2", "last"]
    train(job, tmp_path / "own", f"data.class_weights={given}", "comm.reduction=reproducible", ranks=2)
    x, y, w = samples(N, 1)
    for i, part in enumerate(np.split(np.arange(N), (7, 40))):
        write(tmp_path / f"train-{i}.h5", x[part], y[part], (w.astype(float) * GIVEN[y])[part].astype("f4"))
    train(job, tmp_path / "file", "comm.reduction=reproducible")
    assert [e["loss"] for e in dpt.events(tmp_path / "own", "train")] == [e["loss"] for e in dpt.events(tmp_path / "file", "train")]
    # What is written into the run's job reads the same; another weight is another job.
    assert dpt.run("schema", "--check", tmp_path / "own/job.yaml").code == 0
    result = dpt.run(job, "--output", tmp_path / "own", "--set", "data.class_weights={1: 2}", "--set", "train.epochs=9")
    assert result.code == 78 and "data.class_weights" in result.err, result


LABELS = """
data: {{train: {data}/labels.h5, test: {data}/labels.h5}}
model: {{type: sequential, layers: [{{dense: {{outputs: 3, init: {init}}}}}]}}
loss: binary_cross_entropy
batch: {{global: 40, micro: 10}}
optimizer: {{type: sgd, lr: 0.1}}
train: {{steps: 1}}
log: {{every: 1 steps}}
comm: {{reduction: reproducible}}
"""


def test_labels_that_hold_count_more(tmp_path):
    """PyTorch's pos_weight of BCEWithLogitsLoss, in training alone; balanced: as many negatives as there are to a positive."""
    dice = np.random.default_rng(0)
    x, y = dice.normal(size=(40, 5)).astype("f4"), (dice.random((40, 3)) < [0.5, 0.1, 0.3]).astype("f4")
    with h5py.File(tmp_path / "labels.h5", "w") as file:
        file["x"], file["y"] = x, y
        file["y"].attrs["classes"] = ["red", "round", "large"]
    ratio = (1 - y).sum(0) / y.sum(0)
    for k, (given, weights) in enumerate((("none", [1, 1, 1]), ("[2, 0.5, 1]", [2, 0.5, 1]), ("{round: 7, 2: 0.25}", [1, 7, 0.25]), ("balanced", ratio))):
        job = dpt.write_job(tmp_path / "labels.yaml", LABELS.format(data=tmp_path, init="zero"))
        first = {}
        for ranks in (0, 2):
            folder = tmp_path / f"run{k}-{ranks}"
            train(job, folder, f"data.class_weights={given}", ranks=ranks)
            with h5py.File(folder / "checkpoints/latest") as file:
                first[ranks] = next(iter(file["params"].values()))["weight"][()]
            # Of logits that are 0: log 2 an element, and a slope of a half.
            element = np.where(y == 1, weights, 1)
            assert dpt.events(folder, "train")[0]["loss"] == pytest.approx(np.log(2) * element.mean(), rel=1e-6), given
            slope = (np.where(y == 1, -np.array(weights), 1) * 0.5 / 3).T @ x / 40
            np.testing.assert_allclose(first[ranks], -0.1 * slope, rtol=1e-5, atol=1e-8)
        assert (first[0] == first[2]).all()
        # The test, of the same samples, is of the plain loss, and what is right is what was right.
        test = dpt.events(folder, "eval")[-1]
        z = x @ first[2].T.astype(float)
        bias = -0.1 * (np.where(y == 1, -np.array(weights), 1) * 0.5 / 3).mean(0)
        plain = np.log1p(np.exp(z + bias)) - y * (z + bias)
        assert test["loss"] == pytest.approx(plain.mean(), rel=1e-5) and test["accuracy"] == pytest.approx(((z + bias > 0) == (y == 1)).all(1).mean())
    for given, said in (("[2]", "has 1 weight, the training samples have 3 labels"), ("{rond: 2}", "'rond' is no label of the training samples; did you mean 'round'?")):
        result = dpt.run(job, "--output", tmp_path / "wrong", "--set", f"data.class_weights={given}")
        assert result.code == 78 and said in result.err, result
    result = dpt.run(job, "--output", tmp_path / "wrong", "--set", "data.class_weights=balanced", "--set", "data.augment={mixup: 0.2}")
    assert result.code == 78 and "does not go with mixup and cutmix" in result.err, result
    columns = "column,name,role,fill,value\n" + "".join(f"{i + 1},c{i},number,,\n" for i in range(5)) + "".join(f"{i + 6},l{i},label,,\n" for i in range(3))
    with h5py.File(tmp_path / "labels.h5", "a") as file:
        del file["y"].attrs["classes"]
        file["columns"] = np.bytes_(columns)
    train(job, tmp_path / "columns", "data.class_weights={l1: 7, l2: 0.25}")
    assert dpt.events(tmp_path / "columns", "train")[0]["loss"] == dpt.events(tmp_path / "run2-0", "train")[0]["loss"]
    with h5py.File(tmp_path / "labels.h5", "a") as file:
        file["y"][3, 1] = 0.5
    result = dpt.run(job, "--output", tmp_path / "wrong", "--set", "data.class_weights=balanced")
    assert result.code == 65 and "data.train: sample 3: a label is 0.5; data.class_weights is for labels that are 0 or 1" in result.err, result


def test_wrong_class_weights_are_told(tmp_path):
    job = make_job(tmp_path)
    for given, said in (("[1, 2]", "data.class_weights: has 2 weights, the training samples have 4 classes"),
                        ("{ill: 2}", "data.class_weights: 'ill' is no class of the training samples: they are numbered from 0"),
                        ("{0: -1}", "data.class_weights.0: -1 is not "), ("some", "'some' is none of none, balanced")):
        result = dpt.run(job, "--output", tmp_path / "run", "--set", f"data.class_weights={given}")
        assert result.code == 78 and said in result.err, result


def test_only_classes_are_balanced(tmp_path):
    job = make_job(tmp_path, loss="mse", data="{train: synthetic}")
    result = dpt.run(job, "--output", tmp_path / "run", "--set", "data.class_weights=balanced")
    assert result.code == 78 and "data.class_weights: the training samples have targets, not classes" in result.err, result
