"""Servers of a real small model, one process for each alias and window."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.local_model import missing, model_server
from tests.support.required import unavailable


def _server(alias: str, context: int) -> Iterator[str]:
    if reason := missing():
        unavailable(reason)
    with model_server(alias, context=context) as base_url:
        yield base_url


@pytest.fixture(scope="session")
def _local_server() -> Iterator[str]:
    yield from _server("local", 4096)


@pytest.fixture(scope="session")
def _small_server() -> Iterator[str]:
    yield from _server("small", 1024)


@pytest.fixture
def local_server(_local_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The base URL of a server whose model is named `local`; `openai:` models use it."""
    monkeypatch.setenv("OPENAI_BASE_URL", _local_server)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    return _local_server


@pytest.fixture
def small_server(_small_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The base URL of a server whose model, named `small`, reads 1,024 tokens; `openai:` models use it."""
    monkeypatch.setenv("OPENAI_BASE_URL", _small_server)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    return _small_server
