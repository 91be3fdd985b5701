"""`dptrain compare`: real runs, and ones that are unfinished, resumed or damaged."""
import json
import re
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "cmd/tests"]
import dpt  # noqa: E402
from page import Page  # noqa: E402
from running import Paused  # noqa: E402

UTF8 = {"LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two whole runs that differ in two keys and their ranks, one that was killed, one that was killed and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    path = dpt.write_small_job(folder / "job.yaml", train="{epochs: 2}",
                               data="{train: synthetic, valid: 0.1, test: synthetic, synthetic: {samples: 1009, shape: [1, 12, 12]}}")
    dpt.train(path, folder / "a")
    dpt.train(path, folder / "b", "--set", "optimizer.lr=0.02", "--set", "seed=6", ranks=2)
    for name in ("killed", "resumed"):
        Paused(path, folder / name, 1, step=20).kill()
    assert dpt.run(path, "--output", folder / "resumed", ranks=2).code == 0
    return folder


def table(*words, **environment):
    result = dpt.run("compare", *words, env={**UTF8, **environment})
    assert result.code == 0 and result.err == "", result
    return result.out


def rows(text, *names):
    """{column: cells of these runs} of a table, whose columns end where their heads do, in blocks; and the order of the runs."""
    found, order = {}, []
    for block in re.split(r"\n\n(?=\s{3,})", re.split(r"\n\n  (?=\S)", text)[0]):
        heads = [line for line in block.splitlines() if line.startswith("  ")]
        lines = [line for line in block.splitlines()[len(heads):] if line]
        order = [line.split("  ")[0] for line in lines]
        for cell in re.finditer(r"\S+(?: \S+)*", lines[0][len(order[0]):]):
            end = len(order[0]) + cell.end()
            name = ""
            for line in heads:
                word = next((w[0] for w in re.finditer(r"\S+(?: \S+)*", line) if w.end() == end), "")
                name += word if name.endswith(".") or not name else " " * bool(word) + word
            cells = {run: next(w[0] for w in re.finditer(r"\S+(?: \S+)*", line) if w.end() == end) for run, line in zip(order, lines)}
            found[name] = [cells[n] for n in names or order]
    return found, order


def read(*words):
    return json.loads(table("--json", *words))


def test_what_differs_beside_what_came_of_it(runs):
    text = table(runs / "a", runs / "b", COLUMNS="200")
    found, order = rows(text, "a", "b")
    assert found["optimizer.lr"] == ["0.01", "0.02"] and found["seed"] == ["5", "6"]
    # What came out, then in what they differ, then how they ran.
    names = list(found)
    assert names[:2] == ["state", "best valid accuracy"] and names.index("seconds") < names.index("seed") < names.index("optimizer.lr") < names.index("ranks")
    assert found["state"] == ["done", "done"] and found["ranks"] == ["1", "2"]
    for name, column in (("a", 0), ("b", 1)):
        events = dpt.events(runs / name)
        valid = [e for e in events if e["event"] == "eval" and e["split"] == "valid"]
        best = max(valid, key=lambda e: e["accuracy"])
        test = [e for e in events if e["event"] == "eval" and e["split"] == "test"][-1]
        assert found["train loss"][column] == f"{[e for e in events if e['event'] == 'train'][-1]['loss']:.4g}"
        epoch = [e for e in events if e["event"] == "epoch"][-1]
        assert found["epoch loss"][column] == f"{epoch['loss']:.4g}" and found["epoch accuracy"][column] == f"{epoch['accuracy']:.4f}"
        assert found["best valid accuracy"][column] == f"{best['accuracy']:.4f}" and found["at step"][column] == str(best["step"])
        assert found["its loss"][column] == f"{best['loss']:.4g}"
        assert found["test accuracy"][column] == f"{test['accuracy']:.4f}" and found["test loss"][column] == f"{test['loss']:.4g}"
        assert found["seconds"][column] == f"{events[-1]['seconds']:.1f}"
    # What their names have in common is left out; they are not of the same samples, so they stand apart, as they were given.
    assert order == ["a", "b"] and "\n\nb " in text and "  Sorted by best valid accuracy, those apart that cannot be compared by it.\n" in text
    assert re.search(r"\n  The same: of steps 30, parameters [\d ]+, device cpu, dptrain [\d.]+\.\n", text), text
    # The seed draws the samples that are held out, and synthetic ones.
    assert "The valid figures are not comparable: 101 samples, 0.1 of synthetic" in text and "The test figures are not comparable" in text
    assert "The train" not in text


