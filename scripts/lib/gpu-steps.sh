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

libraries() {
    local site
    nvidia-smi 2>/dev/null
    echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} CUDA_HOME=${CUDA_HOME:-} CUDNN_ROOT=${CUDNN_ROOT:-} DPTRAIN_CUDA_PATH=${DPTRAIN_CUDA_PATH:-}"
    ldconfig -p 2>/dev/null | grep -E 'libcuda\.so|libcudnn\.so|libcublasLt\.so'
    # Where pip has put them, if the program does not find them by itself.
    for site in $("$python" -c 'import site, sys; print(*site.getsitepackages(), sep="\n")' 2>/dev/null); do
        find "$site"/nvidia -maxdepth 4 \( -name 'libcudnn.so*' -o -name 'libcublasLt.so*' \) 2>/dev/null
    done
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
    for file in test_cuda_device_layers test_cuda_device_arena; do
        DPT_CUDA_EVERY=10 compute-sanitizer --tool "$1" --error-exitcode 9 --report-api-errors no "${options[@]}" "$tests/$file" ||
            seen failed "$file: exit $?, see the log"
    done
    seen ok "clean in the kernels' tests"
}

# --- jobs ---------------------------------------------------------------------------------------------------------------

small() {
    cat <<END
name: small
seed: 1
data: {train: synthetic, test: synthetic, synthetic: {samples: 256, shape: [1, 8, 8], classes: 10}}
model: {type: sequential, layers: [{conv: {channels: 6, padding: same}}, relu, {maxpool: 2}, flatten, {dense: 16}, relu, {dense: 10}]}
loss: cross_entropy
batch: {global: 32, micro: 8}
optimizer: {type: adam, lr: 1.0e-2}
train: {steps: 32}
checkpoint: {every: 16 steps}
log: {every: 4 steps}
END
}

# The job of that name in $job, with MNIST where it needs it; the small one instead in a rehearsal.
job='' job_words=()
take_job() { # NAME
    job=$top/configs/$1.yaml job_words=()
    case $quick$1 in
    0mnist*) job_words=(--set "data.train=$home/mnist/train-*.h5" --set "data.test=$home/mnist/test-*.h5") ;;
    0linreg) ;;
    *) job=$work/$1.yaml; small >"$job" ;;
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
near() { awk -v a="$1" -v b="$2" -v by="$3" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a != "" && b != "" && d <= by * (b < 0 ? -b : b)) }'; }

small_job() { # PRECISION
    local first last cpu by
    quick=1 take_job small
    cpu=$(given small.txt) || exit
    train "small-$1" --set device.kind=cuda --set "device.precision=$1" || seen failed "$(last_line "$work/small-$1.txt")"
    read -r first last < <(losses "$work/small-$1")
    # fp16 leaves the first updates out until its loss scale fits, so only the fall of its loss is looked at.
    case $1 in fp32) by=0.001 ;; tf32) by=0.02 ;; bf16) by=0.1 ;; fp16) by='' ;; esac
    if [ -n "$by" ]; then near "$last" "${cpu#* }" "$by"; else awk -v a="$first" -v b="$last" 'BEGIN { exit !(b < a) }'; fi ||
        seen failed "the loss went from $first to $last, on the CPU from ${cpu/ / to }"
    seen ok "loss $last, the CPU's ${cpu#* }; $(sed -n 's/^ *device *//p' "$work/small-$1.txt" | head -n 1)"
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

