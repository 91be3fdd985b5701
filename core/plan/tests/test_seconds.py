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
    """A node with fewer ranks takes part in the sum over the nodes, which NCCL makes up a tree and down again."""
    need_cuda(tmp_path)
    words = ["--device", "h100", "--ranks", ranks, "--ranks-per-node", 2, "--latency", 1e6, "--set", "batch.micro=4"]
    nodes = math.ceil(ranks / 2)
    for transport, messages in (("mpi", rounds(nodes)), ("nccl", 2 * math.ceil(math.log2(nodes)))):
        found = seconds(tmp_path, *words, "--set", f"comm.transport={transport}")
        assert found["step"]["network_sum_s"] == pytest.approx(messages * message(found["fabric"]), rel=1e-3)


# --- the links of GPUs ----------------------------------------------------------------------------

# An MLP of 300 million weights (core/train/PARALLEL.md), and what ImageNet's models are compared by.
WIDE = """
data: {train: synthetic, synthetic: {samples: 100000, shape: [784]}}
model: {type: mlp, hidden: [8560, 8560, 8560, 8560, 8560], outputs: 10}
batch: {global: 32768}
optimizer: {type: adam}
"""
RESNET = """
data: {train: synthetic, synthetic: {samples: 65536, shape: [3, 224, 224], classes: 1000}}
model: {type: resnet, depth: 50, outputs: 1000}
batch: {global: 2048, micro: 256}
optimizer: {type: sgd, momentum: 0.9}
"""


def gpus(tmp_path, job, *words):
    """What `plan` says of a job on GPUs, whose network, if any, has 3 200 Gbit/s a node."""
    need_cuda(tmp_path)
    done = dpt.run("plan", dpt.write_job(tmp_path / "gpus.yaml", job), "--json", "--bandwidth", 3200, *words)
    assert done.code == 0, done
    return json.loads(done.out)


def efficiency(found, kind):
    """By the number of ranks; and what limits it."""
    rows = {row["ranks"]: row[kind] for row in found["time"]["scaling"] if row[kind] is not None}
    rates = {ranks: row["samples_per_s"] / ranks for ranks, row in rows.items()}
    return ({ranks: rate / rates[1] for ranks, rate in rates.items()}, {ranks: row["limit"] for ranks, row in rows.items()})


@pytest.mark.parametrize("batch, by", [("", "update"), (", micro: 256", "network"), (", micro: 32", "network")])
def test_wide_layers_on_eight_gpus_and_on_sixty_four(tmp_path, batch, by):
    """NCCL's sums go on beside backward of the last micro-batch; the larger it is, the more of them. Then the update is left, which each GPU makes of
    all weights. Sums through the hosts' memory are most of a step."""
    job = WIDE.replace("global: 32768", "global: 32768" + batch)
    words = ["--device", "h100", "--ranks", 64]
    found = gpus(tmp_path, job, *words)
    share, limit = efficiency(found, "strong")
    assert share[8] > 0.85 and share[64] > 0.60, share
    assert limit[1] is None and limit[64] == by, limit
    slow, limit = efficiency(gpus(tmp_path, job, *words, "--set", "comm.transport=mpi"), "strong")
    assert slow[8] < 0.5 * share[8] and slow[64] < 0.1 and limit[8] == limit[64] == "memory", (slow, limit)


