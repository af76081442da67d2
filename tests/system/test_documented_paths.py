"""The paths in CONTRIBUTING.md, the decisions and the lists of features' parts exist, so that they follow moves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+\.py)?)`")
TOPS = ("benchmarks", "deploy", "docs", "examples", "graph_agent", "nodes", "proofs", "scripts", "tests")
OF_OTHERS = frozenset({".cache/", "langgraph/pregel/_loop.py", "site/"})
"""Folders that a build makes, and a file of LangGraph."""
FEATURES = {
    "approvals": "base/approvals/__init__.py",
    "background tasks": "core/planning/background.py",
    "compaction": "core/planning/compaction.py",
    "limits": "base/usage.py",
    "loop detection": "core/planning/loop_detection.py",
    "plan cache": "core/planning/plan_cache.py",
    "steering": "core/state/notes.py",
}
"""Feature → the file whose docstring lists what the feature does to a turn in other files."""
PART = re.compile(r"^- (`[^`]+\.py`: .*)$", re.MULTILINE)
NAMED = re.compile(r"`([^`]+)`")


def test_paths_in_contributing_and_decisions_exist() -> None:
    named = {(page.name, path) for page in PAGES for path in PATH.findall(page.read_text(encoding="utf-8"))}
    owned = [*ROOT.glob("*/"), *(each for top in TOPS for each in (ROOT / top).rglob("*"))]
    existing = tuple(f"/{each.relative_to(ROOT).as_posix()}" for each in owned)

    missing = {
        (page, path) for page, path in named if not any(each.endswith(f"/{path.rstrip('/')}") for each in existing)
    }

    assert {(page, path) for page, path in missing if path not in OF_OTHERS} == set()


@pytest.mark.parametrize("feature", FEATURES)
def test_the_parts_of_a_feature_are_where_its_docstring_lists_them(feature: str) -> None:
    tree = ast.parse((ROOT / "graph_agent" / FEATURES[feature]).read_text(encoding="utf-8"))

    parts = [NAMED.findall(part) for part in PART.findall(ast.get_docstring(tree) or "")]
    missing = []
    for path, *names in parts:
        own = ROOT / path if path.startswith("nodes/") else ROOT / "graph_agent" / path
        text = own.read_text(encoding="utf-8") if own.is_file() else ""
        others = [ROOT / "graph_agent" / name for name in names if name.endswith(".py")]
        missing += [each for each in (own, *others) if not each.is_file()]
        missing += [(path, name) for name in names if not name.endswith(".py") and not re.search(rf"\b{name}\b", text)]

    assert (len(parts) >= 4, missing) == (True, [])
