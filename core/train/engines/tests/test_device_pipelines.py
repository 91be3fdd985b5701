"""Stages of a pipeline (parallel.pipeline) whose devices are linked: they take the steps by themselves, and what crosses cuts goes by NCCL."""
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/engines/tests", "cmd/tests"]
import dpt  # noqa: E402
from running import Paused  # noqa: E402
from test_device import CNN, EXPLODES, MLP, RESIDUAL, pytestmark  # noqa: E402,F401
from test_device_links import fixture_machine, logged, norms  # noqa: E402,F401
from test_device_shards import AVERAGED, allocated  # noqa: E402
from test_device_stages import DEEP, STAGED  # noqa: E402
from heavy import HEAVY  # noqa: E402
from test_gpu import header  # noqa: E402

CLIPPED = {**RESIDUAL, "train": "{steps: 8, clip_norm: 0.1}"}


@pytest.mark.parametrize("sections, ranks, words, sets", [
    (MLP, 2, "2", ["batch.micro=5"]),
    (MLP, 4, "2", ["batch.micro=5", "parallel.shard=optimizer"]),
    (DEEP, 6, "{stages: 3, schedule: gpipe}", ["parallel.shard=optimizer"]),
    (DEEP, 3, "3", ["batch.micro=2"]),
    (CNN, 4, "{stages: 2, schedule: gpipe}", ["batch.micro=8"]),
    (CLIPPED, 3, "3", ["batch.micro=4", "log.tensorboard=true"]),
    (CLIPPED, 6, "{stages: 2, cut: [conv3]}", ["batch.micro=16", "parallel.shard=optimizer"]),
    (AVERAGED, 4, "2", ["batch.micro=4", "parallel.shard=optimizer"]),
    (MLP, 4, "2", ["batch.micro=5", "parallel.shard=gradients"]),
    (CLIPPED, 6, "{stages: 2, schedule: gpipe}", ["batch.micro=4", "parallel.shard=gradients"]),
    (AVERAGED, 6, "3", ["batch.micro=4", "parallel.shard=gradients"]),
    (DEEP, 6, "3", ["batch.micro=5", "parallel.shard=parameters"]),
    (CLIPPED, 6, "{stages: 2, schedule: gpipe}", ["batch.micro=4", "parallel.shard=parameters"]),
    (AVERAGED, 4, "2", ["batch.micro=4", "parallel.shard=parameters", "log.tensorboard=true"]),
], ids=["mlp", "mlp-2x2", "deep-3x2", "deep-3", "cnn-2x2", "clipped-3", "clipped-2x3", "averaged-2x2", "rounds-2x2", "rounds-2x3", "rounds-3x2", "units-3x2", "units-2x3",
        "units-2x2"])
def test_stages_give_the_bytes_of_one_rank(machine, sections, ranks, words, sets):
    """Whole and short steps, on replicas that have unlike numbers of micro-batches, or none; and what evaluations and lines say."""
    job = machine.job(sections, comm=STAGED)
    sets = ["eval.every=3 steps", *sets]
    one = [text for text in sets if "shard" not in text]
    machine.train("one", job, sets=one, FAKEGPU_MODEL="Fake")
    result = machine.train("stages", job, ranks=ranks, sets=[f"parallel.pipeline={words}", *sets], FAKEGPU_MODEL="Fake")
    assert header(result, "sums") == "by NCCL 2.28.3", result
    assert machine.newest("stages") == machine.newest("one")
    np.testing.assert_array_equal(machine.losses("stages"), machine.losses("one"))
    assert norms(machine, "stages") == norms(machine, "one")
    assert (machine.evaluations("stages") == machine.evaluations("one")).all() and len(machine.evaluations("one")) > 1


def test_stages_go_on_on_another_mesh(machine):
    """From linked devices to hosts, to shards, to one rank and back, in the middle of an epoch."""
    job = machine.job(RESIDUAL, comm=STAGED, batch="{global: 48, micro: 4}")
    machine.train("whole", job)
    for steps, ranks, words, shard, transport in ((1, 4, "{stages: 2, schedule: gpipe}", "none", "nccl"), (2, 3, "3", "none", "mpi"),
                                                  (4, 6, "3", "optimizer", "nccl"), (5, 4, "2", "parameters", "nccl"),
                                                  (6, 4, "2", "gradients", "mpi"), (7, 6, "3", "gradients", "auto"),
                                                  (8, 2, "2", "none", "nccl")):
        result = machine.train("parts", job, ranks=ranks, sets=[f"train.steps={steps}", f"parallel.pipeline={words}",
                                                                f"parallel.shard={shard}", f"comm.transport={transport}"])
        assert (header(result, "sums") == "by NCCL 2.28.3") == (transport != "mpi"), result
    assert machine.newest("parts") == machine.newest("whole")


@pytest.mark.parametrize("seed", range(3 if HEAVY else 2))
@pytest.mark.parametrize("words, shard", [("2", "none"), ("{stages: 2, schedule: gpipe}", "none"), ("2", "gradients"), ("2", "parameters"),
                                          ("{stages: 2, schedule: gpipe}", "parameters")])
