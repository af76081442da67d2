"""The support desk pays a refund once, also if its process is lost during the payment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from examples.support import agent
from graph_agent import ScriptedChatModel
from graph_agent.approvals import approve
from tests.support.agents import asks

ADA = {"customer": "ada"}


class Provider(dict[str, int]):
    """A payment provider that does not answer the first request.

    Args:
        pays: Whether it pays the first request.
    """

    def __init__(self, *, pays: bool) -> None:
        super().__init__()
        self.pays = pays
        self.received: list[str] = []
        self.reached, self.released = threading.Event(), threading.Event()

    def __setitem__(self, key: str, cents: int) -> None:
        self.received.append(key)
        if len(self.received) > 1 or self.pays:
            super().__setitem__(key, cents)
        if len(self.received) == 1:
            self.reached.set()
            self.released.wait()


@pytest.fixture(params=[False, True], ids=["lost before the payment", "lost after the payment"])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """The provider of the recipe, which has paid the interrupted request or not."""
    made = Provider(pays=request.param)
    monkeypatch.setattr(agent, "REFUNDED", made)
    yield made
    made.released.set()


async def test_a_refund_is_paid_once_if_the_process_is_lost_during_it(provider: Provider) -> None:
    model = ScriptedChatModel([asks(("a", "refund", {"order": "17", "cents": 6490})), "Refunded."])
    session = agent.make_agent(model).session("s1")
    await session.run("My kettle leaks.", context=ADA)
    run = asyncio.create_task(session.resume(approve(), context=ADA))
    await asyncio.to_thread(provider.reached.wait)
    run.cancel()
    await asyncio.wait([run])

    result = await session.resume(context=ADA)

    assert (result.answer, len(provider.received), provider.copy()) == ("Refunded.", 2, {provider.received[0]: 6490})
