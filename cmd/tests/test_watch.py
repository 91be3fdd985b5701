"""`dptrain watch`: at a terminal, in a pipe, of runs in any state."""
import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
import unicodedata

import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
from running import Paused  # noqa: E402

UTF8, PLAIN = {"LC_ALL": "C.UTF-8"}, {"LC_ALL": "C"}


class Terminal:
    """dptrain at a terminal, and what that shows: an array of characters, as the sequences make it."""

    def __init__(self, *words, columns=80, rows=24, **environment):
        try:
            self.pid, self.fd = pty.fork()
        except OSError as why:  # a chroot without /dev/pts
            pytest.skip(f"there is no terminal to be had: {why}")
        if self.pid == 0:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execve(dpt.BINARY, [dpt.BINARY, *map(str, words)], {**os.environ, "TERM": "xterm", **UTF8, **environment})
        self.columns, self.rows, self.raw, self.left = columns, rows, "", ""
        self.other = self.cursor = False  # on the other screen; the cursor is hidden
        self.clear()

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.x = self.y = 0
        self.full = False

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)

    def _sequence(self, sequence):
        body, kind = sequence[2:-1], sequence[-1]
        if kind == "H":
            self.x = self.y = 0
        elif kind == "K":
            self.cells[self.y][self.x:] = [" "] * (self.columns - self.x)
        elif kind == "J":
            if body == "2":
                self.cells = [[" "] * self.columns for _ in range(self.rows)]
            else:
                self.cells[self.y][self.x:] = [" "] * (self.columns - self.x)
                self.cells[self.y + 1:] = [[" "] * self.columns for _ in range(self.rows - self.y - 1)]
        elif body == "?1049":
            self.other = kind == "h"
        elif body == "?25":
            self.cursor = kind == "l"
        else:
            assert kind == "m" or body == "?7", sequence

    def _take(self, text):
        self.raw += text
        text = self.left + text
        for piece in re.findall(r"\033\[[?0-9;]*[A-Za-z]|\033[^A-Za-z]*$|[^\033]", text):
            self.left = piece if piece[0] == "\033" and not piece[-1].isalpha() else ""
            if self.left or not self.other and piece[0] != "\033":
                continue
            if piece[0] == "\033":
                self._sequence(piece)
            elif piece == "\r":
                self.x = 0
            elif piece == "\n":
                self.y += 1
                assert self.y < self.rows, "it scrolls"
            else:
                assert not self.full, "a line is too long"
                self.cells[self.y][self.x] = piece
                self.full = self.x == self.columns - 1  # where the cursor stays, since lines do not wrap
                self.x += not self.full
                continue
            self.full = self.full and piece[0] == "\033" and piece[-1] not in "H"

    def read(self, seconds):
        """Whether anything came; None: the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError as why:
            assert why.errno == errno.EIO
            return None
        while len(data) > 0 and data[-1] >= 0x80 and select.select([self.fd], [], [], 1)[0]:  # in the middle of a character
            data += os.read(self.fd, 1)
        self._take(data.decode())
        return True

    def until(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            assert time.monotonic() < end and self.read(0.5) is not None, f"waited for {pattern}, got\n{self.text()}"
        while self.read(0.05):
            continue
        return self.text()

    def settings(self):
        return termios.tcgetattr(self.fd)

    def type(self, text):
        os.write(self.fd, text.encode())

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.clear()
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self, seconds=60):
        """Reads to the end; the process's wait status."""
        end = time.monotonic() + seconds
        while self.read(0.5) is not None:
            assert time.monotonic() < end, "it does not end"
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return status


def write(folder, *events):
    folder.mkdir(exist_ok=True)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def begin(folder, steps=100, **more):
    write(folder, {"event": "run", "name": "my-run", "device": "cpu", "ranks": 2, "hosts": 1, "global": 10, "steps": steps,
                   "steps_per_epoch": 20, **more})


