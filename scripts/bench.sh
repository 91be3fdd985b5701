#!/usr/bin/env bash
# Measures dptrain, in turn with PyTorch, JAX and Keras in one sitting, and prints Markdown tables of medians, ranges and ratios.
#
#   scripts/bench.sh [TABLE...] [--rounds N] [--ranks N] [--batch B] [--models 'cnn mlp'] [--venv DIR] [--only-dptrain]
#
# Tables:
#   speed       samples per second beside those of the fastest peer in fp32 and in bf16: PyTorch (eager, fused, compiled), JAX and
#               Keras (the default; rows as the scripts/bench/README.md has them, ready to be put there)
#   scaling     2 ranks, and 2 threads, beside 1
#   memory      the most that a rank holds
#   start       --help; exec to the first step
#   accuracy    MNIST from exec to exit, and the accuracy reached: three epochs of a CNN, four of a residual net to PyTorch's three;
#               --models mnistcnn or mnistresnet: one of them
#   reduction   what comm.reduction: reproducible costs beside allreduce at 1, 2 and 4 ranks
#   tables      the job that dptrain init writes, on 42 tables, beside MLPs of scikit-learn and Keras, HistGradientBoosting and linear
#               models: accuracy and R2 over --rounds splits; the files of the package ISLP and R's packages modeldata, mlbench and
#               ggplot2 (Debian's r-cran-*), where they are there
#   pictures  the same job on eight sets of 200 to 1 000 images beside the same layers in PyTorch: accuracies over --rounds seeds
#   inference   samples per second of predict and eval beside onnxruntime and PyTorch on the same models, and from exec to exit
#   plan        dptrain plan beside the fact over all configs: a step's time, the most memory
#
# Options:
#   --rounds N        runs of each, in turn (5)
#   --ranks N         MPI ranks, or threads of one rank, and the same for the peers (2)
#   --batch B         samples per step, over all ranks (128)
#   --models LIST     of cnn, mnistcnn, resnet20, resnet18, mlp, mlp4k, mlp25m, linreg; in `speed` also cnn:32, with a batch of its own
#   --venv DIR        a virtual environment with torch, jax and optax, and maybe tensorflow and keras; by default build/bench-venv,
#                     made where it is not there (7 GB from a package index)
#   --only-dptrain    no peers
#   --by-processor    in `inference`: count seconds of the CPUs, not of the clock, if others use the machine, too
#
# Nothing is judged here: machines differ, and have slow spells; look at the ranges.
set -euo pipefail
# shellcheck source=scripts/lib/usage.sh
. "$(dirname "$0")/lib/usage.sh"
cd "$(dirname "$0")/.."

venv=build/bench-venv peers=1 pass=()
while [ $# -gt 0 ]; do
    case $1 in
    --only-dptrain)
        peers=0
        pass+=("$1")
        ;;
    --by-processor) pass+=("$1") ;;
    --rounds | --ranks | --batch | --models | --venv)
        [ $# -ge 2 ] || { echo "bench.sh: $1 needs a value" >&2; exit 2; }
        if [ "$1" = --venv ]; then venv=$2; else pass+=("$1" "$2"); fi
        shift
        ;;
    -*)
        echo "bench.sh: unknown option $1 (see --help)" >&2
        exit 2
        ;;
    *) pass+=("$1") ;;
    esac
    shift
done

./scripts/setup.sh --build
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh
make -s -j"$(nproc)"
case " ${pass[*]-} " in *" reduction "* | *" scaling "* | *" start "*)
    case " ${pass[*]-} " in *" speed "* | *" memory "* | *" accuracy "*) ;; *) peers=0 ;; esac ;;
esac
modules='torch jax optax' packages='torch numpy jax optax' more='tensorflow keras'
if [ "${pass[0]-}" = tables ]; then modules='sklearn pandas h5py' packages='scikit-learn pandas h5py' more='keras jax'; fi
if [ "${pass[0]-}" = pictures ]; then modules='torch sklearn' packages='torch numpy scikit-learn' more=''; fi
if [ "${pass[0]-}" = inference ]; then modules='torch onnxruntime' packages='torch numpy onnxruntime' more=''; fi
if [ $peers = 1 ] && ! "$venv/bin/python" -c "import ${modules// /, }" 2>/dev/null; then
    ./scripts/setup.sh --bench
    echo "installing $packages into $venv" >&2
    python3 -m venv "$venv"
    # shellcheck disable=SC2086 # several words
    "$venv/bin/pip" install --quiet $packages
    # shellcheck disable=SC2086
    [ -z "$more" ] || "$venv/bin/pip" install --quiet $more || echo "bench.sh: without $more" >&2
fi
if [ $peers = 1 ]; then pass+=(--python "$venv/bin/python"); fi
exec python3 scripts/bench/compare.py "${pass[@]}"
