#!/usr/bin/env python3
"""Adds rows to the golden files by formulas, where PyTorch is not installed or has no such thing. Needs NumPy alone.

Usage: golden_formulas.py [TOP]        (of the tree to write to; this one)

A formula is taken from the paper, not from dptrain's code. Slopes are not written down: they are differences of the formula, in
long double. What golden_layers.py, golden_loss.py, golden_optimizers.py and golden_schedules.py print replaces a file whole:
run this script after them.
"""
import re
import sys
import zlib
from pathlib import Path

import numpy as np

PER_EPOCH, RATE = 7, 0.3  # steps of an epoch and the first rate, as golden_schedules.h has them
TOP = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[4])

# Activation: its options in their order, each with a function of an array.
ACTIVATIONS = {
    "silu": [((), lambda x: x / (1 + np.exp(-x)))],  # Ramachandran et al. 2017
    "elu": [((0.7,), lambda x: np.where(x < 0, np.float32(0.7) * np.expm1(x), x))],  # Clevert et al. 2015, equation 2
}

def no_right(y, t):
    return np.zeros(len(y))


def normal(dice, shape):
    return dice.normal(size=shape)


def weighed(dice, shape):
    return dice.choice([0, 1, -3, -0.25], shape)


def weighed_binary(y, t):
    """The description of torch.nn.BCEWithLogitsLoss, with -t as the pos_weight of an element whose target is 1 where t is below 0."""
    target, weight = np.where(t < 0, 1, t), np.where(t < 0, -t, 1)
    return (weight * target * np.log1p(np.exp(-y)) + (1 - target) * np.log1p(np.exp(y))).mean(1)


def counts(dice, shape):
    return dice.poisson(2, shape)


def shares(dice, shape):
    return dice.dirichlet(np.ones(shape[1]), shape[0])


