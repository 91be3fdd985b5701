#!/usr/bin/env bash
# Compares dptrain with PyTorch DDP, in turn, in one sitting, and prints Markdown tables of medians, ranges and ratios.
#
#   scripts/bench.sh [--rounds N] [--ranks N] [--batch B] [--models 'cnn mnistcnn mlp linreg'] [--venv DIR] [--only-dptrain]
#
#   --rounds N        pairs of runs a model (5)
#   --ranks N         MPI ranks, and processes of PyTorch (2)
#   --batch B         samples a step, over all ranks (128)
#   --models LIST     which models
#   --venv DIR        a virtual environment with torch; by default build/bench-venv, made where it is not there (needs a network)
#   --only-dptrain    no comparison
#   --reduction       instead of all that: what comm.reduction: reproducible costs beside allreduce, at 1, 2 and 4 ranks,
#                     also for an MLP of 25 million parameters (mlp25m)
#
# It also tells how long `--help` takes, the time from exec to the first step of configs/smoke.yaml, and the peak memory of
# configs/mnist-cnn.yaml on one rank. Nothing is judged here: machines differ, and have slow spells; look at the ranges.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=5 ranks=2 batch=128 models='cnn mnistcnn mlp linreg' venv=build/bench-venv compare=1 reduction=0
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
        exit 0
        ;;
    --only-dptrain)
        compare=0
        shift
        continue
        ;;
    --reduction)
        reduction=1 compare=0 models='linreg mlp cnn mnistcnn mlp25m'
        shift
        continue
        ;;
    --rounds | --ranks | --batch | --models | --venv)
        [ $# -ge 2 ] || { echo "bench.sh: $1 needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    *)
        echo "bench.sh: unknown option $1 (see --help)" >&2
        exit 2
        ;;
    esac
done

./scripts/setup.sh --build
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh
make -s -j"$(nproc)"
if [ $compare = 1 ] && ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
    ./scripts/setup.sh --bench
    echo "installing PyTorch into $venv" >&2
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet torch numpy
fi
work=build/bench
mkdir -p "$work"

# Steps a block, so that a block takes about a second or less.
steps_of() {
    case $1 in
    linreg) echo 1000 ;;
    mlp) echo 200 ;;
    mlp25m) echo 4 ;;
    *) echo 30 ;;
    esac
}

# The job file of a model: the same layers, batch and optimizer as bench/torch_ddp.py.
write_job() {
    local model=$1 steps conv dense shape loss=cross_entropy data=", classes: 10"
    steps=$(steps_of "$model")
    conv='[conv: {channels: 32, kernel: 3, padding: same}, relu, maxpool: 2,
    conv: {channels: 64, kernel: 3, padding: same}, relu, maxpool: 2, flatten'
    case $model in
    cnn) shape='3, 32, 32' dense="$conv, dense: 10]" ;;
    mnistcnn) shape='1, 28, 28' dense="$conv, dense: 128, relu, dense: 10]" ;;
    mlp) shape=784 dense='[dense: 256, relu, dense: 10]' ;;
    mlp25m) shape=784 dense='[dense: 4608, relu, dense: 4608, relu, dense: 10]' ;;
    linreg) shape=5 dense='[dense: 1]' loss=mse data=", outputs: 1, noise: 0.1" ;;
    *)
        echo "bench.sh: no model $model" >&2
        return 2
        ;;
    esac
    cat >"$work/$model.yaml" <<END
name: bench-$model
output: $work/run-$model
data: {train: synthetic, synthetic: {samples: 4096, shape: [$shape]$data}}
model:
  type: sequential
  layers: $dense
loss: $loss
batch: {global: $batch}
optimizer: {type: adam, lr: 1.0e-3}
train: {steps: $((steps * 6))}
checkpoint: {every: never}
log: {every: $steps steps}
END
}

median() {
    sort -g | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}
# "1 234 (1 200 to 1 300)" of the numbers in the input; $1 is their form.
summary() {
    sort -g | awk -v f="$1" '{ v[NR] = $1 }
        END { m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2; printf f " (" f " to " f ")", m, v[1], v[NR] }'
}
# The numbers of one key in the events of one kind.
numbers() {
    sed -n "s/^{\"event\": *\"$2\".*\"$3\": *\([-+0-9.eE]*\).*/\1/p" "$1"
}

run_dptrain() {
    rm -rf "$work/run-$1"
    mpirun -np "$ranks" build/dptrain "$work/$1.yaml" --quiet >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; return 1; }
    numbers "$work/run-$1/metrics.jsonl" train samples_per_s | tail -n +2 | median
}
run_torch() {
    "$venv/bin/python" scripts/bench/torch_ddp.py "$1" --ranks "$ranks" --batch "$batch" --steps "$(steps_of "$1")" \
        2>"$work/torch.log" >"$work/torch.out" || true # gloo may abort while it ends, after the number is told
    sed -n 's/^samples_per_s //p' "$work/torch.out"
}

