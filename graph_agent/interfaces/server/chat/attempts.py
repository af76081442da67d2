"""Recognizes requests that clients repeat without a key, so that no call that may write runs twice.

A client that has lost an answer, or received a failure, sends its request again. An attempt is one such request, of an
agent with a tool that may write, without a session and without an `Idempotency-Key`. A record in the database names the
thread of the attempt by caller and digest of the request. It is deleted once the answer is sent, and kept for
`retry_ttl_s` seconds if the run fails or is cut off; an equal request then continues the thread. Equal requests run one
at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.types import StateSnapshot
from starlette.requests import Request

from graph_agent.base._internal.polling import polling
from graph_agent.base._internal.signals import Drainable
from graph_agent.base.errors import SessionBusyError
from graph_agent.base.input_ids import InputId, digest_of, input_id_in
from graph_agent.interfaces.server.admission.body import run_in_thread
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.chat.run_spec import RunSpec, pending_names, resolve_run, with_output_options
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.host import Host, all_items, thread_token
from graph_agent.interfaces.server.problems import stopping
from graph_agent.session.activity import lock_idle_session
from graph_agent.session.deduplicator import InputDeduplicator

logger = logging.getLogger("graph_agent.server.chat.attempts")

_PARSED = frozenset({"messages", "input"})
"""Fields of a body that are compared in their parsed form, because ids and states of messages differ between repeated
requests.
"""
_TRANSPORT = frozenset({"stream", "stream_options", "client_metadata"})
"""Fields of a body that are not compared: how the answer is sent, and what differs when a client repeats a request."""
_TURN_METADATA = "x-codex-turn-metadata"
"""Header, or entry of `client_metadata`, in which Codex names the turn of a request.

