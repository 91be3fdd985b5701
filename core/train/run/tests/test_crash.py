"""Whatever call on the run folder is the last one, or fails: the run goes on from whole checkpoints to the same bytes.

A library between dptrain and its folder (crash_shim.c) numbers the calls that change the folder. It ends the process at
one of them, makes one fail, or writes all of them down; from that journal the folder is built again as a power cut could
have left it: what was not synced is lost, or names are there and bytes are not, or any mixture.
"""
import concurrent.futures
import copy
import itertools
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
import zlib

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"
STEPS = 8
JOB = """
seed: 5
device: {threads: 1}
data: {train: synthetic, valid: 0.25, synthetic: {samples: 64, shape: [6]}}
model: {type: sequential, layers: [flatten, {dense: 5}, relu, {dense: 10}]}
batch: {global: 16, micro: 8}
optimizer: {type: adam, lr: 0.01}
schedule: {type: cosine, warmup: 2}
train: {steps: 8}
eval: {every: 4 steps}
checkpoint: {every: 3 steps, keep: 1}
log: {every: 1 steps}
"""


# --- running under the shim -------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    with open(dpt.BINARY, "rb") as file:
        if b"libasan.so" in file.read():
            pytest.skip("AddressSanitizer's allocator and the shim's exclude each other")
    library = tmp_path_factory.mktemp("shim") / "crash_shim.so"
    source = os.path.join("core", "train", "run", "tests", "crash_shim.c")
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    subprocess.run([*compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
                    "-o", library, source, "-ldl"], check=True)
    return str(library)


class Place:
    """A folder of its own with the job and, below it, the run folder; how many ranks run it, and with which words."""

    def __init__(self, path, ranks=0, words=()):
        self.path, self.ranks, self.words = str(path), ranks, words
        self.mpi = self.path + ".mpi"
        self.out = os.path.join(self.path, "run")
        self.checkpoints = os.path.join(self.out, "checkpoints")
        os.makedirs(self.path)
        self.job = dpt.write_job(os.path.join(self.path, "job.yaml"), JOB)

    def train(self, shim=None, **variables):
        os.makedirs(self.mpi, exist_ok=True)  # runs that begin and end side by side take MPI's common folder from each other
        env = {"OMPI_MCA_orte_tmpdir_base": self.mpi, "OMPI_MCA_orte_execute_quiet": "1", **dpt.ENDS_AT_ONCE}
        if shim:
            env.update({"LD_PRELOAD": shim, "SHIM_FOLDER": self.path, **variables})
        return dpt.run(self.job, "--output", self.out, "--quiet", *self.words, ranks=self.ranks, env=env, timeout=100)

    def wait_until_alone(self):
        """mpirun may end before the rank that is left, which writes why it ends."""
        end = time.monotonic() + 60
        while any(str(self.job).encode() in words for words in command_lines()):
            assert time.monotonic() < end, "a rank of it is left"
            time.sleep(0.01)

    def final(self):
        with open(os.path.join(self.checkpoints, "latest"), "rb") as file:
            return file.read()


def command_lines():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield file.read()
        except OSError:
            continue


def whole(path):
    """Looks at the last line of a checkpoint, as its documentation describes it."""
    with open(path, "rb") as file:
        data = file.read()
    body, line = data[:-44], data[-44:]
    return line == b"dptrain crc32 %08x %020d\n" % (zlib.crc32(body), len(body))


def step_of(name):
    return int(name[5:13]) if name.startswith("step-") and name.endswith(".h5") else -1


def check_names(place):
    """Behind every final name there is a whole checkpoint, behind every link too."""
    for name in os.listdir(place.checkpoints) if os.path.isdir(place.checkpoints) else []:
        path = os.path.join(place.checkpoints, name)
        if ".tmp-" not in name:
            assert os.path.exists(path), f"{name} names nothing"
            assert whole(path), f"{name} is not whole"


def check_goes_on(place, wanted):
    """The plain command again ends as the undisturbed run did, and nothing is left over."""
    result = place.train()
    assert result.code == 0, result
    assert place.final() == wanted.final(), "another result"
    steps = [e["step"] for e in dpt.events(place.out, "train")]
    assert steps == list(range(1, STEPS + 1)), f"steps in metrics.jsonl: {steps}"
    for folder in ("run", os.path.join("run", "checkpoints")):
        ours, theirs = (set(os.listdir(os.path.join(p.path, folder))) for p in (place, wanted))
        assert ours == theirs, f"{folder} has {ours ^ theirs} too many or too few"
    check_names(place)


