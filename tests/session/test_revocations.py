"""A person takes back the approval of all calls of a kind; it is an event, and later calls wait again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graph_agent import Session
from graph_agent.approvals import approve
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver, open_store
from tests.support.agents import asks
from tests.support.approvals import Desk
from tests.support.cli import run_cli

WRITES = [asks((str(number), "write", {"path": str(number)})) for number in range(1, 5)]


async def test_a_revoked_approval_makes_later_calls_wait_in_every_session_object(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    async with open_saver(url) as saver, open_store(url) as store:
        desk = Desk(WRITES[0], "One.", WRITES[1], "Two.", WRITES[2], checkpointer=saver, store=store)
        talk = desk.session
        await talk.run("go")
        await talk.resume(approve(always=True), decided_by="ana")
        approved = await talk.run("more")
        await Session(desk.graph, talk.id).revoke_approval("write", by="bo")
        before = [event["type"] for event in await talk.events()][-1]
        asked = await talk.run("even more")
        events = await talk.events()
        printed = run_cli(tmp_path, "events", talk.id, "--db", url).stdout

    assert (approved.answer, before, asked.waiting, desk.ran) == (
        "Two.",
        "revocation",
        "approval",
        ["wrote 1", "wrote 2"],
    )
    assert [(each["name"], each["by"]) for each in events if each["type"] == "revocation"] == [("write", "bo")]
    assert "write by bo" in printed
    assert [each["seq"] for each in events] == list(range(len(events)))


async def test_an_approval_that_is_given_again_holds_again() -> None:
    desk = Desk(WRITES[0], "One.", WRITES[1], WRITES[2], "Done.")
    talk = desk.session
    await talk.run("go")
    await talk.resume(approve(always=True), decided_by="ana")
    await talk.revoke_approval("write")
    asked = await talk.run("more")

    ended = await talk.resume(approve(always=True), decided_by="ana")

    assert (asked.waiting, ended.answer, desk.ran) == ("approval", "Done.", ["wrote 1", "wrote 2", "wrote 3"])


async def test_only_an_approval_that_the_session_has_can_be_revoked() -> None:
    desk = Desk(WRITES[0], "One.")
    with pytest.raises(InputError, match=re.escape("no standing approval of 'write'; it has: none")):
        await desk.session.revoke_approval("write")
    await desk.session.run("go")
    await desk.session.resume(approve(always=True))

    with pytest.raises(InputError, match=re.escape("no standing approval of 'guide/write'; it has: write")):
        await desk.session.revoke_approval("write", delegate="guide")
