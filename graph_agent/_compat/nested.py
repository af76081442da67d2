"""Private names of LangGraph for graphs that run inside a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig

SCRATCHPAD = "__pregel_scratchpad"
"""Key in `configurable` of what a task knows of its interrupts and of the graphs that it runs."""


def in_namespace(config: RunnableConfig, namespace: str) -> dict[str, Any]:
    """Return the `configurable` with which code of a node runs or reads a graph in a given checkpoint namespace.

    Args:
        config: The node's config.
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
