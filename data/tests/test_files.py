"""Shards that keep image files: jobs are byte-identical to jobs from decoded ones, whoever wrote them and wherever they lie;
damage is told with the shard, the sample and the file."""
import io
import os
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest
from PIL import Image

sys.path[:0] = ["data/tests", "scripts/lib", "cmd/tests", "core/train/tests", "core/train/engines/tests"]
import dpt  # noqa: E402
import test_device  # noqa: E402
from convert_tools import BAD_DATA, USAGE, bad, convert, good, shards  # noqa: E402

JOB = {
    "seed": "5",
    "data": "{train: train-*.h5, valid: 0.2, normalize: {mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.2]}, class_weights: balanced, "
            "resize: [11, 9], crop: 8, augment: {crop_padding: 1, flip: true, mixup: 0.3}}",
    "model": "{type: sequential, layers: [{conv: {channels: 4}}, relu, {maxpool: 2}, flatten, {dense: 3}]}",
    "batch": "{global: 12, micro: 5}",
    "optimizer": "{type: sgd, lr: 0.05}",
    "train": "{epochs: 2}",
    "comm": "{reduction: reproducible}",
}
FORMS = ["png", "jpg", "tif", "bmp"]
TEXT = open("data/README.md", encoding="utf-8").read()
SNIPPET = next(code for code in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "offsets" in code)


PARTS = {"data": JOB["data"].replace("flip: true", "flip: true, crop_area: [0.1, 0.9]")}


def write_pictures(folder, n=33, size=None):
    """Writes images of all formats, sizes and colours, in three imbalanced classes."""
    rng = np.random.default_rng(1)
    for i in range(n):
        height, width = size or rng.integers(5, 40, 2)
        colours = 1 if i % 5 == 0 else 3
        y, x = np.mgrid[:height, :width]
        waves = [120 + 70 * np.sin(x / (2 + i % 7) + c) + 40 * np.cos(y / 3) for c in range(colours)]
        pixels = np.clip(np.stack(waves, -1) + rng.integers(0, 20, (height, width, colours)), 0, 255).astype(np.uint8)
        path = folder / "photos" / "aaabbc"[i % 6] / f"{i:02}.{FORMS[i % 4]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.squeeze()).save(path)


@pytest.fixture(scope="module", name="sets")
def fixture_sets(tmp_path_factory):
    """Folders `decoded` and `kept` with the same samples in shards of convert."""
    folder = tmp_path_factory.mktemp("sets")
    write_pictures(folder)
    for name in "decoded", "kept":
        good("pictures", folder / "photos", "--output", folder / name / "train", "--size", "12x10", "--fit", "crop", "--shuffle", 3,
             "--shards", 3, *["--keep-files"][:name == "kept"])
    return folder


def job_in(folder, **others):
    dpt.write_job(folder / "job.yaml", "".join(f"{key}: {text}\n" for key, text in {**JOB, **others}.items()))
    return "job.yaml"


def train(folder, output, *words, ranks=0, code=0, **others):
    result = dpt.run("train", job_in(folder, **others), "--output", output, *words, ranks=ranks, cwd=folder, env=dpt.ENDS_AT_ONCE)
    assert result.code == code, result
    return result


def damage(sets, folder, change):
    """Copies the shards that keep files, the first of them changed; the name of its sample 3."""
    for path in shards(sets / "kept" / "train", 3):
        (folder / os.path.basename(path)).write_bytes(open(path, "rb").read())
    with h5py.File(shards(folder / "train", 3)[0], "r+") as file:
        name = file["id"][3].decode()
        change(file)
    return name


def replace(file, name, values):
    attributes = {key: value for key, value in file[name].attrs.items() if key != "crc32"}
    del file[name]
    file[name] = values
    file[name].attrs.update(attributes)


