"""`dptrain convert idx|cifar10|npy` and the shard writer; what was written is read back with h5py."""
import sys

sys.path.insert(0, "data/tests")
from convert_tools import *  # noqa: E402,F403

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
    bad(BAD_DATA, ["give the images first"], tmp_path, "idx", b, a)
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
        bad(BAD_DATA, "left after", tmp_path, "idx", *pair)


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


def test_idx_as_targets(tmp_path):
    images, labels, a, b = idx_pair(tmp_path)
    good("idx", a, b, "--regression", "--output", tmp_path / "o")
    got = load(f"{tmp_path}/o")[1]
    assert got.dtype == np.float32 and np.array_equal(got.ravel(), labels)


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
    good("npy", save(tmp_path, "i.npy", images), save(tmp_path, "l.npy", labels), "--classes", "--output", tmp_path / "o")
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


@pytest.mark.parametrize("dtype", ["?", "u1", "<i8", ">i2"])
def test_npy_several_labels(tmp_path, dtype):
    several = (np.random.default_rng(3).random((40, 3)) < 0.3).astype(dtype)
    good("npy", save(tmp_path, "i.npy", np.zeros((40, 2), "f4")), save(tmp_path, "l.npy", several), "--output", tmp_path / "o")
    got = load(f"{tmp_path}/o")[1]
    assert got.dtype == np.float32 and np.array_equal(got, several)


@pytest.mark.parametrize("dtype", ["<f4", ">f8"])
def test_npy_classes_as_floats(tmp_path, dtype):
    """Whole numbers from 0, not too many, are classes, which is said; --regression has them as they are."""
    images = save(tmp_path, "i.npy", np.zeros((400, 2), "f4"))
    for k, labels, classes in ((0, np.arange(400) % 4, 4), (1, np.arange(400) % 40, 40), (2, np.arange(400) % 41, 0), (3, np.arange(400) % 4 - 1, 0), (4, np.arange(400) % 4 / 2, 0)):
        path = save(tmp_path, "l.npy", labels.astype(dtype).reshape((-1, 1) if k % 2 else -1))
        done = convert("npy", images, path, "--output", tmp_path / "o")
        got = load(f"{tmp_path}/o")[1]
        assert done.returncode == 0 and np.array_equal(got.ravel(), labels.astype("f4")), done.stderr
        assert got.dtype == (np.uint8 if classes else np.float32)
        assert (f"l.npy: the labels are whole numbers, stored as floats: taken as {classes} classes; --regression" in done.stderr) == (classes > 0), done.stderr
        assert done.stderr.count("\n") == (classes > 0)
        good("npy", images, path, "--regression", "--output", tmp_path / "o")
        assert load(f"{tmp_path}/o")[1].dtype == np.float32


def test_numbers_that_are_doubtful_classes(tmp_path):
    images = save(tmp_path, "i.npy", np.zeros((40, 2), "f4"))
    for labels, said in ((np.arange(40) % 4 + 1, "l.npy: no sample has the class 0: the model still gets 5 outputs; if the labels begin at 1, subtract 1 from them"),
                         (np.arange(40) % 4 * 3, "no sample has the classes 1, 2, 4, 5, 7, …: the model still gets 10 outputs"),
                         (np.arange(40) * 1000, "the labels of 40 samples go up to 39 000, so the model has as many outputs")):
        done = convert("npy", images, save(tmp_path, "l.npy", labels), "--classes", "--output", tmp_path / "o")
        assert done.returncode == 0 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr
    a, b = write_idx(tmp_path / "a", np.zeros((40, 2), "u1")), write_idx(tmp_path / "b", (np.arange(40) % 4 + 1).astype("u1"))
    done = convert("idx", a, b, "--output", tmp_path / "o")
    assert done.returncode == 0 and "/b: no sample has the class 0" in done.stderr, done.stderr


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
    labels(np.zeros((6, 2, 2)), "3 dimensions")
    labels(np.array([1, 2, np.nan, 4, 5, 6]), "sample 2", "not finite")
    labels(np.array(list("abcdef")), "<U1")
    whole = a.read_bytes()
    for n in 0, 5, 9, 30, len(whole) - 1:
        (tmp_path / "x.npy").write_bytes(whole[:n])
        bad(BAD_DATA, "too short", tmp_path, "npy", tmp_path / "x.npy", b)
    (tmp_path / "x.npy").write_bytes(whole + b"!")
    bad(BAD_DATA, "left after", tmp_path, "npy", tmp_path / "x.npy", b)
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
    assert result.returncode == IO and "x-00000-of-00001.h5: is a folder" in result.stderr
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
