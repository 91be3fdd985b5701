"""Several nodes on one machine: each has a network, a name, and shared memory of its own, and mpirun starts its ranks by nsenter
in ssh's place. What holds on one node holds there: results and sums are byte-identical, and a missing rank is named."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402
from tfevents import Events  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"
TIMEOUT = 2  # seconds: comm.timeout
SOON = 100  # seconds after which it hangs, mpirun's own start and end included
TOOLS = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
JOB = {
    "data": "{train: synthetic, synthetic: {samples: 512, shape: [1, 12, 12]}}",
    "train": "{epochs: 4, check_replicas: 4 steps}",
    "checkpoint": "{every: 1 epoch, keep: 1}",
    }


def call(*words):
    done = subprocess.run(words, env=TOOLS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=60)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stdout.decode(errors='replace').strip()}")


class Space:
    """A process that keeps name spaces alive until it is closed, or this process ends."""

    def __init__(self, script):
        self.process = subprocess.Popen(["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-ec",
                                         script + "\necho ready\nexec cat"], env=TOOLS, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if self.process.stdout.readline() != b"ready\n":
            raise OSError(self.process.communicate()[1].decode(errors="replace").strip())
        self.pid = str(self.process.pid)

    def close(self):
        self.process.communicate()


class Cluster:
    """Nodes n1, n2, ..., joined by a switch that has no other link."""

    def __init__(self, folder, n):
        self.folder = folder
        self.spaces = []
        hosts = folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"10.9.8.{i} n{i}\n" for i in range(1, n + 1)))
        self.switch = self.add("ip link add switch type bridge\nip link set switch up")
        for i in range(1, n + 1):
            node = self.add(f"hostname n{i}\nmount -t tmpfs none /dev/shm\n"
                            f"[ ! -e /etc/hosts ] || mount --bind {hosts} /etc/hosts\nip link set lo up")
            (folder / f"n{i}").write_text(node.pid)
            self.at_switch(f"ip link add link{i} type veth peer name eth0 netns {node.pid}")
            self.at_switch(f"ip link set link{i} master switch up")
            call("nsenter", "-t", node.pid, "--net", "sh", "-ec",
                 f"ip address add 10.9.8.{i}/24 dev eth0\nip link set eth0 up")
        self.agent = folder / "agent"
        self.agent.write_text(f"#!/bin/sh\nspace=$(cat '{folder}'/\"$1\")\nshift\n"
                              'exec nsenter -t "$space" --net --uts --ipc --mount sh -c "$*"\n')
        self.agent.chmod(0o755)

    def add(self, script):
        self.spaces.append(Space(script))
        return self.spaces[-1]

    def at_switch(self, script):
        call("nsenter", "-t", self.switch.pid, "--net", "sh", "-ec", script)

    def datagrams(self, i):
        """How many UDP datagrams node i has taken in so far, and sent."""
        with open(f"/proc/{self.spaces[i].pid}/net/snmp", encoding="utf-8") as file:
            values = [line.split() for line in file if line.startswith("Udp:")][1]
        return int(values[1]), int(values[4])

    def cut(self, i):
        self.at_switch(f"ip link set link{i} down")

    def mend(self, i):
        self.at_switch(f"ip link set link{i} up")

    def close(self):
        for space in self.spaces:
            space.close()

    def start(self, ranks, job, output, *words, **environment):
        """ranks: of each node. The job's process."""
        hosts = ",".join(f"n{i}:{n}" for i, n in enumerate(ranks, 1))
        given = {**dpt.MPI_ENVIRONMENT, "OMPI_MCA_plm_rsh_agent": str(self.agent), "PRTE_MCA_plm_ssh_agent": str(self.agent)}
        exported = [word for name in environment for word in ("-x", name)]
        command = [str(self.agent), "n1", f"cd '{os.getcwd()}' && exec mpirun", "--host", hosts, "-np", str(sum(ranks)), *exported,
                   "-x", "HWLOC_COMPONENTS", dpt.BINARY, job, "--output", str(output), "--quiet", *words]
        return subprocess.Popen(command, env={**TOOLS, **given, **environment}, start_new_session=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process, timeout=60):
        try:
            process.stdout, process.stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.sweep()
            process.stdout, process.stderr = process.communicate()
        return dpt.Result(process)

    def train(self, ranks, job, output, *words):
        result = self.finish(self.start(ranks, job, output, *words))
        assert result.code == 0, result
        return result

    def processes(self):
        """What runs in these nodes: (pid, name)."""
        spaces = {os.readlink(f"/proc/{space.pid}/ns/net") for space in self.spaces}
        own = {space.pid for space in self.spaces}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if pid not in own and os.readlink(f"/proc/{pid}/ns/net") in spaces:
                    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                        yield int(pid), file.read().strip()
            except OSError:
                continue

    def ranks(self):
        """pid by rank."""
        found = {}
        for pid, name in self.processes():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", file.read())
            except OSError:
                continue
            if name == os.path.basename(dpt.BINARY)[:15] and rank:
                found[int(rank.group(1))] = pid
        return found

    def sweep(self):
        for pid, _ in list(self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    made = Cluster.__new__(Cluster)
    try:
        made.__init__(folder, 3)
    except (OSError, subprocess.SubprocessError) as error:
        for space in getattr(made, "spaces", []):
            space.process.kill()
        pytest.skip(f"no nodes can be made here (root, util-linux and iproute2 are needed): {error}")
    yield made
    made.sweep()
    made.close()


@pytest.fixture
def job(tmp_path):
    return dpt.write_small_job(tmp_path / "job.yaml", **JOB)


def losses(folder):
    return [e["loss"] for e in dpt.events(folder, "train")]


def told(result):
    return [line for line in result.err.splitlines() if re.match(r"(rank|ranks|a rank) \S", line)]


def reproducible(mesh):
    return [part for word in ("comm.reduction=reproducible", *(f"parallel.{key}" for key in mesh.split())) for part in ("--set", word)]


def test_same_bytes_on_any_nodes(cluster, tmp_path, job):
    """One node, two, three, evenly and not, also where a node has one rank; and what TensorBoard shows of them."""
    made, shown = [], []
    for ranks, mesh in (([4], "shard=none"), ([2, 2], "pipeline=2"), ([2, 1, 1], "shard=gradients"),
                        ([1, 2, 1], "pipeline=2 shard=parameters"), ([1, 3, 2], "shard=optimizer"), ([1, 3, 2], "shard=parameters")):
        sets = ("log.tensorboard=true", "data.valid=0.1", "train.ema=0.9")  # evaluated in the middle, by weights that change places
        folder, words = tmp_path / str(len(made)), (*reproducible(mesh), *(part for word in sets for part in ("--set", word)))
        if mesh == "shard=parameters":  # begun on other nodes
            cluster.train([2, 1], job, folder, *words, "--set", "train.epochs=2")
        cluster.train(ranks, job, folder, *words)
        made.append(dpt.newest(folder))
        shown.append(Events(folder / "events.out.tfevents.dptrain").histograms)
    assert made[1:] == made[:-1] and shown[1:] == shown[:-1]


def test_layers_divided_between_nodes(cluster, tmp_path):
    wide = dpt.write_small_job(tmp_path / "wide.yaml", **{**JOB, "model": "{type: mlp, hidden: [256, 256], outputs: 10}",
                                                            "optimizer": "{type: lamb}"})  # norms of tensors in parts
    made = []
    for ranks, mesh in (([1], "shard=none"), ([1, 2, 1], "tensor=4"), ([2, 2], "tensor=2 shard=parameters")):
        folder = tmp_path / mesh.replace(" ", "-")
        cluster.train(ranks, wide, folder, *reproducible(mesh))
        made.append(dpt.newest(folder))
    assert made[1:] == made[:-1]


def test_each_node_syncs_its_part_of_a_checkpoint(cluster, tmp_path):
    """What another node has written is on its disk before rank 0 completes the file; where a node does not see it, rank 0 writes all."""
    wide = dpt.write_small_job(tmp_path / "wide.yaml", **{**JOB, "model": "{type: mlp, hidden: [1024], outputs: 10}", "train": "{epochs: 1}"})
    dpt.train(wide, tmp_path / "one", "--quiet", *reproducible("shard=none"))
    environment, counts = {}, tmp_path / "counts"
    if not dpt.sanitized():
        with open("core/comm/tests/parts_shim.c", encoding="utf-8") as file:
            environment = {"LD_PRELOAD": dpt.library(tmp_path, "parts", file.read(), "mpicc"), "PARTS_COUNTS": str(counts)}
    (tmp_path / "hidden").mkdir()
    call("nsenter", "-t", cluster.spaces[2].pid, "--mount", "mount", "-t", "tmpfs", "none", str(tmp_path / "hidden"))
    for folder in (tmp_path / "seen", tmp_path / "hidden/run"):
        counts.write_text("")
        result = cluster.finish(cluster.start([2, 2], wide, folder, *reproducible("shard=parameters"), **environment))
        assert result.code == 0 and dpt.newest(folder) == dpt.newest(tmp_path / "one"), result
        seen = folder.name == "seen"
        assert ("rank 2 (n2) does not see" in (folder / "log.txt").read_text()) != seen
        lines = sorted([*map(int, line.split())] for line in counts.read_text().splitlines())
        for rank, written, _, syncs, _ in lines:
            assert (written > 0, syncs > 0) == (rank == 0 or seen, rank == 0 or (seen and rank > 1)), lines
    call("nsenter", "-t", cluster.spaces[2].pid, "--mount", "umount", str(tmp_path / "hidden"))


def test_no_more_is_sent_of_divided_layers_than_the_plan_says(cluster, tmp_path):
    """Outputs, gradients of inputs and columns of the weights: counted between dptrain and MPI, to the byte (tensor_parallel.h)."""
    library, samples, width, steps = tmp_path / "count.so", 40, 576, 3
    subprocess.run(["mpicc", "-shared", "-fPIC", "-O1", "core/comm/tests/count_messages.c", "-o", library], check=True)
    with open(dpt.BINARY, "rb") as file:
        if b"libasan.so" in file.read():
            pytest.skip("AddressSanitizer must be the first library")
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**JOB, "model": f"{{type: mlp, hidden: [{width}, {width}], outputs: 10}}",
                              "data": "{train: synthetic, synthetic: {samples: 120, shape: [1, 12, 12]}}", "train": f"{{steps: {steps}}}",
                              "batch": f"{{global: {samples}, micro: 8}}", "comm": "{reduction: reproducible}"})
    for parts in (2, 3):
        counts = tmp_path / f"counts{parts}"
        counts.touch()
        cluster.finish(cluster.start([1] * parts, job, tmp_path / f"{parts}", "--set", f"parallel.tensor={parts}", LD_PRELOAD=str(library),
                                     COUNT_MESSAGES=str(counts)))
        given = sorted(tuple(map(int, line.split()))[::3] for line in counts.read_text().splitlines() if not line.endswith(" 0 0 0"))
        # The first layer has 144 inputs, whose gradient nobody wants; both are divided.
        columns = 4 * width * width * (parts - 1) // parts ** 2
        step = 4 * samples * 3 * width * (parts - 1) // parts + columns
        assert given == [(rank, steps * step + columns) for rank in range(parts)]  # columns also before the first step
        plan = dpt.run("plan", job, "--json", "--no-time", "--ranks", parts, "--set", f"parallel.tensor={parts}")
        assert [axis["sent_bytes"] for axis in json.loads(plan.out)["axes"]] == [0, step, 0]


