"""How rows of a table count, and how they are divided: weights, groups, times."""
import datetime
import sys

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403


def shard(prefix):
    with h5py.File(f"{prefix}-00000-of-00001.h5") as f:
        return {name: f[name][()] for name in f}


def parts(prefix, names=("train", "valid", "test")):
    return [shard(f"{prefix}-{name}") for name in names]


# --- weights -----------------------------------------------------------------------------------------------------


def test_weights_go_beside_the_labels(tmp_path):
    rng = np.random.default_rng(2)
    weights = np.round(rng.random(50) * 3, 3)
    path = text(tmp_path, "w,x,y\n" + "".join(f"{w},{i},{i % 2}\n" for i, w in enumerate(weights)))
    out = good("csv", path, "--weight", "w", "--split", "60/20/20", "--seed", "4", "--shards", "1", "--output", tmp_path / "o")
    assert "column 1 (w): weights of the rows\ncolumn 2 (x): number\n" in out
    for part, n in zip(parts(tmp_path / "o"), (30, 10, 10)):
        assert part["images"].shape == (n, 1) and part["weights"].dtype == np.float32 and part["weights"].shape == (n,)
        assert np.array_equal(part["weights"], weights[part["images"][:, 0].astype(int)].astype("f4"))
        assert b"1,w,weight,,\n" in part["columns"]
    good("csv", path, "--weight", "w", "--output", tmp_path / "all", "--shards", 3)
    got = np.concatenate([h5py.File(p)["weights"][()] for p in shards(tmp_path / "all", 3)])
    assert np.array_equal(got, weights.astype("f4"))
    with h5py.File(shards(tmp_path / "all", 3)[0]) as f:
        assert zlib.crc32(f["weights"][()].tobytes()) == f["weights"].attrs["crc32"]
    # The label is the last of the other columns, and a set beside it is read alike, with the weights or without.
    good("csv", text(tmp_path, "x,y,w\n" + "".join(f"{i},{i % 2},{w}\n" for i, w in enumerate(weights)), "u.csv"), "--weight", "-1", "--header", "yes", "--output", tmp_path / "last")
    assert np.array_equal(shard(tmp_path / "last")["labels"], np.arange(50) % 2)
    for name in ("u.csv", "t.csv"):
        good("csv", tmp_path / name, "--like", f"{tmp_path}/last-00000-of-00001.h5", "--output", tmp_path / "like")
        assert np.array_equal(shard(tmp_path / "like")["weights"], weights.astype("f4"))
    good("csv", text(tmp_path, "y,x\n1,0\n", "v.csv"), "--like", f"{tmp_path}/last-00000-of-00001.h5", "--output", tmp_path / "like")
    assert "weights" not in shard(tmp_path / "like")


def test_weighted_rows_train_as_so_many(tmp_path):
    """A weight of 2 is a row twice, one of 0 no row; predict needs no weights, and takes no notice of them."""
    rng = np.random.default_rng(8)
    x, weights = np.round(rng.normal(size=40), 3), np.arange(40) % 3
    y = np.round(3 * x + rng.normal(size=40), 3)
    text(tmp_path, "x,w,y\n" + "".join(f"{a},{w},{b}\n" for a, w, b in zip(x, weights, y)))
    text(tmp_path, "x,y\n" + "".join(f"{a},{b}\n" for a, w, b in zip(x, weights, y) for _ in range(w)), "twice.csv")
    good("csv", tmp_path / "t.csv", "--weight", "w", "--output", tmp_path / "o")
    good("csv", tmp_path / "twice.csv", "--output", tmp_path / "twice")
    (tmp_path / "j.yaml").write_text("name: w\noutput: r\ndata: {train: o-*.h5}\nmodel: {type: linear}\nloss: mse\nbatch: {global: 40}\ntrain: {epochs: 200}\noptimizer: {type: sgd, lr: 0.3}\n")
    slopes = []
    for settings in [], ["--set", "data.train=twice-*.h5", "--set", "output=r2"]:
        assert dpt.run("j.yaml", "--quiet", *settings, cwd=tmp_path).code == 0
        run = "r2" if settings else "r"
        done = [dpt.run("predict", "j.yaml", "--checkpoint", run, *settings[:2], text(tmp_path, content, "p.csv"), cwd=tmp_path)
                for content in (["x\n0\n1\n", "w,x\n9,0\n-5,1\n"] if run == "r" else ["x\n0\n1\n"])]
        assert all(d.code == 0 for d in done), done
        slopes += [[float(row["y"]) for row in csv.DictReader(io.StringIO(d.out))] for d in done]
    want = np.polyval(np.polyfit(x, y, 1, w=np.sqrt(weights)), [0, 1])
    assert np.allclose(slopes, [want] * 3, atol=1e-3), (slopes, want)


