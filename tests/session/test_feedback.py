"""Feedback on answers: stored without a run, and an event as any other that no model receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.memory import InMemoryStore

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError, InputError, SyncInLoopError
from graph_agent.persistence import open_saver, open_store, prune
from graph_agent.session import inbox_namespace
from graph_agent.session.history import summarize_sessions
from graph_agent.session.importing import export_session, import_session
from tests.support.agents import asks
from tests.support.gates import Gate, gated_tool
from tests.support.postgres_server import on_postgres

Opened = Callable[[], AbstractAsyncContextManager[Callable[..., Session]]]


@pytest.fixture(params=["sqlite", "sqlite without a Store", pytest.param("postgres", marks=on_postgres)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Opened]:
    """The URL of a database, and a function that opens it, as a new process would, for sessions of an agent."""
    is_postgres = request.param == "postgres"
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path / 'feedback.db'}"

    @asynccontextmanager
    async def open_database() -> AsyncIterator[Callable[..., Session]]:
        async with open_saver(url) as saver, open_store(url) as store:
            own = None if "without" in request.param else store

            def session(*replies: Any, id_: str = "s1", **options: Any) -> Session:
                model = ScriptedChatModel(list(replies))
                return Session(create_graph_agent(model, checkpointer=saver, store=own, **options), id_)

            yield session

    return url, open_database


def in_memory(*replies: Any, **options: Any) -> Session:
    return Session(create_graph_agent(ScriptedChatModel(list(replies)), checkpointer=InMemorySaver(), **options), "s1")


def shown(events: Any) -> list[tuple[Any, ...]]:
    """The types of events, with the fields of feedback that the person chose."""
    fields = ("answer", "rating", "by", "note", "evaluate")
    return [(each["type"], *(each[name] for name in fields if name in each)) for each in events]


ONE_INPUT = [("user_message",), ("status",), ("agent_response",), ("status",)]


async def test_feedback_outlives_the_process_and_enters_the_history_with_the_next_run(
    opened: tuple[str, Opened],
) -> None:
    _, open_database = opened
    async with open_database() as session:
        await session("One.").run("first", input_id="i1")
        given = await session().feedback("up", note="Exactly.", by="ana", answer="i1")
    async with open_database() as session:
        before = await session().events()
    async with open_database() as session:
        await session("Two.").run("second")
        after = await session().events()

    assert shown(before) == [*ONE_INPUT, ("feedback", 2, "up", "ana", "Exactly.")]
    assert before[-1] == given
    assert sorted(shown(after)) == sorted([*ONE_INPUT, *ONE_INPUT, ("feedback", 2, "up", "ana", "Exactly.")])


async def test_feedback_and_titles_keep_their_places_after_the_next_run(opened: tuple[str, Opened]) -> None:
    _, open_database = opened
    async with open_database() as session:
        await session("One.").run("first")
        await session().feedback("up")
        await session().rename("Trip")
        places = []
        for answer in ("Two.", "Three."):
            await session(answer).run("more")
            events = await session().events()
            places.append([(each["type"], each["seq"]) for each in events if each["type"] in ("feedback", "rename")])

    assert (places[0], [kind for kind, _ in places[0]]) == (places[1], ["feedback", "rename"])


async def test_feedback_survives_pruning_export_and_import(opened: tuple[str, Opened], tmp_path: Path) -> None:
    url, open_database = opened
    copy = f"sqlite:///{tmp_path / 'copy.db'}"
    async with open_database() as session:
        await session("One.").run("first", input_id="i1")
        await session().feedback("down", answer="i1")
        await session("Two.").run("second")
        await session().feedback("up", note="Better.", by="ana")
    await prune(url, keep_last=1)
    lines = [line async for line in export_session(url, "s1")]
    await import_session(copy, [json.dumps(line) for line in lines])

    async with open_database() as session, open_saver(copy) as saver:
        pruned = await session().events()
        again = await session().feedback("up", answer="i1")
        moved = await Session(create_graph_agent(ScriptedChatModel([]), checkpointer=saver), "s1").events()
    newest = max(seq for seq, event in enumerate(pruned) if event["type"] == "agent_response")
    ratings = [each for each in shown(pruned) if each[0] == "feedback"]
    assert ratings == [("feedback", 2, "down", "user"), ("feedback", newest, "up", "ana", "Better.")]
    assert shown(moved) == shown(pruned)
    assert shown([again]) == [("feedback", 2, "up", "user")]


async def test_feedback_is_given_while_another_run_is_in_progress(opened: tuple[str, Opened]) -> None:
    _, open_database = opened
    gate = Gate()
    async with open_database() as open_session:
        session = open_session("One.", asks(("1", "wait", {})), "Two.", tools=[gated_tool(gate, "wait")])
        await session.run("first")
        run = asyncio.create_task(session.run("second"))
        await gate.reached()

        given = await session.feedback("up")

        during = await session.events()
        gate.open()
        await run
        after = await session.events()
        await open_session("Three.").run("third")
        events = await open_session().events()

    assert (during[-1], shown(after)[-4:]) == (
        given,
        [("feedback", 3, "up", "user"), ("plan",), ("agent_response",), ("status",)],
    )
    assert [each["type"] for each in events].count("feedback") == 1


async def test_no_model_receives_feedback() -> None:
    model = ScriptedChatModel(["One.", "Two."])
    session = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s1")
    await session.run("first")
    await session.feedback("down", note="Wrong city.")

    await session.run("second")

    asked = [
        [message.content for message in request.messages if message.type != "system"] for request in model.requests
    ]
    assert (asked, "Wrong city" in str(model.requests)) == ([["first"], ["first", "One.", "second"]], False)


async def test_an_answer_is_named_by_its_event_its_input_or_its_message() -> None:
    session = in_memory("Same.", "Same.", "Same.")
    for number in range(3):
        await session.run(f"question {number}", input_id=f"i{number}")
    state = await session.graph.aget_state({"configurable": {"thread_id": "s1"}})
    message_ids = [message.id for message in state.values["messages"] if message.type == "ai"]

    named = [await session.feedback("up", answer=answer) for answer in (None, 2, "i1", *message_ids)]

    assert [each.get("answer") for each in named] == [10, 2, 6, 2, 6, 10]


async def test_an_answer_of_a_pruned_input_is_named_by_its_input(opened: tuple[str, Opened]) -> None:
    url, open_database = opened
    async with open_database() as session:
        await session("One.").run("first", input_id="i1")
        await session("Two.").run("second", input_id="i2")
    await prune(url, keep_last=1)

    async with open_database() as session:
        given = await session().feedback("up", answer="i1")

    assert (given.get("answer"), given.get("input_id")) == (2, "i1")


async def test_feedback_on_an_unknown_answer_is_refused() -> None:
    session = in_memory("One.", tools=[gated_tool(Gate())])
    await session.run("first", input_id="i1")

    refused = [await _refused(session, answer=answer) for answer in ("i2", 0, True, "")]
    new = await _refused(Session(session.graph, "new"), answer=None)

    how = (
        "Name an answer by the seq of its agent_response event, the id of its input, the id of its message, or the id "
        "with which an API returned it (chatcmpl-…, resp_…, msg_…)."
    )
    known = "its answers are the events 3"
    assert refused == [f"Session 's1' has no answer {answer}; {known}. {how}" for answer in ("'i2'", "0", "True", "''")]
    assert new == f"Session 'new' has no answer yet. {how}"
    assert [event["type"] for event in await session.events()].count("feedback") == 0


async def _refused(session: Session, *, answer: Any) -> str:
    with pytest.raises(InputError) as caught:
        await session.feedback("up", answer=answer)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rating": "good"}, "rating='good': a rating is 'up' or 'down'."),
        ({"rating": "up", "note": "x" * 4001}, "note: the note of a rating is a text of at most 4,000 characters."),
    ],
)
async def test_invalid_feedback_is_refused(options: dict[str, Any], expected: str) -> None:
    session = in_memory("One.")
    await session.run("first")

    with pytest.raises(InputError) as caught:
        await session.feedback(**options)

    assert str(caught.value) == expected


async def test_a_list_of_sessions_counts_the_newest_thumb_of_each_person(opened: tuple[str, Opened]) -> None:
    url, open_database = opened

    async def counts() -> tuple[int, int]:
        async with open_saver(url) as saver:
            [found] = await summarize_sessions(saver, _idle)
        return found.thumbs_up, found.thumbs_down

    async with open_database() as session:
        await session("One.").run("first")
        await asyncio.gather(*(session().feedback("down", by=by) for by in ("ana", "ana", "ana", "ben")))
        first = await counts()
        await session().feedback("up", by="ana")
        second = await counts()
        await session("Two.").run("second")
        third = await counts()
        await asyncio.gather(*(session().feedback("down", by="ana", answer=2) for _ in range(2)))
        fourth = await counts()

    assert (first, second, third, fourth) == ((0, 2), (1, 1), (1, 1), (0, 2))


async def _idle(_: str) -> bool:
    return False


async def test_feedback_without_a_place_to_keep_it_is_refused(tmp_path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "own.db")) as saver:
        session = Session(create_graph_agent(ScriptedChatModel(["One."]), checkpointer=saver), "s1")
        await session.run("first")
        with pytest.raises(ConfigError) as caught:
            await session.feedback("up")

    assert str(caught.value) == (
        "Feedback waits in a Store for the session's next run, and this agent with AsyncSqliteSaver has none; build "
        "it with store=..., or with the saver of graph_agent.persistence.open_saver()."
    )


def test_a_script_gives_feedback_and_blocks() -> None:
    session = in_memory("One.")
    session.run_sync("first")

    given = session.feedback_sync("up", note="Good.", evaluate=True)

    assert shown([given]) == [("feedback", 2, "up", "user", "Good.", True)]


async def test_a_notebook_is_sent_to_the_asynchronous_feedback() -> None:
    with pytest.raises(SyncInLoopError):
        in_memory("One.").feedback_sync("up")


async def test_a_note_of_another_form_is_no_feedback() -> None:
    store = InMemoryStore()
    session = in_memory("One.", store=store)
    await store.aput(inbox_namespace("s1"), f"{1:020d}-a", {"kind": "feedback", "content": "good"}, index=False)

    await session.run("first")

    assert shown(await session.events()) == ONE_INPUT


async def test_an_answer_is_named_by_its_message_after_other_messages_were_removed() -> None:
    session = in_memory("Same.", "Other.", "Same.")
    config: Any = {"configurable": {"thread_id": "s1"}}
    for number in range(3):
        await session.run(f"question {number}")
    state = await session.graph.aget_state(config)
    first, other, last = [message.id for message in state.values["messages"] if message.type == "ai"]
    await session.graph.aupdate_state(config, {"messages": [RemoveMessage(id=first)]})

    given = await session.feedback("up", answer=other)

    # Which of two equal answers is left is not known.
    assert (given.get("answer"), "has no answer" in await _refused(session, answer=last)) == (6, True)


@pytest.mark.parametrize("way", ["feedback", "rename"])
async def test_a_person_without_a_name_of_text_is_refused(way: str) -> None:
    session = in_memory("One.")
    await session.run("first")
    by: Any = 5

    with pytest.raises(InputError, match="by=5: the name of a person is a text"):
        await (session.feedback("up", by=by) if way == "feedback" else session.rename("Trip", by=by))


@pytest.mark.parametrize("answer", ["\ud800", "a\x00"])
async def test_an_answer_with_a_character_that_no_database_stores_is_unknown(
    opened: tuple[str, Opened], answer: str
) -> None:
    _, open_database = opened
    async with open_database() as session:
        await session("One.").run("first")

        refused = await _refused(session(), answer=answer)

    assert "has no answer" in refused
