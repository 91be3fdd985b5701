"""dptrain doctor: what it says about a machine, about ranks that differ, about folders, GPUs and Slurm; that it ends, and keeps
nothing."""
import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/comm/tests")
import dpt  # noqa: E402
import test_nodes  # noqa: E402
from test_nodes import cluster  # noqa: E402,F401

# What this machine is busy with, or short of, is no error of these tests.
OF_THE_MACHINE = {"load", "cores", "speed", "small sum", "large sum", "free space", "memory", "processor", "huge pages", "/dev/shm",
                  "temporary files", "driver", "frequency", "flock", "locked memory", "open files", "devices", "backend",
                  "libraries", "GPU ranks"}
CHECKS = {"dptrain", "backend", "user", "library", "launcher", "threads", "ranks", "cores", "shared memory", "small sum", "system",
          "processor", "speed", "frequency", "NUMA", "huge pages", "memory", "/dev/shm", "temporary files", "driver",
          "HDF5", "output folder", "free space", "run lock", "open files", "stack", "job"}


def environment(**more):
    """Without what the one who runs the tests has set."""
    kept = {name: text for name, text in os.environ.items()
            if not re.match(r"SLURM_|LD_PRELOAD|OMP_|GOMP_|KMP_|DNNL_|ONEDNN_|MALLOC_|CUDA_|HDF5_|NCCL_", name)}
    # A library that is loaded before AddressSanitizer's is meant here.
    options = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return {**kept, **dpt.MPI_ENVIRONMENT, "ASAN_OPTIONS": options, **more}


def call(*words, **more):
    return dpt.Result(subprocess.run(list(map(str, words)), env=environment(**more), timeout=120, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE))


def doctor(*words, ranks=0, **more):
    start = ["mpirun", "-np", ranks] if ranks else []
    return call(*start, dpt.BINARY, "doctor", *words, **more)


def by_hand(*ranks, words=("--json",), **more):
    """Each rank by a shell line of its own, in which DOCTOR is the program."""
    return call(*dpt.each_rank(*(script.replace("DOCTOR", f"exec '{dpt.BINARY}' doctor {' '.join(words)}") for script in ranks)), **more)


def lines(result, name):
    """The report's lines under a name."""
    return [line for line in json.loads(result.out)["checks"] if line["name"] == name]


def one(result, name):
    found = lines(result, name)
    assert len(found) == 1, (name, found, result)
    return found[0]


def wrong(result):
    return {line["name"] for line in json.loads(result.out)["checks"] if line["level"] != "ok"} - OF_THE_MACHINE


def test_where_a_mesh_would_be(tmp_path):
    """On several nodes: test_nodes, below."""
    found = one(doctor("--json", "--output", tmp_path, "--limit", 60, "--mesh", "3x2", ranks=2), "mesh")
    assert found["level"] == "warning" and found["found"] == "3x2 are 6 ranks, and 2 are here" and found["advice"]
    for wrong in ("3", "ax2", "2x", "2x2x2x2", "0x4", "2x-1", ""):
        result = doctor("--mesh", wrong)
        assert result.code == 2 and "give ranks along data and pipeline, as 4x2" in result.err, result


@pytest.mark.parametrize("ranks", [0, 1, 2, 3])
def test_a_machine_that_is_well(tmp_path, ranks):
    result = doctor("--json", "--output", tmp_path, ranks=ranks)
    assert result.code == 0, result
    report = json.loads(result.out)
    assert report["ranks"] == max(ranks, 1) and report["nodes"] == 1 and report["failed"] == 0
    assert len(report["hosts"]) == report["ranks"]
    assert CHECKS <= {line["name"] for line in report["checks"]}
    # All ranks agree here, so every line is told once.
    names = [line["name"] for line in report["checks"] if "ranks" not in line and line["section"] != "Limits"]
    assert len(names) == len(set(names)), result
    assert not [line for line in report["checks"] if "ranks" in line], result
    assert wrong(result) == ({"output folder"} if one(result, "output folder")["level"] == "warning" else set()), result
    assert (" for 32 floats" if ranks > 1 else "one rank") in one(result, "small sum")["found"], result
    assert os.listdir(tmp_path) == [], "it keeps nothing"


