"""Linked devices that keep slices of the weights, and gather those of a unit for its passes (parallel.shard: parameters)."""
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
import test_device_links  # noqa: E402
import test_device_rounds  # noqa: E402
from test_device_shards import AVERAGED, allocated  # noqa: E402
from test_gpu import header  # noqa: E402
from test_device import CNN, MLP, pytestmark  # noqa: E402,F401

# What holds of whole weights holds of units: these use the machine below.
from test_device import test_signals_save, test_what_is_not_a_number_is_named  # noqa: E402,F401
from test_device_links import (test_a_dead_rank_is_named, test_a_rank_that_stays_away_is_named,  # noqa: E402,F401
                               test_whatever_order_the_streams_take)

DEEP = {**MLP, "model": "{type: mlp, hidden: [24, 20, 33, 16, 7], outputs: 10}"}


class Machine(test_device_rounds.Machine):
    shard = "parameters"


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "frozen"])
def test_many_units(machine, precision, frozen):
    """Of more than two a window has one after the other; what is frozen has a gradient of zeros there, too."""
    more = {"train": "{steps: 8, freeze: [dense2, dense3/weight]}"} if frozen else {}
    job = machine.job(DEEP, device=f"{{precision: {precision}}}", **more)
    machine.train("one", job)
    for ranks in (2, 5, 7):
        result = machine.train(str(ranks), job, ranks=ranks)
        assert header(result, "sums") == "by NCCL 2.28.3", result
        assert header(result, "shards") == f"the optimizer's state, the gradients and the weights, a part on each of {ranks} GPUs", result
        assert machine.newest(str(ranks)) == machine.newest("one")
        machine.assert_same_run(str(ranks), "one")


@pytest.mark.parametrize("width", [53, 805])
def test_rows_that_fill_no_vectors(machine, width):
    """The chunks of the norm, between whose rests the sums of slices lie, have rows as long."""
    job = machine.job({**MLP, "data": f"{{train: synthetic, synthetic: {{samples: 60, shape: [{width}]}}}}"}, train="{steps: 4}",
                      model="{type: mlp, hidden: [24, 33], outputs: 10}")
    machine.train("one", job)
    for ranks in (2, 3):
        machine.train(str(ranks), job, ranks=ranks)
        assert machine.newest(str(ranks)) == machine.newest("one")


def test_runs_go_on_anywhere(machine):
    """In the middle of an epoch, on other numbers of ranks, and where the weights are whole or the host's."""
    job = machine.job(AVERAGED, optimizer="{type: adam, lr: 0.01}")
    machine.train("whole", job)
    for steps, ranks, transport, shard in ((1, 3, "nccl", "parameters"), (2, 2, "mpi", "parameters"), (3, 5, "nccl", "parameters"),
                                           (5, 4, "nccl", "gradients"), (6, 1, "auto", "parameters"), (8, 8, "nccl", "parameters")):
        machine.train("parts", job, ranks=ranks, sets=[f"train.steps={steps}", f"comm.transport={transport}", f"parallel.shard={shard}"])
    assert machine.newest("parts") == machine.newest("whole")


@pytest.mark.parametrize("precision, copies", [("fp32", 0), ("bf16", 1)])
def test_each_has_a_part_of_the_weights(machine, precision, copies):
    """Of eight layers of a quarter of a million weights, on four devices: weights, their copies and gradients are there of two, a slice is of the others.
    So are what a piece of the gradient has of the ranks, which was of four layers, and its slices of three. In bf16 layers read copies."""
    layer, layers = 512 * 512, 8
    job = machine.job(MLP, data="{train: synthetic, synthetic: {samples: 48, shape: [512]}}", checkpoint="{every: never}", train="{steps: 2}",
                      model=f"{{type: mlp, hidden: [{', '.join(['512'] * layers)}], outputs: 10}}", device=f"{{precision: {precision}}}")
    machine.train("tuned", job)
    for shard in ("gradients", "parameters"):
        machine.train(shard, job, ranks=4, sets=[f"parallel.shard={shard}"], FAKEGPU_LOG=str(machine.path / f"calls-{shard}-%p"))
    before, after = (allocated(machine, f"calls-{shard}") / 4 / layer for shard in ("gradients", "parameters"))
    wanted = (layers - 2) * (2 + copies / 2) - 2 * layers / 4 + (4 - 1) * (1 + 3 / 4)
    assert abs(before - after - wanted) < 0.02 * wanted, (before, after, wanted)


def test_few_graphs(machine):
    """Ten rounds go through the same ones: of each unit one forward and one back, beside the update's."""
    job = machine.job(DEEP, batch="{global: 80}", checkpoint="{every: never}", eval="{every: never}", train="{steps: 4}")
    result = machine.train("out", job, ranks=2, FAKEGPU_LOG=str(machine.path / "calls%p"))
    assert header(result, "sums") == "by NCCL 2.28.3", result
    for text in (path.read_text() for path in machine.path.glob("calls*")):
        totals = {name: int(n) for name, n in re.findall(r"^total (\w+) (\d+)", text, re.M)}
        assert totals["cuGraphLaunch"] >= 4 * 10 * 2 * 4 and totals["cuGraphInstantiate"] <= 2 * 6 + 2, totals


def test_the_first_step_is_summed_by_mpi_too(machine):
    """Every unit's gathering, and every sum, in each of the rounds; what is wrong in a slice's padding matters to nobody."""
    job = machine.job(DEEP)
    machine.train("right", job, ranks=2, sets=["train.steps=2"])
    said = set()
    for call in (2, 4, 6, 7, 8, 9, 13):
        result = machine.run(f"wrong{call}", job, ranks=2, sets=["train.steps=2"], FAKENCCL_WRONG=str(call))
        told = re.search(r"the first step's (weights|gradient), element \d+: NCCL 2.28.3 (sums|gathers)", result.err)
        assert (result.code == 71 and told) or machine.newest(f"wrong{call}") == machine.newest("right"), (call, result)
        said.add((told or [0, "nothing"])[1])
    assert said >= {"weights", "gradient"}, said


def test_a_rank_that_cannot_read_takes_all_along(machine):
    job = machine.job(DEEP)
    result = machine.run("out", job, ranks=3, DPTRAIN_FAULT="read:rank=1:step=2")
    assert result.code == 74 and "reading failed" in result.err and "rank 1 (" in result.err, result


def test_a_rank_that_is_struck_gathers_with_the_others(machine):
    """It reads and writes its own slices, while windows still have weights of the evaluation before."""
    job = machine.job(MLP, model="{type: mlp, hidden: [24], outputs: 10}", eval="{every: 1 steps}")
    result = machine.run("out", job, ranks=3, sets=["comm.timeout=5s"], DPTRAIN_FAULT="flip-weight:rank=1:step=4")
    assert result.code == 0, result  # no other rank has the weight


@pytest.mark.parametrize("call", ["ncclGroupEnd:2", "ncclSend:9", "ncclAllGather:9", "cuGraphLaunch:40+", "cuStreamWaitEvent:9", "cuMemcpyDtoHAsync:40+"])
def test_a_failing_pass_takes_all_along(machine, call):
    test_device_links.assert_a_failure_takes_all_along(machine, {**CNN, "parallel": "{shard: parameters}"}, call)


def test_launches_are_timed(machine):
    result = dpt.run("bench", machine.job(DEEP), "--steps", "4", "--set", "device.kind=cuda", ranks=2, env=machine.environment)
    assert result.code == 0 and re.search(r"^step norm_decide +[\d.]+ ", result.out, re.M), result
