"""A rank's choice of a GPU, what is printed about it, and where sums are made: jobs on a fake GPU (core/backend/cuda/tests/fake/fake.h),
whose memory the host may not touch unless FAKEGPU_PROTECT is 0."""
import glob
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

FAKE = os.path.join(os.path.dirname(dpt.BINARY), "tests", "fakegpu")
NONE = os.path.join(__file__, "none")  # a library path without a driver: nothing lies below a file

pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libcuda.so.1")),
                                reason="built without CUDA, or without its tests (make check-units)")

JOB = """
data: {train: synthetic, synthetic: {samples: 64, shape: [8]}}
model: {type: mlp, hidden: [8], outputs: 10}
batch: {global: 16}
train: {steps: 2}
checkpoint: {every: never}
log: {every: 1 steps}
"""


@pytest.fixture
def place(tmp_path):
    """A folder with a job; environment: what all ranks have."""
    dpt.write_job(tmp_path / "job.yaml", JOB)
    return tmp_path


def environment(folder, **more):
    """Without what the one who runs the tests has set: no other GPU is found."""
    kept = {name: text for name, text in os.environ.items()
            if not re.match(r"CUDA_|CUDNN_|DPTRAIN_|FAKEGPU_|SLURM_|LD_LIBRARY_PATH", name)}
    options = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return {**kept, **dpt.MPI_ENVIRONMENT, "ASAN_OPTIONS": options, "XDG_CACHE_HOME": str(folder / "cache"), "LD_LIBRARY_PATH": FAKE,
            "COLUMNS": "200", **{name: str(text) for name, text in more.items()}}


def call(folder, line, **more):
    return dpt.Result(subprocess.run(list(map(str, line)), env=environment(folder, **more), cwd=folder, timeout=120,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))


def train(place, *words, ranks=0, code=0, output="run", **more):
    line = [*(["mpirun", "-np", ranks] if ranks else []), dpt.BINARY, place / "job.yaml", "--output", output, *words]
    result = call(place, line, **more)
    assert result.code == code, result
    return result


def apart(place, *environments, words=(), code=0):
    """Each rank with variables of its own."""
    call_it = shlex.join(map(str, [dpt.BINARY, place / "job.yaml", "--output", "run", *words]))
    result = call(place, dpt.each_rank(*(f"exec env {shlex.join(f'{name}={text}' for name, text in own.items())} {call_it}" for own in environments)))
    assert result.code == code, result
    return result


def begun(place, output="run"):
    return dpt.events(place / output, "run")[-1]


def header(result, word):
    found = re.findall(rf"^  {word} +(.*(?:\n {{11}}.*)*)", result.err, re.M)
    assert len(found) == 1, (word, result)
    return found[0]


def buses(result):
    return re.findall(r"[0-9A-F]{4}:[0-9A-F]{2}:00\.0", header(result, "device"))


# --- choosing

def test_one_gpu(place):
    result = train(place, FAKEGPU_DEVICES=1)
    assert header(result, "device").startswith("cuda: Fake GPU 0 of 2.15 GB; fp32\n")
    assert "driver for CUDA" in header(result, "device") and "cuDNN 9" in result.err and "cuBLASLt" in result.err
    assert "warning" not in result.err and "  sums" not in result.err, result
    event = begun(place)
    assert event["device"] == "cuda" and event["gpu"] == "Fake GPU 0" and event["gpus"] == 1 and event["precision"] == "fp32"
    result = train(place, "--resume", "none", output="other", FAKEGPU_DEVICES=3)
    assert "one rank only" in result.err and len(buses(result)) == 1, result


def started(place, number):
    """The seconds that the start took, of which the parts are all. The stand-in's log makes it longer."""
    result = train(place, "--verbose", output=f"more-{number}", FAKEGPU_DEVICES=1, FAKEGPU_LOG=place / f"log-{number}")
    whole, parts = re.search(r" started in ([\d.]+) s: (.*)$", header(result, "device"), re.M).groups()
    seconds = {name: float(s) for name, s in re.findall(r"([A-Za-z ]+) ([\d.]+)(?:, |$)", parts)}
    assert list(seconds) == ["libraries", "driver", "kernels", "cuDNN and cuBLASLt", "plans"]
    assert float(whole) == pytest.approx(sum(seconds.values()), abs=0.003) and min(seconds.values()) >= 0, result
    return float(whole)


