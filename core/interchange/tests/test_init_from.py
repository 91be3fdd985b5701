"""A run that begins with weights from a file begins with exactly these, whatever wrote the file; what does not fit is told."""
import json
import os
import struct
import sys
import zipfile

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
import dpt  # noqa: E402
import formats  # noqa: E402

SHAPES = {"conv1.weight": (6, 1, 3, 3), "conv1.bias": (6,), "mid.weight": (4, 6, 3, 3), "dense1.weight": (5, 144),
          "dense1.bias": (5,), "dense2.weight": (10, 5), "dense2.bias": (10,)}
SECTIONS = {
    "model": "{type: sequential, layers: [{conv: {channels: 6, padding: same}}, {maxpool: 2}, "
             "{conv: {channels: 4, padding: same, bias: false, name: mid}}, relu, flatten, {dense: 5}, relu, {dense: 10}]}",
    "optimizer": "{type: sgd, lr: 1.0e-300}",  # 0 as a float32: the weights stay
    "train": "{steps: 1}",
}
INDICES = {"conv1": "0", "mid": "2", "dense1": "10", "dense2": "12"}  # of such a model as torch.nn.Sequential


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return dpt.write_small_job(tmp_path_factory.mktemp("job") / "job.yaml", **SECTIONS)


@pytest.fixture
def weights():
    """No number of them needs more than the 8 bits of a bfloat16's fraction."""
    dice = np.random.default_rng(11)
    return {name: (dice.integers(-127, 128, shape) / 256).astype(np.float32) for name, shape in SHAPES.items()}


def params(run):
    with h5py.File(run / "checkpoints/latest", "r") as file:
        return {name: file["params/" + name.replace(".", "/")][()] for name in SHAPES}


def begin(job, run, file, *words, **options):
    return dpt.run(job, "--output", run, "--init-from", file, *words, **options)


def assert_begins_with(job, run, file, want, *words, **options):
    result = begin(job, run, file, *words, **options)
    assert result.code == 0, result
    found = params(run)
    for name, array in want.items():
        assert np.array_equal(found[name], array), name
    event = dpt.events(run, "run")[0]
    assert event["init_from"] == str(file) and event["init_tensors"] == len(want) and event["init_random"] == 7 - len(want)
    return result


def named(arrays, rename):
    return {rename(name): array for name, array in arrays.items()}


def by_index(arrays):
    return named(arrays, lambda name: INDICES[name.split(".")[0]] + "." + name.split(".")[1])


# --- formats -----------------------------------------------------------------------------------------------------------


def npz(path, arrays, save=np.savez):
    save(path, **arrays)
    return path


WRITERS = {
    "f32": lambda path, a: formats.write_safetensors(path, a),
    "f64": lambda path, a: formats.write_safetensors(path, named_type(a, "<f8")),
    "f16": lambda path, a: formats.write_safetensors(path, named_type(a, "<f2")),
    "bf16": lambda path, a: formats.write_safetensors(path, {k: formats.bfloat16(v) .view("<f2") for k, v in a.items()},
                                                      types=dict.fromkeys(a, "BF16")),
    "file-order": lambda path, a: formats.write_safetensors(path, a, sort=False, head={"__metadata__": {"a": "b"}}),
    "npz": npz,
    "npz-compressed": lambda path, a: npz(path, a, np.savez_compressed),
    "npz-fortran": lambda path, a: npz(path, {k: np.asfortranarray(v) for k, v in a.items()}, np.savez_compressed),
    "npz-f64": lambda path, a: npz(path, named_type(a, "<f8")),
    "npz-f16": lambda path, a: npz(path, named_type(a, "<f2")),
    "npz-big-endian": lambda path, a: npz(path, named_type(a, ">f4")),
    "npz-big-endian-f64": lambda path, a: npz(path, {k: np.asfortranarray(v.astype(">f8")) for k, v in a.items()}),
    "npz-slashes": lambda path, a: npz(path, named(a, lambda name: name.replace(".", "/"))),
}


def named_type(arrays, kind):
    return {name: array.astype(kind) for name, array in arrays.items()}


