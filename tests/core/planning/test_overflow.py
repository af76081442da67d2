"""Conversations that outgrow the model's window, over real HTTP: repeated shortening, and a clear failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent
from tests.support.agents import at_step_limit, echo
from tests.support.openai_stub import Failure, OpenAIStub, Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

TOO_LONG = Failure(
    400,
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    code="context_length_exceeded",
)
STORY, SECOND, THIRD, FOURTH = (Reply(tool_calls=(("story", {"part": part}),)) for part in range(4))


@tool
def story(part: int) -> str:
    """Return a long story."""
    return f"Part {part}. Once upon a time. " * 200


class Agents:
    """Sessions of agents whose models are stubs, closed at the end."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def of(self, stub: OpenAIStub, *, model: dict[str, Any] | None = None, **config: Any) -> Session:
        chat = await self._stack.enter_async_context(stub.chat_model("small", **(model or {})))
        graph = create_graph_agent(
            chat,
            tools=[story, echo],
            system_prompt="Be brief.",
            config=LoopConfig(**{"max_steps": 9, "finalize": "compose", "tool_calling": "native", **config}),
            checkpointer=InMemorySaver(),
        )
        return Session(graph, "s1")


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    async with AsyncExitStack() as stack:
        yield Agents(stack)


def shape(body: dict[str, Any]) -> list[str]:
    """A request's messages: roles, with the note marked, and calls and results by their ids.

    A user message behind the note is joined to it.
    """
    entries = []
    for message in body["messages"]:
        text = message.get("content") or ""
        calls = [call["id"] for call in message.get("tool_calls") or []]
        note = message["role"] == "user" and text.startswith("[A note, not the user's words:")
        if note:
            entries += ["note"] if text.endswith("]") else ["note", "user"]
        else:
            entries.append(" ".join([message["role"], *calls, *filter(None, [message.get("tool_call_id")])]))
    return entries


def warnings_of(events: list[Any]) -> list[str]:
    return [event["message"] for event in events if event["type"] == "warning"]


COMPACTED = (
    "The conversation is longer than small can read; requests hold a note in place of its older part. "
    "The history keeps everything."
)


async def test_an_overlong_request_is_shortened_once_for_the_input(openai_stub: StubFactory, agents: Agents) -> None:
    stub = openai_stub(
        STORY, SECOND, THIRD, TOO_LONG, FOURTH, "No more actions.", "The end.", "No more actions.", "Yes."
    )
    session = await agents.of(stub)

    first, second = await session.run("Tell me stories."), await session.run("Is that all?")

    results = [event["content"] for event in await session.events() if event["type"] == "tool_result"]
    assert {
        "answers": (first.answer, second.answer),
        "model calls": (first.usage["model_calls"], second.usage["model_calls"]),
        "refused": shape(stub.bodies[3]),
        "shortened": shape(stub.bodies[4]),
        "next step": shape(stub.bodies[5]),
        "next input": shape(stub.bodies[7]),
        "warnings": warnings_of(await session.events()),
        "history": len(results),
    } == {
        "answers": ("The end.", "Yes."),
        "model calls": (6, 2),
        "refused": [
            "system",
            "user",
            *["assistant call_1", "tool call_1", "assistant call_2", "tool call_2", "assistant call_3", "tool call_3"],
        ],
        "shortened": ["system", "note", "user", "assistant call_3", "tool call_3"],
        "next step": ["system", "note", "user", "assistant call_3", "tool call_3", "assistant call_4", "tool call_4"],
        "next input": [
            *["system", "note", "assistant call_3", "tool call_3", "assistant call_4", "tool call_4"],
            *["assistant", "user"],
        ],
        "warnings": [COMPACTED],
        "history": 4,
    }


@pytest.mark.parametrize("mode", ["text", "wave"])
async def test_every_mode_is_shortened(openai_stub: StubFactory, agents: Agents, mode: Any) -> None:
    call = {
        "text": '{"tool_calls": [{"name": "story", "arguments": {"part": 1}}]}',
        "wave": '{"status": "continue", "tools": [{"id": "t", "tool": "story", "args": {"part": 1}}]}',
    }[mode]
    examples = ["user", "assistant"] * 2
    enough = {"text": "No more actions.", "wave": '{"status": "done", "tools": []}'}[mode]
    stub = openai_stub(call, call, TOO_LONG, enough, "The end.")
    session = await agents.of(stub, tool_calling=mode, temperature=0)

    result = await session.run("Tell me stories.")

    assert (result.answer, shape(stub.bodies[3]), warnings_of(await session.events())) == (
        "The end.",
        ["system", *examples, "note", "user", "assistant", "user"],
        [COMPACTED],
    )


