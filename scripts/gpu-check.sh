#!/usr/bin/env bash
# shellcheck disable=SC2317,SC2015
# Everything that only a GPU can show: kernels, plans and products against the reference, whole jobs, memory checkers, speed.
# Builds where there is a compiler, runs all steps, and writes one report in Markdown. Exits 77 where there is no GPU, 1 where a step failed.
#
#   scripts/gpu-check.sh [--report FILE] [--steps PATTERN] [--quick] [--peers DIR] [--python PROGRAM] [--data DIR]
#                        [--bundle DIR | --program FILE] [--tests DIR] [--work DIR] [--pack DIR] [--fake DIR] [--list]
#
#   --report FILE     where the report goes (gpu-check.md)
#   --steps PATTERN   only steps whose name it matches as a whole (grep -E): 'kernels|products', 'speed.*'
#   --quick           small synthetic jobs, few steps: a look whether all of it runs
#   --peers DIR       where gpu_step.py is, which times one training step of PyTorch and JAX; without it there is no comparison
#   --python PROGRAM  a Python with torch, jax and optax, for that (python3)
#   --data DIR        MNIST: the shards train-*.h5 and test-*.h5, or the four .gz files (data/mnist)
#   --bundle DIR      what `make bundle` made: nothing is compiled, no MPI is needed on this machine
#   --program FILE    likewise with a program that is built already
#   --tests DIR       the test programs (build/tests, or tests/ beside the bundle)
#   --work DIR        where runs and logs go, and stay (a new temporary folder)
#   --pack DIR        make a folder to take to a machine with a GPU, and end: bundle, test programs, jobs, MNIST, this script
#   --fake DIR        libraries that run on the CPU instead of a GPU's, to try this script
#   --list            print the steps and run nothing
set -uo pipefail
from=$PWD
cd "$(dirname "$0")/.." || exit 2

report=$from/gpu-check.md only='.*' quick=0 peers='' python=python3 data=data/mnist bundle='' program='' tests='' work='' pack='' fake='' list=0
usage() { sed -n '3,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        usage
        exit 0
        ;;
    --quick) quick=1 ;;
    --list) list=1 ;;
    --report | --steps | --peers | --python | --data | --bundle | --program | --tests | --work | --pack | --fake)
        [ $# -ge 2 ] || { echo "gpu-check.sh: $1 needs a value" >&2; exit 2; }
        case $1 in
        --steps) only=$2 ;;
        --python) python=$2 ;;
        *) case $2 in
            /*) printf -v "${1#--}" %s "$2" ;;
            *) printf -v "${1#--}" %s "$from/$2" ;;
            esac ;;
        esac
        shift
        ;;
    *)
        echo "gpu-check.sh: unknown option $1 (see --help)" >&2
        exit 2
        ;;
    esac
    shift
done

# A step a line: its name; the function that does it, with its words; what it shows.
steps() {
    sed 's/ *| */|/g' <<'END'
