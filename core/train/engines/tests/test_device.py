"""Whole jobs whose steps a device takes, on one that runs on the CPU (core/backend/cuda/tests/fake/fake.h)."""
import os
import re
import signal
import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest

sys.path[:0] = ["scripts/lib", "core/train/tests", "core/train/run/tests"]
import dpt  # noqa: E402
from running import Paused  # noqa: E402
from test_lying_checkpoints import lie  # noqa: E402

FAKE = os.path.join(os.path.dirname(dpt.BINARY), "tests", "fakegpu")
pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(FAKE, "libcublasLt.so.13")),
                                reason="this build has no CUDA, or no fake device (make check-units makes it)")

LINEAR = {
    "seed": "3",
    "data": "{train: synthetic, valid: 0.1, synthetic: {samples: 200, shape: [5], outputs: 2, noise: 0.1}}",
    "model": "{type: linear, outputs: 2}",
    "loss": "mse",
    "batch": "{global: 48}",
    "optimizer": "{type: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 0.01}",
    "train": "{steps: 8, clip_norm: 1}",
    "checkpoint": "{every: 4 steps}",
    "log": "{every: 1 steps}",
}
MLP = {
    **LINEAR,
    "data": "{train: synthetic, valid: 0.1, synthetic: {samples: 220, shape: [1, 10, 10]}}",
    "model": "{type: mlp, hidden: [24, 16], outputs: 10}",
    "loss": "{type: cross_entropy, label_smoothing: 0.1}",
    "optimizer": "{type: adamw, lr: 0.01}",
}
CNN = {
    **MLP,
    "data": "{train: synthetic, valid: 0.1, synthetic: {samples: 220, shape: [3, 8, 8]}, "
            "augment: {crop_padding: 2, flip: true}}",
    "model": "{type: sequential, layers: [{conv: {channels: 8, padding: same}}, relu, {maxpool: 2}, "
             "{conv: {channels: 6, kernel: 3}}, relu, flatten, {dropout: 0.3}, {dense: 10}]}",
    "loss": "cross_entropy",
    "optimizer": "{type: adam, lr: 0.01}",
    "train": "{steps: 8}",
}

RESIDUAL = {
    **CNN,
    "model": "{type: sequential, layers: [{conv: {channels: 6, bias: false}}, batchnorm, relu, "
             "{residual: {layers: [{conv: {channels: 6, padding: same, bias: false}}, batchnorm]}}, relu, {dropout: 0.3}, "
             "{residual: {layers: [{conv: {channels: 9, padding: same, stride: 2, bias: false}}, {batchnorm: {decay: 0.5}}]}}, relu, "
             "global_avgpool, {dense: 10}]}",
    "batch": "{global: 48, micro: 16}",
    "train": "{steps: 8, clip_norm: 1}",
}

DENSE = {
    **CNN,
    "model": "{type: sequential, layers: [flatten, {dense: 24}, relu, {dropout: 0.3}, {dense: 10}]}",
    "optimizer": "{type: sgd, lr: 0.05, momentum: 0.9}",
}


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return Machine(tmp_path)


