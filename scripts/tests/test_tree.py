"""What holds for the tree as a whole: who may include whom, the build and its knobs, the scripts."""

import collections
import graphlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

# From the ground up: an include points to the same room or to one before it.
ROOMS = ["core/base", "core/conf", "core/comm", "core/backend",
         *(f"core/backend/{room}" for room in ("ref", "cpu/onednn", "cpu/fp32", "cpu/bf16", "cpu/program", "cpu/layers", "cuda/kernels",
                                               "cuda/libraries", "cuda/program", "cuda/steps", "tests")), "models", "data", "core/trace", "core/state", "core/interchange",
         "core/train/scores", "core/train/update", "core/train/optimizers", "core/train/job", "core/train/layout", "core/train",
         "core/train/reduction", "core/train/mesh", "core/train/step", "core/train/engines", "core/train/setup", "core/train/use", "core/train/run",
         "core/train/tests", "core/plan", "cmd", "scripts/simulate"]

# Headers of libraries, and the only files that may include them.
LIBRARIES = {
    r"mpi\.h": r"core/comm/|scripts/simulate/",
    r"hdf5(_hl)?\.h": r"data/|core/state/(tests/[a-z]+_)?checkpoint\w*\.[ch]$",
    r"dnnl.*\.h|oneapi/.*|omp\.h": r"core/backend/cpu/onednn/",
    r"(cuda|cudnn|cublas)\w*\.h": r"core/backend/cuda/",
    r"yaml\.h": r"core/conf/",
    r"jansson\.h": r"core/state/history\.c|core/interchange/safetensors\.c|core/base/tests/",
    r"png\.h": r"data/pictures/picture_png\.c",
    r"jpeglib\.h|jerror\.h": r"data/pictures/picture_jpeg\.c",
    r"tiffio\.h": r"data/pictures/picture_tiff",
    r"webp/.*": r"data/pictures/picture_webp\.c",
    r"stb/.*": r"data/pictures/picture_(bmp|gif)\.c",
    r"zip\.h": r"core/interchange/|data/tables/",
    r"cmocka\.h": r".*/tests/",
}

TOP_LEVEL = {"cmd", "core", "models", "configs", "data", "scripts", "Makefile", "README.md", "LICENSE"}


def tracked(*suffixes):
    """All files of the project, without what is built or generated."""
    found = []
    for folder, folders, files in os.walk(TOP):
        folders[:] = [f for f in folders if f not in (".git", "build", "runs", "__pycache__")]
        for name in files:
            path = Path(folder, name)
            if not suffixes or name.endswith(suffixes):
                found.append(path)
    return sorted(found)


def written(*suffixes):
    """Those that a person wrote; golden files are tables of numbers that a script beside them made."""
    return [p for p in tracked(*suffixes) if not p.name.startswith("golden")]


def name_of(path):
    return path.relative_to(TOP).as_posix()


def room_of(name):
    if match := re.match("(core/(?:backend|train))/.*tests/", name):  # those of one room run the others, too
        return f"{match[1]}/tests"
    return max((room for room in ROOMS if name.startswith(room + "/")), key=len, default=None)


