"""dptrain convert, end to end: what it writes is read with h5py and compared with a parse of the same input in Python."""

import csv
import gzip
import io
import os
import random
import resource
import signal
import struct
import subprocess
import time
import zlib

import h5py
import numpy as np
import pytest

DPTRAIN = os.path.abspath(os.environ.get("DPTRAIN", "build/dptrain"))
MNIST = os.path.abspath("data/mnist")
USAGE, BAD_DATA, IO = 2, 65, 74


def convert(*args, **more):
    return subprocess.run([DPTRAIN, "convert", *map(str, args)], capture_output=True, text=True, timeout=120, **more)


def good(*args, **more):
    result = convert(*args, **more)
    assert result.returncode == 0, result.stderr
    assert "warning" not in result.stderr
    return result.stdout


def bad(code, said, folder, *args, **more):
    """Ends with `code` and one line with each of `said` in it; nothing is left in the folder of the output."""
    result = convert(*args, "--output", folder / "out" / "x", **more)
    assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for text in [said] if isinstance(said, str) else said:
        assert text in result.stderr, result.stderr
    left = os.listdir(folder / "out") if (folder / "out").exists() else []
    assert left == []
    return result.stderr


def shards(prefix, n):
    return [f"{prefix}-{i:05d}-of-{n:05d}.h5" for i in range(n)]


def load(prefix, n=1):
    """Images and labels of all shards; checks on the way what holds for each shard."""
    images, labels, sizes = [], [], []
    for path in shards(prefix, n):
        with h5py.File(path, "r") as f:
            assert set(f) == {"images", "labels"}
            for data in f["images"], f["labels"]:
                assert data.chunks is None and data.compression is None
                offset = data.id.get_offset()
                raw = open(path, "rb").read()[offset:offset + data.nbytes]
                assert raw == data[()].tobytes()
                assert data.attrs["crc32"].dtype == np.uint32
                assert int(data.attrs["crc32"]) == zlib.crc32(raw)
            images.append(f["images"][()])
            labels.append(f["labels"][()])
            assert len(images[-1]) == len(labels[-1])
            sizes.append(len(images[-1]))
    assert max(sizes) - min(sizes) <= 1
    folder = os.path.dirname(prefix)
    assert [f for f in os.listdir(folder) if ".tmp" in f] == []
    return np.concatenate(images), np.concatenate(labels)


def no_times(path):
    """No 32-bit number around the present second in what HDF5 wrote."""
    with h5py.File(path) as f:
        spans = [(d.id.get_offset(), d.nbytes) for d in (f["images"], f["labels"])]
    rest = bytearray(open(path, "rb").read())
    for offset, n in spans:
        rest[offset:offset + n] = bytes(n)
    words = [struct.unpack_from("<I", rest, i)[0] for i in range(len(rest) - 3)]
    return not any(abs(w - time.time()) < 300 for w in words)


def write_idx(path, array, type_code=8, opener=open):
    with opener(path, "wb") as f:
        f.write(struct.pack(">BBBB", 0, 0, type_code, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape))
        f.write(array.tobytes())
    return path


def idx_pair(folder, n=23, shape=(5, 4), seed=1):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    labels = rng.integers(0, 7, n, dtype=np.uint8)
    labels[0] = 6
    return images, labels, write_idx(folder / "i", images), write_idx(folder / "l", labels)


# --- idx ---------------------------------------------------------------------------------------------------------


def test_mnist(tmp_path):
    images = np.frombuffer(gzip.open(f"{MNIST}/t10k-images-idx3-ubyte.gz").read(), np.uint8, offset=16)
    labels = np.frombuffer(gzip.open(f"{MNIST}/t10k-labels-idx1-ubyte.gz").read(), np.uint8, offset=8)
    out = good("idx", f"{MNIST}/t10k-images-idx3-ubyte.gz", f"{MNIST}/t10k-labels-idx1-ubyte.gz",
               "--output", tmp_path / "new" / "deep" / "test", "--shards", 3)
    got_images, got_labels = load(f"{tmp_path}/new/deep/test", 3)
    assert got_images.shape == (10000, 1, 28, 28) and got_images.dtype == np.uint8
    assert got_labels.dtype == np.uint8
    assert np.array_equal(got_images.ravel(), images)
    assert np.array_equal(got_labels, labels)
    assert out.startswith(f"{tmp_path}/new/deep/test-00000-of-00003.h5 … 3 shards, 10 000 samples of 1x28x28 uint8, 10 classes, 7.9 MB")
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("shape, want", [((5, 4), (1, 5, 4)), ((9,), (9,)), ((3, 5, 4), (3, 5, 4))])
@pytest.mark.parametrize("opener", [open, gzip.open])
def test_idx_shapes(tmp_path, shape, want, opener):
    images, labels, _, _ = idx_pair(tmp_path, 31, shape)
    write_idx(tmp_path / "a", images, opener=opener)
    write_idx(tmp_path / "b", labels, opener=opener)
    good("idx", tmp_path / "a", tmp_path / "b", "--output", tmp_path / "o")
    got, got_labels = load(f"{tmp_path}/o")
    assert got.shape == (31, *want)
    assert np.array_equal(got.reshape(images.shape), images) and np.array_equal(got_labels, labels)


