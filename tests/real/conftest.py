"""Servers of a real small model, one process for each alias and window; and chat models that talk to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from langchain_openai import ChatOpenAI

from scripts.local_model import missing, model_server
from tests.support.openai_stub import open_chat_model
from tests.support.required import unavailable


def _server(alias: str, context: int) -> Iterator[str]:
    if reason := missing():
        unavailable(reason)
    with model_server(alias, context=context) as base_url:
        yield base_url


@pytest.fixture(scope="session")
def local_server() -> Iterator[str]:
    """The base URL of a server whose model is named `local`, and reads 4,096 tokens."""
    yield from _server("local", 4096)


@pytest.fixture(scope="session")
def small_server() -> Iterator[str]:
    """The base URL of a server whose model is named `small`, and reads 1,024 tokens."""
    yield from _server("small", 1024)


@pytest.fixture
async def local_model(local_server: str) -> AsyncIterator[ChatOpenAI]:
    """The model `local`."""
    async with open_chat_model(local_server, "local") as model:
        yield model


@pytest.fixture
async def small_model(small_server: str) -> AsyncIterator[ChatOpenAI]:
    """The model `small`."""
    async with open_chat_model(small_server, "small") as model:
        yield model
