"""The newest checkpoints of a session's recent inputs, for savers without an index of input ids.

The first checkpoint of a run has them in its metadata, and the run's other checkpoints refer to it. So the checkpoint
of an input is found with two reads at most, however long the history is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from graph_agent._internal.sync_bridge import in_blocking_run
from graph_agent.execution.checkpoints import load
from graph_agent.runs.input_marks import MOST_INPUTS, RECENT_INPUTS, InputMark, mark_in

Recent = dict[str, str]
"""Key of an input's id → its newest checkpoint, oldest input first."""


async def find_recent(
    saver: BaseCheckpointSaver[Any], newest: CheckpointTuple, input_id: str
) -> CheckpointTuple | None:
    """Return the newest checkpoint of an earlier input by its id; None if it is not among the recent ones.

    Args:
        saver: The session's saver.
        newest: The session's newest checkpoint.
        input_id: The id.
    """
    recent = await _stored(saver, newest)
    if recent is None:
        recent = await _scanned(saver, newest)
    found = recent.get(_key(input_id))
    return await load(saver, _at(newest, found)) if found is not None else None


async def inputs_before(
    saver: BaseCheckpointSaver[Any], newest: CheckpointTuple | None, mark: InputMark | None
) -> Mapping[str, str] | str | None:
    """Return what a run's checkpoints store of the inputs before it (see `Run.inputs_before`).

    Args:
        saver: The session's saver.
        newest: The session's newest checkpoint; None for none.
        mark: The run's input mark; None for none.
    """
    if newest is None:
        return {} if mark is not None else None
    before, stored = mark_in(newest.metadata), newest.metadata.get(RECENT_INPUTS)
    if stored is None and mark is None:
        return None  # such a session is searched as a whole when it gets an input with an id
    if stored is not None and (before is None or (mark is not None and before.id == mark.id)):
        return stored if isinstance(stored, str) else str(newest.checkpoint["id"])
    recent = await _stored(saver, newest)
    if recent is None:
        recent = await _scanned(saver, newest)
    if before is not None:
        recent = {**_without(recent, before.id), _key(before.id): newest.checkpoint["id"]}
    return dict([*recent.items()][-MOST_INPUTS:])


async def _stored(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> Recent | None:
    """Return the recent inputs before that of the newest checkpoint; None if they are not stored."""
    stored = newest.metadata.get(RECENT_INPUTS)
    if isinstance(stored, str):
        first = await load(saver, _at(newest, stored))
        stored = first.metadata.get(RECENT_INPUTS) if first is not None else None
    return dict(stored) if isinstance(stored, Mapping) else None


async def _scanned(saver: BaseCheckpointSaver[Any], newest: CheckpointTuple) -> Recent:
    """Return the recent inputs from all checkpoints, as of a session whose last input had no id."""
    thread = _at(newest, None)
    found: Recent = {}

    def add(each: CheckpointTuple) -> None:
        if (mark := mark_in(each.metadata)) is not None:
            found.setdefault(_key(mark.id), each.checkpoint["id"])

    try:
        if in_blocking_run.get():
            raise NotImplementedError
        async for each in saver.alist(thread):
            add(each)
    except NotImplementedError:  # a blocking run, or a saver without asynchronous methods
        for each in saver.list(thread):
            add(each)
    return dict([*found.items()][:MOST_INPUTS][::-1])


def _without(recent: Recent, input_id: str) -> Recent:
    return {key: at for key, at in recent.items() if key != _key(input_id)}


def _key(input_id: str) -> str:
    return hashlib.sha256(input_id.encode()).hexdigest()[:16]


def _at(newest: CheckpointTuple, checkpoint_id: str | None) -> RunnableConfig:
    at = newest.config["configurable"]
    named = {"checkpoint_id": checkpoint_id} if checkpoint_id is not None else {}
    return {"configurable": {"thread_id": at["thread_id"], "checkpoint_ns": "", **named}}
