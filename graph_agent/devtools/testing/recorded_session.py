"""Runs recorded inputs again: with a script in place of the model, and recorded results in place of the tools."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import ANY, patch

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from pydantic import BaseModel, ConfigDict, create_model, model_validator

from graph_agent.base._internal.text import visible_json
from graph_agent.base.errors import ScriptError
from graph_agent.base.settings.config import LoopConfig
from graph_agent.core.approvals.requests import calls_of_request, request_of
from graph_agent.core.delegation import Delegation, DelegationResult
from graph_agent.core.state.events import SUCCESSES
from graph_agent.devtools.testing.input_differences import ABSENT, value_differences
from graph_agent.devtools.testing.recording import RecordedCall, RecordedInput, RecordedResult, read_recording
from graph_agent.devtools.testing.script import Cause, Content, Failure, Reply, Result, ScriptItem, Steering, Stop
from graph_agent.devtools.testing.stand_ins import RecordedCalls, RecordedModel, rebuild
from graph_agent.models.parsing.call import canonical_arguments, delegate_name, is_delegation
from graph_agent.session.agent import create_graph_agent
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    from graph_agent.session.compiled import CompiledAgentGraph

_SLOWER = 50
"""Times that the clock of an input with a deadline is slower than the real one."""
_FAR_S = 1e6
"""Seconds after any deadline."""


class Steps(dict[int, dict[str, Any]]):
    """Step → call id → what is compared of the call. The order of the calls of a step does not matter."""

    def explain_difference(self, expected: Any) -> list[str]:
        """Return the differences to expected values, each with its step, its call and its JSON path."""
        if not isinstance(expected, Mapping):
            return [f"expected {expected!r}, got {dict(self)!r}"]
        return [
            f"step {step}, {where}"
            for step in sorted({*self, *expected})
            for where in _differences(expected.get(step) or {}, self.get(step) or {})
        ]


def _differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    for id_ in dict.fromkeys([*expected, *actual]):
        if id_ not in actual:
            yield f"call {id_!r}: expected {_shown(expected[id_])}, got no call"
        elif id_ not in expected:
            yield f"call {id_!r}: expected no call, got {_shown(actual[id_])}"
        else:
            one, other = (_labelled(each[id_]) for each in (expected, actual))
            for found in value_differences(one, other):
                yield f"call {id_!r} {found.path}: expected {_shown(found.recorded)}, got {_shown(found.now)}"


def _labelled(value: Any) -> Any:
    """Return what is compared of a call in a form whose JSON paths have names."""
    if not isinstance(value, tuple):
        return value
    return dict(zip(("name", "arguments", "status"), value, strict=False))


def _shown(value: Any) -> str:
    return repr(value) if value is ABSENT or value is ANY else visible_json(value)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What an input did, in the form that tests compare."""

    recorded: RecordedInput
    """The whole recording of it."""

    @property
    def calls(self) -> Steps:
        """Step → call id → name and arguments of the call, and its status unless it has a result of use."""
        found = Steps()
        for step, each in self.recorded.calls:
            status = each.result.status if each.result is not None else None
            shown: tuple[Any, ...] = (each.name, dict(each.arguments))
            found.setdefault(step, {})[each.id] = shown if status in SUCCESSES else (*shown, status)
        return found

    @property
    def results(self) -> Steps:
        """Step → call id → the result's value as plain JSON, `{"error": …}` with its text for a failure."""
        found = Steps()
        for step, each in self.recorded.calls:
            if each.result is not None:
                found.setdefault(step, {})[each.id] = value_of_result(each)
        return found

    @property
    def answer(self) -> str:
        """Text of the answer."""
        return self.recorded.answer

    @property
    def status(self) -> str:
        """The session's status at its end."""
        return self.recorded.status.value

    @property
    def stop_reason(self) -> str | None:
        """Why it stopped; None while it waits for a person."""
        return self.recorded.stop_reason

    @property
    def usage(self) -> Mapping[str, int]:
        """Tokens and model calls, those of delegates included."""
        return {name: count for name, count in self.recorded.usage.items() if name != "cost"}  # type: ignore[misc]  # all counts are integers


def value_of_result(each: RecordedCall) -> Any:
    """Return the value of a call's result as tests compare it."""
    assert each.result is not None
    return each.result.value if each.result.status in SUCCESSES else {"error": each.result.content}