class Machine:
    """Runs jobs where the fake device is all that can be found."""

    def __init__(self, tmp_path):
        self.path = tmp_path
        self.environment = {"LD_LIBRARY_PATH": FAKE, "CUDA_HOME": "", "CUDNN_ROOT": "", "DPTRAIN_CUDA_PATH": "",
                            "CUDA_VISIBLE_DEVICES": "0,1,2,3", "XDG_CACHE_HOME": str(tmp_path / "cache"), "FAKEGPU_EAGER": "1",
                            # Plans that take so long have a time without many runs.
                            "FAKEGPU_TAKES": "engine:2000:2000,algorithm:2000:2000"}

    def job(self, sections, **more):
        sections = {"name": "job", **sections, **more}
        return dpt.write_job(self.path / f"{sections['name']}.yaml",
                             "".join(f"{key}: {text}\n" for key, text in sections.items()))

    def run(self, name, job, *words, ranks=0, kind="cuda", sets=(), **environment):
        sets = [word for text in [f"device.kind={kind}", *sets] for word in ("--set", text)]
        result = dpt.run("train", job, "--output", self.path / name, *words, *sets, ranks=ranks if ranks > 1 else 0,
                         env={**self.environment, **environment})
        assert "fakegpu:" not in result.err, result
        return result

    def train(self, name, job, *words, **options):
        result = self.run(name, job, *words, **options)
        assert result.code == 0, result
        return result

    def losses(self, name):
        return np.array([e["loss"] for e in dpt.events(self.path / name, "train")], dtype=float)

    def evaluations(self, name):
        return np.array([e["loss"] for e in dpt.events(self.path / name, "eval")])

    def newest(self, name):
        return dpt.newest(self.path / name)

    def weights(self, name):
        """All arrays of the newest checkpoint, and its attributes."""
        with h5py.File(self.path / name / "checkpoints" / "latest") as file:
            found = {}
            file.visititems(lambda key, item: found.update({key: item[...]})
                            if isinstance(item, h5py.Dataset) and key not in ("job", "plans") else None)
            return found, dict(file.attrs)

    def plans(self, name):
        """Which kernel computes what, as the newest checkpoint tells: {"conv1 forward": (problem, tag)}."""
        with h5py.File(self.path / name / "checkpoints" / "latest") as file:
            lines = [line.split("\t") for line in file["plans"][()].decode().splitlines()]
        return {what: (problem, tag) for what, problem, tag in lines}

    def assert_same_run_bits(self, name, other):
        (got, attributes), (want, others) = self.weights(name), self.weights(other)
        assert got.keys() == want.keys() and attributes["step"] == others["step"]
        for key in want:
            np.testing.assert_array_equal(got[key], want[key], key)

    def assert_same_run(self, name, other, tolerance=1e-5):
        """The same steps were made, and rounding apart they came to the same."""
        (got, attributes), (want, others) = self.weights(name), self.weights(other)
        assert got.keys() == want.keys()
        assert attributes.keys() - {"numerics"} == others.keys() - {"numerics"}  # of CPUs alone
        for key in ("step", "updates", "samples", "epoch", "epoch_step", "best_step"):
            assert attributes[key] == others[key], key
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=0, atol=max(1e-6, tolerance * np.abs(want[key]).max()))
        np.testing.assert_allclose(self.losses(name), self.losses(other), rtol=tolerance)


@pytest.mark.parametrize("sections, ranks, tolerance", [(LINEAR, (1, 3), 1e-5), (MLP, (1, 4), 1e-5), (CNN, (1, 2), 1e-3),
                                                      (RESIDUAL, (1, 2), 1e-3)],
                         ids=["linear", "mlp", "cnn", "residual"])
def test_gives_what_the_cpu_gives(machine, sections, ranks, tolerance):
    job = machine.job(sections)
    machine.train("cpu", job, kind="ref", sets=["batch.micro=16"])
    for n in ranks:
        name = f"gpu{n}"
        machine.train(name, job, ranks=n)
        assert machine.weights(name)[1]["backend"] == b"cuda" and len(machine.losses(name)) == 8
        machine.assert_same_run(name, "cpu", 10 * tolerance)
        for got, want in ((machine.losses(name), machine.losses("cpu")), (machine.evaluations(name), machine.evaluations("cpu"))):
            np.testing.assert_allclose(got, want, rtol=tolerance)


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_idle_ranks(machine, reduction):
    """Two micro-batches for four devices: those without one add nothing, and end with the same weights."""
    job = machine.job({**MLP, "batch": "{global: 48, micro: 24}", "comm": f"{{reduction: {reduction}}}"},
                      train="{steps: 8, check_replicas: 1 steps}")
    machine.train("one", job)
    result = machine.train("idle", job, ranks=4)
    assert "ranks 0, 2 of 4 stay idle" in result.err, result
    machine.assert_same_run("idle", "one", 1e-4)


MNIST = "{train: synthetic, synthetic: {samples: 64, shape: [1, 28, 28]}}"
MNISTCNN = ("{type: sequential, layers: [{conv: {channels: 8, padding: same}}, relu, {maxpool: 2}, "
            "{conv: {channels: 16, padding: same}}, relu, {maxpool: 2}, flatten, {dense: 32}, relu, {dense: 10}]}")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("data, model, most", [(MNIST, "{type: mlp, hidden: [64], outputs: 10}", 10), (MNIST, MNISTCNN, 22)],
                         ids=["mlp", "mnistcnn"])
