"""Counterparts from PyPI, for the tests that DPT_HEAVY=1 turns on."""
import os
import subprocess
import sys
import venv

HEAVY = os.environ.get("DPT_HEAVY", "0") != "0"


def python_with(folder, *packages, modules=None):
    """A Python that has these packages: that of the virtual environment DPT_VENV where it has them, else of a new one in `folder`."""
    modules = modules or packages
    check = "import " + ", ".join(modules)
    given = os.path.join(os.environ.get("DPT_VENV", os.devnull), "bin", "python")
    if os.path.exists(given) and subprocess.run([given, "-c", check], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return given
    venv.create(folder, with_pip=True)
    python = os.path.join(folder, "bin", "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, timeout=1500, stdout=sys.stderr)
    return python