@pytest.mark.parametrize("words", [[], ["--ranks", "2"]])
def test_for_a_person(words):
    result = doctor("--output", ".", *words)
    assert result.code == 0 and result.err == "", result
    text = result.out.splitlines()
    assert text[0].endswith(f"doctor: {2 if words else 1} rank{'s' if words else ''} on 1 node")
    assert max(map(len, text)) < 80, result
    assert re.fullmatch(r"\d+ failed, \d+ warnings?|no problems found", text[-1]), result
    for line in text[1:-1]:
        assert re.match(r"$|[A-Z]|  (ok|warning|failed) +\S| {11}\S| {28}\S", line), line
    quiet = doctor("--output", ".", "--quiet", *words)
    assert quiet.code == 0 and "  ok  " not in quiet.out, quiet


def test_ranks_that_differ_are_named(tmp_path):
    """Another limit, another preloaded library, another variable: each on one rank of three."""
    library = tmp_path / "nothing.so"
    build(tmp_path, library, "int dpt_test_nothing;")
    result = by_hand("DOCTOR", f"ulimit -n 40; LD_PRELOAD='{library}' DOCTOR", "ulimit -n 900; OMPI_MCA_test_word=7 DOCTOR")
    assert result.code == 1, result
    files = lines(result, "open files")
    assert [(line["level"], line.get("ranks")) for line in files] == [("ok", [0]), ("failed", [1]), ("warning", [2])], files
    assert files[1]["found"] == "40" and "ulimit -n" in files[1]["advice"]
    preload = lines(result, "LD_PRELOAD")
    assert [(line["level"], line["ranks"], line["found"]) for line in preload] == [
        ("ok", [0, 2], "not set"), ("warning", [1], str(library))], preload
    word = lines(result, "OMPI_MCA_test_word")
    assert [(line["level"], line["ranks"], line["found"]) for line in word] == [
        ("ok", [0, 1], "not set"), ("warning", [2], "7")], word
    assert "mpirun -x" in word[1]["advice"]
    report = json.loads(result.out)
    assert report["failed"] == 1 and report["ranks"] == 3

    text = by_hand("DOCTOR", "ulimit -n 40; DOCTOR", words=("--quiet",)).out
    assert re.search(r"^  failed   open files       rank 1 \(\S+\): 40\n {11}ulimit -n", text, re.M), text


def test_another_program_is_a_failure(tmp_path):
    other = tmp_path / "dptrain"
    shutil.copy(dpt.BINARY, other)
    with open(other, "ab") as file:
        file.write(b"\0")
    result = by_hand("DOCTOR", f"exec '{other}' doctor --json")
    program = lines(result, "dptrain")
    assert result.code == 1 and [line["level"] for line in program] == ["ok", "failed"], result
    assert program[1]["ranks"] == [1] and program[0]["found"] != program[1]["found"]


def build(folder, library, source, *words):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    file = folder / (os.path.basename(library) + ".c")
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, file, *words], check=True, timeout=60)


def test_clocks_that_differ(tmp_path):
    """Cristian's algorithm finds 100 s that a library adds to one rank's clock."""
    library = tmp_path / "ahead.so"
    build(tmp_path, library, """
        #define _GNU_SOURCE
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *now)
        {
            const long code = syscall(SYS_clock_gettime, clock, now);

            if (clock == CLOCK_REALTIME)
                now->tv_sec += 100;
            return (int)code;
        }
        """)
    result = by_hand("DOCTOR", "DOCTOR", f"LD_PRELOAD='{library}' DOCTOR")
    clocks = one(result, "clocks")
    assert result.code == 1 and clocks["level"] == "failed", result
    assert re.match(r"rank 2 \(\S+\) is 100 s ahead of rank 0", clocks["found"]), clocks
    result = by_hand(f"LD_PRELOAD='{library}' DOCTOR", "DOCTOR")
    assert re.match(r"rank 1 \(\S+\) is 100 s behind rank 0", one(result, "clocks")["found"]), result


def test_a_check_that_hangs_is_told(tmp_path):
    """A file server that is gone: fsync never returns. Alone, and where one rank of two is hit."""
    library = tmp_path / "hang.so"
    build(tmp_path, library, "#include <unistd.h>\nint fsync(int fd) { for (;;) pause(); return fd; }\n")
    result = doctor("--limit", 1, "--output", tmp_path, LD_PRELOAD=str(library))
    assert result.code == 71 and "no answer for 1 s while checking output folder" in result.err, result
    assert len(result.err.splitlines()) == 1 and result.out == "", result
    result = by_hand(f"LD_PRELOAD='{library}' DOCTOR", "DOCTOR", words=("--limit", "1", "--output", f"'{tmp_path}'"))
    assert result.code != 0, result
    assert re.search(r"^rank 0 \(\S+\) has not arrived .*Its last word: checking output folder", result.err, re.M), result