async def test_an_answer_that_is_too_long_is_shortened_below_a_limit_too(
    openai_stub: StubFactory, agents: Agents
) -> None:
    stub = openai_stub(STORY, SECOND, TOO_LONG, "What I have.")
    session = await agents.of(stub)

    result = await session.run("Tell me stories.", context={"max_steps": 2})

    assert (result.answer, shape(stub.bodies[3])) == (
        at_step_limit(2, "What I have."),
        ["system", "note", "user", "assistant call_2", "tool call_2", "user"],
    )


class Window:
    """Serves replies in order, and refuses a request whose messages have more characters than a model could read."""

    def __init__(self, chars: int, *replies: Any) -> None:
        self._chars = chars
        self._replies = list(replies)
        self.sizes: list[int] = []
        """Characters of each request's messages, refused ones included."""

    def __call__(self, body: dict[str, Any]) -> Any:
        self.sizes.append(sum(len(message.get("content") or "") for message in body["messages"]))
        return TOO_LONG if self.sizes[-1] > self._chars else self._replies.pop(0)

    def times(self, requests: int) -> list[Any]:
        """The replies for a stub that serves so many requests with this."""
        return [self] * requests


async def test_one_input_is_shortened_repeatedly_until_it_fits(openai_stub: StubFactory, agents: Agents) -> None:
    window = Window(15_000, *[Reply(tool_calls=(("story", {"part": n}),)) for n in range(8)], "Enough.", "The end.")
    session = await agents.of(openai_stub(*window.times(40)))

    result = await session.run("Tell me stories.")

    kept = [len(event["content"]) for event in await session.events() if event["type"] == "tool_result"]
    refused = sum(size > 15_000 for size in window.sizes)
    assert (result.answer, result.status, len(kept), min(kept) == 5_200, refused) == (
        "The end.",
        "COMPLETED",
        8,
        True,
        True,
    )
    assert warnings_of(await session.events()) == [COMPACTED]


CUT = "Results of tools are longer than small can read; they are cut further in requests. The history keeps everything."


@pytest.mark.parametrize("mode", ["native", "text", "wave"])
@pytest.mark.parametrize("parts", [1, 3], ids=["one", "three at once"])
async def test_a_result_that_is_longer_than_the_window_is_cut_in_the_request(
    openai_stub: StubFactory, agents: Agents, mode: Any, parts: int
) -> None:
    names = range(parts)
    calls = {
        "native": Reply(tool_calls=tuple(("story", {"part": n}) for n in names)),
        "text": json.dumps({"tool_calls": [{"name": "story", "arguments": {"part": n}} for n in names]}),
        "wave": json.dumps(
            {"status": "continue", "tools": [{"id": f"t{n}", "tool": "story", "args": {"part": n}} for n in names]}
        ),
    }[mode]
    enough = '{"status": "done", "tools": []}' if mode == "wave" else "Enough."
    window = Window(4_500, calls, enough, "The end.")
    session = await agents.of(openai_stub(*window.times(20)), tool_calling=mode, temperature=0)

    result = await session.run("Tell me a story.")

    results = [event for event in await session.events() if event["type"] == "tool_result"]
    message = (await session.driver.state()).values["messages"][2]
    assert ([len(event["content"]) for event in results], len(message.text), warnings_of(await session.events())) == (
        [5_200] * parts,
        5_200,
        [CUT],
    )
    assert result.answer == "The end."


async def test_a_long_result_is_cut_before_the_conversation_is_left_out(
    openai_stub: StubFactory, agents: Agents
) -> None:
    window = Window(5_000, "Enough.", "I am small.", STORY, "Enough.", "You are Ann.")
    stub = openai_stub(*window.times(20))
    session = await agents.of(stub)
    await session.run("I am Ann.")

    result = await session.run("Tell me a story, and who I am.")

    assert (result.answer, shape(stub.bodies[-1])) == (
        "You are Ann.",
        ["system", "user", "assistant", "user", "assistant call_1", "tool call_1", "user"],
    )


async def test_a_result_below_a_limit_is_cut_too(openai_stub: StubFactory, agents: Agents) -> None:
    window = Window(4_000, STORY, "What I have.")
    session = await agents.of(openai_stub(*window.times(20)))

    result = await session.run("Tell me a story.", context={"max_steps": 1})

    assert (result.answer, result.status) == (at_step_limit(1, "What I have."), "ROUND_LIMIT")