def test_how_long_the_start_took(place):
    """Only where more is wanted. A start of less than half a millisecond is told as 0.000 s, as those of stand-ins may be."""
    assert "started in" not in train(place, FAKEGPU_DEVICES=1).err
    assert any(started(place, number) > 0 for number in range(10))


def test_a_gpu_for_each_rank(place):
    """By the rank within the node, before MPI starts: each context is made on its own device, and on no other."""
    result = train(place, ranks=3, FAKEGPU_DEVICES=3, FAKEGPU_LOG=place / "log.%p")
    assert len(set(buses(result))) == 3 and "one per rank" in header(result, "device"), result
    assert "share" not in result.err and begun(place)["gpus"] == 3
    retained = set()
    for path in glob.glob(str(place / "log.*")):
        with open(path, encoding="utf-8") as file:
            own = {line.split()[-1] for line in file if line.startswith("cuDevicePrimaryCtxRetain")}
        assert len(own) == 1, (path, own)
        retained |= own
    assert len(retained) == 3, retained


def test_ranks_that_each_see_one(place):
    """As a launcher does that binds them: all are number 0."""
    result = apart(place, *[{"FAKEGPU_DEVICES": 4, "CUDA_VISIBLE_DEVICES": n} for n in (2, 0, 3)])
    assert len(set(buses(result))) == 3 and "share" not in result.err, result
    result = apart(place, *[{"FAKEGPU_DEVICES": 4, "CUDA_VISIBLE_DEVICES": n} for n in (1, 1)], words=("--resume", "none", "--output", "2"))
    assert re.search(r"warning: ranks 0-1 \(\S+\) share GPU \S+ \(Fake GPU 1\): one rank per GPU is fastest", result.err), result


def test_ranks_that_share(place):
    result = train(place, ranks=4, FAKEGPU_DEVICES=2)
    assert re.search(r"warning: ranks 0, 2 \(\S+\) share GPU \S+ \(Fake GPU 0\), and 1 more are shared", result.err), result
    assert result.err.count("warning") == 1 and len(set(buses(result))) == 2
    assert "for 4 ranks" in header(result, "device") and begun(place)["gpus"] == 2
    result = apart(place, *[{"FAKEGPU_DEVICES": 2, "CUDA_VISIBLE_DEVICES": n} for n in (0, 1, 1, 0)], words=("--resume", "none", "--output", "odd"))
    assert re.search(r"warning: ranks 0, 3 \(\S+\) share GPU \S+ \(Fake GPU 0\), and 1 more are shared", result.err), result
    assert header(result, "device").startswith("cuda: Fake GPU 0 of 2.15 GB, Fake GPU 1 of 2.15 GB for 4 ranks"), result
    result = train(place, ranks=2, output="parts", FAKEGPU_DEVICES=1, FAKEGPU_MODEL="Fake MIG 1g.10gb")
    assert "share" not in result.err and begun(place, "parts")["gpus"] == 1, result


# Much to compute for a few weights, and 1.9 million weights for a few samples. Neither ends before max_time.
PAYS = """
data: {train: synthetic, synthetic: {samples: 64, shape: [3, 32, 32]}}
model: {type: sequential, layers: [{conv: {channels: 32, kernel: 5, padding: same}}, {maxpool: 8}, flatten, {dense: 10}]}
batch: {global: 48}
train: {steps: 20000, max_time: 1 s}
"""
COSTS = """
data: {train: synthetic, synthetic: {samples: 64, shape: [784]}}
model: {type: mlp, hidden: [1024, 1024], outputs: 10}
batch: {global: 16}
comm: {transport: mpi}
train: {steps: 20000, max_time: 1 s}
"""


