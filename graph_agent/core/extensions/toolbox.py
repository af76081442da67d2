"""Holds the tools and delegates of one agent by name, and validates the calls that a person decides on.

A delegate is another agent that this one hands tasks to. Marks are the entries of a tool's `metadata` that this package
reads, such as `effect` (`read` or `write`) and `timeout_s`.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from pydantic import BaseModel, ValidationError

from graph_agent.base._compat import InjectedArguments, read_state
from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.validation_text import explain
from graph_agent.base.calls import delegation_name, is_delegation
from graph_agent.base.delegate_tasks import RemoteTask
from graph_agent.base.errors import ConfigError, ToolArgumentsError, UnknownToolError, did_you_mean
from graph_agent.base.types import Call
from graph_agent.core.extensions.argument_checks import (
    ArgumentsCheck,
    check_finite,
    check_schema,
    openai_schema,
    schema_check,
)
from graph_agent.core.extensions.client_tools import bare_schema
from graph_agent.core.extensions.delegation import AskingDelegate, Delegate, LateDelegate
from graph_agent.core.extensions.invoke import Invoker, ToolRetry, tool_runtime
from graph_agent.core.extensions.output import misfit_text
from graph_agent.core.state.custom_state import NO_OWN_FIELDS, CustomState
from graph_agent.models.client import ToolSchemas
from graph_agent.models.prompts import Prompts

logger = get_logger("graph_agent.tools.toolbox")
_WITHDRAWAL_S = 10.0
"""Seconds in which delegates must have cancelled their waiting tasks."""


_IN_BACKGROUND = "True to go on at once; the result follows as a notice."
"""Description of a delegate's parameter `background`, for the model."""


def delegate_schema(call_name: str, delegate: Delegate, prompts: Prompts) -> dict[str, Any]:
    """Return the function schema, in OpenAI's format, by which a delegate is offered to the model.

    It has the parameter `task`, and `background` if the delegate can go on while the agent continues.

    Args:
        call_name: Name of the function, `delegate_to_<name>`.
        prompts: Renders the description with the delegate's name and description.
    """
    properties = {"task": {"type": "string", "description": "The task, complete in itself."}}
    if getattr(delegate, "background", False):
        properties["background"] = {"type": "boolean", "description": _IN_BACKGROUND}
    return {
        "type": "function",
        "function": {
            "name": call_name,
            "description": prompts.render("delegate", name=delegate.name, description=delegate.description),
            "parameters": {"type": "object", "properties": properties, "required": ["task"]},
        },
    }


_DELEGATE_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")


class ToolSource(Protocol):
    """A list of tools that may change while the agent runs, such as those of an MCP server."""

    version: int
    """Number of changes of the list so far."""
    lists_change: bool
    """Whether the source may announce changes of its list."""

    @property
    def pending(self) -> bool:
        """Whether a change was announced that the list does not contain yet."""
        ...

    async def wait_for_changes(self) -> None:
        """Wait until announced changes are in the list, for a few seconds at most; no error if they are not."""

    def __iter__(self) -> Iterator[BaseTool]:
        """Iterate over the tools that the list has now."""
        ...


