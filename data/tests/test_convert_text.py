"""`dptrain convert csv`, against an independent reading by Python."""
import sys

sys.path.insert(0, "data/tests")
from convert_tools import *  # noqa: E402,F403

# --- csv ---------------------------------------------------------------------------------------------------------

IRIS = "sepal,petal,species\n5.1,1.4,setosa\n7.0,4.7,versicolor\n6.3,6.0,virginica\n4.9,1.4,setosa\n"


def test_csv_with_names_of_classes(tmp_path):
    out = good("csv", text(tmp_path, IRIS), "--output", tmp_path / "o")
    images, labels = load(f"{tmp_path}/o")
    assert images.dtype == np.float32 and labels.dtype == np.uint8
    assert np.array_equal(images, np.array([[5.1, 1.4], [7, 4.7], [6.3, 6], [4.9, 1.4]], np.float32))
    assert labels.tolist() == [0, 1, 2, 0]
    with h5py.File(f"{tmp_path}/o-00000-of-00001.h5") as f:
        assert f["labels"].attrs["classes"].tolist() == [b"setosa", b"versicolor", b"virginica"]
    assert "0 = setosa, 1 = versicolor, 2 = virginica" in out


@pytest.mark.parametrize("label", ["species", "3", "-1"])
def test_csv_label_by_name_and_number(tmp_path, label):
    good("csv", text(tmp_path, IRIS), "--output", tmp_path / "o", "--label", label)
    assert load(f"{tmp_path}/o")[1].tolist() == [0, 1, 2, 0]


def random_cell(rng):
    value = rng.choice([rng.uniform(-1, 1), rng.gauss(0, 1e30), rng.randrange(-9999, 9999), rng.random() * 10 ** rng.randrange(-40, 30)])
    written = rng.choice(["{}", "{:.3f}", "{:e}", "{:+g}", "{:.17g}", " {} "]).format(value)
    return f'"{written.strip()}"' if rng.random() < 0.2 else written


def test_random_csv_as_python_reads_it(tmp_path):
    """Numbers in all ways of writing them, quotes, three line ends, empty lines, a mark, gzip: the same float32 as NumPy's."""
    for seed in range(40):
        rng = random.Random(seed)
        rows, columns = rng.randrange(1, 60), rng.randrange(2, 9)
        end = rng.choice(["\n", "\r\n", "\r"])
        lines = [",".join(random_cell(rng) for _ in range(columns - 1)) + f",{rng.randrange(300)}" for _ in range(rows)]
        content = end.join(lines) + rng.choice(["", end])
        want = np.array([[float(c) for c in r] for r in csv.reader(io.StringIO(content, newline=None), skipinitialspace=True)])
        header = rng.random() < 0.5
        if header:
            content = ",".join(f'"name, ""{i}"""' for i in range(columns)) + end + content
        if rng.random() < 0.5:
            content = content.replace(end, end + end)
        data = rng.choice([b"", b"\xef\xbb\xbf"]) + content.encode()
        if rng.random() < 0.3:
            data = gzip.compress(data)
        n = rng.randrange(1, rows + 1)
        good("csv", text(tmp_path, data), "--output", tmp_path / f"o{seed}", "--shards", n, warns=True)
        images, labels = load(f"{tmp_path}/o{seed}", n)
        assert np.array_equal(images, want[:, :-1].astype(np.float32)), seed
        assert np.array_equal(labels.ravel(), want[:, -1]), seed  # classes, or as targets [N, 1]
        assert labels.dtype == (np.float32 if labels.ndim > 1 else np.uint8 if want[:, -1].max() < 256 else np.int32)


def test_csv_does_not_depend_on_the_locale(tmp_path):
    env = dict(os.environ, LC_ALL="de_DE.UTF-8", LC_NUMERIC="de_DE.UTF-8")
    good("csv", text(tmp_path, "1.5e-3,0\n0.1234567890123456789,1\n"), "--output", tmp_path / "o", env=env)
    assert load(f"{tmp_path}/o")[0].ravel().tolist() == [np.float32(1.5e-3), np.float32(0.1234567890123456789)]


