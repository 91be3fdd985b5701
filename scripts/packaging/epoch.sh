#!/usr/bin/env bash
# Prints the time that everything in a package bears: SOURCE_DATE_EPOCH, else the last commit's, else (in an unpacked
# archive of the sources, which carries it) the Makefile's.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
    echo "$SOURCE_DATE_EPOCH"
elif [ "$(git rev-parse --show-toplevel 2>/dev/null)" = "$PWD" ]; then
    git log -1 --format=%ct
else
    stat -c %Y Makefile
fi