def test_same_bytes_twice_and_the_same_content_in_any_number_of_shards(tmp_path):
    images, labels, a, b = idx_pair(tmp_path, 23)
    for n in 1, 2, 5, 7, 23:
        first = good("idx", a, b, "--output", tmp_path / f"one{n}", "--shards", n)
        good("idx", a, b, "--output", tmp_path / f"two{n}", "--shards", n)
        assert "23 samples" in first
        for x, y in zip(shards(tmp_path / f"one{n}", n), shards(tmp_path / f"two{n}", n)):
            assert open(x, "rb").read() == open(y, "rb").read()
            assert no_times(x)
        got, got_labels = load(f"{tmp_path}/one{n}", n)
        assert np.array_equal(got[:, 0], images) and np.array_equal(got_labels, labels)


def test_idx_that_is_none(tmp_path):
    images, labels, a, b = idx_pair(tmp_path)
    (tmp_path / "png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    bad(BAD_DATA, ["png", "89 50 4e 47", "00 00 08 03"], tmp_path, "idx", tmp_path / "png", b)
    bad(BAD_DATA, ["swapped"], tmp_path, "idx", b, a)
    bad(BAD_DATA, ["00 00 08 03", "labels"], tmp_path, "idx", a, a)
    bad(BAD_DATA, ["00 00 08 01", "images"], tmp_path, "idx", b, b)
    bad(BAD_DATA, "floats", tmp_path, "idx", write_idx(tmp_path / "f", images, 13), b)
    bad(BAD_DATA, ["23 images", "22 labels"], tmp_path, "idx", a, write_idx(tmp_path / "few", labels[:22]))
    bad(BAD_DATA, "dimension 1 is 0", tmp_path, "idx", write_idx(tmp_path / "none", images[:0]), b)
    bad(BAD_DATA, "5 dimensions", tmp_path, "idx", write_idx(tmp_path / "5", images.reshape(23, 5, 2, 2, 1)), b)
    bad(IO, ["nowhere", "No such file"], tmp_path, "idx", tmp_path / "nowhere", b)
    bad(BAD_DATA, "folder", tmp_path, "idx", tmp_path, b)
    (tmp_path / "huge").write_bytes(bytes([0, 0, 8, 4]) + b"\xff" * 16)
    bad(BAD_DATA, "larger than any file", tmp_path, "idx", tmp_path / "huge", b)
    (tmp_path / "empty").write_bytes(b"")
    bad(BAD_DATA, "too short", tmp_path, "idx", tmp_path / "empty", b)


def test_every_cut_and_every_addition_is_noticed(tmp_path):
    images, labels, a, b = idx_pair(tmp_path, 4, (3, 2))
    for path, other in (a, b), (b, a):
        whole = path.read_bytes()
        for n in list(range(len(whole))):
            (tmp_path / "cut").write_bytes(whole[:n])
            pair = (tmp_path / "cut", b) if path == a else (a, tmp_path / "cut")
            bad(BAD_DATA, "too short", tmp_path, "idx", *pair)
        (tmp_path / "cut").write_bytes(whole + b"!")
        bad(BAD_DATA, "left behind", tmp_path, "idx", *pair)


def test_damaged_gzip(tmp_path):
    images, labels, _, b = idx_pair(tmp_path, 4000)
    whole = gzip.compress(open(tmp_path / "i", "rb").read())
    for n in 3, 10, 11, 1000, len(whole) // 2, len(whole) - 8, len(whole) - 1:
        (tmp_path / "cut.gz").write_bytes(whole[:n])
        bad(BAD_DATA, ["cut.gz", "cut off"], tmp_path, "idx", tmp_path / "cut.gz", b)
    rng = random.Random(1)
    for _ in range(10):
        at = rng.randrange(10, len(whole))
        flipped = bytearray(whole)
        flipped[at] ^= 1 << rng.randrange(8)
        (tmp_path / "flip.gz").write_bytes(flipped)
        bad(BAD_DATA, "flip.gz", tmp_path, "idx", tmp_path / "flip.gz", b)
    liar = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">III", 4000, 60000, 60000))
    (tmp_path / "liar.gz").write_bytes(liar)
    bad(BAD_DATA, "too short", tmp_path, "idx", tmp_path / "liar.gz", b)


