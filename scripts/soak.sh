#!/usr/bin/env bash
# Interrupts one short job hundreds of times, by signals, kill -9, stopped and failing ranks, damaged checkpoints, and lets it resume: each time
# its last checkpoint must have the bytes of an undisturbed run. A line for each class: tried, survived, lost. Takes some minutes.
#
#   scripts/soak.sh [--interruptions N] [--seed S]
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/lib/usage.sh"
cd "$(dirname "$0")/.."
./scripts/setup.sh --build
make -s -j"$(nproc)"
exec python3 scripts/lib/soak.py "$@"
