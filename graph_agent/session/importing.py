"""Moves whole sessions: exports, imports and removes them.

A session is one LangGraph thread. Its messages and events are in delta channels: a checkpoint has only what its
superstep wrote, and their value is rebuilt from the writes of its ancestors. A note is an unread command or message to
the session.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, message_to_dict
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent.base._compat.checkpoints import replay_delta
from graph_agent.base._internal.text import check_session_id
from graph_agent.base.errors import DamagedSessionError, InputError, SessionBusyError
from graph_agent.base.history.call_events import as_value
from graph_agent.base.history.events import read_events
from graph_agent.base.inbox import StoreInbox, inbox_namespace, note_from
from graph_agent.core.state.schema import AgentState
from graph_agent.session.activity import lock_idle_session, running_check
from graph_agent.session.history import pending_events, summarize_session
from graph_agent.session.open_input import unfinished_events
from graph_agent.session.pending_feedback import feedback_after
from graph_agent.storage.checkpoints.delta_values import CHANNELS, config_at, delta_values
from graph_agent.storage.checkpoints.format import JOINED, part_of_history
from graph_agent.storage.checkpoints.history_cache import IMPORT_ID
from graph_agent.storage.checkpoints.maintenance import open_tables
from graph_agent.storage.checkpoints.open import open_store
from graph_agent.storage.checkpoints.pruning.plan import Trim, untouched
from graph_agent.storage.checkpoints.pruning.sessions import plan_session
from graph_agent.storage.checkpoints.pruning.tables import StoredWrite, Tables, UnreadableCheckpointError

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

FORMAT, VERSION = "graph-agent-session", 1
"""Name and version of the format of exports."""
_INTERNAL = ("__", "branch:")
"""Prefixes of the names of LangGraph's own channels."""


async def export_session(url: str, session_id: str, *, all_checkpoints: bool = False) -> AsyncGenerator[dict[str, Any]]:
    """Yield the lines of a session's export, as JSON objects.

    The first line describes the session. Lines of the types `message` and `event` are for people and programs that read
    the export; the import uses only those of the types `checkpoint` and `note`. The last line is `{"type": "end",
    "lines": …}`.

    Args:
        url: URL of the database, `sqlite:///FILE` or `postgresql://…`.
        session_id: Id of the session.
        all_checkpoints: Whether to export all checkpoints, so that the imported session can be continued from each.
            Otherwise only those are exported that `prune` would keep.

    Raises:
        ConfigError: The database does not exist, cannot be opened or is one in memory.
        DatabaseLockedError: Another process keeps a SQLite file locked.
        InputError: There is no such session, or its id has a lone surrogate.
        UnreadableCheckpointError: A checkpoint is encrypted or of a newer version.
        DamagedSessionError: A part of the history is missing.
        SessionBusyError: The session is pruned during the export.
    """
    count = 0
    async with aclosing(_lines(url, session_id, all_checkpoints=all_checkpoints)) as lines:
        async for line in lines:
            count += 1
            yield line
    # A file that was cut off at the end of a line would otherwise look complete.
    yield {"type": "end", "lines": count}


async def _lines(url: str, session_id: str, *, all_checkpoints: bool) -> AsyncGenerator[dict[str, Any]]:
    """Yield the lines of an export except the last one: the session, messages, events, checkpoints and notes.

    Messages and events include what follows the newest checkpoint. Raises the errors that `export_session` documents.
    """
    check_session_id(session_id)
    async with open_tables(url) as (tables, saver), open_store(url) as store:
        newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
        if newest is None:
            raise InputError(f"There is no session {session_id!r}; `graph-agent sessions` lists them.")
        summary = asdict(await summarize_session(saver, session_id, newest, running_check(saver)))
        yield {"type": "session", "format": FORMAT, "version": VERSION, **summary, "state": _own_state(newest)}
        try:
            checkpoints = await _chosen(tables, saver, session_id, all_checkpoints=all_checkpoints)
        except UnreadableCheckpointError as error:
            raise UnreadableCheckpointError(f"Session {session_id!r} cannot be exported: {error}.") from None
        history = await read_history(saver, session_id, newest, pending=True)
        for message in history["messages"]:
            yield {"type": "message", "message": _message(message)}
        for event in read_events(history["events"], session_id):
            yield {"type": "event", "event": event}
        async for line in _checkpoints(tables, saver, session_id, *checkpoints):
            yield line
        for note in await StoreInbox(store).read(session_id):
            yield {"type": "note", "key": note.key, "kind": note.kind, "content": note.content}


