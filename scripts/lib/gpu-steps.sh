# shellcheck shell=bash disable=SC2154
# What the steps of scripts/gpu-check.sh do, each in a process of its own: sourced there, with its variables. A step prints its log
# and ends with `seen STATE TEXT`: TEXT is what its row says was seen.

seen() {
    printf '%s\n' "$2" >"$work/why"
    case $1 in
    ok) exit 0 ;;
    slow) exit 3 ;;
    skipped) exit 77 ;;
    *) exit 1 ;;
    esac
}
# More for the report, below the table: of this step, or of the whole part.
detail() { cat >>"$work/details/${1:-$inside}.md"; }
# shellcheck disable=SC2016
block() { printf '\n## %s\n\n```\n%s\n```\n' "$1" "$(cut -c1-200)"; }
last_line() { tail -n 1 "$1" | tr -d '\r'; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# --- libraries and kernels --------------------------------------------------------------------------------------------

# The files of CUDA and cuDNN that a job opens, in the folders in which the program looks for them.
library_files() {
    {
        tr ':' '\n' <<<"${DPTRAIN_CUDA_PATH:-}:${CUDNN_ROOT:+$CUDNN_ROOT/lib:$CUDNN_ROOT/lib64}:${CUDA_HOME:+$CUDA_HOME/lib64}:${LD_LIBRARY_PATH:-}"
        [ -n "$fake" ] || {
            echo /usr/local/cuda/lib64
            ldconfig -p 2>/dev/null | sed -n 's,^.*=> \(.*\)/lib\(cudnn\|cublasLt\)[.]so.*,\1,p'
            # Where pip has put them.
            "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' 2>/dev/null | sed 's,$,/nvidia,'
        }
    } | sed '/^$/d' | sort -u | while read -r folder; do
        find "$folder/" -maxdepth 3 \( -name 'libcudnn*.so.*' -o -name 'libcublasLt.so.*' -o -name 'libnvrtc*.so.*' \) 2>/dev/null
    done | xargs -r -d '\n' readlink -f | sort -u
}
# Reads them, so that the steps find them in memory.
read_ahead() { library_files | xargs -r -d '\n' -n 1 -P 4 cat >/dev/null; }

libraries() {
    nvidia-smi 2>/dev/null
    echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} CUDA_HOME=${CUDA_HOME:-} CUDNN_ROOT=${CUDNN_ROOT:-} DPTRAIN_CUDA_PATH=${DPTRAIN_CUDA_PATH:-}"
    library_files
    "$program" --version 2>&1 | tee "$work/version.txt"
    "$program" doctor >"$work/doctor.txt" 2>&1
    cat "$work/doctor.txt"
    {
        nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,clocks.max.sm,power.limit --format=csv 2>/dev/null
        cat "$work/version.txt"
        sed -n '/^GPU/,/^$/p' "$work/doctor.txt"
    } | block 'The machine' | detail
    if ! grep -q '^backend cuda: .* GPU' "$work/version.txt" || ! grep -q '^  ok  *device 0' "$work/doctor.txt"; then
        seen failed "$(grep -h -m 1 -iE '^backend cuda|FAIL.*(driver|cudnn|cublas|device)' "$work/version.txt" "$work/doctor.txt")"
    fi
    seen ok "$(sed -n 's/^  ok  *device 0 *//p' "$work/doctor.txt"); $(sed -n 's/^backend cuda: //p' "$work/version.txt")"
}

unit() { # PROGRAM
    local file=$tests/$1 log=$work/unit.txt rc passed failed
    [ -x "$file" ] || seen failed "$file is not there: make check-units"
    "$file" 2>&1 | tee "$log"
    rc=${PIPESTATUS[0]}
    passed=$(grep -ac '^\[ *OK \]' "$log")
    failed=$(grep -aE '^\[ *FAILED *\] [a-z_]+$' "$log" | awk '{ print $NF }' | sort -u | paste -sd' ')
    if [ "$rc" != 0 ]; then
        seen failed "exit $rc, $passed passed${failed:+, failed: $failed}; $(grep -av '^\[' "$log" | grep -am1 -iE 'error|differ|not |fail')"
    elif [ "$passed" = 0 ]; then
        seen failed "nothing ran: $(grep -av '^\[' "$log" | head -n 1)"
    fi
    seen ok "$passed tests; $(grep -haE ' plans$| on the device;| plans are ' "$log" | tail -n 1)"
}

