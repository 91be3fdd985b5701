#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests. The last line is `N passed, N failed, N skipped`; exit 1 where one failed.
#
#   scripts/test.sh [PATTERN] [--heavy] [--no-sanitize] [--list]
#
#   PATTERN        only test programs whose line matches it (grep -E): 'base', 'mpi_', 'sanitize.*str', 'cmd/tests'
#   --heavy        longer versions too (DPT_HEAVY=1), and the end-to-end tests once more with the sanitizer build
#   --no-sanitize  leave out the AddressSanitizer and UBSan build
#   --list         print the lines and run nothing
#
# One line a program; the output of those that failed is shown, all of it is in build/test-logs.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

pattern=. heavy=0 sanitize=1 list=0
for arg in "$@"; do
    case $arg in
    --heavy) heavy=1 ;;
    --no-sanitize) sanitize=0 ;;
    --list) list=1 ;;
    --help | -h)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
        exit 0
        ;;
    -*)
        echo "test.sh: unknown option $arg (see --help)" >&2
        exit 2
        ;;
    *) pattern=$arg ;;
    esac
done

cores=$(nproc)
logs=build/test-logs
rm -rf "$logs"
mkdir -p "$logs"

# Each job is a line: build folder, kind, program, ranks (0: not under mpirun).
tests() {
    find core models data cmd configs scripts -path "*/tests/$1" -type f | LC_ALL=C sort
}
unit_jobs() {
    local file n counts
    tests 'test_*.c' | sed "s|.*|$1 unit & 0|"
    for file in $(tests 'mpi_*.c'); do
        read -ra counts < <(sed -n '1s|^/\* *ranks: *\([0-9 ]*\)\*/.*|\1|p' "$file")
        for n in "${counts[@]}"; do
            echo "$1 unit $file $n"
        done
    done
}
python_jobs() {
    tests 'test_*.py' | sed "s|.*|$1 pytest & 0|"
}
{
    unit_jobs build
    # The tests of the tree start builds of their own and take longest: early, so that they do not trail alone.
    python_jobs build | sort -k3,3r
    if [ $sanitize = 1 ]; then
        unit_jobs build/sanitize
        [ $heavy = 0 ] || python_jobs build/sanitize | grep -v scripts/tests
    fi
} | grep -E -- "$pattern" >"$logs/jobs"
if [ $list = 1 ]; then
    cat "$logs/jobs"
    exit 0
fi

./scripts/setup.sh --test || exit 1
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh

# A program that does not build fails alone: the others are run. `-k` makes what can be made.
build() {
    local log=$logs/make$2.log
    echo "building ${2:+with $2 }..."
    # shellcheck disable=SC2086
    if ! make -k -j"$cores" $2 all check-units >"$log" 2>&1; then
        grep -E 'error|warning|undefined|\*\*\*' "$log" | head -n 40
        echo "some of it did not build, see $log"
        echo "0 1 0" >"$logs/make$2.count"
    fi
}
# Old test programs would hide that theirs no longer builds.
rm -rf build/tests build/sanitize/tests
build "$PWD" ""
grep -q '^build/sanitize' "$logs/jobs" && build "$PWD" SANITIZE=1

export DPT_HEAVY=$heavy DPT_LOGS=$logs PYTHONDONTWRITEBYTECODE=1
# Debian's own Python is the one that Debian's pytest, h5py and numpy belong to; another may come first in the PATH.
export DPT_PYTHON=python3
for python in python3 /usr/bin/python3; do
    "$python" -c 'import pytest, h5py, numpy' 2>/dev/null && DPT_PYTHON=$python
done
# LeakSanitizer needs ptrace, which some containers forbid.
export DPT_LEAKS=0
if [ -x build/sanitize/dptrain ] && ASAN_OPTIONS=detect_leaks=1 ./build/sanitize/dptrain --version >/dev/null 2>&1; then
    DPT_LEAKS=1
fi
xargs -P "$cores" -L 1 ./scripts/lib/run-test.sh <"$logs/jobs"

[ -s "$logs/jobs" ] || echo "no test matches '$pattern'"
cat "$logs"/*.count 2>/dev/null | awk '{ p += $1; f += $2; s += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