# --- cifar10 -----------------------------------------------------------------------------------------------------


def test_cifar10(tmp_path):
    rng = np.random.default_rng(5)
    records = rng.integers(0, 256, (700, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    for name, part in ("a", records[:300]), ("b", records[300:301]), ("c", records[301:]):
        (tmp_path / name).write_bytes(part.tobytes())
    good("cifar10", tmp_path / "a", tmp_path / "b", tmp_path / "c", "--output", tmp_path / "o", "--shards", 3)
    images, labels = load(f"{tmp_path}/o", 3)
    assert images.shape == (700, 3, 32, 32)
    assert np.array_equal(images.reshape(700, -1), records[:, 1:]) and np.array_equal(labels, records[:, 0])


def test_cifar10_that_is_none(tmp_path):
    path = tmp_path / "batch"
    path.write_bytes(bytes(3073 * 3 + 5))
    bad(BAD_DATA, "no multiple of the 3073", tmp_path, "cifar10", path)
    path.write_bytes(gzip.compress(bytes(3073 * 3 + 5)))
    bad(BAD_DATA, "no multiple of the 3073", tmp_path, "cifar10", path)
    path.write_bytes(bytes(3074 * 10))
    bad(BAD_DATA, "CIFAR-100", tmp_path, "cifar10", path)
    path.write_bytes(bytes(3073) + b"\x0a" + bytes(3072))
    bad(BAD_DATA, ["record 1 ", "is 10"], tmp_path, "cifar10", path)
    path.write_bytes(b"")
    bad(BAD_DATA, "empty", tmp_path, "cifar10", path)
    subprocess.run(["tar", "-czf", tmp_path / "c.tar.gz", "-C", tmp_path, "batch"], check=True)
    bad(BAD_DATA, ["tar archive", "unpack"], tmp_path, "cifar10", tmp_path / "c.tar.gz")


# --- csv ---------------------------------------------------------------------------------------------------------

IRIS = "sepal,petal,species\n5.1,1.4,setosa\n7.0,4.7,versicolor\n6.3,6.0,virginica\n4.9,1.4,setosa\n"


def text(folder, content, name="t.csv"):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


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
        good("csv", text(tmp_path, data), "--output", tmp_path / f"o{seed}", "--shards", n)
        images, labels = load(f"{tmp_path}/o{seed}", n)
        assert np.array_equal(images, want[:, :-1].astype(np.float32)), seed
        assert np.array_equal(labels, want[:, -1]), seed
        assert labels.dtype == (np.uint8 if want[:, -1].max() < 256 else np.int32)


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
        bad(BAD_DATA, ["t.csv:2: column 2", value], tmp_path, "csv", text(tmp_path, f"0,1\n{value},1\n".replace("0,1", "0,7,1", 1).replace(f"{value},1", f"3,{value},1")), "--u8")


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
    bad(USAGE, "2 columns have this name", tmp_path, "csv", text(tmp_path, "a,a,b\n1,2,3\n"), "--label", "a")


# --- npy ---------------------------------------------------------------------------------------------------------


def save(folder, name, array, version=None):
    with open(folder / name, "wb") as f:
        np.lib.format.write_array(f, array, version=version, allow_pickle=True)
    return folder / name


@pytest.mark.parametrize("dtype", ["u1", "<f4", "<f8", ">f4", ">f8"])
@pytest.mark.parametrize("shape", [(17, 6), (17, 5, 4), (17, 3, 4, 5)])
def test_npy_images(tmp_path, dtype, shape):
    rng = np.random.default_rng(7)
    images = (rng.random(shape) * 200).astype(dtype)
    labels = rng.integers(0, 5, 17)
    version = {2: (1, 0), 3: (2, 0), 4: (3, 0)}[len(shape)]
    good("npy", save(tmp_path, "i.npy", images, version), save(tmp_path, "l.npy", labels), "--output", tmp_path / "o", "--shards", 2)
    got, got_labels = load(f"{tmp_path}/o", 2)
    assert got.dtype == (np.uint8 if dtype == "u1" else np.float32)
    assert got.shape == (shape if len(shape) != 3 else (17, 1, 5, 4))
    assert np.array_equal(got.reshape(shape), images.astype(got.dtype)) and np.array_equal(got_labels, labels)


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "<u2", ">u2", "<i2", ">i4", "<u4", "<i8", ">u8"])
def test_npy_labels(tmp_path, dtype):
    images = np.zeros((300, 2), np.uint8)
    labels = (np.arange(300) % (2 if dtype == "?" else 128 if dtype in ("u1", "i1") else 300)).astype(dtype)
    good("npy", save(tmp_path, "i.npy", images), save(tmp_path, "l.npy", labels), "--output", tmp_path / "o")
    got = load(f"{tmp_path}/o")[1]
    assert np.array_equal(got, labels.astype(int)) and got.dtype == (np.int32 if labels.max() > 255 else np.uint8)