# Own kernels only: the libraries' are not ours to mend, and the driver's errors are checked where they are made.
sanitize() { # TOOL
    local file options=()
    command -v compute-sanitizer >/dev/null || seen skipped "compute-sanitizer is not installed"
    compute-sanitizer --version
    ! compute-sanitizer --help | grep -q -e '--kernel-name ' || options=(--kernel-name kernel_substring=dpt_cuda)
    # One launch in ten is enough for it, and takes a tenth of the time.
    for file in test_cuda_device_layers test_cuda_device_arena test_cuda_device_sums; do
        DPT_CUDA_EVERY=10 compute-sanitizer --tool "$1" --error-exitcode 9 --report-api-errors no "${options[@]}" "$tests/$file" ||
            seen failed "$file: exit $?, see the log"
    done
    seen ok "clean in the kernels' tests"
}

# --- jobs ---------------------------------------------------------------------------------------------------------------

small() { # NAME
    local samples=256 shape='1, 8, 8' batch='global: 32, micro: 8' steps=32 lr=1.0e-2 model
    model='type: sequential, layers: [{conv: {channels: 6, padding: same}}, relu, {maxpool: 2}, flatten, {dense: 16}, relu, {dense: 10}]'
    if [ "$1" = resnet20 ]; then
        model='type: resnet, depth: 20, outputs: 10' shape='3, 8, 8' batch='global: 16' samples=64 steps=8 lr=1.0e-3
        [ "$quick" = 1 ] || shape='3, 32, 32' batch='global: 64' samples=256 steps=16
    fi
    cat <<END
name: $1
seed: 1
data: {train: synthetic, test: synthetic, synthetic: {samples: $samples, shape: [$shape], classes: 10}}
model: {$model}
loss: cross_entropy
batch: {$batch}
optimizer: {type: adam, lr: $lr}
train: {steps: $steps}
checkpoint: {every: $((steps / 2)) steps}
log: {every: $((steps / 8)) steps}
END
}

# MNIST in $home/mnist, made of the files in $mnist where it is not there yet.
take_mnist() {
    local name
    ! compgen -G "$home/mnist/test-*.h5" >/dev/null || return 0
    [ -n "$mnist" ] || seen failed "this archive has no MNIST: --mnist DIR names the folder with its four .gz files"
    for name in train t10k; do
        "$program" convert idx "$mnist/$name-images-idx3-ubyte.gz" "$mnist/$name-labels-idx1-ubyte.gz" \
            --output "$home/mnist/${name/t10k/test}" --force 2>&1 | tee "$work/mnist.txt"
        [ "${PIPESTATUS[0]}" = 0 ] || seen failed "$(last_line "$work/mnist.txt")"
    done
}
mnist() {
    [ "$quick$mnist" != 1 ] || seen skipped "a rehearsal works without MNIST"
    take_mnist
    seen ok "$(cat "$home"/mnist/*.h5 | wc -c) bytes in $home/mnist"
}

# The job of that name in $job, with MNIST where it needs it; the small one instead in a rehearsal.
job='' job_words=()
take_job() { # NAME
    job=$top/configs/$1.yaml job_words=()
    case $quick$1 in 0mnist*) take_mnist ;; esac
    case $quick$1 in
    0mnist*) job_words=(--set "data.train=$home/mnist/train-*.h5" --set "data.test=$home/mnist/test-*.h5") ;;
    0linreg) ;;
    *) job=$work/$1.yaml; small "$1" >"$job" ;;
    esac
}
# train FOLDER [OPTION...]: runs the job in $work/FOLDER; what it prints goes to FOLDER.txt too.
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
# The first and the last loss while it trained.
losses() { sed -n 's/.*"event": "train".*"loss": \([0-9.e+-]*\).*/\1/p' "$1/metrics.jsonl" | sed -n '1p; $p' | paste -sd' '; }
given() { # FILE of the reference
    [ -s "$reference/$1" ] || seen failed "$reference/$1 is missing, with which this is to be compared"
    cat "$reference/$1"
}
# near A B BY [SCALE]: they differ by at most BY times SCALE, which is B if left out.
near() { awk -v a="$1" -v b="$2" -v by="$3" -v s="${4:-$2}" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && b != "" && d <= by * (s < 0 ? -s : s)) }'; }

