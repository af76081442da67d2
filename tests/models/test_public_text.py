"""Texts for remote callers hold the category and the status of a model's error, and no words of the provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.model_error_text import SENTENCES, ModelErrorKind, public_text, public_value
from graph_agent.errors import RunFailedError
from graph_agent.models.errors import describe_model_error
from tests.support.agents import asks

WORDS = "secret detail"
REPEATING = f"{WORDS} (x); check the key and the address it is sent to. {WORDS}"


class ProviderError(Exception):
    def __init__(self, text: str = WORDS, status_code: int | None = 401) -> None:
        super().__init__(text)
        self.status_code = status_code


class FailingModel(ScriptedChatModel):
    """A model whose provider refuses each request."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise ProviderError(status_code=503)

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for _ in self.requests:
            yield ChatGenerationChunk(message=AIMessageChunk(content=""))
        raise ProviderError(status_code=503)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProviderError(), "The model provider refused the API key (HTTP 401); check the key and the address"),
        (ProviderError(REPEATING), "The model provider refused the API key (HTTP 401); check the key and the address"),
        (ProviderError("x" * 900, 503), "The model provider did not answer as it should (HTTP 503); try again later"),
        (ProviderError(status_code=None), "The model call failed; see the provider's documentation"),
        (ConnectionError(WORDS), "The model provider did not answer as it should; try again later"),
    ],
    ids=["status", "end repeated", "long", "no status", "connection"],
)
def test_the_providers_words_are_removed(error: Exception, expected: str) -> None:
    text = public_text(f"This request failed. {describe_model_error(error)}\n\nDone: echo.")

    assert text.startswith(f"This request failed. {expected}")
    assert text.endswith(".\n\nDone: echo.")
    assert (WORDS in text, "xx" in text) == (False, False)


def test_every_category_has_a_sentence() -> None:
    texts = {kind: public_text(f"{what} ({WORDS}); {then}.") for kind, (what, then) in SENTENCES.items()}

    assert texts == {kind: f"{what}; {then}." for kind, (what, then) in SENTENCES.items()}
    assert set(SENTENCES) == set(get_args(ModelErrorKind))


def test_other_text_is_unchanged() -> None:
    value = {"content": ["The call failed (HTTP 401: page); try again.", {"n": 1}], "seq": 2, "value": None}

    assert public_value(value) == value


@pytest.mark.timeout(60)  # a quadratic search takes many minutes
def test_a_long_text_is_read_in_linear_time() -> None:
    text = "The model call failed (" * 50_000

    assert public_text(text) == text


async def test_the_history_of_a_fallback_and_of_a_failed_delegate_holds_no_provider_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = create_graph_agent(FailingModel(responses=[]), config=LoopConfig(model_retries=0))
    graph = create_graph_agent(
        FailingModel(responses=[]),
        delegates=[GraphDelegate("d", "Helps.", inner)],
        checkpointer=InMemorySaver(),
        config=LoopConfig(
            model_retries=0, fallback_models=[ScriptedChatModel([asks(("1", "delegate_to_d", {"task": "a"})), "Done."])]
        ),
    )
    session = Session(graph, "s")
    await session.run("go")

    events = await session.events()

    assert (str(events).count(WORDS), caplog.text.count(WORDS) > 1) == (0, True)
    assert [event["message"].partition(" does ")[2] for event in events if event["type"] == "warning"] == [
        "not answer (HTTP 503); going on with scripted."
    ]


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        ("Failed: {{ message }}", f"Failed: {SENTENCES['transient'][0]} (HTTP 503); {SENTENCES['transient'][1]}."),
        ("FAILED: {{ message | upper }}", None),
        ("Failed: {{ message[:72] }}", None),
        ("Failed: {{ message.split('(')[1] }}", None),
        ("Failed ({{ kind }}).", "Failed (transient)."),
    ],
)
async def test_a_custom_failure_template_publishes_no_provider_words(template: str, answer: str | None) -> None:
    graph = create_graph_agent(
        FailingModel(responses=[]),
        checkpointer=InMemorySaver(),
        config=LoopConfig(model_retries=0),
        prompts={"failure": template},
    )
    session = Session(graph, "s")
    result = await session.run("go", context={"on_failure": "answer"})

    published = public_text(result.answer)
    events = [public_value(dict(event)) for event in await session.events()]
    words = WORDS.lower()[:12]
    assert ([text.lower().count(words) for text in (published, str(events))], answer in (published, None)) == (
        [0, 0],
        True,
    )


async def test_no_state_or_stream_of_the_graph_holds_provider_words(caplog: pytest.LogCaptureFixture) -> None:
    """`langgraph dev` shows the state, the history and every stream of a run to a browser."""

    @tool
    async def summarize(text: str) -> str:
        """Summarize a text with a model."""
        return (await FailingModel(responses=[]).ainvoke(text)).text

    model = ScriptedChatModel([asks(("1", "summarize", {"text": "a"})), "No more actions.", "Done."])
    graph = create_graph_agent(
        FailingModel(responses=[]),
        tools=[summarize],
        checkpointer=InMemorySaver(),
        config=LoopConfig(model_retries=0, fallback_models=[model]),
    )
    failing = create_graph_agent(FailingModel(responses=[]), checkpointer=InMemorySaver())
    thread: RunnableConfig = {"configurable": {"thread_id": "s"}}
    seen: list[Any] = []
    for agent in (graph, failing):
        given = {"messages": [("user", "go")]}
        modes = ["values", "updates", "messages", "custom", "debug", "tasks", "checkpoints"]
        seen += [part async for part in agent.astream(given, thread, stream_mode=modes, context={"model_retries": 0})]
        seen += [state async for state in agent.aget_state_history(thread)]
    with pytest.raises(RunFailedError) as raised:
        await failing.ainvoke(given, thread, context={"on_failure": "raise", "model_retries": 0})
    seen.append(str(raised.value))

    assert (str(seen).count(WORDS), caplog.text.count(WORDS) > 1) == (0, True)
