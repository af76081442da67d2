"""Exceptions of tool calls: the text that the model reads, and what they mean for the call."""

from __future__ import annotations

import asyncio

from langchain_core.tools import BaseTool, ToolException
from pydantic import ValidationError

from graph_agent._internal.exception_text import exception_text
from graph_agent._internal.text import clean
from graph_agent.errors import AbandonedCallsError, CallError, McpServerError
from graph_agent.tools.cut_short import effect_text


def misfit(tool: BaseTool, error: BaseException) -> bool:
    """Whether an exception says that the model's arguments do not fit."""
    return isinstance(error, ValidationError) and error.title == getattr(tool.args_schema, "__name__", None)


def may_have_run(clock: asyncio.Timeout, error: BaseException) -> bool:
    """Whether a call may have taken effect though it ended with this exception, whose cause lies outside its tool."""
    if isinstance(error, McpServerError):
        return error.may_have_run
    return isinstance(error, TimeoutError) and clock.expired()


def fault(
    tool: BaseTool, clock: asyncio.Timeout, error: BaseException, *, timeout_s: float | None, writes: bool
) -> str:
    """The text of an exception, for the model.

    Args:
        tool: The tool.
        clock: The call's time limit.
        error: The exception.
        timeout_s: The time limit in seconds; None for none.
        writes: Whether the tool may change something.
    """
    if isinstance(error, CallError):
        return str(error)
    if isinstance(error, ToolException):
        return clean(str(error)) or f"{tool.name} failed without saying why."
    if isinstance(error, TimeoutError) and clock.expired():
        return f"{tool.name} was stopped at its time limit of {timeout_s:g} s. {effect_text(writes=writes)}"
    if isinstance(error, AbandonedCallsError):
        return f"{tool.name} did not run: {error}"
    if isinstance(error, ValidationError) and misfit(tool, error):
        faults = [f"{'.'.join(map(str, one['loc'])) or 'arguments'}: {one['msg']}" for one in error.errors()]
        return (
            f"The arguments do not fit the tool {tool.name!r}: {'; '.join(faults)}. It takes: {', '.join(tool.args)}."
        )
    return clean(f"{tool.name} failed: {exception_text(error)}")
