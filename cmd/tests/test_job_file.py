"""Wrong job files: every error with its place, exit code 78, nothing made, no rank left hanging."""
import json
import os
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

GOOD = """data:
  train: synthetic
  synthetic: {samples: 256}
model: {type: mlp, hidden: [16], outputs: 10}
batch: {global: 32, micro: 8}
train: {steps: 2}
"""


def refuse(tmp_path, text, *words, ranks=0, code=78):
    path = dpt.write_job(tmp_path / "job.yaml", text)
    out = tmp_path / "out"
    result = dpt.run("train", path, "--output", out, *words, ranks=ranks, timeout=60, env={"CUDA_VISIBLE_DEVICES": ""})
    assert result.code == code, result
    assert not out.exists(), "nothing is made for a job that cannot run"
    return result.err


def test_all_mistakes_are_listed_with_place_and_suggestion(tmp_path):
    err = refuse(tmp_path, GOOD.replace("micro: 8", "mirco: 8") + "optimizer: {type: adm}\nseed: many\n"
                 "schedule: {type: cosine, warmup: -3}\n")
    lines = [line for line in err.splitlines() if line.startswith(str(tmp_path))]
    places = [line.split(":")[1:3] for line in lines]
    assert len(lines) == 4 and places == sorted(places, key=lambda p: (int(p[0]), int(p[1]))), err
    assert "batch.mirco: unknown key, did you mean 'micro'?" in lines[0] and ":5:" in lines[0]
    assert "adam" in lines[1] and "seed" in lines[2] and "warmup" in lines[3]


REFUSED = [
    ("", "nothing in it"),
    ("# only a comment\n", "nothing in it"),
    ("- a list\n", ""),
    (GOOD + "seed: 1\nseed: 2\n", "seed"),
    (GOOD + "loss: &x mse\n", "anchor"),
    (GOOD + "name: [1\n", ""),
    (GOOD.replace("steps: 2", "steps: 2, epochs: 3"), "not both"),
    (GOOD.replace("global: 32", "global: 0"), "batch.global"),
    (GOOD.replace("global: 32", "global: 4"), "batch.micro"),
    (GOOD.replace("train: synthetic", "valid: 0.1"), "data.train"),
    (GOOD.replace("train: synthetic", "train: synthetic\n  augment: {crop_area: [0.5, 0.2]}"), "the smaller number comes first"),
    (GOOD.replace("train: synthetic", "train: synthetic\n  augment: {crop_area: [0.5]}"), "1 number; two are needed: [least, most]"),
    (GOOD.replace("train: synthetic", "train: synthetic\n  augment: {scale: 2}"), "expected a list [least, most], got '2'"),
    (GOOD.replace("model:", "modle:"), "did you mean 'model'?"),
    (GOOD.replace("hidden: [16]", "hidden: [0]"), "hidden"),
    (GOOD.replace("mlp, hidden: [16]", "cnn, kernel: 99, padding: 0"), "99x99"),
    (GOOD + "device: {kind: cuda}\n", "device.kind: "),
    (GOOD + "comm: {reduction: reproducible}\ndevice:\n  deterministic: false\n",
     f"{GOOD.count(chr(10)) + 3}:18: device.deterministic: false does not go with comm.reduction: reproducible"),
    ("[" * 1000000, "at most 65536"),
    ("[" * 60000, "more than 32"),
]


@pytest.mark.parametrize("text, says", REFUSED, ids=range(len(REFUSED)))
def test_refused(tmp_path, text, says):
    err = refuse(tmp_path, text)
    assert says.lower() in err.lower(), err
    assert "job.yaml" in err and len(err) < 4000


def test_binary_and_missing_and_unreadable(tmp_path):
    (tmp_path / "binary.yaml").write_bytes(os.urandom(3000))
    for name in ("binary.yaml", "missing.yaml", "."):
        result = dpt.run("train", tmp_path / name, "--output", tmp_path / "out", ranks=2)
        assert result.code == 78, result
        lines = [line for line in result.err.splitlines() if line.startswith(str(tmp_path))]
        assert len(lines) == 1 and lines[0].isprintable(), result


