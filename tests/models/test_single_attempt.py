"""Model clients send each request once: retries are the loop's alone."""

from __future__ import annotations

from typing import Any

import pytest

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.models.wire.client_retries import without_client_retries
from tests.support.agents import echo, says
from tests.support.openai_stub import Failure, StubFactory, openai_stub

__all__ = ["openai_stub"]

DOWN = Failure(503, "Try later.", type="server_error", headers={"retry-after": "0"})


@pytest.mark.parametrize("client_retries", [None, 2])
async def test_the_clients_own_retries_are_off(openai_stub: StubFactory, client_retries: int | None) -> None:
    stub = openai_stub(DOWN, DOWN, DOWN, DOWN, DOWN, DOWN)
    async with stub.chat_model(max_retries=client_retries) as model:
        graph = create_graph_agent(model, tools=[echo], config=LoopConfig(model_retries=1))
        result = await graph.ainvoke(says("hi"))
        theirs = (model.max_retries, model.root_async_client.max_retries)

    assert (result["status"], len(stub.requests), theirs) == ("FAILED", 2, (client_retries, 2))


def test_a_class_of_another_provider_is_copied_with_no_retries() -> None:
    class Client:
        def __init__(self, max_retries: int) -> None:
            self.max_retries = max_retries

        def with_options(self, *, max_retries: int) -> Client:
            return Client(max_retries)

    class Other(ScriptedChatModel):
        max_retries: int = 6
        client: Any = None

    theirs = Other(responses=["Hi."], client=Client(6))
    vars(theirs)["_client"] = "made with six retries"

    ours = without_client_retries(theirs)

    assert isinstance(ours, Other)
    assert [(m.max_retries, m.client.max_retries, "_client" in vars(m)) for m in (theirs, ours)] == [
        (6, 6, True),
        (0, 0, False),
    ]


def test_a_model_without_retries_is_taken_as_it_is() -> None:
    model = ScriptedChatModel(["Hi."])

    assert without_client_retries(model) is model
