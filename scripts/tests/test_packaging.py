"""The packages: what is in them, that equal sources give byte-identical packages, and that they run where nothing else is.

The long forms (DPT_HEAVY=1, as root) are in test_packaging_bare.py: bare systems in chroots."""
import ast
import glob
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

TOP = Path(__file__).resolve().parents[2]
PACKAGING = TOP / "scripts/packaging"
CHANGELOG = (PACKAGING / "CHANGELOG.md").read_text()
MAKEFILE = (TOP / "Makefile").read_text()
VERSION = re.search(r"^VERSION = (\S+)$", MAKEFILE, re.M).group(1)
# The libraries that a bundle takes from the system.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|mvec|anl))\.so")


def clean_environment(**more):
    drop = re.compile(r"MAKEFLAGS|MFLAGS|BUILD$|CFLAGS|SANITIZE|ONEDNN$|SOURCE_DATE_EPOCH|DEB|OMPI_|OPAL_|PMIX_")
    return {**{k: v for k, v in os.environ.items() if not drop.match(k)}, **more}


def run(*words, cwd=TOP, check=True, timeout=300, **environment):
    done = subprocess.run([str(w) for w in words], cwd=cwd, env=clean_environment(**environment), timeout=timeout,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert not check or done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def make_package(target, folder, **environment):
    """`make TARGET` from the program under test, in a build folder of its own; returns the folder with the packages."""
    build = folder / "build"
    if not build.exists():
        build.mkdir(parents=True)
        shutil.copy2(dpt.BINARY, build / "dptrain")
    run("make", f"BUILD={build}", "-o", build / "dptrain", target, **environment)
    return build / "dist"


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def run_smoke(*command, output, **environment):
    """Trains a few steps with `command`, in an environment with nothing but a PATH; returns the newest checkpoint's bytes."""
    words = [*command, "train", "configs/smoke.yaml", "--output", output, "--set", "train.epochs=null", "--set", "train.steps=4",
             "--set", "checkpoint.every=4 steps", "--set", "comm.reduction=reproducible"]
    done = subprocess.run([str(w) for w in words], cwd=TOP, timeout=120, text=True,
                          env={"PATH": "/usr/bin:/bin", **environment}, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return dpt.newest(output), done.stderr


# --- the version, and what is written about it -----------------------------------------------------------------------


def test_one_version_everywhere():
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert dpt.run("--version").out.splitlines()[0] == f"dptrain {VERSION}"
    assert re.search(r"^## \[(.+?)\]", CHANGELOG, re.M).group(1) == VERSION
    assert re.search(r"VERSION=(\S+)", (PACKAGING / "dptrain.def").read_text()).group(1) == VERSION
    recipe = (PACKAGING / "spack/package.py").read_text()
    assert re.search(r'version\("(.+?)"', recipe).group(1) == VERSION and f"dptrain-{VERSION}.tar.gz" in recipe


def test_changelog_keeps_its_form():
    headings = re.findall(r"^## (.*)$", CHANGELOG, re.M)
    versions = []
    for heading in headings:
        match = re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (unreleased|\d{4}-\d\d-\d\d)", heading)
        assert match, heading
        assert match.group(4) != "unreleased" or not versions, "only the newest may be unreleased"
        versions.append(tuple(map(int, match.groups()[:3])))
    assert versions and versions == sorted(set(versions), reverse=True)
    kinds = re.findall(r"^### (.*)$", CHANGELOG, re.M)
    assert kinds and set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_targets_are_told_and_scripts_help():
    told = run("make", "help").stdout
    for target in ("dist", "bundle", "deb", "install"):
        assert re.search(rf"^  {target} ", told, re.M), target
    for script in sorted(PACKAGING.glob("*.sh")):
        if script.name not in ("epoch.sh", "arguments.sh"):  # the second is what they share
            assert f"{script.name} VERSION" in run(script, "--help").stdout
            assert run(script, check=False).returncode == 2
    for target in re.findall(r"`make (\w+)\b(?!=)", (PACKAGING / "README.md").read_text()):
        assert re.search(rf"^{target}:", MAKEFILE, re.M), target


def test_shellcheck_of_what_is_no_sh_file():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    run("shellcheck", PACKAGING / "bundle-run")


# --- sources ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run("make", f"BUILD={folder}", "dist")
    return folder / f"dist/dptrain-{VERSION}.tar.gz"


def test_dist_holds_the_tree_and_nothing_else(sources):
    with tarfile.open(sources) as archive:
        members = archive.getmembers()
    names = [m.name for m in members]
    assert names == sorted(names) and {n.split("/")[0] for n in names} == {f"dptrain-{VERSION}"}
    files = {n.partition("/")[2] for n in names}
    assert {(m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, "", "")}
    assert len({m.mtime for m in members}) == 1 and {m.mode for m in members} == {0o644, 0o755}
    assert all(m.isfile() and (m.mode == 0o755) == os.access(TOP / m.name.partition("/")[2], os.X_OK) for m in members)
    assert not [f for f in files if re.match(r"\.git/|build/|runs/|(?!core/train/run/tests/old/).*\.h5$|.*__pycache__", f)]
    rooms = [p for room in ("core", "models", "data", "cmd") for p in (TOP / room).rglob("*.[ch]")]
    assert {p.relative_to(TOP).as_posix() for p in rooms} <= files
    assert {"Makefile", "README.md", "LICENSE", ".gitignore", "scripts/packages.txt", "scripts/packaging/dist.sh"} <= files
    if (TOP / ".git").exists() and shutil.which("git"):
        known = run("git", "ls-files", "-z", check=False).stdout.split("\0")[:-1]
        assert {name for name in known if (TOP / name).is_file()} <= files


def test_dist_gives_the_same_bytes_again_and_from_itself(sources, tmp_path):
    """Also without git, and with things lying about that do not belong to it."""
    run("tar", "-xzf", sources, "-C", tmp_path)
    tree = tmp_path / f"dptrain-{VERSION}"
    for name in ("build/dptrain", "runs/a/log.txt", "data/mnist/train-00000-of-00001.h5", "scripts/lib/__pycache__/dpt.pyc"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x")
    run("make", "dist", cwd=tree, GIT_CEILING_DIRECTORIES=str(tmp_path), TZ="Asia/Tokyo", LC_ALL="C")
    assert sha256(tree / f"build/dist/{sources.name}") == sha256(sources)
    run("make", "dist", cwd=tree, GIT_CEILING_DIRECTORIES=str(tmp_path), SOURCE_DATE_EPOCH="86400")
    with tarfile.open(tree / f"build/dist/{sources.name}") as archive:
        assert {m.mtime for m in archive} == {86400}


def test_dist_would_build_without_git(sources, tmp_path):
    run("tar", "-xzf", sources, "-C", tmp_path)
    tree = tmp_path / f"dptrain-{VERSION}"

    def compiled(where):
        told = run("make", "-n", f"BUILD={tmp_path}/none", cwd=where).stdout
        return set(re.findall(r"-c -o \S+ (\S+\.c)", told))

    assert compiled(tree) == compiled(TOP) and "cmd/main.c" in compiled(tree)


# --- installing, and the Debian package ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deb(tmp_path_factory):
    if shutil.which("dpkg-shlibdeps") is None:
        pytest.skip("dpkg-dev is not installed")
    folder = tmp_path_factory.mktemp("deb")
    return next(make_package("deb", folder).glob("*.deb"))


def field(package, name):
    return run("dpkg-deb", "-f", package, name).stdout.strip()


def test_deb_has_everything_in_its_place(deb, tmp_path):
    architecture = run("dpkg", "--print-architecture").stdout.strip()
    assert deb.name == f"dptrain_{VERSION}-1_{architecture}.deb"
    assert (field(deb, "Package"), field(deb, "Version"), field(deb, "Architecture")) == ("dptrain", f"{VERSION}-1", architecture)
    run("dpkg-deb", "-R", deb, tmp_path)
    share = tmp_path / "usr/share"
    assert gzip.decompress((share / "man/man1/dptrain.1.gz").read_bytes()).decode() == dpt.run("man").out
    for name, command in (("bash-completion/completions/dptrain", ["completion", "bash"]),
                          ("zsh/vendor-completions/_dptrain", ["completion", "zsh"]),
                          ("fish/vendor_completions.d/dptrain.fish", ["completion", "fish"]),
                          ("dptrain/dptrain.schema.json", ["schema"])):
        assert (share / name).read_text() == dpt.run(*command).out, name
    doc = share / "doc/dptrain"
    assert gzip.decompress((doc / "changelog.gz").read_bytes()).decode() == CHANGELOG
    assert "Apache-2.0" in (doc / "copyright").read_text() and not (doc / "LICENSE").exists()
    assert {p.name for p in (doc / "examples").glob("*.yaml")} == {p.name for p in (TOP / "configs").glob("*.yaml")}
    assert {p.name for p in (doc / "examples/slurm").iterdir()} == {p.name for p in (TOP / "scripts/slurm").iterdir()}
    assert (share / "dptrain/mpi-env.sh").read_text() == (TOP / "scripts/lib/mpi-env.sh").read_text()
    entry = run("dpkg-parsechangelog", "-l", doc / "changelog.Debian.gz", "-S", "Version", check=False)
    assert entry.stdout.strip() in (f"{VERSION}-1", ""), entry
    assert gzip.decompress((doc / "changelog.Debian.gz").read_bytes()).startswith(f"dptrain ({VERSION}-1) ".encode())
    run("md5sum", "--check", "--quiet", "--strict", "DEBIAN/md5sums", cwd=tmp_path)
    packed = {p.relative_to(tmp_path).as_posix() for p in (tmp_path / "usr").rglob("*") if p.is_file()}
    assert packed == {line[34:] for line in (tmp_path / "DEBIAN/md5sums").read_text().splitlines()}
    for line in run("dpkg-deb", "-c", deb).stdout.splitlines():
        mode, owner = line.split()[:2]
        assert owner == "root/root" and mode in ("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"), line
    done = run(tmp_path / "usr/bin/dptrain", "--version")
    assert done.stdout.startswith(f"dptrain {VERSION}\n")


def test_deb_depends_on_the_packages_of_its_libraries(deb, tmp_path):
    """Each library that the program names itself, by the package that dpkg says owns it."""
    depends = {re.split(r"[ :]", d.strip())[0] for d in field(deb, "Depends").split(",")}
    assert "openmpi-bin" in depends
    run("dpkg-deb", "-x", deb, tmp_path)
    wanted = re.findall(r"NEEDED +(\S+)", run("objdump", "-p", tmp_path / "usr/bin/dptrain").stdout)
    paths = dict(re.findall(r"(\S+) => (/\S+)", run("ldd", tmp_path / "usr/bin/dptrain").stdout))
    assert len(wanted) > 4
    for name in wanted:
        if name in paths:
            owner = run("dpkg", "-S", os.path.realpath(paths[name]), check=False).stdout.split(":")[0]
            assert not owner or owner in depends or owner == "libgomp1", f"{name} is {owner}'s, {depends}"


def test_deb_gives_the_same_bytes_again(deb, tmp_path):
    again = make_package("deb", tmp_path, TZ="Asia/Tokyo")
    assert sha256(again / deb.name) == sha256(deb)
    other = make_package("deb", tmp_path, DEBEMAIL="ada@example.org", DEBFULLNAME="Ada L", REVISION="7", SOURCE_DATE_EPOCH="86400")
    other = next(other.glob("*-7_*.deb"))
    assert field(other, "Maintainer") == "Ada L <ada@example.org>" and field(other, "Version") == f"{VERSION}-7"


def test_lintian_finds_no_error(deb):
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    done = run("lintian", "--allow-root", "--tag-display-limit", "0", deb, check=False)
    found = re.findall(r"^[EW]: \S+: (\S+)", done.stdout, re.M)
    assert done.returncode == 0 and set(found) <= {"initial-upload-closes-no-bugs"}, done.stdout


# --- the bundle -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Made in one place, unpacked in another; the first one is taken away. A place without a space in its name: Open MPI's
    own way to other nodes cannot cope with one."""
    if shutil.which("patchelf") is None or shutil.which("ompi_info") is None:
        pytest.skip("patchelf or Open MPI is not installed")
    dist = make_package("bundle", tmp_path_factory.mktemp("made"))
    name = f"dptrain-{VERSION}-{os.uname().machine}"
    place = tmp_path_factory.mktemp("elsewhere")
    run("tar", "-xzf", dist / f"{name}.tar.gz", "-C", place)
    assert sorted(os.listdir(place / name)) == sorted(os.listdir(dist / name))
    shutil.rmtree(dist.parent)
    return place / name


def elf_files(folder):
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def test_bundle_loads_nothing_from_the_system_but_glibc(bundle):
    programs = [p for p in elf_files(bundle) if p.parent.name in ("libexec", "openmpi", "pmix")]
    assert len(programs) > 3
    done = run("ldd", *programs, LD_LIBRARY_PATH=str(bundle / "lib"))
    seen = set()
    for name, path in re.findall(r"^\s+(\S+) => (.+?)(?: \(0x\w+\))?$", done.stdout, re.M):
        assert path != "not found", name
        seen.add(name)
        inside = os.path.realpath(path).startswith(os.path.realpath(bundle) + "/")
        assert inside != bool(GLIBC.match(name)), f"{name} => {path}"
    assert "libmpi.so.40" in seen or any(n.startswith("libmpi") for n in seen)
    assert not [n for n in os.listdir(bundle / "lib") if GLIBC.match(n)]


def test_bundle_says_where_its_libraries_are_from(bundle):
    listed = {line.split()[0]: line.split()[1:] for line in (bundle / "share/doc/dptrain/libraries.txt").read_text().splitlines()}
    assert set(listed) == {n for n in os.listdir(bundle / "lib") if ".so" in n}
    if shutil.which("dpkg"):
        packages = {words[0] for words in listed.values() if len(words) == 2}
        assert packages and packages == set(os.listdir(bundle / "share/doc/dptrain/licences"))
    text = (bundle / "README.txt").read_text()
    assert VERSION in text and re.search(r"glibc 2\.\d+ or later", text)


def test_bundle_trains_the_same_bits_as_the_program(bundle, tmp_path):
    want, _ = run_smoke(dpt.BINARY, output=tmp_path / "plain")
    dptrain, mpirun = bundle / "bin/dptrain", bundle / "bin/mpirun"
    link = tmp_path / "link"
    link.symlink_to(dptrain)
    spaced = shutil.copytree(bundle, tmp_path / "a name with spaces", copy_function=os.link, symlinks=True)
    for i, command in enumerate([(dptrain,), (link,), (mpirun, "-np", 2, "--oversubscribe", dptrain),
                                 (spaced / "bin/mpirun", "-np", 2, "--oversubscribe", spaced / "bin/dptrain")]):
        got, _ = run_smoke(*command, output=tmp_path / f"run{i}")
        assert got == want, command
    done = subprocess.run([dptrain, "configs/smoke.yaml", "--ranks", "2", "--output", tmp_path / "ranks"], cwd=TOP, timeout=120,
                          env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0 and "2 ranks" in done.stdout + done.stderr, done


def test_bundle_loads_nothing_of_another_mpi(bundle, tmp_path):
    """Whatever is set about another Open MPI: the dynamic linker tells what mpirun and the ranks load, plug-ins too."""
    run_smoke(bundle / "bin/mpirun", "-np", 1, bundle / "bin/dptrain", output=tmp_path / "run", OPAL_PREFIX="/usr",
              OPAL_LIBDIR="/usr/lib", OPAL_PKGLIBDIR="/usr/lib/openmpi", LD_DEBUG="files", LD_DEBUG_OUTPUT=f"{tmp_path}/loaded")
    loaded = {}
    for path in tmp_path.glob("loaded.*"):
        text = path.read_text(errors="replace")
        for program in re.findall(rf"calling init: .*|initialize program: {re.escape(str(bundle))}/libexec/(\w+)", text):
            if program:
                loaded[program] = set(re.findall(r"calling init: (\S+)", text))
    plugins = os.listdir(bundle / "lib/openmpi")  # Open MPI 5 has its own inside, and another program that starts ranks
    assert set(loaded) == {"mpirun", "dptrain"} | {p.name for p in (bundle / "libexec").glob("prterun")}
    for program, paths in loaded.items():
        foreign = {p for p in paths if not p.startswith(f"{bundle}/") and not GLIBC.match(os.path.basename(p))}
        assert not foreign, (program, foreign)
        assert not plugins or [p for p in paths if p.startswith(f"{bundle}/lib/openmpi/mca_")]


def test_bundle_starts_ranks_on_other_nodes(bundle, tmp_path):
    """An ssh that stays here, with an empty environment: what a node with nothing but the folder would see. Each has a /tmp of its own,
    as nodes have: two daemons that make the same folder there at the same time trip over each other."""
    if (bundle / "bin/prterun").exists():
        pytest.skip("Open MPI 5 does not connect ranks of two nodes that have the same addresses")
    agent, short = tmp_path / "agent", tempfile.TemporaryDirectory(prefix="n")  # sockets' paths have 107 bytes
    agent.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/nodes\nmkdir {short.name}/$1\nhere=TMPDIR={short.name}/$1\nshift\n'
                     'exec env -i PATH=/usr/bin:/bin $here sh -c "$*"\n')
    agent.chmod(0o755)
    _, told = run_smoke(bundle / "bin/mpirun", "--host", "one:1,two:1", "-np", 2, bundle / "bin/dptrain", output=tmp_path / "run",
                        OMPI_MCA_plm_rsh_agent=str(agent), PRTE_MCA_plm_ssh_agent=str(agent))
    assert sorted((tmp_path / "nodes").read_text().split()) == ["one", "two"]
    short.cleanup()


def test_bundle_runs_where_there_is_only_a_shell(bundle, tmp_path):
    """A root folder with sh, glibc and the bundle: no other program, no other library."""
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    if os.geteuid() != 0 or subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs root and mount namespaces")
    root = tmp_path / "root"
    for folder in ("bin", "proc", "sys", "dev/shm", "tmp", "opt/dptrain"):
        (root / folder).mkdir(parents=True)
    shutil.copy(os.path.realpath("/bin/sh"), root / "bin/sh")
    listed = run("ldd", "/bin/sh", bundle / "libexec/dptrain", *glob.glob(f"{bundle}/lib/openmpi/*.so")).stdout
    for path in {p for p in re.findall(r"(/\S+) \(0x", listed) if GLIBC.match(os.path.basename(p))}:
        (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), root / path[1:])
    shutil.copy("configs/smoke.yaml", root / "smoke.yaml")
    steps = "--set train.epochs=null --set train.steps=2"
    script = f"""
mount --bind '{bundle}' '{root}/opt/dptrain' && mount -t proc proc '{root}/proc' && mount -t sysfs -o ro sysfs '{root}/sys' &&
mount -t tmpfs tmpfs '{root}/dev/shm' || exit 99
exec env -i PATH=/bin /usr/sbin/chroot '{root}' /bin/sh -e -c '
/opt/dptrain/bin/dptrain --version
/opt/dptrain/bin/dptrain /smoke.yaml {steps} --output /one
/opt/dptrain/bin/dptrain /smoke.yaml {steps} --output /two --ranks 2
/opt/dptrain/bin/mpirun -np 2 --oversubscribe /opt/dptrain/bin/dptrain /smoke.yaml {steps} --output /three
'"""
    done = subprocess.run([*inside, script], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    if done.returncode == 99:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("test accuracy") == 3
    assert all((root / name / "metrics.jsonl").exists() for name in ("one", "two", "three"))


# --- recipes --------------------------------------------------------------------------------------------------------------------


def dockerfile():
    text = re.sub(r"\\\n", " ", (PACKAGING / "Dockerfile").read_text())
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def package_names():
    lines = (TOP / "scripts/packages.txt").read_text().splitlines()
    return {line.split()[1] for line in lines if line and not line.startswith("#")}


def test_dockerfile_copies_what_is_there_and_names_no_package():
    steps = dockerfile()
    assert steps[0] == ["ARG", "DEBIAN=trixie"]
    stages = [words for word, words in steps if word == "FROM"]
    assert stages == ["debian:${DEBIAN} AS build", "debian:${DEBIAN}-slim"]
    for word, words in steps:
        if word == "COPY":
            source = words.split()[-2]
            if words.startswith("--from="):
                assert words.startswith("--from=build ") and source == "/dptrain/build/dist/*.deb"
            else:
                assert (TOP / source).exists()
        if word == "RUN":
            for script in re.findall(r"\./(\S+)", words):
                assert os.access(TOP / script, os.X_OK), script
            assert not package_names() & set(re.findall(r"[\w.+-]+", words)) - {"make"}
    assert ["ENTRYPOINT", '["dptrain"]'] in steps
    ignored = {line.strip("*/") for line in (PACKAGING / "Dockerfile.dockerignore").read_text().splitlines() if line[0] != "#"}
    assert {line.strip("*/") for line in (TOP / ".gitignore").read_text().splitlines()} <= ignored


def test_apptainer_definition_copies_what_is_made_and_names_no_package(sources):
    text = (PACKAGING / "dptrain.def").read_text()
    stages = re.split(r"^Bootstrap: docker\n", text, flags=re.M)[1:]
    assert [re.search(r"^From: (\S+)\nStage: (\S+)$", s, re.M).groups() for s in stages] == \
        [("debian:trixie", "build"), ("debian:trixie-slim", "run")]
    files = re.search(r"%files\n\s+(\S+ \S*\s*\S*\s*\S*\.tar\.gz) (\S+)", stages[0]).group(1).replace("{{ VERSION }}", VERSION)
    assert files == f"build/dist/{sources.name}"
    made = re.search(r"mv build/dist/\*\.deb (\S+)", stages[0]).group(1)
    assert re.search(rf"%files from build\n\s+{made} \S+\.deb", stages[1])
    assert not package_names() & set(re.findall(r"[\w.+-]+", re.sub(r"#.*", "", text))) - {"make"}
    assert '"$@"' in text and "--version" in text


def test_spack_recipe_gives_make_the_knobs_that_it_has(monkeypatch):
    """The recipe itself, with a Spack made of a few lines: what it declares, and how it calls make."""
    source = (PACKAGING / "spack/package.py").read_text()
    ast.parse(source)
    declared = {"depends_on": [], "version": [], "variant": [], "license": []}
    api = types.ModuleType("spack.package")
    for name, calls in declared.items():
        setattr(api, name, lambda *args, calls=calls, **more: calls.append((args, more)))
    api.spack_cc, api.join_path, api.Executable = "/spack/cc", os.path.join, None
    base = types.ModuleType("makefile")
    base.MakefilePackage = type("MakefilePackage", (), {})
    monkeypatch.setitem(sys.modules, "spack", types.ModuleType("spack"))
    monkeypatch.setitem(sys.modules, "spack.package", api)
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "spack_repo.builtin.build_systems.makefile", base)
    monkeypatch.setenv("DPTRAIN_DIST", "/dist")
    names = {}
    exec(compile(source, "package.py", "exec"), names)
    recipe = names["Dptrain"]()
    assert recipe.url == f"file:///dist/dptrain-{VERSION}.tar.gz" and type(recipe).__doc__

    wanted = {re.split(r"[@~+]", args[0])[0] for args, _ in declared["depends_on"]}
    libraries = set(recipe.roots.values()) | {"onednn", "mpi"}
    assert libraries <= wanted

    class Spec(dict):
        variant = "+onednn"

        def satisfies(self, what):
            return what == self.variant

    recipe.spec = Spec({name: types.SimpleNamespace(prefix=f"/opt/{name}", mpicc="/opt/mpi/bin/mpicc") for name in libraries})
    recipe.prefix = "/opt/dptrain"
    given = dict(word.split("=", 1) for word in recipe.build_targets if "=" in word)
    known = set(re.findall(r"^([A-Z_0-9]+) \?=", MAKEFILE, re.M)) | {"CC"}
    assert set(given) <= known, set(given) - known
    assert set(recipe.roots) | {"ONEDNN_ROOT"} == {k for k in known if k.endswith("_ROOT")} - {"CMOCKA_ROOT", "CUDNN_ROOT"}  # for tests
    assert given["MPICC"] == "/opt/mpi/bin/mpicc" and given["HDF5_ROOT"] == "/opt/hdf5" and given["ONEDNN"] == "1"
    assert recipe.install_targets[-1] == "install" and "PREFIX=/opt/dptrain" in recipe.install_targets
    recipe.spec.variant = "~onednn"
    assert "ONEDNN=0" in recipe.build_targets and not any("ONEDNN_ROOT" in word for word in recipe.build_targets)
