#!/usr/bin/env python3
"""One training step (forward, backward, Adam) of bench.sh's models on a GPU, the data on it already: all of them in one process.

    gpu_peers.py torch|jax [--models cnn,mlp] [--batches 128,1024] [--precisions tf32,bf16] [--steps 200] [--device cpu]

PyTorch: channels-last, fused Adam, autocast for bf16, the whole step captured in a CUDA graph and replayed. JAX: the whole step
compiled, its arguments donated, bf16 by casting parameters and samples. Prints a line as each is measured, the median of five blocks
of steps: `torch cnn 128 tf32 41.2`, in microseconds a step. Exits 4 where the framework is not installed or has no GPU. --device cpu
only shows that it runs.
"""
import argparse
import statistics
import sys
import time

BLOCKS = 5


def median_us(block, synchronize, steps):
    """Of `block(n)`, which enqueues n steps."""
    block(20)
    synchronize()
    times = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        block(steps)
        synchronize()
        times.append(1e6 * (time.perf_counter() - start) / steps)
    return statistics.median(times)


def torch_step(model, batch, precision, steps, device):
    import torch
    from torch import nn
    from torch_ddp import MODELS

    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    cuda = device == "cuda"
    shape, layers = MODELS[model][:2]
    net = nn.Sequential(*layers()).to(device)
    x = torch.randn(batch, *shape, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    if len(shape) == 3:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True, capturable=cuda)
    loss = nn.CrossEntropyLoss()

    def step():
        adam.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            value = loss(net(x), y)
        value.backward()
        adam.step()

    if cuda:
        # As PyTorch's manual has it: a few steps on a stream beside the usual one, then the capture.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(5):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        adam.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            step()
        run, synchronize = graph.replay, torch.cuda.synchronize
    else:
        run, synchronize = step, lambda: None

    def block(n):
        for _ in range(n):
            run()

    return median_us(block, synchronize, steps)


def jax_step(model, batch, precision, steps, device):
    import functools

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax_pmap import MODELS, initial, outputs

    del device
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
            return None if device == "cpu" or torch.cuda.is_available() else "PyTorch finds no GPU"
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
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    why = missing(args.framework, args.device)
    if why is not None:
        print(why, file=sys.stderr)
        sys.exit(4)
    step = {"torch": torch_step, "jax": jax_step}[args.framework]
    for batch in map(int, args.batches.split(",")):
        for model in args.models.split(","):
            for precision in args.precisions.split(","):
                us = step(model, batch, precision, args.steps, args.device)
                print(f"{args.framework} {model} {batch} {precision} {us:.1f}", flush=True)


if __name__ == "__main__":
    main()