async def read_history(
    saver: BaseCheckpointSaver[Any],
    session_id: str,
    newest: CheckpointTuple,
    *,
    pending: bool = False,
    store: BaseStore | None = None,
) -> dict[str, Any]:
    """Return the messages and events of a session at a checkpoint, as `{"messages": […], "events": […]}`.

    Args:
        saver: The checkpointer.
        session_id: Id of the session.
        newest: The checkpoint.
        pending: Whether to include what follows the checkpoint: entries of calls that have finished while others of
            their wave run or wait, the first events of an input whose first plan is not stored, and feedback that no
            run has read.
        store: The Store of the agent, for that feedback; None for the one in the checkpointer's database.

    Raises:
        DamagedSessionError: A part of the history is missing, or a pruning has removed the checkpoint.
    """
    values, versions = newest.checkpoint["channel_values"], newest.checkpoint["channel_versions"]
    stored = {name: getattr(values[name], "value", values[name]) for name in CHANNELS if name in values}
    missing = [name for name in CHANNELS if name in versions and name not in stored]
    rebuilt = await delta_values(saver, (session_id, ""), newest.checkpoint["id"], missing) if missing else {}
    history = {**dict.fromkeys(CHANNELS, ()), **stored, **rebuilt}
    if not pending:
        return history
    history = {name: _with_writes(name, entries, newest) for name, entries in history.items()}
    if not pending_events(newest):
        history["events"] = [*history["events"], *(await unfinished_events(saver, newest) or ())]
    history["events"] = [*history["events"], *await feedback_after(saver, store, newest)]
    return history


def _with_writes(channel: str, entries: Sequence[Any], newest: CheckpointTuple) -> Sequence[Any]:
    """Return the entries of a channel, followed by what the tasks of a checkpoint have written to it."""
    writes = [write for write in newest.pending_writes or () if write[1] == channel]
    return replay_delta(CHANNELS[channel], {"seed": list(entries), "writes": writes}) if writes else entries


def _own_state(newest: CheckpointTuple) -> dict[str, Any]:
    """Return the user's own state fields at a checkpoint as plain JSON, sorted by name."""
    values = newest.checkpoint["channel_values"]
    names = [name for name in values if name not in AgentState.__annotations__ and not name.startswith(_INTERNAL)]
    return {name: as_value(values[name]) for name in sorted(names)}


def _message(message: Any) -> Any:
    """Return a message as plain JSON."""
    return as_value(message_to_dict(message) if isinstance(message, BaseMessage) else message)


Moved = Mapping[tuple[str, str], Sequence[tuple[str, str, bytes]]]
"""(Namespace, checkpoint id) → the writes that this checkpoint receives from removed ones: channel, type and value."""


async def _chosen(
    tables: Tables, saver: BaseCheckpointSaver[Any], session_id: str, *, all_checkpoints: bool
) -> tuple[Mapping[str, Trim], Moved]:
    """Return the checkpoints to export, namespace → `Trim`, and the writes that they receive from those left out.

    All checkpoints are exported if `all_checkpoints` is set or `prune` would remove none; otherwise those that `prune`
    would keep. They receive those writes of the others that the values of their channels need. Raises
    `UnreadableCheckpointError` for an encrypted checkpoint, or one of a newer version.
    """
    plan = None if all_checkpoints else await plan_session(tables, saver, session_id)
    if plan is not None:
        return plan.namespaces, plan.moved
    stored = await tables.load(session_id)
    return {name: untouched(rows, "") for name, rows in sorted(stored.items())}, {}


