"""`dptrain report` of any history: of none, one or a million events, of numbers that are none, of up to a hundred runs."""
import json
import math
import re
import sys

import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402
from page import report  # noqa: E402

SANITIZED = dpt.sanitized()
EVENT = '{{"event": "train", "step": {0}, "epoch": 1, "loss": {1}, "lr": 0.01, "samples_per_s": 1e4, "samples": {0}}}\n'


def many_runs(folder, n):
    """Runs that differ in their learning rate, whose losses end at 0.001 n, and the last of which is best."""
    for i in range(n):
        run = folder / f"r{i}"
        run.mkdir(parents=True)
        text = json.dumps({"event": "run", "name": "many", "ranks": 1, "steps": 60, "host": "here", "threads": 1 + i % 2}) + "\n"
        text += "".join(EVENT.format(step, round(0.001 * (n - i) + 2 / step, 6)) for step in range(1, 61))
        text += json.dumps({"event": "eval", "step": 60, "split": "valid", "loss": 1, "accuracy": round(0.5 + i / 1000, 4), "samples": 9}) + "\n"
        (run / "metrics.jsonl").write_text(text)
        (run / "job.yaml").write_text(f"optimizer: {{type: adam, lr: {i + 1}e-4}}\n")
    return [folder / f"r{i}" for i in range(n)]


def colours(group):
    return {name for line in group.all("polyline") for name in line.attributes["class"].split() if re.fullmatch(r"k\d+", name)}


@pytest.mark.parametrize("n", [16, 100])
def test_many_runs(tmp_path, n):
    """A row each, in one table whose heads are the keys that differ; one legend of them for all charts; the page stays small."""
    page = report(tmp_path / "r.html", *many_runs(tmp_path / "runs", n), "--no-predictions")
    head, *rows = page.section("comparison").rows()
    assert len(rows) == n and head[:3] == ["run", "state", "best valid accuracy"] and "ranks" in head and head[-1] == "optimizer.lr"
    assert [row[0] for row in rows] == [f"r{i}" for i in reversed(range(n))] and rows[n - 4][-1] == "4e-4"
    assert rows[0][2] == f"{50 + (n - 1) / 10:.2f} %" and rows[0][2] in [s.words for s in page.section("comparison").all("strong")]
    curves = page.section("curves")
    legend = curves.one("ul", klass="runs")
    assert [(li.attributes["data-r"], li.words) for li in legend.all("li")] == [(str(i), f"r{i}") for i in range(n)]
    assert [li.words for li in page.root.one("figure", id="loss").all("li")] == ["train", "valid"]
    assert not page.root.one("figure", id="rate").all("li")
    groups = page.root.one("figure", id="loss").all("g", **{"data-p": "train"})
    assert [g.attributes["data-r"] for g in groups] == [str(i) for i in range(n)] and all(g.all("polyline") for g in groups)
    assert [colours(g) for g in groups] == [{f"k{i % 8}"} for i in range(n)], "after the last colour they repeat"
    same, differs = page.section("environment").all("table")
    assert ["host of rank 0", "here"] in same.rows() and differs.rows()[0] == ["run", "threads per rank"] and differs.rows()[2] == ["r1", "2"]
    assert len(page.bytes) < 60e3 + 12e3 * n


@pytest.mark.parametrize("monitor, tiles", [
    ("valid.loss", {"best valid loss": "0.3000", "valid accuracy": "92.86 %"}), ("valid.accuracy", {"best valid accuracy": "94.05 %"}),
    (None, {"best valid accuracy": "94.05 %"})])