build            | build                              | it compiles, with the kernels for this GPU
machine          | machine                            | the driver, the libraries and the device are found
library          | unit test_cuda_library             | the libraries open and their errors are told
kernels          | unit test_cuda_device_layers       | layers' and losses' kernels on the device: the host's results, and the reference's
kernels-arena    | unit test_cuda_device_arena        | the same for what goes over arenas and data sets
kernels-update   | unit test_cuda_device_update       | the same for the optimizers
kernels-half     | unit test_cuda_device_fp16         | the same for halves and the loss scale
convolutions     | unit test_cuda_device              | cuDNN's plans in all shapes, precisions and passes against sums written out; same bits twice
algorithms       | unit test_cuda_algorithms          | which of cuBLASLt's algorithms are taken
products         | unit test_cuda_matmul              | cuBLASLt's products and dense layers against plain loops
memcheck         | sanitize memcheck                  | no access beyond an allocation
racecheck        | sanitize racecheck                 | no two threads at the same shared memory
initcheck        | sanitize initcheck                 | nothing is read that was not written
synccheck        | sanitize synccheck                 | barriers are reached by all
linreg           | accuracy linreg fp32               | a whole job as good as on the CPU
mnist-mlp        | accuracy mnist-mlp fp32            | likewise
mnist-cnn        | accuracy mnist-cnn fp32            | likewise
mnist-mlp-bf16   | accuracy mnist-mlp bf16            | likewise, in bf16
mnist-cnn-tf32   | accuracy mnist-cnn tf32            | likewise, in tf32
mnist-cnn-bf16   | accuracy mnist-cnn bf16            | likewise, in bf16
mnist-cnn-fp16   | accuracy mnist-cnn fp16            | likewise, in fp16 with its loss scale
two-ranks        | accuracy mnist-mlp fp32 2 off      | two ranks on one GPU, gradients summed on the host
two-ranks-device | accuracy mnist-mlp fp32 2 auto     | two ranks on one GPU, summed where the probe says
to-cpu           | interchange cuda cpu               | the CPU evaluates and goes on with the GPU's checkpoint
to-gpu           | interchange cpu cuda               | the GPU evaluates and goes on with the CPU's checkpoint
reproducible     | reproducible fp32                  | the same checkpoint from 1, 2 and 4 ranks, bit for bit
reproducible-bf16 | reproducible bf16                 | likewise, in bf16
speed-128-tf32   | speed 128 tf32                     | a step's time beside the peers'
speed-128-bf16   | speed 128 bf16                     | likewise
speed-1024-tf32  | speed 1024 tf32                    | likewise
speed-1024-bf16  | speed 1024 bf16                    | likewise
mnist-99         | mnist_99                           | MNIST to 99 % in under 3 seconds, from exec to exit
where-it-goes    | where_it_goes                      | where a step's time goes, by kernel
kernels-sum      | kernels_sum                        | a step within 1.5 times the kernels' own times
END
}
if [ "$list" = 1 ]; then
    steps | grep -E -- "^($only) *\|" | awk -F'|' '{ printf "%-18s %s\n", $1, $3 }'
    exit 0
fi

# --- the machine ------------------------------------------------------------------------------------------------------------

# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh

# As make has it.
build=${BUILD:-build}

pack_all() {
    set -e
    export CUDA=${CUDA:-1}
    # shellcheck disable=SC2046
    make -j"$(nproc)" all $(basename -a -s .c core/backend/cuda/tests/test_cuda_*.c core/train/tests/test_cuda_*.c | sed "s,^,$build/tests/,")
    make bundle
    rm -rf "${pack:?}"
    mkdir -p "$pack"/{scripts/lib,tests,core/backend/cuda/tests,data}
    cp -r "$build"/dist/dptrain-*-"$(uname -m)" "$pack/bundle"
    cp scripts/gpu-check.sh "$pack/scripts"
    cp scripts/lib/mpi-env.sh "$pack/scripts/lib"
    cp -r configs "$pack"
    cp core/backend/cuda/tests/*.json "$pack/core/backend/cuda/tests"
    find "$build/tests" -maxdepth 1 -name 'test_cuda_*' -exec cp {} "$pack/tests" \;
    # What the test programs load and the bundle does not have yet.
    ldd "$build/tests/test_cuda_device" | awk '/cmocka/ { print $3 }' | xargs -I{} cp {} "$pack/bundle/lib"
    [ ! -d "$data" ] || cp -r "$data" "$pack/data/mnist"
    [ -z "$peers" ] || cp -r "$peers" "$pack/peers"
    echo "$pack: there, scripts/gpu-check.sh --bundle bundle --tests tests"
}
if [ -n "$pack" ]; then
    pack_all
    exit
fi
if [ -n "$fake" ]; then
    # Nothing of the toolkit's may come first.
    unset CUDA_HOME CUDNN_ROOT CUDA_VISIBLE_DEVICES
    LD_LIBRARY_PATH=$(cd "$fake" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
elif ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ] && [ ! -e /dev/dxg ]; then
    echo "gpu-check.sh: there is no NVIDIA GPU on this machine, so nothing was checked"
    exit 77
fi
[ -n "$fake" ] || export DPT_CUDA_TESTS=device

if [ -n "$bundle" ]; then
    bundle=$(cd "$bundle" && pwd) || exit 2
    program=$bundle/bin/dptrain
    : "${tests:=$bundle/../tests}"
fi
: "${tests:=$build/tests}"
compiles=0
if [ -z "$program" ]; then
    compiles=1
    program=$(realpath -m "$build/dptrain")
fi
: "${work:=$(mktemp -d -t gpu-check.XXXXXX)}"
mkdir -p "$work"
work=$(cd "$work" && pwd)

# --- what the steps have in common --------------------------------------------------------------------------------------

# A step ends with `say_why STATE TEXT`: what stands in its row; and prints its log.
say_why() {
    printf '%s\n' "$2" >"$work/why"
    case $1 in
    ok) return 0 ;;
    skipped) return 77 ;;
    *) return 1 ;;
    esac
}
# More for the report, below the table.
detail() { cat >>"$work/details"; }

build() {
    [ "$compiles" = 1 ] || { say_why skipped "a built program was given"; return; }
    command -v make >/dev/null && command -v mpicc >/dev/null || { say_why failed "no make or mpicc here: take a bundle (--pack, --bundle)"; return; }
    make -j"$(nproc)" all check-units || { say_why failed "make failed"; return; }
    "$program" --version | head -n 1 | say_why_from
}
say_why_from() { say_why ok "$(cat)"; }

machine() {
    nvidia-smi 2>/dev/null
    "$program" --version
    "$program" doctor 2>&1
    { echo; echo '## Machine'; echo; echo '```'
        nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit --format=csv 2>/dev/null
        "$program" --version
        "$program" doctor 2>&1 | grep -iE -A2 'gpu|cuda|cudnn'
        echo '```'; } | detail
    # The job's header names the device; it fails where there is none that works.
    tiny_job >"$work/tiny.yaml"
    "$program" "$work/tiny.yaml" --output "$work/tiny" --set device.kind=cuda 2>&1 | tee "$work/tiny.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || { say_why failed "$(tail -n 1 "$work/tiny.txt")"; return; }
    sed -n 's/^ *device *//p' "$work/tiny.txt" | head -n 1 | say_why_from
}

