"""The parts of a job that `dptrain init` writes: numbers against NumPy's, and what it is called."""
import os
import sys

import h5py
import numpy as np
import pytest
import yaml

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402


def init(folder, path, images):
    """The job for a shard of these images."""
    os.makedirs((folder / path).parent, exist_ok=True)
    with h5py.File(folder / path, "w") as file:
        file["images"], file["labels"] = images, np.arange(len(images)) % 3
    done = dpt.run("init", path, cwd=folder)
    assert done.code == 0, done
    return yaml.safe_load((folder / "job.yaml").read_text())


@pytest.mark.parametrize("channels, numbers", [(16, 16), (17, 1)])
def test_many_channels_have_one_mean_and_deviation(tmp_path, channels, numbers):
    """The deviation of all values together includes the differences between the channels."""
    draw = np.random.default_rng(2)
    images = (draw.integers(0, 60, (50, channels, 6, 6)) + 11 * np.arange(channels)[:, None, None]).astype("u1")
    x = images / 255.0
    found = init(tmp_path, "train.h5", images)["data"]["normalize"]
    over = (0, 2, 3) if numbers > 1 else None
    assert len(found["mean"]) == len(found["std"]) == numbers
    np.testing.assert_allclose(found["mean"], np.atleast_1d(x.mean(axis=over)), rtol=1e-5)
    np.testing.assert_allclose(found["std"], np.atleast_1d(x.std(axis=over)), rtol=1e-5)


@pytest.mark.parametrize("path, name", [("train.h5", "first"), ("flowers/train.h5", "flowers")])
def test_a_job_has_its_folders_name(tmp_path, path, name):
    """A job beside its data is called `first`."""
    job = init(tmp_path, path, np.zeros((30, 4), "f4") + np.arange(30)[:, None])
    assert (job["name"], job["output"]) == (name, f"runs/{name}")
