"""HDF5 files of other programs: other names, MATLAB's, Keras's models, those that are being written, filters that are missing."""

import base64
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", str(Path(__file__).parent)]
import dpt  # noqa: E402
import make_h5  # noqa: E402

BAD_DATA, USAGE = 65, 2
JOB = """\
seed: 3
data: {{train: {file}, test: {file}{more}}}
model: {{type: mlp, hidden: [8]}}
batch: {{global: 32, micro: 8}}
optimizer: {{type: sgd, lr: 0.1}}
train: {{steps: 6}}
log: {{every: 1 steps}}
device: {{kind: cpu, threads: 1}}
"""


def rows(n=64, d=6):
    return make_h5.floats(n, (d,)), make_h5.classes(n, 3)


def train(folder, file, more="", *args, name="job"):
    dpt.write_job(folder / f"{name}.yaml", JOB.format(file=file, more=more))
    return dpt.run("train", f"{name}.yaml", "--output", f"run-{name}", *args, cwd=folder)


def losses(folder, name):
    return [event["loss"] for event in dpt.events(folder / f"run-{name}", "train")]


def arrays(prefix):
    with h5py.File(f"{prefix}-00000-of-00001.h5") as f:
        return f["images"][()], f["labels"][()], f["images"].attrs.get("layout")


def test_what_is_not_used_is_told_once_of_all_that_are_alike(tmp_path):
    known = "(known: /images or /x, /labels or /y, /weights or /mask)"
    for i, extra in enumerate((["ids"], ["ids"], ["ids", "notes"])):
        make_h5.write(tmp_path / f"s{i}.h5", *rows(), names=("x", "y"))
        with h5py.File(tmp_path / f"s{i}.h5", "r+") as f:
            for name in extra:
                f[name] = np.arange(3)
    told = [line for line in train(tmp_path, "s*.h5").err.splitlines() if "not used" in line]
    assert told == 2 * [f"warning: s0.h5: /ids is not used {known}, nor in the other files",  # train and test
                        f"warning: s2.h5: /ids, /notes are not used {known}"]


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x_name, y_name", [("X_train", "y_train"), ("train/features", "/train/target")])
def test_other_names(tmp_path, x_name, y_name):
    """data.keys names them, for training, evaluations and predictions; --keys for init, convert and predict."""
    x, y = rows()
    make_h5.write(tmp_path / "usual.h5", x, y, names=("x", "y"))
    make_h5.write(tmp_path / "other.h5", x, y, names=(x_name, y_name))
    with h5py.File(tmp_path / "other.h5", "r+") as f:
        f["X_test"], f["y_test"] = x[:9], y[:9]
    keys = f", keys: {{x: {x_name}, y: {y_name}}}"
    done = train(tmp_path, "usual.h5", name="a"), train(tmp_path, "other.h5", keys, name="b")
    assert [one.code for one in done] == [0, 0] and "not used" not in done[1].err, done
    assert losses(tmp_path, "a") == losses(tmp_path, "b")
    tested = [dpt.run("eval", f"{n}.yaml", "--checkpoint", f"run-{n}", cwd=tmp_path) for n in "ab"]
    assert tested[0].code == 0 and tested[0].out == tested[1].out, tested
    said = [dpt.run("predict", f"{n}.yaml", "--checkpoint", f"run-{n}", f"{f}.h5", *more, cwd=tmp_path)
            for n, f, more in (("a", "usual", ()), ("b", "other", ()), ("a", "other", ("--keys", f"{x_name},{y_name}")))]
    assert said[0].code == 0 and said[0].out == said[1].out == said[2].out and "true" in said[0].out, said
    few = dpt.run("predict", "b.yaml", "--checkpoint", "run-b", "other.h5", "--keys", "X_test,y_test", cwd=tmp_path)
    assert few.code == 0 and few.out.splitlines() == said[0].out.splitlines()[:10], few
    assert dpt.run("convert", "h5", "other.h5", "--keys", f"{x_name},{y_name}", "--output", "o", cwd=tmp_path).code == 0
    assert np.array_equal(arrays(tmp_path / "o")[0], x) and np.array_equal(arrays(tmp_path / "o")[1], y)
    made = dpt.run("init", "other.h5", "--keys", f"{x_name},{y_name}", cwd=tmp_path)
    assert made.code == 0 and made.err == "" and dpt.run("schema", "--check", "job.yaml", cwd=tmp_path).code == 0, made
    assert dpt.run("job.yaml", "--set", "train.epochs=1", cwd=tmp_path).code == 0


