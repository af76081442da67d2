"""Opens the memory that an agent file declares."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from graph_agent.agent_file.imports import load_attribute, make
from graph_agent.agent_file.spec import AgentSpec
from graph_agent.base._internal.sync_bridge import call_in_thread
from graph_agent.base.errors import ConfigError, located

if TYPE_CHECKING:
    from graph_agent.integrations.memory.facts import Memory


@asynccontextmanager
async def open_memory_of(spec: AgentSpec, db: str, *, asks_embeddings: bool = True) -> AsyncIterator[Memory]:
    """Open the memory of an agent file, and close it on exit.

    Args:
        spec: The agent file.
        db: The database URL.
        asks_embeddings: Whether the file's embedding model is used; without it, facts are found by their words.

    Raises:
        ConfigError: The file has no memory, or its memory cannot be opened.
    """
    if (settings := spec.memory) is None:
        raise ConfigError(f"Agent file {spec.path}: this agent has no memory; write 'memory: true' in the file.")
    # In a thread: the import reads files, which must not block a server's event loop.
    await call_in_thread(import_module, "graph_agent.integrations.memory.open")
    from graph_agent.integrations.memory.open import open_memory

    embedding: Any = settings.embedding if asks_embeddings else None
    if embedding is not None:
        with located(f"Agent file {spec.path}: memory.embedding"):
            found = await call_in_thread(functools.partial(load_attribute, embedding, spec.folder, missing_ok=True))
            embedding = embedding if found is None else _embedding_model(embedding, found)
    with located(f"Agent file {spec.path}"):
        opening = open_memory(
            db, embedding=embedding, dims=settings.dims, recall=settings.recall, extract=settings.extract
        )
        # Entered by hand: an error of the block must not get the name of the file.
        memory = await opening.__aenter__()
    try:
        yield memory
    finally:
        await opening.__aexit__(None, None, None)


def _embedding_model(name: str, found: Any) -> Any:
    """Return an embedding model: the object `found` under a dotted name, or what a function of that name returns.

    Raises `ConfigError` if the function cannot be called or fails.
    """
    from langchain_core.embeddings import Embeddings

    return found if isinstance(found, Embeddings) else make(name, found, "an embedding model")