@pytest.mark.parametrize("model", [dpt.SMALL_JOB["model"], "{type: linear, outputs: 10}"], ids=["cnn", "linear"])
def test_hierarchy_sums_the_same(cluster, tmp_path, model):
    """Equal to rounding: the first loss exactly, the later ones as far as rounding has grown. Few enough numbers are added up by
    each rank of a node where there is one node alone."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **JOB, model=model)
    for ranks in ([2, 2], [3, 1, 1]):
        curves = []
        for way in ("auto", "off"):
            folder = tmp_path / f"{len(ranks)}-{way}"
            cluster.train(ranks, job, folder, "--set", f"comm.hierarchical={way}")
            curves.append(losses(folder))
        auto, off = curves
        assert len(auto) == len(off) == 32
        assert auto[0] == pytest.approx(off[0], rel=1e-6)
        assert auto[:8] == pytest.approx(off[:8], rel=1e-4)
        assert auto == pytest.approx(off, rel=2e-2)


LONG = {**JOB, "train": "{epochs: 100000, check_replicas: 4 steps}", "checkpoint": "{every: never}",
        "comm": "{timeout: %d s}" % TIMEOUT}


class Meeting:
    """Whether the nodes have met: each has taken in datagrams of all others, and none is on its way."""

    def __init__(self, cluster, nodes):
        self.cluster, self.nodes = cluster, range(1, nodes + 1)
        self.before = self.count()
        self.last = None

    def count(self):
        return [self.cluster.datagrams(i) for i in self.nodes]

    def is_over(self):
        now = [(got - got_before, sent - sent_before)
               for (got, sent), (got_before, sent_before) in zip(self.count(), self.before)]
        was, self.last = self.last, now
        return (now == was and all(got >= len(self.nodes) - 1 for got, _ in now)
                and sum(got for got, _ in now) == sum(sent for _, sent in now))


def disturbed(cluster, tmp_path, ranks, action, meet=True):
    """Runs a job without an end, does something to its ranks in its middle, and gives what it said. All ranks must end soon;
    mpirun itself may continue waiting, as for a daemon on a node that is cut off, and is ended then."""
    path = dpt.write_small_job(tmp_path / "long.yaml", **LONG)
    meeting = Meeting(cluster, len(ranks))
    process = cluster.start(ranks, path, tmp_path / "out")
    assert dpt.wait_for_step(process, tmp_path / "out", 1), cluster.finish(process)
    assert not meet or dpt.wait_until(process, meeting.is_over), cluster.finish(process)
    action(cluster.ranks())
    end = time.monotonic() + SOON
    while cluster.ranks() and time.monotonic() < end:
        time.sleep(0.05)
    left = cluster.ranks()
    result = cluster.finish(process, 5)
    assert not left, (left, result)
    return result


@pytest.mark.parametrize("ranks, rank, host", [([2, 2], 3, "n2"), ([2, 1, 1], 2, "n2")], ids=["beside others", "alone"])
def test_stopped_on_another_node(cluster, tmp_path, ranks, rank, host):
    result = disturbed(cluster, tmp_path, ranks, lambda pids: os.kill(pids[rank], signal.SIGSTOP))
    assert result.code != 0 and told(result), result
    assert re.match(rf"rank {rank} \({host}\) has not arrived at step \d+ for {TIMEOUT} s; ", told(result)[0]), result
    assert "stopped" in told(result)[0], result


def bound(pid):
    """The addresses to which the UDP sockets of a rank's node are bound."""
    with open(f"/proc/{pid}/net/udp", encoding="utf-8") as file:
        return [socket.inet_ntoa(bytes.fromhex(line.split()[1].split(":")[0])[::-1]) for line in list(file)[1:]]