@pytest.mark.parametrize("names, keys", [
    (("X_train", "y_train", "X_test", "y_test"), "X_train,y_train"), (("test_set_x", "train_set_x", "train_set_y"), "train_set_x,train_set_y"),
    (("data", "label"), "data,label"), (("Features", "Targets", "meta"), "Features,Targets"), (("abc", "group/a"), "NAME,NAME"),
    (("test/x", "test/y", "train/x", "train/y", "valid/y"), "train/x,train/y"),
])
def test_names_that_are_missing(tmp_path, names, keys):
    """The file's own names are in the advice, where they look like samples and labels."""
    with h5py.File(tmp_path / "a.h5", "w") as f:
        for name in names:
            f[name] = np.zeros((8, 3), "f4")
    x, y = keys.split(",")
    for result in (train(tmp_path, "a.h5"), dpt.run("init", "a.h5", "--output", "b.yaml", cwd=tmp_path),
                   dpt.run("convert", "h5", "a.h5", "--output", "o", cwd=tmp_path)):
        assert result.code == BAD_DATA and len(result.err.splitlines()) == 1, result
        assert f"a.h5 has neither /images nor /x; it holds {', '.join(sorted({'/' + n.split('/')[0] + '/' * ('/' in n) for n in names}))};" in result.err, result
        assert f"`data: {{keys: {{x: {x}, y: {y}}}}}` in the job, or --keys {keys}\n" in result.err, result
    wrong = train(tmp_path, "a.h5", ", keys: {x: nowhere}", name="c")
    assert wrong.code == BAD_DATA and "a.h5 has no /nowhere; it holds " in wrong.err, wrong
    for text in ",y", "x,", "x,y,z":
        assert dpt.run("init", "a.h5", "--keys", text, "--output", "d.yaml", cwd=tmp_path).code == USAGE


# --- files that are no data --------------------------------------------------------------------------------------


def keras(f):
    f.attrs["keras_version"] = "2.11.0"
    f.create_group("model_weights/dense/dense")["kernel:0"] = np.zeros((3, 4))


def keras_weights(f):
    f.attrs["keras_version"], f.attrs["layer_names"] = "2.11.0", [b"dense"]
    f.create_group("dense")


def keras_3(f):
    f.create_group("_layer_checkpoint_dependencies"), f.create_group("layers/dense/vars")


@pytest.mark.parametrize("make", [keras, keras_weights, keras_3])
def test_models_of_keras(tmp_path, make):
    with h5py.File(tmp_path / "model.h5", "w") as f:
        make(f)
    for result in train(tmp_path, "model.h5"), dpt.run("init", "model.h5", "--output", "b.yaml", cwd=tmp_path):
        assert result.code == BAD_DATA and "model.h5 is a Keras model, not data" in result.err, result


def test_a_checkpoint_as_data(tmp_path):
    make_h5.write(tmp_path / "a.h5", *rows(), names=("x", "y"))
    assert train(tmp_path, "a.h5").code == 0
    shutil.copy(next((tmp_path / "run-job" / "checkpoints").glob("step-*.h5")), tmp_path / "c.h5")
    result = train(tmp_path, "c.h5", name="b")
    assert result.code == BAD_DATA and "c.h5 is a checkpoint of dptrain, not data" in result.err, result


# --- HDF5 itself -------------------------------------------------------------------------------------------------