@pytest.mark.parametrize("batch, says", [
    ("{global: 32, micro: 16}", "warning: rank 0 of 3 stays idle: 32 / 16 gives 2 micro-batches per step; batch.micro: 15 or less would feed all"),
    ("{global: 3, micro: 2}", "warning: rank 0 of 3 stays idle: 3 / 2 gives 2 micro-batches per step; batch.micro: 1 would feed all"),
    ("{global: 1}", "warning: ranks 0-1 of 3 stay idle: 1 / 1 gives 1 micro-batch per step; start fewer ranks, or make batch.global larger"),
    ("{global: 3}", None),
])
def test_more_ranks_than_micro_batches(tmp_path, batch, says):
    """What there is to do is done by some; one line says who has nothing to do and what would change that."""
    path = dpt.write_job(tmp_path / "job.yaml", GOOD.replace("{global: 32, micro: 8}", batch))
    result = dpt.train(path, tmp_path / "out", "--set", "train.steps=2", ranks=3)
    warnings = [line for line in result.err.splitlines() if "warning" in line]
    assert warnings == ([says] if says else []), result


def test_one_message_from_all_ranks(tmp_path):
    err = refuse(tmp_path, GOOD.replace("outputs: 10", "outputs: 7"), ranks=3)
    assert err.count("7 outputs") == 1, err


ELSEWHERE = {
    "batch.size=32": "did you mean 'batch.global'?",
    "batch_size=32": "did you mean 'batch.global'?",
    "per_device_train_batch_size=8": "did you mean 'batch.per_rank'?",
    "gradient_accumulation_steps=4": "cut into micro-batches of batch.micro",
    "learning_rate=0.1": "did you mean 'optimizer.lr'?",
    "weight_decay=0.1": "did you mean 'optimizer.weight_decay'?",
    "optimizer.momentum=0.9": "it belongs to type sgd",
    "loss=CrossEntropyLoss": "did you mean 'cross_entropy'?",
    "device.kind=gpu": "did you mean 'cuda'?",
    "device.precision=16": "did you mean 'fp16'?",
    "epochs=3": "did you mean 'train.epochs'?",
    "max_epochs=3": "did you mean 'train.epochs'?",
    "train.num_epochs=3": "did you mean 'train.epochs'?",
    "data.shuffle=true": "did you mean 'full'?",
    "data.val=0.1": "did you mean 'data.valid'?",
    "model.dropout_rate=0.1": "did you mean 'dropout'?",
    "model.activation=ReLU": "did you mean 'relu'?",
    "num_workers=4": "samples are read beside the training",
    "world_size=4": "mpirun -np N or --ranks N",
}


def test_words_of_other_programs(tmp_path):
    err = refuse(tmp_path, GOOD, *[word for setting in ELSEWHERE for word in ("--set", setting)]).splitlines()
    assert len(err) == len(ELSEWHERE)
    for setting, says in ELSEWHERE.items():
        assert sum(line.startswith(f"--set {setting}: ") and says in line for line in err) == 1, (setting, err)


def test_a_type_that_is_left_out_is_the_default(tmp_path):
    """So that one setting below it does, without a block in the file."""
    path = dpt.write_job(tmp_path / "job.yaml", GOOD)
    result = dpt.train(path, tmp_path / "out", "--set", "schedule.scale_lr.rule=linear", "--set", "optimizer.lr=0.5")
    assert "adam, learning rate 0.0625 (0.5 scaled to the batch), constant" in result.err, result


