# shellcheck shell=bash disable=SC2154
# What scripts/gpu-check.sh needs before it runs: builds, what the CPU computes, and the archive that has both. Sourced there, with its
# variables.

# shellcheck source=scripts/lib/gpu-steps.sh
. "$here/lib/gpu-steps.sh"

test_programs() { chosen | awk -F'|' '{ split($4, word, " ") } word[1] == "unit" { print word[2] }' | sort -u; }
quietly() { # WHAT COMMAND...
    local log=$home/make.log what=$1
    shift
    printf '%s ... ' "$what"
    local from=$SECONDS
    ("$@") >"$log" 2>&1 </dev/null || { echo "failed; $log:"; tail -n 20 "$log"; exit 1; }
    echo "$((SECONDS - from)) s"
}

# What the same jobs give on the CPU, by $program; into $reference.
make_reference() {
    local name
    work=$reference-work inside=reference
    rm -rf "$reference" "$work"
    mkdir -p "$reference" "$work"
    for name in small resnet20; do
        take_job "$name"
        train "$name" --set device.kind=cpu || exit
        losses "$work/$name" >"$reference/$name.txt"
    done
    [ "$quick" = 1 ] || rm -rf "$home/mnist"
    for name in linreg mnist-mlp mnist-cnn; do
        take_job "$name"
        train "$name" --ranks auto --set device.kind=cpu --set checkpoint.every=never || exit
        result "$work/$name.txt" >"$reference/$name.txt"
        [ -s "$reference/$name.txt" ] || echo "- $(losses "$work/$name" | cut -d' ' -f2)" >"$reference/$name.txt"
    done
    halves
    half_of cpu half "$half"
    cp "$(readlink -f "$work/half/checkpoints/latest")" "$reference/cpu-half.h5"
    evaluate cpu "$reference/cpu-half.h5" >"$reference/cpu-half.txt"
    half_of cpu whole "$whole"
    result "$work/whole.txt" >"$reference/cpu-whole.txt"
    rm -rf "$work"
    date >"$reference/done"
}

# In a source tree: builds it, and computes the reference where that is older than what it comes from.
make_ready() {
    local from
    mkdir -p "$home"
    # A toolkit of --cuda is for the archive alone.
    [ "$quick" = 1 ] || quietly 'building' env ${cuda:+-u CUDA_HOME -u CUDNN_ROOT} make -C "$top" "BUILD=$build" -j"$(nproc)" all check-units
    for from in "$program" "$top"/configs/*.yaml "$here/lib/gpu-steps.sh"; do
        [ "$reference/done" -nt "$from" ] || { (quietly 'what the CPU computes' make_reference) && break; } || exit
    done
}

# The kernels' code and PTX have to suit the driver: with --cuda 12 one for CUDA 12.8, which is 570 and takes PTX up to version 8.7.
check_toolkit() {
    local nvcc=${CUDA_HOME:+$CUDA_HOME/bin/}nvcc release
    [ -n "$cuda" ] || return 0
    release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    [[ $release = "$cuda".* ]] || wrong "--cuda $cuda: $nvcc is of CUDA ${release:-none}; CUDA_HOME names another toolkit"
    [[ $release != 12.9* ]] || wrong "--cuda 12: drivers 570 know nothing of CUDA $release; CUDA_HOME names an older toolkit"
}
# "CUDA 12.4, sm_90, PTX 8.4": what the kernels were compiled for.
kernels_of() { # BUILD
    local kept=$1/kernels.fatbin.kept
    printf 'CUDA %s, %s, PTX %s' "$(sed -n 's,^// Cuda compilation tools\, release \([0-9.]*\)\,.*,\1,p' "$kept"/*.ptx | sort -u | paste -sd' ')" \
        "$(grep -o 'code=sm_[0-9]*' "$1/kernels.fatbin.flags" | cut -d= -f2 | paste -sd' ')" \
        "$(sed -n 's/^[.]version //p' "$kept"/*.ptx | sort -u | paste -sd' ')"
}

make_pack() {
    # Each test program has the kernels, so the window is as large as the archive.
    local stage from=$SECONDS squeeze=(--lzma2=preset=9) kernels=''
    [ "$(uname -m)" != x86_64 ] || squeeze=(--x86 "${squeeze[@]}")
    check_toolkit
    export ARCHIVE=0 # of the bundle itself, which is put into this one
    mkdir -p "$home"
    stage=$(mktemp -d) || exit
    # shellcheck disable=SC2064
    trap "rm -rf '$stage'" EXIT
    make_ready
    if [ "$rehearsal" = 1 ]; then
        squeeze=(-0)
        mkdir "$stage/build"
        cp -p "$program" "$stage/build"
        quietly 'bundle' make -C "$top" "BUILD=$stage/build" -o "$stage/build/dptrain" bundle
    else
        # oneDNN would be half of the archive.
        build=$home/build${cuda:+-cuda$cuda} tests=$build/tests
        # shellcheck disable=SC2046
        quietly "building for sm_${arch// /, sm_}" make -C "$top" "BUILD=$build" -j"$(nproc)" ONEDNN=0 CUDA=1 "CUDA_ARCHS=$arch" all \
            $(test_programs | sed "s,^,$build/tests/,")
        quietly 'bundle' make -C "$top" "BUILD=$build" ONEDNN=0 CUDA=1 "CUDA_ARCHS=$arch" bundle
        ln -s "$build" "$stage/build"
        kernels="$(kernels_of "$build"); "
    fi
    quietly 'archive' fill_archive "$stage" "${squeeze[@]}"
    printf '%s: %s%s MiB, %s MiB unpacked, in %d s. In an empty folder:\n(tar -xf %s || python3 -m tarfile -e %s) && bash gpu-check.sh a+b1 OUT%s\n' \
        "$pack" "$kernels" "$(awk -v n="$(wc -c <"$pack")" 'BEGIN { printf "%.1f", n / 1048576 }')" "$(du -sm "$stage/pack" | cut -f1)" \
        $((SECONDS - from)) "${pack##*/}" "${pack##*/}" "$([ "$without_mnist" = 0 ] || echo ' --mnist DIR')"
}

