"""log.trace of a model in stages: a lane for each rank, named with its stage, in which its waiting for other stages is to be seen."""
import json
import sys

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
data: {train: synthetic, synthetic: {samples: 480, shape: [3, 16, 16]}}
model: {type: sequential, layers: [{conv: 12}, relu, {conv: 12}, relu, flatten, {dense: 32}, relu, {dense: 10}]}
batch: {global: 48, micro: 6}
train: {steps: 6}
log: {trace: true}
device: {threads: 1}
checkpoint: {every: never}
comm: {reduction: reproducible}
parallel: {pipeline: 3}
"""


def test_lanes_and_the_bubble(tmp_path):
    dpt.train(dpt.write_job(tmp_path / "job.yaml", JOB), tmp_path / "run", ranks=3)
    events = json.loads((tmp_path / "run/trace.json").read_text())
    lanes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [lanes[rank].split(", ")[1] for rank in range(3)] == ["stage 1 of 3)", "stage 2 of 3)", "stage 3 of 3)"]
    spans = [e for e in events if e["ph"] == "X" and e["tid"] == 0]
    for rank in range(3):
        for step in range(2, 7):
            own = [e for e in spans if e["pid"] == rank and e["args"]["step"] == step]
            whole = [e for e in own if e["name"] == "step"]
            waits = [e for e in own if e["name"] == "waiting for another stage"]
            assert len(whole) == 1 and len(waits) == 8 * ((rank > 0) + (rank < 2)), "what comes of 8 micro-batches, there and back"
            begin, end = whole[0]["ts"], whole[0]["ts"] + whole[0]["dur"]
            assert all(begin - 0.01 <= e["ts"] and e["ts"] + e["dur"] <= end + 0.01 for e in waits)
            # What a stage computes and what it waits do not overlap.
            layers = sorted((e["ts"], e["ts"] + e["dur"]) for e in own if e["cat"] == "layer" or e in waits)
            assert all(a[1] <= b[0] + 0.01 for a, b in zip(layers, layers[1:]))
    # The bubble: the last stage waits until the first one has computed a step's first micro-batch.
    for step in range(2, 7):
        ends = [min(e["ts"] + e["dur"] for e in spans if e["pid"] == rank and e["args"]["step"] == step and e["name"] == name)
                for rank, name in ((0, "conv1 forward"), (2, "waiting for another stage"))]
        assert ends[0] <= ends[1] + 0.01
