"""Import of an exported session (see `exporting`), and removal of sessions."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver
from langgraph.store.base import BaseStore

from graph_agent.errors import InputError
from graph_agent.persistence.maintenance import open_tables
from graph_agent.persistence.open import open_store
from graph_agent.runs.inbox import Note, StoreInbox, inbox_namespace, note_from
from graph_agent.runs.registry import lock_idle_session
from graph_agent.session.exporting import FORMAT, VERSION

Line = dict[str, Any]
_PAGE = 100
"""Items that one search of the Store returns."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """One checkpoint of an export."""

    namespace: str
    parent: str | None
    checkpoint: Any
    metadata: Any
    writes: list[tuple[str, str, str, Any]]
    """Task id, task path, channel and value."""

    async def store(self, saver: BaseCheckpointSaver[Any], session_id: str) -> None:
        """Store it under a session's id."""
        at: RunnableConfig = {"configurable": {"thread_id": session_id, "checkpoint_ns": self.namespace}}
        if self.parent is not None:
            at["configurable"]["checkpoint_id"] = self.parent
        stored = await saver.aput(at, self.checkpoint, self.metadata, self.checkpoint["channel_versions"])
        for (task_id, path), of_task in groupby(self.writes, key=lambda write: write[:2]):
            listed = [(channel, value) for _, _, channel, value in of_task]
            # LangGraph stores the writes to special channels under fixed numbers, and the others in their order.
            special = [write for write in listed if write[0] in WRITES_IDX_MAP]
            for writes in (
                [write for write in listed if write[0] not in WRITES_IDX_MAP],
                *([each] for each in special),
            ):
                if writes:
                    await saver.aput_writes(stored, writes, task_id, path)


async def import_session(
    url: str, lines: Iterable[str], *, session_id: str | None = None, replace: bool = False
) -> str:
    """Store an exported session in a database, and return its id.

    Its open interrupts can be answered there, and its unread notes take effect. Nothing is stored if a line is invalid
    or missing.

    Args:
        url: The database: `sqlite:///FILE`, created if it does not exist, or `postgresql://…`.
        lines: The lines of the export.
        session_id: The id of the imported session; None for that of the export.
        replace: Whether to delete a session of the same id first.

    Raises:
        ConfigError: If the database cannot be opened.
        InputError: If the lines are no complete export of a known version, or the session exists and `replace` is not
            set.
        SessionBusyError: If the session is running.
    """
    numbered = _complete(lines)
    id_ = session_id or str(numbered[0][1].get("id") or "")
    if not id_:
        raise InputError("Line 1 has no session id; give one.")
    async with open_tables(url, create=True) as (_, saver), open_store(url) as store:
        read = {number: _checkpoint(number, line, saver) for number, line in numbered if line["type"] == "checkpoint"}
        _check_ancestry(read)
        checkpoints = [*read.values()]
        notes = [note_from(str(line.get("key")), line) for _, line in numbered if line["type"] == "note"]
        async with lock_idle_session(saver, id_):
            if await saver.aget_tuple({"configurable": {"thread_id": id_}}) is not None:
                if not replace:
                    raise InputError(
                        f"The session {id_!r} exists already; import it under another id, or replace the existing one."
                    )
                # Stored under another id first, so that the session is deleted only for one that can be read.
                rehearsal = f"{id_}/import/{uuid4().hex}"
                try:
                    await _store(saver, store, rehearsal, checkpoints, [])
                finally:
                    await _delete(saver, store, rehearsal)
                await _delete(saver, store, id_)
            try:
                await _store(saver, store, id_, checkpoints, notes)
            except BaseException:
                await _delete(saver, store, id_)
                raise
    return id_


async def _store(
    saver: BaseCheckpointSaver[Any],
    store: BaseStore,
    session_id: str,
    checkpoints: Iterable[_Checkpoint],
    notes: Iterable[Note | None],
) -> None:
    """Store a session, and read its newest checkpoint.

    Raises:
        InputError: If the checkpoints do not fit together.
    """
    try:
        for each in checkpoints:
            await each.store(saver, session_id)
        await saver.aget_tuple({"configurable": {"thread_id": session_id}})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"The export has a checkpoint that cannot be stored: {error!r}. Export it again.") from error
    for note in notes:
        if note is not None:
            await StoreInbox(store).add(session_id, note)


async def remove_session(saver: BaseCheckpointSaver[Any], store: BaseStore, session_id: str) -> bool:
    """Delete a session: its checkpoints, its effect ledger in them, and what the Store holds for it.

    Args:
        saver: The saver of the session.
        store: The Store of the same database.
        session_id: The session.

    Returns:
        Whether there was such a session.

    Raises:
        SessionBusyError: If a run of it is under way.
    """
    async with lock_idle_session(saver, session_id):
        existed = await saver.aget_tuple({"configurable": {"thread_id": session_id}}) is not None
        await _delete(saver, store, session_id)
    return existed