def test_the_trees_sums_stay_on_the_gpus(tmp_path):
    """Where a rank has one block of the tree that is what an allreduce sends, and between nodes little more: each node merges what its ranks have. Only if
    nodes have unlike many ranks each rank's block crosses the network. With micro-batches that the ranks do not divide a rank has several blocks, which it
    sends and keeps."""
    found = {}
    for ranks, micro in ((8, 4096), (8, 3500), (64, 512), (63, 512)):
        for reduction in ("allreduce", "reproducible"):
            words = ["--set", f"comm.reduction={reduction}", "--set", f"batch.micro={micro}"]
            plan = gpus(tmp_path, WIDE, "--device", "h100", "--ranks", ranks, *words)
            assert plan["device"]["sums"] == "nccl", plan["device"]
            found[ranks, micro, reduction] = plan["time"]["step"]["seconds"], plan["device"]["parts"]["gradients"] / plan["device"]["parts"]["weights"]
    assert found[8, 4096, "reproducible"] == pytest.approx(found[8, 4096, "allreduce"], rel=1e-6)
    assert found[8, 3500, "reproducible"][0] > found[8, 3500, "allreduce"][0] and found[8, 3500, "reproducible"][1] == pytest.approx(2)
    even, uneven = (found[ranks, 512, "reproducible"][0] / found[ranks, 512, "allreduce"][0] for ranks in (64, 63))
    assert 1 < even < 1.2 and 1.5 < uneven < 5, found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_convolutions_on_eight_gpus(tmp_path, precision):
    """256 pictures a GPU."""
    words = ["--device", "h100", "--ranks", 8, "--set", f"device.precision={precision}"]
    share, limit = efficiency(gpus(tmp_path, RESNET, *words), "weak")
    assert share[8] > 0.97 and limit[8] is None, (share, limit)
    share, limit = efficiency(gpus(tmp_path, RESNET, *words, "--set", "parallel.shard=optimizer"), "weak")
    assert share[8] > 0.97 and limit[8] is None, (share, limit)
    slow, by = efficiency(gpus(tmp_path, RESNET, *words, "--set", "comm.transport=mpi"), "weak")
    if precision == "bf16":
        assert slow[8] < 0.9 and by[8] == "memory", (slow, by)
    else:  # which takes so long that those sums go on beside it, too
        assert slow[8] > 0.97 and by[8] is None, (slow, by)


@pytest.mark.parametrize("shard, calls", [("none", 1), ("optimizer", 4)])
@pytest.mark.parametrize("name, rate, link", [("a100", 300e9, "nvlink"), ("h100", 450e9, "nvlink"), ("b200", 900e9, "nvlink"), ("l40s", 31.5e9, "pcie")])
def test_the_link_of_a_gpu(tmp_path, name, rate, link, shard, calls):
    """nccl-tests' bus bandwidth, of which 0.8 of a link's are assumed, is 2 (n - 1) / n of the bytes per second, or once that for each of a reduce-scatter
    and a gathering. A call has 32 MB at most and takes 15 us to begin; with shards there are two more, of few numbers. With one bucket nothing of it
    is beside backward."""
    job = JOB.replace("device: {kind: cpu, threads: 1}", "").replace("[256]", "[100000]").replace("global: 32", "global: 1024")
    found = gpus(tmp_path, job, "--device", name, "--ranks", 8, "--set", f"parallel.shard={shard}")
    device = found["device"]
    assert device["sums"] == "nccl" and device["sums_why"] is None
    assert (device["nvlink_bytes_per_s"] or device["pcie_bytes_per_s"]) == rate
    bytes_ = 4 * found["parameters"]
    for k in range(1, 4):
        row = found["time"]["scaling"][k]["weak"]
        want = calls * 15e-6 + 2 * (1 - 0.5 ** k) * bytes_ / (0.8 * rate)
        assert row["local_sum_s"] == pytest.approx(want, rel=0.03) and row["network_sum_s"] == 0, row
    assert found["time"]["scaling"][3]["weak"]["limit"] == link


SHARDED = ["--set", "parallel.shard=optimizer"]


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
@pytest.mark.parametrize("ranks", [8, 64])
def test_gpus_divide_the_update(tmp_path, ranks, reduction):
    """Each has its part of Adam's two slots and 32 MB to gather by, and reads and writes 8 floats for each weight of its part; then what layers read is
    derived from all weights. Of the bytes per second 0.75 are reached."""
    words = ["--device", "h100", "--ranks", ranks, "--set", f"comm.reduction={reduction}"]
    whole, parts = gpus(tmp_path, WIDE, *words), gpus(tmp_path, WIDE, *words, *SHARDED)
    assert (whole["updaters"], parts["updaters"]) == (1, ranks) and parts["device"]["sums"] == "nccl"
    arena = 4 * whole["parameters"]
    of = [found["device"]["parts"] for found in (whole, parts)]
    assert of[0]["optimizer"] == pytest.approx(2 * arena, rel=1e-5) and of[1]["optimizer"] == pytest.approx(2 * arena / ranks + (32 << 20), rel=1e-5)
    assert {**of[0], "optimizer": 0} == {**of[1], "optimizer": 0} and parts["memory"]["parts"]["optimizer"] == of[0]["optimizer"], "the host has all of it"
    assert parts["axes"] == whole["axes"], "it sends as much"
    for found, divisor in ((whole, 1), (parts, ranks)):
        seconds = (8 * arena / divisor + 2 * arena) / (0.75 * 3.35e12)
        assert found["time"]["step"]["update_s"] == pytest.approx(seconds, abs=1.1e-4), "and the start of some kernels"
    out = dpt.run("plan", tmp_path / "gpus.yaml", *words, *SHARDED).out
    assert f"\noptimizer   {ranks} ranks divide its state and the update on the GPUs\n" in out and max(map(len, out.splitlines())) <= 80, out