def test_the_newest_format(tmp_path):
    x, y = rows()
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as f:
        f.create_dataset("x", data=x, chunks=(10, 6), maxshape=(None, 6), compression="gzip")
        f["y"] = y
    make_h5.write(tmp_path / "b.h5", x, y, names=("x", "y"))
    assert train(tmp_path, "a.h5", name="a").code == 0 and train(tmp_path, "b.h5", name="b").code == 0
    assert losses(tmp_path, "a") == losses(tmp_path, "b")


def test_a_format_newer_than_the_library(tmp_path):
    """A layout of a version that none has yet, in a file of the oldest format, which has no checksum."""
    x, y = rows()
    with h5py.File(tmp_path / "a.h5", "w", libver="earliest") as f:
        f["x"], f["y"] = x, y
        at = f["x"].id.get_offset().to_bytes(8, "little")
    content = bytearray((tmp_path / "a.h5").read_bytes())
    place = content.index(at) - 2  # a layout message: version, class (1: contiguous), address
    assert content[place:place + 2] == b"\x03\x01"
    content[place] = 99
    (tmp_path / "a.h5").write_bytes(content)
    result = train(tmp_path, "a.h5")
    assert result.code == BAD_DATA and "a.h5: /x cannot be opened" in result.err, result
    assert "written for a newer HDF5 than" in result.err and "libver='latest'" in result.err, result


# /x of 64 rows by 6, /y of as many 0 and 1, by HDF5 2.0.0: h5py 3.16 with libver="latest", zlib and base85 around it. x is one
# compressed chunk, whose layout is of version 5; or complex64, a datatype of version 5.
OF_HDF5_2 = {
    "layout": b"c-rgqaB<`1lHy|K;9!7(|4@(#6*7Q|Pc?aR+26w@h>4+sNeEdX3~(_qFfuT(@h|`>#){2QZBTyYenzN(1q0b2tnlF-uoHj=GO92zFflPQI>79K(&&6<5e7y<1"
              b"$hP*Fi(L&oP$BU9>`(^x|W%nn}>lBXb8xKU=<v)AQ>iRMh7+)Monb9VFA?2FgU=>-0rFHun+-;1tTIXU^Fw(cLEHc@Q3&S>}M_xVC*q7YI2~eW!S+mWWn6(2V4xJU=)mk"
              b"Q7{UK2NiM22@H*F)d~+8TpaE&9N}*G(ZC#$6_N*o5vLd#Ze%}P#lT1z1OO1oKr#",
    "datatype": b"c-rmJu?_)25C-6Xc9G5HB#1;J5eg5W5~V^!CsB9@iN;kl)M~A_P|$e>y+)$-4D7Khh>Aia|98dQ%<b*o%*{Kkb~-2q+8B6er<uRyHCI0_mZff|)l(R&+~YzoP!J#"
                b"$!Uh?y+-okMY{eBC_*j2**k3=vZYWhiDUqf>$HmuN*CBlc#0^G3wo*po`k;b>L1AX^21vXsCv87EFt%4M@bd{>oZ`p2r_AX-3;V0=DDJcHQHPKW;`ztSb4U5-wb<Zqt#`u"
                b"+L_|bHL_|bH^oD$QT>#y{F~9",
}


@pytest.mark.parametrize("what", OF_HDF5_2)
def test_a_file_that_hdf5_2_wrote(tmp_path, what):
    """Older libraries refuse it, and say which one reads it; a newer one reads it."""
    (tmp_path / "a.h5").write_bytes(zlib.decompress(base64.b85decode(OF_HDF5_2[what])))
    here = re.search(r"^HDF5 (\d+)\.", dpt.run("--version").out, re.M)
    result = train(tmp_path, "a.h5")
    if int(here.group(1)) >= 2:
        assert result.code == 0 if what == "layout" else "/x holds " in result.err, result
        return
    assert result.code == BAD_DATA and len(result.err.splitlines()) == 1, result
    for said in result.err, dpt.run("inspect", "a.h5", cwd=tmp_path).err:
        assert re.search(rf"a.h5: /x cannot be opened: bad version number for {what} message .*which is here \(.*2\.0.*\): h5py writes", said), said


