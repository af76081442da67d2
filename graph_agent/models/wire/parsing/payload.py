"""Parses the payload after an opening tag, in any of the published notations.

Calls written as Python (``[f(a=1), g(b="x")]``) come from Llama 3.2 and 4 (Meta's model cards), LFM2 (Liquid AI), Olmo
3 (Ai2, one call a line) and Gemma (Google, in a ``tool_code`` block, often inside ``print``, with ``default_api.``
before the names). Nothing is evaluated: only literals are read from the syntax tree. Names of tools and arguments may
be Python keywords, as in ``transfer(from="A", to="B")``, which Python's parser refuses; they are replaced by other
names before parsing and restored in the calls.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
import warnings
from typing import Any, NamedTuple

from graph_agent.base._internal.lenient_json import WorkBudget, arguments_of, integer
from graph_agent.base.calls import known_name
from graph_agent.models.wire.parsing import tags
from graph_agent.models.wire.parsing.families import GEMMA_CALL, FamilyCall, read_gemma
from graph_agent.models.wire.parsing.shapes import ParsedCall, calls_in

_LONGEST = 100_000
"""Maximum characters of one list of calls in Python's notation."""
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
"""Text of a non-finite number → value, as ``float("…")`` accepts it."""
_PREFIX = "_graph_agent_keyword_"
_KEYWORDS = "|".join(keyword.kwlist)
_REFUSED = re.compile(
    rf"""
    # Strings and comments remain unchanged; an unclosed string runs to its end instead of being tried again.
    (?P<text> \"{{3}}(?>(?:[^"\\]++|\\.|"(?!""))*)(?:\"{{3}})? | '{{3}}(?>(?:[^'\\]++|\\.|'(?!''))*)(?:'{{3}})?
        | "(?>(?:[^"\\\n]++|\\.)*)"? | '(?>(?:[^'\\\n]++|\\.)*)'? | \#[^\n]*+ )
    # A keyword in place of a name: before the equals sign of an argument, a parenthesis or a dot, or after a dot.
    | (?<!\w)(?P<keyword>{_KEYWORDS})(?=\s*+(?:=(?!=)|\()|\.[^\W\d])
    | (?<=\.)(?P<attribute>{_KEYWORDS})\b
    # An integer that is too long for the interpreter.
    | (?<![\w.])(?P<integer>\d[\d_]{{4000,}}+)(?![\w.])
    """,
    re.VERBOSE | re.DOTALL,
)


class _NoLiteralError(ValueError):
    """Raised if the source has an expression that is neither a call nor a literal."""


def pythonic_calls(text: str, start: int, end: int, work: WorkBudget) -> list[ParsedCall] | None:
    """Parse calls in Python's notation, as a list or one a line, from ``text[start:end]``. Nothing is evaluated.

    A call's arguments are keywords with literal values, or one dict in their place. Attributes give a dotted name,
    without a leading `default_api.`. A call within `print(…)` counts as the call itself.

    Args:
        start: Index at which the calls start.
        end: Index after them.
        work: The budget from which the work is taken.

    Returns:
        The calls. None if there are none, if the text has anything else or exceeds 100,000 characters, or if the budget
        is used up.
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
    """Replace a token that Python's parser refuses, e.g. a keyword as a name, by one that it accepts."""
    if match["text"] is not None:
        return match[0]
    return "1e999" if match["integer"] is not None else _PREFIX + match[0]


def _statement(statement: ast.stmt) -> list[ParsedCall]:
    """Return the calls of one statement: an expression, or a list or tuple of calls.

    Raises `_NoLiteralError` otherwise.
    """
    if not isinstance(statement, ast.Expr):
        raise _NoLiteralError
    value = statement.value
    return [_call(item) for item in (value.elts if isinstance(value, ast.List | ast.Tuple) else [value])]


def _call(node: ast.expr) -> ParsedCall:
    """Convert the syntax tree of one call; raise `_NoLiteralError` if it is no call or an argument is no literal.

    Arguments are keywords, one dict, or dicts after `**`. A call inside `print(…)` is returned in its place.
    """
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
    """Return the dotted name in a syntax tree; raise `_NoLiteralError` for another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr.removeprefix(_PREFIX))
        node = node.value
    if not isinstance(node, ast.Name):
        raise _NoLiteralError
    return ".".join((node.id.removeprefix(_PREFIX), *reversed(parts)))


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal in a syntax tree, JSON's and non-finite names included; tuples become lists, and
    keys of dicts texts.

    Raises `_NoLiteralError` for anything else.
    """
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
    """Return the non-finite number that ``float(text)`` gives; raise `_NoLiteralError` for another text."""
    found = _SPECIAL.get(text.strip().lower())
    if found is None:
        raise _NoLiteralError
    return found


