"""Makes an environment with the benchmarks, and replays them there: `python -m proofs.suites [N]`, N items of each.

Without N, all items are replayed, and docs/benchmarks-public.md is written.

The packages of the benchmarks have their tasks, so that nothing is copied, and no model and no network is needed.
tau2-bench is not replayed: PyPI has no package of it (`tau2` is another project), and its tasks are in its repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from proofs.pains.environments import FOLDER
from proofs.suites import page
from scripts.environments import make_environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BFCL = "bfcl-eval==2026.3.23"
SUITES = ("agent_dojo", "origins", "bfcl")


def python() -> Path:
    """The Python of the environment, which is made if it is missing or has other versions."""
    folder, wanted = FOLDER / "suites", HERE / "requirements.txt"
    found, installed = folder / "bin" / "python", folder / "requirements.txt"
    if installed.exists() and installed.read_text() == wanted.read_text():
        return found
    sys.stderr.write(f"Installing {', '.join(wanted.read_text().split())} into {folder}.\n")
    shutil.rmtree(folder, ignore_errors=True)
    make_environment(folder, ["-r", str(wanted), "-e", str(ROOT)])
    # It needs 30 packages for the clients of models; its checkers need none of them.
    make_environment(folder, ["--no-deps", BFCL])
    shutil.copy(wanted, installed)
    return found


def main() -> None:
    """Replay each benchmark; the status is 1 if one fails."""
    lines: list[str] = []
    has_failed = False
    for name in SUITES:
        command = [str(python()), "-m", f"proofs.suites.{name}", *sys.argv[1:]]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        has_failed |= run.returncode != 0
    if len(sys.argv) == 1:
        page.write(lines, [BFCL, *(HERE / "requirements.txt").read_text().split()])
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
