"""Imports LangGraph's private names behind the execution of a node and of a conditional edge.

Like those of `_compat`, each has a test that fails when it moves: `tests/internal/test_compat_nodes.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import replace
from types import FunctionType
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._runnable import RunnableSeq
from langgraph.graph import StateGraph
from langgraph.graph._branch import BranchSpec
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel._write import ChannelWrite
from langgraph.types import Send


class _UnobservedNode(RunnableSeq):
    """A node and its writers, run without LangChain's callbacks while no handler receives them.

    LangGraph otherwise starts and ends a chain run for each node, with a callback manager for each of its writers.
    """

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        manager = (config or {}).get("callbacks")
        observed = not isinstance(manager, AsyncCallbackManager) or manager.handlers or _is_instrumented()
        if config is None or observed:
            return await super().ainvoke(input, config, **kwargs)
        # The name and the id belong to the node's run alone.
        config = {**config}
        config.pop("run_name", None)
        config.pop("run_id", None)
        node, *writers = self.steps
        if isinstance(node, ChannelWrite):
            output = await node.ainvoke(input, config)
        else:
            context = copy_context()
            context.run(var_child_runnable_config.set, config)
            # A task, as LangGraph makes: the node's context variables stay its own.
            output = await asyncio.create_task(node.ainvoke(input, config, **kwargs), context=context)
        for writer in writers:
            output = await writer.ainvoke(output, config)
        return output


def _is_instrumented() -> bool:
    """Whether a program that instruments LangGraph replaces the method that runs a node."""
    function: Any = RunnableSeq.ainvoke
    return type(function) is not FunctionType or function.__globals__ is not vars(sys.modules[RunnableSeq.__module__])


def skip_unused_callbacks(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Run the nodes of a graph without LangChain's callbacks in each run that no callback handler observes."""
    for node in graph.nodes.values():
        if type(node.node) is RunnableSeq:
            made = node.node
            node.node = _UnobservedNode(
                *made.steps, name=made.name, trace_inputs=made.trace_inputs, trace_policy=made.trace_policy
            )


UpdateRouter = Callable[[Any, RunnableConfig], Sequence[Send | str] | str | None]
"""Maps a node's return value and its config to the next tasks or node; None if the state decides."""


class _UpdateBranch(BranchSpec):
    """A conditional edge that routes by the node's return value if that suffices.

    To read the state after a node, LangGraph copies every channel.
    """

    route: UpdateRouter

    def _route(self, input: Any, config: RunnableConfig, *, reader: Any, writer: Any) -> Any:
        if (found := self.route(input, config)) is not None:
            return self._finish(writer, input, found, config)
        return super()._route(input, config, reader=reader, writer=writer)

    async def _aroute(self, input: Any, config: RunnableConfig, *, reader: Any, writer: Any) -> Any:
        if (found := self.route(input, config)) is not None:
            return self._finish(writer, input, found, config)
        return await super()._aroute(input, config, reader=reader, writer=writer)


def route_by_update(graph: StateGraph[Any, Any, Any, Any], node: str, edge: str, route: UpdateRouter) -> None:
    """Let a conditional edge route by its node's return value.

    Args:
        edge: Name of the node's conditional edge.
        route: Returns the next tasks; None to evaluate the edge on the state.
    """
    branch = _UpdateBranch(*graph.branches[node][edge])
    branch.route = route
    graph.branches[node][edge] = branch


SCRATCHPAD = "__pregel_scratchpad"
"""Key in `configurable` of what a task knows of its interrupts and of the graphs that it runs."""


def in_namespace(config: RunnableConfig, namespace: str) -> dict[str, Any]:
    """Return the `configurable` with which code of a node runs or reads a graph in a given checkpoint namespace.

    Args:
        namespace: The namespace, of an earlier run of the graph in this thread.
    """
    scratchpad = config["configurable"].get(SCRATCHPAD)
    own: dict[str, Any] = {"checkpoint_ns": namespace}
    if scratchpad is not None:
        # LangGraph appends a number to the namespace of each further graph that one task runs.
        own[SCRATCHPAD] = replace(scratchpad, subgraph_counter=lambda: 0)
    return own


def parent_checkpoint(configurable: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return namespace and id of the checkpoint that the node of a config runs from; no id without checkpoints."""
    namespace = str(configurable.get("checkpoint_ns", "")).rpartition("|")[0]
    return namespace, configurable.get("checkpoint_map", {}).get(namespace)
