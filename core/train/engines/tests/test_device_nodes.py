"""Linked devices on several nodes: along the tree the ranks of each merge what they have before it goes to others."""
import os
import re
import subprocess
import sys

import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
import test_device_links  # noqa: E402
from test_gpu import header  # noqa: E402
from test_device import CNN, DENSE, RESIDUAL, pytestmark  # noqa: E402,F401

# Ranks are on a node as NODES says for each: "0,0,1,1".
NODES = r"""
#include <mpi.h>
#include <stdlib.h>

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *made)
{
    const char *node = getenv("NODES");
    int rank;

    (void)type, (void)info;
    MPI_Comm_rank(comm, &rank);
    return MPI_Comm_split(comm, atoi(node + 2 * rank), key, made);
}
"""
EVEN = {(4, 2): "0,0,1,1", (6, 2): "0,0,0,1,1,1", (6, 3): "0,0,1,1,2,2", (8, 2): "0,0,0,0,1,1,1,1"}


class Machine(test_device_links.Machine):
    def __init__(self, path, shim):
        super().__init__(path)
        self.environment["LD_PRELOAD"] = shim


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    if dpt.sanitized():
        pytest.skip("a library that is loaded first gets in the sanitizer's way")
    return Machine(tmp_path, dpt.library(tmp_path, "nodes", NODES, "mpicc"))


@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients"])
@pytest.mark.parametrize("ranks, nodes", EVEN, ids=[f"{ranks}-ranks-{nodes}-nodes" for ranks, nodes in EVEN])
def test_bytes_are_those_of_one_rank(machine, ranks, nodes, shard):
    """With runs of micro-batches that nodes do not divide, and a last step of an epoch that leaves some of them without any."""
    job = machine.job(RESIDUAL, batch="{global: 44, micro: 4}", comm="{reduction: reproducible}", checkpoint="{every: 8 steps}")
    machine.train("one", job, NODES="0")
    result = machine.train("all", job, ranks=ranks, sets=[f"parallel.shard={shard}"], NODES=EVEN[ranks, nodes])
    assert header(result, "sums") == "by NCCL 2.28.3", result
    assert machine.newest("all") == machine.newest("one")
    np.testing.assert_array_equal(machine.losses("all"), machine.losses("one"))


def sent_between(machine, name, nodes):
    """Floats that processes sent to ranks on other nodes."""
    node, total = nodes.split(","), 0
    for path in machine.path.glob(f"{name}-*"):
        rank = int(re.search(r"-(\d+)$", path.name)[1])
        total += sum(int(n) for n, to in re.findall(r"^ncclSend (\d+) to (\d+)$", path.read_text(), re.M) if node[int(to)] != node[rank])
    return total


@pytest.mark.parametrize("nodes, times", [("0,0,1,1", 1), ("0,1,0,1", 2)], ids=["even", "mixed"])
@pytest.mark.parametrize("shard", ["optimizer", "gradients"])
def test_what_a_node_has_crosses_once(machine, nodes, times, shard):
    """Half of the gradient goes from each node to the other one, once; of ranks that do not follow one another each sends its own."""
    job = machine.job(DENSE, data="{train: synthetic, synthetic: {samples: 48, shape: [1000]}}", checkpoint="{every: never}", eval="{every: never}",
                      model="{type: mlp, hidden: [100], outputs: 10}", train="{steps: 3}", batch="{global: 48, micro: 12}", comm="{reduction: reproducible}")
    shell = f"FAKEGPU_LOG={machine.path}/sent-$OMPI_COMM_WORLD_RANK; export FAKEGPU_LOG; exec \"$@\""
    done = subprocess.run(["mpirun", "-np", "4", "sh", "-c", shell, "sh", dpt.BINARY, "train", job, "--output", str(machine.path / "out"),
                           "--set", "device.kind=cuda", "--set", f"parallel.shard={shard}"], timeout=60, capture_output=True,
                          env={**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment, "NODES": nodes})
    assert done.returncode == 0, done
    floats = 1000 * 100 + 100 * 10
    # The norm's chunks that lie in two slices come on top.
    assert abs(sent_between(machine, "sent", nodes) / (3 * floats) - times) < 0.05, sent_between(machine, "sent", nodes) / (3 * floats)


@pytest.mark.parametrize("seed", range(2))
def test_in_any_order_of_the_streams(machine, seed):
    job = machine.job(CNN, batch="{global: 48, micro: 4}", comm="{reduction: reproducible}")
    machine.train("eager", job, NODES="0")
    machine.train("lazy", job, ranks=4, sets=["parallel.shard=gradients"], NODES=EVEN[4, 2], FAKEGPU_EAGER="0", FAKEGPU_SEED=str(seed))
    machine.assert_same_run_bits("lazy", "eager")


def test_the_first_step_is_summed_by_mpi_too(machine):
    """Whichever of the exchanges goes wrong, on a node or between nodes."""
    job = machine.job(CNN, comm="{reduction: reproducible}", batch="{global: 48, micro: 4}")
    for call in ("3", "4", "5"):
        result = machine.run("wrong" + call, job, ranks=4, NODES=EVEN[4, 2], FAKENCCL_WRONG=call)
        assert result.code == 71 and "the first step's gradient, element" in result.err, result
