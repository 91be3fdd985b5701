#!/usr/bin/env bash
# Shows on a GPU what only a GPU can show, in short parts, each with a report:
#
#   scripts/gpu-check.sh a OUT    4 minutes: libraries, a small job in each precision, captured steps,
#                                 kernels, matrix products
#   scripts/gpu-check.sh b1 OUT   5 minutes: convolution plans, accuracy, byte-identity at any rank
#                                 count and in stages, resuming
#   scripts/gpu-check.sh b2 OUT   4 minutes: the same in other precisions; checkpoints that change
#                                 between GPU and CPU
#   scripts/gpu-check.sh c1 OUT   9 minutes: speed beside PyTorch and JAX, resnet50 too
#   scripts/gpu-check.sh c2 OUT   5 minutes: where a step's time goes, memory checkers
#   scripts/gpu-check.sh m OUT    9 minutes: several GPUs: NCCL beside MPI, the same bytes on 1 to 8,
#                                 a rank that is killed, bandwidth of sums, scaling beside DDP; left
#                                 out, in one line, where there is one GPU
#   scripts/gpu-check.sh --pack FILE.tar.xz [--without-mnist] [--arch 90] [--cuda 12] [--rehearsal]
#
# Several in one call: a+b1, whose minutes are added; b is b1+b2, and `all` is all. Where a command
# may take ten minutes, three do it: a+b1, then c1, then b2+c2; m where there are several GPUs.
#
# OUT/report.md gets a row as each step ends, OUT/logs.tar.gz its log; OUT/running.log is the log of
# the step that runs. Each step ends at a limit of its own and each call at its minutes, so one that
# hangs, crashes or is cut off leaves a whole report of what was done. A table of all steps, their
# results and seconds comes last. The exit code is 0 where all went well, 1 where a step failed, 77
# where there is no GPU, or too few for any step.
#
#   --out DIR         instead of OUT; where neither is given, the environment's OUT
#   --only STEP       these steps alone (a name, or as grep -E has it: 'speed-.*'); their rows are
#                     added to the report that is in OUT already
#   --list            print the steps and run nothing
#   --python PROGRAM  a Python with torch, jax and optax to compare with (python3)
#   --mnist DIR       a folder with MNIST's four .gz files, for an archive that was packed without it
#   --work DIR        where runs and logs lie (build/gpu-check/work; work beside an unpacked archive)
#   --limit SECONDS   no step may take longer
#   --pack FILE       make one archive to take to a machine that has a GPU's driver and Python, and
#                     nothing else: the program without oneDNN, its libraries and Open MPI, the test
#                     programs, MNIST, and what the CPU computes, to compare with. In an empty folder,
#                     with tar and xz or with Python alone:
#                     (tar -xf FILE || python3 -m tarfile -e FILE) && bash gpu-check.sh a OUT
#   --without-mnist   with --pack: without MNIST, which is 9 MiB of the archive
#   --arch NUMBERS    the GPUs whose code it holds: 90 is the H100 and H200, '80 90' the A100 too
#   --cuda 12         with --pack: for drivers older than 580, from 570 on. CUDA_HOME names a toolkit
#                     of CUDA 12.8 or older, CUDNN_ROOT a folder whose include/ has cuDNN's headers
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
part='' out='' only='.*' python=python3 mnist='' work='' fake='' pack='' arch=90 cuda='' most=600
rehearsal=0 without_mnist=0 list=0 inside=''
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit 0 ;;
    --list) list=1 ;;
    --rehearsal) rehearsal=1 ;;
    --without-mnist) without_mnist=1 ;;
    --only | --python | --mnist | --work | --fake | --pack | --arch | --cuda | --limit | --out | --inside)
        [ $# -ge 2 ] || wrong "$1 needs a value"
        case $1 in
        --only) only=$2 ;;
        --python) python=$2 ;;
        --arch) arch=$2 ;;
        --cuda) cuda=$2 ;;
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
case $cuda in '' | 12 | 13) ;; *) wrong "--cuda takes 12 or 13" ;; esac
[ -n "$out" ] || [ -z "${OUT:-}" ] || out=$(realpath -m "$OUT")

