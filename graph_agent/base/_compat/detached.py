"""Separates a tool's code from the task in which it runs, for a call that may never become one of the history."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from graph_agent.base._compat import SCRATCHPAD

_RUNTIME = "__pregel_runtime"
_OF_TASK = (SCRATCHPAD, "__pregel_send", "__pregel_call", "__pregel_checkpointer")
"""Keys in `configurable` by which code reaches its task: interrupts, writes, nested tasks, and the saver of nested
graphs."""


def detached(config: RunnableConfig, write: Callable[[Any], None]) -> tuple[RunnableConfig, Context]:
    """Return a config and a context for the code of a tool whose call may never become part of the history.

    With them, the code cannot interrupt the current task, write to its state or its stream, or store under its id. The
    config is also the current one in the context.

    Args:
        config: The config of the task.
        write: Receives what the code writes to the custom stream.
    """
    configurable = {name: value for name, value in config["configurable"].items() if name not in _OF_TASK}
    if (runtime := configurable.get(_RUNTIME)) is not None:
        configurable[_RUNTIME] = runtime.override(stream_writer=write)
    own: RunnableConfig = {**config, "configurable": configurable}
    context = copy_context()
    context.run(var_child_runnable_config.set, own)
    return own, context
