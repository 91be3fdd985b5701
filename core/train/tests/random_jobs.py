#!/usr/bin/env python3
"""Random whole jobs on random meshes, stopped and resumed, against one rank's bytes.

    random_jobs.py [--seed N] [--count N] [--seconds S] [--device KIND] [--keep FOLDER]

draws a job for each seed from N on (draw_jobs.py), runs it on one rank, on two meshes, and on a chain of meshes on which it is stopped
at random steps; compares checkpoints, losses, evaluations, fingerprints and how it ends, and what `eval` then says of each split. Of a difference it prints the seed, the job, the
commands, and the smallest job that still shows it, and goes on; the exit code is then 1. `--seed N --count 1` repeats one.
`--device cuda` draws jobs for GPUs, which ranks may share, and holds the first step of those in fp32 to the CPU's as well. With several
GPUs each job also runs with `comm.reduction: allreduce` on some of them, one per rank, where NCCL sums: twice, and stopped and resumed, to
the same bytes; and by MPI, to the same first steps but for rounding.
DPTRAIN in the environment names another program than build/dptrain. Needs h5py, as Debian's own python3 has it."""
import argparse
import collections
import functools
import io
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import h5py

STARTED_IN = os.getcwd()
if __name__ == "__main__":
    os.chdir(pathlib.Path(__file__).resolve().parents[3])
sys.path[:0] = ["scripts/lib", "cmd/tests", "core/train/tests"]
import dpt  # noqa: E402
import jobs  # noqa: E402
from draw_jobs import Case, leaves  # noqa: E402
from running import Paused, stop_at  # noqa: E402

BAD_DATA, BAD_JOB, STOPPED = 65, 78, 75


class Difference(Exception):
    """What differs, and the words of the run that does; how: what tells whether two runs' folders are alike, if not compare;
    "linked": one rank's run says nothing of it."""

    def __init__(self, what, ranks=1, words=(), how=None):
        super().__init__(what)
        self.ranks, self.words, self.how = ranks, words, how


def schema():
    result = dpt.run("schema")
    assert result.code == 0, result
    return json.loads(result.out)


def train(path, folder, ranks, words):
    """One rank alone, or several under mpirun."""
    try:
        return dpt.run(path, "--output", folder, "--quiet", *words, ranks=ranks if ranks > 1 else 0, timeout=600)  # beside other work, too
    except subprocess.TimeoutExpired:
        raise Difference("it does not end", ranks, words) from None


# What of a run's lines follows from how long it took.
CLOCK = ("seconds", "samples_per_s", "time", "path")


def told(folder):
    """What a run told, by what it must be the same for: mean losses from one step to another, evaluations, fingerprints."""
    found, last = {}, 0
    for event in dpt.events(folder):
        rest = {key: value for key, value in event.items() if key not in CLOCK and not key.endswith("_seconds")}
        if event["event"] == "run":
            last = event.get("step", 0)
        elif event["event"] == "train":
            found["train", last, event["step"]] = {key: rest.get(key) for key in ("loss", "accuracy", "lr", "epoch", "gradient_norm")}
            last = event["step"]
        elif event["event"] in ("eval", "best"):
            found[event["event"], event["step"], event.get("split")] = rest
        elif event["event"] == "end" and event["reason"] == "done":
            found["end"] = event["step"], event.get("stopped_early")
    hashes = pathlib.Path(folder) / "hashes.jsonl"
    for line in hashes.read_text().splitlines() if hashes.exists() else []:
        step = json.loads(line)
        if "step" in step:
            found["hashes", step["step"]] = step
    return found


def saved(folder):
    """Name -> bytes of a run's checkpoints; all those of one step are the same."""
    return {file.name: file.read_bytes() for file in (pathlib.Path(folder) / "checkpoints").glob("*[0-9].h5")}


def plans(folder):
    """Which kernels a run's newest checkpoint was made by; None: there is none."""
    file = pathlib.Path(folder) / "checkpoints" / "latest"
    if not file.exists():
        return None
    with h5py.File(file, "r") as checkpoint:
        return checkpoint["plans"][()] if "plans" in checkpoint else b""


