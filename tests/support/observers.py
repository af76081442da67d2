"""Observers of model requests."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langsmith import Client

from graph_agent.models import retry


class RecordingClient(Client):
    """A LangSmith client that keeps runs in this process."""

    def __init__(self) -> None:
        super().__init__(api_url="http://127.0.0.1:9", api_key="none", auto_batch_tracing=False)
        self.kinds: list[str] = []

    def create_run(self, name: str, inputs: dict[str, Any], run_type: Any, **_: Any) -> None:
        self.kinds.append(run_type)

    def update_run(self, *_: Any, **__: Any) -> None:
        return


@pytest.fixture
def unobserved_requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests that were sent without callbacks."""
    sent: list[Any] = []
    original = retry.request_unobserved

    async def recording(*args: Any) -> AIMessage:
        sent.append(args)
        return await original(*args)

    monkeypatch.setattr("graph_agent.models.retry.request_unobserved", recording)
    return sent
