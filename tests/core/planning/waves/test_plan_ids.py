"""Ids that a model uses again: in a later plan of an input, or in another input of the session."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import after_model
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver

from examples.hotel import waves as hotel_waves
from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent, idempotency_key
from graph_agent.approvals import approve, respond
from graph_agent.persistence import open_saver
from graph_agent.session.forks import copy_session
from graph_agent.spec import load_spec, open_agent
from graph_agent.testing import read_recording, replay
from tests.support.agents import asks, echo, thread
from tests.support.gates import Gate, gated_tool
from tests.support.wave_helpers import DONE, answers, fail, of_type, plan, plan_requests, results_of, use, waves

HOTEL = Path(hotel_waves.__file__).with_name("agent.yaml")
LAST = {"status": "done"}


@tool
async def pay(room: str) -> str:
    """Pay for a room."""
    return f"{room} {idempotency_key()}"


@pytest.mark.parametrize("planner", ["wave", "dag"])
@pytest.mark.parametrize("question", hotel_waves.QUESTIONS)
async def test_the_hotel_answers_a_question_again_in_the_same_session(
    question: str, planner: hotel_waves.Planner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with open_agent(load_spec(HOTEL), today=hotel_waves.TODAY, db=url) as agent:
        first = await hotel_waves.show(agent, "same", question, planner)
        shown = capsys.readouterr().out
        again = await hotel_waves.show(agent, "same", question, planner)
        events = await Session(agent, "same").events()

    ids = [event["id"] for event in events if event["type"] == "tool_call"]
    answer, repeated = (text.rpartition("ms\n")[2] for text in (shown, capsys.readouterr().out))
    assert (first, again, len(ids) - len(set(ids)), repeated) == (True, True, 0, answer)


async def test_a_booking_refers_to_the_room_of_its_own_input() -> None:
    ask = [plan(use("r", "echo", text="room 1")), plan(use("book", "pay", room="${r}"), **LAST), "Booked."]
    again = [plan(use("r", "echo", text="room 2")), plan(use("book", "pay", room="${r}"), **LAST), "Booked again."]
    session = waves([*ask, *again], tools=[echo, pay])

    first, second = await session.run("one"), await session.run("two")

    booked = [result.results["book"].split() for result in (first, second)]
    calls = of_type(await session.events(), "tool_call", "id", "plan_id", "arguments")
    assert ([room[:2] for room in booked], calls, len({room[2] for room in booked})) == (
        [["room", "1"], ["room", "2"]],
        [
            ("r", "r", {"text": "room 1"}),
            ("book", "book", {"room": "room 1"}),
            ("r#2", "r", {"text": "room 2"}),
            ("book#2", "book", {"room": "room 2"}),
        ],
        2,
    )


async def test_a_second_call_of_an_id_is_a_second_payment() -> None:
    script = [plan(use("r", "pay", room="1")), plan(use("r", "pay", room="1")), DONE, "Paid."]
    session = waves(script, tools=[pay])

    result = await session.run("go")

    paid = [call.result for call in result.calls]
    assert (len(set(paid)), result.results) == (2, {"r": paid[1]})


@pytest.mark.parametrize("needs", [[], ["r"]], ids=["reference", "needs"])
async def test_a_retry_under_the_id_of_a_failed_call_counts(needs: list[str]) -> None:
    book = use("b", "echo", *needs, text="${r}" if not needs else "x")
    script = [plan(use("r", "fail")), plan(use("r", "echo", text="x")), plan(book, **LAST), "Booked."]
    session = waves(script, tools=[echo, fail])

    result = await session.run("go")

    assert (result.results, [call.status for call in result.calls]) == (
        {"r": "x", "b": "x"},
        ["error", "success", "success"],
    )


async def test_a_reference_to_a_newest_call_that_failed_is_not_an_older_result() -> None:
    script = [plan(use("r", "echo", text="old")), plan(use("r", "fail")), plan(use("b", "echo", text="${r}")), DONE]
    session = waves([*script, "Sorry."], tools=[echo, fail])

    result = await session.run("go")

    assert result.results == {
        "r": {"error": "fail failed: ValueError: no such thing"},
        "b": {"error": "Not run: it needs 'r', which failed or was not run."},
    }


async def test_the_result_of_an_unfinished_newest_call_is_not_the_older_one() -> None:
    gate = Gate()
    script = [plan(use("r", "echo", text="old")), plan(use("r", "work"))]
    session = waves(script, tools=[echo, gated_tool(gate)])
    async with session_running(session):
        await gate.reached()
        result = await session.driver.result()

    assert (result.results, result.pending) == ({}, [{"id": "r#2", "plan_id": "r", "name": "work"}])


@asynccontextmanager
async def session_running(session: Session) -> AsyncIterator[None]:
    """Run an input in the background; cancel it at the end."""
    task = asyncio.create_task(session.run("go"))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_model_reads_its_own_ids_in_every_input() -> None:
    wave = plan(use("a", "echo", text="x"), use("b", "echo", text="${a}!"))
    model = ScriptedChatModel([wave, DONE, "One.", wave, DONE, "Two."])
    session = waves(model, tools=[echo])
    await session.run("one")

    await session.run("two")

    request = plan_requests(model)[-1]
    plans = [json.loads(each.text)["tools"] for each in request if each.text.startswith('{"status"')]
    assert (plans, results_of(request)) == (
        [[{"id": "a", "tool": "echo", "args": {"text": "x"}}, {"id": "b", "tool": "echo", "args": {"text": "${a}!"}}]]
        * 2,
        [{"a": "x", "b": "x!"}] * 2,
    )


async def test_delegates_and_needs_go_by_the_plans_own_ids() -> None:
    helper = create_graph_agent(ScriptedChatModel(["one", "two"]), name="helper")
    wave = plan(
        use("d", "delegate_to_helper", task="find"),
        use("e", "echo", "d", text="${d}"),
        use("f", "echo", "e", text="y"),
        **LAST,
    )
    session = waves([wave, "One.", wave, "Two."], tools=[echo], delegates=[GraphDelegate("helper", "Helps.", helper)])

    found = [(await session.run(text)).results for text in ("one", "two")]

    assert (found, of_type(await session.events(), "delegation_request", "id", "plan_id")) == (
        [{"d": "one", "e": "one", "f": "y"}, {"d": "two", "e": "two", "f": "y"}],
        [("d", "d"), ("d#2", "d")],
    )


async def test_each_use_of_an_id_has_an_approval_of_its_own() -> None:
    wave = plan(use("r", "pay", room="1"), use("b", "echo", text="got ${r}"), **LAST)
    session = waves([wave, "One.", wave, "Two."], tools=[pay, echo], settings={"approve": ["pay"]})
    await session.run("one")
    first = await session.resume(approve())

    waiting = await session.run("two")
    second = await session.resume({"decisions": {"r#2": respond("nothing")}})

    asked = waiting.interrupts[0].value["call_ids"]
    assert (first.results["b"][:5], asked, second.results) == (
        "got 1",
        ["r#2"],
        {"r": "nothing", "b": "got nothing"},
    )


async def test_a_response_of_a_person_can_be_referred_to_by_a_later_plan() -> None:
    script = [plan(use("r", "pay", room="1")), plan(use("b", "echo", text="got ${r}"), **LAST), "One."]
    session = waves(script, tools=[pay, echo], settings={"approve": ["pay"]})
    await session.run("one")

    result = await session.resume(respond("nothing"))

    assert result.results == {"r": "nothing", "b": "got nothing"}


async def test_a_wave_with_used_ids_goes_on_after_a_restart(tmp_path: Path) -> None:
    gate, url = Gate(), f"sqlite:///{tmp_path / 'waves.db'}"
    before = plan(use("a", "echo", text="x"), use("s", "echo", text="y"), **LAST)
    wave = plan(use("a", "echo", text="new"), use("s", "work", "a"), use("c", "echo", text="${s} ${a}"), **LAST)
    async with open_saver(url) as saver:
        session = waves([before, "One.", wave], tools=[echo, gated_tool(gate, effect="read")], checkpointer=saver)
        await session.run("one")
        async with session_running(session):
            await gate.reached()
    gate.open()

    async with open_saver(url) as saver:
        session = waves(["Two."], tools=[echo, gated_tool(gate, effect="read")], checkpointer=saver)
        result = await session.resume()
        messages = (await session.graph.aget_state(thread())).values["messages"]

    assert (result.results, [len(found) for _, found in answers(messages)]) == (
        {"a": "new", "s": "worked", "c": "worked new"},
        [1] * 5,
    )


class Narrow(ScriptedChatModel):
    """Refuses a request of more than 10,000 characters."""

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        _check_length(messages)
        return await super()._agenerate(messages, *args, **kwargs)

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        _check_length(messages)
        async for chunk in super()._astream(messages, *args, **kwargs):
            yield chunk


def _check_length(messages: list[Any]) -> None:
    if sum(len(message.text) for message in messages) > 10_000:
        raise ValueError("context_length_exceeded")


async def test_a_shortened_conversation_keeps_the_plans_own_ids() -> None:
    wave = plan(use("a", "echo", text="x" * 2000), **LAST)
    model = Narrow(responses=list(itertools.chain(*([wave, f"{number}."] for number in range(4)))))
    session = waves(model, tools=[echo])

    results = [list((await session.run(f"question {number}")).results) for number in range(4)]

    shown = {id_ for request in plan_requests(model) for found in results_of(request) for id_ in found}
    warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]
    assert (results, shown, any("a note in place of its older part" in text for text in warnings)) == (
        [["a"]] * 4,
        {"a"},
        True,
    )


async def test_a_fork_and_a_replay_go_by_the_plans_own_ids(tmp_path: Path) -> None:
    wave = plan(use("r", "echo", text="x"), use("b", "echo", "r", text="${r}!"), **LAST)
    saver = InMemorySaver()
    session = waves([wave, "One.", wave, "Two.", wave, "Three."], tools=[echo], checkpointer=saver)
    await session.run("one")
    await session.run("two")
    events = await session.events()
    await copy_session(saver, "s1", "fork", events[-1]["seq"])

    forked = await Session(session.graph, "fork").run("three")
    recording = await read_recording(saver, "s1")
    played = await replay(recording, session.graph)

    replies = [reply.tool_calls for each in recording.inputs for step in each.steps for reply in step.replies]
    ids = [[(call["id"], call.get("needs")) for call in calls] for calls in replies if calls]
    assert (forked.results, ids, played.differences) == (
        {"r": "x", "b": "x!"},
        [[("r", None), ("b", ["r"])]] * 2,
        (),
    )


async def test_middleware_that_sees_replies_keeps_the_plans_own_ids() -> None:
    @after_model
    def shout(state: Any, runtime: Any) -> Any:
        message = state["messages"][-1]
        if not isinstance(message, AIMessage) or not message.tool_calls:
            return None
        calls = [{**call, "args": {"text": call["args"]["text"].replace("x", "X")}} for call in message.tool_calls]
        return {"messages": [message.model_copy(update={"tool_calls": calls})]}

    wave = plan(use("r", "echo", text="x"), use("b", "echo", text="${r}!"), **LAST)
    session = waves([wave, "One.", wave, "Two."], tools=[echo], hooks=[shout])

    found = [(await session.run(text)).results for text in ("one", "two")]

    assert found == [{"r": "X", "b": "X!"}] * 2


class SecondPlanOnly(InMemoryCache[Any]):
    """Keeps the second plan it is given, and no other."""

    given = 0

    async def aset(self, keys: Any) -> None:
        self.given += 1
        if self.given == 2:
            await super().aset(keys)


async def test_a_cached_plan_is_used_only_where_the_model_reads_the_same_ids() -> None:
    def script(id_: str) -> ScriptedChatModel:
        find = plan(use(id_, "echo", text="x"))
        return ScriptedChatModel([find, plan(use("b", "echo", text=f"${{{id_}}}"), **LAST), "Done."])

    cache, settings = SecondPlanOnly(), {"plan_cache_ttl_s": 60}
    await waves(script("a"), tools=[echo], settings=settings, cache=cache).run("go")
    model = script("q")

    result = await waves(model, tools=[echo], settings=settings, cache=cache).run("go")

    model.assert_spent()
    assert result.results == {"q": "x", "b": "x"}


WRITTEN = json.dumps({"tool_calls": [{"id": "c", "name": "echo", "arguments": {"text": "x"}}]})


@pytest.mark.parametrize(("mode", "call"), [("native", asks(("c", "echo", {"text": "x"}))), ("text", WRITTEN)])
async def test_an_id_that_a_model_repeats_is_stored_once(mode: Literal["native", "text"], call: Any) -> None:
    model = ScriptedChatModel([call, call, "One.", call, "Two."])
    config = LoopConfig(tool_calling=mode, finalize="auto")
    session = Session(create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver()), "s1")

    found = [(await session.run(text)).results for text in ("one", "two")]

    events = await session.events()
    messages = (await session.graph.aget_state(thread())).values["messages"]
    planned = [id_ for (calls,) in of_type(events, "plan", "calls") for id_ in [call["id"] for call in calls]]
    results = [id_ for (id_,) in of_type(events, "tool_result", "id")]
    assert (found, planned, results, answers(messages)) == (
        [{"c": "x", "c#2": "x"}, {"c": "x"}],
        ["c", "c#2", "c#3"],
        ["c", "c#2", "c#3"],
        [("c", ["x"]), ("c#2", ["x"]), ("c#3", ["x"])],
    )


async def test_a_session_of_an_older_version_goes_on() -> None:
    # Older versions renamed a used id in the plan itself, and stored no plan id.
    old: list[dict[str, Any]] = [
        {"type": "user_message", "content": "one"},
        {"type": "plan", "status": "continue", "action": "", "reasoning": "", "slots": {}, "planner": "wave",
         "calls": [{"id": "r", "name": "echo"}, {"id": "b", "name": "echo", "needs": ["r"]}]},
        {"type": "tool_call", "id": "r", "name": "echo", "arguments": {"text": "x"}},
        {"type": "tool_result", "id": "r", "name": "echo", "status": "success", "content": "x", "truncated": False},
        {"type": "tool_call", "id": "b", "name": "echo", "arguments": {"text": "x"}},
        {"type": "tool_result", "id": "b", "name": "echo", "status": "success", "content": "x", "truncated": False},
        {"type": "agent_response", "content": "One."},
        {"type": "status", "from": "RUNNING", "to": "COMPLETED"},
    ]  # fmt: skip
    stored = [{"ts": "2026-01-01T00:00:00.000000+00:00", "step": 1, **entry} for entry in old]
    calls: list[Any] = [
        {"id": "r", "name": "echo", "args": {"text": "x"}},
        {"id": "b", "name": "echo", "args": {"text": "${r}"}},
    ]
    results = [ToolMessage("x", tool_call_id=id_, id=f"t{id_}") for id_ in "rb"]
    planned = AIMessage("", tool_calls=calls, id="p1")
    messages = [HumanMessage("one", id="u1"), planned, *results, AIMessage("One.", id="a1")]
    model = ScriptedChatModel([plan(use("r", "echo", text="y"), use("b", "echo", text="${r}"), **LAST), "Two."])
    session = waves(model, tools=[echo])
    values = {"messages": messages, "events": stored, "status": "COMPLETED"}
    await session.graph.aupdate_state(thread(), {**values, "status": "RUNNING"}, as_node="finalize")
    await session.graph.aupdate_state(thread(), {"status": "COMPLETED"}, as_node="finalize")
    before = await session.driver.result()

    result = await session.run("two")

    assert (before.results, result.results, results_of(model.requests[0].messages)) == (
        {"r": "x", "b": "x"},
        {"r": "y", "b": "y"},
        [{"r": "x", "b": "x"}],
    )


IDS = st.sampled_from(["a", "b", "c"])
TARGETS = st.lists(IDS, max_size=2, unique=True)
WAVES = st.lists(st.dictionaries(IDS, TARGETS, min_size=1, max_size=3), min_size=1, max_size=4)
INPUTS = st.lists(WAVES, min_size=1, max_size=3)


def as_plan(wave: dict[str, list[str]], number: int) -> str:
    calls = [
        use(id_, "echo", text=" ".join([f"{id_}{number}", *(f"${{{target}}}" for target in targets)]))
        for id_, targets in wave.items()
    ]
    return plan(*calls)


@given(INPUTS)
async def test_any_reference_is_to_the_newest_call_of_its_id_in_the_input(
    inputs: list[list[dict[str, list[str]]]],
) -> None:
    numbers = itertools.count()
    script: list[str] = []
    expected: list[dict[str, str]] = []
    for given_waves in inputs:
        values: dict[str, str] = {}
        for wave in given_waves:
            number = next(numbers)
            # Only references that resolve: to an earlier call of the input, or to one before it in the plan.
            done: list[str] = []
            kept: dict[str, list[str]] = {}
            for id_, targets in wave.items():
                kept[id_] = [each for each in targets if each in done or (each in values and each not in wave)]
                done.append(id_)
            for id_, targets in kept.items():
                values[id_] = " ".join([f"{id_}{number}", *(values[target] for target in targets)])
            script.append(as_plan(kept, number))
        script += [DONE, "Answer."]
        expected.append(dict(values))
    session = waves(script, tools=[echo], settings={"max_steps": 8})

    found = [(await session.run(f"input {number}")).results for number in range(len(inputs))]

    ids = Counter(id_ for (id_,) in of_type(await session.events(), "tool_call", "id"))
    assert (found, max(ids.values())) == (expected, 1)


async def test_a_call_of_a_result_has_the_id_of_its_plan() -> None:
    scripts = [plan(use("r", "echo", text="1"), status="done"), "One.", plan(use("r", "echo", text="2"), status="done")]
    session = waves([*scripts, "Two."], tools=[echo])

    found = [(await session.run(text)).calls for text in ("one", "two")]

    assert [[(call.plan_id, call.id == "r") for call in calls] for calls in found] == [[("r", True)], [("r", False)]]
