"""Invokes one tool's code: checks its arguments, makes its `ToolRuntime`, reads what it returns, times retries."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import random
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import Runtime
from langgraph.types import Command, Send
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from graph_agent.base._compat import InjectedArguments, as_tool_output, config_parameter
from graph_agent.base._internal.sync_bridge import call_in_thread, is_cancelled
from graph_agent.base._internal.text import as_text, clean, decode, text_of, to_json_safe
from graph_agent.base._internal.validation_text import explain
from graph_agent.base.errors import CallError, ConfigError
from graph_agent.base.history.call_events import CallResult, Handoff, as_json, structured_content
from graph_agent.base.history.events import NOT_RUN, SUCCESSES, ResultStatus
from graph_agent.base.input_messages import CONTEXT_MARK
from graph_agent.base.settings.config import user_context
from graph_agent.base.types import Call
from graph_agent.core.extensions.output import textless_fault, textless_in
from graph_agent.core.state.custom_state import NO_OWN_FIELDS, RESERVED, CustomState
from graph_agent.core.state.messages import first_unplain

_OF_ANOTHER_AGENT = ("status", "stop_reason", "structured_response")
"""Fields in the output of an agent of this package, which a tool may give on as a whole; they are not written."""


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The effects that the `Command`s of a call may have."""

    own: CustomState = NO_OWN_FIELDS
    nested: bool = False
    """Whether the agent runs as a node of another graph."""

    @classmethod
    def of(cls, own: CustomState, config: RunnableConfig) -> CommandScope:
        """Return the scope of a task of an agent with these own state fields."""
        return cls(own, "|" in config.get("configurable", {}).get("checkpoint_ns", ""))


NO_COMMANDS = CommandScope()


@dataclass(slots=True)
class CommandEffects:
    """The effects of the messages and commands that one call returned."""

    result: ToolMessage | None = None
    """The message that answers the call; None if there is none yet."""
    writes: list[tuple[str, Any]] = field(default_factory=list)
    messages: list[AnyMessage] = field(default_factory=list)
    goto: list[Any] = field(default_factory=list)
    parent_update: list[tuple[str, Any]] = field(default_factory=list)
    hands_off: bool = False
    refused: list[str] = field(default_factory=list)
    """Requested changes that are not allowed, each as a clause for the error message."""

    @classmethod
    def read(cls, returned: Any, call: Call, scope: CommandScope) -> CommandEffects:
        """Return the effects of what a call returned: its result message, state writes, further messages and a handoff.

        The first `ToolMessage` for the call is the result. Messages of the user and the system are further messages,
        those of the user marked as context. Any other message or object, and a change that `scope` does not allow, adds
        a text to `refused`; if there is any, the other effects must not be used. A handoff without a `ToolMessage` for
        the call gets a result text. Fields of the agent itself are skipped in the update of a handoff, and in other
        updates `status`, `stop_reason` and `structured_response`.
        """
        effects = cls()
        for item in returned if isinstance(returned, list) else [returned]:
            if not isinstance(item, Command):
                effects._add_message(item, call)
            elif item.graph == Command.PARENT:
                effects._add_handoff(item, call, scope)
            else:
                effects._add_update(item, call, scope)
        return effects

    def _add_message(self, message: Any, call: Call) -> None:
        if isinstance(message, ToolMessage):
            if self.result is None and message.tool_call_id == call["id"]:
                self.result = message
                return
        elif isinstance(message, HumanMessage | SystemMessage):
            if isinstance(message, HumanMessage):
                marks = {**message.additional_kwargs, CONTEXT_MARK: True}
                message = message.model_copy(update={"additional_kwargs": marks})
            self.messages.append(message)
            return
        self.refused.append(f"it adds an object of type {type(message).__name__}")

    def _add_update(self, command: Command[Any], call: Call, scope: CommandScope) -> None:
        if command.goto or command.graph is not None:
            self.refused.append("it has a `goto`")
        for name, value in _pairs(command.update):
            if name == "messages":
                for message in value if isinstance(value, list) else [value]:
                    self._add_message(message, call)
            elif name in _OF_ANOTHER_AGENT:
                continue
            elif (fault := scope.own.fault(name, value)) is not None:
                self.refused.append(fault)
            else:
                self.writes.append((name, value))

    def _add_handoff(self, command: Command[Any], call: Call, scope: CommandScope) -> None:
        if not scope.nested:
            self.refused.append("it has a `goto` in a parent graph, and this agent runs on its own")
            return
        self.hands_off = True
        targets = command.goto if isinstance(command.goto, Sequence) and not isinstance(command.goto, str) else None
        for target in targets if targets is not None else [command.goto]:
            self.goto.append([target.node, target.arg] if isinstance(target, Send) else target)
        for name, value in _pairs(command.update):
            if name in RESERVED:
                continue  # state given on whole, as handoff tools do; these fields are the agent's own
            if name == "messages":
                for message in reversed(value if isinstance(value, list) else [value]):
                    if isinstance(message, ToolMessage) and message.tool_call_id == call["id"]:
                        self.result = self.result or message
                        break
            if (found := first_unplain(value)) is not None:
                self.refused.append(f"the value of {name!r} for the parent graph ({found[1]} is not plain)")
            self.parent_update.append((name, value))
        if self.result is None:
            nodes = ", ".join(target if isinstance(target, str) else target[0] for target in self.goto)
            self.result = ToolMessage(f"Handed off to {nodes or 'the parent graph'}.", tool_call_id=call["id"])

    @property
    def handoff(self) -> Handoff | None:
        """The command to the parent graph in plain types; None if there is none."""
        return {"goto": self.goto, "update": self.parent_update} if self.hands_off else None

    def fields(self) -> dict[str, Any]:
        """Return the effects as arguments of `CallResult`: `writes`, `messages` and `handoff`."""
        return {"writes": tuple(self.writes), "messages": tuple(self.messages), "handoff": self.handoff}