def test_set_overrides_and_is_checked(tmp_path):
    path = dpt.write_job(tmp_path / "job.yaml", GOOD)
    dpt.train(path, tmp_path / "out", "--set", "train.steps=3", "--set", "optimizer={type: sgd, lr: 0.5}",
              "--set", "log.every=1 steps", "--set", "name=a: b")
    assert [e["lr"] for e in dpt.events(tmp_path / "out", "train")] == [0.5] * 3
    assert dpt.events(tmp_path / "out", "run")[0]["name"] == "a: b"
    result = dpt.run("train", path, "--set", "batch.mirco=8", "--output", tmp_path / "x")
    assert result.code == 78 and "--set batch.mirco=8" in result.err and "'micro'" in result.err, result


def test_set_type_leaves_the_old_one_behind(tmp_path):
    """With the keys that only the old one has; what is set after it, or is no type's, is refused."""
    path = dpt.write_job(tmp_path / "job.yaml", GOOD)
    dpt.train(path, tmp_path / "out", "--set", "model.hidden=[8]", "--set", "model.type=linear")
    assert "hidden" not in (tmp_path / "out/job.yaml").read_text()
    for more, why in (("model.hidden=[8]", "model.hidden: unknown key; it belongs to type mlp"), ("model.hiden=[8]", "model.hiden: unknown key")):
        result = dpt.run("train", path, "--set", "model.type=linear", "--set", more, "--output", tmp_path / "x")
        assert result.code == 78 and why in result.err, result


PER_RANK = GOOD.replace("{global: 32, micro: 8}", "{per_rank: 16}") + \
    "schedule: {type: constant, scale_lr: {rule: linear, base_batch: 16}}\noptimizer: {type: sgd, lr: 0.01}\n"


def test_batch_per_rank(tmp_path):
    """It is another word for the global batch that it makes: the header, the rate and the checkpoint are that batch's."""
    path = dpt.write_job(tmp_path / "job.yaml", PER_RANK)
    for ranks in (0, 1, 3):
        both = [tmp_path / f"{name}-{ranks}" for name in ("each", "all")]
        result = dpt.train(path, both[0], "--set", "log.every=1 step", ranks=ranks)
        samples = 16 * max(ranks, 1)
        assert f"  batch    {samples} (16 per rank) = " in result.err, result
        assert f"learning rate {0.01 * samples / 16:g}" in result.err, result
        assert [(e["samples"], e["lr"]) for e in dpt.events(both[0], "train")] == \
            [(samples * k, pytest.approx(0.01 * samples / 16)) for k in (1, 2)]
        dpt.train(path, both[1], "--set", f"batch.global={samples}", ranks=ranks)
        assert dpt.newest(both[0]) == dpt.newest(both[1])
    plan = dpt.run("plan", path, "--ranks", 3, "--no-time", "--json")
    assert '"global": 48,' in plan.out, plan
    again = dpt.train(tmp_path / "each-3" / "job.yaml", tmp_path / "again", ranks=2)
    assert "  batch    32 (16 per rank) = " in again.err, "the resolved job is the job"


def test_batch_per_rank_goes_on_with_as_many_ranks(tmp_path):
    path = dpt.write_job(tmp_path / "job.yaml", PER_RANK)
    dpt.train(path, tmp_path / "out", ranks=2)
    result = dpt.run(path, "--output", tmp_path / "out", "--set", "train.steps=4", ranks=3)
    assert result.code == 78 and "\nbatch.global: 32 -> 48\n" in result.err, result
    assert "\nbatch.per_rank: 16 makes 48 samples per step on 3 ranks: start as many ranks as before, or " in result.err, result
    result = dpt.run(path, "--output", tmp_path / "out", "--set", "train.steps=4", "--set", "batch.global=32", ranks=3)
    assert result.code == 0 and "resuming at step 2" in result.err, result


@pytest.mark.parametrize("words, says", [
    (["--set", "batch={global: 64, per_rank: 8}"], "batch.per_rank: give either global or per_rank, not both"),
    (["--set", "batch.micro=17"], "batch.micro: 17 is more than batch.per_rank, 16"),
    (["--set", "batch.per_rank=9000000"], "batch.per_rank: 9000000 on 2 ranks are 18000000 samples per step, more than 16777216"),
])
def test_batch_per_rank_mistakes(tmp_path, words, says):
    assert says in refuse(tmp_path, PER_RANK, *words, ranks=2)


