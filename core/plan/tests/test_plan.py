"""`dptrain plan`: what it says of a job is what a run of that job does, and it makes nothing of the model's size."""
import glob
import json
import os
import re
import resource
import subprocess
import sys

import pytest
from PIL import Image

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

CNN = """
data: {train: synthetic, valid: 0.1, test: synthetic, synthetic: {samples: 1000, shape: [3, 32, 32], classes: 10}}
model: {type: cnn, channels: [32, 64], kernel: 3, padding: same, pool: 2, outputs: 10}
batch: {global: 128, micro: 16}
optimizer: {type: adam, lr: 0.002}
schedule: {type: cosine, warmup: 3}
train: {epochs: 2}
"""
MLP = """
data: {train: synthetic, synthetic: {samples: 1000, shape: [784], classes: 10}}
model: {type: mlp, hidden: [256], outputs: 10}
"""
LARGE = """
data: {train: synthetic, synthetic: {samples: 100000, shape: [4096], classes: 1000}}
model: {type: mlp, hidden: [12288, 11264, 9216], outputs: 1000}
batch: {global: 4096}
optimizer: {type: adam}
"""
SANITIZED = dpt.sanitized()


def plan(tmp_path, text, *words, code=0, **options):
    folder = tmp_path / "cwd"
    folder.mkdir(exist_ok=True)
    result = dpt.run("plan", dpt.write_job(tmp_path / "job.yaml", text), *words, cwd=folder, **options)
    assert result.code == code, result
    assert os.listdir(folder) == [], "it writes nothing"
    return result


def planned(tmp_path, text, *words, **options):
    result = plan(tmp_path, text, "--json", "--no-time", *words, **options)
    assert result.err == "" and len(result.out.splitlines()) == 1, result
    return json.loads(result.out)


def trained(tmp_path, text, *words, ranks=0):
    run = tmp_path / "run"
    dpt.train(dpt.write_job(tmp_path / "job.yaml", text), run, *words, "--set", "log.every=1 step", ranks=ranks)
    return run


def test_layers_as_pytorch_counts_them(tmp_path):
    # sum(p.numel() for p in model.parameters()) of the same networks in PyTorch.
    found = planned(tmp_path, CNN)
    assert found["parameters"] == 60362
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert [layers[name]["parameters"] for name in ("conv1", "conv2", "dense1")] == [896, 18496, 40970]
    assert [layers[name]["output"] for name in ("conv1", "maxpool1", "conv2", "flatten1", "dense1")] \
        == ["32x32x32", "32x16x16", "64x16x16", "4096", "10"]
    # A window's taps on the padding do not count: (3n - 2)^2 of 9n^2 remain.
    assert layers["conv2"]["flop_forward"] == 2 * (3 * 16 - 2) ** 2 * 32 * 64
    assert layers["conv2"]["flop_backward"] == 2 * layers["conv2"]["flop_forward"]
    assert layers["conv1"]["flop_backward"] == layers["conv1"]["flop_forward"], "no gradient of the images"
    assert layers["dense1"]["flop_forward"] == 2 * 4096 * 10
    found = planned(tmp_path, MLP)
    assert found["parameters"] == 203530
    assert found["parameters"] == sum(layer["parameters"] for layer in found["layers"])


GROUPS = """
data: {train: synthetic, synthetic: {samples: 512, shape: [3, 8, 8], classes: 5}}
model:
  type: sequential
  layers: [{conv: {channels: 4, kernel: 3}}, batchnorm, relu, {conv: {channels: 6, kernel: 3}}, batchnorm, relu, flatten, {dense: 5}]
optimizer:
  type: adamw
  groups: [{match: ["conv*", dense1/bias], lr_scale: 0.1}, {match: "*", lr: 0.01, weight_decay: 0}, {match: dense1, lr: 1.0}]
train: {steps: 3, freeze: [conv1, "batchnorm1", "batchnorm2/*"]}
"""


