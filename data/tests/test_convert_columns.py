"""`dptrain convert csv` of files as people have them: what becomes of each column, what is kept of it, and how rows are divided."""
import json
import re
import sys
from pathlib import Path

sys.path[:0] = ["data/tests", "scripts/lib"]
import dpt  # noqa: E402
from convert_tools import *  # noqa: E402,F403

# As Excel saves it in a country of decimal commas: a mark, semicolons, CRLF, line breaks within cells.
MESSY = ("\ufeffNr;Größe;Farbe;Notiz;Ziel\r\n"
         'a-1;1,5;rot;"zwei\r\nZeilen; und ""mehr""";gut\r\n'
         "a-2;NA;grün;;schlecht\r\n"
         "007;-2,25;rot;x;gut\r\n"
         "a-4;4;;?;gut\r\n"
         "a-5;3;blau;y;schlecht\r\n").encode()
MESSY_OPTIONS = ["--delimiter", ";", "--decimal", ",", "--missing", "NA,?", "--drop", "Notiz", "--id", "Nr", "--categories", "Farbe"]
KEPT = """column,name,role,fill,value
0,delimiter,file,,;
0,decimal,file,,","
0,missing,file,,NA
0,missing,file,,?
1,Nr,id,,
2,Größe,number,2.25,
3,Farbe,category,,blau
3,Farbe,category,,grün
3,Farbe,category,,rot
4,Notiz,dropped,,
5,Ziel,label,,gut
5,Ziel,label,,schlecht
"""


def table(prefix, part=""):
    """All of a table's one shard; checks the checksums on the way."""
    found = {}
    with h5py.File(f"{prefix}{part}-00000-of-00001.h5") as f:
        for name, data in f.items():
            raw = open(f.filename, "rb").read()[data.id.get_offset():data.id.get_offset() + data.id.get_storage_size()]
            assert int(data.attrs["crc32"]) == zlib.crc32(raw), name
            found[name] = data[()]
        found["classes"] = [c.decode() for c in f["labels"].attrs.get("classes", [])]
    if "columns" in found:
        found["columns"] = found["columns"].decode()
    if "id" in found:
        found["id"] = [i.decode() for i in found["id"]]
    return found


def warned(*args):
    result = convert(*args)
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_a_file_as_a_spreadsheet_saves_it(tmp_path):
    out = good("csv", text(tmp_path, MESSY), "--output", tmp_path / "o", *MESSY_OPTIONS)
    got = table(tmp_path / "o")
    # The numbers of Größe are 1.5, -2.25, 4 and 3: their median is 2.25. Behind it blau, grün, rot.
    assert got["images"].tolist() == [[1.5, 0, 0, 1], [2.25, 0, 1, 0], [-2.25, 0, 0, 1], [4, 0, 0, 0], [3, 1, 0, 0]]
    assert got["labels"].tolist() == [0, 1, 0, 0, 1] and got["classes"] == ["gut", "schlecht"]
    assert got["id"] == ["a-1", "a-2", "007", "a-4", "a-5"]
    assert got["columns"] == KEPT
    assert out.splitlines()[:5] == [
        "column 1 (Nr): names of the rows",
        "column 2 (Größe): number; 1 missing, filled with 2.25, the median",
        "column 3 (Farbe): 3 categories: blau, grün, rot; 1 missing, none of them",
        "column 4 (Notiz): left out",
        "column 5 (Ziel): label, 2 classes",
    ]


def test_a_file_that_pandas_wrote(tmp_path):
    """Its numbers are those of pandas and scikit-learn (make_golden_table.py), standardised by what `init` finds."""
    golden = json.loads(Path("data/tests/golden_table.json").read_text(encoding="utf-8"))
    for how in ("median", "mean"):
        good("csv", "data/tests/golden_table.csv", "--output", tmp_path / "o", "--delimiter", ";", "--decimal", ",", "--missing", "NA", "--impute", how,
             "--id", "1", "--drop", "note", "--categories", "città", "--label", "Preis, EUR", "--regression")
        got = table(tmp_path / "o")
        job = dpt.run("init", tmp_path / "o-00000-of-00001.h5", "--output", "-").out
        mean, std = (np.array([float(v) for v in re.search(rf" {key}: \[([^]]*)\]", job)[1].split(",")]) for key in ("mean", "std"))
        ones = np.isin(got["images"], (0, 1)).all(0)  # `init` leaves them as they are
        assert 0 < ones.sum() < len(ones) and (mean[ones] == 0).all() and (std[ones] == 1).all()
        mean[ones], std[ones] = got["images"][:, ones].mean(0), got["images"][:, ones].std(0)
        assert abs((got["images"] - mean) / std - golden[how]).max() < 1e-6
        assert np.allclose(got["labels"].ravel(), golden["target"], rtol=1e-7) and got["id"] == golden["names"]


