"""Replies that were cut off: none of their calls is run, and a partial answer is marked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.finish import cut_off
from graph_agent.calls import unfinished_call
from graph_agent.session.results import Done
from tests.support.agents import asks, at_step_limit, echo
from tests.support.cut_off import AGAIN, ENVELOPE, HALF, WHOLE, Disk, disk, ended, refused_call
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["disk", "openai_stub"]

SHORTER = "Call it again with shorter arguments, or do the work in several smaller calls."
REWORD = "Put the arguments in other words, or go on without it."
AFTER_7 = "at the longest length allowed, after 7 tokens"


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("finish", "cause", "fix"),
    [
        ("length", AFTER_7, SHORTER),
        ("max_tokens", AFTER_7, SHORTER),
        ("MAX_TOKENS", AFTER_7, SHORTER),
        ("model_context_window_exceeded", AFTER_7, SHORTER),
        ("content_filter", "by the provider's content filter", REWORD),
        ("SAFETY", "by the provider's content filter", REWORD),
        ("error", "by the provider (error)", AGAIN),
        ("insufficient_system_resource", "by the provider (insufficient_system_resource)", AGAIN),
    ],
)
@pytest.mark.parametrize("arguments", [HALF, WHOLE], ids=["half", "whole"])
async def test_a_call_of_a_reply_that_was_cut_off_is_not_run(
    openai_stub: StubFactory, disk: Disk, streamed: bool, finish: str, cause: str, fix: str, arguments: str
) -> None:
    stub = openai_stub(Reply(tool_calls=(("write", arguments),), finish=finish), "No more actions.", "I could not.")

    got = await ended(stub, disk, streamed=streamed)

    refusal = refused_call(cause, fix)
    sent = [message["content"] for message in stub.bodies[1]["messages"] if message["role"] == "tool"]
    assert ({**got, "events": None}, sent) == (
        {
            "files": {},
            "answer": "I could not.",
            "status": "COMPLETED",
            "results": [("write", "skipped", refusal)],
            "requests": 3,
            "events": None,
        },
        [refusal],
    )


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_the_model_may_try_again_in_the_next_step(openai_stub: StubFactory, disk: Disk, streamed: bool) -> None:
    cut = Reply(tool_calls=(("write", WHOLE), ("write", HALF)), finish="length")
    stub = openai_stub(cut, Reply(tool_calls=(("write", WHOLE),)), "No more actions.", "Done.")

    got = await ended(stub, disk, streamed=streamed, max_output_tokens=512)

    refusal = refused_call("at the longest length allowed, 512 tokens", SHORTER)
    assert (got["files"], got["results"], got["answer"]) == (
        {"notes.txt": "All."},
        [("write", "skipped", refusal), ("write", "skipped", refusal), ("write", "success", "written")],
        "Done.",
    )


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("finish", ["length", "content_filter", "error"])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"{ENVELOPE}{WHOLE}}}]}}", "write"),
        (f"I write.\n{ENVELOPE}{HALF}", "write"),
        (ENVELOPE, "write"),
        ('{"tool_calls": [{"na', None),
        (f'<tool_call>\n{{"name": "write", "arguments": {HALF}', "write"),
        ('<tool_call>\n{"na', None),
        ("<function=write>\n<parameter=path>\nnotes.txt</parameter>\n<parameter=text>\nAll that", "write"),
        (f'```json\n{{"name": "write", "arguments": {HALF}', "write"),
        (f'[TOOL_CALLS][{{"name": "write", "arguments": {HALF}', "write"),
        ('[write(path="notes.txt", text="All', "write"),
    ],
)
async def test_a_call_in_a_text_that_was_cut_off_is_not_run(
    openai_stub: StubFactory, disk: Disk, streamed: bool, finish: str, text: str, name: str | None
) -> None:
    stub = openai_stub(Reply(text, finish=finish), "No more actions.", "I could not.")

    got = await ended(stub, disk, streamed=streamed, tool_calling="text")

    results = [(name, status, "was cut off" in content) for name, status, content in got["results"]]
    expected = [] if name is None else [(name, "skipped", True)]
    assert (got["files"], got["answer"], results, got["requests"]) == ({}, "I could not.", expected, 3)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("second", "files", "answer", "truncated"),
    [
        (Reply(f"{ENVELOPE}{WHOLE}}}]}}"), {"notes.txt": "All."}, "Done.", None),
        (Reply('I write.\n{"tool_calls": [{"na', finish="length"), {}, "I write.", "length"),
        (Reply('{"tool_calls": [{"na', finish="length"), {}, "Done.", None),
        (Reply("I cannot."), {}, "I cannot.", None),
    ],
    ids=["a call", "cut off again, after text", "cut off again", "an answer"],
)
async def test_a_nameless_call_that_was_cut_off_is_asked_for_once_more(
    openai_stub: StubFactory,
    disk: Disk,
    streamed: bool,
    second: Reply,
    files: dict[str, str],
    answer: str,
    truncated: str | None,
) -> None:
    stub = openai_stub(Reply('{"tool_calls": [{"na', finish="length"), second, "Done.")

    got = await ended(stub, disk, streamed=streamed, tool_calling="text", finalize="auto")

    asked = stub.bodies[1]["messages"][-1]["content"].splitlines()[-1]
    calls = {event["name"] for event in got["events"] if event["type"] == "tool_call"}
    cut = [event.get("truncated") for event in got["events"] if event["type"] == "agent_response"]
    assert (got["files"], got["answer"], cut, asked, calls) == (
        files,
        answer,
        [truncated],
        f"It was cut off {AFTER_7}. {SHORTER}",
        {"write"} if files else set(),
    )


@pytest.mark.parametrize("finish", ["length", "MAX_TOKENS", "error"])
async def test_a_plan_that_was_cut_off_is_asked_for_again(openai_stub: StubFactory, disk: Disk, finish: str) -> None:
    call = {"id": "a", "tool": "write", "args": json.loads(WHOLE)}
    plan = json.dumps({"status": "done", "tools": [call]})
    stub = openai_stub(Reply(plan, finish=finish), plan, "Done.")

    got = await ended(stub, disk, streamed=False, tool_calling="wave")

    notice = stub.bodies[1]["messages"][-1]["content"]
    assert (got["files"], got["answer"], notice.startswith("The plan was cut off "), got["requests"]) == (
        {"notes.txt": "All."},
        "Done.",
        True,
        3,
    )


async def test_a_plan_that_is_cut_off_twice_fails_and_runs_nothing(openai_stub: StubFactory, disk: Disk) -> None:
    plan = '{"status": "done", "tools": [{"id": "a", "tool": "write", "args": {"path": "notes.txt", "text": "All th'
    stub = openai_stub(*[Reply(plan, finish="length")] * 2)

    got = await ended(stub, disk, streamed=False, tool_calling="wave")

    assert (got["files"], got["status"], got["answer"]) == (
        {},
        "FAILED",
        f"This request failed. The plan was cut off {AFTER_7}; nothing of it was run.",
    )


@pytest.mark.parametrize(
    ("arguments", "finish", "files"),
    [
        (HALF, "", {}),
        ('{"path": "notes.txt"', "", {}),
        (HALF, "tool_calls", {}),
        (WHOLE, "", {"notes.txt": "All."}),
        ('{"path": "notes.txt"', "tool_calls", {"notes.txt": ""}),
    ],
    ids=["no reason", "no reason, at a comma", "within a string", "complete", "a bracket forgotten"],
)
async def test_a_stream_that_ends_inside_a_call_is_cut_off_despite_its_finish_reason(
    openai_stub: StubFactory, disk: Disk, arguments: str, finish: str, files: dict[str, str]
) -> None:
    stub = openai_stub(Reply(tool_calls=(("write", arguments),), finish=finish), "No more actions.", "So.")

    got = await ended(stub, disk, streamed=True)

    assert (got["files"], [status for _, status, _ in got["results"]]) == (files, ["success" if files else "skipped"])


@pytest.mark.parametrize(("finish", "truncated"), [("", "interrupted"), ("stop", None)])
@pytest.mark.parametrize("text", ["Eat it only if", "Eat [1] only if"])
async def test_a_streamed_answer_without_a_finish_reason_is_cut_off(
    openai_stub: StubFactory, text: str, finish: str, truncated: str | None
) -> None:
    async with openai_stub(Reply(text, finish=finish)).chat_model(streaming=True) as model:
        session = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s1")

        result = await session.run("May I eat it?")

    warnings = [entry["message"] for entry in await session.events() if entry["type"] == "warning"]
    assert (result.answer, result.truncated, warnings) == (
        text,
        truncated,
        ["The answer was cut off before it was complete."] if truncated else [],
    )


class EndedStream(BaseChatModel):
    """Streams one chunk of a text, with the metadata of a provider's client, and ends."""

    metadata_of_chunk: dict[str, str]

    @property
    def _llm_type(self) -> str:
        return "ended"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        raise AssertionError("The reply is streamed.")

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        message = AIMessageChunk(content="Eat it only if", response_metadata=self.metadata_of_chunk)
        yield ChatGenerationChunk(message=message)


