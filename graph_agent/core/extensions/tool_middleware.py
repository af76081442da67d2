"""Wraps LangChain middleware around tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from traceback import walk_tb
from typing import Any

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from graph_agent.base._compat import chain_tool_calls, read_state
from graph_agent.base._internal.failure_log import get_logger, log_user_error
from graph_agent.base._internal.text import clean, to_json_safe
from graph_agent.base.history.call_events import CallResult
from graph_agent.base.history.events import SUCCESSES, ResultStatus
from graph_agent.base.types import Call
from graph_agent.core.extensions import invoke
from graph_agent.core.extensions.hook_copies import copied
from graph_agent.core.extensions.hook_failures import hook_that_raised
from graph_agent.core.extensions.middleware import AdmittedMiddleware, Wrap
from graph_agent.core.state.custom_state import NO_OWN_FIELDS, CustomState
from graph_agent.models.errors import public_exception_text

CallRunner = Callable[[Call, BaseTool | None], Awaitable[CallResult]]
"""Runs a call with the given tool of a middleware, or with the agent's own tool for None."""
logger = get_logger("graph_agent.hooks.middleware")


_entered: ContextVar[list[str] | None] = ContextVar("graph_agent_entered", default=None)
"""Names of the middleware that the current call has reached, outermost first; None outside a call."""


def _recorded(name: str, wrap: Wrap) -> Wrap:
    """Return a wrap method that appends the middleware's name to `_entered`, and then calls `wrap`."""

    async def recorded(request: Any, handler: Any) -> Any:
        if (entered := _entered.get()) is not None:
            entered.append(name)
        return await wrap(request, handler)

    return recorded


class ToolMiddleware:
    """Runs tool calls through the middleware of one agent that wraps tool calls. False in a condition if there is none.

    Args:
        middleware: The agent's middleware, outermost first.
        tools: The agent's tools, by name.
        own: The fields of the agent's `state_schema`, which middleware may read and write.
    """

    def __init__(
        self, middleware: Sequence[AdmittedMiddleware], tools: Mapping[str, BaseTool], own: CustomState = NO_OWN_FIELDS
    ) -> None:
        wraps = [_recorded(one.name, one.tool) for one in middleware if one.tool is not None]
        self._wraps = chain_tool_calls(wraps) if wraps else None
        self._tools = tools
        self._own = own

    def __bool__(self) -> bool:
        return self._wraps is not None

    async def __call__(self, call: Call, config: RunnableConfig, runtime: Runtime[Any], run: CallRunner) -> CallResult:
        """Run a call through the middleware and return its output.

        - An exception of middleware is logged and becomes an error output, with the status `denied` if the tool has
          not run.
        - If the tool's own exception passes through the middleware, the tool's error output is returned.
        - If middleware gives the output without running the tool, its status is `answered`, or `denied` for an error,
          and `decided_by` names the middleware.
        - Otherwise status and value of the tool's own result stay as far as `with_value_of` keeps them.

        Args:
            call: The call as planned.
            config: The config of the task.
            runtime: The runtime of the task.
            run: Runs the call that the innermost middleware passes on; may be called several times.

        Raises:
            GraphBubbleUp: The tool or a middleware interrupts the graph to ask a person.
            Exception: LangGraph's `interrupt()` refused the person's answer.
        """
        entered: list[str] = []
        token = _entered.set(entered)
        ran = False
        error_outputs: dict[int, CallResult] = {}
        outputs: list[CallResult] = []

        async def handler(request: ToolCallRequest) -> ToolMessage | Command[Any]:
            nonlocal ran
            ran = True
            tool_call = request.tool_call
            # Middleware passes on the request's tool unless it replaces it.
            given = request.tool if request.tool is not wrapped.tool else None
            output = await run({**call, "name": tool_call["name"], "arguments": to_json_safe(tool_call["args"])}, given)
            if isinstance(output.raised, Exception):
                # Middleware receives the tool's exception; the model receives our error output.
                error_outputs[id(output.raised)] = output
                raise output.raised
            outputs.append(output)
            message = ToolMessage(
                output.content,
                tool_call_id=call["id"],
                name=tool_call["name"],
                status="success" if output.status in SUCCESSES else "error",
                artifact=output.artifact,
            )
            return invoke.as_command(message, output)

        wrapped = self._request(call, config, runtime)
        try:
            assert self._wraps is not None
            returned = await self._wraps(wrapped, handler)
        except BaseException as error:
            # An answer that an interrupt refuses is not stored: the call can be answered again.
            if invoke.belongs_to_run(error) or _is_raised_by_interrupt(error):
                raise
            if (output := error_outputs.get(id(error))) is not None:
                return output
            hook = hook_that_raised(error) or entered[-1]
            log_user_error(logger, f"The hook {hook} around the tool {call['name']!r}", error)
            failed = CallResult(clean(f"{call['name']} failed: {public_exception_text(error)}"), "error")
            return failed if ran or not entered else _answered(failed, entered[-1])
        finally:
            _entered.reset(token)
        output = invoke.with_value_of(
            outputs, invoke.read_output(returned, call, scope=invoke.CommandScope.of(self._own, config))
        )
        return output if ran or not entered else _answered(output, entered[-1])

    def _request(self, call: Call, config: RunnableConfig, runtime: Runtime[Any]) -> ToolCallRequest:
        """Build LangChain's `ToolCallRequest` for a call, with a copy of the arguments and the state that middleware
        may read."""
        state = read_state(config, list(self._own.readable))
        return ToolCallRequest(
            tool_call=ToolCall(name=call["name"], args=copied(call["arguments"]), id=call["id"], type="tool_call"),
            tool=self._tools.get(call["name"]),
            state=state,
            runtime=invoke.tool_runtime(call["id"], state, config, runtime, list(self._tools.values())),
        )


def _answered(output: CallResult, by: str) -> CallResult:
    """Return a copy of an output that middleware gave without running the tool, with the status `answered` or `denied`.

    Args:
        output: The output; an error becomes `denied`.
        by: Name of the middleware, stored as `decided_by`.
    """
    status: ResultStatus = "answered" if output.status == "success" else "denied"
    return replace(output, status=status, stored={**output.stored, "decided_by": by})


def _is_raised_by_interrupt(error: BaseException) -> bool:
    """Whether LangGraph's `interrupt()` raised the exception, because the person's answer does not fit its
    `response_schema`."""
    return any(frame.f_code is interrupt.__code__ for frame, _ in walk_tb(error.__traceback__))
