#!/usr/bin/env bash
# Shows on a GPU what only a GPU can show, in three short parts, each a call with its own report:
#
#   scripts/gpu-check.sh a OUT    4 minutes: libraries, kernels, matrix products, captured steps,
#                                 a small job in each precision
#   scripts/gpu-check.sh b OUT    8 minutes: convolution plans, accuracy, the same bytes at any rank
#                                 count, two ranks on one GPU, resuming
#   scripts/gpu-check.sh c OUT    10 minutes: speed beside PyTorch and JAX, where a step's time goes,
#                                 memory checkers
#   scripts/gpu-check.sh --pack FILE.tar.xz [--arch 90] [--rehearsal]
#
# OUT/report.md gets a row as each step ends, OUT/logs.tar.gz its log; OUT/running.log is the log of
# the step that runs. Each step ends at a limit of its own and each part at its minutes, so one that
# hangs, crashes or is cut off leaves a whole report of what was done. The exit code is 0 where all
# went well, 1 where a step failed, 77 where there is no GPU.
#
#   --only STEP       these steps alone (a name, or as grep -E has it: 'speed-.*'); their rows are
#                     added to the report that is in OUT already
#   --list            print the steps and run nothing
#   --python PROGRAM  a Python with torch, jax and optax to compare with (python3)
#   --work DIR        where runs and logs lie (build/gpu-check/work; work beside an unpacked archive)
#   --limit SECONDS   no step may take longer
#   --pack FILE       make one archive to take to a machine that has a GPU's driver and Python, and
#                     nothing else: the program without oneDNN, its libraries and Open MPI, the test
#                     programs, MNIST, and what the CPU computes, to compare with. Unpacked in an
#                     empty folder, `bash gpu-check.sh a OUT` runs part a
#   --arch NUMBERS    the GPUs whose code it holds: 90 is the H100 and H200, '80 90' the A100 too
#   --fake DIR        run with libraries that stand in for a GPU, and small jobs, to try this script
#   --rehearsal       with --pack: of the build that is there, and with small jobs, for --fake
set -uo pipefail
self=$(readlink -f "$0")
here=${self%/*}

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$self"; }
wrong() {
    echo "gpu-check.sh: $1 (see --help)" >&2
    exit 2
}
part='' out='' only='.*' python=python3 work='' fake='' pack='' arch=90 most=600 rehearsal=0 list=0 inside=''
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit 0 ;;
    --list) list=1 ;;
    --rehearsal) rehearsal=1 ;;
    --only | --python | --work | --fake | --pack | --arch | --limit | --inside)
        [ $# -ge 2 ] || wrong "$1 needs a value"
        case $1 in
        --only) only=$2 ;;
        --python) python=$2 ;;
        --arch) arch=$2 ;;
        --limit) most=$2 ;;
        --inside) inside=$2 ;;
        *) printf -v "${1#--}" %s "$(realpath -m "$2")" ;;
        esac
        shift
        ;;
    -*) wrong "unknown option $1" ;;
    *)
        if [ -z "$part" ]; then part=$1; elif [ -z "$out" ]; then out=$(realpath -m "$1"); else wrong "'$1' is one word too many"; fi
        ;;
    esac
    shift
done
[[ $most =~ ^[1-9][0-9]*$ ]] || wrong "--limit takes seconds"

# The archive has the program beside this script, a source tree has it in its build folder.
if [ -d "$here/bundle" ]; then
    packed=1 top=$here program=$here/bundle/bin/dptrain tests=$here/tests home=$here
else
    packed=0 top=${here%/*} build=${BUILD:-build}
    [[ $build = /* ]] || build=$top/$build
    program=$build/dptrain tests=$build/tests home=$build/gpu-check
fi
: "${work:=$home/work}"
reference=$home/reference
quick=0
[ -z "$fake" ] && [ "$rehearsal" = 0 ] || quick=1 reference=$home/rehearsal
if [ -n "$part" ]; then
    case $part in
    a) minutes=4 title='does it work at all' ;;
    b) minutes=8 title='are its results right' ;;
    c) minutes=10 title='how fast is it' ;;
    *) wrong "there is no part '$part', only a, b and c" ;;
    esac
fi

# A line a step: the part; its name; its limit in seconds; the function of lib/gpu-steps.sh that does it; what it shows.
# The most telling come first.
steps() {
    sed 's/ *| */|/g' <<'END'
a | libraries       | 30 | libraries                     | the driver, cuDNN and cuBLASLt are found, and there is a GPU that answers
a | first-job       | 40 | small_job fp32                | a small job from start to end, each step one launch of a captured CUDA graph, comes to the CPU's loss
a | kernels         | 40 | unit test_cuda_device_layers  | our kernels for layers and losses compute on the GPU what they compute on the host
a | kernels-joins   | 30 | unit test_cuda_device_joins   | likewise those for joins and batch norm
a | kernels-arena   | 30 | unit test_cuda_device_arena   | likewise those that work on all parameters: casts, sums, norms, hashes, gathering of samples
a | kernels-update  | 30 | unit test_cuda_device_update  | likewise the optimizers' updates, bit for bit
a | kernels-fp16    | 30 | unit test_cuda_device_fp16    | likewise those for fp16 and its loss scale
a | matmul          | 40 | unit test_cuda_matmul         | cuBLASLt's matrix products and dense layers give what plain loops give
a | steps           | 45 | unit test_cuda_steps          | captured steps over random models: same parameters as on the host, gradients in buckets, NaN stops the update
a | program         | 45 | unit test_cuda_program        | forward and backward over random models agree with plain C in each precision, and NaN is found
a | graphs          | 30 | unit test_cuda_graphs         | likewise for models whose layers join two values
a | stages          | 30 | unit test_cuda_stages         | the stages of a pipeline compute the bits of the whole model, with its kernels
a | job-bf16        | 30 | small_job bf16                | the small job in bf16
a | job-tf32        | 30 | small_job tf32                | the small job in tf32
a | job-fp16        | 30 | small_job fp16                | the small job in fp16 with its loss scale
a | algorithms      | 20 | unit test_cuda_algorithms     | which of cuBLASLt's algorithms are taken
a | errors          | 20 | unit test_cuda_library        | a library that is missing or too old is told in one line
b | convolutions    | 60 | unit test_cuda_device         | cuDNN's convolutions, four shapes in four precisions, two plans each, against sums written out; same bits twice
b | mnist-cnn       | 60 | accuracy mnist-cnn fp32       | MNIST with a CNN: as accurate as on the CPU
b | reproducible    | 60 | reproducible fp32             | `comm.reduction: reproducible` writes the same checkpoint from 1, 2 and 4 ranks
b | two-ranks       | 60 | accuracy mnist-mlp fp32 2 off | two ranks share the GPU, gradients are summed in the host's memory: as accurate as on the CPU
b | resume          | 60 | resume                        | a run that was stopped and goes on ends with the bytes of one that was never stopped
b | mnist-mlp       | 40 | accuracy mnist-mlp fp32       | MNIST with a perceptron: as accurate as on the CPU
b | mnist-cnn-bf16  | 40 | accuracy mnist-cnn bf16       | the CNN in bf16: as accurate
b | mnist-cnn-tf32  | 40 | accuracy mnist-cnn tf32       | the CNN in tf32: as accurate
b | mnist-cnn-fp16  | 40 | accuracy mnist-cnn fp16       | the CNN in fp16: as accurate
b | to-cpu          | 60 | interchange cuda cpu          | the CPU evaluates and goes on with the GPU's checkpoint
b | to-gpu          | 40 | interchange cpu cuda          | the GPU evaluates and goes on with the CPU's checkpoint
b | two-ranks-aware | 60 | accuracy mnist-mlp fp32 2 auto | two ranks, gradients summed in the GPU's memory if MPI can
b | reproducible-bf16 | 60 | reproducible bf16           | the same checkpoint from 1, 2 and 4 ranks in bf16
b | mnist-mlp-bf16  | 30 | accuracy mnist-mlp bf16       | the perceptron in bf16: as accurate
b | linreg          | 30 | accuracy linreg fp32          | linear regression: the CPU's loss
c | speed-cnn       | 60 | speed cnn                     | a step's time of cnn (3x32x32) at batch 128 and 1024, tf32 and bf16
c | peers-torch     | 60 | peers torch                   | the same steps in PyTorch, captured in CUDA graphs, all in one process
c | peers-jax       | 60 | peers jax                     | the same steps in JAX, compiled as a whole, all in one process
c | speed-mlp       | 60 | speed mlp                     | a step's time of mlp (784-256-10)
c | speed-mnistcnn  | 60 | speed mnistcnn                | a step's time of mnistcnn (1x28x28)
c | speed-mlp4k     | 60 | speed mlp4k                   | a step's time of mlp4k (784-4096-4096-10)
c | profile-cnn     | 45 | profile cnn                   | where cnn's time goes, each node of its graph repeated by itself; all of a step within 1.5 times their sum
c | mnist-99        | 45 | mnist_99                      | MNIST to 99 % in less than 3 s, from exec to exit
c | profile-mlp     | 45 | profile mlp                   | where mlp's time goes
c | profile-mnistcnn | 45 | profile mnistcnn             | where mnistcnn's time goes
c | profile-mlp4k   | 45 | profile mlp4k                 | where mlp4k's time goes
c | counters        | 60 | counters cnn                  | the GPU's own counters for each kernel of one graph of cnn (ncu)
c | memcheck        | 60 | sanitize memcheck             | our kernels touch nothing beyond an allocation
c | racecheck       | 60 | sanitize racecheck            | no two threads of ours use the same shared memory at once
c | initcheck       | 60 | sanitize initcheck            | our kernels read nothing that was not written
c | synccheck       | 60 | sanitize synccheck            | barriers in our kernels are reached by all threads
END
}
chosen() { steps | awk -F'|' -v part="$part" -v only="^($only)\$" '(part == "" || $1 == part) && $2 ~ only'; }

