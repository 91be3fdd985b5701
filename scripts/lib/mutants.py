"""Mutants of the C sources of a module, each built and tested in a copy of the tree. scripts/mutants.sh calls it, and says how."""
import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
CORES = len(os.sched_getaffinity(0))
BUILT = {"tests", "sanitize", "debug", "test-logs", "dist", "share", "gpu-check", "mpich"}  # not copied from build

# What is found in a line of a function, and what stands there instead of it.
PAIRS = [(" < ", " <= "), (" > ", " >= "), (" == ", " != "), (" + ", " - "), (" += ", " -= "), (" * ", " / "), (" && ", " || "),
         ("fmin(", "fmax("), ("true", "false")]
BOUND = r"(?:(?<=[<>] )|(?<=[<>]= ))[a-z][\w.>-]*(?=[;)])"
WHOLE = r"(?<![\w.{])\d+(?![\w.])"
CHANGES = [
    *((rf"(?<!\w){re.escape(a)}(?!\w)" if a[0].isalpha() and a[-1] != "(" else re.escape(a), lambda old, new=b: new)
      for pair in PAIRS for a, b in (pair, pair[::-1])),
    (r"(?<=\bif \().*(?=\)(?: \{)?$)", "!({})".format),
    (BOUND, "{} + 1".format), (BOUND, "{} - 1".format),
    (WHOLE, lambda old: str(int(old) + 1)), (WHOLE, lambda old: str(int(old) - 1) if int(old) > 0 else "1"),
    (r"(?<![\w.])\d+\.\d+", lambda old: str(float(old) + 1)),
]
# A statement on a line of its own that declares nothing and leads nowhere else.
DECLARES = r"return|break|continue|goto|case|default|else|typedef|static|const|struct|enum|u?int\w*_t|double|float|bool|char|int|long|size_t|unsigned"
STATEMENT = rf"( +)(?!(?:{DECLARES})\b)[a-zA-Z_].*;$"


def without_texts(source):
    """The same characters, with blanks for those of comments and texts."""
    hidden = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    return re.sub(hidden, lambda found: re.sub(r"[^\n]", " ", found[0]), source, flags=re.S)


def mutants_of(source):
    """{number of a line in a function: [the line, changed]}."""
    found, inside, before = {}, False, ""
    for number, (line, bare) in enumerate(zip(source.split("\n"), without_texts(source).split("\n")), 1):
        inside, bare = (inside or bare == "{") and bare != "}", bare.rstrip()
        if inside and bare and not bare.lstrip().startswith("#"):
            places = [(match.start(), match.end(), new) for pattern, new in CHANGES for match in re.finditer(pattern, bare)
                      if pattern != WHOLE or not re.match(" *char ", bare)]  # longer or shorter texts are seldom noticed
            if re.search(r"(?:[;:{})]|\belse)$", before) and (match := re.match(STATEMENT, bare)):
                places.append((match.end(1), match.end(), lambda old: "(void)0;"))
            if places:
                found[number] = [line[:start] + new(line[start:end]) + line[end:] for start, end, new in places]
        before = bare or before
    return found


