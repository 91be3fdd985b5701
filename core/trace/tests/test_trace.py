"""log.trace: every rank and thread on one time axis, spans that nest, bounded, also where a run is stopped."""
import json
import os
import signal
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
sys.path.insert(0, "core/train/tests")
import dpt  # noqa: E402
import running  # noqa: E402

JOB = """
data:
  train: {train}
  valid: 0.2
  cache: {cache}
  synthetic: {{samples: 400, shape: [1, 8, 8]}}
model:
  type: sequential
  layers: [{{conv: {{channels: 4, padding: same}}}}, relu, {{maxpool: 2}}, flatten, {{dense: 10}}]
batch: {{global: 48, micro: 4}}
train: {{steps: 9, check_replicas: 4 steps}}
eval: {{every: 3 steps}}
checkpoint: {{every: 4 steps}}
log: {{trace: true}}
"""
MICROSECOND = 0.002  # numbers in the file have three decimals


def job(tmp_path, train="synthetic", cache="auto"):
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(train=train, cache=cache))


class Trace:
    def __init__(self, folder):
        with open(folder / "trace.json", encoding="utf-8") as file:
            events = json.load(file)
        self.spans = [e for e in events if e["ph"] == "X"]
        self.meta = [e for e in events if e["ph"] == "M"]
        assert len(self.spans) + len(self.meta) == len(events)
        assert not list(folder.glob("trace.json.*"))

    def threads(self, name=None):
        return {(m["pid"], m["tid"]): m["args"]["name"] for m in self.meta
                if m["name"] == "thread_name" and name in (None, m["args"]["name"])}

    def of(self, pid, name=None, tid=0):
        return [s for s in self.spans if s["pid"] == pid and s["tid"] == tid and name in (None, s["name"])]

    def labels(self):
        return {m["pid"]: m["args"] for m in self.meta if m["name"] == "process_labels"}


def check_nesting(spans):
    """Any two spans of a thread lie apart, or one holds the other."""
    stack = []
    for s in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        end = s["ts"] + s["dur"]
        while stack and stack[-1] <= s["ts"] + MICROSECOND:
            stack.pop()
        assert s["dur"] >= 0 and (not stack or end <= stack[-1] + MICROSECOND), s
        stack.append(end)


@pytest.mark.parametrize("kind", ["cpu", "ref"])
def test_every_thread_of_every_rank(tmp_path, kind):
    folder = tmp_path / "out"
    dpt.train(job(tmp_path), folder, "--set", "device.threads=2", "--set", f"device.kind={kind}", ranks=3)
    trace = Trace(folder)
    names = {m["pid"]: m["args"]["name"] for m in trace.meta if m["name"] == "process_name"}
    assert sorted(names) == [0, 1, 2]
    assert all(names[r].startswith(f"rank {r} (") for r in names), names
    threads = trace.threads()
    assert set(trace.threads("main")) == {(r, 0) for r in range(3)}
    assert set(trace.threads("thread 1")) == {(r, 1) for r in range(3)}
    assert set(threads) - {(r, t) for r in range(3) for t in (0, 1)} == set(trace.threads("saver"))
    assert {pid for pid, _ in trace.threads("saver")} == {0}
    for pid, tid in threads:
        check_nesting(trace.of(pid, tid=tid))
    for rank in range(3):
        assert [s["args"]["step"] for s in trace.of(rank, "step")] == list(range(1, 10))
        assert [s["args"]["step"] for s in trace.of(rank, "evaluate")] == [3, 6, 9]
        assert len(trace.of(rank, "save")) >= 3 and len(trace.of(rank, "compare replicas")) >= 2
        for tid in (0, 1):
            seen = {s["name"] for s in trace.of(rank, tid=tid)}
            assert {"data", "loss"} <= seen
            for layer in ("conv1", "maxpool1", "dense1"):
                assert any(layer in n and n.endswith(" forward") for n in seen), seen
                assert any(layer in n and " backward" in n for n in seen), seen
    assert all(label["dropped"] == 0 and label["clock_bound_us"] == 0 for label in trace.labels().values())


def test_layers_lie_in_compute_in_steps(tmp_path):
    folder = tmp_path / "out"
    dpt.train(job(tmp_path), folder, "--set", "eval.every=never", ranks=2)
    trace = Trace(folder)
    for rank in range(2):
        for outer, inner in (("step", "compute"), ("compute", "loss"), ("step", "optimizer")):
            held = [(s["ts"], s["ts"] + s["dur"]) for s in trace.of(rank, outer)]
            for s in trace.of(rank, inner):
                assert any(a - MICROSECOND <= s["ts"] and s["ts"] + s["dur"] <= b + MICROSECOND for a, b in held), s


