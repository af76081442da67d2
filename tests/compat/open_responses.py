"""The public compliance suite of Open Responses at its newest version, run by npm's `bun` against a served parrot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

SOURCE = "https://github.com/openresponses/openresponses"
CHECKOUT = "OPEN_RESPONSES"
"""Environment variable with the folder of a checkout, where the repository cannot be cloned."""
_CLONE_S = 30
_INSTALL_S = 300
_RUN_S = 120


def faults(url: str, key: str, folder: Path) -> dict[str, list[str]]:
    """Tests of the suite that do not pass, with their errors; empty if it cannot be cloned or npm is missing.

    Args:
        folder: An empty or missing folder for the suite and what it needs.
    """
    if shutil.which("npm") is None:
        return {"Open Responses": ["npm is not installed; install Node.js 20 or newer."]}
    checkout = _checkout(folder)
    if checkout is None:
        print(f"Open Responses: skipped; {SOURCE} is not reachable, and {CHECKOUT} names no checkout.")  # noqa: T201 - a check prints its findings
        return {}
    zod = json.loads((checkout / "package.json").read_text())["dependencies"]["zod"]
    home = folder / "npm"
    home.mkdir(parents=True)
    (home / "package.json").write_text("{}")
    # The suite alone needs no other packages of the project, which is a website.
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "bun", f"zod@{zod}"]
    subprocess.run(install, check=True, cwd=home, timeout=_INSTALL_S)
    suite = folder / "suite"
    for part in ("bin", "src"):
        shutil.copytree(checkout / part, suite / part)
    (suite / "node_modules").symlink_to(home / "node_modules")
    bun = str(home / "node_modules" / ".bin" / "bun")
    command = [bun, "run", "bin/compliance-test.ts", "-u", f"{url}/v1", "-k", key, "-m", "parrot", "--json"]
    done = subprocess.run(command, check=False, cwd=suite, capture_output=True, text=True, timeout=_RUN_S)
    try:
        report: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        return {"Open Responses": [f"{done.stdout[-1000:]}\n{done.stderr[-1000:]}"]}
    count = report["summary"]
    wrong = [f"{test['name']}: {test.get('errors')}" for test in report["results"] if test["status"] == "failed"]
    return {f"Open Responses ({count['passed']} of {count['total']}, {count['skipped']} skipped)": wrong}


def _checkout(folder: Path) -> Path | None:
    if given := os.environ.get(CHECKOUT):
        return Path(given)
    target = folder / "repository"
    command = ["git", "clone", "--quiet", "--depth", "1", SOURCE, str(target)]
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, check=False, capture_output=True, timeout=_CLONE_S, env=quiet)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return target if done.returncode == 0 else None
