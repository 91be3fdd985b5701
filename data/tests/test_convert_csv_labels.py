"""Labels of CSV files as people have them: words for yes and no in any case, in several columns, a class called none, and rows without any."""
import re
import sys

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403


def found(prefix):
    """Labels, names of classes, /columns."""
    with h5py.File(f"{prefix}-00000-of-00001.h5") as f:
        return f["labels"][()].tolist(), [c.decode() for c in f["labels"].attrs.get("classes", [])], f["columns"][()].decode() if "columns" in f else ""


def rows(labels):
    return "x,y\n" + "".join(f"{i},{y}\n" for i, y in enumerate(labels))


@pytest.mark.parametrize("labels, want, classes", [
    (["True", "TRUE", "False", "false", "true"], [1, 1, 0, 0, 1], ["false", "true"]),
    (["Yes", "no", "YES"], [1, 0, 1], ["no", "yes"]),
    (["True", "False", "True"], [1, 0, 1], ["False", "True"]),  # as pandas writes them: the names stay
    (["True", "TRUE", "maybe"], [1, 0, 2], ["TRUE", "True", "maybe"]),  # other words tell cases apart
    (["a", "A", "b"], [1, 0, 2], ["A", "a", "b"]),
])
def test_words_for_yes_and_no_are_one_class_in_any_case(tmp_path, labels, want, classes):
    good("csv", text(tmp_path, rows(labels)), "--output", tmp_path / "o")
    assert found(tmp_path / "o")[:2] == (want, classes)


def test_another_file_may_write_them_otherwise(tmp_path):
    good("csv", text(tmp_path, rows(["True", "False"] * 20)), "--output", tmp_path / "o")
    other = text(tmp_path, rows(["TRUE", "false", "true"]), "u.csv")
    good("csv", other, "--output", tmp_path / "p", "--like", tmp_path / "o-00000-of-00001.h5")
    assert found(tmp_path / "p")[:2] == ([1, 0, 1], ["False", "True"])
    (tmp_path / "j.yaml").write_text("name: w\noutput: r\ndata: {train: o-*.h5}\nmodel: {type: linear}\nbatch: {global: 8}\ntrain: {epochs: 1}\n")
    assert dpt.run("j.yaml", "--quiet", cwd=tmp_path).code == 0
    done = dpt.run("predict", "j.yaml", "--checkpoint", "r", other, cwd=tmp_path)
    assert [row["true"] for row in csv.DictReader(io.StringIO(done.out))] == ["True", "False", "True"], done


def test_yes_and_no_in_several_label_columns(tmp_path):
    path = text(tmp_path, "x,a,b,c\n" + "1,yes,False,0\n2,no,TRUE,1\n3,YES,false,0\n" * 10)
    out = good("csv", path, "--output", tmp_path / "o", "--label", "a,b,c")
    assert found(tmp_path / "o")[0] == [[1, 0, 0], [0, 1, 1], [1, 0, 0]] * 10
    assert "column 2 (a): one of 3 labels, 0 or 1, no is 0 and yes is 1\n" in out and "column 4 (c): one of 3 labels, 0 or 1\n" in out
    other = text(tmp_path, "c,b,a,x\n1,true,No,5\n0,False,yes,6\n", "u.csv")
    good("csv", other, "--output", tmp_path / "p", "--like", tmp_path / "o-00000-of-00001.h5")
    assert found(tmp_path / "p")[0] == [[0, 1, 1], [1, 0, 0]]
    job = dpt.run("init", "o-00000-of-00001.h5", "--output", "j.yaml", cwd=tmp_path)
    assert job.code == 0 and dpt.run("j.yaml", "--quiet", "--set", "output=r", "--set", "train.epochs=1", cwd=tmp_path).code == 0, job
    done = dpt.run("predict", "j.yaml", "--checkpoint", "r", other, cwd=tmp_path)
    assert done.code == 0 and done.out.startswith("sample,true_a,true_b,true_c,a,b,c\n0,0,1,1,"), done
    bad(BAD_DATA, "t.csv:3: column 2 (a): 'maybe' is neither no nor yes, as in the rows before", tmp_path, "csv",
        text(tmp_path, "x,a,b\n1,yes,0\n2,maybe,1\n"), "--label", "a,b")
    bad(BAD_DATA, "t.csv:3: column 2 (a): 'yes' is not a number", tmp_path, "csv", text(tmp_path, "x,a,b\n1,0,0\n2,yes,1\n"), "--label", "a,b")


