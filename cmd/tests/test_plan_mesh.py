"""`dptrain plan` of a model that is divided among the ranks: what each axis sends, how long it takes, and models that no rank could hold."""
import json
import resource
import subprocess
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SANITIZED = b"__asan_init" in open(dpt.BINARY, "rb").read()


def mlp(width, layers, inputs=1024, outputs=1000):
    """A job whose model has `layers` hidden layers of that width, and its number of parameters."""
    text = (f"data: {{train: synthetic, synthetic: {{samples: 100000, shape: [{inputs}], classes: {outputs}}}}}\n"
            f"model: {{type: mlp, hidden: [{', '.join([str(width)] * layers)}], outputs: {outputs}}}\n"
            "batch: {global: 4096, micro: 32}\noptimizer: {type: adam}\ncomm: {reduction: reproducible}\n")
    sizes = [inputs] + [width] * layers + [outputs]
    return text, sum((a + 1) * b for a, b in zip(sizes, sizes[1:]))


def plan(tmp_path, text, *words, limit=0, code=0):
    path = dpt.write_job(tmp_path / "job.yaml", text)
    done = subprocess.run([dpt.BINARY, "plan", path, *map(str, words)], capture_output=True, text=True, timeout=60, check=False,
                          preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))) if limit and not SANITIZED else None)
    assert done.returncode == code, done
    assert max(map(len, (done.stdout + done.stderr).splitlines())) <= 80 or "--json" in words or code != 0, done.stdout + done.stderr
    return done


def planned(tmp_path, text, *words, **options):
    return json.loads(plan(tmp_path, text, "--json", *words, **options).stdout)


def test_seconds_and_axes_of_a_pipeline(tmp_path):
    """2 stages x 2 replicas: of the stages on one node, or on two."""
    text, _ = mlp(256, 3, 64, 10)
    text += "parallel: {pipeline: 2}\n"
    near, far = (planned(tmp_path, text, "--no-trial", "--ranks", 4, "--ranks-per-node", n, "--latency", 1000) for n in (4, 2))
    for found in (near, far):
        step = found["time"]["step"]
        parts = [value for key, value in step.items() if key.endswith("_s") and key != "samples_per_s"]
        assert step["seconds"] == pytest.approx(sum(parts), rel=0.05)
        assert min(step["compute_s"], step["stage_wait_s"], step["stage_messages_s"], step["update_s"]) > 0
        assert [scale["ranks"] for scale in found["time"]["scaling"]] == [2 << i for i in range(11)]
        data, pipeline = found["axes"][:2]
        stage = max(found["pipeline"]["stages"], key=lambda s: s["rank_bytes"])
        assert (data["axis"], data["ranks"], pipeline["axis"], pipeline["ranks"]) == ("data", 2, "pipeline", 2)
        assert data["sent_bytes"] == found["memory"]["parts"]["weights"] and stage["rank_bytes"] > 0, "2 P (D - 1) / D"
        assert pipeline["sent_bytes"] == 4096 / 2 * 256 * 4, "the values of a replica's samples"
    assert not near["axes"][0]["between_nodes"] and not near["axes"][1]["between_nodes"]
    assert not far["axes"][0]["between_nodes"] and far["axes"][1]["between_nodes"]
    assert far["time"]["step"]["stage_messages_s"] > near["time"]["step"]["stage_messages_s"] + 1e-3
    wide = planned(tmp_path, text, "--no-time", "--ranks", 4, "--ranks-per-node", 1)
    assert wide["axes"][0]["between_nodes"] and wide["axes"][1]["between_nodes"]
    out = plan(tmp_path, text, "--no-trial", "--ranks", 4, "--ranks-per-node", 2).stdout
    assert "waiting for other stages" in out and "pipeline" in out and "gradients back; between nodes" in out


def test_axes_in_shards(tmp_path):
    text, _ = mlp(256, 3, 64, 10)
    for kind, times in (("none", 2), ("optimizer", 2), ("gradients", None)):
        found = planned(tmp_path, text, "--no-time", "--ranks", 4, "--set", f"parallel.shard={kind}", "--set", "device.threads=1")
        data, pipeline = found["axes"][:2]
        rounds = found["reduced_bytes"] // found["memory"]["parts"]["weights"]
        assert data["sent_bytes"] == (times or rounds + 1) * found["memory"]["parts"]["weights"] * 3 / 4
        assert pipeline["ranks"] == 1 and pipeline["sent_bytes"] == 0


@pytest.mark.parametrize("width, layers, ranks", [(8192, 15, 8), (24576, 17, 64), (46080, 48, 1024)])
def test_billions_of_weights(tmp_path, width, layers, ranks):
    """Counted to the last one, in memory that holds none of them."""
    text, parameters = mlp(width, layers)
    text += f"parallel: {{pipeline: {min(ranks, 32) // 4}}}\n"
    found = planned(tmp_path, text, "--no-time", "--ranks", ranks, "--ranks-per-node", 8, limit=800 << 20)
    assert found["parameters"] == parameters > 1e9 * {8: 0.9, 64: 9, 1024: 90}[ranks]
    arena = 4 * (parameters + (-1000 % 16))
    assert found["checkpoint_bytes"] == pytest.approx(3 * arena, rel=1e-4)
    assert sum(stage["flop_share"] for stage in found["pipeline"]["stages"]) == pytest.approx(1)
    held = sum(stage["rank_bytes"] for stage in found["pipeline"]["stages"])
    assert held > 3 * arena, "the stages' weights, and Adam's slots"
    assert found["memory"]["parts"]["weights"] < arena and found["memory"]["fits"] is False
