"""The command line: help, versions, suggestions, exit codes, --ranks."""
import os
import re
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SMOKE = "configs/smoke.yaml"


def test_help_of_everything():
    for words in ([], ["--help"], ["-h"], ["help"]):
        result = dpt.run(*words)
        assert result.code == 0 and result.err == "", result
        assert "usage: dptrain [train] JOB.yaml" in result.out
        for code in ("0 ", "65 ", "75 ", "78 "):
            assert f"\n  {code}" in result.out
    commands = result.out.split("commands:\n")[1].split("\n\n")[0]
    names = [line.split()[0] for line in commands.splitlines()]
    assert {"train", "eval", "convert"} <= set(names)
    for name in names:
        result = dpt.run(name, "--help")
        assert result.code == 0 and "dptrain " + name in result.out, result
        assert "  mpirun" in result.out or f"  dptrain {name}" in result.out, "an example"
        assert max(map(len, result.out.splitlines())) <= 80


def test_train_help_lists_the_job_keys():
    out = dpt.run("train", "--help").out
    for key in ("batch.global", "optimizer", "momentum", "label_smoothing", "data.train", "checkpoint.keep"):
        assert key in out, key


@pytest.mark.parametrize("name, key", [("eval", "eval.every"), ("init", "init.from")])
def test_help_of_a_command_that_is_also_a_key(name, key):
    for words in (("--help", name), (name, "--help")):
        out = dpt.run(*words).out
        assert out.startswith(f"dptrain {name}: ") and f"\n`{name}` in the job file:\n" in out and f"{key} " in out.partition("in the job file:")[2]


def test_help_of_keys():
    """One key with what is in it, or all keys of a name; the other commands name this instead of listing all keys."""
    whole = dpt.run("train", "--help").out
    for words in (["--help"], ["help"], ["train", "--help"], ["eval", "job.yaml", "--help"]):
        out = dpt.run(*words, "schedule").out
        assert out in whole and "schedule.warmup" in out and "optimizer" not in out, words
    assert set(re.findall(r"^ +(\w+[.]\w+)", dpt.run("--help", "lr").out, re.M)) == {"optimizer.lr"}
    assert re.findall(r"^ +(\S+): (\w+)|^ +(\S+[.]\S+)", dpt.run("--help", "optimizer.nesterov").out, re.M) == [
        ("type", "sgd", ""), ("", "", "optimizer.nesterov")]
    for command in ("eval", "predict", "plan", "bench"):
        out = dpt.run(command, "--help").out
        assert "`dptrain --help KEY`" in out and "batch.micro" not in out and len(out.splitlines()) < 100, command


def test_version_names_the_libraries():
    result = dpt.run("--version")
    assert result.code == 0 and result.out.startswith("dptrain "), result
    assert "MPI" in result.out and "HDF5" in result.out and "backend ref" in result.out


@pytest.mark.parametrize("words, says", [
    (["trian", SMOKE], "did you mean 'train'?"),
    (["--bogus"], "unknown option --bogus"),
    (["--help", "trian"], "'trian' is neither a command nor a key of the job file; did you mean 'train'?"),
    (["eval", "--help", "optimzer"], "'optimzer' is no key of the job file; did you mean 'optimizer'?"),
    (["train", "--help=batch"], "--help takes no value"),
    (["train", SMOKE, "--ouptut", "x"], "did you mean --output?"),
    (["train", SMOKE, "-o", "x"], "unknown option -o, did you mean --output?"),
    (["train", SMOKE, "--checkpoint", "x"], "unknown option --checkpoint, did you mean --resume?"),
    (["train", SMOKE, "--seed=3"], "unknown option --seed, did you mean --set seed=VALUE?"),
    (["train", SMOKE, "--init", "x"], "unknown option --init; `dptrain train --help` lists them"),
    (["train", SMOKE, "--device", "cuda"], "unknown option --device, did you mean --set device.kind=VALUE?"),
    (["train", SMOKE, "--output", ""], "--output is empty"),
    (["predict", SMOKE, "--output=x.csv"], "unknown option --output=x.csv, did you mean --out?"),
    (["eval", SMOKE, "--model", "x"], "unknown option --model, did you mean --checkpoint?"),
    (["train", SMOKE, "--epochs", "3"], "unknown option --epochs, did you mean --set train.epochs=VALUE?"),
    (["bench", SMOKE, "--batch-size=3"], "unknown option --batch-size, did you mean --set batch.global=VALUE?"),
    (["train", SMOKE, "--gpus", "3"], "unknown option --gpus; mpirun -np N or --ranks N says how many ranks there are"),
    (["watch", "--lr", "3"], "unknown option --lr; `dptrain watch --help`"),
    (["train", SMOKE, "--output"], "--output needs a value"),
    (["train", SMOKE, "--quiet=3"], "takes no value"),
    (["train"], "no job file given"),
    (["train", SMOKE, SMOKE], "one job file at a time"),
    (["train", SMOKE, "--ranks", "two"], "a whole number"),
    (["train", SMOKE, "--ranks", "0"], "a whole number"),
    (["train", SMOKE, "--set", "batch.global"], "--set"),
    (["eval", SMOKE], "--checkpoint"),
    (["convert"], "convert"),
])
def test_usage_errors(words, says):
    result = dpt.run(*words)
    assert result.code == 2, result
    assert says in result.err and result.out == "", result
    assert len(result.err.splitlines()) <= 2, result


