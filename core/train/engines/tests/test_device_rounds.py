"""Linked devices that take micro-batches round-robin, and sum after each round (parallel.shard: gradients)."""
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
import test_device_links  # noqa: E402
from test_device_shards import AVERAGED, MILLION, saved  # noqa: E402
from test_gpu import header  # noqa: E402
from test_device import CNN, DENSE, pytestmark  # noqa: E402,F401

# What holds of one sum a step holds of several: these use the machine below.
from test_device import (test_a_failing_rank_takes_all_along, test_signals_save,  # noqa: E402,F401
                         test_what_is_not_a_number_is_named)
from test_device_links import (test_a_dead_rank_is_named, test_a_rank_that_stays_away_is_named,  # noqa: E402,F401
                               test_whatever_order_the_streams_take)


class Machine(test_device_links.Machine):
    shard = "gradients"

    def job(self, sections, **more):
        sections = {"comm": "{reduction: reproducible}", "parallel": f"{{shard: {self.shard}}}", **sections, **more}
        if "micro" not in sections["batch"]:
            sections["batch"] = sections["batch"].replace("}", ", micro: 4}")
        return super().job(sections)


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return Machine(tmp_path)


def test_runs_go_on_anywhere(machine):
    """In the middle of an epoch, on other numbers of ranks; in the last step of one not every rank has every round."""
    job = machine.job(AVERAGED, optimizer="{type: adam, lr: 0.01}")
    machine.train("whole", job)
    for steps, ranks, transport, shard in ((1, 3, "nccl", "gradients"), (2, 2, "mpi", "gradients"), (4, 5, "nccl", "gradients"),
                                           (5, 4, "nccl", "optimizer"), (6, 1, "auto", "gradients"), (8, 8, "nccl", "gradients")):
        sets = [f"train.steps={steps}", f"comm.transport={transport}", f"parallel.shard={shard}"]
        result = machine.train("parts", job, ranks=ranks, sets=sets)
        if ranks > 1 and transport == "nccl" and shard == "gradients":
            assert header(result, "sums") == "by NCCL 2.28.3", result
            assert header(result, "shards") == f"the optimizer's state and the gradients, a part on each of {ranks} GPUs", result
    assert machine.newest("parts") == machine.newest("whole")


def test_only_slices_wait(machine):
    """Sixteen micro-batches on four ranks: of two sums that wait a rank has its slices, not all of them."""
    floats = saved(machine, 3, ("optimizer", "gradients"))
    assert abs(floats - MILLION * (2 - 2 / 4)) < 0.01 * MILLION, floats


def test_many_rounds_have_one_graph(machine):
    """Of forty micro-batches each rank has twenty: they are launched one by one, and captured once."""
    job = machine.job(DENSE, batch="{global: 160}", checkpoint="{every: never}", eval="{every: never}", train="{steps: 3}")
    machine.train("out", job, ranks=2, FAKEGPU_LOG=str(machine.path / "calls%p"))
    for text in (path.read_text() for path in machine.path.glob("calls*")):
        totals = {name: int(n) for name, n in re.findall(r"^total (\w+) (\d+)", text, re.M)}
        assert totals["cuGraphLaunch"] >= 20 and totals["cuGraphInstantiate"] <= 8, totals


@pytest.mark.parametrize("call", ["ncclGroupEnd:2", "ncclSend:9", "ncclAllGather:2", "cuGraphLaunch:2", "cuGraphLaunch:9+", "cuStreamWaitEvent:9"])
def test_a_failing_round_takes_all_along(machine, call):
    test_device_links.assert_a_failure_takes_all_along(machine, CNN, call)


def test_the_first_step_is_summed_by_mpi_too(machine):
    """All of its rounds; whichever of them goes wrong."""
    job = machine.job(CNN)
    for call in ("2", "4", "8"):
        result = machine.run("wrong" + call, job, ranks=2, FAKENCCL_WRONG=call)
        assert result.code == 71 and "the first step's gradient, element" in result.err, result


def test_launches_are_timed(machine):
    result = dpt.run("bench", machine.job(DENSE), "--steps", "4", "--set", "device.kind=cuda", ranks=2, env=machine.environment)
    assert result.code == 0 and re.search(r"^step norm_decide +[\d.]+ ", result.out, re.M), result
