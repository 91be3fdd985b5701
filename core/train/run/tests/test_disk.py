"""A disk that fills up, a folder that becomes read-only, a shard that is cut short, all while it trains."""
import contextlib
import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
from running import Paused, job, newest, steps_logged, wait_until  # noqa: E402


def mount(*words):
    done = subprocess.run(["mount", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        pytest.skip("mounting is not allowed here")


@contextlib.contextmanager
def small_disk(tmp_path, size):
    disk = tmp_path / "disk"
    disk.mkdir(parents=True)
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def fill(path):
    """A file that takes all that is left."""
    with open(path, "wb", buffering=0) as file:
        for size in (65536, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def whole_lines(folder):
    """What metrics.jsonl tells is whole lines (or json.loads raises)."""
    assert (folder / "metrics.jsonl").read_bytes().endswith(b"\n")
    return dpt.events(folder)


def saved(folder):
    """The checkpoints under their final names; h5py opens each, and no temporary is left."""
    names = sorted(os.listdir(folder / "checkpoints"))
    assert [n for n in names if ".tmp" in n] == []
    for name in names:
        with h5py.File(folder / "checkpoints" / name) as file:
            assert file.attrs["step"] > 0
    return names


@pytest.mark.parametrize("ranks, shard", [(1, "none"), (2, "none"), (2, "parameters")])
def test_the_disk_fills_up(tmp_path, ranks, shard):
    """Exit 74, one line with the file; what was saved stays, and once there is space it goes on from there. Also where a checkpoint is
    written as it is gathered."""
    path = job(tmp_path)
    keep = ("--set", "checkpoint.keep=all")  # clearing away would make room for the next one
    keep += ("--set", "comm.reduction=reproducible", "--set", f"parallel.shard={shard}") if shard != "none" else ()
    dpt.train(path, tmp_path / "whole", *keep[2:], ranks=ranks)
    with small_disk(tmp_path, "4m") as disk:
        folder = disk / "out"
        run = Paused(path, folder, ranks, *keep, step=30)
        fill(disk / "filler")
        code, err = run.go_on()
        assert code == 74 and f"{folder}/" in err, err
        # A save that is under way while something else fails is warned of.
        told = [line for line in err.splitlines() if "No space left" in line and "the log file" not in line and "warning: " not in line]
        assert len(told) == 1, err
        names = saved(folder)
        assert "latest" in names and len(names) >= 4, names
        whole_lines(folder)
        assert not (folder / ".lock").exists()
        result = dpt.run(path, "--output", folder, *keep, ranks=ranks)
        assert result.code == 74, result
        assert saved(folder) == names
        (disk / "filler").unlink()
        result = dpt.run(path, "--output", folder, *keep, ranks=ranks)
        assert result.code == 0 and "resuming at step" in result.err, result
        assert newest(folder) == newest(tmp_path / "whole")
        assert steps_logged(folder) == list(range(1, 91))


def test_a_disk_that_is_too_small_is_told_at_the_start(tmp_path):
    """Before a step is made: that not all checkpoints will fit, or not even one, and that a file may not be so large."""
    path = job(tmp_path)
    dpt.train(path, tmp_path / "first", "--set", "train.epochs=1")
    size = os.path.getsize(tmp_path / "first" / "checkpoints" / "latest")
    # 90 steps are 13 checkpoints, and up to 6 of the best; tmpfs has pages of 4 kB.
    for keep, room, code in (("all", 30, 0), ("all", 6, None), (3, 8, 0), (3, 1 / 2, 74)):
        with small_disk(tmp_path / f"{keep}-{room}", int(room * size) + 16384) as disk:
            result = dpt.run(path, "--output", disk / "out", "--quiet", "--set", f"checkpoint.keep={keep}")
            warned = f"{disk}/out/checkpoints: this run will save 13 checkpoints of" in result.err
            assert warned == (code is None) and result.code == (74 if code is None else code), result
            if code == 74:
                assert f"{disk}/out/checkpoints: a checkpoint takes " in result.err and dpt.events(disk / "out", "train") == [], result
    limit = ["bash", "-c", f'ulimit -f {size // 2048}; exec "$@"', "-", dpt.BINARY, path, "--output", str(tmp_path / "limited")]
    done = dpt.Result(subprocess.run(limit, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False))
    line = f"{tmp_path}/limited/checkpoints: a checkpoint is larger than files may be here (ulimit -f): File too large\n"
    assert done.code == 74 and done.err.endswith(line), done


def test_the_disk_fills_up_before_a_line(tmp_path):
    """Nothing is due but lines of metrics, and no line is cut."""
    path = job(tmp_path, epochs=2000)
    with small_disk(tmp_path, "1m") as disk:
        folder = disk / "out"
        run = Paused(path, folder, 2, "--set", "checkpoint.every=never", step=30)
        fill(disk / "filler")
        code, err = run.go_on()
        assert code == 74 and f"{folder}/metrics.jsonl: No space left on device" in err, err
        steps = [e["step"] for e in whole_lines(folder) if e["event"] == "train"]
        assert steps == list(range(1, len(steps) + 1))


def test_the_metrics_cannot_be_written(tmp_path):
    path = job(tmp_path, epochs=1)
    (tmp_path / "out" / "metrics.jsonl").mkdir(parents=True)
    result = dpt.run(path, "--output", tmp_path / "out", ranks=2)
    assert result.code == 74 and f"{tmp_path}/out/metrics.jsonl: " in result.err, result
    assert not (tmp_path / "out" / ".lock").exists()


def test_the_folder_becomes_read_only(tmp_path):
    path = job(tmp_path)
    dpt.train(path, tmp_path / "whole", ranks=2)
    folder = tmp_path / "out"
    run = Paused(path, folder, 2, step=30)
    checkpoints = folder / "checkpoints"
    before = {name for name in os.listdir(checkpoints) if ".tmp-" not in name}
    try:
        mount("--bind", checkpoints, checkpoints)
        try:
            mount("-o", "remount,bind,ro", checkpoints)
            code, err = run.go_on()
        finally:
            subprocess.run(["umount", "-l", str(checkpoints)], check=False)
    finally:
        if run.process.poll() is None:
            run.kill()
    assert code == 74 and f"{folder}/checkpoints/" in err and "Read-only file system" in err, err
    assert err.count("Read-only") == 1, err
    assert "latest" in before and before <= set(os.listdir(checkpoints))
    result = dpt.run(path, "--output", folder, ranks=2)
    assert result.code == 0 and "resuming at step" in result.err, result
    assert newest(folder) == newest(tmp_path / "whole")
    assert steps_logged(folder) == list(range(1, 91))


def shards(folder, n, samples=300):
    dice = np.random.default_rng(1)
    for i in range(n):
        with h5py.File(folder / f"train-{i}.h5", "w") as file:
            file["images"] = dice.integers(0, 256, (samples, 1, 12, 12), dtype=np.uint8)
            file["labels"] = dice.integers(0, 10, samples)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_shard_is_cut_short(tmp_path, ranks):
    shards(tmp_path, 3)
    path = job(tmp_path, epochs=100000)
    run = Paused(path, tmp_path / "out", ranks, "--set", f"data.train={tmp_path}/train-*.h5", "--set", "data.cache=none",
                 step=10)
    victim = tmp_path / "train-1.h5"
    os.truncate(victim, victim.stat().st_size // 2)
    code, err = run.go_on()
    assert code == 65, err
    assert err.count(f"{victim}: ") == 1 and err.count("became shorter") == 1, err
    assert "latest" in saved(tmp_path / "out")
    assert "became shorter" in whole_lines(tmp_path / "out")[-1]["reason"]
    result = dpt.run(path, "--output", tmp_path / "out", "--set", f"data.train={tmp_path}/train-*.h5", "--set",
                     "data.cache=none", ranks=ranks)
    assert result.code == 65 and str(victim) in result.err, result


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_shard_is_written_to_and_metrics_go(tmp_path, ranks):
    """Both are told, each once, and the run goes on."""
    shards(tmp_path, 3)
    path = job(tmp_path, epochs=100000)
    run = Paused(path, tmp_path / "out", ranks, "--set", f"data.train={tmp_path}/train-*.h5", "--set", "data.cache=none",
                 step=10)
    os.utime(tmp_path / "train-1.h5", (1, 1))
    (tmp_path / "out" / "metrics.jsonl").unlink()
    for pid in run.pids:
        os.kill(pid, signal.SIGCONT)
    log = tmp_path / "out" / "log.txt"
    assert wait_until(run.process, lambda: "was written to" in log.read_text() and "was removed" in log.read_text())
    os.kill(run.pids[0], signal.SIGUSR1)
    _, err = run.process.communicate(timeout=60)
    err = err.decode()
    assert run.process.returncode == 75, err
    assert err.count(f"warning: {tmp_path}/train-1.h5 was written to while this run reads it") == 1, err
    assert err.count(f"warning: {tmp_path}/out/metrics.jsonl was removed or replaced") == 1, err
