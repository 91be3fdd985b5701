"""comm.overlap: gradients summed between nodes in buckets, by a thread beside backward. No byte depends on it, whatever happens to
a step, and a rank that is missing is named as without it."""
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/comm/tests"]
import dpt  # noqa: E402
from test_nodes import TIMEOUT, cluster, told  # noqa: E402,F401

# 30 steps, whose last one of an epoch is short; several micro-batches a rank, not as many on each. At least 32 768 learned numbers, from
# which on the nodes' ranks exchange parts.
JOB = {
    "data": "{train: synthetic, synthetic: {samples: 221, shape: [1, 12, 12]}}",
    "batch": "{global: 60, micro: 6}",
    "train": "{epochs: 5, check_replicas: 3 steps}",
    "checkpoint": "{every: 1 epoch, keep: 1}",
}
WIDE = "{type: mlp, hidden: [256, 256], outputs: 10}"
MODELS = {
    "team": {"model": WIDE},
    "workers": {"model": "{type: sequential, layers: [{conv: {channels: 32, padding: same}}, relu, {conv: {channels: 96, padding: same}}, "
                         "relu, {maxpool: 2}, flatten, {dropout: 0.3}, {dense: 24}, relu, {dense: 10}]}"},
    "norms": {"model": "{type: sequential, layers: [{conv: {channels: 32, padding: same}}, {batchnorm: {statistics: batch}}, relu, "
                      "{conv: {channels: 96, padding: same}}, {batchnorm: {statistics: batch}}, relu, {maxpool: 2}, flatten, {dense: 10}]}"},
    "micro": {"model": "{type: sequential, layers: [{conv: {channels: 64, padding: same}}, {batchnorm: {statistics: micro}}, relu, "
                       "{conv: {channels: 96, padding: same}}, relu, {maxpool: 2}, flatten, {dense: 10}]}",
              "train": "{epochs: 3, freeze: [conv2]}"},
    "ref": {"model": "{type: mlp, hidden: [128, 128], outputs: 10}", "device": "{kind: ref}",
            "train": "{epochs: 2, freeze: [dense2/weight]}"},
}


def run(nodes, ranks, job, folder, overlap, *sets, **environment):
    words = [part for word in (f"comm.overlap={overlap}", *sets) for part in ("--set", word)]
    return nodes.finish(nodes.start(ranks, job, folder, *words, **environment), 100)


def both(nodes, folder, ranks, job, *sets, code=0, **environment):
    """Runs that overlap and that do not: their results and folders. Those that end well have counted how much went beside backward."""
    results, folders = [], []
    for overlap in ("never", "always"):
        folders.append(folder / f"{overlap}-{len(list(folder.iterdir()))}")
        results.append(run(nodes, ranks, job, folders[-1], overlap, *sets, **environment))
        assert results[-1].code == code, results[-1]
        assert ("buckets" in dpt.events(folders[-1], "run")[0]) == (overlap == "always")
    return results, folders


@pytest.mark.parametrize("model", MODELS)
def test_same_bytes(cluster, tmp_path, model):  # noqa: F811
    job, early = dpt.write_small_job(tmp_path / "job.yaml", **{**JOB, **MODELS[model]}), 0
    for ranks, threads in (([1, 1], 2), ([2, 1], 1), ([2, 2, 2], 1), ([1, 1, 1], 2)):
        _, (never, always) = both(cluster, tmp_path, ranks, job, f"device.threads={threads}")
        assert dpt.newest(never) == dpt.newest(always)
        assert [e["loss"] for e in dpt.events(never, "train")] == [e["loss"] for e in dpt.events(always, "train")]
        assert dpt.events(always, "run")[0]["buckets"] > 1 and "early_buckets" not in dpt.events(never, "end")[0]
        early += dpt.events(always, "end")[0]["early_buckets"]
    assert early > 0, "no bucket of any run was begun before backward was over"