small_job() { # PRECISION [resnet20]
    local name=${2:-small} first last cpu by scale
    take_job "$name"
    cpu=$(given "$name.txt") || exit
    train "$name-$1" --set device.kind=cuda --set "device.precision=$1" || seen failed "$(last_line "$work/$name-$1.txt")"
    read -r first last < <(losses "$work/$name-$1")
    # fp16 leaves the first updates out until its loss scale fits, so only the fall of its loss is looked at. That of resnet20 is
    # nearly nothing in the end, so it is measured by where it began.
    case $1 in fp32) by=0.001 ;; tf32) by=0.02 ;; bf16) by=0.1 ;; fp16) by='' ;; esac
    scale=${cpu#* }
    [ "$name" = small ] || scale=${cpu% *}
    if [ -n "$by" ]; then near "$last" "${cpu#* }" "$by" "$scale"; else awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a) }'; fi ||
        seen failed "the loss went from $first to $last, on the CPU from ${cpu/ / to }"
    seen ok "loss from $first to $last, on the CPU from ${cpu/ / to }; $(sed -n 's/^ *device *//p' "$work/$name-$1.txt" | head -n 1)"
}

# From a cache without plans, and once more from the cache that this left.
start_up() { # MODEL
    local plans from text=''
    rm -rf "$work/plans"
    speed_job "$1" $((quick ? 8 : 64)) 2 >"$work/start-up.yaml"
    job=$work/start-up.yaml
    for plans in measured kept; do
        from=$(now)
        XDG_CACHE_HOME=$work/plans train start-up --verbose --set device.kind=cuda --set device.precision=bf16 ||
            seen failed "$(last_line "$work/start-up.txt")"
        text+="; plans $plans: $(sed -n 's/^ *started in //p' "$work/start-up.txt"); with 12 steps $(since "$from") s from exec to exit"
    done
    [[ $text = *libraries*libraries* ]] || seen failed "the program does not tell what its start took"
    seen ok "${text#; }"
}

accuracy() { # JOB PRECISION [RANKS CUDA_AWARE]
    local name=$1-$2-${3:-1}-${4:-auto} cpu gpu start
    take_job "$1"
    cpu=$(given "$1.txt") || exit
    start=$(now)
    train "$name" --ranks "${3:-1}" --set device.kind=cuda --set "device.precision=$2" --set "comm.cuda_aware=${4:-auto}" \
        --set checkpoint.every=never || seen failed "$(last_line "$work/$name.txt")"
    gpu=$(result "$work/$name.txt")
    # A job without a test set has its last loss while training.
    [ -n "$gpu" ] || gpu="- $(losses "$work/$name" | cut -d' ' -f2)"
    # As good as: an accuracy at most 0.3 % lower; where there is none, or in the small job, a loss at most 5 % higher.
    awk -v cpu="$cpu" -v gpu="$gpu" -v quick="$quick" 'BEGIN {
        split(cpu, c, " "); split(gpu, g, " ")
        if (c[1] != "-" && !quick) exit !(g[1] >= c[1] - 0.003)
        exit !(g[2] != "" && g[2] <= 1.05 * c[2] + 1e-6) }' || seen failed "accuracy and loss $gpu, on the CPU $cpu"
    seen ok "accuracy and loss $gpu, on the CPU $cpu; $(since "$start") s from exec to exit"
}

# Half of a run, its evaluation, and the rest of it: `half` and `whole` are steps.
half=200 whole=300
halves() {
    take_job mnist-mlp
    job_words+=(--set schedule.type=constant)
    if [ "$quick" = 1 ]; then half=16 whole=32; fi
}
stops() { printf -- '--set\ntrain={steps: %d}\n--set\ncheckpoint.every=%d steps\n' "$1" "$half"; }
half_of() { # KIND FOLDER STEPS [OPTION...]
    local kind=$1 folder=$2 words
    mapfile -t words < <(stops "$3")
    shift 3
    train "$folder" --set "device.kind=$kind" "${words[@]}" "$@" || seen failed "$folder: $(last_line "$work/$folder.txt")"
}
evaluate() { # KIND CHECKPOINT: the loss and accuracy
    "$program" eval "$job" "${job_words[@]}" --checkpoint "$2" --set "device.kind=$1" >"$work/eval.txt" 2>&1
    cat "$work/eval.txt" >&2
    result "$work/eval.txt"
}

