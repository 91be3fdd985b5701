#!/usr/bin/env bash
# What checkpoints cost, with an MLP of 25 million parameters and Adam: a save beside `dd conv=fsync` of as many bytes into the same
# folder, and what training loses by saving in the background and by waiting for it. Prints Markdown tables of medians and ranges.
#
#   scripts/bench-checkpoint.sh [--rounds N] [--ranks N] [--folder DIR]
#
#   --rounds N     rounds of one run each without saving, in the background and waiting, and of dd, in turn (5)
#   --ranks N      MPI ranks (1)
#   --folder DIR   where to write, so which disk (build/bench)
#
# Nothing is judged here: machines differ, and have slow spells; look at the ranges.
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/lib/usage.sh"
cd "$(dirname "$0")/.."
if [ -z "${DPTRAIN:-}" ]; then
    ./scripts/setup.sh --build
    make -s -j"$(nproc)"
fi
exec python3 scripts/lib/bench_checkpoint.py "$@"
