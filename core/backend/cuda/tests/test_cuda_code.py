"""Checks the code that nvcc makes of the kernels: all of them are there, none spills registers, and those
that are declared so move 16 bytes at once. It needs no GPU; it is skipped if there is no nvcc. DPT_HEAVY=1
checks every architecture that the toolkit lists from sm_70 on."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = "core/backend/cuda/kernels"
HOME = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
NVCC = shutil.which("nvcc") or shutil.which(os.path.join(HOME, "bin", "nvcc"))
FLAGS = ["-I.", "-std=c++17", "-O3", "-fmad=false", "-Werror", "all-warnings"]

needs_nvcc = pytest.mark.skipif(NVCC is None, reason="there is no nvcc")

# These take single elements: rows of logits, tensors that are strided in the other layout, and chunks that begin anywhere.
NO_VECTOR_LOADS = ("from_layout", "to_layout", "gather", "flatten", "norm_chunks", "norm_decide", "norm_in_order")
NO_VECTOR_STORES = ("batchnorm_statistics", "from_layout", "nonfinite", "bias_back", "norm_chunks", "norm_decide", "norm_in_order")

# These and the losses add up rows: two blocks must fit a multiprocessor's registers, and four loads are in flight before the first is used.
OF_SUMS = re.compile(r"\w+_weights|batchnorm_statistics|bias_back|bias_relu_back|norm")

# These make gradients of parameters, which are floats in canonical order.
OF_WEIGHTS = "_weights"

ONLY_NARROW = ("to_layout", "gather", "pack")
WIDE = r"\.global(?:\.\w+)*\.(?:v4\.\w?(?:32)|v2\.\w?(?:64))\b"

ONLY_WIDEN = ("batchnorm_statistics", "from_layout", "nonfinite", "bias_back", "unpack")


def plain_name(name):
    """The name without the module's prefix and the tensors' type."""
    return re.sub(r"^dpt_cuda_|_(f32|b16|h16)$", "", name)


def of_sums(name):
    return name in kernels("loss") or OF_SUMS.fullmatch(plain_name(name))


def loads_in_flight(body):
    """The most loads of 16 bytes in a row, none of whose results is used in between, without a jump target."""
    most, loaded, used = 0, 0, set()
    for line in body.split("\n"):
        words = set(re.findall(r"%\w+", line))
        load = re.search(r"ld" + WIDE + r"\s+{([^}]*)}", line)
        if words & used or line.startswith("$"):
            loaded, used = 0, set()
        if load:
            loaded, used = loaded + 1, used | set(re.findall(r"%\w+", load.group(1)))
            most = max(most, loaded)
    return most


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@functools.lru_cache
def kernels(kind=r"\w+"):
    """The table of kernels.h: names in the module, of those whose kind of launch is this."""
    text = subprocess.run(
        ["cc", "-I.", "-E", "-P", "-"],
        input='#include "%s/kernels.h"\n#define X(name, kind, argument, lanes, meets) KERNEL name kind;\n'
        "DPT_CUDA_KERNELS(X)\n" % FOLDER,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {"dpt_cuda_" + name for name in re.findall(rf"KERNEL\s+(\w+)\s+{kind}\s*;", text)}


def architectures():
    listed = run(NVCC, "--list-gpu-code").split()
    numbers = sorted(int(code[3:]) for code in listed if re.fullmatch(r"sm_\d+", code))
    return [n for n in numbers if n >= 70]


def kept(name):
    """The output that the build has kept from compiling this file with these flags; "" if it has none for this architecture."""
    path = Path(os.environ.get("DPTRAIN", "build/dptrain")).parent / "kernels.fatbin.kept" / name
    return path.read_text() if path.exists() else ""


def resources(tmp_path, arch):
    """Kernel -> (spilled bytes, registers, shared bytes), from the assembler."""
    said = kept("said")
    if f"for 'sm_{arch}'" not in said:
        said = run(
            NVCC, *FLAGS, "-Xptxas", "-v", "-cubin", f"-arch=sm_{arch}",
            "-o", str(tmp_path / f"{arch}.cubin"), f"{FOLDER}/kernels.cu",
        )  # fmt: skip
    found = {}
    for part in said.split("Compiling entry function '")[1:]:
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes (?:stack frame|spill)", part))
        registers = int(re.search(r"Used (\d+) registers", part).group(1))
        shared = re.search(r"(\d+) bytes smem", part)
        found[part.split("'")[0]] = (spills, registers, int(shared.group(1)) if shared else 0)
    return found


def check(tmp_path, arch):
    found = resources(tmp_path, arch)
    assert set(found) == kernels()
    for name, (spills, registers, shared) in found.items():
        assert spills == 0, (arch, name, "uses local memory")
        # Three blocks of 256 threads on a multiprocessor with 64 K registers, and memory for their sums.
        assert registers <= (128 if of_sums(name) else 80), (arch, name, registers)
        assert shared <= 12 << 10, (arch, name, shared)


@needs_nvcc
def test_no_kernel_spills(tmp_path):
    check(tmp_path, 90 if 90 in architectures() else architectures()[0])


@needs_nvcc
@pytest.mark.skipif(os.environ.get("DPT_HEAVY") != "1", reason="DPT_HEAVY=1 compiles for all")
def test_no_kernel_spills_anywhere(tmp_path):
    for arch in architectures():
        check(tmp_path, arch)


@needs_nvcc
def test_vectors_are_moved_whole(tmp_path):
    arch = architectures()[0]
    text = kept(f"kernels.compute_{arch}.ptx")
    if not text:
        ptx = tmp_path / "kernels.ptx"
        run(NVCC, *FLAGS, "-ptx", f"-arch=compute_{arch}", "-o", str(ptx), f"{FOLDER}/kernels.cu")
        text = ptx.read_text()
    bodies = dict(re.findall(r"\.entry (\w+)\((.*?)\n}", text, re.S))
    assert set(bodies) == kernels()
    updates = kernels("update")
    assert "dpt_cuda_adam" in updates
    for name, body in bodies.items():
        plain = plain_name(name)
        if not plain.startswith(NO_VECTOR_LOADS) and name not in kernels("loss"):
            assert re.search("ld" + WIDE, body), (name, "loads")
        if not plain.startswith(NO_VECTOR_STORES) and not plain.endswith(OF_WEIGHTS) and name not in kernels("loss"):
            # gather also writes pitches that are no vectors, one by one.
            assert re.search("st" + WIDE, body), (name, "stores")
        if of_sums(name):
            assert loads_in_flight(body) >= 4, (name, "loads in flight")
        # Half floats are converted by the GPU's own instructions.
        if name.endswith("_h16"):
            assert "cvt.f32.f16" in body or plain.startswith(ONLY_NARROW), (name, "widens")
            assert "cvt.rn.f16.f32" in body or plain in ONLY_WIDEN or plain.endswith(OF_WEIGHTS), (name, "narrows")
        # Floats have no implicit fused multiply-adds, so that they have the host's bits.
        if name in updates or plain in ("bias", "add"):
            assert "fma.rn.f32" not in body, name
        # The only atomics are on integers.
        assert not re.search(r"\b(?:atom|red)\.[\w.]*\.f(?:32|64)", body), name
