"""What steps of a device cost the host: nodes of graphs."""
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests"]
from test_device import CNN, fixture_machine, pytestmark  # noqa: E402,F401


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_graphs_do_not_grow_with_the_micro_batches(machine, reduction):
    """Of many micro-batches the first, the last and all others have a graph each, for whichever staging buffer. The sum's order stays."""
    job = machine.job(CNN, comm=f"{{reduction: {reduction}}}", data=CNN["data"].replace("samples: 220", "samples: 1600"))
    nodes = {}
    for micros in (6, 20, 120):
        log = machine.path / f"log{micros}"
        machine.train(str(micros), job, FAKEGPU_LOG=str(log), sets=[f"batch={{global: {micros * 4}, micro: 4}}", "train={steps: 6}"])
        nodes[micros] = [int(n) for n in re.findall(r"^cuGraphLaunch (\d+) nodes", log.read_text(), re.M)]
    assert len(nodes[120]) >= 6 * 120 and max(nodes[20]) < max(nodes[6]) / 3, nodes
    assert max(nodes[120]) <= max(nodes[20]) + (4 if reduction == "reproducible" else 0), "more only by sums that wait for the last"
    machine.train("cpu", job, kind="ref", sets=["batch={global: 80, micro: 4}", "train={steps: 6}"])
    machine.assert_same_run("20", "cpu", 1e-2)
