"""Implements the methods of ACP, by which an editor drives an agent, with the sessions of one agent."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, cast

from acp import PROTOCOL_VERSION, RequestError, run_agent, schema

from graph_agent.base._internal.failure_log import exception_text, log_failure
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base.approvals.decisions import standing_approval, standing_approval_covers
from graph_agent.base.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.base.errors import UserError
from graph_agent.base.types import SessionStatus
from graph_agent.interfaces.acp import conversion
from graph_agent.session.activity import running_check
from graph_agent.session.history import summarize_sessions
from graph_agent.session.results import Done, EventAdded, Part, RunResult, is_refusal, since_last_input
from graph_agent.session.session import Session

if TYPE_CHECKING:
    from acp import Agent, Client
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.types import Interrupt

    from graph_agent.interfaces.acp.transport import StdioTransport
    from graph_agent.session.compiled import CompiledAgentGraph

logger = logging.getLogger("graph_agent.acp.agent")

_LISTED = 100
"""Maximum number of sessions in a page of the list."""
_POLL_S = 0.25
"""Seconds between two aborts of a run that has not begun."""
_RESUME = "/resume"
_COMMANDS = schema.AvailableCommandsUpdate(
    session_update="available_commands_update",
    available_commands=[
        schema.AvailableCommand(
            name="resume", description="Continue a run that was interrupted, or ask its questions again."
        )
    ],
)
ASK, APPROVE = "ask", "approve"
_MODES = [
    schema.SessionMode(id=ASK, name="Ask", description="Ask before each call that needs an approval."),
    schema.SessionMode(
        id=APPROVE, name="Approve", description="Approve calls without a question, unless one may have run before."
    ),
]
_STOP_REASONS: dict[str, schema.StopReason] = {
    "step_limit": "max_turn_requests",
    "turn_limit": "max_turn_requests",
    "recursion_limit": "max_turn_requests",
    "deadline": "max_turn_requests",
    "token_limit": "max_tokens",
    "cost_limit": "max_tokens",
    "aborted": "cancelled",
}
"""Reasons of a run → those of ACP; `end_turn` for any other."""


async def serve_acp(graph: CompiledAgentGraph, transport: StdioTransport, *, user: str) -> None:
    """Serve an agent to one client over ACP until the client closes its stream and all its requests are answered.

    Args:
        graph: The agent, compiled with a checkpointer.
        transport: Exchanges messages with the client.
        user: Name of the reviewer at the editor; it is recorded with each decision on a call.
    """
    await run_agent(cast("Agent", EditorAgent(graph, user)), transport)


class EditorAgent:
    """Implements the methods of ACP that a client calls, for the sessions of one agent.

    The parameters of the methods have the names of the protocol; parameters that are not declared are ignored. Failures
    are raised as `RequestError`, the protocol's error.
    """

    def __init__(self, graph: CompiledAgentGraph, user: str) -> None:
        self._graph = graph
        self._user = user
        self._sessions: dict[str, EditorSession] = {}

    def on_connect(self, client: Client) -> None:
        """Store the connection to the client. The package `acp` calls it once, before any other method."""
        self._client = client

    async def initialize(self, **_: Any) -> schema.InitializeResponse:
        """Return the protocol version, the agent's name and version, and its capabilities: sessions can be loaded and
        listed, prompts may have images, audio and embedded resources, and no authentication is needed.
        """
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_info=schema.Implementation(name=self._graph.name, version=metadata.version("graph-agent")),
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=True, embedded_context=True),
                session_capabilities=schema.SessionCapabilities(list=schema.SessionListCapabilities()),
            ),
            auth_methods=[],
        )

    async def new_session(self, mcp_servers: Sequence[Any] | None = None, **_: Any) -> schema.NewSessionResponse:
        """Begin a session with a random id in the mode "ask"; return the id and the modes.

        Afterwards the available commands are sent to the client. MCP servers of the client are not connected: a warning
        with their names is logged.
        """
        session = self._add(uuid.uuid4().hex, mcp_servers)
        return schema.NewSessionResponse(session_id=session.id, modes=session.modes)

    async def load_session(
        self, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> schema.LoadSessionResponse:
        """Open a stored session, send its whole history to the client, and return the modes; the mode is "ask" again.

        Afterwards the available commands are sent to the client. MCP servers of the client are not connected: a warning
        with their names is logged.

        Raises:
            RequestError: The database has no events of a session with this id, the session cannot be read, or a prompt
                of it is under way.
        """
        with _reported():
            # The history would mix with the updates of the prompt.
            if session_id in self._sessions:
                self._sessions[session_id].check_idle()
            if not (events := await Session(self._graph, session_id).events()):
                raise _no_session(session_id)
            session = self._add(session_id, mcp_servers)
            for event in events:
                await session.send(session.projection.event(event))
            return schema.LoadSessionResponse(modes=session.modes)

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        """Return up to 100 sessions of the agent's database, newest first. Sessions that cannot be read are left out,
        so that a page may be shorter.

        Args:
            cwd: Working directory that is reported for every session, because the stored sessions have none. None for
                the current directory of the process.
            cursor: `next_cursor` of the page before, which is the id of its last session; None for the first page.

        Raises:
            RequestError: The session `cursor` no longer exists, or the database fails.
        """
        with _reported():
            saver = cast("BaseCheckpointSaver[Any]", self._graph.checkpointer)
            try:
                # One more than a page shows whether another page follows.
                found = await summarize_sessions(saver, running_check(saver), after=cursor, limit=_LISTED + 1)
            except KeyError:
                raise RequestError(-32602, f"There is no session {cursor!r} any more; list from the start.") from None
            page = found[:_LISTED]
            folder = cwd or os.getcwd()
            return schema.ListSessionsResponse(
                sessions=[
                    schema.SessionInfo(
                        session_id=each.id, cwd=folder, title=each.title or None, updated_at=each.updated_at
                    )
                    for each in page
                    if each.activity not in ("newer", "damaged")
                ],
                next_cursor=page[-1].id if len(found) > _LISTED else None,
            )

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> schema.SetSessionModeResponse:
        """Set whether the client is asked about calls that need an approval ("ask"), or they are approved without
        asking ("approve").

        Even then the client is asked about a call that may not be approved, may have run before, or has a destination
        from untrusted text. Raises `RequestError` for an unknown mode, or a session that this connection has neither
        begun nor loaded.
        """
        if mode_id not in (ASK, APPROVE):
            raise RequestError(-32602, f"There is no mode {mode_id!r}; modes: {ASK}, {APPROVE}.")
        self._session(session_id).modes.current_mode_id = mode_id
        return schema.SetSessionModeResponse()

    async def prompt(
        self, prompt: Sequence[conversion.PromptBlock], session_id: str, **_: Any
    ) -> schema.PromptResponse:
        """Run a prompt until it has ended or waits for a further message, and return why it stopped (see
        `EditorSession.prompt`).

        Raises `RequestError` if the client has neither begun nor loaded the session, another prompt of it is under way,
        or the run fails.
        """
        with _reported():
            return await self._session(session_id).prompt(prompt)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Abort the prompt that a session is answering, and wait until it has ended.

        Does nothing if no prompt is under way.

        The response to the prompt has the stop reason `cancelled`. Raises `RequestError` if the client has neither
        begun nor loaded the session.
        """
        with _reported():
            await self._session(session_id).cancel()

    def _add(self, session_id: str, mcp_servers: Sequence[Any] | None) -> EditorSession:
        """Create the `EditorSession` of a session, replacing an earlier one of the same id, and return it.

        A task sends the available commands to the client afterwards. If there are MCP servers, their names are logged
        as not used.
        """
        if mcp_servers:
            names = ", ".join(str(each.name) for each in mcp_servers)
            logger.warning("The editor's MCP servers are not used: %s. Declare them in the agent file.", names)
        session = self._sessions[session_id] = EditorSession(self._graph, session_id, self._client, self._user)
        # The client does not know a new session before the response, which is sent first.
        session.announcing = asyncio.create_task(session.send([_COMMANDS]))
        return session

    def _session(self, session_id: str) -> EditorSession:
        """Return a session that the client has begun or loaded; raise `RequestError` if there is none."""
        if (session := self._sessions.get(session_id)) is None:
            raise _no_session(session_id)
        return session


