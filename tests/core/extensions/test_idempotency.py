"""Idempotency keys of repeated calls."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, create_graph_agent, idempotency_key
from graph_agent.calls import Call, canonical_arguments
from graph_agent.errors import InputError
from tests.support.agents import asks, marked
from tests.support.gates import Gate
from tests.support.sessions import new_session

DONE = ["No more actions.", "Done."]


ONE_BY_ONE = LoopConfig(max_parallel_calls=1)


@tool
async def awaited(n: int) -> str:
    """Return the key, as a coroutine."""
    await asyncio.sleep(0)
    return idempotency_key()


@tool
def blocking(n: int) -> str:
    """Return the key, in a thread."""
    return idempotency_key()


async def test_tools_of_both_kinds_read_a_key_of_their_own_call() -> None:
    wave = asks(("1", "awaited", {"n": 1}), ("2", "blocking", {"n": 1}), ("3", "awaited", {"n": 2}))

    result = await new_session(ScriptedChatModel([wave, *DONE]), awaited, blocking).run("go")

    keys = set(result.results.values())
    assert (len(keys), {len(key) for key in keys}) == (3, {64})


async def test_a_call_that_is_run_again_has_the_same_key() -> None:
    keys: list[str] = []
    gate = Gate()

    @tool
    async def order(n: int) -> str:
        """Record the key, then block."""
        keys.append(idempotency_key())
        await gate.passing()
        return str(interrupt("Sure?"))

    talk = new_session(ScriptedChatModel([asks(("1", "order", {"n": 1})), *DONE]), marked(order, idempotent=True))
    run = asyncio.create_task(talk.run("go"))
    await gate.reached()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    gate.open()
    await talk.resume()
    await talk.resume("yes")

    assert (len(keys), len(set(keys))) == (3, 1)


async def test_the_very_same_call_of_a_later_plan_or_input_is_another() -> None:
    same = asks(("1", "awaited", {"n": 1}))
    talk = new_session(ScriptedChatModel([same, same, *DONE, same, *DONE]), awaited)
    await talk.run("one")
    await talk.run("two")

    keys = [event["content"] for event in await talk.events() if event["type"] == "tool_result"]
    assert (len(keys), len(set(keys))) == (3, 3)


async def test_a_delegates_calls_have_keys_of_their_own() -> None:
    same = asks(("1", "noting", {"n": 1}))
    keys: list[str] = []

    @tool
    async def noting(n: int) -> str:
        """Record the key."""
        keys.append(idempotency_key())
        return "noted"

    inner = create_graph_agent(ScriptedChatModel([same, *DONE, same, *DONE]), tools=[noting])
    wave = asks(("1", "noting", {"n": 1}), ("d", "delegate_to_r", {"task": "t"}), ("e", "delegate_to_r", {"task": "t"}))
    delegates = [GraphDelegate("r", "R.", inner)]

    await new_session(ScriptedChatModel([wave, *DONE]), noting, delegates=delegates, config=ONE_BY_ONE).run("go")

    assert (len(keys), len(set(keys))) == (3, 3)


def test_outside_a_tool_there_is_no_call() -> None:
    with pytest.raises(InputError, match="inside of a tool"):
        idempotency_key()


arguments = st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=4)
calls = st.builds(lambda id_, name, args: Call(id=id_, name=name, arguments=args), st.text(), st.text(), arguments)


@given(st.text(), calls)
def test_the_order_of_arguments_does_not_matter(session_id: str, call: Call) -> None:
    turned = Call(id=call["id"], name=call["name"], arguments=dict(reversed(call["arguments"].items())))

    assert idempotency_key(session_id, call) == idempotency_key(session_id, turned)


@given(st.text(), st.text(), calls, calls)
def test_other_calls_and_sessions_have_other_keys(session_id: str, other_id: str, call: Call, other: Call) -> None:
    def parts(of: str, given: Call) -> tuple[str, ...]:
        return of, given["id"], given["name"], canonical_arguments(given["arguments"])

    assert (idempotency_key(session_id, call) == idempotency_key(other_id, other)) == (
        parts(session_id, call) == parts(other_id, other)
    )
