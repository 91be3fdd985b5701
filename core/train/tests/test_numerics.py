"""Ranks that do not compute alike: instructions of the processor that the environment keeps from some, and device.isa against it."""
import os
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

SETS = {"SSE4.1": None, "AVX": None, "AVX2": "avx2", "AVX-512": "avx512", "AVX-512 VNNI": "avx512", "AVX-512 BF16": "avx512_bf16",
        "AVX-512 AMX": "amx", "NEON": "neon", **{f"NEON, SVE {bits}": "neon" for bits in (128, 256, 512)}}
JOB = {
    "data": "{train: synthetic, synthetic: {samples: 240, shape: [1, 12, 12]}}",
    "model": "{type: cnn, channels: [8, 16], outputs: 10}",
    "batch": "{global: 60, micro: 15}",
    "train": "{epochs: 1}",
    "comm": "{reduction: reproducible}",
}


@pytest.fixture
def job(tmp_path):
    return dpt.write_small_job(tmp_path / "job.yaml", **JOB)


@pytest.fixture(scope="module")
def here():
    """The best set that oneDNN finds on this machine."""
    found = re.search(r"backend cpu: oneDNN [\d.]+, (.*)", dpt.run("--version").out)
    if not found:
        pytest.skip("built without oneDNN")
    return found.group(1)


