"""Reading the calls in a model's answer, and the prose around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from graph_agent.calls.call import new_call_id
from graph_agent.calls.page import Page
from graph_agent.calls.scanner import Cut, Scanner
from graph_agent.calls.shapes import ParsedCall
from graph_agent.types import Call

# Without one of these there is nothing to read; most answers are such.
_ANY_OPENER = re.compile(r"[{\[<`~◁]")


def parse_tool_calls(text: str, tools: list[str] | None = None) -> list[Call]:
    """Return the calls in a model's answer, in the order they stand there; empty when there are none.

    Args:
        text: the answer, any string.
        tools: the known names. A bare JSON object or a bare ``[f(a=1)]`` is a call only if its name is one of them;
            what stands in a published tag or in the ``tool_calls`` envelope is a call whatever its name. With None,
            a bare object must have a tool-like name and an object of arguments, and nothing unexpected beside them.

    Each call has exactly ``id``, ``name`` and ``arguments``; an id that is missing or taken is made. ``NaN``,
    ``Infinity`` and numbers out of range are floats that are not finite: refuse such a call. Nothing is read
    from reasoning (``<think>``), from blocks of program code, or from JSON inside other JSON. Never raises; the work is
    bounded by a multiple of the length, past which damaged text is left as prose.
    """
    return split_tool_calls(text, tools)[0]


def split_tool_calls(text: str, tools: list[str] | None = None) -> tuple[list[Call], str]:
    """Return the calls, as ``parse_tool_calls`` does, and the prose that is left without them, stripped.

    A call is cut out with its tags and, where a fenced block holds nothing else, its fence. An envelope that is a whole
    message leaves its ``content`` behind.
    """
    if _ANY_OPENER.search(text) is None:
        return [], text.strip()
    scanner = Scanner(Page(text, None if tools is None else frozenset(tools)))
    scanner.run()
    return _with_ids(scanner.found), _prose(text, scanner.cuts)


def _with_ids(found: Sequence[ParsedCall]) -> list[Call]:
    taken: set[str] = set()
    calls: list[Call] = []
    for call in found:
        call_id = call.id if call.id and call.id not in taken else new_call_id()
        taken.add(call_id)
        calls.append({"id": call_id, "name": call.name, "arguments": call.arguments})
    return calls


def _prose(text: str, cuts: Sequence[Cut]) -> str:
    parts: list[str] = []
    position = 0
    for cut in cuts:
        parts += (text[position : cut.start], cut.prose)
        position = cut.end
    kept = [part for part in (*parts, text[position:]) if part]
    # Two words that a call kept apart must not become one.
    joined = [after if before[-1].isspace() or after[0].isspace() else f" {after}" for before, after in pairwise(kept)]
    return "".join((*kept[:1], *joined)).strip()