@pytest.mark.parametrize("cell, said", [("-1", "'-1' is below 0: no weight"), ("", "is empty: a value is missing"), ("NA", "'NA' is a missing value"), ("much", "'much' is not a number"),
                                        ("inf", "'inf' is not finite"), ("1e39", "too large")])
def test_what_is_no_weight(tmp_path, cell, said):
    bad(BAD_DATA, ["t.csv:3: column 1 (w)", said], tmp_path, "csv", text(tmp_path, f"w,x,y\n1,1,0\n{cell},2,1\n"), "--weight", "w")
    result = convert("csv", tmp_path / "t.csv", "--weight", "w", "--dry-run")
    assert result.returncode == BAD_DATA and said in result.stderr


# --- groups ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_groups_stay_together(tmp_path, seed):
    """As in scikit-learn's GroupShuffleSplit: no group is in two parts; parts have about their shares of rows, and the seed says which."""
    draw = random.Random(seed)
    names = [f"P{k}" for k in range(40) for _ in range(draw.randrange(1, 9))]
    draw.shuffle(names)
    path = text(tmp_path, "patient,x,y\n" + "".join(f"{name},{i},{i % 2}\n" for i, name in enumerate(names)))
    out = good("csv", path, "--group", "patient", "--split", "60/20/20", "--seed", seed, "--output", tmp_path / "o")
    assert "column 1 (patient): left out; each of its 40 groups is in one part\n" in out
    rows = [part["images"][:, 0].astype(int) for part in parts(tmp_path / "o")]
    assert sorted(np.concatenate(rows)) == list(range(len(names)))
    groups = [{names[i] for i in part} for part in rows]
    assert not (groups[0] & groups[1] or groups[0] & groups[2] or groups[1] & groups[2])
    for part, share in zip(rows, (0.6, 0.2, 0.2)):
        assert abs(len(part) - share * len(names)) <= 8, (len(part), len(names))
    good("csv", path, "--group", "patient", "--split", "60/20/20", "--seed", seed + 100, "--output", tmp_path / "p")
    assert parts(tmp_path / "p")[0]["images"].tolist() != parts(tmp_path / "o")[0]["images"].tolist()
    # Another order of the rows divides the same groups alike.
    order = list(range(len(names)))
    draw.shuffle(order)
    text(tmp_path, "patient,x,y\n" + "".join(f"{names[i]},{i},{i % 2}\n" for i in order))
    good("csv", path, "--group", "patient", "--split", "60/20/20", "--seed", seed, "--output", tmp_path / "p")
    assert [set(part["images"][:, 0]) for part in parts(tmp_path / "p")] == [set(part) for part in rows]


def test_few_groups_and_other_roles(tmp_path):
    rows = "".join(f"{g},{i},{i % 2}\n" for i, g in enumerate("aaaaaaaaaaaaaaaaaaaabc"))
    path = text(tmp_path, "g,x,y\n" + rows)
    for seed in range(6):  # one of three groups has nearly all rows
        good("csv", path, "--group", "g", "--split", "60/20/20", "--seed", seed, "--output", tmp_path / "o")
        assert sorted(len(part["labels"]) for part in parts(tmp_path / "o")) == [1, 1, 20]
    one = text(tmp_path, "g,x,y\n" + rows.replace("b,", "a,").replace("c,", "a,"), "one.csv")
    bad(USAGE, "--split: 1 groups leave none for the part test", tmp_path, "csv", one, "--group", "g", "--split", "80/20")
    out = good("csv", path, "--group", "g", "--categories", "g", "--split", "1/1", "--output", tmp_path / "c")
    assert "column 1 (g): 3 categories: a, b, c; each of its 3 groups is in one part\n" in out
    good("csv", path, "--group", "g", "--id", "g", "--split", "1/1", "--output", tmp_path / "c")
    assert set(shard(tmp_path / "c-train")["id"]) & set(shard(tmp_path / "c-test")["id"]) == set()
    bad(USAGE, "--group belongs to --split", tmp_path, "csv", path, "--group", "g")
    bad(USAGE, "--stratify and --group exclude each other", tmp_path, "csv", path, "--group", "g", "--split", "1/1", "--stratify")
    bad(USAGE, "--group and --time exclude each other", tmp_path, "csv", path, "--group", "g", "--time", "x", "--split", "1/1")
    bad(USAGE, "--group h: no such column; ", tmp_path, "csv", path, "--group", "h", "--split", "1/1")
    bad(BAD_DATA, "t.csv:3: column 1 (g): '' is no group", tmp_path, "csv", text(tmp_path, "g,x,y\na,1,0\n,2,1\n"), "--group", "g", "--split", "1/1")
    bad(USAGE, "--group is no option of the format npy", tmp_path, "npy", path, path, "--group", "g")