def test_a_shard_holds_the_files(sets):
    seen = []
    for path in shards(sets / "kept" / "train", 3):
        with h5py.File(path) as file:
            ends = file["offsets"][...]
            assert set(file) == {"files", "offsets", "labels", "id", "columns"} and ends.dtype == np.uint64
            assert file["files"].attrs["shape"].tolist() == [3, 12, 10] and all("crc32" in file[name].attrs for name in file)
            for i, name in enumerate(file["id"][...]):
                whole = (sets / "photos" / name.decode()).read_bytes()
                assert file["files"][int(ends[i]):int(ends[i + 1])].tobytes() == whole
                assert file["labels"].attrs["classes"][file["labels"][i]] == name[:1]
                seen.append(name)
    assert len(set(seen)) == 33
    assert "33 samples of 3x12x10 in files, 3 classes" in good("pictures", sets / "photos", "--output", sets / "again" / "train", "--size", "12x10", "--keep-files")


def test_parts_divide_files_as_pictures(sets, tmp_path):
    words = ["pictures", sets / "photos", "--size", "4x4", "--split", "60/20/20", "--stratify", "--seed", 2, "--output"]
    good(*words, tmp_path / "a" / "x")
    good(*words, tmp_path / "b" / "x", "--keep-files", "--shards", 2)
    for part in "train", "valid", "test":
        names = []
        for path in shards(tmp_path / "b" / f"x-{part}", 2):
            with h5py.File(path) as file:
                names += file["id"][...].tolist()
                assert file["offsets"].shape == (len(file["id"]) + 1,) and file["offsets"][-1] == len(file["files"])
        with h5py.File(tmp_path / "a" / f"x-{part}-00000-of-00001.h5") as file:
            assert names == file["id"][...].tolist()


def newest(folder):
    """All that the newest checkpoint holds but what tells its training data from others: image files are not their pixels."""
    with h5py.File(os.path.join(folder, "checkpoints", "latest")) as file:
        held = {}
        file.visititems(lambda name, item: held.update({name: (dict(item.attrs), item[()].tobytes() if isinstance(item, h5py.Dataset) else b"")}))
        return {**held, "/": {k: str(v) for k, v in file.attrs.items() if k != "trained_on"}}


@pytest.fixture(scope="module", name="trained")
def fixture_trained(sets):
    train(sets / "decoded", "run")
    return newest(sets / "decoded" / "run")


@pytest.mark.parametrize("ranks, words", [(0, ["device.threads=1"]), (0, ["data.cache=none", "device.threads=2"]), (3, ["data.cache=none", "data.verify=false"])])
def test_a_job_has_the_bytes_of_decoded_pictures(sets, trained, tmp_path, ranks, words):
    said = train(sets / "kept", tmp_path / "run", *[w for word in words for w in ("--set", word)], ranks=ranks)
    assert newest(tmp_path / "run") == trained
    assert f"decoded from image files, {'in memory' if ranks == 0 and len(words) == 1 else 'read while training'}" in said.err, said


MESHES = [(0, ["data.cache=none", "device.threads=2"]), (3, ["data.cache=memory", "batch.micro=5"])]


@pytest.mark.parametrize("size", [None, (12, 10)])
def test_parts_of_whole_pictures_are_the_same_on_any_ranks(tmp_path, size):
    """And those of images that are of the shards' size are the parts of decoded ones."""
    write_pictures(tmp_path, 20, size)
    for name in "decoded", "kept":
        good("pictures", tmp_path / "photos", "--output", tmp_path / name / "train", "--size", "12x10", "--shards", 2, *["--keep-files"][:name == "kept"])
        train(tmp_path / name, "run", "--set", "device.threads=1", **PARTS)
    kept = newest(tmp_path / "kept" / "run")
    assert (kept == newest(tmp_path / "decoded" / "run")) == (size is not None)
    for ranks, words in MESHES:
        train(tmp_path / "kept", f"run-{ranks}", *[w for word in words for w in ("--set", word)], ranks=ranks, **PARTS)
        assert newest(tmp_path / "kept" / f"run-{ranks}") == kept


def philox(key, counter):
    """Philox-4x32-10 (Salmon et al. 2011)."""
    for r in range(10):
        products = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        keys = [(k + r * weyl) % 2**32 for k, weyl in zip(key, (0x9E3779B9, 0xBB67AE85))]
        counter = [products[1] >> 32 ^ counter[1] ^ keys[0], products[1] % 2**32, products[0] >> 32 ^ counter[3] ^ keys[1], products[0] % 2**32]
    return counter


