"""Own state fields: `state_schema=`, and the tools, prompts, inputs and parent graphs that use them."""

from __future__ import annotations

import asyncio
import operator
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents import AgentState
from langchain.agents.middleware import wrap_tool_call
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.channels import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolRuntime
from langgraph.types import Command, Overwrite, Send
from typing_extensions import TypedDict

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state.custom_state import ReducedWrites
from graph_agent.errors import ConfigError, InputError
from tests.support.agents import asks, dialogue, echo, kinds, marked, says, thread
from tests.support.gates import Gate

MODES = ["native", "text", "wave"]


class Shop(TypedDict):
    customer: str
    basket: Annotated[list[str], operator.add]
    visits: NotRequired[int]


@wrap_tool_call
async def passing(request: Any, handler: Any) -> Any:
    return await handler(request)


def result(text: str, call_id: str) -> ToolMessage:
    return ToolMessage(text, tool_call_id=call_id)


@tool
def put(item: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Put an item into the basket."""
    return Command(update={"basket": [item], "customer": item, "messages": [result(f"put {item}", tool_call_id)]})


@tool
def look(basket: Annotated[list[str], InjectedState("basket")], runtime: ToolRuntime) -> str:
    """Look into the basket."""
    return f"{basket} {runtime.state.get('customer')}"


def script(mode: str, *waves: list[tuple[str, str, dict[str, Any]]], answer: str = "Done.") -> ScriptedChatModel:
    """A model that plans waves in a mode, then answers."""
    if mode != "wave":
        return ScriptedChatModel([*(asks(*wave) for wave in waves), answer])
    import json

    plans = [
        {"status": "continue", "tools": [{"id": id_, "tool": name, "args": args} for id_, name, args in wave]}
        for wave in waves
    ]
    return ScriptedChatModel([*map(json.dumps, plans), json.dumps({"status": "done", "tools": []}), answer])


def strict_saver() -> InMemorySaver:
    return InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))


def shop(model: ScriptedChatModel, mode: Any = "native", **options: Any) -> Session:
    options = {"tools": [put, look], "state_schema": Shop, "checkpointer": strict_saver(), **options}
    graph = create_graph_agent(model, config=LoopConfig(tool_calling=mode), **options)
    return Session(graph, "s1")


@pytest.mark.parametrize("mode", MODES)
async def test_tools_write_and_read_own_fields(mode: str) -> None:
    model = script(
        mode, [("a", "put", {"item": "tea"}), ("b", "put", {"item": "milk"})], [("c", "look", {})], answer="Done."
    )

    ran = await shop(model, mode).run("go", state={"basket": ["jam"]})

    assert (ran.answer, ran.results, ran.state) == (
        "Done.",
        {"a": "put tea", "b": "put milk", "c": "['jam', 'tea', 'milk'] milk"},
        {"customer": "milk", "basket": ["jam", "tea", "milk"]},
    )


async def test_own_fields_last_for_the_session_and_belong_to_input_and_output() -> None:
    model = ScriptedChatModel([asks(("a", "put", {"item": "tea"})), "Done.", asks(("b", "look", {})), "Done."])
    graph = shop(model).graph
    await graph.ainvoke(says("go"), thread())

    out = await graph.ainvoke({**says("again"), "basket": ["jam"], "visits": 2}, thread())

    properties = graph.get_input_jsonschema()["properties"]
    assert (
        {name: out[name] for name in ("customer", "basket", "visits")},
        out["messages"][-2].text,
        sorted(properties),
        graph.get_input_jsonschema().get("required"),
    ) == (
        {"customer": "tea", "basket": ["tea", "jam"], "visits": 2},
        "['tea', 'jam'] tea",
        ["basket", "customer", "messages", "visits"],
        ["messages"],
    )


async def test_the_system_prompt_may_take_the_state() -> None:
    def prompt(state: dict[str, Any]) -> str:
        return f"Serve {state.get('customer', 'anybody')}, {len(state['messages'])} messages."

    model = ScriptedChatModel([asks(("a", "put", {"item": "tea"})), "Done."])

    await shop(model, system_prompt=prompt).run("go")

    prompts = [str(request.messages[0].content).split("\n")[0] for request in model.requests]
    assert prompts == ["Serve anybody, 1 messages.", "Serve tea, 3 messages."]


@pytest.mark.parametrize("name", ["events", "loop", "usage", "status"])
def test_a_field_with_a_name_of_the_agents_own_state_is_refused(name: str) -> None:
    schema = TypedDict("Bad", {name: int})  # type: ignore[misc]  # a name at run time

    with pytest.raises(ConfigError, match=rf"Bad\.{name} has the name of a field of the agent itself; rename it"):
        create_graph_agent(ScriptedChatModel([]), state_schema=schema)


def test_a_schema_that_is_no_typed_dict_is_refused() -> None:
    with pytest.raises(ConfigError, match="give a TypedDict class"):
        create_graph_agent(ScriptedChatModel([]), state_schema=int)


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [(Custom(), "basket[0] is of type Custom"), ({"k": [Custom()]}, "basket[0]['k'][0] is of type Custom")],
    ids=["object", "nested"],
)
async def test_a_tool_that_writes_a_value_that_is_not_plain_gets_an_error(value: Any, where: str) -> None:
    @tool
    def bad(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Write a strange value."""
        return Command(update={"basket": [value], "messages": [result("ok", tool_call_id)]})

    session = shop(ScriptedChatModel([asks(("a", "bad", {})), "Done."]), tools=[bad])

    ran = await session.run("go")

    assert (where in ran.results["a"]["error"], ran.state, ran.answer) == (True, {"basket": []}, "Done.")


async def test_an_input_with_a_value_that_is_not_plain_is_refused() -> None:
    session = shop(ScriptedChatModel(["Hello."]))

    with pytest.raises(InputError) as direct:
        await session.graph.ainvoke({**says("go"), "customer": Custom()}, thread())
    with pytest.raises(InputError) as updated:
        await session.graph.aupdate_state(thread(), {"customer": Custom()}, as_node="plan")
    with pytest.raises(InputError) as unknown:
        await session.run("go", state={"custommer": "a"})

    assert ("customer is of type Custom" in str(direct.value), "Custom" in str(updated.value), str(unknown.value)) == (
        True,
        True,
        "state: unknown field 'custommer'; known: basket, customer, visits. Did you mean 'customer'?",
    )


@pytest.mark.parametrize("given", [[1], "x", 5])
async def test_a_state_that_is_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="give a mapping of own state fields to values, or None"):
        await shop(ScriptedChatModel(["Hello."])).run("go", state=given)


