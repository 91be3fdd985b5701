# shellcheck shell=bash disable=SC2154
# The steps of scripts/gpu-check.sh for several GPUs, with the words and variables of gpu-steps.sh: sourced after it.

# 2 4 8: as many of these as there are GPUs, and all of them.
gpu_counts() {
    local n
    for n in 2 4 8; do [ "$n" -gt "$gpus" ] || echo "$n"; done
    case $gpus in 2 | 4 | 8) ;; *) [ "$gpus" -gt 8 ] || echo "$gpus" ;; esac
}
# What doctor has found, by the name of the check.
found() { sed -n "s/.*\"name\": \"$1\"[^}]*\"found\": \"\([^\"]*\)\".*/\1/p" "$work/doctor.txt"; }
doctor() { # RANKS
    "$program" doctor --ranks "$1" --json >"$work/doctor.txt" 2>&1 || { cat "$work/doctor.txt"; seen failed "$1 ranks: $(last_line "$work/doctor.txt")"; }
    cat "$work/doctor.txt"
}

several_gpus() {
    nvidia-smi topo -m 2>/dev/null
    "$program" --version
    doctor "$gpus"
    { nvidia-smi topo -m 2>/dev/null; "$program" doctor --ranks "$gpus" 2>&1 | sed -n '/^GPU/,/^$/p'; } | block 'The GPUs and their links' | detail
    [[ $(found 'NCCL sum') = NCCL* ]] || seen failed "NCCL does not sum: $(found 'NCCL sum')"
    seen ok "$gpus GPUs; $(found "NCCL's links"); $(found "NCCL's network")"
}

# nccl-tests' bus bandwidth is 2 (n - 1) / n of the bytes per second (its doc/PERFORMANCE.md; core/comm/probe.h says why): that of its
# all_reduce_perf can be held beside these, and the speed of a link.
bus_bandwidth() {
    local n text=''
    printf '\n## Sums over the GPUs\n\n| GPUs | by NCCL | by MPI in GPU memory | its links |\n|---|---|---|---|\n' | detail
    for n in $(gpu_counts); do
        doctor "$n"
        printf '| %s | %s | %s | %s |\n' "$n" "$(found 'NCCL sum')" "$(found 'GPU sum')" "$(found "NCCL's links")" | detail
        [[ $(found 'NCCL sum') = NCCL* ]] || seen failed "$n ranks: NCCL does not sum: $(found 'NCCL sum')"
        text+="; $n: $(found 'NCCL sum' | sed 's/.*; //')"
    done
    seen ok "${text#; }"
}

# The largest difference of two checkpoints' weights.
weights_apart() { # FILE FILE
    "$program" inspect "$1" --diff "$2" >"$work/diff.txt" 2>&1
    [ $? -le 1 ] || echo '  /params is not to be compared' >>"$work/diff.txt"
    cat "$work/diff.txt" >&2
    awk '/^  \// { weights = $1 == "/params"; if (NF > 1) bad = 1 }
        /^    / && weights { if ($(NF - 1) !~ /^[0-9.e+-]+$/) bad = 1; if ($(NF - 1) + 0 > most) most = $(NF - 1) + 0 }
        END { print bad ? "inf" : most + 0 }' "$work/diff.txt"
}

# Plain SGD, which makes nothing more of the rounding: Adam divides small gradients by small numbers.
transports() { # PRECISION
    local n way last apart text='' by=0.0001
    [ "$1" = fp32 ] || by=0.01
    take_job small
    for n in $(gpu_counts); do
        for way in nccl mpi; do
            train "by-$way" --ranks "$n" --set device.kind=cuda --set "device.precision=$1" --set "comm.transport=$way" --set batch.micro=4 \
                --set 'optimizer={type: sgd, lr: 1.0e-2}' || seen failed "$n ranks, $way: $(last_line "$work/by-$way.txt")"
        done
        [[ $(sums_of "$work/by-nccl.txt") = *'by NCCL 2'* ]] || seen failed "$n ranks: sums $(sums_of "$work/by-nccl.txt")"
        apart=$(weights_apart "$work/by-nccl/checkpoints/latest" "$work/by-mpi/checkpoints/latest")
        last=$(printf '%.9g %.9g' "$(losses "$work/by-nccl" | cut -d' ' -f2)" "$(losses "$work/by-mpi" | cut -d' ' -f2)")
        if ! near "${last% *}" "${last#* }" "$by" || ! awk -v a="$apart" -v by="$by" 'BEGIN { exit !(a != "inf" && a <= by) }'; then
            seen failed "$n ranks: loss ${last% *} by NCCL, ${last#* } by MPI, weights differ by up to $apart"
        fi
        text+="; $n ranks: loss ${last% *} and ${last#* }, weights differ by up to $apart"
    done
    seen ok "NCCL and MPI, ${text#; }"
}