def test_what_is_frozen_and_whose_rates_are_its_own(tmp_path):
    found = planned(tmp_path, GROUPS)
    conv1, conv2, norms, dense = 4 * 3 * 9 + 4, 6 * 4 * 9 + 6, 2 * 4 + 2 * 6, 6 * 16 * 5 + 5
    assert (found["parameters"], found["learned"]) == (conv1 + conv2 + norms + dense, conv2 + dense)
    assert {p["pattern"]: len(p["tensors"]) for p in found["freeze"]} == {"conv1": 2, "batchnorm1": 4, "batchnorm2/*": 4}
    assert found["freeze"][2]["tensors"] == [f"batchnorm2/{name}" for name in ("weight", "bias", "running_mean", "running_var")]
    # A group counts what it matches if that learns and no group before gave the same value: the last one gives nothing.
    assert [(g["lr"], g["lr_scale"], g["weight_decay"], g["match"]) for g in found["groups"]] == [
        (None, 0.1, None, [{"pattern": "conv*", "tensors": ["conv2/weight", "conv2/bias"]},
                           {"pattern": "dense1/bias", "tensors": ["dense1/bias"]}]),
        (0.01, None, 0, [{"pattern": "*", "tensors": ["conv2/weight", "dense1/weight"]}]),
        (1.0, None, None, [{"pattern": "dense1", "tensors": []}])]
    text = plan(tmp_path, GROUPS, "--no-time").out
    assert all(len(line) <= 80 for line in text.splitlines()), text
    for row in ("train.freeze:", r"conv1 +2 +112", r"batchnorm2/\* +4 +12", r"optimizer.groups\[0\]: lr x 0.1",
                r"conv\* +2 +222", r"optimizer.groups\[1\]: lr 0.01, decay 0", r"dense1 +0 +0", r"learned +4 +707"):
        assert re.search(f"^{row}$", text, re.M), (row, text)
    assert "train.freeze" not in plan(tmp_path, CNN, "--no-time").out


def test_one_plan_however_many_processes(tmp_path):
    """In a batch script `plan` may stand after the same mpirun as `train`."""
    alone = planned(tmp_path, MLP, "--ranks", 3)
    result = dpt.run("plan", tmp_path / "job.yaml", "--json", "--no-time", "--ranks", 3, ranks=3)
    assert result.code == 0 and json.loads(result.out)["layers"] == alone["layers"], result


@pytest.mark.parametrize("ranks, words", [(1, []), (2, ["--set", "data.drop_last=true"]), (3, [])])
def test_steps_and_rates_are_those_of_a_run(tmp_path, ranks, words):
    found = planned(tmp_path, CNN, "--ranks", ranks, *words)
    run = trained(tmp_path, CNN, "--set", "eval.every=never", "--set", "checkpoint.every=never", *words, ranks=ranks)
    logged = dpt.events(run, "train")
    steps = found["steps"]
    assert steps["total"] == logged[-1]["step"] == 2 * steps["per_epoch"]
    assert (steps["samples_per_epoch"], steps["held_out"]) == (900, 100)
    full, last = 128, 900 % 128
    assert (steps["per_epoch"], steps["last_samples"]) == ((7, full) if words else (8, last))
    rates = {event["step"]: event["lr"] for event in logged}
    assert found["lr"][0]["step"] == 1 and found["lr"][-1]["step"] == steps["total"]
    for point in found["lr"]:
        assert point["lr"] == pytest.approx(rates[point["step"]], rel=1e-12), point
    event = dpt.events(run, "run")[0]
    assert event["parameters"] == found["parameters"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7])
