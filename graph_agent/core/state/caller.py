"""Keeps the authenticated caller of an input, to whom the facts of a memory belong, for all runs of the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from graph_agent.base._compat import read_state
from graph_agent.core.state.run import run_of

CallerOf: TypeAlias = Callable[[Runtime[Any]], str]
"""Returns the authenticated caller of a run; raises `ConfigError` if it has none."""
_KEY = "caller of the memory"
"""Key of the caller among the run's shared objects."""


def begin_for_caller(caller_of: CallerOf, config: RunnableConfig, runtime: Runtime[Any]) -> str:
    """Return the authenticated caller of a run that begins an input, and remember the caller for the whole run.

    Raises:
        ConfigError: The run has no authenticated caller.
    """
    caller = caller_of(runtime)
    return run_of(config).shared(_KEY, lambda: caller)


def caller_of_input(caller_of: CallerOf, config: RunnableConfig, runtime: Runtime[Any]) -> str:
    """Return the caller who began the input, read from the state, also in a run that resumes the input.

    Another person may resume it: a colleague who approves a call must not get access to the user's memory. The caller
    is read once in a run.

    Args:
        caller_of: Returns the caller of the present run; used if the state has no caller, as in inputs of older
            versions.
        config: The config of a node or a tool of the agent.
        runtime: The runtime of the run.

    Raises:
        ConfigError: The state has no caller, and the run has none.
    """

    def stored() -> str:
        known: str | None = read_state(config, ["loop"]).get("loop", {}).get("caller")
        return known or caller_of(runtime)

    return run_of(config).shared(_KEY, stored)