def test_npy_targets(tmp_path):
    rng = np.random.default_rng(9)
    path = save(tmp_path, "i.npy", rng.random((11, 3), dtype=np.float32))
    for dtype in "<f4", "<f8", ">f8":
        for shape in (11,), (11, 1), (11, 4):
            targets = rng.normal(size=shape).astype(dtype)
            good("npy", path, save(tmp_path, "t.npy", targets), "--output", tmp_path / "o")
            got = load(f"{tmp_path}/o")[1]
            assert got.dtype == np.float32 and np.array_equal(got, targets.reshape(11, -1).astype(np.float32))


def test_npy_layout(tmp_path):
    images = np.arange(6 * 8 * 7 * 3, dtype=np.float32).reshape(6, 8, 7, 3)
    a, b = save(tmp_path, "i.npy", images), save(tmp_path, "l.npy", np.arange(6))
    out = good("npy", a, b, "--output", tmp_path / "o", "--layout", "nhwc")
    with h5py.File(f"{tmp_path}/o-00000-of-00001.h5") as f:
        assert f["images"].attrs["layout"] in (b"NHWC", "NHWC")
    assert np.array_equal(load(f"{tmp_path}/o")[0], images) and "8x7x3 float32" in out
    warned = convert("npy", a, b, "--output", tmp_path / "p")
    assert warned.returncode == 0 and "--layout nhwc" in warned.stderr
    bad(USAGE, "--layout", tmp_path, "npy", a, b, "--layout", "hwcn")
    bad(USAGE, "not 4", tmp_path, "npy", save(tmp_path, "2.npy", images[:, 0, 0]), b, "--layout", "nhwc")


def test_npy_that_does_not_fit(tmp_path):
    ok = np.arange(24, dtype=np.float32).reshape(6, 4)
    a, b = save(tmp_path, "a.npy", ok), save(tmp_path, "b.npy", np.arange(6))

    def images(array, *said):
        bad(BAD_DATA, said, tmp_path, "npy", save(tmp_path, "x.npy", array), b)

    def labels(array, *said):
        bad(BAD_DATA, said, tmp_path, "npy", a, save(tmp_path, "x.npy", array))

    images(np.asfortranarray(ok), "Fortran order", "ascontiguousarray")
    images(ok.astype(int), "<i8", "uint8")
    images(ok.astype(np.float16), "<f2")
    images(ok.astype(complex), "<c16")
    images(ok.astype(object), "Python objects")
    images(np.zeros(6, [("a", "f4"), ("b", "f4")]), "records")
    images(ok.ravel(), "1 dimensions")
    images(ok.reshape(6, 4, 1, 1, 1), "5 dimensions")
    images(ok[:5], "5 images", "6 labels")
    images(ok[:0], "no samples")
    images(np.float32(3), "no samples")
    for value in np.nan, np.inf, -np.inf:
        damaged = ok.astype(float)
        damaged[4, 2] = value
        images(damaged, "sample 4, value 2", "not finite")
    damaged[4, 2] = 1e300
    images(damaged, "sample 4, value 2", "32-bit")
    labels(np.array([0, 1, -1, 0, 0, 0]), "sample 2", "-1")
    labels(np.array([0, 1, 2**40, 0, 0, 0]), "sample 2")
    labels(np.array([0, 1, 2**63, 0, 0, 0], np.uint64), "sample 2")
    labels(np.eye(6, dtype=int), "one-hot")
    labels(np.zeros((6, 2, 2)), "3 dimensions")
    labels(np.array([1, 2, np.nan, 4, 5, 6]), "sample 2", "not finite")
    labels(np.array(list("abcdef")), "<U1")
    whole = a.read_bytes()
    for n in 0, 5, 9, 30, len(whole) - 1:
        (tmp_path / "x.npy").write_bytes(whole[:n])
        bad(BAD_DATA, "too short", tmp_path, "npy", tmp_path / "x.npy", b)
    (tmp_path / "x.npy").write_bytes(whole + b"!")
    bad(BAD_DATA, "left behind", tmp_path, "npy", tmp_path / "x.npy", b)
    np.savez(tmp_path / "x.npz", ok)
    bad(BAD_DATA, "npz", tmp_path, "npy", tmp_path / "x.npz", b)


