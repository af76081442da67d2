"""How one tool's own code is called, and what it is told."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import Runtime
from pydantic import BaseModel

from graph_agent._compat import InjectedArguments, as_tool_output, config_parameter
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent.tools.returned import record, recorded


class Invoker:
    """Calls one tool, by the shortest way that nobody can tell from `tool.ainvoke`.

    A blocking tool runs in a daemon thread. A coroutine is awaited directly while no callback handler listens, because
    `ainvoke` works out its signature and prepares its callbacks anew at each call.
    """

    def __init__(self, tool: BaseTool) -> None:
        self._tool = recorded(_with_shallow_schema(tool))
        self._blocking = _is_blocking(tool)
        self._direct = _Direct(tool) if isinstance(tool, StructuredTool) and _is_plain(tool) else None

    async def __call__(self, arguments: dict[str, Any], call_id: str, config: RunnableConfig) -> Any:
        """Run the tool.

        Args:
            arguments: The model's arguments and the injected ones.
            call_id: The call's id.
            config: The node's config.

        Returns:
            The text a tool returned, a `ToolMessage`, or the messages and commands the tool made itself.

        Raises:
            Exception: What the tool raised, and pydantic's `ValidationError` when the arguments do not fit.
        """
        if self._direct is not None and not _heard(config):
            return await self._direct(arguments, call_id, config)
        tool = self._tool
        request = {"type": "tool_call", "id": call_id, "name": tool.name, "args": arguments}
        if self._blocking:
            return await call_in_thread(tool.invoke, request)
        return await tool.ainvoke(request)


class _Direct:
    """A tool's coroutine, called with what its schema makes of the arguments."""

    def __init__(self, tool: StructuredTool) -> None:
        assert tool.coroutine is not None
        self._tool = tool
        self._coroutine = tool.coroutine
        self._schema = cast("type[BaseModel]", tool.args_schema)
        self._fields = list(self._schema.model_fields)
        self._call_id_fields = [
            name for name, field in self._schema.model_fields.items() if InjectedToolCallId in field.metadata
        ]
        self._config_parameter = config_parameter(self._coroutine)
        # What the framework injects without the schema's knowledge, such as a ToolRuntime.
        self._beside = [name for name in inspect.signature(self._coroutine).parameters if name not in self._fields]

    async def __call__(self, arguments: dict[str, Any], call_id: str, config: RunnableConfig) -> Any:
        valid = self._schema.model_validate(arguments | dict.fromkeys(self._call_id_fields, call_id))
        kwargs = {name: getattr(valid, name) for name in self._fields}
        for name in self._beside:
            if name in arguments:
                kwargs[name] = arguments[name]
        if self._config_parameter:
            kwargs[self._config_parameter] = config
        returned = await self._coroutine(**kwargs)
        record(returned)
        if isinstance(returned, str):
            return returned
        return as_tool_output(returned, None, self._tool, call_id)


def _with_shallow_schema(tool: BaseTool) -> BaseTool:
    """The tool with a schema that does not serialize injected arguments; itself where it has none.

    LangChain dumps validated arguments only to learn their names. A dump of a `ToolRuntime` warns of each of its values
    that has another type than declared, and goes through the whole history in its state.
    """
    schema = tool.args_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return tool
    if InjectedArguments(tool).hidden.isdisjoint(schema.model_fields):
        return tool
    body = {"__module__": schema.__module__, "__doc__": schema.__doc__, "model_dump": _shallow_dump}
    # The same name, which stands in the texts of validation errors.
    shallow = cast("Any", type(schema))(schema.__name__, (schema,), body)
    made = tool.model_copy(update={"args_schema": shallow})
    # What the tool keeps for itself between calls stays in one place.
    object.__setattr__(made, "__pydantic_private__", tool.__pydantic_private__)
    return made


def _shallow_dump(arguments: BaseModel, **_: Any) -> dict[str, Any]:
    fields = type(arguments).model_fields.items()
    return {
        **{name: getattr(arguments, name) for name, field in fields if not field.exclude},
        **(arguments.model_extra or {}),
    }


def _is_plain(tool: StructuredTool) -> bool:
    """Whether `ainvoke` would do no more than check the arguments, call the coroutine, and keep what it returns."""
    schema = tool.args_schema
    if type(tool) is not StructuredTool or tool.coroutine is None or tool.response_format != "content":
        return False
    if tool.callbacks or tool.verbose or tool.handle_tool_error or tool.handle_validation_error:
        return False
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)) or schema.model_config.get("extra") == "allow":
        return False
    special = {"args", "kwargs", "callbacks", "run_manager", "tool_call_id"}
    taken = special & {*schema.model_fields, *inspect.signature(tool.coroutine).parameters}
    return not taken and not any(field.alias for field in schema.model_fields.values())


def _is_blocking(tool: BaseTool) -> bool:
    """Whether `ainvoke` would only hand the tool's blocking code to an executor."""
    if isinstance(tool, StructuredTool | Tool) and tool.coroutine is not None:
        return False
    return type(tool)._arun in (BaseTool._arun, StructuredTool._arun, Tool._arun)


def _heard(config: RunnableConfig) -> bool:
    callbacks = config.get("callbacks")
    return bool(callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks)


def tool_runtime(
    call_id: str, state: Any, config: RunnableConfig, runtime: Runtime[Any], tools: Iterable[BaseTool]
) -> ToolRuntime[Any, Any]:
    """What a tool, or middleware around it, is told of the run that it is called in.

    Args:
        call_id: The call.
        state: The graph's state.
        config: The task's config.
        runtime: The task's runtime.
        tools: All tools of the agent.
    """
    return ToolRuntime(
        state=state,
        tool_call_id=call_id,
        config=config,
        context=runtime.context,
        store=runtime.store,
        stream_writer=runtime.stream_writer,
        tools=list(tools),
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )


def meant_for_the_run(error: BaseException) -> bool:
    """Whether an exception that came out of a call is the run's and not the call's own.

    The run's are a question to a person, the run's own cancellation, and Ctrl-C. All else, `SystemExit` and a
    `CancelledError` that nobody asked for included, is that call's failure.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, GraphBubbleUp | KeyboardInterrupt | GeneratorExit)
