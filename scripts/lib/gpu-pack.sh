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
    "$@" >"$log" 2>&1 </dev/null || { echo "failed; $log:"; tail -n 20 "$log"; exit 1; }
    echo "$((SECONDS - from)) s"
}

# What the same jobs give on the CPU, by $program; into $reference.
make_reference() {
    local name
    work=$home/cpu inside=reference
    rm -rf "$reference" "$work"
    mkdir -p "$reference" "$work"
    quick=1 take_job small
    train small --set device.kind=cpu || exit
    losses "$work/small" >"$reference/small.txt"
    [ "$rehearsal$fake" != 0 ] || {
        for name in train t10k; do
            "$program" convert idx "$top/data/mnist/$name-images-idx3-ubyte.gz" "$top/data/mnist/$name-labels-idx1-ubyte.gz" \
                --output "$home/mnist/${name/t10k/test}" --force || exit
        done
        quick=0
    }
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
    [ "$quick" = 1 ] || quietly 'building' make -C "$top" "BUILD=$build" -j"$(nproc)" all check-units
    for from in "$program" "$top"/configs/*.yaml "$here/lib/gpu-steps.sh"; do
        [ "$reference/done" -nt "$from" ] || { (quietly 'what the CPU computes' make_reference) && break; } || exit
    done
}

make_pack() {
    local stage from=$SECONDS level=-6
    export ARCHIVE=0 # of the bundle itself, which is put into this one
    mkdir -p "$home"
    stage=$(mktemp -d) || exit
    # shellcheck disable=SC2064
    trap "rm -rf '$stage'" EXIT
    make_ready
    if [ "$rehearsal" = 1 ]; then
        level=-0
        mkdir "$stage/build"
        cp -p "$program" "$stage/build"
        quietly 'bundle' make -C "$top" "BUILD=$stage/build" -o "$stage/build/dptrain" bundle
    else
        # Plain C is enough for the little that the CPU does there, and oneDNN would be half of the archive.
        build=$home/build tests=$build/tests
        # shellcheck disable=SC2046
        quietly "building for sm_${arch// /, sm_}" make -C "$top" "BUILD=$build" -j"$(nproc)" ONEDNN=0 CUDA=1 "CUDA_ARCHS=$arch" all \
            $(test_programs | sed "s,^,$build/tests/,")
        quietly 'bundle' make -C "$top" "BUILD=$build" ONEDNN=0 CUDA=1 "CUDA_ARCHS=$arch" bundle
        ln -s "$build" "$stage/build"
    fi
    quietly 'archive' fill_archive "$stage" "$level"
    printf '%s: %s MiB, %s MiB unpacked, in %d s. In an empty folder: tar -xf %s && bash gpu-check.sh a OUT\n' "$pack" \
        "$(($(wc -c <"$pack") / 1048576))" "$(du -sm "$stage/pack" | cut -f1)" $((SECONDS - from)) "${pack##*/}"
}

fill_archive() { # STAGE LEVEL
    local to=$1/pack name library
    set -e
    mkdir -p "$to"/{lib,bench,tests,configs}
    cp "$self" "$to/gpu-check.sh"
    cp "$here"/lib/{gpu-steps.sh,mpi-env.sh} "$to/lib"
    cp "$here"/bench/{gpu_peers,torch_ddp,jax_pmap}.py "$to/bench"
    cp "$top"/configs/{linreg,mnist-mlp,mnist-cnn}.yaml "$to/configs"
    cp -r "$reference" "$to"
    cp -r "$(echo "$1"/build/dist/dptrain-*-"$(uname -m)")" "$to/bundle"
    if [ "$rehearsal" = 1 ]; then cp -rL "$tests/fakegpu" "$to/tests"; else cp -r "$home/mnist" "$to"; fi
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
    tar -C "$to" --sort=name --owner=0 --group=0 --numeric-owner -c . | xz -T0 "$2" >"$pack.tmp"
    mv "$pack.tmp" "$pack"
}
