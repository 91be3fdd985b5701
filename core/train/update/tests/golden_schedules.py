#!/usr/bin/env python3
"""Writes golden_schedules.h: learning rates of PyTorch's schedulers, step by step.

Usage: golden_schedules.py > golden_schedules.h        (needs torch)

Warm-up is not PyTorch's: it is tested by the rule that the rest equals a run without it.
core/train/update/tests/golden_formulas.py, which needs no PyTorch, adds rows: run it after this.
"""
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, StepLR

RATE, PER_EPOCH, MOST = 0.3, 7, 24
# What evaluations behind the steps give, for the schedule plateau.
VALUES = [1, 0.9, 0.9, 0.89995, 0.95, 0.8, 0.85, 0.85, 0.85, 0.7, 0.69999, 0.69998, 0.71, 0.72, 0.73, 0.5, 0.5, 0.5, 0.49, 0.5, 0.5, 0.4, 0.45, 0.46]


def linear(final):
    return lambda o, n: LinearLR(o, start_factor=1.0, end_factor=final, total_iters=n)


def cosine(final):
    return lambda o, n: CosineAnnealingLR(o, T_max=n, eta_min=final * RATE)


def step(size, gamma):
    return lambda o, n: StepLR(o, step_size=size, gamma=gamma)


# Job file text, steps of the run, PyTorch's scheduler.
CASES = [
    ("constant", 24, lambda o, n: ConstantLR(o, factor=1.0, total_iters=0)),
    ("cosine", 24, cosine(0.0)),
    ("cosine", 17, cosine(0.0)),
    ("{type: cosine, final: 0.1}", 20, cosine(0.1)),
    ("{type: linear}", 24, linear(0.0)),
    ("{type: linear, final: 0.25}", 9, linear(0.25)),
    ("{type: step, every: 5 steps}", 24, step(5, 0.1)),
    ("{type: step, every: 1 epoch, gamma: 0.7}", 24, step(PER_EPOCH, 0.7)),
    ("{type: step, every: 2 epochs, gamma: 0.5}", 24, step(2 * PER_EPOCH, 0.5)),
]


def rates(make, steps):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))], lr=RATE)
    scheduler = make(optimizer, steps)
    out = []
    for _ in range(steps):
        out.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return out


print("/* Made by golden_schedules.py with PyTorch %s. */" % torch.__version__.split("+")[0])
print("// clang-format off")
print("enum { GOLDEN_PER_EPOCH = %d, GOLDEN_MOST = %d };" % (PER_EPOCH, MOST))
print("static const double golden_rate = %r;" % RATE)
print("static const double golden_values[GOLDEN_MOST] = {%s};" % ", ".join("%.15g" % value for value in VALUES))
print("static const struct golden_schedule {")
print("    const char *conf;\n    int steps;\n    double rates[GOLDEN_MOST];")
print("} golden_schedules[] = {")
for conf, steps, make in CASES:
    row = ", ".join("%.15g" % rate for rate in rates(make, steps))
    print('    {"%s", %d,\n     {%s}},' % (conf, steps, row))
print("};\n// clang-format on")