def test_npy_damaged_headers_never_crash(tmp_path):
    a, b = save(tmp_path, "a.npy", np.arange(24, dtype=np.float32).reshape(6, 4)), save(tmp_path, "b.npy", np.arange(6))
    whole = a.read_bytes()
    rng = random.Random(3)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(128)] = rng.randrange(256)
        (tmp_path / "x.npy").write_bytes(damaged)
        result = convert("npy", tmp_path / "x.npy", b, "--output", tmp_path / "o")
        assert result.returncode in (0, BAD_DATA), (result.returncode, result.stderr)


# --- the command and the writer ----------------------------------------------------------------------------------


def test_usage(tmp_path):
    _, _, a, b = idx_pair(tmp_path)
    bad(USAGE, ["only 23 samples"], tmp_path, "idx", a, b, "--shards", 24)
    for n in "0", "-1", "100000", "x", "1.5":
        bad(USAGE, "--shards", tmp_path, "idx", a, b, "--shards", n)
    bad(USAGE, ["idx, cifar10, csv, npy", "did you mean 'idx'"], tmp_path, "idz", a, b)
    bad(USAGE, "two files", tmp_path, "idx", a)
    bad(USAGE, "two files", tmp_path, "npy", a, b, b)
    bad(USAGE, "--layout", tmp_path, "idx", a, b, "--layout", "nhwc")
    bad(USAGE, "no input", tmp_path, "cifar10")
    for args in ["idx", a, b], [], ["idx", a, b, "--output", f"{tmp_path}/"], ["idx", a, b, "--output", ""]:
        assert convert(*args).returncode == USAGE
    assert "train-00000-of-00001.h5" in convert("idx", a, b, "--output", f"{tmp_path}/").stderr
    assert sorted(os.listdir(tmp_path)) == ["i", "l"]
    helped = convert("--help")
    assert helped.returncode == 0
    for word in "idx", "cifar10", "csv", "npy", "--label", "--shards", "--force":
        assert word in helped.stdout


def test_replaces_its_own_and_refuses_another_number_of_shards(tmp_path):
    images, labels, a, b = idx_pair(tmp_path)
    other = write_idx(tmp_path / "i2", 255 - images)
    out = tmp_path / "d"
    good("idx", a, b, "--output", out / "x", "--shards", 3)
    good("idx", other, b, "--output", out / "x", "--shards", 3)
    assert np.array_equal(load(f"{out}/x", 3)[0][:, 0], 255 - images)
    (out / "xy-00000-of-00009.h5").write_bytes(b"not ours")
    (out / "x-00000-of-00009.h5.bak").write_bytes(b"not ours")
    before = sorted(os.listdir(out))
    refused = convert("idx", a, b, "--output", out / "x", "--shards", 2)
    assert refused.returncode == USAGE and "of-00003.h5" in refused.stderr and "--force" in refused.stderr
    assert sorted(os.listdir(out)) == before
    good("idx", a, b, "--output", out / "x", "--shards", 2, "--force")
    assert sorted(os.listdir(out)) == ["x-00000-of-00002.h5", "x-00000-of-00009.h5.bak", "x-00001-of-00002.h5", "xy-00000-of-00009.h5"]
    assert np.array_equal(load(f"{out}/x", 2)[0][:, 0], images)


