"""Images into shards: what Pillow sees in a PNG, JPEG, TIFF, BMP, GIF or WebP file is what the shard holds; bad files and folders are told."""

import io
import os
import random
import struct
import sys
import zlib

import h5py
import numpy as np
import pytest
from PIL import Image, ImageOps

sys.path.insert(0, "data/tests")
from convert_tools import BAD_DATA, IO, USAGE, bad, convert, good, load  # noqa: E402

rng = np.random.default_rng(4)


def picture(height, width, channels=3, seed=0):
    """Something smooth with noise in it, as photographs are."""
    noise = np.random.default_rng(seed).integers(0, 60, (height, width, channels))
    y, x = np.mgrid[:height, :width]
    waves = np.stack([90 + 60 * np.sin(x / 5 + c) + 40 * np.cos(y / 7 - c) for c in range(channels)], -1)
    return np.clip(waves + noise - 30, 0, 255).astype(np.uint8).squeeze()


def folder_of(folder, files):
    """{"cat/1.png": an Image or bytes} as files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content.save(path)
    return folder


def one(folder, name, image, *options, **save):
    """The shard's only sample [C, H, W] of one image, and what Pillow reads from the file."""
    path = folder / "in" / "a" / name
    path.parent.mkdir(parents=True)
    image.save(path, **save)
    result = convert("pictures", folder / "in", "--output", folder / "out" / "x", *options)
    assert result.returncode == 0, result.stderr
    images, labels = load(folder / "out" / "x")
    assert labels.tolist() == [0] and images.dtype == np.uint8
    return images[0], Image.open(path)


def on_white(image):
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1", "I;16", "RGBA", "LA"])
def test_png(tmp_path, mode):
    rgb = Image.fromarray(picture(13, 17))
    if mode == "RGBA":
        image = rgb.convert("RGBA")
        image.putalpha(Image.fromarray(picture(13, 17, 1, seed=1)))
    elif mode == "LA":
        image = rgb.convert("L").convert("LA")
        image.putalpha(Image.fromarray(picture(13, 17, 1, seed=1)))
    elif mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (13, 17)).astype(np.uint16))
    else:
        image = rgb.convert(mode)
    got, read = one(tmp_path, "p.png", image)
    if mode == "I;16":
        want = np.round(np.asarray(read).astype(float) / 257)[None]
    elif mode in ("L", "1"):
        want = np.asarray(read.convert("L"))[None]
    elif mode == "LA":
        want = np.asarray(on_white(read).convert("L"))[None]
    else:
        want = np.asarray(on_white(read)).transpose(2, 0, 1)
    assert got.shape == want.shape
    assert np.abs(got.astype(int) - want).max() <= (1 if mode in ("RGBA", "LA", "I;16") else 0)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg(tmp_path, mode, progressive):
    got, read = one(tmp_path, "p.JPEG", Image.fromarray(picture(50, 35)).convert(mode), progressive=progressive, quality=80)
    want = np.asarray(read)
    want = want[None] if mode == "L" else want.transpose(2, 0, 1)
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("mode, name, save", [
    ("L", "p.bmp", {}), ("RGB", "p.BMP", {}), ("P", "p.bmp", {}), ("1", "p.bmp", {}),
    ("L", "p.tif", {}), ("RGB", "p.tiff", {"compression": "tiff_lzw"}), ("P", "p.tif", {}), ("1", "p.tif", {"compression": "group4"}),
    ("I;16", "p.tif", {}), ("RGBA", "p.tif", {}), ("RGB", "p.tif", {"compression": "tiff_adobe_deflate"})])
def test_bmp_and_tiff(tmp_path, mode, name, save):
    rgb = Image.fromarray(picture(13, 17))
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (13, 17)).astype(np.uint16))
    elif mode == "RGBA":
        image = rgb.convert("RGBA")
        image.putalpha(Image.fromarray(picture(13, 17, 1, seed=1)))
    else:
        image = rgb.convert(mode)
    got, read = one(tmp_path, name, image, **save)
    if mode == "I;16":
        want = np.round(np.asarray(read).astype(float) / 257)[None]
    elif mode in ("L", "1"):
        want = np.asarray(read.convert("L"))[None]
    else:
        want = np.asarray(on_white(read)).transpose(2, 0, 1)
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= (2 if mode in ("RGBA", "I;16") else 0)


