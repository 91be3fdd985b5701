#!/usr/bin/env bash
# Predicts how training scales on clusters that are not there: the messages of dptrain's own sources, simulated by SimGrid.
#
#   scripts/simulate/run.sh [--ranks '16 64 256'] [--fabrics '10 100'] [--models 'mlp cnn deep'] [--per-node N] [--speed X]
#                           [--times FILE] [--build DIR] [--write] [--check]
#
#   --ranks LIST     how many ranks; what is no power of two takes long, and is left out of weak scaling
#   --fabrics LIST   Gb/s of a node's link: 10 | 100
#   --models LIST    mlp (784-4608-4608-10, 25 million parameters) | cnn (3x32x32, conv 32, conv 64, dense 10) |
#                    deep (784-8x1792-10, 24 million, in 1 to 8 stages) | resnet50 (3x224x224, 26 million; only by name, since
#                    it takes minutes to measure)
#   --per-node N     ranks that share a node and its link (1)
#   --speed X        ranks compute X times as fast as one core of this machine (1)
#   --at-once N      micro-batches that a rank computes at once under reproducible, as several threads do (1)
#   --times FILE     the computing times; measured with dptrain and written there where it does not exist
#                    (DIR/times.json); those of the README's tables are in scripts/simulate/times.json
#   --build DIR      folder for all that is made (build/simulate)
#   --write          put the tables into scripts/simulate/README.md, instead of printing them
#   --check          instead of all that: are the sums right that the simulated ranks compute?
#
# Prints Markdown tables, in about ten minutes. What they assume, and what they say: scripts/simulate/README.md.
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/../lib/usage.sh"
cd "$(dirname "$0")/../.."
command -v smpicc >/dev/null || ./scripts/setup.sh --simulate
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh
exec python3 scripts/simulate/simulate.py "$@"