def test_output_that_cannot_be_written(tmp_path):
    path = dpt.write_job(tmp_path / "job.yaml", GOOD)
    (tmp_path / "file").write_text("x")
    result = dpt.run("train", path, "--output", tmp_path / "file" / "run", ranks=2)
    assert result.code == 74 and str(tmp_path / "file") in result.err, result


def test_full_disk(tmp_path):
    """A file system of 1 MiB: saving fails, says so, and leaves nothing half-written under a final name."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        path = dpt.write_job(tmp_path / "job.yaml", GOOD.replace("[16]", "[64]").replace("steps: 2", "steps: 20") +
                             "checkpoint: {every: 1 steps, keep: all}\n")
        result = dpt.run("train", path, "--output", disk / "run", ranks=2, timeout=60)
        assert result.code == 74 and "No space left" in result.err, result
        names = sorted(os.listdir(disk / "run" / "checkpoints"))
        assert "step-" in result.err and names[0] == "latest" and "step-00000001.h5" in names, (names, result)
        assert not any(".tmp" in name for name in names), names
    finally:
        os.system(f"umount {disk}")


NAMES = ["../../../evil", "..", ".", "/", "a/b", "a\nb", "tab\there", "", "x" * 256, "\u0085", "\u2028", "\x7f", "é" * 128]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_is_one_of_a_folder(tmp_path, name):
    """Or the run would be written wherever it leads; `output` is a path of any kind."""
    text = f"# a job\nname: {json.dumps(name)}\n{GOOD}"
    err = refuse(tmp_path, text)
    assert err.startswith(f"{tmp_path}/job.yaml:2:7: name: expected a name for a folder: 1 to 255 bytes, not . or ..,"), err
    result = dpt.run(dpt.write_job(tmp_path / "job.yaml", text), cwd=tmp_path)
    assert result.code == 78 and os.listdir(tmp_path) == ["job.yaml"], result


def test_the_files_name_is_one_too(tmp_path):
    (tmp_path / "a").mkdir()
    path = dpt.write_job(tmp_path / "a" / "...yaml", GOOD)
    result = dpt.run(path, cwd=tmp_path)
    assert result.code == 78 and "name: '..', the file's, cannot name a folder: give the job another name" in result.err, result
    for words in (["--set", "name=x" + "y" * 254], ["--set", "name=with space", "--output", "runs/../runs/é"]):
        assert dpt.run(path, *words, cwd=tmp_path).code == 0
    assert sorted(os.listdir(tmp_path / "runs")) == ["x" + "y" * 254, "é"]


def test_paths_below_the_home_folder(tmp_path):
    """`~/` in a job, after --set, in an option and as a file of the command line; a run's job.yaml keeps it as it was written."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir(), elsewhere.mkdir()
    environment = {"HOME": str(home)}

    def run(*words):
        result = dpt.run(*words, "--quiet", cwd=elsewhere, env=environment)
        assert result.code == 0, result

    (home / "t.csv").write_text("".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(40)))
    run("convert", "csv", "~/t.csv", "--output=~/t")
    (home / "job.yaml").write_text("data: {train: ~/t-*.h5, valid: [~/t-*.h5], test: '~/t-*.h5'}\nmodel: mlp\nbatch: {global: 20}\noutput: ~/runs/a\n")
    run("~/job.yaml")
    assert "output: ~/runs/a\n" in (home / "runs/a/job.yaml").read_text()
    run("~/job.yaml", "--set", "init.from=~/runs/a", "--output", "~/runs/b")
    run("eval", "~/job.yaml", "--checkpoint", "~/runs/b")
    run("export", "~/runs/b", "~/b.npz")
    assert (home / "b.npz").exists() and list(elsewhere.iterdir()) == []
