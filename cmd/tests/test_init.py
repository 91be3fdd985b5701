"""`dptrain init`: the job that it writes fits the data, says so, and trains well as it stands."""
import gzip
import os
import re
import struct
import subprocess
import sys

import h5py
import numpy
import pytest

sys.path[:0] = ["scripts/lib", os.path.dirname(os.path.abspath(__file__))]
import dpt  # noqa: E402
import jobs  # noqa: E402

jsonschema = pytest.importorskip("jsonschema")
MNIST = os.path.abspath("data/mnist")


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft7Validator(jobs.load(dpt.run("schema").out))


def shard(path, images, labels, **attributes):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = images, labels
        for name, value in attributes.items():
            file["images"].attrs[name] = value


def init(folder, validator, *words, name="job.yaml"):
    """Writes a job and looks it over; returns it as read."""
    result = dpt.run("init", *words, cwd=folder)
    assert result.code == 0 and f"wrote {name}" in result.out and result.err == "", result
    text = (folder / name).read_text()
    assert all(len(line) <= 80 for line in text.splitlines() if "h5" not in line), text
    assert all(ord(c) < 128 for c in text)
    job = jobs.load(text)
    assert [e.message for e in validator.iter_errors(job)] == [], text
    checked = dpt.run("schema", "--check", name, cwd=folder)
    assert checked.code == 0, checked
    for key in re.findall(r"^ *# (\w+: .*)$", text, re.M):  # what only has to be uncommented
        if key.startswith("augment"):
            assert dpt.run("schema", "--check", dpt.write_job(folder / "more.yaml", text.replace("# " + key, key)),
                           cwd=folder).code == 0
    return job


def idx(name, n):
    with gzip.open(os.path.join(MNIST, name)) as file:
        head = file.read(16 if "images" in name else 8)
        size = 784 if "images" in name else 1
        return head[:4] + struct.pack(">I", n) + head[8:] + file.read(n * size)



def test_mnist(tmp_path, validator):
    """Converted, looked at, trained: right on nearly all, without a word changed."""
    for part, images, n in (("train", "train", 6000), ("test", "t10k", 1000)):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{part}-{kind}").write_bytes(idx(f"{images}-{kind}-ubyte.gz", n))
        done = dpt.run("convert", "idx", f"{part}-images-idx3", f"{part}-labels-idx1", "--output", f"mnist/{part}",
                       "--shards", 2, cwd=tmp_path)
        assert done.code == 0, done
    job = init(tmp_path, validator, "mnist")
    assert job["name"] == "mnist" and job["loss"] == "cross_entropy"
    assert job["data"]["train"] == "mnist/train-*.h5" and job["data"]["test"] == "mnist/test-*.h5"
    assert job["data"]["valid"] == 0.1 and job["model"]["layers"][-1] == {"dense": {"init": "pytorch"}}
    assert job["schedule"]["warmup"] == 0.05  # of the run, also of a shortened one
    assert job["data"]["augment"] == {"crop_padding": 2, "flip": False} and "batchnorm" not in job["model"]["layers"]
    pixels = numpy.frombuffer(idx("train-images-idx3-ubyte.gz", 6000)[16:], numpy.uint8) / 255
    assert job["data"]["normalize"]["mean"][0] == pytest.approx(pixels.mean(), rel=1e-3)
    assert job["data"]["normalize"]["std"][0] == pytest.approx(pixels.std(), rel=1e-3)
    done = dpt.run("job.yaml", "--set", "train.epochs=2", cwd=tmp_path)
    assert done.code == 0, done
    assert dpt.events(tmp_path / job["output"], "eval")[-1]["accuracy"] > 0.9
    test = dpt.run("eval", "job.yaml", "--checkpoint", job["output"], cwd=tmp_path)
    assert test.code == 0 and float(re.search(r"accuracy (?:= )?([0-9.]+)", test.out)[1]) > 0.9, test


SMOOTHED = {"type": "cross_entropy", "label_smoothing": 0.1}  # of tables of classes