unit() {
    local file=$tests/$1 library=''
    [ -x "$file" ] || { say_why skipped "$file is not here"; return; }
    [ -z "$bundle" ] || library=$bundle/lib:
    LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:-} "$file" 2>&1 | tee "$work/unit.txt"
    local rc=${PIPESTATUS[0]} passed failed skipped
    passed=$(grep -c '^\[ *OK \]' "$work/unit.txt")
    failed=$(grep -cE '^\[ *FAILED *\] [a-z_]+$' "$work/unit.txt")
    skipped=$(grep -cE '^\[ *SKIPPED *\] [a-z_]+$' "$work/unit.txt")
    if [ "$rc" != 0 ]; then
        say_why failed "$passed passed, $failed failed, exit $rc: $(grep -m1 -E 'ERROR|error' "$work/unit.txt" | cut -c1-200)"
    elif [ "$passed" = 0 ]; then
        say_why skipped "$(grep -v '^\[' "$work/unit.txt" | head -n 1)"
    else
        say_why ok "$passed passed, $((skipped / 2)) skipped; $(grep -hE ' plans$| on the device;| plans are ' "$work/unit.txt" | tail -n 1)"
    fi
}

sanitize() {
    local tool=$1 file rc=0
    command -v compute-sanitizer >/dev/null || { say_why skipped "compute-sanitizer is not installed"; return; }
    tiny_job >"$work/tiny.yaml"
    # One launch in ten is enough for it, and takes a tenth of the time.
    for file in test_cuda_device_layers test_cuda_device_arena; do
        [ ! -x "$tests/$file" ] || DPT_CUDA_EVERY=10 LD_LIBRARY_PATH=${bundle:+$bundle/lib:}${LD_LIBRARY_PATH:-} \
            compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests/$file" || rc=$?
    done
    compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 \
        "$program" "$work/tiny.yaml" --output "$work/$tool" --set device.kind=cuda || rc=$?
    [ "$rc" = 0 ] || { say_why failed "exit $rc, see the log"; return; }
    say_why ok "clean: kernels' tests, a small job"
}

# --- jobs ----------------------------------------------------------------------------------------------------------------

tiny_job() {
    cat <<END
name: tiny
seed: 1
data: {train: synthetic, test: synthetic, synthetic: {samples: 256, shape: [1, 8, 8], classes: 10}}
model: {type: sequential, layers: [{conv: {channels: 6, padding: same}}, relu, {maxpool: 2}, flatten, {dense: 16}, relu, {dense: 10}]}
loss: cross_entropy
batch: {global: 32, micro: 8}
optimizer: {type: adam, lr: 1.0e-2}
train: {steps: 16}
checkpoint: {every: 8 steps}
log: {every: 8 steps}
END
}

