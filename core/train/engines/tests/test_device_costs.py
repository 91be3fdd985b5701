"""What steps of a device cost the host: nodes of graphs, and what MPI sums."""
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests"]
import dpt  # noqa: E402
from test_device import CNN, DENSE, fixture_machine, pytestmark  # noqa: E402,F401


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


COUNT = """#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static long long floats;
int MPI_Allreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    floats += type == MPI_FLOAT ? n : 0;
    return PMPI_Allreduce(from, to, n, type, op, comm);
}
int MPI_Finalize(void)
{
    FILE *file = fopen(getenv("COUNTED"), "a");
    fprintf(file, "%lld\\n", floats);
    fclose(file);
    return PMPI_Finalize();
}
"""


@pytest.mark.skipif(dpt.sanitized(), reason="AddressSanitizer must be the first library")
def test_ranks_of_a_node_sum_what_they_share(machine):
    """Without a CUDA-aware MPI, in several pieces: MPI_Allreduce sums no gradient there, and all of it where the job says so."""
    library = dpt.library(machine.path, "count", COUNT, "mpicc")
    job = machine.job({**DENSE, "data": "{train: synthetic, synthetic: {samples: 96, shape: [1, 40, 40]}}",
                       "model": "{type: mlp, hidden: [700, 30], outputs: 10}", "train": "{steps: 4}"})
    parameters = 1600 * 700
    for name, sets in (("shared", []), ("flat", ["comm.hierarchical=off"])):
        machine.train(name, job, ranks=3, sets=["comm.cuda_aware=off", *sets], LD_PRELOAD=library, COUNTED=str(machine.path / name) + ".txt")
    counted = {name: {int(line) for line in (machine.path / f"{name}.txt").read_text().split()} for name in ("shared", "flat")}
    assert max(counted["shared"]) < parameters and min(counted["flat"]) > 4 * parameters, counted
    machine.assert_same_run("shared", "flat", 1e-4)
