"""`dptrain convert csv` of numbers as people write them, and of any magnitude: what is stored, and that `predict` reads a file alike."""
import re
import sys

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403


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


@pytest.mark.parametrize("step, told", [(1, True), (1 << 17, False), (0, False)])
def test_times_in_arrays_are_told(tmp_path, step, told):
    """Numbers of columns without a name have no offset, so what becomes one number as float32 is told, in whatever file it is."""
    times = (1 << 40) + step * np.arange(400.0)
    x, y = np.column_stack([np.arange(400.0), times]), (np.arange(400) % 2).astype(np.int32)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, y
    for words in (["convert", "npz", tmp_path / "a.npz", "--output", tmp_path / "npz"], ["convert", "h5", tmp_path / "a.h5", "--output", tmp_path / "h5"],
                  ["init", tmp_path / "a.h5", "--output", tmp_path / "job.yaml"]):
        done = dpt.run(*words)
        assert done.code == 0 and ("column 1: whole numbers beyond 2^24" in done.err) == told, done


def test_numbers_that_float32_holds_keep_their_bytes(tmp_path):
    """Whole numbers below 2^24, years, amounts from 0 on: no offset. Numbers that float32 does not tell apart are reported if one is 0."""
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
    out = trained(tmp_path, "train.epochs=40", "optimizer.lr=0.01", "model.hidden=[16]", "data.valid=0.2")
    assert float(re.search(r"R2 ([-.\d]+)", out)[1]) > 0.95
    std = re.search(r" std: \[(.*), (.*)\]", (tmp_path / "j.yaml").read_text(encoding="utf-8"))
    assert float(std[1]) == pytest.approx(np.std([a for a, _ in rows]), rel=1e-5) and float(std[2]) == pytest.approx(np.std([b for _, b in rows]), rel=1e-5)


@pytest.mark.parametrize("cells, options, want", [
    (["5%", "12.5 %", "0%"], [], [0.05, 0.125, 0]),
    (["\u22121", "2", "\u22121.5e\u22123"], [], [-1, 2, -0.0015]),
    (["$5", "-$2.50", "$-3"], [], [5, -2.5, -3]),
    (["5\u00a0€", "€7", "-1 €"], [], [5, 7, -1]),
    (['"$1,200.50"', '"-$3,000"', "$7"], ["--thousands", ","], [1200.5, -3000, 7]),
    (['" 1 "', '"2\t"', '" -3"'], [], [1, 2, -3]),
    (["1\u00a0200", "3 000", "-4\u202f000\u2009000"], ["--thousands", "\u00a0"], [1200, 3000, -4e6]),
    (["1\u2019200.5", "3'000", "7"], ["--thousands", "\u2019"], [1200.5, 3000, 7]),
    (['"12,5%"', '"7 %"', '"1.200,5%"'], ["--decimal", ",", "--thousands", "."], [0.125, 0.07, 12.005]),
])
def test_numbers_as_people_write_them(tmp_path, cells, options, want):
    """Percents are hundredths, as spreadsheets compute with them. As a feature, as a target, and of another file by `predict`'s reading."""
    path = text(tmp_path, "x,a,y\n" + "".join(f"{c},{i},{i % 2}\n" for i, c in enumerate(cells)))
    good("csv", path, "--output", tmp_path / "o", *options)
    assert shard(tmp_path / "o")[0][:, 0].tolist() == [np.float32(v) for v in want]
    good("csv", path, "--label", "x", "--regression", "--output", tmp_path / "p", *options)
    assert shard(tmp_path / "p")[1].ravel().tolist() == [np.float32(v) for v in want]
    good("csv", path, "--output", tmp_path / "q", "--like", tmp_path / "o-00000-of-00001.h5")
    assert (tmp_path / "q-00000-of-00001.h5").read_bytes() == (tmp_path / "o-00000-of-00001.h5").read_bytes()


def test_units_that_do_not_fit_are_told(tmp_path):
    said = warned(tmp_path, "a,b,y\n1,5%,0\n2,7,1\n3,0,0\n")
    assert "t.csv:2: column 2 (b): '5%' is in percent, which are hundredths, but 1 number of its column has no unit" in said
    bad(BAD_DATA, ["t.csv:3: column 2 (b): '€7' is in another unit than", "t.csv:2: column 2 (b): '$5'"], tmp_path, "csv",
        text(tmp_path, "a,b,y\n1,$5,0\n2,€7,1\n"))
    bad(BAD_DATA, "column 1 (a): '$1,200.5' is not a number; --thousands , reads it as one", tmp_path, "csv", text(tmp_path, 'a,y\n"$1,200.5",0\n$2,1\n'))


def warned(folder, content, *options):
    result = convert("csv", text(folder, content), "--dry-run", *options)
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.parametrize("before, mark, between", [("sep=;\n", ";", ""), ("\ufeffsep=\t\r\n", "\t", ""), ('"sep=|"\n', "|", ""), ("# made by hand\n#\n# x, y\n", ",", ""),
                                                   ("\n# one\n", ",", "# two, of four, cells, here\n"), ("sep=;\n# one\n", ";", "# two\n"),
                                                   ("# as many, cells, as columns\n#, 2, 3\n", ",", "")])