# The job of that name in $job, with MNIST where it needs it; a small one instead with --quick.
job='' job_words=()
take_job() {
    job=configs/$1.yaml job_words=()
    if [ "$quick" = 1 ]; then
        tiny_job >"$work/$1.yaml"
        job=$work/$1.yaml
        return
    fi
    case $1 in mnist*) ;; *) return ;; esac
    local shards=$data name
    if ! ls "$data"/train-*.h5 >/dev/null 2>&1; then
        shards=$work/mnist
        for name in train t10k; do
            ls "$shards"/"${name/t10k/test}"-*.h5 >/dev/null 2>&1 ||
                "$program" convert idx "$data/$name-images-idx3-ubyte.gz" "$data/$name-labels-idx1-ubyte.gz" \
                    --output "$shards/${name/t10k/test}" || return 1
        done
    fi
    job_words=(--set "data.train=$shards/train-*.h5" --set "data.test=$shards/test-*.h5")
}

# train FOLDER [OPTION...]: the job; its output in FOLDER.txt too.
train() {
    local folder=$work/$1
    shift
    rm -rf "$folder"
    "$program" "$job" --output "$folder" "${job_words[@]}" "$@" 2>&1 | tee "$folder.txt"
    return "${PIPESTATUS[0]}"
}
# "accuracy loss" of a run or an evaluation, from its last lines; accuracy is - where there is none.
result() {
    sed -n 's/^test accuracy \([0-9.]*\), loss \([0-9.e+-]*\).*/\1 \2/p; s/^test loss \([0-9.e+-]*\).*/- \1/p' "$1" | tail -n 1
}
last_loss() { sed -n 's/.*"event": "train".*"loss": \([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl" | tail -n 1; }

accuracy() { # JOB PRECISION [RANKS CUDA_AWARE]
    local name=$1 precision=$2 ranks=${3:-1} aware=${4:-auto} cpu gpu
    take_job "$name" || { say_why skipped "no MNIST in $data"; return; }
    # The CPU's result is found once.
    if [ ! -e "$work/$name-cpu.txt" ] || [ -z "$(result "$work/$name-cpu.txt")$(last_loss "$work/$name-cpu" 2>/dev/null)" ]; then
        train "$name-cpu" --set device.kind=cpu --set checkpoint.every=never || { say_why failed "on the CPU: $(tail -n 1 "$work/$name-cpu.txt")"; return; }
    fi
    train "$name-$precision-$ranks-$aware" --ranks "$ranks" --set device.kind=cuda --set "device.precision=$precision" --set "comm.cuda_aware=$aware" \
        --set checkpoint.every=never || { say_why failed "$(tail -n 1 "$work/$name-$precision-$ranks-$aware.txt")"; return; }
    cpu=$(result "$work/$name-cpu.txt") gpu=$(result "$work/$name-$precision-$ranks-$aware.txt")
    # A job without a test set: the training's last loss.
    [ -n "$cpu" ] || cpu="- $(last_loss "$work/$name-cpu")"
    [ -n "$gpu" ] || gpu="- $(last_loss "$work/$name-$precision-$ranks-$aware")"
    # As good as: accuracy within 0.3 %; in a small job, or one without accuracy, a loss that is no more than 5 % above.
    awk -v cpu="$cpu" -v gpu="$gpu" -v quick="$quick" 'BEGIN {
        split(cpu, c, " "); split(gpu, g, " ")
        if (c[1] != "-" && !quick) exit !(g[1] >= c[1] - 0.003)
        exit !(g[2] != "" && g[2] <= 1.05 * c[2] + 1e-6) }' &&
        say_why ok "accuracy and loss: $gpu; on the CPU: $cpu" || say_why failed "accuracy and loss: $gpu; on the CPU: $cpu"
}

