"""Opens the memory of an agent in a database, with search by vectors or by full text.

```python
async with open_memory("sqlite:///app.db") as memory:
    agent = create_graph_agent("openai:gpt-4o-mini", memory=memory)
    await Session(agent, "s1").run("Remember that I am a vegetarian.", context={"caller": "alice"})
```
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from langchain_core.embeddings import Embeddings
from langgraph.store.base import IndexConfig
from langgraph.store.base.embed import ensure_embeddings

from graph_agent.base._internal.failure_log import exception_text
from graph_agent.base._internal.own_files import record_database
from graph_agent.base._internal.secrets import mask_secrets
from graph_agent.base.database_urls import MEMORY, file_of, is_postgres
from graph_agent.base.errors import ConfigError, EmbeddingFailedError
from graph_agent.integrations.memory.facts import Memory
from graph_agent.integrations.memory.words import by_words

EmbeddingModel: TypeAlias = str | Embeddings | Callable[[Sequence[str]], Any]
"""`provider:name` as in LangChain's `init_embeddings`, LangChain's `Embeddings`, or a function of texts that returns
their vectors."""


@asynccontextmanager
async def open_memory(
    url: str,
    *,
    embedding: EmbeddingModel | None = None,
    dims: int | None = None,
    recall: int = 5,
    extract: bool = False,
    folder: Path | None = None,
) -> AsyncIterator[Memory]:
    """Open the memory in a database, and close it on exit. Missing tables are created.

    With an embedding model, facts are found by the similarity of their vectors: in SQLite by sqlite-vec, in PostgreSQL
    by pgvector. Without one, and in a PostgreSQL without pgvector, they are found by their words (FTS5, `tsvector`).

    Args:
        url: `sqlite:///FILE`, `postgresql://…` (needs the extra `postgres`), or `memory:`, which is lost on exit. It
            may be the database of the sessions.
        embedding: The embedding model; None to search by words.
        dims: Length of the model's vectors; None to ask the model for one vector now.
        recall: Maximum number of facts that are added to the requests of each input; 0 for none.
        extract: Whether the agent's model extracts facts from each input after its answer, by a further request. False
            leaves it to the model to call `manage_memory`.
        folder: Folder to which a relative SQLite file refers; None for the current folder.

    Raises:
        ConfigError: The URL is of another kind, the database cannot be opened, or the embedding model cannot be built.
        ImportError: The extra `memory` or `postgres` is needed and not installed.
    """
    index = None if embedding is None else await _index(embedding, dims)
    if url == MEMORY:
        from langgraph.store.memory import InMemoryStore

        store = InMemoryStore(index=index)
        yield Memory(store, None if index else by_words(store), recall=recall, extract=extract)
    elif is_postgres(url):
        from graph_agent.integrations.memory.postgres import open_postgres_facts

        async with open_postgres_facts(url, index) as (postgres, find):
            yield Memory(postgres, find, recall=recall, extract=extract)
    else:
        from graph_agent.integrations.memory.sqlite import open_sqlite_facts

        path = file_of(url, folder)
        record_database(path)
        async with open_sqlite_facts(path, index) as (sqlite, find):
            yield Memory(sqlite, find, recall=recall, extract=extract)


async def _index(embedding: EmbeddingModel, dims: int | None) -> IndexConfig:
    """Return the Store's configuration of vectors: the model, the length of its vectors, and the field `content`.

    Without `dims`, the length is that of one vector that the model computes now. Raises `ConfigError` if the model is
    unknown or fails.
    """
    try:
        model = _Watched(ensure_embeddings(embedding))
        length = dims or len((await model.aembed_documents(["dimensions"]))[0])
    except Exception as error:  # a provider may raise anything
        raise ConfigError(
            f"memory.embedding={embedding!r}: {error}. Name a model that LangChain's init_embeddings knows, such as "
            "'openai:text-embedding-3-small', or give an Embeddings object."
        ) from error
    return {"dims": length, "embed": model, "fields": ["content"]}


class _Watched(Embeddings):
    """Embeddings of another model, whose exceptions it raises as `EmbeddingFailedError`."""

    def __init__(self, model: Embeddings) -> None:
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts; blocks."""
        with _failures():
            return self._model.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a search; blocks."""
        with _failures():
            return self._model.embed_query(text)

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts."""
        with _failures():
            return await self._model.aembed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of a search."""
        with _failures():
            return await self._model.aembed_query(text)


@contextmanager
def _failures() -> Iterator[None]:
    """Raise an exception of the block as `EmbeddingFailedError`, whose text has secrets masked."""
    try:
        yield
    except Exception as error:  # a provider may raise anything
        raise EmbeddingFailedError(f"The embedding model failed: {mask_secrets(exception_text(error))}") from error
