"""What stands where a file should be: links, pipes, folders and sockets, in place of every file that a command reads or writes."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib

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
        return dpt.run(*words, timeout=100)
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


# --- files that dptrain did not write -------------------------------------------------------------------------------------------

FOREIGN = [name for name in WRITTEN if name != ".lock"] + ["checkpoints/step-00000008.h5", "checkpoints/latest", "checkpoints/best"]


def everything(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock.last"}


def foreign_bytes(name):
    """Somebody else's file of the same kind, where there are such."""
    return {"job.yaml": b"# my job\nname: mine\nseed: 3\nmodel: linear\n", "metrics.jsonl": b'{"step": 1, "loss": 0.5}\n',
            "log.txt": b"2026-11-21 08:00:00 my notes\n", "trace.json": b'[{"name": "a"}]\n',
            "hashes.jsonl": b'{"hash": 1}\n'}.get(name, b"\x89HDF\r\n\x1a\n\0" + bytes(1000) if "step" in name else SECRET)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_run_keeps_what_others_wrote(good, tmp_path, name):
    """In a folder without a run and in one with a run, with --overwrite and without."""
    for run_there in (False, True):
        folder = tmp_path / str(run_there)
        if run_there:
            shutil.copytree(good / "run", folder, symlinks=True)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(foreign_bytes(name))
        before = everything(folder)
        for words in [[], ["--overwrite"]]:
            result = run(SMOKE, *ALL, "--set", "train.steps=16", "--output", folder, *words)
            assert result.code == 2 and len(result.err.splitlines()) == 1, result
            assert result.err.startswith(f"{folder}/{name} was not written by dptrain") and "--output" in result.err, result
            assert everything(folder) == before


def test_the_hand_written_job_stays(tmp_path):
    """`--output .` beside it, on several ranks, with one message."""
    job = dpt.write_job(tmp_path / "job.yaml", "# by hand\n" + open(SMOKE, encoding="utf-8").read())
    before = everything(tmp_path)
    for ranks in (0, 3):
        for words in (["--output", "."], ["--output", tmp_path, "--overwrite"]):
            result = dpt.run("job.yaml", *SHORT, *words, ranks=ranks, cwd=tmp_path, timeout=60)
            assert result.code == 2, result
            assert result.err.count("job.yaml was not written by dptrain, and this run would write there: choose another folder with "
                                    "--output, or move that file away") == 1, result
            assert everything(tmp_path) == before and os.listdir(tmp_path) == ["job.yaml"]
    os.rename(job, tmp_path / "mine.yaml")
    assert dpt.run("mine.yaml", *SHORT, "--output", ".", cwd=tmp_path).code == 0
    assert dpt.run("job.yaml", "--set", "train.steps=16", cwd=tmp_path).code == 0, "the resolved job is dptrain's"


def test_overwriting_leaves_what_others_wrote_in_the_old_runs_folder(good, tmp_path):
    """Files that the new run does not write stay where they are, and go with no older run."""
    folder = tmp_path / "run"
    shutil.copytree(good / "run", folder, symlinks=True)
    for name in ("trace.json", "hashes.jsonl", "events.out.tfevents.dptrain"):
        (folder / name).write_bytes(foreign_bytes(name))
    for _ in range(2):
        assert run(SMOKE, *SHORT, "--output", folder, "--overwrite").code == 0
        for name in ("trace.json", "hashes.jsonl", "events.out.tfevents.dptrain"):
            assert (folder / name).read_bytes() == foreign_bytes(name)
        assert not (folder / "overwritten").exists()
    (folder / "overwritten").mkdir()
    (folder / "overwritten" / "metrics.jsonl").write_bytes(SECRET)
    before = everything(folder)
    result = run(SMOKE, *SHORT, "--output", folder, "--overwrite")
    assert result.code == 2 and "overwritten holds files that are of no run" in result.err, result
    assert everything(folder) == before