@pytest.mark.parametrize("mode, save", [("L", {}), ("P", {}), ("1", {}), ("P", {"interlace": 1}), ("P", {"transparency": 7}), ("several", {})])
def test_gif(tmp_path, mode, save):
    """The first image of several; grey where the palette is."""
    image = Image.fromarray(picture(13, 17)).convert(mode if mode != "several" else "P")
    if mode == "several":
        # Frames that look alike become one in newer versions of Pillow.
        save = {"save_all": True, "append_images": [Image.fromarray(picture(13, 17, seed=k)).convert("P") for k in (1, 2, 3)]}
    got, read = one(tmp_path, "p.GIF", image, **save)
    grey = mode in ("L", "1")
    want = np.asarray(read.convert("L"))[None] if grey else np.asarray(on_white(read)).transpose(2, 0, 1)
    assert getattr(read, "n_frames", 1) == (4 if mode == "several" else 1)
    assert got.shape == want.shape and (got == want).all()


@pytest.mark.parametrize("transparency", [None, 7])
def test_gif_that_fills_a_part(tmp_path, transparency):
    """A first image of 17 x 13 at (2, 3) of 30 x 20, whatever the background's colour."""
    data = bytearray(encoded(Image.fromarray(picture(13, 17)).convert("P"), "GIF", **({"transparency": 7} if transparency else {})))
    at = 13 + (3 << ((data[10] & 7) + 1))
    while data[at] == 0x21:
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    assert data[at] == 0x2C
    data[6:12], data[at + 1:at + 5] = struct.pack("<HHBB", 30, 20, data[10], 5), struct.pack("<HH", 2, 3)
    good("pictures", folder_of(tmp_path / "in", {"a/1.gif": bytes(data)}), "--output", tmp_path / "out" / "x", warns=True)
    want = np.asarray(on_white(Image.open(io.BytesIO(data)))).transpose(2, 0, 1)
    assert (load(tmp_path / "out" / "x")[0][0] == want).all()


@pytest.mark.parametrize("mode, save", [("RGB", {"lossless": True}), ("RGB", {"quality": 70}), ("RGBA", {"lossless": True}), ("RGBA", {"quality": 80}),
                                        ("L", {"quality": 80})])
def test_webp(tmp_path, mode, save):
    image = Image.fromarray(picture(13, 17)).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(picture(13, 17, 1, seed=1)))
    got, read = one(tmp_path, "p.webp", image, **save)
    want = np.asarray(on_white(read)).transpose(2, 0, 1)
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= (1 if mode == "RGBA" else 0)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("form", ["webp", "jpg", "png"])
def test_pictures_are_turned_upright(tmp_path, orientation, form):
    exif = Image.Exif()
    exif[0x0112] = orientation
    got, read = one(tmp_path, f"p.{form}", Image.fromarray(picture(24, 40)), exif=exif.tobytes())
    want = np.asarray(ImageOps.exif_transpose(read)).transpose(2, 0, 1)
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= (form == "jpg")


