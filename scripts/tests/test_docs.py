"""Every command in the documentation is run, or named here with the test that runs it; every link leads somewhere."""
import datetime
import json
import math
import os
import random
import re
import shlex
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "scripts/lib"), str(TOP / "core/train/tests")]
import dpt  # noqa: E402
import formats  # noqa: E402

PAGES = sorted(p for p in TOP.rglob("*.md") if not {"build", "runs", ".git", ".pytest_cache"} & set(p.relative_to(TOP).parts[:-1]))
PROGRAM = r"(?:build/)?dptrain|mpirun|srun|sbatch|make|module|source|\.|\./scripts/\S+|scripts/\S+\.sh|build/\S+"

# What is not run here: a pattern of the command, and the file that runs it with a word of that file. Or why nobody can.
ELSEWHERE = [
    (r"mpirun -np 8 dptrain job.yaml|mpirun dptrain job.yaml", "scripts/tests/test_slurm.py", "mpirun dptrain"),
    (r"srun .*|sbatch .*|dptrain --ranks N", "scripts/tests/test_slurm.py", "srun --overlap"),
    (r"\./scripts/setup\.sh", "scripts/test.sh", "./scripts/setup.sh --test"),
    (r"\./scripts/test\.sh.*|scripts/test\.sh.*", ".ci/run", "./scripts/test.sh"),
    (r"\./scripts/demo\.sh.*", "scripts/tests/test_docs.py", "def test_demo"),
    (r"scripts/fuzz\.sh.*", "scripts/tests/test_fuzz.py", "fuzz.sh"),
    (r"scripts/mutants\.sh.*", "scripts/tests/test_mutants.py", "mutants.sh"),
    (r"scripts/simulate/run\.sh.*", "scripts/tests/test_simulate.py", "run.sh"),
    (r"scripts/gpu-check\.sh .*", "scripts/tests/test_gpu_check.py", "--pack"),
    (r"make install.*", "scripts/tests/test_tree.py", '"install"'),
    (r"make SANITIZE=1", "scripts/test.sh", "SANITIZE=1"),
    (r"make -j8 HDF5_ROOT=.*", "scripts/tests/test_tree.py", "HDF5_ROOT"),
    (r"make style", "scripts/lib/run-test.sh", "make -s style"),
    (r"make (format|lint)", None, "one changes the tree, the other takes minutes"),
    (r"make help", "scripts/tests/test_tree.py", '"help"'),
    (r"make( -j\d*)?( WERROR=1)?", "scripts/test.sh", "make WERROR=1 -k"),
    (r"make (dist|bundle|deb)\b.*", "scripts/tests/test_packaging.py", "bundle"),
    (r"build/dist/\S+/bin/.*", "scripts/tests/test_packaging.py", "bundle"),
    (r"module load .*", None, "modules are the cluster's"),
    (r"build/\S+/?", None, "a path"),
]

# Words that stand for a person's own files, and what the sandbox has in their place.
OWN = {
    "IMAGES.gz": "data/mnist/t10k-images-idx3-ubyte.gz",
    "LABELS.gz": "data/mnist/t10k-labels-idx1-ubyte.gz",
    "RUN RUN": "runs/hashed runs/hashed",
    "RUN2": "runs/try",
    "RUN": "runs/mnist-mlp",
    "PATTERN": "nothing",
    "COMMAND": "eval",
    "KEY": "optimizer",
}


def commands(page):
    """(line number, command): lines of code blocks and code in the text, as far as they call programs with arguments."""
    found = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        block = re.match(r"(?: {4}|\$ )(\S.*)$", line)
        if block and re.match(rf"(?:{PROGRAM})(?: |$)", block[1]) and "dptrain 0." not in line:
            # A remark stands after two spaces or more, or a #.
            found.append((number, re.split(r"\s{2,}|\s#\s", block[1])[0]))
        elif not block:
            found += [(number, code) for code in re.findall(r"`([^`]+)`", line) if re.match(rf"(?:{PROGRAM}) \S", code)]
    return found


