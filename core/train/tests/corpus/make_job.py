#!/usr/bin/env python3
"""Makes the first corpus of fuzz_job, job/seed-*, and its dictionary, job.dict. Run anywhere; what is there is overwritten.

The other files of job/ are inputs that once broke something, or that a fuzzer found to reach further.
"""
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[3]
HEAD = "data: {train: synthetic}\n"
MLP = HEAD + "model: {type: mlp, outputs: 10, hidden: [8, 4]}\n"

YAML = [
    '- [', ']', '{', '}', ': ', ', ', '\\x0a', '\\x0a  ', '\\x0a- ', '  - ', '#', "'", '\\x22', '|', '>', '|-', '>+2', '&a', '*a',
    '!!int', '<<', '---\\x0a', '...\\x0a', '%YAML 1.1\\x0a', '~', 'null', 'true', '\\x09', '\\xc2\\x85', '\\xe2\\x80\\xa8',
    '\\xef\\xbb\\xbf', '\\xff\\xfe', '\\xf0\\x9f\\x98\\x80', '\\x00', '\\xff', '\\x5cu0007', '\\x5cx41', '1e-3', '-1', '1e309', '9223372036854775807',
    '1000000000000', '0x10', '.5', '1 epoch', '50 steps', '10 min', 'never', 'auto', 'same', '[0]', '[99999]', 'type: ',
    '2147483648',
]

JOBS = {
    "linear": HEAD + "model: {type: linear, outputs: 3}\nloss: mse\n",
    "short": MLP + "optimizer: {type: sgd, lr: 0.1, momentum: 0.9, nesterov: true}\n",
    "cnn": HEAD + "model: {type: cnn, channels: [4, 8], pool: 2, hidden: 16, outputs: 10}\nschedule: {type: cosine, warmup: 3}\n",
    "layers": HEAD + """model:
  type: sequential
  layers:
    - conv: {channels: 4, kernel: [3, 5], stride: 2, dilation: 1, groups: 1, padding: same, bias: false, init: xavier}
    - conv: {channels: 6, kernel: 3, padding: [1, 2], name: second}
    - relu
    - gelu
    - maxpool: 2
    - avgpool: {size: 2, stride: 1, padding: 1}
    - tanh
    - dropout: 0.5
    - flatten
    - dense: {outputs: 7, bias: true}
    - sigmoid
    - dense: 10
""",
    "gap": HEAD + "model:\n  layers:\n  - conv: 3\n  - global_avgpool\n  type: sequential\n",
    "schedules": MLP + "schedule: {type: step, every: 2 epochs, gamma: 0.5, scale_lr: {rule: linear, base_batch: 32}}\n",
    "every": MLP + "train: {epochs: 2, clip_norm: 1, max_time: 90 min}\ncheckpoint: {every: 10 min, keep: all}\neval: {every: never}\n",
    "globs": "data: {train: [a*.h5, 'b c.h5'], valid: 0.1, test: t.h5, cache: none, normalize: {mean: [.1, .2], std: 1}}\n"
             "model: {type: linear, outputs: 2}\n",
    "text": MLP + "name: \"a\\tb\\u263a\"\noutput: |\n  folded\n   text\n",
    "flow": "{data: {train: synthetic, synthetic: {samples: 9, shape: [3, 5, 7], classes: 2}}, model: {type: mlp, outputs: 2}}",
    "mistakes": "data: {train: 5, trian: x}\nmodel: {type: nlp}\nbatch: {global: -1, mirco: 2}\nseed: 1.5\nseed: 2\n",
    "refused": "a: &x 1\nb: *x\nc: !!int 3\n<<: {d: 1}\n",
    "deep": "a: " + "[" * 33 + "]" * 33 + "\n",
    "two": MLP + "---\n" + MLP,
    "bom": "\ufeff" + MLP,
    "empty": "",
}

SETS = {
    "sets": ["batch.global=64", "model.hidden=[1, 2]", "name=x", "optimizer.lr=1e-2"],
    "set-into-lists": ["model.hidden[0]=3", "model.hidden[9]=3", "data.normalize={mean: 0.5, std: [1]}"],
    "set-wrong": ["", "=", "a", "a..b=1", "a[=1", "batch=[", "model.type={}"],
}


def write(name, data):
    (HERE / "job").mkdir(exist_ok=True)
    (HERE / "job" / f"seed-{name}").write_bytes(data)


def main():
    for name, text in JOBS.items():
        write(name, text.encode())
    for name, sets in SETS.items():
        write(name, b"\xff".join([MLP.encode(), *(text.encode() for text in sets)]))
    write("utf16", MLP.encode("utf-16"))
    write("latin1", MLP.encode() + b"name: \xe4\n")
    write("nul", MLP.encode() + b"name: a\0b\n")
    words = set()
    for room in ("core", "models", "data"):
        for path in (TOP / room).rglob("*.c"):
            if "tests" not in path.parts:
                words.update(re.findall(r'\.name = "([a-z0-9_]+)"', path.read_text()))
    lines = [f'"{word}"' for word in sorted(words) + YAML]
    (HERE / "job.dict").write_text("# Made by make_job.py: the words of the tables, and what YAML finds special.\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
