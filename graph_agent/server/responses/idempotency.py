"""Handles idempotency keys: a repeated request gets the stored response, or continues an unfinished one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from typing_extensions import TypedDict

from graph_agent.errors import SessionBusyError
from graph_agent.inputs.deduplicator import InputDeduplicator
from graph_agent.runs.input_ids import InputId, digest_of
from graph_agent.runs.registry import lock_idle_session
from graph_agent.server.admission.gate import Caller
from graph_agent.server.chat.run_spec import token_of_key, with_key
from graph_agent.server.chat.schemas import ChatRequest
from graph_agent.server.hosting.host import Host
from graph_agent.server.problems import ProblemError, key_reused
from graph_agent.server.responses.records import KEYS, keys_of_day, response_id
from graph_agent.server.responses.schemas import CreateResponse
from graph_agent.server.sse import frame

_EMPTY: dict[str, Any] = {"status": "in_progress", "content": [], "arguments": ""}
"""Fields of an item at its begin."""
_POLL_S = 0.02


class KeyedResponse(TypedDict):
    """The response of the first request with a key."""

    token: str
    """Its token."""
    session: str
    """Its session."""
    digest: str
    """Digest of the request's body."""


@dataclass(frozen=True, slots=True)
class Key:
    """The idempotency key of one request for a stored response.

    Args:
        mark: The key, with a digest of the request's body, without how the answer is sent.
    """

    host: Host
    caller: Caller
    mark: InputId

    @classmethod
    def of(cls, host: Host, caller: Caller, key: str | None, body: CreateResponse) -> Key | None:
        """Return the key of a request; None without one.

        Raises:
            ProblemError: If the key is not valid.
        """
        if (mark := with_key(ChatRequest([]), key).mark) is None:
            return None
        digest = digest_of(body.model_dump(mode="json", exclude={"stream", "stream_options"}))
        return cls(host, caller, InputId(mark.id, digest))

    def session_of(self, request: ChatRequest, token: str) -> str:
        """Return the session of a request; that of a new chain is equal for each repetition."""
        is_new = request.session_id in (None, response_id(token))
        return response_id(self._token) if is_new else str(request.session_id)

    @property
    def _token(self) -> str:
        return token_of_key(self.caller, self.mark.id)

    @asynccontextmanager
    async def claimed(self) -> AsyncIterator[None]:
        """Exclude other requests with this key, in every process on the database, while a session is chosen."""
        here = self.host.response_keys.setdefault(self._token, asyncio.Lock())
        # Only the first of this process polls: many that poll at once take more time than the work between.
        async with here, AsyncExitStack() as stack:
            while True:
                try:
                    await stack.enter_async_context(lock_idle_session(self.host.saver, f"response-key/{self._token}"))
                    break
                except SessionBusyError:
                    await asyncio.sleep(_POLL_S)
            yield

    async def resolve(
        self, first: KeyedResponse | None, resolve: Callable[[str | None], Awaitable[ChatRequest]], token: str
    ) -> ChatRequest:
        """Return a request with its session: that of the first request with this key, once it has received the input.

        Args:
            first: The first request; None if this is the first one.
            resolve: Returns the request for a session; None as its argument: for the session that it names or begins.

        Raises:
            ProblemError: If the request cannot be resolved.
        """
        while True:
            begun = first["session"] if first is not None and await self.has_begun(first["session"]) else None
            try:
                request = await resolve(begun)
            except ProblemError:
                if begun is None and first is not None and await self.has_begun(first["session"]):
                    continue  # the first request has moved the session meanwhile
                raise
            if begun is not None:
                return replace(request, mark=self.mark)
            if first is None or not await self.has_begun(first["session"]):
                break
        session = self.session_of(request, token)
        await self.put(token, session)
        before = None if request.before is None else partial(self._unless_begun, session, request.before)
        return replace(request, mark=self.mark, session_id=session, before=before)

    async def _unless_begun(self, session: str, check: Callable[[], Awaitable[None]]) -> None:
        """Check that a session can receive the input, unless it has received it from a request with this key."""
        if not await self.has_begun(session):
            await check()

    async def first(self) -> KeyedResponse | None:
        """Return the response of the first request with this key; None for a new key.

        Raises:
            ProblemError: If that was a different request.
        """
        item = await self.host.store.aget(KEYS, self._token)
        if item is None:
            return None
        found = cast("KeyedResponse", item.value)
        if found["digest"] != self.mark.digest:
            raise key_reused()
        return found

    async def put(self, token: str, session: str) -> None:
        """Record the response of this key; the key expires with the response."""
        value = {"token": token, "session": session, "digest": self.mark.digest}
        await self.host.store.aput(keys_of_day(token), self._token, {}, index=False)
        await self.host.store.aput(KEYS, self._token, value, index=False)

    async def has_begun(self, session: str) -> bool:
        """Whether a session has received the input of this key."""
        admission = InputDeduplicator(self.host.saver, self.host.kept.aget_state, self.caller.thread(session))
        return await admission.seen(self.mark) is not None


def replay(response: dict[str, Any]) -> Iterator[str]:
    """Yield the events of a response that has ended, each text as one piece."""
    number = 0

    def event(type_: str, **fields: Any) -> str:
        nonlocal number
        number += 1
        return frame({"type": type_, "sequence_number": number - 1, **fields}, type_)

    opened = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None, "error": None}
    yield event("response.created", response=opened)
    yield event("response.in_progress", response=opened)
    for index, item in enumerate(response["output"]):
        started = {name: empty for name, empty in _EMPTY.items() if name in item}
        yield event("response.output_item.added", output_index=index, item={**item, **started})
        for type_, fields in _pieces(item):
            yield event(f"response.{type_}", item_id=item["id"], output_index=index, **fields)
        yield event("response.output_item.done", output_index=index, item=item)
    endings = {"completed": "completed", "failed": "failed"}
    yield event(f"response.{endings.get(response['status'], 'incomplete')}", response=response)
    yield "data: [DONE]\n\n"


def _pieces(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events between the begin and the end of an item: type, fields."""
    for at, part in enumerate(item.get("content") or () if item["type"] == "message" else ()):
        place = {"content_index": at}
        name = "refusal" if part["type"] == "refusal" else "text"
        kind = "refusal" if name == "refusal" else "output_text"
        extra: dict[str, Any] = {} if name == "refusal" else {"logprobs": []}
        yield "content_part.added", {**place, "part": {**part, name: ""}}
        yield f"{kind}.delta", {**place, "delta": part[name], **extra}
        yield f"{kind}.done", {**place, name: part[name], **extra}
        yield "content_part.done", {**place, "part": part}
    if item["type"] in ("function_call", "mcp_call"):
        named = {"name": item["name"]} if item["type"] == "function_call" else {}
        kind = f"{item['type']}_arguments"
        yield f"{kind}.delta", {"delta": item["arguments"]}
        yield f"{kind}.done", {"arguments": item["arguments"], **named}
