"""What a plan has used so far, noted beside its checkpoint where it takes more than one model call.

A node that is killed leaves nothing behind, and runs from its start when the session goes on: without these notes, what
the model calls before a rerun took would be lost, and asked for again unseen.
"""

from __future__ import annotations

import uuid
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of, is_resuming
from graph_agent.execution.checkpoints import load, put_writes, running_checkpoint
from graph_agent.state.usage import add_usage
from graph_agent.types import NO_USAGE, Usage

USED = "graph_agent_used"
"""Channel name of the notes among a checkpoint's writes; no state field has it."""


async def note_used(usage: Usage, config: RunnableConfig, runtime: Runtime[Any]) -> None:
    """Note what was used since the last note; nothing in a run that keeps nothing.

    Args:
        usage: What was used.
        config: The node's config.
        runtime: The node's runtime.
    """
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is not None and at is not None:
        # A task id of its own: LangGraph takes a task that has writes for finished.
        await put_writes(saver, at, [(USED, dict(usage))], f"{USED}:{uuid.uuid4().hex}")


async def used_before(config: RunnableConfig, runtime: Runtime[Any]) -> Usage:
    """What runs that were killed in the middle of this very plan have noted; nothing in a run that goes on with none.

    Args:
        config: The node's config.
        runtime: The node's runtime.
    """
    usage = NO_USAGE
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is None or at is None or not is_resuming(config):
        return usage
    found = await load(saver, at)
    for _, channel, noted in (found.pending_writes or []) if found is not None else []:
        if channel == USED:
            usage = add_usage(usage, noted)
    return usage
