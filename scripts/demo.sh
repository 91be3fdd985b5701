#!/usr/bin/env bash
# From a bare machine to a trained and tested network: installs what is missing, builds, makes shards of the MNIST digits
# in data/mnist, trains configs/mnist-cnn.yaml on two MPI ranks. The last line is the test accuracy; exit 1 where it is below 0.985.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
cores=$(nproc)
wanted_accuracy=0.985
run=runs/demo

say "Packages"
./scripts/setup.sh --build
# shellcheck source=scripts/lib/mpi-env.sh
. scripts/lib/mpi-env.sh

say "Building"
make -j"$cores"
./build/dptrain --version | head -n 1

say "Shards: data/mnist/*.gz -> data/mnist/*.h5"
shards() {
    local name=$1 n=$2 i
    for ((i = 0; i < n; i++)); do
        [ -e "data/mnist/$(printf '%s-%05d-of-%05d.h5' "$name" "$i" "$n")" ] || return 1
    done
}
convert() {
    local name=$1 source=$2 n=$3
    shards "$name" "$n" || ./build/dptrain convert idx "data/mnist/$source-images-idx3-ubyte.gz" \
        "data/mnist/$source-labels-idx1-ubyte.gz" --output "data/mnist/$name" --shards "$n"
}
convert train train 4
convert test t10k 1
du -ch data/mnist/*.h5 | tail -n 1 | awk '{print $1 " in data/mnist"}'

say "Training on 2 ranks: mpirun -np 2 build/dptrain configs/mnist-cnn.yaml --output $run"
rm -rf "$run"
mpirun -np 2 build/dptrain configs/mnist-cnn.yaml --output "$run"

# The test set, once more and from the checkpoint: what was saved is what was trained.
say "Testing the checkpoint: build/dptrain eval configs/mnist-cnn.yaml --checkpoint $run/checkpoints/latest"
mpirun -np 2 build/dptrain eval configs/mnist-cnn.yaml --checkpoint "$run/checkpoints/latest" | tee "$run/eval.txt"

accuracy=$(sed -n 's/.*accuracy[^0-9]*\([0-9][0-9.]*\).*/\1/p' "$run/eval.txt" | tail -n 1)
[ -n "$accuracy" ] || { echo "demo.sh: no accuracy in $run/eval.txt" >&2; exit 1; }

say "Next"
cat <<END
  less $run/metrics.jsonl                                   every number of the run, one JSON object a line
  build/dptrain train --help                                  all keys of a job file
  build/dptrain configs/mnist-mlp.yaml --ranks 2              another model, another way to start ranks
  build/dptrain configs/mnist-cnn.yaml --set optimizer.lr=3e-4 --output runs/lr3e-4
  ./scripts/test.sh                                           the tests
END
echo
if ! awk -v a="$accuracy" -v w="$wanted_accuracy" 'BEGIN { exit !(a >= w) }'; then
    echo "test accuracy $accuracy, below $wanted_accuracy"
    exit 1
fi
echo "test accuracy $accuracy"
