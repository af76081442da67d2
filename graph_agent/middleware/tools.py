"""Middleware around tool calls."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from traceback import walk_tb
from typing import Any

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from graph_agent._compat import chain_tool_calls, read_state
from graph_agent._internal.exception_text import exception_text
from graph_agent._internal.failure_log import log_failure
from graph_agent._internal.text import clean, plain
from graph_agent.events.calls import CallResult
from graph_agent.hooks.copies import copied
from graph_agent.middleware.admission import AdmittedMiddleware
from graph_agent.state.own_fields import NO_OWN_FIELDS, OwnFields
from graph_agent.tools.commands import CommandScope, as_command
from graph_agent.tools.invoke import belongs_to_run, tool_runtime
from graph_agent.tools.output import read_output, with_value_of
from graph_agent.types import Call

logger = logging.getLogger(__name__)


class ToolMiddleware:
    """The middleware of one agent that wraps tool calls.

    Args:
        middleware: Outermost first.
        tools: The agent's tools, by name.
        own: The agent's own state fields.
    """

    def __init__(
        self, middleware: Sequence[AdmittedMiddleware], tools: Mapping[str, BaseTool], own: OwnFields = NO_OWN_FIELDS
    ) -> None:
        wraps = [one.tool for one in middleware if one.tool is not None]
        self._wraps = chain_tool_calls(wraps) if wraps else None
        self._tools = tools
        self._own = own

    def __bool__(self) -> bool:
        return self._wraps is not None

    async def __call__(
        self, call: Call, config: RunnableConfig, runtime: Runtime[Any], run: Callable[[Call], Awaitable[CallResult]]
    ) -> CallResult:
        """Run a call through the middleware; errors become error outputs.

        Args:
            call: The call.
            config: The task's config.
            runtime: The task's runtime.
            run: Runs a call.

        Raises:
            GraphBubbleUp: If the tool or a middleware interrupts the graph to ask a person.
        """
        error_outputs: dict[int, CallResult] = {}
        outputs: list[CallResult] = []

        async def handler(request: ToolCallRequest) -> ToolMessage | Command[Any]:
            tool_call = request.tool_call
            output = await run({**call, "name": tool_call["name"], "arguments": plain(tool_call["args"])})
            if isinstance(output.raised, Exception):
                # Middleware receives the tool's exception; the model receives our error output.
                error_outputs[id(output.raised)] = output
                raise output.raised
            outputs.append(output)
            message = ToolMessage(
                output.content,
                tool_call_id=call["id"],
                name=tool_call["name"],
                status="success" if output.status == "success" else "error",
                artifact=output.artifact,
            )
            return as_command(message, output)

        try:
            assert self._wraps is not None
            returned = await self._wraps(self._request(call, config, runtime), handler)
        except BaseException as error:
            # An answer that an interrupt refuses is not stored: the call can be answered again.
            if belongs_to_run(error) or _is_raised_by_interrupt(error):
                raise
            if (output := error_outputs.get(id(error))) is not None:
                return output
            log_failure(logger, f"Middleware around the tool {call['name']!r}", error, level=logging.WARNING)
            return CallResult(clean(f"{call['name']} failed: {exception_text(error)}"), "error")
        return with_value_of(outputs, read_output(returned, call, scope=CommandScope.of(self._own, config)))

    def _request(self, call: Call, config: RunnableConfig, runtime: Runtime[Any]) -> ToolCallRequest:
        state = read_state(config, list(self._own.readable))
        return ToolCallRequest(
            tool_call=ToolCall(name=call["name"], args=copied(call["arguments"]), id=call["id"], type="tool_call"),
            tool=self._tools.get(call["name"]),
            state=state,
            runtime=tool_runtime(call["id"], state, config, runtime, list(self._tools.values())),
        )


def _is_raised_by_interrupt(error: BaseException) -> bool:
    """Whether `interrupt()` refused a person's answer, which does not fit its `response_schema`."""
    return any(frame.f_code is interrupt.__code__ for frame, _ in walk_tb(error.__traceback__))