def includes(path):
    """(line number, file, in quotes) of each #include."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if match:
            yield number, match.group(2), match.group(1) == '"'


def test_includes_point_down():
    wrong = []
    for path in tracked(".c", ".h"):
        name = name_of(path)
        room = room_of(name)
        assert room, f"{name} lies in no room"
        for number, target, quoted in includes(path):
            if not quoted:
                continue
            other = room_of(target)
            if other is None or not (TOP / target).exists():
                wrong.append(f"{name}:{number}: {target} is not named from the top of the tree")
            elif ROOMS.index(other) > ROOMS.index(room):
                wrong.append(f"{name}:{number}: {room} must not know {other}")
    assert not wrong, "\n".join(wrong)


def test_libraries_are_kept_in_their_rooms():
    wrong = []
    for path in tracked(".c", ".h"):
        name = name_of(path)
        for number, target, quoted in includes(path):
            for header, place in LIBRARIES.items():
                if not quoted and re.fullmatch(header, target) and not re.match(place, name):
                    wrong.append(f"{name}:{number}: {target} belongs to {place}")
    assert not wrong, "\n".join(wrong)


def test_only_comm_calls_mpi():
    wrong = []
    for path in tracked(".c", ".h"):
        name = name_of(path)
        if name.startswith(("core/comm/", "scripts/simulate/")):  # which answers in the place of MPI
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\bMPI_[A-Z][a-z]\w*\s*\(", line):
                wrong.append(f"{name}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_headers_are_guarded_and_say_what_they_are():
    for path in written(".h"):
        text = path.read_text()
        assert text.startswith("/*"), f"{name_of(path)} does not open with what it is"
        assert re.search(r"^#ifndef (DPT_\w+_H)\n#define \1$", text, re.M), f"{name_of(path)}: no guard"


def test_files_are_short_enough_to_know():
    long = [(name_of(p), n) for p in written(".c", ".h", ".sh", ".py")
            if (n := len(p.read_text().splitlines())) > 600]
    assert not long


def test_folders_are_small_enough_to_know():
    sources = collections.Counter(name_of(p.parent) for p in written(".c", ".cu", ".py"))
    crowded = {folder: n for folder, n in sources.items() if n > 30}
    assert not crowded


def test_no_line_is_wider_than_it_should_be():
    """clang-format holds code to 100 columns, and leaves comments as they are; tables get some more."""
    wide = [f"{name_of(p)}:{i}" for p in written(".c", ".h", ".inc", ".cu")
            for i, line in enumerate(p.read_text().splitlines(), 1)
            if len(line) > (100 if re.match(r"\s*(/\*| \*)", line) else 140)]
    assert not wide, "\n".join(wide)


def test_nothing_is_left_unfinished():
    # Put together here, so that this file does not find itself.
    words = "|".join(["to" + "do", "fix" + "me", "x" * 3, "not " + "implemented", "place" + "holder", "coming " + "soon"])
    foreign = "|".join(["/wo" + "rk/", "/ro" + "ot/", "deb\\.deb" + "ian\\.org", "pypi\\." + "org"])
    found = []
    for path in tracked(".c", ".h", ".sh", ".md", ".py", ".yaml", ".txt", "Makefile"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(rf"\b({words})\b", line, re.I) or re.search(foreign, line):
                found.append(f"{name_of(path)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)


def test_top_level_is_as_designed():
    names = {p.name for p in TOP.iterdir()} - {"build", "runs"}
    assert {n for n in names if not n.startswith(".")} <= TOP_LEVEL


def scripts():
    return [p for p in tracked(".sh") if p.suffix == ".sh"] + [TOP / ".ci/run"]


@pytest.mark.parametrize("path", scripts(), ids=name_of)
def test_scripts_can_be_run(path):
    first = path.read_text().splitlines()[0]
    if os.access(path, os.X_OK):
        assert first == "#!/usr/bin/env bash"
    else:
        assert first.startswith("# shellcheck shell="), "neither runnable nor marked as one to be sourced"


@pytest.mark.parametrize("script", ["setup.sh", "test.sh", "bench.sh", "mutants.sh"])
def test_scripts_help(script):
    done = subprocess.run([TOP / "scripts" / script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and script in done.stdout
    assert subprocess.run([TOP / "scripts" / script, "--no-such"], capture_output=True, timeout=60).returncode == 2


# --- the build ---------------------------------------------------------------------------------------------------------


def make(*args, env=None, check=True):
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "BUILD", "CFLAGS", "SANITIZE")}
    done = subprocess.run(["make", *args], cwd=TOP, capture_output=True, text=True, timeout=600,
                          env={**clean, **(env or {})})
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_files_call_those_below_them():
    """Source files have an order, as rooms do: none calls one that calls it, through however many others."""
    make("-j2")
    objects = [path for path in (TOP / "build/obj").rglob("*.o")
               if (name := path.relative_to(TOP / "build/obj").with_suffix(".c").as_posix()) and (TOP / name).exists()
               and room_of(name) and "/tests/" not in name]
    calls, owner = {str(path): set() for path in objects}, {}
    symbols = subprocess.run(["nm", "-A", "-g", *objects], capture_output=True, text=True, check=True).stdout
    for line in symbols.splitlines():
        file, kind, symbol = re.fullmatch(r"(.*?):[0-9a-f ]{16} (\w) (\S+)", line).groups()
        if kind == "U":
            calls[file].add(symbol)
        else:
            owner[symbol] = file
    graph = {file: {owner[symbol] for symbol in wanted if symbol in owner} for file, wanted in calls.items()}
    assert len(graph) > 50
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("call each other: " + " <- ".join(str(Path(file).relative_to(TOP / "build/obj")) for file in error.args[1]))


def copy_of_tree(tmp_path):
    """The sources only, so that a test may change them."""
    copy = tmp_path / "tree"
    shutil.copytree(TOP, copy, ignore=shutil.ignore_patterns(".git", "build", "runs", "*.h5", "__pycache__", "*.gz"))
    return copy


def test_make_help_names_every_knob():
    help_text = make("help").stdout
    knobs = re.findall(r"^([A-Z][A-Z0-9_]*) *\?=", (TOP / "Makefile").read_text(), re.M)
    assert len(knobs) > 10
    for knob in set(knobs) | {"CC"}:
        assert re.search(rf"^  .*\b{knob}=", help_text, re.M), f"{knob} is not in make help"
    targets = set(re.search(r"^\.PHONY: (.*)$", (TOP / "Makefile").read_text(), re.M).group(1).split())
    for target in targets:
        assert re.search(rf"^  {target}\b", help_text, re.M), f"{target} is not in make help"


def test_second_make_does_nothing():
    make("-j2")
    again = make("-j2")
    assert "Nothing to be done" in again.stdout
    assert make("-q", check=False).returncode == 0


def test_make_follows_headers_flags_and_sources(tmp_path):
    """On a small tree of the same shape: what changed is rebuilt, what did not is left alone."""
    tree = tmp_path / "tree"
    for folder in ("core/base", "core/comm", "data", "cmd", "scripts"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(TOP / "Makefile", tree)
    for name in ("check-deps.sh", "packages.txt"):
        shutil.copy(TOP / "scripts" / name, tree / "scripts")
    (tree / "core/base/a.h").write_text("int a(void);\n")
    (tree / "core/base/a.c").write_text('#include "core/base/a.h"\nint a(void) { return 1; }\n')
    (tree / "core/comm/c.c").write_text("#include <mpi.h>\nint c(void);\nint c(void) { return MPI_SUCCESS; }\n")
    (tree / "data/d.c").write_text("#include <hdf5.h>\nint d(void);\nint d(void) { return 2 + 0 * (int)H5I_FILE; }\n")
    (tree / "cmd/main.c").write_text(
        '#include <stdio.h>\n#include "core/base/a.h"\nint main(void) { printf("%s %d\\n", DPT_VERSION, a()); return 0; }\n')

    def run(*args):
        done = subprocess.run(["make", *args], cwd=tree, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"^  CC +(\S+)", done.stdout, re.M)

    def touch(name):
        later = (tree / "build/dptrain").stat().st_mtime_ns + 10_000_000
        os.utime(tree / name, ns=(later, later))

    assert sorted(run()) == ["cmd/main.c", "core/base/a.c", "core/comm/c.c", "data/d.c"]
    assert run() == []
    touch("core/base/a.h")
    assert sorted(run()) == ["cmd/main.c", "core/base/a.c"]
    touch("data/d.c")
    assert run() == ["data/d.c"]
    assert len(run("VERSION=9.9.9")) == 4
    out = subprocess.run([tree / "build/dptrain"], capture_output=True, text=True).stdout
    assert out == "9.9.9 1\n"
    assert len(run("CFLAGS=-O0")) == 4
    assert run("CFLAGS=-O0") == []
    (tree / "data/e.c").write_text("int e(void);\nint e(void) { return 3; }\n")
    assert run("CFLAGS=-O0") == ["data/e.c"]
    (tree / "data/e.c").unlink()
    other = tmp_path / "mpicc"  # another MPI is only another one where it is called
    other.write_text('#!/bin/sh\nexec mpicc "$@"\n')
    other.chmod(0o755)
    assert run("CFLAGS=-O0", f"MPICC={other}") == run("CFLAGS=-O0") == ["core/comm/c.c"]
    # A compiler that finds more than ours does stops nobody's build but the tests'; who wants that builds nothing again.
    (tree / "data/d.c").write_text("int d(unsigned x);\nint d(unsigned x) { int y = 2; return x < y; }\n")
    assert run("CFLAGS=-O0") == ["data/d.c"]
    assert run("CFLAGS=-O0", "WERROR=1") == []
    touch("data/d.c")
    assert subprocess.run(["make", "CFLAGS=-O0", "WERROR=1"], cwd=tree, capture_output=True, timeout=300).returncode != 0
    run("CFLAGS=-O0", "build/libdptrain.a")
    members = subprocess.run(["ar", "t", tree / "build/libdptrain.a"], capture_output=True, text=True).stdout.split()
    assert sorted(members) == ["a.o", "c.o", "d.o"]
    run("clean")
    assert not (tree / "build").exists()


def test_two_functions_of_one_name_do_not_link(tmp_path):
    """In a static library the first one found would be taken, and the other rooms' data called as code."""
    tree = tmp_path / "tree"
    for folder in ("core/base", "data", "cmd", "scripts"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(TOP / "Makefile", tree)
    for name in ("check-deps.sh", "packages.txt"):
        shutil.copy(TOP / "scripts" / name, tree / "scripts")
    (tree / "core/base/a.c").write_text("int twice(void);\nint twice(void) { return 1; }\n")
    (tree / "data/a.c").write_text("extern const int twice;\nconst int twice = 2;\n")
    (tree / "cmd/main.c").write_text("int main(void) { return 0; }\n")
    done = subprocess.run(["make"], cwd=tree, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and "twice" in done.stderr


def test_missing_libraries_are_named_in_one_list(tmp_path):
    done = make(f"BUILD={tmp_path}/b", "MPICC=no-such-mpicc", f"HDF5_ROOT={tmp_path}/none", f"YAML_ROOT={tmp_path}/none",
                "ONEDNN=1", f"ONEDNN_ROOT={tmp_path}/none", check=False)
    assert done.returncode != 0
    listed = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    assert len(listed) == 4, done.stderr
    for package, knob in [("libopenmpi-dev", "MPICC="), ("libhdf5-dev", "HDF5_ROOT="),
                          ("libyaml-dev", "YAML_ROOT="), ("libdnnl-dev", "ONEDNN_ROOT=")]:
        assert any(package in line and knob in line for line in listed), (package, done.stderr)


def test_missing_compiler_is_named(tmp_path):
    done = make(f"BUILD={tmp_path}/b", "CC=no-such-cc", check=False)
    assert done.returncode != 0 and "no-such-cc" in done.stderr and "Debian: gcc" in done.stderr


def test_onednn_missing_is_no_failure_where_it_is_auto(tmp_path):
    build = tmp_path / "b"
    done = make(f"BUILD={build}", f"ONEDNN_ROOT={tmp_path}/none", f"{build}/deps.mk")
    assert "oneDNN was not found" in done.stderr
    assert "WITH_ONEDNN := 0" in (build / "deps.mk").read_text()


def test_a_root_is_used_and_written_into_the_binary(tmp_path):
    """A library in a folder of its own, as a module gives it: found there, and at run time too."""
    root = tmp_path / "hdf5"
    (root / "lib").mkdir(parents=True)
    asked = subprocess.run(["pkg-config", "--cflags", "--libs", "hdf5"], capture_output=True, text=True).stdout
    flags = re.search(r"-I(\S+).*-L(\S+)", asked, re.S)
    if not flags or not Path(flags.group(2), "libhdf5.so").exists():
        pytest.skip("pkg-config does not say where HDF5 lies")
    (root / "include").symlink_to(flags.group(1))
    (root / "lib/libhdf5.so").symlink_to(Path(flags.group(2), "libhdf5.so").resolve())
    build = tmp_path / "b"
    make(f"BUILD={build}", f"HDF5_ROOT={root}", f"{build}/deps.mk")
    text = (build / "deps.mk").read_text()
    assert f"HDF5_CFLAGS := -I{root}/include" in text and f"-Wl,-rpath,{root}/lib" in text


@pytest.mark.parametrize("mpi", ["same", "other"])
def test_a_parallel_hdf5_is_one_of_the_same_mpi(tmp_path, mpi):
    """Two MPIs in a program end it at the first call of the second: so the build says it. The HDF5 is a stand-in of one function."""
    root = tmp_path / "hdf5"
    for folder in ("include", "lib"):
        (root / folder).mkdir(parents=True)
    (root / "include/hdf5.h").write_text("#include <mpi.h>\nint H5open(void);\n")
    (tmp_path / "hdf5.c").write_text("extern int MPI_Initialized(int *); int H5open(void) { int on; return MPI_Initialized(&on); }\n")
    (tmp_path / "mpi.c").write_text("int MPI_Initialized(int *on) { return *on = 0; }\n")
    shared = ["-shared", "-fPIC", "-o"]
    if mpi == "other":
        subprocess.run(["gcc", *shared, root / "lib/libmpi.so.7", "-Wl,-soname,libmpi.so.7", tmp_path / "mpi.c"], check=True)
    subprocess.run(["gcc" if mpi == "other" else "mpicc", *shared, root / "lib/libhdf5.so", tmp_path / "hdf5.c",
                    *([root / "lib/libmpi.so.7"] if mpi == "other" else [])], check=True)
    build = tmp_path / "b"
    done = make(f"BUILD={build}", f"HDF5_ROOT={root}", f"{build}/deps.mk", check=False)
    if mpi == "same":
        assert done.returncode == 0 and "HDF5_NEEDS_MPI := 1" in (build / "deps.mk").read_text(), done.stderr
    else:
        told = [line for line in done.stderr.splitlines() if line.startswith("  ")]
        assert done.returncode != 0 and len(told) == 1 and "libmpi.so.7" in told[0] and "another MPI" in told[0], done.stderr


def test_what_depends_on_the_processor_compiles_for_arm64(tmp_path):
    """Without a warning, and products as NEON's. clang compiles for any processor; of this system's headers three parts are made fit."""
    if shutil.which("clang") is None or os.uname().machine != "x86_64":
        pytest.skip("needs clang on x86-64")
    for name, text in (("gnu/stubs.h", ""), ("bits/wordsize.h", "#define __WORDSIZE 64\n#define __WORDSIZE_TIME64_COMPAT32 0\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    clang = ["clang", "--target=aarch64-linux-gnu", "-isystem", tmp_path, "-isystem", "/usr/include/x86_64-linux-gnu", "-D__regparm__(n)=", "-D__float128=long double",
             "-std=gnu11", "-D_GNU_SOURCE", "-DDPT_VERSION=\"0\"", "-I.", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror", "-Wno-pass-failed"]
    sources = [p for p in written(".c") if re.search(r"DPT_(X86|ARM64)|__(x86_64|aarch64)__|<immintrin", p.read_text())]
    sources = [p for p in sources if "/tests/" not in str(p) and ("oneapi" not in p.read_text() or Path("/usr/include/oneapi").exists())]
    assert len(sources) > 5
    done = subprocess.run([*clang, "-fsyntax-only", *sources], cwd=TOP, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    done = subprocess.run([*clang, "-O3", "-S", "-o", "-", "core/backend/cpu/fp32/tile.c"], cwd=TOP, capture_output=True, text=True, timeout=300)
    assert len(re.findall(r"\tfmla\tv\d+\.4s", done.stdout)) >= 9 * 16, done.stderr[-3000:]


def test_install_and_uninstall(tmp_path):
    make("-j2")
    make("install", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    done = subprocess.run([tmp_path / "usr/bin/dptrain", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    version = re.search(r"^VERSION = (\S+)$", (TOP / "Makefile").read_text(), re.M).group(1)
    assert version in done.stdout
    assert (tmp_path / "usr/share/doc/dptrain/README.md").exists()
    make("uninstall", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_build_with_neither_onednn_nor_cuda_runs(tmp_path):
    """The smallest one. Of the plain build it takes the objects for which, with their headers, nothing asks what there is: they are the
    same."""
    build, words = tmp_path / "b", ("ONEDNN=0", "CUDA=0")
    make("-j2")
    make("-n", f"BUILD={build}", *words)  # finds the libraries
    asks = {path for path in tracked(".c", ".h", ".inc") if re.search("^ *#.*DPT_WITH_(ONEDNN|CUDA)", path.read_text(), re.M)}
    for path in (TOP / "build/obj").rglob("*.o"):
        if "onednn" not in path.as_posix() and not asks & {TOP / name for name in path.with_suffix(".d").read_text().split()}:
            copy = build / path.relative_to(TOP / "build")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    units = ("cpu", "bf16", "golden_layers", "branches")
    programs = [f"{build}/tests/test_{unit}" for unit in units]
    compiled = re.findall(r"^  CC +(\S+)", make("-j2", f"BUILD={build}", f"{build}/dptrain", *programs, *words).stdout, re.M)
    assert "core/backend/backends.c" in compiled and "core/backend/cpu/layers/conv.c" in compiled and len(compiled) < 60
    assert not list((build / "obj").rglob("*onednn*")) and not (build / "kernels.fatbin").exists()
    listed = subprocess.run(["ldd", build / "dptrain"], capture_output=True, text=True).stdout
    assert "dnnl" not in listed
    for program in programs:  # the CPU backend computes what ref does, by its own kernels
        done = subprocess.run([program], cwd=TOP, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    version = subprocess.run([build / "dptrain", "--version"], capture_output=True, text=True).stdout
    assert "backend cpu: custom kernels, " in version, version
    limit = ("--set", "device.isa=avx2") if " avx2 " in Path("/proc/cpuinfo").read_text() else ()
    done = subprocess.run([build / "dptrain", "configs/smoke.yaml", "--output", tmp_path / "run",
                           "--set", "train.epochs=null", "--set", "train.steps=2", *limit],
                          cwd=TOP, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not limit or "cpu (custom kernels, AVX2)" in done.stdout + done.stderr, done.stdout + done.stderr


def test_packages_are_named_once():
    """Only packages.txt names what to install, but for the text that people read."""
    named = [line.split()[1] for line in (TOP / "scripts/packages.txt").read_text().splitlines()
             if line and not line.startswith("#")]
    assert len(named) == len(set(named))
    for script in ("setup.sh", "check-deps.sh", "demo.sh", "test.sh"):
        text = (TOP / "scripts" / script).read_text()
        assert not [p for p in named if p.startswith("lib") and p in text], script


# --- setting up, with a Debian made of small scripts -------------------------------------------------------------------


@pytest.fixture
def debian(tmp_path):
    """setup.sh in a copy of its own, with its own dpkg-query, apt-get, id and sudo; each writes down how it was called."""
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    for name in ("setup.sh", "packages.txt"):
        shutil.copy(TOP / "scripts" / name, tree / "scripts")
    tools = tmp_path / "bin"
    tools.mkdir()
    state = tmp_path / "installed"
    state.write_text("")
    calls = tmp_path / "calls"
    calls.write_text("")

    def tool(name, text):
        (tools / name).write_text("#!/bin/sh\n" + text)
        (tools / name).chmod(0o755)

    for name in ("bash", "sh", "env", "dirname", "awk", "mkdir", "tail", "grep", "sed", "cat", "xargs", "printf"):
        (tools / name).symlink_to(shutil.which(name))
    tool("dpkg-query", f'for p; do :; done; if grep -qx "$p" {state}; then echo "install ok installed"; else exit 1; fi\n')
    tool("apt-get", f'echo "$@" >>{calls}; case " $* " in *" install "*) '
                    f'for p; do case $p in lib*|gcc|make|pkg-config|openmpi-bin|zlib1g-dev|python3*|shellcheck) echo $p >>{state};; esac; done;; esac\n')
    tool("id", "echo 0\n")

    class Box:
        def __init__(self):
            self.tool, self.calls, self.state = tool, calls, state

        def run(self, *args, **env):
            return subprocess.run([tree / "scripts/setup.sh", *args], capture_output=True, text=True, timeout=60,
                                  stdin=subprocess.DEVNULL, env={"PATH": str(tools), **env})

    return Box()


def test_setup_installs_what_is_missing_and_only_once(debian):
    assert "libhdf5-dev" in debian.run("--list").stdout
    done = debian.run("--build")
    assert done.returncode == 0, done.stderr
    asked = debian.calls.read_text()
    assert "--no-install-recommends" in asked and "libhdf5-dev" in asked and "libcmocka-dev" not in asked
    assert " update" not in asked
    debian.calls.write_text("")
    again = debian.run("--build")
    assert again.returncode == 0 and again.stdout == "" and debian.calls.read_text() == ""
    assert debian.run("--test").returncode == 0
    asked = debian.calls.read_text()
    assert "libcmocka-dev" in asked and "libhdf5-dev" not in asked


def test_setup_fetches_the_lists_where_installing_fails(debian, tmp_path):
    debian.tool("apt-get", f'echo "$@" >>{debian.calls}\ncase " $* " in *" update "*) : >{tmp_path}/fresh;; '
                           f'*" install "*) [ -e {tmp_path}/fresh ];; esac\n')
    assert debian.run().returncode == 0
    verbs = re.findall(r"\b(update|install)\b", debian.calls.read_text().replace("no-install-recommends", ""))
    assert verbs == ["install", "update", "install"]


def test_setup_without_root_says_what_is_needed(debian):
    debian.tool("id", "echo 1000\n")
    done = debian.run("--test")
    assert done.returncode == 1
    assert "root" in done.stderr and "libhdf5-dev" in done.stderr and "libcmocka-dev" in done.stderr
    assert debian.calls.read_text() == ""


def test_setup_uses_sudo_where_it_asks_for_nothing(debian):
    debian.tool("id", "echo 1000\n")
    debian.tool("sudo", f'echo sudo "$@" >>{debian.calls}\n[ "$1" = -n ] && shift\nexec "$@"\n')
    debian.tool("true", "exit 0\n")
    assert debian.run().returncode == 0
    assert "sudo env DEBIAN_FRONTEND=noninteractive" in debian.calls.read_text()


def test_setup_tells_why_it_failed(debian):
    debian.tool("apt-get", 'echo "E: no room on the disk" >&2\nexit 100\n')
    done = debian.run()
    assert done.returncode == 1 and "no room on the disk" in done.stderr
