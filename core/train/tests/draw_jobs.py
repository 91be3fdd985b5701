"""Draws whole jobs that can be trained from the tables of options, as `dptrain schema` prints them.

A row whose type tells what may stand there (a choice, a flag, a time, a number with a default) is drawn without a word here; of the
others HAND and the tables of sizes below say how. A row that nothing can draw raises Undrawable. Rows that change results are drawn
once for a job; the others, `x-effect: none`, `kept` and `output`, again for each of its runs (draw_run); `kept` ones stand in a checkpoint's job."""
import json
import os
import re
import struct
import sys
import zlib

import h5py
import numpy as np

sys.path[:0] = ["scripts/lib", "cmd/tests"]
import dpt  # noqa: E402
import jobs  # noqa: E402

GIVEN = 0.3  # how often a row that may be left out is given

# Rows that the drawing of data, model and length gives, and why: each hangs on the others.
HAND = {
    "data.train": "files that are there", "data.valid": "likewise", "data.test": "likewise", "data.keys": "names that are in them", "data.layout": "as they are written", "data.synthetic": "small ones",
    "data.normalize": "a number or one a channel", "data.augment": "what goes with the samples", "data.class_weights": "needs classes", "data.resize": "needs pictures", "data.crop": "likewise",
    "data.targets": "needs numbers to predict", "model": "shapes that fit", "init": "files of fitting weights", "loss": "goes with the data",
    "batch": "sizes that go together", "train.epochs": "a few steps", "train.steps": "a few steps", "train.freeze": "names of tensors",
    "comm.reduction": "reproducible is what is tested", "output": "the command line gives it", "name": "any text",
    "parallel": "what goes with so many ranks", "device.kind": "those that are here", "device.precision": "CPUs have two",
    "device.deterministic": "reproducible needs it", "train.early_stop": "needs data.valid", "checkpoint.monitor": "likewise, a value that it tells"}
# Of those that are sections the rows that are known here: a new one needs to be drawn.
ROWS = {
    "data.synthetic": {"samples", "shape", "classes", "outputs", "noise"}, "data.targets": {"normalize", "transform"}, "batch": {"global", "per_rank", "micro"},
    "parallel": {"data", "tensor", "pipeline", "shard"}, "init": {"from", "map", "by_order", "partial"},
    "train.early_stop": {"patience", "monitor", "also", "min_delta"}}
# Rows that change no result of a run that goes on, yet are the same for all runs of a job.
ALIKE = {"init": "begins with other weights", "device.kind": "kernels of other bits", "device.isa": "kernels of other bits",
         "batch": "per_rank is a global batch that hangs on the ranks", "eval.every": "checkpoints say which evaluation was best"}
# Of rows without a default that says it, or whose default is too large: bounds by their name.
REALS = {"lr": (1e-3, 0.05), "lr_scale": (0.1, 3), "weight_decay": (0, 0.1), "clip_norm": (1e-3, 1), "normal": (0.01, 0.3),
         "uniform": (0.01, 0.5), "mean": (-0.5, 0.5), "std": (0.3, 2), "noise": (0, 1), "ema": (0.3, 0.99), "eps": (1e-8, 1e-3), "scale": (0.3, 1.5), "rotate": (0, 60), "shear": (0, 30),
         "crop_area": (0.2, 1), "crop_ratio": (0.5, 2), "erase_area": (0.02, 0.5), "erase_ratio": (0.3, 3)}
INTS = {"hidden": (3, 40), "channels": (1, 9), "outputs": (3, 40), "kernel": (1, 3), "stride": (1, 2), "padding": (0, 2),
        "dilation": (1, 2), "groups": (1, 3), "size": (1, 3), "scale": (1, 2), "pool": (1, 2), "threads": (1, 3), "keep": (1, 9),
        "base_batch": (1, 64), "crop_padding": (0, 3)}
# What samples must be for a transform: how many channels, how high and wide, bytes.
TRANSFORMS = {"noise": (1, 0, False), "mixup": (1, 0, False), "crop_padding": (1, 1, False), "flip": (1, 1, False), "brightness": (1, 1, False), "contrast": (1, 1, False),
              "saturation": (3, 2, False), "hue": (3, 2, True)}
