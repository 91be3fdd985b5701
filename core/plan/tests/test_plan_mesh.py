"""`dptrain plan` of a model that is divided among the ranks: what each axis sends, how long it takes, and models that no rank could hold."""
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SANITIZED = dpt.sanitized()


def mlp(width, layers, inputs=1024, outputs=1000):
    """A job whose model has `layers` hidden layers of that width, and its number of parameters."""
    text = (f"data: {{train: synthetic, synthetic: {{samples: 100000, shape: [{inputs}], classes: {outputs}}}}}\n"
            f"model: {{type: mlp, hidden: [{', '.join([str(width)] * layers)}], outputs: {outputs}}}\n"
            "batch: {global: 4096, micro: 32}\noptimizer: {type: adam}\ncomm: {reduction: reproducible}\n")
    sizes = [inputs] + [width] * layers + [outputs]
    return text, sum((a + 1) * b for a, b in zip(sizes, sizes[1:]))


def plan(tmp_path, text, *words, limit=0, code=0, **environment):
    path = dpt.write_job(tmp_path / "job.yaml", text)
    done = subprocess.run([dpt.BINARY, "plan", path, *map(str, words)], capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **environment},
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
    clock = dpt.ticking(tmp_path)
    (near, near_late), (far, far_late) = ([planned(tmp_path, text, "--no-trial", "--ranks", 4, "--ranks-per-node", n, "--latency", us, **clock)
                                           for us in (10, 1010)] for n in (4, 2))
    for found in (near, far):
        step = found["time"]["step"]
        parts = [value for key, value in step.items() if key.endswith("_s") and key != "samples_per_s"]
        assert step["seconds"] == pytest.approx(sum(parts), rel=0.05)
        assert min(step["compute_s"], step["stage_wait_s"], step["stage_messages_s"], step["update_s"]) > 0
        assert [scale["ranks"] for scale in found["time"]["scaling"]] == [2 << i for i in range(11)]
        data, _, pipeline = found["axes"]
        stage = max(found["pipeline"]["stages"], key=lambda s: s["rank_bytes"])
        assert (data["axis"], data["ranks"], pipeline["axis"], pipeline["ranks"]) == ("data", 2, "pipeline", 2)
        assert data["sent_bytes"] == found["memory"]["parts"]["weights"] and stage["rank_bytes"] > 0, "2 P (D - 1) / D"
        assert pipeline["sent_bytes"] == 4096 / 2 * 256 * 4, "the values of a replica's samples"
    assert not near["axes"][0]["between_nodes"] and not near["axes"][2]["between_nodes"]
    assert not far["axes"][0]["between_nodes"] and far["axes"][2]["between_nodes"]
    assert near_late["time"]["step"] == near["time"]["step"]
    assert far_late["time"]["step"]["stage_messages_s"] > far["time"]["step"]["stage_messages_s"] + 0.999e-3, "by a message at least"
    wide = planned(tmp_path, text, "--no-time", "--ranks", 4, "--ranks-per-node", 1)
    assert wide["axes"][0]["between_nodes"] and wide["axes"][2]["between_nodes"]
    out = plan(tmp_path, text, "--no-trial", "--ranks", 4, "--ranks-per-node", 2).stdout
    assert "waiting for other stages" in out and "pipeline" in out and "gradients back; between nodes" in out


def test_stages_wait_for_groups_of_micro_batches(tmp_path):
    """A group is computed at once: the other stage waits for one group, not for one micro-batch."""
    text, _ = mlp(256, 3, 64, 10)
    found = planned(tmp_path, text.replace("global: 4096, micro: 32", "global: 128, micro: 2") + "parallel: {pipeline: 2}\n", "--no-trial",
                    "--ranks", 2, **dpt.ticking(tmp_path))
    step, groups = found["time"]["step"], 1 / found["pipeline"]["bubble"] - 1
    assert groups < 64 / 2 and 0.2 < step["stage_wait_s"] * groups / step["compute_s"] <= 1, step


