"""The recipes: each runs offline, and its page shows its code and what it prints."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT, assert_shown, read_blocks

RECIPES = sorted(file.parent.name for file in (ROOT / "examples").glob("*/offline.py"))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_offline_as_its_page_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, command, *_ = read_blocks(ROOT / f"docs/recipes/{name}.md")
    monkeypatch.chdir(tmp_path)

    runpy.run_module(f"examples.{name}.offline", run_name="__main__")

    assert_shown(capsys.readouterr().out, command.output)
    assert code.text == (ROOT / f"examples/{name}/agent.py").read_text(encoding="utf-8")
    assert max(map(len, code.text.splitlines())) <= 100  # fits the page
    assert command.text.startswith(f"python -m examples.{name}.offline")