def test_the_same_in_json(runs):
    found = read(runs / "a", runs / "b")
    assert found["differs"] == ["seed", "optimizer.lr"]
    for name, run in zip("ab", found["runs"]):
        events = dpt.events(runs / name)
        train = [e for e in events if e["event"] == "train"]
        valid = [e for e in events if e["event"] == "eval" and e["split"] == "valid"]
        assert run["folder"] == str(runs / name) and run["state"] == run["reason"] == "done" and run["damaged_lines"] == 0
        assert run["step"] == run["steps"] == 30 and run["starts"] == 1
        assert run["train_loss"] == train[-1]["loss"] and run["train_accuracy"] == train[-1]["accuracy"]
        assert run["epoch"] == {key: [e for e in events if e["event"] == "epoch"][-1][key] for key in ("step", "loss", "accuracy")}
        assert run["valid"] == {key: valid[-1][key] for key in ("step", "loss", "accuracy", "balanced_accuracy", "precision", "recall", "f1", "top5_accuracy")}
        assert run["best_valid"]["accuracy"] == max(e["accuracy"] for e in valid)
        rate = train[-1]["samples"] / sum(64 / e["samples_per_s"] if e["step"] % 15 else 13 / e["samples_per_s"] for e in train)
        assert run["samples_per_s"] == pytest.approx(rate, rel=0.2) and run["version"] == events[0]["version"]
        assert run["job"]["model.layers[0].conv.channels"] == "6" and run["job"]["data.synthetic.shape"] == "[1, 12, 12]"
    assert [run["ranks"] for run in found["runs"]] == [1, 2]


def test_unfinished_and_resumed(runs):
    found = read(runs / "a", runs / "killed", runs / "resumed")
    states = [(run["state"], run["step"], run["starts"], run["ranks"]) for run in found["runs"]]
    assert states == [("done", 30, 1, 1), ("lost", 20, 1, 1), ("done", 30, 2, 2)]
    assert found["differs"] == [] and found["runs"][1]["reason"] is None and found["runs"][1]["seconds"] is None
    text = table(runs / "a", runs / "killed", runs / "resumed", COLUMNS="200")
    found, order = rows(text, "a", "killed", "resumed")
    assert "\n  The jobs are the same.\n" in text and found["starts"] == ["1", "1", "2"] and "\n\nkilled" not in text
    accuracy = [float(cell) for cell in rows(text)[0]["best valid accuracy"]]
    assert accuracy == sorted(accuracy, reverse=True) and order[-1] == "killed"


HEAD = "model: {type: linear, outputs: %d}\nbatch: {global: 30}\noptimizer: {type: adam, lr: 0.05}\ntrain: {epochs: 2}\n"


def page_of(folder, *runs):
    assert dpt.run("report", *runs, "-o", folder / "r.html", "--no-predictions", "--quiet").code == 0
    section = Page(folder / "r.html").section("comparison")
    head, *lines = section.one("table").all("tr")
    heads = [th.words for th in head.all("th")]
    cells = {line.one("th").words: line.all("td") for line in lines}
    order = [cells[run.name] for run in runs]
    return ({name: [row[i].words for row in order] for i, name in enumerate(heads[1:])}, section,
            {name: [row[i].words for row in order if "best" in (row[i].attributes.get("class") or "").split()] for i, name in enumerate(heads[1:])})


