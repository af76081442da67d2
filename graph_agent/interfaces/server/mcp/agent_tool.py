"""Runs the calls of an agent's tool as inputs of sessions, with questions as forms, and reads sessions as resources.

To an MCP client an agent is one tool, and each session a resource. A *form* is the `elicitation/create` request that
asks a person; a *key* of a form names it within its session.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.types import StateSnapshot
from mcp import McpError, types
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, SecretStr, ValidationError

from graph_agent.base._internal.failure_log import log_failure
from graph_agent.base._internal.text import clean, text_of, to_json_safe
from graph_agent.base.approvals.requests import request_of
from graph_agent.base.approvals.text import parse_answer, question_text
from graph_agent.base.errors import DecisionError, UserError
from graph_agent.base.input_ids import KEY_IN_META, InputId, as_input_id, digest_of
from graph_agent.base.model_error_text import public_text
from graph_agent.base.tool_names import alias_of
from graph_agent.base.types import SessionStatus
from graph_agent.interfaces.server.admission.gate import Caller, RequestLimits
from graph_agent.interfaces.server.body_faults import describe_faults
from graph_agent.interfaces.server.chat.handler import Runs
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome
from graph_agent.interfaces.server.chat.run import RunEnded
from graph_agent.interfaces.server.chat.run_spec import RunSpec, client_interrupts, interrupts_question, token_of_key
from graph_agent.interfaces.server.chat.schemas import SESSION_ID, checked_session_id
from graph_agent.interfaces.server.host import thread_token
from graph_agent.interfaces.server.mcp.forms import Form, form_answers, forms
from graph_agent.interfaces.server.problems import ProblemError, problem_of_failure
from graph_agent.interfaces.server.session_filter import SessionFilter
from graph_agent.interfaces.server.sessions import Sessions
from graph_agent.session.driver import RunDriver
from graph_agent.session.interrupts import joint_question
from graph_agent.session.results import Progress, open_interrupts, stored_input, waiting_for

logger = logging.getLogger("graph_agent.server.mcp.agent_tool")

AskClient = Callable[[str, Mapping[str, Form]], Awaitable[Mapping[str, Any]]]
"""Shows forms of a session, given by its id and the forms by key, and returns the responses of a reviewer by key.

A client without a handshake sends the responses with another request; then `InputRequiredError` is raised.
"""
_PERSON_DECIDES = (
    "A person decides: in a form of the client, on the server's page, over another of its APIs, or with `graph-agent "
    "resume`. No input of this tool does."
)
_UNUSED = "The input of this call was not used, because the session waited for a decision."
_DECIDED = "The responses of this call were not used, because their questions had been decided before."
_MOST_ROUNDS = 20
"""Maximum rounds of forms that one call shows, so that a client that repeats a refused answer does not loop."""
_PAGE = 100
"""Maximum sessions in one page of the list of resources."""
_SESSIONS = "graph-agent://sessions/"


class Arguments(BaseModel):
    """The arguments of the tool."""

    model_config = ConfigDict(extra="forbid")

    input: str = Field(min_length=1, description="The message to the agent.")
    session: str | None = Field(
        None,
        pattern=SESSION_ID,
        description="The session to continue; without one, a new session is made, and its id is in the result.",
    )


class Output(BaseModel):
    """The structured result of the tool."""

    session: str = Field(description="The session's id, for the next call.")
    status: SessionStatus = Field(description="The session's status; RUNNING while it waits for a person.")
    stop_reason: str | None = Field(description="Why the agent stopped; null while it waits for a person.")
    answer: str = Field(description="The agent's answer; empty while it waits for a person.")
    structured: Any = Field(None, description="The answer as JSON, if the agent has a response format.")
    question: str = Field("", description="The open question, and who answers it if the next call does not.")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of the agent's tool, in either version of the protocol."""

    arguments: Mapping[str, Any]
    caller: Caller
    """The owner of the API key."""
    report: Callable[[float, str], Awaitable[None]]
    """Sends progress: a number that grows, and a text."""
    ask: AskClient | None = None
    """Shows forms to a reviewer; None for a client that cannot show forms."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`_meta` of the request. Under `KEY_IN_META` it may have an id, by which the input runs only once."""
    credentials: Mapping[str, SecretStr] = field(default_factory=dict)
    """Secrets from the headers of the request for the agent's tools, by name."""
    session: str | None = None
    """Id of the session whose forms `responses` answers; None for the session in the arguments."""
    responses: Mapping[str, Any] | None = None
    """Responses to the forms of an earlier request, by key; None if the request has none."""
    steps: Iterator[int] = field(default_factory=lambda: count(1))
    """The numbers of the call's progress, which grow over all runs of the call."""
    aborts: bool = True
    """Whether cancelling the call aborts a run whose input has an id. A run without an id is always aborted."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a call does next with its session: run an input or answers, or ask again."""

    given: Any = None
    """Input of the graph, or the command that resumes it with answers; None to return the stored result of a repeated
    input.
    """
    mark: InputId | None = None
    """The id by which the input runs only once; None for an input without an id."""
    runs: bool = True
    """Whether there is something to run."""
    error: str = ""
    """Why the responses were refused, for the next forms; empty if they were not."""
    dismissed: bool = False
    """Whether the reviewer left every question open."""
    unused: str = ""
    """Why the input or the responses of the call were not used; empty if they were used."""


