"""Runs recorded inputs again: with a script in place of the model, and recorded results in place of the tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import ANY

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, ConfigDict, create_model, model_validator

from graph_agent.base._internal.text import visible_json
from graph_agent.base.approvals.requests import HeldCall
from graph_agent.base.calls import canonical_arguments, delegate_name, is_delegation
from graph_agent.base.errors import ScriptError
from graph_agent.base.history.events import SUCCESSES
from graph_agent.base.settings.config import LoopConfig
from graph_agent.core.extensions.delegation import Delegation, DelegationResult
from graph_agent.devtools.json_values import ABSENT, value_differences
from graph_agent.devtools.playback import Playback
from graph_agent.devtools.recording import RecordedCall, RecordedInput, read_recording
from graph_agent.devtools.script import ReplyContent, Result, Script, ScriptItem
from graph_agent.devtools.stand_ins import RecordedModel, rebuild
from graph_agent.session.agent import create_graph_agent
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from graph_agent.session.compiled import CompiledAgentGraph


class Steps(dict[int, dict[str, Any]]):
    """Step → call id → what a test compares of the call. The order of the calls of a step does not matter."""

    def explain_difference(self, expected: Any) -> list[str]:
        """Return the differences from expected values, one line each, with step, call and JSON path.

        pytest shows them in a failed assertion. Values that are no mapping give one line with both.
        """
        if not isinstance(expected, Mapping):
            return [f"expected {expected!r}, got {dict(self)!r}"]
        return [
            f"step {step}, call {id_!r} {found.path}: expected {_shown(found.recorded)}, got {_shown(found.now)}"
            for step in sorted({*self, *expected})
            for id_ in dict.fromkeys([*(expected.get(step) or ()), *self.get(step, ())])
            for found in value_differences(*(_labelled(steps.get(step), id_) for steps in (expected, self)))
        ]


def _labelled(calls: Mapping[str, Any] | None, id_: str) -> Any:
    """Return the tuple of a call as `{"name": …, "arguments": …, "status": …}`, as far as it has these items.

    Any other value of the call is returned unchanged; `ABSENT` if there is no call with the id `id_`, or `calls` is
    None.
    """
    value = (calls or {}).get(id_, ABSENT)
    return dict(zip(("name", "arguments", "status"), value, strict=False)) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    """Return a value for a message: as JSON with hidden characters escaped, or the `repr` of `ABSENT` or `ANY`."""
    return repr(value) if value is ABSENT or value is ANY else visible_json(value)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What an input did, in the form that tests compare."""

    recorded: RecordedInput
    """The whole recording of the input."""

    @property
    def calls(self) -> Steps:
        """Step → call id → `(name, arguments)`, with the status as a third item unless the call succeeded.

        The status is None for a call without a result.
        """
        found = Steps()
        for step, each in self.recorded.calls:
            status = each.result.status if each.result is not None else None
            shown: tuple[Any, ...] = (each.name, dict(each.arguments))
            found.setdefault(step, {})[each.id] = shown if status in SUCCESSES else (*shown, status)
        return found

    @property
    def results(self) -> Steps:
        """Step → call id → value of the result as plain JSON, or `{"error": TEXT}` for a failure; calls without a
        result are absent.
        """
        found = Steps()
        for step, each in self.recorded.calls:
            if each.result is not None:
                found.setdefault(step, {})[each.id] = value_of_result(each)
        return found

    @property
    def answer(self) -> str:
        """Text of the answer; empty while there is none."""
        return self.recorded.answer

    @property
    def status(self) -> str:
        """Status of the session at the end of the input, such as `COMPLETED`; `RUNNING` while it waits for a person."""
        return self.recorded.status.value

    @property
    def stop_reason(self) -> str | None:
        """Why the input stopped, such as `completed`; None while it waits for a person."""
        return self.recorded.stop_reason

    @property
    def usage(self) -> Mapping[str, int]:
        """Numbers of tokens and model calls, those of delegates included; without the cost."""
        return {name: count for name, count in self.recorded.usage.items() if name != "cost"}  # type: ignore[misc]  # all counts are integers


def value_of_result(each: RecordedCall) -> Any:
    """Return the value of a call's result as tests compare it: plain JSON, or `{"error": TEXT}`. The call has a
    result.
    """
    assert each.result is not None
    return each.result.value if each.result.status in SUCCESSES else {"error": each.result.content}