many_ranks() { # PRECISION
    # shellcheck disable=SC2046
    reproducible "$1" 1 $(gpu_counts) "$gpus:optimizer" "$gpus:gradients" "$gpus:parameters" "$((gpus / 2 * 2)):pipeline" "$((gpus / 2 * 2)):both"
}

# The process of a rank that this step has started.
pid_of() { # RANK
    grep -lszxF "GPU_CHECK=$GPU_CHECK" /proc/[0-9]*/environ | xargs -r grep -lszxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=$1" 2>/dev/null |
        cut -d/ -f3 | head -n 1
}

# A run whose last rank gets SIGKILL after it has saved goes on to where one that was left alone comes.
killed() { # TRANSPORT
    local every=200 words code child pid start took from to apart same
    [ "$quick" = 0 ] || every=16
    take_job small
    words=(--ranks "$gpus" --set device.kind=cuda --set "comm.transport=$1" --set batch.micro=4 --set 'optimizer={type: sgd, lr: 1.0e-2}'
        --set "checkpoint.every=$every steps" --set checkpoint.keep=2 --set "log.every=$every steps")
    rm -rf "$work/killed"
    "$program" "$job" --output "$work/killed" "${words[@]}" --set 'train={steps: 100000000}' --set comm.timeout=20s >"$work/killed.txt" 2>&1 &
    child=$!
    while [ ! -e "$work/killed/checkpoints/latest" ]; do
        kill -0 "$child" 2>/dev/null || { cat "$work/killed.txt"; seen failed "it ended by itself: $(last_line "$work/killed.txt")"; }
        sleep 0.1
    done
    pid=$(pid_of $((gpus - 1)))
    [ -n "$pid" ] || seen failed "rank $((gpus - 1)) is not found"
    start=$(now)
    kill -KILL "$pid"
    wait "$child"
    code=$?
    took=$(since "$start")
    cat "$work/killed.txt"
    grep -qE "^rank $((gpus - 1)) \(.*(died|was killed)" "$work/killed.txt" || seen failed "exit $code after $took s, and rank $((gpus - 1)) is not named: $(last_line "$work/killed.txt")"
    [ "$code" = 71 ] || seen failed "exit $code, not 71: $(last_line "$work/killed.txt")"
    awk -v t="$took" 'BEGIN { exit !(t < 60) }' || seen failed "it took $took s to end"
    from=$(readlink "$work/killed/checkpoints/latest" | sed 's/.*step-0*\([0-9]*\)[.]h5$/\1/')
    to=$((from + every))
    train alone "${words[@]}" --set "train={steps: $to}" || seen failed "alone: $(last_line "$work/alone.txt")"
    "$program" "$job" --output "$work/killed" "${words[@]}" --set "train={steps: $to}" 2>&1 | tee "$work/rest.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || seen failed "it does not go on: $(last_line "$work/rest.txt")"
    apart=$(weights_apart "$work/alone/checkpoints/latest" "$work/killed/checkpoints/latest")
    same="weights that differ by up to $apart"
    ! cmp -s "$work/alone/checkpoints/latest" "$work/killed/checkpoints/latest" || same='the same bytes' apart=0
    [ "$1$apart" = "mpi0" ] || [ "$1" = nccl ] || seen failed "after step $from and $to: $same"
    awk -v a="$apart" 'BEGIN { exit !(a != "inf" && a <= 1e-4) }' || seen failed "after step $from and $to: $same"
    seen ok "exit 71 after $took s, which names the rank; resumed at step $from, at step $to $same as undisturbed"
}

