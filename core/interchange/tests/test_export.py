"""What `dptrain export` writes holds the checkpoint's weights, and as ONNX computes what dptrain computes."""
import json
import os
import re
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
import dpt  # noqa: E402
import formats  # noqa: E402

MEAN, STD = [0.2, 0.4], [0.5, 0.25]
JOB = """
data:
  train: {data}
  test: {data}
  normalize: {{mean: {mean}, std: {std}}}
model:
  type: sequential
  layers: {layers}
batch: {{global: 32, micro: 8}}
train: {{epochs: 3}}
"""

# Each with something that the others have not; 2x13x12, or a vector of 13.
MODELS = {
    "windows": "[{conv: {channels: 6, kernel: [3, 4], padding: same, stride: 2}}, gelu, "
               "{conv: {channels: 6, groups: 2, dilation: 2, padding: 2, bias: false, name: mid}}, relu, "
               "{maxpool: {size: 3, stride: 2, padding: 1}}, {conv: 4}, tanh, "
               "{avgpool: {size: 2, stride: 1, padding: same}}, flatten, {dropout: 0.3}, {dense: 12}, sigmoid, "
               "{dense: {outputs: 3, name: logits}}, {dropout: 0.1}]",
    "means": "[{conv: {channels: 5, padding: [1, 0]}}, gelu, {avgpool: {size: [3, 2], padding: [1, 0]}}, {conv: 7}, gelu, "
             "global_avgpool, {dense: {outputs: 3, bias: false}}]",
    "no-last-layer": "[{conv: {channels: 3, kernel: 5, stride: [3, 4]}}, {maxpool: [2, 1]}, global_avgpool]",
    "channels": "[{conv: 6}, {groupnorm: {groups: 3, eps: 0.01}}, {prelu: -0.3}, {conv: 4}, {groupnorm: 1}, flatten, prelu, {dense: 3}]",
    "sizes": "[{conv: 3}, {upsample: [2, 3]}, tanh, {upsample: {scale: [3, 2], mode: bilinear}}, {adaptive_avgpool: [5, 7]}, relu, {adaptive_avgpool: [9, 2]}, {upsample: 1}, flatten, {dense: 3}]",
    "lines": "[{adaptive_avgpool: [1, 20]}, {conv1d: {channels: 6, kernel: 5, padding: same, stride: 2}}, relu, {maxpool: [1, 2]}, "
             "{conv1d: {channels: 4, dilation: 2, groups: 2, padding: 1}}, flatten, {dense: 3}]",
    "vectors": "[{dense: 9}, batchnorm, gelu, {dropout: 0.5}, {dense: 3}]",
    "linear": "[{dense: 3}]",
    "graph": "[{conv: {channels: 4, padding: 1, name: stem}}, {dropout: {rate: 0.2, name: same}}, relu, "
             "{conv: {channels: 4, padding: 1}}, batchnorm, {add: [batchnorm1, same, conv1, stem]}, {batchnorm: {eps: 0.01}}, "
             "{multiply: relu1}, {concat: input}, "
             "{residual: [{conv: {channels: 8, stride: 2, padding: 1, bias: false}}, batchnorm, layernorm, gelu]}, global_avgpool, "
             "{residual: {layers: [{dense: 8}, {dropout: 0.1}], shortcut: none}}, {concat: global_avgpool1}, {dense: 3}, dropout]",
    "all": None,  # every layer that needs no option, one behind the other
}


def layers_without_options():
    """Those that leave planes planes."""
    kinds = next(node for node in walk(json.loads(dpt.run("schema").out)) if "flatten" in node and "conv" in node)
    names = [name for name, kind in kinds.items() if not kind["then"].get("required")]
    return [name for name in names if name not in ("flatten", "global_avgpool", "dense")]


def layers_of(name):
    return MODELS[name] or f"[{{conv: 4}}, {', '.join(layers_without_options())}, flatten, {{dense: 3}}]"


