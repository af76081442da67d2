"""Steering and follow-ups of a running session: delivered once and in order."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.inbox import MemoryInbox, new_note
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver, open_store
from tests.support.agents import asks, dialogue, echo, kinds
from tests.support.gates import Gate, GatedModel, gated_tool
from tests.support.sessions import conversation_events, new_session, noted, start_steered_process, stored_messages
from tests.support.steered_run import opened

WORK = asks(("1", "work", {}))
ECHO = asks(("2", "echo", {"text": "x"}))


async def test_steering_during_a_wave_is_delivered_before_the_next_plan() -> None:
    gate = Gate()
    model = ScriptedChatModel([WORK, "No more actions.", "Done."])
    talk = new_session(model, gated_tool(gate))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.steer("Use metres.")
    await talk.steer("And be brief.")
    gate.open()
    await run

    messages = await stored_messages(talk)
    steered = [message for message in messages if "graph_agent_steering" in message.additional_kwargs]
    assert (
        dialogue(messages),
        [(type(message), message.additional_kwargs) for message in steered],
        [message.text for message in model.requests[1].messages[-2:]],
        kinds(await talk.events()),
    ) == (
        [
            ("human", "go"),
            ("ai", ""),
            ("tool", "worked"),
            ("human", "Use metres."),
            ("human", "And be brief."),
            ("ai", "Done."),
        ],
        [(HumanMessage, {"graph_agent_steering": True})] * 2,
        [
            "While you were working, the user said: Use metres.",
            "While you were working, the user said: And be brief.",
        ],
        [
            *["user_message", "status", "plan", "tool_call", "tool_result"],
            *["steering", "steering", "plan", "agent_response", "status"],
        ],
    )


async def test_steering_during_planning_is_delivered_before_the_next_plan() -> None:
    gate = Gate()
    model = GatedModel(responses=[ECHO, "No more actions.", "Done."], before={1: gate})
    talk = new_session(model, echo)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.steer("Be brief.")
    gate.open()
    await run

    assert (dialogue(await stored_messages(talk)), len(model.requests)) == (
        [("human", "go"), ("ai", ""), ("tool", "x"), ("human", "Be brief."), ("ai", "Done.")],
        3,
    )


async def test_steering_at_the_sentinel_causes_another_plan() -> None:
    gate = Gate()
    model = GatedModel(responses=["No more actions.", ECHO, "No more actions.", "Done."], before={1: gate})
    talk = new_session(model, echo)
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    await talk.steer("Echo first.")
    gate.open()
    await run

    assert dialogue(await stored_messages(talk)) == [
        ("human", "go"),
        ("human", "Echo first."),
        ("ai", ""),
        ("tool", "x"),
        ("ai", "Done."),
    ]


async def test_steering_of_an_idle_session_is_delivered_with_the_next_input() -> None:
    talk = new_session(ScriptedChatModel(["No more actions.", "One.", "No more actions.", "Two."]), echo)
    await talk.run("one")

    await talk.steer("Be brief.")
    before = await talk.driver.control.pending("steer")
    await talk.run("two")

    assert (before, await talk.driver.control.pending("steer"), dialogue(await stored_messages(talk))) == (
        ["Be brief."],
        [],
        [("human", "one"), ("ai", "One."), ("human", "two"), ("human", "Be brief."), ("ai", "Two.")],
    )


async def test_steering_of_a_new_session_is_delivered_with_its_first_input() -> None:
    talk = new_session(ScriptedChatModel(["No more actions.", "One."]), echo)

    await talk.steer("Be brief.")
    await talk.run("one")

    assert dialogue(await stored_messages(talk)) == [("human", "one"), ("human", "Be brief."), ("ai", "One.")]


async def test_steering_is_delivered_after_all_levels_of_a_wave() -> None:
    gate = Gate()
    plan = (
        '{"status": "done", "action": "a", "tools": [{"id": "a", "tool": "work", "args": {}},'
        ' {"id": "b", "tool": "echo", "args": {"text": "${a}"}, "needs": ["a"]}]}'
    )
    model = ScriptedChatModel([plan, '{"status": "done", "action": "b", "tools": []}', "Done."])
    talk = new_session(model, gated_tool(gate), echo)
    run = asyncio.create_task(talk.run("go", context={"tool_calling": "wave"}))
    await gate.reached()

    await talk.steer("Be brief.")
    gate.open()
    await run

    assert dialogue(await stored_messages(talk)) == [
        ("human", "go"),
        ("ai", ""),
        ("tool", "worked"),
        ("tool", "worked"),
        ("human", "Be brief."),
        ("ai", "Done."),
    ]


async def test_follow_ups_are_inputs_of_the_same_run_one_after_the_other() -> None:
    gate = Gate()
    script = [WORK, "No more actions.", "One.", "No more actions.", "Two.", "No more actions.", "Three."]
    talk = new_session(ScriptedChatModel(script), gated_tool(gate))
    run = asyncio.create_task(talk.run("one"))
    await gate.reached()

    await talk.follow_up("two")
    await talk.follow_up("three")
    gate.open()
    result = await run
    answers = [result.answer, *(followed.answer for followed in result.follow_ups)]

    assert (
        answers,
        await conversation_events(talk),
        [event["type"] for event in await talk.events()].count("status"),
    ) == (
        ["One.", "Two.", "Three."],
        [
            ("user_message", "one"),
            ("agent_response", "One."),
            ("user_message", "two"),
            ("agent_response", "Two."),
            ("user_message", "three"),
            ("agent_response", "Three."),
        ],
        6,
    )


async def test_a_follow_up_to_an_idle_session_comes_after_its_next_answer() -> None:
    talk = new_session(ScriptedChatModel(["One.", "Two."]))

    await talk.follow_up("two")
    result = await talk.run("one")

    assert (
        result.answer,
        [followed.answer for followed in result.follow_ups],
        dialogue(await stored_messages(talk)),
    ) == (
        "One.",
        ["Two."],
        [("human", "one"), ("ai", "One."), ("human", "two"), ("ai", "Two.")],
    )


async def test_an_abort_keeps_follow_ups_until_the_next_answer() -> None:
    gate = Gate()
    talk = new_session(
        ScriptedChatModel([WORK, "No more actions.", "One.", "No more actions.", "Two."]), gated_tool(gate)
    )
    run = asyncio.create_task(talk.run("zero"))
    await gate.reached()
    await talk.follow_up("two")

    await talk.abort()
    aborted = await run
    result = await talk.run("one")

    assert (aborted.status, aborted.follow_ups, result.answer, dialogue(await stored_messages(talk))[-3:]) == (
        "ABORTED",
        (),
        "One.",
        [("ai", "One."), ("human", "two"), ("ai", "Two.")],
    )


async def test_an_abort_during_the_answer_keeps_follow_ups_queued() -> None:
    talks: list[Session] = []

    class Stopping(InMemorySaver):
        """Stops the session between the start and the end of the answer that its plan gives."""

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            outcome = checkpoint["channel_values"].get("loop", {}).get("outcome")
            stored = await super().aput(config, checkpoint, metadata, new_versions)
            if outcome and talks:
                await talks.pop().abort()
            return stored

    model = ScriptedChatModel(["One.", "Two.", "And."])
    talk = new_session(model, echo, checkpointer=Stopping(), config=LoopConfig(finalize="direct"))
    talks.append(talk)
    await talk.follow_up("and")

    first = await talk.run("one")
    queued = await talk.driver.control.pending("follow_up")
    await talk.run("two")

    assert (first.answer, queued, [content for _, content in await conversation_events(talk)]) == (
        "One.",
        ["and"],
        ["one", "One.", "two", "Two.", "and", "And."],
    )


async def test_savers_of_one_file_share_their_inbox(tmp_path: Path) -> None:
    gate, url = Gate(), f"sqlite:///{tmp_path}/s.db"
    async with open_saver(url) as saver, open_saver(url) as another:
        model = ScriptedChatModel([WORK, "No more actions.", "Done."])
        talk = new_session(model, gated_tool(gate), checkpointer=saver)
        run = asyncio.create_task(talk.run("go"))
        await gate.reached()

        await new_session(model, checkpointer=another).steer("Turn left.")
        gate.open()
        await run

        assert ("steering", "Turn left.") in await conversation_events(talk)


async def test_notes_to_another_process_without_a_store_are_refused(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        talk = new_session(ScriptedChatModel([]), checkpointer=saver)
        refused: list[str] = []
        for note in (talk.steer("left"), talk.follow_up("left"), talk.configure(temperature=0)):
            with pytest.raises(InputError) as caught:
                await note
            refused.append(str(caught.value))
    process.kill()
    await process.ended()

    why = (
        "Session 's1' runs in another process, which can only be reached through a Store; build the agent with "
        "store=... in both."
    )
    assert refused == [why] * 3


async def test_an_inbox_drops_sessions_without_notes() -> None:
    inbox = MemoryInbox()
    notes = [new_note("steer", "one"), new_note("steer", "two")]
    for note in notes:
        await inbox.add("s1", note)

    await inbox.forget("s1", [notes[0].key])
    left = await inbox.read("s1")
    await inbox.forget("s1", [notes[1].key])
    await inbox.forget("s2", ["never sent"])

    assert (left, inbox._notes) == ([notes[1]], {})


async def test_another_thread_with_its_own_loop_steers() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, "No more actions.", "Done."]), gated_tool(gate), store=InMemoryStore())
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    other = threading.Thread(target=lambda: asyncio.run(talk.steer("From a thread.")))
    other.start()
    await asyncio.to_thread(other.join)
    gate.open()
    await run

    assert ("steering", "From a thread.") in await conversation_events(talk)


async def test_another_thread_steers_through_a_database(tmp_path: Path) -> None:
    gate = Gate()
    url = f"sqlite:///{tmp_path}/s.db"
    async with open_saver(url) as saver, open_store(url) as store:
        model = ScriptedChatModel([WORK, "No more actions.", "Done."])
        talk = new_session(model, gated_tool(gate), checkpointer=saver, store=store)
        run = asyncio.create_task(talk.run("go"))
        await gate.reached()

        # It runs concurrently with the run's own polls of the store, on another loop.
        for number in range(10):
            await asyncio.to_thread(asyncio.run, talk.steer(str(number)))
        gate.open()
        await run
        conversation = await conversation_events(talk)

    assert [content for kind, content in conversation if kind == "steering"] == [str(number) for number in range(10)]


@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
async def test_two_graphs_with_one_store_reach_each_others_runs(tmp_path: Path, sqlite: bool) -> None:
    gate = Gate()
    url = f"sqlite:///{tmp_path}/s.db" if sqlite else "memory:"
    async with open_saver(url) as saver, open_store(url) as store:
        model = ScriptedChatModel([WORK, "No more actions.", "Done.", "No more actions.", "And."])
        talk = new_session(model, gated_tool(gate), checkpointer=saver, store=store)
        other = new_session(ScriptedChatModel([]), checkpointer=InMemorySaver(), store=store)
        run = asyncio.create_task(talk.run("go"))
        await gate.reached()

        await other.steer("Be brief.")
        await other.follow_up("and then?")
        gate.open()
        await run
        conversation = await conversation_events(talk)

    assert conversation == [
        ("user_message", "go"),
        ("steering", "Be brief."),
        ("agent_response", "Done."),
        ("user_message", "and then?"),
        ("agent_response", "And."),
    ]


@pytest.mark.parametrize("when", ["taken in, not stored", "stored, not forgotten"])
async def test_steering_is_delivered_once_across_a_cancelled_run(when: str) -> None:
    gate = Gate()
    script = [ECHO, asks(("3", "echo", {"text": "y"})), "No more actions.", "Done.", "No more actions.", "Again."]
    model = GatedModel(responses=script, before={1 if when == "taken in, not stored" else 2: gate})
    store = InMemoryStore()
    talk = new_session(model, echo, store=store)
    await talk.steer("Be brief.")
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()
    waiting = await noted(store, "s1")
    await talk.resume()
    await talk.steer("Once more.")
    await talk.run("again")

    assert (waiting, [content for kind, content in await conversation_events(talk) if kind == "steering"]) == (
        ["Be brief."],
        ["Be brief.", "Once more."],
    )


async def test_delivered_notes_are_deleted_by_the_next_run() -> None:
    store = InMemoryStore()
    talk = new_session(ScriptedChatModel(["One.", "Two."]), store=store)
    await talk.steer("Be brief.")
    await talk.run("one")
    kept = len(await noted(store, "s1"))

    await talk.run("two")

    assert (kept, await noted(store, "s1")) == (1, [])


@pytest.mark.parametrize("session_id", ["a.b", "a%2Eb", "ü/ö", "a b"])
async def test_any_session_id_has_its_own_box_in_the_store(session_id: str) -> None:
    store = InMemoryStore()
    graph = create_graph_agent(ScriptedChatModel(["One."]), checkpointer=InMemorySaver(), store=store)
    await Session(graph, session_id).steer("Be brief.")
    await Session(graph, session_id + "c").steer("Another.")
    await Session(graph, session_id).run("one")

    state = await graph.aget_state({"configurable": {"thread_id": session_id}})

    assert dialogue(state.values["messages"]) == [("human", "one"), ("human", "Be brief."), ("ai", "One.")]


@pytest.mark.parametrize("text", ["", " \n", None])
async def test_an_empty_note_is_refused(text: Any) -> None:
    talk = new_session(ScriptedChatModel([]))

    with pytest.raises(InputError, match="text that is not empty"):
        await talk.steer(text)
    with pytest.raises(InputError, match="text that is not empty"):
        await talk.follow_up(text)


def test_a_blocking_run_receives_steering() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([WORK, "No more actions.", "Done."]), gated_tool(gate), store=InMemoryStore())

    def steer() -> None:
        async def when_reached() -> None:
            await gate.reached()
            await talk.steer("Be brief.")
            gate.open()

        asyncio.run(when_reached())

    other = threading.Thread(target=steer)
    other.start()
    result = talk.graph.invoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "s1"}})
    other.join()

    assert dialogue(result["messages"])[-2:] == [("human", "Be brief."), ("ai", "Done.")]


async def test_another_process_is_steered_and_followed_up_through_its_database(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    async with opened(tmp_path / "s.db", []) as talk:
        await talk.steer("Use metres.")
        await talk.steer("And be brief.")
        await talk.follow_up("and then?")
        (tmp_path / "go").touch()
        out, _ = await process.ended()
        conversation = await conversation_events(talk)

    assert (json.loads(out)["answer"], conversation) == (
        "Done.",
        [
            ("user_message", "go"),
            ("steering", "Use metres."),
            ("steering", "And be brief."),
            ("agent_response", "Done."),
            ("user_message", "and then?"),
            ("agent_response", "And."),
        ],
    )


async def test_steering_survives_a_killed_process_and_is_delivered_once(tmp_path: Path) -> None:
    process = await start_steered_process(tmp_path)
    async with opened(tmp_path / "s.db", ["No more actions.", "Done.", "No more actions.", "And."]) as talk:
        await talk.steer("Be brief.")
        await talk.follow_up("and then?")
        process.kill()
        await process.ended()
        (tmp_path / "go").touch()

        await talk.resume()
        conversation = await conversation_events(talk)

    assert conversation == [
        ("user_message", "go"),
        ("steering", "Be brief."),
        ("agent_response", "Done."),
        ("user_message", "and then?"),
        ("agent_response", "And."),
    ]