def all_commands():
    """(page, line number, command), each command once, where it stands first; test_tutorial runs its own page."""
    first = {}
    for page in PAGES:
        for number, command in commands(page) if page.name != "TUTORIAL.md" else []:
            first.setdefault(command, (page.relative_to(TOP).as_posix(), number, command))
    return list(first.values())


def elsewhere(command):
    for pattern, path, word in ELSEWHERE:
        if re.fullmatch(pattern, command):
            return path, word
    return None


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A tree as a person has it after `make`, with shortened training."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("configs", "scripts"):
        (folder / name).symlink_to(TOP / name)
    mnist = folder / "data/mnist"
    mnist.mkdir(parents=True)
    for path in (TOP / "data/mnist").glob("*.gz"):
        (mnist / path.name).symlink_to(path)
    (folder / "data/flowers.csv").symlink_to(TOP / "data/flowers.csv")
    (folder / "build").mkdir()
    program = folder / "build/dptrain"
    # Only what trains gets another number of epochs, and what times its steps one of these, and no command line that says it itself.
    program.write_text(f"""#!/bin/sh
case "$1" in
*.yaml) case "$*" in *train.epochs*) ;; *) set -- "$@" --set train.epochs=1 ;; esac ;;
bench) case "$*" in *--steps*) ;; *) set -- "$@" --steps 5 ;; esac ;;
esac
exec {shlex.quote(dpt.BINARY)} "$@"
""")
    program.chmod(0o755)
    for page in PAGES:  # jobs that a page shows with their names
        for job, name in re.findall(r"```yaml\n(# ([\w-]+\.yaml)\n.*?)```", page.read_text(), re.S):
            (folder / name).write_text(job)
    here = Sandbox(folder)
    for part in ("train", "test"):  # the small part of the data for both
        here.run("build/dptrain convert idx data/mnist/t10k-images-idx3-ubyte.gz data/mnist/t10k-labels-idx1-ubyte.gz "
                 f"--output data/mnist/{part} --quiet")
    here.run("build/dptrain configs/mnist-cnn.yaml --quiet --set train.steps=20 --set train.epochs=null")
    here.run("build/dptrain configs/smoke.yaml --quiet --set log.hashes=true --output runs/hashed")
    return here


class Sandbox:
    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, **dpt.MPI_ENVIRONMENT, "PATH": f"{folder}/build:{os.environ['PATH']}", "HOME": str(folder)}

    def run(self, command):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
        if done.returncode == 78 and "built without 'cuda'" in done.stdout:
            pytest.skip("this build has no CUDA")
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


@pytest.mark.parametrize("page, number, command", all_commands())
def test_command(sandbox, page, number, command):
    """In the order of the pages, since some make what others look at."""
    if re.fullmatch(r"dptrain \w+", command):
        command += " --help"  # the text speaks of the subcommand
    found = elsewhere(command)
    if found:
        path, word = found
        assert path is None or word in (TOP / path).read_text(), f"{page}:{number}: {path} does not run {command} any more"
        return
    for own, ours in OWN.items():
        command = re.sub(rf"\b{re.escape(own)}(?!\S)", ours, command)
    assert not re.search(r"…|\.\.\.|\[", command), f"{page}:{number}: {command}: neither a command nor named in ELSEWHERE"
    sandbox.run(command)


