"""A file or folder in the wrong place is told which command takes it; a run folder is enough for its job and checkpoint."""
import os
import sys

import h5py
import numpy as np
import pytest

sys.path[:0] = [os.path.abspath("scripts/lib")]
import dpt  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lead")
    rng = np.random.default_rng(1)
    with h5py.File(folder / "x.h5", "w") as f:
        f["images"], f["labels"] = rng.normal(size=(40, 4)).astype("f4"), np.arange(40) % 2
    (folder / "a b.csv").write_text("a,b,c,d,y\n" + "".join(f"{i},{i % 7},{i % 3},{i % 5},{i % 2}\n" for i in range(40)))
    np.save(folder / "x.npy", rng.normal(size=(3, 4)).astype("f4"))
    (folder / "pictures").mkdir()
    dpt.write_job(folder / "job.yaml", "data: {train: x.h5, test: x.h5}\nmodel: linear\nbatch: {global: 8}\ntrain: {epochs: 1}\noutput: run\n")
    assert dpt.run("job.yaml", cwd=folder).code == 0
    return folder


INIT, SHARDS = "writes a job for it", "makes shards of it"


@pytest.mark.parametrize("words, said", [
    (["x.h5"], f"x.h5: is data, not a job file: `dptrain init x.h5 --output job.yaml` {INIT}"),
    (["plan", "x.npy"], f"x.npy: is data, not a job file: `dptrain convert npy x.npy --output PREFIX` {SHARDS}"),
    (["a b.csv"], f"a b.csv: is data, not a job file: `dptrain convert csv 'a b.csv' --output PREFIX` {SHARDS}"),
    (["train", "pictures"], f"pictures: is a folder, not a job file: `dptrain init pictures --output job.yaml` {INIT}"),
    (["run"], "run: is a run folder; its job is run/job.yaml"),
    (["bench", "run/checkpoints/latest"], "run/checkpoints/latest: is a checkpoint, not a job file; that is job.yaml in its run folder"),
    (["eval", "x.h5", "--checkpoint", "run"], "x.h5: is data, not a job file: dptrain eval JOB.yaml --checkpoint C, or a run folder in the place of both"),
    (["predict", "pictures", "x.h5"], "pictures: is a folder without a job.yaml, not a job file: dptrain predict JOB.yaml"),
    (["predict", "x.h5", "--checkpoint", "run"], "x.h5: is data, not a job file: dptrain predict JOB.yaml"),
    (["predict", "run"], "no input: give --input FILE or FOLDER, or list files after the job file or run folder"),
    (["predict"], "no input: give"),
    (["convert", "a b.csv"], f"a b.csv: its format comes first: `dptrain convert csv 'a b.csv' --output PREFIX` {SHARDS}"),
    (["convert", "x.h5"], f"x.h5: is HDF5 already: `dptrain init x.h5 --output job.yaml` {INIT}"),
    (["convert", "job.yaml"], "job.yaml: is none of h5, idx, cifar10, csv, npy, npz, pictures"),
    (["job.yaml", "-n", "2"], "unknown option -n; mpirun -np N or --ranks N says how many ranks there are"),
    (["export", "run", "m.onnx", "--input-shape", "99999999999,1,1"], "--input-shape 99999999999,1,1: must be C,H,W (1,28,28), or N (784)"),
])
def test_what_stands_in_the_wrong_place(folder, words, said):
    result = dpt.run(*words, cwd=folder)
    code = 78 if "not a job file" in said or said.startswith("run:") else 2
    assert result.code == code and said in result.err and result.err.count("\n") <= 2, result


def test_a_run_folder_is_enough(folder):
    for command, words in (("eval", ["--json"]), ("predict", ["x.h5", "--probabilities"])):
        for ranks in (0, 2):
            long = dpt.run(command, "job.yaml", "--checkpoint", "run", *words, cwd=folder, ranks=ranks)
            short = dpt.run(command, "run", *words, cwd=folder, ranks=ranks)
            assert short.code == 0 and short.out == long.out and short.out, short
    started = dpt.run("eval", "run/", "--json", "--ranks", "2", cwd=folder)
    assert started.code == 0 and started.out == dpt.run("eval", "run", "--json", cwd=folder, ranks=2).out
    other = dpt.run("predict", "run", "x.h5", "--checkpoint", "nothing", cwd=folder)
    assert other.code == 65 and "nothing" in other.err, other  # what is given is taken
