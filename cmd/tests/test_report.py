"""`dptrain report`: what is on the page is what the run did; it is whole, alone and inert, whatever the run is called."""
import json
import math
import os
import re
import shutil
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402
from page import Page, contrast, pixels, report, themes  # noqa: E402

# Labels by chance, so that most are told wrong; an image's first two pixels say its number.
DATA_JOB = """
name: {name}
seed: 3
data: {{train: train.h5, valid: 0.2, test: test-*.h5, normalize: {{mean: {mean}, std: {std}}}}}
model: {{type: mlp, hidden: [16], outputs: {classes}}}
batch: {{global: 48, micro: 8}}
optimizer: {{type: adam, lr: 0.01}}
train: {{epochs: 2}}
eval: {{every: 5 steps}}
log: {{every: 1 steps}}
"""


def write_shard(path, samples, classes, shape, first=0):
    random = np.random.default_rng(samples)
    images = random.integers(0, 256, (samples, *shape), dtype=np.uint8)
    number = np.arange(first, first + samples)
    images[:, :, 0, 0], images[:, :, 0, 1] = (number // 256)[:, None], (number % 256)[:, None]
    labels = random.integers(0, classes, samples)
    with h5py.File(path, "w") as file:
        file["images"], file["labels"] = images, labels
    return labels


def make_project(folder, name="digits", classes=10, channels=1, side=12):
    """A job beside its data, whose paths are relative to it; returns the labels of the test samples."""
    folder.mkdir(exist_ok=True)
    write_shard(folder / "train.h5", 300, classes, (channels, side, side))
    labels = [write_shard(folder / f"test-{i}.h5", n, classes, (channels, side, side), i * 200) for i, n in enumerate((200, 61))]
    norm = {"mean": [0.5, 0.4, 0.3][:channels], "std": [0.2, 0.3, 0.25][:channels]}
    dpt.write_job(folder / "job.yaml", DATA_JOB.format(name=json.dumps(name), classes=classes, **norm))
    return np.concatenate(labels)


def train(folder, output, *words, ranks=0):
    result = dpt.run("job.yaml", "--output", output, "--quiet", *words, ranks=ranks, cwd=folder)
    assert result.code == 0, result
    return folder / output


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project") / "digits"
    labels = make_project(folder)
    train(folder, "runs/a", ranks=2)
    train(folder, "runs/b", "--set", "optimizer.lr=0.03", "--set", "train.epochs=3")
    return folder, labels


@pytest.fixture(scope="module")
def page(project, tmp_path_factory):
    return report(tmp_path_factory.mktemp("page") / "report.html", project[0] / "runs/a")


def test_figures_and_curves_are_those_of_the_run(project, page):
    run = project[0] / "runs/a"
    test, valid = ([e for e in dpt.events(run, "eval") if e["split"] == s] for s in ("test", "valid"))
    logged, best = dpt.events(run, "train"), max(valid, key=lambda e: e["accuracy"])
    tiles = page.tiles()
    assert tiles["test accuracy"] == f"{100 * test[-1]['accuracy']:.2f} %"
    assert tiles["test loss"] == f"{test[-1]['loss']:.4g}"
    assert tiles["best valid accuracy"] == f"{100 * best['accuracy']:.2f} %"
    assert tiles["steps"] == str(logged[-1]["step"])
    assert tiles["parameters"] == "2 490"
    assert page.root.one("h1").words == "digits" and "done" in page.root.one("header").words

    def same(chart, name, events, key, rel):
        x, y = page.lines(chart)[name]
        assert x == pytest.approx([e["step"] for e in events], abs=0.02)
        assert y == pytest.approx([e[key] for e in events], rel=rel, abs=1e-6)
    same("loss", "valid", valid, "loss", 1e-2)
    same("accuracy", "valid", valid, "accuracy", 1e-2)
    same("loss", "test", test, "loss", 1e-2)
    same("rate", "Learning rate", logged, "lr", 1e-2)
    x, y = page.lines("loss")["train"]
    losses = [e["loss"] for e in logged]
    assert (x[0], x[-1]) == pytest.approx((1, logged[-1]["step"]), abs=0.02)
    assert min(losses) <= y.min() * 1.01 and y.max() <= max(losses) * 1.01, "smoothed, it stays among them"


def test_job_and_environment(project, page):
    run = project[0] / "runs/a"
    assert page.section("job").one("pre").text == (run / "job.yaml").read_text()
    facts = dict(page.section("environment").rows())
    event = dpt.events(run, "run")[0]
    assert facts["ranks"] == "2" and facts["host of rank 0"] == event["host"] and facts["MPI"] == event["mpi"]
    assert facts["library"] == event["library"] and facts["test samples"] == "261"
    assert not page.section("environment").all("thead"), "one run needs no heads of columns"


def test_work_of_the_ranks(project, page):
    events = dpt.events(project[0] / "runs/a", "train")
    for e in events:
        assert len(e["rank_seconds"]) == 2 and min(e["rank_seconds"]) > 0
        assert e["rank_seconds_mean"] == pytest.approx(sum(e["rank_seconds"]) / 2, rel=1e-5)
        assert e["rank_seconds_most"] == pytest.approx(max(e["rank_seconds"]), rel=1e-5)
        assert e["rank_seconds"][e["slowest_rank"]] == pytest.approx(max(e["rank_seconds"]))
    bars = page.section("ranks").one("figure", klass="bars")
    total = [sum(e["rank_seconds"][r] for e in events) for r in range(2)]
    for row, seconds in zip(bars.rows(), total):
        assert float(row[2].replace(" s", "")) == pytest.approx(seconds, rel=1e-2), row
    assert "rank_seconds_mean" not in dpt.events(project[0] / "runs/b", "train")[0], "one rank alone"


def test_picture_of_a_mesh(project, page, tmp_path):
    """Each rank in its stage's column and its replica's row, with its time and memory; only where ranks divide the model."""
    mesh = ["--set", "comm.reduction=reproducible", "--set", "parallel={pipeline: 2, shard: optimizer}"]
    run = train(project[0], tmp_path / "run", *mesh, ranks=4)
    start, events = dpt.events(run, "run")[0], dpt.events(run, "train")
    assert (start["data"], start["pipeline"], start["shard"], start["stages"], start["rank_nodes"]) \
        == (2, 2, "optimizer", ["input", "dense2"], [0, 0, 0, 0])
    drawn = report(tmp_path / "r.html", run, "--no-predictions").section("ranks")
    rows = drawn.one("table", klass="mesh").rows()
    assert rows[0] == ["", "stage 1 →from input", "stage 2from dense2"] and "2 replicas x 2 stages; shard: optimizer" in drawn.words
    assert [row[0] for row in rows[1:]] == ["replica 1", "replica 2"]
    total = [sum(e["rank_seconds"][r] for e in events) for r in range(4)]
    for replica in range(2):
        for stage in range(2):
            rank = 2 * stage + replica
            name, seconds, memory = re.fullmatch(r"(rank \d)([\d.]+) s ([\d.]+ [MG]B)", rows[1 + replica][1 + stage]).groups()
            assert name == f"rank {rank}" and float(seconds) == pytest.approx(total[rank], rel=1e-2)
            assert memory == f"{events[-1]['rank_bytes'][rank] / 1e6:.3g} MB" and events[-1]["rank_bytes"][rank] > 5e6
    assert not drawn.all("figure", klass="bars"), "the same once more"
    assert not page.section("ranks").all("table", klass="mesh"), "two ranks that each have all of the model"
    many = json.loads(json.dumps(start)) | {"ranks": 1024, "data": 2, "pipeline": 512}
    for cut in (many, {k: v for k, v in start.items() if k != "rank_nodes"}, start | {"data": 1 << 62}, start | {"stages": 3}):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other/metrics.jsonl").write_text("\n".join(json.dumps(e) for e in [cut, *events]) + "\n")
        assert len(report(tmp_path / "o.html", tmp_path / "other", "--no-predictions").root.all("table", klass="mesh")) == ("stages" in cut and cut["stages"] == 3)


def test_lines_by_the_clock_tell_of_no_ranks(project, tmp_path):
    run = train(project[0], tmp_path / "run", "--set", "log.every=0.000001 s", ranks=2)
    events = dpt.events(run, "train")
    assert events and not any(key.startswith("rank") for e in events for key in e)
    page = report(tmp_path / "r.html", run, "--no-predictions")
    assert "not in the metrics" in page.section("ranks").words and not page.root.all(id="imbalance")


def test_confusion_is_what_eval_counts(project, page):
    folder, labels = project
    section = page.section("predictions")
    rows = section.one("table", klass="matrix").rows()
    matrix = np.array([[0 if c == "·" else int(c) for c in row[1:-1]] for row in rows[1:]])
    assert matrix.sum(1).tolist() == np.bincount(labels, minlength=10).tolist()
    said = dpt.run("eval", "job.yaml", "--checkpoint", "runs/a", cwd=folder).out
    assert f"accuracy {np.trace(matrix) / len(labels):.4f}," in said
    accuracy = [e for e in dpt.events(folder / "runs/a", "eval") if e["split"] == "test"][-1]["accuracy"]
    assert np.trace(matrix) == round(accuracy * len(labels))
    pairs = [[int(c) for c in row[:3]] for row in section.all("table", klass="pairs")[0].rows()[1:]]
    for true, taken, times in pairs:
        assert matrix[true, taken] == times and true != taken
    off = matrix - np.diag(np.diag(matrix))
    assert [p[2] for p in pairs] == sorted(off.ravel().tolist(), reverse=True)[:len(pairs)]


def shown(page):
    """(sample, label, chosen, percent, pixels) of the sheet's images."""
    for figure in page.section("predictions").one("div", klass="sheet").all("figure"):
        found = re.fullmatch(r"(\d+) → (\d+) ([\d.]+) % #(\d+)", figure.one("figcaption").words)
        label, chosen, percent, sample = found.groups()
        yield int(sample), int(label), int(chosen), float(percent), figure.one("img")


NAMES = ["cat & dog", "<b>bird</b>", 'a "deer"', "elk", "frog", "gnu", "hare", "ibis"]


def test_classes_go_by_their_names(project, tmp_path):
    """Where the shards have them; a class without one keeps its number. The figures are the same."""
    folder, labels = shutil.copytree(project[0], tmp_path / "p"), project[1]
    plain = report(tmp_path / "plain.html", folder / "runs/a").section("predictions")
    for path in folder.glob("*.h5"):
        with h5py.File(path, "a") as file:
            file["labels"].attrs["classes"] = NAMES
    page = report(tmp_path / "r.html", folder / "runs/a", ranks=2)
    section, called = page.section("predictions"), [*NAMES, "8", "9"]
    rows, before = (s.one("table", klass="matrix").rows() for s in (section, plain))
    assert rows[0] == ["", *called, "right"] and [row[0] for row in rows[1:]] == called
    assert [row[1:] for row in rows[1:]] == [row[1:] for row in before[1:]]
    pairs, numbers = (s.all("table", klass="pairs")[0].rows()[1:] for s in (section, plain))
    assert pairs == [[called[int(a)], called[int(b)], *rest] for a, b, *rest in numbers]
    figures = section.one("div", klass="sheet").all("figure")
    for figure, (sample, label, chosen, _, _) in zip(figures, shown(report(tmp_path / "q.html", project[0] / "runs/a"))):
        assert figure.one("figcaption").words.startswith(f"{called[label]} → {called[chosen]} ")
        assert figure.one("img").attributes["alt"].startswith(f"sample {sample}: true class {called[label]}, taken for {called[chosen]} with")
    assert len(figures) == 40 and not page.root.one("html").all("deer")


def test_many_classes_go_by_their_names(tmp_path):
    make_project(tmp_path / "p", classes=30)
    with h5py.File(tmp_path / "p/train.h5", "a") as file:
        file["labels"].attrs["classes"] = [f"kind {k}" for k in range(30)]
    page = report(tmp_path / "r.html", train(tmp_path / "p", "runs/a", "--set", "train.epochs=1"))
    tables = page.section("predictions").all("table", klass="pairs")
    assert all(row[0].startswith("kind ") for table in tables[:3] for row in table.rows()[1:]), "from the training data"


def test_most_wrong_pictures(project, page):
    labels = project[1]
    sheet = list(shown(page))
    assert len(sheet) == 40
    for sample, label, chosen, percent, image in sheet:
        values = pixels(image)
        assert values.shape == (12, 12) and int(values[0, 0]) * 256 + int(values[0, 1]) == sample, "that very image"
        assert label == labels[sample] and label != chosen and 10 <= percent <= 100
        assert f"true class {label}, taken for {chosen}" in image.attributes["alt"]


def test_pictures_in_colour(tmp_path):
    make_project(tmp_path / "p", channels=3, side=100)
    page = report(tmp_path / "r.html", train(tmp_path / "p", "runs/a", "--set", "train.epochs=1"))
    for sample, _, _, _, image in shown(page):
        with h5py.File(tmp_path / "p" / f"test-{sample // 200}.h5") as file:
            stored = file["images"][sample % 200].astype(float)
        small = stored[:, :99, :99].reshape(3, 33, 3, 33, 3).mean((2, 4)).transpose(1, 2, 0)
        assert abs(pixels(image) - small).max() <= 0.51, sample
    assert len(page.bytes) < 1e6


def test_the_page_is_alone_and_small(page):
    assert len(page.bytes) < 200e3
    for element in page.root.all():
        for name, value in element.attributes.items():
            assert not name.startswith("on"), (element.tag, name)
            if name in ("src", "href", "action", "data", "srcset", "poster"):
                assert value.startswith("data:image/png"), value
    assert not re.search(r"@import|url\((?!#)", page.source)
    assert len(page.root.all("script")) == 1 and not page.root.all("link") and not page.root.all("iframe")
    policy = page.root.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
    assert "default-src 'none'" in policy
    assert not re.search(r"fetch|XMLHttp|innerHTML|eval\(|document\.write", page.root.one("script").text)


def test_it_can_be_read_by_all(page):
    """Text for images, contrast of texts 4.5 and of lines 3, in light and in dark."""
    assert page.root.one("html").attributes["lang"] == "en" and len(page.root.all("h1")) == 1
    for svg in page.root.all("svg"):
        if svg.attributes.get("role") == "img":
            assert len(svg.attributes["aria-label"]) > 15
        else:
            assert svg.attributes.get("aria-hidden") == "true"
    assert all(image.attributes["alt"] for image in page.root.all("img"))
    for table in page.root.all("table"):
        assert table.all("th"), "without a head"
    for name, colours in themes(page.root.one("style").text).items():
        for text, ground in [("fg", "bg"), ("fg", "card"), ("dim", "bg"), ("dim", "card"), ("link", "card"), ("good", "good-bg"),
                             ("open", "open-bg"), ("open", "card")]:
            assert contrast(colours[text], colours[ground]) >= 4.5, (name, text, ground)
        for i in range(8):
            assert contrast(colours[f"c{i}"], colours["card"]) >= 3, (name, i)


def test_several_runs(project, tmp_path):
    folder = project[0]
    shutil.copytree(folder / "runs/b", tmp_path / "c")
    page = report(tmp_path / "r.html", folder / "runs/a", folder / "runs/b", tmp_path / "c", "--no-predictions")
    head, *lines = page.section("comparison").rows()
    # What came out, then in what the jobs differ; the best first.
    assert head[:2] == ["run", "state"] and head[-2:] == ["optimizer.lr", "train.epochs"] and sorted(line[0] for line in lines) == ["a", "b", "c"]
    best = [float(line[head.index("best valid accuracy")].split()[0]) for line in lines]
    assert best == sorted(best, reverse=True) and "Sorted by best valid accuracy." in page.section("comparison").words
    by_name = {line[0]: line for line in lines}
    assert [by_name[n][-2:] for n in "abc"] == [["0.01", "2"], ["0.03", "3"], ["0.03", "3"]]
    results = {name: [by_name[n][i] for n in "abc"] for i, name in enumerate(head)}
    for i, name in enumerate("ab"):
        test = [e for e in dpt.events(folder / "runs" / name, "eval") if e["split"] == "test"][-1]
        assert results["test loss"][i] == f"{test['loss']:.4g}"
    assert page.section("environment").one("thead").rows() == [["", "a", "b", "c"]]
    assert {"a: train", "b: valid", "c: test"} <= set(page.lines("loss"))
    assert set(page.lines("rate")) == {"a", "b", "c"}
    assert [e.words for e in page.root.one("figure", id="rate").all("li")] == ["a", "b", "c"]
    assert [e.words for e in page.root.one("figure", id="loss").all("li")] == ["a", "b", "c", "train", "valid", "test"]
    assert [e.attributes.get("data-r") or e.attributes["data-p"] for e in page.root.one("figure", id="loss").all("li")] == [
        "0", "1", "2", "train", "valid", "test"]
    best = [e.words for e in page.section("comparison").all("strong")]
    losses = [float(x) for x in results["test loss"]]
    assert f"{min(losses):.4g}" in best


def test_a_run_of_the_same_job_differs_in_nothing(project, tmp_path):
    run = project[0] / "runs/a"
    page = report(tmp_path / "r.html", run, f"{run}/", "--no-predictions")
    assert "The jobs are the same." in page.section("comparison").words
    assert page.root.one("h1").words == "digits: 2 runs"
    assert not page.section("comparison").all("strong"), "none is better"


def test_any_ranks_and_any_folder_give_the_same_page(project, page, tmp_path):
    folder = project[0]
    again = report(tmp_path / "b.html", "runs/a", cwd=folder)
    assert again.bytes.replace(b"runs/a", str(folder / "runs/a").encode(), 1) == page.bytes
    many = report(tmp_path / "c.html", folder / "runs/a", ranks=3)
    assert many.bytes == page.bytes
    report(tmp_path / "d.html", folder / "runs/a", "--no-predictions", ranks=2)


def test_names_are_inert(tmp_path):
    name = "<script>alert(1)<script>&amp;\"'><img src=x onerror=alert(2)>"
    make_project(tmp_path / "p", name=name)
    output = "runs/<b onclick='x'>&\"\n\x01\xff"
    run = train(tmp_path / "p", output, "--set", "train.steps=2", "--set", "train.epochs=null")
    other = train(tmp_path / "p", "runs/o", "--set", "train.steps=3", "--set", "train.epochs=null")
    for runs in ([run], [run, other]):
        page = report(tmp_path / "r.html", *runs)
        assert len(page.root.all("script")) == 1 and not page.root.all("b", onclick="x")
        assert all("onerror" not in e.attributes for e in page.root.all())
        assert "\x01" not in page.source and name in page.root.text
        assert "<b onclick='x'>&\"" in page.root.text


def test_unfinished_and_torn(project, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(project[0] / "runs/a", run)
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:7]) + "not json\n" + lines[7] + lines[8][:20])
    shutil.rmtree(run / "checkpoints")
    (run / "job.yaml").unlink()
    page = report(tmp_path / "r.html", run)
    assert "not finished: step" in page.root.one("header").words
    assert "No predictions:" in page.section("predictions").words
    assert "job.yaml" in page.section("job").words and not page.section("job").all("pre")
    assert "damaged" in page.section("environment").words
    assert "test accuracy" not in page.tiles()
    (run / "metrics.jsonl").write_text("")
    assert "No step is logged yet" in report(tmp_path / "r.html", run).section("curves").words


