#!/usr/bin/env python3
"""The tables of scripts/bench.sh, which see: dptrain measured in turn with others, or with itself otherwise set."""
import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from inference import INFERENCE_MODELS, cells_of, measure
from peers import DPTRAIN, MODELS, SECONDS, TOP, Dptrain, Failed, Peer, events, measured, peers_of, versions

# The models of the table `speed`; after a colon a batch of its own.
PEER_MODELS = ("cnn", "mnistcnn", "resnet20", "resnet18", "mlp", "mlp4k", "linreg", "cnn:32", "mnistcnn:32", "cnn:1024", "mnistcnn:1024")
NAMES = {"cnn": "cnn, 3x32x32", "mnistcnn": "mnistcnn, 1x28x28", "resnet20": "resnet20, 3x32x32",
         "resnet18": "resnet18, 3x64x64", "mlp": "mlp 784-256-10", "mlp4k": "mlp4k 784-4096-4096-10", "linreg": "linreg 5-1"}
QUICK = {"linreg": 1000, "mlp": 100, "mlp4k": 2, "mlp25m": 2, "resnet20": 2, "resnet18": 2}  # steps of a first look at batch 128; others 5


def say(text):
    print(text, file=sys.stderr, flush=True)


def summary(values, form="{:.0f}"):
    """The median, then the range."""
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low} to {high})"


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def head(*cells):
    row(*cells)
    print("|" + "---|" * len(cells), flush=True)


def machine():
    name = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return f"{name[1] if name else 'unknown CPU'}, {len(os.sched_getaffinity(0))} cores"


