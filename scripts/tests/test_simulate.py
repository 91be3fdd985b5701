"""The simulated clusters: the sums that the ranks compute there, and one row of the table."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
RUN = TOP / "scripts/simulate/run.sh"

needs_simgrid = pytest.mark.skipif(shutil.which("smpicc") is None,
                                   reason="SimGrid's smpicc is not installed (scripts/setup.sh --simulate)")


def run(*words, code=0):
    done = subprocess.run([RUN, *map(str, words)], cwd=TOP, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL, env=dict(os.environ))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A folder in which the first test that needs it builds, and the next ones find it built."""
    return tmp_path_factory.mktemp("simulate")


def test_help_names_every_option():
    said = run("--help")
    options = re.findall(r'add_argument\("(--[a-z-]+)"', (TOP / "scripts/simulate/simulate.py").read_text())
    assert len(options) > 5
    assert all(f"  {option}" in said for option in options)


def test_the_stored_tables_are_those_of_the_command():
    """The file beside the command has its marks, and a row for each rank count and fabric that the help promises."""
    text = (TOP / "scripts/simulate/README.md").read_text()
    tables = text.split("<!-- tables -->")[1].split("<!-- end of tables -->")[0]
    for ranks in (16, 64, 256):
        for gigabits in (10, 100):
            assert len(re.findall(rf"^\| {ranks} \| {gigabits} \|", tables, re.M)) >= 4


def test_the_stored_tables_are_of_the_stored_times():
    sys.path.insert(0, str(RUN.parent))
    import simulate
    tables = (RUN.parent / "README.md").read_text()
    for name, cost in json.loads((RUN.parent / "times.json").read_text()).items():
        model = simulate.MODELS[name]
        assert f"### {model['title']}\n\n{simulate.heading(model, cost, 1)}\n" in tables
        one = -(-model["strong"] // model["micro"]) * cost["micro_batch"] + cost["step"]
        assert f"| 1 | | {simulate.number(1e3 * one)} | {simulate.number(model['strong'] / one)} | 100 % |" in tables


@needs_simgrid
def test_a_stored_row_is_what_the_command_prints(build):
    """From the stored times it makes the very lines that are in the file."""
    tables = (RUN.parent / "README.md").read_text()
    said = run("--ranks", "16", "--times", RUN.parent / "times.json", "--models", "cnn", "--build", build)
    rows = re.findall(r"^\| 16 \|.*", said, re.M)
    assert len(set(rows)) == 4, said
    assert all(f"\n{row}\n" in tables for row in rows), said


@needs_simgrid
def test_sums_are_right(build):
    assert "the sums are right" in run("--check", "--build", build)


@needs_simgrid
def test_a_row_is_what_its_parts_say(build, tmp_path):
    """With times given nothing is measured, and the same call gives the same digits."""
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"cnn": {"parameters": 60362, "micro_batch": 2e-3, "step": 1e-4, "add": 1e-10}}))
    words = ("--ranks", "16", "--fabrics", "10", "--models", "cnn", "--times", times, "--build", build)
    said = run(*words)
    # The strong scaling comes first.
    strong = [cell.strip() for cell in re.search(r"^\| (16 \|.*) \|$", said, re.M).group(1).split("|")]
    # 512 micro-batches over 16 ranks; the reduction takes some latencies and the gradient twice over the link.
    computing = 32 * 2 + 0.1
    assert computing + 0.4 < float(strong[2]) < computing + 2
    assert computing + 0.4 < float(strong[6]) < computing + 2
    assert run(*words) == said  # also what stderr shows meanwhile


@needs_simgrid
def test_a_mesh_takes_what_its_bubble_says(build, tmp_path):
    """16 ranks without a network to speak of: stages of the same work wait while the pipeline fills and drains."""
    times = tmp_path / "times.json"
    times.write_text(json.dumps({"deep": {"parameters": 1000, "micro_batch": 0.8, "step": 0, "add": 0}}))
    said = run("--ranks", "16", "--fabrics", "100", "--models", "deep", "--times", times, "--build", build)
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\| 16 \|(.*)\|$", said, re.M)[:4]]  # also on stderr
    assert [row[1] for row in rows] == ["16 x 1", "8 x 2", "4 x 4", "2 x 8"]
    for row, stages in zip(rows, (1, 2, 4, 8)):
        batches = 256 * stages // 16
        want = 1e3 * (batches + stages - 1) * 0.8 / stages
        assert want <= float(row[2].replace(" ", "")) < 1.03 * want + 1, row
        assert row[7] == f"{100 * (stages - 1) / (batches + stages - 1):.0f} %"


@needs_simgrid
def test_what_does_not_exist_is_told(build):
    assert "there is no 40" in run("--fabrics", "40", "--build", build, code=2)
