"""Measures what checkpoints cost; scripts/bench-checkpoint.sh says what and how."""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dpt  # noqa: E402

EVERY, SAVES, BATCH = 10, 4, 128
HALF = EVERY // 2
JOB = f"""
data: {{train: synthetic, synthetic: {{samples: 4096, shape: [784], classes: 10}}}}
model: {{type: sequential, layers: [dense: 4608, relu, dense: 4608, relu, dense: 10]}}
batch: {{global: {BATCH}}}
optimizer: {{type: adam, lr: 1.0e-3}}
train: {{steps: {EVERY * (SAVES + 1)}, check_replicas: never}}
checkpoint: {{keep: 1}}
log: {{every: 1 steps}}
"""
MODES = {
    "no saving": ["checkpoint.every=never"],
    "in the background": [f"checkpoint.every={EVERY} steps"],
    "waiting for it": [f"checkpoint.every={EVERY} steps", "checkpoint.background=false"],
}


class Measured:
    """Times of one way of saving, over all rounds."""

    def __init__(self):
        self.steps, self.saves, self.costs = [], [], []
        self.bytes = 0

    def add(self, folder, waits):
        """
        The steps right after a save are slower than the later ones where it continues beside them; that, and what training waited,
        is the save's cost. The last save, at the end, is waited for in any case and does not count.
        """
        steps = [BATCH / e["samples_per_s"] for e in dpt.events(folder, "train")]
        saves = {e["step"]: e for e in dpt.events(folder, "checkpoint")}
        for step in range(EVERY, EVERY * (SAVES + 1), EVERY):
            first, later = steps[step:step + HALF], steps[step + HALF:step + EVERY]
            slower = sum(first) - HALF * statistics.median(later)
            saved = saves.get(step, {"seconds": 0, "copy_seconds": 0})
            waited = saved["seconds" if waits else "copy_seconds"]
            self.costs.append(slower + waited)
            self.saves.append(saved["seconds"])
            self.steps.append(statistics.mean(first + later) + waited / EVERY)
        if saves:
            self.bytes = os.path.getsize(os.path.join(folder, "checkpoints", "latest"))


def dd(path, size):
    began = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size}", "iflag=count_bytes", "conv=fsync", "status=none"],
                   check=True)
    seconds = time.monotonic() - began
    os.unlink(path)
    return seconds


def row(*cells):
    print("| " + " | ".join(cells) + " |")


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main():
    parser = argparse.ArgumentParser(usage="scripts/bench-checkpoint.sh [--rounds N] [--ranks N] [--folder DIR]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--folder", default=os.path.join("build", "bench"))
    arguments = parser.parse_args()
    top = os.path.join(arguments.folder, "checkpoint")
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    job, run = dpt.write_job(os.path.join(top, "job.yaml"), JOB), os.path.join(top, "run")
    measured, copied = {mode: Measured() for mode in MODES}, []
    for number in range(arguments.rounds):
        print(f"\rround {number + 1} of {arguments.rounds}", end="", file=sys.stderr, flush=True)
        for mode, words in MODES.items():
            sets = [part for word in words for part in ("--set", word)]
            dpt.train(job, run, "--quiet", *sets, ranks=arguments.ranks)
            measured[mode].add(run, waits="checkpoint.background=false" in words)
        copied += [dd(os.path.join(top, "dd"), measured["waiting for it"].bytes) for _ in range(SAVES)]
    print(file=sys.stderr)
    shutil.rmtree(top)
    report(measured, copied, arguments)


def report(measured, copied, arguments):
    none, beside, waiting = measured.values()
    size = waiting.bytes / 1e6
    dd_seconds, save_seconds = statistics.median(copied), statistics.median(waiting.saves)
    print(f"{size:.0f} MB, {arguments.ranks} rank{'s' if arguments.ranks > 1 else ''}, "
          f"{arguments.rounds} rounds of {SAVES} saves; medians (ranges)\n")
    row("written by", "seconds", "MB/s")
    row("---", "---", "---")
    row("`dd conv=fsync`", spread(copied, ".3f"), f"{size / dd_seconds:.0f}")
    row("dptrain, waiting for it", spread(waiting.saves, ".3f"), f"{size / save_seconds:.0f}")
    row("dptrain, in the background", spread(beside.saves, ".3f"), f"{size / statistics.median(beside.saves):.0f}")
    print(f"\nA save reaches {100 * dd_seconds / save_seconds:.0f} % of dd's speed.\n")
    row(f"a save every {EVERY} steps", "seconds per step", "a save costs training, seconds")
    row("---", "---", "---")
    for mode, m in measured.items():
        row(mode, spread(m.steps, ".4f"), spread(m.costs, ".3f") + (" (the noise)" if m is none else ""))
    ratio = statistics.median(beside.costs) / statistics.median(waiting.costs)
    print(f"\nIn the background a save costs training {100 * ratio:.0f} % of what it costs where training waits for it.")


if __name__ == "__main__":
    main()
