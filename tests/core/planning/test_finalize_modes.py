"""The modes of `finalize`: which reply is the answer, the number of model calls, and streaming."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.session.results import PlanText, Token
from tests.support.agents import ECHO_SCRIPT, asks, dialogue, echo, says, thread

CALL = asks(("c1", "echo", {"text": "x"}))
DELEGATION_SCRIPT = [
    '{"tool_calls": [{"id": "call_1", "name": "delegate_to_researcher", "arguments": {"task": "Find quantum info"}}]}',
    "No more actions.",
    "Based on the research, quantum computing uses qubits.",
]
SENTINELS = [
    "No more actions.",
    "no more actions",
    "  NO MORE ACTIONS!\n",
    '"No more actions."',
    "**No more actions.**",
    "`No more actions.`",
    "No further actions are needed.",
    "<think>Nothing to call.</think>\n\nNo more actions.",
]


async def streamed(script: list[str], **config: Any) -> tuple[str, str, int]:
    """The text of the message stream, the answer, and the number of model calls."""
    model = ScriptedChatModel(script)
    graph = create_graph_agent(model, tools=[echo], config=LoopConfig(**config), checkpointer=InMemorySaver())
    chunks = graph.astream(says("hi"), thread(), stream_mode="messages")
    shown = [chunk.text async for chunk, _ in chunks if chunk.type != "tool"]
    model.assert_spent()
    state = await graph.aget_state(thread())
    return "|".join(piece for piece in shown if piece), state.values["messages"][-1].text, len(model.requests)


@pytest.mark.parametrize(
    ("finalize", "script", "calls"),
    [
        ("auto", ["Hello, you."], 1),
        ("auto", [CALL, "It says x."], 2),
        ("auto", ["No more actions.", "Hello, you."], 2),
        ("auto", [CALL, "No more actions.", "It says x."], 3),
        ("direct", ["Hello, you."], 1),
        ("direct", [CALL, "It says x."], 2),
        ("direct", [CALL, "No more actions.", "It says x."], 3),
        ("compose", ["No more actions.", "Hello, you."], 2),
        ("compose", ["A reply.", "Hello, you."], 2),
        ("compose", [CALL, "No more actions.", "It says x."], 3),
    ],
)
@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_the_answer_takes_this_many_model_calls(
    finalize: str, script: list[str], calls: int, tool_calling: str
) -> None:
    shown, answer, made = await streamed(script, finalize=finalize, tool_calling=tool_calling)

    assert (shown.replace("|", ""), answer, made) == (script[-1], script[-1], calls)


async def test_auto_is_the_default() -> None:
    assert LoopConfig().finalize == "auto"


@pytest.mark.parametrize("finalize", ["auto", "direct", "compose"])
@pytest.mark.parametrize("sentinel", SENTINELS)
async def test_the_sentinel_is_never_shown(finalize: str, sentinel: str) -> None:
    assert await streamed([sentinel, "One two."], finalize=finalize) == ("One| two.", "One two.", 2)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        ("No", "No"),
        ("No problem at all.", "No| problem| at| all."),
        ("No more actions can be undone.", "No| more| actions| can| be| undone."),
        ("Nobody knows.\nNo more", "Nobody| knows.|\nNo| more"),
        ("No more actions.\n\nIt rains.", "It| rains."),
        ("It rains.\n\nNo more actions.\n", "It| rains."),
        ("<think>Rain?</think>It rains.", "<think>Rain?</th|ink>It| rains."),
    ],
)
async def test_a_direct_answer_is_streamed_without_the_sentinel(reply: str, shown: str) -> None:
    assert await streamed([reply]) == (shown, shown.replace("|", ""), 1)


async def test_text_before_calls_is_streamed_and_repeated_as_plan_text() -> None:
    model = ScriptedChatModel([asks(("c1", "echo", {"text": "x"}), content="Let me see."), "It says x."])
    graph = create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("hi")]

    streamed_text = [(part.type, part.text) for part in parts if isinstance(part, Token | PlanText)]
    state = await graph.aget_state(thread())
    assert (streamed_text, dialogue(state.values["messages"])) == (
        [
            ("token", "Let"),
            ("token", " me"),
            ("token", " see."),
            ("plan_text", "Let me see."),
            ("token", "It"),
            ("token", " says"),
            ("token", " x."),
        ],
        [("human", "hi"), ("ai", "Let me see."), ("tool", "x"), ("ai", "It says x.")],
    )


@pytest.mark.parametrize("finalize", ["auto", "direct", "compose"])
@pytest.mark.parametrize("tool_calling", ["native", "text", "wave"])
async def test_the_documented_scripts_give_the_same_answers(
    monkeypatch: pytest.MonkeyPatch, finalize: Any, tool_calling: Any
) -> None:
    config = LoopConfig(finalize=finalize, tool_calling=tool_calling)
    researcher = GraphDelegate("researcher", "Finds out.", create_graph_agent(ScriptedChatModel(["Qubits."])))
    offered: list[dict[str, Any]] = [{"tools": [echo]}, {"delegates": [researcher]}, {}]
    answers = []
    for script, parts in zip([ECHO_SCRIPT, DELEGATION_SCRIPT, ["Hello! How can I help you?"]], offered, strict=True):
        monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(script))
        graph = create_graph_agent("openai:gpt-4o-mini", config=config, **parts)
        answers.append((await graph.ainvoke(says("hi")))["messages"][-1].text)

    assert answers == [ECHO_SCRIPT[-1], DELEGATION_SCRIPT[-1], "Hello! How can I help you?"]


@pytest.mark.parametrize("finalize", ["auto", "direct", "compose"])
@pytest.mark.parametrize("tool_calling", ["native", "text", "wave"])
async def test_a_script_of_one_reply_is_the_answer_of_an_agent_with_tools(
    monkeypatch: pytest.MonkeyPatch, finalize: Any, tool_calling: Any
) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["Hello! How can I help you?"]')
    config = LoopConfig(finalize=finalize, tool_calling=tool_calling)

    result = await create_graph_agent("openai:gpt-4o-mini", tools=[echo], config=config).ainvoke(says("hi"))

    assert result["messages"][-1].text == "Hello! How can I help you?"


class City(BaseModel):
    name: str


OSLO = '{"name": "Oslo"}'
PLANNED_OSLO = json.dumps({"status": "done", "tools": [], "answer": OSLO})


@pytest.mark.parametrize(
    ("config", "script"),
    [
        ({}, [OSLO]),
        ({}, [CALL, OSLO]),
        ({"finalize": "direct"}, [CALL, OSLO]),
        ({"tool_calling": "text"}, [CALL, OSLO]),
        ({"tool_calling": "wave"}, [PLANNED_OSLO]),
        ({}, ["It is Oslo.", OSLO]),
        ({}, [CALL, "No more actions.", OSLO]),
        ({"finalize": "direct"}, ["It is Oslo.", OSLO]),
        ({}, ["It is Oslo.", '{"town": "Oslo"}', OSLO]),
        ({"finalize": "compose"}, [OSLO, OSLO]),
    ],
)
async def test_a_planning_reply_that_fits_the_response_format_is_the_answer(
    config: dict[str, Any], script: list[str]
) -> None:
    model = ScriptedChatModel(script)
    graph = create_graph_agent(
        model, tools=[echo], config=LoopConfig(**config), response_format=City, checkpointer=InMemorySaver()
    )

    result = await Session(graph, "s1").run("hi")

    model.assert_spent()
    assert (result.answer, result.structured_response, result.status) == (OSLO, City(name="Oslo"), "COMPLETED")


@pytest.mark.parametrize("tool_calling", ["native", "text", "wave"])
@pytest.mark.parametrize(("finalize", "included"), [("auto", True), ("direct", True), ("compose", False)])
async def test_the_planning_prompt_includes_the_response_format_if_planning_may_answer(
    tool_calling: Any, finalize: Any, included: bool
) -> None:
    model = ScriptedChatModel([PLANNED_OSLO if tool_calling == "wave" else OSLO, OSLO])
    config = LoopConfig(tool_calling=tool_calling, finalize=finalize)

    await create_graph_agent(model, tools=[echo], config=config, response_format=City).ainvoke(says("hi"))

    assert (json.dumps(City.model_json_schema()) in model.requests[0].messages[0].text) is included


async def test_a_reply_that_does_not_fit_the_response_format_is_not_streamed() -> None:
    model = ScriptedChatModel(["It is Oslo.", OSLO], profile={"tool_calling": True})
    graph = create_graph_agent(model, tools=[echo], response_format=City, checkpointer=InMemorySaver())

    parts = [part async for part in Session(graph, "s1").stream("hi")]

    assert "".join(part.text for part in parts if part.type == "token") == OSLO


def test_a_blocking_stream_shows_a_direct_answer_as_it_comes() -> None:
    graph = create_graph_agent(ScriptedChatModel(["No problem at all."]), tools=[echo])

    shown = [chunk.text for chunk, _ in graph.stream(says("hi"), stream_mode="messages")]

    assert [piece for piece in shown if piece] == ["No", " problem", " at", " all."]


async def test_the_answer_of_a_delegate_stays_out_of_the_stream() -> None:
    inner = create_graph_agent(ScriptedChatModel(["Qubits."]), tools=[echo])
    call = asks(("c1", "delegate_to_researcher", {"task": "Find out."}))
    graph = create_graph_agent(
        ScriptedChatModel([call, "It is qubits."]), delegates=[GraphDelegate("researcher", "Finds out.", inner)]
    )

    shown = [
        chunk.text
        async for namespace, (chunk, _) in graph.astream(says("hi"), stream_mode="messages", subgraphs=True)
        if chunk.type == "AIMessageChunk" or (chunk.type == "ai" and not namespace)
    ]

    assert "".join(shown) == "It is qubits."


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (["No problem at all."], ["No", " problem", " at", " all."]),
        (["No more actions.", "One two."], ["One", " two."]),
        (["It rains.\n\nNo more actions."], ["It", " rains."]),
    ],
)
@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
async def test_the_event_stream_of_version_3_shows_no_sentinel(script: list[str], shown: list[str]) -> None:
    graph = create_graph_agent(ScriptedChatModel(script), tools=[echo])

    stream: Any = await graph.astream_events(says("hi"), version="v3")
    events = [entry["params"]["data"][0] async for entry in stream if entry["method"] == "messages"]

    deltas = [event["delta"]["text"] for event in events if event["event"] == "content-block-delta"]
    whole = [event["content"]["text"] for event in events if event["event"] == "content-block-finish"]
    assert (deltas, whole) == (shown, ["".join(shown)])