class LiveTools:
    """The tools given to an agent, updated from the sources (such as MCP servers) that some of them come from.

    If all present tools of a source were given, tools that it adds later are included. If only some were, their names
    stay fixed, and only their definitions are updated.
    """

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        found: dict[int, Any] = {
            id(source): source for tool in tools if (source := getattr(tool, "source", None)) is not None
        }
        self.sources: list[ToolSource] = list(found.values())
        given = {id(tool) for tool in tools}
        self._chosen = [
            None if all(id(tool) in given for tool in source) else {tool.name for tool in source if id(tool) in given}
            for source in self.sources
        ]
        """For each source, the names of the tools given; None if all were given, so that later ones are included."""
        followed = {id(tool) for source in self.sources for tool in source}
        # A copy that the user has changed is none of its source's tools.
        self._fixed = [tool for tool in tools if id(tool) not in followed]
        self.lists_change = any(source.lists_change for source in self.sources)
        """Whether a source announces changes, which may add tools that write."""

    @property
    def versions(self) -> tuple[int, ...]:
        """The version of each source, in order; the tuple differs after any change."""
        return tuple(source.version for source in self.sources)

    @property
    def pending(self) -> bool:
        """Whether an announced change of a source is not yet in the source's list."""
        return any(source.pending for source in self.sources)

    async def wait_for_changes(self) -> None:
        """Wait until the announced changes of all sources are in their lists, for a few seconds at most."""
        await asyncio.gather(*(source.wait_for_changes() for source in self.sources if source.pending))

    def current(self, taken: Collection[str]) -> list[BaseTool]:
        """Return the present tools: those without a source first, then those of each source.

        Of a source from which only some tools were given, only these count. A source's tool whose name another tool has
        is left out, with a warning in the log.

        Args:
            taken: Further names that tools of sources must not have.
        """
        tools = {tool.name: tool for tool in self._fixed}
        for source, chosen in zip(self.sources, self._chosen, strict=True):
            for tool in list(source):
                if chosen is not None and tool.name not in chosen:
                    continue
                if tool.name in tools or tool.name in taken:
                    logger.warning("The new tool %r is left out: another one has its name.", tool.name)
                else:
                    tools[tool.name] = tool
        return list(tools.values())