async def _checkpoints(
    tables: Tables, saver: BaseCheckpointSaver[Any], session_id: str, plans: Mapping[str, Trim], moved: Moved
) -> AsyncIterator[dict[str, Any]]:
    """Yield a line for each exported checkpoint, parents first, with its own writes and those that it receives.

    `plans` is namespace → the checkpoints to export, and `moved` (namespace, id) → the writes that a checkpoint
    receives from those that are left out. Raises `SessionBusyError` if a checkpoint was pruned meanwhile.
    """
    writes: dict[tuple[str, str], list[StoredWrite]] = {}
    for write in await tables.stored_writes(session_id):
        writes.setdefault((write.namespace, write.checkpoint_id), []).append(write)
    for namespace, plan in plans.items():
        parents, parts = plan.parents(), {part.ids[0] for part in plan.parts}
        for id_ in plan.parents_first():
            found = await saver.aget_tuple(part_of_history(config_at((session_id, namespace), id_)))
            if found is None:
                raise SessionBusyError(f"Session {session_id!r} was pruned during its export; export it again.")
            own = writes.get((namespace, id_), []) if id_ not in parts or plan.rows[id_].is_part else []
            own += [StoredWrite(namespace, id_, JOINED, "", *write) for write in moved.get((namespace, id_), ())]
            parent = parents.get(id_, plan.rows[id_].parent)
            yield {
                "type": "checkpoint",
                "namespace": namespace,
                "id": id_,
                "parent": parent if parent in plan.rows else None,  # another program may have removed it
                "metadata": plan.metadata_of(id_),
                "checkpoint": _packed(*saver.serde.dumps_typed(found.checkpoint)),
                "writes": [
                    {
                        "task_id": write.task_id,
                        "task_path": write.task_path,
                        "channel": write.channel,
                        "value": _packed(write.type, write.value),
                    }
                    for write in own
                ],
            }


def _packed(kind: str, stored: bytes) -> list[str]:
    """Return a serialized value as `[type, Base64 text]`, for a line of an export.

    `kind` is the type of the serializer.
    """
    return [kind, base64.b64encode(stored or b"").decode()]