def test_orientation_after_an_odd_chunk(tmp_path):
    """Each chunk of a WebP file begins at an even byte (RFC 9649)."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(picture(24, 40)), "WEBP", lossless=True, exif=exif.tobytes())
    at = data.rindex(b"EXIF")
    data = data[:at] + b"ODDS" + struct.pack("<I", 3) + b"abc\0" + data[at:]
    data = data[:4] + struct.pack("<I", len(data) - 8) + data[8:]
    good("pictures", folder_of(tmp_path / "in", {"a/1.webp": data}), "--output", tmp_path / "out" / "x", warns=True)
    assert np.array_equal(load(tmp_path / "out" / "x")[0][0], np.rot90(picture(24, 40), -1).transpose(2, 0, 1))


def test_pictures_that_move_as_webp_are_refused(tmp_path):
    moving = encoded(Image.fromarray(picture(9, 9)), "WEBP", save_all=True, append_images=[Image.fromarray(picture(9, 9, seed=1))])
    folder = folder_of(tmp_path / "in", {"a/1.webp": moving, "a/2.png": Image.new("RGB", (9, 9)), "b/1.png": Image.new("RGB", (9, 9))})
    bad(BAD_DATA, "1.webp: is an animated WebP file; save one of its images", tmp_path, "pictures", folder)
    assert "2 samples of" in good("pictures", folder, "--skip-bad", "--output", tmp_path / "o", warns=True)


@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
def test_tiff_is_turned_upright(tmp_path, orientation):
    image = Image.fromarray(picture(24, 40))
    got, _ = one(tmp_path, "p.tif", image, tiffinfo={274: orientation})
    image.getexif()[0x0112] = orientation
    want = np.asarray(ImageOps.exif_transpose(image)).transpose(2, 0, 1)
    assert got.shape == want.shape and (got == want).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("endian", ["<", ">"])
def test_jpeg_is_turned_upright(tmp_path, orientation, endian):
    exif = Image.Exif()
    exif.endian = endian
    exif[0x0112] = orientation
    exif[0x010F] = "maker"
    got, read = one(tmp_path, "p.jpg", Image.fromarray(picture(24, 40)), exif=exif.tobytes(), quality=95)
    want = np.asarray(ImageOps.exif_transpose(read)).transpose(2, 0, 1)
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= 1


def test_orientation_behind_xmp_and_of_four_bytes(tmp_path):
    """As some editors write it."""
    data, xmp = encoded(Image.fromarray(picture(24, 40)), "JPEG"), b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta/>"
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIII", 8, 1, 0x0112, 4, 1, 6, 0)
    data = data[:2] + b"".join(struct.pack(">HH", 0xFFE1, 2 + len(segment)) + segment for segment in (xmp, exif)) + data[2:]
    good("pictures", folder_of(tmp_path / "in", {"a/1.jpg": data}), "--output", tmp_path / "out" / "x", warns=True)
    want = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))).transpose(2, 0, 1)
    got = load(tmp_path / "out" / "x")[0][0]
    assert got.shape == want.shape == (3, 40, 24) and np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("size", [(28, 28), (10, 31), (100, 90), (1, 1), (7, 200)])
def test_scaling_is_as_pillow_does_it(tmp_path, size):
    got, read = one(tmp_path, "p.png", Image.fromarray(picture(60, 45)), "--size", f"{size[0]}x{size[1]}")
    want = np.asarray(read.resize(size[::-1], Image.BILINEAR)).transpose(2, 0, 1)
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("size", [(28, 28), (40, 60), (60, 20), (1, 30)])
def test_other_shapes_are_cut_or_get_black(tmp_path, size):
    image = Image.fromarray(picture(60, 45))
    h, w = size
    if 45 * h > w * 60:
        box, inner = (max(1, round(w * 60 / h)), 60), (w, max(1, round(60 * w / 45)))
    else:
        box, inner = (45, max(1, round(h * 45 / w))), (max(1, round(45 * h / 60)), h)
    left, top = (45 - box[0]) // 2, (60 - box[1]) // 2
    got, _ = one(tmp_path / "crop", "p.png", image, "--size", f"{h}x{w}", "--fit", "crop")
    want = image.crop((left, top, left + box[0], top + box[1])).resize((w, h), Image.BILINEAR)
    assert np.abs(got.astype(int) - np.asarray(want).transpose(2, 0, 1)).max() <= 1
    got, _ = one(tmp_path / "pad", "p.png", image, "--size", f"{h}x{w}", "--fit", "pad")
    want = Image.new("RGB", (w, h))
    want.paste(image.resize(inner, Image.BILINEAR), ((w - inner[0]) // 2, (h - inner[1]) // 2))
    assert np.abs(got.astype(int) - np.asarray(want).transpose(2, 0, 1)).max() <= 1


@pytest.mark.parametrize("size", [[], ["--size", "4x4"]])
def test_all_bad_pictures_are_told_or_left_out(tmp_path, size):
    files = {f"{'ab'[i % 2]}/{i}.png": encoded(GOOD, "PNG") for i in range(9)}
    files["a/2.png"], files["b/5.png"], files["b/7.png"] = files["a/2.png"][:-20], b"", b"GIF89a"
    folder = folder_of(tmp_path / "in", files)
    said = convert("pictures", folder, "--output", tmp_path / "out" / "x", *size)
    assert said.returncode == BAD_DATA and not os.path.exists(tmp_path / "out" / "x-00000-of-00001.h5")
    lines = said.stderr.splitlines()
    assert len(lines) == 4 and "a/2.png: is a damaged PNG file" in lines[0] and "b/5.png" in lines[1] and "b/7.png" in lines[2], said
    assert lines[3] == "3 of 9 images cannot be read; --skip-bad leaves them out"
    said = convert("pictures", folder, "--output", tmp_path / "out" / "x", "--skip-bad", *size)
    assert said.returncode == 0 and said.stdout.splitlines()[:4] == [*lines[:3], "3 of 9 images left out"], said
    assert load(tmp_path / "out" / "x")[1].tolist() == [0] * 4 + [1] * 2
    for i in range(1, 9, 2):
        (folder / "b" / f"{i}.png").write_bytes(b"x")
    said = convert("pictures", folder, "--output", tmp_path / "out" / "x", "--skip-bad", *size)
    cause = f"in/b/: none of its 4 images can be read, so there is nothing to learn this class from; repair them, or remove the sub-folder; the first: {folder}/b/1.png: is no"
    assert said.returncode == BAD_DATA and cause in said.stderr and said.stderr.count("\n") == 1, said
    said = convert("pictures", folder, "--output", tmp_path / "out" / "x", *size)
    assert said.returncode == BAD_DATA and cause in said.stderr.splitlines()[-1], said
    # If there are very many, the first are listed, and the cause stands last.
    for i in range(300):
        (folder / "b" / f"x{i}.png").write_bytes(b"x")
    (folder / "b" / "y.png").write_bytes(files["a/0.png"])
    lines = convert("pictures", folder, "--output", tmp_path / "out" / "x", *size).stderr.splitlines()
    assert len(lines) == 22 and lines[20] == "and 285 more; --skip-bad --dry-run lists them all", lines
    assert lines[21] == "305 of 310 images cannot be read; --skip-bad leaves them out"
    listed = convert("pictures", folder, "--dry-run", "--skip-bad", "--quiet", *size)
    assert len(listed.stdout.splitlines()) == 307 and listed.stderr == ""


def test_quiet_says_what_was_written_and_no_more(tmp_path):
    """Every format does so; what was left out, or became of columns, is printed only without --quiet."""
    folder = folder_of(tmp_path / "in", {"a/1.png": GOOD, "b/1.png": GOOD, "b/2.png": b"x", "b/note.txt": b"x"})
    images, labels = (os.path.abspath(f"data/mnist/t10k-{name}.gz") for name in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    (tmp_path / "t.csv").write_text("a,b\n1,0\n2,1\n")
    np.save(tmp_path / "x.npy", np.zeros((4, 3), "f4"))
    np.save(tmp_path / "y.npy", np.arange(4, dtype="u1"))
    (tmp_path / "c.bin").write_bytes(bytes(3073 * 5))
    for words in (["pictures", folder, "--skip-bad"], ["idx", images, labels], ["csv", tmp_path / "t.csv"], ["npy", tmp_path / "x.npy", tmp_path / "y.npy"],
                  ["cifar10", tmp_path / "c.bin"]):
        said = convert(*words, "--output", tmp_path / "o" / "x", "--quiet")
        assert said.returncode == 0 and said.stderr == "", said
        assert [line.split(":")[0] for line in said.stdout.splitlines() if not line.startswith("classes: ")] == [str(tmp_path / "o" / "x-00000-of-00001.h5")], said


def test_grey_is_as_pillow_makes_it(tmp_path):
    got, read = one(tmp_path, "p.png", Image.fromarray(picture(20, 30)), "--grey")
    assert (got[0] == np.asarray(read.convert("L"))).all()


def test_folders_are_classes(tmp_path):
    """Numbers before words and by their value; images by name; grey becomes colour where any is in colour."""
    files = {}
    for k, name in enumerate(["10", "9", "dog", "cat", "café"]):
        for i in range(3):
            shade = Image.new("L" if k else "RGB", (4, 3), 10 * k + i if k else (10 * k + i,) * 3)
            files[f"{name}/deep/{i}.png" if i == 2 else f"{name}/{i}.PNG"] = shade
    files["cat/notes.txt"] = b"no picture"
    files[".hidden/1.png"] = b"passed over"
    folder = folder_of(tmp_path / "in", files)
    said = convert("pictures", folder, "--output", tmp_path / "out" / "x", "--shards", 2)
    assert said.returncode == 0 and "cat/notes.txt is not an image and is left out" in said.stderr
    images, labels = load(tmp_path / "out" / "x", 2)
    with h5py.File(tmp_path / "out" / "x-00000-of-00002.h5") as f:
        names = [n.decode() for n in f["labels"].attrs["classes"]]
    assert names == ["9", "10"] + sorted(["dog", "cat", "café"], key=str.encode)
    by_class = {"10": 0, "9": 1, "dog": 2, "cat": 3, "café": 4}
    for image, label in zip(images, labels):
        assert image.shape == (3, 3, 4) and image[0, 0, 0] // 10 == by_class[names[label]]
    assert sorted(np.bincount(labels)) == [3] * 5


def test_shuffling_is_a_permutation_by_its_seed(tmp_path):
    folder = folder_of(tmp_path / "in", {f"{i % 3}/{i:02}.png": Image.new("L", (2, 2), i) for i in range(30)})
    orders = []
    for name, options in ("a", []), ("b", ["--shuffle", 7]), ("c", ["--shuffle", 7]), ("d", ["--shuffle", 8]):
        good("pictures", folder, "--output", tmp_path / name / "x", *options)
        images, labels = load(tmp_path / name / "x")
        orders.append(images[:, 0, 0, 0].tolist())
        assert [v % 3 for v in orders[-1]] == labels.tolist()
    assert sorted(orders[1]) == list(range(30))
    assert orders[0] != orders[1] == orders[2] != orders[3]


def test_a_test_set_has_the_classes_of_its_training_set(tmp_path):
    names = ["bird", "cat", "dog"]
    train = folder_of(tmp_path / "train", {f"{n}/1.png": Image.fromarray(picture(8, 6)) for n in names})
    test = folder_of(tmp_path / "test", {f"{n}/1.png": Image.new("L", (30, 20), 9) for n in ["dog", "bird"]})
    good("pictures", train, "--output", tmp_path / "d" / "train")
    shard = tmp_path / "d" / "train-00000-of-00001.h5"
    good("pictures", test, "--output", tmp_path / "d" / "test", "--like", shard)
    images, labels = load(tmp_path / "d" / "test")
    assert labels.tolist() == [0, 2] and images.shape == (2, 3, 8, 6)
    with h5py.File(tmp_path / "d" / "test-00000-of-00001.h5") as f:
        assert [n.decode() for n in f["labels"].attrs["classes"]] == names
    folder_of(test, {"cow/1.png": Image.new("L", (3, 3))})
    bad(BAD_DATA, ["cow", "is no class of"], tmp_path, "pictures", test, "--like", shard)
    bad(USAGE, "leave --size", tmp_path, "pictures", test, "--like", shard, "--size", "3x3")


GOOD = Image.new("L", (4, 4), 7)


@pytest.mark.parametrize("code, said, files, options", [
    (BAD_DATA, "holds no images", {"a/readme.txt": b"x"}, []),
    (BAD_DATA, "but no sub-folders", {"1.png": GOOD}, []),
    (BAD_DATA, "loose.png: lies beside the sub-folders", {"a/1.png": GOOD, "loose.png": GOOD}, []),
    (BAD_DATA, "empty: holds no image", {"a/1.png": GOOD, "b/1.png": GOOD, "empty/x.txt": b""}, []),
    (BAD_DATA, "--size 4x4 makes all of one size", {"a/1.png": GOOD, "b/1.png": Image.new("L", (5, 4))}, []),
    (BAD_DATA, "b/1.png: is no PNG, JPEG, TIFF, BMP, GIF, WebP file: it is empty", {"a/1.png": GOOD, "b/1.png": b""}, []),
    (BAD_DATA, "b/1.png: is no PNG, JPEG, TIFF, BMP, GIF, WebP file", {"a/1.png": GOOD, "b/1.png": b"GIF90a...."}, ["--size", "4x4"]),
    (BAD_DATA, "b/1.gif: is a damaged GIF file, or of a rare kind (the file is cut off", {"a/1.png": GOOD, "b/1.gif": b"GIF89a...."}, []),
    (BAD_DATA, "b/1.HEIC: is a HEIC file, which is not read; save it as one of PNG, JPEG, TIFF, BMP, GIF, WebP",
     {"a/1.png": GOOD, "b/1.HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"}, []),
    (BAD_DATA, "b/1.png: is an AVIF file", {"a/1.png": GOOD, "b/1.png": b"\0\0\0\x18ftypavif\0\0\0\0"}, []),
    (USAGE, "--size 4: must be height and width", {"a/1.png": GOOD}, ["--size", "4"]),
    (USAGE, "--size 0x4: must be height and width", {"a/1.png": GOOD}, ["--size", "0x4"]),
    (USAGE, "--fit fill: stretch, crop or pad", {"a/1.png": GOOD}, ["--fit", "fill"]),
    (USAGE, "--fit crop: no size: give --size HxW, or --like SHARD", {"a/1.png": GOOD}, ["--fit", "crop"]),
    (USAGE, "--shuffle x: must be a whole number", {"a/1.png": GOOD}, ["--shuffle", "x"]),
    (USAGE, "--label is no option of the format pictures", {"a/1.png": GOOD}, ["--label", "1"]),
    (BAD_DATA, "there.h5", {"a/1.png": GOOD}, ["--like", "there.h5"]),
])
def test_mistakes_are_told(tmp_path, code, said, files, options):
    bad(code, said, tmp_path, "pictures", folder_of(tmp_path / "in", files), *options)


def test_one_picture_is_one_sample(tmp_path):
    assert "1 shard, 1 sample of 1x4x4 uint8, 1 class, " in good("pictures", folder_of(tmp_path / "in", {"a/1.png": GOOD}), "--output", tmp_path / "o", warns=True)


def test_folder_that_is_none(tmp_path):
    bad(IO, "nowhere: cannot list the folder", tmp_path, "pictures", tmp_path / "nowhere")


def encoded(image, form, **save):
    out = io.BytesIO()
    image.save(out, form, **save)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["Adobe", "YCCK", "bare"])
def test_inks_are_as_pillow_makes_them(tmp_path, kind):
    """Four inks as Adobe's programs store them, with or without its marker (0xFFEE), whose last byte says YCCK."""
    data = encoded(Image.frombytes("CMYK", (35, 50), picture(50, 35, 4).tobytes()), "JPEG", quality=90)
    at = data.index(b"\xff\xee")
    marker = data[at:at + 16]
    assert marker[4:9] == b"Adobe" and marker[-1] == 0
    data = data[:at] + {"Adobe": marker, "YCCK": marker[:-1] + b"\2", "bare": b""}[kind] + data[at + 16:]
    good("pictures", folder_of(tmp_path / "in", {"a/1.jpg": data}), "--output", tmp_path / "out" / "x", warns=True)
    want = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    assert np.abs(load(tmp_path / "out" / "x")[0][0].astype(int) - want).max() <= 1