class Toolbox:
    """The tools and delegates that the model may call, by name.

    Copies made by its methods share the underlying tools, so that a copy follows later changes.

    Args:
        tools: The agent's tools.
        delegates: Agents to delegate tasks to, offered as `delegate_to_<name>`.
        prompts: Renders the descriptions of delegates.
        offered: OpenAI schemas of tools that are offered to the model and executed by hooks, not by the toolbox; a
            schema with the name of one of the agent's own tools is left out.
        own: The agent's own state fields, which tools may read and write.

    Raises:
        ConfigError: Two tools or two delegates have one name, a delegate is named like a tool, a name or a mark is
            invalid, or a tool's arguments have no JSON schema.
    """

    def __init__(
        self,
        tools: Sequence[BaseTool],
        delegates: Sequence[Delegate],
        prompts: Prompts,
        offered: Sequence[dict[str, Any]] = (),
        own: CustomState = NO_OWN_FIELDS,
    ) -> None:
        self.own = own
        self._replace: Callable[[BaseTool], BaseTool] = lambda tool: tool
        self.tools: dict[str, BaseTool] = {}
        self.delegates: dict[str, Delegate] = {}
        self._injected: dict[str, InjectedArguments] = {}
        self._invokers: dict[str, Invoker] = {}
        self.retries: dict[str, ToolRetry] = {}
        """Tool name → how often and when a failed call is repeated."""
        self.schema_checks: dict[str, ArgumentsCheck] = {}
        """Tool name → the check of its arguments, for tools that LangChain itself does not check; a check may take
        seconds."""
        for tool in tools:
            if tool.name in self.tools:
                raise ConfigError(f"Two tools are named {tool.name!r}; rename one of them.")
            self._add(tool)
        self._live = LiveTools(list(self.tools.values()))
        self._versions = self._live.versions
        for delegate in delegates:
            call_name = delegation_name(delegate.name)
            if not _DELEGATE_NAME.fullmatch(delegate.name):
                raise ConfigError(
                    f"Delegate name {delegate.name!r} cannot be used; take 1 to 50 letters, digits, '_' or '-'."
                )
            if call_name in self.delegates:
                raise ConfigError(f"Two delegates are named {delegate.name!r}; rename one of them.")
            if delegate.name in self.tools or call_name in self.tools:
                raise ConfigError(f"The delegate {delegate.name!r} is named like a tool; rename one of them.")
            self.delegates[call_name] = delegate
        for name in self.tools:
            if is_delegation(name):
                raise ConfigError(f"The tool name {name!r} is kept for delegations; rename the tool.")
        self.names = [*self.tools, *self.delegates]
        self.return_direct = {name for name, tool in self.tools.items() if tool.return_direct}
        """Names of the tools whose result is the agent's answer."""
        self.client_tools: set[str] = set()
        """Names of the tools that the caller of a run executes."""
        self.withdrawn: set[str] = set()
        """Names of client tools that earlier calls used and the caller no longer offers; only those calls are
        answered."""
        self._made_before: frozenset[str] = frozenset()
        self._client_schemas: list[dict[str, Any]] = []
        reading = all(self.marks(name).get("effect") == "read" for name in self.tools)
        self.may_write = bool(self.delegates) or not reading or self._live.lists_change
        """Whether any call may change something; a tool without the mark `effect` counts as writing, as in MCP."""
        self._prompts = prompts
        self._late = [delegate for delegate in self.delegates.values() if isinstance(delegate, LateDelegate)]
        self._offered_schemas = [schema for schema in offered if schema["function"]["name"] not in self.names]
        self._offered = {schema["function"]["name"] for schema in self._offered_schemas}
        self.names += self._offered
        self._own_tools = self._checked(self.tools.values())
        self.schemas = self._schemas()
        """The schemas offered to the model, in OpenAI's function format."""

    def offering(self, schemas: Sequence[dict[str, Any]]) -> Toolbox:
        """Return a copy that offers these schemas (in OpenAI's function format); it still runs the same calls."""
        other = copy.copy(self)
        other.names = [schema["function"]["name"] for schema in schemas]
        other.schemas = ToolSchemas.of(schemas)
        return other

    def without(self, names: Collection[str]) -> Toolbox:
        """Return a copy that does not offer these names to the model; it can still run the same calls."""
        return self.offering([schema for schema in self.schemas if schema["function"]["name"] not in names])

    def with_tool(self, name: str, tool: BaseTool) -> Toolbox:
        """Return a copy that runs calls of the tool `name` by another tool, which middleware has given.

        The tools offered to the model are unchanged. Raises `ConfigError` for an invalid `retry` mark.
        """
        other = copy.copy(self)
        other._injected, other._invokers, other.retries = {**self._injected}, {**self._invokers}, {**self.retries}
        other.tools, other.schema_checks = {**self.tools}, {**self.schema_checks}
        other._add(tool)
        other.tools[name] = other.tools[tool.name]
        return other

    def replace_tools(self, replace: Callable[[BaseTool], BaseTool]) -> None:
        """Run all calls with replaced tools from now on.

        The schemas offered to the model stay, and sources are no longer followed.

        Args:
            replace: Returns the tool to run in place of the given one, with the same name; also called for tools added
                later.
        """
        self._replace = replace
        for tool in list(self.tools.values()):
            self._add(tool)
        self._live = LiveTools([])
        self._versions = self._live.versions

    def with_client_tools(self, schemas: Sequence[dict[str, Any]], called: Mapping[str, str]) -> Toolbox:
        """Return a copy that also offers client tools, which the caller of a run executes.

        Args:
            schemas: The tools as OpenAI function schemas, with names that no tool of the agent has.
            called: Call id → tool name of the earlier client calls. A tool in it that is not in `schemas` is offered by
                name only, because some providers refuse a history with calls if the request has no tools; a new call of
                it is refused.
        """
        both = copy.copy(self)
        names = [schema["function"]["name"] for schema in schemas]
        both.withdrawn = set(called.values()) - set(names)
        both._made_before = frozenset(called)
        # Withdrawn tools too: some providers refuse a history with calls in a request without tools.
        both._client_schemas = [*schemas, *map(bare_schema, sorted(both.withdrawn))]
        both.client_tools = {*names, *both.withdrawn}
        both.names = [*self.names, *names, *sorted(both.withdrawn)]
        both.schemas = ToolSchemas.of([*self.schemas, *both._client_schemas])
        return both

    @property
    def lists_change(self) -> bool:
        """Whether a source of tools may add tools later."""
        return self._live.lists_change

    @property
    def outdated(self) -> bool:
        """Whether a source of tools has changed, or announced a change, since the last `refresh`."""
        return self._live.pending or self._live.versions != self._versions

    @property
    def needs_refresh(self) -> bool:
        """Whether `refresh` may change the offer: a source is outdated, or a delegate's description is fetched late."""
        # Asked before each request; few agents have sources.
        return bool(self._late) or (bool(self._live.sources) and self.outdated)

    async def refresh(self) -> bool:
        """Take over changed tools of the sources and the current descriptions of delegates; returns whether `schemas`
        changed.

        Waits a few seconds at most. Returns False at once if nothing can have changed.

        Raises:
            ConfigError: A new tool cannot be offered.
        """
        if not self.needs_refresh:
            return False
        await asyncio.gather(self._live.wait_for_changes(), *(delegate.prepare() for delegate in self._late))
        if not self._late and self._live.versions == self._versions:
            return False
        self._take_changes()
        # A toolbox that shares the delegates may have prepared them already.
        before, self.schemas = self.schemas, self._schemas()
        return self.schemas != before

    def _take_changes(self) -> None:
        """Replace the tools and `names` by the current ones of the sources, if a source has changed; `schemas` is not
        updated.

        The mappings are changed in place, because copies of this toolbox share them. Raises `ConfigError` for a tool
        that cannot be offered.
        """
        if self._live.versions == self._versions:
            return
        self._versions = self._live.versions
        current = {tool.name: tool for tool in self._live.current(self.delegates)}
        # Copies of this toolbox share these mappings, and other threads may read them.
        for name in set(self.tools) - set(current):
            del self.tools[name]
        for name, tool in current.items():
            if tool is not self.tools.get(name):
                self._add(tool)
        self._own_tools = self._checked(current.values())
        client = [schema["function"]["name"] for schema in self._client_schemas]
        self.names = [*current, *self.delegates, *self._offered, *client]

    def _checked(self, tools: Iterable[BaseTool]) -> list[BaseTool]:
        """Return the tools as a list; raise `ConfigError` for one whose arguments have no JSON schema."""
        given = list(tools)
        for tool in given:
            check_schema(tool, self._injected[tool.name].hidden)
        return given

    def _add(self, tool: BaseTool) -> None:
        """Register a tool under its name, in place of an earlier one, whose cached invoker and check are dropped; the
        toolbox's replacement function is applied first. Raise `ConfigError` for an invalid `retry` mark.
        """
        tool = self._replace(tool)
        self._injected[tool.name] = InjectedArguments(tool)
        self._invokers.pop(tool.name, None)
        self.schema_checks.pop(tool.name, None)
        if (check := schema_check(tool, self._injected[tool.name].hidden)) is not None:
            self.schema_checks[tool.name] = check
        self.retries[tool.name] = ToolRetry.of(tool.name, tool.metadata or {})
        self.tools[tool.name] = tool

    def invoker(self, name: str) -> Invoker:
        """Return the object that runs a tool's code, created at the first call. `name` must be a tool of the agent."""
        if name not in self._invokers:
            self._invokers[name] = Invoker(self.tools[name], self._injected[name])
        return self._invokers[name]

    async def withdraw(self, tasks: Mapping[str, RemoteTask]) -> None:
        """Ask delegates to cancel tasks that wait for a person, because no answer will come; wait 10 s at most.

        If a delegate takes longer, this is logged. Tasks of unknown delegates, and of delegates that cannot ask a
        person, are skipped. State and events do not change. Exceptions of a delegate are raised.

        Args:
            tasks: Call id → the task.
        """
        withdrawn = []
        for task in tasks.values():
            delegate: Any = self.delegates.get(delegation_name(task["delegate"]))
            # Only such a delegate can have a task that waits for a person.
            if isinstance(delegate, AskingDelegate):
                withdrawn.append(delegate.withdraw(task))
        try:
            async with asyncio.timeout(_WITHDRAWAL_S):
                await asyncio.gather(*withdrawn)
        except TimeoutError:
            logger.warning("A delegate did not withdraw a task that waits for a person within %g s.", _WITHDRAWAL_S)

    def _schemas(self) -> ToolSchemas:
        """Return the schemas of all that is offered: tools, delegates, tools of hooks, client tools. Those of the tools
        are converted when they are first read.
        """
        tools = self._own_tools
        delegates = [delegate_schema(name, each, self._prompts) for name, each in self.delegates.items()]
        others = [*delegates, *self._offered_schemas, *self._client_schemas]
        names = [*(tool.name for tool in tools), *(schema["function"]["name"] for schema in others)]
        return ToolSchemas(names, lambda: [*map(openai_schema, tools), *others])

    def marks(self, name: str) -> dict[str, Any]:
        """Return a tool's marks, e.g. `{"effect": "read", "timeout_s": 5}`; empty for a delegate or an unknown name.

        A client tool, which the program runs outside of the agent, has the marks `{"effect": "read"}`.
        """
        if name in self.client_tools:
            return {"effect": "read"}  # the call is only an interrupt; the client runs the tool
        tool = self.tools.get(name)
        return (tool.metadata or {}) if tool else {}

    def writes(self, name: str) -> bool:
        """Whether a call of this name may change something; False only for tools with the mark `effect` `read`."""
        return self.marks(name).get("effect") != "read"

    def takes_only_arguments(self, name: str) -> bool:
        """Whether a tool of the agent gets nothing but the model's arguments: no state, Store, runtime or call id."""
        injected = self._injected[name]
        return injected.is_empty and not injected.call_ids

    def repeatable(self, name: str) -> bool:
        """Whether a call that may write can run again after a crash without a second effect.

        True for a tool with the mark `idempotent`, and for a delegate that resumes its own work (`resumes`). `name` is
        that of the call.
        """
        if name in self.delegates:
            return bool(getattr(self.delegates[name], "resumes", False))
        return self.marks(name).get("idempotent") is True

    def checked(self, call: Call) -> Call:
        """Return the call, with the reason as its `fault` if it cannot run: unknown name, no task, or unfit arguments.

        A call with a `fault` is returned unchanged. The tool checks its arguments again when it runs.
        """
        if "fault" in call:
            return call
        if (refused := self.refused(call)) is not None:
            return refused
        text = self.arguments_fault(call["name"], call["arguments"]) if call["name"] in self.tools else None
        return call if text is None else {**call, "fault": text}

    def arguments_fault(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """Return why arguments do not fit a tool, as text for the model; None if they fit or cannot be checked here.

        Injected arguments are not checked. A tool that handles its own validation errors is not checked. `name` must be
        a tool of the agent.
        """
        tool = self.tools[name]
        if (check := self.schema_checks.get(name)) is not None:
            return check(arguments)
        schema = tool.args_schema
        if not (isinstance(schema, type) and issubclass(schema, BaseModel)) or tool.handle_validation_error:
            return None
        hidden = self._injected[name].hidden | self._injected[name].call_ids
        try:
            check_finite(tool, arguments)
            schema.model_validate({field: value for field, value in arguments.items() if field not in hidden})
        except ToolArgumentsError as error:
            return str(error)
        except ValidationError as error:
            return misfit_text(tool, error, hidden) or None
        except Exception:  # noqa: BLE001 - a validator of the user may raise anything; the call itself reports it
            return None
        return None

    def refused(self, call: Call) -> Call | None:
        """Return the call with a `fault` if it cannot run whatever its arguments; None if it may run.

        It cannot run if its name is unknown, if it is a new call of a withdrawn tool, if only hooks execute the tool
        (the call is then marked `skipped`, too), or if a delegation has no task. The fault is text for the model; for
        an unknown name, it suggests the nearest known one.
        """
        name = call["name"]
        # A model may repeat a call that it finds in the history.
        if name in self.withdrawn and call["id"] not in self._made_before:
            return {**call, "fault": f"{name} did not run: it is no longer offered. Answer without it."}
        if name in self.client_tools or name in self.tools:
            return None
        if is_delegation(name):
            task = call["arguments"].get("task")
            if name not in self.delegates:
                return {**call, "fault": f"Unknown delegate {name!r}; {did_you_mean(name, self.names)}"}
            if task is None or not str(task).strip():
                return {**call, "fault": f"A delegation takes the task as text: {{'task': '…'}}, not {task!r}."}
            return None
        if name in self._offered:
            return {**call, "fault": f"{name} did not run: no hook executed it.", "skipped": True}
        known = did_you_mean(name, [each for each in self.names if each not in self._offered])
        return {**call, "fault": str(UnknownToolError(f"Unknown tool {name!r}; {known}"))}

    def inject(self, tool: BaseTool, call: Call, config: RunnableConfig, runtime: Runtime[Any]) -> dict[str, Any]:
        """Return the call's arguments with the injected ones added, by the rules of LangGraph's `ToolNode`.

        These are state fields, the Store and the `ToolRuntime` that the tool's parameters are annotated with; values of
        the model for them are discarded. A state field without a value is left out if its parameter has a default.
        Without such parameters, the call's own dict is returned.

        Args:
            tool: The tool.
            call: The call.
            config: The config of the task, from which the state is read.
            runtime: The runtime of the task, which has the Store.

        Raises:
            ToolArgumentsError: A required state field has no value, or the agent has no Store.
        """
        injected = self._injected[tool.name]
        if injected.is_empty:
            return call["arguments"]
        arguments = {name: value for name, value in call["arguments"].items() if name not in injected.hidden}
        state: dict[str, Any] = {}
        if injected.state or injected.runtime:
            wanted = {field for field in injected.state.values() if field}
            everything = injected.runtime is not None or None in injected.state.values()
            state = read_state(config, list(self.own.readable) if everything else sorted(wanted))
        for parameter, field in injected.state.items():
            if field is None:
                arguments[parameter] = state
            elif field in state:
                arguments[parameter] = state[field]
            elif parameter not in injected.optional_state:
                raise ToolArgumentsError(f"The tool {tool.name!r} needs the state field {field!r}, which is not set.")
        if injected.store:
            if runtime.store is None:
                raise ToolArgumentsError(f"The tool {tool.name!r} needs a store, but this agent was built without one.")
            arguments[injected.store] = runtime.store
        if injected.runtime:
            arguments[injected.runtime] = tool_runtime(call["id"], state, config, runtime, list(self.tools.values()))
        return arguments


def edit_fault(toolbox: Toolbox, name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a call that a person wants to run is invalid, as text for the person; None if it can run.

    Unlike `planned_fault`, unknown tools (also client tools) and unknown arguments are faults. A delegation has exactly
    one argument, `task`, a text that is not blank.

    Args:
        toolbox: The agent's tools.
        name: Name of the call.
        arguments: All arguments of the call.
    """
    if name in toolbox.delegates:
        task = arguments.get("task")
        if set(arguments) == {"task"} and isinstance(task, str) and task.strip():
            return None
        return f"{name} takes {{'task': '…'}}, not {arguments!r}."
    tool = toolbox.tools.get(name)
    if tool is None:
        return f"the agent has no tool {name!r}; {did_you_mean(name, [*toolbox.tools, *toolbox.delegates])}"
    return _arguments_fault(toolbox, tool, arguments)


def planned_fault(toolbox: Toolbox, name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a planned call would be refused because of its arguments, as text for the model; None if it may run.

    None also for an unknown name, because middleware may run it, for arguments that cannot be checked before the call,
    and for a delegation with a task of any type.

    Args:
        toolbox: The agent's tools.
        name: Name of the call.
        arguments: All arguments of the call.
    """
    if name in toolbox.delegates:
        # The model's task may be of any type; the delegate gets it as text.
        return None if arguments.get("task") else edit_fault(toolbox, name, arguments)
    # Middleware may have a tool of another name.
    return toolbox.arguments_fault(name, arguments) if name in toolbox.tools else None


def _arguments_fault(toolbox: Toolbox, tool: BaseTool, arguments: dict[str, Any]) -> str | None:
    """Return why a person's arguments do not fit a tool, unknown names included; None if they fit, or if a validator
    raises something else than a validation error. Without a pydantic schema, `arguments_fault` is called."""
    # The schema without injected arguments.
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return toolbox.arguments_fault(tool.name, arguments)
    known = [field.alias or name for name, field in schema.model_fields.items()]
    if schema.model_config.get("extra") != "allow":
        for name in arguments:
            if name not in known and name not in schema.model_fields:
                return f"{tool.name} has no argument {name!r}; {did_you_mean(name, known)}"
    try:
        schema.model_validate(arguments)
        check_finite(tool, arguments)
    except ValidationError as error:
        return explain(error, tool.name, schema)
    except ToolArgumentsError as error:
        return str(error)
    except Exception:  # noqa: BLE001 - a validator of the user may raise anything; the call itself reports it
        return None
    return None