def step(number, accuracy=True):
    event = {"event": "train", "step": number, "epoch": (number - 1) // 20 + 1, "loss": 100 / number, "lr": 0.125,
             "samples_per_s": 50, "samples": number * 10}
    return {**event, "accuracy": number / 200} if accuracy else event


def evaluation(number, split="valid"):
    return {"event": "eval", "step": number, "split": split, "loss": 3.25, "accuracy": 0.75 - number / 1000, "samples": 5}


@pytest.fixture
def folder(tmp_path):
    """A run that has come to step 60 of 100 and no further."""
    begin(tmp_path / "run")
    write(tmp_path / "run", *(step(n) for n in range(1, 61)), evaluation(20), evaluation(40), evaluation(60),
          {"event": "checkpoint", "step": 55, "path": "x.h5", "seconds": 1})
    return tmp_path / "run"


def snapshot(*words, **environment):
    result = dpt.run("watch", *words, env={**UTF8, **environment})
    assert result.code == 0 and "\033" not in result.out, result
    return result.out


def test_in_a_pipe(folder):
    text = snapshot(folder)
    for words in ("my-run", "epoch 3 of 5", "step 60 of 100", "loss 1.667", "accuracy 0.3000", "lr 0.125", "50 samples/s",
                  "2 ranks, cpu", "60 %", "valid loss 3.25  accuracy 0.6900 at step 60; best 0.7300 at step 20", "saved step 55",
                  "lost", "stopped by force"):
        assert words in text, f"{words} is not in\n{text}"
    assert max(map(len, text.splitlines())) <= 80 and any(0x2800 < ord(c) < 0x2900 for c in text)
    assert text.count("o") >= 3


def width(text):
    """On a terminal."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)


@pytest.mark.parametrize("columns", [20, 21, *range(30, 84, 7), 132, 300])
def test_fits_any_width(folder, columns):
    """Whatever stands in it: wide characters take two columns."""
    other = folder.parent / "ラン 漢字 cafe\u0301"
    begin(other, steps=1000000, name="走る " * 5, device="cpu (漢字)")
    write(other, step(60), {"event": "end", "step": 60, "reason": "rank 1 did 何か that takes a long sentence 漢字 to tell of, on and on"})
    for words in ((folder,), (other,), (folder, other)):
        lines = snapshot(*words, COLUMNS=str(columns)).splitlines()
        assert max(map(width, lines)) <= columns and len(lines) > 2


def test_epochs(folder):
    assert "epoch loss" not in snapshot(folder)  # metrics of older versions have none
    write(folder, *({"event": "epoch", "step": n, "epoch": n // 20, "loss": 2.5, "accuracy": n / 100, "samples": 200} for n in (20, 40, 60)))
    text = snapshot(folder)
    assert "epoch loss 2.5  accuracy 0.6000 at step 60\n" in text and "+ epoch" in text and text.count("+") == 2 * (3 + 1), text


def test_without_utf8(folder):
    text = snapshot(folder, **PLAIN)
    assert text.isascii() and "|" in text and "#" in text and re.search(r"\| +[.:']", text)


def test_how_it_ended(tmp_path):
    for name, reason, state in (("done", "done", "done"), ("wait", "stopped after step 60 of 100 (SIGTERM), all is saved", "stopped"),
                                ("bad", "step 60: rank 1: \033[2Jnot a number", "failed")):
        begin(tmp_path / name)
        write(tmp_path / name, step(60), {"event": "end", "step": 60, "reason": reason, "seconds": 63.2})
        text = snapshot(tmp_path / name)
        assert re.search(rf" {state}$", text.splitlines()[0]) and "took 1:03" in text, text
        assert reason == "done" or reason.split("\033")[0] in text
    both = snapshot(*(tmp_path / name for name in ("done", "wait", "bad")))
    assert [line.split()[1] for line in both.splitlines()[1:]] == ["done", "stopped", "failed"]


@pytest.mark.parametrize("generation, state", [(3, "failed"), (2, "running")])
def test_a_process_that_outlives_its_run(folder, generation, state):
    """A watchdog told the end while the owner still hangs; or that was an earlier owner's end, and the run starts again."""
    (folder / ".lock").write_text("dptrain host=n7 pid=7 start=1 boot=b pids=1 slurm=- restart=0 generation=3 since=2026-01-01T00:00:00\n")
    assert snapshot(folder).splitlines()[0].endswith(" running on n7")
    write(folder, {"event": "end", "step": 60, "reason": "rank 0 (n7) has not arrived", "generation": generation})
    assert snapshot(folder).splitlines()[0].endswith(" running on n7" if state == "running" else " failed")