@pytest.mark.parametrize("rows, options, kept", [
    ('a,b\n"1,234.5",7\n"-12,345,678",6\n12,"1,000"\n', ["--thousands", ","], "0,thousands,file,,\",\"\n"),
    ("a;b\n1.234,5;7\n-12.345.678;6\n12;1.000\n", ["--thousands", ".", "--decimal", ",", "--delimiter", ";"],
     "0,delimiter,file,,;\n0,decimal,file,,\",\"\n0,thousands,file,,.\n"),
    ("a\tb\n1 234,5\t7\n-12 345 678\t6\n12\t1 000\n", ["--thousands", " ", "--decimal", ",", "--delimiter", "tab"], None),
])
def test_separators_of_thousands(tmp_path, rows, options, kept):
    good("csv", text(tmp_path, rows), "--output", tmp_path / "o", "--regression", *options)
    found = table(tmp_path / "o")
    assert found["images"][:, 0].tolist() == [1234.5, -12345678, 12] and found["labels"].ravel().tolist() == [7, 6, 1000]
    assert kept is None or found["columns"] == "column,name,role,fill,value\n" + kept + "1,a,number,,\n2,b,label,,\n"
    # Another file is read alike.
    good("csv", text(tmp_path, rows, "u.csv"), "--output", tmp_path / "p", "--like", tmp_path / "o-00000-of-00001.h5")
    assert (tmp_path / "p-00000-of-00001.h5").read_bytes() == (tmp_path / "o-00000-of-00001.h5").read_bytes()


def test_decimal_commas_in_quotes(tmp_path):
    path = text(tmp_path, '"a","b","c"\n"1,5","-2",0\n"0,25","7,125",1\n')
    good("csv", path, "--output", tmp_path / "o", "--decimal", ",")
    assert table(tmp_path / "o")["images"].tolist() == [[1.5, -2], [0.25, 7.125]]
    bad(BAD_DATA, "t.csv:2: has 3 columns, the first line of", tmp_path, "csv", text(tmp_path, "a,b\n1,5,0\n"), "--decimal", ",")
    bad(BAD_DATA, "--delimiter ';'", tmp_path, "csv", text(tmp_path, "a;b\n1,5;0\n"), "--decimal", ",")


def test_dry_run_tells_all_and_writes_nothing(tmp_path):
    path = text(tmp_path, MESSY)
    wet = good("csv", path, "--output", tmp_path / "o", *MESSY_OPTIONS).splitlines()
    (tmp_path / "empty").mkdir()
    dry = good("csv", path, "--dry-run", "--output", tmp_path / "empty" / "o", *MESSY_OPTIONS).splitlines()
    assert dry[:5] == wet[:5] and dry[5:] == ["5 samples; a dry run: nothing was written"]
    assert os.listdir(tmp_path / "empty") == []
    split = good("csv", path, "--dry-run", "--split", "60/40", *MESSY_OPTIONS).splitlines()
    assert split[-1] == "train: 3 samples, test: 2 samples; a dry run: nothing was written"
    bad(BAD_DATA, ["t.csv:4: column 2 (Größe)", "'NA' is a missing value; --missing NA fills such cells"], tmp_path, "csv", path,
        "--dry-run", "--delimiter", ";", "--decimal", ",", "--drop", "Notiz,Nr,Farbe")
    bad(BAD_DATA, ["t.csv:6: column 3 (Farbe): is empty", "none of the categories"], tmp_path, "csv", path,
        "--dry-run", "--delimiter", ";", "--decimal", ",", "--drop", "Notiz,Nr", "--categories", "Farbe")


def test_tables_without_names_or_options_keep_their_bytes(tmp_path):
    good("csv", text(tmp_path, "1,2,0\n3,4,1\n"), "--output", tmp_path / "o")
    assert set(table(tmp_path / "o")) == {"images", "labels", "classes"}
    good("csv", text(tmp_path, "a,b,c\n1,2,0\n3,4,1\n"), "--output", tmp_path / "o")
    assert table(tmp_path / "o")["columns"] == "column,name,role,fill,value\n1,a,number,,\n2,b,number,,\n3,c,label,,\n"


