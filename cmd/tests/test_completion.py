"""Completion, as bash, zsh and fish themselves do it with the scripts that dptrain prints."""
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

COMMANDS = {"train", "eval", "convert", "inspect", "schema", "completion"}


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files to complete, and the three scripts."""
    folder = tmp_path_factory.mktemp("completion")
    for name in ("job.yaml", "joint.yml", "jobless.txt", "a b.yaml", "step-1.h5"):
        (folder / name).write_text("")
    (folder / "jolly").mkdir()
    for shell in ("bash", "zsh", "fish"):
        result = dpt.run("completion", shell)
        assert result.code == 0 and result.err == "", result
        (folder / f"script.{shell}").write_text(result.out)
    return folder


def bash(folder, line):
    """What COMPREPLY becomes; words are parted as readline does it."""
    words = [w for w in re.split(r"(=+)|\s+", line) if w]
    if line[-1] in " ":
        words.append("")
    quoted = " ".join("'" + w + "'" for w in words)
    script = (f"source {folder}/script.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
              f"COMP_LINE='{line}'; COMP_POINT={len(line)}; _dptrain; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    done = subprocess.run(["bash", "--norc", "-c", script], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=100, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.stderr == b"", done
    before = line.rsplit("=", 1)[0] + "=" if "=" in line.rsplit(" ", 1)[-1] else ""
    before = before.rsplit(" ", 1)[-1]
    return {(before + word).rstrip("/") for word in done.stdout.decode().split("\n") if word}


def fish(folder, line):
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["fish", "--no-config", "-c", f"source {folder}/script.fish; complete -C '{line}'"],
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, env=environment)
    assert done.stderr == b"", done
    return {row.split("\t")[0].rstrip("/") for row in done.stdout.decode().split("\n") if row}


class Terminal:
    """A shell at a terminal."""

    def __init__(self, *command, cwd):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as why:  # a chroot without /dev/pts
            pytest.skip(f"there is no terminal to be had: {why}")
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(command[0], command, {**os.environ, "TERM": "dumb", "PS1": "READY>", "LC_ALL": "C.UTF-8",
                                             "COLUMNS": "2000"})

    def until(self, pattern, seconds=60):
        text, end = "", time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
            if re.search(pattern, text):
                return text
        raise AssertionError(f"waited for {pattern}, got {text!r}")

    def type(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        self.type("\x15exit\n")
        os.close(self.fd)
        os.waitpid(self.pid, 0)


ZSH = """zmodload zsh/zutil
autoload -Uz compinit && compinit -u -D
source {folder}/script.zsh
unsetopt ZLE_BRACKETED_PASTE 2>/dev/null
show() {{ local -a all; compadd() {{
    local -a found; local -i i=1
    builtin compadd -O found "$@"; all+=($found); builtin compadd "$@"; }}
    _main_complete; print -rl -- $all >{folder}/offered; unfunction compadd; }}