@pytest.mark.parametrize("kind", WRITERS)
def test_reads_what_others_write(job, weights, tmp_path, kind):
    path = tmp_path / ("w.npz" if "npz" in kind else "w.safetensors")
    WRITERS[kind](path, weights)
    assert_begins_with(job, tmp_path / "run", path, weights)


def test_every_half_is_read(tmp_path):
    """All 65536 patterns of 16 bits, but for those that training does not leave as they are: infinite ones, those with which
    a sum would be infinite, and those below the least normal float32, which a step's arithmetic takes for 0."""
    bits = np.arange(65536, dtype="<u2")
    job = dpt.write_small_job(tmp_path / "job.yaml", **{
        **SECTIONS, "data": "{train: synthetic, synthetic: {samples: 64, shape: [256], classes: 256}}",
        "model": "{type: sequential, layers: [{dense: {outputs: 256, bias: false}}]}"})
    brain = (bits.astype("<u4") << 16).view("<f4")
    for name, kind, values, stored in [("half", "F16", bits.view("<f2").astype("<f4"), bits.view("<f2")),
                                       ("brain", "BF16", brain, bits.view("<f2"))]:
        fine = (np.abs(values) < 1e5) & (np.abs(values) >= np.finfo("f4").tiny)
        assert fine.sum() == (65536 - 2 * 1024 - 2 if kind == "F16" else 2 * (0x47C4 - 0x80))
        keep = np.where(fine, stored.view("<u2"), 0).astype("<u2").view("<f2")
        path = formats.write_safetensors(tmp_path / name, {"dense1.weight": keep.reshape(256, 256)},
                                         types={"dense1.weight": kind})
        result = begin(job, tmp_path / f"run-{name}", path)
        assert result.code == 0, result
        with h5py.File(tmp_path / f"run-{name}/checkpoints/latest") as file:
            found = file["params/dense1/weight"][()].ravel()
        same = found == np.where(fine, values, 0)
        assert same.all(), values[~same][:5]


def test_what_was_exported_is_read_back(job, weights, tmp_path):
    first = tmp_path / "first"
    begin(job, first, formats.write_safetensors(tmp_path / "w", weights))
    for name in ("m.safetensors", "m.npz"):
        assert dpt.run("export", first, tmp_path / name).code == 0
        assert_begins_with(job, tmp_path / f"from-{name}", tmp_path / name, weights)
    for number, source in enumerate((first, first / "checkpoints/latest")):
        result = assert_begins_with(job, tmp_path / f"from-{number}", source, weights)
        assert f"  weights  7 tensors of {source} (checkpoint)\n" in result.err
    result = begin(job, tmp_path / "none", tmp_path / "m.onnx")
    assert result.code == 65 and "m.onnx: No such file" in result.err, result


# --- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_taken_off(job, weights, tmp_path, prefix):
    path = formats.write_safetensors(tmp_path / "w.safetensors", named(weights, lambda name: prefix + name))
    result = assert_begins_with(job, tmp_path / "run", path, weights)
    assert f"(safetensors), names after {prefix}\n" in result.err


def test_names_are_mapped(job, weights, tmp_path):
    path = npz(tmp_path / "w.npz", named(by_index(weights), lambda name: "net.features." + name))
    maps = [word for layer, index in INDICES.items() for word in ("--map", f"net.features.{index}={layer}")]
    assert_begins_with(job, tmp_path / "one", path, weights, *maps)
    # A prefix alone; the first rule that fits counts.
    path = npz(tmp_path / "v.npz", named(weights, lambda name: "a.b." + name.replace("mid", "dense9")))
    assert_begins_with(job, tmp_path / "two", path, weights, "--map", "a.b.dense9=mid", "--map", "a.b=")
    assert_begins_with(job, tmp_path / "three", path, weights, "--map", "a.b.dense9=mid", "--map", "a.b.=")
    with open(tmp_path / "three/job.yaml", encoding="utf-8") as file:
        assert 'map: ["a.b.dense9=mid", "a.b.="]' in file.read()


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_by_order(job, weights, tmp_path, kind):
    """Sequential's indices are sorted as numbers, 2 before 10, where the file has lost the order."""
    path = tmp_path / f"w.{kind}"
    (formats.write_safetensors if kind == "safetensors" else npz)(path, by_index(weights))
    assert_begins_with(job, tmp_path / "run", path, weights, "--map-by-order")


