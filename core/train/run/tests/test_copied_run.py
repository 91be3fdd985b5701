"""A run folder says all that its model needs, wherever it is copied: names of classes, bytes or floats, the size of pictures."""
import csv
import io
import json
import os
import shutil
import struct
import sys
import zlib

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
import formats  # noqa: E402

NAMES = ["coffee", "juice \\ n", "tea"]
JOB = "data: {{train: {train}}}\nmodel: {{type: linear}}\nbatch: {{global: 6}}\ntrain: {{epochs: 3}}\noptimizer: {{type: sgd, lr: 0.1}}\n"


def ready(*words, cwd, **options):
    result = dpt.run(*words, cwd=cwd, **options)
    assert result.code == 0, result
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of pictures in colour, and what it said while its data were there; then the folder alone, elsewhere, as `run`."""
    folder, away, draw = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("away"), np.random.default_rng(6)
    for k, name in enumerate(NAMES):
        os.makedirs(folder / "in" / name)
        for i in range(4):
            level = draw.integers(0, 85, (6, 9, 3)) + 85 * np.eye(3, dtype=int)[k]
            Image.fromarray(level.astype(np.uint8)).save(folder / "in" / name / f"{i}.png")
    ready("convert", "pictures", "in", "--output", "d", "--size", "5x7", cwd=folder)
    dpt.write_job(folder / "job.yaml", JOB.format(train="d-*.h5"))
    ready("job.yaml", "--output", "run", "--quiet", cwd=folder)
    said = ready("predict", "job.yaml", "--checkpoint", "run", "in", cwd=folder).out
    for end in ("onnx", "safetensors", "npz"):
        ready("export", "run", f"m.{end}", cwd=folder)
        shutil.move(folder / f"m.{end}", away / f"m.{end}")
    shutil.move(folder / "run", away / "run")
    shutil.move(folder / "in", away / "in")
    shutil.move(folder / "d-00000-of-00001.h5", away / "kept.h5")
    return away, said


@pytest.mark.parametrize("ranks", [0, 2])
def test_predict(made, ranks):
    away, said = made
    result = ready("predict", "run/job.yaml", "--checkpoint", "run", "in", cwd=away, ranks=ranks)
    assert result.out == said and "accuracy 1.0000" in result.err, result
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert [row["true"] for row in rows] == [name for name in NAMES for _ in range(4)]
    assert [row["class"] for row in rows] == [row["true"] for row in rows]
    result = ready("predict", "run/job.yaml", "--checkpoint", "run", "in/tea/0.png", "--probabilities", cwd=away, ranks=ranks)
    assert result.out.split("\n")[0].count("juice") == 1 and "tea" in result.out.split("\n")[1], result


def test_export(made, tmp_path):
    away, _ = made
    for end in ("onnx", "safetensors", "npz"):
        result = ready("export", "run", tmp_path / f"m.{end}", cwd=away)
        assert result.err == "", "nothing is missing"
        assert (tmp_path / f"m.{end}").read_bytes() == (away / f"m.{end}").read_bytes(), "as beside the data"
        if end == "onnx":
            assert ", input float32 [batch, 3x5x7], values 0 to 255, output [batch, 3]" in result.out, result
    model = formats.Onnx(tmp_path / "m.onnx")
    assert json.loads(model.properties["classes"]) == NAMES
    assert model.properties["input"] == "float32 values of bytes, 0 to 255, as they are: the graph normalises them"
    assert model.inputs == [("input", ["batch", 3, 5, 7])], "of floats, as the reader of ONNX asserts"
    head = (tmp_path / "m.safetensors").read_bytes()
    about = json.loads(head[8:8 + struct.unpack("<Q", head[:8])[0]])["__metadata__"]
    assert json.loads(about["classes"]) == NAMES and about["input_type"] == "uint8" and about["input_shape"] == "[3, 5, 7]"


def test_a_table_of_bytes(made, tmp_path):
    """A CSV file does not say of itself that its numbers are to be divided by 255."""
    dice = np.random.default_rng(1)
    x, y = dice.integers(0, 256, (60, 4), dtype=np.uint8), dice.integers(0, 2, 60)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"], file["y"] = x, y
    dpt.write_job(tmp_path / "job.yaml", JOB.format(train="t.h5"))
    np.savetxt(tmp_path / "new.csv", x[:9], fmt="%d", delimiter=",")
    ready("job.yaml", "--output", "run", "--quiet", cwd=tmp_path)
    words = ["predict", "run/job.yaml", "--checkpoint", "run", "new.csv", "--label", "none", "--header", "no", "--probabilities"]
    said = ready(*words, cwd=tmp_path).out
    os.remove(tmp_path / "t.h5")
    assert ready(*words, cwd=tmp_path).out == said
    assert "values 0 to 255" in ready("export", "run", "m.onnx", cwd=tmp_path).out


def numbered(path, names, n=24):
    dice = np.random.default_rng(2)
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = dice.normal(size=(n, 3)).astype("f4"), np.arange(n) % 3
        if names:
            file["y"].attrs["classes"] = names


def without(path, *names):
    """The checkpoint as an older version would have made it."""
    body = path.read_bytes()[:-44]
    path.write_bytes(body)
    with h5py.File(path, "r+") as file:
        for name in names:
            del (file.attrs if name in file.attrs else file)[name]
    body = path.read_bytes()
    path.write_bytes(body + b"dptrain crc32 %08x %020d\n" % (zlib.crc32(body), len(body)))


def predicted(folder):
    out = ready("predict", "job.yaml", "--checkpoint", "run", "new.h5", cwd=folder).out
    return {row["class"] for row in csv.DictReader(io.StringIO(out))}


def test_the_checkpoint_is_asked_first(tmp_path):
    numbered(tmp_path / "t.h5", NAMES)
    numbered(tmp_path / "new.h5", None)
    dpt.write_job(tmp_path / "job.yaml", JOB.format(train="t.h5, test: t.h5"))
    ready("job.yaml", "--output", "run", "--quiet", cwd=tmp_path)
    checkpoint = (tmp_path / "run/checkpoints/latest").resolve()
    with h5py.File(checkpoint) as file:
        assert file["classes"][()].decode() == "coffee\njuice \\\\ n\ntea\n" and file.attrs["input_type"] == b"float32"
    first = predicted(tmp_path)
    assert first <= set(NAMES) and first
    numbered(tmp_path / "t.h5", ["tea", "coffee", "juice"])
    assert predicted(tmp_path) == first, "not what the data are called by now"
    result = dpt.run("eval", "job.yaml", "--checkpoint", "run", cwd=tmp_path)
    assert result.code == 65 and "t.h5: class 0 is 'tea', in run/checkpoints/latest it is 'coffee'" in result.err, result
    without(checkpoint, "classes", "input_type")
    assert predicted(tmp_path) <= {"tea", "coffee", "juice"}, "of an older one the data are asked"
    os.remove(tmp_path / "t.h5")
    assert predicted(tmp_path) <= {"0", "1", "2"}
    result = ready("export", "run", "m.onnx", cwd=tmp_path)
    assert "input float32 [batch, 3], output [batch, 3]" in result.out, result


def test_several_labels_have_names(tmp_path):
    dice = np.random.default_rng(0)
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["x"] = x = dice.normal(size=(60, 4)).astype("f4")
        file["y"] = (x[:, :3] > 0).astype("f4")
        file["y"].attrs["classes"] = ["sport", "music", "film"]
    dpt.write_job(tmp_path / "job.yaml", JOB.format(train="t.h5").replace("linear", "linear, outputs: 3") + "loss: binary_cross_entropy\n")
    ready("job.yaml", "--output", "run", "--quiet", cwd=tmp_path)
    np.save(tmp_path / "new.npy", x[:5])
    words = ["predict", "job.yaml", "--checkpoint", "run", "new.npy"]
    said = ready(*words, cwd=tmp_path).out
    assert said.split("\n")[0] == "sample,sport,music,film"
    os.remove(tmp_path / "t.h5")
    assert ready(*words, cwd=tmp_path).out == said