def test_csv_header_is_found(tmp_path):
    cases = {
        "a,b,c\n1,2,0\n3,4,1\n": 2, "1,2,0\n3,4,1\n": 2, "1,2,cat\n3,4,dog\n": 2, "0,1,label\n5,6,1\n": 1, "x,y\n1,2\n": 1,
    }
    for content, rows in cases.items():
        good("csv", text(tmp_path, content), "--output", tmp_path / "o")
        assert len(load(f"{tmp_path}/o")[0]) == rows, content
    good("csv", text(tmp_path, "1,2,0\n3,4,1\n"), "--output", tmp_path / "o", "--header", "yes")
    assert load(f"{tmp_path}/o")[0].tolist() == [[3, 4]]
    bad(BAD_DATA, ["t.csv:1: column 1", "'a'"], tmp_path, "csv", text(tmp_path, "a,b,3\n1,2,0\n"), "--header", "no")


def test_csv_several_files(tmp_path):
    a, b = text(tmp_path, "x,y\n1,0\n2,1\n", "a.csv"), text(tmp_path, "x,y\n3,2\n", "b.csv")
    good("csv", a, b, "--output", tmp_path / "o")
    assert load(f"{tmp_path}/o")[0].ravel().tolist() == [1, 2, 3]
    other = text(tmp_path, "y,x\n3,2\n", "c.csv")
    bad(BAD_DATA, "c.csv:1: the names", tmp_path, "csv", a, other, "--header", "yes")
    bad(BAD_DATA, "c.csv:1: the names", tmp_path, "csv", a, other)


def test_csv_targets(tmp_path):
    path = text(tmp_path, "a,b,c,d\n1,2.5,3,4\n5,-6,7,8\n")
    good("csv", path, "--output", tmp_path / "o", "--label", "b")
    images, targets = load(f"{tmp_path}/o")
    assert images.tolist() == [[1, 3, 4], [5, 7, 8]] and targets.tolist() == [[2.5], [-6]] and targets.dtype == np.float32
    for labels in (["--label", "d,b"], ["--label", "d", "--label", "b"], ["--label", "4,-3"]):
        out = good("csv", path, "--output", tmp_path / "o", *labels)
        images, targets = load(f"{tmp_path}/o")
        assert images.tolist() == [[1, 3], [5, 7]] and targets.tolist() == [[4, 2.5], [8, -6]]
        assert "2 targets" in out
    good("csv", path, "--output", tmp_path / "o", "--regression")
    assert load(f"{tmp_path}/o")[1].tolist() == [[4], [8]]


def test_csv_images(tmp_path):
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (9, 24))
    rows = "".join(f"{i}," + ",".join(map(str, r)) + "\n" for i, r in enumerate(pixels))
    path = text(tmp_path, rows)
    good("csv", path, "--output", tmp_path / "o", "--label", 1, "--shape", "2,3,4", "--u8")
    images, labels = load(f"{tmp_path}/o")
    assert images.dtype == np.uint8 and images.shape == (9, 2, 3, 4) and np.array_equal(images.reshape(9, 24), pixels)
    assert labels.tolist() == list(range(9))
    bad(USAGE, ["24 columns", "12 values"], tmp_path, "csv", path, "--shape", "1,3,4", "--label", 1)
    for shape in "3,4", "2,3,4,1", "0,3,8", "a,b,c", "2,3,4x":
        bad(USAGE, "--shape", tmp_path, "csv", path, "--shape", shape, "--label", 1)
    for value in "256", "-1", "0.5":
        bad(BAD_DATA, ["t.csv:2: column 2", value], tmp_path, "csv", text(tmp_path, f"0,7,0\n3,{value},1\n"), "--u8")


def test_csv_classes_that_are_numbers(tmp_path):
    path = text(tmp_path, "1,10\n2,-1\n3,9\n4,10\n")
    good("csv", path, "--output", tmp_path / "o", "--classes")
    assert load(f"{tmp_path}/o")[1].tolist() == [2, 0, 1, 2]
    with h5py.File(f"{tmp_path}/o-00000-of-00001.h5") as f:
        assert f["labels"].attrs["classes"].tolist() == [b"-1", b"9", b"10"]


def test_csv_text_of_any_language(tmp_path):
    good("csv", text(tmp_path, '1,"zwölf, ""12"""\n2,猫\n3,a\n'), "--output", tmp_path / "o")
    with h5py.File(f"{tmp_path}/o-00000-of-00001.h5") as f:
        names = [n.decode() for n in f["labels"].attrs["classes"]]
    assert names == sorted(["a", 'zwölf, "12"', "猫"])
    assert load(f"{tmp_path}/o")[1].tolist() == [1, 2, 0]