def test_steps_of_many_rounds(tmp_path):
    """The plan lists a few hundred rounds: all others repeat them."""
    text, _ = mlp(256, 3, 64, 10)
    text = text.replace("global: 4096, micro: 32", "global: 8192, micro: 1")
    for schedule in ("1f1b", "gpipe"):
        pipeline = f"parallel: {{pipeline: {{stages: 3, schedule: {schedule}}}}}\n"
        found = planned(tmp_path, text + pipeline, "--no-time", "--ranks", 3, "--set", "device.threads=1")["pipeline"]
        assert found["bubble"] == pytest.approx(2 / (8192 / 16 + 2)), "the stages less one, to the rounds and these"
        assert [stage["sent_bytes"] for stage in found["stages"]] == [8192 * 256 * 4, 8192 * 256 * 4, 0]


def test_axes_in_shards(tmp_path):
    text, _ = mlp(256, 3, 64, 10)
    for kind, times in (("none", 2), ("optimizer", 2), ("gradients", None)):
        found = planned(tmp_path, text, "--no-time", "--ranks", 4, "--set", f"parallel.shard={kind}", "--set", "device.threads=1")
        data, _, pipeline = found["axes"]
        rounds = found["reduced_bytes"] // found["memory"]["parts"]["weights"]
        sent = (times or rounds + 1) * found["memory"]["parts"]["weights"] * 3 / 4
        assert data["sent_bytes"] == pytest.approx(sent, rel=1e-3), "in rounds the metrics are sent, too"
        assert pipeline["ranks"] == 1 and pipeline["sent_bytes"] == 0 and found["updaters"] == (1 if kind == "none" else 4)


def test_owners_add_along_the_tree_whatever_the_reduction(tmp_path):
    """So ranks that divide the update on CPUs take as many micro-batches at once, and need and send as much."""
    text, _ = mlp(256, 3, 64, 10)
    words = ["--no-trial", "--ranks", 2, "--ranks-per-node", 2, "--set", "parallel.shard=optimizer", "--set", "device={kind: cpu, threads: 2}"]
    clock = dpt.ticking(tmp_path)
    found = [planned(tmp_path, text, *words, "--set", f"comm.reduction={kind}", **clock) for kind in ("allreduce", "reproducible")]
    for key in ("reduced_bytes", "axes", "updaters"):
        assert found[0][key] == found[1][key], key
    parts, times = ([f["memory"]["parts"] for f in found], [f["time"]["step"] for f in found])
    assert {**parts[0], "base": 0, "libraries": 0} == {**parts[1], "base": 0, "libraries": 0} and parts[0]["optimizer"] < parts[0]["weights"] * 1.01
    assert {**times[0], "seconds": 0, "samples_per_s": 0} == pytest.approx({**times[1], "seconds": 0, "samples_per_s": 0}, rel=1e-3)
    assert "\noptimizer   2 ranks divide its state and the update\n" in plan(tmp_path, text, *words, "--no-time").stdout


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
    assert held > 3 * arena, "the stages' weights, and Adam's state"
    assert found["memory"]["parts"]["weights"] < arena and found["memory"]["fits"] is False


def meshes(tmp_path, text, *words, **options):
    return planned(tmp_path, text, "--mesh", "auto", *words, **options)


