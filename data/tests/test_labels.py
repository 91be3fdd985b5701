"""Whole numbers are taken for classes or for amounts if nobody says which: alike in CSV, NumPy and HDF5 files, and for `init`."""
import re
import sys

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403

RNG = np.random.default_rng(5)
FLAT, PICTURE = (3,), (4, 4)
BIKERS = np.round(RNG.lognormal(4.5, 1.1, 3000)).astype(int) + 1  # as Bikeshare's: many, with gaps
CASES = {  # labels, shape of a sample, are they classes
    "two words": (np.arange(60) % 2, FLAT, True),
    "two far apart": (np.arange(60) % 2 * 1000, FLAT, True),
    "digits": (np.arange(200) % 10, PICTURE, True),
    "wine quality": (RNG.integers(3, 9, 200), FLAT, True),
    "glass, without 4": (np.array([1, 2, 3, 5, 6, 7] * 30), FLAT, True),
    "some digits": (np.arange(90) % 3 + 7, PICTURE, True),
    "letters from 1": (np.arange(26 * 20) % 26 + 1, FLAT, True),
    "Olivetti": (np.arange(40 * 8) % 40, FLAT, True),
    "100 kinds, 5 pictures each": (np.arange(500) % 100, PICTURE, True),
    "Omniglot, some kind without": (np.delete(np.arange(300), 7).repeat(3), PICTURE, True),
    "kinds of households, without 14": (np.delete(np.arange(1, 42), 13).repeat(30), FLAT, True),
    "letters of pictures, by their codes": (np.arange(10, 36).repeat(25), PICTURE, True),
    "rings of abalones": (np.delete(np.arange(1, 30), 27).repeat(40), FLAT, True),
    "few samples": (np.array([3, 500, 70]), FLAT, True),
    "bikers": (BIKERS, FLAT, False),
    "casual bikers": (np.round(RNG.exponential(30, 9000)).astype(int), FLAT, False),  # 30 of each and more, but with gaps
    "ages of many": (RNG.integers(18, 81, 3000), FLAT, False),
    "people in pictures": (BIKERS[:300], PICTURE, False),
    "ages": (RNG.integers(18, 90, 400), FLAT, False),
    "years": (RNG.integers(1990, 2021, 2000), FLAT, False),
    "0 to 3, and 17": (np.array([0, 1, 2, 3] * 20 + [17]), FLAT, False),
    "euros": (RNG.integers(100, 900, 200) * 1000, FLAT, False),
    "numbers of rows": (np.arange(300), FLAT, False),
    "degrees": (RNG.integers(-15, 40, 300), FLAT, False),
    "degrees of many days": (RNG.integers(-15, 40, 3000), FLAT, False),
}


def saved(folder, kind, labels, shape):
    x = np.random.default_rng(1).integers(0, 200, (len(labels), *shape)).astype("f4")
    if kind == "csv":
        table = np.column_stack([x.reshape(len(x), -1), labels]).astype(int)
        (folder / "d.csv").write_text(",".join(f"x{i}" for i in range(table.shape[1] - 1)) + ",amount\n" + "".join(",".join(map(str, row)) + "\n" for row in table))
        return ["csv", folder / "d.csv", *(["--shape", "1,4,4"] if len(shape) == 2 else [])]
    if kind == "npy":
        np.save(folder / "x.npy", x), np.save(folder / "y.npy", labels)
        return ["npy", folder / "x.npy", folder / "y.npy"]
    if kind == "npz":
        np.savez(folder / "a.npz", x=x[::2], y=labels[::2]), np.savez(folder / "b.npz", x=x[1::2], y=labels[1::2])
        return ["npz", folder / "a.npz", folder / "b.npz"]
    with h5py.File(folder / "d.h5", "w") as f:
        f["x"], f["y"] = x.reshape(len(x), 1, *shape) if len(shape) == 2 else x, labels
    return ["h5", folder / "d.h5"]


def kind_of(prefix):
    with h5py.File(f"{prefix}-00000-of-00001.h5") as f:
        return f["labels"][()], f["labels"].dtype.kind in "iu"


