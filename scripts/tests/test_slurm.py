"""The batch files on a real Slurm: preempted, signalled, requeued, their results are byte-identical to those of an undisturbed run."""
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "scripts/lib"))
import dpt  # noqa: E402

BATCH = TOP / "scripts/slurm"
FILES = sorted(path.name for path in BATCH.glob("*.sbatch"))
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
TOOLS = ["munged", "slurmctld", "slurmd", "sbatch", "srun"]
HEAVY = os.environ.get("DPT_HEAVY") == "1"

JOB = """
seed: 5
device: {{threads: 1}}
data:
  train: synthetic
  valid: 0.1
  synthetic: {{samples: 1009, shape: [1, 12, 12]}}
model:
  type: sequential
  layers: [{{conv: {{channels: 6, padding: same}}}}, relu, {{maxpool: 2}}, flatten, {{dropout: 0.3}}, {{dense: 10}}]
batch: {{global: 64, micro: 8}}
optimizer: {{type: adam, lr: 0.01}}
schedule: {{type: cosine, warmup: 10}}
train: {{epochs: {epochs}, clip_norm: 0.5}}
checkpoint: {{every: 7 steps, keep: 3}}
log: {{every: 10 steps}}
comm: {{timeout: 10 min}}
"""
STEPS_AN_EPOCH = 15

# In place of dptrain in the PATH: at each of its first $STILL starts rank 0 stands still 50 steps after the one from which it goes
# on. So no run is over before something happens to it, however slow the machine and fast the training. Into $TOLD: where it is.
STANDS_STILL = """#!/bin/sh
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt "${{STILL:-0}}" ]; then
    for word; do
        [ "$before" != --output ] || newest=$(readlink "$word/checkpoints/latest")
        before=$word
    done
    step=$(expr "$newest" : 'step-0*\\([0-9]*\\)')
    export DPTRAIN_FAULT="stop:rank=0:step=$((${{step:-0}} + 50))"
fi
[ -z "$FAULT" ] || [ "${{SLURM_RESTART_COUNT:-0}}" -ge "$FAULTY" ] || export DPTRAIN_FAULT=$FAULT
[ -z "$TOLD" ] || echo "$SLURM_PROCID $SLURM_LOCALID $CUDA_VISIBLE_DEVICES" >>"$TOLD"
exec {binary} "$@"
"""
# As in JOB: the batch files choose a time, and the bytes of a checkpoint tell which.
EVERY = ("--set", "checkpoint.every=7 steps")