def most(here):
    """The best set that `device.isa` can ask for. An Intel CPU without AMX multiplies no bf16 with AVX-512 BF16 unless it is asked to."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return "avx512_bf16" if SETS[here] == "avx512" and " avx512_bf16 " in file.read() else SETS[here]


def lesser(here):
    """A word for ONEDNN_MAX_CPU_ISA that keeps something of this machine from it, and the set that remains."""
    if here == "NEON":
        pytest.skip("a processor with SVE is needed")
    if here.startswith("NEON"):
        return "ADVANCED_SIMD", "NEON"
    return ("AVX2", "AVX2") if here.startswith("AVX-512") else ("SSE41", "SSE4.1")


def with_avx512(here):
    if not here.startswith("AVX-512"):
        pytest.skip("a processor with AVX-512 is needed")


def mixed(job, folder, variable, value, *words):
    """Two ranks, the second with a variable of its own."""
    program = shlex.join([dpt.BINARY, job, "--output", str(folder), *words])
    done = subprocess.run(dpt.each_rank(f"exec {program}", f"{variable}={value} exec {program}"),
                          env={**os.environ, **dpt.MPI_ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    return dpt.Result(done)


def library(folder):
    return dpt.events(folder, "run")[0]["library"]


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_other_instructions_are_refused(tmp_path, job, here, variable):
    word, name = lesser(here)
    result = mixed(job, tmp_path / "out", variable, word)
    assert result.code == 78, result
    line = next(line for line in result.err.splitlines() if "do not compute alike" in line)
    assert re.search(rf"rank 0 \(\S+\) computes with cpu oneDNN \S+, {here}, fp32.*; rank 1 \(\S+\) with cpu oneDNN \S+, {name}, ", line)
    assert line.endswith(f"set device.isa: {name.lower()}, which all of them have" if SETS[name] else "libraries and environment"), line
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_other_instructions_are_a_warning_elsewhere(tmp_path, job, here):
    result = mixed(job, tmp_path / "out", "ONEDNN_MAX_CPU_ISA", lesser(here)[0], "--set", "comm.reduction=allreduce")
    assert result.code == 0 and result.err.count("warning: the ranks do not compute alike") == 1, result


def test_one_set_for_all(tmp_path, job, here):
    """The bytes of a machine that has no more: those of an environment that says so, on any ranks, whatever it says to some."""
    with_avx512(here)
    dpt.train(job, tmp_path / "1", env={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    want = dpt.newest(tmp_path / "1")
    for ranks in (0, 3):
        dpt.train(job, tmp_path / "2", "--set", "device.isa=avx2", ranks=ranks)
        assert dpt.newest(tmp_path / "2") == want, ranks
        assert library(tmp_path / "2").endswith(", AVX2")
    result = mixed(job, tmp_path / "3", "ONEDNN_MAX_CPU_ISA", "AVX2", "--set", "device.isa=avx2")
    assert result.code == 0 and "alike" not in result.err and dpt.newest(tmp_path / "3") == want, result
    dpt.train(job, tmp_path / "4", "--set", "device.isa=avx512", env={"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert library(tmp_path / "4").endswith(", AVX-512") and dpt.newest(tmp_path / "4") != want


def test_plain_loops_too(tmp_path, job, here):
    with_avx512(here)
    words = ("--set", "device.kind=ref")
    dpt.train(job, tmp_path / "1", *words)
    dpt.train(job, tmp_path / "2", *words, "--set", "device.isa=avx2")
    assert [library(tmp_path / name) for name in "12"] == ["plain C, AVX-512", "plain C, AVX2"]


def test_no_more_than_there_is(tmp_path, job, here):
    words = ["avx2", "avx512", "avx512_bf16", "amx"]
    have = most(here)
    if have == "neon":
        pytest.skip("arm64 has one set")
    more = words[words.index(have) + 1:] if have else words
    if not more:
        pytest.skip("this machine has all of them")
    for device in ("cpu", "ref"):
        result = dpt.run(job, "--output", tmp_path / "out", "--set", f"device.kind={device}", "--set", f"device.isa={more[0]}")
        assert result.code == 78 and f"device.isa: {more[0]}: " in result.err and (not have or f"has {have} at most" in result.err), result
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize("device", ["cpu", "ref"])
def test_a_set_of_another_kind_of_processor(tmp_path, job, here, device):
    here = SETS[here]
    if here is None:
        pytest.skip("this machine has none of these sets")
    other, kind = ("avx2", "arm64") if here == "neon" else ("neon", "x86-64")
    result = dpt.run(job, "--output", tmp_path / "out", "--set", f"device.kind={device}", "--set", f"device.isa={other}")
    assert result.code == 78 and len(result.err.splitlines()) == 1, result
    assert re.search(rf"device\.isa: {other}: this is an {kind} machine, which has {here}[a-z0-9_]*: take that or `auto`", result.err), result
    if here == "neon":
        dpt.train(job, tmp_path / "neon", "--set", f"device.kind={device}", "--set", "device.isa=neon")
        assert library(tmp_path / "neon").endswith(", NEON")


def test_shown_and_told_when_going_on(tmp_path, job, here):
    with_avx512(here)
    assert "AVX2" in dpt.run("plan", job, "--set", "device.isa=avx2").out.splitlines()[1]
    dpt.train(job, tmp_path / "out")
    result = dpt.run(job, "--output", tmp_path / "out", "--set", "device.isa=avx2", "--set", "train.epochs=2")
    assert result.code == 0, result
    assert re.search(rf"was made with cpu oneDNN \S+, {here}, dptrain \S+, this is cpu oneDNN \S+, AVX2, ", result.err), result


@pytest.mark.parametrize("isa", ["auto", "avx512_bf16", "avx2"])
def test_bf16_has_the_bytes_of_one_rank(tmp_path, job, here, isa):
    """With whatever multiplies it, which the run says; and nearly the losses of fp32."""
    sets = list(SETS.values())
    if isa != "auto" and sets.index(isa) > sets.index(most(here)):
        pytest.skip(f"a processor with {isa} is needed")
    words = ["--set", "device.kind=cpu", "--set", f"device.isa={isa}"]
    newest, losses = {}, {}
    for name, ranks, more in (("1", 1, ["device.precision=bf16"]), ("3", 3, ["device.precision=bf16"]), ("fp32", 1, [])):
        result = dpt.train(job, tmp_path / name, *words, *(word for text in more for word in ("--set", text)), ranks=ranks)
        newest[name] = dpt.newest(tmp_path / name)
        losses[name] = [event["loss"] for event in dpt.events(tmp_path / name, "train")]
        assert re.search(r"device   cpu \(oneDNN [^)]*\), " + (r"bf16 by (AMX tiles|AVX-512 BF16|fp32's instructions)" if more else "fp32"),
                         result.err), result
    assert newest["1"] == newest["3"] and losses["1"] != losses["fp32"]
    np.testing.assert_allclose(losses["1"], losses["fp32"], rtol=0.02)


@pytest.mark.parametrize("micro", [60, 15])
def test_a_wide_layer_s_norm_is_that_of_several_ranks(tmp_path, micro):
    """One rank gets the squares with the gradient of such a layer (dpt_batch.squares), several get them as they add."""
    job = dpt.write_small_job(tmp_path / "job.yaml", **{
        **JOB, "data": "{train: synthetic, synthetic: {samples: 240, shape: [1024]}}", "model": "{type: mlp, hidden: [2048], outputs: 10}",
        "batch": f"{{global: 60, micro: {micro}}}", "train": "{epochs: 1, clip_norm: 0.1}", "device": "{precision: bf16}"})
    for name, ranks, threads in (("1", 1, 1), ("2", 1, 2), ("3", 3, 1)):
        dpt.train(job, tmp_path / name, "--set", f"device.threads={threads}", "--set", "log.every=1 steps", ranks=ranks)
    norms = [[event["gradient_norm"] for event in dpt.events(tmp_path / name, "train")] for name in "123"]
    assert norms[0] == norms[1] == norms[2] and min(norms[0]) > 0.1
    assert dpt.newest(tmp_path / "1") == dpt.newest(tmp_path / "2") == dpt.newest(tmp_path / "3")
