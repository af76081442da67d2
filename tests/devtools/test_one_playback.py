"""The package has one playback of recordings, one script, and one comparison of JSON values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "graph_agent"


def _definitions(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Yield each class with the names of its methods, and each function with none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, {each.name for each in node.body if isinstance(each, ast.AsyncFunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            yield node.name, set()


@pytest.mark.parametrize(
    ("what", "module"),
    [
        ("a class that gives replies and results", "playback"),
        ("script_of", "script"),
        ("value_differences", "json_values"),
    ],
)
def test_one_module_defines_each_part_of_a_recordings_replay(what: str, module: str) -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted((PACKAGE / "devtools").rglob("*.py"))
        for name, methods in _definitions(ast.parse(path.read_text(encoding="utf-8")))
        if name == what or (" " in what and {"reply", "result"} <= methods)
    ]

    assert found == [f"devtools/{module}.py"]