def test_a_failure_leaves_what_was_there(tmp_path):
    images, labels, a, b = idx_pair(tmp_path)
    good("idx", a, b, "--output", tmp_path / "o", "--shards", 2)
    before = [open(p, "rb").read() for p in shards(tmp_path / "o", 2)]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(a.read_bytes())[:-12])
    assert convert("idx", tmp_path / "cut.gz", b, "--output", tmp_path / "o", "--shards", 2).returncode == BAD_DATA
    assert [open(p, "rb").read() for p in shards(tmp_path / "o", 2)] == before
    assert [f for f in os.listdir(tmp_path) if ".tmp" in f] == []


def test_temporary_files_of_the_dead_are_removed(tmp_path):
    _, _, a, b = idx_pair(tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = tmp_path / f".o-00000-of-00001.h5.tmp-{gone.pid}"
    alive = tmp_path / f".o-00000-of-00001.h5.tmp-{os.getpid()}"
    other = tmp_path / f".other-00000-of-00001.h5.tmp-{gone.pid}"
    for path in dead, alive, other:
        path.write_bytes(b"x")
    good("idx", a, b, "--output", tmp_path / "o")
    assert (dead.exists(), alive.exists(), other.exists()) == (False, True, True)


def test_output_that_cannot_be_written(tmp_path):
    _, _, a, b = idx_pair(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    for prefix in tmp_path / "file" / "x", "/proc/nowhere/x":
        result = convert("idx", a, b, "--output", prefix)
        assert result.returncode == IO and str(prefix.parent if hasattr(prefix, "parent") else "/proc/nowhere") in result.stderr
    (tmp_path / "x-00000-of-00001.h5").mkdir()
    result = convert("idx", a, b, "--output", tmp_path / "x")
    assert result.returncode == IO and "x-00000-of-00001.h5: cannot write" in result.stderr
    assert [f for f in os.listdir(tmp_path) if ".tmp" in f] == []


def test_read_only_folder(tmp_path):
    _, _, a, b = idx_pair(tmp_path)
    (tmp_path / "r").mkdir(mode=0o500)
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if plain and subprocess.run([*plain, "true"], capture_output=True).returncode != 0:
        pytest.skip("root cannot give up its rights here")
    result = subprocess.run([*plain, DPTRAIN, "convert", "idx", a, b, "--output", tmp_path / "r" / "x"], capture_output=True, text=True)
    assert result.returncode == IO and f"{tmp_path}/r/x-00000-of-00001.h5: cannot write: Permission denied" in result.stderr


def test_file_size_limit(tmp_path):
    images, labels, a, b = idx_pair(tmp_path, 4000)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
    bad(IO, ["x-00000-of-00001.h5", "cannot write"], tmp_path, "idx", a, b, preexec_fn=limit)


def test_full_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed")
    try:
        images, labels, a, b = idx_pair(tmp_path, 20000)
        for n in 1, 2, 7:
            result = convert("idx", a, b, "--output", disk / "x", "--shards", n)
            assert result.returncode == IO, result.stderr
            assert f"{disk}/x-0000" in result.stderr and "No space left" in result.stderr
            assert len(result.stderr.splitlines()) == 1
            assert os.listdir(disk) == []
        # Every size around the brink: whole, or told and cleaned up.
        told = set()
        for n in range(12000, 13000, 37):
            write_idx(tmp_path / "p", images[:n])
            write_idx(tmp_path / "q", labels[:n])
            result = convert("idx", tmp_path / "p", tmp_path / "q", "--output", disk / "x")
            told.add(result.returncode)
            if result.returncode == 0:
                assert len(load(f"{disk}/x")[0]) == n
                os.remove(disk / "x-00000-of-00001.h5")
            assert os.listdir(disk) == []
        assert told == {0, IO}
    finally:
        subprocess.run(["umount", disk], check=True)


def test_interrupted(tmp_path):
    """TERM, sent once a temporary file is there: nothing stays, and the program ends of the signal."""
    blob = np.zeros((400000, 28, 28), np.uint8)
    write_idx(tmp_path / "i", blob)
    write_idx(tmp_path / "l", np.zeros(400000, np.uint8))
    (tmp_path / "out").mkdir()
    started = subprocess.Popen([DPTRAIN, "convert", "idx", tmp_path / "i", tmp_path / "l", "--output", tmp_path / "out" / "x", "--shards", "50"])
    while started.poll() is None and not os.listdir(tmp_path / "out"):
        pass
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) in (-signal.SIGTERM, 0)
    if started.returncode != 0:
        assert os.listdir(tmp_path / "out") == []
