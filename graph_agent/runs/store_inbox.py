"""Notes to sessions in LangGraph's Store, so that other processes can send them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from langgraph.store.base import BaseStore, Op, PutOp, SearchOp

from graph_agent._internal.sync_bridge import in_blocking_run, to_its_end
from graph_agent.runs.inbox import Note, note_from

_PAGE = 100


def inbox_namespace(session_id: str) -> tuple[str, ...]:
    """The Store namespace that holds one session's notes.

    Any client of the Store may put a note there: its key is `<20-digit time in ns>-<anything unique>`, its value
    `{"kind": "steer" | "follow_up" | "abort" | "configure", "content": …}`.
    """
    return _namespace("inbox", session_id)


def _namespace(kind: str, box: str) -> tuple[str, ...]:
    # A namespace label may hold no period.
    return ("graph_agent", kind, box.replace("%", "%25").replace(".", "%2E"))


class StoreInbox:
    """An `Inbox` in a Store.

    Args:
        store: The store; one that only blocks is used from a thread.
        kind: What its notes are to; those of one kind are never among those of another.
    """

    def __init__(self, store: BaseStore, kind: str = "inbox") -> None:
        self._store = store
        self._kind = kind

    async def add(self, session_id: str, note: Note) -> None:
        """As `Inbox.add`."""
        value = {"kind": note.kind, "content": note.content}
        await self._do([PutOp(_namespace(self._kind, session_id), note.key, value, index=False)])

    async def read(self, session_id: str) -> list[Note]:
        """As `Inbox.read`."""
        namespace = _namespace(self._kind, session_id)
        if await self._is_empty(namespace):
            return []
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
        namespace = _namespace(self._kind, session_id)
        await self._do([PutOp(namespace, key, None) for key in keys])

    async def _is_empty(self, namespace: tuple[str, ...]) -> bool:
        """Whether there is surely nothing, where the store can say so at less than the cost of a search."""
        peek = getattr(self._store, "is_empty", None)
        return peek is not None and self._is_here() and bool(await peek(namespace))

    def _is_here(self) -> bool:
        # A store with a loop of its own is asked on that loop; elsewhere its locks and futures are of no use.
        loop = getattr(self._store, "loop", None)
        return not in_blocking_run.get() and loop in (None, asyncio.get_running_loop())

    async def _do(self, ops: Sequence[Op]) -> list[Any]:
        if self._is_here():
            try:
                return await to_its_end(self._store.abatch(ops))
            except NotImplementedError:
                pass  # a store that only blocks
        return await asyncio.to_thread(self._store.batch, ops)