def tiff(samples, bits, colour, extra=(), tile=None, planes=1, order="<", palette=None):
    """A TIFF file (TIFF 6.0) of samples [H, W, K], uncompressed, in tiles of a side or strips of 5 rows; planes 2: one sample after the other."""
    height, width, k = samples.shape

    def rows(block):
        if bits == 16:
            return block.astype(order + "u2").tobytes()
        lines = block.reshape(len(block), -1)[..., None] >> np.arange(bits)[::-1] & 1
        return np.packbits(lines.reshape(len(block), -1).astype(np.uint8), axis=1).tobytes()

    side = tile or (5, width)
    full = np.zeros((-(-height // side[0]) * side[0] if tile else height, -(-width // side[1]) * side[1], k), int)
    full[:height, :width] = samples
    parts = [full] if planes == 1 else [full[..., c:c + 1] for c in range(k)]
    blocks = [rows(part[y:y + side[0], x:x + side[1]]) for part in parts for y in range(0, len(full), side[0]) for x in range(0, full.shape[1], side[1])]
    ends = np.cumsum([8] + [len(b) for b in blocks]).tolist()
    where, sizes = (324, 325) if tile else (273, 279)
    tags = {256: [width], 257: [height], 258: [bits] * k, 259: [1], 262: [colour], 277: [k], 284: [planes], where: ends[:-1], sizes: list(map(len, blocks))}
    tags |= {338: extra} if extra else {}
    tags |= {322: [side[1]], 323: [side[0]]} if tile else {278: [side[0]]}
    tags |= {320: palette.T.ravel().tolist()} if palette is not None else {}
    entries, more, at = b"", b"", ends[-1] + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        form = order + str(len(values)) + ("I" if tag in (where, sizes) else "H")
        body = struct.pack(form, *values)
        place = body.ljust(4, b"\0") if len(body) <= 4 else struct.pack(order + "I", at + len(more))
        more += body if len(body) > 4 else b""
        entries += struct.pack(order + "HHI", tag, 4 if tag in (where, sizes) else 3, len(values)) + place
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, ends[-1])
    return head + b"".join(blocks) + struct.pack(order + "H", len(tags)) + entries + bytes(4) + more


WHITE, BLACK, RGB, PALETTE, INKS = 0, 1, 2, 3, 5  # PhotometricInterpretation
UNSPECIFIED, PREMULTIPLIED, OPACITY = 0, 1, 2  # ExtraSamples


def seen(samples, bits, colour, extra, palette):
    """What a person sees of samples on white, by the definitions of TIFF 6.0."""
    value = samples * 255.0 / (2**bits - 1)
    colours = {RGB: 3, INKS: 4}.get(colour, 1)
    shown = value[..., :colours]
    if colour == WHITE:
        shown = 255 - shown
    if colour == PALETTE:
        shown = palette[samples[..., 0]] / 257
    if colour == INKS:
        shown = (255 - shown[..., :3]) * (255 - shown[..., 3:]) / 255
    opacity = value[..., colours:colours + 1] / 255
    if extra and extra[0] == OPACITY:
        shown = shown * opacity + 255 * (1 - opacity)
    if extra and extra[0] == PREMULTIPLIED:
        shown = shown + 255 * (1 - opacity)
    return shown


def test_tiff_of_any_samples(tmp_path):
    """Any bits, tiles, planes, byte orders and fourth samples: as the standard defines them."""
    draw = random.Random(5)
    files, wants = {}, []
    for i in range(120):
        colour = draw.choice([WHITE, BLACK, BLACK, RGB, RGB, PALETTE, INKS])
        bits = draw.choice([1, 4, 8, 16] if colour == PALETTE else [1, 2, 4, 8, 8, 10, 12, 14, 16, 16])
        extra = draw.choice([(), (UNSPECIFIED,), (OPACITY,), (OPACITY, UNSPECIFIED)] + [(PREMULTIPLIED,)] * (colour in (BLACK, RGB)))
        if colour == INKS:
            extra = draw.choice([(), (UNSPECIFIED,)])
        k = {RGB: 3, INKS: 4}.get(colour, 1) + len(extra)
        samples = np.random.default_rng(i).integers(0, 2**bits, (23, 37, k))
        if extra[:1] == (PREMULTIPLIED,):
            samples = np.minimum(samples, samples[..., -1:])
        palette = np.random.default_rng(i).integers(0, 256, (2**bits, 3)) * 257 if colour == PALETTE else None
        form = {"tile": draw.choice([None, (16, 16), (32, 48)]), "planes": draw.choice([1, 2] if k > 1 else [1]), "order": draw.choice("<>")}
        files[f"a/{i:03}.tif"] = tiff(samples, bits, colour, extra, palette=palette, **form)
        wants.append((seen(samples, bits, colour, extra, palette), (bits, colour, extra, form)))
    good("pictures", folder_of(tmp_path / "in", files), "--output", tmp_path / "out" / "x", warns=True)
    for got, (want, what) in zip(load(tmp_path / "out" / "x")[0], wants, strict=True):
        assert np.abs(got.transpose(1, 2, 0) - want).max() <= 1.5, what


def test_grey_with_opacity_is_the_same_in_tiff_and_png(tmp_path):
    opacity = np.tile(np.linspace(0, 255, 6).astype(np.uint8), (4, 1))
    image = Image.merge("LA", (Image.new("L", (6, 4), 100), Image.fromarray(opacity)))
    good("pictures", folder_of(tmp_path / "in", {"a/0.tif": image, "a/1.png": image}), "--output", tmp_path / "out" / "x", warns=True)
    images = load(tmp_path / "out" / "x")[0]
    assert images[0, 0, 0].tolist() == images[1, 0, 0].tolist() == [255, 224, 193, 162, 131, 100]


def bmp(pixels, width, height, bits, compression=0, masks=(), palette=b"", header=40):
    head = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, len(pixels), 0, 0, 0, 0)
    head = (head + struct.pack(f"<{len(masks)}I", *masks)).ljust(header, b"\0") + palette
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


RUNS = bytes([3, 9, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0, 0, 4, 7, 8, 9, 10, 2, 255, 0, 0, 8, 77, 0, 1])
NIBBLES = bytes([4, 0x9A, 0, 4, 0x12, 0x34, 0, 0, 0, 4, 0x78, 0x9A, 2, 0xFF, 0, 0, 8, 0x71, 0, 1])
COLOURS = bytes(np.random.default_rng(1).integers(0, 256, 1024, dtype=np.uint8))


@pytest.mark.parametrize("content", [
    bmp(COLOURS[:96], 8, 3, 32),
    bmp(COLOURS[:96], 8, -3, 32, header=124),
    bmp(COLOURS[:96], 8, 3, 32, 3, (0xFF0000, 0xFF00, 0xFF, 0xFF000000), header=108),
    bmp(COLOURS[:96], 8, 3, 32, 3, (0xFF, 0xFF00, 0xFF0000, 0xFF000000), header=124),
    bmp(COLOURS[:48], 8, 3, 16), bmp(COLOURS[:48], 8, 3, 16, 3, (0xF800, 0x7E0, 0x1F)),
    bmp(RUNS, 8, 3, 8, 1, palette=COLOURS), bmp(NIBBLES, 8, 3, 4, 2, palette=COLOURS[:64])],
    ids=["32", "32 from the top", "32 with opacity", "32 of other masks", "16", "16 of masks", "runs of 8", "runs of 4"])
def test_bmp_is_as_pillow_reads_it(tmp_path, content):
    """Without masks a fourth byte is no opacity; runs of 8 and 4 bits; masks of 16 and 32."""
    good("pictures", folder_of(tmp_path / "in", {"a/1.bmp": content}), "--output", tmp_path / "out" / "x", warns=True)
    want = np.asarray(on_white(Image.open(io.BytesIO(content)))).transpose(2, 0, 1)
    got = load(tmp_path / "out" / "x")[0][0]
    assert got.shape == want.shape and np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("form", ["png", "tif"])
@pytest.mark.parametrize("most", [1023, 4095, 65535])
def test_few_bits_in_16_are_told(tmp_path, most, form):
    """A camera's numbers of 10 or 12 bits would become nearly black."""
    image = Image.fromarray(np.linspace(0, most, 6400).round().astype(np.uint16).reshape(80, 80))
    said = convert("pictures", folder_of(tmp_path / "in", {f"a/1.{form}": image, "b/1.png": Image.new("L", (80, 80))}), "--output", tmp_path / "x")
    assert said.returncode == 0
    if most == 65535:
        assert said.stderr == ""
    else:
        assert f"a/1.{form}: no checked sample of 16 bits is above {most};" in said.stderr, said
        assert f"they become {round(most / 257)} at most; if they have fewer bits, multiply them by {65536 // (most + 1)} first" in said.stderr, said


def test_links_that_lead_nowhere(tmp_path):
    """An image's is one that cannot be read; a class's ends it, as the class would be missing."""
    folder = folder_of(tmp_path / "in", {"a/1.png": GOOD, "b/1.png": GOOD})
    (folder / "a" / "0.png").symlink_to("gone.png")
    for options in [], ["--size", "4x4"], ["--size", "4x4", "--keep-files"]:
        bad(BAD_DATA, "a/0.png: is a link to gone.png, which is not there", tmp_path, "pictures", folder, *options)
    assert "1 of 3 images left out" in good("pictures", folder, "--skip-bad", "--output", tmp_path / "o" / "x")
    assert load(tmp_path / "o" / "x")[1].tolist() == [0, 1]
    (folder / "c").symlink_to("gone")
    bad(BAD_DATA, "in/c: is a link that leads nowhere", tmp_path, "pictures", folder, "--skip-bad")
    bad(IO, "c: cannot list the folder: No such file", tmp_path, "pictures", folder / "c")


@pytest.mark.parametrize("names, warned", [(["train", "val"], True), (["Train", "TEST", "extra"], True), (["train"], True), (["train", "bus"], False)])
def test_splits_that_are_taken_for_classes_are_told(tmp_path, names, warned):
    said = convert("pictures", folder_of(tmp_path / "in", {f"{name}/cat/1.png": GOOD for name in names}), "--output", tmp_path / "x")
    assert said.returncode == 0 and warned == ("are taken for classes, among them '" in said.stderr), said


def test_other_ends_of_names(tmp_path):
    jpeg = encoded(Image.fromarray(picture(9, 9)), "JPEG")
    good("pictures", folder_of(tmp_path / "in", {"a/1.jfif": jpeg, "a/2.JPE": jpeg, "b/1.jpg": jpeg}), "--output", tmp_path / "out" / "x")
    assert load(tmp_path / "out" / "x")[1].tolist() == [0, 0, 1]


def test_wide_pictures_are_told(tmp_path):
    folder = folder_of(tmp_path / "in", {"a/1.png": Image.new("1", (40000, 10)), "b/1.png": GOOD})
    bad(BAD_DATA, "1.png: its header has 40000 x 10 pixels; at most 32768 per side", tmp_path, "pictures", folder, "--size", "8x8")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WebP"])
def test_cut_off_pictures_are_told(tmp_path, form):
    whole = encoded(Image.fromarray(picture(40, 40)), form)
    folder = folder_of(tmp_path / "in", {"a/0.png": Image.new("RGB", (40, 40)), "b/1.png": whole})
    for n in [len(whole) * part // 10 for part in range(1, 10)]:
        (folder / "b" / "1.png").write_bytes(whole[:n])
        said = bad(BAD_DATA, "b/1.png: is a damaged " + form, tmp_path, "pictures", folder)
        assert len(said.splitlines()) == 1


def test_a_size_that_no_memory_holds_is_not_believed(tmp_path):
    whole = bytearray(encoded(GOOD, "PNG"))
    whole[16:24] = (1 << 30).to_bytes(4, "big") * 2
    whole[29:33] = zlib.crc32(whole[12:29]).to_bytes(4, "big")
    bad(BAD_DATA, "b/1.png: ", tmp_path, "pictures", folder_of(tmp_path / "in", {"a/1.png": GOOD, "b/1.png": bytes(whole)}))


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WebP"])
def test_damage_never_crashes(tmp_path, form):
    """Any change of some bytes: a shard, or one line that names the file."""
    draw = random.Random(form)
    whole = encoded(Image.fromarray(picture(31, 33)), form, **({"progressive": True} if form == "JPEG" else {}))
    folder = folder_of(tmp_path / "in", {"a/1.png": whole, "b/0.png": whole})
    for _ in range(400 if os.environ.get("DPT_HEAVY") == "1" else 40):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3, 20])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (folder / "a" / "1.png").write_bytes(damaged)
        result = convert("pictures", folder, "--output", tmp_path / "out" / "x", "--force", "--size", "31x33")
        assert result.returncode in (0, BAD_DATA), (result, bytes(damaged).hex())
        if result.returncode:
            assert len(result.stderr.splitlines()) == 1 and "a/1.png" in result.stderr, result.stderr


def test_same_folder_same_bytes(tmp_path):
    folder = folder_of(tmp_path / "in", {f"{i % 4}/{i}.jpg": Image.fromarray(picture(9, 9, seed=i)) for i in range(20)})
    for name in "ab":
        good("pictures", folder, "--output", tmp_path / name / "x")
    assert (tmp_path / "a" / "x-00000-of-00001.h5").read_bytes() == (tmp_path / "b" / "x-00000-of-00001.h5").read_bytes()