class EditorSession:
    """One session that the client has begun or loaded. At most one prompt of it runs at a time.

    Args:
        graph: The agent.
        session_id: Id of the session.
        client: The connection to the client.
        user: Name of the reviewer at the editor; it is recorded with each decision.
    """

    def __init__(self, graph: CompiledAgentGraph, session_id: str, client: Client, user: str) -> None:
        self.id = session_id
        self.modes = schema.SessionModeState(available_modes=_MODES, current_mode_id=ASK)
        self.projection = conversion.AcpProjection(graph.builder.writes)
        self.announcing: asyncio.Task[None] | None = None
        """The task that sends the available commands to the client; None until the session is added."""
        self._session = Session(graph, session_id)
        self._client = client
        self._user = user
        self._prompt: object | None = None
        """A new object for each prompt, which identifies the one under way; None if none is."""
        self._cancelled = False
        """Whether the prompt under way was cancelled."""
        self._asking: asyncio.Future[Any] | None = None
        """The pending permission request to the client; None if there is none."""
        self._aborting = asyncio.Lock()
        """Held while the session is aborted, so that a new prompt waits for the abort of the last one."""

    async def send(self, updates: Iterable[conversion.AcpUpdate | schema.AvailableCommandsUpdate]) -> None:
        """Send updates to the client, in order."""
        for update in updates:
            await self._client.session_update(session_id=self.id, update=update)

    def check_idle(self) -> None:
        """Raise `RequestError` if a prompt is under way."""
        if self._prompt is not None:
            raise RequestError(-32600, f"Session {self.id} is answering another prompt; cancel it first.")

    async def prompt(self, blocks: Sequence[conversion.PromptBlock]) -> schema.PromptResponse:
        """Run a prompt, ask the client for permission whenever calls wait for an approval, and return why the run
        stopped.

        The stop reason is `cancelled` after `cancel`, `end_turn` after an answer or a question that needs a text, and
        otherwise the limit or refusal that ended the run. Raises `RequestError` if another prompt is under way, or the
        run fails, and errors of `Session`, e.g. `SessionBusyError`, unchanged.
        """
        self.check_idle()
        self._prompt, self._cancelled = object(), False
        try:
            async with self._aborting:
                pass  # an abort of the last prompt would stop the run of this one
            return await self._run(blocks)
        finally:
            self._prompt = None

    async def cancel(self) -> None:
        """Cancel the prompt that is under way: withdraw the pending permission request, and abort the run.

        The abort is repeated every 0.25 s until the prompt has ended, because its run may not have begun yet. Without a
        prompt, nothing is aborted.
        """
        prompt, self._cancelled = self._prompt, True
        if self._asking is not None:
            self._asking.cancel()
        # The run may not have begun.
        while prompt is not None and self._prompt is prompt:
            async with self._aborting:
                if self._prompt is prompt:
                    await self._session.abort()
            await asyncio.sleep(_POLL_S)

    async def _run(self, blocks: Sequence[conversion.PromptBlock]) -> schema.PromptResponse:
        """Run one prompt with all its permission requests, and return the response to it.

        If questions are open and none of them is an approval request, the prompt is the answer to them. The prompt
        `/resume`, alone in its text, continues an interrupted run, or asks the open questions again. Otherwise the
        prompt is a new message of the user. A question that only a text can answer is sent as a message of the agent,
        and ends the prompt. If the client cancels the prompt or a permission, the session is aborted, and the response
        is `cancelled`. Raises `RequestError` if a block is invalid, an answer of the client is an error, or the run
        fails, and errors of `Session` unchanged.
        """
        message, waiting = conversion.prompt_message(blocks), await self._session.interrupts()
        parts: AsyncGenerator[Part[Any]] | None = None
        count, result = 0, None
        is_new = False
        if message.text.strip() == _RESUME:
            if waiting:
                count = len(await self._session.events())
            else:
                parts = self._session.stream_resume(reasoning=True)
        elif waiting and not any(map(conversion.is_permission, waiting)):
            answer = conversion.answer_of(waiting, message.text)
            parts = self._session.stream_resume(answer, decided_by=self._user, reasoning=True)
        else:
            parts, is_new = self._session.stream([message], reasoning=True), True
        while True:
            if parts is not None:
                result = await self._consume(parts, is_new=is_new)
                waiting, count, is_new = result.interrupts, len(result.events), False
            if waiting and not self._cancelled and any(map(conversion.is_permission, waiting)):
                answers = await self._ask(waiting)
                if answers is not None:
                    parts = self._session.stream_resume(answers, reasoning=True)
                    continue
            if self._cancelled:
                await self._abort_waiting(count)
                return schema.PromptResponse(stop_reason="cancelled")
            if waiting or result is None:
                await self.send([conversion.agent_message(conversion.interrupt_question(waiting))])
                return schema.PromptResponse(stop_reason="end_turn")
            # Follow-ups have run, too: the result is that of the last one.
            return _response(result)

    async def _consume(self, parts: AsyncGenerator[Part[Any]], *, is_new: bool) -> RunResult[Any]:
        """Send the updates of a run to the client, and return the result of the run.

        If queued messages ran after it, the result of the last one is returned.

        Args:
            parts: The stream of the run, which is closed in any case.
            is_new: Whether the run's first user message is the prompt itself. It is not sent, because the client has
                it.
        """
        result: RunResult[Any] | None = None
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Done):
                    result = part.result
                elif is_new and isinstance(part, EventAdded) and part.event["type"] == "user_message":
                    is_new = False
                else:
                    await self.send(self.projection.part(part))
        assert result is not None, "each stream has a `Done`"
        return result

    async def _ask(self, interrupts: Sequence[Interrupt]) -> dict[str, Any] | None:
        """Ask the client about every call that waits for an approval, one after the other.

        In the mode "approve", calls are approved without asking, except those that an approval in advance may not
        cover. Returns interrupt id → `{"decisions": [...]}` for the interrupts that are approval requests; None as soon
        as the client has cancelled one of the questions or the prompt, so that later calls are not asked about. An
        error response of the client is raised as `RequestError`.
        """
        answers: dict[str, Any] = {}
        for interrupt in filter(conversion.is_permission, interrupts):
            request = request_of(interrupt)
            assert request is not None, "`is_permission` has read it"
            decisions: list[Any] = []
            for call in calls_of_request(request):
                if self.modes.current_mode_id == APPROVE and standing_approval_covers(call):
                    # The history records that the call was approved without a question.
                    decisions.append(standing_approval(self._user))
                    continue
                decision = await self._ask_about(call, request)
                if decision is None:
                    return None
                decisions.append({**decision, "decided_by": self._user})
            answers[interrupt.id] = {"decisions": decisions}
        return answers

    async def _ask_about(self, call: HeldCall, request: Any) -> Any:
        """Ask the client for permission to run one call, and return the decision; None if the client cancelled the
        question or the prompt. A cancelled question cancels the prompt, too. An error response of the client is raised
        as `RequestError`.

        Args:
            call: The call that waits.
            request: The approval request that contains the call. If a delegate planned the call, it names the
                delegation.
        """
        delegation = request.get("delegation")
        id_ = self.projection.name(call["id"] if delegation is None else delegation)
        name = id_ if delegation is None else f"{id_}/{call['id']}"
        await self.send(self.projection.call(name, call["name"], call["arguments"], "pending"))
        if self._cancelled:
            return None
        self._asking = asyncio.ensure_future(
            self._client.request_permission(
                session_id=self.id,
                tool_call=conversion.permission_call(name, call, request),
                options=conversion.options_for(call),
                allowedDecisions=call["allowed_decisions"],
            )
        )
        try:
            await asyncio.wait([self._asking])
            decision = None if self._asking.cancelled() else conversion.decision_of(self._asking.result())
        finally:
            self._asking.cancel()
            self._asking = None
        # A client that cancels its prompt cancels the question, too; one that cancels the question only means both.
        self._cancelled = self._cancelled or decision is None
        return decision

    async def _abort_waiting(self, count: int) -> None:
        """Abort a session that waits for an answer, and send the client the results that its open calls receive.

        Args:
            count: Number of events of the session that the client has already.
        """
        async with self._aborting:
            await self._session.abort()
        for event in await self._session.events(after=count - 1):
            await self.send(self.projection.event(event))


