"""Each fuzzer, for some seconds, from its corpus; scripts/fuzz.sh SECONDS runs them longer."""
import os
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SCRIPT = TOP / "scripts/fuzz.sh"
SECONDS = "60" if os.environ.get("DPT_HEAVY") == "1" else "1"


def fuzz(*words, timeout=60):
    return subprocess.run([SCRIPT, *words], cwd=TOP, capture_output=True, text=True, timeout=timeout)


def names():
    return fuzz("--list").stdout.split()


def test_every_fuzzer_has_a_small_corpus():
    assert set(names()) == {"job", "checkpoint", "shard", "convert", "picture", "weights"}
    total = 0
    for name in names():
        corpora = [p for p in TOP.glob(f"**/tests/corpus/{name}") if p.is_dir() and "build" not in p.parts]
        assert len(corpora) == 1, name
        files = list(corpora[0].iterdir())
        assert len(files) > 10 and all(p.stat().st_size < 4096 for p in files)
        total += sum(p.stat().st_size for p in files)
    assert total < 300_000


@pytest.mark.parametrize("name", names())
def test_nothing_breaks_it(name):
    done = fuzz(SECONDS, name, timeout=600)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"ok      {name}")
