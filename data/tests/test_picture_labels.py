"""Labels of images from a CSV file: classes, regression, multi-label; names with folders and without ends; rows and images that do not fit are reported."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, "data/tests")
from convert_tools import BAD_DATA, DPTRAIN, USAGE, bad, convert, good, load, shards  # noqa: E402


def photos(folder, names):
    """An image per name, of a grey that says which it is: 10, 20, ..."""
    for i, name in enumerate(names):
        path = folder / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 5), 10 * i + 10, np.uint8)).save(path)
    return folder / "photos"


def table(folder, text, name="labels.csv"):
    (folder / name).write_text(text)
    return folder / name


def pairs(prefix):
    """{grey: label}, and the names of classes."""
    images, labels = load(prefix)
    with h5py.File(shards(prefix, 1)[0]) as f:
        names = [c.decode() if isinstance(c, bytes) else c for c in f["labels"].attrs.get("classes", [])]
    return dict(zip(images[:, 0, 0, 0].tolist(), labels.tolist())), names


THREE = ["a/1.png", "a/2.png", "b/3.png"]


@pytest.mark.parametrize("text, options", [
    ("file,label\na/1.png,dog\na/2.png,cat\nb/3.png,dog\n", []),
    ("file,label\n3.png,dog\n1.png,dog\n2.png,cat\n", []),  # names alone, in another order
    ("id;breed\n1;dog\n2;cat\n3;dog\n", ["--delimiter", ";"]),  # without ends, as many competitions have them
    ("a/1.png,dog\na/2.png,cat\nb/3.png,dog\n", []),  # no header
    ("1,dog\n2,cat\n3,dog\n", []),
    ("breed,size,path\ndog,7,photos/a/1.png\ncat,8,photos/a/2.png\ndog,9,./photos\\b\\3.png\n", ["--id", "path", "--label", "breed"]),
    ("file,label\n1.png,dog\n1.png,dog\n2.png,cat\n3.png,dog\n", []),  # twice the same
])
def test_names_of_files_and_classes(tmp_path, text, options):
    good("pictures", photos(tmp_path, THREE), "--labels", table(tmp_path, text), "--output", tmp_path / "out" / "x", *options)
    assert pairs(tmp_path / "out" / "x") == ({10: 1, 20: 0, 30: 1}, ["cat", "dog"])
    with h5py.File(tmp_path / "out" / "x-00000-of-00001.h5") as f:
        assert [i.decode() for i in f["id"][()]] == THREE


def test_numbers_and_several_labels(tmp_path):
    folder = photos(tmp_path, THREE)
    csv = table(tmp_path, "file,age,red,round\n1.png,3,1,0\n2.png,40,0,0\n3.png,12,yes,1\n".replace("yes", "1"))
    good("pictures", folder, "--labels", csv, "--label", "age", "--regression", "--output", tmp_path / "out" / "age")
    assert pairs(tmp_path / "out" / "age")[0] == {10: [3], 20: [40], 30: [12]}
    good("pictures", folder, "--labels", csv, "--label", "round,red", "--output", tmp_path / "out" / "two")
    assert pairs(tmp_path / "out" / "two")[0] == {10: [0, 1], 20: [0, 0], 30: [1, 1]}
    bad(USAGE, ["labels.csv: has 4 columns", "--label"], tmp_path / "none", "pictures", folder, "--labels", csv)


def test_other_options_work_as_with_folders(tmp_path):
    names = [f"{i:02d}.png" for i in range(20)]
    folder = photos(tmp_path, names)
    csv = table(tmp_path, "file,label\n" + "".join(f"{n},{'even' if i % 2 == 0 else 'odd'}\n" for i, n in enumerate(names)))
    args = ["pictures", folder, "--labels", csv, "--split", "50/50", "--stratify", "--shuffle", 3]
    good(*args, "--output", tmp_path / "out" / "x")
    got = {}
    for part in "train", "test":
        one = pairs(tmp_path / "out" / f"x-{part}")[0]
        assert sorted(one.values()) == [0] * 5 + [1] * 5
        got.update(one)
    assert got == {10 * i + 10: i % 2 for i in range(20)}
    # A test set of one class has the numbers of the training set.
    second = table(tmp_path, "label,file\nodd,03\nodd,05\n", "test.csv")
    like = shards(tmp_path / "out" / "x-train", 1)[0]
    good("pictures", folder, "--labels", second, "--like", like, "--output", tmp_path / "out" / "y")
    assert pairs(tmp_path / "out" / "y") == ({40: 1, 60: 1}, ["even", "odd"])
    good("pictures", folder, "--labels", csv, "--keep-files", "--fit", "pad", "--size", "6x6", "--output", tmp_path / "out" / "z")
    with h5py.File(tmp_path / "out" / "z-00000-of-00001.h5") as f:
        assert f["labels"][()].tolist() == [0, 1] * 10 and b"0,fit,file,,pad" in f["columns"][()]


def test_a_test_set_of_numbers_is_found_by_the_names_of_its_columns(tmp_path):
    folder = photos(tmp_path, THREE)
    good("pictures", folder, "--labels", table(tmp_path, "file,x,age\n1.png,0,1.5\n2.png,0,2.5\n"), "--label", "age", "--output", tmp_path / "out" / "x")
    good("pictures", folder, "--labels", table(tmp_path, "age,file\n7.25,3.png\n", "test.csv"), "--like", shards(tmp_path / "out" / "x", 1)[0],
         "--output", tmp_path / "out" / "y")
    assert pairs(tmp_path / "out" / "y")[0] == {30: [7.25]}


@pytest.mark.parametrize("code, said, text, options", [
    (BAD_DATA, "2 of 3 rows name no image in ", "file,label\n1.png,a\n8.png,b\n9.png,a\n", []),
    (BAD_DATA, "the first is '8.png', in the column 'file'; --skip-bad leaves such rows out", "file,label\n1.png,a\n8.png,b\n9.png,a\n", []),
    (BAD_DATA, "--id says which column names the files", "n,file,label\n7,1.png,a\n8,2.png,b\n", ["--label", "label"]),
    (BAD_DATA, ["1 of 2 rows may name several images", "'4', which is c/4.png or d/4.png"], "file,label\n1.png,a\n4,b\n", []),
    (BAD_DATA, "1 of 3 rows name an image that a row before labels otherwise; the first is 'a/1.png'", "file,label\n1,a\n2,b\na/1.png,b\n", []),
    (BAD_DATA, "has one column; a file and a label are needed", "file\n1.png\n", []),
    (BAD_DATA, "2 (label)", "file,label\n1.png,a\n2.png,\n", []),
    (USAGE, "--label where", "file,label\n1.png,a\n2.png,b\n", ["--label", "where"]),
])
def test_what_does_not_fit_is_told(tmp_path, code, said, text, options):
    folder = photos(tmp_path, THREE + ["c/4.png", "d/4.png"])
    bad(code, said, tmp_path, "pictures", folder, "--labels", table(tmp_path, text), *options)


def test_what_is_left_out_is_counted(tmp_path):
    folder = photos(tmp_path, THREE)
    (folder / "bad.png").write_bytes(b"nothing")
    csv = table(tmp_path, "file,label\n1,a\n3,b\nbad,a\n9,b\n")
    result = convert("pictures", folder, "--labels", csv, "--skip-bad", "--output", tmp_path / "out" / "x")
    assert result.returncode == 0, result.stderr
    assert "1 of 4 rows name no image" in result.stderr and "1 of 4 images have no row" in result.stderr and "a/2.png" in result.stderr
    assert "1 of 3 images left out" in result.stdout
    assert pairs(tmp_path / "out" / "x") == ({10: 0, 30: 1}, ["a", "b"])


def test_options_of_the_table_need_one(tmp_path):
    bad(USAGE, "--label is no option of the format pictures without --labels", tmp_path, "pictures", photos(tmp_path, THREE), "--label", "1")


def test_a_job_learns_and_predicts(tmp_path):
    """init, train, predict and eval on two labels: bright, and left half dark."""
    rng = np.random.default_rng(0)
    rows = ["file,bright,left"]
    (tmp_path / "in").mkdir()
    for i in range(60):
        bright, left = rng.integers(0, 2, 2)
        pixels = rng.integers(0, 40, (8, 8)) + 120 * bright
        pixels[:, :4] = pixels[:, :4] // (1 + 3 * left)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "in" / f"{i}.png")
        rows.append(f"{i},{bright},{left}")

    def run(*args):
        done = subprocess.run([DPTRAIN, *map(str, args)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("convert", "pictures", "in", "--labels", table(tmp_path, "\n".join(rows) + "\n"), "--label", "bright,left", "--split", "80/20", "--output", "out/")
    run("init", "out", "--output", "job.yaml")
    assert "binary_cross_entropy" in (tmp_path / "job.yaml").read_text()
    run("train", "job.yaml", "--set", "train.epochs=2", "--output", "run")
    said = run("predict", "run", "in").splitlines()
    assert "bright" in said[0] and "left" in said[0] and len(said) == 61