def test_a_resumed_run(folder):
    begin(folder, steps=200, resumed_from_step=60)
    write(folder, *(step(n) for n in range(61, 101)))
    text = snapshot(folder)
    assert "resumed at step 60" in text and "step 100 of 200" in text and "epoch 5 of 10" in text


def test_damage(folder):
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"event": "train", "st\n' + json.dumps(step(61)) + "\n" + json.dumps(step(62))[:30])
    text = snapshot(folder)
    assert "step 61 of" in text and "1 line of metrics.jsonl makes no sense" in text


def test_without_classes_or_steps(tmp_path):
    begin(tmp_path / "run")
    assert "step 0 of 100" in snapshot(tmp_path / "run")
    write(tmp_path / "run", *(step(n, accuracy=False) for n in (10, 20)))
    text = snapshot(tmp_path / "run")
    assert "accuracy" not in text and "loss" in text
    write(tmp_path / "run", {**step(30, accuracy=False), "loss": None})
    assert "step 30 of" in snapshot(tmp_path / "run")


def test_nothing_there(tmp_path):
    for name, words in (("none", "no such run folder"), (".", "holds no run")):
        result = dpt.run("watch", tmp_path / name)
        assert result.code == 2 and words in result.err and result.out == "", result
    assert dpt.run("watch").code == 2
    (tmp_path / ".lock").write_text("")
    assert "nothing logged yet" in snapshot(tmp_path)


def test_a_real_run(tmp_path):
    """Running, also on several ranks; lost, once it was killed."""
    run = Paused(dpt.write_small_job(tmp_path / "job.yaml"), tmp_path / "out", 2, step=20)
    try:
        text = snapshot(tmp_path / "out")
        assert "running on " in text.splitlines()[0] and "left" in text, text
    finally:
        run.kill()
    assert re.search(r" lost$", snapshot(tmp_path / "out").splitlines()[0])


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_dumb_terminal(folder, environment):
    terminal = Terminal("watch", folder, **environment)
    assert terminal.end() == 0
    assert "\033" not in terminal.raw and "step 60 of 100" in terminal.raw


def test_once(folder):
    terminal = Terminal("watch", "--once", folder)
    assert terminal.end() == 0
    assert "\033[?" not in terminal.raw and "\033[1m" in terminal.raw and "step 60 of 100" in terminal.raw


def test_ctrl_c_behind_keys(folder):
    """The terminal drops what is not read yet with Ctrl-C: perhaps the very key that watch was woken to read."""
    for _ in range(20):
        terminal = Terminal("watch", folder)
        terminal.until("saved step")
        terminal.type("x" * 16)
        terminal.type("\x03")
        assert terminal.end() == 0


@pytest.mark.parametrize("way", ["q", "\x03", "\x04"])
def test_live_until_a_key(folder, way):
    terminal = Terminal("watch", folder)
    text = terminal.until("saved step")
    assert terminal.other and terminal.cursor and text.count("\n") == 23
    assert not terminal.settings()[3] & termios.ECHO
    write(folder, step(61), step(62))
    terminal.until("step 62 of 100")
    terminal.type("x")
    terminal.type(way)
    assert terminal.end() == 0
    assert not terminal.other and not terminal.cursor
    assert "step 62 of 100" in terminal.raw.rsplit("\033[?1049l", 1)[1]  # and what was seen last stays