def test_a_class_called_none(tmp_path):
    result = convert("csv", text(tmp_path, rows(["mild", "none", "None", "severe"])), "--output", tmp_path / "o")
    assert result.returncode == 0 and "t.csv:3: column 2 (y): 'none' is taken for a class" in result.stderr, result.stderr
    assert found(tmp_path / "o")[:2] == ([1, 2, 0, 3], ["None", "mild", "none", "severe"])
    # Among numbers it is no value, and so it is where --missing says so.
    bad(BAD_DATA, ["t.csv:4: column 2 (y): 'none' is a missing value", "--drop-missing-label"], tmp_path, "csv", text(tmp_path, rows([0, 1, "none"])))
    bad(BAD_DATA, ["t.csv:2: column 2 (y): 'none' is a missing value", "--drop-missing-label"], tmp_path, "csv", text(tmp_path, rows(["none", "mild"])), "--missing", "none")
    bad(BAD_DATA, "t.csv:3: column 2 (y): '?' is a missing value; --drop-missing-label leaves such rows out", tmp_path, "csv", text(tmp_path, rows(["a", "?"])))


@pytest.mark.parametrize("labels, options, want, dropped", [
    ([0, "", 1, "NA", "nan", "null", 1], [], [0, 1, 1], 4),
    (["a", "", "b", "-", "a"], ["--missing", "-"], [0, 1, 0], 2),
    (["1.5", "", "-999", "2.5"], ["--missing", "-999"], [[1.5], [2.5]], 2),
    ([0, 1, "", 0], ["--missing", "0", "--impute", "median"], [0, 1, 0], 1),  # 0 is no value of features
    ([3, "", 5], ["--regression"], [[3], [5]], 1),
])
def test_rows_without_a_label_are_left_out(tmp_path, labels, options, want, dropped):
    """Counted, with the features and names of those that stay; refused where nobody asked for it."""
    path = text(tmp_path, "n,x,y\n" + "".join(f"row{i},{i + 1},{y}\n" for i, y in enumerate(labels)))
    result = convert("csv", path, "--drop-missing-label", "--id", "n", "--output", tmp_path / "o", *options)
    assert result.returncode == 0, result.stderr
    assert f"{path}: {dropped} row{'s' if dropped > 1 else ''} without a label left out\n" in result.stderr
    assert found(tmp_path / "o")[0] == want
    with h5py.File(f"{tmp_path}/o-00000-of-00001.h5") as f:
        assert [f"row{int(x) - 1}" for x in f["images"][:, 0]] == [name.decode() for name in f["id"]]
    bad(BAD_DATA, "--drop-missing-label leaves such rows out", tmp_path, "csv", path, "--id", "n", *options)
    split = convert("csv", path, "--drop-missing-label", "--id", "n", "--split", "50/50", "--dry-run", *options)
    assert split.returncode == 0 and sum(int(n) for n in re.findall(r": (\d+) sample", split.stdout)) == len(want), split


def test_no_row_has_a_label(tmp_path):
    bad(BAD_DATA, "t.csv: has no row with a label", tmp_path, "csv", text(tmp_path, rows(["", "NA"])), "--drop-missing-label")


def test_labels_in_another_order_than_their_columns(tmp_path):
    """Targets are in the order of --label; what predict and another file call them is right, too."""
    lines = "".join(f"{i % 10},{i},{1000 + i % 10}\n" for i in range(100))
    path = text(tmp_path, "small,x,large\n" + lines)
    good("csv", path, "--label", "large,small", "--regression", "--output", tmp_path / "o")
    labels, _, columns = found(tmp_path / "o")
    assert labels[3] == [1003, 3] and columns.endswith("1,small,label,2,\n2,x,number,,\n3,large,label,1,\n")
    for options in [], ["--label", "small,large"]:
        good("csv", path, "--output", tmp_path / "p", "--like", tmp_path / "o-00000-of-00001.h5", *options)
        assert found(tmp_path / "p") == (labels, [], columns)
    (tmp_path / "j.yaml").write_text("name: w\noutput: r\ndata: {train: o-*.h5, targets: {normalize: auto}}\nmodel: {type: linear}\nloss: mse\n"
                                     "batch: {global: 50}\ntrain: {epochs: 1}\noptimizer: {type: sgd, lr: 1e-9}\n")
    assert dpt.run("j.yaml", "--quiet", cwd=tmp_path).code == 0
    done = dpt.run("predict", "j.yaml", "--checkpoint", "r", path, cwd=tmp_path)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["true_small"] for row in rows[:3]] == ["0", "1", "2"] and float(rows[0]["large"]) > 500 > float(rows[0]["small"]), done