def content(data, kept):
    """All that a checkpoint's bytes hold, the job without the settings that may be others in it."""
    with h5py.File(io.BytesIO(data), "r") as file:
        found = {"": sorted((key, str(value)) for key, value in file.attrs.items())}
        file.visititems(lambda name, at: found.update({name: at[()].tobytes()} if isinstance(at, h5py.Dataset) and name != "job" else {}))
        job = jobs.load(file["job"][()].decode())
    for path in kept:
        *above, last = path.split(".")
        at = job
        for key in above:
            at = at.get(key, {})
        at.pop(last, None)
    return {**found, "job": jobs.dump(job)}


def compare(one, other, ranks, words, kept):
    """How many things two finished runs both have; a Difference where one of them is not the same."""
    ours, theirs = told(one), told(other)
    for key in ours.keys() & theirs.keys():
        if ours[key] != theirs[key]:
            raise Difference(f"{key}: {ours[key]} on one rank, else {theirs[key]}", ranks, words)
    ours_saved, theirs_saved = saved(one), saved(other)
    for name in ours_saved.keys() & theirs_saved.keys():
        if ours_saved[name] != theirs_saved[name] and content(ours_saved[name], kept) != content(theirs_saved[name], kept):
            raise Difference(f"{name}: other bytes", ranks, words)
    return len(ours.keys() & theirs.keys()) + len(ours_saved.keys() & theirs_saved.keys())


def nearly(one, other, ranks, words, where="on the CPU"):
    """A Difference where the first step of two runs has not nearly the same loss and gradient, as before their weights moved apart."""
    first = [dpt.events(folder, "train")[0] for folder in (one, other)]
    for key in ("loss", "gradient_norm"):
        here, there = (event.get(key) for event in first)
        if None not in (here, there) and here != there and not abs(here - there) <= 1e-3 * max(abs(here), abs(there), 1e-3):
            raise Difference(f"step {first[0]['step']}: {key} {here}, but {there} {where}", ranks, words, nearly)


def is_about_the_mesh(message):
    return "parallel." in message or "rank" in message or "comm.transport: nccl" in message


def count_gpus():
    """Those that the program sees."""
    found = re.search(r"^backend cuda: .* (\d+) GPUs?,", dpt.run("--version").out, re.M)
    return int(found[1]) if found else 0


def reason(message):
    """A refusal without its numbers and names, so that equal ones can be counted."""
    line = next((line for line in message.splitlines() if "warning" not in line), "")
    return re.sub(r"/\S*?: |\([^)]*\)|'[^']*'|\[?\d[\d.,x\]:]*|\bl\d+\b|\b\w+/(weight|bias)", "", line)[:90]