def text(case):
    return " / ".join(map(str, case[:4])) if isinstance(case, tuple) else str(case)


def each(cases, work):
    """Runs work(case) side by side; names the cases that failed."""
    failures = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for case, future in [(case, pool.submit(work, case)) for case in cases]:
            try:
                future.result()
            except (AssertionError, OSError, ValueError) as error:
                failures.append(f"{text(case)}: {type(error).__name__} {str(error)[:1500]}")
    assert not failures, f"{len(failures)} of {len(cases)} cases\n" + "\n".join(failures[:20])


def sample(cases, n, seed):
    cases = list(cases)
    return cases if HEAVY or len(cases) <= n else sorted(random.Random(seed).sample(cases, n), key=cases.index)


# --- the journal, and what a power cut makes of it ----------------------------------------------------------------------

class Record:
    def __init__(self, fields, data):
        self.thread, number, self.call, result, inode, offset = fields[:6]
        self.number, self.result, self.inode, self.offset = int(number), int(result), int(inode), int(offset)
        self.path, self.second, self.data = fields[7].rstrip("/"), fields[8], data

    @property
    def point(self):
        return f"{self.thread}{self.number}"

    def __str__(self):
        return f"{self.point} {self.call} {os.path.basename(self.path)}"


def read_journal(path):
    records = []
    with open(path, "rb") as file:
        while line := file.readline():
            fields = line.decode().rstrip("\n").split("\t")
            records.append(Record(fields, file.read(int(fields[6]))))
    return records


class Contents:
    def __init__(self, data=b"", durable=None):
        self.now, self.durable = bytearray(data), durable

    def write(self, offset, data):
        self.now.extend(bytes(max(0, offset + len(data) - len(self.now))))
        self.now[offset:offset + len(data)] = data

    def cut(self, size):
        self.now[size:] = bytes(max(0, size - len(self.now)))


class Disk:
    """Folders and files as the system shows them, and as they are on the medium."""

    def __init__(self, root):
        self.root = root
        self.folders = {root: {}}  # path -> name -> Contents, or the text of a link, or None for a folder
        self.history = {root: [{}]}  # path -> its states since it was last synced, that one first
        self.inodes = {}
        for path, folders, files in os.walk(root):
            for name in folders + files:
                full = os.path.join(path, name)
                entry = self.folders[path]
                if os.path.islink(full):
                    entry[name] = os.readlink(full)
                elif os.path.isdir(full):
                    entry[name] = None
                    self.folders[full] = {}
                else:
                    with open(full, "rb") as file:
                        data = file.read()
                    entry[name] = self.inodes[os.stat(full).st_ino] = Contents(data, data)
        for path in self.folders:
            self.history[path] = [dict(self.folders[path])]

    def apply(self, r):
        if r.result < 0:
            return
        folder, name = os.path.split(r.path)
        if r.call == "write":
            self.inodes[r.inode].write(r.offset, r.data)
        elif r.call == "size":
            self.inodes[r.inode].cut(r.offset)
        elif r.call == "empty":
            self.inodes[r.inode].cut(0)
        elif r.call == "reserve":
            self.inodes[r.inode].cut(max(r.offset, len(self.inodes[r.inode].now)))
        elif r.call == "sync" and r.path in self.folders:
            self.history[r.path] = [dict(self.folders[r.path])]
        elif r.call == "sync":
            self.inodes[r.inode].durable = bytes(self.inodes[r.inode].now)
        else:
            self.change_names(r, folder, name)

    def change_names(self, r, folder, name):
        entries = self.folders[folder]
        if r.call == "create":
            entries[name] = self.inodes[r.inode] = Contents()
        elif r.call == "rename":
            assert os.path.dirname(r.second) == folder
            entries[os.path.basename(r.second)] = entries.pop(name)
        elif r.call == "link":
            assert os.path.dirname(r.second) == folder
            entries[os.path.basename(r.second)] = entries[name]
        elif r.call == "unlink":
            del entries[name]
        elif r.call == "symlink":
            entries[name] = r.second
        elif r.call == "mkdir":
            entries[name] = None
            self.folders[r.path] = {}
            self.history[r.path] = [{}]
        else:
            raise AssertionError(f"the model does not know {r.call}")
        self.history[folder].append(dict(entries))

    def build(self, target, names, bytes_of, folder=None):
        """names(history of a folder) -> its entries; bytes_of(contents) -> bytes."""
        folder = folder or self.root
        os.makedirs(target, exist_ok=True)
        for name, entry in names(self.history[folder]).items():
            path = os.path.join(target, name)
            if entry is None:
                self.build(path, names, bytes_of, os.path.join(folder, name))
            elif isinstance(entry, str):
                os.symlink(entry, path)
            else:
                with open(path, "wb") as file:
                    file.write(bytes_of(entry))

    def check_is(self, path):
        """What the system shows is what is there: the journal holds all that happened."""
        for folder, folders, files in os.walk(path):
            assert set(folders + files) == set(self.folders[folder]), folder
            for name in files:
                full, entry = os.path.join(folder, name), self.folders[folder][name]
                if os.path.islink(full):
                    assert os.readlink(full) == entry
                    continue
                with open(full, "rb") as file:
                    assert file.read() == bytes(entry.now), full


