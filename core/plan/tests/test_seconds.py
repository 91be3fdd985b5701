"""The seconds that `dptrain plan` gives to a network, against the formulas of those who describe what is sent."""
import json
import math
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

INPUTS, WIDTH, OUTPUTS, SAMPLES = 64, 256, 10, 32
FLOATS = (INPUTS + 1) * WIDTH + (WIDTH + 1) * OUTPUTS
JOB = f"""
data: {{train: synthetic, synthetic: {{samples: 1000, shape: [{INPUTS}], classes: {OUTPUTS}}}}}
model: {{type: mlp, hidden: [{WIDTH}], outputs: {OUTPUTS}}}
batch: {{global: {SAMPLES}, micro: {SAMPLES}}}
device: {{kind: cpu, threads: 1}}
"""


def seconds(tmp_path, *words):
    """What `plan` says of the time; `fabric` is the network between nodes."""
    done = dpt.run("plan", dpt.write_job(tmp_path / "job.yaml", JOB), "--json", "--no-trial", *words)
    assert done.code == 0, done
    return json.loads(done.out)["time"]


def message(fabric):
    """A message without its bytes, in the LogGP model: its way, and the work of both ends."""
    return fabric["latency_s"] + 2 * fabric["overhead_s"]


def rounds(nodes):
    """Of recursive doubling (Thakur, Rabenseifner & Gropp 2005): where nodes are left over, one before it and one after it."""
    return math.floor(math.log2(nodes)) + (2 if nodes & (nodes - 1) else 0)


def test_messages_of_a_pipeline(tmp_path):
    """One micro-batch on two stages sends its values to the second stage and gets their gradients back."""
    found = seconds(tmp_path, "--ranks", 2, "--ranks-per-node", 1, "--fabric", 10, "--set", "parallel.pipeline=2",
                    "--set", "comm.reduction=reproducible")
    each = message(found["fabric"]) + 4 * SAMPLES * WIDTH / found["fabric"]["bytes_per_s"]
    assert found["step"]["stage_messages_s"] == pytest.approx(2 * each, rel=1e-6)
    assert found["step"]["network_sum_s"] == 0, "each stage has one replica"


@pytest.mark.parametrize("slow", ["latency", "bandwidth"])
def test_an_allreduce_takes_the_better_way(tmp_path, slow):
    """Recursive doubling takes log2 p rounds, which is best if messages are slow; Rabenseifner's sends 2 (p - 1) / p of all, best if bytes are."""
    found = seconds(tmp_path, "--ranks-per-node", 1, *(("--latency", 1e6) if slow == "latency" else ("--bandwidth", 1e-3)))
    for k in range(1, 11):
        scale = found["scaling"][k]
        sent = 2 * (1 - 0.5 ** k) * 4 * FLOATS / found["fabric"]["bytes_per_s"]
        want = k * message(found["fabric"]) if slow == "latency" else sent
        assert scale["ranks"] == 1 << k and scale["weak"]["network_sum_s"] == pytest.approx(want, rel=0.01), scale


def test_a_rank_a_node_has_nothing_to_sum_on_it(tmp_path):
    """With one micro-batch a rank all sums are between nodes."""
    words = ["--ranks", 2, "--set", f"batch.micro={SAMPLES // 2}", "--set", "comm.reduction=reproducible"]
    apart, together = seconds(tmp_path, "--ranks-per-node", 1, *words), seconds(tmp_path, *words)
    assert apart["step"]["local_sum_s"] == 0 < together["step"]["local_sum_s"]


def need_cuda(tmp_path):
    if "built without" in dpt.run("plan", dpt.write_job(tmp_path / "job.yaml", JOB), "--no-time", "--device", "h100").err:
        pytest.skip("built without CUDA")


@pytest.mark.parametrize("ranks", [3, 4, 5])
def test_gpus_of_a_node_that_is_not_full(tmp_path, ranks):
    """A node with fewer ranks takes part in the sum over the nodes."""
    need_cuda(tmp_path)
    found = seconds(tmp_path, "--device", "h100", "--ranks", ranks, "--ranks-per-node", 2, "--latency", 1e6, "--set", "batch.micro=4")
    assert found["step"]["network_sum_s"] == pytest.approx(rounds(math.ceil(ranks / 2)) * message(found["fabric"]), rel=1e-3)


def test_a_gpu_adds_where_it_has_room(tmp_path):
    """A sixteenth of its memory stays free. Without room for a second sum it gives the host two."""
    need_cuda(tmp_path)
    rooms = set()
    for width in (20_000, 120_000, 124_000, 200_000):
        job = (f"data: {{train: synthetic, synthetic: {{samples: 1000, shape: [4096], classes: {OUTPUTS}}}}}\n"
               f"model: {{type: mlp, hidden: [{width}], outputs: {OUTPUTS}}}\nbatch: {{global: 256, micro: 8}}\n"
               "optimizer: sgd\ncomm: {reduction: reproducible}\n")
        done = dpt.run("plan", dpt.write_job(tmp_path / "job.yaml", job), "--json", "--no-trial", "--device", "t4", "--ranks", 1)
        assert done.code == 0, done
        found = json.loads(done.out)
        device, step = found["device"], found["time"]["step"]
        parts, arena = device["parts"], device["parts"]["weights"]
        adds = parts["gradients"] > arena
        sums = parts["gradients"] - arena if adds else arena
        assert device["bytes"] == pytest.approx(sum(parts.values()), rel=1e-9)
        needed = device["bytes"] - parts["input"] - parts["samples"] + (0 if adds else sums)
        assert adds == (needed <= device["memory_bytes"] * 15 / 16), (width, parts)
        rooms.add(adds)
        # Each comes over the bus (20 GB/s) and is put down and read on the host (8 GB/s); all but the first are added to the others.
        n = 1 if adds else 2
        assert step["local_sum_s"] == pytest.approx(n * arena * (1 / 20e9 + 2 / 8e9) + (n - 1) * 3 * arena / 8e9, rel=1e-3)
    assert rooms == {True, False}


def test_a_plan_in_bf16_knows_its_speed(tmp_path):
    job = dpt.write_job(tmp_path / "job.yaml", JOB)
    done = dpt.run("plan", job, "--json", "--no-trial", "--ranks", 1, "--set", "device.precision=bf16")
    assert done.code == 0 and json.loads(done.out)["time"]["flop_per_s_thread"] > 1e6, done


@pytest.mark.parametrize("samples, layers, said", [
    ("[3, 256, 256]", "{conv: {channels: 512, padding: same}}, {maxpool: 2}, flatten",
     "batch.micro: a GPU kernel cannot count the numbers that 256 samples have at conv1; 127 or less would do"),
    ("[1, 1000, 1000]", "relu, flatten, {dense: 2000}",  # its one channel becomes four
     "dense1: a GPU kernel cannot count its weights, which with padding are 8000000000, more than 4294967295"),
])
def test_what_no_gpu_kernel_can_count_is_refused(tmp_path, samples, layers, said):
    """Wrong numbers would come of it, and no message."""
    need_cuda(tmp_path)
    job = dpt.write_job(tmp_path / "job.yaml", f"""
data: {{train: synthetic, synthetic: {{samples: 512, shape: {samples}, classes: 10}}}}
model: {{type: sequential, layers: [{layers}, {{dense: 10}}]}}
batch: {{global: 256, micro: 256}}
""")
    result = dpt.run("plan", job, "--no-time", "--device", "h200")
    assert result.code == 78 and result.err.endswith(f": {said}\n"), result
