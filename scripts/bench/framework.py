"""What the jobs of scripts/bench.sh in other frameworks share: their words, the rate over blocks of steps, what they print."""
import argparse
import resource
import statistics
import time

BLOCKS = 5
SAMPLES = 4096


def arguments(doc, models, *flags, **numbers):
    """A parser of MODEL, --batch, --steps, and what else has a number, or is a flag."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models)
    for name, number in {**numbers, "batch": 128, "steps": 50}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    return parser


def median_rate(run, args, warm, meet=lambda: None):
    """Samples a second of run(steps): the median over blocks, after `warm` steps that do not count. meet: a barrier of all ranks."""
    run(warm)
    rates = []
    for _ in range(BLOCKS):
        meet()
        start = time.perf_counter()
        run(args.steps)
        meet()
        rates.append(args.steps * args.batch / (time.perf_counter() - start))
    return statistics.median(rates)


def tell(rate):
    print(f"samples_per_s {rate:.1f}")
    print(f"peak_mb {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3:.1f}", flush=True)