def old(contents):
    return contents.durable or b""


def zeros(contents):
    """The new size is there, the new bytes are not."""
    return old(contents)[:len(contents.now)].ljust(len(contents.now), b"\0")


def sectors(contents, dice):
    """Any of the 512-byte pieces of the new bytes."""
    result = bytearray(zeros(contents))
    for at in range(0, len(result), 512):
        if dice.random() < 0.5:
            result[at:at + 512] = contents.now[at:at + 512]
    return bytes(result)


def cuts(dice):
    """Name -> (which names, which bytes) survive."""
    return {
        "all that was not synced is lost": (lambda h: h[0], old),
        "names without bytes": (lambda h: h[-1], old),
        "names and sizes without bytes": (lambda h: h[-1], zeros),
        "bytes without names": (lambda h: h[0], lambda c: bytes(c.now)),
        "a mixture": (dice.choice, lambda c: dice.choice([old, zeros, lambda c: sectors(c, dice), lambda c: bytes(c.now)])(c)),
    }


# --- the tests ----------------------------------------------------------------------------------------------------------

class World:
    """The undisturbed run, and two runs with their journals: a fresh one, and, of one rank, one that goes on after a kill."""

    def __init__(self, path, shim, ranks=0, words=()):
        self.shim, self.path, self.ranks, self.words, self.numbers = shim, path, ranks, words, itertools.count()
        self.start, self.disk, self.journal = {"fresh": None}, {}, {}
        self.wanted = Place(path / "wanted", ranks, words)
        assert self.wanted.train().code == 0
        self.record("fresh")
        if ranks:
            return
        killed = self.place("fresh")
        second = [r for r in self.journal["fresh"] if r.call == "rename" and "step-" in r.path][1]
        assert killed.train(shim, SHIM_AT=second.point, SHIM_DO="before").code == -9
        self.start["resumed"] = killed.out
        self.record("resumed")

    def place(self, kind=None):
        place = Place(self.path / f"case-{next(self.numbers)}", self.ranks, self.words)
        if kind and self.start[kind]:
            shutil.copytree(self.start[kind], place.out, symlinks=True)
        return place

    def record(self, kind):
        place, journal = self.place(kind), str(self.path / f"journal-{kind}")
        disk = Disk(place.path)
        self.disk[kind] = copy.deepcopy(disk)
        result = place.train(self.shim, SHIM_JOURNAL=journal)
        assert result.code == 0 and place.final() == self.wanted.final(), result
        self.journal[kind] = read_journal(journal)
        for r in self.journal[kind]:
            disk.apply(r)
        disk.check_is(place.path)

    def before(self, kind, record):
        """What the same thread did before."""
        mine = [r for r in self.journal[kind] if r.thread == record.thread]
        return mine[max(0, mine.index(record) - 1)]

    def points(self, n, seed, *, calls=None):
        """(kind, record) of n calls, or of all of them."""
        every = [(kind, r) for kind, records in self.journal.items() for r in records if not calls or r.call in calls]
        return sample(every, n, seed)


@pytest.fixture(scope="module")
def world(tmp_path_factory, shim):
    return World(tmp_path_factory.mktemp("crash"), shim)


# So large that each rank writes blocks of the file (core/state/shared_file.h).
SHARDED = ("--set", "comm.reduction=reproducible", "--set", "parallel.shard=parameters",
           "--set", "model={type: sequential, layers: [flatten, {dense: 9000}, relu, {dense: 10}]}")


