"""Parses calls written as Python: ``[f(a=1), g(b="x")]``.

Llama 3.2 and 4 (Meta's model cards), LFM2 (Liquid AI), Olmo 3 (Ai2, one call a line) and Gemma (Google, in a
``tool_code`` block, often inside ``print``, with ``default_api.`` before the names). Nothing is evaluated: only
literals are read from the syntax tree.

Names of tools and arguments may be Python keywords, as in ``transfer(from="A", to="B")``, which Python's parser
refuses. They are replaced by other names before parsing and restored in the calls.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
import warnings
from typing import Any

from graph_agent.parsing.shapes import ParsedCall
from graph_agent.parsing.tolerant import WorkBudget

_LONGEST = 100_000
_STEPS, _STEPS_A_CHARACTER = 80, 4
_NAMES = {
    # JSON literals that a model wrote instead of Python's.
    "true": True,
    "false": False,
    "null": None,
    # JSON cannot hold these. They are kept, so that the caller can refuse the call.
    "NaN": math.nan,
    "nan": math.nan,
    "Infinity": math.inf,
    "inf": math.inf,
}
_SPECIAL = {"nan": math.nan, "inf": math.inf, "infinity": math.inf, "+inf": math.inf, "-inf": -math.inf}
"""Non-finite values that ``float`` accepts as strings."""
_PREFIX = "_graph_agent_keyword_"
_KEYWORDS = "|".join(keyword.kwlist)
_REFUSED = re.compile(
    rf"""
    # Strings and comments remain unchanged; an unclosed string runs to its end instead of being tried again.
    (?P<text> \"{{3}}(?:[^"\\]++|\\.|"(?!""))*+(?:\"{{3}})? | '{{3}}(?:[^'\\]++|\\.|'(?!''))*+(?:'{{3}})?
        | "(?:[^"\\\n]++|\\.)*+"? | '(?:[^'\\\n]++|\\.)*+'? | \#[^\n]*+ )
    # A keyword in place of a name: before the equals sign of an argument, a parenthesis or a dot, or after a dot.
    | (?<!\w)(?P<keyword>{_KEYWORDS})(?=\s*+(?:=(?!=)|\()|\.[^\W\d])
    | (?<=\.)(?P<attribute>{_KEYWORDS})\b
    # An integer that is too long for the interpreter.
    | (?<![\w.])(?P<integer>\d[\d_]{{4000,}}+)(?![\w.])
    """,
    re.VERBOSE | re.DOTALL,
)


class _NoLiteralError(ValueError):
    """The source holds an expression that is neither a call nor a literal."""


def pythonic_calls(text: str, start: int, end: int, work: WorkBudget) -> list[ParsedCall] | None:
    """Parse a list of calls, or one call per line, from ``text[start:end]``.

    None if it holds anything else or exceeds 100,000 characters. A call's arguments are keywords with literal values,
    or a single object in their place. An attribute chain is a dotted name.
    """
    # Checked before the text is copied: copies of many long texts would cost quadratic time.
    if end - start > _LONGEST or not work.take(_STEPS + _STEPS_A_CHARACTER * (end - start)):
        return None
    try:
        with warnings.catch_warnings():
            # An invalid escape in a model's string must not warn here.
            warnings.simplefilter("ignore")
            body = ast.parse(_REFUSED.sub(_replace_refused, text[start:end].strip())).body
        return [call for statement in body for call in _statement(statement)] or None
    # The interpreter refuses deep nesting with MemoryError or RecursionError.
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _replace_refused(match: re.Match[str]) -> str:
    """Replace a token that Python's parser refuses by one that it accepts."""
    if match["text"] is not None:
        return match[0]
    return "1e999" if match["integer"] is not None else _PREFIX + match[0]


def _statement(statement: ast.stmt) -> list[ParsedCall]:
    if not isinstance(statement, ast.Expr):
        raise _NoLiteralError
    value = statement.value
    return [_call(item) for item in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]


def _call(node: ast.expr) -> ParsedCall:
    if not isinstance(node, ast.Call):
        raise _NoLiteralError
    name = _dotted(node.func).removeprefix("default_api.")
    if name == "print" and len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Call):
        return _call(node.args[0])
    arguments: dict[str, Any] = {}
    if len(node.args) > 1:
        raise _NoLiteralError
    for named in [*(ast.keyword(None, argument) for argument in node.args), *node.keywords]:
        value = _literal(named.value)
        if named.arg is not None:
            arguments[named.arg.removeprefix(_PREFIX)] = value
        elif isinstance(value, dict):
            # An object in place of the arguments, or after two asterisks.
            arguments.update(value)
        else:
            raise _NoLiteralError
    return ParsedCall(name, arguments)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr.removeprefix(_PREFIX))
        node = node.value
    if not isinstance(node, ast.Name):
        raise _NoLiteralError
    return ".".join((node.id.removeprefix(_PREFIX), *reversed(parts)))


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | str() | int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _literal(operand)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _NoLiteralError
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr="nan" | "inf" as name):
            return _NAMES[name]
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)], keywords=[]):
            return _special(text)
        case _:
            raise _NoLiteralError


def _special(text: str) -> float:
    found = _SPECIAL.get(text.strip().lower())
    if found is None:
        raise _NoLiteralError
    return found


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return str(node.value)
    raise _NoLiteralError
