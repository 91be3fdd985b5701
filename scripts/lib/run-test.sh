#!/usr/bin/env bash
# Runs one test program and prints one line; its output too where it failed. Called by test.sh, from the top of the tree.
#   run-test.sh BUILD unit FILE.c RANKS     a cmocka program; RANKS > 0: under mpirun
#   run-test.sh BUILD pytest FILE.py 0 [WHICH]   a file of pytest, or those of its tests that -k WHICH takes, with BUILD/dptrain
#   run-test.sh BUILD style . 0             clang-format and shellcheck
# Stopped after $DPT_LIMIT seconds, if that is set.
# With a name in $DPT_ONLY only tests that have it in their name; a program without any is passed over.
# Leaves `passed failed skipped` in $DPT_LOGS/NAME.count, and seconds, user's and system's processor seconds in NAME.time.
set -u
build=$1 kind=$2 file=$3 ranks=$4 which=${5:-}
name=${build//\//-}-${file//\//-}-$ranks
log=$DPT_LOGS/$name.log
label=$file
[ "$ranks" = 0 ] || label="$label, $ranks ranks"
limit=300
if [ "$build" != build ]; then
    label="$label, sanitized"
    limit=600
fi
limit=${DPT_LIMIT:-$limit}

# Open MPI 5 names the memory that ranks share by 16 bits of its hash of a run's name: of two runs at a time both may crash or hang.
segments=$(mktemp -d /dev/shm/dptrain-test.XXXXXX 2>/dev/null) && export OMPI_MCA_btl_sm_backing_directory="$segments"
trap '[ -z "$segments" ] || rm -rf "$segments"' EXIT

# MPI's own start-up keeps memory until the end of the process.
leaks=0
[ ! -e "$DPT_LOGS/leaks" ] || leaks=1
[ "$kind" = unit ] && [ "$ranks" = 0 ] || leaks=0
export ASAN_OPTIONS="detect_leaks=$leaks:abort_on_error=0" UBSAN_OPTIONS=print_stacktrace=1

# The log, and how long it took.
TIMEFORMAT='%R %U %S'
timed() {
    local rc
    { time "$@" >"$log" 2>&1 </dev/null; } 2>"$DPT_LOGS/$name.time"
    rc=$?
    return $rc
}
passed=0 failed=0 skipped=0
start=$SECONDS
case $kind in
unit)
    program=$build/tests/$(basename "$file" .c)
    if [ ! -x "$program" ]; then
        echo "0 1 0" >"$DPT_LOGS/$name.count"
        echo "FAILED   did not build  $label"
        exit 0
    fi
    command=("$program")
    [ -z "${DPT_ONLY:-}" ] || export DPT_TESTS="*$DPT_ONLY*"
    # Only rank 0's lines are counted, all of them are shown.
    [ "$ranks" = 0 ] || command=(mpirun --tag-output -np "$ranks" "$program")
    timed timeout -k 10 "$limit" "${command[@]}"
    rc=$?
    read -r passed failed skipped < <(
        sed -e 's/^\[[0-9]*,0\]<std[a-z]*>: *//' -e '/^\[[0-9]*,[0-9]*\]</d' "$log" | awk '
            /^\[ +OK \]/ { p++ }
            /^\[ +(FAILED|SKIPPED) +\] .*test\(s\), listed below/ { # later ones name the group before the number
                n = $0
                sub(/ test\(s\), listed below.*/, "", n)
                sub(/.* /, "", n)
                if (/FAILED/) f += n; else s += n
            }
            END { print p + 0, f + 0, s + 0 }'
    )
    ;;
pytest)
    limit=900
    [ "$DPT_HEAVY" = 0 ] || limit=5400
    limit=${DPT_LIMIT:-$limit}
    [ -z "${DPT_ONLY:-}" ] || which="${which:+($which) and }($DPT_ONLY)"
    # Where CI is set pytest shows every difference in full, which takes minutes for a checkpoint's bytes.
    timed env -u CI -u BUILD_NUMBER DPTRAIN="$PWD/$build/dptrain" timeout -k 10 "$limit" "$DPT_PYTHON" -m pytest -q -rs --tb=short \
        -p no:cacheprovider --import-mode=importlib ${which:+-k "$which"} "$file"
    rc=$?
    # Warnings of pytest's end, as about a folder of another one that it could not remove, come after the line that counts.
    count() { grep -Eo "[0-9]+ $1" <(grep -E ' in [0-9.]+s( \([0-9:]+\))?( =+)?$' "$log" | tail -n 1) | awk '{ n += $1 } END { print n + 0 }'; }
    passed=$(count passed) failed=$(($(count failed) + $(count error))) skipped=$(count skipped)
    ;;
style)
    timed make -s style
    rc=$?
    if [ "$rc" = 0 ]; then passed=1; else failed=1; fi
    label=$(grep 'left out' "$log") && skipped=1
    label=${label:-style}
    ;;
esac
seconds=$((SECONDS - start))

if [ -n "${DPT_ONLY:-}" ] && [ $((passed + failed + skipped)) = 0 ] && { [ "$rc" = 0 ] || [ "$kind$rc" = pytest5 ]; }; then
    echo "0 0 0" >"$DPT_LOGS/$name.count"
    exit 0
fi

# A crash, a time-out, a sanitizer's report, no test at all: something failed, though none was counted.
why=
[ "$rc" != 124 ] && [ "$rc" != 137 ] || why=", stopped after $limit s"
if [ "$failed" = 0 ] && { [ "$rc" != 0 ] || [ $((passed + skipped)) = 0 ]; }; then
    failed=1 why=${why:-, exit $rc}
fi
echo "$passed $failed $skipped" >"$DPT_LOGS/$name.count"

verdict=ok
[ "$failed" = 0 ] || verdict=FAILED
line=$(printf '%-6s %4d passed' $verdict "$passed")
[ "$failed" = 0 ] || line+=", $failed failed"
[ "$skipped" = 0 ] || line+=", $skipped skipped"
line+="  $label$why (${seconds} s)"
# In one write, so that the programs that run beside this one do not come between.
if [ "$failed" = 0 ]; then
    printf '%s\n' "$line"
else
    printf '%s\n%s\n' "$line" "$(tail -n 200 "$log" | tr -d '\0' | sed 's/^/    | /')"
fi
exit 0