def parent_command(handoffs: Sequence[Handoff]) -> Command[Any]:
    """Return one command to the parent graph with the targets and updates of all handoffs of a wave, in call order."""
    goto = [
        Send(*target) if isinstance(target, list | tuple) else target for each in handoffs for target in each["goto"]
    ]
    update = [(name, value) for each in handoffs for name, value in each["update"]]
    return Command(graph=Command.PARENT, update=update, goto=goto)


def as_command(message: ToolMessage, output: CallResult) -> ToolMessage | Command[Any]:
    """Return a call's result for middleware: the message, a command if there are effects beyond it, or for a handoff
    the command to the parent graph.

    The command's `update` is a dict, but a list of pairs if a field was written several times.
    """
    if output.handoff is not None:
        return parent_command([output.handoff])
    if not output.writes and not output.messages:
        return message
    update = [*output.writes, ("messages", [message, *output.messages])]
    # A dict, which middleware may expect, has one value for each field.
    by_name = dict(update)
    return Command(update=by_name if len(by_name) == len(update) else update)


def _pairs(update: Any) -> list[tuple[str, Any]]:
    if isinstance(update, Mapping):
        return list(update.items())
    if isinstance(update, list | tuple):
        return [(name, value) for name, value in update]
    return [] if update is None else [(name, value) for name, value in vars(update).items()]


@dataclass(slots=True)
class ReturnValue:
    """What one attempt to run a tool has returned, filled while it runs after `record_return_value`."""

    value: Any = None
    is_known: bool = False
    """Whether the tool has returned, so that `value` is set."""
    has_begun: bool = False
    """Whether the tool's own code has begun, so that its arguments were accepted."""


_current: ContextVar[ReturnValue | None] = ContextVar("graph_agent_returned", default=None)


def record_return_value(returned: ReturnValue) -> None:
    """Fill `returned` with the return value of the next tool that an `Invoker` runs in the current context, which must
    be the call's own."""
    _current.set(returned)