# The archive has the program beside this script, a source tree has it in its build folder.
if [ -d "$here/bundle" ]; then
    packed=1 top=$here program=$here/bundle/bin/dptrain tests=$here/tests home=$here
else
    packed=0 top=${here%/*} build=${BUILD:-build}
    [[ $build = /* ]] || build=$top/$build
    program=$build/dptrain tests=$build/tests home=$build/gpu-check
    : "${mnist:=$top/data/mnist}"
fi
: "${work:=$home/work}"
reference=$home/reference
quick=0
[ -z "$fake" ] && [ "$rehearsal" = 0 ] || quick=1 reference=$home/rehearsal

# A line per part: its name, its minutes, what it asks.
parts() {
    sed 's/ *| */|/g' <<'END'
a  | 4 | does it work at all
b1 | 5 | are its results right
b2 | 4 | are they right in other precisions and on several ranks
c1 | 9 | how fast is it
c2 | 5 | where does its time go
m  | 9 | do several GPUs work together, and how fast
END
}
# What the parts are called that were asked for, as an extended regular expression: a+b is a|b.
asked=${part//+/|} asked=${asked//all/.}
minutes='' title='' gpus=''
sum_up() {
    minutes='' title=''
    while [ -n "$part" ] && IFS='|' read -r name each asks; do
        [[ $name =~ ^($asked) && $gpus$name != 1m ]] || continue
        minutes=$((minutes + each)) title+="${title:+; }$asks"
    done < <(parts)
}
sum_up
for name in ${part//+/ }; do
    [[ $name =~ ^(all|a|b1?|b2|c1?|c2|m)$ ]] || wrong "there is no part '$name', only $(parts | cut -d'|' -f1 | paste -sd' ') and all"
done

# A line per step: the part; its name; its limit in seconds; the function of lib/gpu-steps.sh or gpu-several.sh that does
# it; what it shows. The most telling come first.
steps() {
    sed 's/ *| */|/g' <<'END'
a  | libraries       | 90 | libraries                     | the driver, cuDNN and cuBLASLt are found, and there is a GPU that answers
a  | first-job       | 90 | small_job fp32                | a small job from start to end, each step one launch of a captured CUDA graph, comes to the CPU's loss
a  | steps           | 45 | unit test_cuda_steps          | captured steps over random models: same parameters as on the host, gradients in buckets, NaN stops the update
a  | program         | 60 | unit test_cuda_program        | forward and backward over random models agree with plain C in each precision, and NaN is found
a  | kernels         | 40 | unit test_cuda_device_layers  | our kernels for layers and losses compute on the GPU what they compute on the host
a  | kernels-joins   | 45 | unit test_cuda_device_joins   | likewise those for joins and batch norm
a  | kernels-arena   | 30 | unit test_cuda_device_arena   | likewise those that work on all parameters: casts, sums, norms, hashes, gathering of samples
a  | kernels-sums    | 30 | unit test_cuda_device_sums    | likewise sums over rows, over ranks along the tree, and norms in chunks
a  | kernels-update  | 30 | unit test_cuda_device_update  | likewise the optimizers' updates, bit for bit
a  | kernels-fp16    | 30 | unit test_cuda_device_fp16    | likewise those for fp16 and its loss scale
a  | matmul          | 40 | unit test_cuda_matmul         | cuBLASLt's matrix products and dense layers give what plain loops give
a  | graphs          | 75 | unit test_cuda_graphs         | as program, for models whose layers join two values
a  | stages          | 60 | unit test_cuda_stages         | the stages of a pipeline compute the bits of the whole model, with its kernels
a  | job-bf16        | 30 | small_job bf16                | the small job in bf16
a  | job-resnet20    | 60 | small_job bf16 resnet20       | resnet20 with its batch norms in bf16: its loss falls as on the CPU
a  | start-up        | 40 | start_up cnn                  | what getting ready takes: libraries, driver, kernels, cuDNN, plans that are measured and plans that were kept
a  | job-tf32        | 30 | small_job tf32                | the small job in tf32
a  | job-fp16        | 30 | small_job fp16                | the small job in fp16 with its loss scale
a  | algorithms      | 20 | unit test_cuda_algorithms     | which of cuBLASLt's algorithms are taken
a  | errors          | 20 | unit test_cuda_library        | a library that is missing or too old is told in one line
b1 | mnist           | 40 | mnist                         | MNIST is there, or is made of the files in --mnist
b1 | convolutions    | 60 | unit test_cuda_device         | cuDNN's convolutions, four shapes in four precisions, two plans each, against sums written out; same bits twice
b1 | mnist-cnn       | 60 | accuracy mnist-cnn fp32       | MNIST with a CNN: as accurate as on the CPU
b1 | reproducible    | 60 | reproducible fp32 1 2 4       | `comm.reduction: reproducible` writes the same checkpoint from 1, 2 and 4 ranks
b1 | pipeline        | 60 | reproducible bf16 1 2:pipeline | a pipeline of two stages, which share the GPU, writes the checkpoint of one rank
b1 | two-ranks       | 60 | accuracy mnist-mlp fp32 2 off | two ranks share the GPU, gradients are summed in the host's memory: as accurate as on the CPU
b1 | resume          | 60 | resume                        | a run that was stopped and goes on ends with the bytes of one that was never stopped
b1 | mnist-mlp       | 40 | accuracy mnist-mlp fp32       | MNIST with a perceptron: as accurate as on the CPU
b1 | mnist-cnn-bf16  | 40 | accuracy mnist-cnn bf16       | the CNN in bf16: as accurate
b2 | mnist-cnn-tf32  | 40 | accuracy mnist-cnn tf32       | the CNN in tf32: as accurate
b2 | mnist-cnn-fp16  | 40 | accuracy mnist-cnn fp16       | the CNN in fp16: as accurate
b2 | to-cpu          | 60 | interchange cuda cpu          | the CPU evaluates and goes on with the GPU's checkpoint
b2 | to-gpu          | 40 | interchange cpu cuda          | the GPU evaluates and goes on with the CPU's checkpoint
b2 | two-ranks-aware | 60 | accuracy mnist-mlp fp32 2 auto | two ranks, gradients summed in the GPU's memory if MPI can
b2 | reproducible-bf16 | 60 | reproducible bf16 1 2 4     | the same checkpoint from 1, 2 and 4 ranks in bf16
b2 | random-jobs     | 100 | random_jobs 50               | whole jobs drawn from the tables of options: the same bytes on any ranks and after resuming, begun as on the CPU
b2 | mnist-mlp-bf16  | 30 | accuracy mnist-mlp bf16       | the perceptron in bf16: as accurate
b2 | linreg          | 30 | accuracy linreg fp32          | linear regression: the CPU's loss
c1 | speed-cnn       | 60 | speed cnn                     | a step's time of cnn (3x32x32) at batch 128 and 1024, tf32 and bf16
c1 | speed-resnet50  | 100 | speed resnet50               | a step's time of resnet50 (3x224x224) at batch 64 and 256, bf16
c1 | peers-resnet50  | 100 | peers torch --models resnet50 --batches 64,256 --precisions bf16 --modes graph,eager --steps 20 | the same steps of resnet50 in PyTorch, captured in a CUDA graph, and eager
c1 | peers-torch     | 100 | peers torch                  | the same steps of the other models in PyTorch, captured in CUDA graphs, all in one process
c1 | peers-jax       | 150 | peers jax                    | the same steps in JAX, compiled as a whole, all in one process
c1 | compiled-resnet50 | 150 | peers torch --models resnet50 --batches 64,256 --precisions bf16 --modes compile --steps 20 | resnet50 by torch.compile, captured in a CUDA graph
c1 | speed-mlp       | 60 | speed mlp                     | a step's time of mlp (784-256-10)
c1 | speed-mnistcnn  | 60 | speed mnistcnn                | a step's time of mnistcnn (1x28x28)
c1 | speed-mlp4k     | 60 | speed mlp4k                   | a step's time of mlp4k (784-4096-4096-10)
c1 | compiled-torch  | 100 | peers torch --modes compile  | the other models by torch.compile, captured in CUDA graphs
c1 | eager-torch     | 100 | peers torch --modes eager    | the other models as PyTorch computes them by itself
c1 | mnist-99        | 45 | mnist_99                      | MNIST to 99 % in less than 3 s, from exec to exit
c2 | profile-cnn     | 45 | profile cnn                   | where cnn's time goes, each node of its graph repeated by itself; all of a step within 1.5 times their sum
c2 | profile-resnet50 | 60 | profile resnet50             | where resnet50's time goes
c2 | start-up-resnet50 | 60 | start_up resnet50           | what getting ready takes for resnet50
c2 | profile-mlp     | 45 | profile mlp                   | where mlp's time goes
c2 | profile-mnistcnn | 45 | profile mnistcnn             | where mnistcnn's time goes
c2 | profile-mlp4k   | 45 | profile mlp4k                 | where mlp4k's time goes
c2 | counters        | 60 | counters cnn                  | the GPU's own counters for each kernel of one graph of cnn (ncu)
c2 | memcheck        | 60 | sanitize memcheck             | our kernels touch nothing beyond an allocation
c2 | racecheck       | 60 | sanitize racecheck            | no two threads of ours use the same shared memory at once
c2 | initcheck       | 60 | sanitize initcheck            | our kernels read nothing that was not written
c2 | synccheck       | 60 | sanitize synccheck            | barriers in our kernels are reached by all threads
m  | several-gpus    | 60 | several_gpus                  | NCCL is found, connects all GPUs, and what its log says it goes by
m  | transports      | 60 | transports fp32               | a job whose gradients NCCL sums comes to the loss and the weights of one where MPI does, but for rounding
m  | bytes           | 99 | many_ranks fp32               | `comm.reduction: reproducible` writes the same checkpoint from 1, 2, 4 and 8 GPUs, also where they divide the update, or the gradients as well, or the weights, too, or have a stage each of two
m  | killed          | 60 | killed nccl                   | a rank gets SIGKILL: the others end within a minute and name it, and the job goes on to where an undisturbed one comes
m  | bandwidth       | 60 | bus_bandwidth                 | the time of a sum over 2, 4 and 8 GPUs, as nccl-tests counts it
m  | scaling-mlp4k   | 60 | scaling mlp4k                 | a step's time on 1, 2, 4 and 8 GPUs, as many samples per GPU
m  | scaling-mlp4k-shard | 60 | scaling mlp4k optimizer  | likewise of mlp4k whose update the GPUs divide
m  | scaling-resnet50 | 100 | scaling resnet50            | likewise of resnet50
m  | ddp-mlp4k       | 120 | ddp mlp4k                    | the same steps by PyTorch's DistributedDataParallel
m  | ddp-resnet50    | 150 | ddp resnet50                 | likewise of resnet50
m  | killed-mpi      | 60 | killed mpi                    | likewise where MPI sums, with the bytes of the undisturbed job
m  | transports-bf16 | 60 | transports bf16               | NCCL beside MPI in bf16
m  | bytes-bf16      | 90 | many_ranks bf16               | the same checkpoint from 1, 2, 4 and 8 GPUs in bf16
END
}
chosen() { steps | awk -F'|' -v asked="^($asked)" -v only="^($only)\$" -v gpus="$gpus" '$1 ~ asked && $2 ~ only && gpus $1 != "1m"'; }

if [ "$list" = 1 ]; then
    chosen | awk -F'|' '{ printf "%-2s  %-18s %3d s  %s\n", $1, $2, $3, $5 }'
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
if [ -z "$part" ] || [ -z "$out" ]; then wrong "which part, and where to?"; fi
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

# How many GPUs the program sees, in $gpus.
count_gpus() { gpus=$(FAKEGPU_QUIET=1 "$program" --version 2>/dev/null | sed -n 's/^backend cuda: .* \([0-9][0-9]*\) GPUs\{0,1\},.*/\1/p'); }

# --- one step, in a process of its own -------------------------------------------------------------------------------

if [ -n "$inside" ]; then
    # What a step prints is its log; a program that runs wild must not fill the disk.
    ulimit -f 2097152
    # shellcheck source=scripts/lib/gpu-steps.sh
    . "$here/lib/gpu-steps.sh"
    # shellcheck source=scripts/lib/gpu-several.sh
    . "$here/lib/gpu-several.sh"
    [ "$inside" = read_ahead ] || count_gpus
    # shellcheck disable=SC2046,SC2091
    $(steps | awk -F'|' -v name="$inside" '$2 == name { print $4; found = 1 } END { if (!found) print name }')
    exit
fi

# Built, and compared with, before the time of the part begins; an archive brings both along.
[ "$packed" = 1 ] || make_ready

count_gpus
if [ "$gpus" = 1 ]; then
    left_out=$(gpus='' chosen | awk -F'|' '$1 == "m" { print $2 }' | paste -sd' ')
    [ -z "$left_out" ] || echo "gpu-check.sh: one GPU, so part m is left out, which needs two: $left_out"
    [ -n "$(chosen)" ] || exit 77
    sum_up
fi

# A machine that was just started reads some GB of libraries from its disk: that begins here, beside the first steps.
GPU_CHECK=$$-ahead bash "$self" "$part" "$out" --inside read_ahead --python "$python" ${fake:+--fake "$fake"} >/dev/null 2>&1 </dev/null &

# --- the report -------------------------------------------------------------------------------------------------------

mkdir -p "$out" "$work/logs" "$work/details" || exit 1
if [ "$only" = '.*' ]; then rm -rf "$out/report.md" "$work"/details/*; fi
start=$SECONDS begun=$(date -u +%Y-%m-%dT%H:%MZ) limit=$((SECONDS + 60 * minutes - 5)) state=''
rows=$work/rows
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
        awk -F' *[|] *' 'BEGIN { print "speed"; print "scaling" } !seen[$2]++ { print $2 }' "$rows" | while read -r name; do
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
# Again while there are some, since one that was not reached yet may have started another.
sweep() { # MARK
    local pids
    for _ in {1..10}; do
        mapfile -t pids < <(grep -lszxF "GPU_CHECK=$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)
        [ "${#pids[@]}" -gt 0 ] || return 0
        kill -KILL "${pids[@]}" 2>/dev/null
    done
}

run_step() { # NAME LIMIT COMMAND SHOWS
    local name=$1 seconds=$2 shows=$4 from=$SECONDS code result why took
    rm -f "$work/why" "$work/details/$name.md"
    mark=$$-$name
    state="Running."
    write_report "| $name | $shows | running | | since $(date -u +%H:%M:%SZ), $seconds s at most |"
    : >"$out/running.log"
    GPU_CHECK=$mark timeout -k 5 "$seconds" bash "$self" "$part" "$out" --inside "$name" --python "$python" --work "$work" \
        ${mnist:+--mnist "$mnist"} ${fake:+--fake "$fake"} >"$out/running.log" 2>&1 </dev/null &
    child=$!
    wait "$child"
    code=$?
    sweep "$mark"
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
    shorten "$out/running.log" >"$work/logs/$name.log"
    rm -f "$out/running.log"
    printf '%-8s %-18s %4d s  %s\n' "$result" "$name" "$took" "$why"
    printf '| %s | %s | %s | %d s | %s |\n' "$name" "$shows" "$result" "$took" "$why" >>"$rows"
    keep_logs
}

child='' mark='' failed=0
# shellcheck disable=SC2317
cut_off() {
    [ -z "$child" ] || kill "$child" 2>/dev/null
    [ -z "$mark" ] || sweep "$mark"
    sweep "$$-ahead"
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
    # Limits are for a GPU; a rehearsal shares its cores with whatever else runs there.
    [ -z "$fake" ] || seconds=$((3 * seconds))
    [ "$seconds" -le "$most" ] || seconds=$most
    # What timeout needs to kill a step that does not listen counts as well.
    [ "$seconds" -le $((left - 6)) ] || seconds=$((left - 6))
    run_step "$name" "$seconds" "$command" "$shows"
done 9< <(chosen)
state="Ended after $((SECONDS - start)) s."
write_report
sweep "$$-ahead"
echo
# One that was repeated counts as it ended last.
awk -F' *[|] *' '{ line[$2] = sprintf("%-8s %-18s %6s", $4, $2, $5); if (!seen[$2]++) order[++n] = $2; result[$2] = $4 }
    END {
        for (i = 1; i <= n; i++) { print line[order[i]]; count[result[order[i]]]++ }
        for (r in count) { printf "%s%d %s", sep, count[r], r; sep = ", " }
    }' "$rows"
echo "; $out/report.md, logs in $out/logs.tar.gz"
exit "$failed"
