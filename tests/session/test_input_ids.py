"""Inputs with an id: run once, in any process and after any fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from graph_agent import ScriptedChatModel
from graph_agent.errors import InputConflictError
from tests.support.agents import ECHO_SCRIPT, echo
from tests.support.fault_jobs import ALL
from tests.support.fault_server import ForkServer, fork_server
from tests.support.sessions import conversation_events, new_session


async def test_the_same_input_id_returns_the_stored_result() -> None:
    model = ScriptedChatModel(ECHO_SCRIPT)
    talk = new_session(model, echo)

    first = await talk.run("Echo hello.", input_id="a")
    again = await talk.run("Echo hello.", input_id="a")

    assert (again, await conversation_events(talk)) == (
        first,
        [("user_message", "Echo hello."), ("agent_response", "The echo returned: hello")],
    )


async def test_an_older_input_returns_its_own_result() -> None:
    talk = new_session(ScriptedChatModel(["One.", "Two.", "Three."]))

    first = await talk.run("1", input_id="a")
    await talk.run("2", input_id="b")
    await talk.run("3")

    assert (await talk.run("1", input_id="a"), len(await conversation_events(talk))) == (first, 6)


async def test_a_different_input_under_the_same_id_is_refused() -> None:
    talk = new_session(ScriptedChatModel(["One."]))
    await talk.run("1", input_id="a")

    with pytest.raises(InputConflictError) as refused:
        await talk.run("2", input_id="a")

    assert (str(refused.value).partition(" (")[0], len(await conversation_events(talk))) == (
        "The input id 'a' of session 's1' belongs to a different input",
        2,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


VARIANTS = {
    "first-input": {"structured": False, "ledger": False, "input_id": "i1"},
    "ledger": {"structured": False, "ledger": True, "input_id": "i1"},
    "later-input": {"structured": False, "ledger": False, "input_id": "i1", "later": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_input_killed_at_any_write_is_completed_once_by_another_process(
    variant: str, server: ForkServer, tmp_path: Path
) -> None:
    given, whole = VARIANTS[variant], tmp_path / "whole"
    whole.mkdir()
    server.run("run_to", folder=str(whole), variant=given, kill_at=ALL)
    boundaries = (whole / "reached").read_text().splitlines()

    faults: list[str] = []
    for kill_at, boundary in enumerate(boundaries):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        killed = server.run("run_to", folder=str(folder), variant=given, kill_at=kill_at)
        server.run("go_on", folder=str(folder), variant=given, ways=["again"])
        found = json.loads((folder / "faults").read_text())["again"]
        faults += [f"killed at {kill_at}, {boundary}: {fault}" for fault in found]
        faults += [f"{boundary}: it lived"] if killed == 0 else []

    assert (faults, len(boundaries) > 10) == ([], True)
