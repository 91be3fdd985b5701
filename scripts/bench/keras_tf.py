#!/usr/bin/env python3
"""The jobs of scripts/bench.sh in Keras on TensorFlow: one process, its training step a tf.function, Adam of Keras.

    keras_tf.py MODEL --threads N --batch B --steps S [--bf16] [--xla]

--bf16: Keras's policy mixed_bfloat16, weights stay fp32; --xla: XLA compiles the step, else oneDNN's operations compute it one by one.
Prints the median rate over blocks of S steps, and the most memory held: `samples_per_s 1234.5`, `peak_mb 678`.
"""
import os

from framework import SAMPLES, arguments, median_rate, tell
from jax_pmap import MODELS

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")


def outputs(layers, x):
    """What layers of jax_pmap.py make of x."""
    from keras import layers as kinds

    for layer in layers:
        if isinstance(layer, tuple):
            x = kinds.Add()([outputs(part, x) for part in layer])
            continue
        kind, *sizes = layer.split()
        sizes = list(map(int, sizes))
        if kind in ("conv", "normed"):
            x = kinds.Conv2D(*sizes, "same", use_bias=kind == "conv")(x)
            x = kinds.BatchNormalization()(x) if kind == "normed" else x
        elif kind == "dense":
            x = kinds.Dense(*sizes)(x)
        elif kind == "pool":
            x = kinds.MaxPooling2D(*sizes, 2, "same")(x)
        else:
            x = {"relu": kinds.ReLU, "flatten": kinds.Flatten, "mean": kinds.GlobalAveragePooling2D}[kind]()(x)
    return x


def measure(args):
    import keras
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    keras.mixed_precision.set_global_policy("mixed_bfloat16" if args.bf16 else "float32")
    shape, layers = MODELS[args.model]
    inputs = keras.Input(shape)
    net = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(outputs(layers, inputs)))
    adam = keras.optimizers.Adam(1e-3)
    adam.build(net.trainable_variables)
    rng = np.random.default_rng(1)
    linear = args.model == "linreg"
    batches = [(tf.constant(rng.normal(size=(args.batch, *shape)), tf.float32),
                tf.constant(rng.normal(size=(args.batch, 1)), tf.float32) if linear else tf.constant(rng.integers(0, 10, args.batch)))
               for _ in range(SAMPLES // args.batch)]

    @tf.function(jit_compile=args.xla)
    def step(x, y):
        with tf.GradientTape() as tape:
            out = net(x, training=True)
            loss = tf.reduce_mean((out - y) ** 2 if linear else tf.nn.sparse_softmax_cross_entropy_with_logits(y, out))
        adam.apply(tape.gradient(loss, net.trainable_variables), net.trainable_variables)
        return loss

    def run(steps):
        for i in range(steps):
            loss = step(*batches[i % len(batches)])
        loss.numpy()

    return median_rate(run, args, min(10, args.steps))


if __name__ == "__main__":
    tell(measure(arguments(__doc__, MODELS, "bf16", "xla", threads=2).parse_args()))