@pytest.mark.parametrize("words, better", [(["batch.micro=4096"], 0.997), (["batch.micro=256"], 0.994), (["comm.reduction=reproducible"], 0.994)])
def test_a_node_takes_shorter_steps_if_it_divides_the_update(tmp_path, words, better):
    words = ["--device", "h100", "--ranks", 8, *(w for word in words for w in ("--set", word))]
    (whole, _), (share, limit) = (efficiency(gpus(tmp_path, WIDE, *words, *more), "strong") for more in ([], SHARDED))
    assert share[8] > whole[8] > 0.85 and limit[8] is None, (share, whole)
    whole, parts = (gpus(tmp_path, WIDE, *words, *more)["time"]["step"] for more in ([], SHARDED))
    assert parts["seconds"] < better * whole["seconds"] and parts["update_s"] < 0.4 * whole["update_s"], (whole, parts)
    if words[-1].endswith("4096"):
        return  # 64 GPUs would have 8 micro-batches
    words[3] = 64
    (whole, _), (share, _) = (efficiency(gpus(tmp_path, WIDE, *words, *more), "strong") for more in ([], SHARDED))
    assert share[64] > whole[64] + 0.01, (share, whole)


def test_what_was_updated_is_gathered_beside_nothing(tmp_path):
    """Over nodes that takes longer than the update of everything, if gradients are summed beside backward; and the table names the network. A gathering goes
    around a ring: it waits for a message of each node but one, in each call."""
    words = ["--device", "h100", "--ranks", 64, *SHARDED]
    share, limit = efficiency(gpus(tmp_path, WIDE, *words), "strong")
    assert share[64] > 0.60 and limit[64] == "network", (share, limit)
    near, far = (gpus(tmp_path, WIDE, *words, "--latency", us)["time"]["step"]["network_sum_s"] for us in (2, 1002))
    calls = math.ceil(4 * 299933850 / (32 << 20))
    assert far - near > calls * 7 * 1e-3, "the gradients' sums, of which some are beside backward, come to it"
    tree = [gpus(tmp_path, WIDE, "--device", "h100", "--ranks", 64, "--set", "comm.reduction=reproducible", *more)["time"]["step"]["seconds"]
            for more in ([], SHARDED)]
    assert tree[1] < tree[0], "along the tree blocks keep the network busy, and sums are not beside backward, either"


@pytest.mark.parametrize("ranks, words", [(8, []), (8, ["comm.reduction=reproducible"]), (16, []), (16, ["comm.reduction=reproducible"])])
def test_meshes_of_gpus_divide_the_update(tmp_path, ranks, words):
    """With the job's own reduction; the shorter step is the best that fits."""
    words = ["--device", "h100", "--ranks", ranks, "--fabric", 100, "--bandwidth", 3200, *(w for word in words for w in ("--set", word))]
    rows = gpus(tmp_path, WIDE, *words, "--mesh", "auto")["meshes"]
    data = {row["shard"]: row for row in rows if row["data"] == ranks}
    assert [data[shard]["sums"] for shard in ("none", "optimizer", "gradients", "parameters")] == ["nccl"] * 4
    for shard in ("none", "optimizer", "gradients", "parameters"):
        tree = ["--set", "comm.reduction=reproducible"] if shard in ("gradients", "parameters") else []
        own = gpus(tmp_path, WIDE, *words, "--set", f"parallel.shard={shard}", *tree)
        assert data[shard]["seconds"] == own["time"]["step"]["seconds"] and data[shard]["memory"]["rank"] == own["device"]["bytes"]
    assert rows[0] == min((data[shard] for shard in ("none", "optimizer", "gradients")), key=lambda row: row["seconds"])
    if ranks == 8:
        assert rows[0]["shard"] == "optimizer"
    between = (data["none"]["memory"]["rank"] + data["optimizer"]["memory"]["rank"]) / 2e9
    out = dpt.run("plan", tmp_path / "gpus.yaml", *words, "--mesh", "auto", "--memory", f"{between}GB").out
    assert "\nbest: parallel: {shard: optimizer}\nand " in out and max(map(len, out.splitlines())) <= 80, out
    assert "\nsums by NCCL\n" in out