def mix64(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def drawn_box(seed, epoch, sample, height, width, area, ratio):
    """torchvision's RandomResizedCrop.get_params, by the numbers of this sample and epoch."""
    key = mix64((seed + 8 * 0x9E3779B97F4A7C15) % 2**64)
    for attempt in range(10):
        counter = (epoch << 8 | 1) << 64 | sample << 24 | attempt
        word = philox([key % 2**32, key >> 32], [counter >> 32 * k & 0xFFFFFFFF for k in range(4)])
        share = [(w + 0.5) / 2**32 for w in word]
        pixels = height * width * (area[0] + share[0] * (area[1] - area[0]))
        sides = np.exp(np.log(ratio[0]) + share[1] * np.log(ratio[1] / ratio[0]))
        w, h = round(np.sqrt(pixels * sides)), round(np.sqrt(pixels / sides))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(share[2] * (height - h + 1)), int(share[3] * (width - w + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * ratio[1])) if width / height > ratio[1] else width
    h = min(height, round(width / ratio[0])) if width / height < ratio[0] else height
    left, top = round((width - w) / 2), round((height - h) / 2)
    return left, top, left + w, top + h


def test_crop_area_takes_a_part_of_the_file(tmp_path):
    """What Pillow, and so torchvision, makes of the part of the whole image that the numbers say."""
    write_pictures(tmp_path)
    good("pictures", tmp_path / "photos", "--output", tmp_path / "train", "--size", "12x10", "--fit", "crop", "--shards", 3, "--keep-files")
    job = job_in(tmp_path, seed="7", data="{train: train-*.h5, resize: [13, 16], crop: [8, 9], augment: {crop_area: [0.1, 0.6]}}")
    done = dpt.run("inspect", job, "--augmented", "sheet.png", cwd=tmp_path)
    assert done.code == 0, done
    sheet = np.asarray(Image.open(tmp_path / "sheet.png")).astype(int)
    zoom, gap = 8, 2
    firsts, names = {}, []
    for path in shards(tmp_path / "train", 3):
        with h5py.File(path) as file:
            firsts[os.path.basename(path)] = len(names)
            names += [name.decode() for name in file["id"]]
    differences = []
    for row, (shard, number) in enumerate(re.findall(r"^  \d  (\S+), sample (\d+)$", done.out, re.M)):
        sample = firsts[shard] + int(number)
        picture = Image.open(tmp_path / "photos" / names[sample]).convert("RGB")
        for epoch in range(7):
            box = drawn_box(7, epoch, sample, picture.height, picture.width, (0.1, 0.6), (0.75, 1.3333333))
            want = np.asarray(picture.crop(box).resize((9, 8), Image.BILINEAR)).astype(int)
            top, left = gap + row * (8 * zoom + gap), 3 * gap + (epoch + 1) * (9 * zoom + gap)
            differences.append(np.abs(sheet[top:top + 8 * zoom:zoom, left:left + 9 * zoom:zoom] - want).max())
    assert len(differences) == 56 and max(differences) <= 2, differences


def test_other_commands(sets, trained):
    """predict, init, inspect and plan see the same samples, and memory holds the files."""
    assert newest(sets / "decoded" / "run") == trained
    said = {}
    for name in "decoded", "kept":
        folder = sets / name
        done = dpt.run("predict", "job.yaml", "--checkpoint", sets / "decoded" / "run", "--input", "train-*.h5", cwd=folder)
        assert done.code == 0, done
        init = dpt.run("init", "train-*.h5", "--output", "init.yaml", "--force", cwd=folder)
        assert init.code == 0, init
        text = (folder / "init.yaml").read_text()
        said[name] = done.out, re.findall(r"(?:mean|std): .*", text)
    assert said["decoded"] == said["kept"] and len(said["kept"][1]) == 2 and said["kept"][0].count("\n") == 34
    shard = shards(sets / "kept" / "train", 3)[0]
    done = dpt.run("inspect", shard)
    assert done.code == 0 and "11 of [3, 12, 10]" in done.out and "as image files" in done.out and "5 of 5 data sets match" in done.out, done
    plan = dpt.run("plan", "job.yaml", "--json", cwd=sets / "kept")
    total = 0
    for path in shards(sets / "kept" / "train", 3):
        with h5py.File(path) as file:
            total += len(file["files"])
    beside = 33 * 8 + (33 + 3) * 8  # labels and weights; where files begin, and where those of each shard end
    assert plan.code == 0 and f'"samples": {total + beside}' in plan.out, plan.out


def test_h5py_writes_them_as_the_readme_says(sets, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "photos").symlink_to(sets / "photos")
    code = SNIPPET.replace("[3, 224, 224]", "[3, 12, 10]").replace("*.jpg", "*.*").replace("photos.h5", "train-0.h5")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    good("pictures", sets / "photos", "--output", tmp_path / "decoded" / "train", "--size", "12x10")
    for name in folder, tmp_path / "decoded":
        train(name, "run")
    assert newest(folder / "run") == newest(tmp_path / "decoded" / "run")
    # In chunks, which HDF5 reads, with weights, and offsets of another type; without /id.
    with h5py.File(folder / "train-0.h5", "r+") as file:
        whole, ends, shape = file["files"][...], file["offsets"][...], file["files"].attrs["shape"]
        del file["files"], file["offsets"], file["id"]
        file.create_dataset("files", data=whole, chunks=(1000,), compression="gzip").attrs["shape"] = shape
        file["offsets"] = ends.astype(">i4")
        file["weights"] = np.ones(33, "f4")
    train(folder, "chunked", "--set", "data.cache=none")
    assert dpt.steps_logged(folder / "chunked") == dpt.steps_logged(folder / "run")
    with h5py.File(io.BytesIO(dpt.newest(folder / "chunked"))) as one, h5py.File(io.BytesIO(dpt.newest(folder / "run"))) as other:
        assert (one["params/conv1/weight"][...] == other["params/conv1/weight"][...]).all()


def cut(file, i, n):
    """Leaves n bytes of file i."""
    ends = file["offsets"][...].astype(int)
    whole = [file["files"][a:b] for a, b in zip(ends, ends[1:])]
    whole[i] = whole[i][:n]
    replace(file, "files", np.concatenate(whole))
    replace(file, "offsets", np.cumsum([0, *map(len, whole)], dtype=np.uint64))


def set_offset(i, value):
    def change(file):
        values = file["offsets"][...].astype(np.int64)
        values[i] = value if value is not None else values[i - 1]
        replace(file, "offsets", values)
    return change


def of_shape(*shape):
    return lambda file: file["files"].attrs.create("shape", shape)


def flip(name):
    def change(file):
        values = file[name][...]
        values[9] += np.ones(1, values.dtype)[0]
        file[name][...] = values
    return change


@pytest.mark.parametrize("change, said", [
    (lambda f: f.__delitem__("offsets"), "has /files without /offsets, which tells where each begins"),
    (lambda f: replace(f, "offsets", f["offsets"][...].astype("f8")), "/offsets is [12] of float64, not [N + 1] uint64"),
    (lambda f: replace(f, "files", f["files"][...].astype("i2")), "of int16, not the bytes of all files one after the other"),
    (set_offset(0, 3), "/offsets[0] is 3: the first file begins at byte 0"),
    (set_offset(4, None), "the one before: each file begins after the last, and none is empty"),
    (set_offset(4, -1), "/offsets[4] is -1, not above"),
    (set_offset(7, 1 << 40), "/offsets[7] is 1099511627776, past the end of /files"),
    (lambda f: replace(f, "offsets", f["offsets"][:-1]), "the last offset is where the last file ends"),
    (lambda f: replace(f, "labels", f["labels"][:-1]), "/labels has 10"),
    (of_shape(3, 12), 'file["files"].attrs["shape"] = [3, 224, 224]'),
    (of_shape(2, 12, 10), "channels (1 or 3)"),
    (of_shape(3, 0, 10), "channels (1 or 3)"),
    (of_shape(3, 30000, 30000), "channels (1 or 3)"),
    (of_shape(1, 12, 10), "they must be alike"),
    (flip("offsets"), "/offsets does not match its checksum"),
    (lambda f: replace(f, "columns", np.bytes_("column,name,role,fill,value\n0,fit,file,,zoom\n")), "fitted by 'zoom', which is none of stretch, crop and pad"),
])
def test_damage_is_told_before_a_sample_is_read(sets, tmp_path, change, said):
    damage(sets, tmp_path, change)
    result = dpt.run("plan", job_in(tmp_path), cwd=tmp_path)
    assert result.code == BAD_DATA and said in result.err and "train-0000" in result.err and result.err.count("\n") == 1, result


@pytest.mark.parametrize("change, ranks, cache, said", [
    (flip("files"), 0, "none", "/files does not match its checksum"),
    (lambda f: cut(f, 3, 30), 2, "none", "train-00000-of-00003.h5, sample 3 (NAME): "),
    (lambda f: cut(f, 3, 1), 0, "memory", "train-00000-of-00003.h5, sample 3 (NAME): is no PNG"),
])
def test_a_damaged_file_is_told(sets, tmp_path, change, ranks, cache, said):
    name = damage(sets, tmp_path, change)
    result = train(tmp_path, "run", "--set", f"data.cache={cache}", ranks=ranks, code=BAD_DATA)
    assert said.replace("NAME", name) in result.err.splitlines()[-1] or ranks, result
    assert result.err.count(said.replace("NAME", name)) == 1, result


@pytest.mark.skipif(not os.path.exists(test_device.FAKE), reason="this build has no fake device")
def test_a_device_gets_what_threads_decoded(sets, tmp_path):
    machine = test_device.Machine(tmp_path)
    for name in "decoded", "kept":
        job = machine.job(test_device.DENSE, name=name, data=f"{{train: [{sets / name}/train-*.h5], augment: {{crop_padding: 1, flip: true}}}}")
        machine.train(name, job)
    machine.train("together", job, sets=["data.cache=none", "device.threads=3"])
    for name in "kept", "together":
        machine.assert_same_run_bits(name, "decoded")
    damage(sets, tmp_path, lambda file: cut(file, 3, 1))
    job = machine.job(test_device.DENSE, name="damaged", data=f"{{train: [{tmp_path}/train-*.h5]}}")
    result = machine.run("damaged", job, sets=["device.threads=3"], **dpt.ENDS_AT_ONCE)
    assert result.code == BAD_DATA and re.search(r"train-00000-of-00003.h5, sample 3 \(.*\): is no PNG", result.err), result


def test_kept_and_decoded_are_two_kinds(sets, tmp_path):
    for i, name in enumerate(["kept", "decoded"]):
        (tmp_path / f"train-{i}.h5").write_bytes(open(shards(sets / name / "train", 3)[i], "rb").read())
    assert "train-0.h5 keeps image files, " in train(tmp_path, "run", code=BAD_DATA).err
    with h5py.File(tmp_path / "train-0.h5", "r+") as file:  # what else is called so is nobody's business
        file["images"] = np.zeros((11, 3, 12, 10), "u1")
    assert "/files, /offsets are not used" in train(tmp_path, "other").err


def test_convert_refuses(sets, tmp_path):
    folder = tmp_path / "in" / "a"
    image = io.BytesIO()
    Image.new("L", (9, 7), 7).save(image, "PNG")
    for path in folder / "1.png", tmp_path / "in" / "b" / "1.png":
        path.parent.mkdir(parents=True)
        path.write_bytes(image.getvalue())
    bad(USAGE, "--keep-files is no option of the format csv", tmp_path, "csv", "data/flowers.csv", "--keep-files")
    (folder / "2.png").write_bytes(image.getvalue()[:-14])
    said = bad(BAD_DATA, "a/2.png: is a damaged PNG file", tmp_path, "pictures", tmp_path / "in", "--keep-files", "--size", "7x9")
    assert len(said.splitlines()) == 1
    said = convert("pictures", tmp_path / "in", "--keep-files", "--skip-bad", "--output", tmp_path / "x")
    assert said.returncode == 0 and "1 of 3 images left out" in said.stdout and "2 samples of 1x7x9 in files" in said.stdout, said
    like = convert("pictures", sets / "photos", "--keep-files", "--like", shards(sets / "kept" / "train", 3)[0], "--output", tmp_path / "y")
    assert like.returncode == 0 and "33 samples of 3x12x10 in files" in like.stdout, like
    with h5py.File(tmp_path / "y-00000-of-00001.h5") as file:
        assert b"0,fit,file,,crop" in file["columns"][()]
