"""Fail when a Python file outside the tests has outgrown one idea: over 400 lines. Run in a git checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LONGEST = 400
"""Lines a file may have."""
ROOT = Path(__file__).parents[2]


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split("\0") if name and not name.startswith("tests/")]
    # A file may be deleted and not yet committed.
    lengths = {name: len((ROOT / name).read_bytes().splitlines()) for name in files if (ROOT / name).is_file()}
    long = [f"{name}: {length} lines" for name, length in lengths.items() if length > LONGEST]
    if long:
        sys.exit("\n".join([f"Over {LONGEST} lines; give each idea a file of its own:", *long]))


if __name__ == "__main__":
    main()
