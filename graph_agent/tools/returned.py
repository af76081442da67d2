"""What a tool's own code returned, before LangChain turns it into the text of a message."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool


@dataclass(slots=True)
class Returned:
    """The return value of one attempt to run a tool."""

    value: Any = None
    is_known: bool = False
    """Whether the tool has returned."""


_current: ContextVar[Returned | None] = ContextVar("graph_agent_returned", default=None)


@contextmanager
def recording() -> Iterator[Returned]:
    """Record what the tool that is run inside returns; the tool must be one that `recorded` has made."""
    returned = Returned()
    reset = _current.set(returned)
    try:
        yield returned
    finally:
        _current.reset(reset)


def record(value: Any) -> None:
    """Record the return value of the tool that is running."""
    if (returned := _current.get()) is not None:
        returned.value, returned.is_known = value, True


def recorded(tool: BaseTool) -> BaseTool:
    """Return a copy of a tool that records what its code returns; its methods still run on the tool itself.

    A message keeps only the text of a return value, in which the text `123` and the number 123 are the same.
    """
    has_artifact = tool.response_format == "content_and_artifact"

    def take(value: Any) -> None:
        record(value[0] if has_artifact and isinstance(value, tuple) and value else value)

    def recording_run(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = run(*args, **kwargs)
            take(value)
            return value

        return wrapped

    def recording_arun(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            value = await run(*args, **kwargs)
            take(value)
            return value

        return wrapped

    clone = copy.copy(tool)
    # pydantic takes no attributes that are no fields.
    object.__setattr__(clone, "_run", recording_run(tool._run))
    object.__setattr__(clone, "_arun", recording_arun(tool._arun))
    return clone