def test_ranks_auto_is_one_a_gpu(place):
    dpt.write_job(place / "job.yaml", PAYS)
    train(place, "--ranks", "auto", code=75, FAKEGPU_DEVICES=3)
    assert begun(place)["ranks"] == 3 and begun(place)["gpus"] == 3
    cores = len(os.sched_getaffinity(0))
    train(place, "--ranks", "auto", "--set", "device.kind=cpu", code=75, output="cpu", FAKEGPU_DEVICES=cores + 1)
    assert begun(place, "cpu")["ranks"] in (1, cores)  # one where more would take longer


def test_ranks_auto_takes_as_many_gpus_as_pay(place):
    """To sum so many weights takes longer than to compute them from few samples. Whoever asks for the ranks is told."""
    dpt.write_job(place / "job.yaml", COSTS)
    result = train(place, "--ranks", "auto", code=75, FAKEGPU_DEVICES=3, FAKEGPU_LOG=place / "log.%p")
    assert re.search(r"^--ranks auto: one rank; 3 would be slower: a step takes about \S+ ms on one, and exchanging \S+ ms$", result.err, re.M), result
    assert begun(place)["ranks"] == 1
    contexts = 0
    for path in glob.glob(str(place / "log.*")):
        with open(path, encoding="utf-8") as file:
            contexts += "cuDevicePrimaryCtxRetain" in file.read()
    assert contexts == 2, "the plan's own process has ended with its context; the one that trains has another"
    told = r"^1 GPU would be faster than 3: a step takes about \S+ ms on one, and exchanging its sum \S+ ms \(--ranks auto chooses\)$"
    assert re.search(told, train(place, ranks=3, code=75, output="three", FAKEGPU_DEVICES=3).err, re.M)
    small = train(place, "--ranks", "auto", code=75, output="small", FAKEGPU_DEVICES=3, FAKEGPU_MEMORY=500_000_000)
    assert begun(place, "small")["ranks"] == 3 and "--ranks auto" not in small.err, "CUDA's context alone does not fit, by the plan, whoever divides what"
    linked = train(place, "--ranks", "auto", "--set", "comm.transport=auto", code=75, output="linked", FAKEGPU_DEVICES=3, FAKENCCL_VERSION=22803,
                   FAKEGPU_MODEL="NVIDIA H200")
    assert begun(place, "linked")["ranks"] == 3 and "--ranks auto" not in linked.err, "NCCL sums them over NVLink in less time than that takes"
    dpt.write_job(place / "job.yaml", PAYS)
    assert "would be faster" not in train(place, ranks=3, code=75, output="pays", FAKEGPU_DEVICES=3).err


# --- not all have one

def test_auto_where_none_has_one(place):
    result = train(place, ranks=2, LD_LIBRARY_PATH=NONE)
    assert begun(place)["device"] != "cuda" and "GPU" not in result.err and "warning" not in result.err, result
    result = train(place, output="blind", CUDA_VISIBLE_DEVICES="")
    assert begun(place, "blind")["device"] != "cuda" and "GPU" not in result.err, result


def test_auto_where_some_have_one(place):
    result = apart(place, {}, {"LD_LIBRARY_PATH": NONE}, {"LD_LIBRARY_PATH": NONE})
    assert begun(place)["device"] != "cuda"
    assert re.search(r"^warning: no GPU for ranks 1-2 \(\S+\): the NVIDIA driver .*libcuda.*So all ranks compute on CPUs$",
                     result.err, re.M), result
    assert result.err.count("warning") == 1


def test_cuda_without_one(place):
    words = ("--set", "device.kind=cuda")
    result = train(place, *words, ranks=2, code=78, LD_LIBRARY_PATH=NONE)
    line = result.err.splitlines()[0]
    assert re.search(r"job\.yaml: device\.kind: cuda: the NVIDIA driver .*: install the driver", line), result
    line = apart(place, {}, {"LD_LIBRARY_PATH": NONE}, words=words, code=78).err.splitlines()[0]
    assert re.search(r"job\.yaml: rank 1 \(\S+\): device\.kind: cuda: the NVIDIA driver", line), line
    line = train(place, *words, code=78, CUDA_VISIBLE_DEVICES="7").err.splitlines()[0]
    assert 'shows no GPU (CUDA_VISIBLE_DEVICES is "7")' in line
    assert not os.path.exists(place / "run"), "nothing was begun"


