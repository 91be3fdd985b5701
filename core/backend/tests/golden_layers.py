"""Writes golden_layers.h: outputs and gradients of single layers as PyTorch computes them.

They are computed in double, from float inputs.

    python core/backend/tests/golden_layers.py > core/backend/tests/golden_layers.h

Each case is a layer with the loss sum((y - t)^2) / outputs: dy = 2 (y - t) / outputs. Its numbers follow from its name,
so a new case changes no other. An operation that is a module of torch.nn, under this name, needs no line here.

core/train/update/tests/golden_formulas.py, which needs no PyTorch, adds rows: run it after this.
"""

import inspect
import re
import zlib

import torch
import torch.nn.functional as F


def row(tensor):
    return ", ".join(f"{v:.9g}" for v in tensor.detach().flatten().tolist())


def pair(values):
    return f"{{{values[0]}, {values[1]}}}"


def case(name, op, shape, layer, weight=None, bias=None, kernel=(1, 1), stride=(1, 1),
         dilation=(1, 1), before=(0, 0), after=(0, 0), groups=1, scale=1.0, attributes=(), state=None):
    torch.manual_seed(zlib.crc32(name.encode()))
    weight, bias = (None if dims is None else torch.randn(dims) for dims in (weight, bias))
    x = (torch.randn(shape) * scale).double().requires_grad_()
    leaves = []
    for p in (weight, bias):
        leaves.append(None if p is None else p.float().double().requires_grad_())
    state = [] if state is None else [torch.randn(state), torch.rand(state) + 0.5]
    running = [t.double() for t in state]
    used = layer(x.detach(), *leaves, *running, False) if state else None
    y = layer(x, *leaves, *running, *([True] if state else []))
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
        .attribute = {{{", ".join(f"{a:.9g}" for a in attributes) or 0}}},
        .x = {{{row(x)}}},
        .target = {{{row(target)}}},
        .y = {{{row(y if used is None else used)}}},
        .dx = {{{row(x.grad)}}},""")
    for field, leaf in zip(("weight", "bias"), leaves):
        if leaf is not None:
            print(f"        .n_{field} = {leaf.numel()},")
            print(f"        .{field} = {{{row(leaf)}}},\n        .d{field} = {{{row(leaf.grad)}}},")
    for field, before, after in zip(("mean", "variance"), state, running):
        print(f"        .{field} = {{{row(before)}}},\n        .new_{field} = {{{row(after)}}},")
    print("    },")


def batchnorm(name, shape, eps=1e-5, momentum=0.1):
    """`y` is that of evaluation with the statistics before; the gradients are those of training, which makes the new statistics."""
    def layer(x, weight, bias, mean, variance, training):
        return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)

    case(name, "BATCHNORM", shape, layer, (shape[1],), (shape[1],), scale=2.0, attributes=(eps, 1 - momentum), state=(shape[1],))


def conv(name, shape, filters, kernel, bias=True, **window):
    groups = window.get("groups", 1)
    before, after = window.get("before", (0, 0)), window.get("after", (0, 0))

    def layer(x, weight, b):
        padded = F.pad(x, (before[1], after[1], before[0], after[0]))
        return F.conv2d(padded, weight, b, window.get("stride", (1, 1)), 0,
                        window.get("dilation", (1, 1)), groups)

    case(name, "CONV", shape, layer, (filters, shape[1] // groups, *kernel), (filters,) if bias else None,
         kernel=kernel, **window)


def module_cases(name):
    """Cases with the module's default values, and with 0.2 for each of its numbers."""
    kinds = {kind.lower(): getattr(torch.nn, kind) for kind in dir(torch.nn)}
    kind = kinds[name.replace("_", "")]
    numbers = [k for k, p in inspect.signature(kind).parameters.items() if isinstance(p.default, float) and name != "softplus"]
    for about, shape, scale, given in (("", (2, 2, 3, 3), 2.0, {}), (", far out", (2, 12), 12.0, {}),
                                       (", given", (2, 2, 3, 3), 2.0, {k: 0.2 for k in numbers})):
        if about == ", given" and not numbers:
            continue
        needs = {"normalized_shape": shape[1:], "num_features": shape[1], "num_parameters": shape[1]}
        module = kind(**given, **{k: v for k, v in needs.items() if k in inspect.signature(kind).parameters})
        owned = {k: tuple(p.shape) for k, p in module.named_parameters()}

        def layer(x, *leaves):
            return torch.func.functional_call(module, dict(zip(("weight", "bias"), leaves)) if owned else {}, (x,))

        case(name + about, name.upper(), shape, layer, owned.get("weight"), owned.get("bias"), scale=scale,
             attributes=[getattr(module, k) for k in numbers])


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
case("conv 1-D, stride 2, dilation 2, padding 1", "CONV", (2, 4, 1, 11),
     lambda x, w, b: F.conv1d(x.squeeze(2), w.squeeze(2), b, 2, 1, 2, 2).unsqueeze(2), (6, 2, 1, 3), (6,),
     kernel=(1, 3), stride=(1, 2), dilation=(1, 2), before=(0, 1), after=(0, 1), groups=2)
case("dense", "DENSE", (3, 7), F.linear, (4, 7), (4,))
case("dense, no bias", "DENSE", (2, 5), lambda x, w, b: F.linear(x, w), (3, 5))
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
for size, shape in (((2, 3), (2, 2, 5, 6)), ((3, 4), (2, 2, 7, 5)), ((4, 5), (2, 3, 3, 2)), ((1, 1), (2, 3, 4, 5))):
    case(f"adaptive average pool to {size[0]}x{size[1]}", "ADAPTIVE_AVGPOOL", shape,
         lambda x, w, b: F.adaptive_avg_pool2d(x, size))
for scale, shape in (((2, 2), (2, 2, 3, 2)), ((3, 1), (2, 3, 2, 3))):
    case(f"upsample {scale[0]}x{scale[1]}", "UPSAMPLE", shape, lambda x, w, b: F.interpolate(x, scale_factor=scale, mode="nearest"),
         kernel=scale)
for scale, shape in (((2, 2), (2, 2, 3, 2)), ((3, 4), (2, 1, 2, 3)), ((1, 5), (1, 2, 2, 1))):
    case(f"bilinear {scale[0]}x{scale[1]}", "BILINEAR", shape,
         lambda x, w, b: F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False), kernel=scale)
case("flatten", "FLATTEN", (2, 2, 2, 3), lambda x, w, b: x.flatten(1))
for groups, shape in ((1, (2, 3, 3, 2)), (2, (2, 4, 2, 3)), (5, (3, 5, 2, 2))):
    case(f"groupnorm, {groups} groups", "GROUPNORM", shape, lambda x, w, b: F.group_norm(x, groups, w, b, 1e-3),
         (shape[1],), (shape[1],), groups=groups, attributes=[1e-3])
batchnorm("batchnorm", (3, 3, 3, 4))
batchnorm("batchnorm, given", (2, 18, 2, 1), eps=0.2, momentum=0.3)
batchnorm("batchnorm of a vector", (3, 17))
own = {"conv", "dense", "maxpool", "avgpool", "global_avgpool", "flatten", "groupnorm", "adaptive_avgpool", "upsample", "batchnorm"}
random, joins = {"dropout"}, {"add", "multiply", "concat"}
operations = re.findall(r"^    X\((?:C, )?[A-Z0-9_]+, (\w+)", open("core/backend/graph.h").read()
                        + open("core/backend/activations.h").read(), re.M)
for operation in operations:
    if operation not in own | random | joins:
        module_cases(operation)
