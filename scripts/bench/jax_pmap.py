#!/usr/bin/env python3
"""The jobs of scripts/bench.sh in JAX: pmap over CPU devices, gradients averaged with lax.pmean, Adam of optax.

    jax_pmap.py MODEL --devices N --batch B --steps S [--bf16]

--bf16: layers compute in bf16; weights, moments of batch norms, the loss and Adam stay fp32.
Prints the median rate over blocks of S steps, and the most memory held: `samples_per_s 1234.5`, `peak_mb 678`.
"""
import functools
import os

from framework import SAMPLES, arguments, median_rate, tell

CONVS = ["conv 32 3 1", "relu", "pool 2", "conv 64 3 1", "relu", "pool 2", "flatten"]


def residual_net(stem, widths, blocks):
    """Stages of so many blocks; each but the first halves the image."""
    layers, now = list(stem), widths[0]
    for i, width in enumerate(widths):
        for j in range(blocks):
            stride = 2 if i > 0 and j == 0 else 1
            shortcut = [] if now == width else [f"normed {width} 1 {stride}"]
            layers += [([f"normed {width} 3 {stride}", "relu", f"normed {width} 3 1"], shortcut), "relu"]
            now = width
    return [*layers, "mean", "dense 10"]


# Layers are words: `conv CHANNELS KERNEL STRIDE`; `normed`, the same without a bias, and a batch norm after it; `pool SIZE`, the maximum,
# which halves the image; `mean`, over the image. A pair of lists is a residual block, the body and the shortcut, which are added.
MODELS = {
    "linreg": ((5,), ["dense 1"]),
    "mlp": ((784,), ["dense 256", "relu", "dense 10"]),
    "mlp4k": ((784,), ["dense 4096", "relu", "dense 4096", "relu", "dense 10"]),
    "cnn": ((32, 32, 3), [*CONVS, "dense 10"]),
    "mnistcnn": ((28, 28, 1), [*CONVS, "dense 128", "relu", "dense 10"]),
    "resnet20": ((32, 32, 3), residual_net(["normed 16 3 1", "relu"], (16, 32, 64), 3)),
    "resnet18": ((64, 64, 3), residual_net(["normed 64 7 2", "relu", "pool 3"], (64, 128, 256, 512), 2)),
}


def initial(layers, shape, rng):
    """Weights by He's rule, biases of zero and scales of one, for a model of MODELS."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def grow(layers, now):
        params = []
        for layer in layers:
            if isinstance(layer, tuple):
                parts = [grow(part, now) for part in layer]
                params.append([own for own, _ in parts])
                now = parts[0][1]
                continue
            kind, *sizes = layer.split()
            sizes = list(map(int, sizes))
            if kind in ("conv", "normed"):
                out, kernel, stride = sizes
                weight = rng.normal(0, (2 / (kernel * kernel * now[2])) ** 0.5, (kernel, kernel, now[2], out))
                params.append((weight, np.zeros(out)) + (np.ones(out),) * (kind == "normed"))
                now = (-(-now[0] // stride), -(-now[1] // stride), out)
            elif kind == "dense":
                params.append((rng.normal(0, (2 / now[0]) ** 0.5, (now[0], *sizes)), np.zeros(sizes)))
                now = tuple(sizes)
            elif kind == "pool":
                now = ((now[0] + sizes[0] - 2) // 2, (now[1] + sizes[0] - 2) // 2, now[2])
            elif kind == "flatten":
                now = (now[0] * now[1] * now[2],)
            elif kind == "mean":
                now = now[2:]
        return params, now
    return jax.tree.map(lambda v: jnp.asarray(v, jnp.float32), grow(layers, shape)[0])


def outputs(layers, params, x, moments=None):
    """The logits [n, classes] of x [n, h, w, c] or [n, d]. moments: a list that gets the mean and the variance of each batch norm."""
    import jax
    import jax.numpy as jnp

    rest = iter(params)
    for layer in layers:
        if isinstance(layer, tuple):
            x = sum(outputs(part, own, x, moments) for part, own in zip(layer, next(rest)))
            continue
        kind, *sizes = layer.split()
        if kind in ("conv", "normed"):
            w, b, *scale = next(rest)
            edge = ((w.shape[0] - 1) // 2,) * 2
            x = jax.lax.conv_general_dilated(x, w, (int(sizes[2]),) * 2, (edge, edge), dimension_numbers=("NHWC", "HWIO", "NHWC"))
            if scale:
                wide = x.astype(jnp.float32)
                mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
                moments.append((mean, variance))
                x = ((wide - mean) * (jax.lax.rsqrt(variance + 1e-5) * scale[0])).astype(x.dtype)
            x = x + b
        elif kind == "dense":
            w, b = next(rest)
            x = x @ w + b
        elif kind == "relu":
            x = jax.nn.relu(x)
        elif kind == "pool":
            size, edge = int(sizes[0]), ((int(sizes[0]) - 1) // 2,) * 2
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, size, size, 1), (1, 2, 2, 1), ((0, 0), edge, edge, (0, 0)))
        elif kind == "mean":
            x = x.mean((1, 2))
        else:
            x = x.reshape(x.shape[0], -1)
    return x


def main():
    args = arguments(__doc__, MODELS, "bf16", devices=1).parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.devices}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    tell(measure(args))


def measure(args):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    rng = np.random.default_rng(1)
    shape, layers = MODELS[args.model]

    def loss(params, x, y):
        moments = []
        if args.bf16:
            params, x = jax.tree.map(lambda v: v.astype(jnp.bfloat16), (params, x))
        out = outputs(layers, params, x, moments).astype(jnp.float32)
        if args.model == "linreg":
            return jnp.mean((out - y) ** 2), moments
        return optax.softmax_cross_entropy_with_integer_labels(out, y).mean(), moments

    adam = optax.adam(1e-3)

    @functools.partial(jax.pmap, axis_name="ranks", donate_argnums=(0, 1, 2))
    def step(params, slots, running, x, y):
        (value, moments), gradient = jax.value_and_grad(loss, has_aux=True)(params, x, y)
        updates, slots = adam.update(jax.lax.pmean(gradient, "ranks"), slots, params)
        running = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, running, moments)
        return optax.apply_updates(params, updates), slots, running, jax.lax.pmean(value, "ranks")

    n, mine, share = args.devices, args.batch // args.devices, SAMPLES // args.devices
    params = initial(layers, shape, rng)
    moments = jax.eval_shape(loss, params, jnp.zeros((1, *shape)), jnp.zeros((1, 1) if args.model == "linreg" else 1, jnp.int32))[1]
    state = [params, adam.init(params), jax.tree.map(lambda v: jnp.zeros(v.shape), moments)]
    state = jax.tree.map(lambda v: jnp.stack([v] * n), state)
    x = rng.normal(size=(n, share, *shape)).astype(np.float32)
    if args.model == "linreg":
        y = rng.normal(size=(n, share, 1)).astype(np.float32)
    else:
        y = rng.integers(0, 10, (n, share))

    def run(steps):
        for i in range(steps):
            at = i * mine % (share - mine + 1)
            *state[:], value = step(*state, x[:, at:at + mine], y[:, at:at + mine])
        jax.block_until_ready(value)

    return median_rate(run, args, min(10, args.steps))


if __name__ == "__main__":
    main()