def test_in_any_order_of_the_streams(machine, words, shard, seed):
    job = machine.job(CNN, batch="{global: 48, micro: 4}", comm=STAGED)
    machine.train("eager", job)
    machine.train("lazy", job, ranks=4, sets=[f"parallel.pipeline={words}", f"parallel.shard={shard}"], FAKEGPU_EAGER="0", FAKEGPU_SEED=str(seed), FAKEGPU_IDLE_MS="3")
    assert machine.newest("lazy") == machine.newest("eager")


def test_the_host_waits_for_no_step(machine):
    """Neither values nor gradients come to it, and each flight has two graphs, however many micro-batches a step has."""
    calls = {}
    for steps in (8, 24):
        job = machine.job(MLP, comm=STAGED, batch="{global: 48, micro: 2}", log="{every: 1000 steps}", eval="{every: never}", checkpoint="{every: never}")
        machine.train(f"run{steps}", job, ranks=2, sets=[f"train.steps={steps}", "parallel.pipeline=2"], FAKEGPU_LOG=str(machine.path / f"log{steps}%p"))
        for text in (path.read_text() for path in machine.path.glob(f"log{steps}*")):
            for name, n in re.findall(r"^total (\w+) (\d+)", text, re.M):
                calls[name, steps] = max(int(n), calls.get((name, steps), 0))
    each = {name: (calls[name, 24] - calls.get((name, 8), 0)) / 16 for name, steps in calls if steps == 24}
    assert each["cuStreamSynchronize"] <= 1 and each["cuEventSynchronize"] < 6 and each["cuMemcpyDtoHAsync"] <= 2.5, each
    assert calls["cuGraphInstantiate", 24] <= 2 * 2 + 6 and each["cuGraphLaunch"] >= 2 * 24 * 4 / 5, calls


@pytest.mark.parametrize("shard, steps", [("gradients", 2), ("parameters", 2)])
def test_shards_have_as_few_graphs(machine, shard, steps):
    """Each flight has two of each unit, in whichever round, and the host waits for none of them."""
    job = machine.job(DEEP, comm=STAGED, batch="{global: 80, micro: 4}", eval="{every: never}", checkpoint="{every: never}", train=f"{{steps: {steps}}}")
    machine.train("out", job, ranks=4, sets=["parallel.pipeline=2", f"parallel.shard={shard}"], FAKEGPU_LOG=str(machine.path / "calls%p"))
    for text in (path.read_text() for path in machine.path.glob("calls*")):
        totals = {name: int(n) for name, n in re.findall(r"^total (\w+) (\d+)", text, re.M)}
        assert totals["cuGraphLaunch"] >= steps * 10 * 2 and totals["cuGraphInstantiate"] <= 2 * 2 * (2 if shard == "parameters" else 1) + 4, totals


def test_shards_of_a_stage_take_less(machine):
    """On two replicas of each stage: of the gradient's sums a slice, then of the weights two layers and slices of the others."""
    layer = 512 * 512
    job = machine.job(MLP, data="{train: synthetic, synthetic: {samples: 64, shape: [512]}}", checkpoint="{every: never}", train="{steps: 2}", comm=STAGED,
                      model=f"{{type: mlp, hidden: [{', '.join(['512'] * 12)}], outputs: 10}}", batch="{global: 64, micro: 4}")
    machine.train("tuned", job)
    held = {}
    for shard in ("optimizer", "gradients", "parameters"):
        machine.train(shard, job, ranks=4, sets=[f"parallel.shard={shard}", "parallel.pipeline=2"], FAKEGPU_LOG=str(machine.path / f"calls-{shard}-%p"))
        held[shard] = allocated(machine, f"calls-{shard}") / 4 / layer
    assert held["optimizer"] - held["gradients"] > 6 and held["gradients"] - held["parameters"] > 3, held


@pytest.mark.parametrize("shard", ["gradients", "parameters"])
def test_the_first_rounds_are_summed_by_mpi_too(machine, shard):
    """Whichever gathering or sum of the first stage goes wrong on a rank. What crosses cuts no other rank has."""
    job = machine.job(MLP, comm=STAGED, batch="{global: 48, micro: 4}", model="{type: mlp, hidden: [24, 20, 33], outputs: 10}")
    sets = ["train.steps=2", "parallel.pipeline=2", f"parallel.shard={shard}"]
    machine.train("right", job, ranks=4, sets=sets)
    said = set()
    for call in range(2, 16, 1 if HEAVY else 3):
        result = machine.run(f"wrong{call}", job, ranks=4, sets=sets, FAKENCCL_WRONG=str(call))
        told = re.search(r"the first step's (weights|gradient), element \d+: NCCL 2.28.3 (sums|gathers)", result.err)
        said.add((told or [0, "nothing"])[1])
        assert result.code == (71 if told else 0), (call, result)
    assert said >= {"gradient", *(["weights"] if shard == "parameters" else [])}, said


@pytest.mark.parametrize("call", ["ncclGroupEnd:2", "ncclSend:9", "ncclRecv:4", "ncclAllReduce:3", "cuGraphLaunch:3", "cuGraphLaunch:30+",
                                  "cuLaunchKernel:60+", "cuMemcpyHtoDAsync:20+"])