def _response(result: RunResult[Any]) -> schema.PromptResponse:
    """Return the response to a prompt whose run has ended, with the reason in the protocol's terms.

    A refusal by the model or its content filter is `refusal`, even if the run failed. Otherwise a limit of steps, turns
    or time is `max_turn_requests`, a limit of tokens or cost, or a cut answer, `max_tokens`, an abort `cancelled`, and
    any other end `end_turn`. This project's own reason is added in `_meta`. Raises `RequestError` if the run failed for
    any other reason.
    """
    reason = _STOP_REASONS.get(result.stop_reason or "", "max_tokens" if result.truncated == "length" else "end_turn")
    if "content_filter" in (result.truncated, result.error_kind) or is_refusal(since_last_input(result.events)):
        reason = "refusal"
    elif result.status == SessionStatus.FAILED:
        raise RequestError(-32603, mask_secrets(result.error) or "The input failed.", {"kind": result.error_kind})
    return schema.PromptResponse(stop_reason=reason, field_meta={"stopReason": result.stop_reason})


def _no_session(session_id: str) -> RequestError:
    """Return the error for an unknown session."""
    return RequestError(-32002, f"There is no session {session_id!r}; load one of session/list, or begin one.")


@contextmanager
def _reported() -> Iterator[None]:
    """Context manager that converts every `Exception` of its body to `RequestError`.

    A `UserError` becomes an error with the code -32602. Any other exception is logged and gets the code -32603, with
    secrets masked in its text. A `RequestError` passes unchanged, and so does a cancellation.
    """
    try:
        yield
    except RequestError:
        raise
    except UserError as error:
        raise RequestError(-32602, str(error)) from error
    except Exception as error:
        log_failure(logger, "A request of the editor", error)
        raise RequestError(-32603, mask_secrets(exception_text(error))) from error