def test_a_device_that_cannot_be_taken(place):
    """Another process has it for itself: `auto` does without and says why, `cuda` is refused."""
    fails = {"FAKEGPU_FAIL": "cuDevicePrimaryCtxRetain:1+:101", "FAKEGPU_QUIET": 1}
    result = train(place, **fails)
    assert begun(place)["device"] != "cuda" and "warning: the GPUs stay idle: CUDA: cuDevicePrimaryCtxRetain" in result.err, result
    result = train(place, "--set", "device.kind=cuda", code=71, output="none", **fails)
    assert "device.kind: cuda: CUDA: cuDevicePrimaryCtxRetain" in result.err, result


# --- sums in GPU memory

def test_what_mpi_says_of_itself(place):
    sums = header(train(place, ranks=2, FAKEGPU_DEVICES=2), "sums").split("\n")[0]
    if sums.startswith("in GPU memory: yes"):
        pytest.skip("this MPI takes GPU memory")
    assert re.fullmatch(r"in GPU memory: no \(.* (reports that it cannot|does not report that it can)\)", sums), sums
    assert begun(place)["cuda_aware"] == sums.split(": ")[1]


def test_on_and_it_can(place):
    """The host may touch the memory, so any MPI can; the losses are those of sums on the host."""
    losses = {}
    for aware in ("on", "off"):
        result = train(place, "--set", f"comm.cuda_aware={aware}", ranks=2, output=aware, FAKEGPU_DEVICES=2, FAKEGPU_PROTECT=0)
        losses[aware] = [event["loss"] for event in dpt.events(place / aware, "train")]
        want = "yes (sums of 1024 to 262144 floats on the GPU came out right)" if aware == "on" else "no (comm.cuda_aware: off)"
        # What deterministic kernels cost may stand below it, where a busy machine has the times differ.
        assert header(result, "sums").split("\n")[0] == "in GPU memory: " + want
    assert len(losses["on"]) == 2 and losses["on"] == pytest.approx(losses["off"], rel=1e-6)


def test_on_and_it_crashes(place):
    result = train(place, "--set", "comm.cuda_aware=on", ranks=2, code=78, FAKEGPU_DEVICES=2)
    assert re.search(r"rank \d \(\S+\): comm\.cuda_aware: on: this MPI \(.*\) cannot sum GPU memory: it crashed when that was tried; "
                     r"`auto` or `off` goes through the host's memory", result.err), result


# --- doctor

def doctor(place, ranks, **more):
    result = call(place, [*(["mpirun", "-np", ranks] if ranks else []), dpt.BINARY, "doctor", "--json", "--output", place], **more)
    assert result.code == 0, result
    return {line["name"]: line for line in json.loads(result.out)["checks"] if line["section"] == "GPU"}


def test_doctor(place):
    found = doctor(place, 0, FAKEGPU_DEVICES=2)
    assert found["libraries"]["level"] == "ok" and "cuDNN 9" in found["libraries"]["found"]
    assert found["device 0"]["found"].startswith("Fake GPU 0, 2.15 GB") and found["GPU ranks"]["found"] == "it has a GPU"
    found = doctor(place, 2, FAKEGPU_DEVICES=1)
    assert found["GPU ranks"]["level"] == "warning" and "ranks 0-1" in found["GPU ranks"]["found"]
    assert "share GPU" in found["GPU ranks"]["found"]
    # The memory cannot be touched: the trial's child crashes, and no sum is tried.
    assert not found["CUDA-aware MPI"]["found"].startswith("yes") and "GPU sum" not in found


