"""The machine around a GPU: the CPUs of its NUMA node, what hides other GPUs, and which of them reach each other; on a fake GPU (test_gpu.py)."""
import json
import os
import re
import shlex
import subprocess
import sys
import time

import pytest

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402
from test_gpu import (NONE, environment, call, train, apart, begun, header, doctor, place, pytestmark)  # noqa: E402,F401

MACHINE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <glob.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the system says of GPUs lies in a folder of the test. */
static const char *moved(const char *path, char *room)
{
    if (strncmp(path, "/sys/bus/pci/", 13) != 0 && strncmp(path, "/proc/driver/nvidia/", 20) != 0)
        return path;
    snprintf(room, 4096, "%s%s", getenv("MACHINE"), path);
    return room;
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");
    char room[4096];

    return real(moved(path, room), mode);
}

int glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *found)
{
    int (*real)(const char *, int, int (*)(const char *, int), glob_t *) =
        (int (*)(const char *, int, int (*)(const char *, int), glob_t *))dlsym(RTLD_NEXT, "glob");
    char room[4096];

    return real(moved(pattern, room), flags, failed, found);
}
"""
CPUS = """
/* A machine of eight CPUs, for one thread. MPI's hwloc goes from one to the next for a moment: as thread 0. */
static unsigned char cpus = 255;

int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set)
{
    (void)thread;
    memset(set, 0, size);
    memcpy(set, &cpus, 1);
    return 0;
}

int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *set)
{
    (void)size;
    if (thread != 0) {
        char path[4096];
        FILE *file;

        memcpy(&cpus, set, 1);
        snprintf(path, sizeof path, "%s/bound", getenv("MACHINE"));
        file = fopen(path, "a");
        fprintf(file, "%02x\\n", cpus);
        fclose(file);
    }
    return 0;
}
"""
OWN = sorted(os.sched_getaffinity(0))


def cpu_list(cpus):
    return ",".join(map(str, cpus))


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    """Gives the environment of a machine with these files: its GPUs' CPUs, by number; what its driver lists; its PCI devices."""
    libraries = tmp_path_factory.mktemp("machine")
    plain, eight = dpt.library(libraries, "machine", MACHINE), dpt.library(libraries, "eight", MACHINE + CPUS)

    def make(near=(), listed=0, devices=(), own=plain):
        folder = tmp_path_factory.mktemp("root")
        pci = folder / "sys/bus/pci/devices"
        for number, cpus in enumerate(near):
            (pci / f"0000:{0x10 + number:02x}:00.0").mkdir(parents=True)
            (pci / f"0000:{0x10 + number:02x}:00.0" / "local_cpulist").write_text(cpus + "\n")
        for number in range(listed):
            (folder / f"proc/driver/nvidia/gpus/0000:{0x10 + number:02x}:00.0").mkdir(parents=True)
        for number, (vendor, kind) in enumerate(devices):
            (pci / f"0000:{number:02x}:00.0").mkdir(parents=True)
            (pci / f"0000:{number:02x}:00.0" / "vendor").write_text(vendor + "\n")
            (pci / f"0000:{number:02x}:00.0" / "class").write_text(kind + "\n")
        return {"LD_PRELOAD": own, "MACHINE": folder}

    make.eight = eight
    return make


def threads_of(process):
    """The CPUs of each thread of a process, once it stands still."""
    folder = f"/proc/{process.pid}"
    for _ in range(600):
        with open(f"{folder}/stat", encoding="utf-8") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                break
        time.sleep(0.1)
    return {number: os.sched_getaffinity(int(number)) for number in os.listdir(f"{folder}/task")}