def test_stages_of_linked_gpus(tmp_path):
    """They update by themselves, and what crosses cuts goes over NVLink or the network, during which they do not compute."""
    def plan(*words, ranks=8):
        sets = ["comm.reduction=reproducible", "parallel.pipeline=2", "batch.micro=512", *words]
        return gpus(tmp_path, WIDE, "--device", "h100", "--ranks", ranks, "--bandwidth", 3200, *(w for word in sets for w in ("--set", word)))

    linked, host = plan(), plan("comm.transport=mpi")
    steps = [planned["time"]["step"] for planned in (linked, host)]
    assert [planned["device"]["sums"] for planned in (linked, host)] == ["nccl", "host"]
    assert steps[0]["seconds"] < 0.3 * steps[1]["seconds"] and steps[0]["update_s"] < 0.05 * steps[1]["update_s"], steps
    parts = linked["device"]["parts"]
    assert parts["optimizer"] == 2 * parts["weights"] and host["device"]["parts"]["optimizer"] == 0
    sharded = plan("parallel.shard=optimizer")
    assert sharded["device"]["parts"]["optimizer"] < 0.4 * parts["optimizer"]
    near, far = (plan(ranks=ranks)["time"]["step"]["stage_messages_s"] for ranks in (2, 16))  # 16: a node for each stage
    assert 4 < far / (near / 8) < 12, "450 GB/s, and eighths of 400, with an eighth of the micro-batches each"


def test_rounds_of_stages_on_linked_gpus(tmp_path):
    """Two stages of four: a GPU sums a round's gradient beside the next forward, if that is long enough, or gathers the weights of its own layers."""
    def plan(shard, micro, *words):
        sets = ["comm.reduction=reproducible", "parallel.pipeline=2", f"parallel.shard={shard}", f"batch.micro={micro}", *words]
        planned = gpus(tmp_path, deep, "--device", "h100", "--ranks", 8, *(w for word in sets for w in ("--set", word)))
        assert planned["device"]["sums"] == "nccl", planned["device"]
        return planned

    deep = WIDE.replace("hidden: [8560,", "hidden: [8560, 8560, 8560, 8560, 8560, 8560, 8560, 8560,")
    optimizer, gradients, parameters = (plan(shard, 1024) for shard in ("optimizer", "gradients", "parameters"))
    held = [planned["device"]["parts"] for planned in (optimizer, gradients, parameters)]
    assert held[2]["weights"] < held[1]["weights"] == held[0]["weights"] and held[2]["gradients"] < held[1]["gradients"] < held[0]["gradients"], held
    step = gradients["time"]["step"]
    assert step["local_sum_s"] < 2 * optimizer["time"]["step"]["local_sum_s"], "one of eight rounds is summed beside nothing"
    few = plan("gradients", 32)["time"]["step"]
    assert few["local_sum_s"] > step["local_sum_s"], "sums of short rounds are longer than what is beside them"
    layer = 8560 * 8561
    assert 8 * 2 * 4 * layer < parameters["gathered_bytes"] / 4 < 8 * 2 * 6 * layer, "eight rounds go through six layers of a stage, of which two may be there"