def test_columns_are_chosen(tmp_path):
    path = text(tmp_path, "a\tb\tc\td\n1\t2\t3\t0\n4\t5\t6\t1\n")
    tab = ["csv", path, "--output", tmp_path / "o", "--delimiter", "tab"]
    for options, want in ((["--columns", "c,a"], [[1, 3], [4, 6]]), (["--drop", "1"], [[2, 3], [5, 6]]), (["--drop", "b,-2"], [[1], [4]]),
                          (["--id", "d", "--label", "a"], [[2, 3], [5, 6]]), (["--drop", "d"], [[1, 2], [4, 5]])):
        good(*tab, *options)
        assert table(tmp_path / "o")["images"].tolist() == want, options
    # The last column that has no other role is the label.
    assert table(tmp_path / "o")["labels"].tolist() == [3, 6]
    for options, said in ((["--drop", "e"], ["--drop e: no such column", "a, b, c, d"]), (["--drop", "d", "--label", "d"], "--label, too"),
                          (["--id", "a,b"], "one column"), (["--drop", "a,b,c"], "is left as a feature"), (["--drop", "a,a"], "twice"),
                          (["--decimal", "tab"], "one character"), (["--delimiter", "ab"], "one character"), (["--impute", "mode"], "median, mean"),
                          (["--columns", "A"], "no such column, did you mean 'a'? "), (["--drop", "a,0"], "--drop 0: is no column: there are 4, 1 to 4")):
        bad(USAGE, said, tmp_path, *tab[:2], "--delimiter", "tab", *options)
    path = text(tmp_path, 'a,"b, c",d,"e, ""f""","g\nh"\n1,2,3,4,0\n5,6,7,8,1\n', "names.csv")
    for options, want in ((["--drop", "b, c"], [[1, 3, 4], [5, 7, 8]]), (["--drop", '"b, c",a'], [[3, 4], [7, 8]]),
                          (["--columns", '"e, ""f""", a'], [[1, 4], [5, 8]]), (["--drop", "a", "--drop", "2"], [[3, 4], [7, 8]])):
        good("csv", path, "--output", tmp_path / "o", "--label", "g\nh", *options)
        assert table(tmp_path / "o")["images"].tolist() == want, options
    good("csv", path, "--output", tmp_path / "o", "--label", "b, c")
    assert table(tmp_path / "o")["labels"].tolist() == [2, 6]
    bad(USAGE, ["--drop b: no such column", 'has: a, "b, c", d, "e, '], tmp_path, "csv", path, "--drop", "b,c")
    bad(BAD_DATA, "--drop:1: the quote that begins here is not closed", tmp_path, "csv", path, "--drop", '"b, c')
    bad(USAGE, ["--drop b: no such column, did you mean 'b, c'"], tmp_path, "csv", path, "--drop", "b, k")
    for content in (b"a,gr\xf6\xdfe\n1,0\n2,1\n", b"a,b\n1,k\xf6ln\n2,x\n"):
        bad(BAD_DATA, ["is not UTF-8", "iconv -f CP1252 -t UTF-8"], tmp_path, "csv", text(tmp_path, content, "latin.csv"))
    path = text(tmp_path, "a\tb\tc\td\n1\t2\t3\t0\n")
    bad(BAD_DATA, ["tabs", "--delimiter tab"], tmp_path, "csv", path)
    bad(BAD_DATA, ["semicolons", "--delimiter ';'"], tmp_path, "csv", text(tmp_path, "a;b\n1;2\n"))
    for mark, option in ((";", "';'"), ("\t", "tab"), ("|", "'|'")):  # also where names or numbers hold commas
        path = text(tmp_path, "Größe;Preis, EUR;x\n1,5;2;0\n".replace(";", mark))
        bad(USAGE, ["--label x: no such column", f"--delimiter {option}"], tmp_path, "csv", path, "--label", "x")
        said = good("csv", path, "--dry-run").splitlines()[0]
        assert said.startswith("warning: columns seem to be separated by") and f"--delimiter {option}" in said
        bad(BAD_DATA, ["is not a number", f"--delimiter {option}"], tmp_path, "csv", text(tmp_path, f"a{mark}b,c{mark}d\n1{mark}2,3{mark}4\n"))
        bad(BAD_DATA, ["after a closing quote", f"--delimiter {option}"], tmp_path, "csv", text(tmp_path, f'"a"{mark}"b"\n1{mark}2\n'))
    bad(BAD_DATA, ["commas", "--delimiter ,"], tmp_path, "csv", text(tmp_path, "a,b\n1,2\n"), "--delimiter", ";")
    for options, said in ((["--thousands", "."], "--thousands .: is the decimal mark, too; give --decimal ,"),
                          (["--thousands", ";", "--delimiter", ";"], "--thousands ;: separates columns, too"),
                          (["--thousands", "3"], "is part of a number"), (["--thousands", ",."], "one character is needed")):
        bad(USAGE, said, tmp_path, "csv", text(tmp_path, "a;b\n1;2\n"), *options)
    for value, options, said in (("1,234", [], "--decimal , or --thousands , reads it as one"), ("1,234.5", [], "--thousands , reads it as one"),
                                 ("1.234,5", [], "--decimal , --thousands . reads it"), ("1.234,5", ["--decimal", ","], "--thousands . reads it"),
                                 ("1,5", ["--thousands", ","], "separates groups of three digits")):
        bad(BAD_DATA, [f"'{value}' is not a number", said], tmp_path, "csv", text(tmp_path, f"a;b\n{value};2\n"), "--delimiter", ";", *options)
    bad(BAD_DATA, ["'7' is a number, but", "'1,234.5' is none; --thousands , reads it as one; --classes takes"], tmp_path, "csv",
        text(tmp_path, 'a,b\n1,7\n2,"1,234.5"\n'))
    bad(BAD_DATA, ["'1,5' is not a number", "--decimal , reads it"], tmp_path, "csv", text(tmp_path, "a;b\n1,5;2\n"), "--delimiter", ";")
    bad(BAD_DATA, ["'1.000' is not a number"], tmp_path, "csv", text(tmp_path, "a;b\n1.000;2\n"), "--delimiter", ";", "--decimal", ",")


