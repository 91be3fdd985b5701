"""Builds the simulated ranks, measures what they compute, runs them on clusters of SimGrid, prints tables. See run.sh."""
import argparse
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, "scripts/lib")
HERE = "scripts/simulate"
WAYS = ("allreduce", "reproducible")

# What the sources of the simulated ranks call and simulate.c answers.
WRAPPED = ("MPI_Init_thread", "MPI_Allreduce", "MPI_Testall", "dpt_watch_attach", "dpt_alloc", "dpt_alloc_array", "dpt_free",
           "dpt_tree_push", "dpt_tree_add", "dpt_placement_begin")
SOURCES = (f"{HERE}/simulate.c", "core/comm/*.c", "core/comm/sums/*.c", "core/comm/watch/*.c", "core/base/*.c", "data/sets/sampler.c", "core/train/reduction/*.c",
           "core/train/layout/shares.c", "core/train/layout/planners.c")

# Of a message between two nodes: microseconds on the way, and of each side's processor; the part of the bits that is data.
FABRICS = {
    10: {"latency": 10e-6, "overhead": 1e-6, "useful": 0.94, "name": "10 Gb/s Ethernet"},
    100: {"latency": 2e-6, "overhead": 0.5e-6, "useful": 0.94, "name": "100 Gb/s fabric"},
}
# Between two ranks of a node: bytes a second, seconds.
LOOPBACK = (4e9, 0.5e-6)

MODELS = {
    "mlp": {
        "title": "MLP 784-4608-4608-10", "micro": 64, "strong": 16384, "weak": 128,
        "job": "synthetic: {samples: 640, shape: [784], classes: 10}\n"
               "model: {type: mlp, hidden: [4608, 4608], outputs: 10}\n",
    },
    "cnn": {
        "title": "CNN 3x32x32, conv 32, conv 64, dense 10", "micro": 8, "strong": 4096, "weak": 128,
        "job": "synthetic: {samples: 4096, shape: [3, 32, 32], classes: 10}\n"
               "model: {type: cnn, channels: [32, 64], kernel: 3, padding: same, pool: 2, outputs: 10}\n",
    },
    "resnet50": {
        "title": "ResNet-50, 3x224x224", "micro": 16, "strong": 8192, "weak": 128, "steps": 10,
        "job": "synthetic: {samples: 80, shape: [3, 224, 224], classes: 1000}\n"
               "model: {type: resnet, depth: 50, outputs: 1000}\n",
    },
    # In stages, which are taken to be alike: so many floats of a sample go from one to the next.
    "deep": {
        "title": "MLP 784-1792-...-1792-10, eight hidden layers", "micro": 64, "strong": 16384, "edge": 1792,
        "job": "synthetic: {samples: 640, shape: [784], classes: 10}\n"
               "model: {type: mlp, hidden: [1792, 1792, 1792, 1792, 1792, 1792, 1792, 1792], outputs: 10}\n",
    },
}


def fail(text):
    sys.exit(f"simulate: {text}")


