"""Answers to a streamed request in the forms of servers: line ends, errors in a 200, one JSON body, usage per chunk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessageChunk
from langchain_google_genai import ChatGoogleGenerativeAI
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from graph_agent.models.wire.openai_stream import EventBuffer
from tests.support.openai_stub import Body, StubFactory, openai_stub
from tests.support.raw_chunks import Chunk, calls_delta, delta, of_chunks, raw_model, reply_of_calls, reply_of_text

__all__ = ["openai_stub"]


def weather(city: str = "here") -> str:
    """Return the weather in a city."""
    return f"rain in {city}"


async def outcome(model: Any, way: str = "stream", **config: Any) -> Any:
    """Run one input, with or without a reader, and return its result."""
    settings = LoopConfig(**{"model_retries": 0, **config})
    session = Session(create_graph_agent(model, tools=[weather], config=settings, checkpointer=InMemorySaver()), "s1")
    if way == "run":
        return await session.run("go")
    [result] = [part.result async for part in session.stream("go") if part.type == "done"]
    return result


def events(chunks: Sequence[Chunk], end: str = "\n", begin: str = "data: ", between: str = "") -> bytes:
    texts = [*(json.dumps(chunk, ensure_ascii=False) for chunk in chunks), "[DONE]"]
    return "".join(f"{between}{begin}{text}{end}{end}" for text in texts).encode()


STREAMS: dict[str, dict[str, str]] = {
    "line feeds": {},
    "carriage returns": {"end": "\r\n"},
    "no blank behind the colon": {"begin": "data:"},
    "comments and names of events": {"between": ": keep-alive\n\nevent: message\nid: 7\n"},
    "a byte order mark": {},
}


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize("form", STREAMS)
async def test_a_stream_is_read_in_each_form(openai_stub: StubFactory, form: str, way: str) -> None:
    body = events(reply_of_text("Grüße, ", "alle", " zusammen."), **STREAMS[form])
    if "mark" in form:
        body = b"\xef\xbb\xbf" + body
    async with openai_stub(Body(body)).chat_model() as model:
        result = await outcome(model, way)

    assert (result.status, result.answer) == ("COMPLETED", "Grüße, alle zusammen.")


@given(cuts=st.lists(st.integers(1, 60), max_size=40), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_parts_of_any_size_hold_the_same_events(cuts: list[int], end: str) -> None:
    body, buffer, found = events(reply_of_text("Grüße, ", "alle"), end), EventBuffer(), list[str]()
    for size in [*cuts, len(body)]:
        found += buffer.feed(body[:size])
        body = body[size:]
    found += buffer.rest()

    assert [json.loads(each) for each in found] == reply_of_text("Grüße, ", "alle")


WHOLE: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}


def whole(message: dict[str, Any], finish: str) -> Body:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return Body(json.dumps({**WHOLE, "choices": [choice]}).encode(), "application/json")


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_one_json_body_is_read_as_the_reply(openai_stub: StubFactory, way: str) -> None:
    calls = [
        {"id": id_, "type": "function", "function": {"name": "weather", "arguments": {"city": id_}}} for id_ in "ab"
    ]
    stub = openai_stub(whole({"content": None, "tool_calls": calls}, "tool_calls"), whole({"content": "Rain."}, "stop"))
    async with stub.chat_model() as model:
        result = await outcome(model, way)

    assert (result.answer, sorted(result.results.values()), result.usage["total_tokens"], len(stub.bodies)) == (
        "Rain.",
        ["rain in a", "rain in b"],
        30,
        2,
    )


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'], ids=["object", "text"])
async def test_arguments_are_read_as_an_object_too(openai_stub: StubFactory, arguments: Any, way: str) -> None:
    chunks = reply_of_calls(calls_delta({"id": "a", "name": "weather", "arguments": arguments}))
    for choice in chunks[1]["choices"]:
        del choice["delta"]["tool_calls"][0]["index"]
    stub = openai_stub(Body(events(chunks)), Body(events(reply_of_text("Rain."))))
    async with stub.chat_model() as model:
        result = await outcome(model, way)

    assert list(result.results.values()) == ["rain in Oslo"]


BUSY, LONG = "The queue is full", "maximum context length is 8192 tokens"
ERRORS: dict[str, tuple[bytes, str]] = {
    "an event of OpenAI": (b'data: {"error": {"message": "The queue is full", "code": 503}}\n\n', f"HTTP 503: {BUSY}"),
    "an event with a name": (
        b'event: error\ndata: {"message": "The queue is full", "code": 503}\n\n',
        f"HTTP 503: {BUSY}",
    ),
    "a field of llama.cpp": (b'error: {"code": 503, "message": "The queue is full"}\n\n', f"HTTP 503: {BUSY}"),
    "vLLM's object": (
        b'data: {"object": "error", "message": "The queue is full", "code": 503}\n\n',
        f"HTTP 503: {BUSY}",
    ),
    "a body": (b'{"error": {"message": "The queue is full", "code": "503"}}', f"HTTP 503: {BUSY}"),
    "a body with a text": (b'{"error": "The queue is full"}', BUSY),
    "a list of Google": (b'[{"error": {"code": 503, "message": "The queue is full"}}]', f"HTTP 503: {BUSY}"),
    "MiniMax's base_resp": (b'{"base_resp": {"status_code": 1002, "status_msg": "The queue is full"}}', BUSY),
    "a choice of OpenRouter": (
        b'data: {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error", '
        b'"error": {"code": 503, "message": "The queue is full"}}]}\n\n',
        f"HTTP 503: {BUSY}",
    ),
}


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize("form", ERRORS)
async def test_an_error_in_a_200_is_raised_with_its_words(
    openai_stub: StubFactory, caplog: pytest.LogCaptureFixture, form: str, way: str
) -> None:
    body, words = ERRORS[form]
    async with openai_stub(Body(body)).chat_model() as model:
        result = await outcome(model, way)

    assert (result.status, words in result.error or words in caplog.text) == ("FAILED", True)


def used(output: int, prompt: int = 1_000) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


@pytest.mark.parametrize("way", ["run", "stream"])
async def test_usage_in_every_chunk_is_that_of_the_newest(way: str) -> None:
    chunks = [delta({"content": "x"}, usage=used(number)) for number in range(25)]
    chunks += [delta({}, "stop", usage=used(24)), {**delta({}), "choices": [], "usage": used(24)}]

    result = await outcome(raw_model(chunks), way)

    assert result.usage == {"input_tokens": 1_000, "output_tokens": 24, "total_tokens": 1_024, "model_calls": 1}


figures = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9), st.integers(0, 9))


@given(reports=st.lists(figures, min_size=1, max_size=6))
async def test_the_largest_figures_of_a_reply_count(reports: list[tuple[int, int, int, int]]) -> None:
    chunks = [AIMessageChunk(content="x", usage_metadata=metadata_of(*report)) for report in reports]

    result = await outcome(of_chunks(chunks))

    largest = [max(report[at] for report in reports) for at in range(2)]
    assert [result.usage["input_tokens"], result.usage["output_tokens"]] == largest


def metadata_of(asked: int, answered: int, cached: int, reasoning: int) -> Any:
    return {
        "input_tokens": asked,
        "output_tokens": answered,
        "total_tokens": asked + answered,
        "input_token_details": {"cache_read": cached},
        "output_token_details": {"reasoning": reasoning},
    }


async def test_input_and_output_that_are_reported_apart_add_up() -> None:
    chunks = [
        AIMessageChunk(content="Hi.", usage_metadata=metadata_of(25, 1, 20, 0)),
        AIMessageChunk(content="", usage_metadata=metadata_of(0, 8, 0, 0)),
        AIMessageChunk(content="", usage_metadata=metadata_of(25, 15, 20, 6)),
    ]
    session = Session(create_graph_agent(of_chunks(chunks), checkpointer=InMemorySaver()), "s1")

    [done] = [part async for part in session.stream("go") if part.type == "done"]

    reply = (await session.driver.state()).values["messages"][-1]
    assert reply.usage_metadata == metadata_of(25, 15, 20, 6)
    assert done.result.usage["total_tokens"] == 40


def anthropic_events(start: dict[str, Any], end: dict[str, Any]) -> bytes:
    """Return the events of a streamed message with this usage at its start and at its end."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": start}
    texts: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Rain."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": end},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in texts).encode()


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize(
    "end",
    [{"output_tokens": 15}, {"input_tokens": 25, "cache_read_input_tokens": 20, "output_tokens": 15}],
    ids=["output alone", "all"],
)
async def test_the_input_at_the_start_of_anthropics_stream_counts(
    openai_stub: StubFactory, end: dict[str, Any], way: str
) -> None:
    body = anthropic_events({"input_tokens": 25, "cache_read_input_tokens": 20, "output_tokens": 1}, end)
    stub = openai_stub(Body(body))
    client: Any = ChatAnthropic
    model = client(model="m", api_key="k", base_url=stub.base_url.removesuffix("/v1"))

    result = await outcome(model, way)

    assert result.usage == {"input_tokens": 45, "output_tokens": 15, "total_tokens": 60, "model_calls": 1}


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")  # of Google's package
@pytest.mark.parametrize("way", ["run", "stream"])
async def test_the_differences_that_googles_package_reports_are_summed(openai_stub: StubFactory, way: str) -> None:
    chunks = [
        {
            "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "x"}]}, **end}],
            "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": at, "totalTokenCount": 9 + at},
        }
        for at, end in ((4, {}), (5, {}), (8, {"finishReason": "STOP"}))
    ]
    stub = openai_stub(Body("".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks).encode()))
    model = ChatGoogleGenerativeAI(model="gemini-2.5-flash", api_key="k", base_url=stub.base_url.removesuffix("/v1"))

    result = await outcome(model, way)

    assert (result.answer, result.usage["input_tokens"], result.usage["output_tokens"]) == ("xxx", 9, 8)
