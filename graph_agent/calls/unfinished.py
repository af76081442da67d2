"""Detection of a call that was truncated too early to be parsed."""

from __future__ import annotations

import re
from collections.abc import Collection

from graph_agent.calls.page import Page
from graph_agent.calls.tags import FUNCTION, TAG

UNFINISHED = "unfinished_call"
"""Name of a call whose own name is missing or unknown."""

_OPENING = re.compile(
    rf"{TAG.pattern}|<(?:function|invoke|[a-z]{{1,16}}:invoke|｜DSML｜invoke)(?:=|\ name=)"
    r"|(?:`{3}|~{3})(?:tool|function|action|delegat)\w*"
    r"""|[{\[]\s*+(?:\{\s*+)?["'“]?(?:tool_?calls?|function_?calls?|tool|name|function|action|agent)["'”]?\s*+:"""
)
# A list of calls in Python's notation begins a line; anywhere else it may be a part of a program.
_PYTHONIC = re.compile(r"^[ \t]*+(?P<list>\[)\s*+(?:default_api\.)?(?P<name>[^\W\d][\w.]*+)\s*+\(", re.MULTILINE)
_FENCE = re.compile(r"(?:`{3,}|~{3,})[\w-]*+\s*\Z")
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
