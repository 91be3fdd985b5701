#!/usr/bin/env python3
"""The jobs of scripts/bench.sh in PyTorch: DistributedDataParallel over gloo, one CPU rank per process.

    torch_ddp.py MODEL --ranks N --batch B --steps S [--fused] [--bf16] [--compile] [--shard optimizer | gradients | parameters] [--tensor]
                 [--pipeline M]

MODEL: linreg, mlp, mlp4k, mlp8k (784-8192-10), cnn (32x32x3), mnistcnn, mnistresnet (28x28x1; configs/mnist-resnet.yaml's), resnet20
(CIFAR's, 32x32x3) or resnet18 (64x64x3). Channels-last, which is PyTorch's faster way, Adam, data in memory. --fused: Adam in one pass over
all parameters; --bf16: autocast, so that the products have numbers of half the bits; --compile: torch.compile, which needs a C++ compiler.
--shard: what the ranks divide among them: ZeroRedundancyOptimizer, or FSDP2 that keeps the weights of a layer until it has gone back, or
gathers them again. --tensor: the ranks divide the layers, not the samples: DTensor, every second dense layer by its outputs and the next one
by its inputs (Shoeybi et al. 2019). --pipeline: each rank has a stage, cut in front of a layer with weights so that the one with most
arithmetic has least, and M micro-batches go through them a step (torch.distributed.pipelining, 1F1B). Prints the median rate over blocks of
S steps, and the most memory of rank 0: `samples_per_s 1234.5`, `peak_mb 678`.
"""

import itertools
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from framework import SAMPLES, arguments, median_rate, tell


def conv_block(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]


def normed(inputs, outputs, kernel=3, stride=1):
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes (He et al. 2015)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(*normed(inputs, outputs, 3, stride), nn.ReLU(), *normed(outputs, outputs))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*normed(inputs, outputs, 1, stride))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def residual_net(stem, widths, blocks):
    """Stages of so many blocks; each but the first halves the image."""
    layers, before = stem, widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Residual(before, width, 2 if stage > 0 and block == 0 else 1))
            before = width
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]


MODELS = {
    "linreg": ((5,), lambda: [nn.Linear(5, 1)]),
    "mlp": ((784,), lambda: [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)]),
    "mlp4k": ((784,), lambda: [nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)]),
    "mlp8k": ((784,), lambda: [nn.Linear(784, 8192), nn.ReLU(), nn.Linear(8192, 10)]),
    "cnn": ((3, 32, 32), lambda: conv_block(3, 32) + conv_block(32, 64) + [nn.Flatten(), nn.Linear(4096, 10)]),
    "mnistcnn": ((1, 28, 28), lambda: conv_block(1, 32) + conv_block(32, 64)
                 + [nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)]),
    "mnistresnet": ((1, 28, 28), lambda: [*normed(1, 32), nn.ReLU(), nn.MaxPool2d(2), *normed(32, 64), nn.ReLU(), nn.MaxPool2d(2),
                                          Residual(64, 64, 1), *normed(64, 128), nn.ReLU(), nn.MaxPool2d(7), nn.Flatten(),
                                          nn.Linear(128, 10)]),
    "resnet20": ((3, 32, 32), lambda: residual_net([*normed(3, 16), nn.ReLU()], (16, 32, 64), 3)),
    "resnet18": ((3, 64, 64), lambda: residual_net([*normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], (64, 128, 256, 512), 2)),
}


