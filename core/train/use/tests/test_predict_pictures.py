"""`dptrain predict` of pictures: fitted as they were for training, and what becomes of those that cannot be read."""
import os
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, os.path.abspath("scripts/lib"))
import dpt  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Pictures that are wider than high, of two classes, cropped; a model of them."""
    folder, draw = tmp_path_factory.mktemp("cropped"), np.random.default_rng(6)
    for k, name in enumerate(["dark", "light"]):
        os.makedirs(folder / "in" / name)
        for i in range(6):
            Image.fromarray((draw.integers(0, 128, (9, 16)) + 127 * k).astype(np.uint8)).save(folder / "in" / name / f"{i}.png")
    (folder / "job.yaml").write_text("data: {train: train-*.h5}\nmodel: {type: linear, outputs: 2}\nbatch: {global: 4}\n"
                                     "optimizer: {type: sgd, lr: 0.1}\ntrain: {epochs: 2}\noutput: run\n")
    for words in (["convert", "pictures", "in", "--output", "train", "--size", "8x8", "--fit", "crop"], ["job.yaml", "--quiet"]):
        result = dpt.run(*words, cwd=folder)
        assert result.code == 0, result
    return folder


def predict(folder, *words, code=0, **options):
    result = dpt.run("predict", folder / "job.yaml", "--checkpoint", folder / "run", *words, **options)
    assert result.code == code, result
    return result


def test_pictures_are_fitted_as_for_training(run, tmp_path):
    shard = run / "train-00000-of-00001.h5"
    with h5py.File(shard) as f:
        assert f["columns"][()].decode() == "column,name,role,fill,value\n0,fit,file,,crop\n"
    said = predict(run, run / "in")  # not from where the job was run: by the checkpoint alone
    assert "cropped to 8 wide and 8 high" in said.err
    asked = predict(run, run / "in", "--fit", "crop")
    assert asked.out == said.out and "warning" not in asked.err
    other = predict(run, run / "in", "--fit", "stretch")
    assert other.out != said.out
    assert "warning: --fit stretch: the images of step-00000006.h5 were made with --fit crop; without --fit these are, too" in other.err
    # A test set like the training set.
    assert dpt.run("convert", "pictures", run / "in", "--output", tmp_path / "test", "--like", shard).code == 0
    assert (tmp_path / "test-00000-of-00001.h5").read_bytes() == shard.read_bytes()
    result = dpt.run("convert", "pictures", run / "in", "--output", tmp_path / "other", "--like", shard, "--fit", "pad")
    assert result.code == 0 and "warning: --fit pad: the images of" in result.err, result
    # Shards without --fit are as they were.
    assert dpt.run("convert", "pictures", run / "in", "--output", tmp_path / "plain", "--size", "8x8").code == 0
    with h5py.File(tmp_path / "plain-00000-of-00001.h5") as f:
        assert set(f) == {"id", "images", "labels"}


def test_files_keep_their_names(run, tmp_path):
    """From the folder to the shard, to what is predicted of it, and below the report's pictures."""
    names = [f"{name}/{i}.png" for name in ("dark", "light") for i in range(6)]
    shard = run / "train-00000-of-00001.h5"
    with h5py.File(shard) as f:
        assert [name.decode() for name in f["id"][()]] == names
    assert [line.split(",")[0] for line in predict(run, shard).out.splitlines()[1:]] == names
    # A checkpoint that is wrong about all of them.
    with h5py.File(shard, "r") as f, h5py.File(tmp_path / "wrong.h5", "w") as swapped:
        for name in f:
            f.copy(name, swapped)
        swapped["labels"][...] = 1 - f["labels"][()]
        del swapped["labels"].attrs["crc32"]
    page = tmp_path / "r.html"
    job = (run / "job.yaml").read_text().replace("train-*.h5", str(shard))
    (tmp_path / "job.yaml").write_text(job.replace("data: {train:", f"data: {{test: {tmp_path / 'wrong.h5'}, train:"))
    assert dpt.run("job.yaml", "--quiet", cwd=tmp_path).code == 0
    assert dpt.run("report", "run", "-o", page, cwd=tmp_path).code == 0
    shown = page.read_text()
    assert "the sample's number and name." in shown
    shown = shown.replace("<wbr>", "")  # where a line may break
    assert sum(f'<small class="dim">{name}</small></figcaption>' in shown for name in names) >= 6


