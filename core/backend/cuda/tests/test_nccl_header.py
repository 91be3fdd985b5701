"""This program's own prototypes of NCCL's functions are those of nccl.h, wherever one is installed."""
import pathlib
import re
import sysconfig

import pytest

FOLDERS = ["/usr/include", "/usr/local/include", *map(str, sorted(pathlib.Path("/usr/local").glob("cuda*/include"), reverse=True)),
           sysconfig.get_path("purelib") + "/nvidia/nccl/include"]
OURS = {"ncclResult_t": "int", "ncclDataType_t": "int", "ncclRedOp_t": "int", "ncclComm_t": "void *", "cudaStream_t": "CUstream",
        "ncclUniqueId": "struct dpt_nccl_id"}


def types(parameters):
    """Without the parameters' names."""
    found = []
    for parameter in re.sub(r"\s+", " ", parameters or "void").split(","):
        parameter = re.sub(r" ?\* ?", " *", parameter.strip())
        kind = re.sub(r"(?<=[ *])\w+$", "", parameter).strip() if parameter != "void" else parameter
        kind = " ".join(OURS.get(word, word) for word in kind.split())
        found.append(kind.replace(" ", ""))
    return found


@pytest.fixture(name="header", scope="module")
def fixture_header():
    for folder in FOLDERS:
        path = pathlib.Path(folder, "nccl.h")
        if path.exists():
            return path.read_text()
    pytest.skip("nccl.h is not installed")


def test_prototypes(header):
    source = pathlib.Path("core/backend/cuda/libraries/library.h").read_text()
    listed = source[source.index("#define DPT_CUDA_NCCL_FUNCTIONS"):source.index("// clang-format on", source.index("#define DPT_CUDA_NCCL_FUNCTIONS"))]
    rows = re.findall(r"X\((nccl\w+), ([\w *]+), \(([^()]*)\)\)", listed.replace("\\\n", " "))
    assert len(rows) == listed.count("X(nccl")
    for name, result, parameters in rows:
        theirs = re.search(rf"^\s*(\w[\w *]*?)\s+\**{name}\(([^()]*)\)", header, re.M)
        assert theirs, name
        assert types(theirs[2]) == types(parameters), name
        assert types(theirs[1] + (" *" if f"* {name}" in theirs[0] or f"*{name}" in theirs[0] else "") + " x") == types(result + " x"), name


def test_constants(header):
    source = pathlib.Path("core/backend/cuda/libraries/library.h").read_text()
    for ours, theirs in (("DPT_NCCL_SUCCESS", "ncclSuccess"), ("DPT_NCCL_FLOAT", "ncclFloat"), ("DPT_NCCL_DOUBLE", "ncclDouble"), ("DPT_NCCL_SUM", "ncclSum")):
        assert re.search(rf"\b{ours} = (\d+)", source)[1] == re.search(rf"\b{theirs}\s*=\s*(\d+)", header)[1], ours
    size = re.search(r"#define NCCL_UNIQUE_ID_BYTES (\d+)", header)[1]
    assert f"struct dpt_nccl_id {{\n    char bytes[{size}];\n}};" in source
