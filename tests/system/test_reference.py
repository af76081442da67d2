"""The generated files of the reference, and the docstrings that its API page shows."""

from __future__ import annotations

import re

import griffe
import pytest

from scripts.reference import stability
from scripts.reference.files import FILES
from scripts.reference.source import ROOT, loaded

SHOWN = [
    name
    for page in sorted((ROOT / "docs/reference/api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]
"""The names that the pages of the API describe, with their modules."""
MODULES = {name.rpartition(".")[0] for name in SHOWN} | {"graph_agent.state.events"}
"""The public modules; the reference of events describes the types of `state.events`."""


@pytest.mark.parametrize("path", FILES)
def test_generated_file_is_current(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == FILES[path](), "run `make reference`"


def test_code_has_everything_that_the_page_of_stability_lists() -> None:
    listed = stability.listed((ROOT / stability.PATH).read_text(encoding="utf-8"))
    surface = stability.surface()

    gone = {title: stability.removed(lines, surface.get(title, ())) for title, lines in listed.items()}

    assert not any(gone.values()), f"deprecate it, as {stability.PATH} says, or remove its line by hand: {gone}"


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        ("f(a, b?)", True),
        ("f(a, b?, c?)", True),
        ("f(a, b?, *, c?, **d)", True),
        ("f(a, b?, c)", False),
        ("f(b?, a)", False),
        ("f(a)", False),
        ("f(a, b)", False),
        ("g(a, b?)", False),
    ],
)
def test_a_function_keeps_its_promise_with_more_arguments_that_may_be_left_out(now: str, kept: bool) -> None:
    assert stability.removed(["f(a, b?)"], [now]) == ([] if kept else ["f(a, b?)"])


def test_every_public_name_has_a_docstring() -> None:
    loader = loaded()
    loader.resolve_aliases(implicit=True)
    modules = loader.modules_collection
    shown = [modules[name] for name in SHOWN]

    undocumented = [
        f"{each.path}.{name}" if name else each.path
        for each in shown
        for name, member in (("", each), *public_members(each))
        if not member.docstring
    ]
    exported = {
        modules[module][str(name)].canonical_path for module in MODULES for name in modules[module].exports or ()
    }
    missing = exported - {each.canonical_path for each in shown}
    assert (len(MODULES), undocumented, missing) == (29, [], set())


def test_guides_import_public_modules_only() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    imported = {
        name
        for each in pages
        for name in re.findall(r"^\s*(?:from|import) (graph_agent[\w.]*)", each.read_text(encoding="utf-8"), re.M)
    }

    assert (imported - MODULES, "graph_agent.errors" in imported) == (set(), True)


def public_members(of: griffe.Object | griffe.Alias) -> list[tuple[str, griffe.Object | griffe.Alias]]:
    """The public methods and properties of a class; empty for a function."""
    members = of.all_members.items() if of.is_class else ()
    return [(name, value) for name, value in members if value.is_function and not name.startswith("_")]
