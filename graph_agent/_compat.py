"""Every private name of LangGraph, LangChain and Python that this package relies on, in one place.

Each has a test in ``tests/test_compat.py`` that fails when it moves. Nothing else in the package may import
a name that begins with an underscore from another distribution.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.tools.base import _format_output, _get_runnable_config_param
from langgraph._internal._runnable import RunnableCallable
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.message import _messages_delta_reducer
from langgraph.prebuilt.tool_node import _get_all_injected_args

# LangGraph gives every message-like write an id before it is stored only where it finds this very reducer on the
# channel; with any other, ``("user", "hi")`` would get a new id at each read.
messages_delta_reducer = _messages_delta_reducer

# What a pattern comes to is to be known before anything compiles it.
_parser = import_module("re._parser")  # typed stubs have it only here and there
parse_pattern: Callable[[str], Any] = _parser.parse
SubPattern: type[Any] = _parser.SubPattern

_CHECKPOINTER = "__pregel_checkpointer"
_READ = "__pregel_read"
_SCRATCHPAD = "__pregel_scratchpad"
_DURABILITY = "__pregel_durability"
_RESUMING = "__pregel_resuming"
_RUNTIME = "__pregel_runtime"
_COORDINATES = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")

KEEPING_NOTHING: dict[str, Any] = {_DURABILITY: "async"}
"""For the `configurable` of a graph compiled with `checkpointer=False`, which fails under a parent's `"sync"`."""


def both_ways(sync: Callable[..., Any], coroutine: Callable[..., Awaitable[Any]], name: str) -> Runnable[Any, Any]:
    """Make what LangGraph runs as `coroutine` from asynchronous entry points and as `sync` from blocking ones.

    LangGraph looks for what to inject (`config`, `runtime`) among the parameters of `sync`, so both have the same.
    It is not traced by itself: LangGraph traces the node it becomes.
    """
    return RunnableCallable(sync, coroutine, name=name, trace=False)


def read_state(config: RunnableConfig, keys: Sequence[str]) -> dict[str, Any]:
    """Read state fields from inside a ``Send`` task, whose own input is only what was sent.

    Args:
        config: The task's config.
        keys: Names of state fields; those never written are left out of the answer.
    """
    read = config["configurable"][_READ]
    values: dict[str, Any] = read(list(keys), False)
    return values


def checkpointer_of(config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """The saver of the running graph, from inside one of its nodes; None without one."""
    saver = config["configurable"].get(_CHECKPOINTER)
    return saver if isinstance(saver, BaseCheckpointSaver) else None


def inherits_durability(configurable: Mapping[str, Any]) -> bool:
    """Whether the run that surrounds this one was given a durability, which is then this one's too.

    Args:
        configurable: The `configurable` around the run.
    """
    return _DURABILITY in configurable


def surrounding_context(config: RunnableConfig | None) -> Any:
    """The context that a run without one of its own has from the run around it; None without a run around it.

    Args:
        config: The run's config. One that names its own thread or checkpoint takes nothing from the code around it.
    """
    given = (config or {}).get("configurable", {})
    if _RUNTIME not in given and not any(given.get(name) for name in _COORDINATES):
        given = ensure_config().get("configurable", {})
    return getattr(given.get(_RUNTIME), "context", None)


def is_resuming(config: RunnableConfig) -> bool:
    """Whether a graph that is run inside a node goes on where its own checkpoint has stopped, if it has one there.

    Args:
        config: The node's config.
    """
    return bool(config["configurable"].get(_RESUMING))


def answers_at_hand(config: RunnableConfig) -> int:
    """How many of a task's questions to a person have an answer in this run; 0 for a task that asks for the first time.

    Args:
        config: The task's config.
    """
    scratchpad = config["configurable"].get(_SCRATCHPAD)
    if scratchpad is None:
        return 0
    return len(scratchpad.resume) + (scratchpad.get_null_resume(False) is not None)


class InjectedArguments:
    """Which parameters of a tool the framework fills in, by ``ToolNode``'s rules."""

    def __init__(self, tool: BaseTool) -> None:
        found = _get_all_injected_args(tool)
        self.state: dict[str, str | None] = found.state
        """Parameter → the state field it wants; None for the whole state."""
        self.optional_state: set[str] = found._optional_state_args
        self.store: str | None = found.store
        self.runtime: str | None = found.runtime
        self.hidden: set[str] = found.all_injected_keys
        """Parameters a model may not set."""

    def __bool__(self) -> bool:
        return bool(self.state or self.store or self.runtime or self.hidden)


def as_tool_output(content: Any, artifact: Any, tool: StructuredTool, call_id: str) -> Any:
    """What `tool.ainvoke` makes of a tool's return value: a message, or what the tool returned when it is one."""
    return _format_output(content, artifact, call_id, tool.name, "success")


def config_parameter(function: Callable[..., Any]) -> str | None:
    """The parameter of a tool's function that wants the run's config; None without one."""
    return _get_runnable_config_param(function)