def test_rounds_are_summed_one_by_one(tmp_path):
    """One round is what `optimizer` does; of more each sends as much, and less waits in memory."""
    words = ["--device", "h100", "--ranks", 8, "--set", "comm.reduction=reproducible"]

    def plan(micro, shard):
        planned = gpus(tmp_path, WIDE, *words, "--set", f"batch.micro={micro}", "--set", f"parallel.shard={shard}")
        assert planned["device"]["sums"] == "nccl", planned["device"]
        return planned["time"]["step"], planned["device"]["parts"]["gradients"], planned["axes"][0]["sent_bytes"]

    (one, _, sent), (same, _, as_much) = (plan(4096, shard) for shard in ("optimizer", "gradients"))
    assert abs(one["seconds"] - same["seconds"]) < 1e-6 * one["seconds"] and abs(sent - as_much) < 1e-3 * sent, (one, same)
    (few, waiting, sent), (many, parts, more) = (plan(1024, shard) for shard in ("optimizer", "gradients"))
    assert abs(more / sent - (4 + 1) / 2) < 0.01, "a gradient a round, and the weights; both once else"
    gradient = 4 * 299933850
    assert abs(waiting - 3 * gradient) < 0.01 * gradient and abs(parts - (1 + 2 / 8) * gradient) < 0.01 * gradient, (waiting, parts)
    few, many = (plan(32, shard)[0] for shard in ("optimizer", "gradients"))
    assert many["local_sum_s"] > 2 * few["local_sum_s"] and abs(many["compute_s"] - few["compute_s"]) < 1e-9, (few, many)


def test_units_are_gathered_round_by_round(tmp_path):
    """Of six layers a GPU has two at a time, and a slice of the rest; what waits for the link are the gatherings of few samples."""
    words = ["--device", "h100", "--ranks", 8, "--set", "comm.reduction=reproducible", "--set", "parallel.shard=parameters"]
    floats, layer, first = 299933850, 8560 * 8561, 785 * 8560

    def plan(micro):
        planned = gpus(tmp_path, WIDE, *words, "--set", f"batch.micro={micro}")
        assert planned["device"]["sums"] == "nccl", planned["device"]
        return planned

    one, four = plan(4096), plan(1024)
    parts = one["device"]["parts"]
    assert parts["weights"] == parts["gradients"] == pytest.approx(4 * (2 * layer + floats / 8), rel=0.01), parts
    assert one["gathered_bytes"] == pytest.approx(4 * (2 * floats - layer), rel=0.01), "the last two stay for the way back, of which the last is small"
    assert four["gathered_bytes"] == pytest.approx(4 * 4 * (2 * floats - layer) - 3 * 4 * (layer + first), rel=0.01)
    times = [planned["time"]["step"] for planned in (one, plan(32))]
    assert times[0]["local_sum_s"] < 0.3 * times[0]["compute_s"] and times[1]["local_sum_s"] > times[1]["compute_s"], times


@pytest.mark.parametrize("words, why", [
    (["comm.transport=mpi"], "comm.transport: mpi"),
    (["comm.transport=mpi", "parallel.shard=optimizer"], "comm.transport: mpi"),
    (["comm.reduction=reproducible", "train.on_nan=skip"], "the host takes part in the steps"),
    (["log.hashes=true"], "the host takes part in the steps"),
])
def test_what_leaves_the_gpus_is_told(tmp_path, words, why):
    words = [w for word in words for w in ("--set", word)]
    device = gpus(tmp_path, RESNET, "--device", "h100", "--ranks", 8, *words)["device"]
    assert device["sums"] == "host" and device["sums_why"] == why, device
    out = dpt.run("plan", tmp_path / "gpus.yaml", "--device", "h100", "--ranks", 8, *words).out
    assert f"sums through the hosts' memory:\n{why}\n" in out and max(map(len, out.splitlines())) <= 80, out


def test_a_gpu_adds_where_it_has_room(tmp_path):
    """A sixteenth of its memory stays free. Without room for a second sum it gives the host two."""
    need_cuda(tmp_path)
    rooms = set()
    for width in (20_000, 120_000, 124_000, 200_000):
        job = (f"data: {{train: synthetic, synthetic: {{samples: 1000, shape: [4096], classes: {OUTPUTS}}}}}\n"
               f"model: {{type: mlp, hidden: [{width}], outputs: {OUTPUTS}}}\nbatch: {{global: 256, micro: 8}}\n"
               "optimizer: sgd\ncomm: {reduction: reproducible}\nlog: {hashes: true}\n")
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
        # Each comes over PCIe (of the third generation, 0.8 of it) and is put down and read on the host (8 GB/s); all but the first are added to the
        # others.
        n = 1 if adds else 2
        assert step["local_sum_s"] == pytest.approx(n * arena * (1 / (0.8 * 15.75e9) + 2 / 8e9) + (n - 1) * 3 * arena / 8e9, rel=1e-3)
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