halves = pytest.mark.skipif(len(OWN) < 2, reason="needs two cores")
NEAR, FAR = OWN[:(len(OWN) + 1) // 2], OWN[(len(OWN) + 1) // 2:]


@halves
def test_a_rank_binds_itself_beside_its_gpu(place, machine):
    """All of its threads, also the driver's, which are there before."""
    near = {**machine([cpu_list(NEAR)]), "FAKEGPU_DEVICES": 1}
    result = train(place, **near)
    told = header(result, "device")
    assert re.search(r" threads on CPUs (.*), the GPU's NUMA node$", told, re.M), result
    assert begun(place)["gpu_cpus"] == re.search(r"on CPUs (.*), the GPU", told)[1]
    with subprocess.Popen([dpt.BINARY, place / "job.yaml", "--output", "stands"], cwd=place, stderr=subprocess.DEVNULL,
                          env={name: str(text) for name, text in environment(place, DPTRAIN_FAULT="stop:rank=0:step=1", **near).items()}) as process:
        try:
            threads = threads_of(process)
        finally:
            process.kill()
    assert len(threads) > 2 and set(map(frozenset, threads.values())) == {frozenset(NEAR)}, threads


@halves
def test_each_rank_binds_itself(place, machine):
    result = train(place, ranks=2, FAKEGPU_DEVICES=2, **machine([cpu_list(NEAR), cpu_list(FAR)]))
    assert re.search(r" threads on their GPU's NUMA node: all ranks; rank 0 on CPUs ", header(result, "device")), result
    result = train(place, ranks=2, output="one", FAKEGPU_DEVICES=2, **machine([cpu_list(OWN), cpu_list(FAR)]))
    assert re.search(r" NUMA node: rank 1 \(\S+\); rank 1 on CPUs ", header(result, "device")), result
    assert "gpu_cpus" not in begun(place, "one")


@halves
def test_a_rank_that_its_launcher_has_bound(place, machine):
    """It stays where it is; doctor says if that is not beside its GPU."""
    for cpus, told in ((NEAR, 0), (FAR, 1)):
        try:
            os.sched_setaffinity(0, cpus)
            given = {**machine([cpu_list(NEAR)], listed=1), "FAKEGPU_DEVICES": 1}
            result = train(place, output=f"run-{told}", **given)
            found = doctor(place, 0, **given)
        finally:
            os.sched_setaffinity(0, OWN)
        assert "NUMA" not in result.err and "gpu_cpus" not in begun(place, f"run-{told}"), result
        assert [found[name]["level"] for name in found if name == "GPU's CPUs"] == ["warning"] * told, found
    assert "--bind-to none" in found["GPU's CPUs"]["advice"]


@pytest.mark.parametrize("near, bound", [("0-3", "0-3"), ("4-5,7,6,900", "4-7"), ("0-2", None), ("0-7", None), ("8-15", None), ("", None)])
def test_a_rank_keeps_half_of_its_cpus(place, machine, near, bound):
    """What decodes samples needs CPUs more than near ones. Of eight."""
    eight = machine([near], own=machine.eight)
    train(place, FAKEGPU_DEVICES=1, **eight)
    assert begun(place).get("gpu_cpus") == bound
    assert bound is None or len((eight["MACHINE"] / "bound").read_text().split()) == 1


def test_a_rank_on_cpus_stays_free(place, machine):
    """Where another rank has no GPU, all compute on CPUs, and on all of them."""
    half = machine(["0-3"], own=machine.eight)
    result = apart(place, half, {**half, "LD_LIBRARY_PATH": NONE})
    assert begun(place)["device"] != "cuda" and "NUMA" not in result.err and not (half["MACHINE"] / "bound").exists(), result


def hidden(place, *ranks):
    """What doctor says of GPUs that are hidden from ranks with these environments."""
    call_it = f"exec '{dpt.BINARY}' doctor --json"
    result = call(place, dpt.each_rank(*(f"{shlex.join(['export', *(f'{name}={text}' for name, text in own.items())])}; {call_it}" for own in ranks)))
    assert result.code == 0, result
    found = [line for line in json.loads(result.out)["checks"] if line["name"] == "hidden GPUs"]
    assert len(found) <= 1, result
    return found[0] if found else None


def test_doctor_says_what_hides_gpus(place, machine):
    four = {**machine(listed=4), "FAKEGPU_DEVICES": 4}
    assert hidden(place, four, four) is None
    one = hidden(place, {**four, "CUDA_VISIBLE_DEVICES": 2})
    assert one["level"] == "ok" and re.fullmatch(r"CUDA_VISIBLE_DEVICES hides GPUs from rank 0 \(\S+\), which sees 1 of 4", one["found"]), one
    pair = [{**four, "CUDA_VISIBLE_DEVICES": number} for number in (1, 3)]
    two = hidden(place, *pair)
    assert two["level"] == "warning" and re.search(r"from ranks 0-1 \(\S+\), which see 1 of 4$", two["found"]) and "unset it" in two["advice"], two
    two = hidden(place, *({**own, "SLURM_JOB_ID": 7} for own in pair))
    assert two["level"] == "warning" and "sbatch --gpus-per-node=N, without --gpus-per-task and --gpu-bind" in two["advice"], two
    two = hidden(place, *2 * [{**four, "FAKEGPU_DEVICES": 1}])
    assert two["level"] == "warning" and two["found"].startswith("a control group hides GPUs from ranks 0-1"), two
    assert hidden(place, *2 * [{**four, "FAKEGPU_DEVICES": 2}])["level"] == "ok", "all that the job was given, maybe"
    assert hidden(place, {**four, "FAKEGPU_DEVICES": 1, "FAKEGPU_MODEL": "Fake MIG 1g.10gb"}) is None


def test_doctor_finds_gpus_among_pci_devices(place, machine):
    """Where the driver lists none: another vendor's, a sound card and a bridge are none."""
    devices = [("0x10de", "0x030200"), ("0x10de", "0x030000"), ("0x10de", "0x040300"), ("0x10de", "0x068000"), ("0x1234", "0x030000")]
    there = {**machine(devices=devices), "FAKEGPU_DEVICES": 1}
    assert hidden(place, there)["found"].endswith("sees 1 of 2")
    assert hidden(place, {**there, "FAKEGPU_DEVICES": 2}) is None


def test_doctor_says_which_gpus_do_not_reach_others(place):
    found = doctor(place, 0, FAKEGPU_DEVICES=3)["peer memory"]
    assert found["level"] == "ok" and found["found"] == "between all 3 devices"
    found = doctor(place, 2, FAKEGPU_DEVICES=3, FAKEGPU_PEERS=0)["peer memory"]
    assert found["level"] == "warning" and found["found"] == "none between devices 0 and 1, nor in 2 more pairs", found
    assert "nvidia-smi topo -p2p r" in found["advice"]
    assert "peer memory" not in doctor(place, 0, FAKEGPU_DEVICES=1, FAKEGPU_PEERS=0)


UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
LINKED = {"FAKEGPU_DEVICES": 3, "FAKEGPU_MODEL": "Fake", "FAKENCCL_VERSION": 22803}


def test_doctor_measures_sums_by_nccl(place):
    """nccl-tests' bus bandwidth of 3 ranks is 2 * 2 / 3 of the bytes per second."""
    found = doctor(place, 3, **LINKED)["NCCL sum"]
    assert found["level"] == "ok" and found["found"].startswith("NCCL 2.28.3: "), found
    numbers = [float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+) (us|ms|s|[kMG]B/s)\b", found["found"])]
    assert re.search("for 128 B, .* for 4.2 MB, .* for 33.6 MB; bus bandwidth .* and ", found["found"]) and len(numbers) == 5, found
    for n, seconds, rate in zip((1 << 20, 8 << 20), numbers[1:3], numbers[3:]):
        assert rate == pytest.approx(2 * 2 / 3 * 4 * n / seconds, rel=0.02), found


def test_doctor_says_why_nccl_does_not_sum(place):
    for told, given in (("2.14 or later", {"FAKENCCL_VERSION": 0}), ("remote process exited", {"FAKEGPU_FAIL": "ncclCommInitRank:1"}),
                        ("a trial sum came out wrong", {"FAKENCCL_WRONG": 1})):
        found = doctor(place, 2, **{**LINKED, **given})["NCCL sum"]
        assert found["level"] == "warning" and told in found["found"] and "MPI sums" in found["advice"], found
    assert "NCCL sum" not in doctor(place, 2, **{**LINKED, "FAKEGPU_DEVICES": 1}), "that ranks share a GPU is said already"


# NCCL's words, as its sources have them: src/transport/{p2p,shm,net}.cc.
@pytest.mark.parametrize("version, via, level, said", [
    (21403, "P2P/IPC", "ok", "on a node from GPU to GPU (P2P/IPC)"), (22005, "P2P/direct pointer", "ok", "on a node from GPU to GPU (P2P/direct)"),
    (22803, "P2P/CUMEM/read", "ok", "on a node from GPU to GPU (P2P/CUMEM/read)"), (22803, "SHM/direct/direct", "warning", "through the host's memory (SHM)"),
    (21805, "NET/Socket/0", "warning", "through the network (NET/Socket), though on one node"),
    (22304, "NET/AWS Libfabric/1(2)/GDRDMA", "warning", "through the network (NET/AWS Libfabric), though on one node")])
def test_doctor_reads_the_log_of_nccl(place, version, via, level, said):
    found = doctor(place, 2, **{**LINKED, "FAKENCCL_VERSION": version, "FAKENCCL_VIA": via, "FAKENCCL_NETWORK": "IB"})
    assert found["NCCL's links"]["level"] == level and said in found["NCCL's links"]["found"], found
    assert found["NCCL's network"]["found"] == "IB, which ranks of one node do not use"


@pytest.mark.parametrize("line", ["P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.",
                                  "Could not enable P2P between dev 0(=10000) and dev 1(=11000)", ""])
def test_doctor_says_that_nccl_has_no_peer_memory(place, line):
    found = doctor(place, 2, **LINKED, FAKENCCL_VIA="SHM/direct/direct", FAKENCCL_SAYS=line)["NCCL's links"]
    assert ("its log says that P2P is disabled" if line else "NCCL_P2P_LEVEL=SYS") in found["advice"], found


def test_doctor_leaves_a_log_to_the_user(place):
    """Nothing is told of it, and nothing else is left behind; without one, doctor's own variables are nobody's finding."""
    result = call(place, ["mpirun", "-np", 2, dpt.BINARY, "doctor", "--json"], **LINKED, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=place / "log")
    found = {line["name"]: line for line in json.loads(result.out)["checks"]}
    assert "since NCCL_DEBUG or NCCL_DEBUG_FILE is set" in found["NCCL's links"]["found"] and "Using network Socket" in (place / "log").read_text(), found
    before = sorted(os.listdir("/tmp")), sorted(os.listdir(place))
    result = call(place, ["mpirun", "-np", 2, dpt.BINARY, "doctor", "--json"], **LINKED)
    assert "NCCL_DEBUG" not in result.out and not [name for name in os.listdir("/tmp") if "nccl" in name and name not in before[0]], result
    assert sorted(os.listdir(place)) == before[1]