@pytest.mark.parametrize(
    ("metadata", "truncated"),
    [
        ({"model_provider": "anthropic"}, "interrupted"),
        ({"model_provider": "anthropic", "stop_reason": "end_turn"}, None),
        ({"model_provider": "another"}, None),
    ],
    ids=["no reason", "a reason", "a provider without reasons"],
)
async def test_a_stream_of_anthropic_without_a_stop_reason_is_cut_off(
    metadata: dict[str, str], truncated: str | None
) -> None:
    graph = create_graph_agent(EndedStream(metadata_of_chunk=metadata), checkpointer=InMemorySaver())
    run = Session(graph, "s1").stream("May I eat it?")

    results = [part.result async for part in run if isinstance(part, Done)]

    assert [(result.answer, result.truncated) for result in results] == [("Eat it only if", truncated)]


async def test_a_call_whose_name_was_not_written_leaves_a_history_that_providers_take(
    openai_stub: StubFactory, disk: Disk
) -> None:
    stub = openai_stub(Reply(tool_calls=(("", ""),), finish="length"), "No more actions.", "So.")

    got = await ended(stub, disk, streamed=True)

    (sent,) = [call["function"]["name"] for call in stub.bodies[1]["messages"][2]["tool_calls"]]
    assert (got["answer"], sent, [name for name, _, _ in got["results"]]) == ("So.", "unnamed", ["unnamed"])