def call(command, says=False, **options):
    """The command's stdout. says: without any it failed, whatever its exit code (smpirun's is 0 after MPI_Abort)."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    if done.returncode != 0 or (says and not done.stdout.strip()):
        fail(f"{command if isinstance(command, str) else ' '.join(command)}: exit {done.returncode}\n"
             f"{done.stdout}{done.stderr}")
    return done.stdout


# --- building -----------------------------------------------------------------------------------------------------------


def newest(*patterns):
    return max(os.path.getmtime(path) for pattern in patterns for path in glob.glob(pattern, recursive=True))


def build_ranks(folder):
    made = f"{folder}/simulate"
    if os.path.exists(made) and os.path.getmtime(made) > newest(*SOURCES, "*/*.h", "core/**/*.h", f"{HERE}/simulate.py"):
        return
    wrap = " ".join(f"-Wl,--wrap={name}" for name in WRAPPED)
    call(f"smpicc -std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -ffp-contract=off -ffunction-sections -fdata-sections "
         f"-fvisibility=hidden -DDPT_MPI_FOLDER='\"\"' -I. {' '.join(SOURCES)} -o '{made}' -lz -pthread -Wl,--gc-sections {wrap}", shell=True)


def build_adding(folder):
    call(f"gcc -std=gnu11 -D_GNU_SOURCE -O3 -ffp-contract=off -I. {HERE}/adding.c core/comm/sums/tree.c core/base/*.c "
         f"-o '{folder}/adding' -lz -lm -pthread", shell=True)


# --- what computing costs, on one core of this machine ---------------------------------------------------------------------


def job_text(model, micro_batches):
    return (f"name: simulate\ndevice: {{kind: cpu, threads: 1}}\ndata:\n  train: synthetic\n  {model['job']}"
            f"loss: cross_entropy\nbatch: {{global: {model['micro'] * micro_batches}, micro: {model['micro']}}}\n"
            f"optimizer: {{type: adam, lr: 1.0e-3}}\ntrain: {{steps: {model.get('steps', 24)}}}\ncheckpoint: {{every: never}}\n"
            "log: {every: 1 steps}\n")


def seconds_a_step(dpt, model, micro_batches, folder):
    """The lower quartile: what the machine does beside only ever adds to a step."""
    job = dpt.write_job(os.path.join(folder, "job.yaml"), job_text(model, micro_batches))
    output = os.path.join(folder, "run")
    result = dpt.train(job, output, "--quiet", timeout=3600)
    assert result.code == 0
    steps = [model["micro"] * micro_batches / e["samples_per_s"] for e in dpt.events(output, "train")]
    steps = sorted(steps[4:])
    parameters = dpt.events(output, "run")[0]["parameters"]
    return steps[len(steps) // 4], parameters


def measure(folder, names):
    """Steps of one and of five micro-batches tell what a micro-batch costs, and what a step costs beside."""
    if "DPTRAIN" not in os.environ:
        call(["make", "-s", "-j2"])
    import dpt
    build_adding(folder)
    times = {}
    for name in names:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            one, parameters = seconds_a_step(dpt, MODELS[name], 1, scratch)
            five, _ = seconds_a_step(dpt, MODELS[name], 5, scratch)
        micro = (five - one) / 4
        times[name] = {
            "parameters": parameters,
            "micro_batch": micro,
            "step": max(one - micro, 0),
            "add": float(call([f"{folder}/adding", str(parameters)])),
        }
    return times


def read_times(args):
    path = args.times or f"{args.build}/times.json"
    times = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            times = json.load(file)
    missing = [m for m in args.models if m not in times]
    if missing:
        times.update(measure(args.build, missing))
        with open(path, "w", encoding="utf-8") as file:
            json.dump(times, file, indent=1)
    return times


# --- simulating ---------------------------------------------------------------------------------------------------------


def write_platform(folder, nodes, per_node, gigabits):
    """Nodes on a switch that carries what they send: half of the way's latency to it, half from it."""
    fabric = FABRICS[gigabits]
    platform = os.path.join(folder, "platform.xml")
    with open(platform, "w", encoding="utf-8") as file:
        file.write(f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="cluster" prefix="node" suffix="" radical="0-{nodes - 1}" speed="1Gf" core="{per_node}"
           bw="{gigabits * 1e9 / 8 * fabric['useful']:.0f}Bps" lat="{fabric['latency'] / 2 * 1e6}us"
           loopback_bw="{LOOPBACK[0]:.0f}Bps" loopback_lat="{LOOPBACK[1] * 1e6}us" sharing_policy="SPLITDUPLEX"/>
</platform>
""")
    hosts = os.path.join(folder, "hosts")
    with open(hosts, "w", encoding="utf-8") as file:
        file.writelines(f"node{i}:{per_node}\n" for i in range(nodes))
    return platform, hosts


def simulate(build, ranks, per_node, gigabits, words):
    """Seconds of a step; what the ranks compute comes from `words` alone, so the same call gives the same number."""
    roomy = os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 1 << 30
    memory = "/dev/shm" if roomy else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        platform, hosts = write_platform(folder, -(-ranks // per_node), per_node, gigabits)
        overhead = FABRICS[gigabits]["overhead"]
        config = {
            "smpi/simulate-computation": "no", "smpi/coll-selector": "ompi", "smpi/bcast": "binomial_tree", "smpi/host-speed": "1Gf",
            "smpi/cpu-threshold": "0", "smpi/os": f"0:{overhead}:0", "smpi/or": f"0:{overhead}:0",
            "smpi/bw-factor": "0:1", "smpi/lat-factor": "0:1", "network/crosstraffic": "0",
            "smpi/shared-malloc-blocksize": str(max(4, ranks // 16) << 20),
        }
        out = call(["smpirun", "-np", str(ranks), "-platform", platform, "-hostfile", hosts, "--log=root.thres:warning",
                    *(f"--cfg={key}:{value}" for key, value in config.items()), os.path.abspath(f"{build}/simulate"), *words],
                   timeout=1800, cwd=folder, says=True,
                   env={**os.environ, "TMPDIR": folder})
    return float(out.split()[-1])


def check(build):
    """Sums of whole numbers are exact: each element on each rank must be right, for even and uneven partitions."""
    for per_node, ranks in ((1, 2), (1, 5), (1, 16), (4, 16)):
        for way in WAYS:
            for floats, total, at_once in ((5, 16, 1), (1001, 16 * 3 + 5, 4), (150001, 37, 1)):
                simulate(build, ranks, per_node, 10, ["check", f"way={way}", f"floats={floats}", f"global={total}",
                                                      f"at_once={at_once if way == 'reproducible' else 1}", "micro=1", "steps=2"])
    for ranks, stages, total in ((4, 2, 16), (6, 3, 17), (8, 2, 37), (4, 4, 5)):
        simulate(build, ranks, 2, 10, ["check", "way=reproducible", "floats=1001", f"global={total}", "micro=1", "steps=2",
                                       f"stages={stages}", "edge=100"])
    print("the sums are right")


def point(args, times, name, total, ranks, gigabits, way, stages=1):
    """Seconds of a step of `total` samples, and of computing alone on the rank that has most."""
    model, cost = MODELS[name], times[name]
    micros = -(-total // model["micro"])
    seconds = {key: cost[key] / args.speed for key in ("micro_batch", "step", "add")}
    busy = -(-micros // ranks) * seconds["micro_batch"] + seconds["step"]
    if ranks == 1:
        return busy, busy
    return simulate(args.build, ranks, args.per_node, gigabits, [
        f"stages={stages}", f"edge={model.get('edge', 1) * model['micro']}", f"way={way}", f"floats={cost['parameters']}", f"global={total}", f"micro={model['micro']}", "steps=1",
        f"micro_seconds={seconds['micro_batch']:.9g}", f"step_seconds={seconds['step']:.9g}",
        f"add_seconds={cost['add']:.9g}", f"at_once={args.at_once if way == 'reproducible' else 1}"]), busy


# --- tables -------------------------------------------------------------------------------------------------------------


def closed_form(parameters, add, ranks, gigabits):
    """An all-reduce of a long vector by Rabenseifner's algorithm, after Thakur, Rabenseifner and Gropp (2005)."""
    fabric = FABRICS[gigabits]
    alpha = fabric["latency"] + 2 * fabric["overhead"]
    beta = 4 / (gigabits * 1e9 / 8 * fabric["useful"])
    part = (ranks - 1) / ranks * parameters
    return 2 * math.log2(ranks) * alpha + 2 * part * beta + part * add


def number(x):
    return f"{x:,.0f}".replace(",", " ") if x >= 1000 else f"{x:.3g}"


def percent(x):
    """+7 %, -0.3 %, 0 %."""
    text = f"{100 * x:+.0f}" if abs(x) >= 0.01 else f"{100 * x:+.1f}"
    return f"{'0' if float(text) == 0 else text} %"


HEAD = """| ranks | Gb/s | {} | samples/s | efficiency | reduction | {} | samples/s | efficiency | reduction | ratio | closed form |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def table(args, times, name, scaling):
    model, cost = MODELS[name], times[name]
    lines = [HEAD.format(*(f"{way}, ms" for way in WAYS))]
    one, _ = point(args, times, name, model[scaling], 1, None, None)
    lines.append(f"| 1 | | {number(one * 1e3)} | {number(model[scaling] / one)} | 100 % | | | | | | | |")
    for gigabits in args.fabrics:
        for ranks in args.ranks:
            if scaling == "weak" and ranks & (ranks - 1):
                continue
            total = model[scaling] * (ranks if scaling == "weak" else 1)
            cells, steps = [], []
            for way in WAYS:
                step, busy = point(args, times, name, total, ranks, gigabits, way)
                ideal = one if scaling == "weak" else one / ranks
                steps.append(step)
                cells += [number(step * 1e3), number(total / step), f"{100 * ideal / step:.0f} %",
                          f"{100 * (1 - busy / step):.0f} %"]
            form, summed = closed_form(cost["parameters"], cost["add"], ranks, gigabits), steps[0] - busy
            lines.append(f"| {ranks} | {gigabits} | {' | '.join(cells)} | {steps[1] / steps[0]:.2f} | "
                         f"{percent(form / summed - 1)} |")
            print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


MESHES = """| ranks | Gb/s | data x stages | a step, ms | samples/s | efficiency | sent by a rank, MB: sums | values | bubble | closed form |
|---|---|---|---|---|---|---|---|---|---|"""


def mesh_form(cost, speed, model, data, stages, gigabits):
    """A closed form: the slowest stage's micro-batches with their messages, those that fill the pipeline, the sum of
    a stage's gradients."""
    batches = -(-model["strong"] // model["micro"] // data)
    fabric = FABRICS[gigabits]
    value = 4 * model["edge"] * model["micro"] / (gigabits * 1e9 / 8 * fabric["useful"]) + fabric["latency"] + 2 * fabric["overhead"]
    seconds = (batches + stages - 1) * cost["micro_batch"] / speed / stages + cost["step"] / speed / stages
    if stages > 1:
        seconds += 2 * (batches + stages - 2) * value
    if data > 1:
        seconds += closed_form(cost["parameters"] // stages, cost["add"], data, gigabits)
    return seconds + (batches - 1) * cost["add"] * cost["parameters"] / stages


def meshes(args, times, name):
    """Ranks that divide the samples, the layers, or both; all reproducible."""
    model, cost = MODELS[name], times[name]
    lines = [MESHES]
    one, _ = point(args, times, name, model["strong"], 1, None, None)
    lines.append(f"| 1 | | {number(one * 1e3)} | {number(model['strong'] / one)} | 100 % |")
    for gigabits in args.fabrics:
        for ranks in args.ranks:
            for stages in (1, 2, 4, 8):
                if ranks % stages:
                    continue
                data = ranks // stages
                step, _ = point(args, times, name, model["strong"], ranks, gigabits, "reproducible", stages)
                batches = -(-model["strong"] // model["micro"] // data)
                sums = 2 * 4e-6 * cost["parameters"] / stages * (data - 1) / data
                values = 4e-6 * model["edge"] * model["micro"] * batches * min(stages - 1, 2)
                lines.append(f"| {ranks} | {gigabits} | {data} x {stages} | {number(step * 1e3)} | {number(model['strong'] / step)} | "
                             f"{100 * one / ranks / step:.0f} % | {number(sums)} | {number(values)} | "
                             f"{100 * (stages - 1) / (batches + stages - 1):.0f} % | "
                             f"{percent(mesh_form(cost, args.speed, model, data, stages, gigabits) / step - 1)} |")
                print(lines[-1], file=sys.stderr)
    return "\n".join(lines)


def heading(model, cost, speed):
    return (f"{number(cost['parameters'])} parameters. One core: "
            f"{number(cost['micro_batch'] / speed * 1e3)} ms a micro-batch of {model['micro']}, "
            f"{number(cost['step'] / speed * 1e3)} ms a step beside; adding takes {number(cost['add'] * 1e9)} ns a float.")


def tables(args, times):
    parts = []
    for name in args.models:
        model, cost = MODELS[name], times[name]
        parts.append(f"### {model['title']}\n\n{heading(model, cost, args.speed)}")
        if "edge" in model:
            parts.append(f"Divided in layers and in samples, {number(model['strong'])} samples a step:\n\n"
                         + meshes(args, times, name))
            continue
        parts.append(f"Strong scaling, {number(model['strong'])} samples a step:\n\n"
                     + table(args, times, name, "strong"))
        parts.append(f"Weak scaling, {model['weak']} samples a rank and step:\n\n" + table(args, times, name, "weak"))
    return "\n\n".join(parts) + "\n"


def write_readme(text):
    path, begin, end = f"{HERE}/README.md", "<!-- tables -->\n", "<!-- end of tables -->\n"
    with open(path, encoding="utf-8") as file:
        before, rest = file.read().split(begin)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + begin + text + end + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(prog="run.sh", add_help=False)
    numbers = lambda text: [int(word) for word in text.split()]  # noqa: E731
    parser.add_argument("--ranks", type=numbers, default=[16, 64, 256])
    parser.add_argument("--fabrics", type=numbers, default=sorted(FABRICS))
    parser.add_argument("--models", type=str.split, default=["mlp", "cnn", "deep"])
    parser.add_argument("--per-node", type=int, default=1)
    parser.add_argument("--speed", type=float, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--times")
    parser.add_argument("--build", default="build/simulate")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for given, known in ((args.models, MODELS), (args.fabrics, FABRICS)):
        for one in given:
            if one not in known:
                parser.error(f"there is no {one}; there is {', '.join(map(str, known))}")
    if min(args.ranks) < 2 or args.per_node < 1 or args.speed <= 0:
        parser.error("two ranks are needed, one on a node, and a speed above 0")
    os.makedirs(args.build, exist_ok=True)
    build_ranks(args.build)
    if args.check:
        check(args.build)
        return
    text = tables(args, read_times(args))
    if args.write:
        write_readme(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
