"""Keeps the authenticated caller of an input, to whom the facts of a memory belong, for all runs of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent.base._compat import read_state
from graph_agent.core.runs.run import run_of

CallerOf: TypeAlias = Callable[[Runtime[Any]], str]
"""Returns the authenticated caller of a run; raises `ConfigError` if it has none."""
_KEY = "caller of the memory"


def begin_for_caller(caller_of: CallerOf, config: RunnableConfig, runtime: Runtime[Any]) -> str:
    """Return the caller of a run that begins an input, and keep it for all of this run; raise `ConfigError` without
    one."""
    caller = caller_of(runtime)
    return run_of(config).shared(_KEY, lambda: caller)


def caller_of_input(caller_of: CallerOf, config: RunnableConfig, runtime: Runtime[Any]) -> str:
    """Return the caller who began the input.

    A resume is the same input, whichever person answers its question: the colleague who approves a call has no part in
    the user's memory.

    Args:
        caller_of: Returns the caller of the run, which counts for an input that an older version began.
        config: The config of a node or a tool of the agent.
        runtime: The runtime of the run.

    Raises:
        ConfigError: No caller is known.
    """

    def stored() -> str:
        known: str | None = read_state(config, ["loop"]).get("loop", {}).get("caller")
        return known or caller_of(runtime)

    return run_of(config).shared(_KEY, stored)