@pytest.fixture(scope="module", params=[(), SHARDED], ids=["replicas", "sharded"])
def two_ranks(request, tmp_path_factory, shim):
    """Where they share the parameters, each writes a part of a checkpoint."""
    return World(tmp_path_factory.mktemp("two"), shim, ranks=2, words=request.param)


def test_the_journal_has_saves_links_and_removals(world):
    """So that the tests below try what they are meant to try."""
    calls = [r.call for r in world.journal["fresh"]]
    assert {"create", "write", "reserve", "sync", "rename", "symlink", "unlink", "mkdir"} <= set(calls)
    steps = [step_of(os.path.basename(r.second)) for r in world.journal["fresh"] if r.call == "rename"]
    assert [s for s in steps if s >= 0] == [3, 4, 6, 8]
    assert set(os.listdir(world.wanted.checkpoints)) >= {"latest", "best", "step-00000008.h5"}


@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_killed_at_any_call(world, how):
    def work(case):
        kind, record = case
        place = world.place(kind)
        assert place.train(world.shim, SHIM_AT=record.point, SHIM_DO=how).code == -9
        check_names(place)
        check_goes_on(place, world.wanted)
        shutil.rmtree(place.path)

    each(world.points(16, how, calls=["write"] if how == "torn" else None), work)


@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_a_rank_is_killed_at_any_call(two_ranks, how):
    """Either of them; in shards both write."""
    calls = {rank: [r for r in two_ranks.journal["fresh"] if r.thread.startswith("1") == (rank == 1) and (how != "torn" or r.call == "write")]
             for rank in (0, 1)}
    assert bool(calls[1]) == bool(two_ranks.words), "who writes"
    assert {r.call for r in calls[1]} <= {"write"}, "rank 0 syncs what ranks of its node write"

    def work(record):
        place = two_ranks.place()
        assert place.train(two_ranks.shim, SHIM_AT=record.point, SHIM_DO=how).code != 0
        place.wait_until_alone()
        check_names(place)
        check_goes_on(place, two_ranks.wanted)
        shutil.rmtree(place.path)

    each(sample(calls[0], 3, how) + sample(calls[1], 3, how), work)


def test_power_cut_at_any_call(world):
    """After every call, with each kind of loss; a save whose folder was synced is never lost."""
    try_power_cuts(world, 32)


def test_power_cut_on_two_ranks(two_ranks):
    try_power_cuts(two_ranks, 6)


def try_power_cuts(world, n):
    chosen = {(kind, r.point) for kind, r in world.points(n, "cut")}
    dice, cases = random.Random("cut"), []
    for kind, records in world.journal.items():
        disk, safe = copy.deepcopy(world.disk[kind]), 0
        for r in records:
            disk.apply(r)
            if r.call == "sync" and os.path.basename(r.path) == "checkpoints":
                safe = max([safe, *map(step_of, disk.folders[r.path])])
            if (kind, r.point) not in chosen:
                continue
            ways = list(cuts(dice).items())
            for name, (names, bytes_of) in ways if HEAVY else dice.sample(ways, 2):
                place = world.place()
                shutil.rmtree(place.path)
                disk.build(place.path, names, bytes_of)
                cases.append((kind, r, name, safe, place))

    def work(case):
        safe, place = case[3:]
        check_names(place)
        if safe:
            steps = [step_of(name) for name in os.listdir(place.checkpoints)]
            assert max(steps) >= safe, f"step {safe} was saved and is lost"
        check_goes_on(place, world.wanted)
        shutil.rmtree(place.path)

    each(cases, work)


def may_be_ignored(record, before):
    """What ends no run: a log that cannot be written, an old file that cannot be removed, a folder that was there before,
    one above the run folder that cannot be synced, a lock that cannot be given back."""
    return (record.result < 0 or record.call == "unlink" or (record.call == "sync" and before.call == "mkdir")
            or (record.call == "write" and record.path.endswith("log.txt")) or os.path.basename(record.path) == ".lock")


def name_of(record):
    path = record.second if record.call == "rename" else record.path
    return os.path.basename(path).split(".tmp-")[0].lstrip(".")


def struck(journal, record, before):
    """What was hit, and what came before it. That a save ended is told when it ended, so now and then a number is another call's."""
    records = [r for r in read_journal(journal) if r.thread == record.thread]
    at = next((i for i, r in enumerate(records) if r.call.startswith("hit ")), None)
    if at is None:
        return record, before
    hit = records[at]
    hit.call, hit.result = hit.call.removeprefix("hit "), 0
    same = name_of(hit) == name_of(record) if hit.call == "write" else True  # folders are called otherwise in each case
    return (record, before) if hit.call == record.call and same else (hit, records[at - 1])


