"""Checks an agent for a server: which requests its models can take, and whether its model and its database work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from graph_agent.base.settings.candidates import models_in
from graph_agent.models.capabilities import may_download_images
from graph_agent.models.resolve import endpoint_state
from graph_agent.models.sanitize import ToolAliases
from graph_agent.storage.checkpoints.write_probe import SupportsWriteProbe

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

    from graph_agent.session.compiled import CompiledAgentGraph


def check_further_tools(graph: CompiledAgentGraph, names: Iterable[str]) -> None:
    """Raise `ConfigError` if a model cannot be given tools with these names in addition to the agent's own tools.

    A name must be neither empty nor equal to another one, also after the characters that providers refuse are replaced.
    """
    ToolAliases([*graph.builder.deps.toolbox.names, *names])


def downloads_images(graph: CompiledAgentGraph) -> bool:
    """Return whether the client of a model of the agent may download an image by its URL, in this process.

    The models are the agent's own, its fallback models and its candidates (models that are asked in parallel).
    """
    builder = graph.builder
    config = builder.config
    others = models_in(config.candidates, config.choose)
    return any(map(may_download_images, [builder.model, *config.fallback_models, *others["candidates"]]))


async def model_state(graph: CompiledAgentGraph) -> tuple[str, str]:
    """Return the state of the model's endpoint, `ok` or a fault in one word, and a remark on its list of models, which
    may be empty.
    """
    return await endpoint_state(graph.builder.model)


async def probe_database(saver: BaseCheckpointSaver[Any], store: BaseStore | None) -> None:
    """Read an id that does not exist from the checkpointer and from the Store, if there is one, and try to write to
    both.

    Writing is tried only in those that implement `SupportsWriteProbe`. An error of the database is raised.
    """
    # A thread that cannot exist: only the way to the database is of interest.
    await saver.aget_tuple({"configurable": {"thread_id": "/ready"}})
    if store is not None:
        await store.aget(("graph_agent", "ready"), "ready")
    parts: list[Any] = [saver, store]
    for part in parts:
        if isinstance(part, SupportsWriteProbe):
            await part.aprobe()
