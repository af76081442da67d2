"""Parsing of the calls in a model's answer, and of the surrounding prose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from graph_agent.calls.call import with_unique_ids
from graph_agent.calls.page import Page
from graph_agent.calls.scanner import Cut, Scanner
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