# --- folders

def test_folders_that_runs_cannot_use(tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    for path, ranks in ((file, 0), (file / "below", 2), ("/proc/self", 0)):
        result = doctor("--json", "--output", path, ranks=ranks)
        folder = one(result, "output folder")
        assert result.code == 1 and folder["level"] == "failed" and str(path) in folder["found"], result
        assert "--output" in folder["advice"]
        assert not lines(result, "run lock") and json.loads(result.out)["failed"] == 1, result


def test_a_folder_that_is_not_there_yet(tmp_path):
    result = doctor("--json", "--output", f"{tmp_path}/a/b/c/")
    folder = one(result, "output folder")
    assert result.code == 0 and folder["found"].startswith(f"{tmp_path} (exists)"), result
    assert os.listdir(tmp_path) == [], "what is not there is not made"
    os.mkdir(tmp_path / "runs")
    done = subprocess.run([dpt.BINARY, "doctor", "--json"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    assert one(dpt.Result(done), "output folder")["found"].startswith("runs, ")


def test_a_disk_that_is_full(tmp_path):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    if done.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        result = doctor("--json", "--output", tmp_path, ranks=2)
        left = os.listdir(tmp_path)
    finally:
        subprocess.run(["umount", tmp_path], check=True, timeout=60)
    folder = one(result, "output folder")
    assert result.code == 1 and folder["level"] == "failed" and "No space left" in folder["found"], result
    assert "full" in folder["advice"] and left == []


def test_the_lock_of_a_run_is_left_alone(tmp_path):
    """A run that is at work in the folder, and what it has there, stay as they are."""
    (tmp_path / ".lock").write_text("somebody's\n")
    result = doctor("--json", "--output", tmp_path, ranks=2)
    assert result.code == 0 and "took turns" in one(result, "run lock")["found"], result
    assert os.listdir(tmp_path) == [".lock"] and (tmp_path / ".lock").read_text() == "somebody's\n"


# --- GPUs that are not there

CUDA = """
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    static int number(const char *name, int otherwise)
    {
        return getenv(name) != NULL ? atoi(getenv(name)) : otherwise;
    }
    int cuInit(unsigned flags) { return number("TEST_CUDA_CODE", (int)flags); }
    int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
    int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_SYSTEM_NOT_READY"; return code == 802 ? 0 : 1; }
    int cuDeviceGetCount(int *count) { *count = number("TEST_CUDA_COUNT", 2); return 0; }
    int cuDeviceGet(int *device, int i) { *device = i; return 0; }
    int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Test GPU 9000", size); return device < 0; }
    int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 80000000000ul; return device < 0; }
    int cuDeviceGetAttribute(int *value, int what, int device) { *value = what == 75 ? 9 : 0; return device < 0; }
    int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (char *)0 + device + 1; return 0; }
    static long current;
    int cuCtxSetCurrent(void *context) { current = (char *)context - (char *)0; return 0; }
    int cuMemGetInfo_v2(size_t *left, size_t *all)
    {
        *all = 80000000000ul;
        *left = current - 1 == number("TEST_CUDA_BUSY", -1) ? 1000000000ul : *all;
        return 0;
    }
    /* Where it is on a device, nobody else may touch it. */
    int cuMemAlloc_v2(unsigned long *at, size_t n)
    {
        *at = number("TEST_CUDA_APART", 0) ? 0x10000 : (unsigned long)malloc(n);
        return 0;
    }
    int cuMemsetD8Async(unsigned long at, unsigned char byte, size_t n, void *stream)
    {
        if (!number("TEST_CUDA_APART", 0))
            memset((void *)at, byte, n);
        return 0;
    }
    int cuMemcpyDtoHAsync_v2(void *to, unsigned long from, size_t n, void *stream) { memcpy(to, (void *)from, n); return 0; }
    int cuCtxSynchronize(void) { return 0; }
    int cuDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return 0; }
    int cuDeviceGetPCIBusId(char *text, int size, int device) { return snprintf(text, size, "0000:%02X:00.0", 0x17 + device) < 0; }
    """
NVML = """
    #include <stdlib.h>
    #include <string.h>
    int nvmlInit_v2(void) { return getenv("TEST_NVML_WRONG") != NULL ? 18 : 0; }
    int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, "550.54.15", n); return 0; }
    const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "?"; }
    """


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with libraries that say what a driver says."""
    folder = tmp_path_factory.mktemp("driver")
    build(folder, folder / "libcuda.so.1", CUDA)
    build(folder, folder / "libnvidia-ml.so.1", NVML)
    return str(folder)


def gpus(driver, ranks=0, **more):
    result = doctor("--json", ranks=ranks, LD_LIBRARY_PATH=driver, **more)
    assert result.code == 0, result
    return result


def test_gpus_are_told(driver):
    for ranks in (0, 2):
        result = gpus(driver, ranks)
        assert one(result, "driver")["found"] == "NVIDIA 550.54.15, for CUDA up to 12.4"
        assert one(result, "devices 0-1")["found"] == "Test GPU 9000, 80.0 GB, compute 9.0"
        assert one(result, "devices 0-1")["level"] == "ok"
        assert one(result, "CUDA-aware MPI")["found"].startswith("yes")
        assert not [line for line in json.loads(result.out)["checks"] if "ranks" in line], result


def test_gpus_that_others_use(driver):
    busy = one(gpus(driver, TEST_CUDA_BUSY="1"), "devices 0-1")
    assert busy["level"] == "warning" and "device 1 has 1.00 GB free" in busy["advice"], busy


def test_mpi_that_cannot_take_device_memory(driver):
    """It crashes at the probe, and only the probe does."""
    aware = one(gpus(driver, 2, TEST_CUDA_APART="1"), "CUDA-aware MPI")
    assert aware["found"].startswith("no") or aware["level"] == "warning", aware


def test_drivers_that_do_not_work(driver):
    result = gpus(driver, TEST_CUDA_CODE="802")
    assert one(result, "driver")["level"] == "warning", result
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in one(result, "driver")["found"]
    result = gpus(driver, TEST_CUDA_CODE="803", TEST_NVML_WRONG="1")
    assert one(result, "driver")["found"] == "Driver/library version mismatch", result
    result = gpus(driver, TEST_CUDA_COUNT="0", CUDA_VISIBLE_DEVICES="7")
    assert one(result, "devices")["found"] == "none to be seen, CUDA_VISIBLE_DEVICES=7", result
    assert not lines(result, "CUDA-aware MPI")


def test_no_driver():
    result = doctor("--json")
    if "no NVIDIA driver" not in one(result, "driver")["found"]:
        pytest.skip("here is one")
    assert one(result, "driver")["level"] == "ok"
    assert len([line for line in json.loads(result.out)["checks"] if line["section"] == "GPU"]) == 1, result


# --- the environment

@pytest.mark.parametrize("name, value, hurts", [
    ("DNNL_MAX_CPU_ISA", "AVX2", True),
    ("OMPI_MCA_btl", "tcp,self", True),
    ("OMPI_MCA_btl", "^vader", True),
    ("OMPI_MCA_btl", "self,vader,tcp", False),
    ("OMPI_MCA_btl", "^openib", False),
    ("MALLOC_PERTURB_", "5", True),
    ("GOMP_CPU_AFFINITY", "0", True),
    ("OMP_NUM_THREADS", "16", False),
    ("NCCL_P2P_DISABLE", "1", True),
    ("NCCL_P2P_DISABLE", "0", False),
    ("NCCL_SHM_DISABLE", "1", True),
    ("NCCL_IB_DISABLE", "1", True),
    ("NCCL_NET", "Socket", True),
    ("NCCL_NET", "IB", False),
])
def test_variables_that_hurt(name, value, hurts):
    result = doctor("--json", **{name: value})
    assert result.code == 0, result
    told = lines(result, name)
    assert [line["level"] for line in told] == ["warning"] * hurts, result
    assert bool(lines(result, "variable")) != hurts, result
    if name == "OMP_NUM_THREADS":
        assert "not heeded" in one(result, "variable")["found"]


def test_a_variable_that_may_be_meant():
    told = one(doctor("--json", NCCL_SOCKET_IFNAME="eth7"), "NCCL_SOCKET_IFNAME")
    assert told["level"] == "ok" and told["found"] == "eth7" and "each node must have them" in told["advice"]


def test_root_is_told_what_mpirun_wants():
    if os.geteuid() != 0:
        pytest.skip("not root")
    words = environment()
    words.pop("OMPI_ALLOW_RUN_AS_ROOT")
    done = subprocess.run([dpt.BINARY, "doctor", "--json"], env=words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    user = one(dpt.Result(done), "user")
    assert user["level"] == "warning" and "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in user["advice"]


def test_limits(tmp_path):
    result = call("sh", "-c", f"ulimit -f 100000; ulimit -t 1000; exec '{dpt.BINARY}' doctor --json --output '{tmp_path}'")
    assert one(result, "file size")["level"] == "warning" and one(result, "processor time")["found"] == "1 000 s", result


# --- Slurm

SLURM = {"SLURM_JOB_ID": "4711", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1"}


def test_a_job_of_slurm():
    end = str(int(time.time()) + 7300)
    result = doctor("--json", ranks=2, SLURM_JOB_END_TIME=end, SLURM_CPUS_ON_NODE="1", **SLURM)
    assert result.code == 0, result
    assert one(result, "job")["found"] == "4711: 2 ranks on 1 node" and one(result, "job")["level"] == "ok"
    assert re.match(r"2:0[01]:\d\d left", one(result, "time")["found"]), result
    assert {line["level"] for line in json.loads(result.out)["checks"] if line["section"] == "Slurm"} == {"ok"}, result


def test_a_job_of_slurm_that_is_used_in_part():
    end = str(int(time.time()) + 100)
    result = doctor("--json", ranks=2, SLURM_JOB_END_TIME=end, SLURM_CPUS_ON_NODE="512", **{**SLURM, "SLURM_NTASKS": "8"})
    job = one(result, "job")
    assert job["found"] == "4711: 8 tasks, but 2 ranks" and job["level"] == "warning" and "srun" in job["advice"], result
    told = [line for line in json.loads(result.out)["checks"] if line["section"] == "Slurm"]
    cores = [line for line in told if line["check"] == "cores"]
    assert "512 given" in cores[0]["found"] and cores[0]["level"] == "warning"
    assert one(result, "time")["level"] == "warning"


def test_srun_without_pmix():
    """MPI cannot start; all that needs no MPI is told all the same, once."""
    step = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    result = doctor("--json", SLURM_PROCID="0", **step)
    start = one(result, "start")
    assert result.code == 1 and start["level"] == "failed" and "--mpi=pmix" in start["found"], result
    assert one(result, "output folder")["level"] == "ok" and not lines(result, "clocks")
    result = doctor("--json", SLURM_PROCID="1", **step)
    assert result.code == 1 and result.out == "" and result.err == "", result


# --- several nodes

def test_nodes(cluster, tmp_path):  # noqa: F811
    """Each node has a name, a network and memory of its own; one cannot see the folder."""
    result = cluster.finish(cluster.start([2, 1, 1], "doctor", tmp_path, "--json", "--mesh", "2x2"))
    mesh = one(result, "mesh")
    assert mesh["level"] == "ok" and re.fullmatch(
        r"2x2: \S+: stage 1; \S+: stage 2; \S+: stage 2; between nodes go sums of gradients and values of stages", mesh["found"]), mesh
    assert result.code == 0, result
    report = json.loads(result.out)
    assert report["nodes"] == 3 and report["hosts"] == ["n1", "n1", "n2", "n3"], result
    assert "3 nodes, 1 to 2 on each" in one(result, "ranks")["found"], result
    assert re.search(r"us and .*B/s at worst, from n1 to 2 others|for a message to n|B/s to n", one(result, "network")["found"]), result
    assert one(result, "seen by")["found"] == "all 3 nodes" and "took turns" in one(result, "run lock")["found"], result
    assert "(n2)" in one(result, "run lock")["found"], result
    assert not lines(result, "dptrain")[1:], result


# --- the command line

@pytest.mark.parametrize("words, says", [
    (["job.yaml"], "takes no 'job.yaml'"),
    (["--limit", "0"], "--limit 0: must be a whole number"),
    (["--output", ""], "--output is empty"),
    (["--ranks", "no"], "a whole number"),
    (["--outptu", "x"], "did you mean --output?"),
])
def test_usage(words, says):
    result = doctor(*words)
    assert result.code == 2 and says in result.err and result.out == "" and len(result.err.splitlines()) == 1, result


def test_ranks_under_mpirun_is_refused():
    result = doctor("--ranks", 2, ranks=2)
    assert result.code == 2 and "leave one of the two out" in result.err, result