def test_lines_in_front_of_the_header(tmp_path, before, mark, between):
    """A line sep=; as Excel writes it, and comments: they are no records, in any of the files, and `predict` reads files with and without alike."""
    rows = [mark.join((str(i), str(i * i % 7), "ab"[i % 2])) for i in range(12)]
    path = text(tmp_path, before + f"u{mark}v{mark}y\n" + rows[0] + "\n" + between + "\n".join(rows[1:]) + "\n")
    done = convert("csv", path, path, "--output", tmp_path / "o")
    assert done.returncode == 0, done.stderr
    images, labels, columns = shard(tmp_path / "o")
    assert images.tolist() == [[i, i * i % 7] for i in range(12)] * 2 and labels.tolist() == [0, 1] * 12
    assert ("0,delimiter,file,," in columns) == (mark != ",")
    comments = 2 * (before + between).count("#")
    assert done.stderr == (f"{path}: {comments} comment lines, which begin with #, left out\n" if comments else "")
    plain = text(tmp_path, f"v{mark}u\n3{mark}1\n", "plain.csv")
    trained(tmp_path, "train.epochs=1")
    assert len(predicted(tmp_path, path)[0]) == 12 and len(predicted(tmp_path, plain)[0]) == 1


def test_an_option_counts_more_than_a_line_of_the_file(tmp_path):
    for option, mark in ((";", ";"), ("tab", "\t"), (",", ",")):
        good("csv", text(tmp_path, "sep=|\n" + "u,v,y\n1,2,0\n3,4,1\n".replace(",", mark)), "--delimiter", option, "--output", tmp_path / "o")
        assert shard(tmp_path / "o")[0].tolist() == [[1, 2], [3, 4]]


def test_a_header_behind_a_hash(tmp_path):
    """As np.savetxt writes it."""
    good("csv", text(tmp_path, "# u,v,y\n1,2,0\n3,4,1\n"), "--output", tmp_path / "o")
    assert shard(tmp_path / "o")[0].tolist() == [[1, 2], [3, 4]] and "1,# u,number" in shard(tmp_path / "o")[2]


def test_numbers_that_cannot_be_read_are_not_taken_for_missing(tmp_path):
    rows = "".join(f"{i},{'<5' if i % 9 == 0 else i},{i % 2}\n" for i in range(60))
    said = bad(BAD_DATA, "column 2 (b): numbers, but '<5' cannot be read as one: correct the file", tmp_path, "csv", text(tmp_path, "a,b,y\n" + rows))
    assert "--missing" not in said and "This command" not in said
    rows = "".join(f"{i},{i} kg,{i % 2}\n" for i in range(60))
    bad(BAD_DATA, "amounts have to be written as numbers", tmp_path, "csv", text(tmp_path, "a,b,y\n" + rows))
    # Blanks in quotes are no value.
    bad(BAD_DATA, "t.csv:3: column 1 (a): is empty", tmp_path, "csv", text(tmp_path, 'a,b,y\n1,2,0\n"  ",3,1\n'))


def test_spellings_of_nothing_are_listed_once(tmp_path):
    rows = "".join(f"{'NA' if i % 5 == 0 else i},{'NA' if i % 4 == 0 else '?' if i % 4 == 1 else i},x{i % 3},{i % 2}\n" for i in range(60))
    said = bad(BAD_DATA, "This command does so", tmp_path, "csv", text(tmp_path, "a,b,c,y\n" + rows), "--missing", "NA,-,NA")
    assert "--missing 'NA,-,?'" in said


def test_many_categories_with_many_rows_each_are_learned_from(tmp_path):
    """Too many are those of few rows: 120 of 10 are, of 100 each are not."""
    for rows, fate in ((1200, "too many to learn from"), (12000, "120 different values in 12 000 rows, which --categories takes")):
        path = text(tmp_path, "a,b,y\n" + "".join(f"{i},k{i % 120},{i % 2}\n" for i in range(rows)))
        bad(BAD_DATA, fate, tmp_path, "csv", path)


@pytest.mark.parametrize("decimal, group, unit", [(".", "", ""), (".", ",", "$"), (",", ".", "€"), (",", "\u202f", "%"), (".", "", "%"), (".", "'", "£"), (",", "", "")])
def test_random_numbers_in_any_writing(tmp_path, decimal, group, unit):
    """Signs, groups of three digits, exponents, blanks and units, drawn at random: the float32 nearest to what was written."""
    r = random.Random(f"{decimal}{group}{unit}")
    cells, want = [], []
    for _ in range(500):
        digits, behind = str(r.randrange(10 ** r.randrange(1, 8))), "".join(r.choice("0123456789") for _ in range(r.randrange(5)))
        sign, exponent = r.choice(["", "", "-", "+", "\u2212"]), r.choice(["", "", "", "e2", "E-3", "e\u22122"])
        grouped = group and r.random() < 0.7
        exponent = "" if grouped else exponent
        number = (f"{int(digits):,}".replace(",", group) if grouped else digits) + (decimal + behind if behind else "") + exponent
        blank, front = r.choice(["", " ", "\u00a0"]), unit not in ("", "%") and r.random() < 0.5
        written = sign + unit + number if front else sign + number + blank + unit if unit else sign + number
        cells.append('"' + r.choice(["", " ", "\t"]) + written + r.choice(["", "  "]) + '"')
        value = float(f"{sign}{digits}.{behind or 0}{exponent}".replace("\u2212", "-"))
        want.append(value / 100 if unit == "%" else value)
    path = text(tmp_path, "x,a,y\n" + "".join(f"{c},{i},{i % 2}\n" for i, c in enumerate(cells)))
    options = (["--decimal", decimal] if decimal != "." else []) + (["--thousands", group] if group else [])
    good("csv", path, "--output", tmp_path / "o", *options)
    assert shard(tmp_path / "o")[0][:, 0].tolist() == [np.float32(v) for v in want]