class RecordedSession:
    """A session in memory whose model, tools and delegates answer as recorded; a context manager.

    At the end of its block, every reply must have been used.

    Args:
        replies: The script: `reply`, `plan`, `steer`, `stop` and `fail`, in order, for all inputs.
        results: The recorded results.
        agent: The agent: a compiled graph, or the path of an agent file. Its prompts, hooks and configuration are
            used; its model, tools, MCP servers and delegates are not. None for an agent of stub tools.
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
        self._source = _Source(replies, results)
        self._given = agent
        self._tools = dict(tools or {})
        self._config = dict(config or {})
        self._reads, self._return_direct = reads, return_direct
        self._has_hooks = hooks
        self._limit = recursion_limit
        self._saver = InMemorySaver()
        self._graph: CompiledAgentGraph | None = None
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        self._stack.enter_context(self._source.clock())
        self._graph = asyncio.run(self._build())
        self._source.session = Session(self._graph, "recorded")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()
        if kind is None:
            self._source.assert_spent()

    def run(self, *contents: Content, approvals: Mapping[str, Any] | None = None) -> RecordedRun:
        """Run one input to its end, or until it waits for a person without a decision.

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
        """Abort the input that waits for a person."""

        async def abort() -> RecordedRun:
            await self._session.abort()
            return await self._recorded()

        return asyncio.run(abort())

    @property
    def _session(self) -> Session:
        assert self._source.session is not None, "use it in a `with` statement"
        return self._source.session

    async def _run(self, contents: Sequence[Content], approvals: Mapping[str, Any]) -> RecordedRun:
        await self._source.begin()
        left = {id_: [*given] if isinstance(given, list) else [given] for id_, given in approvals.items()}
        try:
            ended = await self._session.run([HumanMessage(each) for each in contents])
            while ended.waiting == "approval":
                answers: dict[str, Any] = {}
                for interrupt in ended.interrupts:
                    request = request_of(interrupt)
                    held = [] if request is None else calls_of_request(request)
                    if decided := {each["id"]: left[each["id"]].pop(0) for each in held if left.get(each["id"])}:
                        answers[interrupt.id] = {"decisions": decided}
                if not answers:
                    break
                ended = await self._session.resume(answers)
        finally:
            self._source.check()
        return await self._recorded()

    async def _recorded(self) -> RecordedRun:
        return RecordedRun((await read_recording(self._saver, self._session.id)).input(-1))

    async def _build(self) -> CompiledAgentGraph:
        graph = await self._agent()
        arguments = dict(graph.builder.arguments)
        config: LoopConfig = arguments.get("config") or LoopConfig()
        arguments["config"] = config.with_values(self._config)
        names = [*self._tools, *dict.fromkeys(each.name for each in self._source.results)]
        known = {getattr(tool, "name", getattr(tool, "__name__", "")) for tool in arguments.get("tools") or ()}
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
        graph.builder.arguments = arguments
        built = rebuild(graph, source=self._source, real={}, checkpointer=self._saver)
        return built if self._limit is None else built.with_config({"recursion_limit": self._limit})

    async def _agent(self) -> CompiledAgentGraph:
        model = RecordedModel(self._source)
        if self._given is None:
            return create_graph_agent(model, name="recorded")
        if not isinstance(self._given, str | Path):
            return self._given  # type: ignore[return-value]  # `rebuild` refuses another graph
        from graph_agent.agent_file.factory import open_parts
        from graph_agent.agent_file.spec import load_spec

        async with open_parts(load_spec(Path(self._given), environment={}), model) as graph:
            return graph

    def _stub(self, name: str) -> BaseTool:
        async def run(**_: Any) -> str:
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
        """Return a schema that refuses the arguments of a tool that are recorded as invalid; None if none are."""
        refused = {
            canonical_arguments(each.arguments): str(each.result.content)
            for each in self._source.results
            if each.name == name and each.result.status == "invalid"
        }

        def check(given: Any) -> Any:
            if (text := refused.get(canonical_arguments(given))) is not None:
                raise ValueError(text)
            return given

        if not refused:
            return None
        validators: Any = {"check": model_validator(mode="before")(check)}
        return create_model(name, __config__=ConfigDict(extra="allow"), __validators__=validators)


@dataclass(frozen=True, slots=True)
class _StubDelegate:
    name: str
    description: str = "Recorded answers."

    async def run(self, delegation: Delegation) -> DelegationResult:
        raise AssertionError("a stub never runs")


