"""log.tensorboard: the event file against metrics.jsonl and the checkpoints, read from the formats' descriptions; with
DPT_HEAVY=1 also by TensorBoard itself."""
import glob
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.request

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/run/tests"]
import dpt  # noqa: E402
import heavy  # noqa: E402
from running import Paused  # noqa: E402
from test_disk import small_disk  # noqa: E402
from tfevents import Events, doubles  # noqa: E402

NAME = "events.out.tfevents.dptrain"
ON = ("--set", "log.tensorboard=true")
TAGS = {"train/loss": "loss", "train/accuracy": "accuracy", "train/lr": "lr", "train/gradient_norm": "gradient_norm",
        "train/samples_per_second": "samples_per_s"}


def job(tmp_path, **sections):
    return dpt.write_small_job(tmp_path / "job.yaml", **{"eval": "{every: 10 steps}", **sections})


def as_float(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def wanted(folder):
    """What the scalars have to be, from metrics.jsonl."""
    found = {}
    for event in dpt.events(folder):
        if event["event"] == "train":
            for tag, key in TAGS.items():
                if event.get(key) is not None:
                    found.setdefault(tag, {})[event["step"]] = as_float(event[key])
        elif event["event"] in ("epoch", "eval"):
            for key in event:
                if key not in ("event", "step", "epoch", "split", "samples", "weight", "seconds"):
                    found.setdefault(f"{event.get('split', 'epoch')}/{key}", {})[event["step"]] = as_float(event[key])
    return found


@pytest.mark.parametrize("ranks", [1, 3])
def test_scalars_are_those_of_the_metrics(tmp_path, ranks):
    dpt.train(job(tmp_path), tmp_path / "out", *ON, ranks=ranks)
    events = Events(tmp_path / "out" / NAME)
    assert events.scalars == wanted(tmp_path / "out")
    assert events.repeated == [] and events.restarts == []
    assert len(events.scalars["train/loss"]) == 90 and sorted(events.scalars["valid/accuracy"]) == list(range(10, 91, 10))
    assert os.listdir(tmp_path / "out").count(NAME) == 1 == len(glob.glob(f"{tmp_path}/out/*tfevents*"))


def test_without_classes(tmp_path):
    path = job(tmp_path, loss="mse", model="{type: linear, outputs: 1}", data="{train: synthetic, valid: 0.1}",
               train="{epochs: 1}")
    dpt.train(path, tmp_path / "out", *ON)
    events = Events(tmp_path / "out" / NAME)
    assert events.scalars == wanted(tmp_path / "out") and "train/accuracy" not in events.scalars
    assert {"valid/loss", "valid/mae", "valid/rmse", "valid/r2"} <= set(events.scalars) and "valid/accuracy" not in events.scalars


def test_off(tmp_path):
    dpt.train(job(tmp_path, train="{epochs: 1}"), tmp_path / "out")
    assert glob.glob(f"{tmp_path}/out/*tfevents*") == []


def check_histogram(histogram, values):
    values = values.astype(np.float64).ravel()
    least, most, n, total, squares = (histogram[k][0] for k in range(1, 6))
    limits, counts = doubles(histogram[6][0]), doubles(histogram[7][0])
    assert n == values.size == sum(counts) and (least, most) == (values.min(), values.max())
    assert total == pytest.approx(values.sum(), abs=1e-9) and squares == pytest.approx((values ** 2).sum())
    assert limits == sorted(limits) and limits[-1] == most and len(limits) == len(counts)
    below = [np.count_nonzero(values <= limit) for limit in limits]
    assert np.abs(np.cumsum(counts) - below).max() <= 1  # a value on a limit belongs to either side


@pytest.mark.parametrize("threads", [1, 3])
def test_histograms_are_those_of_the_weights(tmp_path, threads):
    """Each tensor's histogram at each evaluation is compared with the checkpoint of that step."""
    path = job(tmp_path, model="{type: mlp, hidden: [200, 150], outputs: 10}", train="{epochs: 2}")  # large enough to be shared out
    dpt.train(path, tmp_path / "out", *ON, "--set", "checkpoint={every: 10 steps, keep: all}", "--set",
              f"device.threads={threads}")
    events = Events(tmp_path / "out" / NAME)
    for step in (10, 20, 30):
        names = []
        with h5py.File(tmp_path / "out" / "checkpoints" / f"step-{step:08}.h5") as file:
            file["params"].visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            for name in names:
                check_histogram(events.histograms[f"weights/{name}"][step], file["params"][name][()])
        assert len(names) == 6 and len(events.histograms) == 12


def test_histograms_of_the_gradient(tmp_path):
    """All squares together are the square of the gradient's norm."""
    dpt.train(job(tmp_path), tmp_path / "out", *ON, ranks=2)
    events = Events(tmp_path / "out" / NAME)
    for step, norm in ((s, n) for s, n in events.scalars["train/gradient_norm"].items() if s % 10 == 0):
        squares = sum(steps[step][5][0] for tag, steps in events.histograms.items() if tag.startswith("gradients/"))
        assert math.sqrt(squares) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("meshes", [[(4, "pipeline: 2, shard: optimizer"), (3, "shard: parameters"), (2, "pipeline: 2")],
                                    [(2, "tensor: 2"), (2, "shard: gradients"), (8, "tensor: 2, pipeline: 2, shard: parameters")]])
def test_a_mesh_shows_what_one_rank_shows(tmp_path, meshes):
    """Histograms and scalars of a run that is resumed on one mesh after another, also with other threads."""
    model = "{type: sequential, layers: [{conv: 4}, batchnorm, relu, flatten, {dense: 530}, relu, {dense: 10}]}"
    path = job(tmp_path, model=model, comm="{reduction: reproducible}", batch="{global: 20, micro: 5}", train="{clip_norm: 0.4}",
               eval="{every: 5 steps}", data="{train: synthetic, valid: 0.2, synthetic: {samples: 122, shape: [1, 14, 14]}}")
    words = (*ON, "--set", "checkpoint.every=5 steps")
    dpt.train(path, tmp_path / "one", *words, "--set", "device.threads=2", "--set", f"train.steps={7 * len(meshes)}")
    for i, (ranks, mesh) in enumerate(meshes):
        result = dpt.run(path, "--output", tmp_path / "mesh", *words, "--set", f"parallel={{{mesh}}}", "--set", f"train.steps={7 * i + 7}",
                         ranks=ranks)
        assert result.code == 0, result
    one, mesh = (Events(tmp_path / name / NAME) for name in ("one", "mesh"))
    last = {7 * i for i in range(1, len(meshes))}  # a run ends with histograms
    assert {tag: {step: h for step, h in steps.items() if step not in last} for tag, steps in mesh.histograms.items()} == one.histograms
    assert len(one.histograms) == 18 and all(last | {5, 10} <= steps.keys() for steps in mesh.histograms.values())
    for tag in ("train/loss", "train/gradient_norm", "valid/loss"):
        assert mesh.scalars[tag] == one.scalars[tag], tag


def test_histograms_come_each_epoch_where_nothing_is_evaluated(tmp_path):
    dpt.train(dpt.write_small_job(tmp_path / "job.yaml", train="{epochs: 2}", eval="{every: never}"), tmp_path / "out", *ON)
    assert sorted(Events(tmp_path / "out" / NAME).histograms["weights/conv1/weight"]) == [15, 30]


def test_hyper_parameters(tmp_path):
    path = job(tmp_path, train="{epochs: 1}")
    dpt.train(path, tmp_path / "out", *ON, "--set", "name=a: b", ranks=2)
    events = Events(tmp_path / "out" / NAME)
    keys = events.session()
    assert keys["optimizer.type"] == "adam" and keys["optimizer.lr"] == 0.01 and keys["batch.global"] == 64.0
    assert keys["ranks"] == 2.0 and keys["data.drop_last"] is False and keys["data.synthetic.shape"] == "[1, 12, 12]"
    assert keys["model.layers[0].conv.channels"] == 6.0
    assert not [key for key in keys if key.split(".")[0] in ("output", "name", "log", "checkpoint", "eval")]
    assert events.outcomes() == [1]
    text = events.texts["job"][0]
    assert all(line.startswith("    ") for line in text.splitlines())
    assert "".join(line[4:] + "\n" for line in text.splitlines()) == (tmp_path / "out" / "job.yaml").read_text().split("\n", 1)[1]
    assert "ranks: 2" in events.texts["machine"][0]


REPEATABLE = ("--set", "comm.reduction=reproducible")


@pytest.mark.parametrize("way", ["kill", "stop", "torn"])
def test_a_resumed_run_tells_each_step_once(tmp_path, way):
    """Its values are those of a run that was never stopped but for an epoch's means, whatever the end of the file looked like."""
    path = job(tmp_path)
    dpt.train(path, tmp_path / "whole", *ON, *REPEATABLE, ranks=2)
    whole = Events(tmp_path / "whole" / NAME)
    run = Paused(path, tmp_path / "out", 2, *ON, *REPEATABLE, step=40)
    if way == "stop":
        for pid in run.pids:
            os.kill(pid, signal.SIGTERM)
        assert run.go_on()[0] == 75
    else:
        run.kill()
    file = tmp_path / "out" / NAME
    if way == "torn":  # after what a checkpoint counts on, which was on the disk before it
        data = file.read_bytes()
        file.write_bytes(data + data[:20])
    result = dpt.run(path, "--output", tmp_path / "out", *ON, *REPEATABLE, ranks=2)
    assert result.code == 0 and "resuming at step" in result.err, result
    events = Events(file)
    assert events.repeated == [] and len(events.restarts) == 1
    for tag, values in whole.scalars.items():
        assert list(events.scalars[tag]) == list(values), tag
        if "per_second" not in tag:
            different = [step for step in values if events.scalars[tag][step] != values[step]]
            # The epoch in which it was resumed, from step 31 to 45, is told of from there on.
            assert different == ([45] if tag.startswith("epoch/") else []), tag
    assert events.histograms == whole.histograms
    assert events.outcomes() == [1] and len(events.session()) > 20


def test_a_run_that_started_again(tmp_path):
    """Killed before anything was saved: nothing of the first attempt counts."""
    path = job(tmp_path, checkpoint="{every: never}", train="{epochs: 2}")
    Paused(path, tmp_path / "out", 1, *ON, step=20).kill()
    result = dpt.run(path, "--output", tmp_path / "out", *ON)
    assert result.code == 0 and "resuming" not in result.err, result
    events = Events(tmp_path / "out" / NAME)
    assert events.restarts == [0] and events.scalars == wanted(tmp_path / "out") and events.repeated == []


def test_a_finished_run_that_goes_on(tmp_path):
    """TensorBoard takes the first word about the end, so that must not be the one of the earlier run."""
    path = job(tmp_path, train="{epochs: 1}")
    dpt.train(path, tmp_path / "out", *ON)
    assert Events(tmp_path / "out" / NAME).outcomes() == [1]
    result = dpt.run(path, "--output", tmp_path / "out", *ON, "--set", "train.epochs=2")
    assert result.code == 0, result
    events = Events(tmp_path / "out" / NAME)
    assert events.restarts == [16] and events.outcomes() == [1]
    assert sum("session_end" in tag for tag, _ in events.hparams) == 2
    assert list(events.scalars["train/loss"]) == list(range(1, 31)) and events.repeated == []


def test_a_run_that_fails(tmp_path):
    path = job(tmp_path, loss="mse", model="{type: linear, outputs: 1}", data="{train: synthetic}",
               optimizer="{type: sgd, lr: 1.0e+6}")
    result = dpt.run(path, "--output", tmp_path / "out", *ON)
    assert result.code == 1, result
    assert Events(tmp_path / "out" / NAME).outcomes() == [2]


def test_turned_on_late_and_off_again(tmp_path):
    path = job(tmp_path, train="{epochs: 1}")
    dpt.train(path, tmp_path / "out")
    assert dpt.run(path, "--output", tmp_path / "out", *ON, "--set", "train.epochs=2").code == 0
    events = Events(tmp_path / "out" / NAME)
    assert events.restarts == [] and min(events.scalars["train/loss"]) == 16 and events.session()
    assert dpt.run(path, "--output", tmp_path / "out", "--set", "train.epochs=3").code == 0
    assert max(Events(tmp_path / "out" / NAME).scalars["train/loss"]) == 30


OFTEN = {"checkpoint": "{every: never}", "log": "{every: 20 steps}", "eval": "{every: 2 steps}"}


def test_the_file_cannot_grow(tmp_path):
    """As with metrics.jsonl: exit 74, one line with the file, and no half record in it."""
    command = ["bash", "-c", 'trap "" XFSZ; ulimit -f 64; exec "$@"', "-", dpt.BINARY, job(tmp_path, **OFTEN), "--output"]
    done = dpt.Result(subprocess.run([*command, str(tmp_path / "out"), *ON], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     timeout=100, check=False))
    assert done.code == 74 and f"{tmp_path}/out/{NAME}: File too large" in done.err, done
    assert len(re.findall("^step .*File too large$", done.err, re.M)) == 1, done  # Open MPI 5 has a page of its own, of its memory
    assert Events(tmp_path / "out" / NAME).count > 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_disk_is_full(tmp_path, ranks):
    with small_disk(tmp_path, "1m") as disk:
        result = dpt.run(job(tmp_path, **OFTEN, train="{epochs: 2000}"), "--output", disk / "out", *ON, ranks=ranks)
        assert result.code == 74 and f"{disk}/out/{NAME}: No space left on device" in result.err, result
        assert Events(disk / "out" / NAME).count > 20


def test_the_file_cannot_be_written(tmp_path):
    (tmp_path / "out" / NAME).mkdir(parents=True)
    result = dpt.run(job(tmp_path), "--output", tmp_path / "out", *ON, ranks=2)
    assert result.code == 74 and f"{tmp_path}/out/{NAME}: " in result.err, result


READER = """
import json, sys
from tensorboard.backend.event_processing import event_accumulator
keep = {key: 0 for key in ("scalars", "histograms", "tensors", "compressedHistograms")}
found = event_accumulator.EventAccumulator(sys.argv[1], size_guidance=keep)
found.Reload()
tags = found.Tags()
print(json.dumps({
    "scalars": {tag: [(s.step, s.value) for s in found.Scalars(tag)] for tag in tags["scalars"]},
    "histograms": {tag: [(h.step, h.histogram_value.num) for h in found.Histograms(tag)] for tag in tags["histograms"]},
    "tensors": tags["tensors"],
}))
"""


@pytest.fixture(scope="module")
def tensorboard(tmp_path_factory):
    if not heavy.HEAVY:
        pytest.skip("TensorBoard itself reads it with DPT_HEAVY=1")
    return heavy.python_with(tmp_path_factory.mktemp("venv"), "tensorboard", "setuptools<81", modules=["tensorboard"])


def test_tensorboard_reads_it(tmp_path, tensorboard):
    """Its accumulator, on a run that was killed and resumed: the same values, none twice."""
    path = job(tmp_path)
    Paused(path, tmp_path / "out", 2, *ON, step=40).kill()
    assert dpt.run(path, "--output", tmp_path / "out", *ON, ranks=2).code == 0
    read = json.loads(subprocess.run([tensorboard, "-c", READER, str(tmp_path / "out")], stdout=subprocess.PIPE, check=True).stdout)
    assert {tag: dict(values) for tag, values in read["scalars"].items()} == wanted(tmp_path / "out")
    assert all(len(values) == len(dict(values)) for values in read["scalars"].values())
    for values in read["histograms"].values():
        assert [step for step, _ in values] == list(range(10, 91, 10)) and len({num for _, num in values}) == 1
    assert len(read["histograms"]) == 8 and {"job", "machine", "_hparams_/session_start_info"} <= set(read["tensors"])


class Server:
    """A TensorBoard that serves a folder."""

    def __init__(self, python, folder, fast):
        command = [python, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0", f"--load_fast={fast}"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            if address:
                self.address = address[0] + "/data/plugin/"
                break

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def wait(self, path, enough):
        for _ in range(300):
            answer = self.get(path)
            if enough(answer):
                return answer
            time.sleep(0.2)
        raise AssertionError(f"{path}: {answer}")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=100)


@pytest.mark.parametrize("fast", ["false", "true"])
def test_tensorboard_shows_it(tmp_path, tensorboard, fast):
    """Its server, with both of its loaders: curves, histograms, texts, and a row for each run on the HPARAMS tab."""
    path = job(tmp_path)
    for name, rate in (("a", 0.01), ("b", 0.02)):
        dpt.train(path, tmp_path / "runs" / name, *ON, "--set", f"optimizer.lr={rate}")
    server = Server(tensorboard, tmp_path / "runs", fast)
    try:
        server.wait("scalars/tags", lambda tags: len(tags) == 2 and all(len(t) == 7 for t in tags.values()))
        for name in "ab":
            want = wanted(tmp_path / "runs" / name)["train/loss"]
            curve = server.wait(f"scalars/scalars?tag=train/loss&run={name}", lambda c: len(c) == len(want))
            assert {step: as_float(value) for _, step, value in curve} == want
            bins = server.get(f"histograms/histograms?tag=weights/conv1/weight&run={name}")[-1]
            assert bins[1] == 90 and sum(count for _, _, count in bins[2]) == 54
            assert "optimizer" in str(server.get(f"text/text?tag=job&run={name}"))
        infos = server.get("hparams/experiment", {"experimentName": ""})
        assert {"optimizer.lr", "ranks"} <= {info["name"] for info in infos["hparamInfos"]}
        wish = {"experimentName": "", "startIndex": 0, "sliceSize": 9, "allowedStatuses": ["STATUS_SUCCESS"],
                "colParams": [{"hparam": "optimizer.lr", "includeInResult": True},
                              {"metric": {"tag": "valid/accuracy", "group": ""}, "includeInResult": True}]}
        groups = server.get("hparams/session_groups", wish)["sessionGroups"]
        assert {(g["name"], g["hparams"]["optimizer.lr"], len(g["metricValues"])) for g in groups} == {("a", 0.01, 7), ("b", 0.02, 7)}
    finally:
        server.close()
