"""The calls that need approval: patterns, functions, marks, and the context of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import StructuredTool, tool

from graph_agent import AgentContext, GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.calls import Call
from graph_agent.errors import ConfigError
from graph_agent.marks import marked
from tests.support.agents import asks, echo
from tests.support.approvals import ALL, Desk, asked

WRITE = asks(("1", "write", {"path": "a"}))
THREE = asks(("1", "write", {"path": "a"}), ("2", "erase", {"path": "b"}), ("3", "read", {"path": "c"}))


async def questions(desk: Desk, **run: Any) -> list[tuple[str, list[str], str | None]]:
    """Each call that a person is asked about, with its allowed decisions and its description."""
    result = await desk.session.run("go", **run)
    return [
        (action["name"], config["allowed_decisions"], action.get("description"))
        for each in result.interrupts
        for action, config in zip(each.value["action_requests"], each.value["review_configs"], strict=True)
    ]


@pytest.mark.parametrize(
    ("approve", "names"),
    [
        (["write"], ["write"]),
        ("write", ["write"]),
        (["*e"], ["write", "erase"]),
        (["[we]*"], ["write", "erase"]),
        (["*"], ["write", "erase", "read"]),
        (["WRITE*"], []),
        (lambda call: call["arguments"]["path"] == "b", ["erase"]),
        (["read", lambda call: call["name"] == "write"], ["write", "read"]),
        ([], []),
    ],
)
async def test_patterns_and_functions_select_calls(approve: Any, names: list[str]) -> None:
    assert [name for name, _, _ in await questions(Desk(THREE, "Done.", approve=approve))] == names


@pytest.mark.parametrize(
    ("value", "question"),
    [
        (True, [("write", ALL, None)]),
        (["approve", "reject"], [("write", ["approve", "reject"], None)]),
        ("Overwrites the file.", [("write", ALL, "Overwrites the file.")]),
        ({"allowed_decisions": ["respond"], "description": "?"}, [("write", ["respond"], "?")]),
        (False, []),
        (None, []),
    ],
)
async def test_a_mark_and_a_function_give_the_decisions_and_a_description(value: Any, question: Any) -> None:
    async def policy(call: Call) -> Any:
        await asyncio.sleep(0)
        return value if call["name"] == "write" else False

    by_mark = await questions(Desk(THREE, "Done.", approve=None, marks={"approve": value}))
    by_function = await questions(Desk(THREE, "Done.", approve=policy))

    assert (by_mark, by_function) == (question, question)


async def test_rules_that_select_the_same_call_allow_what_all_of_them_allow() -> None:
    desk = Desk(WRITE, approve=["write", lambda call: ["edit", "reject"]], marks={"approve": ["approve", "reject"]})

    assert await questions(desk) == [("write", ["reject"], None)]


@pytest.mark.parametrize("value", [5, [], ["aprove"], {"decisions": []}, {"description": 5}])
async def test_an_invalid_mark_is_refused_when_the_agent_is_built(value: Any) -> None:
    with pytest.raises(ConfigError, match="The mark approve of the tool 'write'"):
        Desk(WRITE, approve=None, marks={"approve": value})


@pytest.mark.parametrize("value", [5, ["aprove"], ValueError("broken"), SystemExit(2)])
async def test_a_policy_that_fails_leaves_the_decision_to_a_person(value: Any) -> None:
    def policy(call: Call) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    assert await questions(Desk(WRITE, approve=policy)) == [
        ("write", ALL, "The approval policy failed for this call, so a person must decide.")
    ]


async def test_a_policy_cannot_change_the_call_that_it_sees() -> None:
    def policy(call: Call) -> bool:
        call["arguments"]["path"] = "changed"
        return True

    desk = Desk(WRITE, "Done.", approve=policy)
    await desk.session.run("go")
    await desk.session.resume(approve())

    assert desk.ran == ["wrote a"]


async def test_an_exact_name_that_no_tool_has_is_refused_when_the_agent_is_built() -> None:
    with pytest.raises(ConfigError, match=r"approve: no tool or delegate is named 'wirte'; .*Did you mean 'write'\?"):
        Desk(WRITE, approve=["wirte"])


@pytest.mark.parametrize("value", [5, [""], [5], [None]])
async def test_an_invalid_rule_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="approve"):
        LoopConfig(approve=value)


async def test_a_pattern_selects_delegations() -> None:
    bank = create_graph_agent(ScriptedChatModel(["Paid."]))
    desk = Desk(
        asks(("1", "delegate_to_bank", {"task": "Pay."})),
        "Done.",
        approve=["delegate_to_b*"],
        delegates=[GraphDelegate("bank", "Pays.", bank)],
    )

    waiting = await desk.session.run("go")
    result = await desk.session.resume(approve())

    assert (asked(waiting.interrupts), result.results) == ([[("delegate_to_bank", {"task": "Pay."})]], {"1": "Paid."})


@pytest.mark.parametrize("given", [{"approve": ["erase"]}, AgentContext(approve=("erase",))])
async def test_the_context_of_a_run_adds_patterns(given: Any) -> None:
    names = [name for name, _, _ in await questions(Desk(THREE, "Done."), context=given)]

    assert names == ["write", "erase"]


@pytest.mark.parametrize("given", [[], ["nothing_*"]])
async def test_the_context_of_a_run_cannot_remove_approvals(given: list[str]) -> None:
    assert [name for name, _, _ in await questions(Desk(THREE, "Done."), context={"approve": given})] == ["write"]


async def test_a_change_of_the_configuration_cannot_remove_approvals() -> None:
    desk = Desk(THREE, "Done.")
    await desk.session.configure(approve=["read"])

    assert [name for name, _, _ in await questions(desk)] == ["write", "read"]


async def test_patterns_of_the_context_count_when_the_input_is_resumed_without_it() -> None:
    desk = Desk(WRITE, asks(("2", "erase", {"path": "b"})), "Done.")
    await desk.session.run("go", context={"approve": ["erase"]})

    waiting = await desk.session.resume(approve())
    await desk.session.resume(approve())
    next_input = Desk(asks(("3", "erase", {"path": "b"})), "Done.", checkpointer=desk.graph.checkpointer)
    result = await next_input.session.run("again")

    assert (asked(waiting.interrupts), result.interrupts) == ([[("erase", {"path": "b"})]], [])


async def test_a_context_with_patterns_is_refused_by_an_agent_without_approvals() -> None:
    desk = Desk(WRITE, approve=None)

    with pytest.raises(ConfigError, match=r"approve=\['write'\]: this agent was built without approvals.*approve=\[\]"):
        await desk.session.run("go", context={"approve": ["write"]})


async def test_agents_without_approvals_have_no_node_for_them() -> None:
    rules: list[tuple[Any, Any]] = [(echo, None), (echo, []), (marked(echo, approve=True), None)]
    nodes = [
        [*create_graph_agent(ScriptedChatModel([]), tools=[given], config=LoopConfig(approve=approve)).nodes]
        for given, approve in rules
    ]

    plain = ["__start__", "plan", "tools", "delegate", "finalize"]
    assert nodes == [plain, [*plain, "approve"], [*plain, "approve"]]


async def test_the_drawn_graph_has_the_edges_of_the_node() -> None:
    edges = {(edge.source, edge.target) for edge in Desk(WRITE).graph.get_graph().edges}

    assert {("plan", "approve"), ("approve", "plan")} <= edges


async def test_an_agent_without_a_checkpointer_cannot_wait_for_approval() -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        raise AssertionError

    graph = create_graph_agent(
        ScriptedChatModel([asks(("1", "pay", {"amount": 5}))]), tools=[pay], config=LoopConfig(approve=["pay"])
    )

    with pytest.raises(ConfigError, match="The call 'pay' needs a person's approval, and there is no checkpointer"):
        await graph.ainvoke({"messages": [("user", "go")]})


async def test_calls_that_cannot_run_are_not_asked_about() -> None:
    desk = Desk(asks(("1", "wrote", {"path": "a"})), "Done.", approve=["w*"])

    result = await desk.session.run("go")

    assert (result.interrupts, list(result.results)) == ([], ["1"])


@pytest.mark.parametrize("arguments", [{}, {"path": "a", "lines": "many"}, {"path": None}])
async def test_a_call_whose_arguments_do_not_fit_goes_back_to_the_model_and_not_to_a_person(arguments: Any) -> None:
    calls = asks(("1", "write", arguments), ("2", "erase", {"path": "b"}))
    desk = Desk(calls, asks(("3", "write", {"path": "a"})), "Done.", approve=["write", "erase"])

    first = await desk.session.run("go")
    second = await desk.session.resume("approve")

    assert (asked(first.interrupts), asked(second.interrupts), desk.ran) == (
        [[("erase", {"path": "b"})]],
        [[("write", {"path": "a"})]],
        ["erased b"],
    )
    assert (await desk.answers())["1"].startswith("The arguments do not fit the tool 'write': ")


async def test_a_call_that_does_not_fit_a_json_schema_goes_back_to_the_model_and_not_to_a_person() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    bill = StructuredTool.from_function(lambda **given: "paid", name="bill", description="Pay.", args_schema=schema)
    desk = Desk(asks(("1", "bill", {"n": "x"})), "Done.", approve=["bill"], tools=[bill])

    result = await desk.session.run("go")

    assert (result.interrupts, await desk.answers()) == (
        [],
        {"1": "The arguments do not fit the tool 'bill': bill.n: 'x' is not of type 'integer'."},
    )


def test_a_function_that_takes_no_call_is_refused() -> None:
    def no_call() -> bool:
        return True

    with pytest.raises(ConfigError, match="an approval function takes one argument, the call"):
        LoopConfig(approve=[no_call])  # type: ignore[list-item]  # the error is under test
