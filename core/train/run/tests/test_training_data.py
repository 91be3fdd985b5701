"""A run goes on with the training data that it began with, wherever these lie, and with no others but on purpose."""
import os
import sys
import zlib

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib"]
import dpt  # noqa: E402
from dpt import newest  # noqa: E402

JOB = """
data: {train: "*.h5"}
model: {type: mlp, hidden: [8], outputs: 2}
batch: {global: 20, micro: 5}
train: {epochs: 2}
comm: {reduction: reproducible}
"""


def draw(n=100, seed=0, width=6):
    dice = np.random.default_rng(seed)
    return dice.normal(size=(n, width)).astype("f4"), (dice.random(n) < .3).astype("i4")


def write(path, x, y, sums=False, weights=None, **how):
    """sums: with the checksums that dptrain's own shards have."""
    with h5py.File(path, "w") as file:
        for name, values in (("x", x), ("y", y), ("weights", weights)):
            if values is None:
                continue
            file.create_dataset(name, data=values, **(how if name == "x" else {}))
            if sums:
                file[name].attrs["crc32"] = np.uint32(zlib.crc32(values.tobytes()))


def clear(folder):
    for path in folder.glob("*.h5"):
        path.unlink()


def begin(folder, sums=False, x=None, y=None, **how):
    if x is None:
        x, y = draw()
    write(folder / "a.h5", x, y, sums=sums, **how)
    dpt.write_job(folder / "job.yaml", JOB)
    result = dpt.run("job.yaml", "--output", "run", "--quiet", cwd=folder)
    assert result.code == 0, result
    return x, y


def go_on(folder, *words, epochs=4, ranks=0):
    return dpt.run("job.yaml", "--output", "run", "--set", f"train.epochs={epochs}", *words, cwd=folder, ranks=ranks)


def reached(folder):
    with h5py.File(folder / "run" / "checkpoints" / "latest") as file:
        return tuple(file.attrs[name] for name in ("step", "epoch", "epoch_step"))


def grown(x, y):
    return draw(130)


def other(x, y):
    return draw(seed=7)


def one_label(x, y):
    return x, np.where(np.arange(100) == 37, 1 - y, y)


def another_order(x, y):
    return x[::-1].copy(), y[::-1].copy()


OTHERS = {
    "grown": (grown, "data.train changed: 100 samples then, 130 now\n"),
    "fewer": (lambda x, y: (x[:60], y[:60]), "data.train changed: 100 samples then, 60 now\n"),
    "others": (other, "data.train changed: other samples, or another order (checksum"),
    "label": (one_label, "data.train changed: other labels, or another order (checksum"),
    "order": (another_order, "data.train changed: other samples, or another order (checksum"),
    "type": (lambda x, y: ((x * 20 + 128).astype("u1"), y), "data.train changed: samples of float32 6 then, uint8 6 now\n"),
}


@pytest.mark.parametrize("name, sums", [*((name, False) for name in OTHERS), ("others", True), ("order", True)])
def test_others_are_refused_in_words(tmp_path, name, sums):
    change, says = OTHERS[name]
    x, y = begin(tmp_path, sums)
    before = newest(tmp_path / "run"), (tmp_path / "run" / "metrics.jsonl").read_bytes()
    write(tmp_path / "a.h5", *change(x, y), sums=sums)
    result = go_on(tmp_path, ranks=2 if sums else 0)
    assert result.code == 78 and "step-00000010.h5 was made with other training data:\n" in result.err, result
    assert says in result.err and result.err.count("data.train") == (2 if name in ("others", "order") else 1), result
    assert "--resume run/checkpoints/step-00000010.h5" in result.err and "another job" not in result.err, result
    assert before == (newest(tmp_path / "run"), (tmp_path / "run" / "metrics.jsonl").read_bytes())
    assert go_on(tmp_path, epochs=2).code == 78, "also where nothing is left to do"


def test_weights_are_part_of_them(tmp_path):
    x, y = begin(tmp_path)
    write(tmp_path / "a.h5", x, y, weights=np.arange(100, dtype="f4"))
    result = go_on(tmp_path)
    assert result.code == 78 and "data.train changed: other weights, or another order (checksum none then, " in result.err, result
    result = go_on(tmp_path, "--set", "data.class_weights=balanced")
    assert result.code == 78 and "data.class_weights: none -> balanced" in result.err and "data.train" not in result.err, result


def in_parts(folder, x, y):
    """The same in three shards of other names, in the same order."""
    for i, part in enumerate(np.split(np.arange(100), [9, 63])):
        write(folder / f"part-{i}.h5", x[part], y[part], sums=True, chunks=(4, 6) if i == 1 else None)


SAME = {
    "renamed": (lambda folder, x, y: write(folder / "b.h5", x, y), ""),
    "parts": (in_parts, ""),
    "doubles": (lambda folder, x, y: write(folder / "a.h5", x.astype("f8"), y.astype("u1"), sums=True), ""),
    "zipped": (lambda folder, x, y: write(folder / "a.h5", x, y, chunks=(7, 6), compression="gzip"), ""),
    "read": (lambda folder, x, y: write(folder / "a.h5", x, y), "data.cache=none"),
    "moved": (lambda folder, x, y: ((folder / "there").mkdir(), write(folder / "there" / "a.h5", x, y)), "data.train=there/*.h5"),
}


@pytest.mark.parametrize("name, sums", [("renamed", False), ("parts", False), ("parts", True), ("doubles", True), ("zipped", True),
                                        ("read", False), ("moved", False)])