def test_doctor_measures_sums_in_gpu_memory(place):
    found = doctor(place, 2, FAKEGPU_DEVICES=2, FAKEGPU_PROTECT=0)
    assert found["CUDA-aware MPI"]["found"].startswith("yes")
    assert re.fullmatch(r"\S+ \S+ for 4\.2 MB in GPU memory, bus bandwidth \S+ \S+B/s", found["GPU sum"]["found"]), found


def test_doctor_where_a_rank_has_none(place):
    doctor_it = f"'{dpt.BINARY}' doctor --json"
    result = call(place, dpt.each_rank(f"exec {doctor_it}", f"LD_LIBRARY_PATH='{NONE}' exec {doctor_it}"))
    assert result.code == 0, result
    ranks = [check for check in json.loads(result.out)["checks"] if check["name"] == "GPU ranks"]
    assert len(ranks) == 1 and ranks[0]["level"] == "warning" and "no GPU for rank 1" in ranks[0]["found"], ranks


def test_libraries_that_are_missing(place, tmp_path):
    """A driver alone: doctor says what is missing, `auto` computes on CPUs and says why."""
    half = tmp_path / "half"
    half.mkdir()
    os.symlink(os.path.join(FAKE, "libcuda.so.1"), half / "libcuda.so.1")
    os.symlink(os.path.join(FAKE, "libcublasLt.so.13"), half / "libcudnn.so.9")  # which has none of cuDNN's functions
    found = doctor(place, 0, LD_LIBRARY_PATH=half)["libraries"]
    assert found["level"] == "warning" and re.search("cuDNN 9 .* has no function", found["found"]), found
    result = train(place, LD_LIBRARY_PATH=half)
    assert begun(place)["device"] != "cuda" and "warning: the GPUs stay idle: cuDNN 9" in result.err, result


def as_pip_installs(folder):
    """cuDNN and cuBLASLt where pip puts them; the driver alone where the loader looks. Gives the environment that says so."""
    for name, below in (("libcuda.so.1", "driver"), ("libcudnn.so.9", "site-packages/nvidia/cudnn/lib"),
                        ("libcublasLt.so.13", "site-packages/nvidia/cu13/lib")):
        os.makedirs(folder / below)
        shutil.copy(os.path.join(FAKE, name), folder / below)
    return {"LD_LIBRARY_PATH": folder / "driver", "DPTRAIN_CUDA_PATH": f"{NONE}:{folder / 'site-packages'}"}


def test_libraries_that_pip_installed(place, tmp_path):
    """They are found by DPTRAIN_CUDA_PATH, a job trains with them, and --version and doctor say where they are."""
    where = as_pip_installs(tmp_path / "pip")
    files = {"libcuda": "driver/libcuda.so.1", "cuDNN": "site-packages/nvidia/cudnn/lib/libcudnn.so.9",
             "cuBLASLt": "site-packages/nvidia/cu13/lib/libcublasLt.so.13"}
    result = train(place, "--set", "device.kind=cuda", ranks=2, FAKEGPU_DEVICES=2, **where)
    assert begun(place)["gpus"] == 2 and "cuBLASLt 13.0" in header(result, "device"), result
    version = call(place, [dpt.BINARY, "--version"], **where).out
    found = doctor(place, 0, **where)
    for name, path in files.items():
        path = str(tmp_path / "pip" / path)
        assert re.search(rf"^  {name} +{path}$", version, re.M), version
        assert found[name]["level"] == "ok" and found[name]["found"] == path, found


def test_a_library_that_lacks_functions(place, tmp_path):
    """The file that was taken is named: there may be others."""
    where = as_pip_installs(tmp_path / "pip")
    taken = tmp_path / "pip" / "site-packages/nvidia/cudnn/lib/libcudnn.so.9"
    shutil.copy(os.path.join(FAKE, "libcublasLt.so.13"), taken)  # which has none of cuDNN's functions
    result = train(place, "--set", "device.kind=cuda", code=78, **where)
    assert f"cuDNN 9 ({taken}) has no function cudnnGetVersion: it is too old" in result.err, result


# --- plan

