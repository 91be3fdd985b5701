"""Reads the pages that `dptrain report` writes, strictly: a tag left open or closed twice is an error."""
import base64
import re
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

VOID = {"meta", "img", "br", "wbr", "link", "input", "hr"}


class Element:
    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    def all(self, tag=None, **wanted):
        """The elements below of this tag and with these attributes, in their order; klass: one of its classes."""
        klass = wanted.pop("klass", None)
        found = []
        for child in self.children:
            if isinstance(child, str):
                continue
            if ((tag is None or child.tag == tag) and all(child.attributes.get(k) == v for k, v in wanted.items())
                    and (klass is None or klass in (child.attributes.get("class") or "").split())):
                found.append(child)
            found += child.all(tag, **wanted, **({"klass": klass} if klass else {}))
        return found

    def one(self, tag=None, **wanted):
        found = self.all(tag, **wanted)
        assert len(found) == 1, (tag, wanted, len(found))
        return found[0]

    @property
    def text(self):
        return "".join(c if isinstance(c, str) else c.text for c in self.children)

    @property
    def words(self):
        return " ".join(self.text.split())

    def rows(self):
        """A table's rows, as lists of texts."""
        return [[cell.words for cell in row.children if not isinstance(cell, str) and cell.tag in ("td", "th")]
                for row in self.all("tr")]


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__(convert_charrefs=True)
        self.bytes = path.read_bytes()
        self.source = self.bytes.decode()  # strictly UTF-8
        self.root = Element("", [])
        self.open = [self.root]
        self.feed(self.source)
        self.close()
        assert [e.tag for e in self.open] == [""], "left open"
        ids = [e.attributes["id"] for e in self.root.all() if "id" in e.attributes]
        assert len(ids) == len(set(ids)), ids

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), self.getpos()
        element = Element(tag, attributes)
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Element(tag, attributes))

    def handle_endtag(self, tag):
        assert self.open[-1].tag == tag, (tag, self.open[-1].tag, self.getpos())
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)

    def section(self, name):
        return self.root.one("section", id=name)

    def tiles(self):
        tiles = self.root.one("dl", klass="tiles")
        return {d.one("dt").words: d.one("dd").words for d in tiles.all("div")}

    def lines(self, chart):
        """The curves of a chart by their names: arrays of x and y, read back from the chart."""
        svg = self.root.one("figure", id=chart).one("svg", klass="plot").attributes
        (x0, x1), (y0, y1), (left, right, top, bottom) = ([float(n) for n in svg[k].split()]
                                                          for k in ("data-x", "data-y", "data-in"))
        found = {}
        for line in self.root.one("figure", id=chart).all("polyline"):
            if "data-name" not in line.attributes:
                continue
            at = np.array([p.split(",") for p in line.attributes["points"].split()], float)
            x = x0 + (at[:, 0] - left) / (right - left) * (x1 - x0)
            y = y0 + (bottom - at[:, 1]) / (bottom - top) * (y1 - y0)
            found[line.attributes["data-name"]] = (x, 10 ** y if "data-log" in svg else y)
        return found


def report(out, *words, code=0, quiet=True, **options):
    result = dpt.run("report", *words, "-o", out, *(["--quiet"] if quiet else []), **options)
    assert result.code == code, result
    return Page(Path(out)) if code == 0 else result


def pixels(image):
    """The bytes of an <img> whose source is a PNG: [height, width] or [height, width, 3]."""
    head, text = image.attributes["src"].split(",")
    assert head == "data:image/png;base64"
    file = base64.b64decode(text, validate=True)
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = [], 8
    while at < len(file):
        n = int.from_bytes(file[at:at + 4], "big")
        kind, body = file[at + 4:at + 8], file[at + 8:at + 8 + n]
        assert zlib.crc32(kind + body) == int.from_bytes(file[at + 8 + n:at + 12 + n], "big")
        chunks.append((kind, body))
        at += n + 12
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    head = chunks[0][1]
    width, height = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big")
    channels = {0: 1, 2: 3}[head[9]]
    assert head[8] == 8 and head[10:] == b"\0\0\0"
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + width * channels)
    assert (rows[:, 0] == 0).all()
    values = rows[:, 1:].reshape(height, width, channels)
    return values[:, :, 0] if channels == 1 else values


def contrast(one, other):
    """The contrast of two colours "#rrggbb" (WCAG 2.2, relative luminance)."""
    def luminance(colour):
        colour = colour.lstrip("#")
        if len(colour) == 3:
            colour = "".join(2 * c for c in colour)
        parts = [int(colour[i:i + 2], 16) / 255 for i in (0, 2, 4)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes(style):
    """The colours of light and of dark."""
    light, dark = (dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", block))
                   for block in re.findall(r":root\{([^}]*)\}", style)[:2])
    return {"light": light, "dark": {**light, **dark}}
