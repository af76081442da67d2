"""Makes the environment of each framework, with the versions of `environments/NAME.txt`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from scripts.environments import make_environment

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".venv-proofs"
NAMES = tuple(sorted(file.stem for file in (HERE / "environments").glob("*.txt")))


def requirements(name: str) -> Path:
    """The file with the versions of a framework."""
    return HERE / "environments" / f"{name}.txt"


def python_of(name: str) -> Path:
    """The Python of a framework's environment, which is made if it is missing or has other versions."""
    folder = FOLDER / name
    python, installed = folder / "bin" / "python", folder / "requirements.txt"
    wanted = requirements(name).read_text()
    if installed.exists() and installed.read_text() == wanted:
        return python
    sys.stderr.write(f"Installing {', '.join(wanted.split())} into {folder}.\n")
    shutil.rmtree(folder, ignore_errors=True)
    make_environment(folder, ["-r", str(requirements(name))])
    shutil.copy(requirements(name), installed)
    return python
