"""torchvision's models: their state dicts by name, what is computed with them, and one step, against recorded numbers.

golden_MODEL.json is what PyTorch says, written by peers_vision.py; test_interchange_peers.py compares every number.
"""
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, "core/train/tests")
import formats  # noqa: E402
import vision  # noqa: E402


def begin(folder, name):
    """What is recorded of a model, and its job, with before.safetensors beside it."""
    want = json.loads((Path(__file__).parent / f"golden_{name}.json").read_text())
    state = {key: vision.tensor(key, row["shape"]) for key, row in want["tensors"].items()}
    formats.write_safetensors(folder / "before.safetensors", state)
    return want, vision.write_job(folder, name, want["size"])


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_torchvisions_weights_give_its_logits(tmp_path, name):
    want, job = begin(tmp_path, name)
    vision.assert_near("logits", vision.predict(tmp_path, job, "before.safetensors"), want["logits"]["before"])


def test_a_step_is_torchvisions(tmp_path):
    """And what is exported then has its names, and goes back."""
    want, job = begin(tmp_path, "mobilenet_v2")
    found = vision.step(tmp_path, job)
    assert set(found) == set(want["tensors"])
    for key, row in want["tensors"].items():
        vision.assert_like(key, found[key], row)
    vision.assert_near("logits", vision.predict(tmp_path, job, "m.safetensors"), want["logits"]["after"])
