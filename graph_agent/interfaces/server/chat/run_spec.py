"""Maps chat requests to runs: a new input, or results for an interrupted run; with a session, or without.

A request with an `Idempotency-Key` is run once; a repeated one gets the same answer. The key is the input id of the
request's run. It belongs to the caller and to the session of the request. A request without a session has a thread of
its own, named by caller and key. A *token* is the name of such a thread, which ids of calls contain.

An approval request is shown as a chat message, and the next request answers it. A question of a request without a
session ends with a marker that names its thread: the client sends the question back with its next message.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.types import Command, Interrupt, StateSnapshot

from graph_agent.base._internal.text import as_text, printable_lines
from graph_agent.base.approvals.elicitation import elicitation_text, is_elicitation
from graph_agent.base.approvals.requests import approval_requests, calls_of_request, is_single_call, request_of
from graph_agent.base.approvals.text import parse_answer, question_text
from graph_agent.base.errors import InputError
from graph_agent.base.inbox import ControlMessage
from graph_agent.base.input_ids import InputId, check_input_id, digest_of
from graph_agent.base.types import CLIENT_CALL, NO_USAGE, ClientResult, Usage
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.history import continued_input
from graph_agent.interfaces.server.chat.schemas import (
    ChatRequest,
    check_conversation,
    new_messages,
    results_by_call,
    token_in,
    trailing_results,
    with_token,
)
from graph_agent.interfaces.server.host import Host, thread_token
from graph_agent.interfaces.server.problems import InvalidRequestError
from graph_agent.session.compiled import CompiledAgentGraph
from graph_agent.session.deduplicator import InputDeduplicator
from graph_agent.session.driver import RunHandle, follow_up_input
from graph_agent.session.interrupts import checked_answers, joint_question
from graph_agent.session.results import open_interrupts, since_last_input, waiting_for

_PER_REQUEST = frozenset(
    {"client_tools", "client_calls", "client_tool_choice", "parallel_client_calls", "response_schema", "credentials"}
)
"""Fields of a run's context that follow-ups do not inherit."""
PENDING_ID = re.compile(r"call_([0-9a-f]{24})[0-9a-f]{8}")
"""Pattern of the ids of the caller's calls in a thread without a session: the token, and the start of the interrupt's
id.
"""

_MARKER = re.compile(r"\[approval ([0-9a-f]{24})\]\s*")
"""Pattern of the marker at the end of a question of a request without a session."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run that is to be started: its graph, thread, input and context, and what of its output is sent."""

    graph: CompiledAgentGraph
    thread: str
    graph_input: Any
    """The input of the graph, a command that resumes it with answers, or None to continue an interrupted run."""
    context: dict[str, Any]
    session_id: str | None
    """Id of the caller's session; None for a request without a session."""
    token: str | None = None
    """Name of the thread of a request without a session, which the ids of the caller's calls contain; None with a
    session.
    """
    used_before: Usage = field(default_factory=lambda: NO_USAGE)
    """Usage that earlier requests of the same input have reported."""
    call_token: str | None = None
    """Name of the session's thread that the ids of the caller's calls contain; None if they are the model's own ids."""
    marks_questions: bool = False
    """Whether a question for approval ends with a marker that contains `call_token`."""
    shows_reasoning: bool = False
    """Whether the model's reasoning is a part of the output."""
    shows_calls: bool = False
    """Whether events about the agent's own plans and calls are parts of the output."""
    shows_state: bool = False
    """Whether changes of the agent's own state fields are parts of the output."""
    shows_delegates: bool = False
    """Whether the parts of delegates' runs are parts of the output."""
    session_label: str = "This session"
    """How errors name the session."""
    is_attempt: bool = False
    """Whether an equal request may continue the run. It can then be stopped when its client leaves."""
    answer_token: str = ""
    """Id of the message whose input the run resumes, if a request named it; else empty."""
    refused: str = ""
    """Why the message answers no open question, so that the question is asked again; empty if it was accepted."""
    scope: RunHandle = field(default_factory=RunHandle)
    """Handle of the run. Aborting it stops only this run, even if another run holds the session."""

    @property
    def config(self) -> Any:
        """The config of the thread, to read its state."""
        return {"configurable": {"thread_id": self.thread}}

    @property
    def is_structured(self) -> bool:
        """Whether the answer must match a schema, of the request or of the agent."""
        builder = self.graph.builder
        return "response_schema" in self.context or getattr(builder, "response", None) is not None

    @property
    def is_resume(self) -> bool:
        """Whether the run resumes an earlier input, and has no input of its own."""
        return not isinstance(self.graph_input, dict)

    def for_follow_up(self, note: ControlMessage, check: Callable[[], Awaitable[None]]) -> RunSpec:
        """Return the run of a follow-up, an input that was queued in the same session.

        It inherits the options of this run, except those of a single request: the caller's tools, the response schema,
        and the credentials.

        Args:
            note: The follow-up.
            check: Awaited when the run holds the session's lock; raises if another run has taken the follow-up.
        """
        context = {name: value for name, value in self.context.items() if name not in _PER_REQUEST}
        graph_input = follow_up_input(note)
        return RunSpec(self.graph, self.thread, graph_input, context, self.session_id, scope=RunHandle(before=check))

    def client_calls(self, interrupts: Sequence[Interrupt]) -> list[dict[str, Any]]:
        """Return the calls that the caller must run itself: `{"id", "name", "arguments"}`, in call order."""
        return [
            {"id": self.client_call_id(each), "name": each.value["name"], "arguments": each.value["arguments"]}
            for each in client_interrupts(interrupts)
        ]

    def client_call_id(self, interrupt: Interrupt) -> str:
        """Return the id under which the caller receives a call of its own tools, which waits as this interrupt."""
        # Without a session, the next request can identify the thread only by this id.
        token = self.token or self.call_token
        return str(interrupt.value["id"]) if token is None else f"call_{token}{interrupt.id[:8]}"