def test_labels_that_are_floats(tmp_path, validator):
    """Whole numbers from 0 are classes, which is said, and trains; amounts are not; a first class that nobody has is told, too."""
    x = numpy.random.default_rng(3).normal(size=(200, 4)).astype("f4")
    for k, (labels, loss, said) in enumerate((
            (numpy.arange(200) % 3, SMOOTHED, "labels are whole numbers, stored as float64: taken as 3 classes; amounts to predict have `loss: mse` in the job"),
            (numpy.arange(200) % 3 + 1, SMOOTHED, "no sample has the class 0: the model still gets 4 outputs; if the labels begin at 1, subtract 1"),
            (numpy.arange(200) % 90, "mse", ""), (numpy.arange(200) % 3 - 1, "mse", ""))):
        shard(tmp_path / f"{k}.h5", x, labels.astype("f8").reshape(-1, 1))
        done = dpt.run("init", f"{k}.h5", "--output", f"job{k}.yaml", cwd=tmp_path)
        text = (tmp_path / f"job{k}.yaml").read_text()
        assert done.code == 0 and f"warning: {k}.h5: the {said}".replace("the no", "no") in done.err if said else done.err == "", done
        assert ("4 classes of 0 to 67 samples; class 0 has none\n" in text) == (k == 1), text
        assert jobs.load(text)["loss"] == loss and ("amounts to predict have mse" in text) == (loss != "mse"), text
        assert dpt.run(f"job{k}.yaml", "--set", "train.epochs=1", cwd=tmp_path).code == 0
    shard(tmp_path / "named.h5", x, numpy.arange(200) % 4)
    with h5py.File(tmp_path / "named.h5", "r+") as file:
        file["labels"].attrs["classes"] = ["cat", "dog"]
    done = dpt.run("init", "named.h5", "--output", "n.yaml", cwd=tmp_path)
    assert done.code == 0 and "named.h5: names 2 of 4 classes" in done.err, done


@pytest.mark.parametrize("dtype", ["u1", "?", "i8"])
def test_several_labels_that_are_no_floats(tmp_path, validator, dtype):
    x = numpy.random.default_rng(3).normal(size=(200, 4)).astype("f4")
    shard(tmp_path / "a.h5", x, (x[:, :3] > 0.8).astype(dtype))
    assert init(tmp_path, validator, "a.h5")["loss"] == "binary_cross_entropy"
    shard(tmp_path / "b.h5", x, numpy.eye(4)[numpy.arange(200) % 4].astype(dtype))
    job = init(tmp_path, validator, "b.h5", "--output", "b.yaml", name="b.yaml")
    assert job["loss"] == "cross_entropy"
    for name in "job.yaml", "b.yaml":
        done = dpt.run(name, "--set", "train.epochs=1", cwd=tmp_path)
        assert done.code == 0, done


