"""Shards of other programs train; bad ones end with their exit code and a line that names them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import make_h5  # noqa: E402

DPTRAIN = Path(os.environ.get("DPTRAIN", "build/dptrain")).resolve()
BAD_DATA, BAD_JOB = 65, 78

JOB = """\
seed: 3
data:
{data}
model: {{type: mlp, hidden: [16], outputs: {outputs}}}
loss: {loss}
batch: {{global: 32, micro: 8}}
optimizer: {{type: sgd, lr: 0.01}}
train: {{steps: 2}}
device: {{kind: cpu, threads: 1}}
"""


def train(folder, data, outputs=10, loss="cross_entropy", sets=(), ranks=None):
    job = folder / "job.yaml"
    lines = "\n".join("  " + line for line in data)
    job.write_text(JOB.format(data=lines, outputs=outputs, loss=loss))
    command = [str(DPTRAIN), "train", str(job), "--output", str(folder / "run")]
    for one in ("train.steps=2", *sets):
        command += ["--set", one]
    if ranks:
        command += ["--ranks", str(ranks)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def refused(result, code, *words):
    assert result.returncode == code, result.stderr
    for word in words:
        assert word in result.stderr
    assert "Traceback" not in result.stderr
    return True


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize("name", sorted(make_h5.GOOD))
def test_good(tmp_path, name, cache):
    path = make_h5.GOOD[name](tmp_path / "a.h5")
    result = train(tmp_path, [f"train: {path}", f"cache: {cache}"])
    assert result.returncode == 0, result.stderr


def test_the_same_losses_wherever_the_samples_are(tmp_path):
    """Contiguous or packed, in memory or not, in one file or in three: the same numbers."""
    x, y = make_h5.pixels(), make_h5.classes()
    losses = set()
    for k, (how, cache, parts) in enumerate(
        [
            ({}, "memory", [0, 64]),
            ({}, "none", [0, 64]),
            ({"compression": "gzip"}, "none", [0, 64]),
            ({}, "none", [0, 1, 30, 64]),
            ({"chunks": (3, 1, 8, 4)}, "memory", [0, 1, 30, 64]),
        ]
    ):
        folder = tmp_path / str(k)
        folder.mkdir()
        for i, (a, b) in enumerate(zip(parts, parts[1:])):
            plain = {} if b - a < 3 else how
            make_h5.write(folder / f"s{i}.h5", x[a:b], y[a:b], **plain)
        result = train(
            folder, [f"train: {folder}/s*.h5", f"cache: {cache}"], sets=["log.every=1 steps"]
        )
        assert result.returncode == 0, result.stderr
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        losses.add(tuple(line.split('"loss":')[1].split(",")[0] for line in lines if '"train"' in line))
    assert len(losses) == 1


def test_regression_targets(tmp_path):
    x = make_h5.floats(shape=(5,))
    for name, y in (
        ("one", x[:, 0]),
        ("two", x[:, :2]),
        ("whole", np.arange(len(x), dtype=np.int32) - 3),
    ):
        folder = tmp_path / name
        folder.mkdir()
        path = make_h5.write(folder / "a.h5", x, y, names=("x", "y"))
        result = train(folder, [f"train: {path}"], outputs=2 if name == "two" else 1, loss="mse")
        assert result.returncode == 0, result.stderr


def losses(folder):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [line.split('"loss":')[1].split(",")[0] for line in lines if '"loss":' in line]


@pytest.mark.parametrize("loss, types", [("binary_cross_entropy", ("f4", "u1", "?", "i1", "i8", ">i4", "u2")), ("cross_entropy", ("i4", "u1", "f4", "f8", ">f8"))])
def test_labels_of_any_type_are_the_same_labels(tmp_path, loss, types):
    """Multi-label [N, K], and classes [N]: bools, whole numbers of any size, floats."""
    several = np.random.default_rng(4).random((64, 3)) < 0.3
    seen = set()
    for k, dtype in enumerate(types):
        folder = tmp_path / str(k)
        folder.mkdir()
        y = several if loss == "binary_cross_entropy" else make_h5.classes(k=3)
        path = make_h5.write(folder / "a.h5", make_h5.pixels(), y.astype(dtype), crc=dtype != "?")
        result = train(folder, [f"train: {path}", f"test: {path}"], outputs=3, loss=loss, sets=["log.every=1 steps"])
        assert result.returncode == 0, result.stderr
        seen.add(tuple(losses(folder)))
    assert len(seen) == 1 and len(seen.pop()) > 2


def test_floats_that_are_no_classes(tmp_path):
    """A fraction, and what no class can be: told with its place, whether the outputs are counted first or not."""
    for value, shown in ((0.5, "0.5"), (-1, "-1"), (np.nan, "nan"), (3e9, "3e+09"), (1e300, "1e+300")):
        y = make_h5.classes().astype("f8")
        y[7] = value
        path = make_h5.write(tmp_path / "a.h5", make_h5.pixels(), y)
        for outputs in (10, "auto"):
            refused(train(tmp_path, [f"train: {path}"], outputs=outputs), BAD_DATA, f"a.h5: /labels[7] is {shown}", "`loss: mse` learns regression targets")


@pytest.mark.parametrize("first, names, n, doubt", [(1, None, 64, True), (0, None, 64, False), (1, list("abcde"), 64, False), (1, None, 12, False)])
def test_labels_from_one(tmp_path, first, names, n, doubt):
    """MATLAB's classes begin at 1: class 0 has an output that nothing is learned for."""
    path = make_h5.write(tmp_path / "a.h5", make_h5.pixels(n), make_h5.classes(n, 4) + first)
    if names:
        with h5py.File(path, "r+") as f:
            f["labels"].attrs["classes"] = names
    result = train(tmp_path, [f"train: {path}"], outputs=5, ranks=2)
    assert result.returncode == 0 and (result.stderr.count("a.h5: no sample has the class 0") == 1) == doubt, result.stderr
    assert ("/labels begins at 1, subtract 1" in result.stderr) == doubt