def state_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def test_gives_the_terminal_back(folder):
    """Its settings too, however it ends or pauses."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        terminal = Terminal("watch", folder)
        terminal.until("saved step")
        keeper = os.open(f"/proc/{terminal.pid}/fd/0", os.O_RDWR | os.O_NOCTTY)
        try:
            raw = termios.tcgetattr(keeper)
            os.kill(terminal.pid, signal.SIGTSTP)
            while state_of(terminal.pid) != "T":
                terminal.read(0.05)
            while terminal.read(0.05):
                continue
            assert not terminal.other and termios.tcgetattr(keeper)[3] & termios.ECHO
            os.kill(terminal.pid, signal.SIGCONT)
            terminal.until("saved step")
            assert terminal.other and termios.tcgetattr(keeper) == raw
            os.kill(terminal.pid, number)
            status = os.waitpid(terminal.pid, 0)[1]
            while terminal.read(0.05):
                continue
            assert status == (0 if number == signal.SIGINT else number)
            assert not terminal.other and not terminal.cursor and termios.tcgetattr(keeper)[3] & termios.ECHO
        finally:
            os.close(keeper)
            os.close(terminal.fd)


def test_follows_the_size(folder):
    terminal = Terminal("watch", folder, columns=80, rows=24)
    terminal.until("accuracy   .* train")
    for columns, rows in ((132, 50), (30, 8), (5, 3), (80, 24)):
        terminal.resize(columns, rows)
        text = terminal.until("my-ru")
        assert len(text.splitlines()) <= rows and ("loss" in text or rows < 8)
        assert rows < 24 or re.search(f"^.{{{columns - 2}}}60$", text, re.M), "the axis ends in the last column"
    terminal.until("saved step")
    terminal.type("q")
    assert terminal.end() == 0


def test_colours_only_where_wanted(folder):
    for environment, colored in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
        terminal = Terminal("watch", folder, **environment)
        terminal.until("saved step")
        terminal.type("q")
        assert terminal.end() == 0 and (re.search(r"\033\[\d+m", terminal.raw) is not None) == colored


def test_several_runs_live(folder, tmp_path):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / ".lock").write_text("")
    terminal = Terminal("watch", folder, tmp_path / "late")
    terminal.until("nothing logged yet")
    begin(tmp_path / "late")
    write(tmp_path / "late", step(25), evaluation(25))
    text = terminal.until(r"late +running +25  25% +4 0\.7250 +50 +0:15")
    assert re.search(r"run +lost +60  60% +1\.667 0\.7300 +50", text) and "state" in text.splitlines()[0]
    terminal.type("q")
    assert terminal.end() == 0


def test_labels_beside_each_other_differ(tmp_path):
    begin(tmp_path / "run")
    write(tmp_path / "run", *({**step(n), "loss": 0.123 + n * 1e-6, "accuracy": 0.9} for n in range(1, 61)))
    labels = re.findall(r"^ +(\S+) │", snapshot(tmp_path / "run").split("accuracy ")[-2].split("loss ")[-1], re.M)
    assert len(labels) == 3 and len(set(labels)) == 3, labels


def test_the_live_line_follows_the_width(tmp_path):
    """A run's live line would spill over if the terminal was made narrower."""
    job = dpt.write_small_job(tmp_path / "job.yaml", train="{epochs: 100000}", checkpoint="{every: never}", log="{every: never}")
    terminal = Terminal(job, "--output", tmp_path / "out", columns=80, rows=24)

    def next_lines(n):
        seen = len(terminal.raw)
        while len(lines := re.findall(r"\r([^\r\033\n]+)\033\[K", terminal.raw[seen:])) < n:
            assert terminal.read(30), terminal.raw
        return lines

    assert max(map(len, next_lines(2))) > 50
    terminal.resize(40, 24)
    next_lines(1)
    assert max(map(len, next_lines(3))) < 40
    terminal.type("\x03")
    terminal.end()
