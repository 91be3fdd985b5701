"""scripts/gpu-check.sh: rehearsed from its archive, in a folder of its own, with the libraries that stand in for a GPU; what its report
says where a step hangs, crashes or writes garbage, and where all of it is cut off."""
# C programs: test_cuda_*
import gzip
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "scripts/gpu-check.sh"
PROGRAM = Path(os.environ.get("DPTRAIN", TOP / "build/dptrain")).resolve()
FAKE = PROGRAM.parent / "tests/fakegpu"
HEAVY = os.environ.get("DPT_HEAVY") == "1"
SANITIZED = b"__asan_init" in PROGRAM.read_bytes() if PROGRAM.exists() else False
# All that a machine with a GPU has to have, beside a shell and Python.
TOOLS = """awk bash cat cmp cp cut date dirname du env find grep gzip head kill ldconfig ls mkdir mktemp mv nproc paste readlink realpath rm sed sh
sleep sort tail tar tee timeout touch tr uname wc xargs""".split()

# Steps that are test programs, which run beside this one anyway (kernels-arena and errors stand for them), and those that do in a
# rehearsal what another step does: for all models it has the one small job.
BESIDE = """kernels kernels-joins kernels-sums kernels-update kernels-fp16 matmul steps program graphs algorithms convolutions
job-tf32 job-fp16 mnist-cnn-bf16 start-up-resnet50 profile-resnet50 mnist-cnn-tf32 mnist-cnn-fp16 mnist-mlp-bf16 speed-mlp speed-mnistcnn speed-mlp4k profile-mlp profile-mnistcnn profile-mlp4k
transports-bf16 bytes-bf16 ddp-mlp4k""".split()

has_gpu = any(Path("/dev", name).exists() for name in ("nvidia0", "dxg"))
needs_fake = pytest.mark.skipif(not (FAKE / "libcuda.so.1").exists() or SANITIZED or shutil.which("patchelf") is None,
                                reason="the libraries that stand in for a GPU are not built, or as the sanitizers want them")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The archive, unpacked, and the tools that it may use."""
    made = tmp_path_factory.mktemp("pack")
    done = subprocess.run([SCRIPT, "--pack", made / "check.tar.xz", "--rehearsal"], env={**os.environ, "BUILD": str(PROGRAM.parent)},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    print(done.stdout)
    size, unpacked = map(float, re.search(r"check\.tar\.xz: ([\d.]+) MiB, (\d+) MiB unpacked, in \d+ s", done.stdout).groups())
    assert 5 < size < 60 and unpacked < 300
    (made / "tools").mkdir()
    for tool in TOOLS:
        if shutil.which(tool):
            (made / "tools" / tool).symlink_to(os.path.realpath(shutil.which(tool)))
    (made / "tools/python3").symlink_to(os.path.realpath(sys.executable))
    # As it is told, without xz.
    (made / "here").mkdir()
    (made / "here/check.tar.xz").symlink_to(made / "check.tar.xz")
    unpack = re.search(r"^(\(tar .*\)) && bash gpu-check.sh a\+b1 OUT$", done.stdout, re.M).group(1)
    said = subprocess.run(["bash", "-c", unpack], cwd=made / "here", env={"PATH": str(made / "tools")}, capture_output=True, text=True)
    assert said.returncode == 0 and "xz" in said.stderr, said
    assert {"gpu-check.sh", "lib", "bundle", "tests"} <= {path.name for path in (made / "here").iterdir()}
    return made


def start(archive, part, out, *words, here=None, **env):
    words = ["bash", "gpu-check.sh", part, "--out", out, "--fake", "tests/fakegpu", "--work", out.parent / f"work-{out.name}", *words]
    return subprocess.Popen([str(w) for w in words], cwd=here or archive / "here", env={"PATH": str(archive / "tools"), "FAKEGPU_QUIET": "1", **env},
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check(archive, part, out, *words, **more):
    """The exit code, what it printed, the report's rows {step: (state, what was seen)} and its text."""
    with start(archive, part, out, *words, **more) as process:
        printed = process.communicate(timeout=400)[0]
    return process.returncode, printed, *report(out)


