"""Makes virtual environments; with uv where it is installed, which needs a tenth of pip's CPU time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def make_environment(
    folder: Path, requirements: list[str], *, python: str = sys.executable, within_s: float | None = None
) -> str:
    """Make an environment, or add to the one that is there; return the path of its Python.

    Args:
        folder: The environment.
        requirements: Arguments of `pip install`; the newest versions that they allow are installed.
        python: The Python that it is made of.
        within_s: Seconds that an installation may take; None for no limit.

    Raises:
        CalledProcessError: If an installation fails.
        TimeoutExpired: After `within_s` seconds.
    """
    own = str(folder / "bin" / "python")
    if uv := shutil.which("uv"):
        make = [uv, "venv", "--quiet", "--allow-existing", "--python", python, str(folder)]
        install = [uv, "pip", "install", "--quiet", "--python", own]
    else:
        make = [python, "-m", "venv", "--without-pip", str(folder)]
        # Compiling each file of each package takes as long as the rest of an installation.
        pip = [sys.executable, "-m", "pip", "--python", own, "--disable-pip-version-check", "-qq"]
        install = [*pip, "install", "--no-compile", "--upgrade-strategy", "eager"]
    subprocess.run(make, check=True, timeout=within_s)
    subprocess.run([*install, "--upgrade", *requirements], check=True, timeout=within_s)
    return own
