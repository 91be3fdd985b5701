#!/usr/bin/env bash
# Throws changed inputs at what reads foreign bytes: job files, checkpoints, shards, files to convert, weights. One line each; exit 1
# where one of them crashed, leaked, hung or broke its own rules.
#
#   scripts/fuzz.sh [SECONDS] [NAME...]     20 seconds each by default; NAME: job, checkpoint, shard, convert, picture, weights
#   scripts/fuzz.sh --list
#
# Builds with clang, libFuzzer, AddressSanitizer and UBSan into build/fuzz. The inputs to begin with are in tests/corpus/ beside
# each fuzzer; new ones that reach further are kept in build/fuzz/corpus, those that broke something in build/fuzz/findings,
# where `build/fuzz/fuzz_NAME FILE` shows it again. Exit 77: clang or its libFuzzer is missing.
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/lib/usage.sh"
cd "$(dirname "$0")/.."

length=20
names=()
build=build/fuzz
all=()
for source in */tests/fuzz_*.c */*/tests/fuzz_*.c; do
    name=${source##*/fuzz_}
    all+=("${name%.c}")
done
for arg in "$@"; do
    case $arg in
    --list)
        printf '%s\n' "${all[@]}"
        exit 0
        ;;
    [1-9] | [1-9][0-9] | [1-9][0-9][0-9] | [1-9][0-9][0-9][0-9] | [1-9][0-9][0-9][0-9][0-9]) length=$arg ;;
    *)
        if [[ " ${all[*]} " != *" $arg "* ]]; then
            echo "fuzz.sh: $arg is no number of seconds and none of: ${all[*]} (see --help)" >&2
            exit 2
        fi
        names+=("$arg")
        ;;
    esac
done
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")

mkdir -p "$build"
exec 9>"$build/lock"
flock 9
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/dptrain-fuzz-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

checks="-fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
echo '#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) { return data == NULL && size > 0; }' >"$scratch/try.c"
# shellcheck disable=SC2086
if ! clang $checks -fsanitize=fuzzer -o "$scratch/try" "$scratch/try.c" >/dev/null 2>&1; then
    packages=$(awk '$3 == "clang" || $3 == "libfuzzer" { printf " %s", $2 }' scripts/packages.txt)
    echo "fuzz.sh: needs clang with libFuzzer (Debian:$packages)" >&2
    exit 77
fi
# LeakSanitizer needs ptrace, which some containers forbid.
leaks=1
(cd "$scratch" && ./try -runs=1) >/dev/null 2>&1 || leaks=0

# All modules but cmd, instrumented, without oneDNN and CUDA. Optimising takes three quarters of the
# build, which short runs do not win back, and reports name lines without the rest of what a debugger wants.
flags="-O0 -gline-tables-only"
[ "$length" -lt 20 ] || flags="-O1 -g"
if ! make -j"$(nproc)" BUILD="$build" CC=clang ONEDNN=0 CUDA=0 modules="core models data" CFLAGS="$flags $checks -fsanitize=fuzzer-no-link" \
    "$build/libdptrain.a" >"$build/make.log" 2>&1; then
    tail -n 30 "$build/make.log" >&2
    echo "fuzz.sh: the build failed, see $build/make.log" >&2
    exit 1
fi
flags() {
    sed -n "s/^[A-Z0-9]*_$1 := //p" "$build/deps.mk" | grep -v cmocka | tr '\n' ' '
}
build_fuzzer() {
    local source
    source=$(echo */tests/fuzz_"$1".c */*/tests/fuzz_"$1".c | tr ' ' '\n' | grep -v '\*')
    # shellcheck disable=SC2046,SC2086
    OMPI_CC=clang MPICH_CC=clang I_MPI_CC=clang ${MPICC:-mpicc} -std=gnu11 -D_GNU_SOURCE -I. -pthread -Wall -Wextra -Werror \
        -O1 -g $checks -fsanitize=fuzzer $(flags CFLAGS) -o "$build/fuzz_$1" "$source" "$build/libdptrain.a" $(flags LIBS) -lm
}

# What libFuzzer is told for each: inputs of the longest size, and short ones first where they are text.
options_for() {
    case $1 in
    job) echo "-max_len=16384 -dict=core/train/tests/corpus/job.dict" ;;
    convert | picture | weights) echo "-max_len=4096" ;;
    *) echo "-max_len=512 -len_control=0" ;; # choices for a generator
    esac
}

fuzz() {
    local name=$1 log=$build/$1.log corpus runs reached
    corpus=$(echo */tests/corpus/"$name" */*/tests/corpus/"$name" | tr ' ' '\n' | grep -v '\*')
    mkdir -p "$build/corpus/$name" "$build/findings"
    # shellcheck disable=SC2046
    if TMPDIR=$scratch ASAN_OPTIONS=detect_leaks=$leaks UBSAN_OPTIONS=print_stacktrace=1 timeout -k 10 $((length * 2 + 120)) \
        "$build/fuzz_$name" -max_total_time="$length" -timeout=10 -rss_limit_mb=2048 -detect_leaks=$leaks -print_final_stats=1 \
        -artifact_prefix="$build/findings/$name-" $(options_for "$name") "$build/corpus/$name" "$corpus" >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        reached=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
        printf 'ok      %-10s %9s runs in %s s, %s edges reached\n' "$name" "$runs" "$length" "$reached"
        return
    fi
    printf 'FAILED  %-10s see %s\n' "$name" "$log"
    grep -E "does not hold|ERROR: |SUMMARY|Test unit written" "$log" | sed 's/^/    | /' || tail -n 5 "$log"
    return 1
}

failed=0
for name in "${names[@]}"; do
    build_fuzzer "$name"
done
for name in "${names[@]}"; do
    fuzz "$name" || failed=1
done
exit $failed
