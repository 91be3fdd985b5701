#!/usr/bin/env python3
"""Writes golden_groups.json: PyTorch's five steps with param_groups and frozen tensors, in float64.

Usage: golden_groups.py > golden_groups.json        (needs torch)

test_groups.py takes the weights, the samples and the groups from here, which needs NumPy alone.
"""
import json
import sys

import numpy as np

STEPS, SAMPLES = 5, 8
SHAPES = {"conv1.weight": (4, 2, 3, 3), "conv1.bias": (4,), "bn1.weight": (4,), "bn1.bias": (4,), "bn1.running_mean": (4,),
          "bn1.running_var": (4,), "conv2.weight": (5, 4, 3, 3), "conv2.bias": (5,), "bn2.weight": (5,), "bn2.bias": (5,),
          "bn2.running_mean": (5,), "bn2.running_var": (5,), "bn3.weight": (5,), "bn3.bias": (5,), "bn3.running_mean": (5,),
          "bn3.running_var": (5,), "head.weight": (3, 45), "head.bias": (3,)}
RATE, CLIP = 0.05, 0.4
OPTIMIZERS = {"sgd": {"momentum": 0.9, "weight_decay": 0.1}, "adamw": {"eps": 1e-3, "weight_decay": 0.1}}
# bn2 is frozen with what it runs by, bn3 without.
FROZEN = ["conv1/weight", "bn2.weight", "bn2.bias", "bn3.weight"]
SLOW, UNDECAYED, SCALE = ["conv1.bias", "bn1.weight", "bn1.bias", "conv2.weight", "conv2.bias"], ["head.weight"], 0.2
NORMS_AND_BIASES = [name for name, shape in SHAPES.items() if len(shape) == 1]


def weights():
    dice = np.random.default_rng(3)
    return {name: (dice.uniform(0.5, 1.5, shape) if "var" in name or "bn" in name and "weight" in name
                   else dice.normal(0, 0.3, shape)).astype("f4") for name, shape in SHAPES.items()}


def samples():
    dice = np.random.default_rng(4)
    return dice.normal(0.3, 1, (SAMPLES, 2, 7, 7)).astype("f4"), dice.integers(0, 3, SAMPLES).astype("i4")


def train(kind):
    import torch
    import torch.nn.functional as F
    p = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights().items()}
    frozen = {name.replace("/", ".") for name in FROZEN}
    learned = [name for name in p if "running" not in name and name not in frozen]
    for name in learned:
        p[name].requires_grad_()
    options = OPTIMIZERS[kind]
    groups = [{"params": [p[name]], "lr": RATE * (SCALE if name in SLOW else 1),
               "weight_decay": 0 if name in UNDECAYED + NORMS_AND_BIASES else options["weight_decay"]} for name in learned]
    optimizer = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind](groups, lr=RATE, **options)
    x, labels = (torch.tensor(part) for part in samples())

    def norm(x, name, training):
        return F.batch_norm(x, p[f"{name}.running_mean"], p[f"{name}.running_var"], p[f"{name}.weight"], p[f"{name}.bias"], training)

    for _ in range(STEPS):
        y = F.relu(norm(F.conv2d(x.double(), p["conv1.weight"], p["conv1.bias"]), "bn1", True))
        y = F.relu(norm(F.conv2d(y, p["conv2.weight"], p["conv2.bias"]), "bn2", False))
        y = norm(y, "bn3", True)
        optimizer.zero_grad()
        F.cross_entropy(F.linear(y.flatten(1), p["head.weight"], p["head.bias"]), labels.long()).backward()
        torch.nn.utils.clip_grad_norm_([p[name] for name in learned], CLIP)
        optimizer.step()
    return {name: value.detach().numpy().ravel().tolist() for name, value in p.items()}


if __name__ == "__main__":
    json.dump({kind: {name: [float(f"{v:.9g}") for v in values] for name, values in train(kind).items()} for kind in OPTIMIZERS},
              sys.stdout)
    print()