def make_flowers(folder):
    """The table that is there, and three new flowers without their kind."""
    lines = (TOP / "data/flowers.csv").read_text().splitlines()
    (folder / "flowers.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in lines[:4]))


def make_houses(folder):
    """Prices that are linear in area, rooms and town, but for 5 000 of noise."""
    draw = random.Random(4)
    rows = [(draw.randint(40, 200), draw.randint(1, 6), draw.choice(["Ashford", "Bywater"])) for _ in range(400)]
    priced = [f"{a},{r},{t},{1500 * a + 8000 * r + 60000 * (t == 'Bywater') + draw.gauss(0, 5000):.0f}" for a, r, t in rows]
    (folder / "houses.csv").write_text("\n".join(["area,rooms,town,price", *priced]) + "\n")
    (folder / "new-houses.csv").write_text("area,rooms,town\n100,3,Ashford\n100,3,Bywater\n")


def make_rides(folder):
    """Ten stations at random hours of a year, busier on mornings of warm working days; each tenth temperature is missing."""
    draw = random.Random(5)
    rows = []
    for _ in range(1000):
        hour = datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=draw.randrange(8784))
        warm = 10 - 10 * math.cos(2 * math.pi * hour.timetuple().tm_yday / 366) + draw.gauss(0, 3)
        riders = draw.gauss(200 + 20 * warm + 150 * (6 < hour.hour < 10) * (hour.weekday() < 5), 30)
        rows.append([draw.choice(["Harbour", "Market", "Park", "School", "Tower", "Mill", "Bridge", "Church", "Station", "Stadium"]), f"{hour:%Y-%m-%d %H:%M}",
                     "" if draw.random() < 0.1 else f"{warm:.1f}", str(draw.randrange(10, 61)), str(max(0, round(riders)))])
    head = ["station", "hour", "temperature", "minutes", "riders"]
    (folder / "rides.csv").write_text("".join(",".join(row) + "\n" for row in [head, *rows]))
    (folder / "new-rides.csv").write_text("".join(f"{row[2]},{row[1]},{row[0]}\n" for row in [head, *rows[:5]]))


def make_patients(folder):
    """Three numbers each; one in twenty is ill, and has larger ones."""
    draw = random.Random(6)
    rows = []
    for _ in range(2400):
        ill = draw.random() < 0.05
        numbers = (f"{draw.gauss(45 + 8 * ill, 12):.0f}", f"{draw.gauss(70 + 9 * ill, 10):.0f}", f"{draw.gauss(5 + 1.3 * ill, 0.8):.1f}")
        rows.append([*numbers, "ill" if ill else "healthy"])
    for name, of, columns in (("patients.csv", rows[:2000], 4), ("new-patients.csv", rows[2000:], 3)):
        (folder / name).write_text("".join(",".join(row[:columns]) + "\n" for row in [["age", "pulse", "sugar", "state"], *of]))


def write_png(path, size, colour, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, colour, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts))


def make_shapes(folder):
    """Circles and squares of random sizes and places, dark on light, as grey PNG files."""
    draw = random.Random(2)
    labels = []

    def inside(shape, x, y, r):
        return x * x + y * y < r * r if shape == "circle" else max(abs(x), abs(y)) < 0.9 * r

    for part, count in (("train", 150), ("test", 20)):
        for shape in ("circle", "square"):
            for i in range(1, count + 1):
                size = draw.choice((24, 32))
                r = draw.uniform(0.25, 0.4) * size
                at = [draw.uniform(r, size - r) for _ in range(2)]
                rows = b"".join(b"\0" + bytes(40 if inside(shape, x - at[0], y - at[1], r) else 220 for x in range(size))
                                for y in range(size))
                write_png(folder / "shapes" / part / shape / f"{i:04}.png", size, 0, rows)
                labels.append(f"{shape}/{i:04}.png,{shape},{r / size:.3f}")
    (folder / "shapes.csv").write_text("\n".join(["file,shape,size", *labels[:300]]) + "\n")