def fail_call(world, kind, record, how):
    """Makes the call fail: the exit code, and the call that was hit. Whatever the number of ranks one line names the file."""
    place = world.place(kind)
    journal = place.path + ".journal"
    result = place.train(world.shim, SHIM_AT=record.point, SHIM_DO=how, SHIM_JOURNAL=journal)
    record, before = struck(journal, record, world.before(kind, record))
    if how in ("short", "EINTR"):
        assert result.code == 0, f"the rest of a short write is written, and what was interrupted is tried again: {result}"
    elif not may_be_ignored(record, before):
        assert result.code == 74, result
        name = name_of(record)
        lines = [line for line in result.err.splitlines() if name in line and "warning: " not in line]
        assert len(lines) == 1 and "Traceback" not in result.err, f"{name} is not named once: {result}"
    assert result.code in (0, 74), result
    check_names(place)
    check_goes_on(place, world.wanted)
    shutil.rmtree(place.path)
    return result.code, record


@pytest.mark.parametrize("how", ["EIO", "ENOSPC", "EINTR", "short"])
def test_any_call_fails(world, how):
    each(world.points(14, how, calls=["write"] if how == "short" else None), lambda case: fail_call(world, *case, how))


def twin(record, records, others):
    """The same call in another journal, told by what it does to which file, and how often that was done before."""
    def key(r):
        return r.call, name_of(r)

    before = sum(key(r) == key(record) for r in records[:records.index(record)])
    return next(itertools.islice((r for r in others if key(r) == key(record)), before, None), None)


@pytest.mark.parametrize("how", ["EIO", "ENOSPC", "EINTR"])
def test_any_call_fails_on_two_ranks(world, two_ranks, how):
    """With the exit code of one rank."""
    def work(case):
        code, hit = fail_call(two_ranks, *case, how)
        records, others = two_ranks.journal["fresh"], world.journal["fresh"]
        same = twin(case[1], records, others)
        if hit is case[1] and same is not None:
            alone, hit = fail_call(world, "fresh", same, how)
            assert hit is not same or alone == code, f"{alone} on one rank, {code} on two"

    each(two_ranks.points(4, f"{how} {two_ranks.words}"), work)


@pytest.mark.parametrize("owner", ["m", "s", "1m"])
def test_any_allocation_fails_on_two_ranks(two_ranks, owner):
    def work(number):
        place = two_ranks.place()
        result = place.train(two_ranks.shim, SHIM_ALLOC=f"{owner}{number}")
        assert result.code in (0, 71, 74), result
        assert result.code == 0 or "memory" in result.err, result
        check_names(place)
        check_goes_on(place, two_ranks.wanted)
        shutil.rmtree(place.path)

    each(sample(range(1, {"m": 120, "s": 24, "1m": 120}[owner]), 2, f"{owner} {two_ranks.words}"), work)


def allocations(world, owner):
    """How many allocations it makes: the first number at which none fails."""
    low, high = 0, 1 << 14
    journal = world.path / "allocations"
    while high - low > 1:
        middle = (low + high) // 2
        journal.unlink(missing_ok=True)
        world.place().train(world.shim, SHIM_ALLOC=f"{owner}{middle}", SHIM_JOURNAL=str(journal))
        if b"hit\n" in journal.read_bytes():
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize("owner", ["m", "s", "h"])
def test_any_allocation_fails(world, owner):
    """HDF5 itself ends the process where some of its own fail; but nothing is lost then either."""
    def work(number):
        place = world.place()
        result = place.train(world.shim, SHIM_ALLOC=f"{owner}{number}")
        if owner != "h":
            assert result.code in (0, 71, 74), result
        if result.code in (71, 74):
            assert "memory" in result.err, result
        check_names(place)
        check_goes_on(place, world.wanted)
        shutil.rmtree(place.path)

    last = allocations(world, owner)
    assert last >= {"m": 10, "s": 6, "h": 100}[owner], last
    numbers = range(1, last + 1)
    if owner == "h" and HEAVY:  # thousands, alike in every save
        numbers = random.Random(owner).sample(numbers, 400)
    each(sample(numbers, 10, owner), work)