interchange() { # FROM TO
    local file=$reference/cpu-half.h5 first second alone
    halves
    if [ "$1" = cuda ]; then
        half_of cuda half "$half"
        file=$work/half/checkpoints/latest
        first=$(evaluate cuda "$file")
        half_of cuda whole "$whole"
        alone=$(result "$work/whole.txt")
    else
        first=$(given cpu-half.txt) || exit
        alone=$(given cpu-whole.txt) || exit
    fi
    second=$(evaluate "$2" "$file")
    near "${second#* }" "${first#* }" 0.001 || seen failed "the checkpoint gives $first on $1, $second on $2"
    half_of "$2" rest "$whole" --resume "$file"
    second=$(result "$work/rest.txt")
    near "${second#* }" "${alone#* }" 0.05 || seen failed "from $1 to $2: $second; all on $1: $alone"
    seen ok "evaluated alike ($first); gone on with: $second, all on $1: $alone"
}

resume() {
    halves
    half_of cuda once "$whole"
    half_of cuda twice "$half"
    "$program" "$job" --output "$work/twice" "${job_words[@]}" --set device.kind=cuda --set "train={steps: $whole}" \
        --set "checkpoint.every=$half steps" || seen failed "it does not go on"
    cmp "$work/once/checkpoints/latest" "$work/twice/checkpoints/latest" || seen failed "the checkpoints differ after $whole steps"
    seen ok "stopped after $half of $whole steps: the same $(wc -c <"$work/once/checkpoints/latest") bytes"
}

reproducible() { # PRECISION RANKS[:pipeline|:optimizer|:gradients|:parameters|:both]...
    local precision=$1 way ranks words said='' steps=300 micro=16
    shift
    take_job mnist-cnn
    if [ "$quick" = 1 ]; then steps=8 micro=8; fi
    for way in "$@"; do
        ranks=${way%:*} words=() said+="${said:+, }$ranks"
        case $way in
        *:pipeline) words=(--set parallel.pipeline=2) said+=' as stages' ;;
        *:optimizer) words=(--set parallel.shard=optimizer) said+=' that divide the update' ;;
        *:gradients) words=(--set parallel.shard=gradients) said+=' that divide the gradients' ;;
        *:parameters) words=(--set parallel.shard=parameters) said+=' that divide the weights' ;;
        *:both) words=(--set parallel.pipeline=2 --set parallel.shard=parameters) said+=' as stages that divide the weights' ;;
        esac
        train "same-$ranks" --ranks "$ranks" --set device.kind=cuda --set "device.precision=$precision" --set comm.reduction=reproducible \
            --set batch.micro="$micro" --set "train={steps: $steps}" --set "checkpoint.every=$steps steps" "${words[@]}" ||
            seen failed "ranks $said: $(last_line "$work/same-$ranks.txt")"
        cmp "$work/same-$1/checkpoints/latest" "$work/same-$ranks/checkpoints/latest" ||
            seen failed "ranks $said: the last one's checkpoint differs from the first one's"
    done
    seen ok "ranks $said: the same $(wc -c <"$work/same-$1/checkpoints/latest") bytes; sums $(sums_of "$work/same-$ranks.txt")"
}
# What summed the gradients, as the header of a run says.
sums_of() { sed -n 's/^  sums *//p; s/^ *\(by NCCL: .*\)/\1/p' "$1" | paste -sd ';'; }

# DPT_RANDOM_SEED in the environment begins with another job; a difference is told with its seed.
random_jobs() { # SECONDS
    local seconds=$1 rc
    "$python" -c 'import h5py, yaml' || seen skipped "Python's h5py or yaml is not installed"
    [ "$quick" = 0 ] || seconds=5
    [ "$packed" = 0 ] || PATH=$top/bundle/bin:$PATH
    DPTRAIN=$program "$python" "$top/core/train/tests/random_jobs.py" --device cuda --seed "${DPT_RANDOM_SEED:-$RANDOM}" --seconds "$seconds" \
        --keep "$work/random-jobs" 2>&1 | tee "$work/random-jobs.txt"
    rc=${PIPESTATUS[0]}
    [ "$rc" = 0 ] || seen failed "$(last_line "$work/random-jobs.txt"); $(grep -m 1 '^DIFFERENCE' "$work/random-jobs.txt")"
    seen ok "$(last_line "$work/random-jobs.txt")"
}