def with_key(request: ChatRequest, key: str | None) -> ChatRequest:
    """Return a request with its idempotency key, which may be in quotes; unchanged if the key is None.

    A digest of everything that determines the answer is stored with the key, to detect a different request with the
    same key. Raises `InvalidRequestError` for an invalid key.
    """
    if key is None:
        return request
    # The standard for the header writes it as a quoted string.
    bare = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    try:
        checked = check_input_id(bare)
    except InputError:
        message = f"Idempotency-Key: {key!r} is not a key; send 1 to 255 printable characters, such as a UUID."
        raise InvalidRequestError(message, "Idempotency-Key") from None
    content = [request.messages, request.instructions, request.options, request.client_tools, request.decisions]
    return replace(request, mark=InputId(checked, digest_of(content)))


def token_of_key(caller: Caller, key: str) -> str:
    """Return the token of a request without a session, 24 hexadecimal digits that are the same for a repeated key of
    the caller.
    """
    return hashlib.sha256(f"{caller.name}\0{key}".encode()).hexdigest()[:24]


async def resolve_once(host: Host, caller: Caller, request: ChatRequest) -> RunSpec:
    """Return the run of a request, whose input runs once if the request has an idempotency key.

    If the key was used before, the run resumes the first one or returns its answer. If only the record of an answer to
    a question is stored with the key, and questions are still open, the request is resolved anew. Raises `ProblemError`
    if the request is invalid, or does not fit the session, and `InputConflictError` if the record with the key is of a
    different answer.
    """
    if (mark := request.mark) is None:
        return await resolve_run(host, caller, request)
    token = token_of_key(caller, mark.id)
    spec = with_output_options(_repeated(host, caller, request, token), request)
    seen = await InputDeduplicator(host.saver, host.kept.aget_state, spec.thread).seen(mark)
    if seen is None or (seen == "recorded" and open_interrupts(await host.kept.aget_state(spec.config))):
        spec = await resolve_run(host, caller, request)
        # A repeated request finds this thread by its key.
        if spec.session_id is None and not spec.is_resume:
            spec = replace(spec, graph=host.kept, thread=caller.pending_thread(token), token=token)
    spec.scope.mark = mark
    return spec


def _repeated(host: Host, caller: Caller, request: ChatRequest, token: str) -> RunSpec:
    """Return the run, without an input, that resumes the thread of a request which was sent before.

    The thread is that of the request's session, else that of the waiting calls which the request answers, else the one
    with the name `token`, which is made of the idempotency key.
    """
    if request.session_id is not None:
        thread = caller.thread(request.session_id)
        return RunSpec(host.kept, thread, None, request.context(), request.session_id)
    name = next(iter(pending_names(request)), token)
    return RunSpec(host.kept, caller.pending_thread(name), None, request.context(), None, name)


