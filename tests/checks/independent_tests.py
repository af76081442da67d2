"""Fail when a module imports a test module; shared helpers belong in tests/support or a conftest.py."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "benchmarks", "examples")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted name of everything that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module or ''}.{alias.name}") for alias in node.names)


def is_test_module(name: str) -> bool:
    """Whether a dotted name is a module `test_*.py`, or something in one."""
    parts = [part for part in name.split(".") if part]
    paths = (ROOT.joinpath(*parts[:length]).with_suffix(".py") for length in range(1, len(parts) + 1))
    return parts[:1] == ["tests"] and any(path.name.startswith("test_") and path.is_file() for path in paths)


def main() -> None:
    """Print each such import; exit with status 1 if there is one."""
    faults = [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in imported(path)
        if is_test_module(name)
    ]
    if faults:
        sys.exit("\n".join(["Test modules are imported; move what they share to tests/support:", *faults]))


if __name__ == "__main__":
    main()