def report(out):
    text = (out / "report.md").read_text()
    table = text.split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert all(len(row) == 5 and row[1] for row in rows), table
    return {row[0]: (row[2], row[4]) for row in rows}, text


# A machine with three GPUs, which are not all that a node may have, and NCCL.
LINKED = {"FAKEGPU_DEVICES": "3", "FAKENCCL_VERSION": "22803"}


def steps(part):
    listed = subprocess.run([SCRIPT, part, "--list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[1] for line in listed.splitlines()]


def replaced(archive, tmp_path, **programs):
    """The unpacked archive with shell scripts in the place of test programs."""
    here = tmp_path / "here"
    shutil.copytree(archive / "here", here, copy_function=os.link, symlinks=True)
    for name, text in programs.items():
        (here / "tests" / name).unlink()
        (here / "tests" / name).write_text("#!/bin/bash\n" + text)
        (here / "tests" / name).chmod(0o755)
    return here


def left_running(here):
    """Processes of that folder; those of a step have a word in their environment, its --work another."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            if b"GPU_CHECK=" in environment and Path(os.readlink(process / "cwd")).is_relative_to(here):
                found.append((process / "cmdline").read_bytes())
        except OSError:
            pass
    return found


def test_words(tmp_path):
    names = steps("a") + steps("b") + steps("c") + steps("m")
    assert len(names) == len(set(names)) > 50 and names == steps("all") and steps("a+b1") + steps("b2") + steps("c1+c2") + steps("m") == names
    assert names[:4] == ["libraries", "first-job", "steps", "program"] and steps("c")[-4:] == ["memcheck", "racecheck", "initcheck", "synccheck"]
    listed = subprocess.run([SCRIPT, "--list"], capture_output=True, text=True).stdout
    limits = dict(re.findall(r"^\w\d? +(\S+) +(\d+) s  ", listed, re.M))
    assert list(limits) == names and max(map(int, limits.values())) == int(limits["peers-jax"]) == 150
    assert limits["libraries"] == limits["first-job"] == "90" and limits["peers-torch"] == "100"

    def said(*words, **more):
        done = subprocess.run([SCRIPT, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **more})
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.86'\n")
    (tmp_path / "bin/nvcc").chmod(0o755)
    for toolkit, wants in [(tmp_path / "none", "is of CUDA none"), (tmp_path, "drivers 570 know nothing of CUDA 12.9")]:
        code, text = said("--pack", tmp_path / "x.tar.xz", "--cuda", "12", CUDA_HOME=str(toolkit))
        assert code == 2 and wants in text and "CUDA_HOME" in text and text.count("\n") == 1, text
    out = tmp_path / "none"
    for words in (["--nonsense"], ["a"], [], ["d", out], ["a+d", out], ["a", out, "more"], ["a", "--limit", "x"], ["--pack"],
                  ["--cuda", "11"], ["a", out, "--only", "nonsense"]):
        code, text = said(*words)
        assert code == 2 and text.startswith("gpu-check.sh: ") and text.count("\n") == 1, (words, text)
    code, text = said("--help")
    assert code == 0 and "--pack FILE" in text and "shellcheck" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.skipif(has_gpu or shutil.which("nvidia-smi") is not None, reason="there is a GPU")
def test_without_a_gpu(tmp_path):
    done = subprocess.run([SCRIPT, "a", tmp_path / "out"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 77 and done.stdout.count("\n") == 1 and "no NVIDIA GPU" in done.stdout
    assert not list(tmp_path.iterdir()), "nothing is made"


@needs_fake
@pytest.mark.parametrize("part", "abcm")
def test_rehearsal(archive, tmp_path, part):
    """Each part ends by itself, with a row for each step; nothing is missing on a machine that has only a shell and Python. The other
    steps with DPT_HEAVY=1."""
    out = tmp_path / "out"
    chosen = [name for name in steps(part) if HEAVY or name not in BESIDE]
    code, printed, rows, text = check(archive, part, out, "--only", "|".join(chosen), **(LINKED if part == "m" else {}))
    assert code == 0, printed + text
    assert list(rows) == chosen
    assert {state for state, _ in rows.values()} <= {"ok", "skipped"}
    table = printed[printed.rindex("\n\n"):]
    assert re.findall(r"^(ok|skipped) +(\S+) +\d+ s$", table, re.M) == [(state, name) for name, (state, _) in rows.items()], printed
    skipped = {name for name, (state, _) in rows.items() if state == "skipped"}
    assert skipped <= {"mnist", "peers-torch", "peers-jax", "peers-resnet50", "compiled-resnet50", "compiled-torch", "eager-torch", "ddp-mlp4k", "ddp-resnet50", "counters", "memcheck", "racecheck", "initcheck", "synccheck"}
    assert "a rehearsal on the CPU" in text and re.search(r"Ended after \d+ s", text)
    assert sorted(p.name for p in out.iterdir()) == ["logs.tar.gz", "report.md"]
    with tarfile.open(out / "logs.tar.gz") as logs:
        assert {f"./{name}.log" for name in rows} <= set(logs.getnames())
    if part == "a":
        assert "Fake GPU" in rows["libraries"][1] and "## The machine" in text
        assert len(re.findall(r"plans (?:measured|kept): [\d.]+ s: libraries [^;]* plans [\d.]+; with 12 steps", rows["start-up"][1])) == 2
    elif part == "b":
        assert "the same" in rows["resume"][1] and "ranks 1, 2, 4: the same" in rows["reproducible"][1]
        assert "ranks 1, 2 as stages: the same" in rows["pipeline"][1] and "without MNIST" in rows["mnist"][1]
    elif part == "m":
        assert "3 GPUs; on a node from GPU to GPU (P2P/CUMEM)" in rows["several-gpus"][1] and "ranks 1, 2, 3, 3 that divide the update, 3 that divide the gradients, 3 that divide the weights, 2 as stages, 2 as stages that divide the weights: the same" in rows["bytes"][1]
        assert re.fullmatch(r"NCCL and MPI, 2 ranks: loss (\S+) and \S+, weights differ by up to \S+; 3 ranks: .*", rows["transports"][1])
        for name in ("killed", "killed-mpi"):
            assert re.search(r"exit 71 after [\d.]+ s, .* resumed at step \d+, at step \d+ (the same bytes|weights that differ by up to \S+) as", rows[name][1])
        assert re.search(r"^\| 3 \| NCCL 2\.28\.3: .* for 33\.6 MB; bus bandwidth .* \|", text, re.M), text
        times = re.findall(r"^\| (mlp4k|resnet50) \| (\d) \| [\d.]+ \(\d+ %\) \|", text, re.M)
        assert times == [(model, ranks) for model in ("mlp4k", "resnet50") for ranks in "123"], text
        assert re.findall(r"^\| mlp4k \| (\d) \| \S+ \(\d+ %\) \| [\d.]+ \(\d+ %\) \|", text, re.M) == ["2", "3"], text
    else:
        speeds = re.findall(r"^\| (\w+) \| (\d+) \| (tf32|bf16) \| [\d.]+ \| - \| - \| - \| - \| - \|$", text, re.M)
        wanted = [(step[6:], size, kind) for step in chosen if step.startswith("speed-") and step != "speed-resnet50"
                  for size in ("128", "1024") for kind in ("tf32", "bf16")]
        assert sorted(speeds) == sorted(wanted + [("resnet50", "64", "bf16"), ("resnet50", "256", "bf16")]), text


@needs_fake
def test_one_gpu_of_several(archive, tmp_path):
    """Part m says in a line what it leaves out; alone it makes nothing."""
    out = tmp_path / "out"
    with start(archive, "m", out) as process:
        printed = process.communicate(timeout=100)[0]
    assert process.returncode == 77 and printed.count("\n") == 1 and "one GPU, so part m is left out" in printed and "killed" in printed, printed
    assert not (out / "report.md").exists()
    code, printed, rows, text = check(archive, "all", out, "--only", "kernels-arena|transports|killed")
    assert code == 0 and list(rows) == ["kernels-arena"], printed + text
    assert "part m is left out, which needs two: transports killed\n" in printed and "several GPUs" not in text.splitlines()[0], printed


@needs_fake
@pytest.mark.parametrize("step, given, told", [
    ("several-gpus", {"FAKENCCL_VERSION": "0"}, "NCCL does not sum: no ("), ("bandwidth", {"FAKENCCL_WRONG": "1"}, "a trial sum came out wrong"),
    ("transports", {"FAKENCCL_WRONG": "3"}, "weights differ by up to 0.000")])
def test_links_that_fail(archive, tmp_path, step, given, told):
    code, printed, rows, text = check(archive, "m", tmp_path / "out", "--only", step, **{**LINKED, "FAKEGPU_DEVICES": "2", **given})
    assert code == 1 and rows[step][0] == "failed" and told in rows[step][1], text


@needs_fake
def test_hangs_crashes_and_garbage(archive, tmp_path):
    """One step does not listen to signals and starts more like itself, one crashes, one writes what no terminal should see, and
    very much of it; one that is right comes last, and once more."""
    here = replaced(
        archive, tmp_path,
        test_cuda_device_layers="trap '' TERM\necho 'as far as this'\nbash -c 'echo $$; trap \"\" TERM; while :; do sleep 1; done' &\nwait; sleep 900",
        test_cuda_device_arena="echo before\nkill -SEGV $$",
        test_cuda_device_update="head -c 9000000 /dev/urandom\nprintf '\\n[ FAILED ] a|b \\033[2J | c\\n'; exit 1")
    out = tmp_path / "out"
    code, printed, rows, text = check(archive, "a", out, "--only", "kernels|kernels-[^s].*|first-job", "--limit", "8", here=here)
    assert code == 1, printed
    assert list(rows) == ["first-job", "kernels", "kernels-joins", "kernels-arena", "kernels-update", "kernels-fp16"]
    assert [state for state, _ in rows.values()] == ["ok", "failed", "ok", "failed", "failed", "ok"], text
    assert re.match(r"stopped after \d+ s.*; the last it said: (as far as this|\d+)", rows["kernels"][1])
    assert "exit 139" in rows["kernels-arena"][1] and "exit 1" in rows["kernels-update"][1]
    assert "\033" not in text and text.isascii() and len(text) < 40_000
    assert (out / "logs.tar.gz").stat().st_size < 3_000_000
    assert not left_running(here)
    code, _, again, text = check(archive, "a", out, "--only", "kernels-fp16", here=here)
    assert code == 0 and again == rows and text.count("| kernels-fp16 |") == 2, text


@needs_fake
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_cut_off(archive, tmp_path, by):
    """The report is whole at any time: what was done, and what was running."""
    os.mkfifo(tmp_path / "running")
    here = replaced(archive, tmp_path, test_cuda_device_arena=f"echo $PPID >'{tmp_path}/running'\nsleep 900")
    out = tmp_path / "out"
    with start(archive, "a", out, "--only", "kernels-arena|kernels-update|first-job", here=here) as process:
        assert process.stdout.readline().startswith("ok       first-job")
        inside = int((tmp_path / "running").read_text())
        process.send_signal(by)
        process.wait(timeout=60)
        if by == signal.SIGKILL:
            os.killpg(os.getpgid(inside), signal.SIGKILL)
            ends = time.monotonic() + 100
            while left_running(here) and time.monotonic() < ends:
                pass
    rows, text = report(out)
    assert rows["first-job"][0] == "ok"
    if by == signal.SIGKILL:
        assert rows["kernels-arena"][0] == "running" and "90 s at most" in rows["kernels-arena"][1]
    else:
        assert list(rows) == ["first-job"] and "Cut off by a signal" in text
    assert not left_running(here)
    with tarfile.open(out / "logs.tar.gz") as logs:
        assert "./first-job.log" in logs.getnames()


@needs_fake
def test_a_device_that_fails(archive, tmp_path):
    code, printed, rows, text = check(archive, "a", tmp_path / "out", "--only", "libraries|first-job|kernels-arena",
                                      FAKEGPU_FAIL="cuStreamCreateWithPriority:1+")
    assert code == 1, printed
    assert rows["first-job"][0] == rows["kernels-arena"][0] == "failed"
    assert "cuStreamCreateWithPriority" in rows["first-job"][1] and "## The end of the log of first-job" in text


@needs_fake
def test_libraries_are_read_ahead(archive, tmp_path):
    """Beside the steps, and no longer: of two files that would never end, one ends by what a step writes."""
    here = replaced(archive, tmp_path, test_cuda_device_arena="timeout 20 bash -c 'echo >tests/fakegpu/libcudnn_ahead.so.9' && echo '[       OK ] read'")
    for name in ("ahead", "endless"):
        os.mkfifo(here / f"tests/fakegpu/libcudnn_{name}.so.9")
    code, printed, rows, text = check(archive, "a", tmp_path / "out", "--only", "kernels-arena", here=here)
    assert code == 0 and rows["kernels-arena"][0] == "ok", text
    assert not left_running(here)


@needs_fake
def test_mnist_that_travels_apart(archive, tmp_path):
    (tmp_path / "idx").mkdir()
    here = replaced(archive, tmp_path)
    for name, n in [("train", 30), ("t10k", 20)]:
        for kind, magic, shape in [("images-idx3", 0x803, (n, 4, 4)), ("labels-idx1", 0x801, (n,))]:
            size = n * 16 if len(shape) > 1 else n
            data = struct.pack(f">I{len(shape)}I", magic, *shape) + bytes(i % 10 for i in range(size))
            (tmp_path / f"idx/{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(data))
    out = tmp_path / "out"
    code, _, rows, text = check(archive, "b1", out, "--only", "mnist", "--mnist", tmp_path / "nowhere", here=here)
    assert code == 1 and rows["mnist"][0] == "failed" and str(tmp_path / "nowhere") in rows["mnist"][1], text
    code, _, rows, text = check(archive, "b1", out, "--only", "mnist", "--mnist", tmp_path / "idx", here=here)
    assert code == 0 and rows["mnist"][0] == "ok" and text.count("| mnist |") == 2, text
    assert [path.name.split("-")[0] for path in sorted((here / "rehearsal/../mnist").glob("*.h5"))] == ["test", "train"]


PEER = """import sys
for model in ("cnn", "mlp"):
    who, us = {"torch": ("torch-graph", 1e9), "jax": ("jax", 5e8)}[sys.argv[2]]
    print(who, model, 128, "bf16", us, flush=True)
if sys.argv[2] == "jax":
    sys.exit("RESOURCE_EXHAUSTED")
"""


@needs_fake
def test_beside_peers(archive, tmp_path):
    """What a peer measured before it failed counts."""
    (tmp_path / "peer.py").write_text(PEER)
    (tmp_path / "python").write_text(f"#!/bin/bash\nexec python3 {tmp_path}/peer.py \"$@\"\n")
    (tmp_path / "python").chmod(0o755)
    code, printed, rows, text = check(archive, "c", tmp_path / "out", "--only", "speed-mlp|peers-(torch|jax)", "--python", tmp_path / "python")
    assert code == 1, printed
    assert rows["peers-torch"][0] == "ok" and rows["peers-jax"] == ("failed", "exit 1, 2 timed: RESOURCE_EXHAUSTED")
    ours, torch, jax, ratio = re.search(r"^\| mlp \| 128 \| bf16 \| (\S+) \| (\S+) \| - \| - \| (\S+) \| (\S+) \|$", text, re.M).groups()
    assert (float(torch), float(jax)) == (1e9, 5e8) and float(ratio) == pytest.approx(5e8 / float(ours), rel=0.01)
    assert re.search(r"^\| cnn \| 128 \| bf16 \| - \| \S+ \| - \| - \| \S+ \| - \|$", text, re.M)


def test_resnet50_of_peers():
    """The peer's network is dptrain's, also if torchvision is not installed."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(TOP / "scripts/bench"))
    import gpu_peers
    net = gpu_peers.resnet50()
    assert sum(p.numel() for p in net.parameters()) == 25_557_032
