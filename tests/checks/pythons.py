"""Run tests with the supported Pythons of this machine, each with the newest dependencies that the ranges allow.

`python -m tests.checks.pythons [--extra NAME] [--others] [PYTEST ARGUMENT …]` installs the checkout into an environment
for each version of the classifiers in pyproject.toml, below `.tools/pythons/`. `--others` leaves out the version that
runs this script. The run fails if the tests of one version fail, or if no version is found.
"""

from __future__ import annotations

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from scripts.environments import make_environment

ROOT = Path(__file__).parents[2]
_CLASSIFIER = "Programming Language :: Python :: 3."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--extra", default="dev", help="the extra that the tests need")
    parser.add_argument("--others", action="store_true", help="leave out the version that runs this script")
    options, pytest_arguments = parser.parse_known_args()

    own = f"3.{sys.version_info.minor}"
    wanted = [version for version in supported_versions() if not (options.others and version == own)]
    found = {version: python for version in wanted if (python := find_python(version))}
    for version in wanted:
        print(f"Python {version}: {found.get(version, 'not on this machine, not tested')}", flush=True)
    if not found:
        sys.exit("No Python to test with was found. Install one of them, for example with: pyenv install 3.13")

    failed = [
        version for version, python in found.items() if not passes(version, python, options.extra, pytest_arguments)
    ]
    if failed:
        sys.exit(f"The tests fail with Python {', '.join(failed)}.")


def supported_versions() -> list[str]:
    """The minor versions of the classifiers, such as `3.11`."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [f"3.{line.removeprefix(_CLASSIFIER)}" for line in classifiers if line.startswith(_CLASSIFIER)]


def find_python(version: str) -> str | None:
    """The path of a Python of this minor version, on the PATH or installed by pyenv; None if there is none."""
    installed = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
    for candidate in (shutil.which(f"python{version}"), *installed):
        # A shim of pyenv is on the PATH for versions that are not selected, and fails.
        if candidate and not subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode:
            return candidate
    return None


def passes(version: str, python: str, extra: str, pytest_arguments: list[str]) -> bool:
    """Whether the tests pass with this Python, in an environment with the newest dependencies."""
    environment = ROOT / ".tools" / "pythons" / version
    own_python = make_environment(environment, ["--editable", f"{ROOT}[{extra}]"], python=python)
    print(f"Testing with Python {version}.", flush=True)
    return not subprocess.run([own_python, "-m", "pytest", *pytest_arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    main()