def plan(place, *words, **more):
    result = call(place, [dpt.BINARY, "plan", place / "job.yaml", "--json", *words], **more)
    assert result.code == 0, result
    return json.loads(result.out)


CNN = """
data: {train: synthetic, synthetic: {samples: 2000, shape: [3, 32, 32], classes: 10}}
model: {type: cnn, channels: [32, 64], kernel: 3, padding: same, pool: 2, outputs: 10}
batch: {global: 128}
train: {steps: 1}
checkpoint: {every: never}
"""


def test_planned_memory_is_what_is_allocated(place):
    dpt.write_job(place / "job.yaml", CNN.replace("32, 32", "16, 16").replace("128", "32"))
    device = plan(place, LD_LIBRARY_PATH=NONE, *("--device", "cuda"))["device"]
    assert not device["here"] and device["fits"]
    train(place, FAKEGPU_LOG=place / "log")
    with open(place / "log", encoding="utf-8") as file:
        allocated = sum(int(line.split()[1]) for line in file if re.match(r"cuMemAlloc \d", line))
    planned = device["bytes"] - device["parts"]["context"]
    # How large a workspace is only the libraries can tell: the plan has the most that is usual.
    assert 0.9 * (planned - device["parts"]["workspace"]) < allocated < 1.1 * planned, (planned, allocated)


def test_gpus_by_name(place):
    dpt.write_job(place / "job.yaml", CNN)
    seconds = {}
    for name in ("v100", "a100", "h100", "b200"):
        found = plan(place, "--device", name, LD_LIBRARY_PATH=NONE)
        assert found["backend"] == "cuda" and not found["device"]["here"] and name.upper() in found["device"]["name"].upper()
        seconds[name] = found["time"]["step"]["seconds"]
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True), seconds
    here = plan(place, FAKEGPU_DEVICES=2)
    assert here["device"]["here"] and here["device"]["name"] == "Fake GPU 0", "auto: what is here"
    unknown = call(place, [dpt.BINARY, "plan", place / "job.yaml", "--device", "h1000"])
    assert unknown.code == 78 and "h1000" in unknown.err, unknown


def test_a_micro_batch_that_does_not_fit(place):
    dpt.write_job(place / "job.yaml", CNN.replace("samples: 2000", "samples: 100000").replace("global: 128", "global: 32768"))
    own = plan(place, "--device", "t4", "--no-time", "--set", "batch.micro=32768")
    assert not own["device"]["fits"] and 0 < own["device"]["micro_that_fits"] < 32768
    fits = plan(place, "--device", "t4", "--no-time", "--set", f"batch.micro={own['device']['micro_that_fits']}")
    assert fits["device"]["fits"]
    assert plan(place, "--device", "t4", "--no-time")["device"]["fits"], "left to it, it takes one that fits"


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_bench_tells_of_each_launch(place, reduction):
    line = [dpt.BINARY, "bench", place / "job.yaml", "--set", "device.kind=cuda", "--set", f"comm.reduction={reduction}", "--steps", 15]
    words = call(place, line)
    assert words.code == 0, words
    found = json.loads(call(place, [*line, "--json"]).out)
    kinds = [(row["part"], row["pass"]) for row in found["rows"]]
    for name in ("product forward + bias", "product filter", "cross_entropy_f32", *(["adam", "norm", "gather"] if reduction == "allreduce" else [])):
        assert any(kind.startswith(name) for _, kind in kinds), (name, kinds)
        assert name in words.out
    assert found["steps"] == 15 and found["gpu"]["name"] == "Fake GPU 0"
    assert found["sum"]["seconds"] == pytest.approx(sum(row["seconds"] for row in found["rows"]))
    for row in found["rows"]:
        flop, moved = row["flop"] / found["gpu"]["flop_per_s"], row["bytes"] / found["gpu"]["bytes_per_s"]
        assert row["limit_s"] == pytest.approx(max(flop, moved)) and row["by"] == ("bytes" if moved >= flop else "flop")
    assert "times the sum of its launches" in words.out
    assert max(map(len, words.out.splitlines())) <= 100