class RecordedSession:
    """A session in memory whose model, tools and delegates answer as recorded; a context manager.

    At the end of its block, `ScriptError` is raised if a reply was not used, unless the block raises. Blocking; not for
    use in a running event loop.

    Args:
        replies: The script: `reply`, `plan`, `steer`, `stop` and `fail`, in order, for all inputs.
        results: The recorded results.
        agent: The agent: a compiled graph, or the path of an agent file. Its prompts, hooks and configuration are used;
            its model, tools, MCP servers and delegates are not. None for an agent of stub tools.
        tools: Tool name → JSON schema of its arguments, `{}` for any, in addition to those of the agent.
        config: Fields of `LoopConfig`, in addition to those of the agent.
        reads: Names of the tools among `tools` that only read.
        return_direct: Names of the tools among `tools` whose result is the answer.
        hooks: Whether the hooks and the middleware of the agent are used.
        recursion_limit: LangGraph's limit of supersteps; None for its default.
    """

    def __init__(
        self,
        replies: Sequence[ScriptItem],
        results: Sequence[Result] = (),
        *,
        agent: CompiledStateGraph[Any, Any, Any, Any] | str | Path | None = None,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        config: Mapping[str, Any] | None = None,
        reads: Sequence[str] = (),
        return_direct: Sequence[str] = (),
        hooks: bool = True,
        recursion_limit: int | None = None,
    ) -> None:
        self._script = Script(replies, results)
        self._playback = Playback(self._script)
        self._given = agent
        self._tools = dict(tools or {})
        self._config = dict(config or {})
        self._reads, self._return_direct = reads, return_direct
        self._has_hooks = hooks
        self._limit = recursion_limit
        self._saver = InMemorySaver()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._playback.clock())
        # Each method runs an event loop of its own, so that a test is a plain function.
        self._playback.session = Session(asyncio.run(self._build()), "recorded")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()
        # An exception of the block explains the unused replies better.
        if kind is None and (left := self._playback.left):
            raise ScriptError(
                f"The script has {len(self._script.items)} entries, and the last {len(left)} were not asked for. "
                "Remove what is not needed, or find out why the run ended early."
            )

    def run(self, *contents: ReplyContent, approvals: Mapping[str, Any] | None = None) -> RecordedRun:
        """Run one input to its end, or until it waits for a person without a decision, and return what it did.

        Args:
            contents: The user's messages, usually one text.
            approvals: Call id → the decision on it, made with `graph_agent.approvals`; a list of them if it was asked
                about several times.

        Raises:
            AssertionError: If a call has no recorded result; with its step, its id and the JSON path of the difference.
            ScriptError: If the model is asked for a reply that is not in the script.
        """
        return asyncio.run(self._run(contents, approvals or {}))

    def abort(self) -> RecordedRun:
        """Abort the input that waits for a person, and return what it did; blocks."""

        async def abort() -> RecordedRun:
            """Abort the session's run, and return the newest input as it was recorded."""
            await self._session.abort()
            return await self._recorded()

        return asyncio.run(abort())

    @property
    def _session(self) -> Session:
        """The session, which exists within the block."""
        assert self._playback.session is not None, "use it in a `with` statement"
        return self._playback.session

    async def _run(self, contents: Sequence[ReplyContent], approvals: Mapping[str, Any]) -> RecordedRun:
        """Run one input to its end, and return what it did.

        `approvals` are call id → decision, or a list of decisions for the questions in order; a call without one keeps
        waiting. Raises `AssertionError` if a call has no recorded result, and `ScriptError` if the model was asked for
        a reply that the script does not have.
        """
        left = {id_: [*given] if isinstance(given, list) else [given] for id_, given in approvals.items()}

        def decide(call: HeldCall) -> Any:
            """Return the next decision on a call; None if there is none left."""
            return left[call["id"]].pop(0) if left.get(call["id"]) else None

        await self._playback.play(contents, decide)
        if (fault := self._playback.fault) is not None and fault.name:
            raise AssertionError(fault.text)
        if fault is not None:
            raise ScriptError(
                f"The script has {len(self._script.items)} entries, and the model was asked once more, in step "
                f"{self._playback.step + 1}. Add a reply, or find out why."
            )
        return await self._recorded()

    async def _recorded(self) -> RecordedRun:
        """Read the session from its saver, and return its newest input; `InputError` if it has none."""
        return RecordedRun((await read_recording(self._saver, self._session.id)).input(-1))

    async def _build(self) -> CompiledAgentGraph:
        """Build the agent with recorded models and calls; a given agent is unchanged.

        Tools and delegates that the script has results of and that the agent lacks are added as stubs. Without recorded
        hooks, the agent's hooks and middleware are left out. The agent's recursion limit applies.
        """
        graph = await self._agent()
        arguments = dict(graph.builder.arguments)
        config: LoopConfig = arguments.get("config") or LoopConfig()
        arguments["config"] = config.with_values(self._config)
        # A tool that the agent has lost since the recording gets a stub, so that the test shows the difference, not an
        # error.
        names = [*self._tools, *dict.fromkeys(each.name for each in self._script.results)]
        # A tool may be a plain function, which has no `name`.
        known = {getattr(tool, "name", getattr(tool, "__name__", "")) for tool in arguments.get("tools") or ()}
        known |= {tool.name for tool in memory.tools} if (memory := arguments.get("memory")) else set()
        delegates = {delegate.name for delegate in arguments.get("delegates") or ()}
        stubs = [self._stub(name) for name in dict.fromkeys(names) if name not in known and not is_delegation(name)]
        missing = [delegate_name(name) for name in dict.fromkeys(names) if is_delegation(name)]
        arguments["tools"] = [*(arguments.get("tools") or ()), *stubs]
        arguments["delegates"] = [
            *(arguments.get("delegates") or ()),
            *(_StubDelegate(name) for name in missing if name not in delegates),
        ]
        if not self._has_hooks:
            arguments |= {"hooks": (), "middleware": ()}
        given, graph.builder.arguments = graph.builder.arguments, arguments
        try:
            built = rebuild(graph, playback=self._playback, real={}, checkpointer=self._saver)
        finally:
            graph.builder.arguments = given
        return built if self._limit is None else built.with_config({"recursion_limit": self._limit})

    async def _agent(self) -> CompiledAgentGraph:
        """Return the given agent, opened from its file if it is a path; an agent without tools if none was given."""
        model = RecordedModel(self._playback)
        if self._given is None:
            return create_graph_agent(model, name="recorded")
        if not isinstance(self._given, str | Path):
            return self._given  # type: ignore[return-value]  # `rebuild` refuses another graph
        from graph_agent.agent_file.factory import open_parts
        from graph_agent.agent_file.spec import load_spec

        async with open_parts(load_spec(Path(self._given), environment={}), model) as graph:
            return graph

    def _stub(self, name: str) -> BaseTool:
        """Return a tool of a name that checks its arguments, and whose results come from the script."""

        async def run(**_: Any) -> str:
            """Raise `AssertionError`: it is never called, because the playback replaces the tool."""
            raise AssertionError("a stub never runs")

        schema: Any = {"type": "object", "properties": {}, **self._tools.get(name, {})}
        marks = {"effect": "read"} if name in self._reads else {}
        return StructuredTool(
            name=name,
            description=f"Recorded results of {name}.",
            args_schema=self._refusing(name) or schema,
            coroutine=run,
            metadata=marks,
            return_direct=name in self._return_direct,
        )

    def _refusing(self, name: str) -> type[BaseModel] | None:
        """Return a schema that refuses the arguments that the results of a tool record as invalid.

        It accepts all other arguments. None if no result of the tool is `invalid`.
        """
        refused = {
            canonical_arguments(each.arguments): str(each.result.content)
            for each in self._script.results
            if each.name == name and each.result.status == "invalid"
        }

        def check(given: Any) -> Any:
            """Raise `ValueError` with the recorded text for arguments that are refused."""
            if (text := refused.get(canonical_arguments(given))) is not None:
                raise ValueError(text)
            return given

        if not refused:
            return None
        # The framework writes the result of invalid arguments itself, so the stub must refuse them in its schema.
        validators: Any = {"check": model_validator(mode="before")(check)}
        return create_model(name, __config__=ConfigDict(extra="allow"), __validators__=validators)


@dataclass(frozen=True, slots=True)
class _StubDelegate:
    """A delegate with recorded answers only."""

    name: str
    description: str = "Recorded answers."

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Raise `AssertionError`: it is never called, because the playback replaces the delegate."""
        raise AssertionError("a stub never runs")
