"""Random whole jobs against one rank's bytes (random_jobs.py), and that no row of the tables of options is left out of them."""
import copy
import os
import random
import re
import sys

import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests"]
import dpt  # noqa: E402
import draw_jobs  # noqa: E402
import random_jobs  # noqa: E402
from draw_jobs import Dice, Undrawable, leaves  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY") == "1"
SEED = int(os.environ.get("DPT_RANDOM_SEED", "1"))
SECONDS = float(os.environ.get("DPT_RANDOM_SECONDS", "3600" if HEAVY else "60"))


@pytest.fixture(scope="module")
def schema():
    return random_jobs.schema()


def variants(row):
    return {one["if"]["properties"]["type"]["enum"][0]: one["then"] for one in row["then"]["allOf"]}


def test_the_bytes_are_those_of_one_rank(tmp_path):
    said = []
    runner = random_jobs.Runner(tmp_path, said.append)
    random_jobs.go(runner, SEED, seconds=SECONDS)
    print(runner.report())
    assert runner.counts["different"] == 0, "\n".join(said) + runner.report()
    assert not runner.draws_badly(), f"{runner.report()}: {runner.refusals}"
    assert runner.counts["compared"] > 0, runner.report()


FAKE = os.path.join(os.path.dirname(dpt.BINARY), "tests", "fakegpu")


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libnccl.so.2")), reason="built without CUDA, or without its tests (make check-units)")
def test_links_between_gpus(tmp_path, monkeypatch):
    """Over the stand-in NCCL, which sums in an order of its own."""
    for name in ("CUDA_HOME", "CUDNN_ROOT", "DPTRAIN_CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, text in {"LD_LIBRARY_PATH": FAKE, "FAKEGPU_DEVICES": "4", "FAKEGPU_MODEL": "Fake", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "FAKENCCL_VERSION": "22803",
                       "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, text)
    said = []
    runner = random_jobs.Runner(tmp_path, said.append, device="cuda")
    seed = random_jobs.go(runner, SEED, seconds=SECONDS / 3)
    while runner.counts["linked"] <= runner.counts["other plans"] and seed < SEED + 20:  # on a slow machine
        seed = random_jobs.go(runner, seed, count=1)
    print(runner.report())
    assert runner.gpus == 4 and runner.counts["different"] == 0, "\n".join(said) + runner.report()
    assert runner.counts["linked"] > runner.counts["other plans"], runner.report()


def test_a_difference_is_told(tmp_path, monkeypatch):
    """A bit that flips in a gradient of rank 0 on meshes: with the seed, the job and the commands that show it again."""
    train = random_jobs.train

    def faulty(path, folder, ranks, words):
        alone = folder.endswith("one")
        monkeypatch.setenv("DPTRAIN_FAULT", "flip-gradient:rank=0:step=1:word=0") if not alone else monkeypatch.delenv("DPTRAIN_FAULT", False)
        return train(path, folder, ranks, words)
    monkeypatch.setattr(random_jobs, "train", faulty)
    said = []
    runner = random_jobs.Runner(tmp_path, said.append, tries=6)
    runner.run(3)
    text = "\n".join(said)
    assert runner.counts["different"] == 1 and "DIFFERENCE at seed 3" in text and "--seed 3 --count 1" in text, text
    assert re.search(r"that run: mpirun -np \d \S+ \S+job.yaml ", text) and "smaller: " in text, text


# --- what is drawn --------------------------------------------------------------------------------

def draw_all(schema, times=300):
    """path -> the values that the rows which nothing draws by hand get."""
    dice = Dice(schema, random.Random(1))
    return {path: [dice.value(path.split(".")[-1], row) for _ in range(times)] for path, row, _ in leaves(schema) if path not in draw_jobs.HAND}


def test_every_row_is_drawn(schema):
    """A row is drawn by its type, or by hand; and of each choice every word."""
    rows = {path: row for path, row, _ in leaves(schema)}
    for path, values in draw_all(schema).items():
        if "enum" in rows[path]:
            assert {word for word in rows[path]["enum"] if word is not None} == set(values), path
        elif "allOf" in rows[path].get("then", {}):
            assert variants(rows[path]).keys() == {value["type"] for value in values}, path
        elif rows[path].get("type") != "string":
            assert len({str(value) for value in values}) > 1, path
    known = {path for path, _, _ in leaves(schema)}
    assert draw_jobs.HAND.keys() | draw_jobs.ALIKE.keys() <= known, "rows that there are no more"
    for path, _, effect in leaves(schema):
        assert effect in ("result", "length", "kept", "none", "output") or path in draw_jobs.ROWS, f"{path}: no x-effect"


def test_rows_drawn_by_hand_are_all_known(schema):
    for path, names in draw_jobs.ROWS.items():
        row = schema
        for key in path.split("."):
            row = row["properties"][key]
        assert names == row["properties"].keys(), f"{path}: rows that draw_jobs.py does not draw, or that there are no more"


def test_every_layer_model_and_loss_is_drawn(schema):
    dice = Dice(schema, random.Random(1))
    kinds = dice.layer_kinds()
    found = {next(iter(dice.layer())) for _ in range(2000)} | {kind for kind, row in kinds.items() if "of" in row["then"]["properties"]}
    assert found == kinds.keys()
    for kind in kinds:
        given = {key for _ in range(100) for key in dice.layer_options(kind)}
        assert kinds[kind]["then"]["properties"].keys() <= given | {"name", "from", "of"}, kind
    for kind in variants(schema["properties"]["model"]):
        if kind != "sequential":
            for _ in range(50):
                dice.variant("model", schema["properties"]["model"], kind, but=("outputs",))
    assert variants(schema["properties"]["loss"]).keys() == draw_jobs.DATA_OF.keys(), "DATA_OF is to say which data a loss takes"
    for optimizer in variants(schema["properties"]["optimizer"]).values():
        dice.table(optimizer["properties"]["groups"]["items"], 1, ("match",))


def test_a_new_row_is_drawn_or_missed(schema):
    """Of a type that says what may stand there without another word; else its name is told."""
    new = copy.deepcopy(schema)
    train = new["properties"]["train"]["properties"]
    train["mode"] = {"x-effect": "result", "enum": ["slow", "quick", None], "default": "slow"}
    train["share"] = {"x-effect": "result", "type": ["number", "null"], "minimum": 0, "maximum": 1, "default": 0.25}
    assert set(draw_all(new)["train.mode"]) == {"slow", "quick"} and len(set(draw_all(new)["train.share"])) > 100
    for row in ({"type": ["string", "number", "boolean", "null"]}, {"type": ["number", "null"]}, {"type": ["array", "null"], "items": {"type": "string"}}):
        train["text"] = row
        with pytest.raises(Undrawable, match="text"):
            draw_all(new, 20)