async def test_a_stored_call_without_a_name_is_sent_as_text(openai_stub: StubFactory) -> None:
    old = [
        HumanMessage("go"),
        AIMessage("I write.", tool_calls=[tool_call(id="c1", name="unfinished_call", args={})]),
        ToolMessage("Not run: it was cut off.", tool_call_id="c1", name="unfinished_call", status="error"),
        AIMessage("I could not."),
    ]
    stub = openai_stub("Fine.")
    async with stub.chat_model() as model:
        config = LoopConfig(tool_calling="native")
        graph = create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver())
        await graph.aupdate_state({"configurable": {"thread_id": "s1"}}, {"messages": old}, as_node="finalize")

        await Session(graph, "s1").run("and now?")

    sent = [(message["role"], message["content"], "tool_calls" in message) for message in stub.bodies[0]["messages"]]
    assert sent[1:] == [
        ("user", "go", False),
        ("assistant", "I write.", False),
        ("user", "[Notice from the agent framework, not from the user: Not run: it was cut off.]", False),
        ("assistant", "I could not.", False),
        ("user", "and now?", False),
    ]


async def test_a_delegation_that_was_cut_off_is_not_sent() -> None:
    inner = ScriptedChatModel(["never"])
    cut = AIMessage(
        "",
        tool_calls=[tool_call(id="d", name="delegate_to_r", args={"task": "Delete all bu"})],
        response_metadata={"stop_reason": "max_tokens"},
    )
    graph = create_graph_agent(
        ScriptedChatModel([cut, "No more actions.", "So."]),
        delegates=[GraphDelegate("r", "Does.", create_graph_agent(inner))],
        config=LoopConfig(finalize="compose"),
        checkpointer=InMemorySaver(),
    )

    result = await Session(graph, "s1").run("go")

    assert (inner.requests, list(result.results["d"])) == ([], ["error"])


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"finish_reason": "stop"}, None),
        ({"finish_reason": "tool_calls"}, None),
        ({"finish_reason": None}, None),
        ({"stop_reason": "end_turn"}, None),
        ({"stop_reason": "tool_use"}, None),
        ({"finish_reason": "STOP"}, None),
        ({"done_reason": "stop"}, None),
        ({"status": "completed"}, None),
        ({"finish_reason": "length"}, "length"),
        ({"finish_reason": "Length"}, "length"),
        ({"finish_reason": "lengthlength"}, "length"),
        ({"finish_reason": "model_length"}, "length"),
        ({"finish_reason": "MAX_TOKENS"}, "length"),
        ({"finish_reason": "FinishReason.MAX_TOKENS"}, "length"),
        ({"finishReason": "MAX_TOKENS"}, "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"stopReason": "max_tokens"}, "length"),
        ({"done_reason": "length"}, "length"),
        ({"completionReason": "LENGTH"}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ({"status": "incomplete", "incomplete_details": None}, "interrupted"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"finish_reason": "content-filter"}, "content_filter"),
        ({"stopReason": "guardrail_intervened"}, "content_filter"),
        ({"finish_reason": "RECITATION"}, "content_filter"),
        ({"finish_reason": "network_error"}, "interrupted"),
        ({"finish_reason": "abort"}, "interrupted"),
    ],
    ids=str,
)
def test_the_cause_of_a_cut_off_reply_is_detected(metadata: dict[str, Any], expected: str | None) -> None:
    assert cut_off(AIMessage("…", response_metadata=metadata)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I think that the answer is", None),
        ('The object {"width": 3} is', None),
        ('Then {"name": "write", "argu', ("write", "Then")),
        ('Then {"name": "other", "argu', ("unfinished_call", "Then")),
        ("<think>hm</think><tool_call>", ("unfinished_call", "<think>hm</think>")),
        ('So:\n```json\n{"tool_calls": [', ("unfinished_call", "So:")),
        ('<invoke name="write"><parameter', ("write", "")),
        ('So:\n[write(path="a]", n=1', ("write", "So:")),
        ('[write(path="a"), other(n=1', ("write", "")),
        ("[other(n=1", None),
        ("The list [write(path)] is", None),
        ("Set x = [write(n=1", None),
    ],
)
def test_a_call_that_a_text_begins(text: str, expected: tuple[str, str] | None) -> None:
    assert unfinished_call(text, ["write"]) == expected


