"""The JSON Schema of the job file accepts what dptrain accepts, as far as a schema can say it."""
import json
import os
import random
import re
import sys

import pytest
import yaml

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402
import jobs  # noqa: E402
import test_job_file  # noqa: E402

jsonschema = pytest.importorskip("jsonschema")

# What a schema cannot say, or could only say twice: rules between keys, and a layer's name.
# How a scalar is spelt it does not see either: 32.0 for 32.
UNSAYABLE = re.compile("is more than batch\\.|needs momentum|is no name|"
                       "an earlier layer has the name|'input' is the name|`from` names it|"
                       "a join of|does not go with |needs comm.reduction|runs on device.kind|stages says|"
                       "match: no pattern|gives its tensors nothing|classes are not scaled|"
                       "only the last layer of a model|goes by samples that|goes by evaluations, and|is not available with `loss|patience says after|"
                       "the smaller number comes first|mixes classes, ")


@pytest.fixture(scope="module")
def schema():
    result = dpt.run("schema")
    assert result.code == 0 and result.err == "", result
    return json.loads(result.out)


@pytest.fixture(scope="module")
def validator(schema):
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def verdicts(paths):
    """dptrain's verdicts: path -> its errors, an empty list if it is right."""
    result = dpt.run("schema", "--check", *paths)
    said = {str(path): [] for path in paths}
    for line in result.err.splitlines():
        path = next(p for p in said if line.startswith(p + ":"))
        said[path].append(line[len(path) + 1:])
    for path, mistakes in said.items():
        assert (f"{path}: right" in result.out.splitlines()) == (mistakes == []), result
    assert result.code == (78 if any(said.values()) else 0), result
    return said


def test_configs_and_readme(validator, tmp_path):
    paths = []
    for page in ("README.md", "configs/README.md"):
        job = next(block for block in re.findall(r"```yaml\n(.*?)```", open(page, encoding="utf-8").read(), re.S) if "model:" in block)
        paths.append(dpt.write_job(tmp_path / page.replace("/", "-").replace(".md", ".yaml"), job))
    paths += [f"configs/{name}" for name in os.listdir("configs") if name.endswith(".yaml")]
    for path, mistakes in verdicts(paths).items():
        assert mistakes == []
        errors = [e.message for e in validator.iter_errors(jobs.load(open(path, encoding="utf-8").read()))]
        assert errors == [], path


def test_the_resolved_job_is_accepted(validator, tmp_path):
    dpt.train("configs/smoke.yaml", tmp_path / "out", "--set", "train.epochs=1")
    validator.validate(jobs.load((tmp_path / "out" / "job.yaml").read_text()))


def words(row, path=()):
    """(path, word) of each number that may be a word, outside of lists."""
    for part in [row, *row.get("anyOf", []), row.get("then", {})]:
        if "const" in part:
            yield path, part["const"]
        for name, inner in part.get("properties", {}).items():
            yield from words(inner, (*path, name)) if isinstance(inner, dict) else ()


