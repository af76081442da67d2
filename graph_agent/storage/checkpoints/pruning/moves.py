"""Moves the writes of removed checkpoints into parts of the history, as they are stored.

A part is a checkpoint that remains only to hold the writes of a group of checkpoints; its head is the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph_agent.base._internal.garbage import paused_collection
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.core.state.lengths import lengths_of
from graph_agent.storage.checkpoints.delta_values import delta_values
from graph_agent.storage.checkpoints.fenced_writes import At
from graph_agent.storage.checkpoints.pruning.plan import Trim
from graph_agent.storage.checkpoints.pruning.tables import StoredWrite, Tables

ValueWrite = tuple[str, str, bytes]
"""Channel, type and value of a stored write, without a task."""


async def moved_writes(
    tables: Tables, saver: BaseCheckpointSaver[Any], at: At, plan: Trim
) -> dict[str, list[ValueWrite]]:
    """Return the writes that pruning stores under the first checkpoint of each part: its id → writes, oldest first.

    A part is a group of checkpoints of which only the first remains (see `CheckpointGroup`). Parts to which nothing is
    added are absent. The first checkpoint of a part from an earlier pruning keeps the writes that it has. Nothing is
    stored.

    `plan` is the plan of the namespace `at`. Raises `DamagedSessionError` if some writes are missing or cannot be read.
    """
    found: dict[str, list[ValueWrite]] = {}
    ends = [*(part.ids[0] for part in plan.parts), plan.cut or ""][1:]
    for part, end in zip(plan.parts, ends, strict=False):  # without parts, no end is needed
        head = plan.rows[part.ids[0]]
        added = part.ids[1:] if head.is_part else part.ids
        if not added:
            continue
        writes = await tables.writes_of(at, added, sorted(part.channels))
        before, after = (lengths_of(plan.rows[id_].metadata) for id_ in (added[0], end))
        own = part.channels & after.keys()  # the lists of this package, whose writes can be joined
        expected = {name: after[name] - before.get(name, 0) for name in own}
        moved, is_whole = await call_in_thread(lambda: _joined(added, writes, expected))  # noqa: B023 - awaited here
        if not is_whole:
            # A person may have replaced messages or removed some. The replay shows it, or raises the error.
            await delta_values(saver, at, plan.cut or "", own)
        found[head.id] = moved
    return found


def _joined(
    ids: Sequence[str], writes: Iterable[StoredWrite], expected: Mapping[str, int]
) -> tuple[list[ValueWrite], bool]:
    """Return the writes of the checkpoints `ids`, oldest first, and whether they have the `expected` numbers of
    entries.

    `expected` is channel → number of list entries. Consecutive lists of such a channel are joined to one write, because
    its reducer adds their entries one by one; a value that is no list stays apart, and the second result is then False.
    Writes to other channels stay apart.
    """
    position = {id_: number for number, id_ in enumerate(ids)}
    counts = dict.fromkeys(expected, 0)
    lists: dict[str, tuple[int, list[bytes]]] = {}
    rows: list[ValueWrite] = []
    is_readable = True

    def end_list(channel: str) -> None:
        """Append the joined list of a channel to the rows, if there is one."""
        if (joined := lists.pop(channel, None)) is not None:
            # Joined as bytes: decoding and encoding the messages would take many times as long.
            rows.append((channel, "msgpack", _header(joined[0]) + b"".join(joined[1])))

    with paused_collection():
        for write in sorted(writes, key=lambda write: position[write.checkpoint_id]):  # stable within each checkpoint
            channel, body = write.channel, _body(write) if write.channel in expected else None
            if body is None:
                is_readable = is_readable and channel not in expected
                end_list(channel)
                rows.append((channel, write.type, write.value))
                continue
            counts[channel] += body[0]
            number, bodies = lists.get(channel, (0, list[bytes]()))
            bodies.append(body[1])
            lists[channel] = number + body[0], bodies
        for channel in sorted(lists):
            end_list(channel)
    return rows, is_readable and counts == expected


def _body(write: StoredWrite) -> tuple[int, bytes] | None:
    """Return the number of entries of a stored list in msgpack, and its bytes after the header of the list.

    None if the value is stored in another form, is damaged, or is no list.
    """
    stored = write.value
    try:
        value = ormsgpack.unpackb(stored, ext_hook=lambda code, data: None, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError:
        return None
    if write.type != "msgpack" or not isinstance(value, list):
        return None
    return len(value), stored[len(_header(len(value))) :]


def _header(number: int) -> bytes:
    """Return the header of a list with a number of entries in msgpack."""
    if number < 16:
        return bytes([0x90 | number])
    return b"\xdc" + number.to_bytes(2, "big") if number < 2**16 else b"\xdd" + number.to_bytes(4, "big")
