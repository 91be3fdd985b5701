"""What the tests of stopping and starting share: runs that go on beside the test, and can be made to stand still."""
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

JOB = """
seed: 5
data:
  train: synthetic
  valid: 0.1
  synthetic: {{samples: 1009, shape: [1, 12, 12]}}
model:
  type: sequential
  layers: [{{conv: {{channels: 6, padding: same}}}}, relu, {{maxpool: 2}}, flatten, {{dropout: 0.3}}, {{dense: 10}}]
batch: {{global: 64, micro: 8}}
optimizer: {{type: adam, lr: 0.01}}
train: {{epochs: {epochs}}}
checkpoint: {{every: 7 steps, keep: 3}}
log: {{every: 1 steps}}
"""


def job(tmp_path, epochs=6):
    """15 steps an epoch, a checkpoint every 7."""
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(epochs=epochs))


def newest(folder):
    return (folder / "checkpoints" / "latest").read_bytes()


def steps_logged(folder):
    return [e["step"] for e in dpt.events(folder, "train")]


def start(path, folder, ranks, *words, **environment):
    command = [dpt.BINARY, path, "--output", str(folder), *map(str, words)]
    if ranks > 1:
        command = ["mpirun", "-np", str(ranks), *command]
    return subprocess.Popen(command, env={**os.environ, **dpt.MPI_ENVIRONMENT, **environment}, start_new_session=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_until(process, true, seconds=100):
    """Returns once true() holds or the process has ended."""
    end = time.monotonic() + seconds
    while process.poll() is None and not true():
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.002)


def wait_for_step(process, folder, step):
    file = folder / "metrics.jsonl"
    wait_until(process, lambda: file.exists() and f'"train", "step": {step},' in file.read_text())


def ranks_of(process):
    """The processes that train: children of mpirun, or the process itself."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
                name, rest = re.match(r"\d+ \((.*)\) (.*)", file.read()).groups()
        except (FileNotFoundError, ProcessLookupError, AttributeError):
            continue
        if name == "dptrain" and (int(pid) == process.pid or int(rest.split()[1]) == process.pid):
            found.append(int(pid))
    return sorted(found)


def is_stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


def stands_still(pid):
    """Whether every thread of a stopped process has noticed."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as file:
            if file.read().rsplit(")", 1)[1].split()[0] not in "TZ":
                return False
    return True


class Paused:
    """A run all of whose ranks stand still, in the middle of its training."""

    def __init__(self, path, folder, ranks, *words, step=None, until=None):
        if until is None:
            # Rank 0 stops itself behind the step, so no run is too short; the others wait for it.
            self.process = start(path, folder, ranks, *words, DPTRAIN_FAULT=f"stop:rank=0:step={step + 1}")
            wait_until(self.process, lambda: any(map(is_stopped, ranks_of(self.process))))
        else:
            self.process = start(path, folder, ranks, *words)
            wait_until(self.process, until)
        self.pids = ranks_of(self.process)
        if len(self.pids) != ranks:
            raise AssertionError("it has ended already: " + self.process.communicate(timeout=60)[1].decode())
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(self.process, lambda: all(map(stands_still, self.pids)))
        assert self.process.poll() is None, "it is too short to be stopped in the middle"

    def kill(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=60)

    def go_on(self):
        """To its end: the exit code and what it said."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
        _, err = self.process.communicate(timeout=100)
        return self.process.returncode, err.decode(errors="replace")