def test_a_step_has_few_nodes(machine, data, model, most, precision):
    """On one rank a step is one graph; each of its nodes costs a launch on the device."""
    job = machine.job({"data": data, "model": model, "loss": "cross_entropy", "optimizer": "{type: adam}",
                       "batch": "{global: 8, micro: 8}", "train": "{steps: 6}"}, device=f"{{precision: {precision}}}")
    log = machine.path / "log"
    machine.train("run", job, FAKEGPU_LOG=str(log))
    nodes = re.findall(r"^cuGraphLaunch (\d+) nodes", log.read_text(), re.M)
    assert len(nodes) >= 6 and int(nodes[-1]) <= most, nodes


@pytest.mark.parametrize("seed", ["0", "1", "2", "3"])
def test_several_steps_a_launch(machine, seed):
    """Where nobody looks at each step; with checkpoints, evaluations, epochs and lines at odd places, and the bytes of single steps."""
    often = {"train": "{steps: 47}", "checkpoint": "{every: 17 steps, keep: 9}", "eval": "{every: 19 steps}",
             "data": "{train: synthetic, valid: 0.1, synthetic: {samples: 1300, shape: [1, 10, 10]}}"}
    single = machine.job({**MLP, **often, "name": "single", "log": "{every: 1 steps}"})
    job = machine.job({**MLP, **often, "log": "{every: 23 steps}"})
    late = {"FAKEGPU_EAGER": "0", "FAKEGPU_SEED": seed}
    machine.train("single", single)
    machine.train("several", job, FAKEGPU_LOG=str(machine.path / "log"), **late)
    machine.assert_same_run_bits("several", "single")
    np.testing.assert_array_equal(machine.evaluations("several"), machine.evaluations("single"))
    nodes = [int(n) for n in re.findall(r"^cuGraphLaunch (\d+) nodes", (machine.path / "log").read_text(), re.M)]
    step = nodes[-1]
    assert step > 8 and nodes.count(4 * step) >= 4 and nodes.count(step) + 4 * nodes.count(4 * step) == 47
    machine.train("parts", job, sets=["train.steps=30"], **late)
    machine.train("parts", job, **late)
    machine.assert_same_run_bits("parts", "single")


def test_waits_where_it_has_to(machine):
    """The device does its work late and in another order, as far as streams and events let it."""
    dense, cnn = machine.job(DENSE, name="dense"), machine.job(CNN, name="cnn")
    machine.train("dense", dense, ranks=2)
    machine.train("cnn", cnn, kind="cpu")
    for seed, ranks in ((0, 1), (1, 2), (2, 1), (3, 2)):
        late = {"FAKEGPU_EAGER": "0", "FAKEGPU_SEED": str(seed)}
        machine.train(f"dense{seed}", dense, ranks=3 - ranks, **late)
        machine.assert_same_run(f"dense{seed}", "dense")
        machine.train(f"cnn{seed}", cnn, ranks=ranks, **late)
        np.testing.assert_allclose(machine.losses(f"cnn{seed}"), machine.losses("cnn"), rtol=1e-3)


@pytest.mark.parametrize("precision, ranks, late", [("fp32", 1, True), ("fp32", 2, False), ("fp16", 2, False)])
def test_goes_on_where_it_was(machine, precision, ranks, late):
    """The same bytes, since kernels whose bits change are left out and those that were measured to be quick are written down."""
    job = machine.job(CNN, device=f"{{precision: {precision}}}")
    order = {"FAKEGPU_EAGER": "0", "FAKEGPU_SEED": "1"} if late else {}
    machine.train("whole", job, ranks=ranks)
    machine.train("parts", job, ranks=ranks, sets=["train.steps=3"], **order)
    machine.train("parts", job, ranks=ranks, sets=["train.steps=6"])
    assert "resuming at step 6" in machine.train("parts", job, ranks=ranks).err
    assert machine.newest("parts") == machine.newest("whole")
    if precision == "fp16":
        assert machine.weights("parts")[1]["loss_scale"] == 2048


def test_goes_on_with_its_running_statistics(machine):
    job = machine.job(RESIDUAL)
    machine.train("whole", job)
    machine.train("parts", job, sets=["train.steps=5"])
    assert "resuming at step 5" in machine.train("parts", job).err
    assert machine.newest("parts") == machine.newest("whole")


