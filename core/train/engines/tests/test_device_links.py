"""Jobs whose ranks' devices are linked by NCCL: the stand-in of core/backend/cuda/tests/fake/fake_nccl.c, which sums in an order of its own."""
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
import test_device  # noqa: E402
from heavy import HEAVY  # noqa: E402
from test_gpu import header  # noqa: E402
from test_device import CNN, DENSE, MLP, RESIDUAL, pytestmark  # noqa: E402,F401

# What holds where MPI sums holds over links: these use the machine below.
from test_device import (test_a_failing_rank_takes_all_along, test_a_scale_that_is_too_large, test_idle_ranks,  # noqa: E402,F401
                         test_means_are_of_all_samples, test_signals_save, test_waits_where_it_has_to, test_what_is_not_a_number_is_named,
                         test_what_is_not_a_number_is_skipped)


class Machine(test_device.Machine):
    def __init__(self, path):
        super().__init__(path)
        self.environment.update(FAKEGPU_DEVICES="8", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7", FAKENCCL_VERSION="22803")


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return Machine(tmp_path)


@pytest.mark.parametrize("sections, ranks, tolerance", [(MLP, 5, 1e-5), (CNN, 3, 1e-3), (RESIDUAL, 2, 1e-3)], ids=["mlp", "cnn", "residual"])
def test_steps_are_those_of_one_rank(machine, sections, ranks, tolerance):
    """With micro-batches that the ranks do not divide, and a last step of an epoch that some ranks have nothing of."""
    job = machine.job(sections, batch="{global: 48, micro: 8}")
    machine.train("one", job)
    result = machine.train("linked", job, ranks=ranks)
    assert header(result, "sums") == "by NCCL 2.28.3"
    assert dpt.events(machine.path / "linked", "run")[0]["transport"] == "NCCL 2.28.3"
    machine.assert_same_run("linked", "one", 10 * tolerance)


def test_transports_follow_each_other(machine):
    """A run goes on from a checkpoint whatever summed before."""
    job = machine.job(DENSE)
    machine.train("whole", job, ranks=2)
    for name, ways in (("to", ("nccl", "mpi")), ("from", ("mpi", "nccl"))):
        for way, steps in zip(ways, (4, 8)):
            result = machine.train(name, job, ranks=2, sets=[f"train.steps={steps}", f"comm.transport={way}"])
            assert ("NCCL 2.28.3" in header(result, "sums")) == (way == "nccl"), result
        machine.assert_same_run(name, "whole")


CLIPPED = {**RESIDUAL, "train": "{steps: 8, clip_norm: 0.1}"}


ORDERED = pytest.mark.parametrize("sections, micro", [(MLP, 4), (CNN, 4), (CLIPPED, 8)], ids=["mlp", "cnn", "clipped"])


def norms(machine, name):
    return [event["gradient_norm"] for event in dpt.events(machine.path / name, "train")]


@ORDERED
@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "parameters"])
def test_reproducible_sums_have_one_order(machine, sections, micro, shard):
    """The host's bytes on any number of ranks: of devices that sum by themselves, in slices, with micro-batches that the ranks do not divide."""
    job = machine.job(sections, batch=f"{{global: 48, micro: {micro}}}", comm="{reduction: reproducible}")
    result = machine.train("host", job, ranks=2, sets=["comm.transport=mpi"])
    assert "no (these steps are summed on the host)" in header(result, "sums") and "by NCCL: no (comm.transport: mpi)" in header(result, "sums")
    for ranks in (1, 2, 3, 5, 8) if HEAVY else (3, 8):
        result = machine.train(str(ranks), job, ranks=ranks, sets=[f"parallel.shard={shard}"])
        assert ranks == 1 or header(result, "sums") == "by NCCL 2.28.3"
        assert machine.newest(str(ranks)) == machine.newest("host")
        np.testing.assert_array_equal(machine.losses(str(ranks)), machine.losses("host"))
        assert norms(machine, str(ranks)) == norms(machine, "host")


