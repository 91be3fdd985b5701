#!/usr/bin/env python3
"""The jobs of scripts/bench.sh in JAX: pmap over CPU devices, gradients averaged with lax.pmean, Adam of optax.

    jax_pmap.py MODEL --devices N --batch B --steps S

Prints the median rate over blocks of S steps, and the most memory held: `samples_per_s 1234.5`, `peak_mb 678`.
"""
import argparse
import functools
import os
import resource
import statistics
import time

BLOCKS = 5
SAMPLES = 4096
CONVS = ["conv 32", "relu", "pool", "conv 64", "relu", "pool", "flatten"]
MODELS = {
    "linreg": ((5,), ["dense 1"]),
    "mlp": ((784,), ["dense 256", "relu", "dense 10"]),
    "mlp4k": ((784,), ["dense 4096", "relu", "dense 4096", "relu", "dense 10"]),
    "cnn": ((32, 32, 3), [*CONVS, "dense 10"]),
    "mnistcnn": ((28, 28, 1), [*CONVS, "dense 128", "relu", "dense 10"]),
}


def initial(layers, shape, rng):
    """Weights by He's rule and biases of zero, for a model of MODELS."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    params, now = [], shape
    for kind, *size in (layer.split() for layer in layers):
        if kind == "conv":
            out = int(size[0])
            params.append((rng.normal(0, (2 / (9 * now[2])) ** 0.5, (3, 3, now[2], out)), np.zeros(out)))
            now = (*now[:2], out)
        elif kind == "dense":
            out = int(size[0])
            params.append((rng.normal(0, (2 / now[0]) ** 0.5, (now[0], out)), np.zeros(out)))
            now = (out,)
        elif kind == "pool":
            now = (now[0] // 2, now[1] // 2, now[2])
        elif kind == "flatten":
            now = (now[0] * now[1] * now[2],)
    return jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), params)


def outputs(layers, params, x):
    """The logits [n, classes] of x [n, h, w, c] or [n, d]."""
    import jax
    import jax.numpy as jnp

    rest = iter(params)
    for kind, *_ in (layer.split() for layer in layers):
        if kind == "conv":
            w, b = next(rest)
            x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
        elif kind == "dense":
            w, b = next(rest)
            x = x @ w + b
        elif kind == "relu":
            x = jax.nn.relu(x)
        elif kind == "pool":
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        else:
            x = x.reshape(x.shape[0], -1)
    return x


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    print(f"samples_per_s {measure(args):.1f}")
    print(f"peak_mb {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3:.1f}")


def measure(args):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    rng = np.random.default_rng(1)
    shape, layers = MODELS[args.model]

    def loss(params, x, y):
        out = outputs(layers, params, x)
        if args.model == "linreg":
            return jnp.mean((out - y) ** 2)
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean()

    adam = optax.adam(1e-3)

    @functools.partial(jax.pmap, axis_name="ranks", donate_argnums=(0, 1))
    def step(params, slots, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        updates, slots = adam.update(jax.lax.pmean(gradient, "ranks"), slots, params)
        return optax.apply_updates(params, updates), slots, jax.lax.pmean(value, "ranks")

    n, mine, share = args.devices, args.batch // args.devices, SAMPLES // args.devices
    params = initial(layers, shape, rng)
    slots = adam.init(params)
    params, slots = (jax.tree.map(lambda v: jnp.stack([v] * n), tree) for tree in (params, slots))
    x = rng.normal(size=(n, share, *shape)).astype(np.float32)
    if args.model == "linreg":
        y = rng.normal(size=(n, share, 1)).astype(np.float32)
    else:
        y = rng.integers(0, 10, (n, share))

    def run(steps, params, slots):
        for i in range(steps):
            at = i * mine % (share - mine + 1)
            params, slots, value = step(params, slots, x[:, at:at + mine], y[:, at:at + mine])
        jax.block_until_ready(value)
        return params, slots

    params, slots = run(10, params, slots)
    rates = []
    for _ in range(BLOCKS):
        start = time.perf_counter()
        params, slots = run(args.steps, params, slots)
        rates.append(args.steps * args.batch / (time.perf_counter() - start))
    return statistics.median(rates)


if __name__ == "__main__":
    main()
