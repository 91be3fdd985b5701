#!/usr/bin/env python3
"""One training step (forward, backward, Adam) of bench.sh's models on a GPU, the data on it already: all of them in one process.

    gpu_peers.py torch|jax [--models cnn,mlp] [--batches 128,1024] [--precisions tf32,bf16] [--modes graph,compile,eager]
        [--steps 200] [--device cpu]

PyTorch: channels-last, fused Adam, autocast for bf16. graph: the whole step captured in a CUDA graph and replayed; compile: that of
torch.compile's code; eager: neither. It has resnet50 too, torchvision's where that is installed, with 1000 classes. JAX: the whole step
compiled, its arguments donated, bf16 by casting parameters and samples. Prints a line as each is measured, the median of five blocks
of steps: `torch-graph cnn 128 tf32 41.2`, in microseconds per step. Exits 4 where the framework is not installed or has no GPU. --device
cpu only shows that it runs.

Under torchrun PyTorch's step is that of DistributedDataParallel, over NCCL (gloo on CPUs), a GPU and a whole batch per rank; rank 0 prints:

    python3 -m torch.distributed.run --standalone --nproc-per-node 8 gpu_peers.py torch --models resnet50 --batches 256 --modes eager,graph
"""
import argparse
import os
import statistics
import sys
import time

BLOCKS = 5
# As torchrun tells them.
RANK, RANKS, LOCAL = (int(os.environ.get(name, usual)) for name, usual in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)))


def median_us(block, synchronize, steps):
    """The median time of `block(n)`, which enqueues n steps."""
    block(20)
    synchronize()
    times = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        block(steps)
        synchronize()
        times.append(1e6 * (time.perf_counter() - start) / steps)
    return statistics.median(times)


def resnet50():
    """He et al. 2015, table 1, a bottleneck's stride in its 3x3 convolution, as torchvision has it: 25 557 032 parameters."""
    from torch import nn
    from torch_ddp import Residual, normed

    class Bottleneck(Residual):
        def __init__(self, inputs, inner, stride):
            nn.Module.__init__(self)
            self.body = nn.Sequential(*normed(inputs, inner, 1), nn.ReLU(), *normed(inner, inner, 3, stride), nn.ReLU(),
                                      *normed(inner, 4 * inner, 1))
            same = inputs == 4 * inner and stride == 1
            self.shortcut = nn.Identity() if same else nn.Sequential(*normed(inputs, 4 * inner, 1, stride))

    layers, before = [*normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            inner = 64 << stage
            layers.append(Bottleneck(before, inner, 2 if stage > 0 and block == 0 else 1))
            before = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def torch_model(model):
    """Its samples' shape, the network, and its classes."""
    from torch import nn
    from torch_ddp import MODELS
    if model != "resnet50":
        shape, layers = MODELS[model][:2]
        return shape, nn.Sequential(*layers()), 10
    try:
        from torchvision.models import resnet50 as torchvision_resnet50
        net = torchvision_resnet50()
    except (ImportError, RuntimeError):  # the latter where it is of another version than PyTorch
        net = resnet50()
    return (3, 224, 224), net, 1000


def ranked(net, cuda):
    """The network of one of several ranks. As PyTorch's manual has it for graphs: made on a stream beside the usual one."""
    import torch
    from torch import nn
    if RANKS == 1:
        return net
    if not cuda:
        return nn.parallel.DistributedDataParallel(net)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        net = nn.parallel.DistributedDataParallel(net, device_ids=[LOCAL])
    torch.cuda.current_stream().wait_stream(stream)
    return net


def open_ranks(cuda):
    import torch
    if RANKS == 1:
        return
    if cuda:
        torch.cuda.set_device(LOCAL)
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # a captured collective cannot be watched
    torch.distributed.init_process_group("nccl" if cuda else "gloo")


def torch_step(model, batch, precision, steps, device, mode):
    import torch
    from torch import nn

    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    cuda = device == "cuda"
    shape, net, classes = torch_model(model)
    net = net.to(device)
    x = torch.randn(batch, *shape, device=device)
    y = torch.randint(0, classes, (batch,), device=device)
    if len(shape) == 3:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    net = ranked(net, cuda)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=cuda)
    loss = nn.CrossEntropyLoss()

    def forward(x, y):
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return loss(net(x), y)

    if mode == "compile":
        forward = torch.compile(forward)

    def step():
        adam.zero_grad(set_to_none=True)
        forward(x, y).backward()
        adam.step()

    if cuda and mode != "eager":
        # As PyTorch's manual has it: a few steps on a stream beside the usual one, 11 of several ranks, then the capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(5 if RANKS == 1 else 11):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        adam.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    else:
        run = step
    synchronize = torch.cuda.synchronize if cuda else lambda: None

    def block(n):
        for _ in range(n):
            run()

    return median_us(block, synchronize, steps)


def jax_step(model, batch, precision, steps, device, mode):
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax_pmap import MODELS, initial, outputs

    del device, mode
    jax.config.update("jax_default_matmul_precision", "highest" if precision == "fp32" else "default")
    rng = np.random.default_rng(1)
    shape, layers = MODELS[model][:2]
    dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
    adam = optax.adam(1e-3)

    def loss(params, x, y):
        logits = outputs(layers, jax.tree.map(lambda v: v.astype(dtype), params), x.astype(dtype))
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, slots, x, y):
        updates, slots = adam.update(jax.grad(loss)(params, x, y), slots, params)
        return optax.apply_updates(params, updates), slots

    params = initial(layers, shape, rng)
    now = [params, adam.init(params)]
    x = jnp.asarray(rng.normal(size=(batch, *shape)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, batch))

    def block(n):
        for _ in range(n):
            now[:] = step(*now, x, y)

    return median_us(block, lambda: jax.block_until_ready(now[0]), steps)


def missing(framework, device):
    """Why it cannot run; None: it can."""
    try:
        if framework == "torch":
            import torch
            gpus = RANKS if device == "cpu" else torch.cuda.device_count()
            return None if gpus > LOCAL else f"PyTorch finds {gpus or 'no'} GPU{'s' * (gpus > 1)}"
        import jax
        import optax  # noqa: F401
        return None if device == "cpu" or jax.default_backend() == "gpu" else "JAX finds no GPU"
    except ImportError as error:
        return str(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=["torch", "jax"])
    parser.add_argument("--models", default="cnn,mlp,mnistcnn,mlp4k")
    parser.add_argument("--batches", default="128,1024")
    parser.add_argument("--precisions", default="tf32,bf16")
    parser.add_argument("--modes", default="graph", help="of PyTorch")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    why = missing(args.framework, args.device)
    if why is not None:
        print(why, file=sys.stderr)
        sys.exit(4)
    if args.framework == "torch":
        open_ranks(args.device == "cuda")
    step = {"torch": torch_step, "jax": jax_step}[args.framework]
    for mode in args.modes.split(",") if args.framework == "torch" else [""]:
        for batch in map(int, args.batches.split(",")):
            for model in args.models.split(","):
                for precision in args.precisions.split(","):
                    us = step(model, batch, precision, args.steps, args.device, mode)
                    if RANK > 0:
                        continue
                    print(f"{args.framework}{mode and '-'}{mode} {model} {batch} {precision} {us:.1f}", flush=True)


if __name__ == "__main__":
    main()
