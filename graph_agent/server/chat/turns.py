"""Which run a request is: a new input, or the results that an earlier one waits for; in a session, or in none."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt, StateSnapshot

from graph_agent.compiled import CompiledAgentGraph
from graph_agent.runs.inbox import Note
from graph_agent.runs.notes import message_of
from graph_agent.runs.run import RUN, Around
from graph_agent.server.admission.keys import Caller
from graph_agent.server.admission.problems import ProblemError
from graph_agent.server.chat.request import Ask, check_conversation, new_messages, trailing_results
from graph_agent.server.process.host import Host, new_token
from graph_agent.session.results import since_last_input
from graph_agent.tools.client import CLIENT_CALL, ClientResult
from graph_agent.types import NO_USAGE, Usage

_OF_ONE_REQUEST = frozenset(
    {
        "client_tools",
        "client_calls",
        "client_tool_choice",
        "parallel_client_calls",
        "response_schema",
        "credentials",
    }
)
"""Fields of a run's context that no other request's run is given."""
_PARKED_ID = re.compile(r"call_([0-9a-f]{24})[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of the agent, not begun yet."""

    graph: CompiledAgentGraph
    thread: str
    given: Any
    """The graph's input."""
    context: dict[str, Any]
    session_id: str | None
    """The caller's session; None for a request that keeps none."""
    token: str | None = None
    """What the thread is called in the ids of the caller's calls, where the request keeps no session."""
    used_before: Usage = field(default_factory=lambda: NO_USAGE)
    """What earlier requests of the input it takes up have used, and been told."""
    around: Around = field(default_factory=Around)
    """What the run is begun under: its abort stops this run and no other, also when the session is another's."""

    @property
    def config(self) -> Any:
        """The run's config."""
        return {"configurable": {"thread_id": self.thread, RUN: self.around}}

    @property
    def goes_on(self) -> bool:
        """Whether it takes up what an earlier request began."""
        return not isinstance(self.given, dict)

    def followed_by(self, note: Note, check: Callable[[], Awaitable[None]]) -> Turn:
        """The run of a follow-up in this one's session.

        It has the options of this run, and nothing that belongs to one request: the caller's tools, the shape of its
        answer, its credentials.

        Args:
            note: The follow-up.
            check: Raises when another run has taken it in.
        """
        context = {name: value for name, value in self.context.items() if name not in _OF_ONE_REQUEST}
        given = {"messages": [message_of(note)]}
        return Turn(self.graph, self.thread, given, context, self.session_id, around=Around(before=check))

    def client_calls(self, interrupts: Sequence[Interrupt]) -> list[dict[str, Any]]:
        """The calls that the caller is to run: `{"id", "name", "arguments"}`, in call order."""
        return [
            {"id": self._id(asked), "name": asked.value["name"], "arguments": asked.value["arguments"]}
            for asked in _asked(interrupts)
        ]

    def _id(self, asked: Interrupt) -> str:
        # Without a session, the id is all that the next request brings to find the run again.
        return str(asked.value["id"]) if self.token is None else f"call_{self.token}{asked.id[:8]}"


async def turn_for(host: Host, caller: Caller, ask: Ask) -> Turn:
    """Find out which run a request is.

    Args:
        host: The agent.
        caller: Whose request it is.
        ask: The request.

    Raises:
        ProblemError: When its messages do not fit together, or to the session.
    """
    host.check_client_tools([tool["function"]["name"] for tool in ask.client_tools])
    host.check_images(ask.messages)
    host.check_agentic_loops(ask.options.get("max_agentic_loops"))
    if ask.session_id is not None:
        return await _in_session(host, caller, ask, ask.session_id)
    check_conversation(ask.messages)
    results, said = trailing_results(ask.messages)
    tokens = {found[1] for result in results if (found := _PARKED_ID.fullmatch(result.tool_call_id))}
    if len(tokens) == 1:
        turn = Turn(host.kept, caller.parked(token := tokens.pop()), None, {}, None, token)
        if resumed := await _resumed(turn, ask, results, said):
            return resumed
    if ask.client_tools:
        token = new_token()
        return Turn(host.kept, caller.parked(token), {"messages": ask.messages}, ask.context(), None, token)
    return Turn(host.passing, uuid.uuid4().hex, {"messages": ask.messages}, ask.context(), None)


