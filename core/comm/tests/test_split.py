"""A rank that keeps the group waiting that it was split into (mpi_split.c) is named, though another group continues."""
# C programs: mpi_split
import os
import subprocess
import sys

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402


def test_who_is_missing_in_a_group():
    program = os.path.join(os.path.dirname(dpt.BINARY), "tests", "mpi_split")
    done = dpt.Result(subprocess.run(["mpirun", "-np", "5", program, "lose"], env={**os.environ, **dpt.MPI_ENVIRONMENT}, timeout=60,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    told = [line for line in done.err.splitlines() if "has not arrived" in line]
    assert done.code == 71 and len(told) == 1, done
    assert told[0].startswith("rank 3 (") and "at step 12 for 1 s" in told[0], done
    assert told[0].endswith("Its last word: standing still"), done
