"""Whole jobs with real ranks: the rank count changes who computes, not what."""
import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

LINEAR = "{type: sequential, layers: [flatten, {dense: 16}, {dense: 10}]}"
MLP = "{type: mlp, hidden: [32], outputs: 10}"
CNN = "{type: cnn, channels: [8, 12], outputs: 10}"

JOB = """
seed: 3
data:
  train: synthetic
  synthetic: {{samples: {samples}, shape: {shape}, classes: 10}}
model: {model}
batch: {{global: {batch}, micro: {micro}}}
optimizer: {{type: sgd, lr: {lr}, momentum: 0.9}}
train: {{{length}}}
log: {{every: 1 steps}}
checkpoint: {{every: {save}}}
"""


def job(tmp_path, **keys):
    values = dict(samples=1009, shape="[1, 12, 12]", model=MLP, batch=64, micro=8, lr=0.05,
                  length="steps: 50", save="never")
    values.update(keys)
    return dpt.write_job(tmp_path / "job.yaml", JOB.format(**values))


def gradient(folder):
    """After one step of sgd the momentum is the mean gradient."""
    with h5py.File(os.path.join(folder, "checkpoints", "latest")) as file:
        found = {}
        file["optimizer/momentum"].visititems(
            lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None)
    return np.concatenate([found[name].ravel() for name in sorted(found)])


@pytest.mark.parametrize("model, tolerance", [(MLP, 1e-5), (CNN, 1e-3)], ids=["mlp", "cnn"])
def test_rank_count_changes_nothing(tmp_path, model, tolerance):
    first, losses = {}, {}
    for ranks in (1, 2, 3, 4, 5):
        one = job(tmp_path, model=model, length="steps: 1", save="1 steps")
        dpt.train(one, tmp_path / "one", ranks=ranks)
        first[ranks] = gradient(tmp_path / "one")
        fifty = job(tmp_path, model=model)
        dpt.train(fifty, tmp_path / "fifty", ranks=ranks)
        losses[ranks] = np.array([e["loss"] for e in dpt.events(tmp_path / "fifty", "train")])
        assert len(losses[ranks]) == 50
    scale = np.linalg.norm(first[1])
    assert scale > 0
    for ranks in (2, 3, 4, 5):
        assert np.linalg.norm(first[ranks] - first[1]) <= 1e-5 * scale, ranks
        assert np.max(np.abs(losses[ranks] / losses[1] - 1)) <= tolerance, ranks
    assert losses[1][-1] < 0.7 * losses[1][0]


def test_weights_begin_as_the_job_says(tmp_path):
    """Normal numbers of a deviation, the same on any number of ranks; the resolved job says so, and begins alike."""
    model = "{type: sequential, layers: [flatten, {dense: {outputs: 60, init: {normal: 0.02}}}, relu, {dense: {outputs: 10, init: {normal: 1}}}]}"
    path, found = job(tmp_path, model=model, length="steps: 1", save="1 steps", lr="1.0e-300"), []
    for folder, ranks, name in (("one", 1, path), ("three", 3, path), ("again", 1, tmp_path / "one" / "job.yaml")):
        dpt.train(name, tmp_path / folder, ranks=ranks)
        with h5py.File(tmp_path / folder / "checkpoints" / "latest") as file:
            found.append([file[f"params/dense{i}/{part}"][...] for i in (1, 2) for part in ("weight", "bias")])
    for one, *others in zip(*found):
        assert all((one == other).all() for other in others)
    for array, deviation in ((found[0][0], 0.02), (found[0][2], 1)):
        z = array.ravel() / deviation
        error = 5 / np.sqrt(z.size)
        assert abs(z.mean()) < error and abs(z.std() - 1) < error and abs((z ** 4).mean() - 3) < 10 * error
    assert not found[0][1].any() and not found[0][3].any()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_sample_counts_once_an_epoch(tmp_path, ranks):
    """1009 is prime: the last step has 49 samples in 7 micro-batches, the last of one sample."""
    path = job(tmp_path, length="epochs: 3")
    dpt.train(path, tmp_path / "out", ranks=ranks)
    lines = dpt.events(tmp_path / "out", "train")
    assert lines[-1]["samples"] == 3 * 1009
    assert [e["samples"] for e in lines if e["step"] in (16, 32, 48)] == [1009, 2018, 3027]
    assert [e["epoch"] for e in lines if e["step"] in (16, 17, 32, 33)] == [1, 2, 2, 3]