def test_stopped_in_the_first_steps(cluster, tmp_path):
    """And nobody but the node's own network reaches its socket."""
    seen = []

    def stop(pids):
        os.kill(pids[1], signal.SIGSTOP)
        seen.extend(bound(pid) for pid in pids.values())
    result = disturbed(cluster, tmp_path, [1, 1], stop, meet=False)
    assert result.code != 0 and told(result), result
    assert re.match(rf"rank 1 \(n2\) has not arrived at step \d+ for {TIMEOUT} s; ", told(result)[0]), result
    assert sorted(seen) == [["10.9.8.1"], ["10.9.8.2"]]


# On the link of n1: records the first answer that tells of a rank that is late, and sends it again and again. Runs until
# it is killed.
FORGER = r"""
import socket, time
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind(("link1", 0))
link.settimeout(0.02)
kept = []
print("ready", flush=True)
while True:
    try:
        frame = link.recv(65536)
        if frame[12:14] == b"\x08\x00" and frame[23] == 17 and b"reading its samples" in frame and not kept:
            kept.append(frame[:40] + b"\0\0" + frame[42:])  # without a checksum, which the link leaves unfinished
    except TimeoutError:
        pass
    for frame in kept:
        link.send(frame)
    time.sleep(0.02)
"""


def test_forged_answers(cluster, tmp_path):
    """A rank hangs, and an answer of when it was not yet late for so long comes again and again: it postpones nothing."""
    path = dpt.write_small_job(tmp_path / "long.yaml", **LONG)
    with subprocess.Popen(["nsenter", "-t", cluster.switch.pid, "--net", sys.executable, "-c", FORGER], env=TOOLS,
                          stdout=subprocess.PIPE) as forger:
        try:
            assert forger.stdout.readline() == b"ready\n"
            process = cluster.start([1, 1], path, tmp_path / "out", DPTRAIN_FAULT="hang:rank=1:step=30")
            assert dpt.wait_for_step(process, tmp_path / "out", 1)
            result = cluster.finish(process, SOON)
        finally:
            forger.kill()
    assert result.code == 71, result
    assert re.match(r"rank 1 \(n2\) has not arrived at step 30 for ", told(result)[0]), result