@pytest.mark.parametrize("number, name, helps", [(32001, b"blosc", True), (32015, b"zstd", True), (32000, b"lzf", False)])
def test_filters_that_are_missing(tmp_path, number, name, helps):
    """Plugins are found by HDF5_PLUGIN_PATH; of h5py's own filter there is none."""
    x, y = rows()
    with h5py.File(tmp_path / "a.h5", "w") as f:
        if number == 32000:
            f.create_dataset("x", data=x, compression="lzf")
        else:
            how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            how.set_chunk((8, 6))
            how.set_filter(number, h5py.h5z.FLAG_OPTIONAL, (1, 2))
            data = h5py.h5d.create(f.id, b"x", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(x.shape), how)
            data.write(h5py.h5s.ALL, h5py.h5s.ALL, x)
        f["y"] = y
    result = train(tmp_path, "a.h5")
    assert result.code == BAD_DATA and f"({number}), which is missing here: write it with gzip" in result.err, result
    assert ("HDF5_PLUGIN_PATH" in result.err) == helps and len(result.err.splitlines()) == 1, result


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_a_file_that_is_being_written(tmp_path, libver):
    """Whoever has it open for writing locks it; the newer format has a mark, which a crash leaves."""
    script = ("import h5py, sys, numpy as np\n"
              f"f = h5py.File('a.h5', 'w', libver='{libver}')\n"
              "f['x'] = np.zeros((64, 6), 'f4')\n"
              "f.flush() if sys.argv[1] == 'flush' else None\n"
              "print(flush=True); sys.stdin.read()\n")
    for flush in "no", "flush":
        writer = subprocess.Popen([sys.executable, "-c", script, flush], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env={**os.environ, "HDF5_USE_FILE_LOCKING": "TRUE"})
        writer.stdout.readline()
        result = train(tmp_path, "a.h5")
        assert result.code == BAD_DATA and "a.h5" in result.err, result
        if flush == "flush" or "is empty" not in result.err:
            assert "another program has it open for writing" in result.err, result
        writer.kill()
        writer.wait()
        crashed = train(tmp_path, "a.h5", name="b")
        assert crashed.code == BAD_DATA and "another program has it open for writing at" not in crashed.err, crashed
        if flush == "flush" and libver == "latest":
            assert "crashed while it did; then `h5clear -s a.h5`" in crashed.err, crashed


# --- MATLAB ------------------------------------------------------------------------------------------------------