TIMES = ["never", "1 step", "2 steps", "3 steps", "7 steps", "0.4 epochs", "1 epoch", "2 epochs", "10 min", "1 h", "auto", "20 %"]
# What data each loss takes, and how often. A new loss needs its line.
DATA_OF = {"cross_entropy": ["classes", "classes", "soft"], "focal": ["classes", "soft"], "mse": ["numbers", "numbers", "amounts"], "l1": ["numbers", "amounts"], "huber": ["numbers"], "quantile": ["numbers"], "poisson": ["amounts"], "binary_cross_entropy": ["labels"]}
# What is monitored of each loss' evaluations beside the loss: what is told whatever the few samples are.
MONITORS_OF = {"classes": ["accuracy", "balanced_accuracy", "f1", "recall"], "soft": ["accuracy", "precision"], "numbers": ["mae", "rmse"], "amounts": ["mae", "rmse"],
               "labels": ["accuracy", "label_accuracy", "f1"]}
# Models whose smallest is too large to be trained a thousand times, and the only sizes of others that are not.
LEFT_OUT = {"vgg": "over 100 million weights"}
DEPTHS = {"resnet": [20]}
RARE = {"resnet", "mobilenet_v2", "lenet"}


class Undrawable(Exception):
    """A row of which nothing says how it is drawn."""


def kinds(row):
    return row["type"] if isinstance(row.get("type"), list) else [row.get("type")]


def png(pixels):
    """The file of [height, width, 1 or 3] bytes."""
    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


def is_section(row):
    return "object" in kinds(row) and "properties" in row


def leaves(schema, path="", effect=None):
    """(path, row, effect) of every row at which a value is drawn: sections are gone through unless HAND has them whole."""
    for name, row in schema["properties"].items():
        here, says = path + name, row.get("x-effect", effect)
        if is_section(row) and here not in HAND:
            yield from leaves(row, here + ".", says)
        else:
            yield here, row, says