zle -C show complete-word show
bindkey '^I' show
"""


def zsh_all(folder, lines):
    """What one zsh at a terminal offers for each line."""
    (folder / "setup.zsh").write_text(ZSH.format(folder=folder))
    terminal = Terminal("zsh", "-f", cwd=folder)
    answers = []
    try:
        terminal.until("READY>")
        terminal.type(f"source {folder}/setup.zsh; echo SET''UP\n")
        terminal.until(r"SETUP\r[\s\S]*READY>")  # a key before the prompt is not the editor's
        for number, line in enumerate(lines):
            terminal.type(line + "\t")
            terminal.type(f"\x15echo DO''NE{number}\n")
            terminal.until(rf"DONE{number}\r[\s\S]*READY>")
            answers.append({word.split(":")[0].rstrip("/").replace("\\", "") for word in (folder / "offered").read_text().split("\n")
                            if word})
            (folder / "offered").write_text("")
    finally:
        terminal.close()
    return answers


# A line, what is among the offers, what is not.
CASES = [
    ("dptrain ", COMMANDS | {"job.yaml", "joint.yml", "a b.yaml", "jolly"}, {"jobless.txt", "step-1.h5"}),
    ("dptrain tr", {"train"}, {"eval", "job.yaml"}),
    ("dptrain jo", {"job.yaml", "joint.yml", "jolly"}, {"train", "jobless.txt"}),
    ("dptrain train jo", {"job.yaml", "joint.yml", "jolly"}, {"train", "jobless.txt"}),
    ("dptrain train --", {"--set", "--ranks", "--resume", "--output", "--quiet", "--help"}, {"--checkpoint"}),
    ("dptrain job.yaml --re", {"--resume"}, {"--ranks"}),
    ("dptrain eval job.yaml --", {"--checkpoint", "--split", "--set"}, {"--resume"}),
    ("dptrain eval job.yaml --checkpoint ", {"step-1.h5", "jolly"}, {"job.yaml"}),
    ("dptrain inspect s", {"step-1.h5"}, {"script.bash"}),
    ("dptrain train job.yaml --output ", {"jolly"}, {"job.yaml", "train"}),
    ("dptrain train job.yaml --ranks ", {"auto"}, {"job.yaml"}),
    ("dptrain train job.yaml --resume n", {"none"}, {"auto"}),
    ("dptrain convert ", {"idx", "cifar10", "csv", "npy"}, {"train"}),
    ("dptrain convert csv x --header ", {"auto", "yes", "no"}, set()),
    ("dptrain completion ", {"bash", "zsh", "fish"}, {"job.yaml"}),
    ("dptrain --help sched", {"schedule", "schedule.warmup"}, {"optimizer", "job.yaml"}),
    ("dptrain eval --help batch.", {"batch.global", "batch.micro"}, {"job.yaml"}),
    ("dptrain layers co", {"conv", "conv1d", "cosine", "concat", "constant"}, {"dense", "job.yaml"}),
]

# Lines with --set: keys end with `=`.
SETTINGS = [
    ("dptrain job.yaml --set opt", {"optimizer=", "optimizer.type=", "optimizer.lr=", "optimizer.momentum="},
     {"seed="}),
    ("dptrain train job.yaml --set batch.", {"batch.global=", "batch.micro="}, {"conv.channels="}),
    ("dptrain train job.yaml --set schedule.scale", {"schedule.scale_lr.rule="}, set()),
    ("dptrain train job.yaml --set optimizer.type=", {"optimizer.type=adam", "optimizer.type=sgd"}, set()),
    ("dptrain train job.yaml --set optimizer=ad", {"optimizer=adam", "optimizer=adamw"}, {"optimizer=sgd"}),
    ("dptrain eval job.yaml --set data.shuffle=", {"data.shuffle=full", "data.shuffle=none"}, {"job.yaml"}),
    ("dptrain eval job.yaml --set batch.micro=a", {"batch.micro=auto"}, set()),
    ("dptrain train job.yaml --set log.hashes=", {"log.hashes=true", "log.hashes=false"}, set()),
    ("dptrain train job.yaml --set model.type=", {f"model.type={m}" for m in ("sequential", "mlp", "cnn", "linear")},
     set()),
]


def check(found, line, wanted, unwanted):
    assert wanted <= found and not unwanted & found, f"{line!r}: {found}"


@pytest.mark.parametrize("line, wanted, unwanted", CASES + SETTINGS)
def test_bash(folder, line, wanted, unwanted):
    check(bash(folder, line), line, wanted, unwanted)


def test_bash_options_with_an_equals_sign(folder):
    assert bash(folder, "dptrain train job.yaml --resume=n") == {"--resume=none"}


def test_bash_completes_at_a_terminal(folder):
    terminal = Terminal("bash", "--norc", "--noprofile", "-i", cwd=folder)
    try:
        terminal.until("READY>")
        terminal.type(f"dptrain() {{ printf '<%s>' \"$@\"; echo; }}; source {folder}/script.bash; echo SET''UP\n")
        terminal.until(r"SETUP\r[\s\S]*READY>")  # a key before the prompt is not the editor's
        for typed, becomes in (("tra\t jo\x08ob\t --ou\tjol\t", "<train><job.yaml><--output><jolly/>"),
                               ("ev\tjob.y\t--set optimizer.t\tsg\t", "<eval><job.yaml><--set><optimizer.type=sgd>")):
            terminal.type("dptrain " + typed + "\n")
            terminal.until(re.escape(becomes))
    finally:
        terminal.close()


def test_zsh(folder):
    need("zsh")
    subprocess.run(["zsh", "-n", folder / "script.zsh"], check=True, timeout=100)
    cases = CASES + [(line, {w.split("=")[-1] or w.rstrip("=") for w in wanted}, {u.rstrip("=") for u in unwanted})
                     for line, wanted, unwanted in SETTINGS]
    for found, (line, wanted, unwanted) in zip(zsh_all(folder, [c[0] for c in cases]), cases):
        check(found, line, wanted, unwanted)


def test_zsh_finds_the_script_by_its_name(folder):
    """Put as _dptrain into a folder of fpath, it is loaded when it is first wanted."""
    need("zsh")
    (folder / "functions").mkdir()
    shutil.copy(folder / "script.zsh", folder / "functions" / "_dptrain")
    text = subprocess.run(["zsh", "-f", "-c", f"fpath=({folder}/functions $fpath); autoload -Uz compinit; "
                           "compinit -u -D; print -r -- $_comps[dptrain]"], check=True, stdout=subprocess.PIPE,
                          timeout=60).stdout
    assert text.strip() == b"_dptrain"


@pytest.mark.parametrize("line, wanted, unwanted", CASES + SETTINGS)
def test_fish(folder, line, wanted, unwanted):
    need("fish")
    check(fish(folder, line), line, wanted, unwanted)


def test_fish_parses(folder):
    need("fish")
    subprocess.run(["fish", "--no-execute", folder / "script.fish"], check=True, timeout=100)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_of_every_command_is_there(folder, shell):
    script = (folder / f"script.{shell}").read_text()
    names = dpt.run("--help").out.split("commands:\n")[1].split("\n\n")[0]
    for command in [line.split()[0] for line in names.splitlines()]:
        assert re.search(rf"\b{command}\b", script)
        options = dpt.run(command, "--help").out.split("\noptions:\n")[1].split("\n\n")[0]
        for option in re.findall(r"^  --([a-z0-9-]+)", options, re.M):
            assert re.search(rf"(--|-l ){option}\b", script), option


@pytest.mark.parametrize("words, says", [([], "give one shell"), (["bsh"], "did you mean 'bash'?"),
                                         (["bash", "zsh"], "give one shell"), (["tcsh"], "none of bash, zsh, fish")])
def test_usage(words, says):
    result = dpt.run("completion", *words)
    assert result.code == 2 and says in result.err and result.out == "", result
