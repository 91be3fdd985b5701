"""Linked devices that divide the optimizer's state and the update (parallel.shard: optimizer)."""
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
import test_device_links  # noqa: E402
from test_gpu import header  # noqa: E402
from test_device import CNN, DENSE, MLP, RESIDUAL, pytestmark  # noqa: E402,F401

# What holds over links holds with shards: these use the machine below.
from test_device import (test_a_failing_rank_takes_all_along, test_a_scale_that_is_too_large, test_idle_ranks,  # noqa: E402,F401
                         test_means_are_of_all_samples, test_signals_save, test_what_is_not_a_number_is_named,
                         test_what_is_not_a_number_is_skipped)
from test_device_links import (test_a_dead_rank_is_named, test_a_sum_that_does_not_end,  # noqa: E402,F401
                               test_the_first_step_is_summed_by_mpi_too, test_whatever_order_the_streams_take)


class Machine(test_device_links.Machine):
    def run(self, name, job, *words, sets=(), **options):
        return super().run(name, job, *words, sets=["parallel.shard=optimizer", *sets], **options)


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return Machine(tmp_path)


def test_a_rank_that_stays_away_after_a_checkpoint_is_named(machine):
    """Once the state of all was fetched no device is waited for any more."""
    result = machine.run("late", machine.job(CNN), ranks=3, sets=["comm.timeout=3s"], DPTRAIN_FAULT="hang:rank=1:step=7", FAKEGPU_EAGER="0")
    assert result.code == 71 and re.search(r"^rank 1 \(.* at step 7", result.err, re.M), result


def test_the_end_of_the_sums_does_not_end(machine):
    """When all slices are summed the tail is."""
    test_a_sum_that_does_not_end(machine, "3")


AVERAGED = {**RESIDUAL, "train": "{steps: 8, clip_norm: 0.1, ema: 0.9, check_replicas: 1 steps}"}


@pytest.mark.parametrize("sections, ranks, tolerance", [(MLP, 5, 1e-5), (CNN, 3, 1e-3), (AVERAGED, 2, 1e-3)], ids=["mlp", "cnn", "averaged"])
def test_steps_are_those_of_one_rank(machine, sections, ranks, tolerance):
    """With micro-batches that the ranks do not divide, and a last step of an epoch that some ranks have nothing of."""
    job = machine.job(sections, batch="{global: 48, micro: 8}")
    machine.train("one", job)
    result = machine.train("linked", job, ranks=ranks)
    assert header(result, "sums") == "by NCCL 2.28.3"
    assert header(result, "shards") == f"the optimizer's state, a part on each of {ranks} GPUs"
    assert dpt.events(machine.path / "linked", "run")[0]["shard"] == "optimizer"
    machine.assert_same_run("linked", "one", 10 * tolerance)


NORMED = {**MLP, "model": "{type: sequential, layers: [flatten, {dense: 90}, {batchnorm: {statistics: micro}}, relu, {dense: 70}, layernorm, prelu, {dense: 10}]}",
          "train": "{steps: 6, clip_norm: 0.1, ema: 0.9, check_replicas: 1 steps}", "checkpoint": "{every: 3 steps}", "eval": "{every: 2 steps}"}


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "parameters"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_layers_get_what_they_read(machine, ranks, shard):
    """In bf16 half of the bytes are gathered, but for norms and the running statistics. Checkpoints have all in fp32, the same bytes as on one rank."""
    wide = {"comm": "{reduction: reproducible}", "data": "{train: synthetic, synthetic: {samples: 96, shape: [1, 12, 12]}}"}
    job = machine.job(NORMED, **wide, device="{precision: bf16}")
    machine.train("one", job, sets=["parallel.shard=none"])
    result = machine.train("out", job, ranks=ranks, sets=[f"parallel.shard={shard}"])
    assert header(result, "sums") == "by NCCL 2.28.3", result
    assert machine.newest("out") == machine.newest("one")
    assert (machine.evaluations("out") == machine.evaluations("one")).all()

    job, gathered = machine.job({**NORMED, "train": "{steps: 1}", "checkpoint": "{every: never}", "eval": "{every: never}"}, **wide), {}
    for precision in ("fp32", "bf16"):
        for steps in (2, 6):
            name = f"{precision}-{steps}"
            machine.train(name, job, ranks=ranks, FAKEGPU_LOG=str(machine.path / f"calls-{name}-%p"),
                          sets=[f"device.precision={precision}", f"parallel.shard={shard}", f"train.steps={steps}"])
            gathered[steps] = sum(int(n) for path in machine.path.glob(f"calls-{name}-*")
                                  for n in re.findall(r"^ncclAllGather (\d+)", path.read_text(), re.M))
        gathered[precision] = gathered[6] - gathered[2]
    assert 0.5 < gathered["bf16"] / gathered["fp32"] < 0.7, gathered


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_replicas_have_the_same_weights_in_half_the_width(machine, precision):
    """Where NCCL alone adds: what is saved of 3 ranks' slices goes on like a run that was not stopped."""
    job = machine.job(NORMED, data="{train: synthetic, synthetic: {samples: 96, shape: [1, 12, 12]}}", device=f"{{precision: {precision}}}")
    machine.train("whole", job, ranks=3)
    machine.train("parts", job, ranks=3, sets=["train.steps=3"])
    machine.train("parts", job, ranks=3)
    assert machine.newest("parts") == machine.newest("whole")