def test_a_job_in_json_and_its_resolved_form_for_other_readers(schema, validator, tmp_path):
    """Each word in quotes, as JSON has them; the run's job.yaml is what PyYAML reads, which has YAML 1.1, and the run resumes from it."""
    job = {"name": "2024-11-28", "data": {"train": "synthetic", "synthetic": {"samples": 60, "shape": [6], "classes": 3}, "normalize": {"std": [5e-1]}},
           "model": {"type": "sequential", "layers": [{"dense": {"outputs": 8, "init": {"normal": 1e-5}}}, {"dense": {"outputs": "auto"}}]},
           "optimizer": {"type": "adam", "lr": 1e-5}, "comm": {"cuda_aware": "off"}, "train": {"steps": 2}, "batch": {"global": 20}}
    found = [(path, word) for path, word in words(schema) if path[0] not in ("model", "optimizer", "schedule", "loss")]
    assert {"batch.micro", "device.threads", "parallel.data", "checkpoint.keep"} <= {".".join(path) for path, _ in found}
    for path, word in found:
        at = job
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = word
    (tmp_path / "job.json").write_text(json.dumps(job))
    assert dpt.run(tmp_path / "job.json", "--output", tmp_path / "run", "--quiet").code == 0
    read = yaml.safe_load((tmp_path / "run/job.yaml").read_text())
    validator.validate(read)
    assert read["name"] == "2024-11-28" and read["comm"]["cuda_aware"] == "off" and read["optimizer"]["lr"] == 1e-5
    assert read["optimizer"]["eps"] == 1e-8 and read["model"]["layers"][0]["dense"]["init"] == {"normal": 1e-5} and read["data"]["normalize"]["std"] == [0.5]
    (tmp_path / "again.yaml").write_text((tmp_path / "run/job.yaml").read_text())
    assert dpt.run(tmp_path / "again.yaml", "--output", tmp_path / "same", "--quiet").code == 0
    assert dpt.newest(tmp_path / "same") == dpt.newest(tmp_path / "run")
    result = dpt.run(tmp_path / "again.yaml", "--output", tmp_path / "run", "--quiet", "--set", "train.steps=3")
    assert result.code == 0 and dpt.events(tmp_path / "run", "end")[-1]["step"] == 3, result


SMALL = "data: {train: synthetic}\nmodel: {type: mlp, outputs: 10}\n"
LAYERS = "data: {train: synthetic}\nmodel: {type: sequential, layers: [%s]}\n"

RIGHT = [
    SMALL,
    SMALL + "name: 12\noutput: true\nseed: null\ndevice: ~\n",
    SMALL + "device: {threads: auto, kind: ref}\nbatch: {micro: 4, global: 16777216}\n",
    SMALL + "optimizer: adam\nschedule: cosine\nloss: mse\n",
    SMALL + "optimizer: {type: sgd, lr: 1e-3, momentum: .9, nesterov: true}\nloss: {type: cross_entropy}\n",
    SMALL + "optimizer: {groups: null}\ntrain: {freeze: null}\n",
    SMALL + "schedule: {type: step, every: 10 epochs, gamma: 0.5, scale_lr: {rule: sqrt}}\n",
    SMALL + "optimizer: {lr: 0.1}\nschedule: {scale_lr: linear}\nloss: {type: null, label_smoothing: 0.1}\n",
    SMALL + "train: {steps: 10, clip_norm: null, max_time: 1.5 h}\ncheckpoint: {keep: all, every: never}\n",
    SMALL + "eval: {every: 50 steps}\nlog: {every: 0.5 epochs}\ncomm: {timeout: 5min}\n",
    SMALL + "checkpoint: {every: 10 min, keep: 3}\nlog: {every: auto}\n",
    "data: {train: [a.h5, b*.h5], valid: 0.1, test: c.h5, normalize: {mean: 0.5, std: [1, 2, 3]}}\n"
    "model: {type: cnn, outputs: 3, kernel: [3, 5], padding: same, hidden: 10, channels: []}\n",
    "data: {train: synthetic}\nmodel: {type: resnet, depth: 20, outputs: 10}\n",
    "data: {train: synthetic}\nmodel: mlp\n",  # as wide at its end as the data want it
    LAYERS % "flatten, dense: 10",
    LAYERS % "dense",
    LAYERS % "dense: ",
    LAYERS % "dense: {outputs: auto, bias: false}",
    LAYERS % "conv: {channels: 3, kernel: 3, stride: [1, 2], padding: [0, 1]}, maxpool: [2, 2], "
             "{avgpool: {size: 2, stride: auto}}, relu: , gelu: {}, dropout, dropout: 0.3, dropout: , flatten, "
             "dense: {outputs: 10, bias: false, name: head}",
    LAYERS % "conv: {channels: 3, name: a}, {relu: {from: a}}, add: a, multiply: [a, relu1, input], "
             "concat: {of: [a, 1], name: all}, residual: [relu, {residual: {layers: [relu], shortcut: none}}], "
             "residual: {layers: [{conv: 3}], shortcut: [{conv: {channels: 3}}, residual: [relu]], name: r}",
]


