"""Fail when the tests start more cold interpreters than before.

A program that imports the package takes a second of CPU time in a new interpreter, and a fiftieth of it as a fork of a
warm process (`tests/support/warm_process.py`). A new one is right for a test of imports, of the end of an interpreter,
or of a program with the standard library only. `-v` lists the places.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CEILING = 31
"""Places that are accepted; the number only sinks, unless a new test is of one of these kinds."""


def cold_starts(path: Path) -> Iterator[int]:
    """Yield the line of each list or tuple, such as the arguments of a command, that contains `sys.executable`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.List | ast.Tuple):
            yield from (each.lineno for each in node.elts if ast.unparse(each) == "sys.executable")


def main() -> None:
    """Print the number of places; exit with status 1 if it exceeds the ceiling."""
    tests = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.parts[-2] not in ("checks", "compat")]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in tests for line in cold_starts(path)]
    if "-v" in sys.argv:
        sys.stdout.write("\n".join([*found, ""]))
    sys.stdout.write(f"The tests start a new interpreter at {len(found)} places.\n")
    if len(found) > CEILING:
        sys.exit(f"At most {CEILING} may be: start it with `warm_python()`, or {Path(__file__).name} -v lists them.")


if __name__ == "__main__":
    main()