def test_weighted_is_not_compared_with_unweighted(tmp_path):
    """Held-out samples differ in weight; the test samples are the same and weigh the same."""
    draw = np.random.default_rng(1)
    for name, n in (("train", 900), ("test", 300)):
        labels = (draw.random(n) < 0.1).astype(int)
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f["images"], f["labels"] = (draw.normal(size=(n, 3)) + 1.5 * labels[:, None]).astype("f4"), labels
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/train.h5, test: {tmp_path}/test.h5, valid: 0.3}}\n" + HEAD % 2)
    dpt.train(job, tmp_path / "plain")
    dpt.train(job, tmp_path / "balanced", "--set", "data.class_weights=balanced")
    both = [tmp_path / "plain", tmp_path / "balanced"]
    text = table(*both, COLUMNS="200")
    found, valid, test = rows(text, "plain", "balanced")[0], [], []
    assert "\n\nbalanced " in text, "apart"
    for run in both:
        events = dpt.events(run, "eval")
        valid.append(max((e for e in events if e["split"] == "valid"), key=lambda e: e["accuracy"]))
        test.append(events[-1])
    for name in ("train loss", "train accuracy", "epoch loss", "valid loss", "best valid accuracy"):
        assert [cell.endswith(" weighted") for cell in found[name]] == [False, True], name
    assert found["its balanced accuracy"] == [f"{e['balanced_accuracy']:.4f}" for e in valid]
    for name in ("rare recall", "balanced accuracy"):
        assert found[f"test {name}"] == [f"{e[name.replace(' ', '_')]:.4f}" for e in test]
    said = ("The train and valid losses and accuracies are not comparable: unweighted in {}; weighted by data.class_weights in {}. "
            "Class weights do not change balanced accuracy.")
    assert said.format("plain", "balanced") in " ".join(text.split())
    assert read(*both)["not_comparable"] == [said.format(*both)]
    told, section, best = page_of(tmp_path, *both)
    assert best["best valid accuracy"] == [] and len(best["test loss"]) == len(best["valid balanced accuracy"]) == 1
    assert told["best valid accuracy"][1].endswith(" weighted") and [p.words for p in section.all("p", klass="basis")] == [said.format("plain", "balanced")]
    assert len(best["test rare recall"]) == 1
    for name, weights in (("own", "{1: 4}"), ("more", "{1: 5}")):
        dpt.train(job, tmp_path / name, "--set", f"data.class_weights={weights}")
    assert "weighted by data.class_weights: 1 4 in" in read(tmp_path / "own", tmp_path / "more")["not_comparable"][0]
    # Two that are weighted alike are compared.
    dpt.train(job, tmp_path / "quick", "--set", "data.class_weights=balanced", "--set", "optimizer.lr=0.2")
    again = [tmp_path / "balanced", tmp_path / "quick"]
    assert read(*again)["not_comparable"] == [] and len(page_of(tmp_path, *again)[2]["best valid accuracy"]) == 1


