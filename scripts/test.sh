#!/usr/bin/env bash
# Installs what is missing, builds what it runs, runs all tests. The last line is `N passed, N failed, N skipped`; exit 1 where one failed.
#
#   scripts/test.sh [PATTERN] [-k NAME] [--quick] [--heavy] [--no-sanitize] [--list]
#
#   PATTERN        only test programs whose line matches it (grep -E): 'base', 'mpi_', 'sanitize.*str', 'cmd/tests'; of C programs
#                  only these are built, and those that files of pytest among them run. The sanitizers' build is left out unless
#                  the pattern has the word sanitize. What does not build has failed; no older one is run
#   -k NAME        of these programs only the tests with NAME in their name: test.sh test_log -k file. For files of pytest
#                  it is what its -k takes
#   --quick        after a change: the style, most C tests of the normal build, and one job of each kind, in about a minute
#   --heavy        longer versions too (DPT_HEAVY=1), and the end-to-end tests once more with the sanitizer build
#   --no-sanitize  leave out the AddressSanitizer and UBSan build
#   --list         print the lines and run nothing
#
# One line a program; the output of those that failed is shown, all of it is in build/test-logs, and how long each took in
# build/test-logs/seconds.
set -uo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/lib/usage.sh"
cd "$(dirname "$0")/.." || exit 1

pattern=. only='' quick=0 heavy=0 sanitize=1 list=0
while [ $# -gt 0 ]; do
    case $1 in
    -k)
        if [ -z "${2:-}" ]; then
            echo "test.sh: -k needs a name (see --help)" >&2
            exit 2
        fi
        only=$2
        shift
        ;;
    --quick) quick=1 sanitize=0 ;;
    --heavy) heavy=1 ;;
    --no-sanitize) sanitize=0 ;;
    --list) list=1 ;;
    -*)
        echo "test.sh: unknown option $1 (see --help)" >&2
        exit 2
        ;;
    *) pattern=$1 ;;
    esac
    shift
done

# A build of its own, which a change of one file should not wait for.
[ "$pattern$only" = . ] || [[ $pattern = *sanitize* ]] || sanitize=0

cores=$(nproc)
logs=build/test-logs

# Each job is a line: build folder, kind, program, ranks (0: not under mpirun), and for pytest perhaps which of a file's tests.
tests() {
    find core models data cmd configs scripts -path "*/tests/$1" -type f | LC_ALL=C sort
}
unit_jobs() {
    local file n counts
    tests 'test_*.c' | sed "s|.*|$1 unit & 0|"
    for file in $(tests 'mpi_*.c'); do
        read -ra counts < <(sed -n '1s|^/\* *ranks: *\([0-9 ]*\)\*/.*|\1|p' "$file")
        for n in "${counts[@]}"; do
            # Sanitized, what more ranks than five do they do in the normal build.
            [ "$1" = build ] || [ $heavy = 1 ] || [ "$n" -le 5 ] || continue
            echo "$1 unit $file $n"
        done
    done
}
# Those that take longest come first, so that none of them trails alone: they wait more than they compute.
long='scripts/tests/test_(slurm|gpu_check|fuzz|tree|packaging|mpich|docs)|cmd/tests/test_(doctor|bench)|core/comm/tests/test_nodes|core/train/([a-z]*/)?tests/test_(device|random_jobs|reproducible|faults|resume|crash|instructions)'
python_jobs() {
    tests 'test_*.py' | grep -E "$long" | sort -r | sed "s|.*|$1 pytest & 0|"
    tests 'test_*.py' | grep -Ev "$long" | sed "s|.*|$1 pytest & 0|"
}
# One of each kind: on one rank and several, on the CPU and on what stands in for a GPU; what comes before a job and after it. Of the C
# programs those are left out that take half of the time of all, and more ranks than five.
slow='test_(bf16|gemm|team|winograd|cuda_(graphs|program|program_faults|stages|steps|steps_calls|sums))\.c|/mpi_.* [678]$'
quick_jobs() {
    unit_jobs build | grep -Ev "$slow"
    while read -r file which; do
        echo "build pytest $file 0 \"$which\""
    done <<'END'
core/train/engines/tests/test_device.py test_gives_what_the_cpu_gives or test_checkpoints_are_the_cpus
cmd/tests/test_configs.py test_runs and (smoke or resnet20)
core/train/tests/test_reproducible.py test_idle_ranks_change_nothing or test_micro_batch_follows_from_the_job_alone
core/train/run/tests/test_resume.py test_killed_ends_with_the_same_bytes or test_finished_says_so
core/train/run/tests/test_faults.py test_one_rank_at_a_step and kill
core/train/tests/test_train.py test_rank_count_changes_nothing
core/train/use/tests/test_predict.py test_as_eval
core/interchange/tests/test_export.py test_all_formats_hold_the_weights_to_the_bit
data/tests/test_convert.py test_mnist or test_cifar10
cmd/tests/test_job_file.py test_all_mistakes or test_one_message or test_set_overrides
scripts/tests/test_tree.py not make and not build and not arm64 and not install and not onednn and not link and not setup
END
}
jobs=$({
    [ -n "$only" ] || echo "build style . 0"
    if [ $quick = 1 ]; then
        quick_jobs
    else
        python_jobs build
        unit_jobs build
    fi
    if [ $sanitize = 1 ]; then
        unit_jobs build/sanitize
        [ $heavy = 0 ] || python_jobs build/sanitize | grep -v scripts/tests
    fi
} | grep -E -- "$pattern")
if [ $list = 1 ]; then
    [ -z "$jobs" ] || printf '%s\n' "$jobs"
    exit 0
