"""Every regular expression of the package takes time in proportion to the text, also for hostile texts.

The patterns are collected from the source, so a new one is checked without being listed.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import graph_agent
from tests.support.regex_steps import slowest_text

_ROOT = Path(graph_agent.__file__).parent
_MATCHING = frozenset({"match", "fullmatch"})
_FUNCTIONS = _MATCHING | {"compile", "search", "sub", "subn", "split", "findall", "finditer", "template"}

# Only the parser's tree shows what a quantifier repeats.
_constants: Any = importlib.import_module("re._constants")
_parser: Any = importlib.import_module("re._parser")
_TURNS = importlib.import_module("graph_agent.models.wire.parsing.turns")
_LOCALS: dict[str, dict[str, Any]] = {
    "models/wire/parsing/turns.py": {
        "strong": _TURNS._any_of(_TURNS._STRONG),
        "ends": _TURNS._any_of(_TURNS._ENDS),
        "markup": "",
        "found": {"fence": "```"},
    },
    "models/wire/parsing/calls.py": {"mark": "<think>"},
    "models/stream_filters.py": {"fence": {"marks": "```"}},
    "base/finish.py": {"reasons": ("",)},
    "models/wire/learn.py": {"name": "(?:image|images|image_url|image input|vision|multimodal)"},
    "models/wire/schemas.py": {"value": "[a-z]+"},
    "models/wire/table.py": {"pattern": "(?:open-)?(?:mistral|mixtral)"},
    "models/wire/words.py": {"wordings": {}},  # its results are collected by their names
    "base/_internal/secrets.py": {"body": r"[\w*.-]{16,}"},
    "devtools/model.py": {"names": {}, "given": ""},
}
"""Values of the local names that a pattern is made of, by file."""
_UNTRUSTED = frozenset(
    {
        ("base/_internal/json_schema.py", "regex.compile(pattern, cache_pattern=False)"),
        ("devtools/json_values.py", "re.search(given, actual)"),
        ("integrations/workspace/patterns.py", "re.compile(_translated(line[is_negated:], below))"),
    }
)
"""Patterns of others: those of schemas and models are searched with a time limit (`test_schema_check.py`), those of
paths are translated (`tests/integrations/workspace/test_listing.py`); a test's is its author's.
"""


@dataclass
class _Source:
    """A module that uses regular expressions or another module's; its tree is walked once."""

    file: str
    module: ModuleType
    tree: ast.Module

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @functools.cached_property
    def methods(self) -> dict[str, set[str]]:
        """The attributes that are read of each name; `search` for a name that is read itself."""
        attributes = {id(node.value): node.attr for node in self.nodes if isinstance(node, ast.Attribute)}
        found: dict[str, set[str]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, set()).add(attributes.get(id(node), "search"))
        return found


def _uses_patterns(path: Path) -> bool:
    has_import = re.search(r"\bimport (?:re|regex)\b|parsing\.tags", path.read_text())
    return path.name != "__main__.py" and has_import is not None


_FILES = [path.relative_to(_ROOT).as_posix() for path in sorted(_ROOT.rglob("*.py")) if _uses_patterns(path)]


@functools.cache
def _sources() -> list[_Source]:
    found: list[_Source] = []
    for name in _FILES:
        path = _ROOT / name
        dotted = ".".join(("graph_agent", *path.relative_to(_ROOT).with_suffix("").parts)).removesuffix(".__init__")
        found.append(_Source(name, importlib.import_module(dotted), ast.parse(path.read_text())))
    return found


def _patterns_in(value: Any) -> list[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        return [value]
    if isinstance(value, dict):
        return [each for one in value.values() for each in _patterns_in(one)]
    return [each for one in value for each in _patterns_in(one)] if isinstance(value, list | tuple) else []


def _is_regex_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("re", "regex")
        and node.func.attr in _FUNCTIONS
    )


def _uses(name: str, value: Any) -> frozenset[str]:
    """Return how the patterns of a name are used in the package; any use but `match` and `fullmatch` is a scan."""
    methods = {
        method
        for source in _sources()
        if vars(source.module).get(name) is value
        for method in source.methods.get(name, ())
    }
    return frozenset(method if method in _MATCHING else "scan" for method in methods - {"pattern"})


