"""parallel.pipeline where a device computes, on one that runs on the CPU: the bytes are those of one rank."""
import json
import os
import re
import subprocess
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/engines/tests"]
import dpt  # noqa: E402
from test_device import CNN, EXPLODES, LINEAR, MLP, RESIDUAL, fixture_machine, pytestmark  # noqa: E402, F401

STAGED = "{reduction: reproducible, timeout: 20 s}"
DEEP = {
    **MLP,
    "model": "{type: sequential, layers: [flatten, {dense: 30}, relu, {dropout: 0.2}, {dense: 24}, layernorm, gelu, {dense: 10}]}",
    "batch": "{global: 48, micro: 7}",
    "device": "{precision: bf16}",
}


@pytest.mark.parametrize("sections, ranks, words, shard, sets", [
    (MLP, 2, "2", "none", ["batch.micro=5"]),
    (DEEP, 6, "{stages: 3, schedule: gpipe}", "optimizer", []),
    (CNN, 4, "{stages: 2, schedule: gpipe}", "optimizer", ["device.precision=fp16"]),
    (RESIDUAL, 3, "3", "none", []),
    (RESIDUAL, 4, "{stages: 2, cut: [conv3]}", "gradients", []),
    (RESIDUAL, 3, "1", "parameters", ["batch.micro=4"]),
    (DEEP, 4, "2", "parameters", []),
], ids=["mlp", "deep-bf16", "cnn-fp16", "residual-3", "residual-2x2", "units-3", "units-2x2"])
def test_stages_give_the_bytes_of_one_rank(machine, sections, ranks, words, shard, sets):
    """Weights, statistics, slots and kernels, the fingerprints of each step, and what evaluations say."""
    job = machine.job(sections, comm=STAGED)
    sets = ["log.hashes=true", "eval.every=3 steps", *sets]
    machine.train("one", job, sets=sets, FAKEGPU_MODEL="Fake")
    machine.train("stages", job, ranks=ranks, sets=[f"parallel.pipeline={words}", f"parallel.shard={shard}", *sets], FAKEGPU_MODEL="Fake",
                  FAKEGPU_DEVICES="6", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5", FAKEGPU_EAGER="0", FAKEGPU_SEED=str(ranks))
    assert machine.newest("stages") == machine.newest("one")
    assert len({(machine.path / name / "hashes.jsonl").read_text() for name in ("one", "stages")}) == 1
    assert (machine.evaluations("stages") == machine.evaluations("one")).all() and len(machine.evaluations("one")) > 1


def test_stages_go_on_on_another_mesh(machine):
    """With the kernels of the checkpoint, of which rank 0 tells all."""
    job = machine.job(RESIDUAL, comm=STAGED, checkpoint="{every: 2 steps}")
    machine.train("one", job)
    for steps, ranks, words in ((2, 4, "{stages: 2, schedule: gpipe}"), (4, 1, "1"), (5, 3, "3"), (8, 2, "2")):
        result = machine.train("parts", job, ranks=ranks, sets=[f"train.steps={steps}", f"parallel.pipeline={words}"])
        assert "may differ" not in result.err, result
    assert machine.newest("parts") == machine.newest("one")
    assert len(machine.plans("parts")) == 14  # five layers, the first one without its inputs' gradient


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_stages_name_what_is_not_a_number(machine, precision):
    """What stages tell each other is in the tensors' format; so is what is searched."""
    job = machine.job(EXPLODES, batch="{global: 24, micro: 8}", comm=STAGED, device=f"{{precision: {precision}}}")
    result = machine.run("out", job, ranks=2, sets=["parallel.pipeline=2"])
    assert result.code == 1 and re.search(r"step \d+: not a number: rank \d \(.*, stage \d of 2\), output of layer dense\d?, synthetic sample \d+", result.err), result


def test_what_is_not_a_number_has_one_fingerprint(machine):
    """Of a gradient that overflows: which of the numbers that are none a sum gives follows from which addend is the first."""
    job = machine.job(LINEAR, data="{train: synthetic, synthetic: {samples: 200, shape: [5], outputs: 2, noise: 40000}}", device="{precision: fp16}",
                      comm="{reduction: reproducible}", batch="{global: 48, micro: 3}", train="{steps: 3}", log="{hashes: true}",
                      model="{type: sequential, layers: [{dense: 24}, {dense: {outputs: 2}}]}")
    said = set()
    for ranks in (1, 2, 3):
        machine.train(str(ranks), job, ranks=ranks)
        said.add((machine.path / str(ranks) / "hashes.jsonl").read_text())
    assert len(said) == 1 and machine.weights("1")[1]["loss_scale_overflows"] > 0


def test_what_gpus_do_not_divide_is_told(machine):
    job = machine.job(MLP, comm=STAGED)
    result = machine.run("out", job, ranks=2, sets=["parallel.tensor=2"])
    assert result.code == 78 and "parallel.tensor: runs on device.kind: cpu or ref" in result.err, result


def test_plans_of_stages(machine):
    """What each has of its GPU, and sends in the tensors' format."""
    job = machine.job(DEEP, comm=STAGED, parallel="{pipeline: 3}")

    def planned(*words):
        done = dpt.run("plan", job, "--json", "--no-time", "--ranks", 3, "--device", "h100", *words, env=machine.environment)
        assert done.code == 0, done
        return json.loads(done.out)

    half, full, whole = planned(), planned("--set", "device.precision=fp32"), planned("--set", "parallel.pipeline=1")
    stages = half["pipeline"]["stages"]
    assert half["device"]["bytes"] == max(stage["device_bytes"] for stage in stages)
    assert half["device"]["parts"]["weights"] < whole["device"]["parts"]["weights"]
    assert [stage["under_way"] for stage in stages] == [3, 2, 1]
    assert [2 * stage["sent_bytes"] for stage in stages] == [stage["sent_bytes"] for stage in full["pipeline"]["stages"]] \
        == [7 * 7 * 30 * 4, 7 * 7 * 24 * 4, 0]


def test_a_failing_device_takes_all_stages_along(machine):
    shell = "test $OMPI_COMM_WORLD_RANK = 1 && export FAKEGPU_FAIL=cuMemcpyDtoHAsync:20+; exec \"$@\""
    command = ["mpirun", "-np", "2", "sh", "-c", shell, "sh", dpt.BINARY, "train", machine.job(CNN, comm=STAGED), "--output",
               str(machine.path / "out"), "--set", "device.kind=cuda", "--set", "parallel.pipeline=2", "--set", "device.threads=2"]
    done = subprocess.run(command, env={**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment}, timeout=100, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 71 and done.stderr.count("rank 1 (") == 1 and "stage 2 of 2" in done.stderr, done.stderr


WIDE = {
    **MLP,
    "data": "{train: synthetic, synthetic: {samples: 96, shape: [1, 20, 20]}}",
    "model": "{type: sequential, layers: [flatten, {dense: 200}, relu, {dense: {outputs: 16, bias: false}}, {batchnorm: {statistics: micro}}, relu, "
             "{dense: 10}]}",
    "batch": "{global: 96, micro: 3}",
    "comm": "{reduction: reproducible}",
}
WHOLE = {**WIDE, "model": WIDE["model"].replace("statistics: micro", "statistics: batch")}


def gradients_a_step(machine, name, job, ranks=1, **options):
    """How many times the bytes of all weights the ranks' devices send to the host in a step, evaluations apart."""
    sent = []
    for steps in (2, 4):
        log = machine.path / f"{name}{steps}-%p"
        machine.train(f"{name}{steps}", job, ranks=ranks, FAKEGPU_LOG=str(log), FAKEGPU_MODEL="Fake",
                      **{**options, "sets": [*options.get("sets", ()), f"train.steps={steps}"]})
        sent.append(sum(int(text) for path in machine.path.glob(f"{name}{steps}-*") for text in
                        re.findall(r"cuMemcpyDtoHAsync (\d+)", path.read_text())))
    weights = sum(array.nbytes for key, array in machine.weights(f"{name}4")[0].items() if key.startswith("params/"))
    return (sent[1] - sent[0]) / 2 / weights


@pytest.mark.parametrize("sections, ranks, sets, wanted", [
    (WIDE, 1, ["log.hashes=true"], 1),
    (WIDE, 1, ["comm.reduction=allreduce", "log.hashes=true"], 1),
    (WIDE, 2, ["parallel.shard=optimizer", "batch.micro=2"], 4),  # a run of 24 is two nodes of the tree
    (WIDE, 2, ["parallel.shard=gradients", "batch.micro=6"], 2),  # a round each
    (WIDE, 1, ["parallel.pipeline=1", "log.hashes=true"], 1),
    (WIDE, 2, ["parallel.pipeline={stages: 2, cut: [dense3], schedule: gpipe}"], 1),
    (WIDE, 4, ["parallel.pipeline={stages: 2, cut: [dense3]}", "parallel.shard=optimizer"], 2),
    (WHOLE, 1, [], 1),
    (WHOLE, 1, ["comm.reduction=allreduce"], 1),
    (WHOLE, 2, ["parallel.shard=optimizer"], 2),
], ids=["one", "allreduce", "optimizer", "gradients", "pipeline", "stages", "stages-2x2", "lockstep", "lockstep-allreduce", "lockstep-2"])
def test_one_gradient_a_step_comes_to_the_host(machine, sections, ranks, sets, wanted):
    """Of however many micro-batches; where ranks' runs are several nodes of the tree, one for each. The rest is small: what
    crosses cuts, statistics, losses."""
    job = machine.job({**sections, "checkpoint": "{every: 2 steps}"})
    got = gradients_a_step(machine, "out", job, ranks, sets=sets)
    assert wanted <= got < wanted + 0.5, got


def test_sums_take_the_memory_that_is_left(machine):
    """With less of it a sum is of fewer micro-batches; the bytes stay."""
    job = machine.job({**WHOLE, "checkpoint": "{every: 2 steps}"})
    memory = (4600, 3800, 2800)
    got = [gradients_a_step(machine, f"{kib}-", job, FAKEGPU_MEMORY=str(kib << 10)) for kib in memory]
    assert 1 <= got[0] < 1.5 < got[1] < 3 < got[2] < 17, got
    assert len({machine.newest(f"{kib}-4") for kib in memory}) == 1


def test_plans_of_sums(machine):
    """A gradient beside the first for each level of the tree, one where they are added in turn; none where the device steps by itself."""
    def planned(sections, *words):
        done = dpt.run("plan", machine.job(sections), "--json", "--no-time", "--device", "h100", *words, env=machine.environment)
        assert done.code == 0, done
        parts = json.loads(done.out)["device"]["parts"]
        return parts["gradients"] / parts["weights"]

    allreduce = ("--set", "comm.reduction=allreduce")
    assert planned(WHOLE) == 6 and planned(WHOLE, "--ranks", 4) == 4
    assert planned(WHOLE, *allreduce) == 2 and planned(WIDE, *allreduce) == 1