def walk(node):
    """All maps in a tree."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def shard(path, flat):
    """61 samples of bytes, which carry their class. Returns what training sees, and the labels."""
    dice = np.random.default_rng(7)
    labels = dice.integers(0, 3, 61)
    images = dice.integers(0, 256, (61, 13) if flat else (61, 2, 13, 12), dtype=np.uint8)
    images[:, 0] = np.minimum(images[:, 0] // 2 + 60 * labels.reshape((61,) + (1,) * (images.ndim - 2)), 255)
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = images, labels
    x = images / 255.0
    return ((x - MEAN[0]) / STD[0] if flat else (x - np.reshape(MEAN, (2, 1, 1))) / np.reshape(STD, (2, 1, 1))), labels


def params(path):
    """{name with dots: array} of a checkpoint."""
    found = {}
    with h5py.File(path, "r") as file:
        for folder in {"params", "state"} & set(file):
            file[folder].visititems(
                lambda name, item: found.update({name.replace("/", "."): item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    """(job file, run folder, inputs, labels)"""
    folder = tmp_path_factory.mktemp(request.param)
    flat = request.param in ("vectors", "linear")
    x, labels = shard(folder / "data.h5", flat)
    job = dpt.write_job(folder / "job.yaml", JOB.format(data=folder / "data.h5", layers=layers_of(request.param),
                                                        mean=MEAN[:1] if flat else MEAN, std=STD[:1] if flat else STD))
    dpt.train(job, folder / "run", "--quiet")
    return job, folder / "run", x, labels


def export(run, path, *words, says=""):
    result = dpt.run("export", run, path, *words)
    assert result.code == 0 and says in result.out, result
    assert re.fullmatch(r"(\S+: taking its best checkpoint by .*\n)?", result.err), result
    assert result.out.startswith(f"{path}: ") and result.out.count("\n") == 1
    return str(path)


def test_onnx_computes_the_same(trained, tmp_path):
    job, run, x, labels = trained
    model = formats.Onnx(export(run, tmp_path / "m.onnx"))
    assert (model.ir_version, model.opset) == (8, 17)
    assert model.inputs == [("input", ["batch", *x.shape[1:]])] and model.outputs == [("logits", ["batch", 3])]
    assert model.properties["step"] == "6" and json.loads(model.properties["normalize_std"]) == STD[: len(STD) if x.ndim > 2 else 1]
    names = [output for _, _, output, _ in model.nodes]
    assert len(set(names)) == len(names) and not set(names) & ({"input"} | set(model.tensors)) and names[-1] == "logits"
    with h5py.File(run.parent / "data.h5") as file:
        raw = file["images"][()]
    logits = model.run(raw)
    normalized = formats.Onnx(export(run, tmp_path / "n.onnx", "--normalized"))
    np.testing.assert_allclose(normalized.run(x), logits, rtol=1e-5, atol=1e-6)
    chances = formats.Onnx(export(run, tmp_path / "s.onnx", "--softmax"))
    assert chances.outputs == [("probabilities", ["batch", 3])]
    np.testing.assert_allclose(chances.run(raw), formats.softmax(logits, axis=1), rtol=1e-5, atol=1e-6)
    loss = np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels])
    result = dpt.run("eval", job, "--checkpoint", run)
    said = re.match(r"test accuracy ([\d.]+), loss ([\d.e+-]+) on 61 samples", result.out)
    assert said, result
    assert float(said[1]) == pytest.approx(np.mean(logits.argmax(axis=1) == labels), abs=1e-4)
    assert float(said[2]) == pytest.approx(loss, rel=1e-5)
    folds(run, tmp_path / "f.onnx", model, raw, logits)


def folds(run, path, model, x, logits):
    """--fold-batchnorm: no batch norm behind a layer with weights, unless another one reads that, too; no tensor without a reader."""
    makers = {output: kind for kind, _, output, _ in model.nodes}
    readers = [i for _, inputs, _, _ in model.nodes for i in inputs]
    norms = [inputs[0] for kind, inputs, _, _ in model.nodes if kind == "BatchNormalization"]
    left = [i for i in norms if makers[i] not in ("Conv", "Gemm") or readers.count(i) > 1]
    folded = formats.Onnx(export(run, path, "--fold-batchnorm", says=f", {len(norms) - len(left)} of {len(norms)} batch norms folded"))
    assert [kind for kind, _, _, _ in folded.nodes].count("BatchNormalization") == len(left)
    assert len(folded.nodes) == len(model.nodes) - len(norms) + len(left)
    assert set(folded.tensors) <= {i for _, inputs, _, _ in folded.nodes for i in inputs}
    np.testing.assert_allclose(folded.run(x), logits, rtol=1e-5, atol=1e-6)


def test_all_formats_hold_the_weights_to_the_bit(trained, tmp_path):
    _, run, x, _ = trained
    want = params(run / "checkpoints/latest")
    safe, metadata = formats.read_safetensors(export(run, tmp_path / "m.safetensors"))
    npz = np.load(export(run, tmp_path / "m.npz"))
    onnx = {k: v for k, v in formats.Onnx(export(run, tmp_path / "m.onnx")).tensors.items() if "/" not in k}
    # PyTorch's state dict also counts the steps of each batch norm.
    counts = {name.replace("running_var", "num_batches_tracked") for name in want if name.endswith("running_var")}
    for found in (safe, {k: npz[k] for k in npz.files}, onnx):
        for name in counts if found is not onnx else ():
            count = found.pop(name)
            assert count.shape == () and count.dtype == np.int64 and count == 6
        assert set(found) == set(want)
        for name, array in want.items():
            assert found[name].dtype == np.float32 and found[name].tobytes() == array.tobytes(), name
            # In ONNX what is for channels stands beside planes, and the weights of a line have a height.
            shape = found[name].shape
            assert shape == array.shape or found is onnx and shape in (array.shape + (1, 1), array.shape[:2] + (1,) + array.shape[2:])
    assert metadata["format"] == "pt" and metadata["step"] == "6" and json.loads(metadata["input_shape"]) == list(x.shape[1:])
    version = subprocess.run([dpt.BINARY, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    assert metadata["producer"] == version


def test_the_same_bytes_again_and_anywhere(trained, tmp_path):
    _, run, _, _ = trained
    for end in ("safetensors", "npz", "onnx"):
        one = export(run, tmp_path / f"one.{end}")
        result = dpt.run("export", "--to", end, run / "checkpoints/latest", tmp_path / "two", env={"TZ": "America/New_York"})
        assert result.code == 0, result
        assert open(one, "rb").read() == open(tmp_path / "two", "rb").read()
    # As NumPy itself lays it out, so that it can be mapped into memory.
    with zipfile.ZipFile(tmp_path / "one.npz") as file:
        assert file.testzip() is None and {i.compress_type for i in file.infolist()} == {zipfile.ZIP_STORED}
    assert int.from_bytes(open(tmp_path / "one.safetensors", "rb").read(8), "little") % 8 == 0


def test_a_table_goes_in_as_it_is(tmp_path):
    """Names of classes and columns are in the file, also where the data are gone; the graph takes a row's numbers."""
    dice = np.random.default_rng(4)
    table = np.column_stack([dice.normal(50, 20, 60), dice.normal(-3, 0.1, 60)]).round(4)
    colours, kinds = dice.choice(["red", "blue"], 60), np.where(table[:, 0] > 50, 'a "b"', "ä")
    (tmp_path / "t.csv").write_text("size,colour,weight,kind\n" + "".join(
        f'{a},{colour},{b},"{kind}"\n'.replace('a "b"', 'a ""b""') for (a, b), colour, kind in zip(table, colours, kinds)))
    for words in (["convert", "csv", "t.csv", "--output", "t", "--categories", "colour"],
                  ["init", "t-00000-of-00001.h5", "--output", "t.yaml"], ["t.yaml", "--quiet", "--output", "run"],
                  ["predict", "t.yaml", "--checkpoint", "run", "t.csv", "--out", "said.npy"]):
        assert dpt.run(*words, cwd=tmp_path).code == 0
    os.remove(tmp_path / "t-00000-of-00001.h5")
    model = formats.Onnx(export(tmp_path / "run", tmp_path / "m.onnx", "--softmax"))
    assert json.loads(model.properties["classes"]) == ['a "b"', "ä"]
    assert json.loads(model.properties["features"]) == ["size", "colour=blue", "colour=red", "weight"]
    assert model.properties["columns"].startswith("column,name,role,fill,value")
    raw = np.column_stack([table[:, 0], colours == "blue", colours == "red", table[:, 1]])
    np.testing.assert_allclose(model.run(raw), np.load(tmp_path / "said.npy"), atol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    dpt.train(dpt.write_small_job(folder / "job.yaml", train="{steps: 3}"), folder / "run", "--quiet")
    return folder / "run"


def test_neither_job_nor_data_are_needed(run, tmp_path):
    checkpoint = tmp_path / "alone.h5"
    checkpoint.write_bytes((run / "checkpoints/latest").read_bytes())
    export(checkpoint, tmp_path / "m.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone.h5", "m.onnx"]


def older(run, path):
    """The checkpoint as it was before it held the shape of its samples."""
    import zlib
    with open(run / "checkpoints/latest", "rb") as file:
        path.write_bytes(file.read()[:-44])
    with h5py.File(path, "r+") as file:
        del file.attrs["input_shape"]
    body = path.read_bytes()
    path.write_bytes(body + b"dptrain crc32 %08x %020d\n" % (zlib.crc32(body), len(body)))
    return path


def test_an_older_checkpoint_needs_to_be_told_the_shape(run, tmp_path):
    old = older(run, tmp_path / "old.h5")
    result = dpt.run("export", old, tmp_path / "m.onnx")
    assert result.code == 65 and "--input-shape" in result.err and not (tmp_path / "m.onnx").exists(), result
    export(old, tmp_path / "m.onnx", "--input-shape", "1,12,12")
    assert (tmp_path / "m.onnx").read_bytes() == open(export(run, tmp_path / "n.onnx"), "rb").read()
    result = dpt.run("export", old, tmp_path / "m.onnx", "--input-shape", "1,12,16")
    assert result.code == 65 and "dense1/weight is [10, 216] there and [10, 288]" in result.err, result
    result = dpt.run("export", run, tmp_path / "m.onnx", "--input-shape", "1,12,16")
    assert result.code == 65 and "its samples are 1x12x12, not 1x12x16" in result.err, result


@pytest.mark.parametrize("words, code, says", [
    ([], 2, "no checkpoint given"),
    (["RUN"], 2, "no output file given"),
    (["RUN", "OUT"], 2, "OUT: no ending of a known format: give --to safetensors, npz or onnx"),
    (["RUN", "OUT", "--to", "pt"], 2, "--to pt: is none of safetensors, npz or onnx"),
    (["RUN", "OUT.npz", "--input-shape", "1,28"], 2, "must be C,H,W"),
    (["RUN", "OUT.npz", "--input-shape", "0"], 2, "must be C,H,W"),
    (["RUN", "OUT.npz", "--fold-batchnorm"], 2, "only for --to onnx"),
    (["RUN", "OUT.npz", "--softmax"], 2, "only for --to onnx"),
    (["RUN", "OUT", "--to", "onnx", "--bytes", "--normalized"], 2, "normalised inputs are not bytes: give only one"),
    (["nowhere", "OUT.npz"], 65, "nowhere: No such file"),
    (["README.md", "OUT.npz"], 65, "README.md: is no checkpoint of dptrain"),
    (["RUN", "NONE/OUT.safetensors"], 74, "cannot create: No such file"),
    (["RUN", "NONE/OUT.npz"], 74, "cannot create: No such file"),
    (["RUN", "NONE/OUT.onnx"], 74, "cannot create: No such file"),
])
def test_mistakes_are_told(run, tmp_path, words, code, says):
    places = {"RUN": str(run), "OUT": str(tmp_path / "OUT"), "OUT.npz": str(tmp_path / "OUT.npz")}
    words = [places.get(word, word.replace("NONE", str(tmp_path / "none"))) for word in words]
    result = dpt.run("export", *words)
    assert result.code == code and says.split(": ")[-1] in result.err and (code != 74 or f"{words[1]}: cannot" in result.err), result
    assert result.err.count("\n") == 1 and result.out == "" and not list(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_not_exported(run, tmp_path):
    data = bytearray((run / "checkpoints/latest").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.h5").write_bytes(data)
    result = dpt.run("export", tmp_path / "bad.h5", tmp_path / "m.npz")
    assert result.code == 65 and "bad.h5 is damaged" in result.err and not (tmp_path / "m.npz").exists(), result


@pytest.mark.parametrize("end", ["safetensors", "npz", "onnx"])
def test_a_full_disk_leaves_the_old_file(run, tmp_path, end):
    """/dev/full cannot be renamed to; a limit on the size of files stops the write in the middle."""
    path = tmp_path / f"m.{end}"
    path.write_text("the old one")
    size = os.path.getsize(export(run, tmp_path / f"whole.{end}"))
    os.remove(tmp_path / f"whole.{end}")
    limit = f"import resource, signal, os, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); " \
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2}, {size // 2})); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", limit, dpt.BINARY, "export", str(run), str(path)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 74 and f"{path}: cannot write: File too large" in done.stderr, done
    assert path.read_text() == "the old one" and [p.name for p in tmp_path.iterdir()] == [path.name]