def divide_layers(net, ranks):
    """A pair of dense layers sends once: what is between them stays where it is."""
    dense = [name for name, layer in net.named_children() if isinstance(layer, nn.Linear)]
    pairs = {name: RowwiseParallel() if i % 2 else ColwiseParallel() for i, name in enumerate(dense[:len(dense) // 2 * 2])}
    return parallelize_module(net, init_device_mesh("cpu", (ranks,)), pairs)


def flops_of(layer, x):
    """What it makes of x, and its products for that."""
    flops, hooks = [0], []
    for part in layer.modules():
        if isinstance(part, (nn.Linear, nn.Conv2d)):
            hooks.append(part.register_forward_hook(
                lambda part, _, y: flops.append(part.weight.numel() * y.numel() // (len(y) * len(part.weight)))))
    with torch.no_grad():
        y = layer(x)
    for hook in hooks:
        hook.remove()
    return y, sum(flops)


class Contiguous(torch.autograd.Function):
    """Gloo sends no channels-last values, or gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.contiguous()

    @staticmethod
    def backward(ctx, dy):
        return dy.contiguous()


class Edge(nn.Module):
    def forward(self, x):
        return Contiguous.apply(x)


def cut(net, shape, stages):
    """The layers of each stage."""
    x, flops = torch.zeros(2, *shape), []
    for layer in net:
        x, own = flops_of(layer, x)
        flops.append(own)
    places = [i for i, own in enumerate(flops) if own > 0 and any(flops[:i])]
    ends = min(([0, *chosen, len(net)] for chosen in itertools.combinations(places, stages - 1)),
               key=lambda at: max(sum(flops[a:b]) for a, b in itertools.pairwise(at)))
    return [nn.Sequential(Edge(), *net[a:b], Edge()) for a, b in itertools.pairwise(ends)]


def open_rank(rank, ranks, store, threads=1):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)


def run_ranks(train, args):
    """train(rank, args, store) in args.ranks processes. Forked, they need not load PyTorch again, which takes longer than many a
    measurement."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(train, (args, Path(folder, "store")), args.ranks, start_method="fork")


def train(rank, args, store):
    open_rank(rank, args.ranks, store, args.threads)
    shape, layers = MODELS[args.model]
    images = len(shape) == 3
    net = nn.Sequential(*layers())
    if images:
        net = net.to(memory_format=torch.channels_last)
    if args.compile:
        net = torch.compile(net)
    if args.shard in ("gradients", "parameters"):
        for layer in net:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, reshard_after_forward=args.shard == "parameters")
        fully_shard(net, reshard_after_forward=args.shard == "parameters")
    elif args.tensor:
        net = divide_layers(net, args.ranks)
    elif args.pipeline:
        net = cut(net, shape, args.ranks)[rank]
    elif args.ranks > 1:
        net = nn.parallel.DistributedDataParallel(net)
    if args.shard == "optimizer":
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=1e-3, fused=args.fused)
    else:
        kinds = {}  # fused, one pass takes tensors of one kind
        for parameter in net.parameters():
            kinds.setdefault(isinstance(parameter, DTensor), []).append(parameter)
        optimizer = torch.optim.Adam([{"params": kind} for kind in kinds.values()], lr=1e-3, fused=args.fused)
    loss_of = nn.MSELoss() if args.model == "linreg" else nn.CrossEntropyLoss()
    if args.pipeline:
        pipeline = Schedule1F1B(PipelineStage(net, rank, args.ranks, torch.device("cpu")), args.pipeline, loss_of)

    parts = 1 if args.tensor or args.pipeline else args.ranks
    mine = args.batch // parts
    x = torch.randn(SAMPLES // parts, *shape)
    if images:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randn(len(x), 1) if args.model == "linreg" else torch.randint(0, 10, (len(x),))

    def run(steps):
        for step in range(steps):
            at = step * mine % (len(x) - mine + 1)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                if args.pipeline:
                    pipeline.step(*([x[at:at + mine]] if rank == 0 else []), target=y[at:at + mine], return_outputs=False)
                else:
                    loss_of(net(x[at:at + mine]), y[at:at + mine]).backward()
            optimizer.step()

    rate = median_rate(run, args, min(20, 4 * args.steps), dist.barrier)
    if rank == 0:
        tell(rate)
    dist.destroy_process_group()


def main():
    parser = arguments(__doc__, MODELS, "fused", "bf16", "compile", "tensor", ranks=2, threads=1)
    parser.add_argument("--shard", choices=("none", "optimizer", "gradients", "parameters"), default="none")
    parser.add_argument("--pipeline", type=int, default=0, metavar="M")
    run_ranks(train, parser.parse_args())


if __name__ == "__main__":
    main()
