"""Delegations in the background: they start, report, ask, count, and survive their process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import MessagesState, StateGraph

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.errors import ConfigError
from tests.support.agents import asks, dialogue, echo, kinds
from tests.support.gates import Gate, gated_tool, until
from tests.support.sessions import stored_messages
from tests.support.warm_process import warm_python

STARTED = (
    "Started in the background as task a. Its result follows as a notice; go on with other work, or call "
    "wait_for_background."
)
ENDED = "[Notice of the framework: the background task a of the agent 'r' has ended: success.]\nFound."


def delegating(id_: str = "a", **arguments: Any) -> str:
    return asks((id_, "delegate_to_r", {"task": "Look.", "background": True, **arguments}))


def waiting(seconds: float = 60) -> str:
    return asks(("w", "wait_for_background", {"seconds": seconds}))


def agent_with(child: Any, *replies: str, **options: Any) -> Any:
    options.setdefault("checkpointer", InMemorySaver())
    return create_graph_agent(
        ScriptedChatModel(list(replies)),
        delegates=[GraphDelegate("r", "Researches.", child, background=True)],
        **options,
    )


def gated_child(gate: Gate, **options: Any) -> Any:
    return create_graph_agent(
        ScriptedChatModel([asks(("k", "work", {})), "Found."]), tools=[gated_tool(gate, effect="read")], **options
    )


async def child_of(talk: Session, graph: Any, id_: str = "a") -> Session:
    """The session that runs a background task of a session."""
    events: list[Any] = await talk.events()
    [background] = [event["background"] for event in events if event.get("id") == id_ and "background" in event]
    return Session(graph, background)


async def test_a_background_delegation_returns_at_once_and_its_result_is_a_notice_of_the_next_input() -> None:
    gate, saver = Gate(), InMemorySaver()
    child = gated_child(gate, checkpointer=saver)
    talk = Session(agent_with(child, delegating(), "Asked.", "It is found.", checkpointer=saver), "s1")

    first = await talk.run("Ask.")
    await gate.reached()
    gate.open()
    await until(lambda: not background_runs())
    second = await talk.run("And?")

    events = await talk.events()
    assert {
        "answers": (first.answer, second.answer),
        "results": first.results,
        "calls of the models": (first.usage["model_calls"], second.usage["model_calls"]),
        "messages": dialogue(await stored_messages(talk))[-3:],
        "event": [(e["status"], e["content"]) for e in events if e["type"] == "background_result"],
    } == {
        "answers": ("Asked.", "It is found."),
        "results": {"a": STARTED},
        "calls of the models": (2, 3),
        "messages": [("human", "And?"), ("human", ENDED), ("ai", "It is found.")],
        "event": [("success", "Found.")],
    }


async def test_the_model_waits_for_a_background_delegation() -> None:
    gate = Gate()
    talk = Session(agent_with(gated_child(gate), delegating(), waiting(), "It is found."), "s1")

    running = asyncio.create_task(talk.run("Ask."))
    await gate.reached()
    gate.open()
    result = await running

    assert (result.answer, result.results["w"]) == ("It is found.", "1 of 1 background tasks stopped within 60 s.")


async def test_a_wait_ends_with_its_time() -> None:
    gate = Gate()
    talk = Session(agent_with(gated_child(gate), delegating(), waiting(0), "Not yet.", "Now."), "s1")

    result = await talk.run("Ask.")
    gate.open()

    assert (result.answer, result.results["w"]) == ("Not yet.", "0 of 1 background tasks stopped within 0 s.")


async def test_a_result_arrives_before_the_next_plan_of_a_running_input() -> None:
    gate, other = Gate(), Gate()
    agent = agent_with(
        gated_child(gate), delegating(), asks(("b", "other", {})), "Both.", tools=[gated_tool(other, "other")]
    )
    talk = Session(agent, "s1")

    running = asyncio.create_task(talk.run("Ask."))
    await other.reached()
    gate.open()
    await until(lambda: not background_runs())
    other.open()
    await running

    assert kinds(await talk.events())[-5:] == ["tool_result", "background_result", "plan", "agent_response", "status"]


def background_runs() -> list[asyncio.Task[Any]]:
    """The tasks of this event loop that run a delegation in the background."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("background ")]