def _key(node: ast.expr | None) -> str:
    """Return the key of a dict as text; raise `_NoLiteralError` for anything but text and numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return str(node.value)
    raise _NoLiteralError


PYTHONIC_LIST = re.compile(r"\[\s*+[^\W\d][\w.]*+\s*+\(")
_PYTHONIC_CALL = re.compile(r"[^\W\d][\w.]*+\(")
_FENCE = re.compile(r"\s*+(?:```[\w-]*+\s*+)?")
_NAME = re.compile(tags.TOOL_NAME_PATTERN)
_SPACE = re.compile(r"\s*+")
_NEXT_VALUE = re.compile(r"[\s,;]*+(?=[{\[])")
_KIMI_INDEX = re.compile(r":\d+\Z")
_JSON_START = tuple("{[-0123456789tfn")
_WORDS: dict[str, Any] = {"True": True, "False": False, "None": None}


class Payload(NamedTuple):
    """The calls parsed from one region of the text."""

    calls: list[ParsedCall]
    end: int
    """Index after the calls and their closing tags."""


def read_payload(page: tags.ParsedText, start: int) -> Payload | None:
    """Parse the calls after an opening tag or fence; None if there are none.

    The notation is recognized by its beginning: Gemma's, Python's list, JSON, or else a name followed by its arguments.
    Closing tags are skipped.

    Args:
        page: The text.
        start: Index after the tag.
    """
    opening = _FENCE.match(page.text, start)
    position = opening.end() if opening else start
    if (gemma := GEMMA_CALL.match(page.text, position)) is not None:
        payload = payload_of(page, read_gemma(page, gemma))
    elif PYTHONIC_LIST.match(page.text, position):
        payload = _pythonic_list(page, position)
    elif page.text.startswith(("{", "["), position):
        payload = _values(page, position, delegate=False)
    else:
        payload = _named(page, position)
    return None if payload is None else Payload(payload.calls, after_closing_tags(page, payload.end))


def payload_of(page: tags.ParsedText, call: FamilyCall | None) -> Payload | None:
    """Convert a call of a model family to a payload, and skip its closing tags.

    None if there is none or it is damaged.
    """
    if call is None or call.arguments is None:
        return None
    parsed = ParsedCall(known_name(call.name, page.tools), call.arguments)
    return Payload([parsed], after_closing_tags(page, call.end))


def read_function(page: tags.ParsedText, name: str, start: int) -> Payload | None:
    """Parse the parameters of a call whose opening tag ends at ``start``; None if nothing there belongs to a call.

    A value that is no JSON (see `_typed`), or whose tag has `string="true"`, is text, without the marks of CDATA. One
    that the text cuts off is recorded as unclosed.

    Llama writes one object; Qwen3-Coder, Anthropic, MiniMax, Seed-OSS and DeepSeek V3.2 write one tag per parameter.

    Args:
        page: The text.
        name: The name in the opening tag.
        start: Index after the opening tag.
    """
    text, position = page.text, start
    arguments: dict[str, Any] = {}
    partial = False
    while (parameter := tags.PARAMETER.match(text, position)) is not None:
        end = page.next(tags.PARAMETER_END, parameter.end())
        partial = end is None
        value = text[parameter.end() : end.start() if end else len(text)]
        if value.startswith("<![CDATA[") and value.endswith("]]>"):
            value = value[9:-3]
        arguments[(parameter["key"] or parameter["name"]).strip()] = (
            value if parameter["string"] == "true" else _typed(value)
        )
        position = end.end() if end else len(text)
    if position == start:
        space = _SPACE.match(text, start)
        position = space.end() if space else start
        if text.startswith("{", position):
            payload = _with_arguments(page, name, None, position)
            return None if payload is None else Payload(payload.calls, after_closing_tags(page, payload.end))
    end_of_tags = after_closing_tags(page, position)
    if end_of_tags == position:
        if not arguments:
            return None
        page.note_unclosed(start, position, partial=partial)
    return Payload([ParsedCall(known_name(name, page.tools), arguments)], end_of_tags)


def after_closing_tags(page: tags.ParsedText, end: int) -> int:
    """Return the index after the closing tags at ``end``; ``end`` if there are none."""
    closing = tags.CLOSE.match(page.text, end)
    return closing.end() if closing else end


def _values(page: tags.ParsedText, start: int, *, delegate: bool) -> Payload | None:
    """Parse consecutive JSON values as calls, separated by ``;`` (Llama) or line ends (MiniMax, Jamba). None if the
    first value is no call.

    Args:
        start: Index of the first value.
        delegate: Whether the calls stand in a block of delegations.
    """
    calls: list[ParsedCall] = []
    position, end = start, start
    while (at := page.value_at(position, region=True)) is not None:
        found = calls_in(at.read.value, page.context(trusted=True, delegate=delegate, complete=at.read.complete))
        if found is None:
            break
        calls += found
        end = at.end
        following = _NEXT_VALUE.match(page.text, end)
        if following is None:
            break
        position = following.end()
    return None if end == start else Payload(calls, end)


def _pythonic_list(page: tags.ParsedText, start: int) -> Payload | None:
    """Parse a list of calls in Python's notation; None if it is unclosed or damaged."""
    end = page.bracket_end(start)
    calls = None if end is None else pythonic_calls(page.text, start, end, page.work)
    return None if calls is None or end is None else Payload(calls, end)


