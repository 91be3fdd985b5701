"""Dates in CSV files as features, and features that say that a value was missing: as Python's datetime and NumPy compute them."""
import datetime
import json
import math
import sys

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403


def shard(prefix):
    with h5py.File(f"{prefix}-00000-of-00001.h5") as f:
        return f["images"][()], f["columns"][()].decode()


def features(when, hour=True):
    """Year; sine and cosine of month, day of year, weekday (Monday is 0), and of the time of day."""
    first, days = datetime.date(when.year, 1, 1), 366 if when.year % 4 == 0 and (when.year % 100 != 0 or when.year % 400 == 0) else 365
    turns = [(when.month - 1) / 12, (when.date() - first).days / days, when.weekday() / 7]
    turns += [(when.hour + when.minute / 60 + when.second / 3600) / 24] * hour
    return [when.year, *(f(2 * math.pi * turn) for turn in turns for f in (math.sin, math.cos))]


FORMS = {  # how it is written, options, does it have a time
    "%Y-%m-%d": ([], 0), "%Y/%m/%d": ([], 0), "%Y.%m.%d": ([], 0), "%d.%m.%Y": ([], 0), "%m/%d/%Y": (["--day-first", "no"], 0), "%d/%m/%Y": (["--day-first", "yes"], 0),
    "%d-%m-%Y": ([], 0), "%m/%d/%Y %I:%M %p": ([], 1), "%d %b %Y": ([], 0), "%d-%b-%Y": ([], 0), "%B %d, %Y": ([], 0),
    "%Y-%m-%d %H:%M": ([], 1), "%Y-%m-%d %H:%M:%S": ([], 1), "%Y-%m-%dT%H:%M:%SZ": ([], 1), "%Y-%m-%dT%H:%M:%S.000+02:00": ([], 1),
    "%Y-%m-%d %H:%M:%S+0000": ([], 1), "%d.%m.%Y %H:%M": ([], 1), "%Y-%m-%d 00:00:00": ([], 0), " %Y-%m-%d %H:%M ": ([], 1), " %d.%m.%Y ": ([], 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_dates_in_any_writing(tmp_path, form):
    options, timed = FORMS[form]
    draw = random.Random(form)
    times = [datetime.datetime(1890, 1, 1) + datetime.timedelta(minutes=draw.randrange(150 * 365 * 1440)) for _ in range(150)] + \
            [datetime.datetime(2000, 2, 29), datetime.datetime(1900, 2, 28), datetime.datetime(2024, 12, 31, 23, 59), datetime.datetime(1970, 1, 1)]
    path = text(tmp_path, "x,when,y\n" + "".join(f'{i},"{t.strftime(form)}",{i % 2}\n' for i, t in enumerate(times)))
    out = good("csv", path, "--dates", "when", *options, "--output", tmp_path / "o")
    images, columns = shard(tmp_path / "o")
    if "%S" not in form:
        times = [t.replace(second=0) for t in times]
    assert images.shape == (len(times), 1 + 7 + 2 * timed)
    assert np.allclose(images[:, 1:], [features(t, timed) for t in times], atol=1e-5)
    assert "column 2 (when): date" in out and f"weekday{', hour' if timed else ''}\n" in out
    order = "day first" if form.startswith(("%d/", "%d-%m")) else "month first" if form.startswith("%m") else None
    assert (f"2,when,date,,{order}\n" in columns) == bool(order), columns


@pytest.mark.parametrize("cell", ["2024-02-30", "2023-02-29", "2024-13-01", "24-03-01", "01/02/24", "2024-03", "2024-03-01 25:00", "2024-03-01 12", "2024-03-01x", "Mai 1, 2024",
                                  "2024-03/01", "soon", "13:45", "20240301", "2024-03-01 13:61", "2024-03-01 13:00 PM", "31.04.2024", "0.1.2024"])
def test_what_is_no_date(tmp_path, cell):
    bad(BAD_DATA, [f"t.csv:3: column 1 (when): '{cell}' is not a date, as 2024-03-01"], tmp_path, "csv",
        text(tmp_path, f'when,y\n2024-03-01,0\n"{cell}",1\n'), "--dates", "when")


def test_which_number_is_the_day(tmp_path):
    """A date tells it for its column, an option for all; a guess is none."""
    def rows(*dates):
        return text(tmp_path, "when,y\n" + "".join(f"{date},{i % 2}\n" for i, date in enumerate(dates)))

    good("csv", rows("03/04/2024", "13/04/2024"), "--dates", "when", "--output", tmp_path / "o")
    assert np.allclose(shard(tmp_path / "o")[0][0], features(datetime.datetime(2024, 4, 3), False), atol=1e-6)
    good("csv", rows("03/04/2024", "04/13/2024"), "--dates", "when", "--output", tmp_path / "o")
    assert np.allclose(shard(tmp_path / "o")[0][0], features(datetime.datetime(2024, 3, 4), False), atol=1e-6)
    bad(BAD_DATA, "t.csv:2: column 1 (when): '03/04/2024' may have the day or the month first, and so may all dates of its column: give --day-first yes or no", tmp_path,
        "csv", rows("03/04/2024", "05/05/2024"), "--dates", "when")
    bad(BAD_DATA, ["t.csv:3: ", "a date with the month first, but ", "t.csv:2: column 1 (when): '13/04/2024' is one with the other first"], tmp_path,
        "csv", rows("13/04/2024", "04/13/2024"), "--dates", "when")
    bad(BAD_DATA, "t.csv:2: column 1 (when): '04/13/2024' is not a date", tmp_path, "csv", rows("04/13/2024"), "--dates", "when", "--day-first", "yes")
    bad(USAGE, "--day-first maybe: must be auto, yes or no", tmp_path, "csv", rows("04/13/2024"), "--dates", "when", "--day-first", "maybe")
    good("csv", rows("05/05/2024", "06/06/2024"), "--dates", "when", "--output", tmp_path / "o")  # any order will do
    # Another file follows, whatever its dates tell.
    good("csv", rows("03/04/2024", "13/04/2024"), "--dates", "when", "--output", tmp_path / "o")
    like = ["--like", f"{tmp_path}/o-00000-of-00001.h5"]
    good("csv", rows("03/04/2024", "2024-04-03"), *like, "--output", tmp_path / "p")
    assert np.allclose(shard(tmp_path / "p")[0], [features(datetime.datetime(2024, 4, 3), False)] * 2, atol=1e-6)
    bad(BAD_DATA, "'04/13/2024' is not a date", tmp_path, "csv", rows("04/13/2024"), *like)
    bad(USAGE, "--dates", tmp_path, "csv", rows("04/13/2024"), *like, "--dates", "when")
    good("csv", rows("2024-03-04", "2024-03-05"), "--dates", "when", "--output", tmp_path / "o")
    bad(BAD_DATA, "'03/04/2024' is one of two dates: the training data had none that are written so", tmp_path, "csv", rows("03/04/2024"), *like)


def test_the_command_takes_dates(tmp_path):
    """What lists columns of words lists dates, too, and the command that it prints runs."""
    for dates, more, words in ((["2024-03-01", "NaT", "2024-05-01 12:30"], "", ": dates, which --dates takes\n"),
                               (["03/01/2024", "02/02/2024", ""], " --day-first no", ": dates, which --dates takes, here with the month first; --day-first yes: the day is\n")):
        path = text(tmp_path, "a,the day,colour,y\n" + "".join(f"{i},{dates[i % 3]},{'red' if i % 4 else 'blue'},{i % 2}\n" for i in range(40)))
        refused = convert("csv", path, "--label", "y", "--output", tmp_path / "o")
        lines = refused.stderr.splitlines()
        assert refused.returncode == BAD_DATA and f"  column 2 (the day){words}" in refused.stderr and f" --categories colour --dates 'the day'{more} " in lines[-1], refused
        said = subprocess.run(["sh", "-c", lines[-1]], capture_output=True, text=True, timeout=120)
        assert said.returncode == 0 and said.stderr == "" and "column 2 (the day): date" in said.stdout, said
    assert "column 2 (the day): date, the month first" in good("csv", path, *lines[-1].split(" --output")[0].split("t.csv ")[1].split(), "--dates", "the day", "--categories", "colour",
                                                               "--day-first", "no", "--impute", "median", "--dry-run")


def test_missing_indicator(tmp_path):
    """As scikit-learn's SimpleImputer(add_indicator=True), each beside its column: one for each that misses a value. Missing dates are the median date."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 100, (60, 3)).astype(float)
    values[rng.random((60, 3)) < [0.2, 0, 0.4]] = np.nan
    days = [None if i % 7 == 3 else datetime.datetime(2024, 1, 1) + datetime.timedelta(days=int(d)) for i, d in enumerate(rng.integers(0, 400, 60))]
    cells = [[("" if np.isnan(v) else f"{v:g}") for v in row] for row in values]
    lines = "".join(f"{','.join(row)},{'' if day is None else day.date()},{('yes', 'no', '')[i % 3]},{i % 2}\n" for i, (row, day) in enumerate(zip(cells, days)))
    path = text(tmp_path, "a,b,c,when,flag,y\n" + lines)
    out = good("csv", path, "--dates", "when", "--impute", "median", "--missing-indicator", "--output", tmp_path / "o")
    images, columns = shard(tmp_path / "o")
    hole, filled = np.isnan(values), np.where(np.isnan(values), np.nanmedian(values, axis=0), values)
    there = sorted(day for day in days if day)
    middle = there[(len(there) - 1) // 2] + (there[len(there) // 2] - there[(len(there) - 1) // 2]) / 2
    want = [[filled[i, 0], hole[i, 0], filled[i, 1], filled[i, 2], hole[i, 2], *features((days[i] or middle).replace(hour=0), False), days[i] is None, (1, 0, 0.5)[i % 3], i % 3 == 2] for i in range(60)]
    assert np.allclose(images, want, atol=1e-5)
    assert "column 1 (a): number; " in out and "the median; one more feature is 1 if it was missing\ncolumn 2 (b): number\n" in out
    assert "1,a,number+missing," in columns and "\n2,b,number," in columns and "\n4,when,date+missing," in columns and "\n5,flag,number+missing,0.5,no\n" in columns
    # Another file may miss none of them, or others.
    good("csv", text(tmp_path, "y,flag,when,c,b,a\n1,yes,2024-01-09,1,,3\n0,,,,5,\n", "u.csv"), "--like", f"{tmp_path}/o-00000-of-00001.h5", "--output", tmp_path / "p", warns=True)
    median = np.nanmedian(values, axis=0)
    assert np.allclose(shard(tmp_path / "p")[0], [[3, 0, median[1], 1, 0, *features(datetime.datetime(2024, 1, 9), False), 0, 1, 0],
                                                  [median[0], 1, 5, median[2], 1, *features(middle.replace(hour=0), False), 1, 0.5, 1]], atol=1e-5)
    assert shard(tmp_path / "p")[1] == columns
    bad(USAGE, "--missing-indicator: nothing is filled", tmp_path, "csv", path, "--missing-indicator")
    bad(BAD_DATA, ["column 4 (when): is empty", "--impute median fills"], tmp_path, "csv", text(tmp_path, "a,b,c,when,flag,y\n1,2,3,,yes,0\n"), "--dates", "when")


def test_a_model_of_dates(tmp_path):
    """A season is learned; predict finds, reads and fills the same columns, and ONNX names the features."""
    draw = random.Random(5)
    times = [datetime.datetime(2022, 1, 1) + datetime.timedelta(hours=draw.randrange(3 * 8766)) for _ in range(400)]
    lines = [f"{t:%d/%m/%Y %H:%M},{'' if i % 5 == 0 else i % 9},{20 - 10 * math.cos(2 * math.pi * (t.timetuple().tm_yday - 15) / 365) + 5 * math.sin(2 * math.pi * t.hour / 24):.2f}"
             for i, t in enumerate(times)]
    text(tmp_path, "\n".join(["when,b,y", *lines]) + "\n")
    good("csv", tmp_path / "t.csv", "--dates", "when", "--impute", "mean", "--missing-indicator", "--split", "80/20", "--output", f"{tmp_path}/d/")
    assert dpt.run("init", "d", "--output", "j.yaml", cwd=tmp_path).code == 0
    assert dpt.run("j.yaml", "--quiet", "--set", "output=r", "--set", "train.epochs=40", cwd=tmp_path).code == 0
    done = dpt.run("predict", "j.yaml", "--checkpoint", "r", text(tmp_path, "\n".join(["y,b,when", *(",".join(line.split(",")[::-1]) for line in lines)]) + "\n", "u.csv"), cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    got, true = (np.array([float(row[name]) for row in rows]) for name in ("y", "true"))
    assert 1 - ((got - true) ** 2).sum() / ((true - true.mean()) ** 2).sum() > 0.9, done
    alone = dpt.run("predict", "j.yaml", "--checkpoint", "r", text(tmp_path, f"when,b\n{times[1]:%Y-%m-%d %H:%M},1\n", "one.csv"), cwd=tmp_path)
    assert np.isclose(float(list(csv.DictReader(io.StringIO(alone.out)))[0]["y"]), got[1], rtol=1e-4), (alone, got[1])
    assert dpt.run("export", "r", "m.onnx", cwd=tmp_path).code == 0
    raw = (tmp_path / "m.onnx").read_bytes()
    names = ["when year", *(f"when {part} {f}" for part in ("month", "day of year", "weekday", "hour") for f in ("sin", "cos")), "b", "b missing"]
    assert json.dumps(names).encode() in raw
