"""Native and text tool calling, aliases, the scripted model of the environment, and structured answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, SessionMemory, create_graph_agent
from graph_agent.errors import ConfigError, ScriptError
from tests.support.agents import ECHO_SCRIPT, add, asks, dialogue, echo, kinds, says, thread, without_examples

TEXT = LoopConfig(tool_calling="text")
TEXT_CALLS = """Let me see.
```json
{"tool_calls": [{"name": "echo", "arguments": {"text": "a"}}, {"name": "add", "arguments": {"a": 1, "b": 2}}]}
```"""


async def test_text_mode_reads_calls_from_the_answers_text() -> None:
    model = ScriptedChatModel([TEXT_CALLS, "No more actions.", "Done."])

    result = await create_graph_agent(model, tools=[echo, add], config=TEXT).ainvoke(says("go"))

    calls = [(call["name"], call["args"]) for call in result["messages"][1].tool_calls]
    assert (dialogue(result["messages"]), calls) == (
        [("human", "go"), ("ai", "Let me see."), ("tool", "a"), ("tool", "3"), ("ai", "Done.")],
        [("echo", {"text": "a"}), ("add", {"a": 1, "b": 2})],
    )


async def test_text_mode_lists_the_tools_and_writes_the_history_out() -> None:
    model = ScriptedChatModel([TEXT_CALLS, "No more actions.", "Done."])
    await create_graph_agent(model, tools=[echo, add], config=TEXT, system_prompt="Be brief.").ainvoke(says("go"))

    asked = model.requests[1]

    system, user, ai, results = (message.text for message in without_examples(asked.messages))
    schema = '{"properties": {"text": {"type": "string"}}, "required": ["text"], "type": "object"}'
    listed = f"## echo\nRepeat the text.\n{schema}"
    assert (asked.tools, listed in system, user, ai, results) == (
        [],
        True,
        "go",
        "Let me see.\n"
        + json.dumps(
            {
                "tool_calls": [
                    {"name": "echo", "arguments": {"text": "a"}},
                    {"name": "add", "arguments": {"a": 1, "b": 2}},
                ]
            }
        ),
        '<tool_result call="1" name="echo">\na\n</tool_result>\n<tool_result call="2" name="add">\n3\n</tool_result>',
    )


async def test_structured_calls_win_in_text_mode_too() -> None:
    result = await create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], config=TEXT).ainvoke(says("hi"))

    assert result["messages"][-1].text == "The echo returned: hello"


async def test_json_in_prose_is_prose_in_native_mode() -> None:
    model = ScriptedChatModel([AIMessage(TEXT_CALLS), "I quoted some JSON."])

    result = await create_graph_agent(model, tools=[echo, add]).ainvoke(says("hi"))

    assert dialogue(result["messages"]) == [("human", "hi"), ("ai", "I quoted some JSON.")]


async def test_a_wrong_guess_is_corrected_once() -> None:
    class NoTools(ScriptedChatModel):
        async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("tools"):
                raise ToolsRejectedError
            return await super()._agenerate(messages, *args, **kwargs)

    class ToolsRejectedError(Exception):
        status_code = 400

        def __str__(self) -> str:
            return "registry.example/llama2:latest does not support tools"

    script = ['{"name": "echo", "arguments": {"text": "a"}}', "No more actions.", "Done.", "No more actions.", "Again."]
    model = NoTools(responses=[AIMessage(text) for text in script])
    graph = create_graph_agent(model, tools=[echo], checkpointer=InMemorySaver())
    first = await graph.ainvoke(says("go"), thread())
    await graph.ainvoke(says("again"), thread())

    events = await SessionMemory(graph).get_session_events("s1")

    warned = kinds(events).count("warning")
    assert (dialogue(first["messages"])[1:], warned) == ([("ai", ""), ("tool", "a"), ("ai", "Done.")], 1)


async def test_dotted_names_travel_under_an_alias() -> None:
    @tool("calendar.resolve_holiday")
    async def resolve(name: str) -> str:
        """Resolve a holiday."""
        return f"{name} is in winter"

    call = asks(("1", "calendar_resolve_holiday", {"name": "Hanukkah"}))
    model = ScriptedChatModel([call, "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[resolve], checkpointer=InMemorySaver())
    result = await graph.ainvoke(says("go"), thread())

    sent = model.requests[1].messages
    events = await SessionMemory(graph).get_session_events("s1")

    assert (
        model.requests[0].tool_names,
        result["messages"][1].tool_calls[0]["name"],
        [e["name"] for e in events if e["type"] == "tool_result"],
        [call["name"] for m in sent if isinstance(m, AIMessage) for call in m.tool_calls],
    ) == (
        ["calendar_resolve_holiday"],
        "calendar.resolve_holiday",
        ["calendar.resolve_holiday"],
        ["calendar_resolve_holiday"],
    )


def test_an_alias_that_collides_is_refused() -> None:
    @tool("a.b")
    def dotted() -> str:
        """One."""
        return ""

    @tool("a_b")
    def plain() -> str:
        """Other."""
        return ""

    with pytest.raises(ConfigError, match=r"a\.b.*a_b|a_b.*a\.b"):
        create_graph_agent(ScriptedChatModel(["x"]), tools=[dotted, plain])


@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_the_script_in_the_environment_runs_a_tool(monkeypatch: pytest.MonkeyPatch, tool_calling: Any) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(ECHO_SCRIPT))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    graph = create_graph_agent("openai:gpt-4o-mini", tools=[echo], config=LoopConfig(tool_calling=tool_calling))

    assert (await graph.ainvoke(says("hi")))["messages"][-1].text == "The echo returned: hello"


@pytest.mark.parametrize("tool_calling", ["native", "text"])
async def test_the_script_in_the_environment_delegates(monkeypatch: pytest.MonkeyPatch, tool_calling: Any) -> None:
    researcher = create_graph_agent(ScriptedChatModel(["Qubits."]), name="researcher")
    script = [
        '{"tool_calls": [{"id": "call_1", "name": "delegate_to_researcher", '
        '"arguments": {"task": "Find quantum info"}}]}',
        "No more actions.",
        "Based on the research, quantum computing uses qubits.",
    ]
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(script))
    graph = create_graph_agent(
        "openai:gpt-4o-mini",
        delegates=[GraphDelegate("researcher", "Finds things out.", researcher)],
        config=LoopConfig(tool_calling=tool_calling),
        checkpointer=InMemorySaver(),
    )

    result = await graph.ainvoke(says("hi"), thread())

    events = await SessionMemory(graph).get_session_events("s1")
    order = [kind for kind in kinds(events) if kind not in ("plan", "status")]
    assert (result["messages"][-1].text, order) == (
        "Based on the research, quantum computing uses qubits.",
        ["user_message", "delegation_request", "delegation_response", "agent_response"],
    )


async def test_a_script_without_tools_is_phase_two_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["Hello! How can I help you?"]')

    result = await create_graph_agent("openai:gpt-4o-mini").ainvoke(says("hi"))

    assert result["messages"][-1].text == "Hello! How can I help you?"


async def test_an_exhausted_script_fails_and_names_its_step() -> None:
    graph = create_graph_agent(ScriptedChatModel(["No more actions."]), tools=[echo])

    with pytest.raises(ScriptError, match="The script has 1 reply and was asked for a 2nd"):
        await graph.ainvoke(says("hi"))


def test_a_malformed_script_is_refused_when_the_agent_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", "[1, 2")

    with pytest.raises(ConfigError, match="DEBUG_MOCK_RESPONSES"):
        create_graph_agent("openai:gpt-4o-mini")


class City(BaseModel):
    name: str
    people: int


PARIS = {"name": "Paris", "people": 2_100_000}


@pytest.mark.parametrize("shape", [City, City.model_json_schema()], ids=["pydantic", "json schema"])
async def test_a_structured_answer_is_returned(shape: Any) -> None:
    model = ScriptedChatModel([*ECHO_SCRIPT[:2], json.dumps(PARIS)])
    graph = create_graph_agent(model, tools=[echo], response_format=shape)

    result = await graph.ainvoke(says("hi"))

    model.assert_spent()
    assert (result["structured_response"], result["status"]) == (PARIS, "COMPLETED")


async def test_an_answer_that_does_not_fit_is_repaired() -> None:
    model = ScriptedChatModel(["I think Paris.", '{"name": "Paris"}', json.dumps(PARIS)])
    graph = create_graph_agent(model, response_format=City)

    result = await graph.ainvoke(says("hi"))

    requests = [request.messages[-1].text for request in model.requests[1:]]
    assert (result["structured_response"], requests, dialogue(result["messages"])) == (
        PARIS,
        [
            "That does not fit: The reply holds no JSON. Send the corrected object.",
            "That does not fit: City: the field 'people' is missing. Send the corrected object.",
        ],
        [("human", "hi"), ("ai", json.dumps(PARIS))],
    )


async def test_an_answer_is_repaired_twice_at_most() -> None:
    model = ScriptedChatModel(["no", "no", "no", "never asked for"])
    graph = create_graph_agent(model, response_format=City, checkpointer=InMemorySaver())

    result = await graph.ainvoke(says("hi"), thread())

    events = await SessionMemory(graph).get_session_events("s1")
    error_kinds = [e["kind"] for e in events if e["type"] == "error"]
    assert (len(model.requests), result["structured_response"], result["status"], error_kinds) == (
        3,
        None,
        "FAILED",
        ["response_format"],
    )
