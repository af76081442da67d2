"""How long a failed request waits: for the provider, for a server that loads its model, or not, with a fallback."""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from tests.support.openai_stub import Failure, OpenAIStub, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

HOUR = Failure(429, "Slow down.", "rate_limit_exceeded", headers={"retry-after": "3600"})
LOADING = Failure(503, "Loading model", type="unavailable_error")
FAILED = "This request failed. "
FOR_FALLBACK = "Set `fallback_models`, so that another model answers meanwhile."


async def run(stub: OpenAIStub, fallback: OpenAIStub | None = None, **config: Any) -> dict[str, Any]:
    async with AsyncExitStack() as stack:

        async def model(of: OpenAIStub, name: str) -> ChatOpenAI:
            return await stack.enter_async_context(of.chat_model(name))

        spare = [await model(fallback, "spare")] if fallback is not None else []
        settings = LoopConfig(**{"finalize": "direct", "fallback_models": spare, **config})
        graph = create_graph_agent(await model(stub, "main"), config=settings, checkpointer=InMemorySaver())
        begun = time.monotonic()
        result = await Session(graph, "s1").run("Hello")
        events = await Session(graph, "s1").events()
    return {
        "answer": result.answer.partition("\n\n")[0].removeprefix(FAILED),
        "status": result.status.value,
        "hints": [event.get("hint") for event in events if event["type"] == "error"],
        "requests": (len(stub.requests), len(fallback.requests) if fallback is not None else 0),
        "quick": time.monotonic() - begun < 5,
    }


@pytest.mark.parametrize(
    "failure",
    [
        HOUR,
        Failure(429, "Please try again in 11s.", "rate_limit_exceeded"),
        Failure(503, "Later.", headers={"retry-after": "3600"}),
        Failure(429, "Pay.", "insufficient_quota"),
        Failure(429, "Rate limit reached on tokens per day (TPD): Limit 10, Used 9. Please try again in 1s."),
        Failure(503, "No.", headers={"x-should-retry": "false"}),
    ],
    ids=["an hour", "in words", "503", "no balance", "daily", "x-should-retry"],
)
async def test_a_fallback_answers_at_once_where_a_wait_is_long_or_useless(
    openai_stub: StubFactory, failure: Failure
) -> None:
    stub, spare = openai_stub(failure), openai_stub("Hi.")

    got = await run(stub, spare)

    assert got == {"answer": "Hi.", "status": "COMPLETED", "hints": [], "requests": (1, 1), "quick": True}


async def test_a_short_delay_is_waited_for_before_a_fallback(openai_stub: StubFactory) -> None:
    stub, spare = openai_stub(Failure(429, "Slow down.", headers={"retry-after": "0"}), "Hi."), openai_stub("No.")

    got = await run(stub, spare)

    assert (got["answer"], got["requests"]) == ("Hi.", (2, 0))


async def test_a_delay_longer_than_all_waits_is_stated(openai_stub: StubFactory) -> None:
    got = await run(openai_stub(HOUR))

    assert got == {
        "answer": "The model provider asks for a longer wait (HTTP 429); try again in 60 minutes.",
        "status": "FAILED",
        "hints": [FOR_FALLBACK],
        "requests": (1, 0),
        "quick": True,
    }


async def test_a_delay_behind_the_deadline_is_not_waited_for(openai_stub: StubFactory) -> None:
    stub, spare = openai_stub(Failure(429, "Slow down.", headers={"retry-after": "9"})), openai_stub("Hi.")

    got = await run(stub, spare, deadline_s=8)

    assert (got["answer"], got["requests"], got["quick"]) == ("Hi.", (1, 1), True)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The delays that errors have asked for; none is waited for."""
    asked: list[float | None] = []

    def wait_s(attempt: int, asked_s: float | None) -> float:
        asked.append(asked_s)
        return 0.0

    monkeypatch.setattr("graph_agent.models.retry.wait_s", wait_s)
    return asked


async def test_a_server_that_loads_its_model_is_waited_for(openai_stub: StubFactory, waits: list[float | None]) -> None:
    stub = openai_stub(*[LOADING] * 5, "Hi.")

    got = await run(stub, model_retries=1)

    assert (got["answer"], got["requests"], waits) == ("Hi.", (6, 0), [1.0, 2.0, 4.0, 8.0, 8.0])


async def test_the_wait_for_a_loading_model_ends_with_a_hint_that_helps(
    openai_stub: StubFactory, waits: list[float | None]
) -> None:
    stub = openai_stub(*[LOADING] * 30)

    got = await run(stub)

    assert (got["answer"], got["hints"], 110 < sum(filter(None, waits)) < 130) == (
        "The model's server is still loading its model (HTTP 503); try again in a minute.",
        ["Wait until the server has loaded its model; `graph-agent doctor` tests it."],
        True,
    )


async def test_an_address_without_a_server_is_named_to_the_developer(
    openai_stub: StubFactory, caplog: pytest.LogCaptureFixture
) -> None:
    async with openai_stub().chat_model(base_url="http://me:secret@127.0.0.1:1/v1?key=abc") as model:
        graph = create_graph_agent(model, config=LoopConfig(model_retries=0), checkpointer=InMemorySaver())
        with caplog.at_level(logging.ERROR):
            result = await Session(graph, "s1").run("Hello")
        (error,) = [event for event in await Session(graph, "s1").events() if event["type"] == "error"]

    logged = next(record.getMessage() for record in caplog.records if "cannot be reached" in record.getMessage())
    assert (
        result.answer.removeprefix(FAILED),
        error["hint"],
        "at http://127.0.0.1:1/v1);" in logged,
        "secret" in logged,
    ) == (
        "The model's server cannot be reached; try again later.",
        "Start the server, or correct the model's address; `graph-agent doctor` tests it.",
        True,
        False,
    )


async def test_a_window_that_a_refusal_names_is_known_from_then_on(openai_stub: StubFactory) -> None:
    refusal = Failure(400, "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.")
    stub = openai_stub("One.", "Two.", refusal, "Three.", Reply("Four.", prompt_tokens=8000))
    async with stub.chat_model("unknown-model") as model:
        settings = LoopConfig(finalize="direct", summarize_at=None)
        session = Session(create_graph_agent(model, config=settings, checkpointer=InMemorySaver()), "s1")
        answers = [(await session.run(text)).answer for text in ("a " * 9000, "b", "c", "d")]
        warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]

    assert (answers, warnings[-1]) == (
        ["One.", "Two.", "Three.", "Four."],
        "The request took 8,000 of the 8,192 tokens that unknown-model can read (98%); once it is full, the older part "
        "of the conversation is left out.",
    )