class Dice:
    """Values of rows by their types."""

    def __init__(self, schema, rng):
        self.schema, self.rng = schema, rng

    def real(self, name, row):
        low, high = row.get("minimum", -1e30), row.get("maximum", 1e30)
        default = row.get("default")
        if name in REALS:
            value = self.rng.uniform(*REALS[name])
        elif isinstance(default, list) or default is None or isinstance(default, str):
            raise Undrawable(f"{name}: a number without a default: REALS is to say which")
        elif default == 0:
            value = self.rng.uniform(0, 0.9 * min(high, 1))
        else:
            value = default * 2 ** self.rng.uniform(-1, 1)
        return float(f"{min(max(value, low), high):.6g}")

    def whole(self, name, row):
        low, high, default = row.get("minimum", 0), row.get("maximum", 1e9), row.get("default")
        if name == "seed":
            return self.rng.choice([0, int(high), self.rng.randrange(10000)])
        if name in INTS:
            value = self.rng.randint(*INTS[name])
        elif isinstance(default, int):
            value = self.rng.randint(0, 2 * default + 2)
        else:
            raise Undrawable(f"{name}: a whole number without a default: INTS is to say which")
        return int(min(max(value, low), high))

    def many(self, name, row):
        """A list or one of them; of windows two at most; of a range both ends."""
        one = self.whole if "integer" in kinds(row["items"]) else self.real if "number" in kinds(row["items"]) else None
        if one is None:
            raise Undrawable(f"{name}: a list of texts: HAND is to say which")
        if self.rng.random() < 0.5 and {*kinds(row)} - {"null"} != {"array"}:
            return one(name, row)
        low, high = max(1, row.get("minItems", 1)), row.get("maxItems", 2)
        drawn = [one(name, row) for _ in range(self.rng.randint(low, max(low, high)))]
        return sorted(drawn) if row.get("minItems") == 2 else drawn

    def value(self, name, row):
        types = kinds(row)
        if "anyOf" in row:
            return self.value(name, {"default": row.get("default"), **self.rng.choice(row["anyOf"])})
        if "const" in row:
            return row["const"]
        if "enum" in row:
            return self.rng.choice([word for word in row["enum"] if word is not None])
        if "allOf" in row.get("then", {}):
            return self.variant(name, row)
        if row.get("if") == {"type": "object"}:  # a word alone, or a section
            return self.value(name, self.rng.choice([row["else"], {"type": "object", **row["then"]}]))
        if "pattern" in row:
            return self.rng.choice([time for time in TIMES if re.search(row["pattern"], time)])
        if is_section(row):
            return self.table(row)
        if "array" in types and isinstance(row.get("items"), dict) and "type" in row["items"]:
            return self.many(name, row)
        if "boolean" in types and "string" not in types:
            return self.rng.random() < 0.5
        if "integer" in types:
            return self.whole(name, row)
        if "number" in types and "string" not in types:
            return self.real(name, row)
        raise Undrawable(f"{name}: nothing says how it is drawn: {json.dumps(row)[:200]}")

    def table(self, row, often=GIVEN, but=()):
        return {name: self.value(name, inner) for name, inner in row["properties"].items() if inner is not True and name not in but
                and (name in row.get("required", []) or self.rng.random() < often)}

    def variant(self, name, row, kind=None, but=()):
        every = {one["if"]["properties"]["type"]["enum"][0]: one["then"] for one in row["then"]["allOf"]}
        kind = kind or self.rng.choice(list(every))
        return {"type": kind, **self.table(every[kind], 0.5, (*but, "groups"))}


    def layer_kinds(self):
        return self.schema["definitions"]["layers"]["items"]["then"]["properties"]

    def layer(self, wide=False, depth=0):
        """One of any kind that reads one layer; those within another have no others in them."""
        kinds_ = {kind: len(row["then"]["properties"]) for kind, row in self.layer_kinds().items() if "of" not in row["then"]["properties"]
                  and not (depth and "layers" in row["then"]["properties"])}
        name = self.rng.choices(list(kinds_), kinds_.values())[0]  # those with many options have much that can go wrong
        return {name: self.layer_options(name, wide, depth)}

    def layer_options(self, name, wide=False, depth=0):
        """wide: dense layers that can be divided among ranks."""
        row = self.layer_kinds()[name]["then"]
        options = self.table(row, 0.3, ("name", "from", "of", "layers", "shortcut", *(("outputs",) if name == "dense" else ())))
        if "layers" in row["properties"]:
            options["layers"] = [self.layer(wide, depth + 1) for _ in range(self.rng.randint(1, 3))]
        if "shortcut" in row["properties"] and self.rng.random() < 0.3:
            options["shortcut"] = self.rng.choice(["auto", "none"])
        if name == "dense":
            options["outputs"] = self.rng.randint(257, 300) if wide and self.rng.random() < 0.7 else self.rng.randint(3, 40)
        return options


