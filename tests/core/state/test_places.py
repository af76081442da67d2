"""The database identity of savers, for locks and inboxes."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from pathlib import Path

from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.core.state.locks import database_key
from graph_agent.core.state.registry import inbox_of
from graph_agent.persistence import open_saver
from tests.support.agents import says, thread


async def test_a_blocking_run_guards_the_file_of_an_asynchronous_saver(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        graph = create_graph_agent(ScriptedChatModel(["One."]), checkpointer=saver)

        await asyncio.to_thread(graph.invoke, says("one"), thread())

        assert (await database_key(saver), (tmp_path / "s.db.sessions-lock").exists()) == (tmp_path / "s.db", True)


async def test_a_saver_opened_by_url_has_its_database_identity(tmp_path: Path) -> None:
    async with open_saver(f"sqlite:///{tmp_path}/s.db") as saver:
        assert await database_key(saver) == tmp_path / "s.db"


@dataclass
class _ComparedByValue(InMemorySaver):
    """A saver that Python cannot hash."""

    tag: str = ""

    def __post_init__(self) -> None:
        InMemorySaver.__init__(self)


async def test_a_saver_need_not_be_hashable() -> None:
    one, other = (
        Session(create_graph_agent(ScriptedChatModel([answer]), checkpointer=_ComparedByValue()), "s1")
        for answer in ("One.", "Other.")
    )
    await one.steer("Be brief.")

    answers = [(await talk.run("hi")).answer for talk in (other, one)]

    assert (answers, [event["type"] for event in await other.events()].count("steering")) == (["Other.", "One."], 0)


async def test_an_inbox_is_forgotten_with_its_saver() -> None:
    saver = InMemorySaver()
    inbox = await inbox_of(saver, None)
    kept = await inbox_of(saver, None) is inbox
    identity = id(saver)

    del saver
    gc.collect()
    from graph_agent.core.state import locks as places
    from graph_agent.core.state import registry as running

    assert (kept, identity in running._inboxes, identity in places._known) == (True, False, False)