@pytest.mark.parametrize("name", FILES)
def test_shellcheck(name):
    done = subprocess.run(["shellcheck", str(BATCH / name)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


class Slurm:
    """Talks to the private Slurm; jobs are submitted as a user would."""

    def __init__(self, folder, *options):
        self.folder = folder
        self.options = options
        (folder / "bin").mkdir(parents=True)
        folder.chmod(0o700)
        (folder / "bin/dptrain").write_text(STANDS_STILL.format(binary=shlex.quote(dpt.BINARY)))
        (folder / "bin/dptrain").chmod(0o755)
        path = f"{folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN", "PMI"))}
        self.env = {**clean, **dpt.MPI_ENVIRONMENT, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self):
        words = [str(TOP / "scripts/lib/slurm-here.sh"), str(self.folder), *self.options]
        self.process = subprocess.Popen(words, env=self.env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise AssertionError(self.process.communicate()[1])

    def stop(self):
        self.process.communicate(timeout=60)

    def clear(self):
        """Ends what a test that failed has left, so that it does not hold up the next one."""
        self.call("scancel", "--state=PENDING", check=False)
        for job in self.call("squeue", "-h", "-o", "%A").split():
            self.signal_ranks(job, signal.SIGKILL)
            self.call("scancel", "--full", "--signal=KILL", job, check=False)
            self.call("scancel", job, check=False)
        self.wait(lambda _: self.call("squeue", "-h") == "", None)

    def call(self, *words, check=True, **environment):
        done = subprocess.run([str(w) for w in words], env={**self.env, **environment}, cwd=self.folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 or not check, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, name, log, *words, options=("--ntasks=2",), still=0, told="", fault="", faulty=1):
        """The number of the job. still: at so many of its starts it stands still once. fault: DPTRAIN_FAULT of its first `faulty` starts."""
        return self.call("sbatch", "--parsable", "--cpus-per-task=1", f"--output={log}", *options, BATCH / name, *words,
                         STILL=str(still), TOLD=str(told), FAULT=fault, FAULTY=str(faulty))

    def wrap(self, text, *options):
        return self.call("sbatch", "--parsable", *options, "--wrap", text)

    def ask(self, job):
        """What Slurm knows of a job."""
        return dict(re.findall(r"(\w+)=(\S+)", self.call("scontrol", "-o", "show", "job", job)))

    def wait(self, what, *jobs, seconds=120):
        """Until `what(job)` holds for all jobs."""
        end = time.monotonic() + seconds
        while not all(what(job) for job in jobs):
            assert time.monotonic() < end, "\n".join([self.call("squeue", "--states=all"), *(
                f"{name}:\n" + "\n".join(text(self.folder / name).splitlines()[-40:]) for name in ("slurmctld.log", "daemons.log"))])
            time.sleep(0.05)

    def hold(self, *jobs, restarts=0):
        """Waits until rank 0 of each job stands still after so many restarts, and makes the others stand still too."""
        held = set()

        def come(job):
            now = self.ask(job)
            assert now["JobState"] not in ENDS, (now, text(Path(now["StdOut"])))
            if (now["JobState"], now["Restarts"]) != ("RUNNING", str(restarts)):
                return False
            if job in held or any(map(is_stopped, self.ranks(job))):
                held.add(job)
                self.signal_ranks(job, signal.SIGSTOP)
            return job in held

        # All of them again and again, since Slurm sends a CONT some seconds after it has requeued a job.
        self.wait(lambda _: all([come(job) for job in jobs]), None)

    def signal_ranks(self, job, number):
        for folder in self.ranks(job):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), number)

    def ranks(self, job):
        return [folder for folder in processes(f"SLURM_JOB_ID={self.ask(job)['JobId']}", f"SLURM_CONF={self.env['SLURM_CONF']}")
                if os.path.basename(executable(folder)) == "dptrain"]

    def let_go_when_told(self, *jobs):
        """Lets held jobs continue as soon as a request to stop waits for one of their ranks, or Slurm itself has woken them."""
        request = 1 << (signal.SIGUSR1 - 1) | 1 << (signal.SIGTERM - 1)

        def told(job):
            waiting = [int(re.search(r"ShdPnd:\s*(\w+)|$", text(rank / "status"))[1] or "0", 16) for rank in self.ranks(job)]
            return any(mask & request for mask in waiting) or self.ask(job)["JobState"] != "RUNNING"

        self.wait(told, *jobs)
        for job in jobs:
            self.signal_ranks(job, signal.SIGCONT)

    def wait_for_end(self, *jobs, seconds=120):
        self.wait(lambda job: self.ask(job)["JobState"] in ENDS, *jobs, seconds=seconds)

    def wait_for_restart(self, count, *jobs):
        self.wait(lambda job: self.ask(job)["Restarts"] == str(count) and self.ask(job)["JobState"] == "RUNNING", *jobs)


def started(folder, *options):
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=path) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)")
    here = Slurm(folder, *options)
    try:
        here.start()
    except AssertionError as error:
        if os.geteuid() == 0:
            raise
        pytest.skip(f"Slurm does not run here without root: {error}")
    return here


@pytest.fixture(scope="module")
def only(tmp_path_factory):
    here = started(tmp_path_factory.mktemp("s"))
    yield here
    here.stop()


