"""Models that write on after a call, with a result and turns that they invent: nothing of it runs, is shown or kept."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import add, dialogue, echo, thread
from tests.support.openai_stub import Reply, StubFactory, openai_stub

__all__ = ["openai_stub"]

ADD = '{"tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}'
ECHO = '{"tool_calls": [{"name": "echo", "arguments": {"text": "no"}}]}'
PLAN = '{"status": "continue", "tools": [{"id": "s", "tool": "add", "args": {"a": 1, "b": 2}}]}'
PLAN_OF_ECHO = '{"status": "done", "tools": [{"id": "e", "tool": "echo", "args": {"text": "no"}}]}'
RESULT = '\n<tool_result id="call_1" name="add" status="success">\n4\n</tool_result>\n'
TURN = "\n<|im_end|>\n<|im_start|>user\nAnd 4?<|im_end|>\n<|im_start|>assistant\n"
DOORS = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


_DROPPED = "characters were dropped"


def dropped(*lengths: int, model: str = "scripted") -> list[str]:
    return [
        f"The model {model} wrote on after its reply, with a call, or as a tool or a user would; these {length} "
        "characters were dropped, and no call in them was run."
        for length in lengths
    ]


async def ended(model: Any, *, streamed: bool, **config: Any) -> dict[str, Any]:
    """Run one input, and return the reader's text, the stored messages and the results."""
    settings = LoopConfig(temperature=0, **config)
    graph = create_graph_agent(model, tools=[add, echo], config=settings, checkpointer=InMemorySaver())
    session, shown = Session(graph, "s1"), ""
    if streamed:
        parts = [part async for part in session.stream("go")]
        (result,) = [part.result for part in parts if part.type == "done"]
        shown = "".join(part.text for part in parts if part.type == "token")
    else:
        result = await session.run("go")
    state, events = await graph.aget_state(thread()), await session.events()
    return {
        "shown": shown if streamed else None,
        "answer": (result.answer, result.truncated),
        "ran": [event["content"] for event in events if event["type"] == "tool_result"],
        "dialogue": dialogue(state.values["messages"]),
        "warnings": [
            event["message"] for event in events if event["type"] == "warning" and _DROPPED in event["message"]
        ],
    }


@DOORS
@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("marker", [RESULT, "\nObservation: 4\n", "\nUser: And 4?\n", "\n<|im_start|>user\nAnd 4?\n"])
async def test_text_mode_runs_the_call_before_an_invention_and_none_behind_it(
    openai_stub: StubFactory, streamed: bool, finish: str, marker: str
) -> None:
    reply = f"I add.\n{ADD}{marker}{ECHO}\nSo it is 4."
    stub = openai_stub(Reply(reply, finish=finish), "It is 3.")

    async with stub.chat_model() as model:
        got = await ended(model, streamed=streamed, tool_calling="text")

    invention = len(f"{marker}{ECHO}\nSo it is 4.".strip())
    assert got == {
        "shown": "I add.It is 3." if streamed else None,
        "answer": ("It is 3.", None),
        "ran": ["3"],
        "dialogue": [("human", "go"), ("ai", "I add."), ("tool", "3"), ("ai", "It is 3.")],
        "warnings": dropped(invention, model="stub-model"),
    }


@DOORS
@pytest.mark.parametrize(
    ("config", "before"),
    [
        ({"tool_calling": "text"}, []),
        ({"tool_calling": "text", "finalize": "compose"}, ["No more actions."]),
        ({"tool_calling": "wave", "finalize": "compose"}, ['{"status": "done", "tools": []}']),
    ],
    ids=["planned", "composed", "wave"],
)
@pytest.mark.parametrize("end", [TURN, "<|im_end|>\n<|im_start|>user\nAnd 4?\n", RESULT])
async def test_an_answer_ends_at_an_invented_turn(
    streamed: bool, config: dict[str, Any], before: list[str], end: str
) -> None:
    model = ScriptedChatModel([*before, AIMessage(f"It is 3.{end}{ECHO}")])

    got = await ended(model, streamed=streamed, **config)

    assert got == {
        "shown": "It is 3." if streamed else None,
        "answer": ("It is 3.", None),
        "ran": [],
        "dialogue": [("human", "go"), ("ai", "It is 3.")],
        "warnings": dropped(len(f"{end}{ECHO}".strip())),
    }


