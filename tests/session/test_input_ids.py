"""Inputs with an id: run once, in any process and after any fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import InputConflictError
from graph_agent.persistence.open import open_saver
from tests.support.agents import ECHO_SCRIPT, echo
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
