"""`dptrain predict`: against a forward pass in NumPy, for any rank count, from every kind of input; and its mistakes."""

import csv
import gzip
import os
import resource
import signal
import struct
import subprocess
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, os.path.abspath("scripts/lib"))
import dpt  # noqa: E402

NAMES = ["bird", "cat", "dog", "elk"]
SHAPE = (1, 6, 5)
MEAN, STD = 0.3, 0.5


def samples(n, seed=0):
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (n, *SHAPE), dtype=np.uint8), draw.integers(0, len(NAMES), n)


def write_shard(path, images, labels=None, names=None, **attributes):
    with h5py.File(path, "w") as f:
        data = f.create_dataset("images", data=images)
        for key, value in attributes.items():
            data.attrs[key] = value
        if labels is not None:
            f["labels"] = labels
            if names:
                f["labels"].attrs["classes"] = [name.encode() for name in names]
    return str(path)


def sparse_shard(path, n):
    """So many samples that were never written."""
    with h5py.File(path, "w") as f:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        h5py.h5d.create(f.id, b"images", h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((n, *SHAPE)), plist)
    return str(path)


class Trained:
    """A small perceptron, trained some steps, and what NumPy says of it."""

    def __init__(self, folder):
        self.folder = folder
        images, labels = samples(200, seed=1)
        self.train = write_shard(folder / "train.h5", images, labels.astype(np.uint8), NAMES)
        self.job = dpt.write_job(folder / "job.yaml", f"""
name: small
data: {{train: {self.train}, normalize: {{mean: [{MEAN}], std: [{STD}]}}}}
model: {{type: mlp, hidden: [16, 12], activation: tanh, dropout: 0.2, outputs: {len(NAMES)}}}
batch: {{global: 20}}
optimizer: {{type: adam, lr: 0.01}}
train: {{steps: 30}}
output: {folder / "run"}
""")
        result = dpt.run(self.job, "--quiet")
        assert result.code == 0, result
        self.run = str(folder / "run")
        with h5py.File(folder / "run" / "checkpoints" / "latest") as f:
            layers = {}
            f["params"].visititems(lambda name, x: layers.__setitem__(name, x[()].astype(np.float64))
                                   if isinstance(x, h5py.Dataset) else None)
        self.layers = [(layers[k], layers[k.replace("weight", "bias")]) for k in sorted(layers) if k.endswith("weight")]

    def logits(self, images):
        x = (images.reshape(len(images), -1) / 255.0 - MEAN) / STD
        for i, (weight, bias) in enumerate(self.layers):
            x = x @ weight.T + bias
            x = np.tanh(x) if i < len(self.layers) - 1 else x
        return x

    def predict(self, *words, ranks=0, out=None, code=0, **more):
        words = [*words, *(["--out", out] if out else [])]
        result = dpt.run("predict", self.job, "--checkpoint", self.run, "--set", "device.threads=1", *words, ranks=ranks, **more)
        assert result.code == code, result
        return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Trained(tmp_path_factory.mktemp("trained"))


def read(path):
    with h5py.File(path) as f:
        return {k: v[()] for k, v in f.items()}, dict(f.attrs)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def check(trained, out, images, labels=None):
    """The file against NumPy."""
    got, attributes = read(out)
    want = trained.logits(images)
    assert got["logits"].dtype == np.float32 and got["logits"].shape == want.shape
    assert np.abs(got["logits"] - want).max() < 1e-5 * max(1, np.abs(want).max())
    assert np.abs(got["probabilities"] - softmax(got["logits"].astype(np.float64))).max() < 1e-6
    assert got["labels"].dtype == np.int32 and (got["labels"] == got["logits"].argmax(1)).all()
    assert attributes["job"] == b"small" and attributes["step"] == 30 and attributes["checkpoint"] == b"step-00000030.h5"
    assert ("targets" in got) == (labels is not None) == ("loss" in got)
    if labels is not None:
        assert (got["targets"] == labels).all()
        assert np.abs(got["loss"] + np.log(softmax(want)[np.arange(len(labels)), labels])).max() < 1e-4
    return got