def test_older_and_cut_files_of_a_run_are_its_own(good, tmp_path):
    """The resolved job had no mark; a crash may leave an empty file, the beginning of one, or a copy in place of a link."""
    def goes_on(change):
        folder = tmp_path / change.__name__
        shutil.copytree(good / "run", folder, symlinks=True)
        change(folder)
        result = run(SMOKE, *ALL, "--set", "train.steps=16", "--output", folder)
        assert result.code == 0 and "resuming at step 8" in result.err, result

    def unmarked(folder):
        text = (folder / "job.yaml").read_text()
        assert text.startswith("# ")
        (folder / "job.yaml").write_text(text.split("\n", 1)[1])

    def empty(folder):
        for name in WRITTEN:
            (folder / name).write_bytes(b"")
        (folder / ".lock").unlink()

    def cut(folder):
        for name in ("metrics.jsonl", "hashes.jsonl", "trace.json", "log.txt"):
            (folder / name).write_bytes((folder / name).read_bytes()[:5])

    def copied(folder):
        for link in ("latest", "best"):
            path = folder / "checkpoints" / link
            if path.is_symlink():
                whole = path.read_bytes()
                path.unlink()
                path.write_bytes(whole)

    def cut_later(folder):
        whole = (folder / "checkpoints" / "latest").read_bytes()
        (folder / "checkpoints" / "step-00000012.h5").write_bytes(whole[:len(whole) // 2])

    for change in (unmarked, empty, cut, copied, cut_later):
        goes_on(change)


# Each leads to a pipe, where opening waits for ever: what is put in place of `name`, and what the message says of it.
def external(file, name, pipe):
    file[name] = h5py.ExternalLink(pipe, "/x")
    return f"/{name} is a link to /x in another file, {pipe}:"


def behind_soft(file, name, pipe):
    file["way/out"] = h5py.ExternalLink(pipe, "/x")
    file[name] = h5py.SoftLink("/way/out/further")
    return f"/way/out is a link to /x in another file, {pipe}:"


def custom(file, name, pipe):
    """An external link whose type is another number, which no library knows."""
    file[name] = h5py.ExternalLink(pipe, "/x")
    return f"/{name} is a link of a type that HDF5 itself does not define"


def stored_outside(file, name, pipe):
    file.create_dataset(name, (16,), "u1", external=[(pipe, 0, h5py.h5f.UNLIMITED)])
    return f"/{name} keeps its values in other files"


def virtual(file, name, pipe):
    """Without an end, so that HDF5 opens the other file for the extent alone."""
    source = h5py.VirtualSource(pipe, "x", shape=(16,), maxshape=(None,))[0:h5py.h5s.UNLIMITED]
    layout = h5py.VirtualLayout((16,), "u1", maxshape=(None,))
    layout[0:h5py.h5s.UNLIMITED] = source
    file.create_virtual_dataset(name, layout)
    return f"/{name} is a virtual data set"


ELSEWHERE = [external, behind_soft, custom, stored_outside, virtual]


def lead_elsewhere(kind, path, name, pipe):
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        message = kind(file, name, str(pipe))
    if kind is custom:  # the type stands before the name, its length and, in newer files, its characters
        whole, link = bytearray(path.read_bytes()), name.split("/")[-1].encode()
        ends = [i for i in range(4, len(whole)) if whole[i:i + len(link)] == link and whole[i - 1] == len(link)]
        changed = [i - k for i in ends for k in (2, 3) if whole[i - k] == 64 and whole[i - k - 2] == 1]
        assert len(changed) == 1, "the link's type was found"
        whole[changed[0]] = 65
        path.write_bytes(whole)
    return message


@pytest.mark.parametrize("kind", ELSEWHERE, ids=[kind.__name__ for kind in ELSEWHERE])
def test_a_shard_leads_into_no_other_file(good, tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    job, out = good / "job.yaml", ["--output", tmp_path / "new"]
    for name in ["images", "labels", "weights", "columns", "id"]:
        path = tmp_path / "shard.h5"
        shutil.copy(good / "shard.h5", path)
        message = lead_elsewhere(kind, path, name, tmp_path / "pipe")
        for words in [["inspect", path], ["init", path, "--output", tmp_path / "made.yaml"],
                      ["plan", job, "--set", f"data.train={path}"], [job, *out, "--set", f"data.train={path}"],
                      ["eval", job, "--checkpoint", good / "run", "--set", f"data.test={path}"],
                      ["predict", job, "--checkpoint", good / "run", "--input", path]]:
            if words[0] == "predict" and name in ("labels", "weights"):
                continue  # which it does not read
            result = run(*words)
            assert result.code == 65 and f"shard.h5: {message}" in result.err, result
    assert not (tmp_path / "made.yaml").exists()


@pytest.mark.parametrize("kind", [external, behind_soft], ids=lambda kind: kind.__name__)
def test_a_checkpoint_leads_into_no_other_file(good, tmp_path, kind):
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(good / "run" / "checkpoints" / "latest") as file:
        layer = next(iter(file["params"]))
    for name in ["job", "params", f"params/{layer}", f"params/{layer}/weight"]:
        path = tmp_path / "run" / "checkpoints" / "step-00000008.h5"
        path.parent.mkdir(parents=True)
        path.write_bytes((good / "run" / "checkpoints" / "latest").read_bytes()[:-44])
        message = lead_elsewhere(kind, path, name, tmp_path / "pipe")
        whole = path.read_bytes()
        path.write_bytes(whole + b"dptrain crc32 %08x %020d\n" % (zlib.crc32(whole), len(whole)))
        for words in [["inspect", path], [SMOKE, *SHORT, "--output", tmp_path / "run"],
                      [SMOKE, *SHORT, "--output", tmp_path / "new", "--resume", path],
                      [SMOKE, *SHORT, "--output", tmp_path / "new", "--init-from", path],
                      ["eval", SMOKE, "--checkpoint", path], ["export", path, tmp_path / "out.npz"],
                      ["predict", SMOKE, "--checkpoint", path, "--input", good / "three.npy"]]:
            if name == "job" and words[0] in ("eval", "predict"):
                continue  # which go by the job that is given
            result = run(*words)
            assert result.code == 65 and f"step-00000008.h5: {message}" in result.err, (name, result)
        shutil.rmtree(tmp_path / "run")
        assert not (tmp_path / "new").exists() or not list((tmp_path / "new").glob("checkpoints/*"))


def test_soft_links_within_a_shard_are_followed(good, tmp_path):
    with h5py.File(tmp_path / "shard.h5", "w") as file, h5py.File(good / "shard.h5") as old:
        file["real/images"], file["real/labels"] = old["images"][:], old["labels"][:]
        file["images"], file["labels"] = h5py.SoftLink("/real/images"), h5py.SoftLink("real/labels")
        file["unrelated"] = h5py.ExternalLink("nowhere", "/x")
    for words in [["inspect", tmp_path / "shard.h5"],
                  [SMOKE, *SHORT, "--output", tmp_path / "new", "--set", f"data.train={tmp_path / 'shard.h5'}"]]:
        assert run(*words).code == 0


def test_what_cannot_be_read_is_not_called_missing(good, tmp_path):
    """A folder that may not be entered, a file in a folder's place, links in a circle; and where a relative path was looked for."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to("circle")
    job = os.path.abspath(SMOKE)
    for paths, says in [(["file/*.h5", "file/a.h5"], "Not a directory"), (["circle/*.h5", "circle/a.h5"], "Too many levels"),
                        (["none/*.h5", "a.h5"], f"(relative to {tmp_path})")]:
        for path in paths:
            result = dpt.run(job, *SHORT, "--set", f"data.train={path}", "--output", "out", cwd=tmp_path)
            assert result.code == 78 and says in result.err and ("no file matches" in result.err) == ("rel" in says), result
    for words in (["eval", job, "--checkpoint", "none.h5"], ["export", "none.h5", "a.npz"], ["inspect", "none.h5"],
                  ["convert", "csv", "none.csv", "--output", "o/a"], [job, "--init-from", "none.npz", "--output", "out"]):
        result = dpt.run(*words, cwd=tmp_path)
        assert result.code != 0 and f": No such file or directory (relative to {tmp_path})" in result.err, result
    for path, says in (("file/*.h5", "Not a directory"), ("circle/a.h5", "Too many levels"), ("none.h5", f"(relative to {tmp_path})")):
        result = dpt.run("predict", job, "--checkpoint", good / "run", path, cwd=tmp_path)
        assert result.code == 65 and says in result.err and ("there is no" in result.err) == ("rel" in says), result
    (tmp_path / "shut").mkdir(mode=0o700)
    if os.geteuid() == 0 and shutil.which("setpriv"):
        with tempfile.TemporaryDirectory() as open_to_all:
            os.chmod(open_to_all, 0o755)
            text = open(job, encoding="utf-8").read().replace("train: synthetic", f"train: {tmp_path}/shut/*.h5")
            out = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", dpt.BINARY, "plan",
                                  dpt.write_job(os.path.join(open_to_all, "job.yaml"), text)], capture_output=True, timeout=60, cwd="/")
        assert out.returncode == 78 and b"Permission denied" in out.stderr and b"no file matches" not in out.stderr, out
