#!/usr/bin/env python3
"""The job that `dptrain init` writes, no key touched, beside the same layers in PyTorch, on eight sets of few images.

    few_pictures.py DPTRAIN FOLDER --rounds N [--only SET,...]

Six sets are drawn here and by scikit-learn's digits, two are of data/mnist. Each round draws another training set, and a test set of up to
2 000. PyTorch's net has the layers of the job, its batch, its epochs and its normalisation, Adam at 1e-3, all samples and the last weights.
Prints a row of Markdown a set: accuracies on the test, and seconds from files of pixels to a tested model. Needs PyTorch and scikit-learn.
"""
import argparse
import gzip
import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from first_jobs import events_of, run, shown, tested

TESTED = 2000


def grid(side):
    return np.mgrid[0:side, 0:side].astype(np.float32)


def noisy(draw, pictures, sigma):
    return np.clip(pictures + draw.normal(0, sigma, pictures.shape), 0, 255).astype(np.uint8)


def shape(draw, kind, side=48):
    """A disc, a square, a triangle or a cross of any place, size and turn, in a light colour on a dark one."""
    y, x = grid(side)
    centre, size, turn = draw.uniform(14, side - 14, 2), draw.uniform(6, 13), draw.uniform(0, np.pi / 2)
    u = (x - centre[1]) * np.cos(turn) + (y - centre[0]) * np.sin(turn)
    v = (y - centre[0]) * np.cos(turn) - (x - centre[1]) * np.sin(turn)
    inside = [u * u + v * v < size * size, np.maximum(abs(u), abs(v)) < 0.85 * size,
              (v < 0.6 * size) & (v > 1.8 * abs(u) - size),
              (np.minimum(abs(u), abs(v)) < 0.3 * size) & (np.maximum(abs(u), abs(v)) < size)][kind]
    ground, ink = draw.uniform((0, 160), (96, 256), (3, 2)).T[:, :, None, None]
    return np.where(inside, ink, ground)


def shapes(draw, n):
    """Four classes in colour, 48 x 48."""
    kinds = np.arange(n) % 4
    return noisy(draw, np.stack([shape(draw, kind) for kind in kinds]), 20), kinds


def clutter(draw, n):
    """The four classes, covered by eight lines of any colour."""
    pictures, kinds = shapes(draw, n)
    y, x = grid(48)
    for picture in pictures:
        for _ in range(8):
            turn, shift = draw.uniform(0, np.pi), draw.uniform(-20, 20)
            line = abs((x - 24) * np.cos(turn) + (y - 24) * np.sin(turn) - shift) < 1
            picture[:, line] = draw.integers(0, 256, (3, 1))
    return pictures, kinds


def gratings(draw, n):
    """Waves of four directions, 32 x 32, of any length and phase, in noise as large as they."""
    kinds = np.arange(n) % 4
    y, x = grid(32)
    turn = (kinds * np.pi / 4 + draw.normal(0, 0.1, n))[:, None, None]
    wave = np.sin((x * np.cos(turn) + y * np.sin(turn)) * draw.uniform(0.4, 1.2, (n, 1, 1)) + draw.uniform(0, 6.3, (n, 1, 1)))
    return noisy(draw, 128 + 60 * wave[:, None], 60), kinds


def strokes(draw, n):
    """Ten letters, each of three lines between points of its own that are moved by some pixels, 28 x 28."""
    points = np.random.default_rng(1).uniform(5, 23, (10, 3, 2, 2))
    kinds = np.arange(n) % 10
    y, x = grid(28)
    pictures = np.zeros((n, 1, 28, 28), np.float32)
    for picture, kind in zip(pictures, kinds):
        for a, b in points[kind] + draw.normal(0, 1.5, (3, 2, 2)) + draw.normal(0, 1.5, 2):
            at = np.clip(((x - a[0]) * (b[0] - a[0]) + (y - a[1]) * (b[1] - a[1])) / (np.sum((b - a) ** 2) + 1e-6), 0, 1)
            near = np.hypot(x - a[0] - at * (b[0] - a[0]), y - a[1] - at * (b[1] - a[1]))
            picture[0] = np.maximum(picture[0], 255 * np.clip(2 - near, 0, 1))
    return noisy(draw, pictures, 25), kinds


