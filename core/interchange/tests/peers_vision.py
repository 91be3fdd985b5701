"""What PyTorch and torchvision make of the numbers of vision.py; run in a virtual environment by test_interchange_peers.py.

    peers_vision.py step MODEL SIZE FOLDER     before.safetensors, after.safetensors, logits.npz: one step of torchvision's MODEL
    peers_vision.py load MODEL SIZE FOLDER     m.safetensors, which dptrain wrote, in torchvision's MODEL: gives the same logits;
                                               so does m.onnx in onnxruntime
    peers_vision.py golden MODEL SIZE FOLDER   prints golden_MODEL.json from what `step` wrote
    peers_vision.py logits MODEL SIZE FOLDER   the same without the step's numbers
"""
import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "train/tests"))
import vision  # noqa: E402

what, name, size, folder = *sys.argv[1:3], int(sys.argv[3]), Path(sys.argv[4])


def make(torch):
    import torchvision

    options = {} if name.startswith("resnet") else {"dropout": 0}
    torch.manual_seed(1)
    return getattr(torchvision.models, name)(num_classes=vision.OUTPUTS, **options)


def logits_of(torch, model, x):
    with torch.no_grad():
        return model.eval()(x).numpy()


def step():
    """In double precision."""
    import safetensors.torch
    import torch

    model = make(torch)
    model.load_state_dict({k: torch.from_numpy(vision.tensor(k, tuple(t.shape))) for k, t in model.state_dict().items()}, strict=True)
    safetensors.torch.save_file(model.state_dict(), folder / "before.safetensors")
    x, labels = map(torch.from_numpy, vision.samples(size))
    model, x = model.double(), x.double()
    before = logits_of(torch, model, x)
    optimizer = torch.optim.SGD(model.train().parameters(), lr=vision.LR, momentum=0.9)
    torch.nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    np.savez(folder / "logits.npz", before=before, after=logits_of(torch, model, x))
    safetensors.torch.save_file(model.float().state_dict(), folder / "after.safetensors")


def load():
    import safetensors.torch
    import torch

    model = make(torch)
    model.load_state_dict(safetensors.torch.load_file(folder / "m.safetensors"), strict=True)
    x, want = vision.samples(size)[0], np.load(folder / "logits.npz")["after"]
    worst = vision.assert_near("logits in PyTorch", logits_of(torch, model, torch.from_numpy(x)), want)
    print(f"{name}: logits in PyTorch off by {worst:.1e} of the largest")
    if (folder / "m.onnx").exists():
        import onnxruntime

        session = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
        worst = vision.assert_near("logits in onnxruntime", session.run(["logits"], {"input": x})[0], want)
        print(f"{name}: logits in onnxruntime off by {worst:.1e} of the largest")


def golden():
    import safetensors.numpy

    after, logits = safetensors.numpy.load_file(folder / "after.safetensors"), np.load(folder / "logits.npz")
    rows = [f"{json.dumps(k)}: {json.dumps({'shape': a.shape} | (vision.summary(a) if what == 'golden' and a.dtype == np.float32 else {}))}"
            for k, a in after.items()]
    print(f'{{"size": {size}, "logits": {json.dumps({k: vision.digits(logits[k]) for k in logits})},\n"tensors": {{')
    print(",\n".join(rows) + "}}")


{"step": step, "load": load, "golden": golden, "logits": golden}[what]()
