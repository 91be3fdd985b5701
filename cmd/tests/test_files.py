"""What stands where a file should be: links, pipes, folders and sockets, in place of every file that a command reads or writes."""
import os
import shutil
import socket
import subprocess
import sys

import h5py
import numpy
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SMOKE = "configs/smoke.yaml"
SHORT = ("--set", "train={steps: 8}", "--set", "eval.every=never", "--set", "checkpoint.every=8 steps")
ALL = (*SHORT, "--set", "log={every: 4 steps, tensorboard: true, trace: true, hashes: true}")
KINDS = ["link", "dangling", "pipe", "folder", "socket"]
SECRET = b"somebody else's\n"


def put(kind, path):
    """Puts something else than a file at `path`, a link to what was there or to `victim` beside the folder."""
    victim = path.parent.parent / "victim"
    if kind == "link":
        victim.write_bytes(SECRET)
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as end:  # a name of a socket is short
            here = os.open(path.parent, os.O_RDONLY)
            end.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)


def check_victim(kind, path):
    victim = path.parent.parent / "victim"
    if kind == "link":
        assert victim.read_bytes() == SECRET
    assert kind != "dangling" or not victim.exists()


def run(*words):
    try:
        return dpt.run(*words, timeout=20)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {' '.join(map(str, words))}")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A run with all that one can write, and inputs of each kind."""
    folder = tmp_path_factory.mktemp("good")
    dpt.train(SMOKE, folder / "run", *ALL)
    dpt.run("export", folder / "run", folder / "w.npz")
    dpt.run("export", folder / "run", folder / "w.safetensors")
    with h5py.File(folder / "shard.h5", "w") as file:
        file["images"] = numpy.zeros((16, 1, 16, 16), "u1")
        file["labels"] = numpy.arange(16) % 10
    numpy.save(folder / "three.npy", numpy.zeros((3, 1, 16, 16), numpy.uint8))
    (folder / "a.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    shutil.copy(SMOKE, folder / "job.yaml")
    return folder


def test_the_table_holds_all_that_a_run_writes(good):
    assert {p.name for p in (good / "run").iterdir()} | {".lock"} == {*WRITTEN, ".lock.last", "checkpoints"}


WRITTEN = ["metrics.jsonl", "log.txt", "hashes.jsonl", "job.yaml", "trace.json", "events.out.tfevents.dptrain", ".lock"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_through_nothing(tmp_path, kind):
    for i, name in enumerate(WRITTEN + [".lock.last", "checkpoints/step-00000008.h5"]):
        path = tmp_path / str(i) / name
        path.parent.mkdir(parents=True)
        put(kind, path)
        result = run(SMOKE, *ALL, "--output", tmp_path / str(i))
        assert result.code in (65, 74) and path.name in result.err, result
        assert "symbolic link" in result.err or kind != "link" or "step-" in name, result
        check_victim(kind, path)


@pytest.mark.parametrize("kind", KINDS)
def test_latest_is_a_link_and_gives_way_to_one(tmp_path, kind):
    latest = tmp_path / "run" / "checkpoints" / "latest"
    latest.parent.mkdir(parents=True)
    put(kind, latest)
    result = run(SMOKE, *ALL, "--output", tmp_path / "run")
    if "link" in kind or kind == "dangling":
        assert result.code == 0 and os.readlink(latest) == "step-00000008.h5", result
    else:
        assert result.code == 74 and "latest: is a " in result.err, result
    check_victim(kind, latest)


# What is read: the good file that F stands for, the words of the command; G is the folder of `good`, O one to write into.
READ = [
    ("run/metrics.jsonl", ["watch", "R", "--once"]),
    ("run/metrics.jsonl", ["compare", "R", "R"]),
    ("run/metrics.jsonl", ["report", "R", "--no-predictions", "-o", "O/page.html"]),
    ("run/checkpoints/latest", ["inspect", "F"]),
    ("run/checkpoints/latest", ["eval", SMOKE, "--checkpoint", "F"]),
    ("run/checkpoints/latest", ["export", "F", "O/out.npz"]),
    ("run/checkpoints/latest", ["predict", SMOKE, "--checkpoint", "F", "--input", "G/three.npy"]),
    ("run/checkpoints/latest", [SMOKE, *SHORT, "--output", "O/new", "--resume", "F"]),
    ("run/checkpoints/latest", [SMOKE, *SHORT, "--output", "O/new", "--init-from", "F"]),
    ("w.npz", [SMOKE, *SHORT, "--output", "O/new", "--init-from", "F"]),
    ("w.safetensors", [SMOKE, *SHORT, "--output", "O/new", "--init-from", "F"]),
    ("run/hashes.jsonl", ["inspect", "--audit", "F", "G/run"]),
    ("shard.h5", ["inspect", "F"]),
    ("shard.h5", [SMOKE, *SHORT, "--output", "O/new", "--set", "data.train=F"]),
    ("shard.h5", ["init", "F", "--output", "O/job.yaml"]),
    ("three.npy", ["predict", SMOKE, "--checkpoint", "G/run", "--input", "F"]),
    ("a.csv", ["convert", "csv", "F", "--output", "O/a"]),
    ("job.yaml", ["plan", "F"]),
    ("job.yaml", ["F", *SHORT, "--output", "O/new"]),
]


@pytest.mark.parametrize("name, words", READ, ids=[f"{words[0].split('/')[-1]}-{name}" for name, words in READ])
def test_reading_follows_links_and_waits_for_nobody(good, tmp_path, name, words):
    out = tmp_path / "out"
    for kind in ["good", *KINDS[1:]]:
        folder = tmp_path / kind / "in"
        folder.mkdir(parents=True)
        out.mkdir()
        path = folder / os.path.basename(name)
        if kind == "good":
            path.symlink_to(good / name)
        else:
            put(kind, path)
        values = {"F": str(path), "R": str(folder), "G": str(good), "O": str(out)}
        full = [word.replace("data.train=F", f"data.train={path}") if "=" in word else
                values[word[0]] + word[1:] if word[0] in values and word[1:2] in ("", "/") else word for word in words]
        result = run(*full)
        assert (result.code == 0) == (kind == "good"), result
        if kind != "good":
            assert result.code in (2, 65, 74, 78) and path.name in result.err and "internal" not in result.err, result
            assert len(result.err.splitlines()) < 20
        shutil.rmtree(out)


OUTPUTS = [
    ("page.html", ["report", "G/run", "--no-predictions", "-o", "F"]),
    ("out.npz", ["export", "G/run", "F"]),
    ("out.safetensors", ["export", "G/run", "F"]),
    ("out.onnx", ["export", "G/run", "F"]),
    ("out.h5", ["predict", SMOKE, "--checkpoint", "G/run", "--input", "G/three.npy", "--out", "F"]),
    ("a-00000-of-00001.h5", ["convert", "csv", "G/a.csv", "--output", "D/a"]),
    ("job.yaml", ["init", "--output", "F"]),
    ("job.yaml", ["init", "--output", "F", "--force"]),
]


@pytest.mark.parametrize("name, words", OUTPUTS, ids=[f"{w[0]}-{n}-{len(w)}" for n, w in OUTPUTS])
def test_outputs_replace_nothing_but_files(good, tmp_path, name, words):
    for kind in KINDS:
        path = tmp_path / kind / "in" / name
        path.parent.mkdir(parents=True)
        put(kind, path)
        before = os.lstat(path)
        values = {"F": str(path), "G": str(good), "D": str(path.parent)}
        result = run(*(values[w[0]] + w[1:] if w[0] in values and w[1:2] in ("", "/") else w for w in words))
        assert result.code in (2, 74) and path.name in result.err, result
        assert os.lstat(path).st_ino == before.st_ino and os.listdir(path.parent) == [name], "it stays, and alone"
        check_victim(kind, path)