@pytest.mark.timeout(60)  # a quadratic search takes many minutes
def test_finding_an_unfinished_call_takes_linear_time() -> None:
    texts = [
        "{ " * 50_000,
        "`" * 150_000,
        '{"name": ' * 50_000,
        "<tool_call" * 50_000,
        "[{" * 50_000,
        "[write(\n" * 20_000,
        " " * 200_000,
    ]
    found = [unfinished_call(f"{text}{end}", ["write"]) for end in ("", "<tool_call>") for text in texts]

    assert [call and call[0] for call in found] == [
        *[None, None, "unfinished_call", None, None, "write", None],
        *["unfinished_call"] * 5,
        *["write", "unfinished_call"],
    ]


WARNING = f"The answer was cut off {AFTER_7}. A larger max_output_tokens allows a longer one."


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("config", "before"),
    [
        ({"finalize": "compose"}, ["No more actions."]),
        ({"finalize": "direct"}, []),
        ({"finalize": "direct", "tool_calling": "text"}, []),
        ({"tool_calling": "wave", "temperature": 0}, ['{"status": "done", "tools": []}']),
        ({"max_steps": 1}, [Reply(tool_calls=(("echo", {"text": "a"}),))]),
    ],
    ids=["compose", "direct", "text", "wave", "limit"],
)
async def test_a_cut_off_answer_is_marked_in_the_result(
    openai_stub: StubFactory, streamed: bool, config: dict[str, Any], before: list[Any]
) -> None:
    stub = openai_stub(*before, Reply("It begins well and", finish="length"))
    async with stub.chat_model() as model:
        settings = LoopConfig(**{"tool_calling": "native", **config})
        graph = create_graph_agent(model, tools=[echo], config=settings, checkpointer=InMemorySaver())
        session = Session(graph, "s1")
        if streamed:
            (result,) = [part.result async for part in session.stream("go") if part.type == "done"]
        else:
            result = await session.run("go")
        events = await session.events()

    limit = "max_steps" in config
    answered = [event.get("truncated") for event in events if event["type"] == "agent_response"]
    warned = [event["message"] for event in events if event["type"] == "warning"]
    assert (result.answer, result.status, result.truncated, answered, warned) == (
        at_step_limit(1, "It begins well and") if limit else "It begins well and",
        "ROUND_LIMIT" if limit else "COMPLETED",
        "length",
        ["length"],
        [WARNING],
    )