@pytest.fixture(name="general")
def fixture_general(machine):
    """A cache that says of each convolution of the job that the general engine is the quickest: it has other bits."""
    job = machine.job(CNN, name="general")
    machine.train("general-cached", job, sets=["train.steps=1"], FAKEGPU_MODEL="Fake")
    lines = (machine.path / "cache" / "dptrain" / "gpu-plans.txt").read_text().splitlines()
    folder = machine.path / "elsewhere" / "dptrain"
    folder.mkdir(parents=True)
    (folder / "gpu-plans.txt").write_text("".join(re.sub(r"^(conv .*\t).*", r"\1-engine=0", line) + "\n" for line in lines))
    return {"XDG_CACHE_HOME": str(machine.path / "elsewhere"), "FAKEGPU_MODEL": "Fake"}


def test_goes_on_with_its_kernels(machine, general):
    """Where today others would be chosen, those of the checkpoint are taken; where they cannot be had, that is said."""
    job = machine.job(CNN)
    machine.train("whole", job, FAKEGPU_MODEL="Fake")
    machine.train("other", job, **general)
    assert machine.plans("other")["conv1 forward"][1] == "-engine=0"
    assert machine.plans("whole") != machine.plans("other") and machine.newest("whole") != machine.newest("other")
    machine.train("parts", job, sets=["train.steps=4"], FAKEGPU_MODEL="Fake")
    result = machine.train("parts", job, **general)
    assert "resuming at step 4" in result.err and "may differ" not in result.err, result
    assert machine.newest("parts") == machine.newest("whole")
    # On another kind of device they mean nothing.
    machine.train("moved", job, sets=["train.steps=4"], FAKEGPU_MODEL="Fake")
    result = machine.train("moved", job, FAKEGPU_MODEL="Another")
    n = len(machine.plans("whole"))
    assert f"{n} of the {n} convolutions and products" in result.err and "(conv1 forward, ...)" in result.err, result
    assert "| Another |" in machine.plans("moved")["conv1 forward"][0]
    # Nor to a processor.
    result = machine.train("parts", job, kind="ref", sets=["train.steps=9"])
    assert "convolutions and products" not in result.err and "cuda" in result.err, result


def test_what_repeated_bits_cost(machine):
    """Kernels whose bits vary are taken where the job allows them; another job does not go on with them by accident."""
    job = machine.job(CNN)
    quick = {"FAKEGPU_TAKES": "engine 9:1:1000,engine:1:2000,algorithm:1:2000"}
    result = machine.train("usual", job, sets=["train.steps=2"], **quick)
    assert re.search(r"deterministic kernels take \S+ % more time \(conv2 filter: 2000 us against 1000 us\)", result.err), result
    assert "device.deterministic: false" in result.err
    assert machine.plans("usual")["conv1 filter"][1].startswith("-engine=7 ")
    sets = ["train.steps=4", "device.deterministic=false"]
    result = machine.train("varying", job, ranks=2, sets=sets, **quick)
    assert re.search(r"do not repeat their bits take \S+ % less time", result.err), result
    assert machine.plans("varying")["conv1 filter"][1] == "-engine=9"
    result = machine.run("varying", job)
    assert result.code == 78 and "deterministic: false" in result.err, result
    result = machine.run("other", job, "--resume", machine.path / "varying", **quick)
    assert result.code == 0 and machine.plans("other")["conv1 filter"][1].startswith("-engine=7 "), result


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_ranks_take_the_same_kernels(machine, general, reduction):
    """Also where each has a cache of its own, with other findings."""
    job = machine.job(CNN, comm=f"{{reduction: {reduction}}}")
    machine.train("alike", job, ranks=2, FAKEGPU_MODEL="Fake")
    script = (f'test "$OMPI_COMM_WORLD_RANK" = 0 || export XDG_CACHE_HOME={general["XDG_CACHE_HOME"]}; '
              f'exec {dpt.BINARY} train {job} --set device.kind=cuda --output {machine.path / "each"}')
    done = subprocess.run(["mpirun", "-np", "2", "sh", "-c", script], capture_output=True, text=True, timeout=100, check=False,
                          env={**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment, "FAKEGPU_MODEL": "Fake"})
    assert done.returncode == 0, done.stderr
    assert machine.newest("each") == machine.newest("alike")