class Invoker:
    """Calls one tool by the shortest path with the behaviour of `tool.ainvoke`.

    A blocking tool runs in a daemon thread. A coroutine is awaited directly if no callback handler is registered,
    because `ainvoke` inspects its signature and prepares callbacks at each call.
    """

    def __init__(self, tool: BaseTool, injected: InjectedArguments) -> None:
        self._tool = _with_recording(_with_shallow_schema(tool, injected))
        self._blocking = _is_blocking(tool)
        self._direct = _Direct(tool) if isinstance(tool, StructuredTool) and _is_plain(tool) else None

    async def __call__(self, arguments: dict[str, Any], call_id: str, config: RunnableConfig) -> Any:
        """Run the tool with the model's arguments and the injected ones; return text, a `ToolMessage` or `Command`, or
        a list of messages and commands that the tool created.

        Raises the tool's exception, `ValidationError` for arguments that do not fit, or `TypeError` if the tool's
        function returned a coroutine or a generator.
        """
        if self._direct is not None and not _has_callbacks(config):
            return await self._direct(arguments, call_id, config)
        tool = self._tool
        request = {"type": "tool_call", "id": call_id, "name": tool.name, "args": arguments}
        # LangChain's executor would keep the process alive until a stopped call returns.
        if self._blocking:
            return await call_in_thread(tool.invoke, request)
        try:
            return await tool.ainvoke(request)
        except _ExitedError as exited:
            raise exited.error from None


class _ExitedError(Exception):
    """Carries the `SystemExit` of a coroutine out of the task that LangChain runs it in, with its text."""

    def __init__(self, error: SystemExit) -> None:
        super().__init__(*error.args)
        self.error = error


class _Direct:
    """Calls a tool's coroutine with the arguments validated by its schema."""

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
        # Injected by the framework and absent from the schema, such as a ToolRuntime.
        self._extra_parameters = [
            name for name in inspect.signature(self._coroutine).parameters if name not in self._fields
        ]

    async def __call__(self, arguments: dict[str, Any], call_id: str, config: RunnableConfig) -> Any:
        valid = self._schema.model_validate(arguments | dict.fromkeys(self._call_id_fields, call_id))
        kwargs = {name: getattr(valid, name) for name in self._fields}
        for name in self._extra_parameters:
            if name in arguments:
                kwargs[name] = arguments[name]
        if self._config_parameter:
            kwargs[self._config_parameter] = config
        _record_begin()
        returned = await self._coroutine(**kwargs)
        _record(returned)
        if isinstance(returned, str):
            return returned
        return as_tool_output(returned, None, self._tool, call_id)


_UNRUN = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
"""Types of return values whose code has not run."""


def _record(value: Any) -> None:
    """Store the return value of the running tool, if `record_return_value` was called.

    Raises `TypeError` for a coroutine or a generator: the code of the tool has not run, or not to its end.
    """
    if isinstance(value, _UNRUN):
        if isinstance(value, types.CoroutineType):
            value.close()  # else Python warns that it was never awaited
        raise TypeError(
            f"its function returned a value of type {type(value).__name__}, whose code has not run; await a coroutine, "
            "and return the items of a generator as a list"
        )
    if (returned := _current.get()) is not None:
        returned.value, returned.is_known = value, True


def _record_begin() -> None:
    """Store that the code of the running tool has begun, if `record_return_value` was called."""
    if (returned := _current.get()) is not None:
        returned.has_begun = True