@pytest.mark.parametrize("names, said", [
    (list("aacd"), "the data call classes 0 and 1 both 'a': predictions show them as one"), (list("ab"), "the data name 2 of 4 classes"), (list("abcd"), None),
])
def test_names_that_do_not_name_each_class(tmp_path, names, said):
    path = make_h5.write(tmp_path / "a.h5", make_h5.pixels(), make_h5.classes(k=4))
    with h5py.File(path, "r+") as f:
        f["labels"].attrs["classes"] = names
    result = train(tmp_path, [f"train: {path}", "valid: 0.2"], outputs=4, ranks=2)
    assert result.returncode == 0 and result.stderr.count("the data ") == (said is not None) and (said or "") in result.stderr, result.stderr


def test_one_file_for_training_and_its_test(tmp_path):
    """Told by what the file is, not by its name; parts of one set are no doubt."""
    a = make_h5.write(tmp_path / "a.h5", make_h5.pixels(), make_h5.classes())
    b = make_h5.write(tmp_path / "b.h5", make_h5.pixels(seed=1), make_h5.classes())
    os.link(a, tmp_path / "c.h5")
    said = "in data.train, too: its scores are of what was learned"
    for data, part in (("test: c.h5", "test"), ("valid: [b.h5, c.h5]", "valid"), ("test: b.h5", None), ("valid: 0.2", None)):
        data = data.replace("b.h5", str(b)).replace("c.h5", f"{tmp_path}/c.h5")
        result = train(tmp_path, [f"train: {a}", data], sets=[f"output={tmp_path}/{part}"])
        assert result.returncode == 0 and result.stderr.count(said) == (part is not None), result.stderr
        assert part is None or f"data.{part}: {tmp_path}/c.h5 is {said}" in result.stderr, result.stderr
        shutil.rmtree(tmp_path / "run")


def test_no_file(tmp_path):
    refused(train(tmp_path, [f"train: {tmp_path}/none-*.h5"]), BAD_JOB, "data.train", "no file matches", f"convert FORMAT IN... --output {tmp_path}/none` makes")
    refused(train(tmp_path, ["train: none-*.h5"]), BAD_JOB, "(relative to ")