async def _in_session(host: Host, caller: Caller, ask: Ask, session_id: str) -> Turn:
    turn = Turn(host.kept, caller.thread(session_id), None, ask.context(), session_id)
    known = bool((await host.kept.aget_state(turn.config)).values)
    if not known:
        check_conversation(ask.messages)
        return _with(turn, {"messages": ask.messages}, ask.context())
    new = new_messages(ask.messages)
    results, said = trailing_results(new)
    if results:
        if resumed := await _resumed(turn, ask, results, said):
            return resumed
        listed = ", ".join(result.tool_call_id for result in results)
        raise ProblemError(
            "invalid", f"The session {session_id!r} waits for no result of these: {listed}.", param="messages"
        )
    if not new or not all(isinstance(message, HumanMessage) for message in new):
        raise ProblemError(
            "invalid", "There is no new message of the user's behind the assistant's last.", param="messages"
        )
    return _with(turn, {"messages": new}, ask.context())


async def _resumed(turn: Turn, ask: Ask, results: list[ToolMessage], said: list[HumanMessage]) -> Turn | None:
    """The turn that goes on with some results; None when its thread waits for none."""
    state: StateSnapshot = await turn.graph.aget_state(turn.config)
    asked = {turn._id(interrupt): interrupt for interrupt in _asked(state.interrupts)}
    given = {result.tool_call_id: result for result in results}
    if _has_heard(turn, state, given):
        # The words beside them came with the results, and wait where the run stopped.
        return _with(turn, None, ask.context(), state)
    if not asked or not given.keys() & asked.keys():
        return None
    if given.keys() != asked.keys():
        listed = ", ".join(sorted(asked.keys() ^ given.keys()))
        raise ProblemError("invalid", f"One result for each open call is needed; these do not match: {listed}.")
    answers = {asked[id_].id: _answer(result) for id_, result in given.items()}
    # What is waited for is taken up again, also where its tool is not offered this time.
    offered = {tool["function"]["name"] for tool in ask.client_tools}
    calls = {one.value["id"]: one.value["name"] for one in asked.values() if one.value["name"] not in offered}
    context = {**ask.context(), **({"client_calls": calls} if calls else {})}
    return _with(turn, Command(resume=answers), context, state, _steering(_told(said), answers))


def _has_heard(turn: Turn, state: StateSnapshot, given: Collection[str]) -> bool:
    """Whether a run took these results in, and was stopped before its answer."""
    # A task whose step was never stored leaves `next` empty, too.
    if state.interrupts or not state.tasks:
        return False
    # Without a session, nobody else knows the thread.
    events = since_last_input(state.values.get("events", []))
    settled = {entry["id"] for entry in events if entry["type"] == "tool_result"}
    return turn.token is not None or settled >= set(given)


def _told(said: Sequence[HumanMessage]) -> Any:
    """What several messages say, as the content of one: text, or blocks where there is more than text."""
    if all(isinstance(message.content, str) for message in said):
        return "\n\n".join(message.text for message in said if message.text.strip())
    blocks: list[Any] = []
    for message in said:
        blocks += [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    return blocks


def _steering(told: Any, answers: Collection[str]) -> tuple[Note, ...]:
    """What was said beside results, heard behind the results of the whole wave and before the next plan.

    They are the same note whenever the same results are sent with them, so that they are heard once.
    """
    if not told:
        return ()
    digest = hashlib.sha256(json.dumps([*sorted(answers), told]).encode()).hexdigest()
    return (Note(f"{0:020d}-{digest[:16]}", "steer", told),)


def _with(
    turn: Turn, given: Any, context: dict[str, Any], before: StateSnapshot | None = None, brought: tuple[Note, ...] = ()
) -> Turn:
    """A turn with its input; `before` is where the input stands that it takes up, None for a new input."""
    begun = replace(turn, given=given, context=context, around=Around(brought=brought))
    if before is None:
        return begun
    return replace(begun, used_before=before.values.get("usage", NO_USAGE))


def _asked(interrupts: Sequence[Interrupt]) -> list[Interrupt]:
    return [asked for asked in interrupts if isinstance(asked.value, dict) and asked.value.get("type") == CLIENT_CALL]


def _answer(result: ToolMessage) -> ClientResult:
    return {"content": result.content, "status": result.status}