fi
rm -rf "$logs"
mkdir -p "$logs"

./scripts/setup.sh --test || exit 1
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh

# What the jobs of a build folder run: dptrain and what stands in for a GPU, and C programs. Which of these a file of pytest runs
# stands in a line of it, with * for any name.
goals() {
    local name
    grep -qE "^$1 (unit|pytest) " <<<"$jobs" || return
    echo all fakes
    {
        awk -v build="$1" '$1 == build && $2 == "unit" { print $3 }' <<<"$jobs"
        awk -v build="$1" '$1 == build && $2 == "pytest" { print $3 }' <<<"$jobs" | xargs -r sed -n 's/^# C programs: //p' |
            xargs -rn 1 | while read -r name; do tests "$name.c"; done
    } | sed "s|.*/|$1/tests/|; s|\.c$||" | sort -u
}
# A program that does not build fails alone: the others are run. `-k` makes what can be made.
build() {
    local log=$logs/make$1.log goals
    mapfile -t goals < <(goals "$2" | tr ' ' '\n')
    [ ${#goals[@]} -gt 0 ] || return 0
    echo "building ${1:+with $1 }..." >&2
    # shellcheck disable=SC2086
    if ! make WERROR=1 -k -j"$cores" $1 "${goals[@]}" >"$log" 2>&1; then
        # Old programs would hide that theirs no longer build.
        rm -rf "$2/tests" "$2/dptrain"
        # shellcheck disable=SC2086
        make WERROR=1 -k -j"$cores" $1 "${goals[@]}" >"$log" 2>&1
        grep -E 'error|warning|undefined|\*\*\*' "$log" | head -n 40 >&2
        echo "some of it did not build, see $log" >&2
        echo "0 1 0" >"$logs/make$1.count"
    fi
}
# The sanitizers' programs are made while the others run: what tells their jobs to the pool waits for them.
all_jobs() {
    grep -v '^build/sanitize' <<<"$jobs"
    if grep -q '^build/sanitize' <<<"$jobs"; then
        build SANITIZE=1 build/sanitize
        # LeakSanitizer needs ptrace, which some containers forbid.
        if ASAN_OPTIONS=detect_leaks=1 ./build/sanitize/dptrain --version >/dev/null 2>&1; then
            : >"$logs/leaks"
        fi
        grep '^build/sanitize' <<<"$jobs"
    fi
}
build "" build
# Which system and libraries it ran on; the last of them are what the program itself says.
# shellcheck source=/dev/null
echo "on $(. /etc/os-release && echo "$PRETTY_NAME"), $(uname -m)$(./build/dptrain --version 2>/dev/null | sed -n '2,$ { s/^backend //; s/[:;] no GPU here.*//; s/^/; /; p }' |
    tr -d '\n')" >&2

export DPT_HEAVY=$heavy DPT_LOGS=$logs DPT_ONLY=$only PYTHONDONTWRITEBYTECODE=1
# Debian's own Python is the one that Debian's pytest, h5py and numpy belong to; another may come first in the PATH.
export DPT_PYTHON=python3
for python in python3 /usr/bin/python3; do
    "$python" -c 'import pytest, h5py, numpy' 2>/dev/null && DPT_PYTHON=$python
done
# More at once than there are cores, since many of them wait for time-outs, daemons and each other.
[ -z "$jobs" ] || all_jobs | xargs -P $((cores + 4)) -L 1 ./scripts/lib/run-test.sh

[ -n "$jobs" ] || echo "no test matches '$pattern'"
[ -z "$only" ] || grep -qv '^0 0 0$' "$logs"/*.count 2>/dev/null || echo "no test there is named '$only'"
awk '{ printf "%7.1f s, %6.1f s of a core  %s\n", $1, $2 + $3, FILENAME; all += $1; cpu += $2 + $3 }
    END { printf "%7.1f s, %6.1f s of a core  all\n", all, cpu }' "$logs"/*.time 2>/dev/null | sort -rn >"$logs/seconds"
cat "$logs"/*.count 2>/dev/null | awk '{ p += $1; f += $2; s += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0 }'
