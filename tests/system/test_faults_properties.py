"""Random waves under random faults: no call is lost, repeated or misreported."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from graph_agent import SessionStatus
from graph_agent.base.types import STATUS_OF
from graph_agent.core.state.channels import NEXT
from graph_agent.core.state.registry import _under_way
from graph_agent.errors import SessionBusyError
from graph_agent.session.control import SessionControl
from graph_agent.session.results import open_interrupts
from tests.support.fault_agent import ANSWER, MARKS, Wave
from tests.support.fault_session import Watched, turns

ACTIONS = ["steer", "follow_up", "abort", "cancel", "input", "answer", "busy"]


@st.composite
def waves(draw: st.DrawFn) -> list[Wave]:
    """One to three waves of up to four calls, each of which may need one before it."""
    made: list[Wave] = []
    for wave in range(draw(st.integers(1, 3))):
        calls: list[tuple[str, str, list[str]]] = []
        for index in range(draw(st.integers(1, 4))):
            name = draw(st.sampled_from(sorted(MARKS)))
            needs = draw(st.lists(st.sampled_from([id_ for id_, *_ in calls]), max_size=1)) if calls else []
            calls.append((f"w{wave}-{index}-{name}", name, needs))
        made.append(calls)
    return made


class Driver:
    """Applies faults to a session, each after some turns of the event loop, and then completes it."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.session = watched.session
        self.sent: dict[str, list[str]] = {"steer": [], "follow_up": []}
        self.run: asyncio.Task[Any] | None = None
        self.inputs = 0

    async def act(self, action: str) -> None:
        match action:
            case "steer" | "follow_up":
                text = f"{action} {len(self.sent[action])}"
                self.sent[action].append(text)
                await getattr(self.session, action)(text)
            case "abort":
                await self.session.abort()
            case "cancel":
                await self.stop()
            case "input":
                await self.stop()
                self.begin()
            case "answer":
                if self.run is not None and self.run.done():
                    answers = await self._answers()
                    self.run = asyncio.create_task(self.session.resume(answers)) if answers else None
            case "busy":
                if (await self.session.status()) == "RUNNING" and self.run is not None and _under_way:
                    [first] = _under_way.values()
                    second = asyncio.create_task(self.session.run("refused, or begun after the first"))
                    while not second.done():
                        held = [*_under_way.values()]
                        assert held in ([], [first]) or first.ended.done(), "a second run was let in"
                        await asyncio.sleep(0)
                    with contextlib.suppress(SessionBusyError):
                        await second

    def begin(self) -> None:
        self.inputs += 1
        self.run = asyncio.create_task(self.session.run(f"input {self.inputs}"))

    async def stop(self) -> None:
        if self.run is not None:
            self.run.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.run
            self.run = None

    async def _answers(self) -> dict[str, str]:
        """An answer for each question that the session has."""
        state = await self.watched.graph.aget_state(self.watched.config)
        return {question.id: "yes" for question in open_interrupts(state)}

    async def end(self) -> None:
        """Complete it: answer its interrupts, and send inputs until every note is delivered."""
        if self.run is not None:
            await self.run
        control = SessionControl(self.watched.graph, self.session.id)
        for _ in range(60):
            state = await self.watched.graph.aget_state(self.watched.config)
            if answers := await self._answers():
                await self.session.resume(answers)
            elif state.tasks:
                await self.session.resume()
            elif (
                await control.pending("steer")
                or await control.pending("follow_up")
                or state.values.get("status") != "COMPLETED"
            ):
                await self.session.run("go on")
            else:
                return
        raise AssertionError("it has no end")


def wrong(watched: Watched, values: dict[str, Any], sent: dict[str, list[str]]) -> list[str]:
    """The violations, except those of results."""
    messages, events = values["messages"], values["events"]
    steered = [message.text for message in messages if "graph_agent_steering" in message.additional_kwargs]
    followed = [m.text for m in messages if m.type == "human" and m.text.startswith("follow_up")]
    recorded = [event["content"] for event in events if event["type"] == "steering"]
    changes = [(event["from"], event["to"]) for event in events if event["type"] == "status"]
    begun = [event["id"] for event in events if event["type"] == "tool_call"]
    ended = [event["id"] for event in events if event["type"] == "tool_result" and event["id"] in begun]
    faults = [
        f"{what}: {got}, not {expected}"
        for what, got, expected in (
            ("steered", steered, sent["steer"]),
            ("recorded as steering", recorded, sent["steer"]),
            ("followed up", followed, sent["follow_up"]),
            ("results", ended, begun),
            ("status", values["status"], STATUS_OF[values["stop_reason"]]),
            ("answer", messages[-1].text, ANSWER),
        )
        if got != expected
    ]
    at: str = SessionStatus.CREATED
    for before, after in changes:
        if before != at or SessionStatus(after) not in NEXT[SessionStatus(before)]:
            faults.append(f"the status went from {at} to {before} → {after}")
        at = after
    return faults


async def play(watched: Watched, script: list[tuple[int, str]]) -> list[str]:
    driver = Driver(watched)
    driver.begin()
    for wait, action in script:
        if driver.run is not None:
            await turns(driver.run, wait)
        await driver.act(action)
    await driver.end()
    stored = await watched.stored()
    values = (await watched.graph.aget_state(watched.config)).values
    return [*(await watched.untrue(stored, ledger=False)), *wrong(watched, values, driver.sent)]


@settings(max_examples=500 if settings.get_current_profile_name() == "thorough" else 20)
@given(
    waves(),
    st.lists(st.tuples(st.integers(0, 90), st.sampled_from(ACTIONS)), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_any_fault_leaves_a_valid_session(
    planned: list[Wave], script: list[tuple[int, str]], structured: bool, ledger: bool
) -> None:
    faults = asyncio.run(play(Watched(structured=structured, ledger=ledger, waves=planned), script))

    assert (faults, dict(_under_way)) == ([], {})