def _with_recording(tool: BaseTool) -> BaseTool:
    """Return a copy of a tool that records its begin and its return values; its methods still run on the original tool.

    A message holds only the text of a return value, in which the text `123` and the number 123 are equal.
    """
    has_artifact = tool.response_format == "content_and_artifact"

    def store(value: Any) -> None:
        _record(value[0] if has_artifact and isinstance(value, tuple) and value else value)

    def recording_run(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            _record_begin()
            value = run(*args, **kwargs)
            store(value)
            return value

        return wrapped

    def recording_arun(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            _record_begin()
            try:
                value = await run(*args, **kwargs)
            except SystemExit as error:
                # Raised in a task, it would end the event loop with all its runs.
                raise _ExitedError(error) from error
            store(value)
            return value

        return wrapped

    clone = copy.copy(tool)
    # pydantic rejects attributes that are not fields.
    object.__setattr__(clone, "_run", recording_run(tool._run))
    object.__setattr__(clone, "_arun", recording_arun(tool._arun))
    return clone


def _with_shallow_schema(tool: BaseTool, injected: InjectedArguments) -> BaseTool:
    """Return a copy of the tool whose schema does not serialize injected arguments; the tool itself if its schema is no
    pydantic class, or has none of them.

    LangChain dumps validated arguments only to get their names. The dump of a `ToolRuntime` warns about each value
    whose type differs from the declared one, and serializes the whole history in its state.
    """
    schema = tool.args_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return tool
    if injected.hidden.isdisjoint(schema.model_fields):
        return tool
    body = {"__module__": schema.__module__, "__doc__": schema.__doc__, "model_dump": _shallow_dump}
    # Validation errors contain the schema's name, so it stays the same.
    shallow = cast("Any", type(schema))(schema.__name__, (schema,), body)
    made = tool.model_copy(update={"args_schema": shallow})
    # Both objects share the tool's private attributes, which may change between calls.
    object.__setattr__(made, "__pydantic_private__", tool.__pydantic_private__)
    return made


def _shallow_dump(arguments: BaseModel, **_: Any) -> dict[str, Any]:
    fields = type(arguments).model_fields.items()
    return {
        **{name: getattr(arguments, name) for name, field in fields if not field.exclude},
        **(arguments.model_extra or {}),
    }


def _is_plain(tool: StructuredTool) -> bool:
    """Whether `ainvoke` would only validate the arguments, add the config, and return the awaited result."""
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


def _has_callbacks(config: RunnableConfig) -> bool:
    callbacks = config.get("callbacks")
    return bool(callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks)


def tool_runtime(
    call_id: str, state: Any, config: RunnableConfig, runtime: Runtime[Any], tools: Iterable[BaseTool]
) -> ToolRuntime[Any, Any]:
    """Return a call's `ToolRuntime`, which LangGraph defines, for the tool and for middleware; it has all of the
    agent's tools."""
    return ToolRuntime(
        state=state,
        tool_call_id=call_id,
        config=config,
        context=user_context(runtime.context),
        store=runtime.store,
        stream_writer=runtime.stream_writer,
        tools=list(tools),
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )


def belongs_to_run(error: BaseException) -> bool:
    """Whether an exception raised by a call must propagate to the run instead of becoming the call's error result.

    A `GraphBubbleUp` such as an interrupt, a cancellation of the task, Ctrl-C and `GeneratorExit` propagate. Any other
    exception is the call's failure, including `SystemExit` and a `CancelledError` without a cancellation of the task.
    """
    if isinstance(error, asyncio.CancelledError):
        return is_cancelled(asyncio.current_task())
    return isinstance(error, GraphBubbleUp | KeyboardInterrupt | GeneratorExit)


def read_output(
    returned: Any, call: Call, given: ReturnValue | None = None, *, scope: CommandScope = NO_COMMANDS
) -> CallResult:
    """Convert what a tool returned, text, or a message for its call (alone, in a `Command` or in a list), to a result.

    A command may also, within its scope, write own state fields, add messages of the user or the system, which follow
    the results of the wave, and go to a node of a parent graph. Without a message for the call, and if anything else is
    requested, such as a result of another call, the result is an error without effects. It is an error with them if the
    value's text is only a memory address. `given` is what the tool's own code returned, if recorded; a value that is no
    text is stored as JSON. Raises `ValueError` for content blocks or an artifact that are nested too deeply.
    """
    if isinstance(returned, str):
        return CallResult(clean(returned))
    effects = CommandEffects.read(returned, call, scope)
    if effects.refused:
        return CallResult(
            f"The tool ran, but this agent does not allow the changes it requested: {'; '.join(effects.refused)}.",
            "error",
        )
    found = effects.result
    if found is None:
        return CallResult(f"{call['name']} returned no message for this call; its result is not known.", "error")
    value = given.value if given is not None and given.is_known else found
    # Read first: `textless_in` consumes the iterators inside the value.
    content, text = _content(found.content), _json_text(given, found)
    if kind := textless_in(value, found.content):
        return CallResult(textless_fault(call["name"], kind), "error", **effects.fields())
    artifact = None if found.artifact is None else to_json_safe(found.artifact)
    stored = structured_content(content if text is None else text, artifact)
    if text is None:
        status: ResultStatus = "error" if found.status == "error" else "success"
        return CallResult(content, status, artifact=artifact, stored=stored, **effects.fields())
    return CallResult(text, artifact=artifact, stored=stored or {"encoding": "json"}, **effects.fields())


def _json_text(given: ReturnValue | None, found: ToolMessage) -> str | None:
    """Return a tool's return value as JSON; None if it is text, unknown, cannot be converted, or has a `ToolMessage` or
    `Command`, or if the message has content blocks.
    """
    if given is None or not given.is_known or isinstance(_content(found.content), list):
        return None
    items = given.value if isinstance(given.value, list) else [given.value]
    if isinstance(given.value, str) or any(isinstance(item, ToolMessage | Command) for item in items):
        return None
    return as_json(given.value)


def with_value_of(outputs: Sequence[CallResult], output: CallResult) -> CallResult:
    """Return the output of middleware with the status and the value (`stored`) of the call's own result among
    `outputs`.

    Both stay if content and artifact are unchanged, unless the middleware changed success to error or back, or if it
    returns an error for a call that did not run or may have run. Changed content gets its value from the content alone,
    so that removed text does not reappear. Any other output is returned as it is.
    """
    for ran in reversed(outputs):
        if (ran.content, ran.artifact) == (output.content, output.artifact):
            # A message has only two statuses.
            same = (ran.status in SUCCESSES) == (output.status == "success")
            return replace(output, stored=ran.stored, status=ran.status if same else output.status)
    if outputs and output.status == "error" and (newest := outputs[-1]).status in {"unknown", *NOT_RUN}:
        # Another text does not change whether the tool has run.
        return replace(output, status=newest.status, stored=newest.stored)
    if not any(ran.stored and ran.artifact == output.artifact for ran in outputs):
        return output
    is_json = decode(text_of(output.content)) is not None
    return replace(output, stored={"encoding": "json"} if is_json else {})


def _content(content: str | list[Any]) -> str | list[Any]:
    """Return a message's content without characters that JSON cannot hold; a list of strings becomes text."""
    if isinstance(content, list) and any(isinstance(block, dict) for block in content):
        blocks: list[Any] = to_json_safe(content)
        return blocks
    return as_text(content)


class ToolRetry(BaseModel):
    """The retry policy for a tool that raises an exception.

    Invalid arguments and errors returned by the tool itself are not retried. A call that was stopped at its time limit,
    or lost its MCP server, may have taken effect: it is retried only if the tool reads or is marked as idempotent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    max_attempts: int = Field(default=1, ge=1)
    """Total attempts, including the first."""
    initial_interval: NonNegativeFloat = 0.5
    """Seconds before the second attempt."""
    backoff_factor: float = Field(default=2.0, ge=1)
    """Factor by which each further wait is longer than the one before."""
    max_interval: NonNegativeFloat = 128.0
    """Maximum wait in seconds."""
    jitter: bool = True
    """Whether each wait is a random value between half and all of its length."""

    @classmethod
    def of(cls, tool: str, marks: Mapping[str, Any]) -> Self:
        """Return the policy in a tool's mark `retry`, or the default; raise `ConfigError` for an invalid mark."""
        given = marks.get("retry")
        if given is None:
            return cls()
        where = f"The tool {tool!r}: retry"
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where}={given!r}: write a mapping, such as {{'max_attempts': 2}}.")
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError(explain(error, where, cls)) from None

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait after attempt `attempt` (from 1): `initial_interval`, times `backoff_factor` for
        each attempt before, `max_interval` at most. With `jitter`, times a random factor between 0.5 and 1.
        """
        longest = min(self.initial_interval, self.max_interval)
        for _ in range(attempt - 1):
            longest = min(longest * self.backoff_factor, self.max_interval)
        return longest * random.uniform(0.5, 1) if self.jitter else longest

    def again(self, error: BaseException, attempt: int, *, cut_off: bool, marks: Mapping[str, Any]) -> bool:
        """Whether to retry after failed attempt `attempt` (from 1), which raised `error`; never after a `CallError`.

        A `cut_off` attempt (by a time limit or a lost server) is repeated only if the tool reads or is idempotent.
        """
        if attempt >= self.max_attempts or isinstance(error, CallError) or not isinstance(error, Exception):
            return False
        return not cut_off or marks.get("effect") == "read" or marks.get("idempotent") is True


def after_attempts(text: str, attempts: int) -> str:
    """Return the text of the last failure, with ` (after 3 attempts)` before its period if there were several."""
    return text if attempts == 1 else f"{text.removesuffix('.')} (after {attempts} attempts)."
