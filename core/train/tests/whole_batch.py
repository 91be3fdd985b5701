"""A small residual network whose batch norms take the statistics of whole batches, its samples, and how it begins: for
test_batchnorm.py, and for golden_batchnorm.py, which has PyTorch train the same."""
import numpy as np

SAMPLES, BATCH, STEPS, LR = 34, 21, 4, 0.1
NORM = "{batchnorm: {statistics: batch}}"
LAYERS = ("{batchnorm: {statistics: batch, decay: 0.75}}, {conv: {channels: 5, padding: same}}, " + NORM + ", relu, "
          "{residual: {layers: [{conv: {channels: 5, padding: same}}, " + NORM + "]}}, relu, global_avgpool, " + NORM + ", {dense: 2}")
SHAPES = {"batchnorm1.weight": (3,), "batchnorm1.bias": (3,), "conv1.weight": (5, 3, 3, 3), "conv1.bias": (5,),
          "batchnorm2.weight": (5,), "batchnorm2.bias": (5,), "conv2.weight": (5, 5, 3, 3), "conv2.bias": (5,),
          "batchnorm3.weight": (5,), "batchnorm3.bias": (5,), "batchnorm4.weight": (5,), "batchnorm4.bias": (5,),
          "dense1.weight": (2, 5), "dense1.bias": (2,)}


def samples():
    """Images of 3x4x5, not normal, and not alike: a batch's first ones are larger than its last ones."""
    dice = np.random.default_rng(7)
    x = dice.random((SAMPLES, 3, 4, 5)) * np.linspace(3, 1, SAMPLES)[:, None, None, None] + np.array([1, -2, 0.5])[:, None, None]
    return x.astype("f4"), (dice.random(SAMPLES) > 0.5).astype("i4")


def beginning():
    """Weights of a size with which all layers count, and running statistics of 0 and 1."""
    dice = np.random.default_rng(11)
    start = {name: dice.normal(0, 1, shape) / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else dice.normal(0, 0.3, shape)
             for name, shape in SHAPES.items()}
    for name in start:
        start[name] = np.float32(start[name] + ("batchnorm" in name and "weight" in name))
    for layer, channels in (("batchnorm1", 3), ("batchnorm2", 5), ("batchnorm3", 5), ("batchnorm4", 5)):
        start[f"{layer}.running_mean"], start[f"{layer}.running_var"] = np.zeros(channels, "f4"), np.ones(channels, "f4")
    return start
