"""Configuration changes of a running session: their effect, start and duration."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import openai
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from tests.support.agents import asks, at_step_limit, echo
from tests.support.gates import Gate, GatedModel, gated_tool
from tests.support.openai_stub import OpenAIStub, Reply
from tests.support.sessions import new_session, put_note

WORK = asks(("1", "work", {}))
DONE = ["No more actions.", "Done."]


def options(model: ScriptedChatModel, name: str) -> list[Any]:
    """The value of one option in each request."""
    return [request.kwargs.get(name) for request in model.requests]


async def changed_in_the_wave(model: ScriptedChatModel, **fields: Any) -> Session:
    """A session whose configuration was changed while its first wave ran."""
    gate = Gate()
    talk = new_session(model, gated_tool(gate), echo)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    await talk.configure(**fields)
    gate.open()
    await run
    return talk


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort", "high"),
        ({"temperature": 0.5}, "temperature", 0.5),
        ({"max_output_tokens": 99}, "max_tokens", 99),
    ],
)
async def test_an_option_reaches_the_next_model_call_and_lasts(fields: Any, name: str, value: Any) -> None:
    model = ScriptedChatModel([WORK, *DONE, *DONE])

    talk = await changed_in_the_wave(model, **fields)
    await talk.run("again")

    assert options(model, name) == [None, value, value, value, value]


async def test_a_change_made_while_the_model_plans_counts_from_the_next_call() -> None:
    gate = Gate()
    model = GatedModel(responses=DONE, before={1: gate})
    talk = new_session(model, echo)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.configure(reasoning_effort="high")
    gate.open()
    await run

    assert options(model, "reasoning_effort") == [None, "high"]


async def test_fewer_steps_end_the_input_at_once() -> None:
    talk = await changed_in_the_wave(ScriptedChatModel([WORK, "So far."]), max_steps=1)

    assert (await talk.driver.result()).answer == at_step_limit(1, "So far.")


async def test_more_steps_let_it_go_on() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, asks(("2", "echo", {"text": "x"})), *DONE]), gated_tool(gate), echo)
    run = asyncio.create_task(talk.run("go", context={"max_steps": 1}))
    await gate.reached()

    await talk.configure(max_steps=5)
    gate.open()
    result = await run

    assert (result.stop_reason, result.results) == ("completed", {"1": "worked", "2": "x"})


async def test_another_way_of_calling_tools_counts_from_the_next_plan() -> None:
    model = ScriptedChatModel([WORK, *DONE])

    await changed_in_the_wave(model, tool_calling="text")

    assert [bool(request.tools) for request in model.requests] == [True, False, False]


async def test_a_later_inputs_own_context_wins() -> None:
    model = ScriptedChatModel([WORK, *DONE, *DONE, *DONE])
    talk = await changed_in_the_wave(model, reasoning_effort="high")

    await talk.run("two", context={"reasoning_effort": "low"})
    await talk.run("three")

    assert options(model, "reasoning_effort") == [None, "high", "high", "low", "low", None, None]


async def test_an_idle_session_takes_a_change_in_with_its_next_input() -> None:
    model = ScriptedChatModel([*DONE, *DONE])
    talk = new_session(model, echo)
    await talk.run("one")

    await talk.configure(reasoning_effort="high", temperature=0.0)
    await talk.configure(reasoning_effort="low")
    await talk.run("two")

    assert (options(model, "reasoning_effort"), options(model, "temperature")) == (
        [None, None, "low", "low"],
        [None, None, 0.0, 0.0],
    )


async def test_changes_reach_a_real_server() -> None:
    gate = Gate()
    work = Reply(tool_calls=(("work", {}),))
    with OpenAIStub(work, "No more actions.", "Done.") as stub:
        async with stub.chat_model("gpt-4o-mini", streaming=False) as model:
            graph = create_graph_agent(model, tools=[gated_tool(gate)], checkpointer=InMemorySaver())
            talk = Session(graph, "s1")
            run = asyncio.create_task(talk.run("go"))
            await gate.reached()
            await talk.configure(reasoning_effort="high", max_output_tokens=77)
            gate.open()
            await run

    assert [(body.get("reasoning_effort"), body.get("max_completion_tokens")) for body in stub.bodies] == [
        (None, None),
        ("high", 77),
        ("high", 77),
    ]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"max_step": 3}, "unknown field 'max_step'; .*max_steps"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"max_steps": "many"}, "max_steps='many'"),
        ({"max_cost": 1}, "max_cost needs prices"),
        ({"credentials": {"key": "secret"}}, "may not store them"),
    ],
)
async def test_invalid_options_are_refused_before_sending(fields: dict[str, Any], complaint: str) -> None:
    talk = new_session(ScriptedChatModel([]))

    with pytest.raises(ConfigError, match=complaint):
        await talk.configure(**fields)

    assert await (await talk.driver.control._inbox()).read("s1") == []


@pytest.mark.parametrize(
    "fields",
    [{"max_steps": -1}, "max_steps", {"credentials": {"key": "secret"}}],
    ids=["value", "no mapping", "credentials"],
)
async def test_an_invalid_note_of_another_process_is_a_warning(fields: object) -> None:
    store = InMemoryStore()
    talk = new_session(ScriptedChatModel(DONE), echo, store=store)
    await put_note(store, talk.id, "configure", fields)

    result = await talk.run("go")

    warnings = [event["message"] for event in await talk.events() if event["type"] == "warning"]
    assert (result.status, [text.partition(":")[0] for text in warnings], "secret" in str(warnings)) == (
        "COMPLETED",
        ["A change of the configuration was left out"],
        False,
    )


def test_efforts_are_those_of_openais_api() -> None:
    with pytest.raises(ConfigError) as error:
        LoopConfig(reasoning_effort="banana")  # type: ignore[arg-type]  # the error is under test

    [theirs, _] = get_args(openai.types.ReasoningEffort)
    [ours, _] = get_args(LoopConfig.model_fields["reasoning_effort"].annotation)
    assert (get_args(ours), "'none', 'minimal', 'low'" in str(error.value)) == (get_args(theirs), True)
