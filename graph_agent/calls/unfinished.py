"""A call that a text was cut off in, so early that nothing of it can be read."""

from __future__ import annotations

import re
from collections.abc import Collection

from graph_agent.calls.tags import FUNCTION, TAG

UNFINISHED = "unfinished_call"
"""Name of a call whose own name was not written, or is not known."""

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
    """The name of the first call that a text begins and does not finish, and the prose before it.

    Args:
        text: A text that was cut off, and holds no call that can be read.
        tools: The known names.

    Returns:
        None where the text begins no call. The name is `UNFINISHED` where the text gives none of the known ones.
    """
    opening = _OPENING.search(text)
    if opening is None:
        return None
    tagged = FUNCTION.match(text, opening.start())
    named = tagged or _NAME.search(text, opening.start())
    name = next((group for group in named.groups() if group in tools), UNFINISHED) if named else UNFINISHED
    prose = text[: opening.start()].rstrip()
    return name, _FENCE.sub("", prose).rstrip()