def _collected() -> Iterator[tuple[str, re.Pattern[Any], frozenset[str]]]:
    """Yield the place, the pattern and the uses of every regular expression in the source."""
    for source in _sources():
        file, module = source.file, source.module
        assigned: set[int] = set()
        for statement in source.tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                patterns = _patterns_in(vars(module).get(target.id)) if isinstance(target, ast.Name) else []
                if patterns and isinstance(target, ast.Name):
                    assigned |= {id(node) for node in ast.walk(statement)}
                    uses = _uses(target.id, vars(module)[target.id])
                    yield from ((f"{file}:{target.id}", each, uses) for each in patterns)
        for node in source.nodes:
            if not isinstance(node, ast.Call) or not _is_regex_call(node) or id(node) in assigned:
                continue
            if (file, ast.unparse(node)) in _UNTRUSTED:
                continue
            assert isinstance(node.func, ast.Attribute)
            code = compile(ast.Expression(node.args[0]), file, "eval")
            flags = next((each.value for each in node.keywords if each.arg == "flags"), None)
            if flags is None and len(node.args) > 1 and node.func.attr == "compile":
                flags = node.args[1]
            names = {**vars(module), **_LOCALS.get(file, {})}
            pattern = re.compile(eval(code, names), eval(ast.unparse(flags), names) if flags else 0)
            method = node.func.attr
            yield f"{file}:{node.lineno}", pattern, frozenset({method if method in _MATCHING else "scan"})


@functools.cache
def _by_file() -> dict[str, list[tuple[str, re.Pattern[Any], str]]]:
    """Return the place, the pattern and the use of every regular expression, by file."""
    found: dict[str, list[tuple[str, re.Pattern[Any], str]]] = {file: [] for file in _FILES}
    for place, pattern, uses in _collected():
        found[place.partition(":")[0]] += [(place, pattern, use) for use in sorted(uses)]
    return found


# Each worker of pytest-xdist collects the tests; one of them reads the patterns.
@pytest.mark.sampled(4)
@pytest.mark.parametrize("file", _FILES)
def test_patterns_take_linear_steps_on_every_text(file: str) -> None:
    slow = {(place, use): slowest_text(pattern, use) for place, pattern, use in _by_file()[file]}

    assert {where: text for where, text in slow.items() if text is not None} == {}


def _possessive_groups(pattern: str | bytes, flags: int) -> list[Any]:
    """Return what the possessive quantifiers of a pattern repeat that is more than one character."""
    found: list[Any] = []
    pending: list[Any] = [_parser.parse(pattern, flags)]
    while pending:
        each = pending.pop()
        if isinstance(each, tuple) and each and each[0] is _constants.POSSESSIVE_REPEAT:
            (_, (_, _, body)) = each
            found += [] if len(body) == 1 and body[0][0] in _ONE_CHARACTER else [body]
        if isinstance(each, tuple | list | _parser.SubPattern):
            pending += list(each)
    return found


_ONE_CHARACTER = frozenset({_constants.IN, _constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY})


@pytest.mark.parametrize("file", _FILES)
def test_possessive_quantifiers_repeat_one_character(file: str) -> None:
    # Before Python 3.11.5, a possessive quantifier behind a group that can backtrack matches too little (bpo-106052);
    # an atomic group around a greedy one, `(?>(?:...)*)`, does not.
    groups = {place: _possessive_groups(each.pattern, each.flags & ~re.UNICODE) for place, each, _ in _by_file()[file]}

    assert {place: found for place, found in groups.items() if found} == {}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"```(?:json)?\s*(?P<json>.*?)\s*```", "fullmatch"),
        (r"(?:a|ab|b)*c", "match"),
        (r"\s+$", "scan"),
        (r"<!--.*?-->", "scan"),
        (r"(?<=://)(.+)(?=@)", "scan"),
    ],
)
def test_a_text_with_more_than_linear_steps_is_found(pattern: str, use: str) -> None:
    assert slowest_text(re.compile(pattern, re.DOTALL), use) is not None