@pytest.mark.parametrize("ranks, rank, host", [([1, 1, 1], 2, "n3"), ([1, 2], 0, "n1")][:None if HEAVY else 1])
def test_hangs_on_another_node(cluster, tmp_path, ranks, rank, host):
    """Its process and its watchdog live, so its last word is known."""
    path = dpt.write_small_job(tmp_path / "long.yaml", **LONG)
    result = cluster.finish(cluster.start(ranks, path, tmp_path / "out", DPTRAIN_FAULT=f"hang:rank={rank}:step=30"))
    assert result.code == 71, result
    assert any(re.match(rf"rank {rank} \({host}\) has not arrived at step 30 for {TIMEOUT} s; .* Its last word: reading its samples",
                        line) for line in told(result)), result


def test_killed_on_another_node(cluster, tmp_path):
    result = disturbed(cluster, tmp_path, [2, 2], lambda pids: os.kill(pids[2], signal.SIGKILL))
    if result.code == 14:  # Open MPI 5: a rank of the other node is aborted by MPI itself, mostly before anybody can tell
        assert "Socket closed" in result.err and re.search(r"Peer host: +n2", result.err), result
        return
    assert result.code == 137, result
    assert any(re.match(r"rank 2 \(n2\) died at step \d+", line) for line in told(result)), result


def test_node_cut_off(cluster, tmp_path):
    """The ranks of both sides end, and that of rank 0 says which node does not answer any more."""
    try:
        result = disturbed(cluster, tmp_path, [2, 2], lambda _: cluster.cut(2))
    finally:
        cluster.mend(2)
    assert told(result) and re.match(rf"ranks 2-3 \(n2\) have not arrived at step \d+ for {TIMEOUT} s; ranks 0-1 \(n1\) wait. "
                                     "Nobody answers there any more", told(result)[0]), result