interchange() { # FROM TO
    local from=$1 to=$2 half=200 whole=300 first second alone
    take_job mnist-mlp || { say_why skipped "no MNIST in $data"; return; }
    [ "$quick" = 0 ] || half=8 whole=16
    local plain=(--set schedule.type=constant --set "checkpoint.every=$half steps")
    train "half-$from" --set "device.kind=$from" --set "train={steps: $half}" "${plain[@]}" || { say_why failed "$from: $(tail -n 1 "$work/half-$from.txt")"; return; }
    local file=$work/half-$from/checkpoints/latest
    "$program" eval "$job" "${job_words[@]}" --checkpoint "$file" --set "device.kind=$from" | tee "$work/eval-$from.txt"
    "$program" eval "$job" "${job_words[@]}" --checkpoint "$file" --set "device.kind=$to" | tee "$work/eval-$to.txt"
    first=$(result "$work/eval-$from.txt") second=$(result "$work/eval-$to.txt")
    awk -v a="$first" -v b="$second" 'BEGIN { split(a, x, " "); split(b, y, " "); d = x[2] - y[2]; exit !(x[2] != "" && d * d <= 1e-6 * x[2] * x[2]) }' ||
        { say_why failed "the checkpoint gives $first on $from, $second on $to"; return; }
    train "rest-$from-$to" --resume "$file" --set "device.kind=$to" --set "train={steps: $whole}" "${plain[@]}" || { say_why failed "$to: $(tail -n 1 "$work/rest-$from-$to.txt")"; return; }
    train "whole-$from" --set "device.kind=$from" --set "train={steps: $whole}" "${plain[@]}" || { say_why failed "$from"; return; }
    second=$(result "$work/rest-$from-$to.txt") alone=$(result "$work/whole-$from.txt")
    awk -v a="$alone" -v b="$second" 'BEGIN { split(a, x, " "); split(b, y, " "); d = x[2] - y[2]; exit !(x[2] != "" && d * d <= 0.0025 * x[2] * x[2]) }' ||
        { say_why failed "from $from to $to: $second; all on $from: $alone"; return; }
    say_why ok "evaluated alike ($first); gone on with: $second, all on $from: $alone"
}

reproducible() { # PRECISION
    local ranks steps=300 micro=16 counts='1 2 4'
    take_job mnist-cnn || { say_why skipped "no MNIST in $data"; return; }
    [ "$quick" = 0 ] || steps=8 micro=8 counts='1 2'
    for ranks in $counts; do
        train "same-$1-$ranks" --ranks "$ranks" --set device.kind=cuda --set "device.precision=$1" --set comm.reduction=reproducible \
            --set batch.micro="$micro" --set "train={steps: $steps}" --set "checkpoint.every=$steps steps" --set comm.cuda_aware=auto ||
            { say_why failed "$ranks ranks: $(tail -n 1 "$work/same-$1-$ranks.txt")"; return; }
        cmp "$work/same-$1-1/checkpoints/latest" "$work/same-$1-$ranks/checkpoints/latest" ||
            { say_why failed "the checkpoint of $ranks ranks differs from that of one"; return; }
    done
    say_why ok "the checkpoints of $(wc -c <"$work/same-$1-1/checkpoints/latest") bytes from $counts ranks are the same"
}

# --- speed ---------------------------------------------------------------------------------------------------------------

convs='{conv: {channels: 32, kernel: 3, padding: same}}, relu, {maxpool: 2}, {conv: {channels: 64, kernel: 3, padding: same}}, relu, {maxpool: 2}, flatten'
speed_job() { # MODEL BATCH STEPS
    local shape layers
    case $1 in
    mlp) shape=784 layers='{dense: 256}, relu, {dense: 10}' ;;
    mlp4k) shape=784 layers='{dense: 4096}, relu, {dense: 4096}, relu, {dense: 10}' ;;
    cnn) shape='3, 32, 32' layers="$convs, {dense: 10}" ;;
    mnistcnn) shape='1, 28, 28' layers="$convs, {dense: 128}, relu, {dense: 10}" ;;
    esac
    cat <<END
name: $1
seed: 1
data: {train: synthetic, synthetic: {samples: $((quick ? 8 * $2 : 16 * 1024)), shape: [$shape], classes: 10}}
model: {type: sequential, layers: [$layers]}
loss: cross_entropy
batch: {global: $2}
optimizer: {type: adam, lr: 1.0e-3}
train: {steps: $((6 * $3))}
checkpoint: {every: never}
log: {every: $3 steps}
END
}
# Microseconds a step of a run: the median of its blocks but for the first.
our_step() { # RUN BATCH
    sed -n 's/.*"event": "train".*"samples_per_s": \([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl" | tail -n +2 | sort -g |
        awk -v batch="$2" '{ x[NR] = $1 } END { if (NR) printf "%.1f\n", 1e6 * batch / x[int((NR + 1) / 2)] }'
}
peer_step() { # FRAMEWORK MODE MODEL BATCH PRECISION
    "$python" "$peers/gpu_step.py" --framework "$1" --mode "$2" --model "$3" --batch "$4" --precision "$5" 2>"$work/peer.err" |
        tee -a "$work/peers.txt" | sed -n 's/.* us\/step=\([0-9.]*\).*/\1/p' | tail -n 1
    [ ! -s "$work/peer.err" ] || tail -n 3 "$work/peer.err" >&2
}

