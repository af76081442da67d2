"""Parses the calls in a model's answer, and separates the surrounding prose."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

from graph_agent.parsing.call import with_unique_ids
from graph_agent.parsing.scanner import Cut, Scanner
from graph_agent.parsing.tags import FUNCTION, TAG, Page
from graph_agent.types import Call

# An answer without one of these holds no call, which is the common case.
_ANY_OPENER = re.compile(r"[{\[<`~◁]")


def parse_tool_calls(text: str, tools: list[str] | None = None) -> list[Call]:
    """Return the calls in a model's answer, in text order; empty if there are none.

    Args:
        text: the answer, any string.
        tools: the known names. A bare JSON object or a bare ``[f(a=1)]`` is a call only if its name is one of them; a
            value in a published tag or in the ``tool_calls`` envelope is a call regardless of its name. With None, a
            bare object must have a tool-like name, an object of arguments, and no unexpected keys.

    Each call has exactly ``id``, ``name`` and ``arguments``; a missing or duplicate id is replaced by a new one.
    ``NaN``, ``Infinity`` and numbers out of range become non-finite floats: refuse such a call. Reasoning
    (``<think>``), blocks of program code, and JSON inside other JSON are ignored. Never raises; the work is bounded by
    a multiple of the length, beyond which damaged text remains prose.
    """
    return split_tool_calls(text, tools)[0]


class TextCalls(NamedTuple):
    """The calls of a text, and how the text ends."""

    calls: list[Call]
    prose: str
    unclosed: bool = False
    """Whether the text ends in a call without its closing brackets or tags."""
    partial: bool = False
    """Whether the text ends inside a value of a call: such a call must not be run."""


def split_tool_calls(text: str, tools: list[str] | None = None) -> tuple[list[Call], str]:
    """Return the calls, as ``parse_tool_calls`` does, and the remaining prose, stripped.

    A call is removed with its tags and, if a fenced block holds nothing else, its fence. An envelope that is a whole
    message is replaced by its ``content``.
    """
    read = read_text_calls(text, tools)
    return read.calls, read.prose


def read_text_calls(text: str, tools: list[str] | None = None) -> TextCalls:
    """Return what ``split_tool_calls`` does, and whether the text ends inside a call."""
    if _ANY_OPENER.search(text) is None:
        return TextCalls([], text.strip())
    scanner = Scanner(Page(text, None if tools is None else frozenset(tools)))
    scanner.run()
    calls = [Call(id=call.id or "", name=call.name, arguments=call.arguments) for call in scanner.found]
    return TextCalls(with_unique_ids(calls), _prose(text, scanner.cuts), scanner.unclosed, scanner.partial)


def _prose(text: str, cuts: Sequence[Cut]) -> str:
    parts: list[str] = []
    position = 0
    for cut in cuts:
        parts += (text[position : cut.start], cut.prose)
        position = cut.end
    kept = [part for part in (*parts, text[position:]) if part]
    # Two words separated by a call must not become one.
    joined = [after if before[-1].isspace() or after[0].isspace() else f" {after}" for before, after in pairwise(kept)]
    return "".join((*kept[:1], *joined)).strip()


UNFINISHED = "unfinished_call"
"""Name of a call whose own name is missing or unknown."""

_OPENING = re.compile(
    rf"{TAG.pattern}|<(?:function|invoke|[a-z]{{1,16}}:invoke|｜DSML｜invoke)(?:=|\ name=)"
    r"|(?:`{3}|~{3})(?:tool|function|action|delegat)\w*"
    r"""|[{\[]\s*+(?:\{\s*+)?["'“]?(?:tool_?calls?|function_?calls?|tool|name|function|action|agent)["'”]?\s*+:"""
)
# A list of calls in Python's notation begins a line; anywhere else it may be a part of a program.
_PYTHONIC = re.compile(r"^[ \t]*+(?P<list>\[)\s*+(?:default_api\.)?(?P<name>[^\W\d][\w.]*+)\s*+\(", re.MULTILINE)
_FENCE = re.compile(r"(?:(?<!`)`{3,}+|(?<!~)~{3,}+)[\w-]*+\s*\Z")
_NAME = re.compile(
    r"""["'](?:name|tool|function|action|function_name|tool_name)["']\s*+:\s*+["']([^"'\s]{1,128})["']"""
)


def unfinished_call(text: str, tools: Collection[str]) -> tuple[str, str] | None:
    """Return the name of the first unfinished call in a text, and the prose before it.

    Args:
        text: A truncated text without a call that can be parsed.
        tools: The known names.

    Returns:
        None if the text starts no call. The name is `UNFINISHED` if the text holds none of the known names.
    """
    opening = _OPENING.search(text)
    if (pythonic := _pythonic(text, tools)) is not None and (opening is None or pythonic.start() < opening.start()):
        return pythonic["name"], _FENCE.sub("", text[: pythonic.start()].rstrip()).rstrip()
    if opening is None:
        return None
    tagged = FUNCTION.match(text, opening.start())
    named = tagged or _NAME.search(text, opening.start())
    name = next((group for group in named.groups() if group in tools), UNFINISHED) if named else UNFINISHED
    prose = text[: opening.start()].rstrip()
    return name, _FENCE.sub("", prose).rstrip()


def _pythonic(text: str, tools: Collection[str]) -> re.Match[str] | None:
    """Return the start of the first unclosed list of calls in Python's notation whose first name is known."""
    page = Page(text, frozenset(tools))
    found = (match for match in _PYTHONIC.finditer(text) if match["name"] in tools)
    return next((match for match in found if page.bracket_end(match.start("list")) is None), None)
