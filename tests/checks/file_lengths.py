"""Fail when a Python file outside the tests has outgrown one idea: over 600 lines; or the package, its modules.

Run in a git checkout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONGEST = 600
"""Lines a file may have."""
MODULES = 302
"""Modules the package may have; lower it when modules join."""
ROOT = Path(__file__).parents[2]


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split("\0") if name and not name.startswith("tests/")]
    package = [name for name in files if name.startswith(("graph_agent/", "nodes/"))]
    if len(package) > MODULES:
        sys.exit(f"The package has {len(package)} modules, more than {MODULES}: let a guard join the file of its idea.")
    # A file may be deleted and not yet committed.
    lengths = {name: len((ROOT / name).read_bytes().splitlines()) for name in files if (ROOT / name).is_file()}
    long = [f"{name}: {length} lines" for name, length in lengths.items() if length > LONGEST]
    if long:
        sys.exit("\n".join([f"Over {LONGEST} lines; give each idea a file of its own:", *long]))


if __name__ == "__main__":
    main()
