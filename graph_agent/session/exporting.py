"""Export of a session to JSON lines, and import into the same or another database.

The lines of format 1, each a JSON object with a `type`:

- `session`, the first one: `format` and `version` of the format; `id`, `title`, `status`, `activity`, `turns` and
  `updated_at` as in `SessionSummary`; `state`, the agent's own state fields;
- `message`, for each message of the conversation: `message` in LangChain's form;
- `event`, for each event of the history: `event`;
- `checkpoint`, parents first: `namespace`, `id`, `parent`, `metadata`, `checkpoint` and `writes`;
- `note`, for each unread note to the session: `key`, `kind` and `content`;
- `end`, the last one: the number of `lines` before it.

An import reads the checkpoints and notes; the other lines are for readers. Stored values are `[type, base64]`, in the
form of LangGraph's serializer.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from typing import Any

from langchain_core.messages import BaseMessage, message_to_dict
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from graph_agent._compat.deltas import delta_snapshot
from graph_agent.errors import InputError, SessionBusyError
from graph_agent.events.json_values import as_value
from graph_agent.events.types import read_events
from graph_agent.persistence.maintenance import open_tables
from graph_agent.persistence.open import open_store
from graph_agent.persistence.pruning.copies import CHANNELS, delta_values
from graph_agent.persistence.pruning.plan import NamespacePlan, Rule, plan_thread
from graph_agent.persistence.pruning.tables import StoredWrite, Tables
from graph_agent.persistence.pruning.threads import rule
from graph_agent.runs.inbox import StoreInbox
from graph_agent.runs.registry import is_idle
from graph_agent.session.summaries import summarize_session
from graph_agent.state.schema import AgentState

FORMAT, VERSION = "graph-agent-session", 1
_INTERNAL = ("__", "branch:")
"""Prefixes of LangGraph's own channels."""
_ALL = Rule(not_before="")
"""Keeps every checkpoint."""


async def export_session(url: str, session_id: str, *, all_checkpoints: bool = False) -> AsyncIterator[dict[str, Any]]:
    """Yield the lines of a session's export.

    Args:
        url: The database: `sqlite:///FILE` or `postgresql://…`.
        session_id: The session.
        all_checkpoints: Whether to export every checkpoint, so that the imported session can be continued from each;
            otherwise only those that remain after `prune` with `keep_last=1`.

    Raises:
        ConfigError: If the database does not exist or cannot be opened.
        InputError: If there is no such session.
    """
    count = 0
    async for line in _lines(url, session_id, _ALL if all_checkpoints else rule()):
        count += 1
        yield line
    yield {"type": "end", "lines": count}


async def _lines(url: str, session_id: str, keep: Rule) -> AsyncIterator[dict[str, Any]]:
    async with open_tables(url) as (tables, saver), open_store(url) as store:
        newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
        if newest is None:
            raise InputError(f"There is no session {session_id!r}; `graph-agent sessions` lists them.")

        async def is_running(_: str) -> bool:
            return not await is_idle(saver, session_id)

        summary = asdict(await summarize_session(saver, session_id, newest, is_running))
        yield {"type": "session", "format": FORMAT, "version": VERSION, **summary, "state": _own_state(newest)}
        plans = plan_thread(await tables.load(session_id), keep)
        history = await _history(saver, session_id, newest)
        for message in history["messages"]:
            yield {"type": "message", "message": _message(message)}
        for event in read_events(history["events"], session_id):
            yield {"type": "event", "event": event}
        async for line in _checkpoints(tables, saver, session_id, plans):
            yield line
        for note in await StoreInbox(store).read(session_id):
            yield {"type": "note", "key": note.key, "kind": note.kind, "content": note.content}


async def _history(saver: BaseCheckpointSaver[Any], session_id: str, newest: CheckpointTuple) -> dict[str, Any]:
    values, versions = newest.checkpoint["channel_values"], newest.checkpoint["channel_versions"]
    stored = {name: getattr(values[name], "value", values[name]) for name in CHANNELS if name in values}
    missing = [name for name in CHANNELS if name in versions and name not in stored]
    rebuilt = await delta_values(saver, (session_id, ""), newest.checkpoint["id"], missing) if missing else {}
    return {**dict.fromkeys(CHANNELS, ()), **stored, **rebuilt}


def _own_state(newest: CheckpointTuple) -> dict[str, Any]:
    values = newest.checkpoint["channel_values"]
    names = [name for name in values if name not in AgentState.__annotations__ and not name.startswith(_INTERNAL)]
    return {name: as_value(values[name]) for name in sorted(names)}


def _message(message: Any) -> Any:
    return as_value(message_to_dict(message) if isinstance(message, BaseMessage) else message)


async def _checkpoints(
    tables: Tables, saver: BaseCheckpointSaver[Any], session_id: str, plans: dict[str, NamespacePlan]
) -> AsyncIterator[dict[str, Any]]:
    writes: dict[tuple[str, str], list[StoredWrite]] = {}
    for write in await tables.stored_writes(session_id):
        writes.setdefault((write.namespace, write.checkpoint_id), []).append(write)
    for namespace, plan in reversed(plans.items()):
        gone = plan.nodes.keys() - plan.kept
        for id_ in plan.parents_first():
            if id_ in gone:
                continue
            at: RunnableConfig = {
                "configurable": {"thread_id": session_id, "checkpoint_ns": namespace, "checkpoint_id": id_}
            }
            found = await saver.aget_tuple(at)
            if found is None:
                raise SessionBusyError(f"Session {session_id!r} was pruned during its export; export it again.")
            parent = plan.remaining_ancestor(id_, gone)
            copies = await delta_values(saver, (session_id, namespace), id_, plan.folds.get(id_, ()))
            yield {
                "type": "checkpoint",
                "namespace": namespace,
                "id": id_,
                "parent": parent if parent in plan.nodes else None,  # another program may have removed it
                "metadata": found.metadata,
                "checkpoint": _packed(*saver.serde.dumps_typed(_with_copies(found, copies))),
                "writes": [
                    {
                        "task_id": write.task_id,
                        "task_path": write.task_path,
                        "channel": write.channel,
                        "value": _packed(write.type, write.value),
                    }
                    for write in writes.get((namespace, id_), ())
                ],
            }


def _with_copies(found: CheckpointTuple, copies: Mapping[str, Any]) -> dict[str, Any]:
    values = {**found.checkpoint["channel_values"], **{name: delta_snapshot(each) for name, each in copies.items()}}
    return {**found.checkpoint, "channel_values": values}


def _packed(kind: str, stored: bytes) -> list[str]:
    return [kind, base64.b64encode(stored).decode()]
