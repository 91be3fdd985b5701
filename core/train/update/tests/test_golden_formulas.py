"""Golden rows that need no PyTorch: the files hold what the formulas give, and a row that is not there is added."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TOP = Path(__file__).parents[4]
FILES = {"core/backend/tests/golden_layers.h": r'    \{\n        \.name = "silu, by formula",\n(?:        .*\n)+    \},\n',
         "core/backend/tests/golden_loss.h": r'    \{\n        \.name = "mse, by formula",\n(?:        .*\n)+    \},\n',
         "core/train/update/tests/golden_schedules.h": r'    \{"\{type: cosine, final: 0.3\}", 11,\n.*\n',
         "core/train/update/tests/golden_optimizers.h": r'    \{"\{type: lion\}", \{\n(?:        .*\n)+    \}\},\n'}


@pytest.fixture
def tree(tmp_path):
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TOP / name, tmp_path / name)
    return tmp_path


def parted(text):
    """The text without its numbers, and these."""
    number = r"-?\b\d+(?:\.\d+)?(?:e-?\d+)?"
    return re.sub(number, "#", text), np.array(re.findall(number, text), "f8")


@pytest.mark.parametrize("lost", [False, True])
def test_rows_are_what_formulas_give(tree, lost):
    before = {}
    for name, row in FILES.items():
        text = (tree / name).read_text()
        assert len(re.findall(row, text)) == 1, name
        before[name] = "".join(sorted(text.splitlines(True))) if lost else text
        if lost:
            (tree / name).write_text(re.sub(row, "", text))
    subprocess.run([sys.executable, TOP / "core/train/update/tests/golden_formulas.py", tree], check=True, timeout=100)
    for name in FILES:
        text = (tree / name).read_text()
        (words, numbers), (wanted, values) = parted("".join(sorted(text.splitlines(True))) if lost else text), parted(before[name])
        assert words == wanted, name
        np.testing.assert_allclose(numbers, values, rtol=1e-6, atol=1e-9, err_msg=name)
