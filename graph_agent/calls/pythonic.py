"""Calls written as Python: ``[f(a=1), g(b="x")]``.

Llama 3.2 and 4 (Meta's model cards), LFM2 (Liquid AI), Olmo 3 (Ai2, one call a line) and Gemma (Google, in a
``tool_code`` block, often inside ``print``). Nothing is evaluated: only literals are read from the syntax tree.
"""

from __future__ import annotations

import ast
import math
import warnings
from typing import Any

from graph_agent.calls.shapes import Found
from graph_agent.calls.work import Work

_LONGEST = 100_000
_STEPS, _STEPS_A_CHARACTER = 80, 4
# JSON's words where a model forgot that it writes Python.
_NAMES = {"true": True, "false": False, "null": None}


class _NoLiteralError(ValueError):
    """The source holds something that is neither a call nor a literal."""


def pythonic_calls(text: str, start: int, end: int, work: Work) -> list[Found] | None:
    """Read a list of calls, or calls one to a line, from ``text[start:end]``.

    None when anything else is in it, or it is over 100,000 characters. A call's arguments are keywords with literal
    values, or a single object in their place. An attribute chain is a dotted name.
    """
    # Asked before the text is copied, or many long ones would cost the square of the length.
    if end - start > _LONGEST or not work.take(_STEPS + _STEPS_A_CHARACTER * (end - start)):
        return None
    try:
        with warnings.catch_warnings():
            # An invalid escape in a string is the model's, not the program's.
            warnings.simplefilter("ignore")
            body = ast.parse(text[start:end].strip()).body
        return [call for statement in body for call in _statement(statement)] or None
    # The interpreter refuses deep nesting with MemoryError or RecursionError.
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _statement(statement: ast.stmt) -> list[Found]:
    if not isinstance(statement, ast.Expr):
        raise _NoLiteralError
    value = statement.value
    return [_call(item) for item in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]


def _call(node: ast.expr) -> Found:
    if not isinstance(node, ast.Call):
        raise _NoLiteralError
    name = _dotted(node.func)
    if name == "print" and len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Call):
        return _call(node.args[0])
    arguments: dict[str, Any] = {}
    for argument in node.args:
        value = _literal(argument)
        if not isinstance(value, dict) or len(node.args) > 1:
            raise _NoLiteralError
        arguments.update(value)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise _NoLiteralError
        arguments[keyword.arg] = _literal(keyword.value)
    return Found(name, arguments)


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise _NoLiteralError
    return ".".join((node.id, *reversed(parts)))


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | str() | int() as value):
            return value
        case ast.Constant(value=float() as value):
            return value if math.isfinite(value) else None
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float() as value)):
            return -value if math.isfinite(value) else None
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _literal(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case _:
            raise _NoLiteralError


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return str(node.value)
    raise _NoLiteralError