@pytest.fixture
def slurm(only):
    """With no job in it, whatever the test before has left."""
    yield only
    only.clear()


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A Slurm that leaves cancelled jobs the time to save on a slow machine, too. Requeued ones would start before it is over."""
    here = started(tmp_path_factory.mktemp("p"), "60")
    yield here
    here.stop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Job files of some lengths with their undisturbed runs."""
    folder = tmp_path_factory.mktemp("whole")
    made = {}

    def get(epochs, *words):
        key = (epochs, *words)
        if key not in made:
            job = dpt.write_job(folder / f"job-{epochs}.yaml", JOB.format(epochs=epochs))
            dpt.train(job, folder / f"run-{len(made)}", "--quiet", *words, ranks=2)
            made[key] = job, newest(folder / f"run-{len(made)}")
        return made[key]

    return get


def newest(folder):
    return (folder / "checkpoints" / "latest").read_bytes()


def text(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def is_stopped(folder):
    return text(folder / "stat").rpartition(")")[2].split()[:1] == ["T"]


def executable(folder):
    try:
        return os.readlink(folder / "exe")
    except OSError:
        return ""


def processes(*variables):
    """Their folders in /proc, of all that have these in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if {v.encode() for v in variables} <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(folder)
        except OSError:
            continue
    return found


def assert_undisturbed(folder, expected, epochs):
    assert newest(folder) == expected, text(folder / "log.txt")
    steps = [e["step"] for e in dpt.events(folder, "train")]
    assert steps == list(range(10, epochs * STEPS_AN_EPOCH + 1, 10)), "no step twice, none missing"


def test_preempted_and_signalled_ends_with_the_same_bytes(slurm, whole, tmp_path):
    """With srun and mpirun, with and without time to react; requeued twice each."""
    epochs = 80
    job, expected = whole(epochs)
    kinds = {"srun": ("preempt.sbatch", "low"), "mpirun": ("preempt-mpirun.sbatch", "low"), "abrupt": ("preempt.sbatch", "abrupt")}
    folder = {kind: tmp_path / kind for kind in kinds}
    log = {kind: tmp_path / f"{kind}.log" for kind in kinds}
    number = {kind: slurm.submit(name, log[kind], job, folder[kind], "--quiet", *EVERY, options=("--ntasks=2", f"--partition={partition}"),
                                 still=2) for kind, (name, partition) in kinds.items()}
    jobs = number.values()

    slurm.hold(*jobs)
    slurm.wrap("true", "--partition=high", "--ntasks=6", "--output=/dev/null")
    slurm.let_go_when_told(*jobs)
    slurm.hold(*jobs, restarts=1)
    for kind in ("srun", "mpirun"):
        assert "all is saved" in log[kind].read_text() and "requeueing job" in log[kind].read_text(), log[kind].read_text()

    # Slurm knows srun's ranks, but only the batch file where mpirun started them.
    for kind in kinds:
        slurm.call("scancel", "--signal=USR1", *(["--batch"] if kind == "mpirun" else []), number[kind])
    slurm.let_go_when_told(*jobs)
    slurm.wait_for_end(*jobs)
    for kind in kinds:
        end = slurm.ask(number[kind])
        # Slurm 24.11 counts one that asks to be requeued while it is preempted twice.
        assert (end["JobState"], end["ExitCode"]) == ("COMPLETED", "0:0") and end["Restarts"] in ("2", "3"), (kind, end, log[kind].read_text())
        # Twice in all: where there was no time to react the first one is Slurm's own.
        assert log[kind].read_text().count("requeueing job") == (1 if kind == "abrupt" else 2), (kind, log[kind].read_text())
        assert "(SIGUSR1), all is saved" in log[kind].read_text(), log[kind].read_text()
        assert_undisturbed(folder[kind], expected, epochs)


@pytest.mark.parametrize("name", ["preempt.sbatch", "preempt-mpirun.sbatch"])
def test_cancelled_stays_cancelled(patient, tmp_path, name):
    """TERM to the ranks, srun, mpirun and the batch file at once: saved, and not put back into the queue."""
    job = dpt.write_job(tmp_path / "job.yaml", JOB.format(epochs=1000))
    log = tmp_path / "log"
    number = patient.submit(name, log, job, tmp_path / "run", "--quiet", still=1)
    patient.hold(number)
    patient.call("scancel", number)  # with a CONT
    patient.wait_for_end(number)
    assert patient.ask(number)["JobState"] == "CANCELLED" and patient.ask(number)["Restarts"] == "0"
    assert "requeueing" not in log.read_text()
    if name == "preempt.sbatch":  # mpirun kills its ranks two seconds later, done or not
        assert "(SIGTERM), all is saved" in text(tmp_path / "run" / "log.txt"), log.read_text()


def test_a_hang_is_requeued_while_each_start_saves(slurm, whole, tmp_path):
    """One that saves nothing stays ended: it would hang again."""
    words = ("--quiet", *EVERY, "--set", "comm.timeout=3 s")
    epochs = 8
    job, expected = whole(epochs, *words[1:])
    kinds = {"srun": ("preempt.sbatch", 30, 1), "mpirun": ("preempt-mpirun.sbatch", 30, 1), "vain": ("preempt.sbatch", 4, 100)}
    number = {kind: slurm.submit(name, tmp_path / f"{kind}.log", job, tmp_path / kind, *words, fault=f"hang:rank=1:step={step}", faulty=faulty)
              for kind, (name, step, faulty) in kinds.items()}
    slurm.wait_for_end(*number.values())
    for kind, job in number.items():
        end, log = slurm.ask(job), (tmp_path / f"{kind}.log").read_text()
        assert log.count("has not arrived at step") == 1, (kind, log)
        if kind == "vain":
            assert (end["JobState"], end["ExitCode"], end["Restarts"]) == ("FAILED", "71:0", "0"), (end, log)
        else:
            assert (end["JobState"], end["Restarts"]) == ("COMPLETED", "1") and log.count("requeueing job") == 1, (kind, end, log)
            assert_undisturbed(tmp_path / kind, expected, epochs)


def test_array_requeues_only_the_task_that_stopped(slurm, whole, tmp_path):
    epochs = 20
    job, expected = whole(epochs, "--set", "seed=2")
    out = tmp_path / "out"
    array = slurm.submit("array.sbatch", tmp_path / "%a.log", job, out, "--quiet", *EVERY, options=("--ntasks=2", "--array=1-2"), still=1)
    # The last task bears the number of the array. The first one does without being told to.
    slurm.hold(f"{array}_1", f"{array}_2")
    slurm.signal_ranks(f"{array}_1", signal.SIGCONT)
    slurm.call("scancel", "--signal=USR1", f"{array}_2")
    slurm.let_go_when_told(f"{array}_2")
    slurm.wait_for_end(f"{array}_1", f"{array}_2")
    for seed, restarts in ((1, "0"), (2, "1")):
        end = slurm.ask(f"{array}_{seed}")
        assert (end["JobState"], end["Restarts"]) == ("COMPLETED", restarts), (tmp_path / f"{seed}.log").read_text()
    assert_undisturbed(out / "seed-2", expected, epochs)
    assert newest(out / "seed-1") != expected


def test_one_node(slurm, whole, tmp_path):
    job, expected = whole(10)
    number = slurm.submit("one-node.sbatch", tmp_path / "log", job, tmp_path / "run", "--set", "log.every=5 steps")
    slurm.wait_for_end(number)
    assert slurm.ask(number)["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    assert newest(tmp_path / "run") == expected


def test_commands_leave_a_rank_its_peers():
    """A GPU that Slurm gives to one task is hidden from the others of its node: no command that is shown asks for that."""
    files = []
    if shutil.which("git"):
        listed = subprocess.run(["git", "-C", TOP, "ls-files", "-z", "*.md", "*.yaml", "*.sbatch", "*.c"], capture_output=True, timeout=60)
        files = [TOP / name for name in listed.stdout.decode().split("\0") if name] if listed.returncode == 0 else []
    files = files or [path for kind in ("md", "yaml", "sbatch", "c") for path in TOP.rglob(f"*.{kind}")]
    lines = [(path.name, line) for path in files if path.is_file() for line in path.read_text(encoding="utf-8").splitlines()]
    assert not [at for at in lines if re.search(r"--gpus-per-task[= ]\d|srun.*--gpu-bind", at[1])]
    starts = {name: line for name, line in lines if re.search(r"\bsrun\b.*dptrain", line) and (name == "gpus.sbatch" or "--gpus" in line)}
    assert {"gpus.sbatch", "resnet50-imagenet.yaml"} <= set(starts)
    assert not [at for at in starts.items() if "--cpu-bind=none" not in at[1]]


def test_gpus(slurm, whole, tmp_path):
    """A rank for each, and each sees all; Slurm's GPUs are none here, so all compute on the CPU."""
    job, expected = whole(10)
    log, told = tmp_path / "log", tmp_path / "told"
    number = slurm.submit("gpus.sbatch", log, job, tmp_path / "run", "--quiet", told=told,
                          options=("--gpus-per-node=2", "--ntasks-per-node=2", "--gpu-bind=single:1", "--gpus-per-task=1"))  # which hide
    slurm.wait_for_end(number)
    assert slurm.ask(number)["JobState"] == "COMPLETED", log.read_text()
    assert sorted(told.read_text().splitlines()) == ["0 0 0,1", "1 1 0,1"]
    assert dpt.events(tmp_path / "run", "run")[0]["ranks"] == 2
    assert newest(tmp_path / "run") == expected

    number = slurm.submit("gpus.sbatch", log, job, tmp_path / "other", options=("--gpus-per-node=1", "--ntasks-per-node=2"))
    slurm.wait_for_end(number)
    assert slurm.ask(number)["ExitCode"] == "2:0"
    assert log.read_text() == "gpus.sbatch: 2 ranks on 1 node(s) with 1 GPU(s) each: --ntasks-per-node should be as --gpus-per-node\n"


def test_several_nodes(slurm, whole, tmp_path):
    """The ranks of the two nodes do not share memory, as far as MPI knows."""
    if "wide" not in slurm.call("sinfo", "-h", "-o", "%R").split():
        pytest.skip("a second node on this machine needs name spaces, which take root")
    job, expected = whole(10)
    log = tmp_path / "log"
    slurm.env["OMPI_MCA_btl_tcp_if_include"] = "lo"
    number = slurm.submit("several-nodes.sbatch", log, job, tmp_path / "run", "--quiet",
                          options=("--partition=wide", "--nodes=2", "--ntasks-per-node=1"))
    del slurm.env["OMPI_MCA_btl_tcp_if_include"]
    slurm.wait_for_end(number)
    assert slurm.ask(number)["JobState"] == "COMPLETED" and slurm.ask(number)["NumNodes"] == "2", log.read_text()
    assert dpt.events(tmp_path / "run", "run")[0]["ranks"] == 2
    assert newest(tmp_path / "run") == expected


def test_started_in_every_way_inside_a_job(slurm, tmp_path):
    """A batch file has the variables of a task, but what it starts is alone; so is a single task. Exit codes arrive."""
    job = dpt.write_job(tmp_path / "job.yaml", JOB.format(epochs=1))
    forever = dpt.write_job(tmp_path / "forever.yaml", JOB.format(epochs=100000))
    bad = dpt.write_job(tmp_path / "bad.yaml", "nonsense: 1\n")
    ways = {"alone": ("dptrain", 1), "ranks": ("dptrain --ranks 2", 2), "mpirun": ("mpirun dptrain", 2),
            "srun-1": ("srun --overlap -n 1 --mpi=pmix dptrain", 1), "srun-2": ("srun --overlap --mpi=pmix dptrain", 2)}
    lines = [f"{command} {bad} --quiet --output {way}-bad; echo {way} bad $?" for way, (command, _) in ways.items()]
    exits = [(way, "78") for way in ways]
    ways["srun-1-none"] = ("srun --overlap -n 1 --mpi=none dptrain", 1)
    ways["srun-1-ranks"] = ("srun --overlap -n 1 --mpi=none dptrain --ranks 2", 2)
    if "pmi2" in slurm.call("srun", "--mpi=list").split():
        ways["srun-1-pmi2"] = ("srun --overlap -n 1 --mpi=pmi2 dptrain", 1)
    lines += [f"{command} {job} --quiet --output {way}; echo {way} good $?" for way, (command, _) in ways.items()]
    for way in ("alone", "srun-1", "srun-2", "ranks"):
        lines += [f"{ways[way][0]} {forever} --quiet --output {way}-long --set 'train.max_time=2 s' & "]
    lines += ["wait %1; echo alone long $?", "wait %2; echo srun-1 long $?", "wait %3; echo srun-2 long $?", "wait %4; echo ranks long $?"]
    number = slurm.wrap("\n".join(["set -m", *lines]), "--ntasks=2", "--overcommit", f"--chdir={tmp_path}", "--output=log")
    slurm.wait_for_end(number)
    log = (tmp_path / "log").read_text()
    assert re.findall(r"^(\S+) bad (\d+)$", log, re.M) == exits, log
    for way, (_, ranks) in ways.items():
        assert f"{way} good 0\n" in log, log
        assert dpt.events(tmp_path / way, "run")[0]["ranks"] == ranks
    assert re.findall(r"^(\S+) long (\d+)$", log, re.M) == [(way, "75") for way in ("alone", "srun-1", "srun-2", "ranks")], log


@pytest.mark.skipif(not HEAVY, reason="takes 80 s, since Slurm's time limits are minutes: DPT_HEAVY=1 runs it")
def test_stops_before_its_time_is_up(slurm, tmp_path):
    """Nobody signals: dptrain asks squeue when its time ends."""
    job = dpt.write_job(tmp_path / "job.yaml", JOB.format(epochs=1000000))
    log, out = tmp_path / "log", tmp_path / "run"
    number = slurm.submit("preempt.sbatch", log, job, out, "--quiet", options=("--ntasks=2", "--time=1", "--signal=CONT@1"))
    slurm.wait_for_restart(1, number)
    assert "(the time is up), all is saved" in log.read_text() and "TIME LIMIT" not in log.read_text()
    slurm.wait(lambda _: text(out / "metrics.jsonl").count('"event": "run"') == 2, number)
    slurm.call("scancel", number)
    slurm.wait_for_end(number)
    ends = dpt.events(out, "end")
    assert ends[0]["step"] > 100


def test_tasks_without_pmix_are_told_what_is_missing(slurm, tmp_path):
    """Not a page from each of them."""
    job = dpt.write_job(tmp_path / "job.yaml", JOB.format(epochs=10))
    number = slurm.wrap(f"srun --mpi=none dptrain {job} --quiet --output run", "--ntasks=2", f"--chdir={tmp_path}", "--output=log")
    slurm.wait_for_end(number)
    said = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("srun:")]
    assert len(said) == 1 and said[0].startswith("srun started 2 tasks ") and "add --mpi=pmix" in said[0], said
    assert slurm.ask(number)["ExitCode"] == "2:0"
    assert not (tmp_path / "run").exists()


def test_no_daemon_is_left(slurm):
    """Also when the one who started it is gone without a word."""
    second = Slurm(slurm.folder / "2")
    second.start()
    second.wrap("sleep 300", "--output=/dev/null", "--no-requeue")
    mark = f"SLURM_CONF={second.env['SLURM_CONF']}"
    slurm.wait(lambda name: name in [text(folder / "comm") for folder in processes(mark)], "sleep\n")
    second.process.stdin.close()
    second.process.wait(timeout=60)
    assert processes(mark) == []