@pytest.mark.parametrize("n", [1, 17, 64, 777])
def test_any_number_of_samples_on_any_ranks(trained, tmp_path, n):
    """One sample, a short last micro-batch, a whole one, several windows (256 samples a rank here)."""
    images, labels = samples(n, seed=n)
    shards = [write_shard(tmp_path / f"s-{i}.h5", images[part], labels[part].astype(np.int64))
              for i, part in enumerate(np.array_split(np.arange(n), min(n, 3)))]
    files = []
    for ranks in 0, 1, 2, 3:
        out = tmp_path / f"{ranks}.h5"
        result = trained.predict("--input", tmp_path / "s-*.h5", out=out, ranks=ranks)
        check(trained, out, images, labels)
        files.append(out.read_bytes())
        want = (trained.logits(images).argmax(1) == labels).mean()
        assert f"accuracy {want:.4f}, loss " in result.err and f"{n} sample" in result.err and result.out == ""
    assert len(set(files)) == 1
    assert len(shards) == len([f for f in os.listdir(tmp_path) if f.startswith("s-")])
    assert not [f for f in os.listdir(tmp_path) if "tmp" in f]


def table_of(text):
    return list(csv.DictReader(text.splitlines()))


class close(str):
    """Text of a number that is near one."""

    def __new__(cls, value):
        made = super().__new__(cls, value)
        made.value = value
        return made

    def __eq__(self, other):
        return abs(float(other) - self.value) < 1e-5

    __hash__ = str.__hash__


@pytest.mark.parametrize("ranks", [0, 3])
def test_tables_and_arrays(trained, tmp_path, ranks):
    """What the three kinds of files say, and standard output, is the same; standard input is an input like any other."""
    images, labels = samples(300, seed=4)
    source = write_csv(tmp_path / "s.csv", images, [NAMES[k] for k in labels], [f"p{i}" for i in range(30)] + ["what"])
    for kind in "csv", "npy", "h5":
        trained.predict(source, out=tmp_path / f"o.{kind}", ranks=ranks)
    want = check(trained, tmp_path / "o.h5", images, labels)
    best = want["probabilities"].max(1)
    assert (np.load(tmp_path / "o.npy") == want["probabilities"]).all()
    printed = trained.predict(source, ranks=ranks)
    assert printed.out == (tmp_path / "o.csv").read_text() and printed.err.startswith("accuracy ")
    rows = table_of(printed.out)
    assert list(rows[0]) == ["sample", "true", "class", "probability"] and [row["sample"] for row in rows] == [str(i) for i in range(300)]
    assert [row["true"] for row in rows] == [NAMES[k] for k in labels] and [row["class"] for row in rows] == [NAMES[k] for k in want["labels"]]
    assert (np.array([row["probability"] for row in rows], np.float32) == best).all()
    with open(source, encoding="utf-8") as f:
        piped = trained.predict("-", ranks=ranks, given=f.read())
    assert piped.out == printed.out and piped.err == printed.err


