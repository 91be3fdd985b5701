"""Writes golden_loss.h: losses, gradients and correct answers as PyTorch computes them.

In double, from float inputs.

    python golden_loss.py > golden_loss.h

core/train/update/tests/golden_formulas.py, which needs no PyTorch, adds rows: run it after this.
"""

import torch

torch.manual_seed(1)


def row(values):
    return ", ".join(f"{float(v):.9g}" for v in values.flatten())


def case(name, kind, smoothing, y, labels=None, targets=None):
    y = y.float()
    x = y.double().requires_grad_()
    n, outputs = x.shape
    if kind == "CROSS_ENTROPY":
        goal = labels if labels is not None else targets.float().double()
        smoothing = float(torch.tensor(smoothing, dtype=torch.float32))
        loss = torch.nn.functional.cross_entropy(
            x, goal, label_smoothing=smoothing, reduction="sum")
        wanted = labels if labels is not None else targets.argmax(1)
        correct = int((x.argmax(1) == wanted).sum())
    elif kind == "BINARY_CROSS_ENTROPY":
        goal = targets.float().double()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x, goal, reduction="sum") / outputs
        correct = int(((x > 0) == (goal >= 0.5)).all(1).sum())
    else:
        of = {"MSE": torch.nn.functional.mse_loss, "L1": torch.nn.functional.l1_loss,
              "HUBER": lambda *given, **how: torch.nn.functional.huber_loss(*given, delta=smoothing, **how)}[kind]
        loss = of(x, targets.float().double(), reduction="sum") / outputs
        correct = 0
    loss.backward()
    print(f"""    {{
        .name = "{name}",
        .loss = {{DPT_LOSS_{kind}, {smoothing:.9g}}},
        .count = {n},
        .outputs = {outputs},
        .y = {{{row(y)}}},""")
    if labels is not None:
        print(f"        .labels = {{{', '.join(str(int(v)) for v in labels)}}},")
    else:
        print(f"        .soft = true,\n        .targets = {{{row(targets.float())}}},")
    print(f"""        .sum = {loss.item():.17g},
        .correct = {correct},
        .dy = {{{row(x.grad)}}},
    }},""")


print("/* Made by golden_loss.py with PyTorch; rows of struct golden in test_loss.c. */")
print("// clang-format off")
for smoothing in (0.0, 0.1):
    for n, outputs, scale in ((4, 5, 1), (3, 10, 4), (2, 2, 20), (1, 1, 1)):
        y = torch.randn(n, outputs) * scale
        hard = torch.randint(outputs, (n,))
        soft = torch.softmax(torch.randn(n, outputs), 1)
        case(f"hard {n}x{outputs}, smoothing {smoothing}", "CROSS_ENTROPY", smoothing, y,
             labels=hard)
        case(f"soft {n}x{outputs}, smoothing {smoothing}", "CROSS_ENTROPY", smoothing, y,
             targets=soft)
    wide = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, -1e4],
                         [1e4, 9999.0, 9998.0]])
    case(f"extreme logits, smoothing {smoothing}", "CROSS_ENTROPY", smoothing, wide,
         labels=torch.tensor([1, 2, 0, 1]))
    case(f"extreme logits, soft, smoothing {smoothing}", "CROSS_ENTROPY", smoothing, wide,
         targets=torch.tensor([[0.5, 0.25, 0.25], [1.0, 0, 0], [0, 1.0, 0], [0.2, 0.3, 0.5]]))
for n, outputs in ((5, 1), (3, 4)):
    case(f"mse {n}x{outputs}", "MSE", 0.0, torch.randn(n, outputs) * 2,
         targets=torch.randn(n, outputs))
for n, outputs, scale in ((6, 1, 1), (5, 4, 1), (8, 2, 3)):
    case(f"labels {n}x{outputs}", "BINARY_CROSS_ENTROPY", 0.0, torch.randn(n, outputs) * scale,
         targets=torch.randint(2, (n, outputs)))
case("labels with doubt", "BINARY_CROSS_ENTROPY", 0.0, torch.randn(4, 3), targets=torch.rand(4, 3))
case("extreme logits, labels", "BINARY_CROSS_ENTROPY", 0.0,
     torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 700.0], [90.0, -90.0, -700.0]]),
     targets=torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [1.0, 0, 1.0]]))
for kind, delta in (("L1", 0.0), ("HUBER", 1.0), ("HUBER", 0.3)):
    case(f"{kind.lower()} {delta}", kind, delta, torch.randn(4, 5) * 2, targets=torch.randn(4, 5))
