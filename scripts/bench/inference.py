"""The table `inference` of scripts/bench.sh: what a trained model says to samples, beside onnxruntime and PyTorch."""
import random
import re
import shutil
import statistics
from math import prod

from peers import DPTRAIN, HERE, MODELS, SECONDS, Failed, job, measured

INFERENCE_MODELS = ("mnistcnn", "cnn", "resnet20", "resnet18", "mlp")
FILE, MOST = 4096, 128  # samples of a shard, and how often it may be given


def write_npy(path, kind, shape, data):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + data)


class Trained:
    """A model after some steps, its ONNX file, and a shard of samples."""

    def __init__(self, model, work):
        self.model, self.work, self.log = model, work, work / "inference.log"
        self.run, self.onnx, self.shard = work / f"infer-{model}", work / f"infer-{model}.onnx", work / f"infer-{model}-00000-of-00001.h5"
        self.job = work / f"infer-{model}.yaml"
        shutil.rmtree(self.run, ignore_errors=True)
        self.job.write_text(job(model, 128, 1, self.run).replace("every: never", "every: 6 steps"))
        measured([DPTRAIN, self.job, "--quiet"], self.log)
        measured([DPTRAIN, "export", self.run, self.onnx, "--fold-batchnorm", "--normalized"], self.log)
        shape = (FILE, *map(int, MODELS[model][0].split(",")))
        chance = random.Random(1)
        images, labels = work / "infer-images.npy", work / "infer-labels.npy"
        write_npy(images, "|u1", shape, chance.randbytes(prod(shape)))
        write_npy(labels, "|u1", (FILE,), bytes(chance.randrange(10) for _ in range(FILE)))
        measured([DPTRAIN, "convert", "npy", images, labels, "--output", work / f"infer-{model}", "--force"], self.log)

    def copies(self, n):
        """So many files of the same samples: `eval` takes none twice."""
        names = [self.work / f"infer-copy-{i}.h5" for i in range(n)]
        for name in names:
            if not name.exists() or name.stat().st_mtime < self.shard.stat().st_mtime:
                shutil.copyfile(self.shard, name)
        return names


class Ours:
    """`dptrain predict` or `eval`: the rate of its passes is that between two runs, so that start and loading do not count."""

    def __init__(self, trained, command, precision, args):
        self.trained, self.command, self.label = trained, command, precision
        self.processors = args.ranks if args.by_processor else 0
        self.sets = ["--quiet", "--set", f"device.threads={args.ranks}", "--set", f"device.precision={precision}"]

    def take(self, files):
        t = self.trained
        if self.command == "eval":
            what = ["--set", f"data.test=[{', '.join(map(str, t.copies(files)))}]"]
        else:
            what = [t.shard] * files + ["--out", t.work / "inferred.npy"]
        return measured([DPTRAIN, self.command, t.job, "--checkpoint", t.run, *what, *self.sets], t.log, self.processors)

    def first_look(self):
        """With fewer files than later."""
        files = 2
        while (seconds := self.take(files)[0] - self.take(1)[0]) < SECONDS / 8 and files < MOST:
            files *= 4
        return FILE * (files - 1) / seconds

    def rate(self, samples):
        """Samples a second; from exec to exit the seconds of one file; and the most memory, in MB."""
        files = min(max(2, round(samples / FILE) + 1), MOST)
        few, many = self.take(1), self.take(files)
        return FILE * (files - 1) / max(many[0] - few[0], 1e-9), few[0], many[1]


class Other:
    """A library in one of its ways."""

    def __init__(self, trained, args, library, label, *options):
        self.trained, self.label, self.processors = trained, label, args.ranks if args.by_processor else 0
        self.command = [args.python, HERE / "infer_peers.py", library, trained.onnx if library == "onnx" else trained.model,
                        "--threads", args.ranks, *options, *["--by-processor"] * args.by_processor]

    def rate(self, samples):
        seconds, memory, text = measured([*self.command, "--samples", samples], self.trained.log, self.processors)
        rate = float(re.search(r"^samples_per_s (\S+)", text, re.M)[1])
        return rate, seconds - (samples - FILE) / rate, memory

    def first_look(self):
        return self.rate(1024)[0]


def others(trained, args):
    """All ways of the two libraries that may be the fastest."""
    onnx = [Other(trained, args, "onnx", f"{args.ranks} {name}, batch {batch}", *words, "--batch", batch)
            for name, words in (("threads", ()), ("sessions", ("--sessions",))) for batch in (16, 64, 128)]
    torch = [Other(trained, args, "torch", f"{name}, batch {batch}", *words, "--batch", batch)
             for name, words in (("fp32", ()), ("bf16", ("--bf16",)), ("compiled, bf16", ("--bf16", "--compile"))) for batch in (64, 128)]
    return onnx, torch


def fastest(runners, say):
    best = None
    for runner in runners:
        try:
            rate = runner.first_look()
        except Failed as why:
            say(f"{runner.label}: left out: {str(why).strip().splitlines()[-1:]}")
            continue
        say(f"{runner.trained.model}: {runner.label}: {rate:.0f}")
        if best is None or rate > best[1]:
            best = runner, rate
    if best is None:
        raise Failed("none of the peers can do it")
    return best


def measure(args, model, say):
    """[(runner, its rates, and the seconds and the memory of its last run)] of predict in fp32 and bf16, eval in bf16, and the peers."""
    trained = Trained(model, args.work)
    groups = [[Ours(trained, command, precision, args)]
              for command, precision in (("predict", "fp32"), ("predict", "bf16"), ("eval", "bf16"))]
    groups += [] if args.only_dptrain else others(trained, args)
    chosen = [(*fastest(group, say), []) for group in groups]
    for number in range(args.rounds):
        for runner, rate, results in chosen:
            results.append(runner.rate(max(FILE, round(rate * SECONDS))))
        say(f"{model}, round {number + 1} of {args.rounds}: " + ", ".join(f"{results[-1][0]:.0f}" for _, _, results in chosen))
    return [(runner.label, *map(list, zip(*results))) for runner, _, results in chosen]


def cells_of(found, grouped, summary):
    """A row's cells: rates; of each peer its way and by how much the faster precision of predict is faster; seconds and memory."""
    rates = [statistics.median(mine[1]) for mine in found]
    best = 0 if rates[0] > rates[1] else 1
    cells = [grouped(rate) for rate in rates[:3]]
    for peer, rate in zip(found[3:], rates[3:]):
        cells += [grouped(rate), peer[0], summary([a / b for a, b in zip(found[best][1], peer[1])], "{:.2f}")]
    return cells + [" / ".join(form.format(statistics.median(one[column])) for one in [found[best], *found[3:]])
                    for column, form in ((2, "{:.2f}"), (3, "{:.0f}"))]