async def test_a_value_that_a_reducer_cannot_use_is_refused_and_the_session_goes_on() -> None:
    @tool
    def bad(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Write a text to a list."""
        return Command(update={"basket": "tea", "messages": [result("ok", tool_call_id)]})

    session = shop(ScriptedChatModel([asks(("a", "bad", {})), "Done.", "Again."]), tools=[bad])
    fault = (
        "the state field 'basket' was given a value that its reducer cannot use "
        '(TypeError: can only concatenate list (not "str") to list).'
    )

    with pytest.raises(InputError) as given:
        await session.run("go", state={"basket": "tea"})
    written = await session.run("go")
    again = await session.run("again", state={"basket": ["tea"]})

    assert (str(given.value), written.results, again.answer, again.state) == (
        "The state field 'basket' was given 'tea', which its reducer add cannot use (TypeError: can only concatenate "
        'list (not "str") to list). Give a value that the reducer accepts, or change the reducer in the state_schema.',
        {"a": {"error": f"The tool ran, but this agent does not allow the changes it requested: {fault}"}},
        "Again.",
        {"basket": ["tea"]},
    )


@tool
def replace(items: list[str], tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Replace the whole basket."""
    return Command(update={"basket": Overwrite(items), "messages": [result("Replaced.", tool_call_id)]})


async def test_of_parallel_overwrites_of_a_field_the_last_in_the_plan_counts_and_the_session_goes_on() -> None:
    wave: list[Any] = [
        ("a", "replace", {"items": ["tea"]}),
        ("b", "put", {"item": "cup"}),
        ("c", "replace", {"items": ["pot"]}),
    ]
    model = script("native", wave, [("d", "put", {"item": "milk"})])
    graph = create_graph_agent(model, tools=[replace, put], state_schema=Shop, checkpointer=strict_saver())

    ran = await Session(graph, "s1").run("go")

    assert (ran.answer, ran.state) == ("Done.", {"customer": "milk", "basket": ["pot", "milk"]})


def spent(balance: int, change: int) -> int:
    if balance + change < 0:
        raise ValueError("The account is overdrawn.")
    return balance + change


class Account(TypedDict):
    balance: Annotated[int, spent]


async def test_a_reducer_that_depends_on_the_value_receives_the_current_one() -> None:
    @tool
    def pay(amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Pay an amount."""
        return Command(update={"balance": -amount, "messages": [result("paid", tool_call_id)]})

    model = ScriptedChatModel([asks(("a", "pay", {"amount": 4})), asks(("b", "pay", {"amount": 7})), "Done."])
    session = shop(model, tools=[pay], state_schema=Account)

    ran = await session.run("go", state={"balance": 10})

    assert (ran.results["a"], "overdrawn" in ran.results["b"]["error"], ran.state) == ("paid", True, {"balance": 6})


async def test_an_input_that_a_reducer_refuses_for_the_current_value_names_field_and_value() -> None:
    session = shop(ScriptedChatModel(["Fine."], cycle=True), state_schema=Account)
    refusals: list[str] = []

    with pytest.raises(InputError) as refused:
        await session.run("go", state={"balance": -11})
    refusals.append(str(refused.value))
    await session.run("go", state={"balance": 10})
    with pytest.raises(InputError) as refused:
        await session.run("go", state={"balance": -11}, input_id="a")
    refusals.append(str(refused.value))
    with pytest.raises(InputError) as refused:
        [part async for part in session.stream("go", state={"balance": -11})]
    refusals.append(str(refused.value))
    with pytest.raises(InputError) as refused:
        await session.graph.aupdate_state({"configurable": {"thread_id": "s1"}}, {"balance": -11})
    refusals.append(str(refused.value))
    after = await session.run("go", state={"balance": -7}, input_id="a")

    assert (refusals, after.state) == (
        [
            "The state field 'balance' was given -11, which its reducer spent cannot use (ValueError: The account "
            "is overdrawn.). Give a value that the reducer accepts, or change the reducer in the state_schema."
        ]
        * 4,
        {"balance": 3},
    )


@tool
def withdraw(amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Withdraw an amount."""
    return Command(update={"balance": -amount, "messages": [result("paid", tool_call_id)]})


async def test_parallel_writes_that_a_reducer_refuses_together_are_errors_of_single_calls() -> None:
    wave = asks(*((str(at), "withdraw", {"amount": 4}) for at in range(4)))
    session = shop(ScriptedChatModel([wave, "Done.", "Again."]), tools=[withdraw], state_schema=Account)

    ran = await session.run("go", state={"balance": 10})
    again = await session.run("again")

    refused = [value["error"] for value in ran.results.values() if isinstance(value, dict)]
    assert (list(ran.results.values()).count("paid"), ["The account is overdrawn" in text for text in refused]) == (
        2,
        [True, True],
    )
    assert (ran.state, again.answer, again.state) == ({"balance": 2}, "Again.", {"balance": 2})


async def test_writes_of_calls_that_finished_before_a_crash_count_when_the_wave_resumes() -> None:
    gate = Gate()

    @tool
    async def late(amount: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Withdraw an amount later."""
        await gate.passing()
        return Command(update={"balance": -amount, "messages": [result("paid", tool_call_id)]})

    wave = asks(("a", "withdraw", {"amount": 4}), ("b", "late", {"amount": 7}))
    tools = [marked(each, effect="read") for each in (withdraw, late)]
    session = shop(ScriptedChatModel([wave, "Done.", "Again."]), tools=tools, state_schema=Account)
    run = asyncio.create_task(session.run("go", state={"balance": 10}))
    await gate.reached()
    async with asyncio.timeout(30):
        while "a" not in await finished(session):
            await asyncio.sleep(0.002)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()

    ran = await session.resume()
    again = await session.run("again")

    assert (ran.results["a"], "overdrawn" in ran.results["b"]["error"], again.state) == ("paid", True, {"balance": 6})


async def finished(session: Session) -> set[str]:
    """The calls with a stored result."""
    return {event["id"] for event in await session.events() if event["type"] == "tool_result"}


def test_a_write_that_a_reducer_refuses_in_the_order_of_the_plan_is_left_out() -> None:
    channel: Any = ReducedWrites(int, spent).from_checkpoint(3)

    channel.update([-5, 4])

    assert channel.get() == 7


async def test_plain_values_come_back_from_a_strict_checkpoint() -> None:
    class Kept(TypedDict):
        day: date
        tags: set[str]
        notes: list[Any]
        live: Annotated[Any, UntrackedValue]

    session = shop(ScriptedChatModel(["Hello.", "Hello."]), tools=[], state_schema=Kept)
    given = {"day": date(2026, 1, 2), "tags": {"a"}, "notes": [HumanMessage("x", id="m")]}
    await session.run("go", state={**given, "live": "unkept"})

    ran = await session.run("again")

    assert ran.state == given


async def test_other_commands_of_a_tool_are_refused_with_the_reason() -> None:
    @tool
    def bad(kind: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Ask for something."""
        done = {"messages": [result("ok", tool_call_id)]}
        return {
            "goto": Command(goto="finalize", update=done),
            "parent": Command(goto="other", graph=Command.PARENT, update=done),
            "field": Command(update={**done, "events": []}),
            "result": Command(update={"messages": [result("ok", "other")]}),
        }[kind]

    names = ["goto", "parent", "field", "result"]
    calls = [(name, "bad", {"kind": name}) for name in names]
    ran = await shop(ScriptedChatModel([asks(*calls), "Done."]), tools=[bad]).run("go")

    prefix = "The tool ran, but this agent does not allow the changes it requested: "
    assert [ran.results[name]["error"].removeprefix(prefix) for name in names] == [
        "it has a `goto`.",
        "it has a `goto` in a parent graph, and this agent runs on its own.",
        "'events' is no own state field of the agent.",
        "it adds an object of type ToolMessage.",
    ]


@pytest.mark.parametrize("hooks", [[], [passing]], ids=["plain", "with middleware"])
async def test_all_writes_of_one_call_to_a_field_with_a_reducer_count(hooks: list[Any]) -> None:
    @tool
    def fill(tool_call_id: Annotated[str, InjectedToolCallId]) -> list[Command[Any]]:
        """Fill the basket."""
        done = {"basket": ["tea"], "messages": [result("ok", tool_call_id)]}
        return [Command(update=done), Command(update={"basket": ["jam"]})]

    session = shop(ScriptedChatModel([asks(("a", "fill", {})), "Done."]), tools=[fill], hooks=hooks)

    ran = await session.run("go")

    assert (ran.results, ran.state) == ({"a": "ok"}, {"basket": ["tea", "jam"]})


@pytest.mark.parametrize("key", [Decimal(0), frozenset()], ids=repr)
async def test_a_key_that_checkpoints_cannot_hold_is_an_error_also_if_it_is_falsy(key: Any) -> None:
    @tool
    def bad(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Write a strange key."""
        return Command(update={"basket": [{key: 1}], "messages": [result("ok", tool_call_id)]})

    session = shop(ScriptedChatModel([asks(("a", "bad", {})), "Done."]), tools=[bad])

    ran = await session.run("go")

    assert ([call.status for call in ran.calls], ran.state, ran.answer) == (["error"], {"basket": []}, "Done.")


async def test_further_messages_of_a_tool_follow_the_results_of_its_wave() -> None:
    @tool
    def show(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Show a picture."""
        return Command(update={"messages": [result("see below", tool_call_id), HumanMessage("the picture")]})

    model = ScriptedChatModel([asks(("a", "show", {}), ("b", "echo", {"text": "hi"})), "Done.", "Again."])
    session = shop(model, tools=[show, echo])

    ran = await session.run("go")
    await session.run("more")

    assert (
        ran.answer,
        dialogue(list(model.requests[1].messages))[1:],
        kinds(await session.events()).count("user_message"),
    ) == (
        "Done.",
        [("human", "go"), ("ai", ""), ("tool", "see below"), ("tool", "hi"), ("human", "the picture")],
        2,
    )


class Team(MessagesState):
    customer: str
    trail: Annotated[list[str], operator.add]


class Member(AgentState[Any]):
    customer: NotRequired[str]


def team(front: Any, back: Any, **options: Any) -> Any:
    graph = StateGraph(Team)
    graph.add_node("front", front)
    graph.add_node("back", back)
    graph.add_edge(START, "front")
    graph.add_edge("back", END)
    return graph.compile(**options)


@tool
def transfer(
    tool_call_id: Annotated[str, InjectedToolCallId], state: Annotated[dict[str, Any], InjectedState]
) -> Command[Any]:
    """Transfer to the back office."""
    done = ToolMessage("Transferred.", tool_call_id=tool_call_id)
    update = {**state, "messages": [*state["messages"], done], "customer": "Ann", "trail": ["front"]}
    return Command(goto="back", graph=Command.PARENT, update=update)


async def test_a_handoff_goes_to_a_node_of_the_parent_graph() -> None:
    front = create_graph_agent(
        ScriptedChatModel([asks(("a", "transfer", {}), ("b", "echo", {"text": "hi"}))]),
        tools=[transfer, echo],
        state_schema=Member,
        name="front",
    )
    model = ScriptedChatModel(["It is done."])
    back = create_graph_agent(
        model, state_schema=Member, name="back", system_prompt=lambda state: f"For {state['customer']}."
    )

    out = await team(front, back).ainvoke(says("help"))

    assert (dialogue(out["messages"])[-2:], out["customer"], out["trail"], model.requests[0].messages[0].text) == (
        [("tool", "hi"), ("ai", "It is done.")],
        "Ann",
        ["front"],
        "For Ann.",
    )


async def test_a_handoff_closes_the_session_of_the_agent_that_hands_off() -> None:
    model = ScriptedChatModel([asks(("a", "transfer", {}), ("b", "echo", {"text": "hi"})), "Welcome back."])
    front = create_graph_agent(model, tools=[transfer, echo], state_schema=Member, checkpointer=True, name="front")
    graph = team(front, lambda _: {"messages": [("ai", "Done.")]}, checkpointer=strict_saver())
    first = await graph.ainvoke(says("help"), thread())

    second = await graph.ainvoke(says("once more"), thread())

    seen = [message for message in dialogue(list(model.requests[1].messages)) if message[0] == "tool"]
    assert (first["messages"][-1].text, second["messages"][-1].text, seen[:2]) == (
        "Done.",
        "Welcome back.",
        [("tool", "Transferred."), ("tool", "hi")],
    )


async def test_a_tool_hands_off_with_sends() -> None:
    @tool
    def fan_out(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Give work to several."""
        return Command(goto=[Send("back", {"trail": [name]}) for name in "xy"], graph=Command.PARENT)

    front = create_graph_agent(ScriptedChatModel([asks(("a", "fan_out", {}))]), tools=[fan_out])
    graph = team(front, lambda state: {"trail": [f"back {state['trail'][0]}"]})

    out = await graph.ainvoke(says("help"))

    assert out["trail"] == ["back x", "back y"]