async def _delete(saver: BaseCheckpointSaver[Any], store: BaseStore, session_id: str) -> None:
    await saver.adelete_thread(session_id)
    package, _, name = inbox_namespace(session_id)
    for namespace in await store.alist_namespaces(prefix=(package,), suffix=(name,)):
        while found := [
            each for each in await store.asearch(namespace, limit=_PAGE) if each.namespace[:3] == namespace
        ]:
            for item in found:
                await store.adelete(item.namespace, item.key)


def _complete(lines: Iterable[str]) -> list[tuple[int, Line]]:
    """Parse and check the lines; return each with its number.

    Raises:
        InputError: If they are no complete export of a known version.
    """
    found = list(_parsed(lines))
    first = found[0][1] if found else {}
    if first.get("type") != "session" or first.get("format") != FORMAT:
        raise InputError(f'The file is no export of a session: its first line has no "format": "{FORMAT}".')
    if first.get("version") != VERSION:
        raise InputError(
            f"The export has version {first.get('version')!r} of its format, and this program reads version {VERSION}; "
            "import it with the program that wrote it, or a newer one."
        )
    last = found[-1][1]
    if last["type"] != "end" or last.get("lines") != len(found) - 1:
        raise InputError(f"The export is not complete: line {found[-1][0]} is not its end. Export the session again.")
    if not any(line["type"] == "checkpoint" for _, line in found):
        raise InputError("The export has no checkpoint. Export the session again.")
    return found


def _parsed(lines: Iterable[str]) -> Iterator[tuple[int, Line]]:
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise InputError(f"Line {number} of the export is no JSON: {error}.") from None
        if not isinstance(line, dict) or not isinstance(line.get("type"), str):
            raise InputError(f'Line {number} of the export is no JSON object with a "type".')
        yield number, line


def _checkpoint(number: int, line: Line, saver: BaseCheckpointSaver[Any]) -> _Checkpoint:
    """Read a line of type `checkpoint`.

    Raises:
        InputError: If a field is missing or invalid.
    """
    try:
        return _Checkpoint(
            namespace=line["namespace"],
            parent=line["parent"],
            checkpoint=_fields(_loads(saver, line["checkpoint"])),
            metadata=line["metadata"],
            writes=[
                (each["task_id"], each["task_path"], each["channel"], _loads(saver, each["value"]))
                for each in line["writes"]
            ],
        )
    except (KeyError, TypeError, ValueError, NotImplementedError, binascii.Error) as error:
        raise InputError(f"Line {number} of the export is no valid checkpoint: {error!r}.") from None


def _check_ancestry(checkpoints: Mapping[int, _Checkpoint]) -> None:
    """Check that each checkpoint follows its parent.

    Args:
        checkpoints: Line number → checkpoint, in the order of the lines.

    Raises:
        InputError: If a parent is missing, an id is repeated, or the session's own namespace has no checkpoint.
    """
    known: dict[tuple[str, str], int] = {}
    for number, each in checkpoints.items():
        id_ = each.checkpoint["id"]
        if each.parent is not None and (each.namespace, each.parent) not in known:
            raise InputError(
                f"Line {number} of the export: the checkpoint {id_!r} has the parent {each.parent!r}, which no line "
                "before it has. Nothing was imported; export the session again."
            )
        if (first := known.setdefault((each.namespace, id_), number)) != number:
            raise InputError(
                f"Line {number} of the export repeats the checkpoint {id_!r} of line {first}. Nothing was imported; "
                "export the session again."
            )
    if not any(namespace == "" for namespace, _ in known):
        raise InputError(
            "The export has only checkpoints of delegates or subgraphs, and none of the session itself. Nothing was "
            "imported; export the session again."
        )


def _fields(checkpoint: Any) -> Any:
    """Return a checkpoint that has the fields of LangGraph's.

    Raises:
        TypeError: If it has not.
    """
    if not isinstance(checkpoint, dict) or not {"id", "ts", "channel_values", "channel_versions"} <= checkpoint.keys():
        raise TypeError(f"it holds a {type(checkpoint).__name__} in place of a checkpoint")
    return checkpoint


def _loads(saver: BaseCheckpointSaver[Any], packed: tuple[str, str]) -> Any:
    kind, stored = packed
    return saver.serde.loads_typed((kind, base64.b64decode(stored, validate=True)))