def test_by_order_where_names_say_nothing(job, weights, tmp_path):
    np.savez(tmp_path / "w.npz", *weights.values())
    assert_begins_with(job, tmp_path / "run", tmp_path / "w.npz", weights, "--map-by-order")


# --- what does not fit -------------------------------------------------------------------------------------------------


def test_all_that_does_not_fit_is_told_at_once(job, weights, tmp_path):
    weights["dense1.weight"] = weights["dense1.weight"].reshape(144, 5)
    weights["extra.weight"] = weights.pop("mid.weight")
    weights["count"] = np.array(3)
    path = formats.write_safetensors(tmp_path / "w.safetensors", {**weights, "dense2.bias": np.arange(10)})
    result = begin(job, tmp_path / "run", path)
    assert result.code == 65 and result.err.splitlines() == [
        f"{path} does not fit the model (--init-partial takes the 4 of its 7 tensors that do):",
        "  mid.weight [4, 6, 3, 3]: not in the file",
        "  dense1.weight [5, 144]: [144, 5] in the file",
        "  dense2.bias [10]: [10] of type I64 in the file",
        "  count []: not in the model",
        "  extra.weight [4, 6, 3, 3]: not in the model"], result
    assert not (tmp_path / "run/metrics.jsonl").exists()
    result = begin(job, tmp_path / "run", path, "--map", "extra=else", "--map", "dense1=dense9")
    assert "  count []: not in the model\n  dense1.bias [5] as dense9.bias: not in the model\n" \
        "  dense1.weight [144, 5] as dense9.weight: not in the model\n" \
        "  extra.weight [4, 6, 3, 3] as else.weight: not in the model\n" in result.err, result


def test_long_lists_end_in_a_count(job, tmp_path):
    many = {f"layer{i:03}.weight": np.zeros(2, "f4") for i in range(123)}
    path = formats.write_safetensors(tmp_path / "w", many | {"dense2.bias": np.zeros(10, "f4")})
    result = begin(job, tmp_path / "run", path)
    want = [f"  layer{i:03}.weight [2]: not in the model" for i in range(20)] + ["  and 103 more"]
    assert result.code == 65 and result.err.splitlines()[-21:] == want, result
    result = begin(job, tmp_path / "run", path, "--init-partial")
    assert result.code == 0 and "\n".join([f"warning: 123 tensors of {path} match nothing in this model:", *want, ""]) in result.err, result


def test_partial_takes_what_fits(job, weights, tmp_path):
    """The rest is what it would have been without the file."""
    plain = tmp_path / "plain"
    dpt.train(job, plain, "--quiet")
    random = params(plain)
    weights["dense2.weight"] = np.ones((7, 5), np.float32)
    weights["fc.bias"] = weights.pop("dense2.bias")
    path = formats.write_safetensors(tmp_path / "w", weights)
    fitting = {name: a for name, a in weights.items() if name in SHAPES and name != "dense2.weight"}
    result = assert_begins_with(job, tmp_path / "run", path, fitting, "--init-partial")
    assert f"warning: 2 of the model's 7 tensors are randomly initialised, not loaded from {path}:\n  dense2.weight [10, 5]: [7, 5] in the file\n" \
        f"  dense2.bias [10]: not in the file\nwarning: 1 tensor of {path} matches nothing in this model:\n  fc.bias [10]: not in the model\n" \
        in result.err
    found = params(tmp_path / "run")
    assert np.array_equal(found["dense2.weight"], random["dense2.weight"])
    assert np.array_equal(found["dense2.bias"], random["dense2.bias"])
    path = formats.write_safetensors(tmp_path / "v", {"fc.bias": weights["fc.bias"]})
    result = begin(job, tmp_path / "none", path, "--init-partial")
    assert result.code == 65 and "--map FROM=TO gives names, --map-by-order needs none" in result.err, result


