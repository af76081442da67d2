"""The scripted model, streamed: the same reply from every method, in small pieces."""

from __future__ import annotations

import asyncio
import json
import warnings
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk

from graph_agent import ScriptedChatModel
from tests.support.scripted_helpers import Room, call, streamed


def content_of(message: AIMessage) -> dict[str, Any]:
    """A message's content, without its id and the fields of chunks."""
    dumped = message.model_dump(exclude={"id", "type", "tool_call_chunks", "chunk_position"})
    return {**dumped, "response_metadata": message.response_metadata, "usage_metadata": message.usage_metadata}


async def in_every_way(responses: list[Any]) -> list[AIMessage]:
    """The first reply of every method: invoke and stream, sync and async, and a stream inside an invoke."""
    waited, streaming = ScriptedChatModel(responses), ScriptedChatModel(responses, streaming=True)
    sync_stream = list(ScriptedChatModel(responses).stream("hi"))
    whole = sync_stream[0]
    for chunk in sync_stream[1:]:
        whole += chunk
    return [
        await waited.ainvoke("hi"),
        ScriptedChatModel(responses).invoke("hi"),
        await streaming.ainvoke("hi"),
        ScriptedChatModel(responses, streaming=True).invoke("hi"),
        await streamed(ScriptedChatModel(responses)),
        whole,
    ]


@pytest.mark.parametrize(
    "response",
    [
        "Hello  there,\nworld  ",
        "",
        "   ",
        "日本語" * 20,
        '{"answer": 42}',
        call(),
        call(content="Let me see."),
        json.dumps({"tool_calls": [{"id": "a", "name": "x", "arguments": "{}"}, {"id": "b", "name": "y"}]}),
        json.dumps({"tool_calls": [{"id": "a", "name": "x", "arguments": "not json"}]}),
        AIMessage([{"type": "text", "text": "a"}, {"type": "reasoning", "reasoning": "b"}], id="m1"),
        AIMessage("a", additional_kwargs={"k": {"v": 1}}, response_metadata={"model_name": "other"}),
        AIMessage("a", usage_metadata={"input_tokens": 7, "output_tokens": 8, "total_tokens": 15}),
    ],
)
async def test_invoke_and_stream_return_the_same_reply(response: str | AIMessage) -> None:
    first, *others = await in_every_way([response])

    assert [content_of(other) for other in others] == [content_of(first)] * 5


async def test_text_is_streamed_in_small_pieces() -> None:
    model = ScriptedChatModel(["Rooms are free: one, two.\n"])

    pieces = [chunk.text async for chunk in model.astream("hi")]

    assert pieces == ["Rooms", " are", " free:", " one,", " two.", "\n", ""]


async def test_a_message_of_calls_alone_is_streamed_in_pieces() -> None:
    model = ScriptedChatModel([call()])

    chunks = [chunk async for chunk in model.astream("hi")]

    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    assert [part["args"] for chunk in chunks for part in chunk.tool_call_chunks] == ["", '{"text":', ' "hello"}']
    assert chunks[-1].chunk_position == "last"


async def test_a_stream_yields_to_the_event_loop_between_tokens() -> None:
    model = ScriptedChatModel(["one two three four"])
    seen: list[str] = []
    two = asyncio.Event()

    async def read() -> None:
        async for chunk in model.astream("hi"):
            seen.append(chunk.text)
            if len(seen) == 2:
                two.set()

    task = asyncio.create_task(read())
    await two.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert seen == ["one", " two"]


async def test_the_event_protocol_reads_it_too() -> None:
    model = ScriptedChatModel([call(content="Let me see.")])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the protocol warns that it is in beta
        stream = await model.astream_events("hi", version="v3")
        output = await stream.output

    assert (output.text, [(each["name"], each["args"]) for each in output.tool_calls]) == (
        "Let me see.",
        [("echo", {"text": "hello"})],
    )


async def test_waiting_and_streaming_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_thread(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a thread was used")

    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", no_thread)
    model = ScriptedChatModel(["a b", "c d", '{"name": "Sea", "beds": 2}'])

    texts = [(await model.ainvoke("x")).text, (await streamed(model)).text]
    room = await model.with_structured_output(Room).ainvoke("x")

    assert (texts, room) == (["a b", "c d"], Room(name="Sea", beds=2))
