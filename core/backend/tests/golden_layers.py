"""Writes golden_layers.h: outputs and gradients of single layers as PyTorch computes them.

In double, from float inputs.

    python golden_layers.py > golden_layers.h

Each case is a layer with the loss sum((y - t)^2) / outputs: dy = 2 (y - t) / outputs.
"""

import torch
import torch.nn.functional as F

torch.manual_seed(2)


def row(tensor):
    return ", ".join(f"{v:.9g}" for v in tensor.detach().flatten().tolist())


def pair(values):
    return f"{{{values[0]}, {values[1]}}}"


def case(name, op, shape, layer, weight=None, bias=None, kernel=(1, 1), stride=(1, 1),
         dilation=(1, 1), before=(0, 0), after=(0, 0), groups=1, scale=1.0):
    x = (torch.randn(shape) * scale).double().requires_grad_()
    leaves = []
    for p in (weight, bias):
        leaves.append(None if p is None else p.float().double().requires_grad_())
    y = layer(x, *leaves)
    target = torch.randn(y.shape).double()
    outputs = y[0].numel()
    loss = ((y - target) ** 2).sum() / outputs
    loss.backward()
    c, h, w = (list(shape[1:]) + [1, 1])[:3]
    oc, oh, ow = (list(y.shape[1:]) + [1, 1])[:3]
    window = ", ".join([pair(v) for v in (kernel, stride, dilation, before, after)] + [str(groups)])
    print(f"""    {{
        .name = "{name}",
        .op = DPT_OP_{op},
        .count = {shape[0]},
        .in = {{{c}, {h}, {w}, {"true" if len(shape) == 2 else "false"}}},
        .out = {{{oc}, {oh}, {ow}, {"true" if y.dim() == 2 else "false"}}},
        .window = {{{window}}},
        .x = {{{row(x)}}},
        .target = {{{row(target)}}},
        .y = {{{row(y)}}},
        .dx = {{{row(x.grad)}}},""")
    for field, leaf in zip(("weight", "bias"), leaves):
        if leaf is not None:
            print(f"        .n_{field} = {leaf.numel()},")
            print(f"        .{field} = {{{row(leaf)}}},\n        .d{field} = {{{row(leaf.grad)}}},")
    print("    },")


def conv(name, shape, filters, kernel, bias=True, **window):
    groups = window.get("groups", 1)
    before, after = window.get("before", (0, 0)), window.get("after", (0, 0))

    def layer(x, weight, b):
        padded = F.pad(x, (before[1], after[1], before[0], after[0]))
        return F.conv2d(padded, weight, b, window.get("stride", (1, 1)), 0,
                        window.get("dilation", (1, 1)), groups)

    case(name, "CONV", shape, layer, torch.randn(filters, shape[1] // groups, *kernel),
         torch.randn(filters) if bias else None, kernel=kernel, **window)


print("/* Made by golden_layers.py with PyTorch; rows of struct golden in test_golden_layers.c. */")
print("// clang-format off")
conv("conv 3x3", (2, 2, 4, 5), 3, (3, 3))
conv("conv 3x3, padding 1", (2, 2, 4, 3), 2, (3, 3), before=(1, 1), after=(1, 1))
conv("conv 2x3, stride 2x1, uneven padding", (2, 3, 5, 4), 2, (2, 3), stride=(2, 1),
     before=(0, 2), after=(1, 1))
conv("conv 3x2, dilation 2x3, stride 1x2, no bias", (1, 2, 6, 7), 3, (3, 2), bias=False,
     dilation=(2, 3), stride=(1, 2), before=(1, 2), after=(2, 1))
conv("conv 3x3 in 2 groups", (2, 4, 4, 4), 6, (3, 3), groups=2, before=(1, 1),
     after=(1, 1), stride=(2, 2))
conv("conv depthwise", (2, 3, 4, 4), 6, (2, 2), groups=3, dilation=(2, 1))
conv("conv 1x1", (3, 4, 2, 3), 5, (1, 1))
case("dense", "DENSE", (3, 7), F.linear, torch.randn(4, 7), torch.randn(4))
case("dense, no bias", "DENSE", (2, 5), lambda x, w, b: F.linear(x, w), torch.randn(3, 5))
case("maxpool 2", "MAXPOOL", (2, 2, 4, 6), lambda x, w, b: F.max_pool2d(x, 2),
     kernel=(2, 2), stride=(2, 2))
case("maxpool 3, stride 2, padding 1", "MAXPOOL", (2, 2, 5, 4),
     lambda x, w, b: F.max_pool2d(x, 3, 2, 1),
     kernel=(3, 3), stride=(2, 2), before=(1, 1), after=(1, 1))
case("maxpool 3x2, stride 1x3, no fit", "MAXPOOL", (2, 2, 5, 7),
     lambda x, w, b: F.max_pool2d(x, (3, 2), (1, 3)), kernel=(3, 2), stride=(1, 3))
case("avgpool 2", "AVGPOOL", (2, 2, 4, 5), lambda x, w, b: F.avg_pool2d(x, 2),
     kernel=(2, 2), stride=(2, 2))
case("avgpool 3x2, stride 2x1, padding 1", "AVGPOOL", (2, 2, 5, 4),
     lambda x, w, b: F.avg_pool2d(x, (3, 2), (2, 1), 1),
     kernel=(3, 2), stride=(2, 1), before=(1, 1), after=(1, 1))
case("global average pool", "GLOBAL_AVGPOOL", (2, 3, 3, 4), lambda x, w, b: x.mean((2, 3)))
case("flatten", "FLATTEN", (2, 2, 2, 3), lambda x, w, b: x.flatten(1))
for name, op in (("relu", F.relu), ("gelu", F.gelu), ("tanh", torch.tanh),
                 ("sigmoid", torch.sigmoid)):
    case(name, name.upper(), (2, 2, 3, 3), lambda x, w, b: op(x), scale=2.0)
    case(name + ", far out", name.upper(), (2, 12), lambda x, w, b: op(x), scale=12.0)