@pytest.mark.parametrize("text", RIGHT, ids=range(len(RIGHT)))
def test_accepted_forms(validator, tmp_path, text):
    path = dpt.write_job(tmp_path / "job.yaml", text)
    assert verdicts([path]) == {path: []}
    assert [e.message for e in validator.iter_errors(jobs.load(text))] == []


WRONG = [
    "model: {type: mlp, outputs: 10}\n",
    "data: {train: synthetic}\n",
    "data: {valid: synthetic}\nmodel: {type: mlp, outputs: 10}\n",
    "data: synthetic\nmodel: {type: mlp, outputs: 10}\n",
    "data: {train: {a: b}}\nmodel: {type: mlp, outputs: 10}\n",
    "data: {train: synthetic}\nmodel: [mlp]\n",
    "data: {train: synthetic}\nmodel: {outputs: 10}\n",
    "data: {train: synthetic}\nmodel: {type: mpl, outputs: 10}\n",
    "data: {train: synthetic}\nmodel: {type: linear, outputs: 10, hidden: 3}\n",
    "data: {train: synthetic}\nmodel: {type: resnet, depth: 21, outputs: 10}\n",
    SMALL + "modle: 3\n",
    SMALL + "seed: -1\n",
    SMALL + "seed: many\n",
    SMALL + "name: ..\n",
    SMALL + "name: a/b\n",
    SMALL + "name: ''\n",
    SMALL + 'name: "a\\nb"\n',
    SMALL + f"name: {'x' * 256}\n",
    SMALL + "device: {kind: gpu}\n",
    SMALL + "device: {threads: 0}\n",
    SMALL + "device: {threads: all}\n",
    SMALL + "batch: {mirco: 8}\n",
    SMALL + "batch: 8\n",
    SMALL + "batch: {global: 1.5}\n",
    SMALL + "batch: {global: '64'}\n",
    SMALL + "optimizer: {type: adam, momentum: 0.9}\n",
    SMALL + "optimizer: {type: adam, lr: -1}\n",
    SMALL + "optimizer: {momentum: 0.9}\n",
    SMALL + "optimizer: {type: sgd, nesterov: maybe}\n",
    SMALL + "schedule: step\n",
    SMALL + "schedule: {type: step, every: 10 min}\n",
    SMALL + "schedule: {type: cosine, scale_lr: cubic}\n",
    SMALL + "eval: {every: 10 min}\n",
    SMALL + "eval: {every: auto}\n",
    SMALL + "comm: {timeout: 3 steps}\n",
    SMALL + "log: {every: 1.5 steps}\n",
    SMALL + "log: {every: 50}\n",
    SMALL + "log: {every: 0 steps}\n",
    SMALL + "log: {every: 5 fortnights}\n",
    SMALL + "log: {hashes: 1}\n",
    SMALL + "loss: {type: mse, label_smoothing: 0.1}\n",
    LAYERS % "",
    LAYERS % "dense: 0",
    LAYERS % "relu: 3",
    LAYERS % "rleu",
    LAYERS % "add",
    LAYERS % "add: {of: {a: b}}",
    LAYERS % "residual: []",
    LAYERS % "residual: relu",
    LAYERS % "residual: [rleu]",
    LAYERS % "residual: {layers: [relu], shortcut: all}",
    LAYERS % "residual: {layers: [relu], shortcut: [{residual: [relu: 3]}]}",
    LAYERS % "{relu: , dense: 10}",
    LAYERS % "{}",
    LAYERS % "~",
    LAYERS % "[relu]",
    LAYERS % "conv: {channels: 3, kernel: [1, 2, 3]}",
    LAYERS % "conv: {channels: 3, kernel: []}",
    LAYERS % "conv: {channels: 3, padding: some}",
    LAYERS % "conv: {channels: 3, stride: auto}",
    LAYERS % "maxpool: {stride: 2}",
]