def test_runs_go_on_anywhere(machine):
    """The state of a slice goes to whoever has it next: on a device, or on a host."""
    job = machine.job(AVERAGED, batch="{global: 48, micro: 8}", comm="{reduction: reproducible}", optimizer="{type: adam, lr: 0.01}")
    machine.train("whole", job)
    for steps, ranks, transport, shard in ((1, 3, "nccl", "optimizer"), (2, 2, "mpi", "optimizer"), (3, 5, "nccl", "none"),
                                           (4, 5, "nccl", "optimizer"), (5, 3, "auto", "gradients"), (6, 1, "auto", "optimizer"),
                                           (8, 4, "nccl", "optimizer")):
        sets = [f"train.steps={steps}", f"comm.transport={transport}", f"parallel.shard={shard}"]
        machine.train("parts", job, ranks=ranks, sets=sets)
    assert machine.newest("parts") == machine.newest("whole")


def allocated(machine, name):
    """Bytes of device memory of the process that had least, as it measured no kernels: those of a first run on one rank are known of its GPU alone."""
    return min(sum(int(n) for n in re.findall(r"^cuMemAlloc (\d+)", path.read_text(), re.M)) for path in machine.path.glob(f"{name}*"))


MILLION = 1000 * 1000 + 1000 * 10


def saved(machine, micro, shards):
    """How much less memory each of four devices needs with the second of two shards, for so many weights; in floats."""
    job = machine.job(DENSE, data="{train: synthetic, synthetic: {samples: 48, shape: [1000]}}", checkpoint="{every: never}",
                      model="{type: mlp, hidden: [1000], outputs: 10}", train="{steps: 2}", optimizer="{type: adam}", batch=f"{{global: 48, micro: {micro}}}")
    machine.train("tuned", job)
    for shard in shards:
        machine.train(shard, job, ranks=4, sets=[f"parallel.shard={shard}"], FAKEGPU_LOG=str(machine.path / f"calls-{shard}-%p"))
    before, after = (allocated(machine, f"calls-{shard}") for shard in shards)
    return (before - after) / 4


def test_each_has_a_part_of_the_state(machine):
    """Two slots of a million weights, on four devices; each also has room for a piece of all."""
    floats = saved(machine, 12, ("none", "optimizer"))
    assert abs(floats - MILLION * (2 * 3 / 4 - 1)) < 0.01 * MILLION, floats


def test_few_and_large_pieces(machine):
    """It goes in two pieces."""
    for sums in test_device_links.sums_of_large_layers(machine, "ncclReduceScatter", 3):
        assert len(sums) == 6 and max(sums) == 4 << 20, sums


@pytest.mark.parametrize("call", ["ncclReduceScatter:1", "ncclReduceScatter:5", "ncclAllGather:4", "ncclAllReduce:6", "cuGraphLaunch:7+"])
def test_a_failing_part_takes_all_along(machine, call):
    test_device_links.assert_a_failure_takes_all_along(machine, {**CNN, "parallel": "{shard: optimizer}"}, call)


def test_launches_are_timed(machine):
    """Repeated launches leave the optimizer's state as it was, of which a rank has a part."""
    job = machine.job(DENSE, optimizer="{type: adam}")
    result = dpt.run("bench", job, "--steps", "4", "--set", "device.kind=cuda", "--set", "parallel.shard=optimizer", ranks=2, env=machine.environment)
    assert result.code == 0 and re.search(r"^step norm_decide +[\d.]+ ", result.out, re.M) and "step adam" in result.out, result


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_weights_are_shown(machine, reduction):
    """Rank 0 alone shows them; of the gradient each rank has a part."""
    job = machine.job(CNN, batch="{global: 48, micro: 8}", comm=f"{{reduction: {reduction}}}", log="{every: 2 steps, tensorboard: true}")
    machine.train("one", job)
    machine.train("linked", job, ranks=3)
    machine.assert_same_run("linked", "one", 1e-2)