class Case:
    """A job: `job` is what stands in its file. device: a kind to compute on; else one of those that every machine has. gpus: how many."""

    def __init__(self, schema, seed, rng, folder, device=None, gpus=0):
        self.dice, self.schema, self.rng, self.seed, self.folder = Dice(schema, rng), schema, rng, seed, folder
        self.layers, self.plan, self.gpus = [], {}, gpus
        self.job = {"comm": {"reduction": "reproducible"}}
        self.path = os.path.join(folder, "job.yaml")
        rows = schema["properties"]
        self.put("loss", self.dice.variant("loss", rows["loss"]))
        self.kind = rng.choice(DATA_OF[self.job["loss"]["type"]])
        self.images = rng.random() < 0.6
        self.put("model.type", self.model_type())
        self.data()
        self.length()
        for path, row, effect in leaves(schema):
            if path not in HAND and (effect in ("result", "length") or path in ALIKE) and rng.random() < self.often(path):
                self.put(path, self.dice.value(path.split(".")[-1], row))
        self.monitors()
        if self.job.get("optimizer", {}).get("nesterov") and not self.job["optimizer"].get("momentum"):
            self.put("optimizer.momentum", 0.9)
        self.put("device.kind", device or rng.choice(["cpu", "cpu", "auto", "ref"]))
        if device == "cuda":
            self.put("device.precision", rng.choice(["fp32", "fp32", "tf32", "bf16", "fp16"]))
        elif rng.random() < 0.2:
            self.put("device.precision", "bf16")
        elif rng.random() < 0.01:
            self.put("device.precision", self.dice.value("precision", rows["device"]["properties"]["precision"]))
        self.model()
        if self.plan:
            self.patterns()
        if self.plan and rng.random() < 0.1:
            self.given()

    @staticmethod
    def often(path):
        return 0.95 if path in ("optimizer", "schedule") else 0.01 if path == "device.isa" else 0.6 if "clip" in path else GIVEN

    def put(self, path, value):
        *above, last = path.split(".")
        at = self.job
        for key in above:
            at = at.setdefault(key, {})
        at[last] = value

    def write(self):
        return dpt.write_job(self.path, "".join(f"{key}: {jobs.dump(value)}\n" for key, value in self.job.items()))

    # --- data ----------------------------------------------------------------------------------

    def data(self):
        rng, folder = self.rng, self.folder
        self.samples, self.outputs = rng.randint(11, 70), rng.randint(2, 7)
        side = rng.choice([28, 32]) if self.job["model"]["type"] == "lenet" else rng.randint(3, 9)
        self.shape = [rng.randint(1, 3), side, side if side > 9 else rng.randint(3, 9)] if self.images else [rng.randint(1, 12)]
        if self.images and side < 10 and rng.random() < 0.15:
            self.shape[1] = 1
        if not self.images and rng.random() < 0.45:
            self.shape = [rng.choice([256, 520])]
        synthetic = {"shape": self.shape, "samples": self.samples, "classes": self.outputs, "outputs": self.outputs,
                     "noise": self.dice.real("noise", {})}
        files = rng.random() < 0.5 or self.kind in ("soft", "amounts")
        self.bytes = {"train": self.kind == "classes"}  # synthetic ones; files say it themselves
        self.keys, self.last = rng.choice([None, None, ("X", "Y"), ("train/x", "train/y")]) if files else None, files and rng.random() < 0.2
        if self.keys:
            self.put("data.keys", dict(zip("xy", self.keys)))
        if self.last:
            self.put("data.layout", "nhwc")
        self.put("data.train", self.shards("train", self.samples) if files else "synthetic")
        self.put("data.synthetic", synthetic)
        if rng.random() < 0.6:
            self.put("data.valid", rng.choice([0.1, 0.25, 0.5, self.shards("valid", rng.randint(1, 30)) if files else "synthetic"]))
        self.tests = [[], self.shards("test", rng.randint(1, 30)) if files else "synthetic"]
        numbers = self.schema["properties"]["data"]["properties"]
        if self.images and 1 < min(self.shape[1:]) and side < 10 and rng.random() < GIVEN:
            self.view()
        if rng.random() < GIVEN:
            self.put("data.normalize", {key: self.channels(key, row) for key, row in numbers["normalize"]["properties"].items()})
        if rng.random() < 0.5:
            self.put("data.augment", self.augment(numbers["augment"]))
        mixes = {"mixup", "cutmix"} & set(self.job["data"].get("augment", {}))
        if (self.kind == "classes" or self.kind == "labels" and files and not mixes) and rng.random() < GIVEN:
            given = [rng.choice([0.5, 1, 3]) for _ in range(self.outputs)]
            self.put("data.class_weights", rng.choice(["none", "balanced", given, {"0": 2.5}]))
        if self.kind in ("numbers", "amounts") and self.job["loss"]["type"] != "poisson" and rng.random() < 0.5:
            scale = {"mean": [0.5] * self.outputs, "std": [1.5] * self.outputs}
            self.put("data.targets", {"normalize": rng.choice(["auto", "none", {"mean": 0.25, "std": 2}, scale])})
            if self.kind == "amounts":
                self.job["data"]["targets"]["transform"] = rng.choice(["none", "log1p", "log1p"])

    def view(self):
        """Pictures of another size than those in the files, of which they are the middle."""
        rng, sides = self.rng, self.shape[1:]
        if rng.random() < 0.7:
            sides = rng.choice([[rng.randint(3, 10)] * 2, [rng.randint(3, 10), rng.randint(3, 10)]])
            self.put("data.resize", sides[0] if sides[0] == sides[1] else sides)
        if rng.random() < 0.7:
            sides = [rng.randint(2, side) for side in sides]
            self.put("data.crop", sides[0] if sides[0] == sides[1] else sides)
        self.shape = [self.shape[0], *sides]

    def augment(self, row):
        """Some of the transforms that go with the samples."""
        options = self.dice.table(row, self.rng.choice([0.15, 0.6]))
        channels, *sides = self.shape
        for name in list(options):
            least, side, bytes_ = TRANSFORMS.get(name, (1, 2, False))
            if min(sides, default=0) < side or channels < least or bytes_ and not self.bytes["train"]:
                del options[name]
        if options.get("crop_padding", 0) >= min(sides, default=1):
            del options["crop_padding"]
        for name in ("mixup", "cutmix") if self.kind in ("numbers", "amounts") else ():
            options.pop(name, None)
        return options

    def channels(self, key, row):
        return [self.dice.real(key, row) for _ in range(self.rng.choice([1, self.shape[0] if self.images else 1]))]

    def shards(self, name, samples):
        """Writes files of h5py, several perhaps, and returns what names them."""
        rng, dice = self.rng, np.random.default_rng([self.seed, len(name)])
        layout, self.bytes[name], weighs = (self.last or rng.random() < 0.3) and self.images, rng.random() < 0.5, rng.random() < 0.5
        cuts = sorted(rng.randint(1, samples) for _ in range(rng.choice([0, 0, 1, 2])))
        options = rng.choice([{}, {"compression": "gzip"}, {"chunks": True}])
        kept = self.images and not self.keys and self.shape[0] != 2 and rng.random() < 0.25
        for k, (begin, end) in enumerate(zip([0, *cuts], [*cuts, samples])):
            if end == begin:
                continue
            n = end - begin
            shape = (n, *self.shape[1:], self.shape[0]) if layout else (n, *self.shape)
            x = dice.integers(0, 256, shape, dtype=np.uint8) if self.bytes[name] else dice.normal(size=shape).astype(np.float32)
            numbers = dice.normal(size=(n, self.outputs)).astype(np.float32)
            y = {"classes": lambda: dice.integers(0, self.outputs, n).astype(rng.choice(["u1", "i4", "i8", "f4", "f8"])),
                 "soft": lambda: dice.dirichlet(np.ones(self.outputs), n).astype(np.float32),
                 "numbers": lambda: numbers, "amounts": lambda: np.maximum(numbers, 0),
                 "labels": lambda: dice.integers(0, 2, (n, self.outputs)).astype(rng.choice(["f4", "u1", "i8", "?"]))}[self.kind]()
            if self.kind == "classes":
                y[0] = self.outputs - 1  # a model whose outputs are left to the data has as many in all sets
            names = self.keys or (("images", "labels") if self.images else ("x", "y"))
            with h5py.File(f"{self.folder}/{name}-{k}.h5", "w") as file:
                if kept:
                    self.files(file, n, dice, options)
                else:
                    file.create_dataset(names[0], data=x, **options)
                file.create_dataset(names[1], data=y)
                if layout and not kept and not self.last:
                    file[names[0]].attrs["layout"] = "NHWC"
                if weighs:
                    file["weights"] = dice.choice([0, 1, 0.25, 2.7], n, p=[0.1, 0.3, 0.3, 0.3]).astype(np.float32)
                    file["weights"][0] = 1  # a set of which no sample counts cannot be evaluated
        return f"{self.folder}/{name}-*.h5"

    def files(self, file, n, dice, options):
        """Pictures of any size, as they are."""
        files = [png(dice.integers(0, 256, (*dice.integers(1, 12, 2), dice.choice([1, 3])), dtype=np.uint8)) for _ in range(n)]
        file.create_dataset("files", data=np.frombuffer(b"".join(files), np.uint8), **options).attrs["shape"] = self.shape
        file["offsets"] = np.cumsum([0, *map(len, files)], dtype=np.uint64)

    def length(self):
        rng = self.rng
        size = rng.randint(2, max(2, self.samples // rng.choice([1, 2, 2, 3])))
        self.put("batch.global", size)
        if rng.random() < 0.85:
            self.put("batch.micro", rng.randint(1 if rng.random() < 0.1 else 2, max(2, size // rng.choice([1, 2, 4, 8]))))
        epoch = -(-self.samples // size)
        self.put(*rng.choice([("train.steps", rng.randint(2, 12)), ("train.epochs", 1 if epoch > 5 else rng.randint(1, 8 // epoch))]))

    def monitors(self):
        """By which values evaluations decide; these come often then, as a run is short."""
        rng, plateau = self.rng, self.job.get("schedule", {}).get("type") == "plateau"
        value = lambda: "valid." + rng.choice(["loss", "loss", *MONITORS_OF[self.kind]])
        if rng.random() < GIVEN:
            self.put("train.early_stop", {"patience": rng.randint(1, 3), "monitor": value(), "min_delta": rng.choice([0, 0, 0.01, 0.5]),
                                          "also": rng.choice(["none", value()])})
        if rng.random() < GIVEN:
            self.put("checkpoint.monitor", value())
        if plateau:
            self.job["schedule"].update({"monitor": value(), "patience": rng.randint(0, 2)})
        if plateau or "early_stop" in self.job["train"] or "checkpoint" in self.job:
            self.job["data"].setdefault("valid", 0.25)
            self.put("eval.every", rng.choice(["1 step", "2 steps", "1 epoch"]))

    # --- model ---------------------------------------------------------------------------------

    def model_type(self):
        every = [one["if"]["properties"]["type"]["enum"][0] for one in self.schema["properties"]["model"]["then"]["allOf"]]
        every = [kind for kind in every if kind not in LEFT_OUT]
        weights = [10 if kind == "sequential" else 0.15 if kind in RARE else 1 for kind in every]
        self.images |= (kind := self.rng.choices(every, weights)[0]) in RARE or kind == "cnn"
        return kind

    def model(self):
        kind = self.job["model"]["type"]
        if kind == "sequential":
            self.sequential()
        else:
            self.job["model"] = self.dice.variant("model", self.schema["properties"]["model"], kind, but=("outputs",))
            if "depth" in self.job["model"]:
                self.put("model.depth", self.rng.choice(DEPTHS[kind]))
            if "outputs" in self.job["model"] or self.rng.random() < 0.3:
                self.put("model.outputs", self.outputs)
            if kind == "mlp" and self.shape[0] >= 256:
                self.put("model.hidden", [self.rng.randint(257, 300), self.rng.randint(250, 300)])
            self.plan = self.ask()[0]

    def ask(self):
        """What `plan` says of the job: (its object, None), or (nothing, the message)."""
        result = dpt.run("plan", self.write(), "--json", "--no-time")
        return (json.loads(result.out), None) if result.code == 0 else ({}, result.err)

    def sequential(self):
        """Random layers; what dptrain says does not fit is taken out again, and joins are put between those that fit."""
        rng, wide = self.rng, self.shape[0] >= 256
        before = [self.dice.layer() for _ in range(rng.randint(1, 6))] if self.images else []
        before = [layer for layer in before if "dense" not in layer]  # takes flat vectors
        after = [self.dice.layer(wide) for _ in range(rng.randint(0, 5))]
        last = {"dense": {"outputs": rng.choice(["auto", self.outputs])}}
        self.layers = [*before, *([{"flatten": {}}] if self.images else []), *after, last]
        if self.settle() and rng.random() < 0.5:
            self.join()
            self.settle()
        self.shorten()

    def settle(self):
        for _ in range(16):
            for k, layer in enumerate(self.layers):
                next(iter(layer.values()))["name"] = f"l{k}" if "name" not in layer[next(iter(layer))] else layer[next(iter(layer))]["name"]
            self.put("model.layers", self.layers)
            self.plan, message = self.ask()
            at = re.search(r"model\.layers\[(\d+)\]", message or "")
            if at is None or int(at[1]) == len(self.layers) - 1:
                return bool(self.plan)
            (kind, options), = self.layers[int(at[1])].items()
            needed = {*self.dice.layer_kinds()[kind]["then"].get("required", []), "name", "from", "outputs"}
            if "layers" in options or options.keys() <= needed:
                del self.layers[int(at[1])]
            else:
                self.layers[int(at[1])] = {kind: {key: value for key, value in options.items() if key in needed}}
        return False

    def join(self):
        """Up to two of the kinds that read several layers, and some that read another than the one before them."""
        rng, shapes = self.rng, {layer["name"]: layer["output"] for layer in self.plan["layers"]}
        joins = [kind for kind, row in self.dice.layer_kinds().items() if "of" in row["then"]["properties"]]
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(1, len(self.layers)) if len(self.layers) > 1 else 0
            names = ["input", *(next(iter(layer.values()))["name"] for layer in self.layers[:at])]
            kind = rng.choice(joins)
            fits = [name for name in names[:-1] if shapes.get(name) == shapes.get(names[-1])
                    or kind == "concat" and shapes.get(name, "").partition("x")[2] == shapes.get(names[-1], "").partition("x")[2]]
            if not fits:
                continue
            other, name = rng.choice(fits), f"j{len(self.layers)}"
            if kind != "concat" and rng.random() < 0.3:
                self.layers[at][next(iter(self.layers[at]))]["from"] = other
                continue
            self.layers.insert(at, {kind: {**self.dice.layer_options(kind), "of": other if rng.random() < 0.5 else [other, names[-1]], "name": name}})
            shapes[name] = shapes.get(names[-1])

    def shorten(self):
        """Names that nobody reads, and tables without an option, are left out at times."""
        text = jobs.dump([{kind: {key: value for key, value in options.items() if key in ("of", "from")}}
                          for layer in self.layers for kind, options in layer.items()])
        for k, layer in enumerate(self.layers):
            (kind, options), = layer.items()
            if self.rng.random() < 0.3 and not re.search(rf"\b{options.get('name')}\b", text):
                options.pop("name", None)
            if not options and "must" not in self.dice.layer_kinds()[kind]["else"]:
                self.layers[k] = kind
        self.plan = self.ask()[0]

    def given(self):
        """Begins with the weights of another run, in one of the formats."""
        rng, donor = self.rng, f"{self.folder}/donor"
        result = dpt.run(self.write(), "--output", donor, "--quiet", "--set", "train.steps=1", "--set", f"seed={self.seed + 1}", "--set",
                         "device.threads=1")
        file = f"{donor}/{rng.choice(['checkpoints/latest', 'a.npz', 'a.safetensors'])}"
        if result.code == 0 and (file.endswith("latest") or dpt.run("export", donor, file).code == 0):
            self.put("init", {"from": file, **{key: rng.random() < 0.5 for key in ("by_order", "partial") if rng.random() < 0.3}})
            if rng.random() < 0.3:
                layer = rng.choice([layer["name"] for layer in self.plan["layers"] if layer["parameters"] > 0])
                self.put("init.map", [f"{layer}={layer}"])

    def patterns(self):
        """Frozen tensors and groups of them, by the names that the plan has."""
        rng = self.rng
        names = [layer["name"] for layer in self.plan["layers"] if layer["parameters"] > 0]
        forms = ["{}", "{}/*", "{}/weight", "{}/*s*"]
        before = jobs.load(jobs.dump(self.job))
        if rng.random() < 0.35 and len(names) > 1:
            self.put("train.freeze", [rng.choice(forms).format(name) for name in rng.sample(names, rng.randint(1, len(names) - 1))])
        optimizer = self.job.get("optimizer")
        if isinstance(optimizer, dict) and rng.random() < 0.3:
            every = {one["if"]["properties"]["type"]["enum"][0]: one["then"] for one in self.schema["properties"]["optimizer"]["then"]["allOf"]}
            row = every[optimizer["type"]]["properties"]["groups"]["items"]
            rates = {key: self.dice.real(key, row["properties"][key]) for key in ("lr", "lr_scale")}
            optimizer["groups"] = [{"match": rng.choice(forms).format(name), **self.dice.table(row, 0.6, ("match", "lr", "lr_scale")),
                                    **dict([rng.choice(list(rates.items()))])} for name in rng.sample(names, rng.randint(1, min(2, len(names))))]
        if self.job != before and (plan := self.ask()[0]):
            self.plan = plan
        elif self.job != before and rng.random() < 0.9:
            self.job = before

    # --- a run of it ---------------------------------------------------------------------------

    def draw_run(self, alone=False):
        """(ranks, words) of one run of the job: what divides the work, and rows that change no result."""
        rng, settings = self.rng, {}
        for path, row, effect in leaves(self.schema):
            if path not in HAND and path not in ALIKE and effect in ("none", "kept", "output") and rng.random() < 0.25:
                settings[path] = self.dice.value(path.split(".")[-1], row)
        if alone or rng.random() < 0.6:
            settings["log.every"] = "1 step"
        if alone or rng.random() < 0.4:
            settings["log.hashes"] = True
        if rng.random() < 0.3:
            settings["data.test"] = rng.choice(self.tests)
        if rng.random() < 0.2:
            settings["name"] = rng.choice(["a run", "1", "true", "x" * 40])
        if settings.get("comm.cuda_aware") == "on":
            del settings["comm.cuda_aware"]
        if settings.get("comm.transport") == "nccl" and self.gpus < 2:
            del settings["comm.transport"]
        settings["device.threads"] = 1 if alone else rng.choice([1, 1, 2, 3])
        ranks = 1 if alone else self.mesh(settings)
        return ranks, [word for path, value in settings.items() for word in ("--set", f"{path}={jobs.dump(value)}")]

    def draw_linked(self):
        """(ranks, words) of a run whose gradients are summed between GPUs, one per rank, in an order that is not the program's."""
        _, words = self.draw_run(alone=True)
        for path, value in (("comm.reduction", "allreduce"), ("log.hashes", "false"), ("log.trace", "false")):
            words += ["--set", f"{path}={value}"]
        return self.rng.randint(2, min(self.gpus, 5)), words

    def mesh(self, settings):
        rng, rows = self.rng, self.schema["properties"]["parallel"]["properties"]
        parts = [layer for layer in self.plan.get("layers", []) if layer["flop_forward"] > 0 and layer["parameters"] > 0]
        text = jobs.dump(self.job)
        whole = "statistics: batch" in text and rng.random() < 0.95
        wide = any(layer["parameters"] >= 65536 + 64 and "x" not in layer["output"] for layer in parts)
        tensor = rng.choice([1, 2, 2, 3]) if wide and not whole else 2 if rng.random() < 0.01 else 1
        if self.job["device"]["kind"] == "cuda":
            tensor = 1  # it is refused there
        stages = 1 if whole or len(parts) < 2 else rng.choice([1, rng.randint(2, min(4, len(parts)))])
        data = rng.randint(1 + (tensor * stages == 1 and rng.random() < 0.8), max(2, rng.choice([3, 4, 6]) // (tensor * stages)))
        ranks = tensor * stages * data
        if tensor > 1:
            settings["parallel.tensor"] = tensor
        if stages > 1 or rng.random() < 0.5:
            section = {"stages": stages, **{key: self.dice.value(key, row) for key, row in rows["pipeline"]["anyOf"][1]["properties"].items()
                                           if key not in ("stages", "cut") and rng.random() < 0.5}}
            if stages > 1 and rng.random() < 0.2:
                section["cut"] = [layer["name"] for layer in sorted(rng.sample(parts[1:], stages - 1), key=parts.index)]
            settings["parallel.pipeline"] = section if len(section) > 1 or rng.random() < 0.5 else stages
        shard = self.dice.value("shard", rows["shard"])
        settings["parallel.shard"] = "gradients" if whole and shard == "parameters" else shard
        if rng.random() < 0.1:
            settings["parallel.data"] = data
        return ranks
