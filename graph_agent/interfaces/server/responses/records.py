"""Stores responses in the database of the sessions, so that every process finds them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from typing_extensions import TypedDict

from graph_agent.base._internal.polling import polling
from graph_agent.interfaces.server.admission.gate import Caller
from graph_agent.interfaces.server.host import Host
from graph_agent.interfaces.server.problems import ProblemError
from graph_agent.interfaces.server.responses.ids import token_of_item, token_of_response

logger = logging.getLogger("graph_agent.server.responses.records")

_RESPONSES = ("graph_agent", "responses")
"""Start of the namespaces of responses.

Each day has its own namespace, so that old ones are deleted without reading all.
"""
KEYS = ("graph_agent", "response_keys")
"""Namespace in which the response of each idempotency key is stored."""
_KEYS_OF_DAY = "keys"
"""Last part of the namespace with the keys of a day, which are deleted together with the responses of the day."""
_PAGE = 500
"""Maximum number of entries that are read and deleted at a time."""
_EVERY_S = 3600.0
"""Seconds between two deletions of expired responses."""
OPEN_STATUSES = ("queued", "in_progress")
"""Statuses of a response that has not ended."""


class Record(TypedDict):
    """One stored response."""

    response: dict[str, Any]
    """The response object."""
    input: list[dict[str, Any]]
    """The items of the request."""
    session: str
    """Id of the session."""
    calls: dict[str, str]
    """Calls of the caller's tools that wait: the caller's id → the model's id."""
    checkpoint: str | None
    """Id of the session's checkpoint at the end of the response; None if its run was stopped, or has not ended."""


class Records:
    """The stored responses of one caller, the owner of an API key. Those of other callers cannot be reached."""

    def __init__(self, host: Host, caller: Caller) -> None:
        self._store = host.store
        self._caller = caller
        self.owner = caller.name

    async def put(self, token: str, record: Record) -> None:
        """Store the response with a token, replacing an earlier record of it."""
        await self._store.aput(_namespace(token), self._key(token), dict(record), index=False)

    async def find(self, token: str) -> Record | None:
        """Return the response with a token; None if it is not stored."""
        # The key has the caller's name, so that another caller's id is not found.
        item = await self._store.aget(_namespace(token), self._key(token))
        return cast("Record", item.value) if item is not None else None

    async def get(self, id_: str) -> Record:
        """Return a response by its id; raise `ProblemError` (`not_found`) if it is not stored."""
        if (found := await self._find(id_)) is None:
            raise ProblemError("not_found", f"Response with id {id_!r} not found.", param="response_id")
        return found

    async def previous(self, id_: str) -> Record:
        """Return the response that a request continues, by its id.

        Raises `ProblemError` (`previous_response`) if it is not stored.
        """
        if (found := await self._find(id_)) is None:
            message = f"Previous response with id {id_!r} not found."
            raise ProblemError("previous_response", message, param="previous_response_id")
        return found

    async def _find(self, id_: str) -> Record | None:
        """Return a response by its id; None if it is not stored, or the id is not that of a response."""
        token = token_of_response(id_)
        return await self.find(token) if token is not None else None

    async def delete(self, token: str) -> None:
        """Delete the response with a token, with its events. Does nothing if it is not stored."""
        await self._store.adelete(_namespace(token), self._key(token))
        batch = 0
        # Batches are numbered without a gap, so the first missing one is the end.
        while await self.events(token, batch) is not None:
            await self._store.adelete(_events(token), self._batch(token, batch))
            batch += 1

    async def put_events(self, token: str, batch: int, events: Sequence[dict[str, Any]]) -> None:
        """Store a batch of events of a background response. Batches are numbered from 0, without a gap."""
        await self._store.aput(_events(token), self._batch(token, batch), {"events": list(events)}, index=False)

    async def events(self, token: str, batch: int) -> list[dict[str, Any]] | None:
        """Return a batch of a background response's events; None if it is not stored."""
        item = await self._store.aget(_events(token), self._batch(token, batch))
        return item.value["events"] if item is not None else None

    def thread(self, record: Record) -> str:
        """Return the LangGraph thread of the session that a response belongs to."""
        return self.thread_of(record["session"])

    def thread_of(self, session_id: str) -> str:
        """Return the LangGraph thread of one of the caller's sessions."""
        return self._caller.thread(session_id)

    async def items(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return all stored input and output items of the responses to which the given item ids belong, id → item.

        Ids of unknown form, and of responses that are not stored, are ignored.
        """
        tokens = {token for id_ in ids if (token := token_of_item(id_)) is not None}
        found: dict[str, dict[str, Any]] = {}
        for token in tokens:
            if (record := await self.find(token)) is not None:
                found |= {item["id"]: item for item in (*record["input"], *record["response"]["output"])}
        return found

    def _batch(self, token: str, batch: int) -> str:
        """Return the store key of a batch of events."""
        return f"{self._key(token)}:{batch:06d}"

    def _key(self, token: str) -> str:
        """Return the store key of the response with a token."""
        return f"{self._caller.name}:{token}"


def deleting_expired(host: Host) -> AbstractAsyncContextManager[None]:
    """Context manager that deletes expired responses on entry and every hour. Failures are logged."""
    return polling(lambda: delete_expired(host), _EVERY_S, logger, "Deleting expired responses")


async def delete_expired(host: Host) -> int:
    """Delete responses older than `response_s` seconds, in whole days, with their events and keys; return the number of
    deleted entries.
    """
    # Whole days: a namespace is a day, and is deleted without reading each response.
    before = _day(time.time() - host.settings.response_s)
    deleted = 0
    for namespace in await host.store.alist_namespaces(prefix=_RESPONSES, limit=10_000):
        if namespace[len(_RESPONSES)] >= before:
            continue
        while found := await host.store.asearch(namespace, limit=_PAGE):
            for item in found:
                if item.namespace[-1] == _KEYS_OF_DAY:
                    await host.store.adelete(KEYS, item.key)
                await host.store.adelete(item.namespace, item.key)
            deleted += len(found)
    return deleted


def keys_of_day(token: str) -> tuple[str, ...]:
    """Return the namespace of the idempotency keys that belong to the day of a response's token."""
    return (*_namespace(token), _KEYS_OF_DAY)


def _namespace(token: str) -> tuple[str, ...]:
    """Return the store namespace of the responses that were made on the same UTC day as a token."""
    return (*_RESPONSES, _day(int(token[:8], 16)))


def _events(token: str) -> tuple[str, ...]:
    """Return the store namespace of the events of responses that were made on the same UTC day as a token."""
    return (*_namespace(token), "events")


def _day(seconds: float) -> str:
    """Return the UTC day of a time in seconds since 1970, e.g. `20260131`."""
    # Text that sorts like the time, in UTC: processes may have different time zones.
    return time.strftime("%Y%m%d", time.gmtime(max(0.0, seconds)))
