"""The scripted model: parsing of replies, and recorded requests."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from graph_agent import ScriptedChatModel
from graph_agent.models.scripted import ScriptedRequest
from tests.support.scripted_helpers import ECHO_SCHEMA, Room, RoomDict, call, echo, streamed


@pytest.mark.parametrize(
    ("response", "content", "calls", "invalid"),
    [
        (call(), "", [("call_1", "echo", {"text": "hello"})], []),
        (call(content="Look:"), "Look:", [("call_1", "echo", {"text": "hello"})], []),
        (call(content=None), "", [("call_1", "echo", {"text": "hello"})], []),
        ('\n {"tool_calls": []} ', "", [], []),
        (
            '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\\"a\\": 1}"}}]}',
            "",
            [("1", "f", {"a": 1})],
            [],
        ),
        ('{"tool_calls": [{"id": 7, "name": "f", "arguments": ""}]}', "", [("7", "f", {})], []),
        ('{"tool_calls": [{"id": "1", "name": "f", "arguments": [1]}]}', "", [], [("1", "f", "[1]")]),
        ('{"tool_calls": "none"}', '{"tool_calls": "none"}', [], []),
        ('{"answer": "tool_calls"}', '{"answer": "tool_calls"}', [], []),
        ('["tool_calls"]', '["tool_calls"]', [], []),
        ('{"tool_calls": [', '{"tool_calls": [', [], []),
        ("Say {x}", "Say {x}", [], []),
    ],
)
def test_a_string_is_parsed_as_a_reply(response: str, content: str, calls: list[Any], invalid: list[Any]) -> None:
    reply = ScriptedChatModel([response]).invoke("hi")

    assert (
        reply.content,
        [(each["id"], each["name"], each["args"]) for each in reply.tool_calls],
        [(each["id"], each["name"], each["args"]) for each in reply.invalid_tool_calls],
    ) == (content, calls, invalid)


def test_missing_ids_are_generated_and_unique() -> None:
    response = json.dumps({"tool_calls": [{"name": "f"}, {"name": "f"}]})
    model = ScriptedChatModel([response, response], cycle=True)

    ids = [each["id"] for _ in range(4) for each in model.invoke("hi").tool_calls]

    assert len(set(ids)) == 8
    assert all(id_ and id_.startswith("call_") for id_ in ids)


@pytest.mark.parametrize("bind", [False, True])
async def test_calls_are_structured_with_and_without_tools(bind: bool) -> None:
    model = ScriptedChatModel([call()])

    reply = await (model.bind_tools([echo]) if bind else model).ainvoke("hi")

    assert reply.tool_calls == [{"name": "echo", "args": {"text": "hello"}, "id": "call_1", "type": "tool_call"}]


async def test_requests_show_what_was_sent() -> None:
    model = ScriptedChatModel(["a", "b", "c"])
    prompt = [SystemMessage("Be brief."), HumanMessage("Hi.")]

    await model.bind_tools([echo], tool_choice="none", parallel_tool_calls=False).ainvoke(prompt, stop=["x"])
    model.bind(temperature=0.5).invoke("Bye.")
    await streamed(model)

    assert model.requests == [
        ScriptedRequest(list(prompt), [ECHO_SCHEMA], "none", {"parallel_tool_calls": False, "stop": ["x"]}),
        ScriptedRequest([HumanMessage("Bye.")], [], None, {"temperature": 0.5}),
        ScriptedRequest([HumanMessage("hi")], [], None, {}),
    ]
    assert model.requests[0].tool_names == ["echo"]


def test_tools_of_every_kind_can_be_bound() -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = ScriptedChatModel(["a"])
    builtin = {"type": "web_search_20250305", "name": "web_search"}

    model.bind_tools([echo, add, Room, RoomDict, Room.model_json_schema(), ECHO_SCHEMA, builtin]).invoke("hi")

    assert model.requests[0].tool_names == ["echo", "add", "Room", "RoomDict", "Room", "echo", "web_search"]


@pytest.mark.parametrize(
    ("prompt", "response", "usage"),
    [
        ("", "", (1, 1)),
        ("x" * 400, "y" * 40, (101, 11)),
        ("hi", call(), (1, 6)),
        ([HumanMessage([{"type": "text", "text": "x" * 400}])], "y", (108, 1)),
    ],
)
def test_usage_is_estimated_and_never_zero(prompt: Any, response: str, usage: tuple[int, int]) -> None:
    reply = ScriptedChatModel([response]).invoke(prompt)

    assert reply.usage_metadata == {
        "input_tokens": usage[0],
        "output_tokens": usage[1],
        "total_tokens": sum(usage),
    }


def test_the_profile_supports_tool_calling() -> None:
    profile = ScriptedChatModel([]).profile

    assert profile == {
        "tool_calling": True,
        "tool_choice": True,
        "tool_call_streaming": True,
        "structured_output": True,
    }


def test_a_process_wide_cache_does_not_hide_steps() -> None:
    set_llm_cache(InMemoryCache())
    try:
        model = ScriptedChatModel(["a", "b"])
        texts = [model.invoke("x").text for _ in range(2)]
    finally:
        set_llm_cache(None)

    assert texts == ["a", "b"]


async def test_it_drives_a_foreign_agent() -> None:
    model: BaseChatModel = ScriptedChatModel([call(content="Let me see."), "The echo returned: hello"])
    agent = create_agent(model, [echo])

    result = await agent.ainvoke({"messages": [HumanMessage("Say hello.")]})

    assert [(type(message), message.text) for message in result["messages"]] == [
        (HumanMessage, "Say hello."),
        (AIMessage, "Let me see."),
        (ToolMessage, "hello"),
        (AIMessage, "The echo returned: hello"),
    ]


def test_importing_it_loads_no_provider() -> None:
    code = "import sys, graph_agent.models.scripted; print({'openai', 'langchain_openai', 'mcp'} & {*sys.modules})"

    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert out.stdout.strip() == "set()"