reproducible() { # PRECISION
    local ranks steps=300 micro=16
    take_job mnist-cnn
    if [ "$quick" = 1 ]; then steps=8 micro=8; fi
    for ranks in 1 2 4; do
        train "same-$ranks" --ranks "$ranks" --set device.kind=cuda --set "device.precision=$1" --set comm.reduction=reproducible \
            --set batch.micro="$micro" --set "train={steps: $steps}" --set "checkpoint.every=$steps steps" ||
            seen failed "$ranks ranks: $(last_line "$work/same-$ranks.txt")"
        cmp "$work/same-1/checkpoints/latest" "$work/same-$ranks/checkpoints/latest" ||
            seen failed "the checkpoint of $ranks ranks differs from that of one"
    done
    seen ok "the $(wc -c <"$work/same-1/checkpoints/latest") bytes of 1, 2 and 4 ranks are the same"
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

speed_job() { # MODEL BATCH STEPS
    local shape layers convs
    convs='{conv: {channels: 32, padding: same}}, relu, {maxpool: 2}, {conv: {channels: 64, padding: same}}, relu, {maxpool: 2}, flatten'
    case $1 in
    mlp) shape=784 layers='{dense: 256}, relu, {dense: 10}' ;;
    mlp4k) shape=784 layers='{dense: 4096}, relu, {dense: 4096}, relu, {dense: 10}' ;;
    cnn) shape='3, 32, 32' layers="$convs, {dense: 10}" ;;
    mnistcnn) shape='1, 28, 28' layers="$convs, {dense: 128}, relu, {dense: 10}" ;;
    esac
    # The libraries that stand in for a GPU compute on the CPU.
    if [ "$quick" = 1 ]; then
        layers=${layers//4096/32} shape=${shape//784/49}
        shape=${shape//32/8} shape=${shape//28/8}
    fi
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

# $work/speed.times has lines of `WHO MODEL BATCH PRECISION MICROSECONDS`, the latest of its kind counts.
speed_table() {
    rm -f "$work/details/$part.md"
    sort -s -k2,2 -k3,3n -k4,4 "$work/speed.times" | awk '
        function show(x) { return x == "" ? "-" : x }
        function flush() {
            if (key == "") return
            best = us["torch"]; if (best == "" || (us["jax"] != "" && us["jax"] + 0 < best + 0)) best = us["jax"]
            printf "| %s | %s | %s | %s | %s |\n", key, show(us["dptrain"]), show(us["torch"]), show(us["jax"]),
                best == "" || us["dptrain"] == "" ? "-" : sprintf("%.2f", best / us["dptrain"])
            split("", us)
        }
        BEGIN {
            print "\n## A step, in microseconds\n\nPyTorch captured in a CUDA graph, JAX compiled as a whole, Adam, data on the device in both.\n"
            print "| model | batch | precision | dptrain | PyTorch | JAX | faster peer / dptrain |\n|---|---|---|---|---|---|---|"
        }
        { now = $2 " | " $3 " | " $4; if (now != key) { flush(); key = now } us[$1] = $5 }
        END { flush() }' | detail "$part"
}

speed() { # MODEL
    local batch precision steps size us text=''
    job=$work/speed.yaml
    for batch in 128 1024; do
        steps=300 size=$batch
        [ "$batch$1" != 128mlp ] || steps=1000
        [ "$quick" = 0 ] || steps=1 size=$((batch / 64))
        speed_job "$1" "$size" "$steps" >"$job"
        for precision in tf32 bf16; do
            train speed --set device.kind=cuda --set "device.precision=$precision" --quiet || seen failed "$batch $precision: $(last_line "$work/speed.txt")"
            # Each block of steps has a line; the median of them but for the first.
            us=$(sed -n 's/.*"event": "train".*"samples_per_s": \([0-9.e+-]*\).*/\1/p' "$work/speed/metrics.jsonl" | tail -n +2 | sort -g |
                awk -v batch="$size" '{ x[NR] = $1 } END { if (NR) printf "%.1f\n", 1e6 * batch / x[int((NR + 1) / 2)] }')
            [ -n "$us" ] || seen failed "$batch $precision: no step was timed"
            echo "dptrain $1 $batch $precision $us" >>"$work/speed.times"
            speed_table
            text="$text; $batch $precision $us us"
        done
    done
    seen ok "${text#; }"
}

# Writes each time as it has it, so that what was measured stays where the limit is too short for all.
peers() { # FRAMEWORK
    local words=() timed rc line
    [ "$quick" = 0 ] || words=(--steps 1 --batches '2,16')
    "$python" "$here/bench/gpu_peers.py" "$1" "${words[@]}" 2>"$work/peers.err" | while read -r line; do
        echo "$line"
        case $line in "$1 "*" "*" "*" "*) ;; *) continue ;; esac
        echo "$line" >>"$work/speed.times"
        speed_table
        echo "as far as ${line#* }" >"$work/why"
    done
    rc=${PIPESTATUS[0]}
    cat "$work/peers.err"
    timed=$(grep -c "^$1 " "$work/speed.times" 2>/dev/null)
    [ "$rc" != 4 ] || seen skipped "$(last_line "$work/peers.err")"
    [ "$rc$((timed > 0))" = 01 ] || seen failed "exit $rc, $timed timed: $(last_line "$work/peers.err")"
    seen ok "$timed timed: the table below"
}

profile() { # MODEL
    local few=() ratio
    [ "$quick" = 0 ] || few=(--steps 2)
    speed_job "$1" $((quick ? 8 : 128)) 100 >"$work/profile.yaml"
    "$program" bench "$work/profile.yaml" --quiet --set device.kind=cuda --set device.precision=bf16 "${few[@]}" >"$work/profile.txt" 2>&1 ||
        { cat "$work/profile.txt"; seen failed "$(last_line "$work/profile.txt")"; }
    tee /dev/stderr <"$work/profile.txt" | block "Where the time goes: $1, batch 128, bf16" | detail
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
    ncu --target-processes all --graph-profiling node --launch-count 90 --csv \
        --metrics gpu__time_duration.sum,sm__throughput.avg.pct_of_peak_sustained_elapsed,dram__throughput.avg.pct_of_peak_sustained_elapsed \
        "$program" "$work/counters.yaml" --output "$work/counters-1" "${words[@]}" 2>&1 | tee "$work/counters.csv"
    [ "${PIPESTATUS[0]}" = 0 ] || seen failed "$(grep -m 1 '==ERROR==' "$work/counters.csv")"
    seen ok "$(grep -c gpu__time_duration.sum "$work/counters.csv") kernels: the log has their times and loads"
}