# The median step time of reproducible over that of allreduce, in turn.
compare_reductions() {
    local model=$1
    : >"$work/ratio"
    for ((round = 1; round <= rounds; round++)); do
        for way in allreduce reproducible; do
            rm -rf "$work/run-$model"
            mpirun -np "$ranks" build/dptrain "$work/$model.yaml" --quiet --set comm.reduction=$way >"$work/$model.log" 2>&1
            numbers "$work/run-$model/metrics.jsonl" train samples_per_s | tail -n +2 | median >"$work/$way"
        done
        paste "$work/allreduce" "$work/reproducible" | awk '{ print $1 / $2 }' >>"$work/ratio"
    done
    summary %.3f <"$work/ratio"
}
if [ $reduction = 1 ]; then
    printf '%s, %s cores; batch %s, %s rounds: step time of reproducible / allreduce\n\n' \
        "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$batch" "$rounds"
    echo "| model | 1 rank | 2 ranks | 4 ranks |"
    echo "|---|---|---|---|"
    for model in $models; do
        write_job "$model"
        row="| $model |"
        for ranks in 1 2 4; do
            row="$row $(compare_reductions "$model") |"
        done
        echo "$row"
    done
    exit 0
fi

printf '%s, %s cores; %s ranks, batch %s, %s rounds\n\n' \
    "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$ranks" "$batch" "$rounds"
if [ $compare = 1 ]; then
    echo "| model | dptrain, samples/s | PyTorch $("$venv/bin/python" -c 'import torch; print(torch.__version__)') DDP, samples/s | ratio |"
    echo "|---|---|---|---|"
else
    echo "| model | dptrain, samples/s |"
    echo "|---|---|"
fi
for model in $models; do
    write_job "$model"
    : >"$work/a" && : >"$work/b" && : >"$work/ratio"
    for ((round = 1; round <= rounds; round++)); do
        ours=$(run_dptrain "$model")
        echo "$ours" >>"$work/a"
        [ $compare = 1 ] || continue
        theirs=$(run_torch "$model")
        [ -n "$theirs" ] || { tail -n 20 "$work/torch.log" >&2; exit 1; }
        echo "$theirs" >>"$work/b"
        awk -v a="$ours" -v b="$theirs" 'BEGIN { print a / b }' >>"$work/ratio"
        printf '%s, round %d of %d: %.0f and %.0f\n' "$model" "$round" "$rounds" "$ours" "$theirs" >&2
    done
    if [ $compare = 1 ]; then
        echo "| $model | $(summary %.0f <"$work/a") | $(summary %.0f <"$work/b") | $(summary %.2f <"$work/ratio") |"
    else
        echo "| $model | $(summary %.0f <"$work/a") |"
    fi
done

now_ms() { awk -v t="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.3f", t * 1000 }'; }
help_times() {
    local start end
    for ((i = 0; i < 20; i++)); do
        start=$(now_ms)
        build/dptrain --help >/dev/null
        end=$(now_ms)
        awk -v a="$start" -v b="$end" 'BEGIN { print b - a }'
    done
}
first_steps() {
    for ((i = 0; i < rounds; i++)); do
        rm -rf "$work/smoke"
        "$@" build/dptrain configs/smoke.yaml --output "$work/smoke" --quiet >"$work/smoke.log" 2>&1
        numbers "$work/smoke/metrics.jsonl" end first_step_s
    done
}
# The most memory that one rank held, as the kernel counts it, in MB. The kernel forgets it with the process: asked often.
peak_memory() {
    local pid kib=0 seen
    rm -rf "$work/memory"
    build/dptrain configs/mnist-cnn.yaml --output "$work/memory" --set batch.global=128 --set train.epochs=null \
        --set train.steps=200 --quiet >/dev/null 2>&1 &
    pid=$!
    while seen=$(sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null) && [ -n "$seen" ]; do
        kib=$seen
        sleep 0.05
    done
    wait "$pid"
    awk -v k="$kib" 'BEGIN { printf "%.0f MB", k * 1.024 / 1000 }'
}

echo
echo "| | |"
echo "|---|---|"
echo "| \`dptrain --help\`, ms | $(help_times | summary %.1f) |"
echo "| exec to the first step of smoke.yaml, 1 rank, s | $(first_steps | summary %.3f) |"
echo "| the same under mpirun -np $ranks, s | $(first_steps mpirun -np "$ranks" | summary %.3f) |"
if compgen -G 'data/mnist/train-*.h5' >/dev/null; then
    echo "| peak memory of mnist-cnn.yaml, 1 rank, batch 128 | $(peak_memory) |"
else
    echo "| peak memory of mnist-cnn.yaml | scripts/demo.sh makes its shards first |"
fi