def test_one_axis(tmp_path):
    """No rank can have ended a step before all ranks had computed their part of it."""
    folder = tmp_path / "out"
    dpt.train(job(tmp_path), folder, ranks=3)
    trace = Trace(folder)
    for step in range(1, 10):
        computed = [s["ts"] + s["dur"] for r in range(3) for s in trace.of(r, "compute") if s["args"]["step"] == step]
        ended = [s["ts"] + s["dur"] for r in range(3) for s in trace.of(r, "step") if s["args"]["step"] == step]
        assert len(computed) == len(ended) == 3
        assert max(computed) <= min(ended) + 1, step
    assert min(s["ts"] for s in trace.spans) > -1e6 and max(s["ts"] for s in trace.spans) < 1e9


def test_the_thread_that_reads_ahead(tmp_path):
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "train.h5", "w") as file:
        file["images"] = rng.integers(0, 256, (300, 1, 8, 8), dtype=np.uint8)
        file["labels"] = rng.integers(0, 10, 300)
    folder = tmp_path / "out"
    dpt.train(job(tmp_path, tmp_path / "train.h5", "none"), folder, ranks=2)
    trace = Trace(folder)
    assert {pid for pid, _ in trace.threads("loader")} == {0, 1}
    for pid, tid in trace.threads("loader"):
        assert {s["name"] for s in trace.of(pid, tid=tid)} == {"read"}
        assert len(trace.of(pid, tid=tid)) >= 9
        check_nesting(trace.of(pid, tid=tid))


def test_old_events_are_dropped_and_counted(tmp_path):
    text = """
data: {train: synthetic, synthetic: {samples: 4096, shape: [5], outputs: 1}}
model: {type: linear, outputs: 1}
loss: mse
batch: {global: 1024, micro: 1}
train: {steps: 32}
checkpoint: {every: never}
log: {trace: true}
"""
    folder = tmp_path / "out"
    result = dpt.train(dpt.write_job(tmp_path / "job.yaml", text), folder, "--set", "device.threads=1")
    trace = Trace(folder)
    assert len(trace.of(0)) == 1 << 16 and "newest 65536 events" in result.err, result
    assert trace.labels()[0]["dropped"] > 0
    steps = [s["args"]["step"] for s in trace.of(0, "step")]
    assert steps == list(range(steps[0], 33)) and steps[0] > 1
    check_nesting([s for s in trace.of(0) if s["args"]["step"] > steps[0]])


def test_a_run_that_is_stopped_and_goes_on(tmp_path):
    folder, path = tmp_path / "out", running.job(tmp_path)
    words = ("--set", "log.trace=true")
    paused = running.Paused(path, folder, 2, *words, step=10)
    for pid in paused.pids:
        os.kill(pid, signal.SIGUSR1)
    assert paused.go_on()[0] == 75
    stopped = Trace(folder)
    last = max(s["args"]["step"] for s in stopped.of(0, "step"))
    assert last >= 10 and stopped.of(1, "step")
    result = dpt.run(path, "--output", folder, *words, ranks=3)
    assert result.code == 0, result
    again = Trace(folder)
    assert min(s["args"]["step"] for s in again.of(2, "step")) == last + 1


def test_off_unless_asked_for(tmp_path):
    dpt.train(job(tmp_path), tmp_path / "out", "--set", "log.trace=false", ranks=2)
    assert not (tmp_path / "out" / "trace.json").exists()


def test_it_changes_nothing(tmp_path):
    path = job(tmp_path)
    for trace in ("true", "false"):
        dpt.train(path, tmp_path / trace, "--set", f"log.trace={trace}", ranks=2)
    assert (tmp_path / "true/checkpoints/latest").read_bytes() == (tmp_path / "false/checkpoints/latest").read_bytes()


def test_no_room_for_it(tmp_path):
    """Where the file cannot be written the run says so; its checkpoints are there."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "trace.json").mkdir()
    result = dpt.run(job(tmp_path), "--output", folder, ranks=2)
    assert result.code == 74 and "trace.json" in result.err, result
    assert (folder / "checkpoints" / "latest").exists()
