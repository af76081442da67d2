"""An approval request states that an equal call was made before and may have taken effect.

A standing approval does not cover such a call.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

import pytest
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphAgent, LoopConfig, RunResult, ScriptedChatModel, Session, create_graph_agent
from graph_agent.approvals import HeldCall, approve, reject
from graph_agent.base.approvals.requests import calls_of_request, request_of
from graph_agent.base.approvals.text import question_text
from graph_agent.marks import Marks, marked
from graph_agent.session.forks import fork_session
from tests.support.agents import asks

SENT = asks(("a", "send", {"to": "ada", "cents": 5}))
AGAIN = ("b", "send", {"cents": 5.0, "to": " ada"})
MADE_BEFORE = "An equal call (a, step 1{}) was made before, and its outcome is unknown: it may have taken effect."


class Process:
    """An agent whose tool `send` waits without end at its first call, so that the process can be stopped there.

    LangChain's middleware asks for approvals if `mode` is one of its modes.
    """

    def __init__(self, *script: str | AIMessage, marks: Marks | None = None, mode: Any = None, **config: Any) -> None:
        self.started = asyncio.Event()
        self.saver = InMemorySaver()

        async def send(to: str, cents: int) -> str:
            """Send money."""
            if not self.started.is_set():
                self.started.set()
                await asyncio.Event().wait()
            return f"Sent {cents} to {to}."

        async def look(to: str) -> str:
            """Look up an account."""
            return f"{to} has an account."

        config = config if mode else {"approve": ["send", "look"], **config}
        hooks = [HumanInTheLoopMiddleware(interrupt_on={"send": True}, interrupt_mode=mode)] if mode else []
        tools = [marked(send, **(marks or {})), marked(look, effect="read")]
        self.agent: GraphAgent = create_graph_agent(
            ScriptedChatModel([SENT, *script]),
            tools,
            hooks=hooks,
            config=LoopConfig(**config),
            checkpointer=self.saver,
        )

    @cached_property
    def session(self) -> Session:
        """The session `s1`."""
        return self.agent.session("s1")

    async def lost(self, *, always: bool = False) -> Session:
        """Return the session, after its process was lost in the middle of the approved call."""
        await self.session.run("Send 5 to Ada.")
        run = asyncio.create_task(self.session.resume(approve(always=always)))
        await self.started.wait()
        run.cancel()
        await asyncio.wait([run])
        return self.session


def descriptions(waiting: RunResult) -> list[str | None]:
    """The description of each call that waits."""
    return [each.get("description") for each in waiting.interrupts[0].value["action_requests"]]


async def test_the_request_for_an_equal_call_names_the_call_whose_outcome_is_unknown() -> None:
    process = Process(asks(AGAIN, ("c", "send", {"to": "ben", "cents": 5}), ("d", "look", {"to": "ada"})))

    waiting = await (await process.lost()).resume()

    assert descriptions(waiting) == [MADE_BEFORE.format(""), None, None]


async def test_the_sentence_is_in_the_event_and_in_the_text_of_the_question() -> None:
    session = await Process(asks(AGAIN)).lost()

    waiting = await session.resume()

    requested = [each for each in await session.events() if each["type"] == "approval_request"][-1]
    shown = question_text(waiting.interrupts[0].value).splitlines()[2].strip()
    assert [requested["calls"][0]["description"], shown] == [MADE_BEFORE.format("")] * 2


async def test_a_call_of_an_earlier_message_is_named() -> None:
    session = await Process(asks(AGAIN)).lost()

    assert descriptions(await session.run("Try again.")) == [MADE_BEFORE.format(" of an earlier message")]


async def test_a_lost_call_that_a_fork_leaves_out_is_named() -> None:
    process = Process(asks(AGAIN))
    await process.lost()
    await fork_session(process.saver, None, "s1", "f1", -1)

    waiting = await process.agent.session("f1").run("Send 5 to Ada.")

    assert descriptions(waiting) == [
        "An equal call (a, step 1) was made in the session 's1', from which this one is forked, and its outcome is "
        "unknown: it may have taken effect."
    ]


async def test_an_aborted_call_is_named() -> None:
    process = Process(asks(AGAIN))
    await process.session.run("Send 5 to Ada.")
    run = asyncio.create_task(process.session.resume(approve()))
    await process.started.wait()
    await process.session.abort()
    await run

    waiting = await process.session.run("Try again.")

    assert descriptions(waiting) == [MADE_BEFORE.format(" of an earlier message")]


async def test_a_call_that_reached_its_time_limit_is_named() -> None:
    process = Process(asks(AGAIN), marks={"timeout_s": 0.05})
    await process.session.run("Send 5 to Ada.")

    assert descriptions(await process.session.resume(approve())) == [MADE_BEFORE.format("")]


async def test_a_repeated_request_has_the_sentence_once_after_the_description_of_the_policy() -> None:
    both = asks(AGAIN, ("c", "look", {"to": "ada"}))
    process = Process(both, marks={"approve": "Is the sum right?"})
    await (await process.lost()).resume()

    waiting = await process.session.resume({"decisions": {"c": approve()}})

    assert descriptions(waiting) == [f"Is the sum right?\n{MADE_BEFORE.format('')}"]


@pytest.mark.parametrize("marks", [{"effect": "read"}, {"idempotent": True}])
async def test_a_call_that_a_resume_repeats_is_not_uncertain(marks: Marks) -> None:
    process = Process(asks(AGAIN), marks=marks)

    assert descriptions(await (await process.lost()).resume()) == [None]


async def test_a_rejected_call_is_not_uncertain() -> None:
    process = Process(asks(AGAIN))
    await process.session.run("Send 5 to Ada.")

    assert descriptions(await process.session.resume(reject())) == [None]


async def test_a_call_that_only_reads_is_not_uncertain_after_a_new_message() -> None:
    session = await Process(asks(AGAIN), marks={"effect": "read"}).lost()

    assert descriptions(await session.run("Try again.")) == [None]


async def test_a_standing_approval_does_not_cover_an_equal_call() -> None:
    other = ("c", "send", {"to": "ben", "cents": 5})
    session = await Process(asks(other), asks(AGAIN), asks(AGAIN), "Done.").lost(always=True)

    asked = await session.run("Send 5 to Ben, and again to Ada.")
    again = await session.resume(approve())
    ended = await session.resume(approve())

    decided = [e for e in await session.events() if e["type"] == "approval_decision"]
    assert [(e["id"], e["decided_by"]) for e in decided] == [
        ("a", "user"),
        ("c", "always (user)"),
        ("b", "user"),
        ("b#2", "user"),
    ]
    assert (descriptions(asked), descriptions(again), ended.answer) == (
        [MADE_BEFORE.format(" of an earlier message")],
        [MADE_BEFORE.format(" of an earlier message")],
        "Done.",
    )


async def test_a_callback_sees_that_the_outcome_of_an_equal_call_is_unknown() -> None:
    process = Process(asks(AGAIN), "Done.")
    await process.lost(always=True)
    seen: list[Any] = []

    def decide(call: HeldCall) -> bool:
        seen.append((call["id"], call.get("uncertain")))
        return False

    ended = await process.agent.session("s1", on_approval=decide).run("Try again.")

    assert (seen, ended.calls[-1].status) == ([("b", True)], "denied")


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_request_of_middleware_names_the_equal_call(mode: str) -> None:
    process = Process(asks(AGAIN, ("c", "send", {"to": "ben", "cents": 5})), "Done.", mode=mode)

    waiting = await (await process.lost()).run("Try again.")

    asked = [call for each in waiting.interrupts for call in calls_of_request(request_of(each) or {})]
    texts = [call["description"].split("\n")[4:] for call in asked]
    marks = [call.get("uncertain", False) for call in asked]
    ended = await process.session.resume({each.id: approve() for each in waiting.interrupts})
    events = [e for e in await process.session.events() if e["type"] == "approval_request"]
    recorded = [call.get("uncertain", False) for each in events[-len(waiting.interrupts) :] for call in each["calls"]]
    assert (texts, marks, recorded, ended.answer) == (
        [[MADE_BEFORE.format(" of an earlier message")], []],
        [True, False],
        [True, False],
        "Done.",
    )


async def test_a_request_reads_only_the_events_since_the_last_one() -> None:
    process = Process(asks(("b", "send", {"to": "ben", "cents": 1})), asks(("c", "send", {"to": "ben", "cents": 2})))
    session = await process.lost()
    await session.resume()
    first = (await process.agent.aget_state({"configurable": {"thread_id": "s1"}})).values
    await session.resume(approve())
    second = (await process.agent.aget_state({"configurable": {"thread_id": "s1"}})).values

    # The request itself follows the events that were read.
    read = [(len(each["events"]) - 1, each["loop"]["uncertain"]["read"]) for each in (first, second)]
    assert [count == at for count, at in read] == [True, True]
    assert list(first["loop"]["uncertain"]["calls"].values()) == ["a, step 1"]
    assert second["loop"]["uncertain"]["calls"] == first["loop"]["uncertain"]["calls"]
