"""`record_requests`: what models received, recorded or reconstructed."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphDelegate, LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import ECHO_SCRIPT, asks, echo, kinds
from tests.support.sessions import new_session

RECORDED = LoopConfig(record_requests=True)


def brief(result: RunResult) -> list[tuple[str, int, list[tuple[str, str]], int, bool]]:
    """Purpose, step, added messages, number of removed ones, and whether it is reconstructed, of each request."""
    return [
        (
            each.purpose,
            each.step,
            [(message["type"], message["content"][:20]) for message in each.added],
            each.removed,
            each.reconstructed,
        )
        for each in result.requests
    ]


async def test_each_request_is_recorded_as_the_difference_to_the_one_before() -> None:
    session = new_session(ScriptedChatModel([*ECHO_SCRIPT, "Hello."]), echo, config=RECORDED, system_prompt="Be brief.")

    first, second = await session.run("go"), await session.run("hi")

    assert (brief(first), brief(second)) == (
        [
            ("plan", 1, [("system", "Be brief.\n\n# How to "), ("human", "go")], 0, False),
            ("plan", 2, [("ai", ""), ("tool", "hello")], 0, False),
            ("answer", 2, [("human", "Now provide your fin")], 0, False),
        ],
        [("plan", 1, [("ai", "The echo returned: h"), ("human", "hi")], 1, False)],
    )


async def test_a_recorded_request_is_the_one_that_the_model_received() -> None:
    model = ScriptedChatModel([*ECHO_SCRIPT, "Hello."])
    session = new_session(model, echo, config=RECORDED)

    result = await session.run("go")

    assert (
        [[message["content"] for message in each.messages] for each in result.requests],
        [[tool["function"]["name"] for tool in each.tools] for each in result.requests],
    ) == ([[message.content for message in request.messages] for request in model.requests[:3]], [["echo"]] * 3)


async def test_a_part_is_stored_once_and_without_secrets() -> None:
    session = new_session(ScriptedChatModel(ECHO_SCRIPT), echo, config=RECORDED)

    await session.run("password=hunter2-of-ana")

    parts = [list(event["parts"].values()) for event in await session.events() if event["type"] == "model_request"]
    assert [[part.get("content", part.get("type"))[:12] for part in added] for added in parts] == [
        [parts[0][0]["content"][:12], "password=***", "function"],
        ["", "hello"],
        ["Now provide "],
    ]


async def test_options_and_arguments_are_recorded_without_secrets() -> None:
    @wrap_model_call
    async def with_headers(request: Any, handler: Any) -> Any:
        headers = {"X-Api-Key": "k-1", "Accept": "*/*"}
        return await handler(request.override(model_settings={"extra_headers": headers}))

    model = ScriptedChatModel([asks(("1", "echo", {"text": "x", "password": "hunter2"})), "Done."])
    session = new_session(model, echo, config=RECORDED, hooks=[with_headers])

    result = await session.run("go")

    assert (
        result.requests[0].options["extra_headers"],
        [call["args"] for each in result.requests[1].messages for call in each.get("tool_calls", ())],
    ) == ({"X-Api-Key": "***", "Accept": "*/*"}, [{"text": "x", "password": "***"}])


async def test_a_long_tool_of_another_provider_is_recorded_by_its_name() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "x" * 2000}}}
    native = {"name": "search", "description": "Search.", "input_schema": schema}

    @wrap_model_call
    async def offering(request: Any, handler: Any) -> Any:
        return await handler(request.override(model_settings={"tools": [native]}))

    session = new_session(ScriptedChatModel(["Hi."]), config=LoopConfig(record_requests=1000), hooks=[offering])

    result = await session.run("go")

    assert [(each["name"], each["omitted_chars"] > 2000) for each in result.requests[0].tools] == [("search", True)]


async def test_a_long_message_is_cut() -> None:
    session = new_session(ScriptedChatModel(["Hello."]), echo, config=LoopConfig(record_requests=1000))

    result = await session.run("x" * 5000)

    question = result.requests[0].messages[-1]
    assert (question["content"], question["omitted_chars"] > 4000) == ("x" * 1000, True)


async def test_an_image_over_the_limit_is_named() -> None:
    session = new_session(ScriptedChatModel(["A cat."]), config=LoopConfig(record_requests=1000))
    data = b64encode(bytes(range(256)) * 20).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}

    result = await session.run([HumanMessage([{"type": "text", "text": "What is it?"}, image])])

    question = result.requests[0].messages[-1]
    assert (question["content"], question["omitted_blocks"]) == ("What is it?", ["image_url"])


async def test_messages_that_middleware_removes_are_missing_in_the_record() -> None:
    @wrap_model_call
    async def forgetful(request: Any, handler: Any) -> Any:
        return await handler(request.override(messages=request.messages[-1:]))

    session = new_session(ScriptedChatModel(["One.", "Two."]), echo, config=RECORDED, hooks=[forgetful])
    await session.run("one")

    result = await session.run("two")

    assert brief(result) == [("plan", 1, [("human", "two")], 1, False)]


async def test_the_requests_of_delegates_are_named_where_their_answers_arrived() -> None:
    inner = create_graph_agent(ScriptedChatModel(["four"]), config=RECORDED)
    outer = create_graph_agent(
        ScriptedChatModel([asks(("1", "delegate_to_math", {"task": "2+2"})), "four"]),
        delegates=[GraphDelegate("math", "adds", inner)],
        config=RECORDED,
    )
    top = create_graph_agent(
        ScriptedChatModel([asks(("1", "delegate_to_desk", {"task": "sum"})), "four"]),
        delegates=[GraphDelegate("desk", "asks", outer)],
        checkpointer=InMemorySaver(),
        config=LoopConfig(record_requests=True, max_delegation_depth=2),
    )

    result = await Session(top, "s").run("go")

    assert [
        (each.delegate, each.step, each.messages[-1]["content"], each.reconstructed) for each in result.requests
    ] == [
        ("", 1, "go", False),
        ("desk", 1, "sum", False),
        ("desk/math", 0, "2+2", False),
        ("desk", 2, "four", False),
        ("", 2, "four", False),
    ]


async def test_without_a_record_requests_are_reconstructed_from_the_history() -> None:
    session = new_session(ScriptedChatModel([*ECHO_SCRIPT, "Hello."]), echo)

    first, second = await session.run("go"), await session.run("hi")

    assert (brief(first), brief(second), "model_request" in kinds(await session.events())) == (
        [
            ("plan", 1, [("human", "go")], 0, True),
            ("plan", 2, [("ai", ""), ("tool", "hello")], 0, True),
            ("answer", 2, [], 0, True),
        ],
        [("plan", 1, [("ai", "The echo returned: h"), ("human", "hi")], 0, True)],
        False,
    )


async def test_a_resumed_session_continues_its_record() -> None:
    model = ScriptedChatModel([asks(("1", "echo", {"text": "x"})), "Done.", "Hello."])
    session = new_session(model, echo, config=RECORDED)
    await session.run("go")

    result = await Session(session.graph, "s1").run("again")

    assert [each.kept_first for each in result.requests] == [4]