def clothes(folder, **parts):
    """IDX files of bright squares, each class in a place of its own, some gzipped; {part: (images, labels)}."""
    rng, made = numpy.random.default_rng(2), {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in parts.items():
        labels = rng.integers(0, 4, n).astype(numpy.uint8)
        images = rng.integers(0, 60, (n, 12, 10)).astype(numpy.uint8)
        for image, label in zip(images, labels):
            image[3 * label:3 * label + 3, 2:8] += 150
        for kind, array in (("images", images), ("labels", labels)):
            content = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()
            name = f"{part}-{kind}-idx{array.ndim}-ubyte"
            if kind == "images":
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
        made[part] = images, labels
    return made


def test_idx_files_become_shards_and_a_job(tmp_path, validator):
    """One command takes the files of a folder or of a pattern, as Fashion-MNIST is distributed."""
    made = clothes(tmp_path / "fashion", train=400, t10k=90)
    result = dpt.run("init", "fashion", "--output", "fashion.yaml", cwd=tmp_path)
    assert result.code == 0 and "wrote fashion.yaml; train with: dptrain fashion.yaml --ranks auto" in result.out, result
    assert "fashion/train-00000-of-00001.h5: 400 samples of fashion/train-images-idx3-ubyte.gz and fashion/train-labels-idx1-ubyte\n" in result.err
    for part, name in (("train", "train"), ("t10k", "test")):
        with h5py.File(tmp_path / f"fashion/{name}-00000-of-00001.h5") as file:
            assert (file["images"][:, 0] == made[part][0]).all() and (file["labels"][()] == made[part][1]).all()
    # The shards are there now, and are taken.
    job = init(tmp_path, validator, "fashion", "--output", "again.yaml", name="again.yaml")
    assert job["data"]["train"] == "fashion/train-00000-of-00001.h5" and job["data"]["test"] == "fashion/test-00000-of-00001.h5"
    done = dpt.run("fashion.yaml", "--set", "train.epochs=4", cwd=tmp_path)
    assert done.code == 0 and dpt.events(tmp_path / "runs/fashion", "eval")[-1]["accuracy"] > 0.9, done
    files = sorted(f"fashion/{path.name}" for path in (tmp_path / "fashion").glob("*ubyte*"))
    for words, says in ((files, "fashion/test-00000-of-00001.h5 exists already: name it in place of fashion/t10k-images-idx3-ubyte.gz, or replace it with --force"),
                        (files[:1], "t10k-images-idx3-ubyte.gz: no labels found: "), (files[3:], "train-labels-idx1-ubyte: holds labels, and no images are given for them"),
                        ([*files[:2], files[0], "--force"], "no labels found: ")):
        result = dpt.run("init", *words, "--output", "other.yaml", cwd=tmp_path)
        assert result.code in (2, 65) and says in result.err and result.err.count("\n") == 1 and not (tmp_path / "other.yaml").exists(), result
    before = (tmp_path / "fashion/train-00000-of-00001.h5").stat().st_mtime_ns
    result = dpt.run("init", files[3], "--force", "--output", "other.yaml", cwd=tmp_path)
    assert result.code == 65 and (tmp_path / "fashion/train-00000-of-00001.h5").stat().st_mtime_ns == before, "nothing was made"
    assert dpt.run("init", *files, "--force", "--output", "other.yaml", cwd=tmp_path).code == 0


def test_rows_with_classes(tmp_path, validator):
    """Features of very different sizes: normalised one by one, and learned."""
    rng = numpy.random.default_rng(1)
    labels = rng.integers(0, 3, 600).astype("int32")
    scale, offset = numpy.array([1, 0.5, 1e-3, 5]), numpy.array([0, -3e4, 0, 7])
    rows = (rng.normal(size=(600, 4)) + labels[:, None] * [3, 0, 0, -3]) * scale + offset
    rows[:, 2] = 4
    shard(tmp_path / "flowers.h5", rows.astype("float32"), labels)
    job = init(tmp_path, validator, "flowers.h5")
    assert job["model"]["type"] == "mlp" and "outputs" not in job["model"]  # the data say them
    rows, stated = rows.astype("float32").astype(float), job["data"]["normalize"]
    std = numpy.array([*rows.std(0)[:2], 1, rows.std(0)[3]])
    assert (abs(stated["mean"] - rows.mean(0)) < 1e-6 * std).all() and stated["std"] == pytest.approx(list(std), rel=1e-6)
    assert dpt.run("job.yaml", "--set", "train.epochs=20", cwd=tmp_path).code == 0
    assert dpt.events(tmp_path / job["output"], "eval")[-1]["accuracy"] > 0.9


def test_columns_of_zeros_and_ones_stay(tmp_path, validator):
    """The 1 of a rare category is no 25; a column that is all the same, and one that has other numbers, too, are scaled as ever."""
    rng = numpy.random.default_rng(5)
    rows = numpy.stack([rng.normal(size=900) * 7 + 3, rng.random(900) < 0.002, rng.random(900) < 0.5, numpy.ones(900), rng.integers(0, 3, 900)], 1)
    rows[0, 1] = 1
    shard(tmp_path / "a.h5", rows.astype("f4"), rng.normal(size=900).astype("f4"))
    stated, text = init(tmp_path, validator, "a.h5")["data"]["normalize"], (tmp_path / "job.yaml").read_text()
    assert stated["mean"] == pytest.approx([rows[:, 0].mean(), 0, 0, 1, rows[:, 4].mean()], rel=1e-5)
    assert stated["std"] == pytest.approx([rows[:, 0].std(), 1, 1, 1, rows[:, 4].std()], rel=1e-5) and "(2 columns of 0 and 1 stay as they are)" in text
    shard(tmp_path / "b.h5", (rng.random((900, 1, 12, 12)) < 0.2).astype("f4"), rng.integers(0, 2, 900))
    assert init(tmp_path, validator, "b.h5", "--force")["data"]["normalize"]["std"] == pytest.approx([0.4], rel=0.1)  # an image is scaled


def test_what_is_held_out_and_how_long_it_trains(tmp_path, validator):
    """By the number of samples: of few rows all are trained on; of few images enough tell the best, by accuracy, as long as either gets better."""
    rng = numpy.random.default_rng(6)
    for n, valid, schedule, stop, decay in ((300, None, "cosine", None, 0.5), (1000, 0.1, "plateau", 25, 0.5), (4000, 0.1, "plateau", 25, 0.1),
                                            (20000, 0.05, "plateau", 12, 0.1)):
        shard(tmp_path / "rows.h5", rng.normal(size=(n, 3)).astype("f4"), rng.integers(0, 3, n))
        job = init(tmp_path, validator, "rows.h5", "--force")
        assert job["data"].get("valid") == valid and job["schedule"]["type"] == schedule and job["optimizer"]["weight_decay"] == decay, job
        assert job["train"].get("early_stop") == (stop and {"patience": stop}) and job["train"]["ema"] == 0.98, job
        assert job["checkpoint"].get("monitor") == (valid and "valid.loss"), job
    shard(tmp_path / "pictures.h5", rng.integers(0, 256, (360, 3, 24, 24), numpy.uint8), rng.integers(0, 3, 360))
    job = init(tmp_path, validator, "pictures.h5", "--force")
    assert "valid" not in job["data"] and "monitor" not in job["checkpoint"] and job["train"]["epochs"] == 53, job
    for n, valid in ((1000, 0.15), (1200, 0.15), (3000, 0.1)):
        shard(tmp_path / "pictures.h5", rng.integers(0, 256, (n, 1, 8, 8), numpy.uint8), rng.integers(0, 3, n))
        job = init(tmp_path, validator, "pictures.h5", "--force")
        assert job["data"]["valid"] == valid and job["checkpoint"]["monitor"] == "valid.accuracy" and job["schedule"]["type"] == "cosine", job
        assert job["train"]["early_stop"] == {"patience": 20, "monitor": "valid.accuracy", "also": "valid.loss"} and "ema" not in job["train"], job
    shard(tmp_path / "train-few.h5", rng.normal(size=(300, 3)).astype("f4"), rng.integers(0, 3, 300))
    shard(tmp_path / "valid-few.h5", rng.normal(size=(100, 3)).astype("f4"), rng.integers(0, 3, 100))
    job = init(tmp_path, validator, "train-few.h5", "valid-few.h5", "--force")  # who gives samples for it has them used
    assert job["data"]["valid"] == "valid-few.h5" and job["schedule"]["type"] == "plateau" and "monitor" in job["checkpoint"]


def test_targets(tmp_path, validator):
    """Regression targets: the mean squared error; rows of probabilities: classes; of 0 and 1: multi-label."""
    rng = numpy.random.default_rng(2)
    rows = rng.normal(size=(700, 3)).astype("float32")
    shard(tmp_path / "a" / "train.h5", rows, (rows @ [[1, 0], [2, -1], [0, 3]]).astype("float32"))
    job = init(tmp_path, validator, "a")
    assert job["loss"] == "mse" and "outputs" not in job["model"]
    assert job["model"]["activation"] == "relu" and job["model"]["dropout"] == 0.1
    shard(tmp_path / "e" / "train.h5", rows[:399], rows[:399, 0])
    few = init(tmp_path, validator, "e", "--output", "few.yaml", name="few.yaml")
    assert few["model"]["activation"] == "gelu" and few["model"]["dropout"] == 0 and few["optimizer"]["weight_decay"] == 1
    assert dpt.run("job.yaml", "--set", "train.epochs=15", cwd=tmp_path).code == 0
    losses = [e["loss"] for e in dpt.events(tmp_path / job["output"], "eval")]
    assert losses[-1] < 0.1 * losses[0], losses
    soft = rng.random((700, 4)).astype("float32")
    shard(tmp_path / "b" / "train.h5", rows, soft / soft.sum(1, keepdims=True))
    job = init(tmp_path, validator, "b", "--output", "soft.yaml", name="soft.yaml")
    assert job["loss"] == "cross_entropy" and job["name"] == "soft"
    shard(tmp_path / "d" / "train.h5", rows, (soft > 0.5).astype("float32"))
    job = init(tmp_path, validator, "d", "--output", "labels.yaml", name="labels.yaml")
    assert job["loss"] == "binary_cross_entropy" and "targets" not in job["data"] and "4 labels each, 0 or 1" in (tmp_path / "labels.yaml").read_text()
    pictures = rng.integers(0, 256, (60, 1, 28, 28), numpy.uint8)
    shard(tmp_path / "c" / "train.h5", pictures, rng.normal(size=(60, 2)).astype("float32"))
    assert "augment" not in init(tmp_path, validator, "c", "--force")["data"]  # a shift may change what is asked for


@pytest.mark.parametrize("shape", [(1, 4, 5), (3, 2, 9), (3, 8, 8), (3, 33, 47), (1, 300, 260), (4, 64, 64),
                                   (20, 12, 12)])
def test_images_of_many_shapes(tmp_path, validator, shape):
    """The model fits the image: it takes a step."""
    rng = numpy.random.default_rng(3)
    n = 64 if max(shape) < 100 else 8
    images = rng.integers(0, 256, (n, *shape), numpy.uint8)
    images[:, 0] //= 2
    layout = {}
    if shape[0] == 4:
        images, layout = images.transpose(0, 2, 3, 1), {"layout": "NHWC"}
    shard(tmp_path / "my data" / "train.h5", images, rng.integers(0, 5, n).astype("uint8"), **layout)
    job = init(tmp_path, validator, "my data")
    assert ("augment" in job["data"]) == (min(images.shape[1:3] if layout else shape[1:]) >= 24)
    first = (images[..., 0] if layout else images[:, 0]) / 255
    if shape[0] <= 16:
        assert len(job["data"]["normalize"]["mean"]) == shape[0]
        assert job["data"]["normalize"]["mean"][0] == pytest.approx(first.mean(), rel=2e-6)
        assert job["data"]["normalize"]["std"][0] == pytest.approx(first.std(), rel=2e-6)
    done = dpt.run("job.yaml", "--set", "train.epochs=null", "--set", "train.steps=1", cwd=tmp_path)
    assert done.code == 0, done


@pytest.mark.parametrize("form", ["h5", "npy"])
@pytest.mark.parametrize("shape", [(3, 1, 40), (3, 40), (1, 1, 9)])
def test_signals(tmp_path, validator, shape, form):
    """HDF5 and NumPy files give a job of 1-D convolutions, which learns a wave's frequency whatever its phase."""
    rng = numpy.random.default_rng(5)
    n, labels = 240, rng.integers(0, 2, 240).astype("uint8")
    at = numpy.arange(shape[-1]) + rng.uniform(0, 40, (n, 1))
    waves = numpy.sin(at * numpy.where(labels[:, None] == 1, 1.6, 0.5))
    signals = (waves.reshape(n, *[1] * (len(shape) - 1), -1) + 0.1 * rng.normal(size=(n, *shape))).astype("f4")
    if form == "h5":
        shard(tmp_path / "data" / "train.h5", signals, labels)
    else:
        numpy.save(tmp_path / "x.npy", signals)
        numpy.save(tmp_path / "y.npy", labels)
        done = dpt.run("convert", "npy", "x.npy", "y.npy", "--output", "data/train", cwd=tmp_path)
        assert done.code == 0, done
    job = init(tmp_path, validator, "data")
    kinds = [next(iter(layer)) if isinstance(layer, dict) else layer for layer in job["model"]["layers"]]
    assert kinds[0] == ("conv" if len(shape) == 2 else "conv1d") and "augment" not in job["data"]
    assert kinds.count("conv1d") == {40: 3, 9: 1}[shape[-1]] - (len(shape) == 2)
    done = dpt.run("job.yaml", "--set", "train.epochs=null", "--set", "train.steps=60", "--set", "data.valid=0.2", cwd=tmp_path)
    assert done.code == 0 and float(re.findall(r"valid loss .*accuracy ([0-9.]+)", done.err + done.out)[-1]) > 0.9, done


def test_prices_that_are_whole_numbers(tmp_path):
    """Whole-number labels are taken for regression, which is printed, with what classes would have."""
    shard(tmp_path / "homes.h5", numpy.zeros((60, 1), "float32"), numpy.arange(60, dtype="int32") * 1000)
    result = dpt.run("init", "homes.h5", cwd=tmp_path)
    job = (tmp_path / "job.yaml").read_text()
    assert result.code == 0 and "60 samples of 1 number, 1 target each" in job and "\nloss: mse" in job, result
    assert "warning: homes.h5: the labels are 60 different whole numbers from 0 to 59 000 in 60 samples: taken as regression targets, with `loss: mse`" in result.err, result


def test_without_data(tmp_path, validator):
    job = init(tmp_path, validator)
    assert job["data"]["train"] == "synthetic"
    assert dpt.run("job.yaml", "--set", "train.epochs=2", cwd=tmp_path).code == 0
    assert dpt.events(tmp_path / job["output"], "train")[-1]["loss"] < 0.5


def test_names_of_files(tmp_path, validator):
    """Patterns mean the files that were given and no others; odd names come through; parts by their names."""
    images, labels = numpy.zeros((60, 4), "float32"), numpy.arange(60) % 2
    for name in ("train-00000-of-00002", "train-00001-of-00002", "train-more-00000-of-00001", "valid", "a_test",
                 "0: [x]*"):
        shard(tmp_path / "d" / f"{name}.h5", images, labels)
    job = init(tmp_path, validator, "d")
    assert sorted(job["data"]["train"]) == sorted([r"d/0: \[x\]\*.h5", "d/train-00000-of-00002.h5",
                                                   "d/train-00001-of-00002.h5", "d/train-more-00000-of-00001.h5"])
    assert job["data"]["valid"] == "d/valid.h5" and job["data"]["test"] == "d/a_test.h5"
    done = dpt.run("job.yaml", "--set", "train.epochs=1", cwd=tmp_path)
    assert done.code == 0, done
    job = init(tmp_path, validator, "d/train-*-of-00002.h5", "--force")
    assert job["data"]["train"] == ["d/train-00000-of-00002.h5", "d/train-00001-of-00002.h5"]
    os.unlink(tmp_path / "d" / "train-more-00000-of-00001.h5")
    assert init(tmp_path, validator, "d/train-00000-of-00002.h5", "d/train-00001-of-00002.h5",
                "--force")["data"]["train"] == "d/train-*.h5"
    assert init(tmp_path, validator, "d/train-00001-of-00002.h5",
                "--force")["data"]["train"] == "d/train-00001-of-00002.h5"
    assert init(tmp_path, validator, "d/a_test.h5", "--force")["data"]["train"] == "d/a_test.h5"


def test_never_over_a_file(tmp_path, validator):
    (tmp_path / "job.yaml").write_text("mine")
    result = dpt.run("init", cwd=tmp_path)
    assert result.code == 2 and "--force" in result.err and (tmp_path / "job.yaml").read_text() == "mine", result
    assert dpt.run("init", "--force", cwd=tmp_path).code == 0
    assert "mine" not in (tmp_path / "job.yaml").read_text()
    result = dpt.run("init", "--output", "-", cwd=tmp_path)
    assert result.code == 0 and validator.is_valid(jobs.load(result.out)), result
    result = dpt.run("init", "--output", tmp_path / "none" / "job.yaml")
    assert result.code == 74 and "none/job.yaml" in result.err, result


def test_bad_data(tmp_path):
    """One line that names the file; exit 65; nothing written."""
    rows = numpy.zeros((20, 4), "float32")
    (tmp_path / "a.csv").write_text("1,2,3\n")
    (tmp_path / "empty").mkdir()
    shard(tmp_path / "negative.h5", rows, numpy.full(20, -1))
    shard(tmp_path / "nan.h5", numpy.full((20, 4), numpy.nan, "float32"), numpy.zeros(20, "uint8"))
    shard(tmp_path / "rows.h5", rows, numpy.zeros(20, "uint8"))
    shard(tmp_path / "wide.h5", numpy.zeros((20, 5), "float32"), numpy.zeros(20, "uint8"))
    shard(tmp_path / "test.h5", rows, numpy.full(20, 3, "uint8"))
    shard(tmp_path / "none.h5", rows[:0], numpy.zeros(0, "uint8"))
    with open(tmp_path / "rows.h5", "rb") as file:
        (tmp_path / "cut.h5").write_bytes(file.read()[:1500])
    for words, says in ((["a.csv"], "dptrain convert"), (["empty"], "neither *.h5 nor IDX files in this folder"), (["missing.h5"], "no such file"),
                        (["negative.h5"], "/labels[0] is -1"), (["nan.h5"], "not finite"), (["cut.h5"], "cut.h5"),
                        (["rows.h5", "wide.h5"], "wide.h5 holds samples of 5 float32, rows.h5 of 4 float32"), (["none.h5"], "no samples"),
                        (["rows.h5", "test.h5"], "labels up to 3")):
        result = dpt.run("init", *words, cwd=tmp_path)
        assert result.code == 65 and says in result.err and len(result.err.splitlines()) == 1, result
        assert words[-1] in result.err and not (tmp_path / "job.yaml").exists(), result
    assert dpt.run("init", "--ouput", "x", cwd=tmp_path).code == 2


def test_one_class_is_told_as_one(tmp_path):
    shard(tmp_path / "one.h5", numpy.zeros((20, 4), "float32"), numpy.zeros(20, "uint8"))
    assert "# 20 samples of 4 numbers, 1 class of 20 samples\n" in dpt.run("init", "one.h5", "--output", "-", cwd=tmp_path).out