# $work/scaling.times has lines of `WHO MODEL GPUS MICROSECONDS`, the latest of its kind counts.
scaling_table() {
    rm -f "$work/details/scaling.md"
    sort -s -k2,2 -k3,3n "$work/scaling.times" | awk '
        function cell(who) { return us[who] == "" ? "-" : us[who] (one[who] == "" ? "" : sprintf(" (%.0f %%)", 100 * one[who] / us[who])) }
        function flush(    i, row, best, own) {
            if (key == "") return
            row = "| " key " | " cell("dptrain") " | " cell("dptrain-shard")
            for (i = 1; i <= n; i++) {
                row = row " | " cell(who[i])
                if (us[who[i]] != "" && (best == "" || us[who[i]] + 0 < best + 0)) best = us[who[i]]
            }
            own = us["dptrain-shard"] != "" && us["dptrain-shard"] + 0 < us["dptrain"] + 0 ? us["dptrain-shard"] : us["dptrain"]
            print row " | " (best == "" || own == "" ? "-" : sprintf("%.2f", best / own)) " |"
            split("", us)
        }
        BEGIN {
            n = split("torch-graph torch-eager", who, " ")
            print "\n## A step on several GPUs, in microseconds\n\nbf16, Adam; mlp4k 128 samples per GPU, resnet50 256. In brackets what is left of the speed of one GPU." \
                " PyTorch by DistributedDataParallel over NCCL, captured in a CUDA graph, and eager. Divided: parallel.shard: optimizer.\n"
            print "| model | GPUs | dptrain | divided | DDP, graph | DDP, eager | fastest of them / of ours |\n|---|---|---|---|---|---|---|"
        }
        { if ($2 != model) { flush(); key = ""; split("", one); model = $2 }
          now = $2 " | " $3; if (now != key) { flush(); key = now } us[$1] = $4; if ($3 == 1) one[$1] = $4; if ($3 == 1 && $1 == "dptrain") one["dptrain-shard"] = $4 }
        END { flush() }' | detail scaling
}
batch_of() { if [ "$quick" = 1 ]; then echo 2; elif [ "$1" = resnet50 ]; then echo 256; else echo 128; fi; }

# With a second word the GPUs divide the update; one by itself has nothing to divide.
scaling() { # MODEL [optimizer]
    local n us batch steps=200 text='' one=1
    [ -z "${2:-}" ] || one=
    batch=$(batch_of "$1")
    [ "$1" != resnet50 ] || steps=20
    [ "$quick" = 0 ] || steps=1
    job=$work/scaling.yaml
    for n in $one $(gpu_counts); do
        speed_job "$1" "$batch" "$steps" "$n" >"$job"
        train scaling --ranks "$n" --set device.kind=cuda --set device.precision=bf16 --set "parallel.shard=${2:-none}" || seen failed "$n ranks: $(last_line "$work/scaling.txt")"
        us=$(step_time scaling $((n * batch)))
        [ -n "$us" ] || seen failed "$n ranks: no step was timed"
        echo "dptrain${2:+-shard} $1 $n $us" >>"$work/scaling.times"
        scaling_table
        text+="; $n: $us us"
    done
    seen ok "${text#; }; sums $(sums_of "$work/scaling.txt")"
}

ddp() { # MODEL
    local n who us rc few=(--steps 100) count='torch.cuda.device_count()' timed=0
    [ "$1" != resnet50 ] || few=(--steps 20)
    # PyTorch knows nothing of the libraries that stand in for a GPU: a rehearsal is one on CPUs, by gloo.
    [ "$quick" = 0 ] || few=(--steps 1 --device cpu) count=$gpus
    "$python" -c "import sys, torch, torch.distributed; sys.exit(4 * ($count < $gpus))" 2>"$work/ddp.err" ||
        seen skipped "PyTorch with $gpus GPUs is not installed: $(last_line "$work/ddp.err")"
    for n in 1 $(gpu_counts); do
        "$python" -m torch.distributed.run --standalone --nproc-per-node "$n" "$here/bench/gpu_peers.py" torch --models "$1" \
            --batches "$(batch_of "$1")" --precisions bf16 --modes eager,graph "${few[@]}" >"$work/ddp.txt" 2>"$work/ddp.err"
        rc=$?
        cat "$work/ddp.txt" "$work/ddp.err"
        while read -r who _ _ _ us; do
            echo "$who $1 $n $us" >>"$work/scaling.times"
            timed=$((timed + 1))
        done < <(grep '^torch-' "$work/ddp.txt")
        scaling_table
        [ "$rc" = 0 ] || seen failed "$n ranks: exit $rc, $timed timed: $(grep -m 1 -E 'Error|error' "$work/ddp.err")"
        echo "as far as $n GPUs" >"$work/why"
    done
    seen ok "$timed timed: the table below"
}