fill_archive() { # STAGE XZ-OPTION...
    local stage=$1 to=$1/pack name library
    set -e
    shift
    mkdir -p "$to"/{lib,bench,tests,configs,core/train/tests,scripts/lib,cmd/tests}
    cp "$self" "$to/gpu-check.sh"
    cp "$here"/lib/{gpu-steps.sh,gpu-several.sh,mpi-env.sh} "$to/lib"
    cp "$here"/bench/{gpu_peers,torch_ddp,jax_pmap,framework}.py "$to/bench"
    (cd "$top" && cp --parents core/train/tests/{random_jobs,draw_jobs,running}.py scripts/lib/dpt.py cmd/tests/jobs.py "$to")
    cp "$top"/configs/{linreg,mnist-mlp,mnist-cnn}.yaml "$to/configs"
    cp -r "$reference" "$to"
    cp -r "$(echo "$stage"/build/dist/dptrain-*-"$(uname -m)")" "$to/bundle"
    if [ "$rehearsal" = 1 ]; then cp -rL "$tests/fakegpu" "$to/tests"; elif [ "$without_mnist" = 0 ]; then cp -r "$home/mnist" "$to"; fi
    for name in $(test_programs); do
        cp "$tests/$name" "$to/tests"
        strip "$to/tests/$name"
        # The bundle's libraries first; what it lacks comes along as well.
        ldd "$tests/$name" | awk '$2 == "=>" { print $3 }' | while read -r library; do
            [ -e "$to/bundle/lib/${library##*/}" ] || case ${library##*/} in libc.so* | libm.so*) ;; *) cp "$library" "$to/bundle/lib" ;; esac
        done
        # shellcheck disable=SC2016
        patchelf --force-rpath --set-rpath '$ORIGIN/../bundle/lib' "$to/tests/$name"
    done
    mkdir -p "${pack%/*}"
    tar -C "$to" --sort=name --owner=0 --group=0 --numeric-owner -c . | xz -T0 "$@" >"$pack.tmp"
    mv "$pack.tmp" "$pack"
}
