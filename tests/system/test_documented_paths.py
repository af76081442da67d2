"""The paths that CONTRIBUTING.md and the decisions name exist, so that a move of code is followed there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+\.py)?)`")
TOPS = ("benchmarks", "deploy", "docs", "examples", "graph_agent", "nodes", "proofs", "scripts", "tests")
OF_OTHERS = frozenset({".cache/", "langgraph/pregel/_loop.py", "site/"})
"""Folders that a build makes, and a file of LangGraph."""


def test_paths_in_contributing_and_decisions_exist() -> None:
    named = {(page.name, path) for page in PAGES for path in PATH.findall(page.read_text(encoding="utf-8"))}
    owned = [*ROOT.glob("*/"), *(each for top in TOPS for each in (ROOT / top).rglob("*"))]
    existing = tuple(f"/{each.relative_to(ROOT).as_posix()}" for each in owned)

    missing = {
        (page, path) for page, path in named if not any(each.endswith(f"/{path.rstrip('/')}") for each in existing)
    }

    assert {(page, path) for page, path in missing if path not in OF_OTHERS} == set()