class AgentTool:
    """The one tool that an agent is for MCP clients, and its sessions as resources.

    Args:
        runs: The runs of this process.
        tasks: Limits of active runs per caller. A run may outlast its request.
    """

    def __init__(self, runs: Runs, tasks: RequestLimits) -> None:
        self.host = runs.host
        self.closing = asyncio.Event()
        """Set when the server stops.

        Calls then no longer wait for a reviewer, and cancelling a call does not abort its run.
        """
        self._runs = runs
        self._tasks = tasks
        source = self.host.source
        self.definition = types.Tool(
            name=alias_of(source.name),
            title=source.name,
            description=source.description or f"Asks the agent {source.name}.",
            inputSchema=Arguments.model_json_schema(),
            outputSchema=Output.model_json_schema(mode="serialization"),
        )

    async def call(self, name: str, call: ToolCall) -> types.CallToolResult:
        """Run a call until its input has ended, or needs an answer that the client cannot give during the call; return
        the result.

        Failures, such as invalid arguments or an error of the run, are results with `isError`. Unexpected ones are
        logged, and have no details for the client.

        Raises:
            McpError: There is no tool of this name.
            InputRequiredError: The client must send the call again with a reviewer's responses to forms.
        """
        if name != self.definition.name:
            message = f"There is no tool {name!r}; known: {self.definition.name}."
            raise McpError(types.ErrorData(code=types.INVALID_PARAMS, message=message))
        try:
            arguments = Arguments.model_validate(dict(call.arguments))
            return await self._call(call, clean(arguments.input), call.session or arguments.session)
        except ValidationError as error:
            return _failed(describe_faults([{**each, "loc": ("body", *each["loc"])} for each in error.errors()])[0])
        except ProblemError as problem:
            return _failed(problem.message)
        except UserError as error:
            return _failed(str(error))
        except McpError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure is a result; the cause is logged
            log_failure(logger, "A call over MCP", error)
            return _failed(problem_of_failure(error).message)

    async def _call(self, call: ToolCall, text: str, session: str | None) -> types.CallToolResult:
        """Run a call in its session: first the input or the responses, then up to 20 rounds of forms.

        Forms are shown while questions are open, the client can show them, and the reviewer does not dismiss them all.
        Raises `ProblemError` or `UserError` if the session id, the input or the responses cannot be used, or the run is
        refused, and `InputRequiredError` of `call.ask`.

        Args:
            call: The call.
            text: The input.
            session: Id of the session; None for a new one, whose id is derived from the input's id if it has one.
        """
        key = _key(call.meta)
        session_id = session or (thread_token() if key is None else token_of_key(call.caller, key))
        driver = RunDriver(self.host.kept, call.caller.thread(checked_session_id(session_id, "session")))
        state, outcome = await driver.state(), None
        if call.responses is None:
            mark = None if key is None else InputId(key, digest_of(["mcp", text]))
            by_text = self.host.settings.mcp_text_approvals
            step = await _input(driver, state, text, mark, call.caller.person, decides=by_text)
        else:
            step = await _answers(driver, state, call.responses, call.caller.person)
        unused = step.unused
        for _ in range(_MOST_ROUNDS):
            if step.runs:
                state, outcome = await self._run(call, session_id, step)
            asked = forms(open_interrupts(state), step.error)
            # The result then names the open question, and the next call answers it.
            if call.ask is None or not asked or step.dismissed:
                break
            step = await _answers(driver, state, await self._ask(call.ask, session_id, asked), call.caller.person)
        return _result(session_id, state, outcome, by_text=self.host.settings.mcp_text_approvals, unused=unused)

    async def _ask(self, ask: AskClient, session_id: str, asked: Mapping[str, Form]) -> Mapping[str, Any]:
        """Wait for a reviewer's responses to forms, and return them by key.

        If the server stops first, the forms are withdrawn, and the result is empty. Exceptions of `ask` are raised.
        """
        asking = asyncio.ensure_future(ask(session_id, asked))
        closing = asyncio.create_task(self.closing.wait())
        try:
            await asyncio.wait([asking, closing], return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else {}
        finally:
            # A form that stays open would be answered after the call has ended.
            asking.cancel()
            closing.cancel()

    async def _run(self, call: ToolCall, session_id: str, step: _Step) -> tuple[StateSnapshot, ChatOutcome]:
        """Run a step of a session, and report its progress; return the session's state after it and the outcome.

        If the step repeats an input whose question was answered meanwhile, the newest state is returned. If the call is
        cancelled, the run is aborted, unless the server is stopping, or `call.aborts` is False and the input has an id.
        Raises `ProblemError` if the caller has too many active runs, or the run is refused.
        """
        context = {"credentials": dict(call.credentials)} if call.credentials else {}
        spec = RunSpec(self.host.kept, call.caller.thread(session_id), step.given, context, session_id)
        spec.scope.mark = step.mark
        with ExitStack() as resources:
            resources.enter_context(self._tasks.slot(call.caller.name))
            async with self._runs.run(spec, streams=False, resources=resources) as run:
                try:
                    while not isinstance(part := await run.part(), RunEnded):
                        if isinstance(part, Progress):
                            await call.report(next(call.steps), f"step {part.step}: {part.action} {part.target}")
                except asyncio.CancelledError:
                    if call.aborts and not self.closing.is_set():
                        spec.scope.abort()
                    raise
        state = run.input.state
        assert state is not None, "a run that reaches its end reads its state"
        if run.input.replayed and open_interrupts(state):
            newest = await run.driver.state()
            # The question may have been answered since.
            state = newest if _last_input(newest) == _last_input(state) else state
        return state, part.outcome

    async def resources(self, caller: Caller, cursor: str | None) -> types.ListResourcesResult:
        """Return a page of at most 100 sessions of the caller, newest first, as MCP resources.

        Sessions that cannot be read, or whose id no URI can have, are left out.

        Args:
            caller: The owner of the API key.
            cursor: `nextCursor` of the page before; None for the first page. `McpError` is raised if it is unknown.
        """
        try:
            found, after = await Sessions(self._runs, caller).summaries(_PAGE, cursor, SessionFilter())
        except ProblemError as problem:
            raise McpError(types.ErrorData(code=types.INVALID_PARAMS, message=problem.message)) from None
        listed = [
            types.Resource(
                uri=AnyUrl(_SESSIONS + each["id"]),
                name=each["id"],
                title=each["title"] or each["id"],
                mimeType="application/json",
            )
            for each in found
            if re.fullmatch(SESSION_ID, each["id"])  # sessions of other programs may have ids that no URI has
        ]
        return types.ListResourcesResult(resources=listed, nextCursor=after)

    def templates(self) -> types.ListResourceTemplatesResult:
        """Return the template of the URIs of sessions, `graph-agent://sessions/{session}`."""
        template = types.ResourceTemplate(
            uriTemplate=f"{_SESSIONS}{{session}}",
            name="session",
            description="A session: its status, its open questions and its events.",
            mimeType="application/json",
        )
        return types.ListResourceTemplatesResult(resourceTemplates=[template])

    async def read(
        self, caller: Caller, uri: str, *, not_found: int = types.INVALID_PARAMS
    ) -> types.ReadResourceResult:
        """Return a session's state, open questions and events as one JSON text.

        Args:
            caller: The owner of the API key, whose sessions are reachable.
            uri: URI of the session.
            not_found: Error code of a missing resource, which differs between protocol versions.

        Raises:
            McpError: There is no such session, or the URI has another form; with the code `not_found`.
        """
        sessions, session_id = Sessions(self._runs, caller), uri.removeprefix(_SESSIONS)
        try:
            # Another id could name a thread of another caller.
            if session_id == uri or not re.fullmatch(SESSION_ID, session_id):
                raise ProblemError("not_found", f"There is no resource {uri!r}; sessions are at {_SESSIONS}ID.")
            found = {**await sessions.info(session_id), "events": await sessions.events(session_id, [], -1)}
        except ProblemError as problem:
            raise McpError(types.ErrorData(code=not_found, message=problem.message, data={"uri": uri})) from None
        text = json.dumps(found, ensure_ascii=False, default=str)
        contents = types.TextResourceContents(uri=AnyUrl(uri), mimeType="application/json", text=text)
        return types.ReadResourceResult(contents=[contents])


def _key(meta: Mapping[str, Any]) -> str | None:
    """Return the id in a request's `_meta` by which an input runs only once; None if there is none, or it is empty or
    no text.
    """
    key = meta.get(KEY_IN_META)
    return as_input_id(key) if isinstance(key, str) and key else None


async def _input(
    driver: RunDriver, state: StateSnapshot, text: str, mark: InputId | None, person: str, *, decides: bool
) -> _Step:
    """Return the step for the input of a call.

    - For a repeated input: its stored result, or the continuation of its run.
    - Without an open question: a new input.
    - While calls wait for an approval that the text may not decide: a step that runs nothing, with the reason.
    - Otherwise: the text as the answer to the open question, as JSON if it is.

    Args:
        driver: Starts runs of the session and answers it.
        state: The session's current state.
        text: The input.
        mark: The id by which the input runs only once; None for an input without an id.
        person: Name recorded with decisions.
        decides: Whether the text may decide on calls that wait for an approval.

    Raises:
        InputError: The text does not answer the open question.
        ProblemError: The session waits for the results of its client's own tools (`conflict`).
    """
    open_now = open_interrupts(state)
    if mark is not None and (seen := await driver.inputs.seen(mark)) is not None:
        return _Step(None, mark, runs=seen == "stored" or not open_now)
    if not open_now:
        return _Step({"messages": [HumanMessage(text)]}, mark)
    if client_interrupts(open_now):
        raise ProblemError("conflict", "This session waits for the results of another client's own tools.")
    if waiting_for(open_now) == "approval" and not decides:
        return _Step(runs=False, unused=_UNUSED)
    asked, _ = joint_question(open_now)
    answer = text if request_of(asked[0]) is not None else {asked[0].id: parse_answer(text)}
    return _Step(await driver.answer(answer, person, mark), mark)


async def _answers(driver: RunDriver, state: StateSnapshot, responses: Mapping[str, Any], person: str) -> _Step:
    """Return the step for a reviewer's responses to forms. The same responses are used only once, if a client repeats
    them.

    - Responses that answer open questions resume the session.
    - Responses that do not fit run nothing, and the next forms show the error.
    - Repeated responses get the stored result, or the continuation of the run.
    - Without responses, or if those to open questions decide nothing, nothing runs, and no forms follow.
    - Responses to questions that were decided elsewhere run nothing, and are reported as unused.

    Raises `ProblemError` if calls that must be decided together are only partly decided.
    """
    open_now, digest = open_interrupts(state), digest_of(dict(responses))
    mark = InputId(f"mcp-{digest}", digest)
    try:
        if answers := form_answers(open_now, responses):
            return _Step(await driver.answer(answers, person, mark), mark)
    except DecisionError as error:
        return _Step(runs=False, error=str(error))
    if await driver.inputs.seen(mark) is not None:
        return _Step(None, mark, runs=not open_now)
    if not responses or responses.keys() & (asked := forms(open_now)).keys():
        return _Step(runs=False, dismissed=True)
    # What is open now is asked, with the note.
    return _Step(runs=False, error=_DECIDED, dismissed=not asked, unused=_DECIDED)


def _last_input(state: StateSnapshot) -> Any:
    """Return the id of a session's newest input; None if there is none."""
    return (state.values.get("loop") or {}).get("last_input_id")


def _result(
    session_id: str, state: StateSnapshot, outcome: ChatOutcome | None, *, by_text: bool, unused: str
) -> types.CallToolResult:
    """Return the tool's result for the state in which a call has left its session.

    Its first text is the problem, the answer or the open question; notes about who decides and what was not used
    follow, then the session, status and stop reason as JSON. It is an error after a failure or an abort, and for an
    input that may not decide.

    Args:
        session_id: Id of the session.
        state: The session's state.
        outcome: Outcome of the call's newest run; None if nothing was run.
        by_text: Whether the next input of the tool may decide on waiting calls.
        unused: Why the input or the responses of the call were not used; empty if they were used.
    """
    result, interrupts = stored_input(state), open_interrupts(state)
    waits = waiting_for(interrupts) == "approval" and not by_text
    problem = None if outcome is None else outcome.problem
    question = interrupts_question(interrupts, None)
    if waits:
        question = question_text(joint_question(interrupts)[1], by_text=False)
    notes = [_PERSON_DECIDES] * waits
    output = Output(
        session=session_id,
        status=result.status,
        stop_reason=result.values.get("stop_reason"),
        answer=public_text(text_of(result.newest("agent_response").get("content", ""))),
        structured=to_json_safe(result.values.get("structured_response")),
        # Some clients show a model only the structured result.
        question="\n".join([question, *notes]),
    ).model_dump(mode="json")
    text = problem.message if problem is not None else output["answer"] or question
    # For clients that show a model no structured results, without the text again.
    rest = json.dumps({name: output[name] for name in ("session", "status", "stop_reason")})
    notes += [unused] * bool(unused)
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=each) for each in (text, *notes, rest)],
        structuredContent=output,
        isError=result.status in (SessionStatus.FAILED, SessionStatus.ABORTED) or (waits and bool(unused)),
    )


def _failed(message: str) -> types.CallToolResult:
    """Return a tool result that reports an error."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], isError=True)