def test_scaled_and_other_losses(tmp_path):
    """Losses of targets that are scaled otherwise, of another function, of other samples: none is the best; MAE is in the targets' units."""
    draw = np.random.default_rng(1)
    for name, n in (("train", 200), ("test", 90), ("other", 90)):
        x = draw.normal(size=(n, 2)).astype("f4")
        with h5py.File(tmp_path / f"{name}.h5", "w") as f:
            f["images"], f["labels"] = x, (50 + 9 * x[:, :1] + draw.normal(size=(n, 1))).astype("f4")
    job = dpt.write_job(tmp_path / "job.yaml", f"data: {{train: {tmp_path}/train.h5, test: {tmp_path}/test.h5}}\nloss: mse\n" + HEAD % 1)
    scaled = "data.targets={normalize: auto}"
    for name, words in {"raw": [], "raw2": ["--set", "optimizer.lr=0.2"], "scaled": ["--set", scaled], "scaled2": ["--set", scaled, "--set", "seed=3"],
                        "given": ["--set", "data.targets={normalize: {mean: 40, std: 5}}"], "log": ["--set", "data.targets={normalize: auto, transform: log1p}"], "other": ["--set", f"data.test={tmp_path}/other.h5"]}.items():
        dpt.train(job, tmp_path / name, *words)

    def compared(*names):
        told, section, best = page_of(tmp_path, *(tmp_path / n for n in names))
        notes = read(*(tmp_path / n for n in names))["not_comparable"]
        assert len(section.all("p", klass="basis")) == len(notes)
        return told, {name: len(best[name]) for name in ("test loss", "test MAE", "test R²")}, notes

    every, none = {"test loss": 1, "test MAE": 1, "test R²": 1}, {"test loss": 0, "test MAE": 0, "test R²": 0}
    assert compared("raw", "raw2")[1:] == (every, []) and compared("scaled", "scaled2")[1:] == (every, [])
    for two in (("raw", "scaled"), ("scaled", "given"), ("scaled", "log")):
        told, best, notes = compared(*two)
        assert best == {**every, "test loss": 0}, two
        assert [n.startswith("The train and test losses are not comparable: of targets ") for n in notes] == [True]
        assert [cell.endswith(" scaled") for cell in told["test loss"]] == [two[0] == "scaled", True]
    told, best, notes = compared("raw", "other")
    assert best == none and len(notes) == 1 and notes[0].startswith("The test figures are not comparable: 90 samples, ")
    for i, name in enumerate(("raw", "other")):
        test = dpt.events(tmp_path / name, "eval")[-1]
        assert told["test MAE"][i] == f"{test['mae']:.5g}" and told["test R²"][i] == f"{test['r2']:.4f}"
    found = rows(table(tmp_path / "raw", tmp_path / "scaled", COLUMNS="200"), "raw", "scaled")[0]
    assert found["test R2"][1] == f"{dpt.events(tmp_path / 'scaled', 'eval')[-1]['r2']:.4f}" and found["test loss"][1].endswith(" scaled")
    # The page of one run begins with what is in the targets' units.
    assert dpt.run("report", tmp_path / "scaled", "-o", tmp_path / "one.html", "--quiet").code == 0
    tiles = Page(tmp_path / "one.html").tiles()
    assert list(tiles)[:4] == ["test MAE", "test R²", "test RMSE", "test loss, scaled"]
    assert "scaled loss" in dpt.run("watch", "--once", tmp_path / "scaled").out
    ran = (tmp_path / "scaled/log.txt").read_text()
    assert "  test scaled loss " in ran and not re.search(r"(?<!scaled )loss\b(?! [\d.]+ of scaled)", ran), ran


@pytest.mark.parametrize("monitor, order", [
    (["valid.mae"] * 4, "cabd"), (["valid.mae", "valid.r2", "auto", None], "bacd"), (["valid.r2"] * 4, "acbd"), ([None] * 4, "bacd")])
def test_the_best_by_what_is_monitored_comes_first(tmp_path, monitor, order):
    """Where all say the same, else by the loss of numbers; runs without an evaluation come last."""
    for name, said, loss, mae, r2 in zip("abcd", monitor, (0.5, 0.4, 0.9, None), (3, 5, 2, None), (0.9, 0.1, 0.5, None)):
        (tmp_path / name).mkdir()
        lines = [{"event": "run", "name": name, "ranks": 1, "steps": 4}, {"event": "train", "step": 4, "loss": 1, "lr": 0.1}]
        if loss is not None:
            lines.insert(1, {"event": "eval", "step": 2, "split": "valid", "samples": 9, "loss": loss, "mae": mae, "r2": r2})
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (tmp_path / name / "job.yaml").write_text("data: {valid: v.h5}\nloss: {type: mse}\n" + (f"checkpoint: {{monitor: {said}}}\n" if said else ""))
    everyone = [tmp_path / name for name in "abcd"]
    text = table(*everyone, COLUMNS="200")
    words = {"cabd": "MAE", "bacd": "loss", "acbd": "R2"}[order]
    assert "".join(rows(text)[1]) == order and f"\n  Sorted by best valid {words}" in text, text
    _, section, _ = page_of(tmp_path, *everyone)
    assert [row[0] for row in section.one("table").rows()[1:]] == list(order) and f"Sorted by best valid {words}" in section.words


MONITORS = re.findall(r'"(valid\.\w+)"', open("core/train/update/monitor.h", encoding="utf-8").read())