class Copy:
    """The tree in a folder of its own. What it starts bears its name in the environment, and is ended by it."""

    def __init__(self, folder):
        self.top, self.logs = folder / "tree", folder / "tree/build/test-logs"
        shutil.copytree(TOP, self.top, symlinks=True, ignore=lambda path, names: {".git", "runs"} & set(names) if Path(path) == TOP else
                        BUILT & set(names) if Path(path) == TOP / "build" else {"__pycache__"})
        self.logs.mkdir(parents=True)
        (folder / "tmp").mkdir()
        kept = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "BUILD", "DPT_ONLY")}
        self.environment = {**kept, "DPT_MUTANTS": str(folder), "TMPDIR": str(folder / "tmp"), "DPT_LOGS": "build/test-logs", "DPT_HEAVY": "0", "PYTEST_ADDOPTS": "-x",
                            "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, *command, **more):
        done = subprocess.run(command, cwd=self.top, env={**self.environment, **more}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True, check=False)
        return done.returncode, done.stdout

    def build(self, goals):
        return self.run("make", "-s", "WERROR=1", f"-j{CORES}", *goals)

    def test(self, job, limit):
        """Whether a job of scripts/test.sh passes within so many seconds; those it took."""
        start = time.monotonic()
        code, said = self.run("scripts/lib/run-test.sh", *job.split(), DPT_LIMIT=str(limit))
        self.end_all()
        return code == 0 and not said.startswith("FAILED"), time.monotonic() - start

    def end_all(self):
        """Ends what a test left running."""
        word, found = f"DPT_MUTANTS={self.environment['DPT_MUTANTS']}".encode(), True
        while found:
            found = False
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if word in (process / "environ").read_bytes().split(b"\0"):
                        os.kill(int(process.name), signal.SIGKILL)
                        found = True
                except OSError:
                    pass


def goals_of(jobs):
    """What they run, for make."""
    files = [job.split()[2] for job in jobs]
    named = {word for file in files if file.endswith(".py") for line in re.findall(r"^# C programs: (.*)$", (TOP / file).read_text(), re.M)
             for word in line.split()}
    programs = [file for file in files if file.endswith(".c")] + [path for word in named for path in TOP.glob(f"*/**/tests/{word}.c")]
    return ["all", "fakes", *sorted({f"build/tests/{Path(file).stem}" for file in programs})]


def first_look(copy, jobs, limit):
    """{job: seconds} of those that pass in time, the quickest first; the others are named and left out."""
    seconds = {}
    for job in jobs:
        passes, taken = copy.test(job, limit)
        if passes:
            seconds[job] = taken
        else:
            print(f"left out: {job.split()[2]} {'takes longer than the limit' if taken >= limit else 'fails as it is'}", flush=True)
    return dict(sorted(seconds.items(), key=lambda row: row[1]))


def tests_of(path, module, jobs):
    """All of the module's, the file's own first; where no module is given those of the nearest folder."""
    def above(job):
        folder = Path(job.split()[2].split("/tests/")[0])
        return len(folder.parts) if folder in path.parents else 0
    nearest = max(map(above, jobs), default=0)
    return sorted((job for job in jobs if module or above(job) == nearest), key=lambda job: not re.search(rf"/test_{path.stem}\.", job))


def try_mutants(copy, draw, module, jobs, goals, wanted, results):
    """Fills results with (survived, where, old, new) and, for what does not compile, None."""
    sources = [path.relative_to(TOP) for path in sorted((TOP / module).rglob("*.c") if module else TOP.glob("[cdm]*/**/*.c"))
               if not {"tests", "cuda", "build"} & set(path.parts)]
    lines = [(path, number, mutants) for path in sources for number, mutants in mutants_of((TOP / path).read_text()).items()]
    draw.shuffle(lines)
    for path, number, mutants in lines:
        if len([row for row in results if row]) == wanted:
            return
        start, new, source = time.monotonic(), draw.choice(mutants), (TOP / path).read_text().split("\n")
        old, source[number - 1] = source[number - 1], new
        (copy.top / path).write_text("\n".join(source))
        if copy.build(goals)[0] == 0:
            noticed = next((job.split()[2] for job in tests_of(path, module, jobs) if not copy.test(job, max(10, int(4 * jobs[job])))[0]), None)
            results.append((noticed is None, f"{path}:{number}", old.strip(), new.strip()))
            print(f"{'killed' if noticed else 'SURVIVED':<9} {path}:{number}  {old.strip()}  ->  {new.strip()}{f'  by {noticed}' if noticed else ''}"
                  f"  ({time.monotonic() - start:.1f} s)", flush=True)
        else:
            results.append(None)
        (copy.top / path).write_text((TOP / path).read_text())


def main():
    parser = argparse.ArgumentParser(prog="mutants.sh")
    parser.add_argument("module", nargs="?", default="")
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests")
    parser.add_argument("--limit", type=int, default=60)
    args = parser.parse_args()
    module = args.module.strip("/")
    if not (TOP / module).is_dir():
        parser.error(f"there is no folder {module}")
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, signal.default_int_handler)
    listed = subprocess.run([TOP / "scripts/test.sh", args.tests or "^build (unit|pytest) " + (rf"{module}(/.*)?/tests/" if module else "[cdm]"), "--no-sanitize", "--list"],
                            capture_output=True, text=True, check=True).stdout.splitlines()
    jobs = [job for job in listed if not job.startswith("build style")]
    if not jobs:
        parser.error(f"{module} has no tests of its own: --tests says which (see --help)")
    results = []
    with tempfile.TemporaryDirectory(prefix="dptrain-mutants-") as folder:
        copy = Copy(Path(folder))
        try:
            goals = goals_of(jobs)
            print(f"building a copy, and trying {len(jobs)} tests as they are", flush=True)
            code, said = copy.build(goals)
            if code != 0:
                parser.exit(1, f"mutants.sh: the tree does not build:\n{said}")
            seconds = first_look(copy, jobs, args.limit)
            try_mutants(copy, random.Random(args.seed), module, seconds, goals, args.n, results)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        finally:
            copy.end_all()
    tried = [row for row in results if row]
    survivors = [row for row in tried if row[0]]
    print(f"\n{len(tried)} mutants of {module or 'all'}, seed {args.seed}: {len(tried) - len(survivors)} killed, {len(survivors)} survived; "
          f"{len(results) - len(tried)} did not compile")
    for _, where, old, new in survivors:
        print(f"\n{where}\n- {old}\n+ {new}")


if __name__ == "__main__":
    main()