async def test_a_question_is_reported_once_and_its_answer_continues_the_task() -> None:
    saver = InMemorySaver()
    child = create_graph_agent(
        ScriptedChatModel([asks(("k", "echo", {"text": "x"})), "Found."]),
        tools=[echo],
        config=LoopConfig(approve=["echo"]),
        checkpointer=saver,
    )
    talk = Session(agent_with(child, delegating(), "Asked.", "It asks.", "Still.", "Done.", checkpointer=saver), "s1")

    await talk.run("Ask.")
    await until(lambda: not background_runs())
    answers = [(await talk.run("And?")).answer, (await talk.run("Now?")).answer]
    waiting_child = await child_of(talk, child)
    await waiting_child.resume(approve())
    answers.append((await talk.run("Done?")).answer)

    notices = [text for type_, text in dialogue(await stored_messages(talk)) if text.startswith("[Notice")]
    assert (answers, len(notices), f"can answer in {waiting_child.id!r}" in notices[0], notices[1]) == (
        ["It asks.", "Still.", "Done."],
        2,
        True,
        ENDED,
    )


async def test_a_background_delegation_inherits_the_budget() -> None:
    script = [asks((f"k{number}", "echo", {"text": f"{number}"})) for number in range(50)]
    child = create_graph_agent(
        ScriptedChatModel(script), tools=[echo], config=LoopConfig(max_steps=50), checkpointer=InMemorySaver()
    )
    agent = agent_with(child, delegating(), "Asked.", "Done.", config=LoopConfig(max_tokens_total=6000))
    talk = Session(agent, "s1")

    await talk.run("Ask.")
    # Not by the tool that waits, whose seconds may end before the task on a loaded machine.
    await until(lambda: not background_runs())
    result = await talk.run("And?")

    task = await child_of(talk, child)
    limits = [(event["reason"], event["limit"] < 6000) for event in await task.events() if event["type"] == "limit"]
    assert (limits, result.usage["model_calls"] > 4) == ([("token_limit", True)], True)


@pytest.mark.parametrize("case", ["no checkpointer", "not asked for", "within a delegate"])
async def test_a_delegation_runs_in_the_foreground(case: str) -> None:
    child = create_graph_agent(ScriptedChatModel(["Found."]), tools=[echo])
    if case == "no checkpointer":
        agent = agent_with(child, delegating(), "Done.", checkpointer=None)
        state = await agent.ainvoke({"messages": [("user", "Ask.")]})
        shown = [message.text for message in state["messages"] if message.type == "tool"]
    elif case == "not asked for":
        talk = Session(agent_with(child, delegating(background=False), "Done."), "s1")
        shown = [(await talk.run("Ask.")).results["a"]]
    else:
        inner = agent_with(child, delegating(), "Found.", checkpointer=None)
        outer = agent_with(inner, delegating(background=False), "Done.", config=LoopConfig(max_delegation_depth=2))
        shown = [(await Session(outer, "s1").run("Ask.")).results["a"]]

    assert shown == ["Found."]


class FullSaver(InMemorySaver):
    """Stores nothing."""

    async def aput(self, *args: Any, **options: Any) -> Any:
        raise OSError("The disk is full.")


async def test_a_task_that_cannot_begin_is_given_up() -> None:
    child = create_graph_agent(ScriptedChatModel(["Found."], cycle=True), checkpointer=FullSaver())
    talk = Session(agent_with(child, delegating(), *["Asked."] * 4), "s1")

    reported: list[list[Any]] = []
    for text in ("Ask.", "And?", "And?", "And?"):
        await talk.run(text)
        await asyncio.gather(*[each for each in asyncio.all_tasks() if each.get_name().startswith("background")])
        reported.append([each["content"] for each in await talk.events() if each["type"] == "background_result"])

    assert reported == [[], [], [], ["The task could not be run: it raised an exception 3 times."]]


async def test_a_killed_process_leaves_a_task_that_the_next_input_continues(tmp_path: Path) -> None:
    delegate = asks(("a", "delegate_to_cashier", {"task": "Pay.", "background": True}))
    killed = await _start(tmp_path, "Pay.", delegate, "Asked.")
    assert killed.stdout is not None
    answer = await asyncio.wait_for(killed.stdout.readline(), 60)
    async with asyncio.timeout(60):
        while not (tmp_path / "looking").exists():
            await asyncio.sleep(0.01)
    killed.kill()
    await asyncio.wait_for(killed.communicate(), 60)
    (tmp_path / "go").touch()

    following = await _start(tmp_path, "And?", waiting(), "It is paid.")
    printed, _ = await asyncio.wait_for(following.communicate(), 60)

    assert (answer, printed, (tmp_path / "paid").read_text()) == (b"Asked.\n", b"It is paid.\n", "paid\n")


async def _start(folder: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        warm_python(), "-m", "tests.support.background_run", str(folder), *arguments, stdout=asyncio.subprocess.PIPE
    )


def test_a_background_delegate_needs_an_agent() -> None:
    graph = StateGraph(MessagesState).add_node("n", lambda state: {}).set_entry_point("n").compile()

    with pytest.raises(ConfigError, match=r"has background=True, and its graph .* make it with create_graph_agent\(\)"):
        GraphDelegate("r", "Researches.", graph, background=True)