@pytest.mark.parametrize("words, code, says", [
    (["--init-from", "FILE", "--map", "conv1"], 2, "--map conv1: must be FROM=TO"),
    (["--init-from", "FILE", "--map", "conv9=mid"], 65, "--map conv9=mid: no tensor's name begins so"),
    (["--init-from", "FILE", "--map", "con=mid"], 65, "--map con=mid: no tensor's name begins so"),
    (["--init-from", "FILE", "--map", "dense1=dense2"], 65, "two tensors have the name dense2.bias after --map"),
    (["--map", "a=b"], 78, "`from` names it"),
    (["--map-by-order"], 78, "`from` names it"),
    (["--init-partial"], 78, "`from` names it"),
    (["--set", "init.form=x"], 78, "unknown key, did you mean 'from'?"),
])
def test_mistakes_are_told(job, weights, tmp_path, words, code, says):
    path = formats.write_safetensors(tmp_path / "w", weights)
    result = dpt.run(job, "--output", tmp_path / "run", *(path if word == "FILE" else word for word in words))
    assert result.code == code and says in result.err, result


def test_numbers_that_are_not_finite_are_refused(job, weights, tmp_path):
    for value, kind in ((np.nan, "<f4"), (np.inf, "<f2"), (1e300, "<f8")):
        bad = named_type(weights, kind)
        bad["dense2.bias"][3] = value
        result = begin(job, tmp_path / "run", formats.write_safetensors(tmp_path / "w", bad))
        assert result.code == 65 and "number 3 of dense2.bias is not finite" in result.err, result


def header(text, body=b"", length=None):
    return struct.pack("<Q", len(text) if length is None else length) + text.encode() + body


