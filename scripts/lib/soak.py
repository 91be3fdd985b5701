"""Disturbs one short job again and again, in every way that a cluster knows, and lets it resume to its end each time.

A try: the job is disturbed one to three times at random moments, started again on the same number of ranks until it says that it is
done, and its last checkpoint compared byte for byte with that of a run that nobody disturbed. Prints a line for each class:
tried, survived, lost. Exit 1 where one was lost; its folder stays.
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dpt  # noqa: E402

SECTIONS = {
    "schedule": "{type: cosine, warmup: 10}",
    "train": "{epochs: 20, clip_norm: 0.5}",
    "comm": "{timeout: 3 s}",
}

# A rank that is stopped while MPI starts is waited for as long as the default says: the job is not read yet.
PATIENCE = 100
# Seconds for mpirun to end when its ranks are gone. Open MPI 4.1's now and then does not: it waits for a lock of its own, in
# PMIx_server_finalize, and its dead ranks stay zombies. That is counted, and mpirun killed as a person would.
LAUNCHER_PATIENCE = 15
hung = []  # the classes in which it happened


def start(job, folder, ranks, **environment):
    return dpt.start(job, folder, ranks, "--quiet", mpirun=True, output=subprocess.DEVNULL, **environment)


def wait(process, what):
    """Until the run is over."""
    alive = until = time.monotonic()
    until += PATIENCE
    while process.poll() is None:
        now = time.monotonic()
        if dpt.ranks_of(process):
            alive = now
        if now - alive > LAUNCHER_PATIENCE:
            hung.append(what)
            process.kill()
        assert now < until, f"{process.args} has not ended after {PATIENCE} s ({what})"
        time.sleep(0.05)


def at_random_time(process, dice):
    """Some moment from the start of the process to a little after its usual end."""
    time.sleep(dice.uniform(0, 1.2))
    return dpt.ranks_of(process) if process.poll() is None else []


def send(process, dice, numbers):
    for pid in dice.sample(pids, 1) if (pids := at_random_time(process, dice)) else []:
        try:
            os.kill(pid, dice.choice(numbers))
        except ProcessLookupError:
            pass


def by_signal(job, folder, ranks, dice):
    process = start(job, folder, ranks)
    send(process, dice, [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT])
    wait(process, "a signal to a rank")


def by_kill(job, folder, ranks, dice):
    process = start(job, folder, ranks)
    send(process, dice, [signal.SIGKILL])
    wait(process, "kill -9 of a rank")


def by_launcher(job, folder, ranks, dice):
    """mpirun itself is told to end, or is killed."""
    process = start(job, folder, ranks)
    at_random_time(process, dice)
    if process.poll() is None:
        process.send_signal(dice.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL]))
    wait(process, "mpirun ended or killed")
    time.sleep(0.3)  # ranks whose mpirun was killed notice that a moment later


def by_stop(job, folder, ranks, dice):
    process = start(job, folder, ranks)
    send(process, dice, [signal.SIGSTOP])
    if ranks == 1:  # nobody is there who could miss it: it is suspended, and continues
        time.sleep(0.3)
        for pid in dpt.ranks_of(process):
            os.kill(pid, signal.SIGCONT)
    wait(process, "a rank stopped")


def by_hook(action):
    def disturb(job, folder, ranks, dice):
        fault = f"{action}:rank={dice.randrange(ranks)}:step={dice.randrange(1, 300)}"
        wait(start(job, folder, ranks, DPTRAIN_FAULT=fault), action)
    return disturb


def by_damage(job, folder, ranks, dice):
    """Stopped by kill -9, and then a bit of the newest checkpoint flips, or its end is lost."""
    by_kill(job, folder, ranks, dice)
    checkpoints = os.path.join(folder, "checkpoints")
    files = sorted(f for f in os.listdir(checkpoints) if f.startswith("step-")) if os.path.isdir(checkpoints) else []
    if len(files) < 2:
        return
    path = os.path.join(checkpoints, files[-1])
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        if dice.random() < 0.5:
            file.truncate(dice.randrange(size))
        else:
            place = dice.randrange(size)
            file.seek(place)
            byte = file.read(1)[0] ^ (1 << dice.randrange(8))
            file.seek(place)
            file.write(bytes([byte]))


CLASSES = {
    "a signal to a rank": by_signal,
    "kill -9 of a rank": by_kill,
    "mpirun ended or killed": by_launcher,
    "a rank stopped": by_stop,
    "a rank that cannot read": by_hook("read"),
    "a rank out of memory": by_hook("memory"),
    "a rank that leaves": by_hook("exit"),
    "a damaged checkpoint": by_damage,
}


def go_on(job, folder, ranks):
    """Started again until it is done, as a scheduler would."""
    for _ in range(30):
        result = dpt.run(job, "--output", folder, "--quiet", ranks=ranks, timeout=120)
        if result.code == 0:
            return result
        time.sleep(0.2)
    return result


def one_try(job, top, number, disturb, whole, dice):
    ranks = dice.randint(1, 4)
    if ranks not in whole:
        folder = os.path.join(top, f"whole-{ranks}")
        assert dpt.run(job, "--output", folder, "--quiet", ranks=ranks).code == 0
        whole[ranks] = dpt.newest(folder)
    folder = os.path.join(top, f"try-{number}")
    interruptions = dice.randint(1, 3)
    for _ in range(interruptions):
        disturb(job, folder, ranks, dice)
    result = go_on(job, folder, ranks)
    good = result.code == 0 and dpt.newest(folder) == whole[ranks]
    if good:
        shutil.rmtree(folder)
    else:
        print(f"lost: {folder}, {ranks} ranks\n{result}", file=sys.stderr, flush=True)
    return good, interruptions


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interruptions", type=int, default=200, help="at least so many in all (200)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    dice, top, whole = random.Random(arguments.seed), tempfile.mkdtemp(prefix="soak-"), {}
    job = dpt.write_small_job(os.path.join(top, "job.yaml"), **SECTIONS)
    counts = {name: [0, 0, 0] for name in CLASSES}
    number = done = 0
    while done < arguments.interruptions:
        for name, disturb in CLASSES.items():
            good, interruptions = one_try(job, top, number, disturb, whole, dice)
            counts[name][0] += interruptions
            counts[name][1 if good else 2] += 1
            number, done = number + 1, done + interruptions
            print(f"{done} of {arguments.interruptions}", file=sys.stderr, end="\r" if sys.stderr.isatty() else "\n")
    lost = sum(count[2] for count in counts.values())
    for name, (interruptions, survived, gone) in counts.items():
        print(f"{name:26} {interruptions:4} interruptions in {survived + gone:3} tries: {survived:3} survived, {gone} lost")
    print(f"{done} interruptions in {number} tries, {lost} lost")
    if hung:
        print(f"mpirun itself hung when its ranks were gone, {len(hung)} times: {', '.join(hung)}")
    if lost == 0:
        shutil.rmtree(top)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
