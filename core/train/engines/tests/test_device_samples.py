"""Where a device's samples come from, on one that runs on the CPU: they are those of the host."""
import os
import sys

import h5py
import numpy as np

sys.path[:0] = [os.path.abspath("scripts/lib"), os.path.abspath("core/train/tests"), os.path.abspath("core/train/engines/tests")]
from test_device import CNN, DENSE, fixture_machine, pytestmark  # noqa: E402, F401


def test_samples_come_from_anywhere(machine):
    """Kept on the device, gathered there and augmented; or read from files and sent."""
    rng = np.random.default_rng(1)
    with h5py.File(machine.path / "train.h5", "w") as file:
        file["images"] = rng.integers(0, 256, (150, 3, 8, 8), dtype=np.uint8)
        file["labels"] = rng.integers(0, 10, 150, dtype=np.int32)
    data = (f"{{train: [{machine.path}/train.h5], normalize: {{mean: [0.4, 0.5, 0.6], std: [0.2, 0.3, 0.25]}}, "
            "augment: {crop_padding: 2, flip: true}}")
    job = machine.job(DENSE, data=data)
    machine.train("resident", job, sets=["data.cache=memory"])
    machine.train("streamed", job, sets=["data.cache=none"])
    machine.train("crowded", job, sets=["data.cache=memory"], ranks=2, FAKEGPU_SEED="3", FAKEGPU_EAGER="0")
    machine.train("cpu", job, kind="ref")
    for name in ("resident", "streamed", "crowded"):
        machine.assert_same_run(name, "cpu")


def test_samples_that_the_host_makes(machine):
    """What is more than a crop and a flip of what is stored; labels of two samples are rows of probabilities."""
    data = CNN["data"].replace("flip: true", "flip: true, rotate: 20, hue: 0.1, mixup: 0.4, cutmix: 1")
    for name, sets in (("mixed", ["device.threads=1"]), ("cut", ["data.augment={}", "data.crop=6"])):
        job = machine.job(DENSE, data=data)
        machine.train(name, job, sets=sets)
        machine.train(f"{name}-cpu", job, kind="ref", sets=sets)
        machine.assert_same_run(name, f"{name}-cpu")
