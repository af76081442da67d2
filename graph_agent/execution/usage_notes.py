"""Notes of a plan's usage, stored with its checkpoint if the plan takes more than one model call.

A killed node stores no update and restarts from its beginning on resume. The notes preserve the usage of its
completed model calls.
"""

from __future__ import annotations

import uuid
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent._compat import checkpointer_of, is_resuming
from graph_agent.execution.checkpoints import load, put_writes, running_checkpoint
from graph_agent.models.usage import add_usage
from graph_agent.types import NO_USAGE, Usage

USED = "graph_agent_used"
"""Channel name of the notes among a checkpoint's writes; no state field has it."""


async def note_used(usage: Usage, config: RunnableConfig, runtime: Runtime[Any]) -> None:
    """Store the usage since the last note; no effect in a run without checkpoints.

    Args:
        usage: The usage.
        config: The node's config.
        runtime: The node's runtime.
    """
    saver, at = checkpointer_of(config), running_checkpoint(config, runtime)
    if saver is not None and at is not None:
        # A separate task id, because LangGraph treats a task with writes as finished.
        await put_writes(saver, at, [(USED, dict(usage))], f"{USED}:{uuid.uuid4().hex}")


async def used_before(config: RunnableConfig, runtime: Runtime[Any]) -> Usage:
    """Return the usage noted by killed runs of the same plan; zero in a run that does not resume one.

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