speed() { # BATCH PRECISION
    local batch=$1 precision=$2 model steps ours missed='' measured=0 found=0 models='mlp cnn mnistcnn mlp4k'
    [ "$quick" = 0 ] || { models=mlp; batch=$((batch / 32)); }
    { echo; echo "## A step at batch $batch in $precision, µs"; echo
        echo '| model | dptrain | eager | compiled | CUDA graph | JAX | best / ours | eager / ours | goal |'; echo '|---|---|---|---|---|---|---|---|---|'; } | detail
    for model in $models; do
        steps=1000
        [ "$model" != mlp4k ] || steps=300
        [ "$quick" = 0 ] || steps=1
        speed_job "$model" "$batch" "$steps" >"$work/speed.yaml"
        job=$work/speed.yaml job_words=()
        train "speed-$model" --set device.kind=cuda --set "device.precision=$precision" --quiet || { say_why failed "$model: $(tail -n 1 "$work/speed-$model.txt")"; return; }
        ours=$(our_step "$work/speed-$model" "$batch")
        local eager='' compiled='' graph='' jax=''
        if [ -n "$peers" ]; then
            eager=$(peer_step torch eager "$model" "$batch" "$precision")
            compiled=$(peer_step torch compile "$model" "$batch" "$precision")
            graph=$(peer_step torch graph "$model" "$batch" "$precision")
            jax=$(peer_step jax jit "$model" "$batch" "$precision")
        fi
        # Where launches bound it, three times eager and 1.3 times the best of the others; elsewhere as fast as the best of all.
        awk -v model="$model" -v batch="$1" -v ours="$ours" -v eager="$eager" -v compiled="$compiled" -v graph="$graph" -v jax="$jax" '
            function best(a, b) { return a == "" ? b : b == "" ? a : a + 0 < b + 0 ? a : b }
            function show(x) { return x == "" ? "-" : x }
            BEGIN {
                others = best(compiled, best(graph, jax)); all = best(others, eager)
                small = batch == 128 && model != "mlp4k"; verdict = "-"
                if (all != "" && ours != "") {
                    if (small) met = (eager == "" || eager >= 3 * ours) && (others == "" || others >= 1.3 * ours)
                    else met = all >= ours
                    verdict = met ? "met" : "missed"
                }
                printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", model, show(ours), show(eager), show(compiled), show(graph), show(jax),
                    all == "" || ours == "" ? "-" : sprintf("%.2f", all / ours), eager == "" || ours == "" ? "-" : sprintf("%.2f", eager / ours), verdict
            }' | tee "$work/row"
        detail <"$work/row"
        [ -n "$ours" ] || { say_why failed "$model: no step was timed"; return; }
        measured=$((measured + 1))
        ! grep -q '| met |$' "$work/row" || found=$((found + 1))
        ! grep -q '| missed |$' "$work/row" || missed="$missed $model"
    done
    if [ -n "$missed" ]; then
        say_why failed "goal missed:$missed"
    elif [ -z "$peers" ]; then
        say_why ok "$measured timed; no peers (--peers) to compare with"
    elif [ "$found" = 0 ]; then
        say_why failed "none of the peers ran: $(tail -n 1 "$work/peer.err")"
    else
        say_why ok "$found of $measured goals met"
    fi
}

mnist_99() {
    local precision start end seconds got best='' text=''
    take_job mnist-cnn || { say_why skipped "no MNIST in $data"; return; }
    for precision in tf32 bf16 bf16; do
        start=$(date +%s.%N)
        train "mnist-99" --quiet --set device.kind=cuda --set "device.precision=$precision" --set checkpoint.every=never --set eval.every=never ||
            { say_why failed "$(tail -n 1 "$work/mnist-99.txt")"; return; }
        end=$(date +%s.%N)
        seconds=$(awk -v a="$start" -v b="$end" 'BEGIN { printf "%.2f", b - a }')
        got=$(result "$work/mnist-99.txt")
        text="$text; $precision: ${got% *} after $seconds s"
        ! awk -v s="$seconds" -v a="${got% *}" -v q="$quick" 'BEGIN { exit !((s < 3 || q) && (a >= 0.99 || q)) }' || best=$precision
    done
    [ -n "$best" ] && say_why ok "${text#; }" || say_why failed "${text#; }"
}

