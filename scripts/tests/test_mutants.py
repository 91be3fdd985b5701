"""scripts/mutants.sh, on a small tree of the same shape: one mutant that its test notices, one that none can, one that does not compile."""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
TOY = """
int dpt_toy_less(int a, int b)
{
    return a < b ? a : b;
}

int dpt_toy_sum(int a, int b)
{
    return a + b;
}

static void keep(int *kept, int a)
{
    *kept = a;
}

int dpt_toy_kept(int a)
{
    int kept = a;

    keep(&kept, a);
    return kept;
}
"""
TEST = """
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

int dpt_toy_less(int a, int b);
int dpt_toy_sum(int a, int b);
int dpt_toy_kept(int a);

static void all(void **state)
{
    (void)state;
    assert_int_equal(dpt_toy_sum(2, 3), 5);
    assert_int_equal(dpt_toy_less(1, 2), 1);
    assert_int_equal(dpt_toy_less(2, 1), 1);
    assert_int_equal(dpt_toy_kept(7), 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
"""


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    for folder in ("core/base/tests", "cmd", "scripts"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(TOP / "Makefile", tree)
    for name in ("mutants.sh", "test.sh", "setup.sh", "check-deps.sh", "packages.txt"):
        shutil.copy(TOP / "scripts" / name, tree / "scripts")
    shutil.copytree(TOP / "scripts/lib", tree / "scripts/lib")
    shutil.copy(TOP / "core/base/tests/only.c", tree / "core/base/tests")
    (tree / "core/base/toy.c").write_text(TOY)
    (tree / "core/base/tests/test_toy.c").write_text(TEST)
    (tree / "cmd/main.c").write_text("int main(void)\n{\n    return 0;\n}\n")
    (tmp_path / "tmp").mkdir()
    return tree


def start(tree, *words):
    kept = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "BUILD")}
    return subprocess.Popen([tree / "scripts/mutants.sh", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env={**kept, "CUDA": "0", "TMPDIR": str(tree.parent / "tmp")}, start_new_session=True)


def test_what_is_noticed_and_what_is_not(tree):
    said, errors = start(tree, "core/base", "--n", "9").communicate(timeout=300)
    assert "2 mutants of core/base, seed 1: 1 killed, 1 survived; 1 did not compile" in said, said + errors
    assert "killed    core/base/toy.c:9  return a + b;  ->  return a - b;  by core/base/tests/test_toy.c" in said
    assert "\ncore/base/toy.c:4\n- return a < b ? a : b;\n+ return a <= b ? a : b;\n" in said
    assert (tree / "core/base/toy.c").read_text() == TOY and not (tree / "build").exists()
    assert not list((tree.parent / "tmp").iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_leaves_nothing(tree, number):
    with start(tree, "core/base") as process:
        while "building a copy" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
    assert "0 mutants of core/base" in said and not list((tree.parent / "tmp").iterdir()), said


def test_a_module_without_tests_is_told(tree):
    with start(tree, "cmd") as process:
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and "--tests says which" in errors, errors