def test_what_is_missing_is_said_in_its_place(project, tmp_path):
    def why(*words):
        result = dpt.run("report", run, "-o", tmp_path / "r.html", *words, cwd=tmp_path)
        assert result.code == 0 and "no predictions" in result.err, result
        return Page(tmp_path / "r.html").section("predictions").one("p", klass="missing").words
    run = tmp_path / "run"
    shutil.copytree(project[0] / "runs/a", run, symlinks=True)
    assert "test-*.h5" in why()
    found = report(tmp_path / "r.html", run, "--set", f"data.test={project[0]}/test-*.h5", cwd=tmp_path)
    assert found.section("predictions").all("table", klass="matrix")
    step = os.readlink(run / "checkpoints/latest")
    (run / "checkpoints" / step).write_bytes(b"no checkpoint")
    assert "checkpoint" in why("--set", f"data.test={project[0]}/test-*.h5")
    shutil.rmtree(run / "checkpoints")
    assert "no checkpoint" in why("--set", f"data.test={project[0]}/test-*.h5")
    page = report(tmp_path / "r.html", run, "--no-predictions")
    assert not page.root.all("section", id="predictions"), "nobody wants them"


def test_no_card_is_empty(project, tmp_path):
    """One rank shares nothing out, and without an event there is nothing to draw."""
    page = report(tmp_path / "r.html", project[0] / "runs/b", "--no-predictions")
    assert [s.attributes["id"] for s in page.root.all("section")] == ["curves", "job", "environment"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    page = report(tmp_path / "r.html", tmp_path / "run", "--no-predictions")
    assert "No step is logged yet" in page.section("curves").words and not page.root.all("div", klass="charts")


def finite(page):
    """No number in the page's charts is none."""
    for svg in page.root.all("svg", klass="plot"):
        for element in [svg, *svg.all()]:
            for key, value in element.attributes.items():
                assert key.startswith("data-n") or key.startswith("aria") or not re.search(r"(nan|inf)\b", value or ""), value


def test_any_bytes(project, tmp_path):
    """Metrics and job with numbers and bytes changed by chance: always a whole page, and no number in it that is none."""
    random = np.random.default_rng(5)
    lines, job = ((project[0] / "runs/a" / name).read_bytes() for name in ("metrics.jsonl", "job.yaml"))
    lines = lines.splitlines(keepends=True)
    odd = [b"1e308", b"-1e308", b"1e-308", b"0", b"null", b"9223372036854775807", b"-9223372036854775808", b'"<b>"', b"[]", b"1e17"]
    run = tmp_path / "run"
    run.mkdir()

    def changed(text):
        text = bytearray(text)
        for _ in range(random.choice([0, 1, 5, 50])):
            text[random.integers(len(text))] = random.integers(256)
        return text
    for _ in range(40):
        text = b"".join(line for line in lines if random.random() < 0.7)
        share = random.choice([0, 0.1, 0.5])
        text = re.sub(rb"(?<=: )[-0-9.e]+(?=[,}])", lambda m: random.choice(odd) if random.random() < share else m.group(), text)
        (run / "metrics.jsonl").write_bytes(changed(text))
        (run / "job.yaml").write_bytes(changed(job))
        page = report(tmp_path / "r.html", run, project[0] / "runs/b", "--no-predictions")
        finite(page)


def test_many_classes(tmp_path):
    make_project(tmp_path / "p", classes=40)
    page = report(tmp_path / "r.html", train(tmp_path / "p", "runs/a", "--set", "train.epochs=1"))
    section = page.section("predictions")
    assert not section.all("table", klass="matrix")
    _, hardest, every = (table.rows()[1:] for table in section.all("table", klass="pairs")[:3])
    assert [len(table.rows()) for table in section.all("table", klass="pairs")[:3]] == [21, 13, 41]
    seen = [row for row in every if row[1] != "0"]
    assert hardest == sorted(seen, key=lambda row: (float(row[3]), -int(row[1]), int(row[0])))[:12], "least recall, then most samples"


def test_regression(tmp_path):
    dpt.write_job(tmp_path / "job.yaml", "data: {train: synthetic, test: synthetic, synthetic: {samples: 700, shape: [5]}}\n"
                  "model: {type: linear, outputs: 1}\nloss: mse\nbatch: {global: 64, micro: 8}\n"
                  "optimizer: {type: sgd, lr: 0.05}\ntrain: {epochs: 4}\n")
    run = train(tmp_path, "runs/a")
    page = report(tmp_path / "r.html", run)
    section = page.section("predictions")
    loss = [e for e in dpt.events(run, "eval") if e["split"] == "test"][-1]["loss"]
    error = float(section.one("table", klass="errors").rows()[1][2])
    assert error == pytest.approx(math.sqrt(loss), rel=1e-3) or error == pytest.approx(math.sqrt(2 * loss), rel=1e-3)
    assert 300 <= len(section.one("figure", id="cloud0").all("circle", klass="cloud")) <= 601 and "R²" in section.words
    assert len(section.one("table", klass="off").rows()) == 21
    assert not [f for f in page.root.all("figure") if f.attributes.get("id") == "accuracy"]


def test_the_output(project, tmp_path):
    run = project[0] / "runs/a"
    own, other = tmp_path / "own.html", tmp_path / "other.html"
    result = dpt.run("report", run, "--output", own, "--no-predictions")
    assert result.code == 0 and result.out == "" and "own.html" in result.err, result
    before = own.read_bytes()
    report(own, run, "--no-predictions")
    assert own.read_bytes() == before, "the same run, the same bytes"
    other.write_text("<html>mine</html>")
    assert "it is not overwritten" in report(other, run, code=2).err and other.read_text() == "<html>mine</html>"
    assert "is not a file" in report(tmp_path, run, code=2).err
    assert "ends in .html" in report(tmp_path / "r.pdf", run, code=2).err
    assert "nowhere" in report(tmp_path / "nowhere/r.html", run, "--no-predictions", code=74).err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.html", "own.html"]


@pytest.mark.parametrize("words, says", [
    ([], "no run folder given"), (["a"], "no output given"), (["a"] * 101 + ["-o", "x.html"], "100 runs at most"),
    (["nowhere", "-o", "x.html"], "no such run folder"), (["configs", "-o", "x.html"], "holds no run"),
    (["a", "--otuput", "x"], "did you mean --output?"),
])
def test_mistakes(words, says):
    result = dpt.run("report", *words)
    assert result.code == 2 and says in result.err and len(result.err.splitlines()) == 1, result
