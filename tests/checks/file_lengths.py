"""Fail when a Python file outside the tests has over 600 lines, or the package more modules or lines than before.

Run in a git checkout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONGEST = 600
"""Lines a file may have."""
MODULES = 551
"""Modules the package may have; lower it when modules join."""
LINES = 119_600
"""Lines the package may have; lower it when the package shrinks."""
FIRST_READ = (
    "nodes/plan.py",
    "nodes/finalize.py",
    "nodes/tools.py",
    "nodes/delegate.py",
    "graph_agent/session/assembly.py",
)
"""The files that a reader opens first."""
FIRST_READ_LINES = 900
"""Lines that these may have together; lower it when they shrink."""
ROOT = Path(__file__).parents[2]


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split("\0") if name and not name.startswith("tests/")]
    package = [name for name in files if name.startswith(("graph_agent/", "nodes/"))]
    if len(package) > MODULES:
        sys.exit(f"The package has {len(package)} modules, more than {MODULES}: let a guard join the file of its idea.")
    # A file may be deleted and not yet committed.
    lengths = {name: len((ROOT / name).read_bytes().splitlines()) for name in files if (ROOT / name).is_file()}
    lines = sum(lengths.get(name, 0) for name in package)
    if lines > LINES:
        sys.exit(
            f"The package has {lines} lines, more than {LINES}: remove what carries no weight.\n"
            "A new capability may raise the limit by what it needs."
        )
    first_read = sum(lengths[name] for name in FIRST_READ)
    if first_read > FIRST_READ_LINES:
        sys.exit(
            f"{', '.join(FIRST_READ)} have {first_read} lines, more than {FIRST_READ_LINES}: a reader starts here."
        )
    long = [f"{name}: {length} lines" for name, length in lengths.items() if length > LONGEST]
    if long:
        sys.exit("\n".join([f"Over {LONGEST} lines; give each idea a file of its own:", *long]))


if __name__ == "__main__":
    main()