mnist_99() {
    local precision start seconds got text='' met=0
    take_job mnist-cnn
    # The second of a precision finds the measured plans kept.
    for precision in tf32 bf16 bf16; do
        start=$(now)
        train mnist-99 --quiet --set device.kind=cuda --set "device.precision=$precision" --set checkpoint.every=never --set eval.every=never ||
            seen failed "$(last_line "$work/mnist-99.txt")"
        seconds=$(since "$start") got=$(result "$work/mnist-99.txt")
        text="$text; $precision: ${got% *} after $seconds s"
        ! awk -v s="$seconds" -v a="${got% *}" 'BEGIN { exit !(s < 3 && a >= 0.99) }' || met=1
    done
    [ "$met$quick" != 00 ] || seen slow "${text#; }"
    seen ok "${text#; }"
}

# --- speed --------------------------------------------------------------------------------------------------------------

speed_job() { # MODEL BATCH STEPS [RANKS]: a batch per rank
    local shape layers='' convs model classes=10 ranks=${4:-1} samples=$((quick ? 8 * $2 : 16 * 1024))
    convs='{conv: {channels: 32, padding: same}}, relu, {maxpool: 2}, {conv: {channels: 64, padding: same}}, relu, {maxpool: 2}, flatten'
    case $1 in
    mlp) shape=784 layers='{dense: 256}, relu, {dense: 10}' ;;
    mlp4k) shape=784 layers='{dense: 4096}, relu, {dense: 4096}, relu, {dense: 10}' ;;
    cnn) shape='3, 32, 32' layers="$convs, {dense: 10}" ;;
    mnistcnn) shape='1, 28, 28' layers="$convs, {dense: 128}, relu, {dense: 10}" ;;
    resnet50) shape='3, 224, 224' classes=1000 samples=$((quick ? 8 * $2 : 512)) ;;
    esac
    # The libraries that stand in for a GPU compute on the CPU.
    if [ "$quick" = 1 ]; then
        layers=${layers//4096/32} shape=${shape//784/49}
        shape=${shape//32/8} shape=${shape//28/8} shape=${shape//224/8}
    fi
    model="type: sequential, layers: [$layers]"
    [ "$1" != resnet50 ] || model="type: resnet, depth: $((quick ? 20 : 50)), outputs: $classes"
    cat <<END
name: $1
seed: 1
data: {train: synthetic, synthetic: {samples: $((ranks * samples)), shape: [$shape], classes: $classes}}
model: {$model}
loss: cross_entropy
batch: {global: $((ranks * $2)), micro: $2}
optimizer: {type: adam, lr: 1.0e-3}
train: {steps: $((6 * $3))}
checkpoint: {every: never}
log: {every: $3 steps}
END
}

# $work/speed.times has lines of `WHO MODEL BATCH PRECISION MICROSECONDS`, the latest of its kind counts.
speed_table() {
    rm -f "$work/details/speed.md"
    sort -s -k2,2 -k3,3n -k4,4 "$work/speed.times" | awk '
        function flush(    i, row, best) {
            if (key == "") return
            row = "| " key " | " us["dptrain"]
            for (i = 1; i <= n; i++) {
                row = row " | " us[who[i]]
                if (us[who[i]] != "" && (best == "" || us[who[i]] + 0 < best + 0)) best = us[who[i]]
            }
            row = row " | " (best == "" || us["dptrain"] == "" ? "" : sprintf("%.2f", best / us["dptrain"])) " |"
            while (sub(/[|]  [|]/, "| - |", row));
            print row
            split("", us)
        }
        BEGIN {
            n = split("torch-graph torch-compile torch-eager jax", who, " ")
            print "\n## A step, in microseconds\n\nPyTorch captured in a CUDA graph, the same compiled before, and eager; JAX compiled as a whole. Adam;" \
                " their data lies on the device, that of dptrain goes there.\n"
            print "| model | batch | precision | dptrain | PyTorch | compiled | eager | JAX | fastest of them / dptrain |\n|---|---|---|---|---|---|---|---|---|"
        }
        { now = $2 " | " $3 " | " $4; if (now != key) { flush(); key = now } us[$1] = $5 }
        END { flush() }' | detail speed
}

# The microseconds of a run's step. Each block of steps has a line; the median of them but for the first.
step_time() { # FOLDER SAMPLES-PER-STEP
    sed -n 's/.*"event": "train".*"samples_per_s": \([0-9.e+-]*\).*/\1/p' "$work/$1/metrics.jsonl" | tail -n +2 | sort -g |
        awk -v batch="$2" '{ x[NR] = $1 } END { if (NR) printf "%.1f\n", 1e6 * batch / x[int((NR + 1) / 2)] }'
}

speed() { # MODEL
    local batch precision steps size us batches='128 1024' precisions='tf32 bf16' text=''
    job=$work/speed.yaml
    [ "$1" != resnet50 ] || batches='64 256' precisions=bf16
    for batch in $batches; do
        steps=300 size=$batch
        case $1$batch in mlp128) steps=1000 ;; resnet50*) steps=$((2560 / batch)) ;; esac
        [ "$quick" = 0 ] || steps=1 size=$((batch / 64))
        speed_job "$1" "$size" "$steps" >"$job"
        for precision in $precisions; do
            train speed --set device.kind=cuda --set "device.precision=$precision" --quiet || seen failed "$batch $precision: $(last_line "$work/speed.txt")"
            us=$(step_time speed "$size")
            [ -n "$us" ] || seen failed "$batch $precision: no step was timed"
            echo "dptrain $1 $batch $precision $us" >>"$work/speed.times"
            speed_table
            text="$text; $batch $precision $us us"
        done
    done
    seen ok "${text#; }"
}