def counts(draw, n):
    """One to five spots of any size, 40 x 40."""
    kinds = np.arange(n) % 5
    y, x = grid(40)
    pictures = np.full((n, 1, 40, 40), 40, np.float32)
    for picture, kind in zip(pictures, kinds):
        at = draw.permutation(9)[:kind + 1]
        for place in at:
            cy, cx = 7 + 13 * (place // 3) + draw.uniform(-2, 2), 7 + 13 * (place % 3) + draw.uniform(-2, 2)
            picture[0, np.hypot(y - cy, x - cx) < draw.uniform(2, 4.5)] = draw.uniform(120, 255)
    return noisy(draw, pictures, 20), kinds


def idx(name):
    data = gzip.decompress((Path(__file__).parents[2] / "data/mnist" / name).read_bytes())
    return np.frombuffer(data, np.uint8, offset=8 if "labels" in name else 16)


def mnist(draw, n, part):
    pictures, labels = idx(f"{part}-images-idx3-ubyte.gz").reshape(-1, 1, 28, 28), idx(f"{part}-labels-idx1-ubyte.gz")
    some = draw.permutation(len(labels))[:n]
    return pictures[some], labels[some]


def drawn(kind, n):
    return lambda draw: (kind(draw, n), kind(draw, TESTED))


def of_mnist(n):
    return lambda draw: (mnist(draw, n, "train"), mnist(draw, TESTED, "t10k"))


def digits(draw):
    """scikit-learn's, 8 x 8: 600, and the others as the test."""
    data = load_digits()
    order = draw.permutation(len(data.target))
    pictures, labels = (data.images[order, None] * 15).astype(np.uint8), data.target[order]
    return (pictures[:600], labels[:600]), (pictures[600:], labels[600:])


SETS = {"shapes": (360, drawn(shapes, 360)), "shapes among lines": (360, drawn(clutter, 360)), "gratings": (200, drawn(gratings, 200)),
        "letters": (500, drawn(strokes, 500)), "spots to count": (400, drawn(counts, 400)), "300 of MNIST": (300, of_mnist(300)),
        "1 000 of MNIST": (1000, of_mnist(1000)), "digits of 8 x 8": (600, digits)}


def dptrain(binary, folder, seed):
    """The test's accuracy, by the checkpoint that a user would take; the epochs trained; the seconds of all commands."""
    begin = time.monotonic()
    for part in ("train", "test"):
        run(binary, "convert", "npz", folder / f"{part}.npz", "--output", folder / part)
    run(binary, "init", folder, "--output", folder / "job.yaml")
    run(binary, folder / "job.yaml", "--output", folder / "run", "--quiet", "--set", f"seed={seed + 1}")
    seconds = time.monotonic() - begin
    events = events_of(folder / "run")
    return tested(events), max(event.get("epoch", 0) for event in events), seconds


def layers(job, channels, side, classes):
    """The modules of the job's list of layers."""
    numbers, made = channels * side * side, []
    for kind, text in re.findall(r"^    - (\w+)(.*?)(?:#.*)?$", job, re.M):
        count = int(found[0]) if (found := re.findall(r"\d+", text)) else classes
        if kind == "conv":
            made.append(nn.Conv2d(channels, count, 3, padding="same"))
            channels = count
        elif kind == "dense":
            made.append(nn.Linear(numbers, count))
            numbers = count
        elif kind == "maxpool":
            made.append(nn.MaxPool2d(count))
            side //= count
        else:
            made.append({"relu": nn.ReLU, "flatten": nn.Flatten, "dropout": lambda: nn.Dropout(0.25)}[kind]())
        if kind in ("conv", "maxpool"):
            numbers = channels * side * side
    return nn.Sequential(*made)


def pytorch(folder, epochs, seed):
    """The test's accuracy of the last weights, and the seconds."""
    begin = time.monotonic()
    torch.manual_seed(seed)
    job = (folder / "job.yaml").read_text()
    values = lambda key: torch.tensor([float(n) for n in re.search(rf"^    {key}: \[(.*?)\]", job, re.M)[1].split(",")]).view(-1, 1, 1)
    sets = []
    for part in ("train", "test"):
        with np.load(folder / f"{part}.npz") as data:
            sets.append(((torch.from_numpy(data["x"] / np.float32(255)) - values("mean")) / values("std"), torch.from_numpy(data["y"])))
    (x, y), (x_test, y_test) = sets
    net = layers(job, x.shape[1], x.shape[2], int(y.max()) + 1)
    batch, optimizer, loss_of = int(re.search(r"global: (\d+)", job)[1]), torch.optim.Adam(net.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss_of(net(x[some]), y[some]).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        right = sum((net(a).argmax(1) == b).sum().item() for a, b in zip(x_test.split(250), y_test.split(250)))
    return right / len(y_test), time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SETS))
    args = parser.parse_args()
    print("| pictures | samples | dptrain | s | PyTorch, same net | s | epochs |\n" + "|---" * 7 + "|")
    for name in args.only:
        samples, make = SETS[name]
        mine, theirs, epochs = [], [], []
        for seed in range(args.rounds):
            folder = args.folder / re.sub(r"\W+", "_", name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for part, (x, y) in zip(("train", "test"), make(np.random.default_rng(seed))):
                np.savez(folder / f"{part}.npz", x=x, y=y.astype(np.int64))
            score, trained, seconds = dptrain(args.binary, folder, seed)
            mine.append((score, seconds))
            epochs.append(trained)
            theirs.append(pytorch(folder, trained, seed))
        print(f"{name}: {mine} {theirs} {epochs}", file=sys.stderr)
        print(f"| {name} | {samples} | {shown([score for score, _ in mine])} | {np.median([s for _, s in mine]):.1f} | "
              f"{shown([score for score, _ in theirs])} | {np.median([s for _, s in theirs]):.1f} | {np.median(epochs):.0f} |", flush=True)


if __name__ == "__main__":
    main()
