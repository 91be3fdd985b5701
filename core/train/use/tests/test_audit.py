"""log.hashes and inspect --audit: the first step and tensor at which two runs part."""
import json
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
data: {train: synthetic, synthetic: {samples: 509, shape: [1, 10, 10]}}
model: {type: cnn, channels: [4, 6], outputs: 10}
batch: {global: 60, micro: 7}
optimizer: {type: adam, lr: 0.003}
train: {steps: 12}
checkpoint: {every: 4 steps}
log: {every: 1 steps, hashes: true}
comm: {reduction: reproducible}
"""


@pytest.fixture
def path(tmp_path):
    return dpt.write_job(tmp_path / "job.yaml", JOB)


def lines(folder):
    return (folder / "hashes.jsonl").read_text().splitlines()


def test_the_same_lines_at_any_rank_count(path, tmp_path):
    dpt.train(path, tmp_path / "one")
    dpt.train(path, tmp_path / "three", ranks=3)
    assert lines(tmp_path / "one") == lines(tmp_path / "three")
    first = json.loads(lines(tmp_path / "one")[0])
    assert first["step"] == 1 and [row[0] for row in first["layers"]][:2] == ["conv1/weight", "conv1/bias"]
    result = dpt.run("inspect", "--audit", tmp_path / "one", tmp_path / "three")
    assert result.code == 0 and "12 steps agree, 1 to 12" in result.out, result


@pytest.mark.parametrize("word, tensor", [(0, "conv1/weight"), (545, "dense1/bias")])
def test_a_flipped_bit_in_one_ranks_gradient_is_found(path, tmp_path, word, tensor):
    dpt.train(path, tmp_path / "good", ranks=3)
    dpt.train(path, tmp_path / "bad", ranks=3, env={"DPTRAIN_FAULT": f"flip-gradient:rank=1:step=7:word={word}"})
    result = dpt.run("inspect", "--audit", tmp_path / "good", tmp_path / "bad")
    assert result.code == 1 and f"step 7: the gradient of {tensor} differs first" in result.out, result
    assert "6 steps agree, 1 to 6" in result.out and result.err == "", result


def test_hashes_go_on_without_doubled_steps(path, tmp_path):
    dpt.train(path, tmp_path / "whole")
    result = dpt.run(path, "--output", tmp_path / "parts", ranks=2, env={"DPTRAIN_FAULT": "fail:rank=1:step=7"})
    assert result.code == 70, result
    dpt.run(path, "--output", tmp_path / "parts", ranks=3)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_what_cannot_be_compared(path, tmp_path):
    dpt.train(path, tmp_path / "a", "--set", "log.hashes=false")
    dpt.train(path, tmp_path / "b")
    result = dpt.run("inspect", "--audit", tmp_path / "a", tmp_path / "b")
    assert result.code == 65 and "log.hashes" in result.err, result
    (tmp_path / "a" / "hashes.jsonl").write_text("something else\n")
    result = dpt.run("inspect", "--audit", tmp_path / "a", tmp_path / "b")
    assert result.code == 65 and "no hashes.jsonl" in result.err, result
    assert dpt.run("inspect", "--audit", tmp_path / "b").code == 2