def softmax(y):
    powers = np.exp(y - y.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


# Loss: its attribute; of each sample, from rows of outputs and of targets; which are right; how targets are drawn.
LOSSES = {
    # Lin et al. 2017, "Focal Loss for Dense Object Detection", equation 4, of each class by softmax.
    "focal": (1.5, lambda y, t: -(t * (1 - softmax(y)) ** 1.5 * np.log(softmax(y))).sum(1), lambda y, t: y.argmax(1) == t.argmax(1), shares),
    "mse": (0, lambda y, t: ((y - t) ** 2).mean(1), no_right, normal),
    "l1": (0, lambda y, t: abs(y - t).mean(1), no_right, normal),
    # Huber 1964, "Robust Estimation of a Location Parameter", section 1 (there with k in place of delta).
    "huber": (1.5, lambda y, t: np.where(abs(y - t) <= 1.5, (y - t) ** 2 / 2, 1.5 * abs(y - t) - 1.5 ** 2 / 2).mean(1), no_right, normal),
    # Koenker & Bassett 1978, "Regression Quantiles", equation 2.1.
    "quantile": (0.75, lambda y, t: np.where(y < t, 0.75 * (t - y), 0.25 * (y - t)).mean(1), no_right, normal),
    "binary_cross_entropy": (0, weighed_binary, lambda y, t: ((y > 0) == (t != 0)).all(1), weighed),
    # The description of torch.nn.PoissonNLLLoss with its defaults, log_input=True and full=False.
    "poisson": (0, lambda y, t: (np.exp(y) - t * y).mean(1), no_right, counts),
}

def onecycle(t, n, pct_start=0.3, div_factor=25, final_div_factor=1e4):
    """torch.optim.lr_scheduler.OneCycleLR with anneal_strategy "cos", line by line; Smith & Topin 2018, "Super-Convergence"."""
    def anneal(start, end, pct):
        return end + (start - end) / 2.0 * (np.cos(np.pi * pct) + 1)
    initial, peak = 1 / div_factor, 1
    phases = [(pct_start * n - 1, initial, peak), (n - 1, peak, initial / final_div_factor)]
    begin = 0
    for i, (end, start, stop) in enumerate(phases):
        if t <= end or i == len(phases) - 1:
            return anneal(start, stop, (t - begin) / (end - begin))
        begin = end


def plateau(t, factor=0.1, patience=10, threshold=1e-4, relative=True, min_lr=0.0, rising=False):
    """torch.optim.lr_scheduler.ReduceLROnPlateau by its description, over the values of the steps before t: share of the first rate."""
    text = (TOP / "core/train/update/tests/golden_schedules.h").read_text()
    values = [float(v) for v in re.search(r"golden_values\[.*?= {(.*?)};", text)[1].split(", ")]
    rate, best, bad, sign = RATE, None, 0, 1 if rising else -1
    for value in values[:t]:
        bar = best if best is None else best * (1 + sign * threshold) if relative else best + sign * threshold
        best, bad = (value, 0) if best is None or sign * value > sign * bar else (best, bad + 1)
        if bad > patience:
            rate, bad = max(rate * factor, min_lr), 0
    return rate / RATE


# Schedule: text of the job, steps, the factor of the learning rate at step t of n.
SCHEDULES = [
    ("{type: cosine, final: 0.3}", 11, lambda t, n: 0.3 + 0.7 * (1 + np.cos(np.pi * t / n)) / 2),  # Loshchilov & Hutter 2017
    ("{type: exponential, every: 4 steps, gamma: 0.5}", 13, lambda t, n: 0.5 ** (t / 4)),  # tf.keras' ExponentialDecay
    ("{type: exponential, every: 1 epochs}", 22, lambda t, n: 0.95 ** (t / PER_EPOCH)),
    ("{type: polynomial, power: 0.9, final: 0.1}", 12, lambda t, n: 0.1 + 0.9 * (1 - t / n) ** 0.9),  # Chen et al. 2017, "DeepLab"
    ("polynomial", 9, lambda t, n: (1 - t / n) ** 2),
    ("onecycle", 20, onecycle),
    ("{type: onecycle, pct_start: 0.5, div_factor: 4, final_div_factor: 10}", 13, lambda t, n: onecycle(t, n, 0.5, 4, 10)),
    ("plateau", 24, lambda t, n: plateau(t)),
    ("{type: plateau, factor: 0.5, patience: 2}", 24, lambda t, n: plateau(t, 0.5, 2)),
    ("{type: plateau, factor: 0.5, patience: 0, min_lr: 0.05}", 24, lambda t, n: plateau(t, 0.5, 0, min_lr=0.05)),
    ("{type: plateau, patience: 1, min_delta: 0.02, relative: false}", 24, lambda t, n: plateau(t, patience=1, threshold=0.02, relative=False)),
    ("{type: plateau, patience: 1, min_delta: 0.1}", 24, lambda t, n: plateau(t, patience=1, threshold=0.1)),
    ("{type: plateau, monitor: valid.accuracy, patience: 3, factor: 0.7}", 24, lambda t, n: plateau(t, 0.7, 3, rising=True)),
]


def lion(p, g, state, lr, weight_decay=0.0, beta1=0.9, beta2=0.99):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2, line by line."""
    m = state.get("m", np.zeros_like(p))
    state["m"] = beta2 * m + (1 - beta2) * g
    return p - lr * (np.sign(beta1 * m + (1 - beta1) * g) + weight_decay * p)


def adagrad(p, g, state, lr, weight_decay=0.0, eps=1e-10):
    """Duchi et al. 2011, figure 1, with diagonal matrices; the decay is PyTorch's, added to the gradient."""
    g = g + weight_decay * p
    state["sum"] = state.get("sum", np.zeros_like(p)) + g ** 2
    return p - lr * g / (np.sqrt(state["sum"]) + eps)


def nadam(p, g, state, lr, weight_decay=0.0, beta1=0.9, beta2=0.999, eps=1e-8, momentum_decay=0.004):
    """The algorithm in the documentation of torch.optim.NAdam, after Dozat 2016, line by line, in double."""
    def mu(t):
        return beta1 * (1 - 0.5 * 0.96 ** (t * momentum_decay))
    t = state["t"] = state.get("t", 0) + 1
    g = g + weight_decay * p.astype("f8")
    state["product"] = state.get("product", 1) * mu(t)
    m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g ** 2
    m_hat = mu(t + 1) * m / (1 - state["product"] * mu(t + 1)) + (1 - mu(t)) * g / (1 - state["product"])
    return (p - lr * m_hat / (np.sqrt(v / (1 - beta2 ** t)) + eps)).astype("f4")


def lamb(p, g, state, lr, weight_decay=0.01, beta1=0.9, beta2=0.999, eps=1e-6, always_adapt="false"):
    """You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2, in double; phi is the identity."""
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g.astype("f8")
    v = state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g.astype("f8") ** 2
    r = (m / (1 - beta1 ** t)) / (np.sqrt(v / (1 - beta2 ** t)) + eps) + weight_decay * p
    ratio = np.linalg.norm(p.astype("f8")) / np.linalg.norm(r) if always_adapt == "true" or not state["bias"] else 1
    return (p - lr * ratio * r).astype("f4")


def lars(p, g, state, lr, weight_decay=5e-4, momentum=0.9, coefficient=0.001, always_adapt="false"):
    """You, Gitman & Ginsburg 2017, "Large Batch Training of Convolutional Networks", algorithm 1, in double."""
    p, g = p.astype("f8"), g.astype("f8")
    local = coefficient * np.linalg.norm(p) / (np.linalg.norm(g) + weight_decay * np.linalg.norm(p))
    rate = lr * local if always_adapt == "true" or not state["bias"] else lr
    state["v"] = momentum * state.get("v", 0) + rate * (g + weight_decay * p)
    return (p - state["v"]).astype("f4")


# Optimizer: its options, and a function from a float32 array, its gradient and what it keeps to the array after a step.
OPTIMIZERS = [
    ("lion", {}, lion),
    ("lion", {"beta1": 0.7, "beta2": 0.95, "weight_decay": 0.3}, lion),
    ("lion", {"beta1": 0.0, "weight_decay": 0.1}, lion),
    ("adagrad", {}, adagrad),
    ("adagrad", {"eps": 0.001, "weight_decay": 0.1}, adagrad),
    ("nadam", {}, nadam),
    ("nadam", {"beta1": 0.7, "beta2": 0.95, "eps": 0.001, "weight_decay": 0.1}, nadam),
    ("nadam", {"beta1": 0.99, "momentum_decay": 0.5}, nadam),
    ("nadam", {"momentum_decay": 1000.0}, nadam),
    ("lamb", {}, lamb),
    ("lamb", {"beta1": 0.7, "beta2": 0.95, "eps": 0.001, "weight_decay": 0.3}, lamb),
    ("lamb", {"always_adapt": "true", "weight_decay": 0.0}, lamb),
    ("lars", {}, lars),
    ("lars", {"momentum": 0.5, "coefficient": 0.02, "weight_decay": 0.1}, lars),
    ("lars", {"always_adapt": "true", "momentum": 0.0, "coefficient": 0.3}, lars),
]


def numbers(values, form="%.9g"):
    return ", ".join(form % v for v in np.asarray(values, "f8").flatten())


def floats(values):
    return "{" + ", ".join(("%.9g" if "." in "%.9g" % v or "e" in "%.9g" % v else "%.9g.0") % v + "f" for v in values) + "}"


def slope(f, x):
    """df/dx of each number, by itself."""
    x, h = x.astype(np.longdouble), np.longdouble(1e-6)
    return (f(x + h) - f(x - h)) / (2 * h)


def activation_rows():
    for name, forms in ACTIVATIONS.items():
        for attributes, f in forms:
            label = f"{name}, by formula"
            dice = np.random.default_rng(zlib.crc32(label.encode()))
            x, target = (dice.normal(0, 2, (2, 3, 2, 4)).astype("f4") for _ in range(2))
            y = f(x.astype(np.longdouble))
            dx = 2 * (y - target) / y[0].size * slope(f, x)
            yield label, f"""    {{
        .name = "{label}",
        .op = DPT_OP_{name.upper()},
        .count = 2,
        .in = {{3, 2, 4, false}},
        .out = {{3, 2, 4, false}},
        .window = {{{{1, 1}}, {{1, 1}}, {{1, 1}}, {{0, 0}}, {{0, 0}}, 1}},
        .attribute = {{{numbers(attributes) or 0}}},
        .x = {{{numbers(x)}}},
        .target = {{{numbers(target)}}},
        .y = {{{numbers(y)}}},
        .dx = {{{numbers(dx)}}},
    }},
"""


def loss_rows():
    for kind, (attribute, f, right, targets) in LOSSES.items():
        label = f"{kind}, by formula"
        dice = np.random.default_rng(zlib.crc32(label.encode()))
        y, t = dice.normal(0, 2, (4, 6)).astype("f4"), targets(dice, (4, 6)).astype("f4")
        dy = np.stack([slope(lambda column, j=j: f(np.concatenate([y[:, :j], column[:, None], y[:, j + 1:]], 1), t), y[:, j])
                       for j in range(y.shape[1])], 1)
        yield label, f"""    {{
        .name = "{label}",
        .loss = {{DPT_LOSS_{kind.upper()}, {attribute}}},
        .count = 4,
        .outputs = 6,
        .y = {{{numbers(y)}}},
        .soft = true,
        .targets = {{{numbers(t)}}},
        .sum = {numbers(f(y.astype(np.longdouble), t).sum(), "%.17g")},
        .correct = {int(right(y, t).sum())},
        .dy = {{{numbers(dy)}}},
    }},
"""


def schedule_rows():
    for conf, steps, factor in SCHEDULES:
        yield conf, f'    {{"{conf}", {steps},\n     {{{numbers([RATE * factor(t, steps) for t in range(steps)], "%.15g")}}}}},\n'


def optimizer_rows(text):
    """By the weights, gradients and rates that the file has; weights decay, biases do not."""
    def values(name):
        return [float(v) for v in re.findall(r"-?\d[\d.e+-]*", re.search(rf"{name}\b[^=]*= (.*?);", text, re.S)[1])]

    weights, start, rates = int(re.search(r"GOLDEN_WEIGHTS = (\d+)", text)[1]), np.array(values("golden_start"), "f4"), values("golden_rates")
    gradients = np.array(values("golden_gradients"), "f4").reshape(len(rates), -1)
    for kind, options, step in OPTIMIZERS:
        conf = "{type: %s%s}" % (kind, "".join(f", {k}: {v}" for k, v in options.items()))
        parts, states, rows = [start[:weights], start[weights:]], ({"bias": False}, {"bias": True}), []
        for rate, g in zip(rates, gradients):
            parts = [step(p, of, state, rate, **(options if not state["bias"] else {**options, "weight_decay": 0.0}))
                     for p, of, state in zip(parts, (g[:weights], g[weights:]), states)]
            rows.append("        " + floats(np.concatenate(parts)) + ",\n")
        yield conf, f'    {{"{conf}", {{\n{"".join(rows)}    }}}},\n'


def write(name, rows, end):
    """Each row in the place of that of its name, or after the last one."""
    path = TOP / name
    text = path.read_text()
    for label, row in rows(text) if rows is optimizer_rows else rows():
        head = row[:row.index(label) + len(label) + 1]  # of a row of as many lines
        old = re.search(re.escape(head) + r"(?:.*\n)" + f"{{{row.count(chr(10)) - head.count(chr(10))}}}", text)
        at, to = old.span() if old else (text.rindex(end) if end else len(text),) * 2
        text = text[:at] + row + text[to:]
    path.write_text(text)


write("core/backend/tests/golden_layers.h", activation_rows, "")
write("core/backend/tests/golden_loss.h", loss_rows, "")
write("core/train/update/tests/golden_schedules.h", schedule_rows, "};\n// clang-format on")
write("core/train/update/tests/golden_optimizers.h", optimizer_rows, "};\n// clang-format on")