def test_all_that_cannot_be_read_are_told_or_left_out(run, tmp_path):
    good = predict(run, run / "in").out.splitlines()
    names = [f"{name}/{i}.png" for name in ("dark", "light") for i in range(6)]
    for name in names:
        os.makedirs((tmp_path / name).parent, exist_ok=True)
        (tmp_path / name).write_bytes((run / "in" / name).read_bytes())
    for name, content in (("dark/0.png", (tmp_path / "dark/0.png").read_bytes()[:-30]), ("light/2.png", b""), ("light/4.png", b"none at all")):
        (tmp_path / name).write_bytes(content)
    bad = [f"{tmp_path}/dark/0.png: is a damaged PNG file (the file is cut off)",
           f"{tmp_path}/light/2.png: is no PNG, JPEG, TIFF, BMP, GIF, WebP file: it is empty",
           f"{tmp_path}/light/4.png: is no PNG, JPEG, TIFF, BMP, GIF, WebP file"]
    every = [tmp_path / name for name in names]
    for inputs, ranks in (([tmp_path], 0), ([tmp_path], 3), (every, 0)):
        result = predict(run, *inputs, ranks=ranks, code=65)
        told = [line for line in result.err.splitlines() if "as the model takes it" not in line]
        assert told[:4] == [*bad, "3 of 12 images cannot be read; --skip-bad leaves them out"], result
        result = predict(run, *inputs, "--skip-bad", "--quiet", ranks=ranks)
        assert result.err.splitlines()[-4:] == ["warning: " + line for line in [*bad, "3 of 12 images left out"]], result
        if inputs == [tmp_path]:
            assert result.out.splitlines() == [line for line in good if not line.startswith(("dark/0", "light/2", "light/4"))]
    result = predict(run, *[tmp_path / f"light/{i}.png" for i in (2, 4)], "--skip-bad", code=65)
    assert f"none of the 2 images can be read; the first: {bad[1]}" in result.err
    link = tmp_path / "0.png"
    link.symlink_to("gone.png")
    said = f"{link}: is a link to gone.png, which is not there"
    assert said in predict(run, link, code=65).err
    assert f"warning: {said}" in predict(run, link, tmp_path / "light/1.png", "--skip-bad").err


def test_pictures_are_resized_and_cut_as_in_training(run, tmp_path):
    """data.resize and data.crop: of shards, of their pictures, and of these where the training data are not, the same is said."""
    job = ("data: {train: %s, test: %s, resize: [10, 9], crop: 7, augment: {crop_area: [0.5, 1], crop_padding: 1}}\nmodel: mlp\n"
           "batch: {global: 4}\ntrain: {epochs: 2}\noutput: run\n")
    shard = run / "train-00000-of-00001.h5"
    dpt.write_job(tmp_path / "job.yaml", job % (shard, shard))
    assert dpt.run("job.yaml", "--quiet", cwd=tmp_path).code == 0
    with h5py.File(tmp_path / "run/checkpoints/latest") as f:
        assert f.attrs["input_shape"] in ("1x7x7", b"1x7x7") and f.attrs["file_shape"] in ("1x8x8", b"1x8x8")
    away = dpt.write_job(tmp_path / "away.yaml", job % ("gone.h5", "gone.h5"))
    said = [dpt.run("predict", path, "--checkpoint", tmp_path / "run", inputs, ranks=ranks)
            for path, inputs, ranks in ((tmp_path / "job.yaml", shard, 0), (tmp_path / "job.yaml", run / "in", 3), (away, run / "in", 0))]
    values = [[line.split(",")[-1] for line in one.out.splitlines()[1:]] for one in said]
    assert len(values[0]) == 12 and values[0] == values[1] == values[2], said
    accuracy = dpt.run("eval", tmp_path / "job.yaml", "--checkpoint", tmp_path / "run").out.split(",")[0].split()[-1]
    assert f"accuracy {accuracy}" in said[0].err, said
    with h5py.File(tmp_path / "other.h5", "w") as f:  # of another size than those of training
        f["images"] = np.zeros((2, 1, 30, 20), dtype=np.uint8)
    assert dpt.run("predict", away, "--checkpoint", tmp_path / "run", tmp_path / "other.h5").code == 0
    job = (tmp_path / "job.yaml").read_text().replace("crop: 7", "crop: 6")
    result = dpt.run("predict", dpt.write_job(tmp_path / "cut.yaml", job), "--checkpoint", tmp_path / "run", shard)
    assert result.code != 0 and "after data.resize and data.crop 1x6x6; the model takes 1x7x7" in result.err, result
