#!/usr/bin/env python3
"""A net of torch_ddp.py for MNIST in PyTorch DDP over gloo, from the start of the process to a tested model.

    torch_accuracy.py FOLDER --model MODEL --ranks N --epochs E --batch B [--bf16]

FOLDER holds the four IDX files of MNIST (.gz). Channels-last, Adam, cosine, all images in memory; --bf16: autocast. Prints the
accuracy on the test images: `accuracy 0.99`.
"""
import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from torch_ddp import MODELS, open_rank, run_ranks

TESTED = 250  # images at once


def idx(path, skip, shape):
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=skip).reshape(shape)


def load(folder, name):
    images = idx(folder / f"{name}-images-idx3-ubyte.gz", 16, (-1, 1, 28, 28))
    x = torch.from_numpy((images / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081))
    y = torch.from_numpy(idx(folder / f"{name}-labels-idx1-ubyte.gz", 8, -1).astype(np.int64))
    return x.contiguous(memory_format=torch.channels_last), y


def train(rank, args, store):
    open_rank(rank, args.ranks, store)
    net = nn.Sequential(*MODELS[args.model][1]()).to(memory_format=torch.channels_last)
    parallel = nn.parallel.DistributedDataParallel(net) if args.ranks > 1 else net
    x, y = load(args.folder, "train")
    steps, mine = len(x) // args.batch, args.batch // args.ranks
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * steps)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for step in range(steps):
            at = step * args.batch + rank * mine
            some = order[at:at + mine]
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                loss_of(parallel(x[some]), y[some]).backward()
            optimizer.step()
            schedule.step()
    x, y = load(args.folder, "t10k")
    net.eval()
    right = torch.zeros(1)
    with torch.no_grad():
        for at in range(rank * TESTED, len(x), TESTED * args.ranks):
            right += (net(x[at:at + TESTED]).argmax(1) == y[at:at + TESTED]).sum()
    dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy {right.item() / len(x):.4f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("mnistcnn", "mnistresnet"), default="mnistcnn")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--bf16", action="store_true")
    run_ranks(train, parser.parse_args())


if __name__ == "__main__":
    main()
