"""Streamed model requests without callbacks: the message stream and every other observer receive the same tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langsmith.run_helpers import tracing_context

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.models.retry import ask
from graph_agent.models.stream_watch import StreamForwarder
from tests.support.agents import echo, says
from tests.support.observers import RecordingClient


class Reporter(BaseCallbackHandler):
    """Records the tokens of a run."""

    run_inline = True

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: Any, **_: Any) -> None:
        self.tokens.append(token)


STREAMED = ["It", " is", " a."]
VARIES = {"langgraph_checkpoint_ns", "checkpoint_ns", "langgraph_triggers"}


async def streamed(graph: Any, config: Any = None) -> list[tuple[str, bool, dict[str, Any]]]:
    """The streamed messages of a run: text, whether the id is that of the first one, and metadata."""
    found = [chunk async for chunk in graph.astream(says("go"), config, stream_mode="messages")]
    return [
        (message.text, message.id == found[0][0].id, {k: v for k, v in metadata.items() if k not in VARIES})
        for message, metadata in found
    ]


def answering(**model: Any) -> Any:
    script = ScriptedChatModel(["It is a."], cycle=True).model_copy(update=model)
    return create_graph_agent(script, tools=[echo])


async def test_the_message_stream_of_a_request_without_callbacks_equals_langchains(
    unobserved_requests: list[Any],
) -> None:
    model = {"tags": ["of-model"], "metadata": {"of": "model"}}
    config = {"tags": ["of-run"], "metadata": {"of_run": 1}}
    direct, sent = await streamed(answering(**model), config), len(unobserved_requests)
    through_langchain = await streamed(answering(**model), {**config, "callbacks": [Reporter()]})

    assert (direct, sent, len(unobserved_requests)) == (through_langchain, 1, 1)


async def test_a_streamed_token_is_emitted_once_each_and_in_order(unobserved_requests: list[Any]) -> None:
    texts = [text for text, _, _ in await streamed(answering()) if text]

    assert (texts, len(unobserved_requests)) == (STREAMED, 1)


async def test_a_handler_of_the_run_receives_each_token_of_a_message_stream(unobserved_requests: list[Any]) -> None:
    handler = Reporter()
    texts = [text for text, _, _ in await streamed(answering(), {"callbacks": [handler]}) if text]

    assert (texts, [token for token in handler.tokens if token], unobserved_requests) == (STREAMED, STREAMED, [])


async def test_astream_events_reports_each_token(unobserved_requests: list[Any]) -> None:
    events = [event async for event in answering().astream_events(says("go"), version="v2")]
    tokens = [event["data"]["chunk"].text for event in events if event["event"] == "on_chat_model_stream"]

    assert ([token for token in tokens if token], unobserved_requests) == (STREAMED, [])


async def test_langsmith_traces_a_streamed_model_call(unobserved_requests: list[Any]) -> None:
    client = RecordingClient()
    with tracing_context(enabled=True, client=client):
        texts = [text for text, _, _ in await streamed(answering()) if text]

    assert (texts, client.kinds.count("llm"), unobserved_requests) == (STREAMED, 1, [])


async def test_a_surrounding_run_with_subgraphs_receives_each_token_of_the_agent(
    unobserved_requests: list[Any],
) -> None:
    parent: Any = StateGraph(MessagesState)
    parent.add_node("agent", answering())
    parent.add_edge(START, "agent")
    stream = parent.compile().astream(says("go"), stream_mode="messages", subgraphs=True)
    texts = [message.text async for _, (message, _) in stream if isinstance(message, AIMessageChunk) and message.text]

    assert (texts, len(unobserved_requests)) == (STREAMED, 1)


class Reports(ScriptedChatModel):
    """Sends an object to the custom stream before each of its tokens."""

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        async for chunk in super()._astream(*args, **kwargs):
            get_stream_writer()({"before": chunk.message.text})
            yield chunk


async def test_custom_parts_of_a_model_keep_their_place_among_its_tokens(unobserved_requests: list[Any]) -> None:
    graph = create_graph_agent(Reports(responses=["It is a."]), tools=[echo])
    shown = [
        payload["before"] if mode == "custom" else f"token {payload[0].text}"
        async for mode, payload in graph.astream(says("go"), stream_mode=["messages", "custom"])
        if mode == "custom" or payload[0].text
    ]

    expected = [text for token in STREAMED for text in (token, f"token {token}")]
    assert ([text for text in shown if text], len(unobserved_requests)) == (expected, 1)


class FailsAtFirst(ScriptedChatModel):
    """Fails after the first token of its first reply, which a filter withholds."""

    sent: int = 0

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        self.sent += 1
        if self.sent == 1:
            yield ChatGenerationChunk(message=AIMessageChunk(content="No"))
            raise ConnectionError("connection reset")
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


async def test_a_streamed_request_is_retried_without_tokens_of_the_failed_attempt(
    unobserved_requests: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graph_agent.models.retry.wait_s", lambda *_: 0.0)
    graph = create_graph_agent(FailsAtFirst(responses=["It is a."]), tools=[echo])
    texts = [text for text, _, _ in await streamed(graph) if text]

    assert (texts, len(unobserved_requests)) == (STREAMED, 2)


async def test_an_error_of_a_reader_does_not_end_the_request(unobserved_requests: list[Any]) -> None:
    received: list[str] = []

    async def reader(text: str, _: str | None) -> None:
        received.append(text)
        raise ValueError("no space")

    watch = StreamForwarder(reader)
    reply = await ask(ScriptedChatModel(["It is a."]), [], {}, LoopConfig(model_retries=0), config=None, watch=watch)

    assert (reply.text, received, len(unobserved_requests)) == ("It is a.", STREAMED, 1)
