"""The readers and writers that others use, run in a virtual environment of their own by test_interchange_peers.py.

    peers_weights.py onnx FOLDER     m.onnx against predicted.h5
    peers_weights.py torch FOLDER    m.safetensors and m.npz against predicted.h5; writes files for --init-from, and torch.npy
"""
import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[2])
x = np.load(folder / "x.npy")
logits = np.load(folder / "logits.npy")


def assert_near(found, want):
    worst = np.abs(found - want).max()
    print(f"largest difference {worst:.2g} of values up to {np.abs(want).max():.3g}")
    assert worst <= 1e-5 * max(1, np.abs(want).max())


def check_onnx():
    import onnx
    import onnxruntime

    onnx.checker.check_model(str(folder / "m.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    for batch in (len(x), 1, 7):
        found = [session.run(["logits"], {"input": x[i : i + batch]})[0] for i in range(0, len(x), batch)]
        assert_near(np.concatenate(found), logits)


def make_model(torch):
    """The model of test_interchange_peers.TORCH_MODEL, as one writes it in PyTorch."""
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(2, 6, (3, 5), stride=(1, 2), padding=(1, 2))
            self.mid = nn.Conv2d(6, 8, 3, groups=2, dilation=2, bias=False)
            self.dense1 = nn.Linear(8 * 4 * 1, 12)
            self.head = nn.Linear(12, 3)

        def forward(self, x):
            x = nn.functional.gelu(self.conv1(x))
            x = nn.functional.max_pool2d(torch.tanh(self.mid(x)), (3, 1), stride=2, padding=(1, 0))
            x = nn.functional.avg_pool2d(x, 2, stride=1, padding=(0, 1))[:, :, :, :1]
            return self.head(torch.sigmoid(self.dense1(x.flatten(1))))

    return Net()


def check_torch():
    import safetensors.torch
    import torch

    model = make_model(torch)
    model.load_state_dict(safetensors.torch.load_file(folder / "m.safetensors"), strict=True)
    with torch.no_grad():
        assert_near(model(torch.from_numpy(x)).numpy(), logits)
    archive = np.load(folder / "m.npz")
    for name, tensor in model.state_dict().items():
        assert np.array_equal(archive[name], tensor.numpy()), name
    # Other weights, as PyTorch's users save theirs.
    torch.manual_seed(3)
    model = make_model(torch).to(torch.bfloat16)
    state = model.state_dict()
    safetensors.torch.save_file(state, folder / "bf16.safetensors", metadata={"format": "pt"})
    safetensors.torch.save_file({"module." + k: v.double() for k, v in state.items()}, folder / "ddp.safetensors")
    np.savez_compressed(folder / "torch.npz", **{k: v.float().numpy() for k, v in state.items()})
    names = {"conv1": "0", "mid": "2", "dense1": "7", "head": "10"}  # of a torch.nn.Sequential
    safetensors.torch.save_file({f"{names[k.split('.')[0]]}.{k.split('.')[1]}": v for k, v in state.items()},
                                folder / "sequential.safetensors")
    torch.save(state, folder / "pickle.pt")
    with torch.no_grad():
        np.save(folder / "torch.npy", model.float()(torch.from_numpy(x)).numpy())


{"onnx": check_onnx, "torch": check_torch}[sys.argv[1]]()