def _named(page: tags.ParsedText, start: int) -> Payload | None:
    """Parse a name and its arguments: an object, GLM's pairs, Python's parentheses, or none. None if they are not a
    call.

    Args:
        start: Index at which the name starts.
    """
    kind = tags.DEEPSEEK_TYPE.match(page.text, start)
    if kind and (invoked := tags.FUNCTION.match(page.text, kind.end())) is not None:
        return read_function(page, invoked["function"] or invoked["invoke"], invoked.end())
    name = _NAME.match(page.text, kind.end() if kind else start)
    if name is None:
        return None
    separator = tags.SEPARATOR.match(page.text, name.end())
    opening = _FENCE.match(page.text, separator.end() if separator else name.end())
    position = opening.end() if opening else name.end()
    call_id = separator["id"] if separator else None
    called = name[0]
    if separator and separator["kimi"]:
        call_id, called = called, _KIMI_INDEX.sub("", called).removeprefix("functions.")
    if page.text.startswith("{", position):
        return _with_arguments(page, called, call_id, position)
    if _PYTHONIC_CALL.match(page.text, start):
        end = page.region_end(start)
        calls = pythonic_calls(page.text, start, end, page.work)
        return None if calls is None else Payload([_without_call(page, call) for call in calls], end)
    pairs, end, partial = _pairs(page, position)
    closed = after_closing_tags(page, end) > end
    if not closed:
        page.note_unclosed(start, end, partial=partial)
    if pairs or closed or (separator and end == len(page.text)):
        return Payload([ParsedCall(known_name(called, page.tools), pairs, call_id)], end)
    return None


def _with_arguments(page: tags.ParsedText, name: str, call_id: str | None, start: int) -> Payload | None:
    """Parse the object of arguments of a named call; None if it is damaged.

    Args:
        name: Name of the tool, as written.
        call_id: Id of the call; None if it has none.
        start: Index of the opening brace.
    """
    at = page.value_at(start, region=True)
    arguments = None if at is None else arguments_of(at.read.value, page.work)
    if at is None or arguments is None:
        return None
    return Payload([ParsedCall(known_name(name, page.tools), arguments, call_id)], at.end)


def _without_call(page: tags.ParsedText, call: ParsedCall) -> ParsedCall:
    """Return a call without the suffix `.call` in its name, which Llama 3.1 writes for its built-in tools; unchanged if
    a known tool has the whole name.
    """
    # Llama 3.1 calls its built-in tools as brave_search.call(query=…).
    if page.tools is not None and call.name in page.tools:
        return call
    return call._replace(name=call.name.removesuffix(".call"))


def _pairs(page: tags.ParsedText, start: int) -> tuple[dict[str, Any], int, bool]:
    """Parse arguments that are written as pairs of tags for key and value (GLM, Hunyuan).

    Args:
        page: The text.
        start: Index at which the pairs start.

    Returns:
        The arguments, the index after them, and whether the text ends inside a value.
    """
    pairs: dict[str, Any] = {}
    position, partial = start, False
    while (pair := tags.ARGUMENT_PAIR.match(page.text, position)) is not None:
        end = page.next(tags.ARGUMENT_END, pair.end())
        partial = end is None
        pairs[pair["key"].strip()] = _typed(page.text[pair.end() : end.start() if end else len(page.text)])
        position = end.end() if end else len(page.text)
    return pairs, position, partial


def _typed(text: str) -> Any:
    """Convert a parameter written as text: clear JSON or a Python literal to its value; other text loses only one line
    end at each side.

    A number is converted only if its ``repr`` is the same text, so ``1.10`` and ``007`` remain text. So do ``NaN``,
    ``Infinity`` and ``1e999`` on their own, because they may be words; inside an object or a list they are numbers.
    """
    stripped = text.strip()
    if stripped in _WORDS:
        return _WORDS[stripped]
    if stripped[:1] in _JSON_START:
        try:
            value = json.loads(stripped, parse_int=integer)
            if not isinstance(value, int | float) or isinstance(value, bool) or repr(value) == stripped:
                return value
        except (ValueError, RecursionError):
            pass
    return text.removeprefix("\n").removesuffix("\n")