# Writes each time as it has it, so that what was measured stays where the limit is too short for all.
peers() { # FRAMEWORK [OPTION...]
    local words=() timed=0 rc line
    [ "$quick" = 0 ] || words=(--steps 1 --batches '2,16')
    rm -f "$work/peers.txt"
    "$python" "$here/bench/gpu_peers.py" "$@" "${words[@]}" 2>"$work/peers.err" | while read -r line; do
        echo "$line"
        case $line in "$1"*" "*" "*" "*" "*) ;; *) continue ;; esac
        echo "$line" | tee -a "$work/peers.txt" >>"$work/speed.times"
        speed_table
        echo "as far as ${line#* }" >"$work/why"
    done
    rc=${PIPESTATUS[0]}
    cat "$work/peers.err"
    [ ! -e "$work/peers.txt" ] || timed=$(wc -l <"$work/peers.txt")
    [ "$rc" != 4 ] || seen skipped "$(last_line "$work/peers.err")"
    [ "$rc$((timed > 0))" = 01 ] || seen failed "exit $rc, $timed timed: $(last_line "$work/peers.err")"
    seen ok "$timed timed: the table below"
}

profile() { # MODEL
    local few=() ratio batch=128
    [ "$1" != resnet50 ] || batch=256
    [ "$quick" = 0 ] || few=(--steps 2) batch=8
    speed_job "$1" "$batch" 100 >"$work/profile.yaml"
    "$program" bench "$work/profile.yaml" --quiet --set device.kind=cuda --set device.precision=bf16 "${few[@]}" >"$work/profile.txt" 2>&1 ||
        { cat "$work/profile.txt"; seen failed "$(last_line "$work/profile.txt")"; }
    tee /dev/stderr <"$work/profile.txt" | block "Where the time goes: $1, batch $batch, bf16" | detail
    ratio=$(sed -n 's/.*a step takes \([0-9.]*\) times the sum of its launches.*/\1/p' "$work/profile.txt")
    [ -n "$ratio" ] || seen failed "bench does not say what a step takes beside the sum of its launches"
    [ "$quick" = 1 ] || awk -v a="$ratio" 'BEGIN { exit !(a <= 1.5) }' || seen slow "a step takes $ratio times the sum of its nodes"
    seen ok "a step takes $ratio times the sum of its nodes; table below"
}

counters() { # MODEL
    local words=(--set device.kind=cuda --set device.precision=bf16 --set "train={steps: 4}" --set "log.every=4 steps" --quiet)
    command -v ncu >/dev/null || seen skipped "ncu is not installed"
    ncu --version
    speed_job "$1" 128 100 >"$work/counters.yaml"
    # Once without, so that the plans are chosen and kept and the second run begins with its steps.
    "$program" "$work/counters.yaml" --output "$work/counters-0" "${words[@]}" || seen failed "the job itself fails"
    # A machine that is lent keeps its clocks as they are.
    ncu --clock-control none --target-processes all --graph-profiling node --launch-count 90 --csv \
        --metrics gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,dram__throughput.avg.pct_of_peak_sustained_elapsed \
        "$program" "$work/counters.yaml" --output "$work/counters-1" "${words[@]}" 2>&1 | tee "$work/counters.csv"
    [ "${PIPESTATUS[0]}" = 0 ] || seen failed "$(grep -m 1 '==ERROR==' "$work/counters.csv")"
    seen ok "$(grep -c gpu__time_duration.sum "$work/counters.csv") kernels: the log has their times and loads"
}
