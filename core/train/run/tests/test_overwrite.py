"""A folder that holds a run: finished, it says so; --overwrite starts from scratch, and until that has saved the old one is kept."""
import os
import shutil
import signal
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/run/tests"]
import dpt  # noqa: E402
from running import Paused, job, newest, steps_logged  # noqa: E402
from test_crash import HEAVY, Place, each, read_journal, sample, shim, whole  # noqa: E402, F401

NEVER = ("--set", "checkpoint.every=never")
OTHER = ("--set", "optimizer.lr=0.02")


def run(path, folder, *words, ranks=0, code=0, **options):
    result = dpt.run(path, "--output", folder, *words, ranks=ranks, **options)
    assert result.code == code, result
    return result


def all_files(folder):
    """Names and bytes, without those of the lock."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            if not name.startswith(".lock"):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, folder)] = file.read()
    return found


def test_finished_without_a_checkpoint(tmp_path):
    """The smoke job of a CI, again in the same folder: it is the same job, so there is nothing to do."""
    path, folder = job(tmp_path, epochs=1), tmp_path / "out"
    run(path, folder, *NEVER)
    before = all_files(folder)
    for words in ((), ("--resume", "auto"), ("--set", "log.every=5 steps")):
        result = run(path, folder, *NEVER, *words)
        assert result.err == f"{folder} is finished, all 15 steps, and has saved nothing to resume from: --overwrite starts from scratch in " \
            "its place, --output in another\n" and result.out == "", result
    result = run(path, folder, *NEVER, "--resume", "none", code=2)
    assert "holds an earlier run: choose another folder with --output, or start from scratch in its place with --overwrite" in result.err
    result = run(path, folder, *NEVER, "--set", "train.epochs=2", code=2)
    assert "ended at step 15 without a checkpoint to resume from: " in result.err and "--overwrite" in result.err, result
    result = run(path, folder, *NEVER, *OTHER, code=78)
    assert "holds the run of another job:\noptimizer.lr: 0.01 -> 0.02\n" in result.err and "--overwrite" in result.err, result
    assert all_files(folder) == before


@pytest.mark.parametrize("ranks", [0, 3])
@pytest.mark.parametrize("first, second", [((), ()), (NEVER, NEVER)], ids=["saved", "never"])
def test_overwrite_starts_from_scratch(tmp_path, first, second, ranks):
    """With another job, and as in a folder of its own; what is of no run stays where and as it is."""
    path, folder = job(tmp_path, epochs=1), tmp_path / "out"
    run(path, folder, *first, "--set", "log={every: 1 steps, trace: true, hashes: true, tensorboard: true}", ranks=ranks)
    for name in ("notes.txt", "checkpoints/notes.txt"):
        (folder / name).write_text("mine")
    result = run(path, folder, *second, *OTHER, "--overwrite", ranks=ranks)
    until = "ended" if second else "its first checkpoint"
    assert f"  the run before lies in {folder}/overwritten until this one has {until}" in result.err, result
    run(path, tmp_path / "fresh", *second, *OTHER, "--overwrite", ranks=ranks)
    names, fresh = set(all_files(folder)), set(all_files(tmp_path / "fresh"))
    assert names - fresh == {"notes.txt", "checkpoints/notes.txt"} and fresh <= names
    if not second:
        assert newest(folder) == newest(tmp_path / "fresh")
    assert steps_logged(folder) == list(range(1, 16)) and len(dpt.events(folder, "run")) == 1


@pytest.mark.parametrize("ranks", [1, 2] if HEAVY else [1])
def test_the_old_run_is_kept_until_the_first_checkpoint(tmp_path, ranks):
    path, folder = job(tmp_path), tmp_path / "out"
    run(path, folder, "--set", "train.epochs=1", ranks=ranks)
    old = newest(folder)
    new = Paused(path, folder, ranks, *OTHER, "--overwrite", step=3)
    assert newest(folder / "overwritten") == old and os.listdir(folder / "checkpoints") == []
    result = run(path, folder, "--overwrite", ranks=ranks, code=2)
    assert f"{folder} is in use by process" in result.err, result
    new.kill()
    # Killed before it saved: again the old one is kept, and it goes with the first checkpoint.
    new = Paused(path, folder, ranks, *OTHER, "--overwrite", step=5)
    assert newest(folder / "overwritten") == old and steps_logged(folder)[0] == 1
    new.kill()
    new = Paused(path, folder, ranks, *OTHER, step=2)  # without --overwrite it is the same
    assert newest(folder / "overwritten") == old
    new.kill()
    new = Paused(path, folder, ranks, *OTHER, "--set", "checkpoint.background=false", step=8)
    assert not (folder / "overwritten").exists() and newest(folder) != old
    os.kill(new.pids[0], signal.SIGUSR1)
    assert new.go_on()[0] == 75
    assert steps_logged(folder)[0] == 1


def test_ended_with_nothing_saved(tmp_path):
    """The old run is still there, as a run folder, and the last line says so."""
    path, folder = job(tmp_path), tmp_path / "out"
    run(path, folder, "--set", "train.epochs=1")
    old = all_files(folder)
    result = run(path, folder, "--overwrite", "--set", "optimizer={type: sgd, lr: 1.0e6, momentum: 0.9}", "--set",
                 "model.layers=[flatten, {dense: 20}, {dense: 20}, {dense: 20}, {dense: 10}]", code=1)
    assert f"warning: nothing was saved, so the run before this one still lies in {folder}/overwritten" in result.err, result
    assert all_files(folder / "overwritten") == old
    assert dpt.run("inspect", folder / "overwritten").code == 0


def test_not_over_other_peoples_files(tmp_path):
    path, folder = job(tmp_path, epochs=1), tmp_path / "out"
    run(path, folder)
    (folder / "overwritten").mkdir()
    (folder / "overwritten" / "thesis.tex").write_text("mine")
    before = all_files(folder)
    result = run(path, folder, "--overwrite", code=2)
    assert f"{folder}/overwritten holds files that are of no run" in result.err and all_files(folder) == before, result
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("trace.json", "hashes.jsonl"):
        (plain / name).write_text("of another program")
    run(path, plain, "--overwrite")
    assert (plain / "trace.json").read_text() == "of another program" and not (plain / "overwritten").exists()


def test_from_a_checkpoint_of_the_run_that_goes(tmp_path):
    path, folder = job(tmp_path, epochs=1), tmp_path / "out"
    run(path, folder)
    run(path, folder, "--overwrite", "--resume", folder / "checkpoints" / "step-00000007.h5", *OTHER)
    assert steps_logged(folder) == list(range(8, 16)) and not (folder / "overwritten").exists()
    assert dpt.events(folder, "run")[0]["resumed_from_step"] == 7


def final(folder):
    path = os.path.join(folder, "checkpoints", "latest")
    return open(path, "rb").read() if os.path.exists(path) else None


def test_killed_at_any_call(tmp_path, shim):  # noqa: F811
    """The old run or a checkpoint of the new one is there, whole; then either start goes on from that."""
    old = Place(tmp_path / "old")
    assert old.train().code == 0
    first = old.final()
    new = ("--set", "seed=6", "--overwrite")

    def train(place, *words, **variables):
        env = {"OMPI_MCA_orte_tmpdir_base": place.mpi}
        os.makedirs(place.mpi, exist_ok=True)
        if variables:
            env.update({"LD_PRELOAD": shim, "SHIM_FOLDER": place.path, **variables})
        return dpt.run(place.job, "--output", place.out, "--quiet", *words, env=env, timeout=60)

    def fresh(name):
        place = Place(tmp_path / name)
        shutil.copytree(old.out, place.out, symlinks=True)
        return place

    journal = fresh("journal")
    assert train(journal, *new, SHIM_JOURNAL=str(tmp_path / "calls")).code == 0
    wanted = journal.final()
    assert wanted != first
    points = [r.point for r in read_journal(tmp_path / "calls") if r.thread == "m"]
    assert any("overwriting" in r.path for r in read_journal(tmp_path / "calls"))

    def work(point):
        place = fresh(f"case-{point}")
        assert train(place, *new, SHIM_AT=point, SHIM_DO="before").code == -9
        kept = [final(os.path.join(place.out, name)) for name in ("", "overwritten")]
        moving = [os.path.join(place.out, where, "checkpoints", "step-00000008.h5") for where in ("", ".overwriting")]
        assert first in kept or any(open(path, "rb").read() == first for path in moving if os.path.exists(path)) or \
            any(whole(os.path.join(place.checkpoints, name)) for name in os.listdir(place.checkpoints) if name.startswith("step-"))
        result = train(place, *new[:2])
        if result.code == 78:  # nothing had happened yet, or it was undone
            assert final(place.out) == first and not os.path.exists(os.path.join(place.out, ".overwriting")), result
            assert set(all_files(place.out)) == set(all_files(old.out))
            result = train(place, *new)
        assert result.code == 0 and final(place.out) == wanted, result
        assert set(all_files(place.out)) == set(all_files(journal.out))
        shutil.rmtree(place.path)

    each(sample(points[:60], 24, 1) + sample(points[60:], 6, 2), work)
