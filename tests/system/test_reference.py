"""The generated files of the reference, and the docstrings that its API page shows."""

from __future__ import annotations

import re

import griffe
import pytest

from scripts.reference.files import FILES, ROOT


@pytest.mark.parametrize("path", FILES)
def test_generated_file_is_current(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == FILES[path](), "run `make reference`"


def test_every_public_name_has_a_docstring() -> None:
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    modules = {
        module: re.findall(r"^ +- (\w+)$", options, re.MULTILINE)
        for module, options in re.findall(r"^::: (\S+)\n((?: .*\n)*)", page, re.MULTILINE)
    }
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    loader.load("graph_agent")
    loader.resolve_aliases(implicit=True)

    undocumented = [
        f"{module}.{name}"
        for module, shown in modules.items()
        for name, member in public_members(loader.modules_collection[module])
        if not member.docstring and (not shown or name.partition(".")[0] in shown)
    ]

    missing = [
        f"{module}.{name}"
        for module, shown in modules.items()
        for name in shown
        if name not in loader.modules_collection[module].members
    ]
    assert (len(modules), missing, undocumented) == (21, [], [])


def test_guides_import_public_modules_only() -> None:
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    imported = {
        name
        for each in pages
        for name in re.findall(r"^\s*(?:from|import) (graph_agent[\w.]*)", each.read_text(encoding="utf-8"), re.M)
    }

    assert (imported - public, "graph_agent.errors" in imported) == (set(), True)


def public_members(of: griffe.Object | griffe.Alias) -> list[tuple[str, griffe.Object | griffe.Alias]]:
    """The public names of a module, and the public methods and properties of its classes."""
    found: list[tuple[str, griffe.Object | griffe.Alias]] = []
    for name, member in of.members.items():
        exported = not member.is_alias or (of.exports is not None and name in of.exports)
        if not member.is_public or member.is_module or not exported:
            continue
        found.append((name, member))
        if member.is_class:
            found += [
                (f"{name}.{part}", value)
                for part, value in member.all_members.items()
                if value.is_function and not part.startswith("_")
            ]
    return found