def test_the_same_may_lie_elsewhere(tmp_path, name, sums):
    x, y = begin(tmp_path, sums)
    clear(tmp_path)
    change, word = SAME[name]
    change(tmp_path, x, y)
    result = go_on(tmp_path, *(["--set", word] if word else []))
    assert result.code == 0 and "resuming at step 10" in result.err and "data.train changed" not in result.err, result
    assert reached(tmp_path) == (20, 4, 0)


def test_a_pattern_for_the_rows_of_a_new_split(tmp_path):
    """Training rows of the old one are test rows of the new one: nobody goes on with that."""
    dice = np.random.default_rng(3)
    (tmp_path / "t.csv").write_text("a,b,kind\n" + "".join(f"{a:.4f},{b:.4f},{'uv'[int(a > 0)]}\n" for a, b in dice.normal(size=(90, 2))))
    for seed in (0, 1):
        result = dpt.run("convert", "csv", "t.csv", "--output", "t", "--split", "80/20", "--seed", seed, "--force", cwd=tmp_path)
        assert result.code == 0, result
        if seed == 0:
            dpt.write_job(tmp_path / "job.yaml", JOB.replace("*.h5", "t-train-*.h5"))
            assert dpt.run("job.yaml", "--output", "run", "--quiet", cwd=tmp_path).code == 0
    result = go_on(tmp_path)
    assert result.code == 78 and "data.train changed: other samples" in result.err, result


def keep_files(path, files, labels):
    with h5py.File(path, "w") as file:
        file["files"] = np.concatenate(files)
        file["files"].attrs["shape"] = [1, 4, 4]
        file["offsets"] = np.cumsum([0, *map(len, files)], dtype=np.uint64)
        file["labels"] = np.asarray(labels, np.int32)


def test_kept_files(tmp_path):
    def picture(i):
        body = b"P5 4 4 255\n" + bytes((i * 7 + k) % 251 for k in range(16))
        raw = b"".join(b"\0" + body[-16:][4 * r:4 * r + 4] for r in range(4))

        def chunk(kind, data):
            return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
        return np.frombuffer(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes([0, 0, 0, 4, 0, 0, 0, 4, 8, 0, 0, 0, 0]))
                             + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b""), np.uint8)

    files, labels = [picture(i) for i in range(30)], np.arange(30) % 2
    keep_files(tmp_path / "a.h5", files, labels)
    dpt.write_job(tmp_path / "job.yaml", JOB)
    assert dpt.run("job.yaml", "--output", "run", "--quiet", cwd=tmp_path).code == 0
    keep_files(tmp_path / "a.h5", files[:11], labels[:11])
    keep_files(tmp_path / "b.h5", files[11:], labels[11:])
    assert go_on(tmp_path, "--set", "data.cache=none", epochs=3).code == 0
    keep_files(tmp_path / "b.h5", [*files[11:29], picture(77)], labels[11:])
    result = go_on(tmp_path)
    assert result.code == 78 and "data.train changed: other samples, or another order (checksum of some" in result.err, result


def test_on_purpose_for_the_epochs_that_are_left(tmp_path):
    begin(tmp_path)
    write(tmp_path / "a.h5", *draw(130))
    result = go_on(tmp_path, "--resume", "run/checkpoints/latest", "--quiet")
    assert result.code == 0 and "changed since then" not in result.err, result
    assert reached(tmp_path) == (10 + 2 * 7, 4, 0), "two epochs of 5 steps, then two of 7"
    result = go_on(tmp_path, epochs=5)
    assert result.code == 0 and "data.train" not in result.err.split("changed since then")[-1], result
    assert reached(tmp_path) == (10 + 3 * 7, 5, 0), "from then on these are its data"
    write(tmp_path / "a.h5", *draw(100))
    result = go_on(tmp_path, "--resume", "run/checkpoints/latest", epochs=6)
    assert result.code == 0 and "data.train changed: 130 samples then, 100 now" in result.err, result


def test_one_that_does_not_say_goes_on(tmp_path):
    """As those of an older version; another path of the data is another job there, as ever."""
    begin(tmp_path)
    path = tmp_path / "run" / "checkpoints" / "step-00000010.h5"
    body = path.read_bytes()[:-44]
    path.write_bytes(body)
    with h5py.File(path, "r+") as file:
        assert file.attrs["trained_on"].decode().startswith("samples 100; form float32 6; sampled ")
        del file.attrs["trained_on"]
    body = path.read_bytes()
    path.write_bytes(body + b"dptrain crc32 %08x %020d\n" % (zlib.crc32(body), len(body)))
    os.rename(tmp_path / "a.h5", tmp_path / "b.h5")
    result = go_on(tmp_path, "--set", "data.train=b.h5")
    assert result.code == 78 and "data.train: " in result.err and "another job" in result.err, result
    write(tmp_path / "b.h5", *draw(seed=5))
    result = go_on(tmp_path)
    assert result.code == 0 and "resuming at step 10" in result.err, result


def test_checkpoints_have_the_same_bytes_anywhere(tmp_path):
    """In memory or read, on any ranks, in other shards, in one go or not."""
    x, y = begin(tmp_path, sums=True)
    ends = []
    for name, ranks, word in (("one", 0, "data.cache=memory"), ("three", 3, "data.cache=none")):
        result = dpt.run("job.yaml", "--output", name, "--set", "train.epochs=4", "--set", word, cwd=tmp_path, ranks=ranks)
        assert result.code == 0, result
        ends.append(newest(tmp_path / name))
    clear(tmp_path)
    in_parts(tmp_path, x, y)
    assert go_on(tmp_path, ranks=2).code == 0
    assert ends[0] == ends[1] == newest(tmp_path / "run")