@pytest.mark.parametrize("name", CASES)
def test_classes_or_amounts(tmp_path, name):
    labels, shape, classes = CASES[name]
    said = f"{len(set(labels))} different whole numbers from {min(labels):,} to {max(labels):,} in {len(labels):,} samples".replace(",", " ")
    for kind in "csv", "npy", "npz", "h5":
        files = saved(tmp_path, kind, labels, shape)
        done = convert(*files, "--output", tmp_path / kind)
        assert done.returncode == 0, (kind, done.stderr)
        got, whole = kind_of(tmp_path / kind)
        assert whole == classes and (said in done.stderr) == (not classes), (kind, done.stderr)
        if not classes:
            assert got.shape == (len(labels), 1) and sorted(got[:, 0]) == sorted(labels) and done.stderr.count("\n") == 1
            assert "taken as regression targets (--regression); --classes takes each as a class" in done.stderr
    # init of a file that others wrote, and of shards.
    for path in tmp_path / "d.h5", tmp_path / "csv-00000-of-00001.h5", tmp_path / "npy-00000-of-00001.h5":
        done = dpt.run("init", path, "--output", "-")
        assert done.code == 0, done
        assert bool(re.search(r"^loss: (\{type: )?cross_entropy", done.out, re.M)) == classes and ("\nloss: mse" in done.out and "targets: {normalize: auto}" in done.out) == (not classes), (path, done)
        assert (said in done.err and "loss: cross_entropy" in done.err) == (not classes and path.name == "d.h5"), done


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "h5"])
def test_what_is_said_counts(tmp_path, kind):
    """And init keeps to it; a test set follows its training set."""
    files = saved(tmp_path, kind, BIKERS % 100 * 7, FLAT)
    for option, loss in ("--classes", "cross_entropy"), ("--regression", "mse"):
        good(*files, option, "--split", "80/20", "--output", f"{tmp_path}/{option}/", warns=True)
        got, whole = kind_of(f"{tmp_path}/{option}/train")
        assert whole == (option == "--classes")
        done = dpt.run("init", f"{tmp_path}/{option}", "--output", "-")
        assert re.search(rf"^loss: (\{{type: )?{loss}", done.out, re.M), done
    bad(USAGE, "--classes and --regression exclude each other", tmp_path, *files, "--classes", "--regression")
    few = saved(tmp_path, kind, np.arange(60) % 6, FLAT)
    good(*few, "--regression", "--output", tmp_path / "few")
    assert "\nloss: mse" in dpt.run("init", tmp_path / "few-00000-of-00001.h5", "--output", "-").out


def test_a_small_test_set_is_as_its_training_set(tmp_path):
    """Ten rows say nothing of themselves."""
    for name, labels in ("train", BIKERS), ("test", BIKERS[:10]):
        files = saved(tmp_path, "h5", labels, FLAT)
        os.rename(tmp_path / "d.h5", tmp_path / f"{name}.h5")
    done = dpt.run("init", tmp_path / "train.h5", tmp_path / "test.h5", "--output", "j.yaml", cwd=tmp_path)
    assert done.code == 0 and done.err.count("regression targets") == 1, done
    job = (tmp_path / "j.yaml").read_text()
    assert "loss: mse" in job
    assert dpt.run("j.yaml", "--quiet", "--set", "output=r", "--set", "train.epochs=1", cwd=tmp_path).code == 0
    done = dpt.run("eval", "j.yaml", "--checkpoint", "r", cwd=tmp_path)
    assert done.code == 0 and "MAE" in done.out and "accuracy" not in done.out, done
    # A table's rows of 0 to 3 and 17 are as many classes as its training set has, if these are classes.
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 18}\n" for i in range(180)))
    (tmp_path / "b.csv").write_text("x,y\n" + "".join(f"{i},{[0, 1, 2, 3, 17][i % 5]}\n" for i in range(50)))
    good("csv", tmp_path / "a.csv", "--output", tmp_path / "a")
    good("csv", tmp_path / "b.csv", "--like", tmp_path / "a-00000-of-00001.h5", "--output", tmp_path / "b", warns=True)
    assert kind_of(tmp_path / "b")[1]


def test_floats_need_more_of_each(tmp_path):
    """Integers have mostly been made to be classes; floats are numbers as a rule."""
    for each, classes in (8, False), (12, True):
        np.save(tmp_path / "x.npy", np.zeros((40 * each, 3), "f4")), np.save(tmp_path / "y.npy", np.arange(40 * each) % 40 * 1.0)
        good("npy", tmp_path / "x.npy", tmp_path / "y.npy", "--output", tmp_path / "o", warns=True)
        assert kind_of(tmp_path / "o")[1] == classes
