"""Compression of long tool results: measured in characters over all requests of a session."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.hooks.history_compression import HistoryCompression
from graph_agent.hooks.web_search import WebSearchInterception
from graph_agent.session.results import Token
from tests.support.agents import asks, says

BOOK = "Once " + "upon a time. " * 1_000
"""13,005 characters."""


@tool
def read_aloud(page: int = 1) -> str:
    """Read a page of the book."""
    return BOOK if page == 1 else f"{page} {BOOK}"


async def upper(text: str) -> str:
    return text[:4].upper()


def begins_upper(text: str) -> Awaitable[str]:
    return upper(text)


def reads(page: int) -> str:
    return asks((f"p{page}", "read_aloud", {"page": page}))


def session(model: BaseChatModel | list[Any], *hooks: LoopHook, **config: Any) -> tuple[Session, ScriptedChatModel]:
    scripted = ScriptedChatModel(model) if isinstance(model, list) else model
    graph = create_graph_agent(
        scripted,
        tools=[read_aloud],
        hooks=hooks,
        config=LoopConfig(**{"finalize": "compose", **config}),
        checkpointer=InMemorySaver(),
    )
    assert isinstance(scripted, ScriptedChatModel)
    return Session(graph, "s1"), scripted


def lengths(model: ScriptedChatModel) -> list[list[int]]:
    """Characters of the tool results in each request."""
    return [[len(m.text) for m in request.messages if isinstance(m, ToolMessage)] for request in model.requests]


TWO_INPUTS = [reads(1), reads(2), "No more actions.", "Done.", reads(3), "No more actions.", "Done again."]


@pytest.mark.parametrize(
    ("hook", "sent"),
    [
        (HistoryCompression(upper, over_chars=100), [[], [4], [4] * 2, [4] * 2, [4] * 2, [4] * 3, [4] * 3]),
        (
            HistoryCompression(upper, over_chars=100, keep_newest=1),
            [[], [13_005], [4, 13_007], [4, 13_007], [4, 13_007], [4, 4, 13_007], [4, 4, 13_007]],
        ),
        (
            HistoryCompression(upper, over_chars=100, keep_newest=5),
            [[], [13_005], *[[13_005, 13_007]] * 3, *[[13_005, 13_007, 13_007]] * 2],
        ),
        (
            HistoryCompression(upper, over_chars=20_000),
            [[], [13_005], *[[13_005, 13_007]] * 3, *[[13_005, 13_007, 13_007]] * 2],
        ),
    ],
    ids=["all", "newest kept", "more kept than there are", "short enough"],
)
async def test_every_later_request_is_shorter(hook: HistoryCompression, sent: list[list[int]]) -> None:
    """Plans and answers of one input, and of the next."""
    talk, model = session(TWO_INPUTS, hook)

    answers = [(await talk.run(text)).answer for text in ("go", "more")]

    model.assert_spent()
    whole = [event["content"] for event in await talk.events() if event["type"] == "tool_result"]
    messages = (await talk.driver.state()).values["messages"]
    stored = [len(message.text) for message in messages if isinstance(message, ToolMessage)]
    assert (answers, lengths(model), [len(text) for text in whole], stored) == (
        ["Done.", "Done again."],
        sent,
        [13_005, 13_007, 13_007],
        [13_005, 13_007, 13_007],
    )


@pytest.mark.parametrize("mode", ["text", "wave"])
async def test_results_that_are_written_out_are_shorter_too(mode: Any) -> None:
    plan = '{"status": "continue", "tools": [{"id": "t1", "tool": "read_aloud", "args": {}}]}'
    script = (
        [plan, '{"status": "done", "tools": []}', "Done."]
        if mode == "wave"
        else [reads(1), "No more actions.", "Done."]
    )
    talk, model = session(script, HistoryCompression(upper, over_chars=100), tool_calling=mode)

    await talk.run("go")

    seen = [sum(len(m.text) for m in request.messages if m.type != "system") for request in model.requests]
    assert (len(seen), max(seen) < 1_000) == (3, True)


@pytest.mark.parametrize(
    "hook",
    [
        HistoryCompression(upper, over_chars=100),
        HistoryCompression(lambda text: text[:4].upper(), over_chars=100),
        HistoryCompression(begins_upper, over_chars=100),
    ],
    ids=["coroutine", "function", "function that gives a coroutine"],
)
async def test_any_function_compresses(hook: HistoryCompression) -> None:
    talk, model = session([reads(1), "No more actions.", "Done."], hook)

    await talk.run("go")

    assert [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)] == ["ONCE"]


async def test_the_default_compression_keeps_head_and_tail() -> None:
    talk, model = session([reads(1), "No more actions.", "Done."], HistoryCompression(over_chars=100))

    await talk.run("go")

    [cut] = [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert (cut[:9], cut[-8:], len(cut) < 250) == ("Once upon", "a time. ", True)


async def test_a_result_is_compressed_once() -> None:
    made: list[str] = []

    def shorten(text: str) -> str:
        made.append(text[:2])
        return "short"

    talk, _ = session(TWO_INPUTS, HistoryCompression(shorten, over_chars=100))
    for text in ("go", "more"):
        await talk.run(text)

    assert made == ["On", "2 ", "3 "]


async def test_no_request_is_made_twice_and_the_answer_is_streamed() -> None:
    """A hook that only compresses looks at no reply, so that none is held back."""
    talk, model = session([reads(1), "It begins well."], HistoryCompression(upper, over_chars=100), finalize="direct")

    parts = [part async for part in talk.stream("go")]

    tokens = [part.text for part in parts if isinstance(part, Token)]
    assert (len(model.requests), len(tokens) > 1, "".join(tokens)) == (2, True, "It begins well.")


async def test_search_results_are_compressed_in_later_requests() -> None:
    script = [asks(("s", "web_search", {"query": "x"})), reads(1), "No more actions.", "Done."]
    hooks = WebSearchInterception(lambda query: BOOK), HistoryCompression(upper, over_chars=100)
    talk, model = session(script, *hooks)

    await talk.run("go")

    assert lengths(model) == [[], [13_005], [4, 4], [4, 4]]


async def test_other_hooks_receive_the_compressed_request() -> None:
    seen: list[int] = []

    class Looks(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            seen.extend(len(m.text) for m in request.messages if isinstance(m, ToolMessage))
            return False, None

    talk, _ = session([reads(1), "No more actions.", "Done."], Looks(), HistoryCompression(upper, over_chars=100))

    await talk.run("go")

    # The plan after the result, and the answer.
    assert seen == [4, 4]


async def test_images_stay_with_a_text_that_is_compressed() -> None:
    image = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}

    @tool
    def look() -> list[Any]:
        """Look at the page."""
        return [{"type": "text", "text": BOOK}, image]

    model = ScriptedChatModel([asks(("l", "look", {})), "No more actions.", "Done."])
    hook = HistoryCompression(upper, over_chars=100)
    await create_graph_agent(model, tools=[look], hooks=[hook]).ainvoke(says("go"))

    [sent] = [m.content for m in model.requests[1].messages if isinstance(m, ToolMessage)]
    assert sent == [{"type": "text", "text": "ONCE"}, image]


async def test_models_that_compress_are_counted_and_not_streamed() -> None:
    summarizer = ScriptedChatModel(["In short."])

    async def summarize(text: str) -> str:
        return (await summarizer.ainvoke(text)).text

    talk, _ = session([reads(1), "No more actions.", "Done."], HistoryCompression(summarize, over_chars=100))

    parts = [part async for part in talk.stream("go")]

    result = parts[-1].result  # type: ignore[union-attr]  # the last part is Done
    tokens = "".join(part.text for part in parts if isinstance(part, Token))
    assert (tokens, result.usage["model_calls"]) == ("Done.", 4)


async def broken(text: str) -> str:
    raise ValueError("no summary")


@pytest.mark.parametrize(
    ("steps", "status"),
    [(5, "FAILED"), (1, "ROUND_LIMIT")],
    ids=["at a plan", "at the answer, where the limit has ended the input"],
)
async def test_a_compression_that_fails_is_an_error_of_the_input(steps: int, status: str) -> None:
    talk, _ = session([reads(1), "never"], HistoryCompression(broken, over_chars=100), max_steps=steps)

    result = await talk.run("go")

    assert (result.status, result.error) == (
        status,
        "The hook HistoryCompression failed: ValueError: no summary",
    )


@pytest.mark.parametrize("steps", [5, 1], ids=["at a plan", "at the answer"])
async def test_a_failing_compression_is_skipped_with_on_error_skip(steps: int) -> None:
    hook = HistoryCompression(broken, over_chars=100, on_error="skip")
    script = [reads(1), *["No more actions."] * (steps > 1), "Done."]
    talk, model = session(script, hook, max_steps=steps)

    result = await talk.run("go")

    warnings = {event["message"] for event in await talk.events() if event["type"] == "warning"}
    assert ("Done." in result.answer, lengths(model)[-1], warnings) == (
        True,
        [13_005],
        {"The hook HistoryCompression failed: ValueError: no summary; it is skipped."},
    )


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        ("text", "TypeError: rewrite_results returned 'text'; return a mapping of message id → text"),
        ({"m": 5}, "TypeError: rewrite_results gave 5 for the result 'm'; give text"),
    ],
)
async def test_a_rewriting_hook_must_give_texts(returned: Any, fault: str) -> None:
    class Rewrites(LoopHook):
        def rewrite_results(self, results: list[ToolMessage]) -> Any:
            return returned

    talk, _ = session(["No more actions."], Rewrites())

    assert (await talk.run("go")).error == f"The hook Rewrites failed: {fault}"


async def test_hooks_rewrite_in_order_and_may_look_at_replies_too() -> None:
    class Adds(LoopHook):
        def __init__(self, text: str) -> None:
            self.text = text
            self.shown = 0

        def rewrite_results(self, results: list[ToolMessage]) -> dict[str, str]:
            return {str(result.id): f"{result.text[:4]}{self.text}" for result in results}

        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            self.shown += 1
            return False, None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            raise AssertionError("not asked")

    first, second = Adds("!"), Adds("?")
    talk, model = session([reads(1), "No more actions.", "Done."], first, second)

    await talk.run("go")

    sent = [m.text for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert (sent, first.shown, second.shown) == (["Once?"], 3, 3)