def pending_names(request: ChatRequest) -> tuple[str, ...]:
    """Return the token of the waiting thread that a request without a session answers, as a tuple of one; else an empty
    one.

    It is read from the ids of results, the marked question before the last message, and the approval responses. Tokens
    of different threads count as none.
    """
    results, _ = trailing_results(request.messages)
    names = {found[1] for result in results if (found := PENDING_ID.fullmatch(result.tool_call_id))}
    names |= {name for name in (pending_question(request.messages), request.pending_token) if name is not None}
    return tuple(names) if len(names) == 1 else ()


async def resolve_run(host: Host, caller: Caller, request: ChatRequest) -> RunSpec:
    """Check a request's tools, images and options, and return the run that it starts or resumes, not started yet.

    Raises `ProblemError` if tools, messages or options are invalid, or do not fit the session's state.
    """
    types = request.unsupported_tools
    warnings = [host.unsupported_tools_warning(types)] if types else []
    if request.client_tools:
        host.check_client_tools([tool["function"]["name"] for tool in request.client_tools])
    elif "client_tool_choice" in request.options:
        warnings.append(_tool_choice_warning(request))
    host.check_images(request.messages)
    if "max_agentic_loops" in request.options:
        host.check_agentic_loops(request.options["max_agentic_loops"])
    spec = await _resolve(host, caller, request)
    spec.scope.before, spec.scope.warnings = request.before, tuple(warnings)
    return with_output_options(spec, request)


def _tool_choice_warning(request: ChatRequest) -> str:
    """Return the warning for a tool choice that requires a call, where only the agent's own tools could be meant.

    Raises `InvalidRequestError` if there is no tool to call.
    """
    if request.offers_own_tools:
        return "tool_choice requires a call; the model was free to choose, as it is for the agent's own tools."
    left_out = f" Left out: {', '.join(request.unsupported_tools)}." if request.unsupported_tools else ""
    raise InvalidRequestError(
        f"tool_choice requires a call, and the request has no function to call.{left_out} Send a function, or let the "
        "model choose.",
        "tool_choice",
    )


def with_output_options(spec: RunSpec, request: ChatRequest) -> RunSpec:
    """Return a run with the request's choices of what is sent: reasoning, calls, ids, and how errors name the
    session.
    """
    return replace(
        spec,
        call_token=request.new_call_token,
        session_label=request.session_label,
        marks_questions=request.marks_questions,
        shows_reasoning=request.shows_reasoning,
        shows_calls=request.shows_calls,
    )


async def _resolve(host: Host, caller: Caller, request: ChatRequest) -> RunSpec:
    """Return the run of a request: in its session, or in the waiting thread that its decisions, results or message
    answer, or else in a new thread, which is stored only if it may wait for another request.

    Raises `InvalidRequestError` if the request does not fit what the thread waits for, or its messages are no
    conversation that ends with a message to answer (`check_conversation`).
    """
    if request.session_id is not None:
        return await _in_session(host, caller, request, request.session_id)
    if (token := request.pending_token) is not None:
        spec = RunSpec(host.kept, caller.pending_thread(token), None, {}, None, token)
        if resumed := await _resume(spec, caller, request, *trailing_results(request.messages)):
            return resumed
        raise InvalidRequestError("The calls of these approval responses no longer wait.", "messages")
    check_conversation(request.messages)
    results, user_messages = trailing_results(request.messages)
    if (token := pending_question(request.messages)) is not None:
        spec = RunSpec(host.kept, caller.pending_thread(token), None, request.context(), None, token)
        return await _decide(spec, caller, request, await host.kept.aget_state(spec.config))
    # Results of several threads cannot be answered in one run.
    tokens = {found[1] for result in results if (found := PENDING_ID.fullmatch(result.tool_call_id))}
    if len(tokens) == 1:
        spec = RunSpec(host.kept, caller.pending_thread(token := tokens.pop()), None, {}, None, token)
        if resumed := await _resume(spec, caller, request, results, user_messages):
            return resumed
    # Only these can wait for another request, for which the thread must be kept.
    if request.client_tools or host.asks:
        token = thread_token()
        return RunSpec(
            host.kept, caller.pending_thread(token), {"messages": request.messages}, request.context(), None, token
        )
    # Nothing can resume it, so nothing is stored.
    return RunSpec(host.stateless, uuid.uuid4().hex, {"messages": request.messages}, request.context(), None)