def make_photos(folder, page):
    """The page's job, some images in colour, and a file with the names and shapes of torchvision's resnet18."""
    draw = np.random.default_rng(3)
    for i in range(10):
        rows = b"".join(b"\0" + draw.integers(0, 256, 3 * 40, np.uint8).tobytes() for _ in range(40))
        write_png(folder / "photos" / ("cat", "dog")[i % 2] / f"{i // 2 + 1:04}.png", 40, 2, rows)
    (folder / "photos.yaml").write_text(re.search(r"```yaml\n(# photos.yaml.*?)```", page, re.S)[1])
    known = json.loads((TOP / "core/train/tests/golden_resnet18.json").read_text())["tensors"]
    shapes = {name: row["shape"] for name, row in known.items()} | {"fc.weight": [1000, 512], "fc.bias": [1000]}
    formats.write_safetensors(folder / "resnet18.safetensors", {name: np.full(shape, 0.01, "f4") for name, shape in shapes.items()})


def test_tutorial(sandbox, tmp_path):
    """All of it, in its order, in an empty folder with a person's own files."""
    make_flowers(tmp_path)
    make_houses(tmp_path)
    make_rides(tmp_path)
    make_patients(tmp_path)
    make_shapes(tmp_path)
    page = (TOP / "cmd/TUTORIAL.md").read_text()
    make_photos(tmp_path, page)
    here = Sandbox(tmp_path)
    here.env["PATH"] = sandbox.env["PATH"]
    said = {}
    for block in re.findall(r"```sh\n(.*?)```", page, re.S):
        for command in block.splitlines():
            # Half of what init proposes is plenty here.
            short = " --set train.epochs=30" if re.match(r"dptrain \w+\.yaml", command) else ""
            said[command] = here.run(command + short)
    for inline in re.findall(r"`(dptrain (?:bench|shapes)[^`]*)`", page):
        here.run(inline + (" --set train.steps=5 --set train.epochs=null --output runs/more" if "init-from" in inline else ""))
    assert "are randomly initialised, not loaded from resnet18.safetensors:\n  fc.weight [2, 512]: [1000, 512] in the file\n  fc.bias [2]: [1000] in the file" \
        in next(text for command, text in said.items() if "train.freeze" in command)
    right = [float(x) for command, text in said.items() if re.search("flowers|shapes", command) for x in re.findall(r"test accuracy ([\d.]+)", text)]
    assert len(right) >= 3 and min(right) > 0.9, said
    plain, weighted = (said[f"dptrain eval patients.yaml --checkpoint runs/{run} --classes"] for run in ("patients", "weighted"))
    assert "classes are imbalanced" in plain and plain.split()[-3] < "0.4" < "0.6" < weighted.split()[-3], plain + weighted
    threshold = re.search(r"--threshold ill=[\d.]+ gives recall ([\d.]+)", said["dptrain eval patients.yaml --checkpoint runs/patients --split valid --recall 0.75"])
    assert float(threshold[1]) >= 0.75
    decided = said[next(command for command in said if "new-patients.csv" in command)].splitlines()
    assert "sample,class,probability,probability_healthy,probability_ill" in decided and 20 < sum(",ill," in line for line in decided) < 120
    prices = [float(line.split(",")[-1]) for line in said["dptrain predict houses.yaml --checkpoint runs/houses new-houses.csv"].splitlines()[-2:]]
    assert prices == pytest.approx([174000, 234000], rel=0.1), prices
    rides = [float(line.split(",")[-1]) for line in said["dptrain predict rides.yaml --checkpoint runs/rides new-rides.csv"].splitlines()[-5:]]
    true = [float(line.split(",")[-1]) for line in (tmp_path / "rides.csv").read_text().splitlines()[1:6]]
    assert rides == pytest.approx(true, abs=120), (rides, true)
    assert "each of its 10 groups is in one part" in next(text for command, text in said.items() if "--group station" in command)
    answers = said["dptrain predict shapes.yaml --checkpoint runs/shapes shapes/test/circle/0001.png shapes/test/square/0001.png"]
    assert re.search(r"circle/0001\.png.*circle", answers) and re.search(r"square/0001\.png.*square", answers), answers
    answers = said["dptrain predict photos.yaml --checkpoint runs/photos photos/cat/0001.png photos/dog/0001.png"]
    assert "photos/dog/0001.png," in answers and "cat" in said["dptrain eval photos.yaml --checkpoint runs/photos --classes"]
    for name in ("flowers.html", "shapes.html", "flowers-predicted.csv", "sixteen.h5", "flowers.onnx", "shapes.safetensors",
                 "back.safetensors"):
        assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(TOP).as_posix())
