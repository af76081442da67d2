"""Implements the `read_result` tool, by which the model reads the rest of a truncated output.

Outputs are offloaded if the setting `offload_over_chars` is set: the model gets a part, and reads on as needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.prebuilt import InjectedState
from pydantic import Field

from graph_agent.base._internal.text import text_of
from graph_agent.base.errors import ConfigError
from graph_agent.base.history.events import StoredEvent
from graph_agent.base.settings.config import LoopConfig
from graph_agent.core.extensions.output import fenced_text, source_of

READ_RESULT = "read_result"
"""Name of the tool."""
MOST_RESULT_CHARS = 20_000
"""Maximum characters that one call of `read_result` returns."""

_IDS_LISTED = 20
"""Maximum ids that an error for an unknown id lists."""
_DESCRIPTION = (
    "Read a part of an earlier call's output that was too long to be shown whole. "
    "The place of the cut names the call's id and the offset to go on from; offsets and lengths are in characters."
)

_Events = Annotated[Any, InjectedState("events")]
"""Not declared as a list, because pydantic would copy the whole history to validate it."""


def with_read_result(tools: Sequence[BaseTool], config: LoopConfig) -> Sequence[BaseTool]:
    """Return the tools, followed by `read_result` if the configuration offloads outputs; the given sequence itself if
    not.

    Raises `ConfigError` if outputs are offloaded and another tool has that name.
    """
    if config.offload_over_chars is None:
        return tools
    for tool in tools:
        if tool.name == READ_RESULT:
            raise ConfigError(
                f"A tool is named {READ_RESULT!r}, which offload_over_chars={config.offload_over_chars} keeps for the "
                "agent's own; rename the tool, or leave offload_over_chars out."
            )
    reader = StructuredTool.from_function(
        coroutine=_read_result,
        name=READ_RESULT,
        description=_DESCRIPTION,
        # Its output is bounded already and must not be truncated again.
        metadata={
            "effect": "read",
            "max_output_chars": 10 * MOST_RESULT_CHARS,
            "max_output_lines": 10 * MOST_RESULT_CHARS,
        },
    )
    return [*tools, reader]


def read_on_hint(id_: str, offset: int) -> str:
    """Return the hint in a truncation marker: the `read_result` call that returns the output from `offset` on.

    E.g. `read on with read_result(id="c1", offset=2000)`.
    """
    return f"read on with {READ_RESULT}(id={json.dumps(id_, ensure_ascii=False)}, offset={offset})"


def read_part(events: Sequence[StoredEvent], id_: str, offset: int, length: int) -> str:
    """Return a part of a call's whole output, after a line with its range; the text of an untrusted delegate is fenced.

    Args:
        events: The session's events, oldest first; outputs of `read_result` itself are ignored.
        id_: Id of the call. Of several calls with the id, the newest in the history counts.
        offset: Where the part begins, in characters.
        length: Maximum characters of the part.

    Raises:
        ToolException: No call with the id has a result (the message lists those that have one), or its output ends
            before `offset`.
    """
    results = (entry for entry in reversed(events) if entry["type"] in ("tool_result", "delegation_response"))
    ids: dict[str, None] = {}
    for entry in results:
        # Its own results are parts of other outputs.
        if entry.get("name") == READ_RESULT:
            continue
        if entry["id"] == id_:
            part = part_of(text_of(entry["content"]), f"The output of {id_!r}", offset, length)
            return fenced_text(part, source_of(entry["target"])) if entry.get("untrusted") else part
        ids[entry["id"]] = None
    raise ToolException(f"No call {id_!r} has a result yet; {_listed(list(ids))}")


def part_of(text: str, source: str, offset: int, length: int) -> str:
    """Return a part of a text after a line such as `[Characters 0 to 500 of 1200; go on at offset 500]`.

    Args:
        text: The whole text.
        source: What the text is, as the subject of the error message.
        offset: Where the part begins, in characters.
        length: Maximum characters of the part.

    Raises:
        ToolException: `offset` is at or past the end of the text; 0 is allowed for an empty text.
    """
    size = len(text)
    if offset > max(0, size - 1):
        raise ToolException(f"{source} has {size} characters; an offset of {offset} is past its end.")
    end = min(size, offset + length)
    rest = f"go on at offset {end}" if end < size else "this is the end"
    return f"[Characters {offset} to {end} of {size}; {rest}]\n{text[offset:end]}"


def _listed(newest_first: list[str]) -> str:
    """Return the ids that can be read as a clause for an error message, the first `_IDS_LISTED` of them."""
    if not newest_first:
        return "there is no result to read."
    more = len(newest_first) - _IDS_LISTED
    ids = ", ".join(repr(id_) for id_ in newest_first[:_IDS_LISTED])
    return f"those that can be read, newest first: {ids}{f', and {more} older ones' if more > 0 else ''}."


async def _read_result(
    id: Annotated[str, Field(description="The id of the call whose output to read.")],
    offset: Annotated[int, Field(ge=0, description="Where to begin.")] = 0,
    length: Annotated[
        int, Field(ge=1, description=f"How much to read; {MOST_RESULT_CHARS} at most.")
    ] = MOST_RESULT_CHARS,
    events: _Events = None,
) -> str:
    """Return a part of an earlier output, after a line with its range: the code of the tool.

    Raises `ToolException` if no call with the id has a result, or `offset` is past the end.
    """
    return read_part(events or [], id, offset, min(length, MOST_RESULT_CHARS))
