"""`dptrain convert csv` of numbers as people write them, and of any magnitude: what is stored, and that `predict` reads a file alike."""
import re
import sys

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403


def text(folder, content, name="t.csv"):
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def shard(prefix):
    with h5py.File(f"{prefix}-00000-of-00001.h5") as f:
        return f["images"][()], f["labels"][()], f["columns"][()].decode() if "columns" in f else ""


def trained(folder, *settings):
    """Trains on o-00000-of-00001.h5 as `init` says; what that run printed last."""
    done = dpt.run("init", "o-00000-of-00001.h5", "--output", "j.yaml", cwd=folder)
    assert done.code == 0, done
    done = dpt.run("j.yaml", "--quiet", "--set", "output=r", "--set", "seed=3", *(word for s in settings for word in ("--set", s)), cwd=folder)
    assert done.code == 0, done
    return done.out


def predicted(folder, path, *more):
    done = dpt.run("predict", "r/job.yaml", "--checkpoint", "r", path, *more, cwd=folder)
    assert done.code == 0, done
    return list(csv.DictReader(io.StringIO(done.out))), done.err


def test_times_are_stored_from_an_offset_on(tmp_path):
    """Milliseconds since 1970 are 17 ms apart at least as float32 131 072: the distances are kept, and a model reads another file alike."""
    start = 1700000000000
    rows = [(start + 17 * i, start // 1000 + i, i % 2) for i in range(100)]
    path = text(tmp_path, "t,s,y\n" + "".join(f"{t},{s}.25,{y}\n" for t, s, y in rows))
    out = good("csv", path, "--output", tmp_path / "o", warns=True)
    images, labels, columns = shard(tmp_path / "o")
    assert images[:, 0].tolist() == [17 * i for i in range(100)] and images[:, 1].tolist() == list(range(100))
    assert f"column 1 (t): number, less {start}\n" in out
    assert columns == f"column,name,role,fill,value,offset\n1,t,number,,,{start}\n2,s,number,,,{start // 1000}.25\n3,y,label,,,\n"
    said = convert("csv", path, "--dry-run").stderr
    assert f"column 1 (t): numbers from {start} to {start + 17 * 99} are too close to each other for float32: {start} is subtracted" in said
    good("csv", path, "--output", tmp_path / "p", "--like", tmp_path / "o-00000-of-00001.h5")
    assert (tmp_path / "p-00000-of-00001.h5").read_bytes() == (tmp_path / "o-00000-of-00001.h5").read_bytes()
    trained(tmp_path, "train.epochs=1")
    assert len(predicted(tmp_path, path)[0]) == 100
    assert dpt.run("export", "r", "--to", "onnx", "m.onnx", cwd=tmp_path).code == 0
    assert f"feature_offsets\x12\x1e[{start}, {start // 1000}.25]".encode() in (tmp_path / "m.onnx").read_bytes()
    # A gap is filled with the median of the numbers as they are in the file; without a header the columns are kept, too.
    gaps = "".join(f"{'' if i == 3 else start + i},{i % 2}\n" for i in range(8))
    good("csv", text(tmp_path, gaps, "g.csv"), "--output", tmp_path / "g", "--impute", "median", warns=True)
    assert shard(tmp_path / "g")[0].ravel().tolist() == [0, 1, 2, 4, 4, 5, 6, 7]
    good("csv", text(tmp_path, "".join(f"{start + i},{i % 2}\n" for i in range(8)), "n.csv"), "--output", tmp_path / "n", warns=True)
    assert shard(tmp_path / "n")[0].ravel().tolist() == list(range(8)) and ",offset" in shard(tmp_path / "n")[2]


def test_numbers_that_float32_holds_keep_their_bytes(tmp_path):
    """Whole numbers below 2^24, years, amounts from 0 on: no offset. Those that it does not tell apart beside 0 are told."""
    rows = "".join(f"{16000000 + i},{1990 + i % 30},{i * 10 ** 13 // 7},{300 + i / 7:.3f},{i % 2}\n" for i in range(50))
    good("csv", text(tmp_path, "a,b,c,d,y\n" + rows), "--output", tmp_path / "o")
    images, _, columns = shard(tmp_path / "o")
    assert "offset" not in columns and images[1].tolist() == [np.float32(v) for v in (16000001, 1991, 10 ** 13 // 7, 300.143)]
    path = text(tmp_path, "t,y\n0,0\n" + "".join(f"{1700000000000 + i},{i % 2}\n" for i in range(50)))
    said = convert("csv", path, "--dry-run").stderr
    assert "column 1 (t): float32 keeps 7 digits of numbers up to 1700000000049: 49 rows differ from the row before no longer" in said


@pytest.mark.parametrize("ending", [".csv", ".npy", ".h5"])
def test_targets_come_back_where_they_were(tmp_path, ending):
    start = 1600000000000
    path = text(tmp_path, "x,y\n" + "".join(f"{i / 100},{start + 100 * i}\n" for i in range(100)))
    good("csv", path, "--regression", "--output", tmp_path / "o", warns=True)
    assert shard(tmp_path / "o")[1].ravel().tolist() == [100 * i for i in range(100)]
    trained(tmp_path, "train.epochs=60", "optimizer.lr=0.01", "model.hidden=[16]")
    out = predicted(tmp_path, path, "--out", f"p{ending}")[1]
    assert float(re.search(r"R2 ([-.\d]+)", out)[1]) > 0.5
    if ending == ".csv":
        rows = list(csv.DictReader(open(tmp_path / "p.csv", encoding="utf-8")))
        found, true = ([float(row[key]) for row in rows] for key in ("y", "true"))
    elif ending == ".npy":
        found, true = np.load(tmp_path / "p.npy").ravel(), start + 100 * np.arange(100)
        assert found.dtype == np.float64
    else:
        with h5py.File(tmp_path / "p.h5") as f:
            found, true = f["predictions"][:, 0], f["targets"][:, 0]
    assert list(true) == [start + 100 * i for i in range(100)]
    errors = np.abs(np.array(found) - np.array(true))
    assert errors.mean() == pytest.approx(float(re.search(r"MAE ([.\d]+)", out)[1]), rel=1e-3)


def test_columns_of_any_magnitude_train(tmp_path):
    """Dollars of nations and picofarads: `init` scales them, `train` takes the job, and both are learned from."""
    r = random.Random(7)
    rows = [(r.gauss(2e13, 6.6e12), r.gauss(0, 1e-13)) for _ in range(400)]
    path = text(tmp_path, "gdp,farad,y\n" + "".join(f"{a:.0f},{b:.9g},{(a - 2e13) / 6.6e12 + b / 1e-13:.6f}\n" for a, b in rows))
    good("csv", path, "--output", tmp_path / "o")
    out = trained(tmp_path, "train.epochs=40", "optimizer.lr=0.01", "model.hidden=[16]")
    assert float(re.search(r"R2 ([-.\d]+)", out)[1]) > 0.95
    std = re.search(r" std: \[(.*), (.*)\]", (tmp_path / "j.yaml").read_text(encoding="utf-8"))
    assert float(std[1]) == pytest.approx(np.std([a for a, _ in rows]), rel=1e-5) and float(std[2]) == pytest.approx(np.std([b for _, b in rows]), rel=1e-5)