def test_the_deal_is_even_and_whole(tmp_path, ranks):
    found = planned(tmp_path, CNN, "--ranks", ranks, "--set", "batch.micro=5")
    for key, samples in (("deal", 128), ("last_deal", found["steps"]["last_samples"])):
        runs = found["steps"][key]
        count = -(-samples // 5)
        assert len(runs) == ranks and runs[0][0] == 0 and runs[-1][1] == count
        assert all(a[1] == b[0] for a, b in zip(runs, runs[1:]))
        sizes = [last - first for first, last in runs]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("optimizer", ["{type: adam}", "{type: sgd, momentum: 0.9}", "{type: sgd, lr: 0.1}"])
def test_the_checkpoint_has_that_size(tmp_path, ranks, optimizer):
    text = MLP + f"optimizer: {optimizer}\ntrain: {{steps: 2}}\n"
    found = planned(tmp_path, text, "--ranks", ranks)
    run = trained(tmp_path, text, ranks=ranks)
    sizes = {os.path.getsize(file) for file in glob.glob(f"{run}/checkpoints/step-*.h5")}
    assert sizes == {found["checkpoint_bytes"]}


def test_memory_follows_from_the_model(tmp_path):
    one, two = (planned(tmp_path, CNN, "--ranks", ranks, "--ranks-per-node", 2) for ranks in (1, 2))
    parts = one["memory"]["parts"]
    floats = sum(-(-count // 16) * 16 for count in (32 * 27, 32, 64 * 288, 64, 40960, 10))
    assert parts["weights"] == 4 * floats and parts["optimizer"] == 2 * parts["weights"]
    assert parts["weights"] < parts["gradients"] < parts["weights"] + 1024 * one["threads"] or one["threads"] > 1
    assert parts["samples"] == 2 * 1000 * (3 * 32 * 32 + 4), "train and test, as bytes, and their labels"
    shared = two["memory"]["parts"]["gradients_shared"]
    assert 2 * parts["weights"] < shared < 2.1 * parts["weights"] + 8192, "the sum, and of each gradient what the other adds up"
    assert parts["weights"] < two["memory"]["parts"]["gradients"] < parts["weights"] + 1024 * two["threads"] or two["threads"] > 1
    assert two["reduced_bytes"] == parts["weights"] + 64 and one["reduced_bytes"] == 0
    text = CNN + "comm: {reduction: reproducible}\nparallel: {shard: optimizer}\n"
    shards = planned(tmp_path, text, "--ranks", 4, "--ranks-per-node", 2)
    assert shards["memory"]["parts"]["optimizer"] == parts["optimizer"] / 4
    text = CNN + "comm: {reduction: reproducible}\nparallel: {shard: parameters}\n"
    units, alone = (planned(tmp_path, text, "--ranks", 4, "--ranks-per-node", node) for node in (2, 4))
    first, last = sum(-(-count // 16) * 16 for count in (32 * 27, 32, 64 * 288, 64)) * 4, (40960 + 16) * 4
    assert first + last == parts["weights"] == alone["memory"]["parts"]["weights"]
    assert alone["memory"]["of"]["weights"] == "node" and alone["gathered_bytes"] == 0
    assert units["memory"]["parts"]["weights"] == parts["weights"] / 4, "its own"
    assert units["memory"]["parts"]["weights_unit"] == last and units["memory"]["of"]["weights_unit"] == "node", "the larger unit"
    assert units["gathered_bytes"] == units["reduced_bytes"] // parts["weights"] * (2 * first + last)
    text = CNN + "comm: {reduction: reproducible}\nparallel: {pipeline: 2}\n"
    stages = planned(tmp_path, text, "--ranks", 4, "--ranks-per-node", 2)
    cut = stages["pipeline"]
    assert [stage["first_layer"] for stage in cut["stages"]] == ["input", "conv2"] and cut["replicas"] == 2
    assert stages["memory"]["parts"]["weights"] == 4 * (32 * 27 + 32), "of the first stage, whose values need most"
    micro, batches = stages["batch"]["micro"], stages["batch"]["global"] // stages["batch"]["micro"]
    assert cut["bubble"] == pytest.approx(1 / (batches / 2 + 1)) and [stage["under_way"] for stage in cut["stages"]] == [2, 1]
    assert [stage["sent_bytes"] for stage in cut["stages"]] == [batches / 2 * micro * 32 * 16 * 16 * 4, 0]
    for found in (one, two, shards, units, alone, stages):
        memory, n = found["memory"], found["ranks_per_node"]
        of = {scope: sum(v for k, v in memory["parts"].items() if memory["of"][k] == scope)
              for scope in ("rank", "rank 0", "node")}
        assert memory["rank_0"] == pytest.approx(of["rank"] + of["rank 0"] + of["node"])
        assert memory["node"] == pytest.approx(n * of["rank"] + of["rank 0"] + of["node"])
        assert memory["fits"] is True


@pytest.mark.skipif(SANITIZED, reason="the sanitizer has memory of its own for each block")
def test_copies_of_weights_are_counted_once(tmp_path):
    """Though planning has them in its memory, too."""
    wide, narrow = (planned(tmp_path, CNN.replace("32, 64", channels), "--no-time")["memory"]["parts"]
                    for channels in ("16, 512, 512", "16, 16, 16"))
    assert wide["copies"] > 20e6
    assert wide["base"] - narrow["base"] < 0.25 * wide["copies"]


@pytest.mark.skipif(SANITIZED, reason="the sanitizer reserves terabytes")
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_a_model_that_is_larger_than_the_memory(tmp_path, ranks):
    path = dpt.write_job(tmp_path / "job.yaml", LARGE)
    limit = 800 << 20  # a tenth of what it takes
    done = subprocess.run([dpt.BINARY, "plan", path, "--json", "--no-time", "--ranks", str(ranks)],
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)), capture_output=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=100)
    found = json.loads(done.stdout)
    assert found["parameters"] == 4097 * 12288 + 12289 * 11264 + 11265 * 9216 + 9217 * 1000 > 300e6
    arena = 4 * found["parameters"]
    assert found["memory"]["parts"]["optimizer"] == pytest.approx(2 * arena, rel=1e-3)
    assert found["checkpoint_bytes"] == pytest.approx(3 * arena, rel=1e-3)
    assert found["reduced_bytes"] == (pytest.approx(arena, rel=1e-3) if ranks > 1 else 0)
    assert found["memory"]["rank"] > 4 * arena


def test_what_is_done_to_samples_takes_time(tmp_path):
    """A sample is measured that is augmented, or decoded from a file: by this clock it takes 10 ms, and one mixed of two twice that. One
    that is copied has its time from a table, whatever the clock says."""
    clock = dpt.ticking(tmp_path)

    def seconds(job, *words, **more):
        words = [w for word in ("device.threads=1", *words) for w in ("--set", word)]
        return json.loads(plan(tmp_path, job, "--json", "--no-trial", *words, **more).out)["time"]["step"]["data_s"]

    assert 0 < seconds(CNN) == seconds(CNN, env=clock)
    assert seconds(CNN, "data.augment={rotate: 30, noise: 0.1}", env=clock) == pytest.approx(128 * 0.01, rel=1e-4)
    assert seconds(CNN, "data.augment={rotate: 30, noise: 0.1, mixup: 0.2}", env=clock) == pytest.approx(128 * 0.02, rel=1e-4)
    folder = tmp_path / "photos" / "a"
    folder.mkdir(parents=True)
    for i in range(3):
        Image.effect_noise((300 + i, 300), 50).convert("RGB").save(folder / f"{i}.png")
    jobs = {}
    for name, more in ("decoded", []), ("kept", ["--keep-files"]):
        made = dpt.run("convert", "pictures", folder.parent, "--size", "32x32", "--output", tmp_path / name, *more)
        assert made.code == 0, made
        jobs[name] = f"data: {{train: {tmp_path}/{name}-*.h5}}\nmodel: {{type: linear, outputs: 2}}\nbatch: {{global: 3}}\n"
    assert 0 < seconds(jobs["decoded"]) == seconds(jobs["decoded"], env=clock)
    assert seconds(jobs["kept"], env=clock) == pytest.approx(3 * 0.01, rel=1e-4)


def test_time(tmp_path):
    clock = dpt.ticking(tmp_path)
    result = plan(tmp_path, CNN, "--json", "--ranks", 4, "--ranks-per-node", 2, "--fabric", 100)
    found = json.loads(result.out)["time"]
    assert found["tried"] is True
    step = found["step"]
    assert step["seconds"] == pytest.approx(sum(v for k, v in step.items() if k.endswith("_s") and k != "samples_per_s"),
                                            rel=0.01)
    assert step["samples_per_s"] == pytest.approx(128 / step["seconds"])
    network = found["fabric"]
    floats = 4 * 60384
    least = network["latency_s"] + 2 * network["overhead_s"] + floats / network["bytes_per_s"]
    assert least < step["network_sum_s"]
    # Two nodes: one round of recursive doubling, so a slower message is counted once.
    sums = [json.loads(plan(tmp_path, CNN, "--json", "--no-trial", "--ranks", 4, "--ranks-per-node", 2, "--latency", us, env=clock).out)
            ["time"]["step"]["network_sum_s"] for us in (1000, 2000)]
    assert sums[1] - sums[0] == pytest.approx(1e-3)
    assert [scale["ranks"] for scale in found["scaling"]] == [1 << i for i in range(11)]
    for scale in found["scaling"]:
        assert (scale["strong"] is None) == (scale["ranks"] > 8), "eight micro-batches of 16"
        assert scale["weak"]["global"] == 32 * scale["ranks"]
    slow = json.loads(plan(tmp_path, CNN, "--json", "--no-trial", "--ranks", 4, "--ranks-per-node", 1, "--bandwidth", 0.1,
                           "--latency", 1000).out)["time"]
    assert slow["tried"] is False
    assert slow["step"]["network_sum_s"] > 2 * 1e-3 + 1.5 * floats / (0.1e9 / 8)


def test_time_of_a_sum_beside_backward(tmp_path):
    """All but the last bucket may go while the last micro-batch goes back; without a core for it, or where that is off, none does."""
    clock, text, slow = dpt.ticking(tmp_path), MLP + "batch: {global: 512, micro: 16}\n", ("--no-trial", "--ranks", 4, "--nodes", 2, "--bandwidth", 10)
    sums = {}
    for way in ("never", "always", "auto"):
        found = json.loads(plan(tmp_path, text, "--json", *slow, "--set", f"comm.overlap={way}", "--set", "device.threads=64", env=clock).out)["time"]
        sums[way] = found["step"]["network_sum_s"]
    assert 0 < sums["always"] < sums["never"] == sums["auto"]


@pytest.mark.parametrize("words", [["comm.reduction=reproducible"], ["comm.reduction=reproducible", "batch.micro=3"],
                                   ["comm.hierarchical=off"]])
@pytest.mark.parametrize("ranks, node", [(2, 2), (64, 32)])
def test_time_of_a_team_and_its_sum(tmp_path, words, ranks, node):
    """Tried in groups of micro-batches where a run computes such; a sum on a node wherever ranks share one."""
    text = MLP + "batch: {global: 512, micro: 4}\n"
    sets = [word for setting in words for word in ("--set", setting)]
    found = json.loads(plan(tmp_path, text, "--json", "--ranks", ranks, "--ranks-per-node", node, *sets).out)["time"]
    step = found["step"]
    assert found["tried"] is True
    parts = ("compute_s", "data_s", "local_sum_s", "network_sum_s", "update_s")
    assert step["seconds"] == pytest.approx(sum(step[key] for key in parts), rel=0.05)
    assert min(step["compute_s"], step["data_s"], step["update_s"]) > 0
    assert step["local_sum_s"] > 0 or node == 1
    assert (step["network_sum_s"] > 0) == (ranks > node)


def test_for_a_person(tmp_path):
    for ranks in (1, 3, 8):
        out = plan(tmp_path, CNN, "--ranks", ranks, "--no-trial", env={"COLUMNS": "80"}).out
        assert max(map(len, out.splitlines())) <= 80, out
        assert "60 362" in out and "8 steps of 128, the last of 4" in out and "weak" in out and "fits" in out
    assert "0: 0  1: 1" in out and "7: 7" in out


def test_idle_ranks_are_told(tmp_path):
    """And planned as they would run, but not in the table, whose ranks all have something to do."""
    result = plan(tmp_path, CNN, "--json", "--no-trial", "--ranks", 9)
    assert result.err == ("warning: rank 0 of 9 stays idle: 128 / 16 gives 8 micro-batches per step; batch.micro: 15 or less would "
                          "feed all\n")
    found = json.loads(result.out)
    assert [last - first for first, last in found["steps"]["deal"]] == [0] + 8 * [1]
    assert found["time"]["step"]["seconds"] > 0
    assert [scale["ranks"] for scale in found["time"]["scaling"] if scale["strong"] is None] == [1 << i for i in range(4, 11)]


def test_nodes_are_one_unless_said(tmp_path):
    """However few cores this machine has; more ranks than it has cores are told with what was assumed. A GPU's nodes have 8."""
    cores = len(os.sched_getaffinity(0))
    for ranks in (cores, cores + 1, 64):
        out = plan(tmp_path, CNN, "--ranks", ranks, "--no-time", "--set", "batch.global=640").out
        assert f"{ranks} rank{'s' * (ranks > 1)} on 1 node, " in out, out
        assert (f"assumed: one node of {cores} core" in out and "--nodes N" in out) == (ranks > cores), out
    for words, nodes, each in ((["--nodes", 8], 8, 8), (["--ranks-per-node", 16], 4, 16), (["--nodes", 3], 3, 22)):
        found = planned(tmp_path, CNN, "--ranks", 64, *words, "--set", "batch.global=768", "--set", "batch.micro=12")
        assert (found["nodes"], found["ranks_per_node"], found["assumes_nodes"]) == (nodes, each, False)
        assert "assumed" not in plan(tmp_path, CNN, "--ranks", 64, *words, "--no-time", "--set", "batch.global=768", "--set", "batch.micro=12").out
    assert "with 2 ranks a node, 9.4 Gbit/s between nodes\n" in plan(tmp_path, CNN, "--ranks", 4, "--nodes", 2, "--no-trial").out
    warned = plan(tmp_path, CNN, "--ranks", 2, "--fabric", 100, "--no-time")
    assert warned.err == "warning: --fabric: all ranks are on one node, so nothing crosses a network; --nodes N divides them\n"
    assert plan(tmp_path, CNN, "--ranks", 2, "--nodes", 2, "--fabric", 100, "--no-time").err == ""


@pytest.mark.parametrize("words, code, says", [
    (["--ranks", "0"], 2, "a whole number"),
    (["--ranks", "4", "--nodes", "5"], 2, "4 ranks, 1 a node, need only 4"),
    (["--ranks", "4", "--nodes", "2", "--ranks-per-node", "2"], 2, "give one of the two"),
    (["--fabric", "40"], 2, "10 or 100"),
    (["--latency", "-1"], 2, "above 0"),
    (["--bandwidth", "fast"], 2, "above 0"),
    (["--device", "tpu"], 78, "device.kind"),
    (["--set", "batch.mirco=3"], 78, "did you mean 'micro'?"),
    (["--set", "data.train=[nothing-*.h5]"], 78, "nothing-*.h5"),
    (["--set", "model.outputs=3"], 78, "outputs"),
])
def test_mistakes(tmp_path, words, code, says):
    result = plan(tmp_path, CNN, *words, code=code)
    assert says in result.err and result.out == "" and len(result.err.splitlines()) == 1, result


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_that_finds_too_little_memory_is_told_what_would_fit(tmp_path, ranks):
    """Before anything of its size is made; each number is that of `plan` for the same change."""
    text = ("data: {train: synthetic, synthetic: {samples: 64, shape: [40000]}}\nbatch: {global: 64, micro: 32}\ndevice: {kind: cpu}\n"
            f"model: {{type: mlp, hidden: [{', '.join(['40000'] * 80)}], outputs: 10}}\n")
    result = dpt.run("train", dpt.write_job(tmp_path / "job.yaml", text), "--output", tmp_path / "out", ranks=ranks if ranks > 1 else 0)
    assert result.code == 71 and "not enough memory for weights, gradient and optimizer: " in result.err, result

    def needs(*words, ranks=ranks):
        found = planned(tmp_path, text, *words, "--ranks", str(ranks), "--ranks-per-node", str(ranks))
        return found["memory"]["node"] / 1e9

    def said(pattern):
        return float(re.search(pattern, result.err, re.M)[1])

    never = ("--set", "checkpoint.every=never")
    assert said(r"^it needs ([\d.]+) GB on this node, where ") == pytest.approx(needs(), rel=1e-3)
    assert said(r"^ +([\d.]+) GB  with checkpoint.every=never$") == pytest.approx(needs(*never), rel=1e-3)
    if ranks > 1:
        assert said(r"^ +([\d.]+) GB  with one rank per node$") == pytest.approx(needs(ranks=1), rel=1e-3)
        assert said(r"^ +([\d.]+) GB  with all of these$") == pytest.approx(needs(*never, ranks=1), rel=1e-3)
    assert "more ranks do not help" in result.err and not (tmp_path / "out" / "metrics.jsonl").exists()


@pytest.mark.skipif(SANITIZED, reason="the sanitizer reserves terabytes of addresses")
def test_activations_that_find_too_little_memory(tmp_path):
    """Under a limit of a process's addresses: which options spare them, and that the limit is no want of memory."""
    text = ("data: {train: synthetic, synthetic: {samples: 64, shape: [3, 256, 256]}}\nbatch: {global: 64, micro: 32}\n"
            "device: {kind: cpu, threads: 2}\nmodel: {type: cnn, channels: [64], outputs: 10}\n")
    command = [dpt.BINARY, dpt.write_job(tmp_path / "job.yaml", text), "--output", tmp_path / "out"]
    done = subprocess.run(["bash", "-c", 'ulimit -v 1500000; exec "$@"', "bash", *map(str, command)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert done.returncode == 71 and "not enough memory for activations" in done.stderr, done
    assert "a limit of the process (ulimit -v) stands below that" in done.stderr
    sizes = {what: float(size) for size, what in re.findall(r"^ +([\d.]+) GB  with (.*)$", done.stderr, re.M)}
    # Without AVX-512 or AMX convolutions in bf16 spare nothing.
    need, halved = (planned(tmp_path, text, *words)["memory"]["node"] for words in ((), ("--set", "device.precision=bf16")))
    spares = {"batch.micro=16", "device.threads=1", "all of these"} | ({"device.precision=bf16"} if halved < 0.95 * need else set())
    assert set(sizes) == spares and min(sizes.values()) == sizes["all of these"], done.stderr
