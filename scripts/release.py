"""Builds what a release uploads, and checks it: `make release`.

The version stands in `pyproject.toml` alone. Everything goes to `dist/`: the sdist, the wheel that is built from it, a
bill of materials of an environment with the wheel alone, and the release's notes from the changelog.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
_TOOLS = ROOT / ".venv-release/bin"


def main() -> None:
    """Build and check the release of the version in `pyproject.toml`; exit with a message if it must not go out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    notes = notes_of(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--quiet", "--outdir", dist, ROOT)
    wheel = dist / f"graph_agent-{version}-py3-none-any.whl"
    sdist = dist / f"graph_agent-{version}.tar.gz"
    _run(_TOOLS / "twine", "check", "--strict", wheel, sdist)
    _run(_TOOLS / "check-wheel-contents", wheel)
    _run(sys.executable, "tests/checks/wheel_contents.py", wheel)
    _run(ROOT / ".ci/wheel", wheel)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin/python")
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        for extra in project["optional-dependencies"]:
            _run(
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--dry-run",
                f"{wheel}[{extra}]",
            )
        bill = dist / f"graph_agent-{version}.cdx.json"
        _run(_TOOLS / "cyclonedx-py", "environment", python, "--output-file", bill)
    (dist / "NOTES.md").write_text(notes, encoding="utf-8")
    sys.stdout.write("".join(f"{each.relative_to(ROOT)}\n" for each in sorted(dist.iterdir())))


def notes_of(version: str, changelog: str) -> str:
    """Return the section of a version in the changelog, without its heading.

    Raises:
        SystemExit: If the changelog has no such section, or one without a date.
    """
    found = re.search(rf"^## {re.escape(version)} \((.+?)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        sys.exit(f"CHANGELOG.md has no section of {version}: begin it with '## {version} (YYYY-MM-DD)'.")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        sys.exit(f"CHANGELOG.md gives '{found[1]}' as the date of {version}: write the day of the release, YYYY-MM-DD.")
    return found[2].strip() + "\n"


def _run(*command: str | Path) -> None:
    subprocess.run([str(each) for each in command], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
