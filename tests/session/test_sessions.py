"""Sessions: runs, streams, persistence, time travel, and delegation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Interrupt, interrupt

from graph_agent import (
    GraphDelegate,
    LoopConfig,
    RunResult,
    ScriptedChatModel,
    Session,
    SessionMemory,
    SessionStatus,
    create_graph_agent,
)
from graph_agent.errors import ConfigError, InputError, SyncInLoopError
from graph_agent.persistence import open_saver
from graph_agent.session.importing import export_session
from graph_agent.session.results import CallState, Done, EventAdded, PlanText, Progress, Token
from tests.support.agents import ECHO_SCRIPT, asks, dialogue, echo, kinds, marked, says, thread


def session(script: list[str], **options: Any) -> Session:
    options.setdefault("checkpointer", InMemorySaver())
    return Session(create_graph_agent(ScriptedChatModel(script), **options), "s1")


@pytest.mark.parametrize(
    "act",
    [
        lambda graph, id_: Session(graph, id_).run("go"),
        lambda graph, id_: SessionMemory(graph).get_session_events(id_),
        lambda graph, id_: SessionMemory(graph).get_session_status(id_),
        lambda graph, id_: graph.ainvoke({"messages": [("user", "go")]}, thread(id_)),
        lambda graph, id_: graph.aupdate_state(thread(id_), {"messages": [("user", "go")]}),
        lambda graph, id_: graph.aget_state(thread(id_)),
        lambda graph, id_: asyncio.to_thread(graph.get_state, thread(id_)),
        lambda graph, id_: anext(graph.aget_state_history(thread(id_))),
        lambda graph, id_: asyncio.to_thread(list, graph.get_state_history(thread(id_))),
        lambda graph, id_: graph.checkpointer.aget_tuple(thread(id_)),
        lambda graph, id_: anext(export_session("sqlite:///s.db", id_)),
    ],
    ids=[
        *("run", "events", "status", "ainvoke", "aupdate_state"),
        *("aget_state", "get_state", "aget_state_history", "get_state_history", "aget_tuple", "export"),
    ],
)
async def test_a_session_id_with_a_lone_surrogate_is_refused(
    act: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_saver("sqlite:///s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["Hello."]), checkpointer=saver)

        with pytest.raises(InputError, match=r"session_id='a\\ud800' is no text in UTF-8"):
            await act(graph, "a\ud800")


@pytest.mark.parametrize("key", ["checkpoint_id", "checkpoint_ns"])
async def test_an_id_of_a_checkpoint_with_a_lone_surrogate_is_refused(key: str, tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path / 's.db'}") as saver:
        graph = create_graph_agent(ScriptedChatModel(["Hello."]), checkpointer=saver)
        at: Any = {"configurable": {"thread_id": "s1", "checkpoint_ns": "", key: "a\ud800"}}

        with pytest.raises(InputError, match=rf"{key}='a\\ud800' is no text in UTF-8"):
            await saver.aget_tuple(at)
        with pytest.raises(InputError, match=rf"{key}='a\\ud800' is no text in UTF-8"):
            await anext(graph.aget_state_history(thread("s1"), before=at))


async def test_the_result_of_a_run() -> None:
    wave = asks(("1", "echo", {"text": "x"}), ("2", "serch", {}), content="Looking.")

    result = await session([wave, "No more actions.", "Done."], tools=[echo]).run("go")

    usage = result.usage
    assert (
        RunResult(**{name: getattr(result, name) for name in RunResult.__slots__ if name != "usage"}, usage={}),  # type: ignore[typeddict-item]  # compared apart
        usage["model_calls"],
        min(usage["input_tokens"], usage["output_tokens"]) > 0,
        usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"],
    ) == (
        RunResult(
            answer="Done.",
            status=SessionStatus.COMPLETED,
            stop_reason="completed",
            action="answer",
            reasoning="No more actions.",
            results={"1": "x", "2": {"error": "Unknown tool 'serch'; known: echo."}},
            calls=result.calls,
            iterations=1,
            usage={},  # type: ignore[typeddict-item]  # compared apart
            pending=[],
            interrupts=[],
        ),
        3,
        True,
        True,
    )


async def test_a_result_has_its_calls_in_order() -> None:
    wave = asks(("1", "echo", {"text": "x"}), ("2", "serch", {"n": 1}), content="Looking.")
    again = asks(("1", "echo", {"text": "y"}))
    held = asks(("3", "echo", {"text": "held"}))
    agent = session([wave, again, held], tools=[echo], config=LoopConfig(approve=lambda call: call["id"] == "3"))

    result = await agent.run("go")

    calls = [(call.id, call.name, call.arguments, call.result, call.status) for call in result.calls]
    assert (calls, [call.duration_s is not None and call.duration_s >= 0 for call in result.calls]) == (
        [
            ("1", "echo", {"text": "x"}, "x", "success"),
            ("2", "serch", {"n": 1}, {"error": "Unknown tool 'serch'; known: echo."}, "invalid"),
            (calls[2][0], "echo", {"text": "y"}, "y", "success"),
            ("3", "echo", {"text": "held"}, None, None),
        ],
        [True, False, True, False],
    )


async def test_a_session_an_agent_and_a_result_have_a_repr_and_escaped_html() -> None:
    evil = "<script>alert(1)</script>"
    call = asks(("1", "echo", {"text": evil}))
    agent = create_graph_agent(
        ScriptedChatModel([call, "No more actions.", evil]), tools=[echo], name=evil, checkpointer=InMemorySaver()
    )
    talk = Session(agent, evil)

    result = await talk.run("go")

    pages = [thing._repr_html_() for thing in (talk, agent, result)]
    assert (repr(agent), repr(talk), repr(result)) == (
        f"<GraphAgent {evil!r}>",
        f"Session(<GraphAgent {evil!r}>, {evil!r})",
        f"RunResult(status='COMPLETED', stop_reason='completed', answer={evil!r}, calls=['echo'])",
    )
    assert [("&lt;script&gt;" in page, "<script" in page) for page in pages] == [(True, False)] * 3


async def test_a_notebook_shows_the_graph_and_the_time_axis_of_a_session() -> None:
    evil = "<img src=x onerror=alert(1)>"
    call = asks(("1", "echo", {"text": "a"}))
    agent = create_graph_agent(ScriptedChatModel([call, "Done."]), tools=[echo], checkpointer=InMemorySaver())
    talk = Session(agent, "s1")

    before = talk._repr_mimebundle_()["image/svg+xml"]
    await talk.run(evil)

    graph, drawn = (ElementTree.fromstring(each._repr_mimebundle_()["image/svg+xml"]) for each in (agent, talk))
    texts = [each.text for each in drawn.findall("{*}text")]
    bars = [each.get("class") for each in drawn.findall("{*}rect")[1:]]
    assert "No input yet." in before
    assert [each.text for each in graph.findall("{*}text")] == [
        "start",
        "plan",
        "tools",
        "delegate",
        "finalize",
        "end",
    ]
    assert (texts[0], texts[2::2], bars) == (
        f"1:\u00a0{evil}".replace(" ", "\u00a0"),
        ["plan\u00a01\u00a0scripted", "echo", "plan\u00a02\u00a0scripted"],
        ["model", "tool", "model"],
    )


async def test_show_writes_a_page_with_the_session() -> None:
    talk = session(["Hello, Ada."])
    await talk.run("I am Ada.")

    path = await talk.show(open_browser=False)

    page = path.read_text(encoding="utf-8")
    path.unlink()
    assert ("I am Ada." in page, "Hello, Ada." in page, "default-src 'none'" in page) == (True, True, True)


async def test_the_parts_of_a_stream() -> None:
    wave = asks(("1", "echo", {"text": "x"}), content="Looking.")

    parts = [part async for part in session([wave, "No more actions.", "All done."], tools=[echo]).stream("go")]

    brief: list[Any] = []
    for part in parts:
        match part:
            case EventAdded(event):
                brief.append((event["seq"], event["type"]))
            case Done(result):
                brief.append(result.answer)
            case _:
                brief.append(part)
    assert brief == [
        (0, "user_message"),
        (1, "status"),
        Token("Looking."),
        Progress(1, "tool_call", "echo"),
        (2, "plan"),
        PlanText("Looking."),
        (3, "tool_call"),
        CallState("1", "echo", "started"),
        (4, "tool_result"),
        CallState("1", "echo", "success"),
        (5, "plan"),
        Token("All"),
        Token(" done."),
        (6, "agent_response"),
        (7, "status"),
        "All done.",
    ]


async def test_planned_calls_that_did_not_run_are_pending() -> None:
    talk = session([asks(("1", "echo", {"text": "x"}))], tools=[echo], config=LoopConfig(on_limit="message"))
    await talk.graph.ainvoke(says("go"), thread(recursion_limit=3))

    result = await talk.driver.result()

    assert (result.pending, result.results, result.status) == (
        [{"id": "1", "name": "echo"}],
        {},
        SessionStatus.ROUND_LIMIT,
    )


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_an_empty_input_is_refused_and_nothing_is_lost(text: str) -> None:
    talk = session(["Hello."])

    with pytest.raises(InputError, match="text that is not empty"):
        await talk.run(text)

    assert (await talk.events(), await talk.status()) == ([], SessionStatus.CREATED)


@pytest.mark.parametrize("earlier", [[], ["Hello."]], ids=["first input", "next input"])
async def test_an_input_that_was_left_in_its_first_step_is_running_until_it_is_resumed(earlier: list[str]) -> None:
    talk = session([*earlier, asks(("1", "echo", {"text": "x"})), "Done."], tools=[echo])
    for _ in earlier:
        await talk.run("hi")
    stream = talk.stream("go")
    async for part in stream:
        if part.type == "call":
            break
    await cast("Any", stream).aclose()

    left = await talk.status()
    resumed = await talk.resume()

    assert (left, resumed.answer, await talk.status()) == ("RUNNING", "Done.", "COMPLETED")


@pytest.mark.parametrize("work", ["run", "resume", "stream", "stream_resume", "events", "status", "interrupts"])
async def test_a_session_needs_a_memory(work: str) -> None:
    talk = Session(create_graph_agent(ScriptedChatModel(["x"])), "s1")

    with pytest.raises(ConfigError, match="pass checkpointer=… to create_graph_agent"):
        await getattr(talk, work)(*["go"] * (work in ("run", "resume", "stream", "stream_resume")))


async def test_a_person_answers_an_interrupt() -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        answer: str = interrupt("May I?")
        return answer

    talk = session([asks(("1", "ask", {})), "No more actions.", "You may."], tools=[ask])
    waiting = await talk.run("go")

    result = await talk.resume("yes")

    assert (
        [type(i) for i in waiting.interrupts],
        waiting.interrupts[0].value,
        waiting.status,
        waiting.stop_reason,
        waiting.pending,
        result.results,
        result.answer,
        result.interrupts,
    ) == (
        [Interrupt],
        "May I?",
        SessionStatus.RUNNING,
        None,
        [{"id": "1", "name": "ask"}],
        {"1": "yes"},
        "You may.",
        [],
    )


async def test_a_session_at_its_end_has_nothing_to_resume() -> None:
    talk = session(["Hello."])
    await talk.run("hi")

    with pytest.raises(InputError, match="nothing to resume: its last input has ended"):
        await talk.resume()


async def test_a_session_without_an_input_has_nothing_to_resume() -> None:
    with pytest.raises(InputError, match="nothing to resume: it has had no input yet"):
        await session(["Hello."]).resume()


async def test_a_session_survives_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graph_agent.db"
    async with open_saver(url) as saver:
        graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=saver)
        await Session(graph, "s1").run("one")
    model = ScriptedChatModel(["No more actions.", "Two."])

    async with open_saver(url) as saver:
        graph = create_graph_agent(model, tools=[echo], checkpointer=saver)
        result = await Session(graph, "s1").run("two")
        memory = SessionMemory(graph)
        events, sessions = await memory.get_session_events("s1"), await memory.list_sessions()

    seen = [(message.type, message.text) for message in model.requests[0].messages[1:]]
    assert (seen, result.answer, sessions, [event["seq"] for event in events]) == (
        [("human", "one"), ("ai", ""), ("tool", "hello"), ("ai", "The echo returned: hello"), ("human", "two")],
        "Two.",
        ["s1"],
        list(range(len(events))),
    )


async def test_sessions_are_listed_newest_first() -> None:
    saver = InMemorySaver()
    delegate = GraphDelegate("r", "R.", create_graph_agent(ScriptedChatModel(["r"], cycle=True)))
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script, cycle=True), delegates=[delegate], checkpointer=saver)
    for name in ("first", "second", "third"):
        await graph.ainvoke(says("hi"), thread(name))
    await graph.ainvoke(says("again"), thread("first"))

    assert await SessionMemory(graph).list_sessions() == ["third", "second", "first"]


@pytest.mark.parametrize("stored_in", ["memory", "a file"])
async def test_the_sessions_of_one_user_are_listed(stored_in: str, tmp_path: Path) -> None:
    async with open_saver("memory:" if stored_in == "memory" else f"sqlite:///{tmp_path}/sessions.db") as saver:
        call = asks(("1", "echo", {"text": "a"}))
        model = ScriptedChatModel(["Hello.", "Hello.", "Hello.", call])
        graph = create_graph_agent(model, tools=[echo], config=LoopConfig(approve="echo"), checkpointer=saver)
        for session_id in ("ada/c1", "adam/c1", "c1", "ada/c2"):
            await graph.session(session_id).run("Hi")
        memory = SessionMemory(graph)
        listed = {name: await memory.list_sessions(user=name) for name in ("ada", "adam", "ben")}
        waiting = await memory.list_sessions(user="ada", status="waiting")

    assert (listed, waiting) == ({"ada": ["ada/c2", "ada/c1"], "adam": ["adam/c1"], "ben": []}, ["ada/c2"])


async def test_an_unknown_session_has_no_events() -> None:
    graph = create_graph_agent(ScriptedChatModel(["x"]), checkpointer=InMemorySaver())

    assert await SessionMemory(graph).get_session_events("nobody") == []


async def test_an_earlier_checkpoint_can_be_read_and_forked_with_its_events() -> None:
    script = ["One.", "Two.", "Another two."]
    graph = create_graph_agent(ScriptedChatModel(script), checkpointer=InMemorySaver())
    await graph.ainvoke(says("one"), thread())
    after_one = (await graph.aget_state(thread())).config
    await graph.ainvoke(says("two"), thread())
    checkpoint = after_one["configurable"]["checkpoint_id"]
    memory = SessionMemory(graph)

    result = await graph.ainvoke(says("other"), after_one)

    earlier = await memory.get_session_events("s1", checkpoint_id=checkpoint)
    newest = await memory.get_session_events("s1")
    assert (dialogue(result["messages"]), [e["content"] for e in newest if e["type"] == "user_message"], earlier) == (
        [("human", "one"), ("ai", "One."), ("human", "other"), ("ai", "Another two.")],
        ["one", "other"],
        newest[: len(earlier)],
    )


async def test_messages_can_be_replaced_and_removed() -> None:
    graph = create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=InMemorySaver())
    first = await graph.ainvoke(says("one"), thread())
    question, answer = first["messages"]

    await graph.aupdate_state(
        thread(), {"messages": [HumanMessage("uno", id=question.id), RemoveMessage(id=answer.id)]}
    )
    edited = (await graph.aget_state(thread())).values["messages"]
    await graph.aupdate_state(thread(), {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), AIMessage("anew")]})
    emptied = (await graph.aget_state(thread())).values["messages"]
    result = await graph.ainvoke(says("two"), thread())

    assert (dialogue(edited), dialogue(emptied), dialogue(result["messages"])) == (
        [("human", "uno")],
        [("ai", "anew")],
        [("ai", "anew"), ("human", "two"), ("ai", "Two.")],
    )


async def test_a_delegate_gets_the_last_messages_and_the_task() -> None:
    model = ScriptedChatModel(["Qubits."])
    delegate = GraphDelegate("researcher", "Finds things out.", create_graph_agent(model, system_prompt=""))
    script = ["One.", asks(("1", "delegate_to_researcher", {"task": "Find quantum info"})), "No more actions.", "Two."]
    graph = create_graph_agent(
        ScriptedChatModel(["No more actions.", *script]),
        delegates=[delegate],
        config=LoopConfig(context_messages=2),
        checkpointer=InMemorySaver(),
    )
    await graph.ainvoke(says("one"), thread())
    result = await graph.ainvoke(says("two"), thread())

    assert (dialogue(model.requests[0].messages), dialogue(result["messages"])[2:]) == (
        [("ai", "One."), ("human", "two"), ("human", "Find quantum info")],
        [("human", "two"), ("ai", ""), ("tool", "Qubits."), ("ai", "Two.")],
    )


@pytest.mark.parametrize("subgraphs", [False, True])
async def test_a_delegates_tokens_do_not_mix_with_the_answer(subgraphs: bool) -> None:
    delegate = GraphDelegate("r", "R.", create_graph_agent(ScriptedChatModel(["Secret draft."])))
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "The answer."]
    graph = create_graph_agent(ScriptedChatModel(script), delegates=[delegate])

    streamed = []
    async for item in graph.astream(says("go"), stream_mode="messages", subgraphs=subgraphs):
        namespace, (chunk, _) = item if subgraphs else ((), item)
        if chunk.type != "tool" and chunk.text and not namespace:
            streamed.append(chunk.text)

    assert "".join(streamed) == "The answer."


async def test_a_delegates_usage_counts() -> None:
    delegate = GraphDelegate("r", "R.", create_graph_agent(ScriptedChatModel(["Found."])))
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]

    result = await session(script, delegates=[delegate]).run("go")

    assert result.usage["model_calls"] == 4


async def test_delegations_and_tools_of_one_wave_run_side_by_side() -> None:
    tool_runs, delegate_runs = asyncio.Event(), asyncio.Event()

    @tool
    async def meet() -> str:
        """Wait for the delegate."""
        tool_runs.set()
        await delegate_runs.wait()
        return "met"

    async def answer(state: MessagesState) -> dict[str, Any]:
        delegate_runs.set()
        await tool_runs.wait()
        return {"messages": [AIMessage("Met too.")]}

    foreign = StateGraph(MessagesState)
    foreign.add_node("answer", answer)
    foreign.add_edge(START, "answer")
    foreign.add_edge("answer", END)
    delegate = GraphDelegate("r", "Any graph with messages.", foreign.compile())
    wave = asks(("1", "meet", {}), ("2", "delegate_to_r", {"task": "t"}))

    result = await session([wave, "No more actions.", "Done."], tools=[meet], delegates=[delegate]).run("go")

    assert result.results == {"1": "met", "2": "Met too."}


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (
            ("1", "delegate_to_somebody_else", {"task": "t"}),
            "Unknown delegate 'delegate_to_somebody_else'; known: delegate_to_r.",
        ),
        (("1", "delegate_to_r", {}), "A delegation takes the task as text: {'task': '…'}, not None."),
    ],
    ids=["unknown", "no task"],
)
async def test_an_invalid_delegation_is_an_error_result(call: Any, answer: str) -> None:
    delegate = GraphDelegate("r", "R.", create_graph_agent(ScriptedChatModel(["never"])))

    result = await session([asks(call), "No more actions.", "Done."], delegates=[delegate]).run("go")

    assert result.results == {"1": {"error": answer}}


async def test_a_delegate_whose_model_fails_is_an_error_result() -> None:
    class Failing(ScriptedChatModel):
        async def _agenerate(self, *_: Any, **__: Any) -> Any:
            raise ValueError("nothing a retry would mend")

    delegate = GraphDelegate("r", "R.", create_graph_agent(Failing(responses=["never"])))
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]

    result = await session(script, delegates=[delegate]).run("go")

    failed = "The delegate 'r' failed. This request failed. The model call failed."
    assert result.results == {"1": {"error": failed}}


async def test_delegation_stops_at_its_depth() -> None:
    call = asks(("1", "delegate_to_inner", {"task": "t"}))
    innermost = GraphDelegate("inner", "I.", create_graph_agent(ScriptedChatModel(["never"])))
    middle = ScriptedChatModel([call, "No more actions.", "I did it myself."])
    outer = GraphDelegate("middle", "M.", create_graph_agent(middle, delegates=[innermost]))
    script = [asks(("1", "delegate_to_middle", {"task": "t"})), "No more actions.", "Done."]

    result = await session(script, delegates=[outer]).run("go")

    refusal = middle.requests[1].messages[-1].text
    assert (result.results, refusal) == (
        {"1": "I did it myself."},
        "This agent may not delegate further: the delegation depth is used up. Do the task yourself.",
    )


async def test_an_interrupt_inside_a_delegate_reaches_the_person() -> None:
    @tool
    async def ask() -> str:
        """Ask a person."""
        answer: str = interrupt("May I?")
        return answer

    inner = create_graph_agent(ScriptedChatModel([asks(("i", "ask", {})), "No more actions.", "Yes."]), tools=[ask])
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]
    talk = session(script, delegates=[GraphDelegate("r", "R.", inner)])
    waiting = await talk.run("go")

    result = await talk.resume("yes")

    asked = [interrupt.value for interrupt in waiting.interrupts]
    assert (asked, result.results, result.answer) == (["May I?"], {"1": "Yes."}, "Done.")


@pytest.mark.parametrize("mode", ["values", "updates", "custom", "messages", "tasks", "checkpoints", "debug"])
async def test_every_stream_mode_works(mode: Any) -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo], checkpointer=InMemorySaver())

    parts = [part async for part in graph.astream(says("hi"), thread(), stream_mode=mode)]

    state = (await graph.aget_state(thread())).values
    assert (len(parts) > 0, state["messages"][-1].text) == (True, "The echo returned: hello")


def test_the_blocking_entry_points() -> None:
    def agent() -> Any:
        return create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo])

    invoked = agent().invoke(says("hi"))["messages"][-1].text
    chunks = agent().stream(says("hi"), stream_mode="messages")
    streamed = "".join(chunk.text for chunk, _ in chunks if chunk.type != "tool")

    assert (invoked, streamed) == ("The echo returned: hello", "The echo returned: hello")


def test_a_blocking_run_with_a_blocking_saver_and_a_delegate(tmp_path: Path) -> None:
    delegate = GraphDelegate("r", "R.", create_graph_agent(ScriptedChatModel(["Found."])))
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]
    with SqliteSaver.from_conn_string(str(tmp_path / "blocking.db")) as saver:
        graph = create_graph_agent(ScriptedChatModel(script), delegates=[delegate], checkpointer=saver)

        graph.invoke(says("go"), thread())

        messages = graph.get_state(thread()).values["messages"]
    assert dialogue(messages) == [("human", "go"), ("ai", ""), ("tool", "Found."), ("ai", "Done.")]


async def test_a_blocking_call_in_a_running_loop_is_a_clear_error() -> None:
    graph = create_graph_agent(ScriptedChatModel(["x"]))

    with pytest.raises(SyncInLoopError, match=r"use 'await graph\.ainvoke"):
        graph.invoke(says("hi"))


async def test_a_blocking_call_from_another_thread_works_during_a_running_loop() -> None:
    graph = create_graph_agent(ScriptedChatModel(ECHO_SCRIPT), tools=[echo])

    result = await asyncio.to_thread(graph.invoke, says("hi"))

    assert result["messages"][-1].text == "The echo returned: hello"


async def test_a_cancelled_run_leaves_a_session_that_resumes() -> None:
    running, go = asyncio.Event(), asyncio.Event()
    starts: list[str] = []

    @tool
    async def slow() -> str:
        """Wait to be released."""
        starts.append("slow")
        running.set()
        await go.wait()
        return "slow is done"

    talk = session([asks(("1", "slow", {})), "No more actions.", "Done."], tools=[marked(slow, effect="read")])
    run = asyncio.create_task(talk.run("go"))
    await running.wait()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    go.set()

    result = await talk.resume()

    assert (result.results, result.answer, starts) == ({"1": "slow is done"}, "Done.", ["slow", "slow"])


async def test_the_events_of_a_warning_at_construction() -> None:
    class Tools(list[Any]):
        failed = {"pms": "connection refused"}  # noqa: RUF012 - as on a list of MCP tools

    talk = session(["No more actions.", "Hello."], tools=Tools([echo]))
    await talk.run("hi")

    events = await talk.events()
    assert (kinds(events)[:3], [e["message"] for e in events if e["type"] == "warning"]) == (
        ["user_message", "status", "warning"],
        ["The MCP server 'pms' is down, its tools are missing: connection refused"],
    )


async def test_a_delegates_own_events_hang_from_the_answer_it_gave() -> None:
    inner = create_graph_agent(ScriptedChatModel([*ECHO_SCRIPT]), tools=[echo])
    outer = session(
        [asks(("1", "delegate_to_r", {"task": "echo"})), "No more actions.", "Done."],
        delegates=[GraphDelegate("r", "R.", inner)],
    )
    await outer.run("go")

    (response,) = [event for event in await outer.events() if event["type"] == "delegation_response"]
    assert kinds(response["history"]) == [
        "user_message",
        "status",
        "plan",
        "tool_call",
        "tool_result",
        "plan",
        "agent_response",
        "status",
    ]


async def test_a_message_that_is_sent_again_is_a_new_question() -> None:
    question, model = HumanMessage("Again?"), ScriptedChatModel(["One.", "Two."])
    talk = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s1")

    await talk.run([question])
    await talk.run([question, question])

    asked = [event["content"] for event in await talk.events() if event["type"] == "user_message"]
    sent = [message.text for message in model.requests[-1].messages[1:]]
    assert (asked, sent, question.id) == (["Again?"] * 3, ["Again?", "One.", "Again?", "Again?"], None)