if [ "$list" = 1 ]; then
    chosen | awk -F'|' '{ printf "%s  %-18s %3d s  %s\n", $1, $2, $3, $5 }'
    exit 0
fi
# shellcheck source=scripts/lib/mpi-env.sh
. "$here/lib/mpi-env.sh"
# shellcheck source=scripts/lib/gpu-pack.sh
[ -n "$inside" ] || [ "$packed" = 1 ] || . "$here/lib/gpu-pack.sh"
if [ -n "$pack" ]; then
    [ "$packed" = 0 ] || wrong "this is an archive already: --pack works in a source tree"
    make_pack
    exit
fi
[ -n "$out" ] || wrong "which part, and where to?"
[ -n "$(chosen)" ] || wrong "no step of part $part is called '$only': --list names them"

if [ -n "$fake" ]; then
    # Nothing of the toolkit's may come first.
    unset CUDA_HOME CUDNN_ROOT CUDA_VISIBLE_DEVICES DPTRAIN_CUDA_PATH
    export LD_LIBRARY_PATH=$fake
else
    if ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ] && [ ! -e /dev/dxg ]; then
        echo "gpu-check.sh: there is no NVIDIA GPU on this machine, so nothing was checked"
        exit 77
    fi
    # Where containers put the driver without telling the loader.
    for folder in /usr/local/nvidia/lib64 /usr/lib/wsl/lib; do
        [ ! -e "$folder/libcuda.so.1" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
    done
    export DPT_CUDA_TESTS=device
fi

# --- one step, in a process of its own -------------------------------------------------------------------------------

if [ -n "$inside" ]; then
    # What a step prints is its log; a program that runs wild must not fill the disk.
    ulimit -f 2097152
    # shellcheck source=scripts/lib/gpu-steps.sh
    . "$here/lib/gpu-steps.sh"
    # shellcheck disable=SC2046,SC2091
    $(steps | awk -F'|' -v name="$inside" '$2 == name { print $4 }')
    exit
fi

# Built, and compared with, before the time of the part begins; an archive brings both along.
[ "$packed" = 1 ] || make_ready

# --- the report -------------------------------------------------------------------------------------------------------

mkdir -p "$out" "$work/logs" "$work/details" || exit 1
if [ "$only" = '.*' ]; then rm -f "$out/report.md"; fi
start=$SECONDS begun=$(date -u +%Y-%m-%dT%H:%MZ) limit=$((SECONDS + 60 * minutes - 5)) state=''
rows=$work/rows-$part
# What an earlier call reported stays when single steps are repeated.
awk '/^[|]---/ { table = 1; next } table && !/^[|]/ { exit } table && !/[|] running [|]/' "$out/report.md" 2>/dev/null >"$rows"

# Written beside and renamed, so that there is a whole one at any time. $1: a row for what is running.
write_report() {
    {
        echo "# dptrain on a GPU, part $part: $title"
        echo
        echo "$begun, $(uname -sr)${fake:+, **a rehearsal on the CPU: libraries that stand in for a GPU, small jobs**}. $state"
        echo
        echo '| step | what it shows | result | time | what was seen |'
        echo '|---|---|---|---|---|'
        cat "$rows"
        [ -z "${1:-}" ] || echo "$1"
        awk -F' *[|] *' -v part="$part" 'BEGIN { print part } !seen[$2]++ { print $2 }' "$rows" | while read -r name; do
            [ ! -e "$work/details/$name.md" ] || cat "$work/details/$name.md"
        done
        true
    } >"$out/report.tmp" && mv "$out/report.tmp" "$out/report.md"
}
keep_logs() {
    tar -C "$work/logs" -czf "$out/logs.tmp" . && mv "$out/logs.tmp" "$out/logs.tar.gz"
}
# One line that may stand in a table, whatever a program wrote.
in_a_row() { tr '\n\t|' '  /' | LC_ALL=C tr -cd '\040-\176' | cut -c1-400 | sed 's/[ ;]*$//'; }
# The log, or its two ends where it is long.
shorten() {
    local bytes
    bytes=$(wc -c <"$1")
    if [ "$bytes" -le 2097152 ]; then cat "$1"; else
        head -c 1048576 "$1"
        printf '\n... %s bytes left out ...\n' $((bytes - 2097152))
        tail -c 1048576 "$1"
    fi
}
# Ends what a step has left running: ranks are in process groups of their own. They are known by a word in their environment.
sweep() {
    grep -lszxF "GPU_CHECK=$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3 | xargs -r kill -KILL 2>/dev/null
}

run_step() { # NAME LIMIT COMMAND SHOWS
    local name=$1 seconds=$2 shows=$4 from=$SECONDS code result why took
    rm -f "$work/why" "$work/details/$name.md"
    mark=$$-$name
    state="Running."
    write_report "| $name | $shows | running | | since $(date -u +%H:%M:%SZ), $seconds s at most |"
    : >"$out/running.log"
    GPU_CHECK=$mark timeout -k 5 "$seconds" bash "$self" "$part" "$out" --inside "$name" --python "$python" --work "$work" \
        ${fake:+--fake "$fake"} >"$out/running.log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    code=$?
    sweep
    child='' took=$((SECONDS - from))
    why=$(in_a_row 2>/dev/null <"$work/why")
    case $code in
    0) result=ok ;;
    77) result=skipped ;;
    3) result=slow ;;
    124 | 137) result=failed why="stopped after $took s${why:+; $why}; the last it said: $(tail -n 1 "$out/running.log" | in_a_row)" ;;
    1) result=failed ;;
    *) result=failed why="exit $code${why:+; $why}; the last it said: $(tail -n 1 "$out/running.log" | in_a_row)" ;;
    esac
    [ "$result" != failed ] || {
        failed=1
        # shellcheck disable=SC2016
        printf '\n## The end of the log of %s\n\n```\n%s\n```\n' "$name" "$(tail -n 30 "$out/running.log" | cut -c1-300 | LC_ALL=C tr -cd '\012\040-\176')"
    } >>"$work/details/$name.md"
    shorten "$out/running.log" >"$work/logs/$part-$name.log"
    rm -f "$out/running.log"
    printf '%-8s %-18s %4d s  %s\n' "$result" "$name" "$took" "$why"
    printf '| %s | %s | %s | %d s | %s |\n' "$name" "$shows" "$result" "$took" "$why" >>"$rows"
    keep_logs
}

