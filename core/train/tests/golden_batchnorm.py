#!/usr/bin/env python3
"""Writes golden_batchnorm.json: what PyTorch's BatchNorm over whole batches makes of a small model in a few steps of SGD.

Usage: golden_batchnorm.py > golden_batchnorm.json        (needs torch)

The model of whole_batch.py, in float64; batches of 21, the last one of 13.
"""
import json
import sys

import torch

sys.path.insert(0, "core/train/tests")
from whole_batch import BATCH, LR, SAMPLES, STEPS, beginning, samples  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.batchnorm1 = torch.nn.BatchNorm2d(3, momentum=0.25)
        self.conv1 = torch.nn.Conv2d(3, 5, 3, padding=1)
        self.batchnorm2 = torch.nn.BatchNorm2d(5)
        self.conv2 = torch.nn.Conv2d(5, 5, 3, padding=1)
        self.batchnorm3 = torch.nn.BatchNorm2d(5)
        self.batchnorm4 = torch.nn.BatchNorm1d(5)
        self.dense1 = torch.nn.Linear(5, 2)

    def forward(self, x):
        x = torch.relu(self.batchnorm2(self.conv1(self.batchnorm1(x))))
        x = torch.relu(x + self.batchnorm3(self.conv2(x)))
        return self.dense1(self.batchnorm4(x.mean(dim=(2, 3))))


def main():
    x, labels = (torch.from_numpy(a) for a in samples())
    model = Model().double()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in beginning().items()}, strict=False)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    losses = []
    for step in range(STEPS):
        at = step * BATCH % (-(-SAMPLES // BATCH) * BATCH)
        loss = torch.nn.functional.cross_entropy(model(x[at:at + BATCH].double()), labels[at:at + BATCH].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found = {k: v.numpy() for k, v in model.state_dict().items() if "num_batches" not in k}
    print(json.dumps({"loss": [round(v, 9) for v in losses],
                      **{k: [float(f"{x:.9g}") for x in v.ravel()] for k, v in found.items()}}, indent=None))


if __name__ == "__main__":
    main()