Line = dict[str, Any]
"""A line of an export."""


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A checkpoint of an export, with its writes."""

    namespace: str
    parent: str | None
    """Id of the parent checkpoint; None if it has none."""
    checkpoint: Any
    metadata: Any
    writes: list[tuple[str, str, str, Any]]
    """Task id, task path, channel and value of each write."""

    def store(self, saver: BaseCheckpointSaver[Any], session_id: str) -> None:
        """Store the checkpoint and its writes under a session's id, by the blocking methods of a checkpointer.

        The namespace, the id and the parent remain those of the export.
        """
        at: RunnableConfig = {"configurable": {"thread_id": session_id, "checkpoint_ns": self.namespace}}
        if self.parent is not None:
            at["configurable"]["checkpoint_id"] = self.parent
        stored = saver.put(at, self.checkpoint, self.metadata, self.checkpoint["channel_versions"])
        for (task_id, path), of_task in groupby(self.writes, key=lambda write: write[:2]):
            listed = [(channel, value) for _, _, channel, value in of_task]
            # LangGraph stores the writes to special channels under fixed numbers, and the others in their order.
            special = [write for write in listed if write[0] in WRITES_IDX_MAP]
            for writes in (
                [write for write in listed if write[0] not in WRITES_IDX_MAP],
                *([each] for each in special),
            ):
                if writes:
                    saver.put_writes(stored, writes, task_id, path)


async def import_session(
    url: str, lines: Iterable[str], *, session_id: str | None = None, replace: bool = False
) -> str:
    """Store an exported session in a database, and return its id. All lines are parsed and checked first.

    A missing SQLite file is created. The open interrupts of the session can be answered there, and its unread notes
    take effect. The import is one transaction: after an error, or if the process is killed, the database is as before.

    Args:
        url: The database, `sqlite:///FILE` or `postgresql://…`.
        lines: The lines of the export, as JSON texts.
        session_id: The id to import it under; None for the id in the export.
        replace: Whether a session with the same id is replaced.

    Raises:
        ConfigError: If the database cannot be opened.
        DatabaseLockedError: If another process keeps a SQLite file locked.
        InputError: If the lines are no complete export of a known version, there is no id or an invalid one, or the
            session exists and `replace` is not set.
        SessionBusyError: If the session is running.
    """
    numbered = _complete(lines)
    id_ = session_id or str(numbered[0][1].get("id") or "")
    if not id_:
        raise InputError("Line 1 has no session id; give one.")
    check_session_id(id_)
    async with _open(url, create=True) as (tables, saver):
        import_id = uuid.uuid4().hex
        read = {
            number: _checkpoint(number, line, saver, import_id)
            for number, line in numbered
            if line["type"] == "checkpoint"
        }
        _check_ancestry(read)
        recorder, statements = tables.recorder(saver.serde)
        # Read from memory first, so that no session is replaced with one that cannot be read.
        _store(InMemorySaver(serde=saver.serde), id_, read.values())
        _store(recorder, id_, read.values())
        notes = [note_from(str(line.get("key")), line) for _, line in numbered if line["type"] == "note"]
        items = [(note.key, note.as_value()) for note in notes if note is not None]
        async with lock_idle_session(saver, id_):
            if not replace and await saver.aget_tuple({"configurable": {"thread_id": id_}}) is not None:
                raise InputError(
                    f"The session {id_!r} exists already; import it under another id, or replace the existing one."
                )
            await tables.replace(id_, statements, ".".join(inbox_namespace(id_)), items)
    return id_


def _store(saver: BaseCheckpointSaver[Any], session_id: str, checkpoints: Iterable[_Checkpoint]) -> None:
    """Store checkpoints under a session's id. If the checkpointer is in memory, also read the newest one, as a check.

    Raises `InputError` if a checkpoint has no valid form, so that it cannot be stored or read.
    """
    try:
        for each in checkpoints:
            each.store(saver, session_id)
        if isinstance(saver, InMemorySaver):
            saver.get_tuple({"configurable": {"thread_id": session_id}})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"The export has a checkpoint that cannot be stored: {error!r}. Export it again.") from error


async def background_sessions(saver: BaseCheckpointSaver[Any], session_id: str) -> list[str]:
    """Return the ids of the sessions of a session's background tasks (delegations that are not waited for), and of
    their background tasks.

    A session comes after the one that began it. A session with a damaged history adds none.
    """
    found = [session_id]
    for each in found:  # it grows: input to a task's session may have begun tasks of its own
        found += await _named_tasks(saver, each)
    return found[1:]


async def _named_tasks(saver: BaseCheckpointSaver[Any], session_id: str) -> list[str]:
    """Return the ids of the sessions of a session's own background tasks, from its events, without duplicates.

    Empty if there is no such session, or its history is damaged. Only ids that begin with `<session_id>:` are returned.
    """
    newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    try:
        events = [] if newest is None else (await read_history(saver, session_id, newest, pending=True))["events"]
    except DamagedSessionError:
        return []
    # A remote agent chooses the id of its task, and a fork has the events of another session.
    named = dict.fromkeys(str(each.get("background", "")) for each in events)
    return [each for each in named if each.startswith(f"{session_id}:")]


@asynccontextmanager
async def lock_for_removal(saver: BaseCheckpointSaver[Any], session_id: str) -> AsyncIterator[list[str]]:
    """Lock a session and the sessions of its background tasks within the context, and yield their ids.

    The ids are in the order in which to remove the sessions: a session that began others comes after them. Raises
    `SessionBusyError` if a run of one of them is in progress.
    """
    async with AsyncExitStack() as locks:
        found = [session_id]
        for each in found:  # it grows; a locked session begins no further tasks
            await locks.enter_async_context(lock_idle_session(saver, each))
            found += await _named_tasks(saver, each)
        # A session that names others goes after them, as the process may be killed in between.
        yield found[::-1]


async def remove_sessions(url: str, session_ids: Iterable[str]) -> AsyncGenerator[str]:
    """Delete sessions and those of their background tasks.

    One transaction deletes a session's checkpoints, with the records of its calls, and its unread notes. If one fails,
    the earlier ones stay deleted.

    Args:
        url: The database, `sqlite:///FILE` or `postgresql://…`.
        session_ids: The sessions.

    Yields:
        The id of each given session that existed, after its removal; not those of background tasks.

    Raises:
        SessionBusyError: A run of one is in progress.
        InputError: An id has a lone surrogate.
        ConfigError: The database does not exist or cannot be opened.
    """
    async with _open(url) as (tables, saver):
        for id_ in map(check_session_id, session_ids):
            async with lock_for_removal(saver, id_) as removed:
                existed = await saver.aget_tuple({"configurable": {"thread_id": id_}}) is not None
                for each in removed:
                    await tables.replace(each, (), ".".join(inbox_namespace(each)), ())
            if existed:
                yield id_


@asynccontextmanager
async def _open(url: str, *, create: bool = False) -> AsyncIterator[tuple[Tables, BaseCheckpointSaver[Any]]]:
    """Open the tables of a database and of its Store, with a checkpointer; close them on exit.

    Missing tables of the Store are created; a missing SQLite file only with `create`. Raises `ConfigError` if the
    database does not exist or cannot be opened.
    """
    async with open_tables(url, create=create) as opened, open_store(url) as store:
        await StoreInbox(store).read("")  # creates the tables of the Store
        yield opened


def _complete(lines: Iterable[str]) -> list[tuple[int, Line]]:
    """Parse all lines of an export, and return each with its number in the file, counted from 1.

    Raises `InputError` if they are not an export, or one of another version, one that was cut off, or one without a
    checkpoint.
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
    """Yield each line that is not blank, parsed, with its number, which is counted from 1 and includes blank lines.

    Raises `InputError` at a line that is no JSON object with a text as its `type`.
    """
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"Line {number} of the export is no JSON: {error}.") from None
        if not isinstance(line, dict) or not isinstance(line.get("type"), str):
            raise InputError(f'Line {number} of the export is no JSON object with a "type".')
        yield number, line