def advised(folder, *args):
    """The command that a refusal ends with, run in a shell as it was printed; gives its output and what was refused."""
    refused = convert("csv", *args, "--output", folder / "o")
    lines = refused.stderr.splitlines()
    assert refused.returncode == BAD_DATA and "This command does so:" in lines[-2], refused
    said = subprocess.run(["sh", "-c", lines[-1]], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and said.stderr == "", said
    return said.stdout, refused.stderr


def test_all_columns_of_words_are_told_at_once(tmp_path):
    """With the command that converts the file, which a shell takes as it stands."""
    rows = [f'{i * 7919},"P{i}, Q",{("Rome", "New York")[i % 2]},{"AB"[i // 2 % 2]},{("", "30", "40")[i % 3]},{i / 7:.3f},{i % 2 == 0},,'
            f'{("-", 1, 2, 3)[i % 4]},C{i % 9},{("yes", "no")[i % 2]}' for i in range(60)]
    path = text(tmp_path, 'id,"first, last",Home Town,plan\'s,age,score,active,empty,mostly,city,y\n' + "\n".join(rows) + "\n")
    out, said = advised(tmp_path, path)
    assert said.startswith(f"{path}:2: column 2 (first, last): 'P0, Q' is not a number\n  column 2 (first, last): 60 different values in 60 rows")
    assert "column 9 (mostly): numbers and '-', which --missing takes" in said and "column 8 (empty): no value at all" in said
    assert [line.split(": ", 1)[1] for line in out.splitlines()[:11]] == [
        "number", "left out", "2 categories: New York, Rome", "2 categories: A, B", "number; 20 missing, filled with 35, the median", "number",
        "number, false is 0 and true is 1", "left out", "number; 15 missing, filled with 2, the median",
        "9 categories: C0, C1, C2, C3, C4, C5, C6, C7, …", "label, 2 classes"]
    # What was asked for stays, also --columns, which then lists other ones.
    out, said = advised(tmp_path, path, "--columns", "city", "--columns", "score", "--categories", "Home Town", "--label", "y", "--impute", "mean")
    assert "--columns score --categories 'Home Town,city' --impute mean" in said and "column 6 (score): number\n" in out
    # Without names columns go by their numbers; a first row of words above numbers asks for --header.
    out, said = advised(tmp_path, text(tmp_path, "1,a b,0\n2,c,1\n3,c,0\n4,a b,1\n", "plain.csv"))
    assert said.splitlines()[-1].endswith(" --categories 2") and "2 categories: a b, c" in out
    bad(BAD_DATA, "give --header yes", tmp_path, "csv", text(tmp_path, "1,b,y\n1,2,0\n3,4,1\n", "plain.csv"), "--header", "no", "--classes")
    # Where nothing would be left there is no command.
    said = convert("csv", text(tmp_path, "a,b\n1,2\nred,0\n"), "--output", tmp_path / "p").stderr
    assert "'red' is not a number" in said and said.endswith("No column would be left as a feature.\n")
    # Another mark of numbers concerns the whole file, and comes first.
    bad(BAD_DATA, ["column 2 (b): '1,5' is not a number; --decimal , reads it"], tmp_path, "csv", text(tmp_path, "a;b;c\nx;1,5;0\ny;2,5;1\n"),
        "--delimiter", ";")


def test_two_words_are_numbers(tmp_path):
    """no and yes are 0 and 1, in any case; a column of anything else is none of them."""
    path = text(tmp_path, "a,member,flag,late,y\n1,True,Y,no,True\n2,FALSE,n,YES,False\n3,true,y,yes,True\n")
    out = good("csv", path, "--output", tmp_path / "o")
    got = table(tmp_path / "o")
    assert got["images"].tolist() == [[1, 1, 1, 0], [2, 0, 0, 1], [3, 1, 1, 1]]
    assert got["labels"].tolist() == [1, 0, 1] and got["classes"] == ["False", "True"]
    assert out.splitlines()[:4] == ["column 1 (a): number", "column 2 (member): number, false is 0 and true is 1",
                                    "column 3 (flag): number, n is 0 and y is 1", "column 4 (late): number, no is 0 and yes is 1"]
    assert "2,member,number,,false\n2,member,number,,true\n3,flag,number,,n\n" in got["columns"]
    like = ["--like", f"{tmp_path}/o-00000-of-00001.h5"]
    good("csv", text(tmp_path, "late,flag,a,member,y\nNo,1,7,0,False\n", "u.csv"), "--output", tmp_path / "p", *like)
    assert table(tmp_path / "p")["images"].tolist() == [[7, 0, 1, 0]] and table(tmp_path / "p")["columns"] == got["columns"]
    for cell, said in (("maybe", "'maybe' is neither false nor true, as in the training data"), ("2", "'2' is neither"), ("", "a value is missing")):
        bad(BAD_DATA, ["u.csv:2: column 2 (member)", said], tmp_path, "csv", text(tmp_path, f"a,member,flag,late,y\n1,{cell},y,no,True\n", "u.csv"), *like)
    # Without a header, too; and a category where it is asked for.
    good("csv", text(tmp_path, "1,yes,0\n2,no,1\n"), "--output", tmp_path / "o")
    assert table(tmp_path / "o")["images"].tolist() == [[1, 1], [2, 0]] and "2,2,number,,yes" in table(tmp_path / "o")["columns"]
    good("csv", text(tmp_path, "a,b,y\n1,yes,0\n2,no,1\n"), "--output", tmp_path / "o", "--categories", "b")
    assert table(tmp_path / "o")["images"].tolist() == [[1, 0, 1], [2, 1, 0]]
    # Missing ones are filled as numbers are.
    path = text(tmp_path, "a,b,y\n1,yes,0\n2,,1\n3,NA,1\n4,Yes,0\n5,no,0\n")
    out = good("csv", path, "--output", tmp_path / "o", "--missing", "NA")
    assert table(tmp_path / "o")["images"][:, 1].tolist() == [1, 1, 1, 1, 0] and "2,b,number,1,no\n2,b,number,1,yes" in table(tmp_path / "o")["columns"]
    assert "column 2 (b): number, no is 0 and yes is 1; 2 missing, filled with 1, the median" in out
    bad(BAD_DATA, ["t.csv:3: column 2 (b): is empty", "--impute median fills"], tmp_path, "csv", path)
    bad(BAD_DATA, ["'NA' is a missing value; --missing NA fills"], tmp_path, "csv", text(tmp_path, "a,b,y\n1,yes,0\n3,NA,1\n"))
    for cells in (("yes", "true"), ("yes", "1"), ("y", "maybe"), ("f", "m")):
        bad(BAD_DATA, ["t.csv:2: column 2 (b)", "is not a number"], tmp_path, "csv", text(tmp_path, f"a,b,y\n1,{cells[0]},0\n3,{cells[1]},1\n"))


def test_two_columns_of_one_name_are_refused(tmp_path):
    """Names must tell columns apart: which is which would be a guess if another file had them in another order."""
    rows = "1,2,3,0\n4,5,6,1\n"
    for header, columns in (("a,b,a,y", "columns 1 and 3 are both named 'a'"), ('b,"a "," a",y', "columns 2 and 3 are both named 'a"),
                            ('a,,"",y', "columns 2 and 3 have no name"), ("a,b,y,y", "columns 3 and 4 are both named 'y'"),
                            ('y,b,"y",a', "columns 1 and 3 are both named 'y'")):
        path = text(tmp_path, f"{header}\n{rows}")
        said = bad(BAD_DATA, [f"t.csv: {columns}", "--drop"], tmp_path, "csv", path)
        assert "give --header no if the first line is data" in said
        if "y,y" not in header:
            drop = re.search(r"--drop ([0-9],[0-9])", said)[1]
            good("csv", path, "--output", tmp_path / "o", "--drop", drop)
            assert table(tmp_path / "o")["images"].shape == (2, 1)
    path = text(tmp_path, f"a,b,a,y\n{rows}")
    bad(BAD_DATA, "columns 1 and 3 are both named 'a'", tmp_path, "csv", path, "--label", "a")
    bad(USAGE, "--drop a: 2 columns have this name; give numbers, as in --drop 1,3", tmp_path, "csv", path, "--drop", "a")
    good("csv", path, "--output", tmp_path / "o", "--header", "no", "--categories", "1,2,3", "--classes")
    good("csv", text(tmp_path, "a,,A,y\n1,0.5,3,0\n4,5,6,1\n"), "--output", tmp_path / "o")
    like = ["--like", f"{tmp_path}/o-00000-of-00001.h5"]
    bad(BAD_DATA, "columns 2 and 5 have no name", tmp_path, "csv", text(tmp_path, "a,,A,y,\n1,2,3,0,9\n"), *like)
    warned("csv", text(tmp_path, "x,a,,A,y,x\n1,1,2,3,0,9\n"), "--output", tmp_path / "p", *like)


def test_missing_numbers(tmp_path):
    """The median and the mean of what is there, as NumPy has them, for many columns with gaps in random places."""
    rng = np.random.default_rng(4)
    values = rng.normal(size=(41, 7)) * 10.0 ** rng.integers(-3, 4, 7)
    gaps = rng.random((41, 7)) < 0.3
    rows = [",".join(("NA", "", "-")[int(rng.integers(3))] if g else repr(float(v)) for v, g in zip(*r)) + f",{i % 2}" for i, r in enumerate(zip(values, gaps))]
    path = text(tmp_path, "".join(r + "\n" for r in rows))
    for how, of in (([], np.nanmedian), (["--impute", "median"], np.nanmedian), (["--impute", "mean"], np.nanmean)):
        good("csv", path, "--output", tmp_path / "o", "--header", "no", "--missing", "NA,-", *how)
        holes = np.where(gaps, np.nan, values)
        want = np.where(gaps, of(holes, axis=0), values)
        assert np.allclose(table(tmp_path / "o")["images"], want, rtol=1e-6)
        kept = [float(line.split(",")[3]) for line in table(tmp_path / "o")["columns"].splitlines() if ",number," in line]
        assert np.allclose(kept, of(holes, axis=0), rtol=1e-12)
    bad(BAD_DATA, "missing", tmp_path, "csv", path, "--header", "no", "--missing", "NA,-", "--impute", "refuse")
    bad(BAD_DATA, ["column 'b' holds no number"], tmp_path, "csv", text(tmp_path, "a,b,c\n1,NA,0\n2,NA,1\n"), "--missing", "NA")
    bad(BAD_DATA, ["t.csv:2: column 3 (c)", "missing"], tmp_path, "csv", text(tmp_path, "a,b,c\n1,2,NA\n"), "--missing", "NA")
    # -999 is a number unless it is said to be none.
    good("csv", text(tmp_path, "a,b\n1,0\n-999,1\n4,1\n"), "--output", tmp_path / "o", "--missing", "-999")
    assert table(tmp_path / "o")["images"].ravel().tolist() == [1, 2.5, 4]


def test_a_set_beside_its_training_set(tmp_path):
    """--like: columns by their names, in whatever order, with the training set's medians and categories."""
    good("csv", text(tmp_path, MESSY), "--output", tmp_path / "o", *MESSY_OPTIONS)
    like = ["--like", f"{tmp_path}/o-00000-of-00001.h5"]
    other = text(tmp_path, "Farbe;neu;Ziel;Größe\nlila;1;gut;NA\ngrün;1;schlecht;7,5\n", "other.csv")
    said = warned("csv", other, "--output", tmp_path / "p", *like)
    got = table(tmp_path / "p")
    assert got["images"].tolist() == [[2.25, 0, 0, 0], [7.5, 0, 1, 0]] and got["labels"].tolist() == [0, 1]
    assert got["classes"] == ["gut", "schlecht"] and got["columns"] == KEPT
    assert "other.csv:2: column 1 (Farbe): 'lila' is a category that the training data did not have" in said
    assert "left out: 'neu'" in said
    bad(BAD_DATA, ["other.csv: has no column 'Größe'", "it has: Farbe, Ziel"], tmp_path, "csv", text(tmp_path, "Farbe;Ziel\nrot;gut\n", "other.csv"), *like)
    bad(BAD_DATA, ["lacks the label", "--label"], tmp_path, "csv", text(tmp_path, "Farbe;Größe\nrot;1\n", "other.csv"), *like)
    bad(USAGE, "leave --drop", tmp_path, "csv", other, "--drop", "neu", *like)


def test_split(tmp_path):
    """Every row goes into one part, in the order of the file; the seed decides which, and nothing else does."""
    rows = [f"{i},{i % 10 == 0:d}" for i in range(200)]
    path = text(tmp_path, "x,y\n" + "\n".join(rows) + "\n")
    for words, want in ((["80/20"], {"-train": 160, "-test": 40}), (["80/10/10", "--seed", "5"], {"-train": 160, "-valid": 20, "-test": 20}),
                        (["2/1", "--stratify"], {"-train": 133, "-test": 67})):
        good("csv", path, "--output", tmp_path / "o", "--split", *words)
        parts = {p: table(tmp_path / "o", p) for p in want}
        assert {p: len(t["labels"]) for p, t in parts.items()} == want
        numbers = [t["images"].ravel() for t in parts.values()]
        assert all((np.diff(n) > 0).all() for n in numbers) and sorted(np.concatenate(numbers)) == list(range(200))
        for t in parts.values():
            assert (t["labels"] == (t["images"].ravel() % 10 == 0)).all()
        if "--stratify" in words:
            assert [int(t["labels"].sum()) for t in parts.values()] == [13, 7]
    first = table(tmp_path / "o", "-test")["images"].ravel().tolist()
    good("csv", path, "--output", tmp_path / "o", "--split", "2/1", "--stratify", "--seed", "1")
    assert table(tmp_path / "o", "-test")["images"].ravel().tolist() != first
    images, labels, a, b = idx_pair(tmp_path, 50)
    good("idx", a, b, "--output", tmp_path / "i", "--split", "70/30", "--stratify", "--shards", 3)
    back = [load(f"{tmp_path}/i-{p}", 3) for p in ("train", "test")]
    both = np.concatenate([x[0][:, 0] for x in back]), np.concatenate([x[1] for x in back])
    assert sorted(x.tobytes() + bytes([y]) for x, y in zip(*both)) == sorted(x.tobytes() + bytes([y]) for x, y in zip(images, labels))
    for words, said in ((["80"], "80/20"), (["80/0"], "80/20"), (["1/2/3/4"], "80/20"), (["999/1"], "leave none for the part test")):
        bad(USAGE, said, tmp_path, "csv", path, "--split", *words)
    bad(USAGE, "belongs to --split", tmp_path, "csv", path, "--stratify")
    bad(USAGE, "targets", tmp_path, "csv", path, "--split", "80/20", "--stratify", "--regression")


def test_split_fills_with_what_the_training_part_has(tmp_path):
    path = text(tmp_path, "x,y\n" + "".join(f"{'NA' if i % 7 == 0 else i * i},{i % 2}\n" for i in range(60)))
    good("csv", path, "--output", tmp_path / "o", "--split", "50/50", "--missing", "NA", "--impute", "mean")
    parts = [table(tmp_path / "o", p) for p in ("-train", "-test")]
    fill = float(parts[0]["columns"].splitlines()[2].split(",")[3])
    there = [v for v in parts[0]["images"].ravel() if v != np.float32(fill)]
    assert np.isclose(fill, np.mean(there), rtol=1e-6) and parts[0]["columns"] == parts[1]["columns"]
    assert np.float32(fill) in parts[1]["images"]


def test_labels(tmp_path):
    cases = [("-1,1,1,-1", [], [0, 1, 1, 0], ["-1", "1"]), ("1,2,3,1", [], [1, 2, 3, 1], []), ("-1,1,1,-1", ["--regression"], [[-1], [1], [1], [-1]], []),
             ("-1,0.5,1,0", [], [[-1], [0.5], [1], [0]], []), ("+1,-1,+1,-1", [], [1, 0, 1, 0], ["-1", "+1"])]
    for labels, options, want, classes in cases:
        path = text(tmp_path, "".join(f"{i},{y}\n" for i, y in enumerate(labels.split(","))))
        good("csv", path, "--output", tmp_path / "o", *options)
        got = table(tmp_path / "o")
        assert got["labels"].tolist() == want and got["classes"] == classes
    out = good("csv", text(tmp_path, "x,a,b\n1,0,1\n2,1,1\n"), "--output", tmp_path / "o", "--label", "a,b")
    assert table(tmp_path / "o")["labels"].tolist() == [[0, 1], [1, 1]] and "2 targets" in out
    assert "column 2 (a): one of 2 labels, 0 or 1\n" in out
    out = good("csv", text(tmp_path, "x,a,b\n1,0,1\n2,1,3\n"), "--output", tmp_path / "o", "--label", "a,b")
    assert "column 2 (a): one of 2 targets\n" in out


def test_warnings_say_what_to_do(tmp_path):
    rows = "".join(f"{i},{i / 7},{i * i}\n" for i in range(30))
    said = warned("csv", text(tmp_path, f",x,price\n{rows}"), "--output", tmp_path / "o")
    assert "column 1 ('') numbers the rows, as the index that pandas writes: no feature; --drop 1 leaves it out, --id 1" in said
    assert "column 3 (price), has 30 different whole numbers from 0 to 841 in 30 samples: taken as regression targets (--regression); --classes takes" in said
    assert warned("csv", tmp_path / "t.csv", "--output", tmp_path / "o", "--drop", "1", "--regression") == ""
    ages = "".join(f"{i % 7},{18 + i * i % 61}\n" for i in range(200))
    same = "".join(f"{i},yes\n" for i in range(40))
    assert "all 40 rows are of one class" in warned("csv", text(tmp_path, "x,y\n" + same, "same.csv"), "--output", tmp_path / "o")
    assert "has 31 different whole numbers from 18 to 78 in 200 samples: taken" in warned("csv", text(tmp_path, f"x,age\n{ages}"), "--output", tmp_path / "o")
    names = "".join(f"{i},name{i}\n" for i in range(40))
    assert "the label, column 2 (y), has 40 classes in 40 rows: --label names another" in warned("csv", text(tmp_path, "x,y\n" + names, "names.csv"), "--output", tmp_path / "o")
    assert "'Unnamed: 0'" in warned("csv", text(tmp_path, f"Unnamed: 0,x,price\n{rows}"), "--output", tmp_path / "o")
    rows = "".join(f"{i * 7 % 30},{i / 7},row{i},{i % 2}\n" for i in range(30))  # as after train_test_split
    said = warned("csv", text(tmp_path, f",x,name,y\n{rows}"), "--output", tmp_path / "o", "--categories", "name")
    assert "column 1 ('') numbers the rows" in said
    assert "column 'name' has 30 categories in 30 rows, and each is a feature; --drop leaves it out, --id keeps it" in said
    said = warned("csv", text(tmp_path, "x,y\n" + "1,0\n2,5\n3,2\n" * 10), "--output", tmp_path / "o")
    assert "no row has the classes 1, 3, 4: the model still gets 6 outputs; --classes numbers those that occur" in said


def test_wide_tables_are_told_in_few_lines(tmp_path):
    names = ",".join(f"p{i}" for i in range(50))
    out = good("csv", text(tmp_path, f"y,{names}\n" + "0," + ",".join("1" * 50) + "\n1," + ",".join("2" * 50) + "\n"), "--output", tmp_path / "o", "--label", "y")
    assert out.splitlines()[:2] == ["column 1 (y): label, 2 classes", "columns 2 to 51: numbers"] and len(out.splitlines()) == 3


def test_a_lone_number_among_many_columns_is_one(tmp_path):
    names = ",".join(f"p{i}" for i in range(50))
    rows = ["0," + ",".join("1" * 50), "1," + ",".join("2" * 50)]
    out = good("csv", text(tmp_path, f"y,{names}\n" + "\n".join(rows) + "\n"), "--output", tmp_path / "o", "--label", "y", "--drop", "p1")
    assert out.splitlines()[1:4] == ["column 2 (p0): number", "column 3 (p1): left out", "columns 4 to 51: numbers"]


def test_tables_of_many_columns(tmp_path):
    """100 000 columns: what looks for each of them among all takes minutes, what sorts them a second or two."""
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)), "cwd": tmp_path}
    n = 100000
    path = text(tmp_path, ",".join(f"c{i}" for i in range(n)) + ",y\n" + "".join(",".join(str((i * 7 + r) % 100) for i in range(n)) + f",{r}\n" for r in (0, 1)))
    good("csv", path, "--output", tmp_path / "o", **limit)
    good("csv", path, "--output", tmp_path / "p", "--like", tmp_path / "o-00000-of-00001.h5", **limit)
    assert (tmp_path / "p-00000-of-00001.h5").read_bytes() == (tmp_path / "o-00000-of-00001.h5").read_bytes()
    (tmp_path / "j.yaml").write_text("name: wide\noutput: r\ndata: {train: o-*.h5}\nmodel: {type: linear}\nbatch: {global: 2}\ntrain: {epochs: 1}\n")
    for command in ["j.yaml", "--quiet"], ["predict", "j.yaml", "--checkpoint", "r", "--quiet", str(path)]:
        done = subprocess.run([DPTRAIN, *command], env={**os.environ, **dpt.MPI_ENVIRONMENT}, capture_output=True, text=True, timeout=300, **limit)
        assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_sets_of_a_job_are_read_alike(tmp_path):
    """From the first column on."""
    for name, columns in (("a", "w,h"), ("first", "v,h"), ("second", "w,v")):
        rows = "".join(",".join(str(i + k) for k in range(columns.count(",") + 1)) + f",{'xy'[i % 2]}\n" for i in range(8))
        good("csv", text(tmp_path, f"{columns},label\n{rows}", f"{name}.csv"), "--output", tmp_path / name)
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/a-*.h5}}\nmodel: {{type: mlp, hidden: [4]}}\nbatch: {{global: 4}}\ntrain: {{steps: 1}}\n")
    for name, said in (("first", "input 1 is column 'v', in "), ("second", "input 2 is column 'v', in ")):
        result = dpt.run("train", job, "--output", tmp_path / "run", "--set", f"data.test={tmp_path}/{name}-*.h5")
        assert result.code == 65 and said in result.err, (name, result)
