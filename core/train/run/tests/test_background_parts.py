"""Where ranks keep parts of the state, training goes on while each writes its own to a checkpoint, and the bytes are the same."""
import os
import signal
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/run/tests", "core/train/tests"]
import dpt  # noqa: E402
from running import wait_for_step  # noqa: E402
from test_parts_of_checkpoints import MESHES, Parts  # noqa: E402


class Held(Parts):
    """The job, whose threads beside the main one write to a checkpoint only once `go` is called."""

    def begin(self, folder, mesh, steps, held, *words, **env):
        ranks, parallel = MESHES[mesh]
        self.go_file, self.folder_of_run = folder.parent / f"{folder.name}.go", folder
        self.beside_file = folder.parent / f"{folder.name}.beside"
        self.go_file.unlink(missing_ok=True)
        return dpt.start(self.job, folder, ranks, "--quiet", "--set", f"parallel={parallel}", "--set", f"train.steps={steps}",
                         "--set", "log.every=1 steps", *words, LD_PRELOAD=self.shim, PARTS_HELD=f"step-{held:08}", PARTS_GO=str(self.go_file),
                         PARTS_BESIDE=str(self.beside_file), **{**dpt.ENDS_AT_ONCE, **env})

    def saved(self):
        """Steps of the checkpoints that have their names, and whether parts of one lie there."""
        names = os.listdir(self.folder_of_run / "checkpoints")
        return sorted(int(n[5:13]) for n in names if n.endswith(".h5")), any(".tmp" in n for n in names)

    def finish(self, process):
        self.go_file.touch()
        _, err = process.communicate(timeout=100)
        return process.returncode, err.decode(errors="replace")

    def beside(self):
        return [int(line.split()[1]) for line in sorted(self.beside_file.read_text().splitlines())]


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    made = Held(tmp_path_factory.mktemp("held"))
    if made.shim is None:
        pytest.skip("AddressSanitizer must be the first library")
    return made


@pytest.mark.parametrize("mesh", ["optimizer", "gradients", "parameters", "three", "two", "tensor", "both"])
def test_training_goes_on(held, tmp_path, mesh):
    """While nothing of a part is written yet; then all is as ever, and each rank's part was written beside it."""
    process = held.begin(tmp_path / "run", mesh, 4, 2)
    assert wait_for_step(process, tmp_path / "run", 3)
    assert held.saved() == ([], True)
    code, err = held.finish(process)
    assert code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(held.folder / "one4"), err
    assert [e["step"] for e in dpt.events(tmp_path / "run", "checkpoint")] == [2, 4]
    counts = held.beside()  # of both saves
    assert len(counts) == MESHES[mesh][0] and min(counts) > 0.1 * held.size, counts
    result, _ = held.run(tmp_path / "run", mesh, 6)
    assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(held.folder / "one6"), result


def test_not_where_memory_is_short_or_it_is_not_wanted(held, tmp_path):
    """One rank that has none is enough: then all of them write before the next step, whose bytes are the same."""
    for name, env, words in (("short", {"PARTS_MEMORY": "2"}, ()), ("waits", {}, ("--set", "checkpoint.background=false"))):
        process = held.begin(tmp_path / name, "parameters", 4, 2, *words, **env)
        code, err = held.finish(process)
        assert code == 0 and dpt.newest(tmp_path / name) == dpt.newest(held.folder / "one4"), err
        assert held.beside()[1:] == [0, 0, 0], "rank 0's thread ends the file"
        assert held.beside()[0] < 0.1 * held.size


def test_a_part_that_cannot_be_written(held, tmp_path):
    """Its rank is told once the others have written theirs, nothing is left of it, and the checkpoint before is there."""
    process = held.begin(tmp_path / "run", "parameters", 3, 9)
    assert held.finish(process)[0] == 0
    process = held.begin(tmp_path / "run", "parameters", 6, 4, PARTS_RANK="3", PARTS_DO="ENOSPC")
    assert wait_for_step(process, tmp_path / "run", 5)
    code, err = held.finish(process)
    told = [line for line in err.splitlines() if "step-00000004.h5: No space left on device" in line]
    assert code == 74 and len(told) == 1 and told[0].startswith("rank 3 ("), err
    assert held.saved() == ([2, 3], False)
    result, _ = held.run(tmp_path / "run", "parameters", 6)
    assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(held.folder / "one6"), result


def test_killed_while_parts_are_written(held, tmp_path):
    """The checkpoint before is the newest, and what was begun goes when the run goes on."""
    process = held.begin(tmp_path / "run", "gradients", 6, 4)
    assert wait_for_step(process, tmp_path / "run", 5)
    assert held.saved() == ([2], True) and os.readlink(tmp_path / "run/checkpoints/latest") == "step-00000002.h5"
    for pid in dpt.ranks_of(process):
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=100)
    result, _ = held.run(tmp_path / "run", "gradients", 6)
    assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(held.folder / "one6"), result
    assert "of step 2" in result.err or "at step 2" in result.err, result
    assert held.saved() == ([2, 4, 6], False)


def test_a_run_that_is_stopped_meanwhile(held, tmp_path):
    """It ends that save before its own."""
    process = held.begin(tmp_path / "run", "optimizer", 6, 4)
    assert wait_for_step(process, tmp_path / "run", 5)
    for pid in dpt.ranks_of(process):
        os.kill(pid, signal.SIGTERM)
    code, err = held.finish(process)
    steps, partly = held.saved()
    assert (code == 75 or steps[-1] == 6) and {2, 4} <= set(steps) and not partly, err
    result, _ = held.run(tmp_path / "run", "optimizer", 6)
    assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(held.folder / "one6"), result


@pytest.mark.parametrize("fault, exit_code", [("read", 74), ("fail", 70), ("memory", 71)])
def test_a_run_that_fails_meanwhile(held, tmp_path, fault, exit_code):
    """The save that was begun is whole."""
    process = held.begin(tmp_path / "run", "parameters", 6, 4, DPTRAIN_FAULT=f"{fault}:rank=1:step=6")
    assert wait_for_step(process, tmp_path / "run", 5)
    code, err = held.finish(process)
    assert code == exit_code and "as DPTRAIN_FAULT asks" in err, err
    assert held.saved() == ([2, 4], False)
    result, _ = held.run(tmp_path / "run", "parameters", 6)
    assert result.code == 0 and dpt.newest(tmp_path / "run") == dpt.newest(held.folder / "one6"), result
