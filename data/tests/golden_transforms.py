"""Writes golden_transforms.h: what torchvision's functions make of an image, by numbers that are given.

In double, from images of floats that test_transform.c makes by the same rule.

    python golden_transforms.py > golden_transforms.h

needs torch and torchvision.
"""
import torch
import torchvision.transforms.v2.functional as F
from torchvision.transforms import InterpolationMode


def picture(c, h, w):
    i = torch.arange(c * h * w, dtype=torch.int64)
    return ((i * i * 31 + i * 17) % 101).to(torch.float32).div(100).double().reshape(c, h, w)


def numbers(values):
    return ", ".join(f"{float(v):.9g}" for v in values)


def case(what, shape, given, want):
    print(f"""    {{
        .what = DO_{what},
        .shape = {{{', '.join(map(str, shape))}}},
        .given = {{{numbers(given)}}},
        .height = {want.shape[1]},
        .width = {want.shape[2]},
        .want = {{{numbers(want.flatten())}}},
    }},""")


print("/* Made by golden_transforms.py with torchvision; rows of struct golden in test_transform.c. */")
print("// clang-format off")
# Parts that become larger, smaller, both, and stay.
for shape, box, size in (((3, 5, 6), (0, 0, 5, 6), (5, 6)), ((3, 5, 6), (1, 2, 3, 3), (5, 6)), ((1, 5, 6), (0, 0, 5, 6), (9, 11)),
                         ((3, 5, 6), (0, 0, 5, 6), (2, 3)), ((1, 11, 13), (1, 0, 9, 13), (3, 4)), ((2, 11, 13), (0, 2, 11, 3), (4, 7)),
                         ((1, 4, 4), (2, 3, 1, 1), (3, 2)), ((1, 9, 9), (0, 0, 9, 9), (1, 1))):
    case("RESIZE", shape, box, F.resized_crop(picture(*shape), *box, list(size), antialias=True))
for shape, size in (((1, 5, 6), (2, 3)), ((2, 8, 5), (5, 5)), ((1, 7, 4), (4, 1))):
    case("MIDDLE", shape, size, F.center_crop(picture(*shape), list(size)))
case("UPSIDE_DOWN", (2, 5, 3), (), F.vertical_flip(picture(2, 5, 3)))
# angle, right, down, scale, shear, and the value outside: torchvision's `fill` counts twice at the border, so zero is shifted.
for shape, angle, right, down, scale, shear, outside in (
        ((3, 5, 6), 0, 0, 0, 1, 0, 0), ((3, 5, 6), 30, 0, 0, 1, 0, 0), ((1, 6, 5), -75, 0, 0, 1, 0, 0.25), ((1, 6, 7), 0, 2, -1, 1, 0, -0.5),
        ((1, 6, 6), 0, 0, 0, 1.7, 0, 0), ((2, 7, 6), 0, 0, 0, 0.6, 0, 0.125), ((1, 7, 7), 0, 0, 0, 1, 20, 0),
        ((3, 6, 8), 17, 1, 2, 1.25, -12, 0.5), ((1, 5, 5), 180, 0, 0, 1, 0, 0), ((1, 5, 70), 8, 3, 0, 0.9, 5, 0)):
    want = F.affine(picture(*shape) - outside, angle, [right, down], scale, [shear, 0], InterpolationMode.BILINEAR) + outside
    case("AFFINE", shape, (angle, right, down, scale, shear, outside), want)
for factor in (0, 0.6, 1, 1.8):
    case("BRIGHTNESS", (3, 4, 3), (factor,), F.adjust_brightness(picture(3, 4, 3), factor))
    case("CONTRAST", (3, 5, 7), (factor,), F.adjust_contrast(picture(3, 5, 7), factor))
    case("SATURATION", (3, 4, 3), (factor,), F.adjust_saturation(picture(3, 4, 3), factor))
case("CONTRAST", (1, 5, 7), (1.3,), F.adjust_contrast(picture(1, 5, 7), 1.3))
for turns in (-0.5, -0.3, -0.05, 0, 0.1, 0.25, 0.45):
    case("HUE", (3, 5, 5), (turns,), F.adjust_hue(picture(3, 5, 5), turns))
case("ERASE", (3, 5, 6), (1, 2, 3, 2, 0.75), F.erase(picture(3, 5, 6), 1, 2, 3, 2, torch.full((3, 3, 2), 0.75, dtype=torch.float64)))