def test_all_meshes_of_the_ranks(tmp_path):
    """Each as `plan` has it by itself, and the best first."""
    text, parameters = mlp(2048, 4, 512, 10)
    found = meshes(tmp_path, text, "--ranks", 12, "--ranks-per-node", 4, "--memory", "0.3GB")
    assert found["parameters"] == parameters and found["limit_bytes"] == 0.3e9 and found["nodes"] == 3
    rows = [row for row in found["meshes"] if "impossible" not in row]
    ways = {(row["data"], row["tensor"], row["pipeline"], row["shard"]) for row in found["meshes"]}
    assert len(ways) == len(found["meshes"])
    assert {way[:3] for way in ways} == {(12 // t // n, t, n) for n in (1, 2, 3, 4, 6, 12) for t in (1, 2, 3, 4, 6, 12) if 12 % (t * n) == 0}
    assert {row["impossible"].split(": ")[0] for row in found["meshes"] if "impossible" in row} == {"parallel.pipeline"}
    assert next(row for row in found["meshes"] if row["pipeline"] == 12)["impossible"] \
        == "parallel.pipeline: 12 stages are more than the 5 that this model can have"
    assert [row["fits"] for row in rows] == [row["memory"]["rank"] <= 0.3e9 for row in rows] == sorted((row["fits"] for row in rows), reverse=True)
    for fits, key in ((True, lambda row: row["seconds"]), (False, lambda row: row["memory"]["rank"])):
        values = [key(row) for row in rows if row["fits"] is fits]
        assert len(values) > 1 and min(values) > 0 and values == sorted(values)
    for row in rows:
        own = planned(tmp_path, text, "--no-time", "--ranks", 12, "--ranks-per-node", 4, "--set", f"parallel.pipeline={row['pipeline']}",
                      "--set", f"parallel.shard={row['shard']}", "--set", f"parallel.tensor={row['tensor']}")
        parts = own["memory"]["parts"]
        assert row["sent_bytes"] == {axis["axis"]: axis["sent_bytes"] for axis in own["axes"]}
        sharers = {"rank": 1, "node": 4}  # of the copies; of a part's weights its replicas
        together = max(1, min(row["data"], 4 // row["tensor"]))
        weights = parts["weights"] / (1 if own["memory"]["of"]["weights"] == "rank" else together) + parts["weights_unit"] / together
        assert row["memory"]["weights"] == weights + parts["divided"] + parts["copies"] / sharers[own["memory"]["of"]["copies"]]
        assert row["bubble"] == (own["pipeline"]["bubble"] if row["pipeline"] > 1 else 0)
        assert row["memory"]["rank"] == pytest.approx(sum(value for key, value in row["memory"].items() if key not in ("rank", "host", "rank_0_saving")))
        assert row["memory"]["rank_0_saving"] == parts["saver"] < own["checkpoint_bytes"] + 3e6
        streams = row["tensor"] * row["pipeline"] > 1 or row["shard"] != "none"
        assert streams == (parts["saver"] < own["checkpoint_bytes"]), "rank 0 copies what it has all of"
        assert row["memory"]["rank"] <= own["memory"]["rank"] * 1.01


def pages():
    """The outputs of `plan --mesh auto` in PARALLEL.md: its words, the jobs of the page, the lines."""
    text = (Path("core/train/PARALLEL.md")).read_text()
    jobs = {name: job for name, job in re.findall(r"```yaml\n# (\S+)\n(.*?)```", text, re.S)}
    for words, out in re.findall(r"\n    build/dptrain plan (.*--mesh auto.*)\n\n((?:    .*\n|\n(?=    ))+)", text):
        name, *rest = words.split()
        yield jobs[name], rest, out


@pytest.mark.parametrize("job, words, out", pages(), ids=["gpus", "cpus", "large"])
def test_pages_show_what_plan_prints(tmp_path, job, words, out):
    """But for the seconds, which are this machine's, and the order that follows from them. DPT_WRITE=1 writes the page anew."""
    if "--device" in words and "\nbackend cuda: " not in dpt.run("--version").out:
        pytest.skip("built without CUDA")
    if os.environ.get("DPT_WRITE"):
        page = Path("core/train/PARALLEL.md")
        name = re.match(r" +(\S+): ", out)[1]
        fresh = plan(tmp_path, job, *words).stdout.replace("job: ", name + ": ", 1)
        page.write_text(page.read_text().replace(out, "".join(f"    {line}".rstrip() + "\n" for line in fresh.splitlines())))
        return
    found = {}
    for row in meshes(tmp_path, job, *words, "--no-time")["meshes"]:
        if "impossible" not in row:
            found[f"{row['data']}x{row['tensor']}x{row['pipeline']}", row["shard"]] = row
    shown = re.findall(r"^    (\d+x\d+x\d+) +(\S+) +(.*?) +(\d+)% ", out, re.M)
    assert len(shown) > 8
    for mesh, shard, cells, wait in shown:
        row = found[mesh, shard]
        memory, sent = row["memory"], row["sent_bytes"]
        wanted = [*(memory[key] for key in ("weights", "gradients", "optimizer", "values", "rank")), *sent.values()]
        assert len(cells.split()) == len(wanted)
        for cell, value in zip(cells.split(), wanted):
            number = 0 if cell == "-" else float(cell[:-1]) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[cell[-1]]
            # Kernels' workspaces are the processor's, and what the process takes by itself is in the sum.
            room = 4e7 if value in (memory["values"], memory["rank"]) else 5e5
            assert number == pytest.approx(value, rel=0.006, abs=room), (mesh, shard, cells)
        assert int(wait) == pytest.approx(100 * row["bubble"], abs=0.6)
    best = re.search(r"best: (?:parallel: {(.*)}|without `parallel`)", out)[1] or ""
    ways = {key: value for key, value in (pair.split(": ") for pair in best.split(", ") if pair)}
    tensor, pipeline = int(ways.get("tensor", 1)), int(ways.get("pipeline", 1))
    ranks = int(words[words.index("--ranks") + 1])
    saving = found[f"{ranks // tensor // pipeline}x{tensor}x{pipeline}", ways.get("shard", "none")]["memory"]["rank_0_saving"]
    assert f"rank 0 has {saving / 1e6:.3g} MB more" in out or f"rank 0 has {saving / 1e9:.3g} GB more" in out


def test_meshes_for_a_person(tmp_path):
    text, _ = mlp(2048, 4, 512, 10)
    words = ("--mesh", "auto", "--ranks", 8, "--ranks-per-node", 8)
    out = plan(tmp_path, text, *words, "--memory", "64").stdout
    assert "8 ranks on 1 node; 64 GB a rank" in out and "\nbest: " in out and "does not fit" not in out
    for size in ("20MB", "20 M", "0.02g", "20000000 bytes"):
        assert "8 ranks on 1 node; 0.02 GB a rank" in plan(tmp_path, text, *words, "--memory", size, "--no-time").stdout, size
    out = plan(tmp_path, text, *words, "--memory", "0.02GB", "--no-time").stdout
    assert "no mesh of 8 ranks fits 0.02 GB a rank: the least needs 0." in out and "does not fit:\n" in out
    assert "1x1x8: parallel.pipeline: 8 stages are more than the 5 that" in out
    out = plan(tmp_path, text.replace("global: 4096", "global: 64"), *words, "--memory", "64").stdout
    fed, idle = out.split("leaves replicas idle:\n")
    assert "\n2x1x4 " in fed and "\n4x1x2 " not in fed and "4x1x2 " in idle and "\nbest: " in idle and "stay idle" not in out
    # It asks for what the meshes need where the job has less; a job without replicas of anything is one row.
    text = text.replace("comm: {reduction: reproducible}\n", "")
    rows = meshes(tmp_path, text, "--ranks", 2, "--no-time")["meshes"]
    assert {(row["data"], row["tensor"], row["pipeline"], row["shard"]) for row in rows} \
        == {(1, 2, 1, "none"), (1, 1, 2, "none"), *((2, 1, 1, s) for s in {r["shard"] for r in rows})}
    assert not any("impossible" in row for row in rows)
    assert "best: without `parallel`\n" in plan(tmp_path, text, "--mesh", "auto", "--no-time").stdout


@pytest.mark.parametrize("width, layers, ranks", [(8192, 15, 8), (24576, 17, 64), (46080, 48, 1024)])
def test_meshes_of_billions_of_weights(tmp_path, width, layers, ranks):
    """Weights, gradients and Adam's state take 16 bytes per weight; if the GPUs' memories hold that, a mesh is found."""
    text, parameters = mlp(width, layers)
    text = text.replace("micro: 32", "micro: 512").replace("global: 4096", "global: 16384")
    found = meshes(tmp_path, text, "--ranks", ranks, "--ranks-per-node", 8, "--memory", "80GB", "--no-time", limit=800 << 20)
    assert found["parameters"] == parameters
    rows = [row for row in found["meshes"] if "impossible" not in row]
    for row in rows:
        parts = row["tensor"] * row["pipeline"]
        sharing = min(row["data"], 8) if row["shard"] == "none" else 1
        if row["shard"] != "parameters":
            assert row["memory"]["weights"] * sharing >= 4 * parameters / parts, "the largest stage"
        if row["shard"] == "none":
            assert row["memory"]["optimizer"] * sharing >= 8 * parameters / parts
    assert not any(row["fits"] for row in rows if row["pipeline"] * row["tensor"] == 1 and row["idle_replicas"] == 0) or ranks == 8
    assert rows[0]["fits"] and rows[0]["idle_replicas"] == 0
    assert max(map(len, plan(tmp_path, text, "--mesh", "auto", "--ranks", ranks, "--memory", "80GB", "--no-time").stdout.splitlines())) <= 80


@pytest.mark.parametrize("words, code, says", [
    (["--mesh", "4x2"], 2, "auto tries all"),
    (["--memory", "80GB"], 2, "goes with --mesh auto"),
    (["--mesh", "auto", "--memory", "much"], 2, "a number and a unit are expected, as in 150MB, 1.5G or 80 GiB"),
])
def test_mistakes(tmp_path, words, code, says):
    text, _ = mlp(64, 2, 64, 10)
    done = plan(tmp_path, text, *words, code=code)
    assert says in done.stderr and done.stdout == "" and len(done.stderr.splitlines()) == 1, done


def rows(text):
    """The names of the actions of each rank that --actions lists."""
    found = []
    for line in text.splitlines():
        if line.startswith("rank "):
            found.append([])
        elif line[:4].strip().isdigit():
            found[-1].append(line[6:20].strip())
    return found


def test_actions_of_a_step(tmp_path):
    """A table and JSON of the same lists; what is sent is what the plan says of the axes."""
    text, _ = mlp(256, 3, 64, 10)
    alone = plan(tmp_path, text, "--actions", "--set", "device.kind=cpu").stdout
    assert rows(alone) == [["train"]], alone
    words = ["--ranks", 4, "--set", "device.kind=cpu", "--set", "parallel.pipeline=2"]
    table, found = plan(tmp_path, text, "--actions", *words).stdout, planned(tmp_path, text, "--actions", *words)["lists"]
    assert rows(table) == [[a["action"] for a in each["actions"]] for each in found] and len(found) == 2
    assert [(each["rank"], each["stage"]) for each in found] == [(0, 0), (2, 1)]
    first, last = (each["actions"] for each in found)
    sent = sum(a["bytes"] for a in first if a["action"] == "send")
    assert sent == sum(a["bytes"] for a in last if a["action"] == "receive") == 4096 / 2 * 256 * 4, "as the axis has it"
    assert [a["action"] for a in last][:4] == ["receive", "forward", "backward", "send"]
    assert {a["first"] for a in first if a["action"] == "forward"} == {"input"}
    sharded = planned(tmp_path, text, "--actions", "--ranks", 4, "--nodes", 4, "--set", "device.kind=cpu", "--set",
                      "parallel.shard=parameters")["lists"]
    names = [a["action"] for a in sharded[0]["actions"]]
    assert len(sharded) == 1 and names.count("gather") == names.count("release") > 0 and "reduce-scatter" in names
    assert "leave out --mesh" in plan(tmp_path, text, "--actions", "--mesh", "auto", "--ranks", 2, code=2).stderr


def test_exchanges_of_whole_batches_statistics(tmp_path):
    """One forward and one back a norm, as its list of actions has them."""
    text = ("data: {train: synthetic, synthetic: {samples: 60, shape: [6], classes: 3}}\nbatch: {global: 20, micro: 5}\nmodel: {type: "
            "sequential, layers: [{dense: 8}, {batchnorm: {statistics: batch}}, relu, {dense: 4}, {batchnorm: {statistics: batch}}, "
            "{dense: 3}]}\n")
    words = ["--no-time", "--ranks", 2, "--set", "device.kind=cpu"]
    found, listed = planned(tmp_path, text, *words), planned(tmp_path, text, *words, "--actions")["lists"][0]["actions"]
    exchanged = [a["bytes"] for a in listed if a["action"] == "exchange"]
    assert len(exchanged) == found["exchanges"] == 4 and found["exchange_bytes"] == max(exchanged) > min(exchanged)


def test_more_ranks_than_micro_batches_are_a_mesh(tmp_path):
    """As `train` starts with them, and says who stays idle; what would feed all is told as there."""
    text = ("data: {train: synthetic, synthetic: {samples: 60, shape: [6], classes: 3}}\nmodel: mlp\n"
            "batch: {global: 20, micro: 10}\ntrain: {steps: 1}\n")
    found = meshes(tmp_path, text, "--ranks", 7, "--no-time")["meshes"]
    assert {row["idle_replicas"] for row in found if "impossible" not in row} == {5}
    out = plan(tmp_path, text, "--mesh", "auto", "--ranks", 7, "--no-time").stdout
    assert "5 of its 7 replicas stay idle: batch.micro: 3 or less would feed all" in out
    job = dpt.write_job(tmp_path / "idle.yaml", text)
    result = dpt.run(job, "--output", tmp_path / "run", "--quiet", ranks=7)
    assert result.code == 0 and "of 7 stay idle: 20 / 10 gives 2 micro-batches per step; batch.micro: 3 or less would feed all" in result.err, result
