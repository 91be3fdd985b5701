#!/usr/bin/env bash
# Which small changes of the code no test notices. Lines of a module's C sources are drawn, without its tests and CUDA; each is changed a little (a
# bound by one, < to <=, + to -, && to ||, a condition negated, a statement left out, fmin to fmax, a constant), built and given to the module's tests.
# A line for each such mutant says which test noticed it; a table at the end shows those that survived, for a person to read: some change nothing.
#
#   scripts/mutants.sh [MODULE] [--n N] [--seed S] [--tests PATTERN] [--limit SECONDS]
#
#   MODULE           a folder with sources, as core/base, data or cmd/init; all of them, if it is left out
#   --n N            how many mutants (20). Those that do not compile without a warning are drawn again
#   --seed S         which lines are drawn (1)
#   --tests PATTERN  the tests that scripts/test.sh PATTERN --list lists, instead of those below MODULE; cmd/init has none of its own: 'tests/test_init'
#   --limit SECONDS  files of tests that take longer are left out (60); a mutant that makes one take four times its usual time is noticed
#
# It works on a copy of the tree in a temporary folder, with the objects that are built; the tree itself is not touched.
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/lib/usage.sh"
cd "$(dirname "$0")/.."
./scripts/setup.sh --test
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh
export DPT_PYTHON=python3
python3 -c 'import pytest, h5py, numpy' 2>/dev/null || DPT_PYTHON=/usr/bin/python3
exec python3 scripts/lib/mutants.py "$@"
