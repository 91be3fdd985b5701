#!/usr/bin/env python3
"""Makes the first corpus of fuzz_picture, picture/seed-*. Run anywhere; what is there is overwritten."""
import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent / "picture"
Y, X = np.mgrid[:9, :11]
RGB = Image.fromarray(np.stack([20 * X, 25 * Y, 10 * (X + Y)], -1).astype(np.uint8))
ALPHA = RGB.copy()
ALPHA.putalpha(Image.fromarray((12 * (X + Y)).astype(np.uint8)))
TURNED = Image.Exif()
TURNED[0x0112] = 6


def encoded(image, form, **save):
    out = io.BytesIO()
    image.save(out, form, **save)
    return out.getvalue()


PALETTE = RGB.convert("P", palette=Image.ADAPTIVE, colors=8)
FRAMES = {"save_all": True, "append_images": [PALETTE.rotate(90, expand=False)]}
RUNS = (b"BM" + struct.pack("<IHHI", 0, 0, 0, 62) + struct.pack("<IiiHHIIiiII", 40, 11, 2, 1, 8, 1, 0, 0, 0, 2, 0) + bytes([0, 9, 99, 0, 255, 7, 0, 0])
        + bytes([4, 1, 0, 3, 0, 1, 0, 0, 0, 0, 0, 2, 3, 0, 5, 1, 0, 1]))
SEEDS = {
    "png": encoded(RGB, "PNG"), "png-alpha": encoded(ALPHA, "PNG"), "png-palette": encoded(PALETTE, "PNG"), "png-bits": encoded(RGB.convert("1"), "PNG"),
    "jpeg": encoded(RGB, "JPEG", exif=TURNED.tobytes()), "jpeg-progressive": encoded(RGB.convert("L"), "JPEG", progressive=True),
    "tiff": encoded(RGB, "TIFF", tiffinfo={274: 6}), "tiff-lzw": encoded(PALETTE, "TIFF", compression="tiff_lzw"),
    "bmp": encoded(RGB, "BMP"), "bmp-palette": encoded(PALETTE, "BMP"),
    "gif": encoded(PALETTE, "GIF"), "gif-grey": encoded(RGB.convert("L").quantize(8), "GIF"), "gif-frames": encoded(PALETTE, "GIF", **FRAMES),
    "gif-interlaced": encoded(PALETTE, "GIF", interlace=1, transparency=3), "gif-cut": encoded(PALETTE, "GIF")[:-9],
    "webp": encoded(RGB, "WEBP", quality=50, exif=TURNED.tobytes()), "webp-lossless": encoded(ALPHA, "WEBP", lossless=True),
    "webp-alpha": encoded(ALPHA, "WEBP", quality=50), "webp-moves": encoded(RGB, "WEBP", save_all=True, append_images=[RGB.rotate(90)]),
    "tiff-grey-alpha": encoded(ALPHA.convert("LA"), "TIFF"), "tiff-inks": encoded(RGB.convert("CMYK"), "TIFF"), "jpeg-inks": encoded(RGB.convert("CMYK"), "JPEG"),
    "png-turned": encoded(RGB, "PNG", exif=TURNED), "png-deep": encoded(Image.fromarray((900 * (X + Y)).astype(np.uint16)), "PNG"),
    "bmp-runs": RUNS, "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
}

HERE.mkdir(exist_ok=True)
for name, content in SEEDS.items():
    (HERE / f"seed-{name}").write_bytes(content)