async def _in_session(host: Host, caller: Caller, request: ChatRequest, session_id: str) -> RunSpec:
    """Return the run of a request in its session: with results or decisions that it waits for, else with the answer to
    its question, else with a new input.

    A request with another history than the session, or with results of other calls in its own history, runs in a thread
    of its own. Raises `InvalidRequestError` if it has nothing new, results that nothing waits for, or, for a new
    session or with `adds_all`, no conversation that ends with a message to answer.
    """
    spec = RunSpec(
        host.kept, caller.thread(session_id), None, request.context(), session_id, call_token=request.call_token
    )
    state = await host.kept.aget_state(spec.config)
    if not state.values:
        check_conversation(request.messages)
        return _with_input(spec, {"messages": with_token(request.messages, request.answer_token)}, request.context())
    results, user_messages = trailing_results(request.messages)
    is_answer = bool(results or request.decisions)
    if is_answer and (resumed := await _resume(spec, caller, request, results, user_messages)):
        return resumed
    new = request.messages if request.adds_all else continued_input(request.messages, state)
    has_calls = not request.adds_all and any(isinstance(message, AIMessage) for message in request.messages)
    if not request.decisions and (new is None or (results and has_calls)):
        # A side request, a repeated or an edited one: it is complete without the session.
        return await _resolve(host, caller, replace(request, session_id=None))
    if new is None or is_answer:
        listed = ", ".join(result.tool_call_id for result in results) or "approval responses"
        raise InvalidRequestError(f"{request.session_label} waits for no result of these: {listed}.", "messages")
    if request.adds_all:
        check_conversation(new)
    elif not new or not all(isinstance(message, HumanMessage) for message in new):
        raise InvalidRequestError("There is no new user message after the assistant's last message.", "messages")
    if approval_requests(open_interrupts(state)):
        return await _decide(spec, caller, request, state)
    if (asked := open_question(state)) is not None:
        return _answer_question(spec, request, state, asked)
    return _with_input(spec, {"messages": with_token(new, request.answer_token)}, request.context())


async def _decide(spec: RunSpec, caller: Caller, request: ChatRequest, state: StateSnapshot) -> RunSpec:
    """Return the run that receives the text of the new user messages as decisions on the waiting calls.

    If it is no decision, which any message with content blocks is not, the run asks the question again, with the
    reason. Raises `InvalidRequestError` if no call waits.
    """
    asked = [each for each in open_interrupts(state) if request_of(each) is not None]
    if not asked:
        raise InvalidRequestError(
            "The calls of this question no longer wait: they are decided, or the question has expired. Repeat the "
            "request for them in a new message, without the question.",
            "messages",
        )
    content = merge_content([message for message in new_messages(request.messages) if message.type == "human"])
    answer: Any = {"decisions": content if isinstance(content, str) else "", "decided_by": caller.person}
    answers = {asked[0].id: answer}
    if len(asked) > 1 or "call_ids" not in asked[0].value:
        # Nothing repeats the question about the calls of several requests, or that of LangChain's middleware.
        try:
            answers = await checked_answers(answer, spec.graph, state, caller.person)
        except InputError as error:
            return _with_input(replace(spec, refused=str(error)), None, request.context(), state)
    return _with_input(spec, Command(resume=answers), request.context(), state)


def _answer_question(spec: RunSpec, request: ChatRequest, state: StateSnapshot, asked: Interrupt) -> RunSpec:
    """Return the run that receives a user message as the answer to the question `asked`.

    An answer that is JSON is parsed.
    """
    content = merge_content([message for message in new_messages(request.messages) if message.type == "human"])
    answer = parse_answer(content) if isinstance(content, str) else content
    return _with_input(spec, Command(resume={asked.id: answer}), request.context(), state)


