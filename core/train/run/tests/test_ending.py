"""How a run ends and begins again: its last line, its summary, the best checkpoint, a request to stop that comes early."""
import os
import signal
import subprocess
import sys

import h5py
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
from running import Paused, job, newest, ranks_of, start, steps_logged, wait_until  # noqa: E402

TEST = ("--set", "data.test=synthetic")


def reasons(folder):
    return [e["reason"] for e in dpt.events(folder, "end")]


def test_each_run_has_its_end(tmp_path):
    """A stop, a kill, the end: the killed one leaves no line, and none that tells of steps taken back."""
    path = job(tmp_path)
    folder = tmp_path / "out"
    stopped = Paused(path, folder, 2, step=20)
    os.kill(stopped.pids[1], signal.SIGUSR1)
    code, err = stopped.go_on()
    assert code == 75, err
    killed = Paused(path, folder, 2, step=50)
    killed.kill()
    result = dpt.run(path, "--output", folder, ranks=2)
    assert result.code == 0, result
    ends = dpt.events(folder, "end")
    assert len(ends) == 2 and "stopped after step" in ends[0]["reason"] and ends[1]["reason"] == "done"
    assert [e.get("resumed_from_step", 0) for e in dpt.events(folder, "run")][:2] == [0, ends[0]["step"]]
    assert steps_logged(folder) == list(range(1, 91))


STOP_IN_FINALIZE = """
#include <signal.h>
#include <stdlib.h>
int PMPI_Finalize(void);
int MPI_Finalize(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    int result = PMPI_Finalize();

    if (rank != NULL && rank[0] == '1')
        raise(SIGSTOP);
    return result;
}
"""


def test_a_rank_that_is_stopped_while_it_ends(tmp_path):
    """All others have left MPI and could go, and mpirun would wait for this one for ever."""
    (tmp_path / "stop.c").write_text(STOP_IN_FINALIZE)
    shim = tmp_path / "stop.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, tmp_path / "stop.c"], check=True)
    path, folder = job(tmp_path, epochs=1), tmp_path / "out"
    result = dpt.run(path, "--output", folder, "--set", "comm.timeout=2 s", ranks=3, timeout=60, env={"LD_PRELOAD": str(shim)})
    assert result.code == 71, result
    assert "has not come to its end for 2 s after all others: it is stopped (SIGSTOP)" in result.err, result
    assert "rank 1 (" in result.err and reasons(folder) == ["done"], result


def test_killed_between_the_last_save_and_the_end(tmp_path):
    """All steps are done and saved, but data.test was not evaluated: started again it makes up for that, once."""
    path = job(tmp_path, epochs=2)
    folder = tmp_path / "out"
    whole = dpt.train(path, folder, *TEST, ranks=2)
    lines = (folder / "metrics.jsonl").read_text().splitlines(True)
    wanted = dpt.events(folder, "eval")[-1]
    assert wanted["split"] == "test" and '"done"' in lines[-1]
    before = newest(folder)
    (folder / "metrics.jsonl").write_text("".join(lines[:-2]))
    result = dpt.run(path, "--output", folder, *TEST, ranks=2)
    assert result.code == 0 and "is finished" not in result.err, result
    assert [line for line in result.out.splitlines() if line.startswith("test")] == \
        [line for line in whole.out.splitlines() if line.startswith("test")]
    assert "30 steps (the first 30 before it was resumed)" in result.out and "nan" not in result.out, result
    made_up = dpt.events(folder, "eval")[-1]
    assert {**made_up, "seconds": 0} == {**wanted, "seconds": 0}
    assert reasons(folder) == ["done"] and newest(folder) == before
    result = dpt.run(path, "--output", folder, *TEST, ranks=2)
    assert result.code == 0 and "is finished, step 30 of 30" in result.err, result
    assert reasons(folder) == ["done"]
    result = dpt.run(path, "--output", tmp_path / "new", "--resume", folder, *TEST)
    assert f"{folder} has made all 30 steps of this job" in result.err and not (tmp_path / "new").exists(), result


def test_summary_of_a_resumed_run(tmp_path):
    path = job(tmp_path)
    run = Paused(path, tmp_path / "out", 2, step=20)
    os.kill(run.pids[0], signal.SIGUSR1)
    assert run.go_on()[0] == 75
    step = dpt.events(tmp_path / "out", "end")[-1]["step"]
    result = dpt.run(path, "--output", tmp_path / "out", ranks=2)
    assert result.code == 0 and f"90 steps (the first {step} before it was resumed) in" in result.out, result


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_with_nothing_saved(tmp_path, ranks):
    """Not 75, at which a batch file puts it back into the queue, again and again; all else ends as it does then."""
    path = job(tmp_path)
    run = Paused(path, tmp_path / "out", ranks, "--set", "checkpoint.every=never", "--set", "log.trace=true", step=20)
    os.kill(run.pids[-1], signal.SIGUSR1)
    code, err = run.go_on()
    assert code == 1 and "nothing is saved, since checkpoint.every is never: it would begin from scratch" in err, err
    assert reasons(tmp_path / "out")[0].startswith("stopped after step") and (tmp_path / "out" / "trace.json").exists()
    assert os.listdir(tmp_path / "out" / "checkpoints") == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_best_outlives_an_interruption(tmp_path, ranks):
    """What was the best before is known after, so a worse one does not take its place."""
    path = job(tmp_path)
    words = ("--set", "optimizer.lr=0.05", "--set", "checkpoint.keep=1")
    dpt.train(path, tmp_path / "whole", *words, ranks=ranks)
    run = Paused(path, tmp_path / "out", ranks, *words, step=50)
    os.kill(run.pids[0], signal.SIGTERM)
    assert run.go_on()[0] == 75
    result = dpt.run(path, "--output", tmp_path / "out", *words, ranks=ranks)
    assert result.code == 0, result
    links = [os.readlink(tmp_path / name / "checkpoints" / "best") for name in ("whole", "out")]
    assert links[0] == links[1]
    with h5py.File(tmp_path / "out" / "checkpoints" / "best") as file:
        evaluated = {e["step"]: e["accuracy"] for e in dpt.events(tmp_path / "out", "eval")}
        assert file.attrs["best_metric"] == max(evaluated.values()) == evaluated[file.attrs["best_step"]]
    assert sorted(os.listdir(tmp_path / "whole" / "checkpoints")) == sorted(os.listdir(tmp_path / "out" / "checkpoints"))
    assert newest(tmp_path / "out") == newest(tmp_path / "whole")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_that_comes_while_it_starts(tmp_path, ranks):
    """It is kept until there is something to save: one step, then exit 75. Started again it goes on."""
    path = job(tmp_path)
    folder = tmp_path / "out"
    process = start(path, folder, ranks)
    wait_until(process, (folder / ".lock").exists)
    pids = ranks_of(process)
    os.kill(pids[-1], signal.SIGUSR1)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75 and b"all is saved" in err, err.decode()
    with h5py.File(folder / "checkpoints" / "latest") as file:
        assert file.attrs["step"] == dpt.events(folder, "end")[-1]["step"] < 90
    result = dpt.run(path, "--output", folder, ranks=ranks)
    assert result.code == 0, result
    assert steps_logged(folder) == list(range(1, 91))
