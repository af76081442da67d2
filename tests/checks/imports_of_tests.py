"""Fail when a module imports a test module, or when the tests import more of the package's inner modules than before.

Shared helpers belong in tests/support or a conftest.py. A test imports the package by its doors: the modules that a
page of the documentation, an example or a notebook imports or names. `-v` lists the other imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "benchmarks", "examples")
PACKAGE = "graph_agent"
PUBLIC = ("README.md", "docs/**/*.md", "examples/**/*.py", "notebooks/*.ipynb")
CEILING = 0.345
"""Share of inner imports that is accepted, which only sinks."""


def imports(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the line of each import, its module, and the names that are imported from it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or "", [alias.name for alias in node.names]


def is_test_module(name: str) -> bool:
    """Whether a dotted name is a module `test_*.py`, or something in one."""
    parts = [part for part in name.split(".") if part]
    paths = (ROOT.joinpath(*parts[:length]).with_suffix(".py") for length in range(1, len(parts) + 1))
    return parts[:1] == ["tests"] and any(path.name.startswith("test_") and path.is_file() for path in paths)


def is_module(name: str) -> bool:
    """Whether a dotted name is a module or a package of this one."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def doors() -> set[str]:
    """Return the modules of the package that are public."""
    named = re.compile(rf"(?:\bfrom |\bimport |`|::: )({PACKAGE}(?:\.\w+)*)")
    pages = [page.read_text(encoding="utf-8") for pattern in PUBLIC for page in ROOT.glob(pattern)]
    return {PACKAGE, *(name for page in pages for name in named.findall(page))}


def main() -> None:
    """Print the share of inner imports, and each import of a test module; exit with status 1 for a fault."""
    public, faults, own, inner = doors(), list[str](), 0, list[str]()
    for path in [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]:
        where = path.relative_to(ROOT)
        for line, module, names in imports(path):
            dotted = [f"{module}.{name}" for name in names] or [module]
            faults += [f"{where}:{line}: imports {name}" for name in dotted if is_test_module(name)]
            if where.parts[0] == "tests" and module.split(".")[0] == PACKAGE:
                own += 1
                modules = [name for name in dotted if is_module(name)] if names else dotted
                is_public = public.issuperset(modules) if len(modules) == len(dotted) else module in public
                inner += [] if is_public else [f"{where}:{line}: {module}"]
    if "-v" in sys.argv:
        sys.stdout.write("\n".join([*inner, ""]))
    if faults:
        sys.exit("\n".join(["Test modules are imported; move what they share to tests/support:", *faults]))
    share = len(inner) / own
    sys.stdout.write(f"{share:.1%} of the tests' {own} imports of the package are inner ones.\n")
    if share > CEILING:
        sys.exit(f"At most {CEILING:.0%} may be: import a door of the package, or {Path(__file__).name} -v lists them.")


if __name__ == "__main__":
    main()