def matlab(path, chunked=False, **variables):
    """As `save -v7.3` writes them: columns first, so that HDF5 sees the dimensions reversed, after 512 bytes of text."""
    with h5py.File(path, "w", userblock_size=512) as f:
        for name, array in variables.items():
            array = np.atleast_2d(array)
            how = {"chunks": tuple(max(1, n // 2) for n in array.T.shape), "compression": "gzip"} if chunked else {}
            f.create_dataset(name, data=array.T, **how).attrs["MATLAB_class"] = np.bytes_({"f8": "double", "f4": "single", "u1": "uint8"}[array.dtype.str[1:]])
        f.create_group("#refs#")
    text = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan  1 00:00:00 2024 HDF5 schema 1.00 ."
    with open(path, "r+b") as f:
        f.write(text.ljust(116) + bytes(8) + b"\x00\x02IM")
    return path


COLUMN, ROW = (-1, 1), (1, -1)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("shape, order, labels", [
    ((40, 6), (0, 1), COLUMN), ((40, 6), (0, 1), ROW), ((6, 6), (0, 1), COLUMN),  # rows are samples
    ((40, 6), (1, 0), ROW),  # columns are
    ((40, 3, 5, 7), (2, 3, 1, 0), ROW), ((40, 1, 5, 5), (2, 3, 1, 0), COLUMN),  # [H, W, C, N], as imageDatastore's
    ((40, 7, 9, 5), (0, 1, 2, 3), COLUMN),  # [N, C, H, W]
    ((40, 1, 5, 7), (2, 3, 0), COLUMN), ((40, 1, 5, 7), (0, 2, 3), ROW),  # [H, W, N], [N, H, W]
])
def test_arrays_of_matlab(tmp_path, shape, order, labels, chunked):
    """Samples are what they are in MATLAB, whichever of its dimensions counts them. shape: of NCHW; order: of it in MATLAB."""
    rng = np.random.default_rng(5)
    y = (np.arange(shape[0]) % 4).astype("f8")
    for dtype in ("f8", "u1") if len(shape) == 4 else ("f8", "f4"):
        x = rng.integers(0, 256, shape).astype(dtype)
        kept = x[:, 0] if len(order) == 3 else x
        if len(order) == 3:
            order_ = tuple({0: 0, 2: 1, 3: 2}[k] for k in order)
        else:
            order_ = order
        matlab(tmp_path / "a.mat", chunked, x=kept.transpose(order_), y=y.reshape(labels))
        done = dpt.run("convert", "h5", "a.mat", "--output", "o", "--force", cwd=tmp_path)
        assert done.code == 0, done
        got, got_y, _ = arrays(tmp_path / "o")
        assert got.dtype == (np.uint8 if dtype == "u1" else np.float32)
        assert np.array_equal(got, x) and np.array_equal(got_y, y) and got_y.dtype == np.uint8


def test_channels_last_and_several_labels_of_matlab(tmp_path):
    rng = np.random.default_rng(6)
    x, several = rng.integers(0, 256, (40, 9, 7, 3), dtype=np.uint8), (rng.random((40, 5)) < 0.3).astype("u1")
    matlab(tmp_path / "a.mat", x=x, y=several)
    done = dpt.run("convert", "h5", "a.mat", "--layout", "nhwc", "--output", "o", cwd=tmp_path)
    assert done.code == 0, done
    got, got_y, layout = arrays(tmp_path / "o")
    assert np.array_equal(got, x) and np.array_equal(got_y, several) and layout in ("NHWC", b"NHWC")


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_matlab_trains_and_predicts(tmp_path, cache):
    """Losses and predictions are those of h5py's file, wherever samples are read from; and it is reported."""
    x, y = rows(72)
    make_h5.write(tmp_path / "a.h5", x, y, names=("x", "y"))
    matlab(tmp_path / "a.mat", cache == "none", x=x, y=y.astype("f8"))
    done = [train(tmp_path, f, f", cache: {cache}", name=n) for f, n in (("a.h5", "a"), ("a.mat", "b"))]
    assert [one.code for one in done] == [0, 0] and losses(tmp_path, "a") == losses(tmp_path, "b"), done
    assert "a.mat: MATLAB's, so dimensions are read in its order: /x is [72, 6]" in done[1].err, done[1]
    said = [dpt.run("predict", "a.yaml", "--checkpoint", "run-a", f, cwd=tmp_path) for f in ("a.h5", "a.mat")]
    assert said[0].code == 0 and said[0].out == said[1].out and "true" in said[0].out, said
    matlab(tmp_path / "x.mat", x=x[:9])
    alone = dpt.run("predict", "a.yaml", "--checkpoint", "run-a", "x.mat", cwd=tmp_path)
    assert alone.code == 0 and len(alone.out.splitlines()) == 10, alone
    seen = dpt.run("inspect", "a.mat", cwd=tmp_path)
    assert seen.code == 0 and "72 of [6]" in seen.out and "numbers, 1 per sample" in seen.out, seen
    made = dpt.run("init", "a.mat", "--output", "m.yaml", cwd=tmp_path)
    assert made.code == 0 and "72 samples of 6 numbers, 3 classes" in (tmp_path / "m.yaml").read_text(), made


# --- convert -----------------------------------------------------------------------------------------------------


def test_what_convert_keeps(tmp_path):
    """Several files become one set: classes' names, samples' names, the order; weights are left out, which is said."""
    x, y = rows()
    for i, part in enumerate((slice(0, 20), slice(20, 64))):
        make_h5.write(tmp_path / f"{i}.h5", x[part], y[part].astype("i8"), names=("x", "y"), weights=np.ones(len(y[part])))
        with h5py.File(tmp_path / f"{i}.h5", "r+") as f:
            f["y"].attrs["classes"] = ["red", "green", "blue"]
            f["id"] = np.array([f"row{k}" for k in range(part.start, part.stop)], "S")
    done = dpt.run("convert", "h5", "0.h5", "1.h5", "--output", "o", cwd=tmp_path)
    assert done.code == 0 and "0.h5: /weights is left out" in done.err and done.err.count("\n") == 1, done
    with h5py.File(tmp_path / "o-00000-of-00001.h5") as f:
        assert np.array_equal(f["images"][()], x) and np.array_equal(f["labels"][()], y)
        assert [n.decode() if isinstance(n, bytes) else n for n in f["labels"].attrs["classes"]] == ["red", "green", "blue"]
        assert [n.decode() for n in f["id"][()]] == [f"row{k}" for k in range(64)]
    split = dpt.run("convert", "h5", "0.h5", "1.h5", "--output", "s", "--split", "50/50", "--stratify", "--quiet", cwd=tmp_path)
    assert split.code == 0 and sum(len(arrays(tmp_path / f"s-{part}")[1]) for part in ("train", "test")) == 64, split
    x[5, 2] = np.nan
    make_h5.write(tmp_path / "n.h5", x, y, names=("x", "y"))
    bad = dpt.run("convert", "h5", "n.h5", "--output", "n", cwd=tmp_path)
    assert bad.code == BAD_DATA and "n.h5: /x[5] holds NaN" in bad.err and not list(tmp_path.glob("n-*")), bad
    make_h5.write(tmp_path / "t.h5", rows()[0], rows()[1] / 2, names=("x", "y"))
    assert dpt.run("convert", "h5", "t.h5", "--output", "t", cwd=tmp_path).code == 0
    assert np.array_equal(arrays(tmp_path / "t")[1].ravel(), (y / 2).astype("f4"))


# --- channels last -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute, said", [(None, True), ("NHWC", False)])
def test_init_of_channels_last(tmp_path, attribute, said):
    """The job that init writes reads them so; data.layout settles it without touching the file."""
    x = np.random.default_rng(1).integers(0, 256, (60, 12, 10, 3), dtype=np.uint8)
    make_h5.write(tmp_path / "a.h5", x, make_h5.classes(60, 3), layout=attribute)
    done = dpt.run("init", "a.h5", cwd=tmp_path)
    text = (tmp_path / "job.yaml").read_text()
    assert done.code == 0 and ("a.h5: the last of four dimensions is taken for channels" in done.err) == said, done
    assert "60 samples of 3x12x10 bytes" in text and ("layout: nhwc" in text) == said, text
    trained = dpt.run("job.yaml", "--set", "train.epochs=1", cwd=tmp_path)
    assert trained.code == 0 and "samples 3x12x10 " in trained.err and "if it is NHWC" not in trained.err, trained
    told = dpt.run("job.yaml", "--set", "train.epochs=1", "--set", "data.layout=nchw", "--set", "data.normalize={}", "--output", "runs/b", cwd=tmp_path)
    assert told.code == 0 and ("samples 12x10x3 " if said else "samples 3x12x10 ") in told.err and "if it is NHWC" not in told.err, told


# --- NumPy's archives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("names, more", [(("x", "y"), ()), (("images", "labels"), ()), (("arr_0", "arr_1"), ()), (("x_train", "y_train"), ("--keys", "x_train,y_train"))])
def test_archives_of_numpy(tmp_path, names, more, save):
    """Become the shards that npy files become, and are predicted as these are, with their labels."""
    x, y = rows(700)
    save(tmp_path / "a.npz", **dict(zip(names, (x, y))), x_test=x[:5])
    np.save(tmp_path / "x.npy", x), np.save(tmp_path / "y.npy", y)
    done = dpt.run("convert", "npz", "a.npz", *more, "--output", "o", "--split", "80/20", cwd=tmp_path)
    same = dpt.run("convert", "npy", "x.npy", "y.npy", "--output", "n", "--split", "80/20", cwd=tmp_path)
    assert done.code == 0 and same.code == 0 and done.err == "", done
    for part in "train", "test":
        for got, want in zip(arrays(tmp_path / f"o-{part}")[:2], arrays(tmp_path / f"n-{part}")[:2]):
            assert np.array_equal(got, want)
    assert train(tmp_path, "o-train-*.h5").code == 0
    said = [dpt.run("predict", "job.yaml", "--checkpoint", "run-job", *words, cwd=tmp_path) for words in (("a.npz", *more), ("x.npy", "--labels", "y.npy"))]
    assert said[0].code == 0 and said[0].out == said[1].out and "true" in said[0].out and said[0].err == said[1].err, said
    few = dpt.run("predict", "job.yaml", "--checkpoint", "run-job", "a.npz", "--keys", "x_test", cwd=tmp_path)
    assert few.code == 0 or names[0] != "x_train" and "5 images" in few.err, few
    if names[0] == "x_train":
        assert len(few.out.splitlines()) == 6 and "true" not in few.out, few
    two = dpt.run("convert", "npz", "a.npz", "a.npz", *more, "--output", "t", cwd=tmp_path)
    assert two.code == 0 and np.array_equal(arrays(tmp_path / "t")[0], np.concatenate([x, x])), two


def test_damaged_archives_never_crash(tmp_path):
    x, y = rows()
    np.savez_compressed(tmp_path / "a.npz", x=x, y=y)
    whole, rng = (tmp_path / "a.npz").read_bytes(), np.random.default_rng(3)
    for k in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 1 + k % 3):  # the directory at its end as often as the arrays
            damaged[at if k % 2 else len(whole) - 1 - at % 220] = rng.integers(256)
        (tmp_path / "b.npz").write_bytes(damaged if k % 5 else damaged[:at])
        result = dpt.run("convert", "npz", "b.npz", "--output", "o", cwd=tmp_path)
        assert result.code in (0, BAD_DATA) and (result.code == 0 or "b.npz" in result.err), result


def test_archives_that_do_not_fit(tmp_path):
    """Each with its array; damage is noticed by the checksum, and nothing is left behind."""
    x, y = rows()
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x)
    np.savez(tmp_path / "b.npz", x=x, y=y[:9])
    np.savez(tmp_path / "c.npz", x=x)
    np.savez(tmp_path / "d.npz", x=x.astype(object), y=y)
    (tmp_path / "e.npz").write_bytes(b"PK\3\4" + bytes(100))
    np.savez(tmp_path / "f.npz", x=x, y=y)
    whole = bytearray((tmp_path / "f.npz").read_bytes())
    whole[300] ^= 1
    (tmp_path / "f.npz").write_bytes(whole)
    np.savez(tmp_path / "g.npz", x=np.asfortranarray(x), y=y)
    for file, said in (("a", "a.npz has no array images, x or arr_0; it holds x_train, y_train, x_test: --keys x_train,y_train names them"),
                       ("b", "b.npz: x has 64 images, but b.npz: y has 9 labels"), ("c", "c.npz has no array labels, y or arr_1; it holds x"),
                       ("d", "d.npz: x: holds values of the type '|O' (Python objects)"), ("e", "e.npz: no archive of NumPy's"),
                       ("f", "f.npz: x: is damaged: CRC error"), ("g", "g.npz: x: is in Fortran order")):
        result = dpt.run("convert", "npz", f"{file}.npz", "--output", "out/o", cwd=tmp_path)
        assert result.code == BAD_DATA and said in result.err and result.err.count("\n") == 1, result
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
    for keys, said in (("x_train,nowhere", "a.npz has no array nowhere; it holds"), ("nowhere,y_train", "a.npz has no array nowhere; it holds")):
        result = dpt.run("convert", "npz", "a.npz", "--keys", keys, "--output", "o", cwd=tmp_path)
        assert result.code == BAD_DATA and said in result.err, result
    for name, format_ in (("a.npz", "npz"), ("x.npy", "npy")):
        np.save(tmp_path / "x.npy", x)
        result = train(tmp_path, name)
        assert result.code == BAD_DATA and f"{name} is not an HDF5 file; `dptrain convert {format_}` makes shards" in result.err, result
