"""Detection of a call that was truncated too early to be parsed."""

from __future__ import annotations

import re
from collections.abc import Collection

from graph_agent.calls.tags import FUNCTION, TAG

UNFINISHED = "unfinished_call"
"""Name of a call whose own name is missing or unknown."""

_OPENING = re.compile(
    rf"{TAG.pattern}|<(?:function|invoke|[a-z]{{1,16}}:invoke|｜DSML｜invoke)(?:=|\ name=)"
    r"|(?:`{3}|~{3})(?:tool|function|action|delegat)\w*"
    r"""|[{\[]\s*+(?:\{\s*+)?["'“]?(?:tool_?calls?|function_?calls?|tool|name|function|action|agent)["'”]?\s*+:"""
)
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
    if opening is None:
        return None
    tagged = FUNCTION.match(text, opening.start())
    named = tagged or _NAME.search(text, opening.start())
    name = next((group for group in named.groups() if group in tools), UNFINISHED) if named else UNFINISHED
    prose = text[: opening.start()].rstrip()
    return name, _FENCE.sub("", prose).rstrip()
