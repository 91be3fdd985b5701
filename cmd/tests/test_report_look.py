"""`dptrain report` in a browser: nothing hangs over the edge on a phone or a screen, light and dark differ, the script works
and is not needed. With DPT_HEAVY=1 and Chromium (Debian's package `chromium`); DPT_LOOK=FOLDER keeps the screenshots."""
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(os.environ.get("DPT_HEAVY") != "1", reason="starts a browser: DPT_HEAVY=1 runs it"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

PAGES = ["one", "three", "numbers", "uneven", "many", "mesh", "sixteen"]

# What the page tells of itself to the page around it: its policy lets it say so, and nothing else.
PROBE = """<script>
var errors = [];
addEventListener('error', function (e) { errors.push(String(e.message)) });
addEventListener('load', function () {
  var root = document.documentElement, plot = document.querySelector('#loss svg.plot'), tip = document.getElementById('tip');
  var box = plot.getBoundingClientRect(), over = [];
  document.querySelectorAll('body *').forEach(function (e) {
    var inside = e.closest('.scroll, pre, svg, #tip');
    if (!inside && e.getBoundingClientRect().right > innerWidth + 0.5) over.push(e.tagName + '.' + e.className);
    if (!inside && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display != 'inline')
      over.push('narrow ' + e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40));
  });
  document.querySelectorAll('.scroll').forEach(function (d) {
    var said = d.previousElementSibling;
    if (d.scrollWidth > d.clientWidth + 1 && !(said && said.className == 'aside' && !said.hidden)) over.push('silent ' + d.getAttribute('aria-label'));
  });
  document.querySelectorAll('svg.plot text').forEach(function (e) {
    var own = e.getBoundingClientRect(), all = e.closest('svg').getBoundingClientRect();
    if (own.left < all.left - 1 || own.right > all.right + 1) over.push('label ' + e.textContent);
    if (own.height < 9) over.push('small label ' + e.textContent + ' ' + own.height);
  });
  plot.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 0.9 * box.width, clientY: box.top + 50}));
  var said = {width: root.scrollWidth, inner: innerWidth, ground: getComputedStyle(document.body).backgroundColor,
              tip: tip.hidden ? '' : tip.innerText, errors: errors, over: over,
              images: [].every.call(document.images, function (i) { return i.naturalWidth > 0 })};
  plot.dispatchEvent(new PointerEvent('pointerleave', {}));
  parent.postMessage(JSON.stringify(said), '*');
});
</script>"""


def chromium(folder, url, *words, dark=False):
    done = subprocess.run([CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                           f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                           "--virtual-time-budget=4000", *words, url], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def look(folder, page, width, dark):
    probed = folder / "probed.html"
    probed.write_text(page.read_text().replace("</title>", "</title>" + PROBE, 1))
    frame = folder / "frame.html"
    frame.write_text(f"<!DOCTYPE html><body style='margin:0'><iframe src='{probed.as_uri()}' style='border:0;width:{width}px;"
                     "height:3000px'></iframe><pre id=said></pre><script>addEventListener('message', function (e) {"
                     "document.getElementById('said').textContent = e.data})</script></body>")
    dom = chromium(folder, frame.as_uri(), f"--window-size={max(width, 500)},3000", "--dump-dom", dark=dark)
    return json.loads(html.unescape(re.search(r'<pre id="said">(.*?)</pre>', dom, re.S)[1]))


def shoot(folder, page, name, width, *words, dark=False):
    target = Path(os.environ.get("DPT_LOOK", folder)) / f"{name}.png"
    frame = folder / "shot.html"
    frame.write_text(f"<!DOCTYPE html><body style='margin:0'><iframe src='{page.as_uri()}' style='border:0;display:block;"
                     f"width:{width}px;height:3400px'></iframe></body>")
    # The window is higher by what the browser takes of it: there it may not have painted yet.
    chromium(folder, frame.as_uri(), f"--window-size={max(width, 500)},3550", f"--screenshot={target}", *words, dark=dark)
    return target.read_bytes()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One run, three compared, one of numbers, one of imbalanced classes with long names, one of many classes, one of a mesh, and sixteen."""
    folder = tmp_path_factory.mktemp("look")
    job = """
name: looking at a job whose name is rather long-and-cannot-be-broken-anywhere-since-it-has-no-blanks-for-eighty-letters
data: {train: synthetic, valid: 0.1, test: synthetic, synthetic: {samples: 2000, shape: [1, 28, 28]}}
model: {type: mlp, hidden: [24], outputs: 10}
batch: {global: 32, micro: 8}
optimizer: {type: sgd, lr: 0.002}
train: {epochs: 2}
eval: {every: 10 steps}
log: {every: 1 steps}
"""
    made = dpt.write_job(folder / "job.yaml", job)
    numbers = dpt.write_job(folder / "numbers.yaml", "data: {train: synthetic, test: synthetic}\nmodel: {type: linear, outputs: 1}\n"
                            "loss: mse\nbatch: {global: 64, micro: 8}\noptimizer: {type: sgd, lr: 0.02}\ntrain: {epochs: 2}\n"
                            "log: {every: 1 steps}\n")
    dpt.train(made, folder / "a", ranks=2)
    dpt.train(made, folder / "another-run-with-a-long-name", "--set", "optimizer.lr=0.001", "--set", "optimizer.momentum=0.9")
    dpt.train(made, folder / "c", "--set", "train.epochs=1", "--set", "model.hidden=[64, 48, 32, 24, 24, 24]")
    dpt.train(numbers, folder / "n")
    dpt.train(made, folder / "mesh", "--set", "comm.reduction=reproducible", "--set", "parallel={pipeline: 4, shard: optimizer}", "--set",
              "model.hidden=[64, 48, 32, 24, 24, 24]", ranks=8)
    draw = np.random.default_rng(1)
    for name, labels in (("uneven", (draw.random(400) < 0.08).astype(int)), ("many", draw.integers(0, 60, 900))):
        with h5py.File(folder / f"{name}.h5", "w") as f:
            f["images"], f["labels"] = (draw.normal(size=(len(labels), 6)) + labels[:, None]).astype("f4"), labels
            f["labels"].attrs["classes"] = [f"a class with a long name, which is {k}" for k in range(labels.max() + 1)]
        dpt.train(dpt.write_job(folder / f"{name}.yaml", f"data: {{train: {folder}/{name}.h5, test: {folder}/{name}.h5}}\nlog: {{every: 1 steps}}\n"
                                f"model: {{type: mlp, hidden: [16], outputs: {labels.max() + 1}}}\ntrain: {{epochs: 2}}\n"), folder / name)
    for k in range(16):
        dpt.train(folder / "uneven.yaml", folder / f"run{k}", "--set", f"optimizer.lr={k + 1}e-3")
    runs = {"one": ["a"], "three": ["a", "another-run-with-a-long-name", "c"], "numbers": ["n"], "uneven": ["uneven"], "many": ["many"], "mesh": ["mesh"],
            "sixteen": [f"run{k}" for k in range(16)]}
    for name, words in runs.items():
        result = dpt.run("report", *(folder / w for w in words), "-o", folder / f"{name}.html")
        assert result.code == 0, result
    return {name: folder / f"{name}.html" for name in runs}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width, dark", [(1280, False), (1280, True), (768, False), (360, False), (320, True)])
def test_nothing_hangs_over(pages, name, width, dark, tmp_path):
    said = look(tmp_path, pages[name], width, dark)
    assert said["inner"] == width and said["width"] <= width and said["over"] == [], said
    assert said["errors"] == [] and said["images"]
    assert re.match(r"step \d+\n", said["tip"]) and re.search(r"train +[\d.e-]+", said["tip"]), said["tip"]
    red = int(re.match(r"rgb\((\d+)", said["ground"])[1])
    assert red < 40 if dark else red > 230


@pytest.mark.parametrize("name", PAGES)
def test_without_a_script_it_looks_the_same(pages, name, tmp_path):
    for width in (1280, 360):
        for dark in (False, True):
            shot = shoot(tmp_path, pages[name], f"{name}-{width}-{'dark' if dark else 'light'}", width, dark=dark)
            assert len(shot) > 20000
    if name == "sixteen":
        return  # the script adds buttons, and says that the table scrolls
    plain = pages[name].with_name("plain.html")
    plain.write_text(re.sub(r"<script>.*?</script>", "", pages[name].read_text(), flags=re.S))
    assert shoot(tmp_path, plain, f"{name}-plain", 1280) == shoot(tmp_path, pages[name], f"{name}-script", 1280)
