"""Usage of delegates is counted for the caller, also after an error, a cut-off or an interrupt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, TaskState
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from graph_agent import (
    A2ADelegate,
    GraphDelegate,
    LoopConfig,
    RunResult,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.session.results import DelegateProgress, Done, Usage
from tests.support.a2a_client import EXTENSION
from tests.support.a2a_servers import PlainAgent, serving_ours, serving_plain
from tests.support.agents import echo
from tests.support.budgets import Clock, call_with_usage, reply_with_usage
from tests.support.gates import Gate, GatedModel, LateGate, gated_tool
from tests.support.sessions import new_session

ASKS_R = reply_with_usage(("d", "delegate_to_r", {"task": "t"}), 90, 10)
DONE = [reply_with_usage("No more actions.", 90, 10), reply_with_usage("Done.", 90, 10)]


def spent(result: RunResult) -> tuple[int, int]:
    """Tokens and model calls of an input."""
    return result.usage["total_tokens"], result.usage["model_calls"]


def delegating(graph: Any, **options: Any) -> Session:
    return new_session(ScriptedChatModel([ASKS_R, *DONE]), delegates=[GraphDelegate("r", "R.", graph)], **options)


def failing(model: ScriptedChatModel) -> Any:
    """A graph that asks a model, and then raises."""

    async def fail(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke(state["messages"])
        raise RuntimeError("broken")

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("fail", fail)
    graph.add_edge(START, "fail")
    return graph.compile()


def asking_tool(times: int = 1) -> BaseTool:
    @tool
    def ask() -> str:
        """Ask a person."""
        return ", ".join(str(interrupt("May I?")) for _ in range(times))

    return ask


async def test_usage_of_a_delegate_that_raises_is_counted() -> None:
    talk = delegating(failing(ScriptedChatModel([call_with_usage(1, 200)])))

    result = await talk.run("go")

    assert (result.results, spent(result)) == (
        {"d": {"error": "The delegate 'r' failed: RuntimeError: broken"}},
        (3 * 100 + 200, 4),
    )


async def test_usage_reported_by_a_custom_delegate_before_it_raises_is_counted() -> None:
    usage: Usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7, "model_calls": 1}

    class Counting:
        name, description = "r", "R."

        async def run(self, delegation: Delegation) -> DelegationResult:
            delegation.record_usage(usage)
            raise RuntimeError("broken")

    result = await new_session(ScriptedChatModel([ASKS_R, *DONE]), delegates=[Counting()]).run("go")

    assert spent(result) == (307, 4)


def thinking(model: ScriptedChatModel) -> Any:
    """A plain graph that asks its model twice, and does not stop by itself."""

    async def think(state: MessagesState) -> dict[str, Any]:
        await model.ainvoke(state["messages"])
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    graph.add_edge("think", END)
    return graph.compile()


@pytest.mark.parametrize("kind", ["plain graph", "our agent"])
async def test_usage_of_an_aborted_delegate_is_counted(kind: str) -> None:
    gate = Gate()
    inner = GatedModel(responses=[call_with_usage(1, 200), "never"], before={2: gate})
    talk = delegating(thinking(inner) if kind == "plain graph" else create_graph_agent(inner, tools=[echo]))
    running = asyncio.create_task(talk.run("go " * 400))
    await gate.reached()

    await talk.abort()

    # The plan, the delegate's first call, and the one that was under way, of which the request is known.
    tokens, calls = spent(result := await running)
    assert (result.status, tokens > 300 + 300, calls) == ("ABORTED", True, 3)


async def test_usage_of_a_delegate_cut_off_by_the_deadline_is_counted(clock: Clock) -> None:
    gate = LateGate(lambda: clock.forward(5))
    inner = GatedModel(responses=[call_with_usage(1, 200), "never"], before={2: gate})
    outer = clock.after(ScriptedChatModel([ASKS_R, reply_with_usage("Best I can say.", 90, 10)]), 1, 897)
    talk = new_session(outer, delegates=[GraphDelegate("r", "R.", thinking(inner))])

    result = await talk.run("go " * 400, context={"deadline_s": 1000})

    tokens, calls = spent(result)
    assert (gate.cancelled, result.stop_reason, tokens > 400 + 300, calls) == (True, "deadline", True, 4)


@pytest.mark.parametrize("checkpointer", [None, True], ids=["with its caller", "its own history"])
@pytest.mark.parametrize("times", [1, 2])
async def test_usage_of_a_delegate_before_its_interrupt_is_counted(checkpointer: Any, times: int) -> None:
    script = [
        reply_with_usage(("1", "ask", {}), 190, 10),
        reply_with_usage("No more actions.", 140, 10),
        reply_with_usage("Said.", 140, 10),
    ]
    inner = create_graph_agent(ScriptedChatModel(script), tools=[asking_tool(times)], checkpointer=checkpointer)
    talk = delegating(inner)

    result = await talk.run("go")
    for _ in range(times):
        result = await talk.resume("yes")

    assert (result.results, spent(result)) == ({"d": "Said."}, (300 + 500, 6))


async def test_a_second_delegation_counts_for_itself() -> None:
    script = [reply_with_usage("One.", 190, 10), reply_with_usage("Two.", 140, 10)]
    inner = create_graph_agent(ScriptedChatModel(script), checkpointer=True)
    twice = [ASKS_R, reply_with_usage(("e", "delegate_to_r", {"task": "t"}), 90, 10), *DONE]
    talk = new_session(ScriptedChatModel(twice), delegates=[GraphDelegate("r", "R.", inner)])

    result = await talk.run("go")

    assert (result.results, spent(result)) == ({"d": "One.", "e": "Two."}, (400 + 350, 6))


async def test_usage_of_a_nested_delegate_before_its_interrupt_is_counted() -> None:
    deepest = create_graph_agent(
        ScriptedChatModel(
            [
                reply_with_usage(("1", "ask", {}), 190, 10),
                reply_with_usage("No more actions.", 140, 10),
                reply_with_usage("Said.", 140, 10),
            ]
        ),
        tools=[asking_tool()],
    )
    middle = create_graph_agent(
        ScriptedChatModel([ASKS_R, *DONE]),
        delegates=[GraphDelegate("r", "R.", deepest)],
        config=LoopConfig(max_delegation_depth=2),
    )
    talk = delegating(middle, config=LoopConfig(max_delegation_depth=2))
    await talk.run("go")

    result = await talk.resume("yes")

    assert (result.results, spent(result)) == ({"d": "Done."}, (300 + 300 + 500, 9))


async def test_usage_of_a_plain_graph_before_its_interrupt_is_counted() -> None:
    model = ScriptedChatModel([reply_with_usage("First.", 190, 10), reply_with_usage("Second.", 140, 10)])

    async def ask_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def ask(state: MessagesState) -> dict[str, Any]:
        interrupt("May I?")
        return {}

    graph: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    graph.add_node("first", ask_model)
    graph.add_node("ask", ask)
    graph.add_node("second", ask_model)
    graph.add_edge(START, "first")
    graph.add_edge("first", "ask")
    graph.add_edge("ask", "second")
    graph.add_edge("second", END)
    talk = delegating(graph.compile())
    await talk.run("go")

    result = await talk.resume("yes")

    assert (result.results, spent(result)) == ({"d": "Second."}, (300 + 350, 5))


def test_usage_before_an_interrupt_is_counted_by_blocking_entry_points(tmp_path: Any) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.types import Command

    script = [
        reply_with_usage(("1", "ask", {}), 190, 10),
        reply_with_usage("No more actions.", 140, 10),
        reply_with_usage("Said.", 140, 10),
    ]
    inner = create_graph_agent(ScriptedChatModel(script), tools=[asking_tool()])
    config: Any = {"configurable": {"thread_id": "s1"}}
    with SqliteSaver.from_conn_string(str(tmp_path / "s.db")) as saver:
        graph = create_graph_agent(
            ScriptedChatModel([ASKS_R, *DONE]), delegates=[GraphDelegate("r", "R.", inner)], checkpointer=saver
        )
        graph.invoke({"messages": [("user", "go")]}, config)
        graph.invoke(Command(resume="yes"), config)

        usage = graph.get_state(config).values["usage"]

    assert (usage["total_tokens"], usage["model_calls"]) == (800, 6)


async def test_usage_of_a_killed_run_is_counted_when_it_resumes() -> None:
    gate = Gate()
    script = [
        reply_with_usage(("1", "work", {}), 190, 10),
        reply_with_usage("No more actions.", 140, 10),
        reply_with_usage("Said.", 140, 10),
    ]
    inner = create_graph_agent(ScriptedChatModel(script), tools=[gated_tool(gate, effect="read")])
    talk = delegating(inner)
    running = asyncio.create_task(talk.run("go"))
    await gate.reached()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    gate.open()

    result = await talk.resume()

    assert (result.results, spent(result)) == ({"d": "Said."}, (800, 6))


async def test_usage_of_a_delegate_is_charged_to_the_budget() -> None:
    inner = failing(ScriptedChatModel([call_with_usage(1, 400)]))
    outer = ScriptedChatModel([ASKS_R, reply_with_usage("Best I can say.", 90, 10)])
    talk = new_session(outer, delegates=[GraphDelegate("r", "R.", inner)])

    result = await talk.run("go", context={"max_tokens_total": 650})

    assert (result.stop_reason, result.answer) == (
        "token_limit",
        "Reached the token budget (650 tokens)\n\nBest I can say.",
    )


# Agents elsewhere.


def usage_of(tokens: int, calls: int) -> dict[str, Any]:
    return {EXTENSION: {"usage": {"inputTokens": tokens, "totalTokens": tokens, "modelCalls": calls}}}


def remote(url: str, **options: Any) -> Session:
    return new_session(ScriptedChatModel([ASKS_R, *DONE]), delegates=[A2ADelegate("r", url, **options)])


async def test_usage_of_a_remote_agent_around_its_interrupt_is_counted() -> None:
    script = [reply_with_usage(("1", "ask", {}), 190, 10), reply_with_usage("Said.", 140, 10)]
    inner = create_graph_agent(ScriptedChatModel(script), tools=[asking_tool()], checkpointer=InMemorySaver())
    with serving_ours(inner) as url:
        talk = remote(url)
        asked = await talk.run("go")
        result = await talk.resume("yes")

    assert (spent(asked), result.results, spent(result)) == ((300, 2), {"d": "Said."}, (650, 5))


async def test_usage_reported_by_a_cancelled_remote_agent_is_counted() -> None:
    class Canceling(PlainAgent):
        async def cancel(self, context: RequestContext, event_queue: Any) -> None:
            updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
            await updater.update_status(TaskState.TASK_STATE_CANCELED, metadata=usage_of(50, 2))

    async def work(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await updater.start_work(updater.new_agent_message([Part(text="looking")]))
        await asyncio.Event().wait()

    with serving_plain(Canceling(work)) as url:
        talk, ended = remote(url), list[RunResult]()
        async for part in talk.stream("go"):
            if isinstance(part, DelegateProgress):
                await talk.abort()
            if isinstance(part, Done):
                ended.append(part.result)

    [result] = ended
    assert (result.status, spent(result)) == ("ABORTED", (150, 3))


async def test_usage_reported_by_a_silent_remote_agent_is_counted() -> None:
    async def work(text: str, updater: TaskUpdater, context: RequestContext) -> None:
        await updater.update_status(TaskState.TASK_STATE_WORKING, metadata=usage_of(70, 1))
        await asyncio.Event().wait()

    with serving_plain(PlainAgent(work)) as url:
        result = await remote(url, timeout_s=4.0).run("go")

    assert ("was silent" in result.results["d"]["error"], spent(result)) == (True, (370, 4))
