"""Notes to sessions in LangGraph's Store, so that other processes can send them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from langgraph.store.base import BaseStore, Op, PutOp, SearchOp

from graph_agent.blocking import in_blocking_run, to_its_end
from graph_agent.steering import Note, note_from

_PAGE = 100


def inbox_namespace(session_id: str) -> tuple[str, ...]:
    """The Store namespace that holds one session's notes.

    Any client of the Store may put a note there: its key is `<20-digit time in ns>-<anything unique>`, its value
    `{"kind": "steer" | "follow_up" | "abort" | "configure", "content": …}`.
    """
    # A namespace label may hold no period.
    return ("graph_agent", "inbox", session_id.replace("%", "%25").replace(".", "%2E"))


class StoreInbox:
    """An `Inbox` in a Store.

    Args:
        store: The store; one that only blocks is used from a thread.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    async def add(self, session_id: str, note: Note) -> None:
        """As `Inbox.add`."""
        value = {"kind": note.kind, "content": note.content}
        await self._do([PutOp(inbox_namespace(session_id), note.key, value, index=False)])

    async def read(self, session_id: str) -> list[Note]:
        """As `Inbox.read`."""
        namespace = inbox_namespace(session_id)
        notes: list[Note] = []
        read = 0
        while True:
            (found,) = await self._do([SearchOp(namespace, limit=_PAGE, offset=read)])
            # A search matches by prefix.
            notes += [
                note for item in found if item.namespace == namespace if (note := note_from(item.key, item.value))
            ]
            read += len(found)
            if len(found) < _PAGE:
                return sorted(notes, key=lambda note: note.key)

    async def forget(self, session_id: str, keys: Collection[str]) -> None:
        """As `Inbox.forget`."""
        namespace = inbox_namespace(session_id)
        await self._do([PutOp(namespace, key, None) for key in keys])

    async def _do(self, ops: Sequence[Op]) -> list[Any]:
        # A store with a loop of its own is asked on that loop; elsewhere its locks and futures are of no use.
        loop = getattr(self._store, "loop", None)
        if not in_blocking_run.get() and loop in (None, asyncio.get_running_loop()):
            try:
                return await to_its_end(self._store.abatch(ops))
            except NotImplementedError:
                pass  # a store that only blocks
        return await asyncio.to_thread(self._store.batch, ops)
