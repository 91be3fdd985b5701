"""The manual page: complete, and without a warning from groff and mandoc; `make install` puts it in its place."""
import os
import re
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, "scripts/lib")
import dpt  # noqa: E402


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    result = dpt.run("man")
    assert result.code == 0 and result.err == "", result
    path = tmp_path_factory.mktemp("man") / "dptrain.1"
    path.write_text(result.out)
    return path


def shown(page):
    """What a person reads, the lines run together."""
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed")
    text = subprocess.run(["mandoc", "-Tutf8", "-Owidth=80", page], check=True, stdout=subprocess.PIPE,
                          timeout=100).stdout.decode()
    return " ".join(re.sub(r".\x08", "", text).split())


def test_mandoc_has_nothing_to_say(page):
    if shutil.which("mandoc") is None:
        pytest.skip("mandoc is not installed")
    done = subprocess.run(["mandoc", "-Tlint", page], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    assert done.stdout == b"" and done.returncode == 0, done.stdout.decode()


def test_groff_has_nothing_to_say(page):
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", page], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=100)
    assert done.stdout == b"" and done.returncode == 0, done.stdout.decode()


def test_everything_of_the_help_is_on_it(page):
    """Each word of each command's help, in its order: a new row of a table is on the page by itself."""
    text = shown(page)
    names = dpt.run("--help").out.split("commands:\n")[1].split("\n\n")[0]
    for command in [line.split()[0] for line in names.splitlines()]:
        said = dpt.run(command, "--help").out.split("\nkeys of the job file")[0].split("\nformats:")[0]
        for option in re.split(r"\n(?=  --)", said.split("\noptions:")[1])[1:]:
            words = " ".join(option.split("\n\n")[0].replace("`", "").split())
            assert words in text, f"{command}: {words}"
    said = dpt.run("train", "--help").out.split("\nkeys of the job file")[1].split("\n", 1)[1]
    for item in re.split(r"\n(?= {2,10}\S)", said):
        words = re.sub(r"^type: (\w+) ", r"type: \1: ", " ".join(item.replace("`", "").split()))
        words = words.replace("type: sequential a list", "type: sequential: a list")
        assert words in text, words


def test_layers_exit_codes_and_formats(page):
    text = shown(page)
    for words in ("- conv: 2-D convolution", "conv.channels output channels a whole number, in 1 … 1048576",
                  "75 stopped on request after saving", "cifar10", "metrics.jsonl", "SLURM_JOB_END_TIME",
                  "mpirun -np 2 dptrain mnist.yaml"):
        assert words in text, words


def test_layers_has_what_the_page_has(page):
    """`dptrain layers`: each kind once in its group, with its keys; by name all that is known of them."""
    page, listed = page.read_text(), dpt.run("layers")
    assert listed.code == 0 and listed.err == "" and all(len(line) <= 80 for line in listed.out.splitlines()), listed
    kinds = re.findall(r"^(?:\\-|type:) \\fB(\w+)\\fR:$", page, re.M)
    jobs, metrics = listed.out.split("\nmetrics: ")
    assert len(kinds) > 40 and sorted(re.findall(r"^  (\w+)  ", jobs, re.M)) == sorted(kinds)
    groups = {name: re.findall(r"^(?:\\-|type:) \\fB(\w+)\\fR:$", part, re.M)
              for name, part in re.findall(r"^\.SS (\w+)$(.*?)(?=^\.S[SH] )", page.split('.SH "JOB FILE"')[1], re.M | re.S)}
    groups = {name: kinds for name, kinds in groups.items() if kinds}
    assert "optimizer" in groups and [name for name in re.findall(r"^([a-z.]+): ", jobs, re.M) if "." not in name] == list(groups)
    named = re.findall(r"^  (\w+)  ", metrics, re.M)
    assert len(named) > 8 and len(set(named)) == len(named) and {"loss", "accuracy"} < set(named)
    assert "  r2                  numbers: coefficient of determination" in metrics and "(null)" not in metrics
    conv = " ".join(re.search(r"^  conv  (.*?)^  \S", listed.out, re.M | re.S)[1].split())
    keys = re.findall(r"^\\fBconv\.(\w+)\\fR$", page, re.M)
    assert "channels" in keys and all(f"{key}: " in conv or f"{key} (must be given)" in conv for key in keys), conv
    some = dpt.run("layers", "maxpool", "linear", "optimizer").out  # `linear` is a model, and a schedule
    assert re.findall(r"^  (\w+)  ", some, re.M) == ["linear", "maxpool", *groups["optimizer"], "linear"]
    assert re.findall(r"^  (\w+)  ", dpt.run("layers", "metrics", "relu").out, re.M)[:3] == ["relu", "loss", "accuracy"]
    assert "maxpool.stride" in some and "step of the window; auto: its size" in some and "default 1e-8" in some
    for word, says in (("batchnrom", "did you mean 'batchnorm'?"), ("12345678", "`dptrain layers` lists all")):
        wrong = dpt.run("layers", word)
        assert wrong.code == 2 and says in wrong.err and len(wrong.err.splitlines()) == 1, wrong


def test_make_install(tmp_path):
    """Where distributions expect them, below DESTDIR; uninstall leaves no file."""
    build, root = tmp_path / "build", tmp_path / "root"  # not the suite's: its build options may be others
    build.mkdir()
    shutil.copy2(dpt.BINARY, build / "dptrain")
    make = ["make", "-s", f"BUILD={build}", "PREFIX=/usr", f"DESTDIR={root}"]
    done = subprocess.run([*make, "-o", f"{build}/dptrain", "install"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)
    assert done.returncode == 0, done.stdout.decode()
    share = root / "usr" / "share"
    for name, command in (("man/man1/dptrain.1", ["man"]), ("dptrain/dptrain.schema.json", ["schema"]),
                          ("bash-completion/completions/dptrain", ["completion", "bash"]),
                          ("zsh/site-functions/_dptrain", ["completion", "zsh"]),
                          ("fish/vendor_completions.d/dptrain.fish", ["completion", "fish"])):
        assert (share / name).read_text() == dpt.run(*command).out, name
        assert (share / name).stat().st_mode & 0o777 == 0o644
    assert os.access(root / "usr" / "bin" / "dptrain", os.X_OK)
    subprocess.run([*make, "uninstall"], check=True, timeout=60)
    assert [f for f in root.rglob("*") if f.is_file()] == []