def test_checkpoints_are_the_cpus(machine):
    job = machine.job(CNN)
    machine.train("cpu", job, kind="cpu")
    for steps, kind in ((3, "cpu"), (6, "cuda"), (8, "cpu")):
        result = machine.train("both", job, kind=kind, sets=[f"train.steps={steps}"])
    assert "resuming at step 6" in result.err
    np.testing.assert_allclose(machine.losses("both"), machine.losses("cpu"), rtol=1e-3)
    # Another precision is another job.
    machine.train("half", job, sets=["train.steps=3"])
    result = machine.run("half", job, sets=["device.precision=bf16"])
    assert result.code == 78 and "precision: fp32 -> bf16" in result.err, result
    result = machine.run("other", job, "--resume", machine.path / "half", sets=["device.precision=bf16"])
    assert result.code == 0 and "precision: fp32 -> bf16" in result.err, result


@pytest.mark.parametrize("sections", [CNN, RESIDUAL], ids=["cnn", "residual"])
def test_reproducible_at_any_rank_count(machine, sections):
    job = machine.job(sections, comm="{reduction: reproducible}")
    for ranks in (1, 2, 4):
        shard = {1: "none", 2: "gradients", 4: "optimizer"}[ranks]
        machine.train(str(ranks), job, ranks=ranks, sets=["train.steps=5", f"parallel.shard={shard}"])
    assert machine.newest("1") == machine.newest("2") == machine.newest("4")


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_other_precisions_train(machine, precision):
    job = machine.job(CNN, device=f"{{precision: {precision}}}")
    machine.train("out", job, sets=["train.steps=16", "log.every=4 steps"])
    losses = machine.losses("out")
    assert np.isfinite(losses[1:]).all() and losses[-1] < losses[1]
    _, attributes = machine.weights("out")
    if precision == "fp16":
        assert attributes["loss_scale"] == 1024 and attributes["updates"] == 16 and attributes["loss_scale_overflows"] == 0
    else:
        assert "loss_scale" not in attributes
    if precision != "bf16":
        refused = machine.run("cpu", job, kind="cpu")
        told = f"device.precision: {precision} needs device.kind: cuda; cpu, which this would run on, has fp32 and bf16; take bf16"
        assert refused.code == 78 and told in refused.err, refused
    if precision == "bf16":
        other = machine.run("cpu", job, kind="cpu", sets=["train.steps=2"])
        assert other.code == 0, other
        used = dpt.run("eval", job, "--checkpoint", machine.path / "out", "--split", "valid", env=machine.environment)
        assert used.code == 0, used


def test_half_floats_on_host_arenas(machine):
    """The loss scale is the host's under `reproducible`, and goes on from a checkpoint all the same."""
    job = machine.job(CNN, device="{precision: fp16}", comm="{reduction: reproducible}")
    machine.train("whole", job)
    machine.train("parts", job, sets=["train.steps=5"])
    machine.train("parts", job, ranks=2)
    assert machine.newest("parts") == machine.newest("whole")
    attributes = machine.weights("whole")[1]
    assert attributes["loss_scale_overflows"] <= 1 and attributes["loss_scale"] == 8192 / 2 ** attributes["loss_scale_overflows"]


@pytest.mark.parametrize("reduction", ["allreduce", "reproducible"])
def test_a_scale_that_is_too_large(machine, reduction):
    """Updates that overflow are left out, counted, and made up for by a smaller scale."""
    data = "{train: synthetic, synthetic: {samples: 200, shape: [5], outputs: 2, noise: 40}}"
    job = machine.job(LINEAR, data=data, device="{precision: fp16}", comm=f"{{reduction: {reduction}}}",
                      batch="{global: 48, micro: 1}", train="{steps: 30}")
    machine.train("out", job, ranks=2)
    attributes = machine.weights("out")[1]
    assert 0 < attributes["loss_scale_overflows"] < 15 and attributes["loss_scale"] == 65536 / 2 ** attributes["loss_scale_overflows"]
    assert attributes["updates"] == 30 - (attributes["loss_scale_overflows"] if reduction == "reproducible" else 0)
    losses = machine.losses("out")
    assert losses[-1] == losses[-1] and np.nanmax(losses) < 1e6