def test_reproducible_runs_go_on_anywhere(machine):
    """From a device to hosts and back, with other numbers of ranks, in the middle of an epoch."""
    job = machine.job(RESIDUAL, batch="{global: 48, micro: 8}", comm="{reduction: reproducible}")
    machine.train("whole", job)
    for ranks, transport, steps in ((3, "nccl", 2), (2, "mpi", 4), (1, "auto", 6), (5, "nccl", 8)):
        machine.train("parts", job, ranks=ranks, sets=[f"train.steps={steps}", f"comm.transport={transport}"])
    assert machine.newest("parts") == machine.newest("whole")


@pytest.mark.parametrize("ranks, shard", [(1, "none"), (3, "none"), (3, "gradients"), (3, "parameters")])
@pytest.mark.parametrize("seed", range(3))
def test_reproducible_in_any_order_of_the_streams(machine, ranks, shard, seed):
    job = machine.job(CNN, batch="{global: 48, micro: 4}", comm="{reduction: reproducible}")
    machine.train("eager", job, sets=["log.hashes=true"])
    machine.train("lazy", job, ranks=ranks, sets=[f"parallel.shard={shard}"], FAKEGPU_EAGER="0", FAKEGPU_SEED=str(seed))
    machine.assert_same_run_bits("lazy", "eager")


def test_the_first_tree_is_summed_by_mpi_too(machine):
    """Whichever of the calls of a step goes wrong: the exchange of slices, or their gathering."""
    job = machine.job(DENSE, comm="{reduction: reproducible}")
    for call in ("3", "4"):
        result = machine.run("wrong" + call, job, ranks=2, FAKENCCL_WRONG=call)
        assert result.code == 71 and "the first step's gradient, element" in result.err, result


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_host_waits_for_no_step(machine, ranks):
    """It waits for staging buffers, of which the last use is some steps ago, and for what the ranks told each other then."""
    calls = {}
    for steps in (20, 40):
        log = machine.path / f"log{steps}"
        machine.train(f"run{steps}", machine.job(DENSE, log="{every: 1000 steps}", eval="{every: never}", checkpoint="{every: never}"),
                      ranks=ranks, sets=[f"train.steps={steps}"], FAKEGPU_LOG=f"{log}%p")
        logs = [path.read_text() for path in machine.path.glob(f"log{steps}*")]
        assert len(logs) == ranks
        # A start opens NCCL once; rank 0 also plans the job.
        assert sum("total ncclGetVersion 1\n" in text for text in logs) == ranks - 1, logs
        for name in ("cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemcpyDtoHAsync", "ncclAllReduce"):
            calls[name, steps] = max([int(n) for text in logs for n in re.findall(rf"^total {name} (\d+)", text, re.M)], default=0)
    each = {name: (calls[name, 40] - calls[name, 20]) / 20 for name in {key[0] for key in calls}}
    assert each["cuStreamSynchronize"] <= 0.5 and each["cuCtxSynchronize"] == 0, each
    assert each["cuEventSynchronize"] < (5 if ranks > 1 else 4), each
    assert (each["ncclAllReduce"] >= 1) == (ranks > 1) and each["cuMemcpyDtoHAsync"] <= (1 if ranks > 1 else 0) + 0.5, each


def test_why_mpi_sums(machine):
    job = machine.job(DENSE, train="{steps: 2}")
    alone = {"CUDA_VISIBLE_DEVICES": "0"}
    for i, (why, sets, environment) in enumerate((("no (ranks share a GPU)", [], alone),
                                                  ("no (comm.transport: mpi)", ["comm.transport=mpi"], {}),
                                                  ("2.14 or later is needed", [], {"FAKENCCL_VERSION": "20000"}),
                                                  ("ncclCommInitRank: remote process exited", [], {"FAKEGPU_FAIL": "ncclCommInitRank:1"}),
                                                  ("a trial sum came out wrong", [], {"FAKENCCL_WRONG": "1"}))):
        result = machine.train(f"run{i}", job, ranks=2, sets=sets, **environment)
        assert re.search(r"by NCCL: no \(.*", header(result, "sums")) and why in header(result, "sums"), result
        if not sets:
            result = machine.run(f"insists{i}", job, ranks=2, sets=["comm.transport=nccl"], **environment)
            assert result.code == 78 and "comm.transport: nccl: " in result.err and "`auto` takes MPI" in result.err, result
    result = machine.run("insists", job, ranks=2, sets=["comm.transport=nccl", "log.hashes=true"])
    assert result.code == 78 and "comm.transport: nccl" in result.err and "log.hashes" in result.err, result