@dataclass(slots=True)
class _Source:
    """Gives the items of the script and the recorded results in their places."""

    script: Sequence[ScriptItem]
    results: Sequence[Result]
    session: Session | None = None
    _at: int = 0
    _step: int = 0
    _calls: RecordedCalls[Result] = field(default_factory=lambda: RecordedCalls(()))
    _faults: list[Exception] = field(default_factory=list)
    _began: float = 0.0
    _stopped: bool = False
    _ahead_s: float = 0.0

    def clock(self) -> AbstractContextManager[Any]:
        """Return a context in which the monotonic clock shows the recorded times."""
        read, start = time.monotonic, time.monotonic()
        if all(getattr(each, "at_s", None) is None for each in (*self.script, *self.results)):
            return nullcontext()
        # A slow machine must not reach the deadline before the recorded time.
        return patch.object(time, "monotonic", lambda: start + (read() - start) / _SLOWER + self._ahead_s)

    async def begin(self) -> None:
        """Begin an input."""
        self._step, self._calls, self._began = 0, RecordedCalls(self.results), time.monotonic()
        await self._send_steering()

    def check(self) -> None:
        """Raise the first fault so far."""
        if self._faults:
            raise self._faults[0]

    def assert_spent(self) -> None:
        """Check that the whole script was used."""
        left = [item for item in self.script[self._at :] if not isinstance(item, Stop)]
        if left:
            raise ScriptError(
                f"The script has {len(self.script)} entries, and the last {len(left)} were not asked for. Remove what "
                "is not needed, or find out why the run ended early."
            )

    async def reply(self) -> AIMessage:
        """Return the next reply."""
        assert self.session is not None
        if self._at >= len(self.script) and self._stopped:
            await self._stop("deadline", _FAR_S)
        if self._at >= len(self.script):
            self._faults.append(
                ScriptError(
                    f"The script has {len(self.script)} entries, and the model was asked once more, in step "
                    f"{self._step + 1}. Add a reply, or find out why."
                )
            )
            raise self._faults[-1]
        item = self.script[self._at]
        self._at += 1
        self._step += 1
        match item:
            case Stop():
                self._stopped = True
                await self._stop(item.cause, item.at_s)
            case Failure():
                raise item.error
            case Reply():
                self._pass_time(item.at_s)
                await self._send_steering()
                return item.message
        raise AssertionError(f"{item} is no reply")

    async def _send_steering(self) -> None:
        assert self.session is not None
        while self._at < len(self.script) and isinstance(item := self.script[self._at], Steering):
            self._at += 1
            await self.session.steer(item.text)

    async def _stop(self, cause: Cause, at_s: float | None) -> None:
        assert self.session is not None
        if cause == "abort":
            await self.session.abort()
        else:
            self._pass_time(at_s)
        await asyncio.Event().wait()  # the run cancels it

    def _pass_time(self, at_s: float | None) -> None:
        if at_s is not None:
            self._ahead_s += max(0.0, self._began + at_s - time.monotonic())

    async def result(
        self, id_: str, name: str, arguments: Mapping[str, Any], tool: BaseTool | None
    ) -> RecordedResult | None:
        """Return the recorded result of a call."""
        if (found := self._calls.take(id_, name, arguments)) is None:
            self._faults.append(AssertionError(self._missing(id_, name, arguments)))
            raise self._faults[-1]
        if found.stops is not None:
            await self._siblings(found)
            await self._stop(found.stops, found.at_s)
        self._pass_time(found.at_s)
        if found.waits:
            interrupt(f"The recording has no answer for {name}.")
        return found.result

    async def _siblings(self, stopped: Result) -> None:
        """Wait until the other calls of the step have their results."""
        others = [each for each in self.results if each.step == stopped.step and each.stops is None]
        left = 100
        while left:
            left = 100 if any(map(self._calls.is_left, others)) else left - 1
            await asyncio.sleep(0)  # after the last one, until their tasks end

    def _missing(self, id_: str, name: str, arguments: Mapping[str, Any]) -> str:
        near = [each for each in self.results if each.name == name]
        near.sort(key=lambda each: (each.id != id_, not self._calls.is_left(each)))
        if not near:
            return f"Step {self._step}, call {id_!r} ({name}): no result of {name} is recorded."
        found = next(value_differences(near[0].arguments, arguments, "$.arguments"), None)
        if found is None:
            return f"Step {near[0].step}, call {id_!r} ({name}): its recorded result was used before."
        return (
            f"Step {near[0].step}, call {id_!r} ({name}) {found.path}: the recorded result is for "
            f"{_shown(found.recorded)}, and the call has {_shown(found.now)}."
        )