def steps_for(runner, model, batch):
    """So many steps that a block takes about SECONDS; a first look is at about as many samples, whatever the batch."""
    rate, _ = runner.rate(model, batch, max(1, QUICK.get(model, 5) * 128 // batch))
    return max(2, min(200_000, round(rate * SECONDS / batch))), rate


def first_looks(runners, model, batch):
    """(runner, its steps per block, its rate) of those that can do the model, the fastest first."""
    looks = []
    for runner in runners:
        try:
            looks.append((runner, *steps_for(runner, model, batch)))
            say(f"{model}, batch {batch}: {runner.label}: {looks[-1][2]:.0f}")
        except Failed as why:
            say(f"{runner.label}: left out of {model}: {str(why).strip().splitlines()[-1:]}")
    if not looks:
        sys.exit(f"bench.sh: nobody can do {model}")
    return sorted(looks, key=lambda look: -look[2])


def rate_again(runner, model, batch, steps):
    """A peer's rate, of a second try where the first one fails: frameworks may hang or abort at times, as JAX's collectives do."""
    try:
        return runner.rate(model, batch, steps)
    except Failed as why:
        if isinstance(runner, Dptrain):
            raise
        say(f"{runner.label}: once more: {str(why).strip().splitlines()[-1:]}")
        return runner.rate(model, batch, steps)


def in_turn(pairs, model, batch, rounds):
    """Rates of each runner, in turn: [[rates of the first], [of the second], …]; and the memory of the last round."""
    rates, memory = [[] for _ in pairs], []
    for number in range(rounds):
        memory = []
        for (runner, steps), mine in zip(pairs, rates):
            rate, peak = rate_again(runner, model, batch, steps)
            mine.append(rate)
            memory.append(peak)
        say(f"{model}, round {number + 1} of {rounds}: " + ", ".join(f"{mine[-1]:.0f}" for mine in rates))
    return rates, memory


def ours(args, model, *options):
    """dptrain on all of --ranks, as ranks and as threads of one rank; a step of linreg is too short to be divided."""
    ways = [(args.ranks, 1), (1, args.ranks)] + [(1, 1)] * (model == "linreg")
    return [Dptrain(ranks, threads, args.work, list(options)) for ranks, threads in ways]


def grouped(value):
    return f"{value:,.0f}".replace(",", " ")


def ratios(one, other):
    return summary([a / b for a, b in zip(one, other)], "{:.2f}")


def speed(args):
    """samples/s in fp32 and bf16 beside the fastest peer in each, and of both the fastest of any precision"""
    found = {} if args.only_dptrain else versions(args.python)
    peers = {precision: peers_of(args.python, found, args.ranks, precision) for precision in ("fp32", "bf16")}
    if found:
        print("Peers: " + ", ".join(f"{name} {version}" for name, version in found.items()) + "; the fastest of: "
              + "; ".join(peer.label for peer in peers["fp32"] + peers["bf16"]) + ".\n")
    beside = [f"fastest {precision} peer" for precision in peers if found]
    head("model", "dptrain, fp32", "as", "dptrain, bf16", "as", *(cell for name in beside for cell in (name, "which", "ratio to it")),
         *["ratio of the fastest"] * bool(found))
    slow = []
    for entry in args.models or PEER_MODELS:
        model, batch = entry.split(":")[0], int(entry.split(":")[1]) if ":" in entry else args.batch
        ways = [first_looks(ours(args, model, f"device.precision={precision}"), model, batch)[:1] for precision in peers]
        looks = [first_looks(peers[precision], model, batch) for precision in peers if found]
        most = max((mine[0][2] for mine in looks), default=0)
        for mine in looks:
            ways.append(mine[:1] + [look for look in mine[1:] if look[2] >= most / 2])
            slow += [f"{model}, batch {batch}: {runner.label} ({grouped(rate)})" for runner, _, rate in mine[len(ways[-1]):]]
        rates, _ = in_turn([look[:2] for way in ways for look in way], model, batch, args.rounds)
        left = iter(rates)  # (median, rates, label) of the fastest in each column
        best = [max((statistics.median(mine), mine, look[0].label) for look, mine in zip(way, left)) for way in ways]
        cells = [f"{model}, batch {batch}" if batch != args.batch else NAMES.get(model, model)]
        for i, (middle, mine, label) in enumerate(best):
            cells += [grouped(middle), label, *[ratios(best[i - 2][1], mine)] * (i >= 2)]
        if found:
            cells.append(ratios(max(best[:2])[1], max(best[2:])[1]))
        row(*cells)
    if slow:
        print("\nSlower at a first look than half of the fastest peer, and than another in its precision, so given no rounds (samples/s): "
              + "; ".join(slow) + ".")


def reduction(args):
    """step time of comm.reduction: reproducible over that of allreduce, at 1, 2 and 4 ranks"""
    head("model", "1 rank", "2 ranks", "4 ranks")
    for model in args.models or ("linreg", "mlp", "cnn", "mnistcnn", "mlp25m"):
        cells = [model]
        for ranks in (1, 2, 4):
            ways = [Dptrain(ranks, 1, args.work, [f"comm.reduction={way}"]) for way in ("allreduce", "reproducible")]
            steps, _ = steps_for(ways[0], model, args.batch)
            plain, fixed = in_turn([(way, steps) for way in ways], model, args.batch, args.rounds)[0]
            cells.append(summary([a / b for a, b in zip(plain, fixed)], "{:.3f}"))
        row(*cells)


def scaling(args):
    """samples/s of 2 ranks over that of 1"""
    head("model", "2 ranks over 1", "2 threads over 1")
    for model in args.models or ("cnn", "mnistcnn"):
        ways = [Dptrain(1, 1, args.work), Dptrain(2, 1, args.work), Dptrain(1, 2, args.work)]
        steps, _ = steps_for(ways[0], model, args.batch)
        one, ranks, threads = in_turn([(way, steps) for way in ways], model, args.batch, args.rounds)[0]
        row(model, *(summary([b / a for a, b in zip(one, more)], "{:.2f}") for more in (ranks, threads)))


def memory(args):
    """most memory that one rank on one thread held, MB, synthetic images included"""
    found = {} if args.only_dptrain else versions(args.python)
    peers = [peer for name, peer in (("torch", Peer("PyTorch, 1 rank", args.python, "torch_ddp.py", "--ranks", "1")),
                                     ("jax", Peer("JAX, 1 device", args.python, "jax_pmap.py", "--devices", "1")),
                                     ("keras", Peer("Keras, 1 thread", args.python, "keras_tf.py", "--threads", "1"))) if name in found]
    head("model", "dptrain", *(peer.label for peer in peers))
    for model in args.models or ("cnn", "mnistcnn", "resnet20", "resnet18"):
        _, peaks = in_turn([(runner, 5) for runner in (Dptrain(1, 1, args.work), *peers)], model, args.batch, 1)
        row(model, *(f"{peak:.0f}" for peak in peaks))


def timed(command, good=lambda done: done.returncode == 0, **more):
    """Its seconds, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if not good(done):
        raise Failed(done.stdout + done.stderr)
    return time.perf_counter() - start, done.stdout


def start(args):
    """from exec to the help text, and to the first step of configs/smoke.yaml"""
    def first_step(*launcher):
        run = Path(args.work, "smoke")
        shutil.rmtree(run, ignore_errors=True)
        subprocess.run([*launcher, DPTRAIN, "configs/smoke.yaml", "--output", run, "--quiet"], check=True, capture_output=True)
        return events(run, "end")[0]["first_step_s"] * 1e3
    head("", "ms")
    row("`dptrain --help`", summary([timed([DPTRAIN, "--help"])[0] * 1e3 for _ in range(20)], "{:.1f}"))
    row("exec to the first step, 1 rank", summary([first_step() for _ in range(args.rounds)]))
    row(f"the same under mpirun -np {args.ranks}",
        summary([first_step("mpirun", "-np", str(args.ranks)) for _ in range(args.rounds)]))


def accuracy(args):
    """MNIST, the same nets and batch, from exec to exit with the model tested"""
    batch = 128
    mnist = TOP / "data/mnist"
    if not list(mnist.glob("train-*.h5")):
        sys.exit("bench.sh: scripts/demo.sh makes MNIST's shards first")

    plain, run = Path(args.work, "mnist.yaml"), Path(args.work, "mnist")
    plain.write_text(f"""
data: {{train: {mnist}/train-*.h5, test: {mnist}/test-*.h5, normalize: {{mean: 0.1307, std: 0.3081}}}}
model: {{type: sequential, layers: {MODELS["mnistcnn"][3]}}}
loss: cross_entropy
batch: {{global: {batch}}}
optimizer: {{type: adam, lr: 1.0e-3}}
schedule: {{type: cosine}}
train: {{epochs: 3}}
""")

    def dptrain(job, precision):
        shutil.rmtree(run, ignore_errors=True)
        seconds, _ = timed(["mpirun", "-np", str(args.ranks), DPTRAIN, job, "--output", run, "--quiet",
                            "--set", f"device.precision={precision}"], cwd=TOP)
        return seconds, [event for event in events(run, "eval") if event["split"] == "test"][-1]["accuracy"]

    def torch(model, precision):
        found = lambda text: re.search(r"^accuracy (\S+)", text, re.M)
        seconds, text = timed([args.python, TOP / "scripts/bench/torch_accuracy.py", mnist, "--model", model,
                               "--ranks", str(args.ranks), "--batch", str(batch), *["--bf16"] * (precision == "bf16")],
                              good=lambda done: found(done.stdout))
        return seconds, float(found(text)[1])

    # The residual net's job has four epochs, with which it gets to 99.5 %; PyTorch has three of both.
    for model, job in (("mnistcnn", plain), ("mnistresnet", "configs/mnist-resnet.yaml")):
        if args.models and model not in args.models:
            continue
        ways = {f"dptrain, {args.ranks} ranks, {precision}": (dptrain, job, precision) for precision in ("fp32", "bf16")}
        if not args.only_dptrain:
            ways |= {f"PyTorch, {args.ranks} ranks, 3 epochs, {precision}": (torch, model, precision) for precision in ("fp32", "bf16")}
        results = []
        for number in range(args.rounds):
            results.append([measure(*what) for measure, *what in ways.values()])
            say(f"{model}, round {number + 1} of {args.rounds}: {results[-1]}")
        head(f"MNIST, {model}", "seconds", "test accuracy")
        for label, of in zip(ways, zip(*results)):
            row(label, summary([s for s, _ in of], "{:.1f}"), summary([a for _, a in of], "{:.4f}"))
        if not args.only_dptrain:
            row("ratio of the faster ones", summary([min(c, d)[0] / min(a, b)[0] for a, b, c, d in results], "{:.2f}"), "")


def peak(ranks, words):
    """What `dptrain words` on so many ranks had in memory at most: a number for each rank, rank 0's first, in MB."""
    watch = ("import os, subprocess, sys\n"
             "process = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL)\n"
             "_, status, usage = os.wait4(process.pid, 0)\n"
             "rank = os.environ.get('OMPI_COMM_WORLD_RANK', '0')\n"
             "open(sys.argv[1] + rank, 'w').write(str(usage.ru_maxrss * 1024 / 1e6))\n"
             "sys.exit(os.waitstatus_to_exitcode(status))\n")
    with tempfile.TemporaryDirectory() as folder:
        launcher = ["mpirun", "-np", str(ranks)] if ranks > 1 else []
        timed([*launcher, sys.executable, "-S", "-c", watch, f"{folder}/", DPTRAIN, *map(str, words)])
        return [float(Path(folder, str(rank)).read_text()) for rank in range(ranks)]


def processor_seconds(job, steps, run, words):
    """What a lone rank that trains so many steps takes of a CPU: the same whatever else the machine does."""
    shutil.rmtree(run, ignore_errors=True)
    sets = [f"train={{steps: {steps}}}", "eval.every=never", "checkpoint.every=never", f"log.every={steps} steps"]
    return measured([DPTRAIN, job, "--quiet", "--output", run, *words, *(w for s in sets for w in ("--set", s))], f"{run}.log", 1)[0]


def plan(args):
    """`dptrain plan` beside the fact: a step, in ms (1 rank: of its CPU, else by the clock), and rank 0's most memory, in MB"""
    one = ["--set", "device.threads=1"]
    run = Path(args.work, "plan")

    def ask(command, *words):
        return json.loads(timed([*command, *words, "--json", *one])[1])

    def step_of(job, ranks, expected):
        if ranks > 1:
            return ask(["mpirun", "-np", str(ranks), DPTRAIN, "bench", job, "--quiet"])["step_s"]["low"]
        few = max(2, round(0.1 / expected))
        many = few + max(20, round(SECONDS / expected))
        first, second = (processor_seconds(job, steps, run, one) for steps in (few, many))
        return (second - first) / (many - few)

    head("job", "ranks", "step, planned", "measured", "planned / measured", "memory, planned", "measured", "planned / measured")
    for job in sorted(Path("configs").glob("*.yaml")):
        for ranks in range(1, args.ranks + 1):
            times = []
            for number in range(args.rounds):
                planned = ask([DPTRAIN, "plan", job, "--ranks", str(ranks), "--ranks-per-node", str(ranks)])
                expected = planned["time"]["step"]["seconds"]
                times.append((expected * 1e3, step_of(job, ranks, expected) * 1e3))
                say(f"{job.stem}, {ranks} ranks, round {number + 1}: {times[-1]}")
            shutil.rmtree(run, ignore_errors=True)
            # An epoch: from then on a rank has come to all samples.
            most = peak(ranks, [job, "--quiet", "--output", run, *one, "--set", "train.epochs=1"])[0]
            bytes_ = planned["memory"]["rank_0"] / 1e6
            row(job.stem, ranks, *(summary(column, "{:.3g}") for column in zip(*times)),
                summary([a / b for a, b in times], "{:.2f}"), f"{bytes_:.1f}", f"{most:.1f}", f"{bytes_ / most:.2f}")


def first_jobs(args, script, needs):
    if subprocess.run([args.python, TOP / "scripts/bench" / script, DPTRAIN, args.work / "first-jobs", "--rounds", str(args.rounds)]).returncode != 0:
        raise Failed(f"scripts/bench/{script} failed; it needs {needs}")


def tables(args):
    """the job that `dptrain init` writes, no key touched, and scikit-learn's MLP after a StandardScaler: means and standard errors"""
    first_jobs(args, "sklearn_tables.py", "scikit-learn, pandas and h5py")


def pictures(args):
    """the job that `dptrain init` writes, no key touched, and the same layers in PyTorch: accuracies, means and standard errors"""
    first_jobs(args, "few_pictures.py", "scikit-learn and torch")


def inference(args):
    """samples/s of `predict` and `eval` without their start, and of the libraries' passes alone, each at its fastest; ratios are those of
    predict in the faster precision; then from exec to exit, 4 096 samples, and the most memory, of predict and the libraries in turn"""
    peers = () if args.only_dptrain else ("onnxruntime", "PyTorch")
    head("model", "predict, fp32", "predict, bf16", "eval, bf16", *(cell for name in peers for cell in (name, "as", "ratio to it")),
         "4 096 samples, s", "memory, MB")
    for model in args.models or INFERENCE_MODELS:
        row(NAMES.get(model, model), *cells_of(measure(args, model, say), grouped, summary))


TABLES = {table.__name__: table for table in (speed, scaling, memory, start, accuracy, reduction, tables, pictures, plan, inference)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="*", metavar="TABLE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--models", type=str.split)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only-dptrain", action="store_true")
    parser.add_argument("--by-processor", action="store_true")
    args = parser.parse_args()
    for name in args.tables + (args.models or []):
        if name not in TABLES and not re.fullmatch(rf"({'|'.join(MODELS)}|mnistresnet)(:[1-9]\d*)?", name):
            sys.exit(f"bench.sh: no table or model {name}: tables are {', '.join(TABLES)}, models {', '.join(MODELS)}")
    args.work = TOP / "build/bench"
    args.work.mkdir(parents=True, exist_ok=True)
    os.chdir(TOP)
    print(f"{machine()}; batch {args.batch}, {args.rounds} rounds: medians, ranges in brackets.")
    for name in args.tables or ["speed"]:
        print(f"\n**{name}**: {TABLES[name].__doc__}\n")
        TABLES[name](args)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        try:
            main()
        except Failed as why:
            sys.exit(f"bench.sh: {why}")
