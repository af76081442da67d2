"""The extras of the package are those that its documentation lists, and each that a page names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
_NAMED = re.compile(r"[Ee]xtras? `([^`]+)`|`([a-z]+)` extra|(?:graph-agent|\.whl|['\"]\.)\[([a-z, ]+)\]")


def test_the_table_of_extras_has_each_extra_of_the_package_once() -> None:
    page = (ROOT / "docs/getting-started.md").read_text()
    table = page.partition("| extra | adds | for |")[2].partition("\n\n")[0]

    assert sorted(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == sorted(EXTRAS)


def test_each_extra_that_a_page_a_docstring_or_a_message_names_exists() -> None:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    files += (ROOT / "graph_agent").rglob("*.py")
    named = {
        name.strip()
        for file in files
        for groups in _NAMED.findall(file.read_text())
        for name in "".join(groups).split(",")
    }

    assert named - EXTRAS == set()