def test_the_first_step_is_summed_by_mpi_too(machine):
    job = machine.job(DENSE)
    result = machine.run("wrong", job, ranks=2, FAKENCCL_WRONG="2")
    assert result.code == 71 and re.search(r"the first step's gradient, element \d+: NCCL 2.28.3 sums .*, and MPI", result.err), result
    machine.train("unchecked", job, ranks=2, sets=["comm.check_transport=false"], FAKENCCL_WRONG="2")


def assert_a_failure_takes_all_along(machine, sections, call):
    """On one of three ranks: the others, whose devices wait for it, do not wait until the watchdog comes."""
    job = machine.job(sections)
    machine.train("first", job, ranks=3)
    shell = "test $OMPI_COMM_WORLD_RANK = 1 && export FAKEGPU_FAIL=" + call + "; exec \"$@\""
    command = ["mpirun", "-np", "3", "sh", "-c", shell, "sh", dpt.BINARY, "train", job, "--output", str(machine.path / "out"),
               "--set", "device.kind=cuda", "--set", "comm.timeout=1000s"]
    done = subprocess.run(command, env={**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment}, timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    err = done.stderr.decode()
    # On a busy machine the call may be one of those that time kernels, which names its layer.
    assert done.returncode == 71 and len(re.findall(r"^rank 1 \(", err, re.M)) == 1 and re.search("GPU, |CUDA: ", err), err
    return err


@pytest.mark.parametrize("call", ["cuGraphLaunch:2+", "cuGraphLaunch:9+", "cuStreamWaitEvent:12+", "ncclAllReduce:2", "ncclAllReduce:7",
                                  "ncclCommGetAsyncError:4", "cuMemcpyHtoDAsync:20+"])
def test_a_failing_device_takes_all_along(machine, call):
    assert_a_failure_takes_all_along(machine, CNN, call)


@pytest.mark.parametrize("call", ["ncclGroupEnd:1", "ncclRecv:7", "ncclAllGather:3", "cuGraphLaunch:4+", "cuMemcpyDtoDAsync:3+", "cuMemAlloc:LAST"])
def test_a_failing_sum_along_the_tree_takes_all_along(machine, call):
    """Also where there is no memory for the list of an epoch's last, short step."""
    sections = {**CNN, "batch": "{global: 48, micro: 4}", "comm": "{reduction: reproducible}"}
    lists = call.endswith("LAST")
    if lists:  # as they are once the kernels are chosen
        machine.train("chosen", machine.job(sections), ranks=3)
        machine.train("counted", machine.job(sections), ranks=3, FAKEGPU_LOG=str(machine.path / "calls%p"))
        call = call.replace("LAST", str(max(int(n) for path in machine.path.glob("calls*")
                                            for n in re.findall(r"^total cuMemAlloc (\d+)", path.read_text(), re.M))))
    assert ("GPU, dividing the sums: " in assert_a_failure_takes_all_along(machine, sections, call)) == lists


def logged(machine, call):
    """How often each process called it."""
    return sorted(len(re.findall(rf"^{call}\b", path.read_text(), re.M)) for path in machine.path.glob("calls*"))


def test_a_dead_rank_is_named(machine):
    """The others' devices would wait for it: their part of the sums is aborted before the job ends."""
    result = machine.run("killed", machine.job(CNN), ranks=3, sets=["comm.timeout=1000s"], DPTRAIN_FAULT="kill:rank=1:step=4",
                         FAKEGPU_LOG=str(machine.path / "calls%p"), FAKEGPU_EAGER="0")
    assert result.code != 0 and re.search(r"rank 1 \(.*(was killed|died|SIGKILL)", result.err), result
    assert logged(machine, "ncclCommAbort") == [0, 1, 1], result


@pytest.mark.parametrize("fault, said", [("hang:rank=1:step=4", r"rank 1 \(.* step 4"), ("stop:rank=1:step=4", r"rank 1 \(.*stopped")])
def test_a_rank_that_stays_away_is_named(machine, fault, said):
    """The others wait for their devices, which wait for it: it is the one that is blamed."""
    result = machine.run("late", machine.job(CNN), ranks=3, sets=["comm.timeout=3s"], DPTRAIN_FAULT=fault,
                         FAKEGPU_LOG=str(machine.path / "calls%p"), FAKEGPU_EAGER="0")
    assert result.code == 71 and re.search(said, result.err), result
    assert logged(machine, "ncclCommAbort")[-2:] == [1, 1], result


def test_an_abort_that_hangs(machine):
    """It is waited for no longer than a few seconds."""
    start = time.monotonic()
    result = machine.run("late", machine.job(CNN), ranks=3, sets=["comm.timeout=3s"], DPTRAIN_FAULT="hang:rank=1:step=4",
                         FAKEGPU_LOG=str(machine.path / "calls%p"), FAKEGPU_EAGER="0", FAKENCCL_ABORT_HANGS="1")
    assert result.code == 71 and re.search(r"rank 1 \(.* step 4", result.err), result
    assert logged(machine, "ncclCommAbort") == [1, 1, 1] and time.monotonic() - start < 20, result


@pytest.mark.parametrize("call", ["ncclCommInitRank:1", "ncclAllReduce:1", "cuCtxSynchronize:3"])
def test_one_that_cannot_connect_keeps_none_waiting(machine, call):
    """The others wait for it in the same call, which has no end of its own."""
    shell = "test $OMPI_COMM_WORLD_RANK = 1 && export FAKEGPU_FAIL=" + call + "; exec \"$@\""
    for insists in (False, True):
        command = ["mpirun", "-np", "3", "sh", "-c", shell, "sh", dpt.BINARY, "train", machine.job(DENSE), "--output", str(machine.path / f"{insists}"),
                   "--set", "device.kind=cuda", *(["--set", "comm.transport=nccl"] if insists else [])]
        result = dpt.Result(subprocess.run(command, timeout=60,
                                           env={**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment, "FAKEGPU_EAGER": "0"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        why = rf"rank 1 \(.*{call.split(':')[0]}"
        assert result.code == (78 if insists else 0) and re.search(why, result.err if insists else header(result, "sums")), result


@pytest.mark.parametrize("number", ["1", "6"])
def test_a_sum_that_does_not_end(machine, number):
    """The first one is the trial."""
    result = machine.run("hangs", machine.job(CNN), ranks=2, sets=["comm.timeout=3s", "comm.start_timeout=3s"], FAKENCCL_HANG=number)
    assert result.code == 71 and "has not ended what it was given" in result.err, result


def sums_of_large_layers(machine, call, steps):
    """What each of two ranks sums by this call, if a layer has 9 million weights, with nothing left out."""
    job = machine.job(DENSE, data="{train: synthetic, synthetic: {samples: 48, shape: [3000]}}", checkpoint="{every: never}", loss="cross_entropy",
                      model="{type: mlp, hidden: [3000], outputs: 10}", train=f"{{steps: {steps}}}", log="{every: 1 steps}")
    machine.train("one", job)
    log = machine.path / "log"
    machine.train("linked", job, ranks=2, FAKEGPU_LOG=f"{log}%p")
    np.testing.assert_allclose(machine.losses("linked"), machine.losses("one"), rtol=1e-5)
    return [[int(n) for n in re.findall(rf"^{call} (\d+)", path.read_text(), re.M)] for path in machine.path.glob("log*")]


def test_few_and_large_pieces(machine):
    """It is summed in two pieces."""
    for sums in sums_of_large_layers(machine, "ncclAllReduce", 2):
        assert max(sums) <= 8 << 20 and 8 << 20 in sums, sums


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"][:4 if HEAVY else 2])
def test_whatever_order_the_streams_take(machine, seed):
    """What the ranks told each other is read before the next step writes its own there: each step's samples are counted."""
    job = machine.job(DENSE, batch="{global: 48, micro: 8}", train="{steps: 24}", log="{every: 12 steps}", eval="{every: never}",
                      checkpoint="{every: 24 steps}")
    machine.train("one", job)
    machine.train("late", job, ranks=4, FAKEGPU_EAGER="0", FAKEGPU_SEED=seed, FAKEGPU_IDLE_MS="3")
    machine.assert_same_run("late", "one", 1e-4)