@pytest.mark.parametrize("text", [
    "train: {epochs: 2, steps: 3}", "batch: {global: 20, per_rank: 4}",
    "optimizer: {groups: [{match: a, lr: 0.1, lr_scale: 0.2}]}"])
def test_rivals_are_refused_by_both(validator, tmp_path, text):
    """And accepted where one of the two is null, as in the job that a run writes."""
    path = dpt.write_job(tmp_path / "job.yaml", "data: {train: synthetic}\nmodel: {type: linear, outputs: 1}\n" + text + "\n")
    both = (tmp_path / "job.yaml").read_text()
    half = re.sub(r"(per_rank|steps|lr_scale): [0-9.]+", r"\1: null", both)
    assert not validator.is_valid(jobs.load(both)) and dpt.run("schema", "--check", path).code == 78
    assert validator.is_valid(jobs.load(half)) and dpt.run("schema", "--check", dpt.write_job(path, half)).code == 0


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_refused_by_both(validator, tmp_path, text):
    path = dpt.write_job(tmp_path / "job.yaml", text)
    assert verdicts([path])[path] != []
    errors = list(validator.iter_errors(jobs.load(text)))
    assert errors != []
    assert all(e.validator not in ("oneOf", "not") for e in errors), "no error that says nothing"


def test_jobs_refused_elsewhere_in_the_suite(validator, tmp_path):
    """Refused jobs that are YAML at all: the schema refuses them, or the reason lies beyond the job file."""
    beyond = re.compile(UNSAYABLE.pattern + r"|99x99|device\.kind: ")
    refused = 0
    for text, says in test_job_file.REFUSED:
        if says in ("seed", "anchor", "at most 65536", "more than 32") or "[1\n" in text:
            continue
        errors = list(validator.iter_errors(jobs.load(text)))
        refused += errors != []
        path = dpt.write_job(tmp_path / "job.yaml", text)
        assert errors or beyond.search(says) or beyond.search(" ".join(verdicts([path])[path])), text
    assert refused >= 6


@pytest.mark.parametrize("seed", range(10 if os.environ.get("DPT_HEAVY") == "1" else 2))
def test_random_jobs(validator, schema, tmp_path, seed):
    """Right ones, and the same with one thing changed: both say the same of each."""
    rng = random.Random(seed)
    whole, made = jobs.expand(schema, schema["definitions"], 2), {}
    for i in range(300):
        job = jobs.make(whole, rng)
        if i % 3:
            jobs.spoil(job, rng)
        path = dpt.write_job(tmp_path / f"{i}.yaml", jobs.dump(job))
        assert jobs.load(jobs.dump(job)) == job, "the test's own YAML"
        made[path] = job
    counts = {True: 0, False: 0}
    for path, mistakes in verdicts(list(made)).items():
        errors = [e.message for e in validator.iter_errors(made[path])]
        sayable = [m for m in mistakes if not UNSAYABLE.search(m)]
        assert bool(errors) == bool(sayable), f"{jobs.dump(made[path])}\nschema: {errors}\ndptrain: {mistakes}"
        counts[not errors] += 1
    assert min(counts.values()) > 50, counts


def test_check_on_the_command_line(tmp_path):
    result = dpt.run("schema", "configs/smoke.yaml")
    assert result.code == 2 and "--check configs/smoke.yaml" in result.err, result
    assert dpt.run("schema", "--check").code == 2
    wrong = dpt.write_job(tmp_path / "wrong.yaml", SMALL + "seed: x\nnmae: y\n")
    result = dpt.run("schema", "--check", wrong, tmp_path / "missing.yaml", "configs/smoke.yaml")
    assert result.code == 78 and result.out == "configs/smoke.yaml: right\n", result
    assert result.err.count("wrong.yaml:") == 2 and "missing.yaml" in result.err, result