def test_ranks_starts_them_and_returns_their_code(tmp_path):
    result = dpt.run(SMOKE, "--ranks", 2, "--output", tmp_path / "out")
    assert result.code == 0 and "2 ranks on" in result.err and "results in" in result.out, result
    assert [e["ranks"] for e in dpt.events(tmp_path / "out", "run")] == [2]
    result = dpt.run(SMOKE, "--ranks", 2, "--output", tmp_path / "out")
    assert result.code == 0 and "is finished, all 96 steps" in result.err and result.out == "", result
    result = dpt.run(SMOKE, "--ranks", 2, "--output", tmp_path / "out", "--resume", "none")
    assert result.code == 2 and "--overwrite" in result.err, result
    assert len(result.err.strip().splitlines()) == 1, "mpirun adds nothing of its own"


def test_ranks_under_mpirun_is_refused(tmp_path):
    result = dpt.run(SMOKE, "--ranks", 2, "--output", tmp_path / "out", ranks=2)
    assert result.code == 2 and "leave one of the two out" in result.err, result


def test_what_to_do_about_the_number_of_ranks(tmp_path):
    for ranks, advice in (1, "; --ranks N or mpirun -np N starts more"), (2 * len(os.sched_getaffinity(0)), "; ranks that share a core slow"):
        result = dpt.train(SMOKE, tmp_path / "out", "--overwrite", ranks=ranks)
        assert advice in next(line for line in result.err.splitlines() if line.startswith("  ranks")), result
        assert "warning" not in result.err


def test_quiet_leaves_the_result(tmp_path):
    result = dpt.train(SMOKE, tmp_path / "out", "--quiet", ranks=2)
    assert result.err == "" and "results in" in result.out, result


def test_a_file_gets_plain_lines_and_a_terminal_one_live_line(tmp_path):
    steps = ("--set", "log.every=5 steps")
    plain = dpt.train(SMOKE, tmp_path / "plain", *steps, ranks=2)
    assert "\r" not in plain.err and "\033" not in plain.err
    lines = [line for line in plain.err.splitlines() if "mean loss" in line and "step " in line]
    assert len(lines) == len(dpt.events(tmp_path / "plain", "train")) > 2
    live = dpt.train(SMOKE, tmp_path / "live", *steps, ranks=2, env={"DPTRAIN_TTY": "1", "COLUMNS": "60"})
    assert "\r" in live.err
    drawn = [part.split("\033")[0] for part in live.err.split("\r")[1:]]
    assert all(len(part.split("\n")[0]) < 60 for part in drawn)
    logged = (tmp_path / "live" / "log.txt").read_text().splitlines()
    assert sum("mean loss" in line and "step " in line for line in logged) == len(lines)


def test_rank_zero_alone_talks(tmp_path):
    result = dpt.train(SMOKE, tmp_path / "out", ranks=3)
    assert result.err.count("dptrain ") == 1 and result.out.count("results in") == 1, result


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_stdout_is_an_error():
    with open("/dev/full", "w") as full:
        import subprocess
        done = subprocess.run([dpt.BINARY, "--help"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 74