def _checkpoint(number: int, line: Line, saver: BaseCheckpointSaver[Any], import_id: str) -> _Checkpoint:
    """Parse a line of type `checkpoint`, and add the id of the import to its metadata.

    Raises `InputError` if a field is missing or invalid.

    Args:
        number: Number of the line, for the error.
        saver: The checkpointer whose serializer reads the values.
        import_id: Id of the import.
    """
    try:
        return _Checkpoint(
            namespace=line["namespace"],
            parent=line["parent"],
            checkpoint=_fields(_loads(saver, line["checkpoint"])),
            metadata={**line["metadata"], IMPORT_ID: import_id},
            writes=[
                (each["task_id"], each["task_path"], each["channel"], _loads(saver, each["value"]))
                for each in line["writes"]
            ],
        )
    except (KeyError, TypeError, ValueError, NotImplementedError, binascii.Error) as error:
        raise InputError(f"Line {number} of the export is no valid checkpoint: {error!r}.") from None


def _check_ancestry(checkpoints: Mapping[int, _Checkpoint]) -> None:
    """Check that each checkpoint follows its parent.

    Raises `InputError` if a parent is missing, an id is repeated, or the session's own namespace has no checkpoint.

    Args:
        checkpoints: Line number → checkpoint, in the order of the lines.
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
    """Return a checkpoint unchanged; raise `TypeError` if it lacks a field of LangGraph's checkpoints."""
    if not isinstance(checkpoint, dict) or not {"id", "ts", "channel_values", "channel_versions"} <= checkpoint.keys():
        raise TypeError(f"it holds a {type(checkpoint).__name__} in place of a checkpoint")
    return checkpoint


def _loads(saver: BaseCheckpointSaver[Any], packed: tuple[str, str]) -> Any:
    """Return the value that was packed by `_packed`.

    Raises `binascii.Error` for invalid Base64, and the serializer's error for an invalid value.
    """
    kind, stored = packed
    return saver.serde.loads_typed((kind, base64.b64decode(stored, validate=True)))
