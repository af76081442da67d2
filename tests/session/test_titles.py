"""A person gives a session a title, without a run; it is an event, and lists show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver, open_store
from tests.support.cli import run_cli


async def test_a_title_is_an_event_that_a_later_run_takes_into_the_history(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    async with open_saver(url) as saver, open_store(url) as store:
        agent = create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=saver, store=store)
        session = Session(agent, "s1")
        with pytest.raises(InputError, match="no session 's1' to rename"):
            await session.rename("Too early")
        await session.run("one")
        await session.rename("  The  trip ", by="ana")
        before = [(event["title"], event["by"]) for event in await session.events() if event["type"] == "rename"]
        listed = run_cli(tmp_path, "sessions", "--db", url).stdout
        await session.run("two")
        await session.rename("The voyage", by="bo")
        events = await session.events()
        again = run_cli(tmp_path, "sessions", "--db", url).stdout

    assert before == [("The trip", "ana")]
    assert [(event["title"], event["by"]) for event in events if event["type"] == "rename"] == [
        ("The trip", "ana"),
        ("The voyage", "bo"),
    ]
    assert ["The trip" in listed, "The voyage" in again] == [True, True]
    assert [event["seq"] for event in events] == list(range(len(events)))
