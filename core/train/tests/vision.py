"""torchvision's models in the tests: numbers that are the same with and without PyTorch, and what dptrain makes of them.

A step is a sum over ReLUs whose inputs are positive, and one that is 0 but for rounding makes two right answers differ: PyTorch's own
float32 from its double precision, by more than 1e-4 with random weights. So there are few such here: biases are positive, and large
beside their norms' weights.
"""
import sys
import zlib

import h5py
import numpy as np

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402
import formats  # noqa: E402

BATCH, OUTPUTS, LR = 8, 10, 0.05
MODELS = {
    "resnet18": "{type: resnet, depth: 18, outputs: 10}",
    "resnet50": "{type: resnet, depth: 50, outputs: 10}",
    "mobilenet_v2": "{type: mobilenet_v2, outputs: 10, dropout: 0}",
    "vgg11": "{type: vgg, depth: 11, outputs: 10, dropout: 0}",
}
JOB = """
data: {{train: x.h5, shuffle: none}}
model: {model}
batch: {{global: {batch}, micro: {batch}}}
optimizer: {{type: sgd, lr: {lr}, momentum: 0.9}}
train: {{steps: 1}}
"""


def uniform(name, shape, low, high):
    """Random numbers of a name, by an integer hash: rounds of the finalizer of xxHash."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint32) * np.uint32(2654435761) + np.uint32(zlib.crc32(name.encode()))
    for shift, factor in ((15, 2246822519), (13, 3266489917), (16, 1)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    return (low + (high - low) * (x.reshape(shape) / 2.0**32)).astype("f4")


def tensor(name, shape):
    """Of any tensor of a state dict."""
    if name.endswith("num_batches_tracked"):
        return np.array(3, "i8")
    if name.endswith("running_var"):
        return uniform(name, shape, 0.01, 0.04)
    if name.endswith("running_mean"):
        return uniform(name, shape, -0.5, 0.5)
    if len(shape) == 1:
        return uniform(name, shape, *(0.1, 0.2) if name.endswith("weight") else (0.3, 1))
    limit = np.sqrt(6 / np.prod(shape[1:]))
    return uniform(name, shape, -limit, limit)


def samples(size):
    return uniform("x", (BATCH, 3, size, size), -1, 1), np.arange(BATCH) % OUTPUTS


# --- dptrain -----------------------------------------------------------------------------------------------------------


def write_job(folder, model, size):
    """job.yaml, and x.h5 with the samples."""
    with h5py.File(folder / "x.h5", "w") as file:
        file["images"], file["labels"] = samples(size)
    return dpt.write_job(folder / "job.yaml", JOB.format(model=MODELS[model], batch=BATCH, lr=LR))


def predict(folder, job, checkpoint):
    result = dpt.run("predict", job, "--checkpoint", checkpoint, "--input", "x.h5", "--out", "p.h5", cwd=folder)
    assert result.code == 0, result
    with h5py.File(folder / "p.h5") as file:
        return file["logits"][()]


def step(folder, job):
    """One step from before.safetensors, in `run`; returns what is exported to m.safetensors then."""
    dpt.train(job, folder / "run", "--quiet", "--init-from", "before.safetensors", cwd=folder)
    assert dpt.run("export", "run", "m.safetensors", cwd=folder).code == 0
    return formats.read_safetensors(folder / "m.safetensors")[0]


# --- comparing ---------------------------------------------------------------------------------------------------------


def digits(numbers):
    """As many as a float has."""
    return np.vectorize(lambda x: float(f"{x:.7g}"))(numbers).tolist()


def summary(array):
    """A few numbers that tell whether two arrays are alike: the largest, the Euclidean norm, some at fixed places."""
    flat = np.asarray(array, float).ravel()
    some = flat[np.linspace(0, flat.size - 1, 4).astype(int)]
    return {"most": digits(np.abs(flat).max()), "norm": digits(np.sqrt((flat**2).sum())), "some": digits(some)}


def assert_near(what, found, want, most=None):
    """Within 1e-4 of the largest value."""
    most = np.abs(want).max() if most is None else most
    worst = np.abs(np.asarray(found, float) - want).max()
    assert worst <= 1e-4 * most, f"{what}: off by {worst:.2g} of {most:.3g}"
    return worst / most


def assert_like(what, found, row):
    """An array against the summary of another one."""
    assert list(found.shape) == row["shape"], what
    if "some" not in row:  # a count of steps
        return
    mine = summary(found)
    assert_near(what, [mine["most"], *mine["some"]], [row["most"], *row["some"]], row["most"])
    assert_near(what, mine["norm"], row["norm"])