async def test_a_complete_answer_has_no_mark(openai_stub: StubFactory) -> None:
    async with openai_stub("No more actions.", "Done.").chat_model() as model:
        config = LoopConfig(finalize="compose", tool_calling="native")
        session = Session(create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver()), "s1")
        result = await session.run("go")
        answered = [event for event in await session.events() if event["type"] == "agent_response"]

    assert (result.truncated, [set(event) & {"truncated", "error"} for event in answered]) == (None, [set()])


class Shape(BaseModel):
    """The schema of an answer."""

    words: list[str]


async def test_a_structured_answer_that_was_cut_off_is_not_mended(openai_stub: StubFactory) -> None:
    cut = Reply('{"words": ["one", "tw', finish="length")
    stub = openai_stub("No more actions.", cut, '{"words": ["one", "two"]}')
    async with stub.chat_model() as model:
        config = LoopConfig(finalize="compose", tool_calling="native")
        graph = create_graph_agent(
            model, tools=[echo], response_format=Shape, config=config, checkpointer=InMemorySaver()
        )
        result = await Session(graph, "s1").run("go")

    assert (result.structured_response, result.truncated, stub.bodies[2]["messages"][-1]["content"]) == (
        Shape(words=["one", "two"]),
        None,
        f"That does not fit: The reply was cut off {AFTER_7}. Send the corrected object.",
    )


async def test_a_delegates_cut_off_answer_is_marked() -> None:
    half = AIMessage("It begins", response_metadata={"finish_reason": "length"})
    inner = create_graph_agent(ScriptedChatModel([half]))
    model = ScriptedChatModel([asks(("d", "delegate_to_r", {"task": "Tell."})), "No more actions.", "So."])
    graph = create_graph_agent(
        model,
        delegates=[GraphDelegate("r", "Tells.", inner)],
        config=LoopConfig(finalize="compose"),
        checkpointer=InMemorySaver(),
    )

    result = await Session(graph, "s1").run("go")

    assert result.results == {
        "d": "It begins\n\n[This answer was cut off at the longest length allowed, after 3 tokens.]"
    }


async def test_a_plan_that_was_cut_off_is_not_taken_from_the_cache(openai_stub: StubFactory) -> None:
    stub = openai_stub(Reply("It begins", finish="length"), "All of it.")
    async with stub.chat_model() as model:
        graph = create_graph_agent(
            model,
            tools=[echo],
            config=LoopConfig(finalize="direct", plan_cache_ttl_s=60),
            cache=InMemoryCache(),
            checkpointer=InMemorySaver(),
        )
        answers = [(await Session(graph, name).run("go")).answer for name in ("s1", "s2")]

    assert answers == ["It begins", "All of it."]