def test_the_same_file_twice(tmp_path):
    path = make_h5.GOOD["contiguous"](tmp_path / "a.h5")
    refused(train(tmp_path, [f"train: [{path}, {path}]"]), BAD_JOB, "same file")


def test_not_hdf5(tmp_path):
    (tmp_path / "a.h5").write_text("no shard\n" * 100)
    refused(train(tmp_path, [f"train: {tmp_path}/a.h5"]), BAD_DATA, "a.h5 is not an HDF5 file")
    (tmp_path / "a.h5").write_bytes(b"")
    refused(train(tmp_path, [f"train: {tmp_path}/a.h5"]), BAD_DATA, "a.h5 is empty")


@pytest.mark.parametrize("part", [0.2, 0.6, 0.99])
def test_truncated(tmp_path, part):
    path = make_h5.GOOD["contiguous"](tmp_path / "a.h5")
    os.truncate(path, int(os.path.getsize(path) * part))
    refused(train(tmp_path, [f"train: {path}"]), BAD_DATA, "a.h5")


@pytest.mark.parametrize("cache", ["memory", "none"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_damaged(tmp_path, cache, ranks):
    path = make_h5.GOOD["contiguous"](tmp_path / "a.h5")
    with h5py.File(path) as f:
        offset = f["images"].id.get_offset()
    with open(path, "r+b") as f:
        f.seek(offset + 1000)
        byte = f.read(1)[0]
        f.seek(offset + 1000)
        f.write(bytes([byte ^ 1]))
    result = train(tmp_path, [f"train: {path}", f"cache: {cache}"], ranks=ranks)
    refused(result, BAD_DATA, "a.h5: /images does not match its checksum", "damaged")
    # as written: the flipped bit does no harm but is there
    result = train(tmp_path, [f"train: {path}", f"cache: {cache}", "verify: false"], ranks=ranks)
    assert result.returncode == 0, result.stderr


def weighted(path, weights, name="weights"):
    if not path.exists():
        make_h5.write(path, make_h5.pixels(), make_h5.classes())
    with h5py.File(path, "a") as f:
        f[name] = weights
    return path


CASES = {
    "no images": (lambda p: make_h5.write(p, make_h5.pixels(), make_h5.classes(), names=("data", "y")),
                  ["neither /images nor /x", "/data"]),
    "wrong rank": (lambda p: make_h5.write(p, make_h5.pixels(shape=(1, 1, 8, 8)), make_h5.classes()),
                   ["/images is [64, 1, 1, 8, 8]"]),
    "wrong type": (lambda p: make_h5.write(p, make_h5.pixels().astype(np.int32), make_h5.classes()),
                   ["/images holds int32 values"]),
    "text": (lambda p: make_h5.write(p, make_h5.pixels(), np.array([b"a"] * 64)),
             ["/labels holds string values"]),
    "counts": (lambda p: make_h5.write(p, make_h5.pixels(), make_h5.classes(63)),
               ["/images has 64 samples, /labels has 63"]),
    "negative": (lambda p: make_h5.write(p, make_h5.pixels(), make_h5.classes().astype(np.int32) - 1),
                 ["/labels[0] is -1"]),
    "too large": (lambda p: make_h5.write(p, make_h5.pixels(), make_h5.classes(k=11)),
                  ["is 10, the model has 10 outputs (0 to 9)"]),
    "no distribution": (lambda p: make_h5.write(p, make_h5.pixels(), np.full((64, 10), 0.2, "f4")),
                        ["/labels[0] is no distribution"]),
    "layout": (lambda p: make_h5.write(p, make_h5.pixels(), make_h5.classes(), layout="HWCN"),
               ["attribute layout of /images is 'HWCN'"]),
    "h5py's own filter": (
        lambda p: make_h5.write(p, make_h5.pixels(), make_h5.classes(), compression="lzf"),
        ["/images was written with the HDF5 filter 'lzf'", "missing here"]),
    "no list of weights": (lambda p: weighted(p, np.ones((64, 2))), ["/weights is [64, 2] of float64, not [N] numbers"]),
    "weights in words": (lambda p: weighted(p, np.array([b"a"] * 64)), ["/weights is [64] of string, not [N] numbers"]),
    "too few weights": (lambda p: weighted(p, np.ones(63)), ["/images has 64 samples, /weights has 63"]),
    "negative weight": (lambda p: weighted(p, -np.arange(64)), ["/weights[1] is -1: a sample counts 0 or more"]),
    "no number as weight": (lambda p: weighted(p, np.where(np.arange(64) == 5, np.nan, 1)), ["/weights[5] is nan"]),
    "endless weight": (lambda p: weighted(p, np.full(64, 1e300)), ["/weights[0] is inf"]),
    "weights and mask": (lambda p: weighted(weighted(p, np.ones(64)), np.ones(64), "mask"),
                         ["holds both /weights and /mask"]),
    "no sample": (lambda p: make_h5.write(p, make_h5.pixels(0), make_h5.classes(0)), ["no sample"]),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_bad(tmp_path, name):
    make, words = CASES[name]
    path = make(tmp_path / "a.h5")
    refused(train(tmp_path, [f"train: {path}"]), BAD_DATA, "a.h5", *words)


@pytest.mark.parametrize("shape, doubt", [
    ((16, 12, 1), True), ((16, 12, 3), True), ((8, 8, 4), True), ((1, 8, 8), False), ((3, 8, 4), False), ((4, 6, 3), False),
    ((16, 4, 4), False), ((16, 3, 3), False), ((16, 12, 2), False), ((16, 12, 12), False),
])
def test_channels_that_seem_to_be_last(tmp_path, shape, doubt):
    """Read as they always were, with a word about it; the attribute settles it either way."""
    path = make_h5.write(tmp_path / "a.h5", make_h5.pixels(shape=shape), make_h5.classes())
    said = "a.h5: /images is [N, {}, {}, {}] without the attribute `layout`, so a sample has {} channels of {}x{}: if it is NHWC, set"
    said = said.format(*shape, *shape)
    result = train(tmp_path, [f"train: {path}"], sets=("eval.every=never",), ranks=2)
    assert result.returncode == 0 and (said in result.stderr) == doubt and result.stderr.count("if it is NHWC") == doubt, result.stderr
    if not doubt or shape[2] != 3:
        return
    refused(train(tmp_path, [f"train: {path}", "normalize: {mean: [0.1, 0.2, 0.3]}"]), BAD_JOB, "have 16 channels", said)
    for layout, samples in (("NHWC", "3x16x12"), ("NCHW", "16x12x3")):
        with h5py.File(path, "r+") as file:
            file["images"].attrs["layout"] = layout
        shutil.rmtree(tmp_path / "run")
        result = train(tmp_path, [f"train: {path}"])
        assert result.returncode == 0 and f"samples {samples} " in result.stderr and "if it is NHWC" not in result.stderr, result.stderr


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("cache", ["memory", "none"])
def test_not_a_number(tmp_path, value, cache):
    x = make_h5.floats()
    x[41, 0, 3, 3] = value
    path = make_h5.write(tmp_path / "a.h5", x, make_h5.classes())
    result = train(tmp_path, [f"train: {path}", f"cache: {cache}"])
    refused(result, BAD_DATA, "a.h5", "41", "NaN" if np.isnan(value) or cache == "none" else "infinite")


def test_shards_that_differ(tmp_path):
    make_h5.write(tmp_path / "a.h5", make_h5.pixels(), make_h5.classes())
    make_h5.write(tmp_path / "b.h5", make_h5.pixels(shape=(1, 9, 8)), make_h5.classes())
    refused(train(tmp_path, [f"train: {tmp_path}/*.h5"]), BAD_DATA, "a.h5", "b.h5", "1x8x8", "1x9x8")


def test_weights_in_some_shards_only(tmp_path):
    weighted(tmp_path / "a.h5", np.ones(64))
    make_h5.write(tmp_path / "b.h5", make_h5.pixels(), make_h5.classes())
    refused(train(tmp_path, [f"train: {tmp_path}/*.h5"], ranks=2), BAD_DATA, "a.h5 has /weights, ", "b.h5 has none")


def test_a_test_set_unlike_the_model_input(tmp_path):
    a = make_h5.write(tmp_path / "a.h5", make_h5.pixels(), make_h5.classes())
    b = make_h5.write(tmp_path / "b.h5", make_h5.pixels(shape=(3, 8, 8)), make_h5.classes())
    refused(train(tmp_path, [f"train: {a}", f"test: {b}"]), BAD_DATA, "1x8x8", "3x8x8")


def test_normalisation_unlike_the_channels(tmp_path):
    path = make_h5.GOOD["nhwc"](tmp_path / "a.h5")
    data = [f"train: {path}", "normalize: {mean: [0.1, 0.2], std: [1]}"]
    refused(train(tmp_path, data), BAD_JOB, "data.normalize.mean has 2 numbers", "3 channels")


def test_width_of_targets_unlike_the_model(tmp_path):
    x = make_h5.floats(shape=(5,))
    path = make_h5.write(tmp_path / "a.h5", x, x[:, :2])
    refused(train(tmp_path, [f"train: {path}"], outputs=3, loss="mse"), BAD_JOB, "3 outputs", "2 numbers")


def named(path, names, samples=64):
    make_h5.write(path, make_h5.pixels(samples), make_h5.classes(samples, k=3))
    if names is not None:
        with h5py.File(path, "a") as f:
            f["labels"].attrs["classes"] = names
    return path


PETS = ["cat", "dog", "horse"]
FIXED = np.array(PETS, "S9")
OTHER = ["cat", "horse", "dog"]


@pytest.mark.parametrize("names", [PETS, FIXED, ["cat", "dog"], [*PETS, "owl"], None], ids=["same", "fixed", "fewer", "more", "none"])
def test_classes_that_are_called_alike(tmp_path, names):
    """As far as both name them, however the strings are stored; shards without names go with any."""
    a, b = named(tmp_path / "a.h5", PETS), named(tmp_path / "b.h5", names)
    for data in ([f"train: [{a}, {b}]"], [f"train: {a}", f"valid: {b}", f"test: {b}"], [f"train: {b}", f"test: {a}"]):
        result = train(tmp_path, data)
        assert result.returncode == 0, result.stderr
        shutil.rmtree(tmp_path / "run")


@pytest.mark.parametrize("ranks", [None, 2])
def test_classes_that_are_called_otherwise(tmp_path, ranks):
    """Training on them would teach wrong labels: within a set, between sets, and between those that have names."""
    a, b, bare = named(tmp_path / "a.h5", PETS), named(tmp_path / "b.h5", OTHER), named(tmp_path / "bare.h5", None)
    short = named(tmp_path / "short.h5", ["cat"])
    words = ["b.h5: class 1 is 'horse', in ", "a.h5 it is 'dog'", "--like"]
    for data in (
        [f"train: [{a}, {b}]"],
        [f"train: [{bare}, {short}, {a}, {b}]"],
        [f"train: {a}", f"test: {b}"],
        [f"train: {a}", f"valid: {b}"],
        [f"train: {bare}", f"valid: [{short}, {a}]", f"test: [{bare}, {b}]"],
        [f"train: {short}", f"valid: {a}", f"test: {b}"],
    ):
        assert refused(train(tmp_path, data, ranks=ranks), BAD_DATA, *words), data
        assert not (tmp_path / "run" / "checkpoints").exists()


def test_odd_names_of_classes(tmp_path):
    """They are data: shown on one line, and what is no list of strings is none."""
    a, b = named(tmp_path / "a.h5", ["x", "ä€"]), named(tmp_path / "b.h5", ["x", "\n\x1b[31m" + 300 * "y"])
    result = train(tmp_path, [f"train: [{a}, {b}]"])
    assert refused(result, BAD_DATA, "class 1 is '??[31myyy", "it is 'ä€'")
    assert len([line for line in result.stderr.splitlines() if "class 1" in line]) == 1 and "\x1b" not in result.stderr
    for k, odd in enumerate(([1, 2, 3], 7.5, np.zeros(0, "S3"))):
        path = named(tmp_path / f"odd{k}.h5", odd)
        assert train(tmp_path, [f"train: [{a}, {path}]"]).returncode == 0, odd
        shutil.rmtree(tmp_path / "run")