@pytest.mark.parametrize("monitor", MONITORS)
def test_runs_are_sorted_by_whatever_a_job_monitors(tmp_path, monitor):
    """The value of the best evaluation, which a column tells, whatever accuracy and loss say."""
    score, falls = monitor.split(".")[1], monitor in ("valid.loss", "valid.mae", "valid.rmse")
    of_numbers = score in ("mae", "rmse", "r2")
    for name, value in zip("abc", (0.5, 0.75, 0.25)):
        (tmp_path / name).mkdir()
        line = {"event": "eval", "step": 2, "split": "valid", "samples": 9, "loss": 1 - value, **({} if of_numbers else {"accuracy": 1 - value}), score: value, "best": monitor}
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in ({"event": "run", "name": name, "ranks": 1, "steps": 4}, line)))
        loss = "mse" if of_numbers else "binary_cross_entropy" if score == "label_accuracy" else "cross_entropy"
        (tmp_path / name / "job.yaml").write_text(f"data: {{valid: v.h5}}\nloss: {{type: {loss}}}\ncheckpoint: {{monitor: {monitor}}}\n")
    everyone = [tmp_path / name for name in "abc"]
    text = table(*everyone, COLUMNS="200")
    words = re.search(r"Sorted by (best valid .*)\.", text)[1]
    found, order = rows(text)
    assert "".join(order) == ("cab" if falls else "bac") and words.lower().replace("-", "").replace(" ", "_").endswith(score), text
    assert sorted(float(cell) for cell in found[words]) == [0.25, 0.5, 0.75], found
    assert [head for head in found if head.startswith("best ")] == [words], "of the rest another evaluation may have more"
    assert json.loads(table("--json", *everyone))["runs"][0]["best_valid"][score] == 0.5
    _, section, _ = page_of(tmp_path, *everyone)
    heads = section.one("table").rows()[0]
    assert [row[0] for row in section.one("table").rows()[1:]] == order and f"Sorted by {words}." in section.words, section.words
    assert {words, words.replace("R2", "R²"), words.replace("best valid", "valid").replace("R2", "R²")} & set(heads), heads


def test_one_run(runs):
    text = table(runs / "a")
    assert rows(text)[0]["state"] == ["done"] and "Sorted" not in text and "\n  of steps 30, " in text


