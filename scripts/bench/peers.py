"""The models of the benchmark, as dptrain's jobs and as the commands of those who do the same work otherwise."""
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
DPTRAIN = os.environ.get("DPTRAIN", str(TOP / "build/dptrain"))

CONVS = ("{conv: {channels: 32, kernel: 3, padding: same}}, relu, {maxpool: 2}, "
         "{conv: {channels: 64, kernel: 3, padding: same}}, relu, {maxpool: 2}, flatten")
CLASSES = "classes: 10"
# shape of a sample, its targets, loss, layers or the whole model
MODELS = {
    "cnn": ("3, 32, 32", CLASSES, "cross_entropy", f"[{CONVS}, {{dense: 10}}]"),
    "mnistcnn": ("1, 28, 28", CLASSES, "cross_entropy", f"[{CONVS}, {{dense: 128}}, relu, {{dense: 10}}]"),
    "mlp": ("784", CLASSES, "cross_entropy", "[{dense: 256}, relu, {dense: 10}]"),
    "mlp4k": ("784", CLASSES, "cross_entropy", "[{dense: 4096}, relu, {dense: 4096}, relu, {dense: 10}]"),
    "mlp25m": ("784", CLASSES, "cross_entropy", "[{dense: 4608}, relu, {dense: 4608}, relu, {dense: 10}]"),
    "linreg": ("5", "outputs: 1, noise: 0.1", "mse", "[{dense: 1}]"),
    "resnet20": ("3, 32, 32", CLASSES, "cross_entropy", "{type: resnet, depth: 20, outputs: 10}"),
    "resnet18": ("3, 64, 64", CLASSES, "cross_entropy", "{type: resnet, depth: 18, outputs: 10}"),
}
BLOCKS = 5  # whose rates are taken, after one that is not
SECONDS = float(os.environ.get("BENCH_SECONDS", 0.7))  # about as long as a block takes
LIMIT = 90  # seconds that a peer may take, compiling included


class Failed(Exception):
    """A run that gave no number; its text says why."""


def job(model, batch, steps, output):
    shape, targets, loss, layers = MODELS[model]
    net = layers if layers.startswith("{") else f"{{type: sequential, layers: {layers}}}"
    return f"""
name: bench-{model}
output: {output}
data: {{train: synthetic, synthetic: {{samples: 4096, shape: [{shape}], {targets}}}}}
model: {net}
loss: {loss}
batch: {{global: {batch}}}
optimizer: {{type: adam, lr: 1.0e-3}}
train: {{steps: {steps * (BLOCKS + 1)}}}
checkpoint: {{every: never}}
log: {{every: {steps} steps}}
"""


def measured(command, log, processors=0):
    """The seconds of a command from exec to exit, the most memory that it held, in MB, and what it printed. processors: so many CPUs had
    it to themselves, if they spent the time that it took of them all on nothing else; 0: by the clock."""
    with open(log, "w+") as file:
        start = time.perf_counter()
        process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        text = file.read()
    if process.returncode != 0:
        raise Failed(text)
    if processors:
        seconds = (usage.ru_utime + usage.ru_stime) / processors
    return seconds, usage.ru_maxrss * 1.024e-3, text


def events(folder, kind):
    """The events of one kind in a run's metrics."""
    with open(Path(folder, "metrics.jsonl")) as lines:
        return [event for event in map(json.loads, lines) if event["event"] == kind]


class Dptrain:
    """dptrain on so many ranks of so many threads."""

    def __init__(self, ranks, threads, work, settings=()):
        self.ranks, self.threads, self.work, self.settings = ranks, threads, Path(work), settings
        self.label = f"{ranks} rank{'s' * (ranks > 1)}" + (f" x {threads} threads" if threads > 1 else "")

    def rate(self, model, batch, steps):
        """Median samples per second over blocks of `steps` steps, and the most memory that a lone rank held, in MB."""
        run, text = self.work / f"run-{model}", self.work / f"{model}.yaml"
        shutil.rmtree(run, ignore_errors=True)
        text.write_text(job(model, batch, steps, run))
        command = [DPTRAIN, str(text), "--quiet", "--set", f"device.threads={self.threads}"]
        for setting in self.settings:
            command += ["--set", setting]
        if self.ranks > 1:
            command = ["mpirun", "-np", str(self.ranks), *command]
        _, most, _ = measured(command, self.work / f"{model}.log")
        rates = [event["samples_per_s"] for event in events(run, "train")]
        return statistics.median(rates[1:]), most


class Peer:
    """A script of this folder that prints `samples_per_s X` and `peak_mb Y`."""

    def __init__(self, label, python, script, *options):
        self.label, self.python, self.script, self.options = label, python, script, options

    def rate(self, model, batch, steps):
        command = [self.python, str(HERE / self.script), model, "--batch", str(batch), "--steps", str(steps), *self.options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
            try:
                out, complaints = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                raise Failed(f"it took more than {LIMIT} s") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and ranks and compilers that are left of it
        # gloo may abort while it ends, after the number is told: the exit code does not count.
        found = re.search(r"^samples_per_s (\S+)", out, re.M)
        if not found:
            raise Failed(out + complaints)
        return float(found[1]), float(re.search(r"^peak_mb (\S+)", out, re.M)[1])


def peers_of(python, found, n, precision):
    """All ways of those that are there to compute in fp32, or in bf16."""
    ranks, threads, devices = ([f"--{word}", str(n)] for word in ("ranks", "threads", "devices"))
    ways = []  # label, script, how the cores are used, options that the label names too
    if "torch" in found:
        ways += [(label, "torch_ddp.py", cores, options) for options in ([], ["--fused"], ["--fused", "--compile"])
                 for label, cores in ((f"PyTorch DDP, {n} ranks", ranks), (f"PyTorch, {n} threads", ["--ranks", "1", *threads]))]
    if "jax" in found:
        ways += [("JAX, 1 device", "jax_pmap.py", ["--devices", "1"], []), (f"JAX, {n} devices", "jax_pmap.py", devices, [])]
    if "keras" in found:
        ways += [(f"Keras, {n} threads", "keras_tf.py", threads, options) for options in ([], ["--xla"])]
    bf16 = ["--bf16"] * (precision == "bf16")
    return [Peer(", ".join([label, *(option.strip("-") for option in options + bf16)]), python, script, *cores, *options, *bf16)
            for label, script, cores, options in ways]


def versions(python):
    """{"torch": "2.15.0", ...} of what the environment has."""
    found = {}
    for name, modules in (("torch", "torch"), ("jax", "jax"), ("keras", "tensorflow, keras")):
        done = subprocess.run([python, "-c", f"import {modules}; print({name}.__version__)"], capture_output=True, text=True)
        if done.returncode == 0:
            found[name] = done.stdout.strip()
        else:
            print(f"bench.sh: {name} is left out: {python} has no {modules}", file=sys.stderr, flush=True)
    return found