async def _resume(
    spec: RunSpec, caller: Caller, request: ChatRequest, results: list[ToolMessage], user_messages: list[HumanMessage]
) -> RunSpec | None:
    """Return the run that continues with results of the caller's calls and with decisions; None if nothing waits for
    them.

    If a stopped run has received these results already, it is continued, without an input. Raises `InvalidRequestError`
    if only some of the open calls have a result, or a decision does not fit.

    Args:
        spec: The thread.
        caller: The owner of the API key.
        request: The parsed request.
        results: The results at the end of the request's messages.
        user_messages: The user messages after them, which the model reads before its next plan.
    """
    state: StateSnapshot = await spec.graph.aget_state(spec.config)
    waiting = {spec.client_call_id(interrupt): interrupt for interrupt in client_interrupts(state.interrupts)}
    by_id = results_by_call(results)
    if by_id and _has_received(spec, state, by_id):
        # The user messages were stored together with the results when the stopped run received them.
        return _with_input(spec, None, request.context(), state)
    decided = await _decided(spec, caller, request, state)
    if not decided and (not waiting or not by_id.keys() & waiting.keys()):
        return None
    if by_id and by_id.keys() != waiting.keys():
        listed = ", ".join(sorted(waiting.keys() ^ by_id.keys()))
        raise InvalidRequestError(f"One result for each open call is needed; these do not match: {listed}.")
    answers = {**decided, **{waiting[id_].id: _answer(result) for id_, result in by_id.items()}}
    context = with_open_calls(request.context(), state.interrupts)
    notes = steering_notes(merge_content(user_messages), answers)
    return _with_input(spec, Command(resume=answers), context, state, notes)


async def _decided(spec: RunSpec, caller: Caller, request: ChatRequest, state: StateSnapshot) -> dict[str, Any]:
    """Return the request's decisions on single calls as answers: interrupt id → answer; empty if there are none.

    Raises `InvalidRequestError` if a decision does not fit.
    """
    if not request.decisions:
        return {}
    try:
        answers = answers_to_approvals(open_interrupts(state), request.decisions)
        return await checked_answers(answers, spec.graph, state, caller.person) if answers else {}
    except InputError as error:
        raise InvalidRequestError(str(error), "messages") from None


def _has_received(spec: RunSpec, state: StateSnapshot, result_ids: Collection[str]) -> bool:
    """Return whether a stopped run is to be continued: it has these results, or the request has the thread's token.

    False for a thread that waits for an answer or has ended.
    """
    # `next` would not do: it is also empty for a task whose superstep was never stored.
    if state.interrupts or not state.tasks:
        return False
    events = since_last_input(state.values.get("events", []))
    settled = {entry["id"] for entry in events if entry["type"] == "tool_result"}
    # Without a session, the thread's only caller is the one that was sent the token.
    return spec.token is not None or spec.call_token is not None or settled >= set(result_ids)


def merge_content(messages: Sequence[HumanMessage]) -> Any:
    """Return the contents of messages as one: texts that are not blank, joined by blank lines; or, if any message has
    content blocks, the blocks of all, in which texts are blocks, too.
    """
    if all(isinstance(message.content, str) for message in messages):
        return "\n\n".join(message.text for message in messages if message.text.strip())
    blocks: list[Any] = []
    for message in messages:
        blocks += [{"type": "text", "text": message.content}] if isinstance(message.content, str) else message.content
    return blocks


def steering_notes(content: Any, answers: Collection[str]) -> tuple[ControlMessage, ...]:
    """Return user messages that came with tool results as a steering note, which the model reads before its next plan.

    The note's id is derived from the content and the answers, so that a repeated request adds it once. Empty without
    content.
    """
    if not content:
        return ()
    digest = hashlib.sha256(json.dumps([*sorted(answers), content]).encode()).hexdigest()
    return (ControlMessage(f"{0:020d}-{digest[:16]}", "steer", content),)


def _with_input(
    spec: RunSpec,
    graph_input: Any,
    context: dict[str, Any],
    before: StateSnapshot | None = None,
    notes: tuple[ControlMessage, ...] = (),
) -> RunSpec:
    """Return a run with an input of the graph and a context.

    Args:
        spec: The thread.
        graph_input: The input, a command that resumes the graph, or None to continue an interrupted run.
        context: The context of the run.
        before: State of the input that the run resumes, whose usage and answer's token it takes; None for a new input.
        notes: Messages that the model reads before its next plan.
    """
    if before is not None:
        used = before.values.get("usage", NO_USAGE)
        spec = replace(spec, used_before=used, answer_token=token_in(before.values))
    return replace(spec, graph_input=graph_input, context=context, scope=RunHandle(brought=notes))