where_it_goes() {
    local model batch=128 few=() models='mlp cnn mnistcnn mlp4k'
    [ "$quick" = 0 ] || models=mlp batch=8 few=(--steps 2)
    for model in $models; do
        speed_job "$model" "$batch" 100 >"$work/bench.yaml"
        "$program" bench "$work/bench.yaml" --quiet --set device.kind=cuda --set device.precision=bf16 "${few[@]}" >"$work/bench.txt" 2>&1 ||
            { cat "$work/bench.txt"; say_why failed "$model: $(tail -n 1 "$work/bench.txt")"; return; }
        cat "$work/bench.txt"
        { echo; echo "## Where it goes: $model"; echo; echo '```'; cat "$work/bench.txt"; echo '```'; } | detail
    done
    say_why ok "tables below"
}

# The kernels' own times, each timed alone by the device's clock, beside the step's.
kernels_sum() {
    local model models='mlp cnn mnistcnn mlp4k' limit=1.5 few=() ratio text='' missed=''
    [ "$quick" = 0 ] || models=mlp few=(--steps 2) limit=1000
    for model in $models; do
        speed_job "$model" 128 200 >"$work/sum.yaml"
        ratio=$("$program" bench "$work/sum.yaml" --quiet --set device.kind=cuda --set device.precision=bf16 "${few[@]}" |
            sed -n 's/.*a step takes \([0-9.]*\) times the sum of its launches.*/\1/p')
        [ -n "$ratio" ] || { say_why failed "$model: no such line in what bench says"; return; }
        text="$text, $model $ratio"
        awk -v a="$ratio" -v b="$limit" 'BEGIN { exit !(a <= b) }' || missed="$missed $model"
    done
    [ -z "$missed" ] && say_why ok "a step by the sum of its launches: ${text#, }" || say_why failed "above 1.5 times:$missed; ${text#, }"
}

# --- all of it -------------------------------------------------------------------------------------------------------------

# Shown as it goes; each step's log stays in the work folder.
: >"$work/details"
: >"$work/rows"
failed=0
while IFS='|' read -r -u 9 name command shows; do
    rm -f "$work/why"
    start=$SECONDS
    # shellcheck disable=SC2086
    ( $command ) >"$work/$name.log" 2>&1 </dev/null
    case $? in
    0) state=ok ;;
    77) state=skipped ;;
    *) state=failed failed=1 ;;
    esac
    why=$(cat "$work/why" 2>/dev/null)
    printf '%-8s %-18s %4d s  %s\n' "$state" "$name" $((SECONDS - start)) "$why"
    printf '| %s | %s | %s | %d s | %s |\n' "$name" "$shows" "$state" $((SECONDS - start)) "${why//|//}" >>"$work/rows"
    [ "$state" != failed ] || { echo; echo "## Log of $name"; echo; echo '```'; tail -n 30 "$work/$name.log"; echo '```'; } >>"$work/logs.md"
done 9< <(steps | grep -E -- "^($only) *\|")

[ -s "$work/rows" ] || { echo "gpu-check.sh: no step matches '$only' (see --list)" >&2; exit 2; }
{
    echo '# dptrain on a GPU'
    echo
    echo "$(date -u +%Y-%m-%dT%H:%MZ), $(uname -sr)${fake:+, **on the CPU, with libraries that stand in for a GPU**}${quick:+$([ "$quick" = 0 ] || echo ', small jobs only')}."
    echo
    echo '| step | what it shows | result | time | |'
    echo '|---|---|---|---|---|'
    cat "$work/rows"
    cat "$work/details" "$work/logs.md" 2>/dev/null
} >"$report"
awk -F'|' '{ gsub(/ /, "", $4); n[$4]++ } END { printf "%d ok, %d failed, %d skipped", n["ok"], n["failed"], n["skipped"] }' "$work/rows"
echo "; $report, logs in $work"
exit "$failed"
