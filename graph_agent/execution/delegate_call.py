"""What the `delegate` node does around a delegate: it passes progress on, asks the person, and words the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Literal

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from graph_agent._internal.text import clean
from graph_agent.config import LoopConfig
from graph_agent.delegation import AskingDelegate, Delegate, Delegation, DelegationResult
from graph_agent.deps import AroundTool
from graph_agent.events.calls import result_event
from graph_agent.events.types import StoredEvent, event
from graph_agent.events.values import stored_value
from graph_agent.state.schema import RemoteState, RemoteTask
from graph_agent.state.usage import add_usage
from graph_agent.tools.display import shown_output
from graph_agent.tools.invoke import meant_for_the_run
from graph_agent.tools.output import Output
from graph_agent.tools.untrusted import fenced, source_of
from graph_agent.types import NO_USAGE, Call, Usage, delegate_name

MOST_LINES = 200
"""Lines of progress a delegation may leave in the history; those who watch see them all."""

_UNANSWERED = "The agent asked a person something, and the run was stopped before there was an answer."


class Telling:
    """Takes what a delegate says of its progress: shown at once on the custom stream, kept for the history.

    Args:
        call: The delegation.
        step: The step it belongs to.
        runtime: The task's runtime.
    """

    def __init__(self, call: Call, step: int, runtime: Runtime[Any]) -> None:
        self._call = call
        self._step = step
        self._runtime = runtime
        # The writer reads its place in the graph from the context; a delegate's run has a context of its own.
        self._context = copy_context()
        self.events: list[StoredEvent] = []

    def __call__(self, text: str) -> None:
        """Pass one line on."""
        told = {"id": self._call["id"], "target": delegate_name(self._call["name"]), "content": clean(text)}
        self._runtime.stream_writer({"type": "delegation_progress", "step": self._step, **told})
        if len(self.events) < MOST_LINES:
            self.events.append(event("delegation_progress", self._step, **told))

    def pass_on(self, part: Any) -> None:
        """Show a part of the delegate's run on the custom stream."""
        self._context.run(self._runtime.stream_writer, part)


class Using:
    """Adds up what a delegation has used, whatever becomes of it: results, and delegates that raise or are cut off."""

    def __init__(self) -> None:
        self.usage: Usage = NO_USAGE

    def __call__(self, usage: Usage) -> None:
        """Count what was used."""
        self.usage = add_usage(self.usage, usage)


def waiting_task(remote: RemoteState | None, call: Call) -> RemoteTask | None:
    """The other agent's task that waits for a person on behalf of a call; None where nobody waits."""
    return remote["open"].get(call["id"]) if remote else None


def conversation_with(remote: RemoteState | None, delegate: str) -> str:
    """The conversation this session has with a delegate; empty before the first."""
    return remote["contexts"].get(delegate, "") if remote else ""


def calls_that_wait(remote: RemoteState | None, ready: list[Call]) -> list[Call]:
    """Those of the calls that were made ready last whose delegates have asked a person."""
    return [call for call in ready if waiting_task(remote, call) is not None]


def ask_person(call: Call, task: RemoteTask) -> Any:
    """Interrupt the graph with the other agent's question; the person's answer once there is one.

    The node runs from its start when the answer comes: nothing may have been sent before this.
    """
    delegate = delegate_name(call["name"])
    return interrupt({"type": "delegation_input", "id": call["id"], "delegate": delegate, "question": task["question"]})


