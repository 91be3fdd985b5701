#!/usr/bin/env python3
"""Writes golden_optimizers.h: what PyTorch's optimizers make of fixed weights and gradients.

Usage: golden_optimizers.py > golden_optimizers.h        (needs torch)

Seven weights with decay and three biases without, six steps, each with a learning rate and
gradients of its own. Run on one thread in float32, one tensor at a time (no fused or multi-tensor
variants). What PyTorch does not have is a formula of golden_formulas.py, which is run after this.
"""
import torch

STEPS, WEIGHTS, BIASES = 6, 7, 3

CASES = [
    ("sgd", {}),
    ("sgd", {"weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.5, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("adam", {}),
    ("adam", {"beta1": 0.8, "beta2": 0.95, "eps": 1e-3}),
    ("adam", {"weight_decay": 0.1}),
    ("adam", {"beta1": 0.0, "beta2": 0.99}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.3, "beta1": 0.7, "beta2": 0.9}),
    ("adamw", {"weight_decay": 0.0, "eps": 1e-4}),
    ("rmsprop", {}),
    ("rmsprop", {"alpha": 0.9, "eps": 1e-4, "weight_decay": 0.1}),
    ("rmsprop", {"momentum": 0.9, "weight_decay": 0.1}),
    ("rmsprop", {"momentum": 0.5, "alpha": 0.5}),
]


KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
DECAYS = {"adamw": 0.01}  # where the default is not 0


def draw(generator, n):
    return torch.randn(n, generator=generator)


def array(values):
    return "{" + ", ".join("%.9gf" % v if "." in "%.9g" % v or "e" in "%.9g" % v else "%.9g.0f" % v
                           for v in values) + "}"


def run(kind, options, start, gradients, rates):
    weight, bias = (torch.nn.Parameter(part.clone()) for part in start)
    known = dict(options)
    if kind.startswith("adam"):
        known["betas"] = (known.pop("beta1", 0.9), known.pop("beta2", 0.999))
    decay = known.pop("weight_decay", DECAYS.get(kind, 0.0))
    groups = [{"params": [weight], "weight_decay": decay}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = KINDS[kind](groups, lr=1.0, foreach=False, **known)
    after = []
    for rate, (weight.grad, bias.grad) in zip(rates, gradients):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        after.append(weight.tolist() + bias.tolist())
    return after


def main():
    generator = torch.Generator().manual_seed(7)
    start = draw(generator, WEIGHTS), draw(generator, BIASES)
    # Of many sizes, and one that is zero throughout.
    sizes = torch.tensor([1.0, 1e-3, 10.0, 0.1, 0.0, 1e-6, 1.0])
    gradients = [(draw(generator, WEIGHTS) * sizes, draw(generator, BIASES)) for _ in range(STEPS)]
    rates = [0.01, 0.02, 0.005, 0.03, 0.001, 0.015]

    print("/* Made by golden_optimizers.py with PyTorch %s. */" % torch.__version__.split("+")[0])
    print("// clang-format off")
    print("enum { GOLDEN_STEPS = %d, GOLDEN_WEIGHTS = %d, GOLDEN_BIASES = %d };"
          % (STEPS, WEIGHTS, BIASES))
    print("static const float golden_start[] = %s;" % array(start[0].tolist() + start[1].tolist()))
    print("static const double golden_rates[] = {%s};" % ", ".join(map(repr, rates)))
    print("static const float golden_gradients[GOLDEN_STEPS][GOLDEN_WEIGHTS + GOLDEN_BIASES] = {")
    for weight, bias in gradients:
        print("    %s," % array(weight.tolist() + bias.tolist()))
    print("};")
    print("static const struct golden_optimizer {")
    print("    const char *conf;")
    print("    float after[GOLDEN_STEPS][GOLDEN_WEIGHTS + GOLDEN_BIASES];")
    print("} golden_optimizers[] = {")
    for kind, options in CASES:
        conf = "".join(", %s: %s" % (k, str(v).lower()) for k, v in options.items())
        print('    {"{type: %s%s}", {' % (kind, conf))
        for row in run(kind, options, start, gradients, rates):
            print("        %s," % array(row))
        print("    }},")
    print("};\n// clang-format on")


torch.set_num_threads(1)
main()