def with_open_calls(context: dict[str, Any], interrupts: Sequence[Interrupt]) -> dict[str, Any]:
    """Return the context of a resumed run, with `client_calls`: id → name of the waiting calls of the caller's tools
    that the request does not offer any more. Unchanged if there are none.
    """
    offered = {tool["function"]["name"] for tool in context.get("client_tools", ())}
    waiting = [each.value for each in client_interrupts(interrupts)]
    calls = {call["id"]: call["name"] for call in waiting if call["name"] not in offered}
    return {**context, "client_calls": calls} if calls else context


def client_interrupts(interrupts: Sequence[Interrupt]) -> list[Interrupt]:
    """Return those interrupts that are calls of the caller's own tools."""
    return [one for one in interrupts if is_client_call(one)]


def is_client_call(interrupt: Interrupt) -> bool:
    """Return whether an interrupt is a call of the caller's own tools."""
    return isinstance(interrupt.value, Mapping) and interrupt.value.get("type") == CLIENT_CALL


def _answer(result: ToolMessage) -> ClientResult:
    """Return a result of the caller as the answer to the interrupt of its call."""
    return {"content": result.content, "status": result.status}


def open_question(state: StateSnapshot) -> Interrupt | None:
    """Return the first open interrupt if a message can answer it; None if nothing waits, or calls or approvals do."""
    interrupts = open_interrupts(state)
    return interrupts[0] if waiting_for(interrupts) == "answer" else None


def interrupts_question(interrupts: Sequence[Interrupt], token: str | None, refused: str = "") -> str:
    """Return the text of the question that open interrupts ask, several as one; empty if there are none.

    Args:
        interrupts: The open interrupts.
        token: Name of the thread, for a marker behind an approval question; None for no marker.
        refused: Why the previous decisions were refused, for the text of an approval question; empty if they were not.
    """
    if not interrupts:
        return ""
    _, asked = joint_question(interrupts)
    if waiting_for(interrupts) != "approval":
        return elicitation_text(asked) if is_elicitation(asked) else printable_lines(as_text(asked))
    question = question_text({**asked, "error": refused} if refused else asked)
    return question if token is None else f"{question}\n[approval {token}]"


def waiting_approvals(interrupts: Sequence[Interrupt], token: str | None) -> list[dict[str, Any]]:
    """Return the calls of all open approval requests, in order: `{"token", "interrupt", "index", "name", "arguments"}`.

    Args:
        interrupts: The open interrupts.
        token: Name of the thread, which is the `token` of each call.
    """
    return [
        {"token": token, "interrupt": each.id, "index": index, "name": call["name"], "arguments": call["arguments"]}
        for each in interrupts
        if (request := request_of(each)) is not None
        for index, call in enumerate(calls_of_request(request))
    ]


def answers_to_approvals(
    interrupts: Sequence[Interrupt], decisions: Mapping[tuple[str, int], dict[str, Any]]
) -> dict[str, Any]:
    """Return decisions on single calls as answers: interrupt id → answer.

    Calls without a decision are asked about again.

    Args:
        interrupts: The open interrupts.
        decisions: (First 8 characters of an interrupt's id, index of the call in it) → decision.

    Raises:
        InvalidRequestError: A decision is on a call that does not wait, or only some of the calls of a request are
            decided that must be decided together.
    """
    answers: dict[str, Any] = {}
    remaining = dict(decisions)
    for each in interrupts:
        if (request := request_of(each)) is None:
            continue
        calls = calls_of_request(request)
        decided = {
            index: remaining.pop(key) for index in range(len(calls)) if (key := (each.id[:8], index)) in remaining
        }
        if not decided:
            continue
        if is_single_call(each.value):
            answers[each.id] = decided[0]
        elif "call_ids" in request:
            answers[each.id] = {"decisions": {calls[index]["id"]: decision for index, decision in decided.items()}}
        elif len(decided) == len(calls):
            answers[each.id] = {"decisions": list(decided.values())}
        else:
            raise InvalidRequestError(f"{len(calls)} calls wait together; decide all of them at once.")
    if remaining:
        raise InvalidRequestError(
            "An approval response belongs to no call that waits. The call is decided already, or the id is wrong; "
            "GET /sessions/{id} lists the open questions of a session."
        )
    return answers


def pending_question(messages: Sequence[AnyMessage]) -> str | None:
    """Return the token in the marker that ends the newest answer, if only user messages follow it; otherwise None."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            found = _MARKER.search(message.text[-60:])
            return found[1] if found is not None and message.text.endswith(found[0]) else None
        if not isinstance(message, HumanMessage):
            return None
    return None
