"""What the comparisons of the job that `dptrain init` writes share: running its commands, what it says of itself, means and errors."""
import json
import subprocess
import sys

import numpy as np


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def events_of(run_folder):
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]


def tested(events):
    """The accuracy on the test samples of the checkpoint that a user would take."""
    return [event["accuracy"] for event in events if event["event"] in ("eval", "best") and event["split"] == "test"][-1]


def error_of(scores):
    """The standard error of the mean."""
    return np.std(scores, ddof=1) / np.sqrt(len(scores)) if len(scores) > 1 else 0


def shown(scores):
    return f"{np.mean(scores):.4f} ± {error_of(scores):.4f}"