child='' mark='' failed=0
# shellcheck disable=SC2317
cut_off() {
    [ -z "$child" ] || kill "$child" 2>/dev/null
    [ -z "$mark" ] || sweep
    state="**Cut off by a signal after $((SECONDS - start)) s.**"
    write_report
    exit 1
}
trap cut_off INT TERM HUP

while IFS='|' read -r -u 9 _ name seconds command shows; do
    left=$((limit - SECONDS))
    if [ "$left" -lt 10 ]; then
        printf '| %s | %s | not run | | the %s minutes of this part were over: --only %s |\n' "$name" "$shows" "$minutes" "$name" >>"$rows"
        printf '%-8s %-18s\n' 'not run' "$name"
        continue
    fi
    [ "$seconds" -le "$most" ] || seconds=$most
    # What timeout needs to kill a step that does not listen counts as well.
    [ "$seconds" -le $((left - 6)) ] || seconds=$((left - 6))
    run_step "$name" "$seconds" "$command" "$shows"
done 9< <(chosen)
state="Ended after $((SECONDS - start)) s."
write_report
awk -F' *[|] *' '{ n[$4]++ } END { sep = ""; for (r in n) { printf "%s%d %s", sep, n[r], r; sep = ", " } }' "$rows"
echo "; $out/report.md, logs in $out/logs.tar.gz"
exit "$failed"