async def test_an_input_that_cannot_be_shortened_fails_with_a_report(openai_stub: StubFactory, agents: Agents) -> None:
    stub = openai_stub(STORY, SECOND, *[TOO_LONG] * 40)
    session = await agents.of(stub)

    result = await session.run("Tell me stories.")

    sizes = [sum(len(message.get("content") or "") for message in body["messages"]) for body in stub.bodies[2:]]
    error = "The request is longer than the model can read (HTTP 400); shorten the history or the tools' output."
    beginning = " ".join((await story.ainvoke({"part": 0}))[:170].split())[:160]
    assert (result.status, result.stop_reason, result.error, result.answer) == (
        "FAILED",
        "failed",
        error,
        "This request failed. The request is longer than the model can read (HTTP 400).\n\nDone: story, story.\n\n"
        "What was read, the newest last:\n"
        f'- story({{"part": 0}}): {beginning}…\n- story({{"part": 1}}): {beginning.replace("Part 0.", "Part 1.")}…',
    )
    assert (sizes == sorted(sizes, reverse=True), len(set(sizes)) == len(sizes), len(sizes) < 12) == (True, True, True)


async def test_the_session_goes_on_after_an_input_that_stayed_too_long(
    openai_stub: StubFactory, agents: Agents
) -> None:
    stub = openai_stub(STORY, *[TOO_LONG] * 40)
    session = await agents.of(stub)

    failed = await session.run("Tell me a story.")
    stub.serve_from_now(*Window(2_000, "No more actions.", "Short enough now.").times(5))
    next_ = await session.run("Then just say hello.")

    assert (failed.status, next_.status, next_.answer) == ("FAILED", "COMPLETED", "Short enough now.")


async def test_a_result_that_comes_after_a_cut_is_sent_whole(openai_stub: StubFactory, agents: Agents) -> None:
    window = Window(5_000, STORY, Reply(tool_calls=(("echo", {"text": "x" * 300}),)), "Enough.", "The end.")
    stub = openai_stub(*window.times(20))
    session = await agents.of(stub)

    await session.run("Tell me a story.")

    results = [message["content"] for message in stub.bodies[-1]["messages"] if message["role"] == "tool"]
    assert ([len(result) < 5_000 for result in results], results[1]) == ([True, True], "x" * 300)


async def test_a_later_input_may_be_shortened_again(openai_stub: StubFactory, agents: Agents) -> None:
    stub = openai_stub(
        *[STORY, SECOND, TOO_LONG, "No more actions.", "The end."],
        *[STORY, SECOND, TOO_LONG, "No more actions.", "The other end."],
    )
    session = await agents.of(stub)

    answers = [(await session.run(text)).answer for text in ("Tell me stories.", "More!")]

    assert (answers, shape(stub.bodies[7]), shape(stub.bodies[8])) == (
        ["The end.", "The other end."],
        [
            *["system", "note", "assistant call_2", "tool call_2", "assistant", "user"],
            *["assistant call_3", "tool call_3", "assistant call_4", "tool call_4"],
        ],
        ["system", "note", "user", "assistant call_4", "tool call_4"],
    )


async def test_an_input_that_is_too_long_by_itself_ends_at_once_and_not_the_session(
    openai_stub: StubFactory, agents: Agents
) -> None:
    stub = openai_stub(TOO_LONG, TOO_LONG, "No more actions.", "Hello.")
    session = await agents.of(stub)

    failed = await session.run("word " * 5_000)
    asked = len(stub.requests)
    answered = await session.run("Say hello.")

    assert (failed.status, asked, answered.answer, shape(stub.bodies[2])) == (
        "FAILED",
        1,
        "Hello.",
        ["system", "note", "assistant", "user"],
    )


async def test_a_nearly_full_window_is_a_warning_once_per_input(openai_stub: StubFactory, agents: Agents) -> None:
    stub = openai_stub(
        *[
            Reply(tool_calls=(("echo", {"text": "a"}),), prompt_tokens=799),
            Reply("No more actions.", prompt_tokens=800),
        ],
        Reply("Done.", prompt_tokens=900),
        *[Reply("No more actions.", prompt_tokens=10), Reply("Done.", prompt_tokens=950)],
    )
    profile = {"max_input_tokens": 1000, "tool_calling": True}
    session = await agents.of(stub, model={"profile": profile}, summarize_at=None)

    for text in ("go", "again"):
        await session.run(text)

    once = "once it is full, the older part of the conversation is left out."
    assert warnings_of(await session.events()) == [
        f"The request took 800 of the 1,000 tokens that small can read (80%); {once}",
        f"The request took 950 of the 1,000 tokens that small can read (95%); {once}",
    ]


async def test_a_refused_length_is_not_sent_again_in_the_same_input(openai_stub: StubFactory, agents: Agents) -> None:
    stub = openai_stub(STORY, TOO_LONG, SECOND, THIRD, FOURTH, "No more actions.", "The end.")
    session = await agents.of(stub)

    result = await session.run("Tell me stories.")

    sizes = [sum(len(message.get("content") or "") for message in body["messages"]) for body in stub.bodies]
    assert (result.answer, [size >= sizes[1] for size in sizes]) == ("The end.", [False, True] + [False] * 5)