def test_steps_that_are_skipped(cluster, tmp_path):  # noqa: F811
    """Steps whose gradient is not finite, after which micro-batches are computed again."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**JOB, "model": WIDE, "optimizer": "{type: sgd, lr: 1.0e6}"})
    results, folders = both(cluster, tmp_path, [2, 1], job, "train.on_nan=skip")
    skipped = [re.search(r"\((\d+) skipped, not a number\)", result.out).group(1) for result in results]
    assert skipped[0] == skipped[1] and int(skipped[0]) > 0
    assert dpt.newest(folders[0]) == dpt.newest(folders[1])


@pytest.mark.parametrize("fault", ["fail:rank=1:step=3", "read:rank=2:step=4"])
def test_rank_that_fails(cluster, tmp_path, fault):  # noqa: F811
    """It takes part in the buckets, and all say why it failed."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **JOB, model=WIDE)
    said = []
    for overlap in ("never", "always"):
        result = run(cluster, [1, 2], job, tmp_path / overlap, overlap, DPTRAIN_FAULT=fault)
        assert result.code != 0, result
        said.append((result.code, told(result)))
    assert said[0] == said[1] and len(said[0][1]) == 1 and "as DPTRAIN_FAULT asks" in said[0][1][0], said


def test_flipped_bit_is_summed(cluster, tmp_path):  # noqa: F811
    """A fault in a gradient strikes before it is summed, though that is the last thing to happen to it."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{**JOB, "model": WIDE[:-1] + ", activation: tanh}", "batch": "{global: 12, micro: 6}"})
    _, whole = both(cluster, tmp_path, [1, 1], job)
    for word in (144 * 256 + 7, 144 * 256 + 256 + 256 * 256 + 256 + 10 * 256 + 3):  # of the first bucket, and of the last
        _, flipped = both(cluster, tmp_path, [1, 1], job, DPTRAIN_FAULT=f"flip-gradient:rank=1:step=7:word={word}")
        assert dpt.newest(flipped[0]) == dpt.newest(flipped[1]) != dpt.newest(whole[0])


def test_rank_that_hangs(cluster, tmp_path):  # noqa: F811
    """Others' threads wait for its buckets, but it is its step that is late."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **JOB, model=WIDE, comm=f"{{timeout: {TIMEOUT} s}}")
    for ranks, rank, host in (([1, 2], 2, "n2"), ([1, 1, 1], 0, "n1")):
        result = run(cluster, ranks, job, tmp_path / host, "always", DPTRAIN_FAULT=f"hang:rank={rank}:step=9")
        assert result.code == 71, result
        assert any(re.match(rf"rank {rank} \({host}\) has not arrived at step 9 for {TIMEOUT} s; .* Its last word: reading its samples",
                            line) for line in told(result)), result


def test_ranks_dealt_to_nodes_in_turn(cluster, tmp_path):  # noqa: F811
    """Their nodes' sums are MPI's, which does not go on beside backward."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **JOB, model=WIDE)
    result = run(cluster, [2, 2], job, tmp_path / "out", "always", OMPI_MCA_rmaps_base_mapping_policy="node",
                 PRTE_MCA_rmaps_default_mapping_policy="node")
    assert result.code == 0 and "comm.overlap: always: gradients are summed after backward, since the ranks of a node do not" in result.err, result
    assert "buckets" not in dpt.events(tmp_path / "out", "run")[0]


def test_where_nothing_overlaps(cluster, tmp_path):  # noqa: F811
    """One node, sums by MPI alone, the tree, few numbers."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **JOB, model=WIDE)
    for i, (ranks, word) in enumerate((([2], "comm.reduction=allreduce"), ([1, 1], "comm.hierarchical=off"), ([1, 1], "comm.reduction=reproducible"),
                                       ([1, 1], "model.hidden=[16]"))):
        result = run(cluster, ranks, job, tmp_path / f"{i}", "always", word, "train.epochs=1")
        assert result.code == 0 and "buckets" not in dpt.events(tmp_path / f"{i}", "run")[0], result