class Runner:
    """Runs a case's job in a folder of its own, and counts."""

    def __init__(self, folder, say=print, tries=60, device=None):
        self.folder, self.say, self.schema, self.device = folder, say, schema(), device
        self.tries = tries  # runs that making one difference's job smaller may take
        self.counts, self.refusals = collections.Counter(), collections.Counter()
        self.gpus = count_gpus() if device == "cuda" else 0
        self.kept = [path for path, _, effect in leaves(self.schema) if effect == "kept"]

    def run(self, seed):
        """One case; a difference is told, counted and kept."""
        folder = os.path.join(self.folder, f"seed-{seed}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        rng = random.Random(seed)
        case = Case(self.schema, seed, rng, folder, self.device, self.gpus)
        case.write()
        self.counts["drawn"] += 1
        try:
            self.check(case, folder)
        except Difference as difference:
            self.counts["different"] += 1
            self.tell(case, folder, difference)
            return
        shutil.rmtree(folder)

    def check(self, case, folder):
        """Runs it on one rank and on others. Differences: whatever is not as on one rank."""
        one, path = f"{folder}/one", case.path
        _, words = case.draw_run(alone=True)
        keeps = ("--set", "checkpoint.keep=all")
        begun = train(path, one, 1, (*words, *keeps))
        case.alone = (*words, *keeps)
        self.counts["runs"] += 1
        ranks, mesh = case.draw_run()
        other = train(path, f"{folder}/mesh-0", ranks, mesh)
        if begun.code not in (0, 1, BAD_DATA, BAD_JOB):
            raise Difference(f"exit {begun.code} on one rank: {begun.err}", 1, words)
        if begun.code != 0:
            self.counts["not finite" if begun.code == 1 else "refused"] += 1
            self.refusals[reason(begun.err)] += begun.code != 1
            if other.code != begun.code:
                raise Difference(f"exit {begun.code} on one rank, else {other.code}: {begun.err}{other.err}", ranks, mesh)
            return
        self.counts["run"] += 1
        # A model may be deep and its init anything: in another precision even the first loss is another then.
        if self.device is not None and case.job["device"].get("precision") == "fp32":
            self.is_as_the_cpu(case, one, f"{folder}/cpu")
        if self.gpus > 1:
            try:
                self.over_links(case, folder, one)
            except Difference as difference:
                raise Difference(f"linked: {difference}", difference.ranks, difference.words, "linked") from None
        self.meets(one, f"{folder}/mesh-0", ranks, mesh, other)
        ranks, mesh = case.draw_run()
        self.meets(one, f"{folder}/mesh-1", ranks, mesh, train(path, f"{folder}/mesh-1", ranks, mesh))
        self.evaluate(case, one)
        if dpt.events(one, "end")[-1]["step"] > 1:
            self.chain(case, folder, one, dpt.events(one, "end")[-1]["step"])

    def is_as_the_cpu(self, case, one, other):
        words = (*case.alone, "--set", "device.kind=cpu")
        result = train(case.path, other, 1, words)
        if result.code != 0:
            raise Difference(f"exit 0, but {result.code} on the CPU: {result.err}", 1, words)
        nearly(one, other, 1, words)
        self.counts["as the CPU"] += 1

    def over_links(self, case, folder, one):
        """The same ranks sum alike each time, by NCCL; MPI, and one rank, sum in other orders."""
        ranks, words = case.draw_linked()
        chosen = case.rng.choice(["none", "optimizer", "gradients", "parameters"])
        shard = ["--set", f"parallel.shard={chosen}", "--set", f"comm.reduction={'reproducible' if chosen in ('gradients', 'parameters') else 'allreduce'}"]
        words += shard
        by = {way: (*words, "--set", f"comm.transport={way}") for way in ("nccl", "mpi")}
        linked, case.alone = f"{folder}/linked", by["nccl"]
        result = train(case.path, linked, ranks, by["nccl"])
        if result.code == BAD_JOB and is_about_the_mesh(result.err):
            self.counts["not linked"] += 1
            return
        if result.code != 0:
            raise Difference(f"exit 0 on one rank, else {result.code}: {result.err}", ranks, by["nccl"])
        self.counts["linked"] += 1
        _, other = case.draw_linked()
        other += [*shard, "--set", "comm.transport=nccl"]
        self.meets_linked(linked, f"{folder}/again", ranks, other, train(case.path, f"{folder}/again", ranks, other))
        result = train(case.path, f"{folder}/mpi", ranks, by["mpi"])
        if result.code != 0:
            raise Difference(f"exit 0 by NCCL, but {result.code} by MPI: {result.err}", ranks, by["mpi"])
        nearly(linked, f"{folder}/mpi", ranks, by["mpi"], "by MPI")
        # Without batch.micro the ranks have micro-batches of other sizes, and the norms over them other numbers.
        if case.job["device"]["precision"] == "fp32" and "micro" in case.job["batch"]:
            nearly(linked, one, ranks, by["nccl"], "on one rank")
        last = dpt.events(linked, "end")[-1]["step"]
        if last > 1:
            parts, saved = f"{folder}/linked-parts", (*by["nccl"], "--set", "checkpoint.every=1 epoch")
            self.stop(case, parts, case.rng.randrange(1, last), ranks, saved)
            self.meets_linked(linked, parts, ranks, saved, train(case.path, parts, ranks, saved))

    def meets_linked(self, one, other, ranks, words, result):
        """With the same plans, which are measured: the same bytes."""
        if result.code == 0 and (plans(one) is None or plans(one) != plans(other)):
            self.counts["other plans"] += 1
            nearly(one, other, ranks, words, "else")
        else:
            self.meets(one, other, ranks, words, result)

    def stop(self, case, folder, step, ranks, words, said=""):
        """Stops a run before a step. False: it is refused for its mesh."""
        try:
            code, err = stop_at(case.path, folder, step, ranks, *words)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise Difference(f"it does not stop ({said}): {error}", ranks, words) from None
        if code == BAD_JOB and is_about_the_mesh(err):
            self.counts["meshes refused"] += 1
            self.refusals[reason(err)] += 1
            return False
        if code not in (0, STOPPED):
            raise Difference(f"exit {code} where it is stopped ({said}): {err}", ranks, words)
        self.counts["stopped"] += code == STOPPED
        return True

    def meets(self, one, other, ranks, words, result):
        """A run has ended as that on one rank, or was refused for its mesh alone."""
        if result.code == BAD_JOB and is_about_the_mesh(result.err):
            self.counts["meshes refused"] += 1
            self.refusals[reason(result.err)] += 1
        elif result.code != 0:
            raise Difference(f"exit 0 on one rank, else {result.code}: {result.err}", ranks, words)
        else:
            self.counts["compared"] += 1
            self.counts["things"] += compare(one, other, ranks, words, self.kept)

    def evaluate(self, case, one):
        """`eval` of each split, on one rank and on another mesh."""
        data = case.job["data"]
        if not os.path.exists(f"{one}/checkpoints/latest"):  # checkpoint.every: never
            return
        for split in ("train", *("valid",) * ("valid" in data), "test"):
            words = ("eval", case.path, "--checkpoint", one, "--split", split, "--json", "--classes")
            words += ("--set", f"data.test={jobs.dump(case.tests[1])}") * (split == "test")
            alone = dpt.run(*words, "--set", "device.threads=1", timeout=120)
            ranks, mesh = case.draw_run()
            other = dpt.run(*words, *mesh, *words[-2:] * (split == "test"), ranks=ranks if ranks > 1 else 0, timeout=120)
            if alone.code == 1 and "not a number: outputs" in alone.err:  # of samples that training has not seen
                self.counts["not finite"] += 1
                continue
            if alone.code != 0:
                raise Difference(f"{' '.join(map(str, words))}: exit {alone.code}: {alone.err}")
            if other.code == BAD_JOB and is_about_the_mesh(other.err):
                self.counts["meshes refused"] += 1
            elif (other.code, other.out) != (alone.code, alone.out):
                raise Difference(f"{' '.join(map(str, words))}: {alone.out} on one rank, else exit {other.code}: {other.out}{other.err}", ranks, mesh)
            else:
                self.counts["evaluated"] += 1

    def chain(self, case, folder, one, last):
        """A run is stopped at random steps, and each time another mesh goes on with it."""
        parts, done, always = f"{folder}/parts", 0, ("--quiet", "--set", "log.every=1 step", "--set", "checkpoint.every=1 epoch")
        said = []
        for _ in range(case.rng.choice([1, 1, 2])):
            if done + 1 >= last:
                break
            step = case.rng.randrange(done + 1, last)
            ranks, words = case.draw_run()
            said.append(f"-np {ranks}, USR1 before step {step + 1}: {' '.join(words)}")
            if not self.stop(case, parts, step, ranks, (*words, *always), "; ".join(said)):
                continue
            done = dpt.events(parts, "end")[-1]["step"]
        ranks, words = case.draw_run()
        said.append(f"-np {ranks}: {' '.join(words)}")
        try:
            self.meets(one, parts, ranks, words, train(case.path, parts, ranks, (*words, *always[1:])))
        except Difference as difference:
            raise Difference(f"{difference} (stopped and resumed: {'; '.join(said)})", ranks, words) from None

    # --- a difference --------------------------------------------------------------------------

    def tell(self, case, folder, difference):
        path = pathlib.Path(case.path)
        self.say(f"\nDIFFERENCE at seed {case.seed}: {difference}\n{path.read_text()}"
                 f"repeat:   {sys.executable} core/train/tests/random_jobs.py --seed {case.seed} --count 1\n"
                 f"one rank: {dpt.BINARY} {path} --output {folder}/1"
                 f" {' '.join(map(repr, case.alone))}\n"
                 f"that run: mpirun -np {difference.ranks} {dpt.BINARY} {path} --output {folder}/2"
                 f" {' '.join(map(repr, difference.words))}")
        small, words = self.shrink(case, folder, difference) if difference.how != "linked" else (None, ())
        if small is not None:
            file = dpt.write_job(f"{folder}/small.yaml", "".join(f"{key}: {jobs.dump(value)}\n" for key, value in small.items()))
            self.say(f"smaller:  mpirun -np {difference.ranks} {dpt.BINARY} {file} {' '.join(map(repr, words))}\n{pathlib.Path(file).read_text()}")

    def shrink(self, case, folder, difference):
        """Takes out what the difference does not need, one thing after another; (None, ...) where one run alone does not show it."""
        job, words, last = jobs.load(jobs.dump(case.job)), list(difference.words), self.counts["runs to shrink"] + self.tries

        same = difference.how or functools.partial(compare, kept=self.kept)

        def differs(job, words):
            self.counts["runs to shrink"] += 1
            text = "".join(f"{key}: {jobs.dump(value)}\n" for key, value in job.items())
            file = dpt.write_job(f"{folder}/try.yaml", text)
            for name in ("one", "two"):
                shutil.rmtree(f"{folder}/try-{name}", ignore_errors=True)
            try:
                if train(file, f"{folder}/try-one", 1, case.alone).code != 0:
                    return False
                if train(file, f"{folder}/try-two", difference.ranks, words).code != 0:
                    return False
                same(f"{folder}/try-one", f"{folder}/try-two", difference.ranks, words)
            except Difference:
                return True
            return False
        if not differs(job, words):
            return None, words
        for k in range(len(words) - 2, -1, -2):
            if self.counts["runs to shrink"] < last and differs(job, words[:k] + words[k + 2:]):
                words = words[:k] + words[k + 2:]
        smaller = True
        while smaller:
            smaller = False
            for at, key in list(jobs.places(job))[::-1]:
                if self.counts["runs to shrink"] >= last:
                    return job, words
                if key in ("data", "comm", "reduction", "type", "train", "layers") and at is not job.get("train") or key not in (
                        at if isinstance(at, dict) else range(len(at))):
                    continue
                kept, whole = at[key], jobs.load(jobs.dump(at))
                del at[key]
                if differs(job, words):
                    smaller = True
                elif isinstance(at, dict):
                    at.clear()
                    at.update({**whole, key: kept})
                else:
                    at.insert(key, kept)
        return job, words

    def report(self):
        return ", ".join(f"{self.counts[key]} {key}" for key in (
            "drawn", "run", "refused", "not finite", "as the CPU", "compared", "linked", "other plans", "evaluated", "stopped", "meshes refused", "things", "different"))

    def draws_badly(self):
        """Whether so many jobs were refused that little is tested."""
        return self.counts["drawn"] >= 20 and self.counts["refused"] > self.counts["drawn"] // 4


def go(runner, first, count=None, seconds=None, every=None):
    """Case after case until either is spent."""
    end = time.monotonic() + seconds if seconds else None
    seed = first
    while (count is None or seed < first + count) and (end is None or time.monotonic() < end):
        runner.run(seed)
        seed += 1
        if every and (seed - first) % every == 0:
            runner.say(f"seed {seed - 1}: {runner.report()}; refused most: {runner.refusals.most_common(2)}")
    return seed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--device", metavar="KIND", help="what to compute on, instead of drawing that too")
    parser.add_argument("--keep", metavar="FOLDER", help="where jobs that differ stay; else in a new folder below /tmp")
    given = parser.parse_args()
    if given.device is not None and os.environ["CUDA_VISIBLE_DEVICES"] == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # dpt.py hides all GPUs
    folder = os.path.join(STARTED_IN, given.keep) if given.keep else tempfile.mkdtemp(prefix="random-jobs-")
    runner = Runner(folder, lambda text: print(text, flush=True), device=given.device)
    go(runner, given.seed, given.count if given.count or given.seconds else 1, given.seconds, every=10)
    print("\n".join(f"{count} refused: {why}" for why, count in runner.refusals.most_common()))
    print(runner.report())
    if runner.draws_badly():
        print("too many jobs are refused: draw_jobs.py is to draw others")
    sys.exit(1 if runner.counts["different"] or runner.draws_badly() else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