def test_rank_without_samples_adds_nothing(tmp_path):
    """One sample is left for the last step of an epoch: four of five ranks have none."""
    path = job(tmp_path, samples=65, length="epochs: 2", save="1 epoch")
    dpt.train(path, tmp_path / "one", ranks=1)
    dpt.train(path, tmp_path / "five", ranks=5)
    ours, theirs = ([e["loss"] for e in dpt.events(tmp_path / f, "train")] for f in ("one", "five"))
    assert np.all(np.isfinite(theirs))
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)


def test_threads_change_nothing_but_rounding(tmp_path):
    path = job(tmp_path, model=CNN, length="steps: 10")
    for threads in (1, 3):
        dpt.train(path, tmp_path / str(threads), "--set", f"device.threads={threads}")
    one, three = ([e["loss"] for e in dpt.events(tmp_path / t, "train")] for t in ("1", "3"))
    np.testing.assert_allclose(three, one, rtol=1e-4)


def test_threads_are_as_many_as_pay(tmp_path):
    """A small step takes one; the job's own number counts; a large step takes all cores, shared with the other ranks."""
    cores = len(os.sched_getaffinity(0))

    def threads(name, path, *words, ranks=0):
        dpt.train(path, tmp_path / name, *words, ranks=ranks)
        said = json.loads(dpt.run("plan", path, *words, *(["--ranks", ranks] if ranks else []), "--json").out)["threads"]
        assert dpt.events(tmp_path / name, "run")[0]["threads"] == said
        return said

    small = job(tmp_path, model=LINEAR, length="steps: 2")
    assert threads("small", small) == 1
    assert threads("asked", small, "--set", "device.threads=3") == 3
    # 242e6 and 16e6 operations a step: dense layers want 16e6 a thread, convolutions 1e6.
    large = job(tmp_path, model="{type: mlp, hidden: [2048], outputs: 10}", batch=128, length="steps: 1")
    assert threads("dense", large) == min(cores, 15)
    assert threads("conv", job(tmp_path, model=CNN, length="steps: 1")) == min(cores, 16)
    if cores > 1:
        assert threads("shared", large, ranks=2) == min(cores // 2, 7)


@pytest.mark.parametrize("optimizer", [
    "{type: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 0.001}",
    "{type: adam, lr: 0.003}",
    "{type: adamw, lr: 0.003, weight_decay: 0.05}",
])
def test_same_job_same_bytes(tmp_path, optimizer):
    path = job(tmp_path, length="steps: 20, clip_norm: 0.5", save="20 steps",
               model="{type: sequential, layers: [flatten, {dense: 24}, gelu, {dropout: 0.3}, {dense: 10}]}")
    files = []
    for name in ("a", "b"):
        dpt.train(path, tmp_path / name, "--set", f"optimizer={optimizer}", ranks=2)
        with open(tmp_path / name / "checkpoints" / "latest", "rb") as file:
            files.append(file.read())
    assert files[0] == files[1]


def test_evaluation_counts_each_sample_once(tmp_path):
    path = job(tmp_path, length="steps: 5", save="1 epoch")
    split = ("--set", "data.valid=0.1", "--set", "data.test=synthetic")
    for ranks in (1, 3):
        folder = tmp_path / str(ranks)
        dpt.train(path, folder, *split, ranks=ranks)
        last = [e for e in dpt.events(folder, "eval") if e["split"] == "test"][-1]
        assert last["samples"] == 1009
        for again in (1, 2, 4):
            result = dpt.run("eval", path, "--checkpoint", folder, *split, ranks=again)
            assert result.code == 0, result
            words = result.out.split()
            assert words[:2] == ["test", "accuracy"] and words[-3:-1] == ["1", "009"], result
            assert float(words[2].rstrip(",")) == pytest.approx(last["accuracy"], abs=6e-5)
            assert float(words[4]) == pytest.approx(last["loss"], rel=1e-4)
        held = dpt.run("eval", path, "--checkpoint", folder, "--split", "valid", *split)
        assert held.code == 0 and held.out.strip().endswith("on 101 samples"), held


def test_not_a_number_stops_and_names(tmp_path):
    path = job(tmp_path, model=LINEAR, lr="1.0e6", length="steps: 50", save="1 steps")
    result = dpt.run("train", path, "--output", tmp_path / "out", ranks=2)
    assert result.code == 1, result
    assert result.err.count("not a number") == 1 and "layer dense" in result.err, result
    assert "rank 0 (" in result.err and "sample" in result.err
    end = dpt.events(tmp_path / "out", "end")[-1]
    assert "not a number" in end["reason"]
    with h5py.File(tmp_path / "out" / "checkpoints" / "latest") as file:
        assert np.all(np.isfinite(file["params/dense1/weight"][...])), "the last good one is kept"


def test_not_a_number_skips_where_told(tmp_path):
    """Without an update the weights stay, so every later step is skipped alike and the run ends well."""
    path = job(tmp_path, model=LINEAR, lr="1.0e6", length="steps: 5, on_nan: skip")
    result = dpt.train(path, tmp_path / "out", ranks=2)
    assert "skipped" in result.out and "warning: step" in result.err, result


def test_learning_rate_is_scaled_and_scheduled(tmp_path):
    path = job(tmp_path, length="steps: 20", lr=0.1)
    dpt.train(path, tmp_path / "out", "--set",
              "schedule={type: cosine, warmup: 4, scale_lr: {rule: linear, base_batch: 32}}")
    rates = [e["lr"] for e in dpt.events(tmp_path / "out", "train")]
    want = [0.2 * (i + 1) / 4 for i in range(4)]
    want += [0.2 * (1 + np.cos(np.pi * i / 16)) / 2 for i in range(16)]
    np.testing.assert_allclose(rates, want, rtol=1e-12, atol=1e-15)


def test_checkpoints_are_kept_and_named(tmp_path):
    path = job(tmp_path, length="steps: 10")
    dpt.train(path, tmp_path / "out", "--set", "checkpoint={every: 2 steps, keep: 2}", ranks=2)
    folder = tmp_path / "out" / "checkpoints"
    assert sorted(os.listdir(folder)) == ["latest", "step-00000008.h5", "step-00000010.h5"]
    assert os.readlink(folder / "latest") == "step-00000010.h5"
    with h5py.File(folder / "latest") as file:
        assert dict(file.attrs)["step"] == 10 and dict(file.attrs)["samples"] == 640
        assert file["params/dense1/weight"].shape == (32, 144)
        assert b"momentum" in file["job"][()]
        assert b"\noutput:" not in file["job"][()]


def test_resolved_job_runs_again(tmp_path):
    path = job(tmp_path, length="steps: 3", save="3 steps")
    dpt.train(path, tmp_path / "a")
    again = tmp_path / "a" / "job.yaml"
    dpt.train(again, tmp_path / "b")
    read = lambda f: open(tmp_path / f / "checkpoints" / "latest", "rb").read()
    assert read("a") == read("b")


def test_run_folder_of_another_run_is_refused(tmp_path):
    path = job(tmp_path, length="steps: 2")
    dpt.train(path, tmp_path / "out")
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    result = dpt.run("train", path, "--output", tmp_path / "out", "--resume", "none", ranks=2)
    assert result.code == 2 and "holds an earlier run" in result.err, result
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before


COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Counts the allocations that the program's own code asks for; its libraries' own are theirs. */
static long calls;
static int ours(void *from)
{
    Dl_info info;
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n <= 0 || dladdr(from, &info) == 0)
        return 0;
    self[n] = 0;
    return strcmp(strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') : info.dli_fname,
                  strrchr(self, '/')) == 0;
}
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static __thread int busy;
#define COUNT() do { if (!busy) { busy = 1; if (ours(__builtin_return_address(0))) \
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED); busy = 0; } } while (0)
void *malloc(size_t n) { COUNT(); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { COUNT(); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { COUNT(); return __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { COUNT(); return __libc_memalign(a, n); }
int posix_memalign(void **p, size_t a, size_t n) { COUNT(); *p = __libc_memalign(a, n); return *p ? 0 : 12; }
__attribute__((destructor)) static void tell(void)
{
    FILE *file = fopen(getenv("COUNT_FILE"), "w");
    if (file) { fprintf(file, "%ld\n", calls); fclose(file); }
}
"""


@pytest.mark.parametrize("model", [MLP, CNN], ids=["mlp", "cnn"])
def test_nothing_is_allocated_after_the_first_step(tmp_path, model):
    (tmp_path / "count.c").write_text(COUNTER)
    shim = tmp_path / "count.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", shim, tmp_path / "count.c", "-ldl"], check=True)
    path = job(tmp_path, model=model, length="steps: 1")
    counts = []
    for steps in (20, 200):
        number = tmp_path / "count"
        dpt.train(path, tmp_path / "out", "--set", f"train.steps={steps}", "--set", "log.every=never",
                  "--set", "device.threads=2", "--set", "train.check_replicas=never",
                  env={"LD_PRELOAD": str(shim), "COUNT_FILE": str(number)})
        counts.append(int(number.read_text()))
    assert counts[0] > 50, "the shim counted"
    assert counts[0] == counts[1]