def test_links(page):
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert re.match(r"https?://", link) or (page.parent / link).exists(), f"{page.relative_to(TOP)}: {link} leads nowhere"
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        heads = re.findall(r"^#+ (.*)$", (page.parent / link if link else page).read_text(), re.M)
        assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads], f"{page.relative_to(TOP)}: {link}#{anchor}"


def test_the_first_page_is_short():
    assert len((TOP / "README.md").read_text().splitlines()) <= 200


def test_what_tables_know_is_told_as_they_know_it():
    """The first page's exit codes and names, and a line for each subcommand on that of the command line."""
    page, helped = (TOP / "README.md").read_text(), dpt.run("--help").out
    codes = re.findall(r"^  (\d+) ", helped.split("exit codes:\n")[1], re.M)
    assert re.findall(r"^\| (\d+) \|", page, re.M) == codes
    for row, group in (("models", "model"), ("layers", "layers")):
        listed = set(re.findall(r"^  (\w+)  ", dpt.run("layers", group).out, re.M))
        named = set(re.findall(r"`(\w+)`", re.search(rf"^\| {row} \|(.*)$", page, re.M)[1]))
        assert len(named) > 5 and named <= listed, named - listed
        assert row == "layers" or listed - named == {"sequential"}, listed - named
    commands = [line.split()[0] for line in helped.split("commands:\n")[1].split("\n\n")[0].splitlines()]
    shown = (TOP / "cmd/README.md").read_text()
    assert not [name for name in commands if not re.search(rf"dptrain {name}\b", shown)]


def test_losses_are_listed():
    every = sum((dpt.losses(kind) for kind in ("CLASSES", "NUMBERS", "COUNTS", "LABELS")), [])
    assert {"loss", *every} == set(re.findall(r"^  (\w+)  ", dpt.run("layers", "loss").out, re.M))


def test_contributing_names_what_is_there():
    """Each file and folder of its lists, but for names that stand for a new one."""
    text = (TOP / ".github/CONTRIBUTING.md").read_text().split("\n## ", 1)[1]
    named = [name for name in re.findall(r"`([^`\s]+/[^`\s]*)`", text) if "NAME" not in name]
    assert len(named) > 30 and not [name for name in named if not (TOP / name).exists()]


def test_rooms_have_pages():
    for room in ("cmd", "core", "core/base", "core/conf", "core/comm", "core/backend", "core/trace", "core/state", "core/interchange", "core/train", "core/plan", "models", "data",
                 "configs", "scripts", "scripts/bench", "scripts/slurm", "scripts/simulate"):
        assert (TOP / room / "README.md").exists(), f"{room} has no page that says what lives there"


@pytest.mark.skipif(os.environ.get("DPT_HEAVY") != "1", reason="trains to the end: DPT_HEAVY=1 runs it")
def test_demo(tmp_path):
    """What the README shows is what comes, but for the numbers."""
    shown = re.search(r"<!-- demo-output -->\n(.*?)<!-- /demo-output -->", (TOP / "README.md").read_text(), re.S)[1]
    done = subprocess.run([TOP / "scripts/demo.sh"], cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=900)
    assert done.returncode == 0, done.stdout
    plain = [re.sub(r"[\d .:]+", "#", line.strip()) for line in done.stdout.splitlines()]
    for line in shown.splitlines():
        line = re.sub(r"[\d .:]+", "#", line.strip())
        if "..." not in line and "ranks" not in line and "device" not in line:
            assert line in plain, line