def test_best_is_what_the_job_monitors(tmp_path, monitor, tiles):
    """Other values are those of the best checkpoint and not called best: another evaluation may have better ones. So it is in a comparison."""
    runs = [tmp_path / name for name in "ab"]
    for run in runs:
        run.mkdir()
        evals = [{"event": "eval", "step": step, "split": "valid", "samples": 84, "loss": loss, "accuracy": accuracy,
                  **({"best": monitor} if monitor and step == (2 if monitor == "valid.loss" else 4) else {})}
                 for step, loss, accuracy in ((2, 0.3, 0.9286), (4, 0.35, 0.9405), (6, 0.4, 0.9))]
        events = [{"event": "run", "name": "x", "ranks": 1, "steps": 6}, *evals]
        (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (run / "job.yaml").write_text(f"data: {{valid: v.h5}}\ncheckpoint: {{monitor: {monitor}}}\n" if monitor else "data: {valid: v.h5}\n")
    found = report(tmp_path / "r.html", runs[0], "--no-predictions").tiles()
    assert {name: text for name, text in found.items() if "valid" in name} == tiles
    head, *_ = report(tmp_path / "r2.html", *runs, "--no-predictions").section("comparison").rows()
    assert [name for name in head if name.endswith("valid accuracy")] == [name for name in tiles if name.endswith("accuracy")]


def test_how_long_ranks_waited(tmp_path):
    """Of steps in which ranks worked 3 and 1 s, the slowest half a second longer: 1 s to 4."""
    run = tmp_path / "run"
    run.mkdir()
    events = [{"event": "run", "name": "x", "ranks": 2, "steps": 2},
              *({"event": "train", "step": step, "loss": 1, "rank_seconds": [mean - 0.5, mean + 0.5], "rank_seconds_mean": mean,
                 "rank_seconds_most": mean + 0.5, "slowest_rank": 1} for step, mean in ((1, 3), (2, 1)))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    ranks = report(tmp_path / "r.html", run, "--no-predictions").section("ranks").one("p").words
    assert "worked 4 s on its part" in ranks and "waited at least 25.0 % of that for the slowest" in ranks, ranks


def test_numbers_that_are_none(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    values = ["1.5", "null", "1e308", "-1e308", "NaN", "0", "-3", "1e-300", "\"x\"", "[1]", "1e999", "0.25"]
    text = '{"event": "run", "name": "x", "ranks": 4, "steps": 99, "lr": null}\n'
    text += "".join(EVENT.format(i + 1, values[i % len(values)]) for i in range(60))
    text += '{"event": "train", "step": 61, "loss": 0.1, "rank_seconds": [1, 2], "rank_seconds_mean": 0, "rank_seconds_most": null}\n'
    text += '{"event": "eval", "step": 61, "split": "valid", "loss": null, "accuracy": null}\n'
    (run / "metrics.jsonl").write_text(text)
    page = report(tmp_path / "r.html", run)
    figure = page.root.one("figure", id="loss")
    assert re.search(r"not a number \(\d+\)", figure.words), figure.words
    assert figure.all("path", klass="bad")
    for element in figure.all():
        for value in element.attributes.values():
            assert not re.search(r"\b(nan|inf)\b", value or "", re.I), value


@pytest.mark.parametrize("events", [1, 2, 5, 40, 100000 if SANITIZED else 1000000])
def test_any_number_of_events(tmp_path, events):
    """A spike of one step in a million is drawn; the page does not grow with the run."""
    run = tmp_path / "run"
    run.mkdir()
    with open(run / "metrics.jsonl", "w", encoding="utf-8") as file:
        file.write('{"event": "run", "name": "long", "ranks": 1, "steps": 1000000}\n')
        file.write("".join(EVENT.format(i + 1, 50 if i == events // 2 else round(2 / (1 + i / events * 99) * (1 + i % 7 / 9), 5))
                           for i in range(events)))
    page = report(tmp_path / "r.html", run)
    assert len(page.bytes) < 120e3
    x, y = page.lines("loss")["train"]
    assert x[-1] == pytest.approx(events, rel=2e-3) and len(x) <= 320
    if events > 1000:
        svg = page.root.one("figure", id="loss")
        raw = np.array([p.split(",") for p in svg.one("polyline", klass="raw").attributes["points"].split()], float)
        assert raw[:, 1].min() < 12, "above the chart's upper edge"
        assert 0.02 * math.sqrt(1.7) < y[-1] < 0.02 * 1.7


def test_one_huge_step(tmp_path):
    """A chart of a single point has a width, however large its step is."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text(EVENT.format(2**63 - 1, 0.5))
    page = report(tmp_path / "r.html", run, "--no-predictions")
    assert page.lines("loss") and not re.search(r"\bnan,", page.source)