EXPLODES = {
    **MLP,
    "model": "{type: sequential, layers: [flatten, {dense: 16}, {dense: 10}]}",
    "loss": "cross_entropy",
    "optimizer": "{type: sgd, lr: 1.0e6, momentum: 0.9}",
    "train": "{steps: 40}",
    "eval": "{every: never}",
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_not_a_number_is_named(machine, ranks):
    job = machine.job(EXPLODES, batch="{global: 24}", log="{every: 7 steps}")
    said = {}
    for kind in ("ref", "cuda"):
        result = machine.run(kind, job, ranks=ranks, kind=kind, sets=["batch.micro=8", "checkpoint.every=1000 steps"], **dpt.ENDS_AT_ONCE)
        assert result.code == 1, result
        said[kind] = re.search(r"step \d+: not a number: .*", result.err).group()
        end = dpt.events(machine.path / kind, "end")[-1]
        assert end["step"] == int(re.search(r"step (\d+)", said[kind]).group(1)) - 1
    assert said["cuda"] == said["ref"] and "layer dense" in said["cuda"] and "sample" in said["cuda"]


@pytest.mark.parametrize("kind", ["cpu", "ref", "cuda"])
def test_what_is_not_a_number_is_named_whatever_is_in_shards(machine, kind):
    """The layer, rank and sample that ranks without shards tell of; where only a gradient is none, its tensor."""
    steep = "{dense: {outputs: 10, init: {normal: 1.0e+6}}}"
    backward = {**EXPLODES, "model": "{type: sequential, layers: [flatten, {dense: {outputs: 16, init: {normal: 1.0e-30}}}, "
                                     + ", ".join([steep] * 7) + "]}"}

    def said(name, sections, shard):
        job = machine.job({**sections, "name": name}, batch="{global: 24, micro: 3}", comm="{reduction: reproducible, timeout: 20 s}")
        result = machine.run(f"{name}-{shard}", job, ranks=2, kind=kind, sets=[f"parallel.shard={shard}", "device.threads=2"],
                             **dpt.ENDS_AT_ONCE)
        found = re.search(r"step \d+: not a number: .*", result.err)
        assert result.code == 1 and found, result
        return found.group()

    plain = said("forward", EXPLODES, "none")
    assert re.search(r"rank 0 \([^,]+\), output of layer dense\w*, synthetic sample \d+", plain), plain
    assert [said("forward", EXPLODES, shard) for shard in ("optimizer", "gradients", "parameters")] == [plain] * 3
    gradients = [re.search(r"gradient of dense\d*/\w+", said("backward", backward, shard)) for shard in ("none", "parameters")]
    assert all(gradients) and gradients[0].group() == gradients[1].group(), gradients


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("first, layer", [("{conv: {channels: 8, padding: same}}", "conv1"), ("flatten, {dense: 24}", "dense1")],
                         ids=["conv", "dense"])
def test_weights_that_are_no_numbers_are_named(machine, first, layer, precision):
    """Also by a device whose fused ReLUs make zeros of them, which the loss and the gradient do not show."""
    def change(file):
        weights = file[f"params/{layer}/weight"]
        values = weights[()]
        values.flat[1] = np.nan
        weights[...] = values
        weights.attrs.modify("crc32", np.uint32(zlib.crc32(values.tobytes())))

    job = machine.job(CNN, model=f"{{type: sequential, layers: [{first}, relu, flatten, {{dense: 10}}]}}",
                      device=f"{{precision: {precision}}}", train="{steps: 12}")
    machine.train("run", job)
    lied = lie(machine.path, machine.path / "lied", change)
    for reduction in ("allreduce", "reproducible"):
        result = machine.run(reduction, job, "--resume", lied, "--allow-nan", FAKEGPU_DROPS_NAN="1",
                             sets=["train.steps=20", f"comm.reduction={reduction}"])
        assert result.code == 1 and "step 13: not a number: rank 0" in result.err and f"output of layer {layer}," in result.err, result


def test_what_is_not_a_number_is_skipped(machine):
    job = machine.job(EXPLODES, log="{every: 10 steps}")
    result = machine.train("out", job, ranks=2, sets=["train.on_nan=skip", "train.steps=25"])
    assert "not a number: since the last line" in result.err and "skipped" in result.out, result
    arrays, _ = machine.weights("out")
    assert all(np.isfinite(array).all() for array in arrays.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_signals_save(machine, ranks):
    job = machine.job(DENSE, checkpoint="{every: 1000 steps}", train="{steps: 20}")
    machine.train("whole", job, ranks=ranks)
    paused = Paused(job, machine.path / "out", ranks, "--set", "device.kind=cuda", step=3, **machine.environment)
    os.kill(paused.pids[-1], signal.SIGTERM)
    code, err = paused.go_on()
    assert "all is saved" in err and code == 75, err
    assert dpt.steps_logged(machine.path / "out")[-1] < 20
    machine.train("out", job, ranks=ranks)
    machine.assert_same_run("out", "whole")


def test_too_little_memory(machine):
    job = machine.job(CNN, batch="{global: 512}", train="{steps: 2}",
                      data="{train: synthetic, synthetic: {samples: 1024, shape: [3, 8, 8]}}")
    small = str(2 << 20)
    result = machine.run("given", job, sets=["batch.micro=512"], FAKEGPU_MEMORY=small)
    assert result.code == 78 and "batch.micro" in result.err, result
    result = machine.train("auto", job, FAKEGPU_MEMORY=small)
    assert re.search("512 samples do not fit on the device at once: trying 256", result.err), result
    micro = dpt.events(machine.path / "auto", "run")[0]["micro"]
    assert 1 <= micro < 512
    machine.train("free", job)
    np.testing.assert_allclose(machine.losses("auto"), machine.losses("free"), rtol=1e-4)


def test_sums_on_the_device(machine):
    job = machine.job(DENSE)
    machine.train("host", job, ranks=2, sets=["comm.cuda_aware=off"])
    result = machine.train("device", job, ranks=2, sets=["comm.cuda_aware=on"], FAKEGPU_PROTECT="0")
    assert "yes" in result.err, result
    machine.assert_same_run("device", "host")


def test_a_failing_rank_takes_all_along(machine):
    job = machine.job(CNN)
    result = machine.run("read", job, ranks=2, DPTRAIN_FAULT="read:rank=1:step=1")
    assert result.code == 74 and "step 1: reading failed" in result.err and "rank 1 (" in result.err, result
    result = machine.run("broken", job, ranks=2, DPTRAIN_FAULT="flip-weight:rank=1:step=5")
    assert result.code == 1 and "the replicas differ" in result.err, result


# Tells of large sums in memory that is no device's.
TELLS_HOST_SUMS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

int MPI_Allreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    int (*find)(void *, int, unsigned long long) = driver == NULL ? NULL : dlsym(driver, "cuPointerGetAttribute");
    unsigned kind = 0;

    if (type == MPI_FLOAT && n > 64 && (find == NULL || find(&kind, 2, (unsigned long long)(size_t)to) != 0 || kind != 2))
        fprintf(stderr, "sums %d floats of the host\n", n);
    return PMPI_Allreduce(from, to, n, type, op, comm);
}
"""


@pytest.mark.parametrize("aware", ["off", pytest.param("on", marks=pytest.mark.skipif(dpt.sanitized(), reason="a library is loaded before"))])
@pytest.mark.parametrize("call", ["cuGraphLaunch:2+", "cuGraphLaunch:9+"])
def test_a_failing_device_takes_all_along(machine, call, aware):
    """On one of two ranks, wherever in a step: no rank waits for another until the watchdog comes, and none gives memory of another kind than the others."""
    environment = {**os.environ, **dpt.MPI_ENVIRONMENT, **machine.environment}
    sets = ["--set", "device.kind=cuda", "--set", f"comm.cuda_aware={aware}"]
    if aware == "on":
        environment.update(LD_PRELOAD=dpt.library(machine.path, "sums", TELLS_HOST_SUMS, compiler="mpicc"), FAKEGPU_PROTECT="0")
    machine.train("first", machine.job(CNN), ranks=2)  # keeps the plans, so that no graph is launched to measure them
    shell = "test $OMPI_COMM_WORLD_RANK = 1 && export FAKEGPU_FAIL=" + call + "; exec \"$@\""
    command = ["mpirun", "-np", "2", "sh", "-c", shell, "sh", dpt.BINARY, "train", machine.job(CNN), "--output", str(machine.path / "out"), *sets]
    done = subprocess.run(command, env=environment, timeout=100, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    err = done.stderr.decode()
    assert done.returncode == 71 and err.count("rank 1 (") == 1 and "GPU, " in err, err
    assert ("came out right" in err) == (aware == "on") and "floats of the host" not in err, err


def test_who_looks_at_gradients_gets_them(machine):
    job = machine.job(CNN)
    machine.train("gpu", job, ranks=2, sets=["log.hashes=true", "log.tensorboard=true", "train.steps=4"])
    with open(machine.path / "gpu" / "hashes.jsonl", encoding="utf-8") as file:
        assert len(file.readlines()) == 4
    machine.train("trace", job, sets=["log.trace=true", "train.steps=4"])
    assert os.path.getsize(machine.path / "trace" / "trace.json") > 1000
    machine.train("board", job, sets=["log.tensorboard=true", "train.steps=4"])
    names = [name for name in os.listdir(machine.path / "board") if "tfevents" in name]
    with open(machine.path / "board" / names[0], "rb") as file:
        assert b"gradients/" in file.read()


@pytest.mark.parametrize("ranks", [1, 2])
def test_means_are_of_all_samples(machine, ranks):
    """Those of a line and of an epoch are those of its steps, wherever lines and epochs begin and end; 198 samples, 5 steps."""
    job = machine.job(MLP, comm="{reduction: allreduce}")
    sizes = np.array([48] * 4 + [6])
    machine.train("each", job, ranks=ranks, sets=["train.steps=20"])
    machine.train("some", job, ranks=ranks, sets=["train.steps=20", "log.every=7 steps"])
    each = dpt.events(machine.path / "each", "train")
    for key in ("loss", "accuracy"):
        values = np.array([e[key] for e in each]).reshape(4, 5)
        epochs = dpt.events(machine.path / "some", "epoch")
        assert [(e["step"], e["samples"]) for e in epochs] == [(5 * n, 198) for n in (1, 2, 3, 4)]
        np.testing.assert_allclose([e[key] for e in epochs], values @ sizes / 198, rtol=1e-6)
        lines = np.add.reduceat((values * sizes).ravel()[:14], [0, 7]) / np.add.reduceat(np.tile(sizes, 4)[:14], [0, 7])
        np.testing.assert_allclose([e[key] for e in dpt.events(machine.path / "some", "train")], lines, rtol=1e-6)


def test_of_many_short_epochs_some_are_told_of(machine):
    job = machine.job(LINEAR, batch="{global: 180}", data="{train: synthetic, synthetic: {samples: 180, shape: [5], outputs: 2}}")
    machine.train("out", job, sets=["train.steps=120", "log.every=7 steps"])
    machine.train("cpu", job, sets=["train.steps=120", "log.every=1 step"], kind="cpu")
    each = [e["loss"] for e in dpt.events(machine.path / "cpu", "train")]
    epochs = dpt.events(machine.path / "out", "epoch")
    assert [(e["epoch"], e["samples"]) for e in epochs] == [(n, 180) for n in [*range(7, 120, 7), 120]]
    np.testing.assert_allclose([e["loss"] for e in epochs], [each[e["step"] - 1] for e in epochs], rtol=1e-4)


def assert_tells_a_hang(result):
    assert result.code == 71, result
    assert re.search(r"^rank [01] \(\S+\): its device has not ended what it was given for \d+ s", result.err, re.M), result


@pytest.mark.parametrize("how", ["steps", "passes", "two ranks"])
def test_a_device_that_hangs_ends_the_job(machine, how):
    """The watchdog looks after waits for the device, since in a job of one rank nobody else would miss it."""
    job = machine.job(CNN, comm="{timeout: 2 s, start_timeout: 2 s}", train="{steps: 4000}")
    sets = ["comm.reduction=reproducible"] if how == "passes" else []
    ranks = 2 if how == "two ranks" else 1
    for pieces in (40, 2000) if how == "steps" else (2000,):
        assert_tells_a_hang(machine.run(f"hangs-{pieces}", job, sets=sets, ranks=ranks, FAKEGPU_EAGER="0", FAKEGPU_HANG=str(pieces)))


def test_a_device_that_hangs_ends_an_evaluation(machine):
    data = "{train: synthetic, test: synthetic, synthetic: {samples: 220, shape: [3, 8, 8]}}"
    job = machine.job(CNN, data=data, comm="{timeout: 2 s}", train="{steps: 1}")
    machine.train("whole", job)
    environment = {**machine.environment, "FAKEGPU_EAGER": "0", "FAKEGPU_HANG": "60"}
    assert_tells_a_hang(dpt.run("eval", job, "--checkpoint", machine.path / "whole", "--set", "device.kind=cuda", env=environment))
