"""The packages on bare Debian systems, in chroots: installed and run as their users would. With DPT_HEAVY=1, as root, with
debootstrap and a network; minutes each, under emulation hours. DPT_BARE and DPT_BARE_ARM64 name bare systems to copy instead of
making them."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

TOP = Path(__file__).resolve().parents[2]
VERSION = re.search(r"^VERSION = (\S+)$", (TOP / "Makefile").read_text(), re.M).group(1)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

pytestmark = pytest.mark.skipif(os.environ.get("DPT_HEAVY") != "1", reason="bare systems take minutes: DPT_HEAVY=1 tries them")


class System:
    """A bare system in a folder. Everything that is mounted is so in a namespace that ends with the command."""

    def __init__(self, root):
        self.root = root

    def __truediv__(self, path):
        return self.root / str(path).lstrip("/")

    def run(self, script, folder="/", user="", timeout=1500, check=True, **environment):
        outside = (f"mount -t proc proc '{self.root}/proc' && mount -t sysfs -o ro sysfs '{self.root}/sys' && "
                   f"mkdir -p '{self.root}/dev/shm' && mount -t tmpfs tmpfs '{self.root}/dev/shm' && "
                   f"exec /usr/sbin/chroot {f'--userspec={user}' if user else ''} '{self.root}' /bin/sh -e -c \"$1\"")
        # QEMU_CPU: an emulated SVE takes 20 times as long as NEON.
        more = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "CI": "true", "DEBIAN_FRONTEND": "noninteractive",
                "QEMU_CPU": "max,sve=off", **environment}
        done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", outside, "sh", f"cd {folder}\n{script}"],
                              env=more, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done


def bootstrap(root, *options):
    sources = "".join(p.read_text() for p in Path("/etc/apt").glob("sources.list*") if p.is_file())
    sources += "".join(p.read_text() for p in Path("/etc/apt/sources.list.d").glob("*") if p.is_file())
    mirror = re.search(r"^(?:URIs: |deb (?:\[.*\] )?)(https?://\S+)", sources, re.M)
    name = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.M).group(1)
    done = subprocess.run(["debootstrap", "--variant=minbase", *options, name, root, *([mirror.group(1)] if mirror else [])],
                          capture_output=True, text=True, timeout=3600)
    if done.returncode != 0:
        pytest.skip("debootstrap: " + done.stdout[-300:])
    return root


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    return os.environ.get("DPT_BARE") or bootstrap(tmp_path_factory.mktemp("bare") / "system")


@pytest.fixture(scope="module")
def bare_arm64(tmp_path_factory):
    if os.geteuid() != 0 or shutil.which("debootstrap") is None or not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        pytest.skip("needs root, debootstrap, and qemu-user-static registered with binfmt_misc")
    return os.environ.get("DPT_BARE_ARM64") or bootstrap(tmp_path_factory.mktemp("arm64") / "system", "--arch=arm64")


@pytest.fixture
def system(request, tmp_path):
    made = []

    def copy(name="system", base="bare"):
        root = tmp_path / name
        subprocess.run(["cp", "-a", "--reflink=auto", request.getfixturevalue(base), root], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        for conf in Path("/etc/apt/apt.conf.d").glob("*"):
            if re.search(r"proxy|https::", conf.read_text(), re.I):
                shutil.copy(conf, root / "etc/apt/apt.conf.d" / conf.name)
        made.append(root)
        return System(root)

    yield copy
    for root in made:
        subprocess.run(["rm", "-rf", "--one-file-system", root], check=False)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """All of them, from the program under test."""
    build = tmp_path_factory.mktemp("packages")
    shutil.copy2(dpt.BINARY, build / "dptrain")
    environment = {k: v for k, v in os.environ.items() if not re.match(r"MAKEFLAGS|MFLAGS|BUILD$|CFLAGS|SANITIZE|OMPI_", k)}
    subprocess.run(["make", f"BUILD={build}", "-o", build / "dptrain", "dist", "deb", "bundle"], cwd=TOP, check=True, timeout=600,
                   env=environment)
    return build / "dist"


def trains(where, dptrain="dptrain", mpirun="mpirun", folder="/tmp"):
    """One rank, two that dptrain starts, two that mpirun starts."""
    shutil.copy(TOP / "configs/smoke.yaml", where / "tmp/smoke.yaml")
    said = where.run(f"{dptrain} --version").stdout
    assert said.startswith(f"dptrain {VERSION}\n")
    for i, command in enumerate([f"{dptrain} /tmp/smoke.yaml", f"{dptrain} /tmp/smoke.yaml --ranks 2",
                                 f"{mpirun} -np 2 --oversubscribe {dptrain} /tmp/smoke.yaml"]):
        done = where.run(f"{command} --output /tmp/run{i}", folder=folder, OMPI_ALLOW_RUN_AS_ROOT="1",
                         OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_btl_vader_single_copy_mechanism="none")
        assert "test accuracy" in done.stdout and ("2 ranks" in done.stdout + done.stderr) == (i > 0)


def test_bundle_runs(system, packages):
    here = system()
    assert here.run("dpkg -l | grep -E 'openmpi|hdf5|dnnl|yaml'", check=False).stdout == ""
    subprocess.run(["tar", "-xzf", packages / f"dptrain-{VERSION}-{os.uname().machine}.tar.gz", "-C", here / "opt"], check=True)
    here.run(f"mv /opt/dptrain-{VERSION}-* /srv/moved && ln -s /srv/moved/bin/dptrain /usr/local/bin/dptrain")
    trains(here, mpirun="/srv/moved/bin/mpirun")


def test_deb_installs_runs_and_goes(system, packages):
    here = system()
    for package in packages.glob("*.deb"):
        shutil.copy(package, here / "tmp")
    before = here.run("dpkg-query -W -f '${Package}\\n'").stdout
    here.run("apt-get -q update && apt-get -q -y --no-install-recommends install /tmp/dptrain_*.deb")
    trains(here)
    assert here.run("dpkg --verify dptrain").stdout == ""
    here.run("apt-get -q -y --no-install-recommends install lintian man-db")
    tags = here.run("lintian --allow-root --tag-display-limit 0 /tmp/dptrain_*.deb", check=False).stdout
    assert not re.findall(r"^E:.*", tags, re.M), tags
    here.run("apt-get -q -y purge dptrain")
    assert here.run("ls -d /usr/share/doc/dptrain /usr/share/dptrain /usr/bin/dptrain", check=False).stdout == ""
    assert set(before.split()) <= set(here.run("dpkg-query -W -f '${Package}\\n'").stdout.split())


def unpack(packages, folder):
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-xzf", packages / f"dptrain-{VERSION}.tar.gz", "--strip-components=1", "-C", folder], check=True)


def test_dist_builds_and_tests_itself(system, packages):
    """Without git: it builds, a second make does nothing, it packs itself again, and the tests of three modules pass."""
    here = system()
    unpack(packages, here / "tmp/sources")
    here.run("./scripts/setup.sh --build --yes && make -s -j2 && make -q && make -s dist", folder="/tmp/sources")
    assert (here / f"tmp/sources/build/dist/dptrain-{VERSION}.tar.gz").read_bytes() == \
        (packages / f"dptrain-{VERSION}.tar.gz").read_bytes()
    trains(here, dptrain="/tmp/sources/build/dptrain")
    said = here.run("./scripts/test.sh '^build unit (core/base|core/conf|models)' --no-sanitize", folder="/tmp/sources").stdout
    assert re.search(r"^[1-9]\d* passed, 0 failed, \d+ skipped$", said.strip().splitlines()[-1]), said[-3000:]


# --- images, built step by step where there is no Docker and no Apptainer ------------------------------------------------------------


def docker_steps():
    text = re.sub(r"\\\n", " ", (TOP / "scripts/packaging/Dockerfile").read_text())
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_dockerfile_makes_an_image_that_trains(system, packages):
    stages, folder, user, entry = [], "/", "", None
    for word, words in docker_steps():
        if word == "FROM":
            stages.append(system(f"stage{len(stages)}"))
            folder, user = "/", ""
        elif word == "COPY" and words.startswith("--from=build"):
            source, target = words.split()[1:]
            for path in stages[0].root.glob(source.lstrip("/")):
                shutil.copy(path, stages[-1] / target)
        elif word == "COPY":
            assert words.split()[0] == "."
            unpack(packages, stages[-1] / words.split()[1])
        elif word == "WORKDIR":
            folder = words
        elif word == "USER":
            user = words
        elif word == "RUN":
            stages[-1].run(words, folder=folder, user=user)
        elif word != "ARG":  # the bare system is of the Debian at hand, whichever the image takes
            assert word in ("ENTRYPOINT", "CMD")
            entry = entry or words
    assert entry == '["dptrain"]' and user == "dptrain"
    last = stages[-1]
    assert last.run("command -v gcc make", check=False).stdout == ""
    assert "commands:" in last.run("dptrain --help", folder=folder, user=user, HOME=folder).stdout
    trains(last, folder=folder)
    shutil.copy(TOP / "configs/smoke.yaml", last / "tmp/smoke.yaml")
    done = last.run("dptrain /tmp/smoke.yaml --ranks 2 --output mine", folder=folder, user=user, HOME=folder)
    assert "test accuracy" in done.stdout


def test_apptainer_definition_makes_an_image_that_trains(system, packages):
    text = (TOP / "scripts/packaging/dptrain.def").read_text()
    stages = []
    for part in re.split(r"^Bootstrap: docker\n", text, flags=re.M)[1:]:
        sections = dict(re.findall(r"^%(\w+)(?: from build)?\n((?:[ \t]+.*\n?|\n)*)", part, re.M))
        here = system(f"stage{len(stages)}")
        source, target = sections["files"].replace("{{ VERSION }}", VERSION).split()
        origin = stages[0] / source if stages else packages / os.path.basename(source)
        shutil.copy(origin, here / target)
        here.run(sections["post"])
        stages.append(here)
    trains(stages[-1])
    stages[-1].run(sections["test"])
    shell = sections["runscript"].replace('"$@"', "/tmp/smoke.yaml --ranks 2 --output /tmp/last")
    assert "test accuracy" in stages[-1].run(shell).stdout


def test_gpu_archive_runs_with_only_python(system, tmp_path):
    """The archive for a GPU, for the H100's code, on a bare system with Python and libraries that stand in for the GPU's."""
    done = subprocess.run([TOP / "scripts/gpu-check.sh", "--pack", tmp_path / "check.tar.xz", "--without-mnist"], capture_output=True, text=True, timeout=1500,
                          stdin=subprocess.DEVNULL, env={**os.environ, "BUILD": str(Path(dpt.BINARY).resolve().parent)})
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert (tmp_path / "check.tar.xz").stat().st_size < 16 << 20
    here = system()
    here.run("apt-get -q update && apt-get -q -y --no-install-recommends install python3")
    (here / "check").mkdir()
    shutil.copy(tmp_path / "check.tar.xz", here / "check")
    here.run("! command -v xz && (tar -xf check.tar.xz || python3 -m tarfile -e check.tar.xz)", folder="/check")
    shutil.copytree(Path(dpt.BINARY).resolve().parent / "tests/fakegpu", here / "check/tests/fakegpu")
    # The small jobs' results, which only a rehearsal compares with; the small one's are in each archive.
    (here / "check/rehearsal").mkdir()
    here.run("cd reference && cp small.txt ../rehearsal && cd .. && ! bash gpu-check.sh a out", folder="/check")
    for part, minutes in [("a", 4), ("b", 9), ("c", 14)]:
        done = here.run(f"bash gpu-check.sh {part} out-{part} --fake tests/fakegpu --only 'libraries|first-job|k.*|steps|matmul|conv.*|speed-mlp|profile-mlp|repro.*|resume'",
                        folder="/check", timeout=60 * minutes)
        report = (here / f"check/out-{part}/report.md").read_text()
        print(done.stdout, report)
        assert "| failed |" not in report and "| ok |" in report


def test_arm64_builds_and_trains(system, packages):
    """Emulated: an hour or more. NEON's kernels, one rank and two, meshes and a resumed run with the bytes of one rank."""
    here = system(base="bare_arm64")
    unpack(packages, here / "tmp/sources")
    here.run("./scripts/setup.sh --build --yes && apt-get -q -y --no-install-recommends install libcmocka-dev && "
             "make -s -j2 WERROR=1 all build/tests/test_gemm build/tests/test_sparse", folder="/tmp/sources", timeout=6 * 3600)
    said = here.run("build/tests/test_gemm && build/tests/test_sparse", folder="/tmp/sources", timeout=3600)
    assert "FAILED" not in said.stdout + said.stderr
    trains(here, dptrain="/tmp/sources/build/dptrain")
    job = ("/tmp/sources/build/dptrain /tmp/smoke.yaml --set comm.reduction=reproducible --set 'checkpoint.every=16 steps' "
           "--set data.synthetic.samples=512 --set train.epochs=2 --output /tmp/")
    done = here.run(job + "one")
    assert re.search(r"oneDNN [\d.]+, NEON\)", done.stdout + done.stderr)
    for name, words in {"two": "--ranks 2", "pipeline": "--set parallel.pipeline=2 --ranks 2", "shard": "--set parallel.shard=parameters --ranks 2"}.items():
        here.run(f"{job}{name} {words}")
    here.run(f"{job}resumed --set train.epochs=1 && {job}resumed --ranks 2")
    for name in "two", "pipeline", "shard", "resumed":
        here.run(f"cmp /tmp/one/checkpoints/step-00000032.h5 /tmp/{name}/checkpoints/step-00000032.h5")
    refused = here.run(job + "no --set device.isa=avx2", check=False)
    assert refused.returncode == 78 and "this is an arm64 machine, which has neon" in refused.stderr