BAD_CSV = [
    ("a,b\n1,2\n3\n", ["t.csv:3", "1 columns", "has 2"], []),
    ("a,b\n1,2\n3,4,5\n", ["t.csv:3", "3 columns"], []),
    ("a,b,c\n1,2,0\n\n3,,1\n", ["t.csv:4: column 2 (b)", "missing"], []),
    ("a,b,c\n1,2,0\n3,nan,1\n", ["t.csv:3: column 2 (b)", "not finite"], []),
    ("a,b,c\n1,2,0\n3,-Inf,1\n", ["t.csv:3: column 2 (b)", "not finite"], []),
    ("a,b,c\n1,2,0\n3,1e999,1\n", ["t.csv:3: column 2 (b)", "not finite"], []),
    ("a,b,c\n1,2,0\n3,1e39,1\n", ["t.csv:3: column 2 (b)", "32-bit"], []),
    ("a,b,c\n1,2,0\n3,NA,1\n", ["t.csv:3: column 2 (b)", "missing"], []),
    ("a,b,c\n1,2,0\n3,0x10,1\n", ["t.csv:3: column 2 (b)", "not a number"], []),
    ("a,b,c\n1,2,0\n3,1 2,1\n", ["t.csv:3: column 2 (b)", "not a number"], []),
    ("a,b,c\n1,2,\n", ["t.csv:2: column 3 (c)", "missing"], []),
    ("a,b,c\n1,2,nan\n", ["t.csv:2: column 3 (c)", "not finite"], []),
    ("a,b,c\n1,2,0\n1,2,cat\n", ["t.csv:2", "t.csv:3", "'cat'", "--classes"], []),
    ("a,b,c\n1,2,cat\n", ["t.csv:2: column 3 (c)", "'cat' is not a number"], ["--regression"]),
    ("a,b,c\n1,2,9999999999\n", ["9999999999", "--classes"], []),
    ('a,b\n"1,2\n3,4\n', ["t.csv:2", "not closed"], []),
    ('a,b\n"1"x,2\n', ["t.csv:2", "closing quote"], []),
    ("a;b\n1;2\n", ["semicolons"], []),
    ("a\tb\n1\t2\n", ["tabs"], []),
    ("a\n1\n", ["one column"], []),
    ("", ["empty"], []),
    ("\n\n", ["empty"], []),
    ("a,b\n", ["no row"], []),
    (b"a,b\n1,\x002\n", ["t.csv:2", "NUL"], []),
    ("a,b\n1,2\n".encode("utf-16"), ["UTF-16"], []),
    (gzip.compress(IRIS.encode())[:-9], ["cut off"], []),
    ('1,2,0\n"3\n4",5,1\n6,"x",2\n', ["t.csv:2: column 1"], []),
    ('1,2,0\n"3",5,"1"\n\n\n6,\n', ["t.csv:5"], []),
    ("".join(f"{i},{'abc%d' % i * 10}\n" for i in range(5000)), ["too many for names"], []),
]


@pytest.mark.parametrize("content, said, options", BAD_CSV, ids=range(len(BAD_CSV)))
def test_bad_csv(tmp_path, content, said, options):
    bad(BAD_DATA, said, tmp_path, "csv", text(tmp_path, content), *options)


def test_csv_usage(tmp_path):
    path = text(tmp_path, IRIS)
    bad(USAGE, "did you mean 'species'", tmp_path, "csv", path, "--label", "specis")
    bad(USAGE, "twice", tmp_path, "csv", path, "--label", "3,species")
    bad(USAGE, "none is left", tmp_path, "csv", path, "--label", "1,2,3")
    for label in "0", "4", "-4", "", "x":
        bad(USAGE, "--label", tmp_path, "csv", path, "--label", label, "--header", "no")
    bad(USAGE, "--header maybe", tmp_path, "csv", path, "--header", "maybe")
    bad(USAGE, "exclude", tmp_path, "csv", path, "--classes", "--regression")
    bad(USAGE, "one label column", tmp_path, "csv", path, "--classes", "--label", "1,2")
