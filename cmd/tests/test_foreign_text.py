"""Names of jobs, classes, files and data sets may hold anything; no command lets them steer a terminal or forge a line."""
import json
import os
import re
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

# A title, a colour, a cleared screen, a forged line, direction marks, C1 controls (also CSI) as UTF-8.
EVIL = "a\033]0;x\007\033[31m\033[2Jb\nFORGED c\r\x7f\b\u202egnp\u2066\u009b31m\u0085\u2028d"
BYTES = os.fsencode(EVIL) + b"\xff\xc3\x9b\xe2\x82"
PATH = EVIL.replace("\n", "")
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def clean(text, lines=True):
    if isinstance(text, bytes):
        text = text.decode()  # raises where it is no UTF-8
    found = FORBIDDEN.search(text)
    assert found is None, (found, text)
    assert not lines or not any(line.startswith("FORGED") for line in text.splitlines()), text


def run(*words, code=0, ranks=0, lines=True):
    """A command whose words may be bytes; what it prints, as bytes."""
    import subprocess
    words = [word if isinstance(word, bytes) else os.fsencode(str(word)) for word in words]
    command = (["mpirun", "-np", str(ranks)] if ranks else []) + [dpt.BINARY]
    done = subprocess.run([*map(os.fsencode, command), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=300, env={**os.environ, **dpt.MPI_ENVIRONMENT})
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done
    clean(done.stdout, lines)
    clean(done.stderr, lines)
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A job with such data and such an output, trained."""
    folder = tmp_path_factory.mktemp("evil")
    dice = np.random.default_rng(1)
    shard = folder / f"{PATH}.h5"
    with h5py.File(shard, "w") as file:
        file["images"] = dice.integers(0, 256, (64, 1, 8, 8), dtype=np.uint8)
        file["labels"] = np.arange(64) % 3
        file["labels"].attrs["classes"] = np.array([os.fsencode(f"{EVIL}{i}") for i in range(2)] + [BYTES])
        file["layout" + EVIL.replace("/", "")] = np.zeros(3)
    quoted = json.dumps(str(shard).replace("[", "[[]"))
    job = dpt.write_job(folder / "job.yaml", f"""
data: {{train: {quoted}, test: {quoted}}}
model: {{type: linear, outputs: 3}}
batch: {{global: 16}}
train: {{epochs: 1}}
eval: {{every: 1 epoch}}
""")
    out = folder / f"runs{PATH}"
    run(job, "--output", out, ranks=2)
    return folder, job, shard, out


def test_a_name_is_refused(place, tmp_path):
    job = dpt.write_job(tmp_path / "job.yaml", f"name: {json.dumps(EVIL)}\n" + open(place[1], encoding="utf-8").read())
    assert b"job.yaml:1:7: name: " in run(job, code=78).stderr


def test_a_run_and_what_it_leaves(place):
    _, _, _, out = place
    clean((out / "log.txt").read_bytes())
    clean((out / "metrics.jsonl").read_bytes())
    clean((out / "job.yaml").read_bytes())
    for file in (out / "checkpoints").iterdir():
        clean(file.name)


# A command that is added has a row here.
COMMANDS = {
    "train": lambda f, j, s, o: run(j, "--output", o, "--set", "train.epochs=2", "--resume", "auto"),
    "eval": lambda f, j, s, o: run("eval", j, "--checkpoint", o),
    "predict": lambda f, j, s, o: run("predict", j, "--checkpoint", o, "--input", str(s).replace("[", "[[]"), "--out",
                                      f / f"said{PATH}.h5"),
    "bench": lambda f, j, s, o: run("bench", j, "--set", "batch.global=8"),
    "plan": lambda f, j, s, o: (run("plan", j), run("plan", j, "--json")),
    "report": lambda f, j, s, o: (run("report", o, "-o", f / "page.html"), clean((f / "page.html").read_bytes(), lines=False)),
    "export": lambda f, j, s, o: (run("export", o, "--to", "onnx", f / f"{PATH}.onnx"),
                                  run("export", o, "--to", EVIL, f / "x", code=2)),
    "convert": lambda f, j, s, o: (
        (f / BYTES.decode(errors="surrogateescape")).write_text("1,2,a\n3,4,b\033[1m\n"),
        run("convert", "csv", os.fsencode(f) + b"/" + BYTES, "--output", f / f"made{PATH}", "--header", "no")),
    "inspect": lambda f, j, s, o: (run("inspect", s), run("inspect", o), run("inspect", o, "--job"),
                                   run("inspect", s, "--diff", o / "checkpoints" / "latest", code=(0, 1, 65), lines=False)),
    "watch": lambda f, j, s, o: run("watch", "--once", o),
    "compare": lambda f, j, s, o: (run("compare", o, o), run("compare", "--json", o, o)),
    "doctor": lambda f, j, s, o: (run("doctor", "--output", f / f"here{PATH}", code=(0, 1)),
                                  run("doctor", "--output", f / f"here{PATH}", "--json", code=(0, 1))),
    "schema": lambda f, j, s, o: (
        (f / f"{PATH}.yaml").write_text(f"name: x\n{json.dumps(EVIL)}: 1\nlr\033: 2\n"),
        run("schema", "--check", f / f"{PATH}.yaml", code=78)),
    "completion": lambda f, j, s, o: (run("completion", "bash"), run("completion", EVIL, code=2)),
    "layers": lambda f, j, s, o: (run("layers"), run("layers", EVIL, code=2)),
    "man": lambda f, j, s, o: run("man"),
    "init": lambda f, j, s, o: run("init", s, "--output", "-"),
}


def test_no_command_is_forgotten():
    listed = dpt.run("--help").out.split("commands:\n")[1].split("\n\n")[0]
    assert {line.split()[0] for line in listed.splitlines()} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_command(place, command):
    COMMANDS[command](*place)


@pytest.mark.parametrize("command", COMMANDS)
def test_words_that_are_refused(place, command):
    for words in ([command, BYTES], [command, "--" + EVIL], [command, "--set", BYTES, "--set", EVIL]):
        run(*words, code=(0, 2, 65, 71, 74, 78), lines=command not in ("inspect",))


def test_words_of_the_environment():
    run(EVIL, code=2)
    run(BYTES, code=(2, 74, 78))


@pytest.mark.parametrize("text, says", [
    (b"name: \"\033[31m\"\n", "not a text file"), (b"name: a\xc2\x9bb\n", "U+009B is not allowed"),
    (b"name: a\xffb\n", "is not UTF-8"),
])
def test_what_yaml_refuses_itself(tmp_path, text, says):
    """Raw controls and damaged UTF-8 never come in by a job file; escapes like "\\e" in it do."""
    (tmp_path / "j.yaml").write_bytes(text)
    assert says in run("plan", tmp_path / "j.yaml", code=78).stderr.decode()