def test_nobody_has_to_read_all(trained, tmp_path):
    """As `| head`: no error, and it ends long before all samples are done."""
    shard = sparse_shard(tmp_path / "s.h5", 10_000_000)
    run = subprocess.Popen([dpt.BINARY, "predict", trained.job, "--checkpoint", trained.run, shard], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout.readline() == b"sample,class,probability\n" and run.stdout.readline().startswith(b"0,")
    run.stdout.close()
    said = run.stderr.read()
    assert run.wait(60) == 0 and said == b"", said


def test_threads_change_nothing(trained, tmp_path):
    images, labels = samples(500)
    shard = write_shard(tmp_path / "s.h5", images)
    for threads in 1, 3:
        trained.predict("--set", f"device.threads={threads}", "--input", shard, out=tmp_path / f"{threads}.h5")
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()


def test_as_eval(trained, tmp_path):
    images, labels = samples(300, seed=5)
    shard = write_shard(tmp_path / "s.h5", images, labels)
    said = trained.predict("--input", shard, out=tmp_path / "o.h5").err.splitlines()[0]
    evaluated = dpt.run("eval", trained.job, "--checkpoint", trained.run, "--set", f"data.test={shard}")
    assert evaluated.out.strip() == "test " + said


def write_idx(path, array, opener=open):
    with opener(path, "wb") as f:
        f.write(struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())
    return str(path)


def write_csv(path, images, labels=None, header=None):
    with open(path, "w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        if header:
            out.writerow(header)
        for i, row in enumerate(images.reshape(len(images), -1)):
            out.writerow([*row.tolist(), *([labels[i]] if labels is not None else [])])
    return str(path)


def test_every_kind_of_input_gives_the_same(trained, tmp_path):
    n = 300
    images, labels = samples(n, seed=9)
    one, two = images[:100], images[100:]
    words = [NAMES[k] for k in labels]
    header = [f"p{i}" for i in range(30)] + ["what"]
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "f.npy", images.reshape(n, 30) / np.float32(255))
    np.save(tmp_path / "y.npy", labels)
    np.save(tmp_path / "d.npy", labels.astype(">f8").reshape(-1, 1))
    np.savez_compressed(tmp_path / "z.npz", arr_0=images, arr_1=labels.astype("f4"))
    folder = tmp_path / "pictures"
    for i in range(n):
        path = folder / words[i] / f"{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[i, 0]).save(path)
    inputs = {
        "nhwc": ([write_shard(tmp_path / "nhwc.h5", images.transpose(0, 2, 3, 1), layout="NHWC")], None),
        "flat": ([write_shard(tmp_path / "flat.h5", images.reshape(n, -1))], None),
        "f64": ([write_shard(tmp_path / "f64.h5", images / 255.0)], None),
        "shards": ([write_shard(tmp_path / "a.h5", one), write_shard(tmp_path / "b.h5", two)], None),
        "idx": ([write_idx(tmp_path / "i.idx", images[:, 0]), "--labels",
                 write_idx(tmp_path / "l.gz", labels.astype(np.uint8), gzip.open)], labels),
        "idx.gz": ([write_idx(tmp_path / "a.gz", one[:, 0], gzip.open), write_idx(tmp_path / "b.gz", two[:, 0], gzip.open)], None),
        "npy": ([tmp_path / "x.npy", "--labels", tmp_path / "y.npy"], labels),
        "npy-doubles": ([tmp_path / "x.npy", "--labels", tmp_path / "d.npy"], labels),
        "npz": ([tmp_path / "z.npz"], labels),
        "h5-floats": ([write_shard(tmp_path / "l.h5", images, labels.astype("f4"))], labels),
        "npy-float": ([tmp_path / "f.npy"], None),
        "csv": ([write_csv(tmp_path / "plain.csv", images)], None),
        "csv-labels": ([write_csv(tmp_path / "n.csv", images, labels)], labels),
        "csv-names": ([write_csv(tmp_path / "w.csv", images, words, header), "--label", "what"], labels),
        "csv-two": ([write_csv(tmp_path / "a.csv", one, header=header[:-1]), write_csv(tmp_path / "b.csv", two)], None),
    }
    for name, (words_, truth) in inputs.items():
        for ranks in (0, 2) if name in ("idx.gz", "csv-labels", "shards") else (0,):
            out = tmp_path / f"{name}-{ranks}.h5"
            trained.predict("--input", words_[0], *words_[1:], out=out, ranks=ranks)
            check(trained, out, images, truth)
    result = trained.predict("--input", folder, out=tmp_path / "p.hdf5", ranks=3)
    assert "accuracy" in result.err
    order = sorted(range(n), key=lambda i: f"{words[i]}/{i:03}.png")
    got = check(trained, tmp_path / "p.hdf5", images[order], labels[order])
    assert [x.decode() for x in got["names"]] == [f"{words[i]}/{i:03}.png" for i in order]


def test_floats_stay_what_they_are(trained, tmp_path):
    """A model of numbers: CSV is not taken for bytes."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(90, 3)).astype(np.float32)
    y = (x @ np.array([[1, 2, -1], [0.5, 0, 1]]).T + 0.3).astype(np.float32)
    write_shard(tmp_path / "train.h5", x, y)
    job = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: {tmp_path}/train.h5, normalize: {{mean: [0, 0.5, 0], std: [1, 2, 1]}}}}
model: {{type: linear, outputs: 2}}
loss: mse
batch: {{global: 10}}
optimizer: {{type: sgd, lr: 0.1}}
train: {{steps: 20}}
output: {tmp_path}/run
""")
    assert dpt.run(job, "--quiet").code == 0
    with open(tmp_path / "x.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows(np.hstack([x, y]).tolist())
    with open(tmp_path / "few.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([["a", "b", "c"], *x[:2].tolist()])
    done = dpt.run("predict", job, "--checkpoint", tmp_path / "run", "--input", tmp_path / "x.csv", "--out", tmp_path / "o.h5", ranks=2)
    assert done.code == 0 and done.err.startswith("loss "), done
    got, _ = read(tmp_path / "o.h5")
    assert set(got) == {"predictions", "targets", "loss"}
    with h5py.File(tmp_path / "run" / "checkpoints" / "latest") as f:
        (layer,) = f["params"].values()
        want = ((x - [0, 0.5, 0]) / [1, 2, 1]) @ layer["weight"][()].T + layer["bias"][()]
    assert np.abs(got["predictions"] - want).max() < 1e-5 and (got["targets"] == y).all()
    assert np.allclose(got["loss"], ((want - y) ** 2).mean(1), rtol=1e-4, atol=1e-6)
    done = dpt.run("predict", job, "--checkpoint", tmp_path / "run", "--input", tmp_path / "few.csv")
    header, *lines = csv.reader(done.out.splitlines())
    assert done.code == 0 and header == ["sample", "value_1", "value_2"] and [line[0] for line in lines] == ["0", "1"], done
    assert np.allclose(np.array(lines, float)[:, 1:], want[:2], atol=1e-4)
    done = dpt.run("predict", job, "--checkpoint", tmp_path / "run", "--input", tmp_path / "x.csv")
    header, *lines = csv.reader(done.out.splitlines())
    assert header == ["sample", "true_1", "true_2", "value_1", "value_2"] and len(lines) == 90
    table = np.array(lines, np.float32)
    assert (table[:, 1:3] == y).all() and (table[:, 3:] == got["predictions"]).all()


def test_one_picture(trained, tmp_path):
    """Of another size and in colour: made what the model takes, and said so."""
    images, _ = samples(1, seed=3)
    Image.fromarray(images[0, 0]).save(tmp_path / "small.png")
    large = Image.fromarray(images[0, 0]).resize((50, 60)).convert("RGB")
    large.save(tmp_path / "large.jpg", quality=98)
    best = int(trained.logits(images)[0].argmax())
    chance = softmax(trained.logits(images))[0, best]
    for ranks in 0, 3:
        result = trained.predict("--input", tmp_path / "small.png", ranks=ranks)
        assert table_of(result.out) == [{"file": f"{tmp_path}/small.png", "class": NAMES[best], "probability": close(chance)}]
        assert result.err == ""
    result = trained.predict(tmp_path / "large.jpg", tmp_path / "small.png")
    assert [row["file"][len(str(tmp_path)) + 1:] for row in table_of(result.out)] == ["large.jpg", "small.png"]
    assert "large.jpg is 50 wide and 60 high, in colour: made 5 wide and 6 high, in grey, as the model takes it" in result.err
    other = trained.predict("--input", tmp_path / "small.png", "--invert", out=tmp_path / "o.h5")
    check(trained, tmp_path / "o.h5", 255 - images)
    assert "o.h5: 1 sample" in other.err


def test_training_data_need_not_be_there(trained, tmp_path):
    """The checkpoint says what its model takes."""
    images, _ = samples(4, seed=3)
    Image.fromarray(images[0, 0]).save(tmp_path / "p.png")
    gone = ["--set", "data.train=gone-*.h5"]
    trained.predict(*gone, "--input", write_shard(tmp_path / "s.h5", images), out=tmp_path / "o.h5")
    check(trained, tmp_path / "o.h5", images)
    assert trained.predict(*gone, "--input", tmp_path / "p.png").out.splitlines()[0] == "file,class,probability"


@pytest.mark.skipif(os.environ.get("DPT_HEAVY") != "1", reason="takes long; DPT_HEAVY=1 runs it")
def test_memory_is_a_window(trained, tmp_path):
    """Of 300 MB of samples and as much of outputs hardly anything is in memory at a time."""
    n = 10_000_000
    sparse_shard(tmp_path / "s.h5", n)
    command = [dpt.BINARY, "predict", trained.job, "--checkpoint", trained.run, "--input", str(tmp_path / "s.h5"), "--out", str(tmp_path / "o.h5")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, 150_000)
    with h5py.File(tmp_path / "o.h5") as f:
        assert f["logits"].shape == (n, 4) and (f["logits"][-1] == f["logits"][0]).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_it_leaves_nothing(trained, tmp_path, ranks):
    shard, out = sparse_shard(tmp_path / "s.h5", 10_000_000), tmp_path / "o.h5"
    words = ["predict", trained.job, "--checkpoint", trained.run, "--input", shard, "--out", str(out)]
    run = subprocess.Popen([*(["mpirun", "-np", str(ranks)] if ranks > 1 else []), dpt.BINARY, *words], stderr=subprocess.PIPE,
                           stdout=subprocess.DEVNULL, env={**os.environ, **dpt.MPI_ENVIRONMENT})
    assert dpt.wait_until(run, lambda: any("tmp" in f for f in os.listdir(tmp_path)))
    run.send_signal(signal.SIGUSR1)
    _, said = run.communicate(timeout=100)
    assert b"stopped by SIGUSR1; nothing was written" in said and run.returncode == 75, (run.returncode, said)
    assert os.listdir(tmp_path) == ["s.h5"]


def test_labels_that_mean_other_classes(trained, tmp_path):
    """Their truth would be another: not compared, but refused."""
    images, labels = samples(9)
    write_shard(tmp_path / "same.h5", images, labels, NAMES[:3])
    swapped = write_shard(tmp_path / "swapped.h5", images, labels, ["bird", "dog", "cat", "elk"])
    trained.predict(tmp_path / "same.h5")
    for ranks in (0, 2):
        result = trained.predict(swapped, ranks=ranks, code=65)
        assert "swapped.h5: class 1 is 'dog', in step-00000030.h5 it is 'cat'" in result.err, result


def test_mistakes_are_told(trained, tmp_path):
    images, labels = samples(20)
    good = write_shard(tmp_path / "good.h5", images, labels)
    png = tmp_path / "p.png"
    Image.fromarray(images[0, 0]).save(png)
    (tmp_path / "bad.png").write_bytes(png.read_bytes()[:-30])
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes").write_bytes(b"\x01\x02\x03\x04\x05\x06\x07\x08\x09")
    (tmp_path / "void").write_bytes(b"")
    np.save(tmp_path / "y.npy", labels[:7])
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "nan.npy", np.full((20, 30), np.nan, np.float32))
    wide = write_csv(tmp_path / "wide.csv", np.zeros((3, 37), int))
    letters = write_csv(tmp_path / "letters.csv", images, ["cow"] * 20)
    high = write_shard(tmp_path / "high.h5", images, np.full(20, 9))
    big = write_shard(tmp_path / "big.h5", np.zeros((3, 1, 8, 8), np.uint8))
    out, folder = tmp_path / "out.h5", tmp_path / "folder.h5"
    out.write_text("old")
    folder.mkdir()
    other = tmp_path / "other.yaml"
    other.write_text(open(trained.job, encoding="utf-8").read().replace("[16, 12]", "[16, 13]"), encoding="utf-8")
    cases = [
        (2, "no input: give", []),
        (2, "pred.txt: the name must end in .csv, .npy or .h5 (.hdf5)", ["--input", good, "--out", tmp_path / "pred.txt"]),
        (65, f"there is no '{tmp_path}/nowhere.png'", ["--input", tmp_path / "nowhere.png"]),
        (65, f"{tmp_path}/empty: holds no images", ["--input", tmp_path / "empty"]),
        (65, "bad.png: is a damaged PNG file", ["--input", png, tmp_path / "bad.png"]),
        (65, "bytes: is no HDF5, IDX, npy, npz, PNG, JPEG, TIFF, BMP, GIF, WebP file and no text", ["--input", tmp_path / "bytes"]),
        (65, "void: is empty", ["--input", tmp_path / "void"]),
        (2, "one kind at a time", ["--input", good, "--input", png]),
        (2, "--format hdf5: is none of", ["--input", good, "--format", "hdf5"]),
        (65, "good.h5: is no PNG, JPEG, TIFF, BMP, GIF, WebP file", ["--input", good, "--format", "pictures"]),
        (2, "--invert is no option for inputs of the format h5", ["--input", good, "--invert"]),
        (2, "--labels: 1 files for 2 inputs", ["--input", tmp_path / "x.npy", "--input", tmp_path / "nan.npy", "--labels", tmp_path / "y.npy"]),
        (65, "has 20 images, but", ["--input", tmp_path / "x.npy", "--labels", tmp_path / "y.npy"]),
        (65, "nan.npy: sample 0, value 0 is nan: not finite", ["--input", tmp_path / "nan.npy"]),
        (65, "wide.csv: has 37 columns; the model takes 30, or 31 with the label in the last", ["--input", wide]),
        (65, "letters.csv:1: column 31: 'cow' is none of the classes", ["--input", letters]),
        (65, "high.h5, sample 0: its label is 9, the model has 4 outputs (0 to 3)", ["--input", high]),
        (65, "big.h5: samples are 1x8x8, the model takes 1x6x5", ["--input", big]),
        (2, "is one of the inputs", ["--input", good, "--out", good]),
        (2, "is a folder", ["--input", good, "--out", folder]),
        (2, "is the checkpoint", ["--input", good, "--out", os.path.join(trained.run, "checkpoints", "step-00000030.h5"),
                                  "--checkpoint", os.path.join(trained.run, "checkpoints", "latest")]),
        (74, "nowhere/o.h5: cannot create", ["--input", good, "--out", tmp_path / "nowhere" / "o.h5"]),
        (65, "gone: ", ["--input", good, "--checkpoint", tmp_path / "gone"]),
        (65, "good.h5: is no checkpoint of dptrain", ["--input", good, "--checkpoint", good]),
    ]
    for i, (code, said, words) in enumerate(cases):
        if "--out" not in words:
            words = [*words, "--out", out]
        result = trained.predict(*words, ranks=2 if i in (4, 16) else 0, code=code)
        assert said in result.err and result.out == "", (words, result)
        assert i in (4, 16) or len(result.err.splitlines()) == 1, result
    assert out.read_text() == "old" and not [f for f in os.listdir(tmp_path) if "tmp" in f]
    result = dpt.run("predict", other, "--checkpoint", trained.run, "--input", good, "--out", out)
    assert result.code == 65 and "in this job's model" in result.err, result
    result = dpt.run("predict", trained.job, "--input", good)
    assert result.code == 2 and "no checkpoint: give" in result.err
