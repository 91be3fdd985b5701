"""What the tests of stopping and starting share: runs that go on beside the test, and can be made to stand still."""
import contextlib
import os
import re
import signal
import sys

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402
from dpt import newest, ranks_of, start, steps_logged, wait_for_step, wait_until  # noqa: E402, F401


def job(tmp_path, epochs=6):
    """15 steps an epoch, a checkpoint every 7."""
    return dpt.write_small_job(tmp_path / "job.yaml", train=f"{{epochs: {epochs}}}")


def is_stopped(pid):
    """Whether a process stands still: one that has ended since it was listed does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_pending(pid, number):
    """Whether a signal waits for a process, as for one that is stopped."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return bool(int(re.search(r"^ShdPnd:\s*(\w+)$", file.read(), re.M)[1], 16) >> (number - 1) & 1)


def stands_still(pid):
    """Whether every thread of a stopped process has noticed."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as file:
            if file.read().rsplit(")", 1)[1].split()[0] not in "TZ":
                return False
    return True


class Ended(AssertionError):
    """A run had ended before it could be paused: its exit code, and what it said."""


class Paused:
    """A run all of whose ranks stand still, in the middle of its training."""

    def __init__(self, path, folder, ranks, *words, step=None, until=None, **environment):
        if until is None:
            # Rank 0 stops itself behind the step, so no run is too short; the others wait for it.
            self.process = start(path, folder, ranks, *words, DPTRAIN_FAULT=f"stop:rank=0:step={step + 1}", **dpt.ENDS_AT_ONCE,
                                 **environment)
            wait_until(self.process, lambda: any(map(is_stopped, ranks_of(self.process))))
        else:
            self.process = start(path, folder, ranks, *words, **environment)
            wait_until(self.process, until)
        self.pids = ranks_of(self.process)
        if len(self.pids) != ranks:
            _, err = self.process.communicate(timeout=60)
            raise Ended(self.process.returncode, err.decode(errors="replace"))
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        wait_until(self.process, lambda: all(map(stands_still, self.pids)))
        assert self.process.poll() is None, "it is too short to be stopped in the middle"

    def kill(self):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):  # one of which mpirun ended as the first one died
                os.kill(pid, signal.SIGKILL)
        self.process.communicate(timeout=60)

    def go_on(self):
        """To its end: the exit code and what it said."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)
        _, err = self.process.communicate(timeout=100)
        return self.process.returncode, err.decode(errors="replace")


def stop_at(path, folder, step, ranks, *words):
    """Asks all ranks to stop once they have made a step: the exit code, and what the run said. One that ends before is not asked."""
    try:
        paused = Paused(path, folder, ranks, *words, step=step, mpirun=True)
    except Ended as ended:
        return ended.args
    paused.process.send_signal(signal.SIGUSR1)  # mpirun hands it on
    wait_until(paused.process, lambda: all(is_pending(pid, signal.SIGUSR1) for pid in paused.pids))
    return paused.go_on()