def copy(runs, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in ("metrics.jsonl", "job.yaml"):
        (folder / name).write_bytes((runs / "a" / name).read_bytes())
    return folder


def test_damage(runs, tmp_path):
    folder = copy(runs, tmp_path)
    data = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(data[:-20])
    run, = read(folder)["runs"]
    assert run["state"] == "lost" and run["step"] == 30 and run["damaged_lines"] == 0
    (folder / "metrics.jsonl").write_bytes(data.replace(b'"loss"', b'"lo\0s"', 1))
    run, = read(folder)["runs"]
    assert run["state"] == "done" and run["damaged_lines"] == 1
    (folder / "job.yaml").write_text("model: [")
    result = dpt.run("compare", runs / "b", folder)
    assert result.code == 0 and f"{folder}/job.yaml:" in result.err and "best valid" in result.out, result
    (folder / "job.yaml").unlink()
    assert dpt.run("compare", runs / "b", folder).code == 0


def test_numbers_are_compared_as_such(runs, tmp_path):
    folder = copy(runs, tmp_path)
    text = (folder / "job.yaml").read_text()
    assert "lr: 0.01" in text
    (folder / "job.yaml").write_text(text.replace("lr: 0.01", "lr: 1.0e-2"))
    assert read(runs / "a", folder)["differs"] == []


def test_keys_that_only_one_has(runs, tmp_path):
    path = dpt.write_small_job(tmp_path / "job.yaml", train="{epochs: 1}", optimizer="{type: sgd, momentum: 0.5}")
    dpt.train(path, tmp_path / "sgd")
    for name in ("a", "sgd"):
        (tmp_path / "both" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "both" / name).symlink_to((runs if name == "a" else tmp_path) / name)
    found = rows(table(tmp_path / "both/a", tmp_path / "both/sgd", COLUMNS="200"), "a", "sgd")[0]
    assert found["optimizer.type"] == ["adam", "sgd"] and found["optimizer.momentum"] == ["-", "0.5"]
    assert found["optimizer.beta1"] == ["0.9", "-"] and found["train.epochs"] == ["2", "1"]


def test_models_of_different_kinds(tmp_path):
    """A row for the model and one for each layer, as short as a person would say it; the JSON has every key."""
    layers = ("[{conv: {channels: 4, padding: same, bias: false}}, batchnorm, relu, {residual: [relu, {conv: {channels: 4, "
              "kernel: [3, 1], padding: [1, 0]}}]}, flatten, {dense: {outputs: 10, init: {normal: 0.02}}}]")
    for name, model in (("mlp", "{type: mlp, hidden: [8, 6], outputs: 10}"), ("list", f"{{type: sequential, layers: {layers}}}"),
                        ("other", f"{{type: sequential, layers: {layers.replace('batchnorm', 'groupnorm: 2')}}}"),
                        ("lenet", "{type: lenet, outputs: 10}"),
                        ("wide", f"{{type: sequential, layers: {layers.replace('channels: 4', 'channels: 6')}}}")):
        dpt.train(dpt.write_small_job(tmp_path / f"{name}.yaml", name="same", train="{steps: 1}", model=model), tmp_path / name)
    text = table(tmp_path / "mlp", tmp_path / "list", COLUMNS="80")
    assert max(map(len, text.splitlines())) <= 80
    found = rows(text, "mlp", "list")[0]
    assert {name: cells for name, cells in found.items() if "." in name} == {
        "model.type": ["mlp, hidden [8, 6]", "sequential"],
        "model.layers[0]": ["-", "conv 4, padding same, bias false"],
        "model.layers[1]": ["-", "batchnorm"], "model.layers[2]": ["-", "relu"],
        "model.layers[3]": ["-", "residual [relu, conv 4, kernel [3, 1], padding [1, 0]]"],
        "model.layers[4]": ["-", "flatten"], "model.layers[5]": ["-", "dense 10, init {normal 0.02}"]}
    text = table(tmp_path / "mlp", tmp_path / "list", COLUMNS="50")
    assert max(map(len, text.splitlines())) <= 50 and rows(text)[0]["model.layers[3]"][1] == "residual [relu, conv 4, kernel [3, 1], padd…"
    found = rows(table(tmp_path / "list", tmp_path / "other"), "list", "other")[0]
    assert {name: cells for name, cells in found.items() if "." in name} == {"model.layers[1]": ["batchnorm", "groupnorm 2"]}
    found = rows(table(tmp_path / "mlp", tmp_path / "lenet"), "mlp", "lenet")[0]
    assert {name: cells for name, cells in found.items() if "." in name} == {"model.type": ["mlp, hidden [8, 6]", "lenet"]}
    found = rows(table(tmp_path / "list", tmp_path / "wide"), "list", "wide")[0]
    assert found["model.layers[0].conv.channels"] == ["4", "6"] and "model.layers[0]" not in found
    whole = read(tmp_path / "mlp", tmp_path / "list")
    assert whole["runs"][0]["job"]["model.hidden"] == "[8, 6]" and "model.layers[1].batchnorm.eps" in whole["differs"]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_fits_the_width(runs, columns):
    """Columns that do not fit beside each other come in several tables, each with all runs."""
    everyone = [runs / name for name in ("a", "b", "killed", "resumed")]
    text = table(*everyone, COLUMNS=str(columns))
    assert max(map(len, text.splitlines())) <= columns
    wide, wide_order = rows(table(*everyone, COLUMNS="400"))
    narrow, order = rows(text)
    assert narrow == wide and order == wide_order and text.count("\nresumed ") == text.count("\nkilled ") > 1
    assert table(*everyone, COLUMNS="40", LC_ALL="C").isascii()


def test_what_is_no_run(tmp_path):
    for words, said in (((tmp_path / "none",), "no such run folder"), ((tmp_path,), "holds no run"), ((), "no run folder given")):
        result = dpt.run("compare", *words)
        assert result.code == 2 and said in result.err and result.out == "", result
