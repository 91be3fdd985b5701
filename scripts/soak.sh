#!/usr/bin/env bash
# Interrupts one short job hundreds of times, by signals, kill -9, stopped and failing ranks, damaged checkpoints, and lets it go on: each time
# its last checkpoint must have the bytes of an undisturbed run. A line for each class: tried, survived, lost. Takes some minutes.
#
#   scripts/soak.sh [--interruptions N] [--seed S]
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
--help | -h)
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
    ;;
esac
./scripts/setup.sh --build
make -s -j"$(nproc)"
exec python3 scripts/lib/soak.py "$@"