ENTRY = '"a": {"dtype": "F32", "shape": [%s], "data_offsets": [%s]}'
BROKEN = {
    "empty": (b"", "holds no weights: it is no file of safetensors, npz or checkpoint"),
    "text": (b"hello, world: no weights", "holds no weights"),
    "longer than the file": (header("{}", length=9), "cut short"),
    "no JSON": (header('{"a": '), "header: byte"),
    "no entry": (header('{"a": 3}'), "'a' has a type that is not known"),
    "type": (header('{"a": {"dtype": "F8", "shape": [], "data_offsets": [0, 1]}}', b"1"), "'a' has a type that is not known"),
    "no shape": (header('{"a": {"dtype": "F32", "data_offsets": [0, 4]}}', b"1234"), "'a' has no shape"),
    "no offsets": (header('{"a": {"dtype": "F32", "shape": [1]}}', b"1234"), "'a' has no data_offsets"),
    "negative": (header("{" + ENTRY % ("-1, -1", "0, 4") + "}", b"1234"), "a has a shape that no file holds"),
    "overflow": (header("{" + ENTRY % ("4294967296, 4294967296, 4294967296", "0, 0") + "}"), "a has a shape that no file holds"),
    "fraction": (header("{" + ENTRY % ("1.0", "0, 4") + "}", b"1234"), "a has a shape that no file holds"),
    "dimensions": (header("{" + ENTRY % ("1, 1, 1, 1, 1, 1, 1, 1, 1", "0, 4") + "}", b"1234"), "'a' has more than 8 dimensions"),
    "outside": (header("{" + ENTRY % ("2", "0, 8") + "}", b"1234"), "'a' lies outside of the file"),
    "backwards": (header("{" + ENTRY % ("1", "4, 0") + "}", b"1234"), "'a' lies outside of the file"),
    "size": (header("{" + ENTRY % ("2", "0, 4") + "}", b"1234"), "'a' has another size than its shape"),
    "hole": (header("{" + ENTRY % ("1", "4, 8") + "}", b"12345678"), "'a' does not follow the one before it"),
    "left over": (header("{" + ENTRY % ("1", "0, 4") + "}", b"12345678"), "4 bytes after its tensors belong to none"),
    "overlap": (header("{" + ENTRY % ("2", "0, 8") + ", " + (ENTRY % ("1", "4, 8")).replace('"a"', '"b"') + "}", b"12345678"),
                "'b' overlaps another one"),
    "twice": (header("{" + ENTRY % ("1", "0, 4") + ", " + ENTRY % ("1", "4, 8") + "}", b"12345678"),
              'two entries of its header have the name "a"'),
    "long name": (header('{"%s": {}}' % ("a" * 600)), "a tensor's name has 600 characters"),
    "zip": (b"PK\x03\x04 and no more", ("Not a zip archive", "Possibly truncated or corrupted zip archive")),  # older and newer libzip
    "no checkpoint": (b"\x89HDF\r\n\x1a\n", "is no checkpoint of dptrain"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_are_refused(job, tmp_path, what):
    data, says = BROKEN[what]
    (tmp_path / "w").write_bytes(data)
    result = begin(job, tmp_path / "run", tmp_path / "w")
    assert result.code == 65 and result.err.startswith(f"{tmp_path / 'w'}") and any(text in result.err for text in ([says] if isinstance(says, str) else says)), result


def archive(path, entries):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data)


def npy(descr="'<f4'", shape="(2,)", body=b"12345678", magic=b"\x93NUMPY\x01\x00"):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return magic + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize("entries, says", [
    ({"a.npy": npy(shape="(3,)")}, "a: has another size than its header says"),
    ({"a.npy": npy(shape="(1,)")}, "a: has another size than its header says"),
    ({"a.npy": npy(descr="'|O'")}, "Python objects"),
    ({"a.npy": npy(magic=b"\x93NUMPZ\x01\x00")}, "a: is no .npy file"),
    ({"a.npy": npy()[:30]}, "a: ends too early"),
    ({"a.npy": npy(shape="(-2,)")}, "no dictionary"),
    ({"a.txt": b"x"}, "a.txt: is no array (NAME.npy)"),
    ({"archive/data.pkl": b"\x80\x02"}, "safetensors.torch.save_file"),
])
def test_broken_archives_are_refused(job, tmp_path, entries, says):
    archive(tmp_path / "w.npz", entries)
    result = begin(job, tmp_path / "run", tmp_path / "w.npz")
    assert result.code == 65 and says in result.err, result


def test_a_damaged_array_is_noticed(job, weights, tmp_path):
    npz(tmp_path / "w.npz", weights)
    data = bytearray((tmp_path / "w.npz").read_bytes())
    data[data.index(weights["mid.weight"].tobytes()) + 5] ^= 1
    (tmp_path / "w.npz").write_bytes(data)
    result = begin(job, tmp_path / "run", tmp_path / "w.npz")
    assert result.code == 65 and "mid.weight: " in result.err and "CRC" in result.err, result


# --- runs --------------------------------------------------------------------------------------------------------------


def test_the_same_at_any_rank_count_and_resumed(tmp_path, weights):
    """The file is read once, when the run begins; a run that goes on does not look for it."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**SECTIONS, "optimizer": "{type: adam, lr: 0.01}",
                                                        "train": "{steps: 9}", "comm": "{reduction: reproducible}"})
    path = formats.write_safetensors(tmp_path / "w.safetensors", weights)
    assert begin(job, tmp_path / "one", path).code == 0
    want = dpt.newest(tmp_path / "one")
    assert begin(job, tmp_path / "three", path, ranks=3).code == 0
    assert dpt.newest(tmp_path / "three") == want
    assert begin(job, tmp_path / "parts", path, "--set", "train.steps=4", ranks=2).code == 0
    os.remove(path)
    result = begin(job, tmp_path / "parts", path)
    assert result.code == 0 and f"weights  of the checkpoint; {path} is for a run's beginning" in result.err, result
    assert dpt.newest(tmp_path / "parts") == want
    assert "init_from" not in dpt.events(tmp_path / "parts", "run")[1]
    # Nor does one that goes on without being told of the file again.
    assert dpt.run(job, "--output", tmp_path / "parts", "--set", "train.steps=10").code == 0
    result = begin(job, tmp_path / "lost", path, ranks=2)
    assert result.code == 65 and result.err.count("No such file") == 1, result


def test_the_job_file_may_say_it(weights, tmp_path):
    path = formats.write_safetensors(tmp_path / "w", by_index(weights))
    job = dpt.write_small_job(tmp_path / "job.yaml", **SECTIONS, init=json.dumps({"from": path, "by_order": True}))
    result = dpt.run(job, "--output", tmp_path / "run")
    assert result.code == 0, result
    assert all(np.array_equal(a, weights[name]) for name, a in params(tmp_path / "run").items())
    with open(tmp_path / "run/job.yaml", encoding="utf-8") as file:
        assert f'from: "{path}"' in file.read()
    with open(tmp_path / "run/log.txt", encoding="utf-8") as file:
        assert "  weights  7 tensors of " in file.read()