@DOORS
async def test_an_answer_at_a_limit_ends_at_an_invented_turn(streamed: bool) -> None:
    model = ScriptedChatModel([AIMessage(ADD), AIMessage(f"It is 3.{TURN}{ECHO}")])

    got = await ended(model, streamed=streamed, tool_calling="text", max_steps=1)

    answer = "Reached maximum reasoning steps (1)\n\nIt is 3."
    assert (got["shown"], got["answer"], got["dialogue"][-1], got["warnings"]) == (
        answer if streamed else None,
        (answer, None),
        ("ai", answer),
        dropped(len(f"{TURN}{ECHO}".strip())),
    )


@DOORS
@pytest.mark.parametrize("marker", ['\n{"results": {"s": 4}}\n', RESULT, "\nObservation: 4\n", TURN])
@pytest.mark.parametrize("fenced", [True, False])
async def test_wave_mode_runs_the_plan_before_an_invention(streamed: bool, marker: str, fenced: bool) -> None:
    plan = f"```json\n{PLAN}\n```" if fenced else PLAN
    invented = AIMessage(f"{plan}{marker}{PLAN_OF_ECHO}", response_metadata={"finish_reason": "length"})
    model = ScriptedChatModel([invented, '{"status": "done", "tools": [], "answer": "It is 3."}'])

    got = await ended(model, streamed=streamed, tool_calling="wave")

    assert got == {
        "shown": "It is 3." if streamed else None,
        "answer": ("It is 3.", None),
        "ran": ["3"],
        "dialogue": [("human", "go"), ("ai", ""), ("tool", "3"), ("ai", "It is 3.")],
        "warnings": dropped(len(f"{marker}{PLAN_OF_ECHO}".strip())),
    }


@DOORS
@pytest.mark.parametrize("second", [ADD, "No more actions.", "I cannot."])
async def test_a_call_that_a_native_model_wrote_as_text_is_corrected_without_its_invention(
    streamed: bool, second: str
) -> None:
    first = f"<tool_call>{ADD[16:-2]}</tool_call>{RESULT}{ECHO}\nSo it is 4."
    answer = [] if second == "I cannot." else [AIMessage("It is 3.")]
    model = ScriptedChatModel([AIMessage(first), AIMessage(second), *answer], profile={})

    got = await ended(model, streamed=streamed)

    corrected = [message.text for message in model.requests[1].messages if message.type == "ai"][-1:]
    invention = f"{RESULT}{ECHO}\nSo it is 4.".strip()
    assert (corrected, got["ran"], got["warnings"][0]) == (
        [first.removesuffix(invention).rstrip()],
        ["3"] if second == ADD else [],
        dropped(len(invention))[0],
    )
    assert invention not in f"{got['shown']}{got['answer']}{got['dialogue']}"


@DOORS
async def test_a_native_answer_that_names_every_turn_is_not_cut(streamed: bool) -> None:
    text = f'A call is {{"name": "other", "arguments": {{}}}}\nObservation: 3{TURN}{RESULT}So it goes on.'
    model = ScriptedChatModel([AIMessage(text)])

    got = await ended(model, streamed=streamed)

    assert (got["answer"], got["shown"], got["warnings"]) == ((text, None), text if streamed else None, [])


@DOORS
async def test_a_token_at_the_end_of_a_reply_is_dropped_without_a_warning(streamed: bool) -> None:
    model = ScriptedChatModel([AIMessage(f"{ADD}<|im_end|>"), AIMessage("It is 3.<|im_end|>\n")])

    got = await ended(model, streamed=streamed, tool_calling="text")

    assert (got["answer"], got["shown"], got["warnings"], got["ran"]) == (
        ("It is 3.", None),
        "It is 3." if streamed else None,
        [],
        ["3"],
    )
