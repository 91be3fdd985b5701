"""What `dptrain inspect` says is what h5py and numpy find, and no damage goes by or brings it down."""
import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
seed: {seed}
data:
  train: synthetic
  valid: 0.1
  synthetic: {{samples: 211, shape: [1, 8, 8]}}
model:
  type: sequential
  layers: [{{conv: {{channels: {channels}, padding: same}}}}, relu, {{maxpool: 2}}, flatten, {{dense: 10}}]
batch: {{global: 32, micro: 8}}
optimizer: {{type: adam, lr: 0.01}}
train: {{epochs: 2}}
checkpoint: {{every: 5 steps}}
"""
HEAVY = os.environ.get("DPT_HEAVY") == "1"
TRIES = 2000 if HEAVY else 60


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run folders: one, one of another seed, one of another model."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed, channels in (("one", 1, 4), ("seed", 2, 4), ("wide", 1, 6)):
        job = dpt.write_job(folder / f"{name}.yaml", JOB.format(seed=seed, channels=channels))
        dpt.train(job, folder / name, "--quiet")
    return folder


@pytest.fixture(scope="module")
def checkpoint(runs):
    return runs / "one" / "checkpoints" / "latest"


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """A shard of our own, with checksums."""
    folder = tmp_path_factory.mktemp("shard")
    dice = np.random.default_rng(3)
    images = dice.integers(0, 256, (70, 5, 4), dtype=np.uint8)
    labels = dice.integers(0, 10, 70, dtype=np.uint8)
    (folder / "i").write_bytes(struct.pack(">IIII", 0x803, *images.shape) + images.tobytes())
    (folder / "l").write_bytes(struct.pack(">II", 0x801, 70) + labels.tobytes())
    result = dpt.run("convert", "idx", "--output", folder / "s", folder / "i", folder / "l")
    assert result.code == 0, result
    return folder / "s-00000-of-00001.h5"


def inspect(*words, code=0):
    result = dpt.run("inspect", *words, timeout=200)
    assert result.code == code, result
    assert len(result.err.splitlines()) == (code not in (0, 1)), "an error is one line"
    return result


def table(out, title):
    """The rows of a table as {name: [cells]}; cells have two blanks between them."""
    lines = out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(title + "  "))
    rows, folder = {}, ""
    for line in lines[at + 1:]:
        cells = [c.strip() for c in line.strip().split("  ") if c.strip()]
        if not line.startswith("  ") or cells == ["all of them finite"]:
            break
        if line.startswith("    "):
            rows[folder + "/" + cells[0]] = cells[1:]
        elif len(cells) == 1:
            folder = cells[0]
        else:
            rows[cells[0]] = cells[1:]
    return rows


def values_match(cells, x):
    x = np.asarray(x, dtype=np.float64)
    finite = x[np.isfinite(x)]
    want = [finite.min(), finite.max(), finite.mean(), np.sqrt((finite ** 2).mean())]
    np.testing.assert_allclose([float(c) for c in cells[:4]], want, rtol=6e-4, atol=2e-9)


def all_sets(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, x: found.update({"/" + name: x[()]}) if isinstance(x, h5py.Dataset) else None)
    return found


def test_a_checkpoint(runs, checkpoint):
    out = inspect(runs / "one").out
    assert out == inspect(checkpoint).out, "a run folder stands for its latest"
    assert max(map(len, out.splitlines()[1:])) <= 80
    sets, values, truth = table(out, "data set"), table(out, "values"), all_sets(checkpoint)
    assert set(sets) == set(truth)
    assert set(values) == set(truth) - {"/job"}
    for name, x in truth.items():
        assert sets[name][-1] == "ok"
        if name != "/job":
            assert sets[name][:3] == ["float32", str(list(x.shape)), f"{x.nbytes:,}".replace(",", " ")]
            values_match(values[name], x)
    with h5py.File(checkpoint) as file:
        a = dict(file.attrs)
    said = dict(line.strip().split(None, 1) for line in out.split("\n\n")[0].splitlines()[1:])
    assert said["step"].startswith(f"{a['step']}: {a['updates']} updates, {a['samples']} samples")
    assert said["next"].startswith(f"epoch {a['epoch']}, step {a['epoch_step']} of it")
    assert said["best"] == f"{a['best_metric']:.6g} at step {a['best_step']}"
    assert said["model"].startswith(f"{a['parameters']} parameters in 4 tensors")
    assert said["seed"] == "1" and said["format"] == str(a["format_version"])
    for name in ("version", "backend", "library"):
        assert a[name].decode() in " ".join(out.split()), name
    assert f"checksums: {len(truth)} of {len(truth)} data sets match; that of the whole file matches" in out
    assert "step-00000012.h5: checkpoint, " in out.splitlines()[0]


def test_layers_come_in_their_order(tmp_path):
    layers = ", ".join("{dense: 7}" for _ in range(14))
    job = dpt.write_job(tmp_path / "job.yaml", JOB.format(seed=1, channels=4).replace(
        "{dense: 10}", layers + ", {dense: 10}"))
    dpt.train(job, tmp_path / "out", "--quiet", "--set", "train={steps: 1}")
    sets = table(inspect(tmp_path / "out").out, "data set")
    want = ["conv1"] + [f"dense{i}" for i in range(1, 16)]
    for folder in ("params", "optimizer/m", "optimizer/v"):
        assert [n for n in sets if n.startswith(f"/{folder}/")] == \
            [f"/{folder}/{layer}/{part}" for layer in want for part in ("weight", "bias")]
    assert list(sets)[-1] == "/job"


def test_the_job_runs_again(runs, checkpoint, tmp_path):
    text = inspect(checkpoint, "--job").out
    assert text.encode() == all_sets(checkpoint)["/job"]
    dpt.train(dpt.write_job(tmp_path / "again.yaml", text), tmp_path / "again", "--quiet")
    assert (tmp_path / "again/checkpoints/latest").read_bytes() == checkpoint.read_bytes()


def test_a_shard(shard):
    out = inspect(shard).out
    truth = all_sets(shard)
    sets, values = table(out, "data set"), table(out, "values")
    assert sets["/images"] == ["uint8", "[70, 1, 5, 4]", "1 400", "contiguous", "ok"]
    assert sets["/labels"] == ["uint8", "[70]", "70", "contiguous", "ok"]
    for name in ("/images", "/labels"):
        values_match(values[name], truth[name])
    counts = np.bincount(truth["/labels"])
    said = out.split("samples of each class\n")[1].split("\n\n")[0].replace(":", " ").split()
    assert dict(zip(map(int, said[::2]), map(int, said[1::2]))) == dict(enumerate(counts))
    assert "70 of [1, 5, 4] (channels, height, width)" in out and "NCHW (no attribute" in out
    assert f"{len(counts)} classes, {counts.min()} to {counts.max()} samples each" in out
    assert "checksums: 2 of 2 data sets match\n" in out


def test_a_folder_of_shards(shard, tmp_path):
    for name in ("b.h5", "a.h5"):
        (tmp_path / name).write_bytes(Path(shard).read_bytes())
    told = inspect(tmp_path).out
    assert told == "\n".join(inspect(tmp_path / name).out for name in ("a.h5", "b.h5"))


def test_shards_of_other_programs(tmp_path):
    dice = np.random.default_rng(0)
    for n, (kind, options) in enumerate([
        ("contiguous", {}),
        ("chunked", {"chunks": (7, 4, 5, 3)}),
        ("chunked gzip", {"chunks": (3, 2, 5, 3), "compression": "gzip"}),
        ("chunked shuffle+gzip+fletcher32",
         {"chunks": (64, 4, 1, 3), "compression": "gzip", "shuffle": True, "fletcher32": True}),
    ]):
        for stored in ("u1", "<f4", ">f4", "f8"):
            images = dice.integers(0, 256, (65, 4, 5, 3)).astype(stored)
            labels = dice.integers(0, 300, 65).astype(">i8")
            path = tmp_path / f"{n}{stored[-2:]}.h5"
            with h5py.File(path, "w", libver="latest" if n % 2 else "earliest") as file:
                file.create_dataset("images", data=images, **options).attrs["layout"] = "NHWC"
                file.create_dataset("labels", data=labels)
                if n == 3:  # of the values as they are in little-endian order
                    file["images"].attrs["crc32"] = np.uint32(zlib.crc32(images.astype(images.dtype.newbyteorder("<")).tobytes()))
            out = inspect(path).out
            sets, values = table(out, "data set"), table(out, "values")
            assert sets["/images"][1:] == ["[65, 4, 5, 3]", f"{images.nbytes:,}".replace(",", " "), kind,
                                           "ok" if n == 3 else "none"], out
            values_match(values["/images"], images)
            values_match(values["/labels"], labels)
            assert "layout      NHWC\n" in out and "65 of [3, 4, 5]" in out
            assert ("1 of 1 data sets match, 1 has none" if n == 3 else "no checksum: nothing to verify") in out


def test_vectors_names_and_other_content(tmp_path):
    with h5py.File(tmp_path / "v.h5", "w") as file:
        x = np.random.default_rng(1).normal(size=(40, 6)).astype("f4")
        x[3, 2], x[4, 4], x[5, 0] = np.nan, np.inf, -np.inf
        file["x"], file["y"] = x, np.full((40, 2), 0.5, "f4")
    out = inspect(tmp_path / "v.h5").out
    assert table(out, "values")["/x"][4] == "3" and "numbers, 2 per sample" in out and "40 of [6]" in out
    values_match(table(out, "values")["/x"], x)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["images"] = np.zeros((5, 2, 2), "u1")
        file["labels"] = np.array([0, 2, 2, -1, 70000])
        file["labels"].attrs["classes"] = ["cat", "dog", "horse"]
    out = inspect(tmp_path / "c.h5").out
    assert "2 labels are no class numbers" in out and "2 horse 2" in out and "1 dog   0" in out
    with h5py.File(tmp_path / "n.h5", "w") as file:
        file["a/b/c/d"], file["text"], file["lists"] = np.float16([1, 2]), "words", ["a", "bc"]
        file["empty"], file["one"] = np.zeros((0, 3)), 7
        file["loop"] = file["/"]
    out = inspect(tmp_path / "n.h5").out
    assert "neither a checkpoint nor a shard" in out
    assert "/a/b\n    c/d  " in out and table(out, "data set")["/empty"][0:2] == ["float64", "[0, 3]"]


def test_shards_that_no_job_could_read(tmp_path):
    def file(name, **sets):
        with h5py.File(tmp_path / name, "w") as f:
            for key, value in sets.items():
                f[key] = value
        return tmp_path / name
    images = np.zeros((5, 1, 3, 3), "u1")
    short = inspect(file("a.h5", images=images, labels=np.zeros(4, "i8")), code=65)
    assert "/images has 5 samples, /labels has 4" in short.err and "int64  [4]" in short.out, short
    assert "int32" in inspect(file("b.h5", images=images.astype("i4"), labels=np.zeros(5, "i8")), code=65).err
    with h5py.File(tmp_path / "d.h5", "w") as f:
        f["images"] = images
        f["labels"] = h5py.ExternalLink("a.h5", "labels")
    assert "d.h5: /labels is a link to labels in another file, a.h5" in inspect(tmp_path / "d.h5", code=65).err
    with h5py.File(tmp_path / "e.h5", "w") as f:
        f["images"] = images
        f.create_dataset("labels", (5,), "i8")
    assert "never written" in inspect(tmp_path / "e.h5", code=65).err


def test_missing_and_other_files(tmp_path, checkpoint):
    (tmp_path / "text").write_text("no HDF5 at all, " * 20)
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "pipe")
    assert "nothing.h5: No such file" in inspect(tmp_path / "nothing.h5", code=65).err
    assert "text is not an HDF5 file" in inspect(tmp_path / "text", code=65).err
    assert "empty is empty" in inspect(tmp_path / "empty", code=65).err
    assert "pipe: is a pipe, not a regular file" in inspect(tmp_path / "pipe", code=65).err
    assert "has neither the checkpoints of a run (checkpoints/latest) nor shards (*.h5)" in inspect(tmp_path, code=65).err
    result = dpt.run("inspect", tmp_path / "text", checkpoint, tmp_path / "nothing.h5")
    assert result.code == 65 and len(result.err.splitlines()) == 2 and "checkpoint, " in result.out, result
    with h5py.File(tmp_path / "n.h5", "w") as file:
        file["a"] = 1
    assert "holds no job" in inspect(tmp_path / "n.h5", "--job", code=65).err


@pytest.mark.parametrize("words", [[], ["a", "b", "--diff", "c"], ["a", "--job", "--diff", "b"], ["--bogus"]])
def test_usage(words):
    inspect(*words, code=2)


def places(path):
    """Where each data set lies: {name: (first, end)}."""
    found = {}

    def take(name, x):
        if isinstance(x, h5py.Dataset):
            found["/" + name] = (x.id.get_offset(), x.id.get_offset() + x.id.get_storage_size())
    with h5py.File(path) as file:
        file.visititems(take)
    return found


def test_damage_to_a_checkpoint_is_placed(checkpoint, tmp_path):
    """A flipped bit anywhere is found, and told where it is."""
    whole, dice = checkpoint.read_bytes(), random.Random(1)
    where = places(checkpoint)
    path = tmp_path / "damaged.h5"
    in_each = [dice.randrange(*span) for span in where.values()]
    anywhere = [dice.choice([dice.randrange(len(whole)), dice.randrange(2048)]) for _ in range(TRIES)]
    for at in in_each + anywhere + [len(whole) - n for n in range(1, 45)]:
        name = next((n for n, (first, end) in where.items() if first <= at < end), None)
        damaged = bytearray(whole)
        damaged[at] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        result = inspect(path, code=65)
        if name is not None:
            assert f"is damaged: {name} does not match its checksum" in result.err, (at, result)
            assert table(result.out, "data set")[name][-1] == "DAMAGED"
            assert result.out.count("DAMAGED") == 1
        elif at >= len(whole) - 44:
            assert "damaged in its metadata" in result.err or "damaged at its end" in result.err, (at, result)


def test_several_damaged_data_sets_are_counted(checkpoint, tmp_path):
    whole = bytearray(checkpoint.read_bytes())
    for name, (first, _) in places(checkpoint).items():
        whole[first] ^= 1
    (tmp_path / "damaged.h5").write_bytes(whole)
    result = inspect(tmp_path / "damaged.h5", code=65)
    assert "/params/conv1/weight does not match" in result.err and "and 12 more of its 13 data sets" in result.err
    assert result.out.count("DAMAGED") == 13


def test_a_checkpoint_cut_short(checkpoint, tmp_path):
    whole, dice = checkpoint.read_bytes(), random.Random(2)
    path = tmp_path / "cut.h5"
    for n in [0, 1, 8, len(whole) - 1, len(whole) - 43, len(whole) - 44, len(whole) - 45] + \
            [dice.randrange(len(whole)) for _ in range(TRIES // 3)]:
        path.write_bytes(whole[:n])
        result = inspect(path, code=65)
        if n >= len(whole) - 44:
            assert "damaged at its end" in result.err and "13 data sets match" in result.err, result
    path.write_bytes(whole + b"more")
    assert "damaged at its end" in inspect(path, code=65).err


def test_damage_to_our_shards(shard, tmp_path):
    whole, dice = shard.read_bytes(), random.Random(3)
    where, good = places(shard), inspect(shard).out.split("\n", 1)[1]
    path = tmp_path / "damaged.h5"
    metadata = [at for at in range(len(whole)) if not any(a <= at < b for a, b in where.values())]
    found = 0
    for at in [dice.randrange(*span) for span in where.values() for _ in range(5)] + \
            [dice.choice(metadata) for _ in range(TRIES)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        result = dpt.run("inspect", path, timeout=200)
        if at in metadata:  # there may be bytes without a meaning
            assert result.code == 65 or (result.code == 0 and result.out.split("\n", 1)[1] == good), (at, result)
            found += result.code == 65
        else:
            name = next(n for n, (first, end) in where.items() if first <= at < end)
            assert result.code == 65 and f"{name} does not match its checksum" in result.err, (at, result)
    assert found > TRIES / 4


def test_damage_to_shards_of_other_programs(tmp_path):
    """Nothing brings it down, whatever HDF5 makes of it: one line or none, exit 0 or 65."""
    dice, images = random.Random(4), np.arange(50 * 16).astype("u1").reshape(50, 1, 4, 4)
    for name, libver, options in (("old", "earliest", {}), ("new", "latest", {"chunks": (7, 1, 4, 4), "compression": "gzip"})):
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w", libver=libver) as file:
            file.create_dataset("images", data=images, **options).attrs["layout"] = np.bytes_("NCHW")
            file["labels"] = np.arange(50) % 7
        whole = path.read_bytes()
        for _ in range(TRIES):
            damaged, at = bytearray(whole), dice.randrange(len(whole))
            damaged[at:at + dice.choice([1, 8])] = bytes([dice.choice([0, 255, damaged[at] ^ 16])])
            path.write_bytes(damaged)
            result = dpt.run("inspect", path, timeout=200)
            assert result.code in (0, 65) and len(result.err.splitlines()) == (result.code == 65), (at, result)


CRASH = """
#include <signal.h>
#include <stdlib.h>
long H5Gget_info(long group, void *info) { (void)group; (void)info; %s }
"""


@pytest.mark.parametrize("how, says", [("abort();", "crash (signal 6)"), ("raise(SIGSEGV); return -1;", "crash (signal 11)"),
                                       ("raise(SIGPROF); return -1;", "no end")])
def test_a_crash_of_the_library_is_damage(shard, tmp_path, how, says):
    (tmp_path / "crash.c").write_text(CRASH % how)
    built = subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "crash.so", tmp_path / "crash.c"])
    if built.returncode != 0 or b"__asan_init" in open(dpt.BINARY, "rb").read():
        pytest.skip("needs a compiler, and a binary that can be preloaded into")
    result = dpt.run("inspect", shard, env={"LD_PRELOAD": str(tmp_path / "crash.so")})
    assert result.code == 65 and says in result.err and len(result.err.splitlines()) == 1, result


def test_a_full_disk_is_told(checkpoint):
    with open("/dev/full", "wb") as full:
        done = subprocess.run([dpt.BINARY, "inspect", str(checkpoint)], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 74, done


def test_diff_of_the_same(runs, checkpoint, tmp_path, shard):
    shutil.copy(checkpoint, tmp_path / "copy.h5")
    out = inspect(runs / "one", "--diff", tmp_path / "copy.h5").out
    assert out.splitlines()[2] == "the same: 18 attributes and 13 data sets"
    assert "the same: " in inspect(shard, "--diff", shard).out


def test_diff_of_seeds(runs, checkpoint):
    other = runs / "seed" / "checkpoints" / "latest"
    result = inspect(checkpoint, "--diff", other, code=1)
    assert result.err == "" and max(map(len, result.out.splitlines()[2:])) <= 80
    a, b = all_sets(checkpoint), all_sets(other)
    rows = table(result.out, "data set")
    first = next(iter(rows))
    assert "\nattributes\n" in result.out and "  seed: 1 -> 2\n" in result.out
    assert "\njob\n  seed: 1 -> 2\n" in result.out
    assert result.out.index("\nattributes\n") < result.out.index("\njob\n") < result.out.index("\nvalues")
    assert first == "/params/conv1/weight"
    for name, x in a.items():
        if name == "/job":
            continue
        x, y = x.astype("f8"), b[name].astype("f8")
        apart = np.abs(x - y)
        if not apart.any():
            assert name not in rows
            continue
        n, of, absolute, relative = rows[name]
        assert int(n.replace(" ", "")) == (apart > 0).sum() and int(of.replace(" ", "")) == x.size
        size = np.maximum(np.abs(x), np.abs(y))
        np.testing.assert_allclose([float(absolute), float(relative)],
                                   [apart.max(), (apart[apart > 0] / size[apart > 0]).max()], rtol=6e-4)
    index = np.argwhere(a[first] != b[first])[0].tolist()
    before, now = a[first][tuple(index)], b[first][tuple(index)]
    lines = result.out.split("\nvalues, ")[1].splitlines()
    assert lines[0] == f"the first at {first}{index}"
    said = lines[1].split(" -> ")
    assert [np.float32(s) for s in said] == [before, now], "they round-trip"


def test_diff_of_steps(runs):
    folder = runs / "one" / "checkpoints"
    early, late = sorted(folder.glob("step-*.h5"))[0], folder / "latest"
    out = inspect(early, "--diff", late, code=1).out
    with h5py.File(early) as a, h5py.File(late) as b:
        assert f"  step: {a.attrs['step']} -> {b.attrs['step']}\n" in out
    assert "\njob\n" not in out and "/optimizer/v\n" in out


def test_diff_of_models(runs):
    out = inspect(runs / "one", "--diff", runs / "wide", code=1).out
    assert "  model.layers[0].conv.channels: 4 -> 6\n" in out
    assert "  /params/conv1/weight: float32 [4, 1, 3, 3] -> float32 [6, 1, 3, 3]\n" in out
    assert "dense1/bias" in out.split("\nvalues")[1] and "conv1" not in out.split("\nvalues")[1]
    result = dpt.run("inspect", runs / "one", "--diff", runs / "nothing")
    assert result.code == 65 and result.out == "" and "nothing: No such file" in result.err, result


def test_diff_one_bit_and_nan(shard, tmp_path):
    """One changed value among many, in another layout; NaN equals itself, 0 and -0 differ."""
    x = np.arange(6000, dtype="f4").reshape(20, 1, 300)
    y = x.copy()
    x[0, 0, :3] = y[0, 0, :3] = np.nan
    y[13, 0, 7] += 0.5
    for name, values, options in (("a", x, {}), ("b", y, {"chunks": (3, 1, 50), "compression": "gzip"})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("images", data=values, **options)
            file["labels"] = np.float32([0.0 if name == "a" else -0.0] * 20)
    for a, b in (("a", "b"), ("b", "a")):
        out = inspect(tmp_path / f"{a}.h5", "--diff", tmp_path / f"{b}.h5", code=1).out
        rows = table(out, "data set")
        np.testing.assert_allclose([float(c.replace(" ", "")) for c in rows["/images"]],
                                   [1, 6000, 0.5, 0.5 / 3907.5], rtol=1e-3)
        assert "the first at /images[13, 0, 7]\n" in out and rows["/labels"] == ["20", "20", "0", "0"]
    out = inspect(tmp_path / "a.h5", "--diff", shard, code=1).out
    assert "  /images: float32 [20, 1, 300] -> uint8 [70, 1, 5, 4]\n" in out


@pytest.mark.parametrize("channels, cache", [(1, "memory"), (3, "none")])
def test_sheet_of_augmented_pictures(tmp_path, channels, cache):
    """An image as it is in the file, and each epoch's: here it, or its mirror; in the first epoch of the first samples of it."""
    n, height, width = 13, 40, 30
    images = np.random.default_rng(1).integers(0, 256, (n, channels, height, width), dtype=np.uint8)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["images"] = images
        file["labels"] = np.arange(n) % 3
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/train.h5, cache: {cache}, normalize: {{mean: 0.3, std: 0.25}}, "
                                               "augment: {flip: true}}\nmodel: cnn\nbatch: {global: 5, micro: 2}\n")
    said = dpt.run("inspect", job, "--augmented", tmp_path / "sheet.png")
    assert said.code == 0 and said.err == "", said
    sheet = np.asarray(Image.open(tmp_path / "sheet.png")).reshape(8 * 82 + 2, -1, channels)
    shown = [int(line.split("sample ")[1]) for line in said.out.splitlines()[1:]]
    assert len(set(shown)) == 8
    mirrored = 0
    for row, sample in enumerate(shown):
        want = images[sample].transpose(1, 2, 0).repeat(2, 0).repeat(2, 1)  # each pixel is four: small images are shown larger
        for column in range(8):
            left = 2 + 62 * column + (4 if column else 0)
            have = sheet[2 + 82 * row:82 + 82 * row, left:left + 60]
            same, turned = (have == want).all(), (have == want[:, ::-1]).all()
            assert same if column == 0 else same or turned, (row, column)
            mirrored += turned
    assert 10 < mirrored < 46


def test_sheets_that_cannot_be(tmp_path):
    text = "data: {train: synthetic, synthetic: {samples: 9, shape: [%s]}, augment: {%s}}\nmodel: mlp\n"
    pictures = dpt.write_job(tmp_path / "a.yaml", text % ("1, 9, 9", "flip: true"))
    rows = dpt.write_job(tmp_path / "b.yaml", text % ("9", "noise: 0.1"))
    for words, code, says in (
            ((pictures, "--augmented", tmp_path / "x.jpg"), 2, "ends in .png"), ((rows, "--augmented", tmp_path / "x.png"), 78, "not images"),
            ((pictures, "--augmented", tmp_path / "x.png", "--set", "data.augment.flip=false"), 78, "sets nothing"),
            ((pictures, "--augmented", tmp_path / "no" / "x.png"), 74, "x.png"), ((pictures, "--set", "seed=3"), 2, "--augmented alone")):
        result = dpt.run("inspect", *words)
        assert result.code == code and says in result.err and result.out == "", result
    assert not (tmp_path / "x.png").exists()
