"""Additions of a patched request stay in later requests of the input; other changes apply to the rerun alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages, convert_to_openai_messages
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, LoopHook, LoopPlan, RequestPatch, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.extensions.request_messages import additions, without_open_calls
from graph_agent.hooks import HookRequest, HookResponse
from tests.support.agents import asks, echo, without_examples
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

SCHEMA = {
    "type": "function",
    "function": {
        "name": "my_tool",
        "description": "Look a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
Patch = Callable[[list[AnyMessage], AnyMessage, ToolMessage], Sequence[AnyMessage]]


class MyTool(LoopHook):
    """Fulfils the calls of `my_tool`, the obvious way."""

    tools = (SCHEMA,)

    def __init__(self, patch: Patch = lambda messages, call, result: [*messages, call, result]) -> None:
        self._patch = patch

    def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
        return any(call["name"] == "my_tool" for call in response.calls), None

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        [asked] = response.tool_calls
        call = AIMessage("", tool_calls=[asked])
        result = ToolMessage(f"{asked['args']['word']} means tide", tool_call_id=asked["id"])
        messages = self._patch(request.messages, call, result)
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))


def looks_up(word: str, id_: str = "m1") -> str:
    return asks((id_, "my_tool", {"word": word}))


def sent(request: Any) -> list[str]:
    """A request behind its system prompt: the type and text of each message."""
    return [f"{message.type}: {message.text}".strip() for message in request.messages if message.type != "system"]


def _plan(tool: str, arguments: str) -> str:
    return f'{{"status": "continue", "tools": [{{"id": "m1", "tool": "{tool}", "args": {arguments}}}]}}'


@pytest.mark.parametrize(
    ("mode", "script"),
    [
        ("native", [looks_up("flod"), "No more actions.", "It means tide."]),
        ("text", [looks_up("flod"), "No more actions.", "It means tide."]),
        ("wave", [_plan("my_tool", '{"word": "flod"}'), '{"status": "done"}', "It means tide."]),
    ],
)
async def test_a_hooks_result_reaches_the_rerun_and_the_answer(mode: Any, script: list[str]) -> None:
    model = ScriptedChatModel(script)
    config = LoopConfig(tool_calling=mode, finalize="compose")
    graph = create_graph_agent(model, tools=[echo], hooks=[MyTool()], config=config, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("What does flod mean?")

    model.assert_spent()
    included = [any("flod means tide" in message.text for message in request.messages) for request in model.requests]
    asked = [
        any(
            "my_tool" in f"{message.text}{getattr(message, 'tool_calls', '')}"
            for message in without_examples(request.messages)[1:]
        )
        for request in model.requests
    ]
    assert (result.answer, result.results, included, asked) == (
        "It means tide.",
        {},
        [False, True, True],
        [False, True, True],
    )


async def test_a_hooks_result_without_a_name_has_that_of_its_call_in_text() -> None:
    model = ScriptedChatModel([looks_up("flod"), "It means tide."])
    graph = create_graph_agent(model, tools=[echo], hooks=[MyTool()], config=LoopConfig(tool_calling="text"))

    await graph.ainvoke({"messages": [("user", "What does flod mean?")]})

    assert model.requests[-1].messages[-1].text == ('<tool_result name="my_tool">\nflod means tide\n</tool_result>')


async def test_a_hooks_result_stands_where_it_was_found(openai_stub: StubFactory) -> None:
    echoes = Reply(tool_calls=(("echo", {"text": "a"}),))
    stub = openai_stub(
        echoes,
        Reply(tool_calls=(("my_tool", {"word": "flod"}),)),
        echoes,
        Reply(tool_calls=(("my_tool", {"word": "ebbe"}),)),
        "No more actions.",
        "Done.",
        "No more actions.",
        "Again.",
    )
    async with stub.chat_model() as model:
        config = LoopConfig(finalize="compose")
        graph = create_graph_agent(model, tools=[echo], hooks=[MyTool()], config=config, checkpointer=InMemorySaver())
        session = Session(graph, "s1")
        await session.run("go")
        await session.run("more")

    requests = [
        [message["content"] or message["tool_calls"][0]["function"]["name"] for message in body["messages"][1:]]
        for body in stub.bodies
    ]
    looked_up = ["my_tool", "flod means tide"]
    first = ["go", "echo", "a", *looked_up, "echo", "a", "my_tool", "ebbe means tide"]
    assert (requests[2], requests[4], requests[5][:9], requests[6]) == (
        first[:5],
        first,
        first,
        ["go", "echo", "a", "echo", "a", "Done.", "more"],
    )


async def test_a_rerun_without_calls_is_the_answer_where_plans_answer() -> None:
    model = ScriptedChatModel([looks_up("flod"), "It means tide."])
    config = LoopConfig(finalize="direct")
    graph = create_graph_agent(model, tools=[echo], hooks=[MyTool()], config=config, checkpointer=InMemorySaver())

    result = await Session(graph, "s1").run("go")

    model.assert_spent()
    assert (result.answer, result.status) == ("It means tide.", "COMPLETED")


NOTE = HumanMessage("A note.")


@pytest.mark.parametrize(
    ("patch", "rerun", "later"),
    [
        (lambda m, c, r: [*m, NOTE], ["go", "A note."], ["go", "A note."]),
        (lambda m, c, r: [NOTE, *m, c, r], ["A note.", "go", "", "tide"], ["A note.", "go", "", "tide"]),
        (lambda m, c, r: [m[0].model_copy(update={"content": "Go."}), c, r], ["Go.", "", "tide"], ["go", "", "tide"]),
        (lambda m, c, r: [HumanMessage("Go."), c, r], ["Go.", "", "tide"], ["go", "", "tide"]),
        (lambda m, c, r: [c, r], ["", "tide"], ["go", "", "tide"]),
        (lambda m, c, r: [HumanMessage("Go.")], ["Go."], ["go"]),
        (lambda m, c, r: [HumanMessage(one.text) for one in m] + [c, r], ["go", "", "tide"], ["go", "", "tide"]),
        (
            lambda m, c, r: [*convert_to_messages(convert_to_openai_messages(m)), c, r],
            ["go", "", "tide"],
            ["go", "", "tide"],
        ),
        (lambda m, c, r: [*m, *m], ["go", "go"], ["go", "go"]),
    ],
    ids=[
        "a note",
        "before and behind",
        "rewritten by id",
        "rewritten",
        "left out",
        "another question",
        "rebuilt",
        "through OpenAI's format",
        "repeated",
    ],
)
async def test_additions_persist_and_other_changes_apply_to_the_rerun_only(
    patch: Patch, rerun: list[str], later: list[str]
) -> None:
    model = ScriptedChatModel([looks_up("flod"), "No more actions.", "Done."])
    config = LoopConfig(finalize="compose")
    graph = create_graph_agent(model, hooks=[MyTool(patch)], config=config, checkpointer=InMemorySaver())

    await Session(graph, "s1").run("go")

    texts = [
        [message.text.removeprefix("flod means ") for message in request.messages if message.type != "system"]
        for request in model.requests
    ]
    assert (texts[1], texts[2][:-1]) == (rerun, later)


async def test_a_later_rerun_of_the_same_plan_takes_back_what_an_earlier_one_added() -> None:
    class Second(LoopHook):
        def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, Any]:
            return request.depth == 1, None

        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            messages = [*request.messages[:-2], HumanMessage("Without looking it up.")]
            return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))

    model = ScriptedChatModel([looks_up("flod"), "No more actions.", "No more actions.", "Done."])
    config = LoopConfig(finalize="compose")
    graph = create_graph_agent(model, hooks=[MyTool(), Second()], config=config, checkpointer=InMemorySaver())

    await Session(graph, "s1").run("go")

    assert sent(model.requests[-1])[:-1] == ["human: go", "human: Without looking it up."]


async def test_messages_both_kept_and_added_are_stored_once() -> None:
    class Keeps(MyTool):
        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            plan = super().build_plan(context, response, request)
            assert plan.request_patch is not None
            assert plan.request_patch.messages is not None
            keep = [*plan.request_patch.messages[-2:], NOTE]
            return LoopPlan(run_agentic_loop=True, request_patch=plan.request_patch, keep_messages=keep)

    model = ScriptedChatModel([looks_up("flod"), "No more actions.", "Done."])
    config = LoopConfig(finalize="compose")
    graph = create_graph_agent(model, hooks=[Keeps()], config=config, checkpointer=InMemorySaver())

    await Session(graph, "s1").run("go")

    assert [sent(request) for request in model.requests[1:]] == [
        ["human: go", "ai:", "tool: flod means tide"],
        ["human: go", "ai:", "tool: flod means tide", "human: A note.", sent(model.requests[2])[-1]],
    ]


def human(text: str, id_: str | None = None) -> HumanMessage:
    return HumanMessage(text, id=id_)


def calling(id_: str, message_id: str | None = None) -> AIMessage:
    return AIMessage("", id=message_id, tool_calls=[{"id": id_, "name": "t", "args": {}, "type": "tool_call"}])


def result(id_: str, text: str = "r", message_id: str | None = None) -> ToolMessage:
    return ToolMessage(text, tool_call_id=id_, id=message_id)


GO, CALLED, GAVE, ON = human("go", "1"), calling("a", "2"), result("a", message_id="3"), human("on", "4")
TALK: list[AnyMessage] = [GO, CALLED, GAVE, ON]
NEW: list[AnyMessage] = [calling("b"), result("b")]


@pytest.mark.parametrize(
    ("patched", "added"),
    [
        (TALK, []),
        ([], []),
        ([*TALK, *NEW], [(4, NEW)]),
        ([*NEW, *TALK], [(0, NEW)]),
        ([*TALK[:3], *NEW, ON], [(3, NEW)]),
        ([SystemMessage("s"), *TALK, *NEW], [(0, [SystemMessage("s")]), (4, NEW)]),
        ([*TALK[:2], result("a", "short"), ON, *NEW], [(4, NEW)]),
        ([*TALK[:2], result("a", "short", "3"), ON, *NEW], [(4, NEW)]),
        ([GO, calling("a"), result("a", "short"), ON], []),
        ([GO, calling("a"), result("a", "short"), ON, *NEW], [(4, NEW)]),
        ([ON, *NEW], [(4, NEW)]),
        ([human("summary"), ON, *NEW], [(4, NEW)]),
        ([human("summary"), *NEW], [(4, NEW)]),
        ([human("summary"), *NEW, human("Answer.")], [(4, [*NEW, human("Answer.")])]),
        ([ON, GO], []),
        ([*TALK, result("a", "corrected")], []),
        ([*TALK, result("z")], []),
        ([*TALK, human("go")], [(4, [human("go")])]),
        ([*TALK, AIMessage("Shorter:")], [(4, [AIMessage("Shorter:")])]),
        ([human("go"), CALLED, GAVE, human("on"), *NEW], [(4, NEW)]),
    ],
    ids=[
        "the same",
        "nothing",
        "behind",
        "before",
        "between",
        "before and behind",
        "a result rewritten",
        "a result rewritten by id",
        "a call rewritten",
        "a call rewritten, and more",
        "the beginning left out",
        "a summary of the beginning",
        "a summary of all",
        "a summary of all, and words behind the call",
        "another order",
        "a second result",
        "a result without its call",
        "an original repeated",
        "the reply",
        "without ids",
    ],
)
def test_additions_of_a_patch_are_detected(
    patched: list[AnyMessage], added: list[tuple[int, list[AnyMessage]]]
) -> None:
    assert [(each.before, each.messages) for each in additions(TALK, patched)] == added


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.booleans())
def test_inserted_messages_keep_their_position(inserted: list[int], ids: bool) -> None:
    """Each number is how many messages are inserted before an original; the last, behind all."""
    original = [human(f"original {n}", f"o{n}") for n in range(len(inserted) - 1)]
    rebuilt = original if ids else [human(message.text) for message in original]
    patched: list[AnyMessage] = []
    expected: list[tuple[int, list[AnyMessage]]] = []
    for place, times in enumerate(inserted):
        new: list[AnyMessage] = [human(f"new {place}.{n}") for n in range(times)]
        patched += [*new, *rebuilt[place : place + 1]]
        expected += [(place, new)] if new else []

    assert [(each.before, each.messages) for each in additions(original, patched)] == expected


async def test_a_reply_whose_other_calls_have_no_result_can_be_passed_on(openai_stub: StubFactory) -> None:
    """The obvious patch is the reply itself and one result; no provider takes the other calls of the reply so."""

    class Answers(MyTool):
        def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
            [asked] = [call for call in response.calls if call["name"] == "my_tool"]
            found = ToolMessage("flod means tide", tool_call_id=asked["id"])
            messages = [*request.messages, response.message, found]
            return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))

    both = Reply(tool_calls=(("echo", {"text": "a"}), ("my_tool", {"word": "flod"})))
    stub = openai_stub(both, "No more actions.", "Done.")
    async with stub.chat_model() as model:
        config = LoopConfig(finalize="compose")
        graph = create_graph_agent(model, tools=[echo], hooks=[Answers()], config=config)

        await graph.ainvoke({"messages": [("user", "go")]})

    calls = [
        [[call["function"]["name"] for call in m["tool_calls"]] for m in body["messages"] if m.get("tool_calls")]
        for body in stub.bodies
    ]
    assert calls == [[], [["my_tool"]], [["my_tool"]]]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([GO, CALLED, GAVE], [GO, CALLED, GAVE]),
        ([GO, CALLED], [GO]),
        ([GO, CALLED, ON, GAVE], [GO, ON, GAVE]),
        (
            [AIMessage("So:", tool_calls=CALLED.tool_calls), ON],
            [AIMessage("So:"), ON],
        ),
        (
            [
                AIMessage(
                    [{"type": "text", "text": "So:"}, {"type": "tool_use", "id": "a"}], tool_calls=CALLED.tool_calls
                )
            ],
            [AIMessage([{"type": "text", "text": "So:"}])],
        ),
    ],
    ids=["answered", "open", "answered too late", "text with an open call", "blocks with an open call"],
)
def test_calls_without_results_are_left_out(given: list[AnyMessage], kept: list[AnyMessage]) -> None:
    assert without_open_calls(given) == kept
