"""Edits of planned calls at a breakpoint: the edited messages decide which calls run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from graph_agent import Session
from graph_agent.base.delegate_tasks import RemoteTask
from graph_agent.calls import Call
from graph_agent.core.state.run import AgentHandle, Run, with_handle
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.session.routing import after_plan
from tests.support.agents import asks, dialogue, says, thread
from tests.support.edit_agent import (
    BREAKPOINTS,
    DONE,
    MISFIT,
    TWO,
    UNKNOWN_TOOL,
    EditedAgent,
    denied,
    ended,
    with_calls,
)
from tests.support.result_texts import NOT_STARTED, REMOVED


class Edit:
    """A change of the two calls of `TWO`: the edit, its outcome, and its events."""

    def __init__(
        self,
        make: Callable[[AIMessage], list[BaseMessage]],
        ran: list[str],
        results: dict[str, str],
        *more_events: tuple[str, str, Any],
    ) -> None:
        self.make = make
        self.expected = ended(ran, results)
        self.events = [("tool_call", "1", {"text": "one"}), ("tool_call", "2", {"text": "two"}), *more_events]


ONE, OTHER, SECOND = ("1", "write", {"text": "one"}), ("1", "write", {"text": "other"}), ("2", "write", {"text": "two"})
THIRD = ("3", "write", {"text": "three"})
EDITS = {
    "an argument": Edit(
        lambda plan: [with_calls(plan, OTHER, SECOND)],
        ["other", "two"],
        {"1": "wrote other", "2": "wrote two"},
        ("tool_call", "1", {"text": "other"}),
        ("tool_result", "1", "wrote other"),
        ("tool_result", "2", "wrote two"),
    ),
    "removed": Edit(
        lambda plan: [with_calls(plan, SECOND)],
        ["two"],
        {"2": "wrote two"},
        ("tool_result", "2", "wrote two"),
        ("tool_result", "1", REMOVED),
    ),
    "added": Edit(
        lambda plan: [with_calls(plan, ONE, THIRD, SECOND)],
        ["one", "three", "two"],
        {"1": "wrote one", "3": "wrote three", "2": "wrote two"},
        ("tool_result", "1", "wrote one"),
        ("tool_call", "3", {"text": "three"}),
        ("tool_result", "3", "wrote three"),
        ("tool_result", "2", "wrote two"),
    ),
    "another tool": Edit(
        lambda plan: [with_calls(plan, ("1", "erase", {"text": "one"}), SECOND)],
        ["-one", "two"],
        {"1": "erased one", "2": "wrote two"},
        ("tool_call", "1", {"text": "one"}),
        ("tool_result", "1", "erased one"),
        ("tool_result", "2", "wrote two"),
    ),
    "a delegation": Edit(
        lambda plan: [with_calls(plan, ("1", "delegate_to_d", {"task": "help"}), SECOND)],
        ["two"],
        {"1": "Delegated.", "2": "wrote two"},
        ("delegation_request", "1", "help"),
        ("delegation_response", "1", "Delegated."),
        ("tool_result", "2", "wrote two"),
    ),
    "denied": Edit(
        lambda _: [denied("1")],
        ["two"],
        {"1": "denied", "2": "wrote two"},
        ("tool_result", "1", "denied"),
        ("tool_result", "2", "wrote two"),
    ),
    "all denied": Edit(
        lambda _: [denied("1"), denied("2", status="error")],
        [],
        {"1": "denied", "2": "denied"},
        ("tool_result", "1", "denied"),
        ("tool_result", "2", "denied"),
    ),
    "an unknown tool": Edit(
        lambda plan: [with_calls(plan, ("1", "wirte", {}), SECOND)],
        ["two"],
        {"1": UNKNOWN_TOOL, "2": "wrote two"},
        ("tool_call", "1", {}),
        ("tool_result", "1", UNKNOWN_TOOL),
        ("tool_result", "2", "wrote two"),
    ),
    "wrong arguments": Edit(
        lambda plan: [with_calls(plan, ("1", "write", {"txt": "one"}), SECOND)],
        ["two"],
        {"1": MISFIT, "2": "wrote two"},
        ("tool_call", "1", {"txt": "one"}),
        ("tool_result", "1", MISFIT),
        ("tool_result", "2", "wrote two"),
    ),
    "the whole plan removed": Edit(
        lambda plan: [RemoveMessage(id=plan.id or "")],
        [],
        {},
        ("tool_result", "1", REMOVED),
        ("tool_result", "2", REMOVED),
    ),
    "nothing": Edit(
        lambda plan: [plan],
        ["one", "two"],
        {"1": "wrote one", "2": "wrote two"},
        ("tool_result", "1", "wrote one"),
        ("tool_result", "2", "wrote two"),
    ),
}
KINDS = ("tool_call", "tool_result", "delegation_request", "delegation_response")


@pytest.mark.parametrize("as_node", [None, "plan", "tools", "delegate", "__start__"])
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_the_calls_that_run_are_those_of_the_message_as_it_is(edit: Edit, as_node: str | None) -> None:
    agent = EditedAgent([TWO, *DONE])
    await agent.edit(*edit.make(await agent.stand()), as_node=as_node)

    found = await agent.end()

    recorded, expected = await agent.events_of(*KINDS), edit.events
    if as_node not in (None, "plan"):
        # `plan` then records the change before any call runs.
        recorded, expected = sorted(recorded, key=repr), sorted(expected, key=repr)
    assert (found, recorded) == (edit.expected, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "read"},
        {"effect_ledger": True},
        {"tool_calling": "text"},
        {"finalize": "auto"},
        {"max_parallel_calls": 1},
    ],
    ids=["reads", "ledger", "text", "auto", "one at a time"],
)
@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_edits_hold_for_every_kind_of_agent(edit: Edit, options: dict[str, Any]) -> None:
    agent = EditedAgent([TWO, *DONE], **options)
    await agent.edit(*edit.make(await agent.stand(**BREAKPOINTS[1])))

    assert (await agent.end(), await agent.events_of(*KINDS)) == (edit.expected, edit.events)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
async def test_a_command_that_updates_as_it_resumes_is_an_edit(edit: Edit) -> None:
    agent = EditedAgent([TWO, *DONE])
    messages = edit.make(await agent.stand())

    await agent.graph.ainvoke(Command(update={"messages": messages}), thread())

    recorded = sorted(await agent.events_of(*KINDS), key=repr)
    assert (await agent.found(), recorded) == (edit.expected, sorted(edit.events, key=repr))


@pytest.mark.parametrize("edit", [EDITS["an argument"], EDITS["denied"], EDITS["added"]])
async def test_an_edit_at_a_breakpoint_of_the_compiled_graph_is_resumed_once(edit: Edit) -> None:
    agent = EditedAgent([TWO, *DONE])
    agent.graph = agent.graph.builder.compile(checkpointer=InMemorySaver(), interrupt_before=["tools", "delegate"])
    agent.talk = Session(agent.graph, "s1")
    await agent.edit(*edit.make(await agent.stand()))

    assert await agent.end() == edit.expected


@pytest.mark.parametrize("edit", [EDITS["an argument"], EDITS["denied"], EDITS["all denied"], EDITS["added"]])
def test_blocking_edits_are_honoured(edit: Edit) -> None:
    agent = EditedAgent([TWO, *DONE])
    agent.graph.invoke(says("go"), thread(), interrupt_before=["tools"])
    planned = agent.graph.get_state(thread()).values["messages"][-1]
    agent.graph.update_state(thread(), {"messages": edit.make(planned)})

    agent.graph.invoke(None, thread())

    assert asyncio.run(agent.found()) == edit.expected


@pytest.mark.parametrize("edit", [EDITS["an argument"], EDITS["denied"], EDITS["nothing"]])
async def test_calls_edited_inside_a_parent_graph_run_as_edited(edit: Edit) -> None:
    agent = EditedAgent([TWO, *DONE])
    child = agent.graph.builder.compile(name="child", interrupt_before=["tools", "delegate"])
    parent: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    parent.add_node("child", child)
    parent.add_edge(START, "child")
    parent.add_edge("child", END)
    graph: Any = parent.compile(checkpointer=InMemorySaver())
    await graph.ainvoke(says("go"), thread())
    inner = (await graph.aget_state(thread(), subgraphs=True)).tasks[0].state
    await graph.aupdate_state(inner.config, {"messages": edit.make(inner.values["messages"][-1])})

    result = await graph.ainvoke(None, thread())

    results = {message.tool_call_id: message.text for message in result["messages"] if message.type == "tool"}
    assert (sorted(agent.ran), results) == (edit.expected["ran"], edit.expected["results"])


async def test_a_breakpoint_inside_a_parent_graph_holds_calls_back_and_no_more() -> None:
    agent = EditedAgent([TWO, *DONE])
    child = agent.graph.builder.compile(name="child", interrupt_before=["tools"])
    parent: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    parent.add_node("child", child)
    parent.add_edge(START, "child")
    parent.add_edge("child", END)
    graph: Any = parent.compile(checkpointer=InMemorySaver())
    await graph.ainvoke(says("go"), thread())
    before = list(agent.ran)

    result = await graph.ainvoke(None, thread())

    assert (before, sorted(agent.ran), dialogue(result["messages"])[2:]) == (
        [],
        ["one", "two"],
        [("tool", "wrote one"), ("tool", "wrote two"), ("ai", "Done.")],
    )


@pytest.mark.parametrize("edit", [EDITS["an argument"], EDITS["denied"], EDITS["removed"], EDITS["nothing"]])
async def test_an_edit_of_an_old_plan_runs_that_plan_as_edited(edit: Edit) -> None:
    agent = EditedAgent([TWO, *DONE, *DONE])
    await agent.graph.ainvoke(says("go"), thread())
    planned = await anext(s async for s in agent.graph.aget_state_history(thread()) if "tools" in s.next)
    first, agent.ran[:] = sorted(agent.ran), []
    edited = await agent.graph.aupdate_state(planned.config, {"messages": edit.make(planned.values["messages"][-1])})

    await agent.graph.ainvoke(None, edited)

    assert (first, await agent.found()) == (["one", "two"], edit.expected)


async def test_a_later_step_with_the_same_ids_is_edited_too() -> None:
    agent = EditedAgent([TWO, TWO, *DONE])
    await agent.stand()
    await agent.graph.ainvoke(None, thread(), interrupt_before=["tools"])
    other, second = (("1#2", *OTHER[1:]), ("2#2", *SECOND[1:]))
    await agent.edit(with_calls(await agent.plan(), other, second), denied("2#2"))

    found = await agent.end()

    result = await agent.talk.driver.result()
    assert (found["ran"], result.results, found["faults"]) == (
        ["one", "other", "two"],
        {"1": "wrote one", "2": "wrote two", "1#2": "wrote other", "2#2": "denied"},
        [],
    )


async def test_a_plan_can_be_replaced_by_an_answer() -> None:
    agent = EditedAgent([TWO])
    planned = await agent.stand()
    await agent.edit(AIMessage("I will not.", id=planned.id))

    found = await agent.end()

    result = await agent.talk.driver.result()
    assert (found, result.answer, dialogue((await agent.graph.aget_state(thread())).values["messages"])) == (
        ended([], {}),
        "I will not.",
        [("human", "go"), ("ai", "I will not.")],
    )


@pytest.mark.parametrize("as_node", [None, "plan", "tools"])
@pytest.mark.parametrize("finalize", ["auto", "compose", "direct"])
@pytest.mark.parametrize("text", ["", " ", "<think>No.</think>"])
async def test_a_plan_without_calls_and_text_is_planned_again(text: str, finalize: str, as_node: str | None) -> None:
    agent = EditedAgent([TWO, "Nothing was done.", "Nothing was done."], finalize=finalize)
    planned = await agent.stand()
    await agent.edit(AIMessage(text, id=planned.id), as_node=as_node)

    found = await agent.end()

    result = await agent.talk.driver.result()
    removed = [event["content"] for event in await agent.talk.events() if event["type"] == "tool_result"]
    asked = [message.type for message in agent.model.requests[1].messages if message.type != "system"]
    assert (found, result.answer, removed, asked) == (ended([], {}), "Nothing was done.", [REMOVED] * 2, ["human"])
    assert dialogue((await agent.graph.aget_state(thread())).values["messages"]) == [
        ("human", "go"),
        ("ai", "Nothing was done."),
    ]


async def test_a_user_message_that_replaces_a_plan_is_a_new_input() -> None:
    agent = EditedAgent([TWO, asks(THIRD), *DONE])
    planned = await agent.stand()
    await agent.edit(RemoveMessage(id=planned.id or ""), HumanMessage("do the third"))

    found = await agent.end()

    events = [event["content"] for event in await agent.talk.events() if event["type"] == "user_message"]
    assert (found, events) == (ended(["three"], {"3": "wrote three"}), ["go", "do the third"])


async def test_messages_added_to_a_plan_follow_its_results() -> None:
    agent = EditedAgent([TWO, *DONE])
    await agent.stand()
    await agent.edit(HumanMessage("be quick"))

    found = await agent.end()

    messages = (await agent.graph.aget_state(thread())).values["messages"]
    steered = [event["content"] for event in await agent.talk.events() if event["type"] == "steering"]
    assert (found, [m.type for m in messages], steered) == (
        EDITS["nothing"].expected,
        ["human", "ai", "tool", "tool", "human", "ai"],
        ["be quick"],
    )


@pytest.mark.parametrize("as_node", [None, "tools"])
async def test_calls_without_an_id_of_their_own_are_given_one(as_node: str | None) -> None:
    agent = EditedAgent([TWO, *DONE])
    planned = await agent.stand()
    again: Any = [
        {"id": "1", "name": "write", "args": {"text": "one"}},
        {"id": "1", "name": "write", "args": {"text": "again"}},
        {"id": None, "name": "write", "args": {"text": "nameless"}},
    ]
    await agent.edit(planned.model_copy(update={"tool_calls": again}), as_node=as_node)

    found = await agent.end()

    assert (found["ran"], sorted(found["results"].values()), found["faults"]) == (
        ["again", "nameless", "one"],
        ["wrote again", "wrote nameless", "wrote one"],
        [],
    )


async def test_the_providers_own_form_of_a_removed_call_goes_too() -> None:
    reply = AIMessage(
        [{"type": "text", "text": "Hm."}, {"type": "tool_use", "id": "1", "name": "write", "input": {"text": "one"}}],
        tool_calls=[{"id": "1", "name": "write", "args": {"text": "one"}}],
        additional_kwargs={"tool_calls": [{"id": "1", "function": {"name": "write", "arguments": "{}"}}]},
    )
    agent = EditedAgent([reply, *DONE])  # type: ignore[list-item]  # a script takes messages too
    await agent.edit(with_calls(await agent.stand(), SECOND))

    found = await agent.end()

    kept = await agent.plan_of_the_history()
    assert (found, kept.content, kept.additional_kwargs) == (
        ended(["two"], {"2": "wrote two"}),
        [{"type": "text", "text": "Hm."}],
        {},
    )


async def test_new_input_at_a_breakpoint_keeps_what_a_person_answered() -> None:
    agent = EditedAgent([TWO, *DONE])
    await agent.stand()
    await agent.edit(denied("1"))

    await agent.talk.run("never mind")

    assert (await agent.found(), await agent.events_of("tool_result")) == (
        ended([], {"1": "denied", "2": NOT_STARTED}),
        [("tool_result", "1", "denied"), ("tool_result", "2", NOT_STARTED)],
    )


async def test_calls_that_a_person_adds_to_an_ended_session_are_run() -> None:
    agent = EditedAgent([TWO, *DONE, *DONE])
    await agent.graph.ainvoke(says("go"), thread())
    agent.ran.clear()
    await agent.edit(with_calls(AIMessage(""), THIRD), as_node="plan")

    found = await agent.end()

    transitions = [(e["from"], e["to"]) for e in await agent.talk.events() if e["type"] == "status"]
    assert (found["ran"], found["results"]["3"], found["faults"], transitions[2:]) == (
        ["three"],
        "wrote three",
        [],
        [("COMPLETED", "RUNNING"), ("RUNNING", "COMPLETED")],
    )


async def test_a_call_whose_tool_asks_a_person_runs_with_the_edited_arguments() -> None:
    asked: list[str] = []

    @tool
    async def ask(text: str) -> str:
        """Ask a person."""
        answer = interrupt(f"May I {text}?")
        asked.append(f"{text}: {answer}")
        return "asked"

    agent = EditedAgent([asks(("1", "ask", {"text": "one"}), SECOND), *DONE], tools=[ask])
    waiting = await agent.talk.run("go")
    await agent.edit(with_calls(await agent.plan(), ("1", "ask", {"text": "other"}), SECOND))
    again = await agent.talk.resume()

    await agent.talk.resume("yes")

    questions = [question.value for result in (waiting, again) for question in result.interrupts]
    assert (questions, asked, await agent.found()) == (
        ["May I one?", "May I other?"],
        ["other: yes"],
        ended(["two"], {"1": "asked", "2": "wrote two"}),
    )


class Asking:
    """A delegate that interrupts, and records the withdrawn tasks."""

    name = "d"
    description = "Asks."

    def __init__(self) -> None:
        self.withdrawn: list[str] = []

    async def run(self, delegation: Delegation) -> DelegationResult:
        task: RemoteTask = {"delegate": "d", "task_id": "t", "context_id": "c", "question": "Which?"}
        return DelegationResult("Which?", waiting=task)

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        return DelegationResult(f"It was {answer}.")

    async def withdraw(self, task: RemoteTask) -> None:
        self.withdrawn.append(task["task_id"])


@pytest.mark.parametrize("as_node", [None, "delegate"])
async def test_a_delegation_denied_by_a_person_withdraws_its_open_question(as_node: str | None) -> None:
    delegate = Asking()
    agent = EditedAgent([asks(("1", "delegate_to_d", {"task": "help"})), *DONE], delegate=delegate)
    await agent.talk.run("go")
    await agent.edit(denied("1"), as_node=as_node)

    found = await agent.end()

    open_tasks = (await agent.graph.aget_state(thread())).values["remote"]["open"]
    assert (found, delegate.withdrawn, open_tasks) == (ended([], {"1": "denied"}), ["t"], {})


async def test_the_edge_reads_no_messages_while_a_run_is_under_way() -> None:
    call: Call = {"id": "1", "name": "write", "arguments": {}}
    # Without a way to read the state: what `plan` has made ready is all that counts.
    config: Any = {"configurable": with_handle({}, AgentHandle(Run()))}

    routes = [await after_plan({"ready": ready}, config) for ready in ([call], [])]

    assert routes == [[Send("tools", call)], "finalize"]