It is the same when Codex repeats it.
"""

_ATTEMPTS = ("graph_agent", "attempts")
"""Store namespace of the records: `CALLER:DIGEST` → thread, token, session, and time of expiry."""


def turn_id(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """Return the id of the turn that a client such as Codex names; None if it names none.

    It is looked for in `client_metadata` of the body and then in the headers: the entry `turn_id`, or else `turn_id` in
    the JSON of the entry `x-codex-turn-metadata`, which may be a text or an object. Values that are not valid JSON, and
    ids that are empty or no text, are skipped.
    """
    metadata = body.get("client_metadata")
    # Over a WebSocket, the headers are those of the connection, which lasts for many turns.
    for named in (metadata if isinstance(metadata, Mapping) else {}, headers):
        given = named.get(_TURN_METADATA)
        try:
            parsed = json.loads(given) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            parsed = None
        for found in (named.get("turn_id"), parsed.get("turn_id") if isinstance(parsed, Mapping) else None):
            if isinstance(found, str) and found:
                return found
    return None


def _mark_and_messages(
    content: bytes, headers: Mapping[str, str], messages: list[AnyMessage], parsed: Sequence[Any]
) -> tuple[InputId, list[AnyMessage]]:
    """Return the mark of a request, which is equal when the request is repeated, and its messages.

    The mark is a digest of the body, without how the answer is sent, of the messages, of `parsed` and of the turn. If
    the client names its turn, assistant messages without calls are removed from the end of the messages, but never the
    only message: they are the text of the answer that the client has received so far.

    Args:
        content: The body as bytes.
        headers: The headers, which may name the turn.
        messages: The parsed messages.
        parsed: Further parsed content by which requests differ.
    """
    body = json.loads(content.decode("utf-8-sig"))
    turn = turn_id(headers, body)
    sent = list(messages)
    while turn is not None and len(sent) > 1 and isinstance(sent[-1], AIMessage) and not sent[-1].tool_calls:
        # A client that names its turn repeats it with the text that it has received of the answer.
        sent.pop()
    others = {name: value for name, value in body.items() if name not in _PARSED | _TRANSPORT and value is not None}
    digest = digest_of([others, sent, *parsed, turn])
    return InputId(f"request {digest}", digest), sent


@dataclass(slots=True)
class Attempt:
    """One attempt of a request. No equal request of the caller runs until `aclose` ends the attempt."""

    host: Host
    caller: Caller
    mark: InputId
    """The digest of the request, as the input id by which the input runs only once."""
    token: str | None = None
    """Name of the thread, or of the response, of the first attempt; None for a new request."""
    session: str | None = None
    """Id of the session of the first attempt; None for a request without a session."""
    is_answered: bool = False
    """Whether the client was sent an answer, so that an equal request later is a new input."""
    waits: bool = False
    """Whether the answer asks for results or decisions, so that the client continues the thread with its next
    request.
    """
    _thread: str | None = None
    """The thread of a request without a session; None until it is known."""
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _closing: asyncio.Task[None] | None = None

    async def resolve(self, request: ChatRequest) -> RunSpec:
        """Return the run of a request without a session.

        It continues the thread of an earlier attempt of this request if there is one. Otherwise it is the run of
        `resolve_run`; unless that resumes a waiting thread, it gets a stored thread, which is recorded for the next
        attempt before the run starts. Raises `ProblemError` if the request is invalid.
        """
        for name in (*pending_names(request), self.token):
            if name is not None and (continued := await self._continued(name, request)) is not None:
                self._thread = continued.thread
                return continued
        spec = await resolve_run(self.host, self.caller, request)
        if not spec.is_resume:
            token = self.token or thread_token()
            spec = replace(spec, graph=self.host.kept, thread=self.caller.pending_thread(token), token=token)
            # Before the run starts: a process that is killed in it leaves the record behind.
            await self.put(token)
        self._thread = spec.thread
        spec.scope.mark = self.mark
        return replace(spec, is_attempt=True)

    async def has_begun(self, session: str) -> bool:
        """Return whether a session has received the input of this request, in this or any other attempt."""
        return (
            await InputDeduplicator(self.host.saver, self.host.kept.aget_state, self.caller.thread(session)).seen(
                self.mark
            )
            is not None
        )

    async def _continued(self, name: str, request: ChatRequest) -> RunSpec | None:
        """Return the run that continues the thread with the token `name`; None if the thread has not received this
        request.

        An input that failed or was aborted continues from the newest checkpoint before that, unless calls are open
        there; then its stored outcome is the answer.
        """
        thread = self.caller.pending_thread(name)
        spec = with_output_options(RunSpec(self.host.kept, thread, None, request.context(), None, name), request)
        newest = await self.host.saver.aget_tuple(spec.config)
        if newest is None or input_id_in(newest.metadata) != self.mark:
            return None
        spec.scope.mark = self.mark
        spec.scope.continues_at = await before_failure(self.host, spec)
        return replace(spec, is_attempt=True)

    async def put(self, token: str, session: str | None = None, ttl_s: float | None = None) -> None:
        """Set `token` and `session`, and store them in a record, by which a later equal request continues this one.

        Args:
            token: Name of the thread or of the response.
            session: Id of the session; None for a request without a session.
            ttl_s: Seconds to keep the record; None or 0 for the longer of the settings `pending_ttl_s` and
                `retry_ttl_s`.
        """
        self.token, self.session = token, session
        settings = self.host.settings
        until = time.time() + (ttl_s or max(settings.pending_ttl_s, settings.retry_ttl_s))
        thread = self.caller.pending_thread(token) if session is None else None
        value = {"thread": thread, "token": token, "session": session, "until": until}
        await self.host.store.aput(_ATTEMPTS, self._key, value, index=False)

    @property
    def _key(self) -> str:
        """Key of the record in the store: the name of the caller's API key, a colon, and the digest of the request."""
        return f"{self.caller.name}:{self.mark.digest}"

    async def begin(self, check: Callable[[], Awaitable[None]], runs: Drainable) -> None:
        """Wait until no equal request runs, then exclude other equal requests until `aclose`, and read the record of an
        earlier attempt.

        Sets `token` and `session` from the record, unless there is none or it has expired. If this method raises, other
        requests are no longer excluded.

        Args:
            check: Awaited after the wait; may raise to end the attempt.
            runs: The runs of this process. If the server is stopping, `ProblemError` is raised during the wait.
        """

        def refuse_if_draining() -> None:
            """Raise `ProblemError` if the server is stopping."""
            if runs.draining:
                raise stopping()

        claim = self.host.claim(_claim_of(self._key), refuse_if_draining)
        await self._stack.enter_async_context(claim)
        try:
            await check()
            item = await self.host.store.aget(_ATTEMPTS, self._key)
            if item is not None and item.value["until"] > time.time():
                self.token, self.session = item.value["token"], item.value["session"]
        except BaseException:
            await self._stack.aclose()
            raise

    async def aclose(self) -> None:
        """End the attempt, so that the next equal request may begin.

        The record and the thread of an answered request are deleted; otherwise they are kept for `retry_ttl_s` seconds.
        The work continues if the call is cancelled, and is done once if this is called twice.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="end of an attempt")
            self.host.closing.add(self._closing)
            self._closing.add_done_callback(self.host.closing.discard)
        # A client that has the end of its answer may leave at once, which cancels this task.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        """Update the record and the thread, then let the next equal request begin.

        If the request was answered, the record is deleted, and the thread unless it waits for the client. Otherwise the
        record, or without one the thread, is kept for `retry_ttl_s` seconds.
        """
        async with self._stack.pop_all():
            if self.is_answered:
                await self._forget()
            elif self.token is not None:
                await self.put(self.token, self.session, self.host.settings.retry_ttl_s)
            elif self._thread is not None:
                await self.host.suspend(self._thread, self.host.settings.retry_ttl_s)

    async def _forget(self) -> None:
        """Delete the record of this attempt, if it has one, and the thread of its run.

        A thread that waits for the client's answer isn't deleted but kept for the setting `pending_ttl_s`, so that the
        next request can continue it.
        """
        # The client may never send the answer, so even a waiting thread gets a time at which it may be deleted.
        if self._thread is not None and self.waits:
            await self.host.suspend(self._thread)
        elif self._thread is not None:
            await self.host.forget(self._thread)
        if self.token is not None:
            await self.host.store.adelete(_ATTEMPTS, self._key)


async def attempt_of(
    host: Host,
    runs: Drainable,
    caller: Caller,
    http_request: Request,
    messages: list[AnyMessage],
    parsed: Sequence[Any],
) -> tuple[Attempt, list[AnyMessage]]:
    """Wait until no equal request of the caller runs; return the new attempt, and the messages.

    An attempt is one of several equal requests by which a client repeats a request without a key. If the client names
    its turn, the text of the answer that it has received so far is removed from the end of the messages.

    Args:
        host: The open agent.
        runs: The runs of this process, which report whether the server is stopping.
        caller: The owner of the API key.
        http_request: The request; its credentials are a part of what must be equal.
        messages: The parsed messages.
        parsed: Further parsed content by which requests differ.

    Raises:
        ProblemError: The client has left during the wait, the server is stopping, or a credential header occurs twice.
    """
    content = await http_request.body()
    # Without keys, credentials are all that distinguishes users.
    credentials = {name: each.get_secret_value() for name, each in host.credentials_of(http_request).items()}
    parsed = (*parsed, credentials)
    mark, sent = await run_in_thread(http_request, _mark_and_messages, content, http_request.headers, messages, parsed)
    attempt = Attempt(host, caller, mark)

    async def refuse_if_gone() -> None:
        """Raise `ProblemError`, which is never delivered, if the client has left."""
        if await http_request.is_disconnected():
            raise stopping()  # never delivered

    await attempt.begin(refuse_if_gone, runs)
    return attempt, sent


async def before_failure(host: Host, spec: RunSpec) -> str | None:
    """Return the id of the checkpoint from which a failed or aborted input can continue, so that no call runs again.

    It is the newest checkpoint before the failure. None if calls are open at this checkpoint, if it belongs to another
    input or does not exist, or if the input has not failed.
    """
    state: StateSnapshot = await host.kept.aget_state(spec.config)
    if state.tasks or state.values.get("status") not in ("FAILED", "ABORTED"):
        return None
    while (config := state.parent_config) is not None:
        state = await host.kept.aget_state(config)
        if input_id_in(state.metadata or {}) != spec.scope.mark:
            return None
        outcome = (state.values.get("loop") or {}).get("outcome") or {}
        if state.next and outcome.get("stop_reason") not in ("failed", "aborted"):
            is_between_calls = not {"tools", "delegate", "approve"} & {*state.next}
            return str(state.config["configurable"]["checkpoint_id"]) if is_between_calls else None
    return None


def _claim_of(key: str) -> str:
    """Return the name of the lock by which equal requests run one at a time, for the key of their record."""
    return f"request/{key}"


def deleting_attempts(host: Host) -> AbstractAsyncContextManager[None]:
    """Context manager that deletes expired records with their threads in the background, every `retry_ttl_s / 2`
    seconds, but at least 1 and at most 60.
    """
    every_s = max(1.0, min(60.0, host.settings.retry_ttl_s / 2))
    return polling(lambda: delete_attempts(host), every_s, logger, "Deleting expired attempts of requests")


async def delete_attempts(host: Host) -> int:
    """Delete the expired records with their threads, except those whose request is running.

    Return the number of deleted records.
    """
    deleted = 0
    for item in await all_items(host.store, _ATTEMPTS):
        if item.value["until"] > time.time():
            continue
        with suppress(SessionBusyError):
            # A record whose request runs is in use.
            async with lock_idle_session(host.saver, _claim_of(item.key)):
                # An equal request may have begun meanwhile.
                current = await host.store.aget(_ATTEMPTS, item.key)
                if current is None or current.value["until"] > time.time():
                    continue
                if item.value["thread"] is not None:
                    await host.forget(item.value["thread"])
                await host.store.adelete(_ATTEMPTS, item.key)
                deleted += 1
    return deleted