async def go_on(delegate: Delegate, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
    """Hand the person's answer to the delegate that asked."""
    if not isinstance(delegate, AskingDelegate):
        return DelegationResult(f"The delegate {delegate.name!r} cannot go on with a task.", "error")
    return await delegate.resume(delegation, task, answer)


def unanswered(call: Call, step: int) -> tuple[ToolMessage, StoredEvent]:
    """The answer to a call whose delegate asked, and will hear nothing, and its event."""
    message = ToolMessage(_UNANSWERED, tool_call_id=call["id"], name=call["name"], status="error")
    return message, result_event(call["id"], call["name"], "error", _UNANSWERED, step)


def answered(
    call: Call,
    result: DelegationResult,
    settings: LoopConfig,
    step: int,
    told: list[StoredEvent],
    *,
    waited: bool,
) -> list[tuple[str, Any]]:
    """The update that a delegation makes: its result's message and events, or the task that waits for a person.

    Args:
        call: The delegation.
        result: What came of it.
        settings: The run's limits for what the model is shown.
        step: The step it belongs to.
        told: The events of its progress.
        waited: Whether its task had been waiting for a person.
    """
    name, id_ = delegate_name(call["name"]), call["id"]
    contexts = {name: result.context_id} if result.context_id else {}
    # The channel takes its first write as it is, so each is whole, and one that closes a task comes after another.
    tasks = {id_: result.waiting} if waited or result.waiting is not None else {}
    remote = ("remote", {"contexts": contexts, "open": tasks})
    if result.waiting is not None:
        asked = event("delegation_progress", step, id=id_, target=name, content=result.waiting["question"])
        return [remote, ("events", [*told, asked]), ("usage", result.usage), ("arrived", True)]
    shown, _ = shown_output(result.content, settings, {}, call)
    if result.untrusted:
        shown = fenced(shown, source_of(name))
    status: Literal["success", "error"] = "success" if result.status == "success" else "error"
    message = ToolMessage(shown, tool_call_id=id_, name=call["name"], status=status, artifact=result.artifact)
    response = result_event(id_, call["name"], result.status, result.content, step)
    if result.value is not None:
        response |= stored_value(result.content, result.value)
    if result.untrusted:
        response["untrusted"] = True
    if result.history:
        response["history"] = result.history
    update: list[tuple[str, Any]] = [("messages", [message]), ("events", [*told, response])]
    # Most delegates keep nothing elsewhere, and a field that is never written costs no byte.
    if contexts or waited:
        update.append(remote)
    return [*update, ("usage", result.usage), ("arrived", True)]


class _WaitsError(GraphBubbleUp):
    """The delegate asks a person: no answer yet that anybody could look at. It passes through as an interrupt does."""


async def through_calls(
    around: AroundTool,
    call: Call,
    config: RunnableConfig,
    runtime: Runtime[Any],
    run: Callable[[Call], Awaitable[DelegationResult]],
    failed: Callable[[BaseException], DelegationResult],
) -> DelegationResult:
    """Run a delegation through what stands around calls, which may run it again, or answer in its place.

    Args:
        around: What stands around calls.
        call: The delegation.
        config: The task's config.
        runtime: The task's runtime.
        run: Runs it; what its delegate raises is met by what stands around.
        failed: Words what a delegate raised.

    Raises:
        GraphBubbleUp: When the delegate, or what stands around, interrupts the graph to ask a person.
    """
    newest: DelegationResult | None = None

    async def once(asked: Call) -> Output:
        nonlocal newest
        try:
            newest = await run(asked)
        except BaseException as error:
            if meant_for_the_run(error):
                raise
            newest = failed(error)
            return Output(newest.content, "error", raised=error)
        if newest.waiting is not None:
            raise _WaitsError
        return _shown(newest)

    try:
        output = await around(call, config, runtime, once)
    except _WaitsError:
        assert newest is not None
        return newest
    if newest is None:
        return DelegationResult(output.content, output.status, artifact=output.artifact)
    seen = _shown(newest)
    if (output.content, output.status, output.artifact) == (seen.content, seen.status, seen.artifact):
        return newest
    # Nobody vouches for what was made of words that nobody vouches for.
    return replace(newest, content=output.content, status=output.status, value=None, artifact=output.artifact)


def _shown(result: DelegationResult) -> Output:
    return Output(result.content, "success" if result.status == "success" else "error", result.artifact)