# --- times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M", "%d.%m.%Y", "%d/%m/%Y", "%s"])
def test_the_latest_rows_are_the_test_part(tmp_path, form):
    """Whatever their order in the file; rows of one time stay together, within a group of the shares."""
    draw = random.Random(3)
    times = [datetime.datetime(2021, 12, 20) + datetime.timedelta(days=draw.randrange(60)) for _ in range(300)]
    written = [str((t - datetime.datetime(1970, 1, 1)).days) if form == "%s" else t.strftime(form) for t in times]
    path = text(tmp_path, "when,x,y\n" + "".join(f"{w},{i},{i % 2}\n" for i, w in enumerate(written)))
    out = good("csv", path, "--time", "when", "--split", "60/20/20", "--output", tmp_path / "o")
    assert "column 1 (when): left out; the latest rows are the test part\n" in out
    got = [[times[int(i)] for i in part["images"][:, 0]] for part in parts(tmp_path / "o")]
    assert max(got[0]) < min(got[1]) and max(got[1]) < min(got[2]) and sum(map(len, got)) == 300
    most = max(times.count(t) for t in times)
    assert all(abs(len(part) - n) <= most for part, n in zip(got, (180, 60, 60)))
    if form == "%s":
        out = good("csv", path, "--time", "when", "--columns", "when,x", "--split", "80/20", "--output", tmp_path / "p")
        assert "column 1 (when): number; the latest rows are the test part\n" in out
    else:
        out = good("csv", path, "--time", "when", "--dates", "when", "--split", "80/20", "--output", tmp_path / "p")
        assert "weekday; the latest rows are the test part\n" in out and shard(tmp_path / "p-train")["images"].shape[1] == 8


def test_times_that_cannot_divide(tmp_path):
    def table(*times):
        return text(tmp_path, "when,x,y\n" + "".join(f"{t},{i},{i % 2}\n" for i, t in enumerate(times)))

    more = ["--time", "when", "--split", "1/1"]
    good("csv", table(3, 1, 2, 4), *more, "--output", tmp_path / "o")
    assert [part["images"].ravel().tolist() for part in parts(tmp_path / "o", ("train", "test"))] == [[1, 2], [0, 3]]
    good("csv", table(1, 1, 1, 2), *more, "--output", tmp_path / "o")
    assert [len(part["labels"]) for part in parts(tmp_path / "o", ("train", "test"))] == [3, 1]
    bad(USAGE, "--split: 4 samples leave none for the part test", tmp_path, "csv", table(5, 5, 5, 5), *more)
    bad(BAD_DATA, "t.csv:3: column 1 (when): 'soon' is not a date, as 2024-03-01 13:45; --time needs one in each row", tmp_path, "csv", table("2024-01-01", "soon"), *more)
    bad(BAD_DATA, "t.csv:2: column 1 (when): 'soon' is neither a number nor a date", tmp_path, "csv", table("soon", 1), *more)
    bad(BAD_DATA, "t.csv:3: column 1 (when): '2024-01-01' is no number, as --time has in other rows", tmp_path, "csv", table(1, "2024-01-01"), *more)
    bad(BAD_DATA, "'01/02/2024' may have the day or the month first", tmp_path, "csv", table("01/02/2024", "02/03/2024"), *more)
    bad(USAGE, "--time belongs to --split", tmp_path, "csv", table(1, 2), "--time", "when")
    # A date that tells the order does so for those in front of it.
    good("csv", table("03/01/2024", "01/15/2024", "02/01/2024", "04/01/2024"), *more, "--output", tmp_path / "o")
    assert [part["images"].ravel().tolist() for part in parts(tmp_path / "o", ("train", "test"))] == [[1, 2], [0, 3]]
