"""What the end-to-end tests share: run the binary, with and without mpirun, and read what it wrote."""
import json
import os
import shutil
import subprocess

BINARY = os.path.abspath(os.environ.get("DPTRAIN", "build/dptrain"))

MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


class Result:
    def __init__(self, done):
        self.code = done.returncode
        self.out, self.err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))

    def __repr__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def run(*words, ranks=0, cwd=None, timeout=300, env=None):
    """Runs `dptrain words`, under `mpirun -np ranks` where ranks > 0."""
    command = [BINARY, *map(str, words)]
    if ranks:
        command = ["mpirun", "-np", str(ranks), *command]
    environment = {**os.environ, **MPI_ENVIRONMENT, **(env or {})}
    return Result(subprocess.run(command, cwd=cwd, env=environment, timeout=timeout,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE))


def write_job(path, text):
    """Writes a job file; returns its path as text."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return str(path)


def events(folder, kind=None):
    """The objects of metrics.jsonl, all or of one kind."""
    with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [e for e in lines if kind is None or e["event"] == kind]


def train(job, output, *words, ranks=0, **options):
    """Trains into a fresh folder and demands success."""
    shutil.rmtree(output, ignore_errors=True)
    result = run("train", job, "--output", output, *words, ranks=ranks, **options)
    assert result.code == 0, result
    return result