def test_a_failing_stage_takes_all_along(machine, call):
    """The others, whose devices wait for it, do not wait until the watchdog comes."""
    job = machine.job(CNN, comm=STAGED, batch="{global: 48, micro: 8}")
    machine.train("first", job, ranks=4, sets=["parallel.pipeline=2"])
    shell = "test $OMPI_COMM_WORLD_RANK = 1 && export FAKEGPU_FAIL=" + call + "; exec \"$@\""
    command = ["mpirun", "-np", "4", "sh", "-c", shell, "sh", dpt.BINARY, "train", job, "--output", str(machine.path / "out"),
               "--set", "device.kind=cuda", "--set", "comm.timeout=1000s", "--set", "parallel.pipeline=2"]
    done = subprocess.run(command, env={**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment}, timeout=30,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    err = done.stderr.decode()
    assert done.returncode == 71 and len(re.findall(r"^rank 1 \(", err, re.M)) == 1 and re.search("GPU, |CUDA: ", err), err


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_stage_that_cannot_read_takes_all_along(machine, rank):
    """It goes on passing messages until all have heard of it; only the first stage reads samples."""
    result = machine.run("read", machine.job(CNN, comm=STAGED), ranks=4, sets=["parallel.pipeline=2"], DPTRAIN_FAULT=f"read:rank={rank}:step=2")
    if rank < 2:
        assert result.code == 74 and "step 2: reading failed" in result.err and f"rank {rank} (" in result.err, result


def test_a_dead_stage_is_named(machine):
    result = machine.run("killed", machine.job(CNN, comm=STAGED), ranks=4, sets=["comm.timeout=1000s", "parallel.pipeline=2"],
                         DPTRAIN_FAULT="kill:rank=1:step=4", FAKEGPU_LOG=str(machine.path / "calls%p"), FAKEGPU_EAGER="0")
    assert result.code != 0 and re.search(r"rank 1 \(.*(was killed|died|SIGKILL)", result.err), result
    assert logged(machine, "ncclCommAbort") == [0, 1, 1, 1], result


@pytest.mark.parametrize("fault, said", [("hang:rank=1:step=4", r"rank 1 \(.* step 4"), ("stop:rank=1:step=4", r"rank 1 \(.*stopped")])
def test_a_stage_that_stays_away_is_named(machine, fault, said):
    result = machine.run("late", machine.job(CNN, comm=STAGED), ranks=4, sets=["comm.timeout=3s", "parallel.pipeline=2"], DPTRAIN_FAULT=fault,
                         FAKEGPU_LOG=str(machine.path / "calls%p"), FAKEGPU_EAGER="0")
    assert result.code == 71 and re.search(said, result.err), result


def test_the_first_step_is_summed_by_mpi_too(machine):
    """Where replicas exchange slices; a value that crosses a cut is in no sum."""
    job = machine.job(CNN, comm=STAGED, batch="{global: 48, micro: 8}")
    found = 0
    for call in range(2, 24, 1 if HEAVY else 2):
        result = machine.run(f"wrong{call}", job, ranks=4, sets=["parallel.pipeline=2", "train.steps=1"], FAKENCCL_WRONG=str(call))
        found += result.code == 71 and "the first step's gradient, element" in result.err
    assert found >= (2 if HEAVY else 1)


def test_another_replica_is_told_of(machine):
    result = machine.run("broken", machine.job(CNN, comm=STAGED), ranks=4, sets=["parallel.pipeline=2"], DPTRAIN_FAULT="flip-weight:rank=1:step=5")
    assert result.code == 1 and "the replicas differ" in result.err, result


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_not_a_number_is_named(machine, precision):
    job = machine.job(EXPLODES, batch="{global: 24, micro: 8}", comm=STAGED, device=f"{{precision: {precision}}}")
    result = machine.run("out", job, ranks=4, sets=["parallel.pipeline=2"])
    assert result.code == 1 and re.search(r"step \d+: not a number: rank \d \(.*, stage \d of 2\), output of layer dense\d?, synthetic sample \d+", result.err), result


def test_signals_save(machine):
    job = machine.job(CNN, comm=STAGED, checkpoint="{every: 1000 steps}", train="{steps: 20}", parallel="{pipeline: 2}")
    machine.train("whole", job, ranks=4)
    paused = Paused(job, machine.path / "out", 4, "--set", "device.kind=cuda", step=3, **machine.environment)
    os.kill(paused.pids[-1], signal.SIGTERM)
    code, err = paused.go_on()
    assert "all is saved" in err and code == 75, err
    machine.train("out", job, ranks=2)
    assert machine.newest("out") == machine.newest("whole")


def test_launches_are_timed(machine):
    result = dpt.run("bench", machine.job(MLP, comm=STAGED), "--steps", "4", "--set", "device.kind=cuda", "--set", "parallel.pipeline=2", ranks=2,
                     env=machine.environment)
    assert result.code == 0 and re.search(r"^step norm_decide +[\d.]+ ", result.out, re.M), result
