"""The session status: every allowed change, where it is visible, and the refusal of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError

from graph_agent import LoopConfig, ScriptedChatModel, Session, SessionStatus, create_graph_agent
from graph_agent.base.types import STATUS_OF
from graph_agent.core.state.channels import ENDED_STATUSES, NEXT, StatusChannel, check_change, status_event
from tests.support.agents import asks, echo, says, thread
from tests.support.gates import Gate, gated_tool
from tests.support.sessions import new_session

S = SessionStatus
EVERY = [(before, after) for before in S for after in S]
LEGAL = [(before, after) for before, after in EVERY if after in NEXT[before]]
ECHO = asks(("1", "echo", {"text": "x"}))


async def changes(talk: Session) -> list[tuple[str, str]]:
    return [(event["from"], event["to"]) for event in await talk.events() if event["type"] == "status"]


async def ending(status: SessionStatus) -> Session:
    """A session whose only input ended so."""
    scripts: dict[SessionStatus, list[str]] = {
        S.COMPLETED: ["No more actions.", "Done."],
        S.FAILED: [],
        S.ABORTED: [asks(("1", "work", {}))],
        S.ROUND_LIMIT: [ECHO, "Best I can say."],
        S.TURN_LIMIT: [ECHO, "Best I can say."],
    }
    limits: dict[SessionStatus, Any] = {
        S.ROUND_LIMIT: {"max_steps": 1},
        S.TURN_LIMIT: {"max_turns": 1},
    }
    gate = Gate()
    script = [*scripts[status], "No more actions.", "And."]
    model = ScriptedChatModel(script)
    if status is S.FAILED:
        model = _FailsOnce(responses=[*script])
    talk = new_session(model, echo, gated_tool(gate))
    run = asyncio.create_task(talk.run("one", context=limits.get(status)))
    if status is S.ABORTED:
        await gate.reached()
        await talk.abort()
    await run
    return talk


class _FailsOnce(ScriptedChatModel):
    failed: bool = False

    async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
        if not self.failed:
            self.failed = True
            raise PermissionError("no key")
        return await super()._agenerate(*args, **kwargs)


@pytest.mark.parametrize("status", sorted(ENDED_STATUSES))
async def test_each_end_shows_everywhere_and_new_input_takes_it_back(status: SessionStatus) -> None:
    talk = await ending(status)
    state = (await talk.graph.aget_state(thread())).values
    first = (await changes(talk), state["status"], await talk.status(), (await talk.driver.result()).status)

    await talk.run("two", context={"max_turns": 99})

    assert (first, await changes(talk), await talk.status()) == (
        ([("CREATED", "RUNNING"), ("RUNNING", status)], status, status, status),
        [("CREATED", "RUNNING"), ("RUNNING", status), (status, "RUNNING"), ("RUNNING", "COMPLETED")],
        S.COMPLETED,
    )


async def test_a_session_is_created_before_its_first_input_and_runs_while_it_works() -> None:
    gate = Gate()
    talk = new_session(ScriptedChatModel([asks(("1", "work", {})), "No more actions.", "Done."]), gated_tool(gate))
    created = await talk.status()
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()

    running = await talk.status()
    gate.open()
    await run

    assert (created, running, await talk.status()) == (S.CREATED, S.RUNNING, S.COMPLETED)


def test_the_changes_are_those_of_the_contract() -> None:
    ended = {S.COMPLETED, S.FAILED, S.ABORTED, S.ROUND_LIMIT, S.TURN_LIMIT}

    assert set(LEGAL) == {
        (S.CREATED, S.RUNNING),
        *((S.RUNNING, end) for end in ended),
        *((end, S.RUNNING) for end in ended),
    }


def test_every_reason_to_stop_has_an_end() -> None:
    assert set(STATUS_OF.values()) == ENDED_STATUSES


def channel(status: SessionStatus) -> StatusChannel:
    fresh = StatusChannel(str)
    fresh.key = "status"
    return fresh.from_checkpoint(status.value) if status is not S.CREATED else fresh


@pytest.mark.parametrize(("before", "after"), EVERY)
def test_the_channel_takes_what_is_allowed_and_nothing_else(before: SessionStatus, after: SessionStatus) -> None:
    held = channel(before)

    if after in NEXT[before] or before == after:
        held.update([after.value])
        assert held.get() == after
    else:
        with pytest.raises(InvalidUpdateError, match=f"is {before} cannot become {after}"):
            held.update([after.value])


@given(st.lists(st.sampled_from(list(S)), max_size=12))
def test_only_allowed_status_changes_are_stored(written: list[SessionStatus]) -> None:
    held, at = channel(S.CREATED), S.CREATED
    for status in written:
        try:
            held.update([status.value])
        except InvalidUpdateError:
            assert status not in NEXT[at]
            assert status != at
        else:
            assert status in NEXT[at] or status == at
            at = status
        assert (held.get() if held.is_available() else S.CREATED) == at


@given(st.sampled_from(list(S)), st.text() | st.integers() | st.none())
def test_an_unknown_status_is_refused(before: SessionStatus, written: Any) -> None:
    if written in set(S):
        return
    with pytest.raises(InvalidUpdateError, match="is no session status"):
        check_change(before, written)


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_the_event_of_a_change_names_both(before: SessionStatus, after: SessionStatus) -> None:
    event = status_event(before, after, 2)

    assert {key: event[key] for key in ("type", "from", "to", "step")} == {
        "type": "status",
        "from": str(before),
        "to": str(after),
        "step": 2,
    }


@pytest.mark.parametrize("as_node", [None, "plan", "tools", "finalize"])
@pytest.mark.parametrize("after", [status for status in S if status not in (S.RUNNING, S.COMPLETED)])
async def test_an_update_from_outside_cannot_write_another(as_node: str | None, after: SessionStatus) -> None:
    graph = create_graph_agent(ScriptedChatModel(["Done."]), checkpointer=InMemorySaver())
    await graph.ainvoke(says("go"), thread())

    with pytest.raises(InvalidUpdateError, match=f"is COMPLETED cannot become {after}"):
        await graph.aupdate_state(thread(), {"status": after.value}, as_node=as_node)

    assert (await graph.aget_state(thread())).values["status"] == "COMPLETED"


async def test_every_stop_at_a_limit_names_its_reason() -> None:
    talk = new_session(ScriptedChatModel([ECHO, "So far."]), echo, config=LoopConfig(max_steps=1))

    result = await talk.run("go")

    assert (result.status, result.stop_reason) == (S.ROUND_LIMIT, "step_limit")
