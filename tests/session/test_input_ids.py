"""Inputs with an id: run once, in any process and after any fault."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.approvals import approve
from graph_agent.errors import InputConflictError, InputError, InputSupersededError, RunFailedError, SessionBusyError
from graph_agent.persistence import strict_serializer
from graph_agent.session.results import Done, Progress, Token
from tests.support.agents import ECHO_SCRIPT, asks, echo, marked, says
from tests.support.approvals import Desk, asked
from tests.support.fault_agent import WatchedMemorySaver, WriteFailedError, failing_at, nothing
from tests.support.fault_jobs import ALL
from tests.support.fault_server import ForkServer, fork_server
from tests.support.sessions import conversation_events, new_session


class Unavailable(ScriptedChatModel):
    """A model that does not answer."""

    async def _agenerate(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("The provider is down.")


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

    assert (str(refused.value).partition(". ")[0], len(await conversation_events(talk))) == (
        "The input id 'a' of session 's1' belongs to a different input",
        2,
    )


async def test_an_input_that_never_began_runs_under_its_id_after_another_one() -> None:
    saver = WatchedMemorySaver(serde=strict_serializer())
    talk = new_session(ScriptedChatModel(["Fine."], cycle=True), checkpointer=saver)
    await talk.run("1")
    saver.reach = failing_at(1)
    with pytest.raises(WriteFailedError):
        await talk.run("2", input_id="a")
    saver.reach = nothing
    await talk.run("3")

    result = await talk.run("2", input_id="a")

    inputs = [content for type_, content in await conversation_events(talk) if type_ == "user_message"]
    assert (result.answer, inputs) == ("Fine.", ["1", "3", "2"])


async def test_an_unfinished_input_that_another_one_replaced_is_not_run_again() -> None:
    saver = WatchedMemorySaver(serde=strict_serializer())
    talk = new_session(ScriptedChatModel(["One.", "Two."]), checkpointer=saver)
    saver.reach = failing_at(4)
    with pytest.raises(WriteFailedError):
        await talk.run("1", input_id="a")
    saver.reach = nothing
    await talk.run("2")

    with pytest.raises(InputSupersededError) as refused:
        await talk.run("1", input_id="a")

    assert str(refused.value).startswith("The input 'a' of session 's1' has no answer: a later input came before")


async def test_an_input_resumed_without_its_id_has_its_result() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})), "Done.")
    await desk.session.run("go", input_id="a")

    resumed = await desk.session.resume(approve())

    assert (await desk.session.run("go", input_id="a"), desk.ran) == (resumed, ["wrote a"])


async def test_an_input_that_waits_returns_its_question_again() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})))

    first = await desk.session.run("go", input_id="a")
    again = await desk.session.run("go", input_id="a")

    assert (again, asked(again.interrupts), desk.ran) == (first, [[("write", {"path": "a"})]], [])


async def test_an_answer_whose_run_fails_at_any_write_is_used_once() -> None:
    faults: list[tuple[int, Any]] = []
    number = 0
    for number in itertools.count():
        saver = WatchedMemorySaver(serde=strict_serializer())
        desk = Desk(asks(("1", "write", {"path": "a"})), *["Done."] * 9, checkpointer=saver)
        question = await desk.session.run("go", input_id="a")
        saver.reach = failing_at(number)
        with contextlib.suppress(WriteFailedError):
            await desk.session.resume(approve(), input_id="b")
            break
        saver.reach = nothing

        first = await desk.session.resume(approve(), input_id="b")
        again = [await desk.session.resume(approve(), input_id="b"), await desk.session.run("go", input_id="a")]

        # A call that may have run is not repeated: its result is unknown.
        possible = [["wrote a"]] if first.results == {"1": "wrote a"} else [[], ["wrote a"]]
        if (first.answer, again) != ("Done.", [first, question]) or desk.ran not in possible:
            faults.append((number, (first, again, desk.ran)))
    assert (faults, number > 5) == ([], True)


async def test_an_answer_to_each_question_of_one_tool_is_used_for_its_own_question() -> None:
    @tool
    async def pack() -> str:
        """Ask twice."""
        return f"{interrupt('Which?')} and {interrupt('Which else?')}"

    asking = marked(pack, effect="read")
    faults: list[tuple[int, Any]] = []
    number = 0
    for number in itertools.count():
        saver = WatchedMemorySaver(serde=strict_serializer())
        talk = new_session(ScriptedChatModel([asks(("1", "pack", {})), *["Done."] * 9]), asking, checkpointer=saver)
        await talk.run("go", input_id="a")
        saver.reach = failing_at(number)
        with contextlib.suppress(WriteFailedError):
            await talk.resume("socks", input_id="b")
            break
        saver.reach = nothing

        questions = [(await talk.resume("socks", input_id="b")).interrupts for _ in range(2)]
        result = await talk.resume("shoes", input_id="c")

        if ([[each.value for each in open_] for open_ in questions], result.results) != (
            [["Which else?"]] * 2,
            {"1": "socks and shoes"},
        ):
            faults.append((number, (questions, result)))
    assert (faults, number > 1) == ([], True)


async def test_a_second_request_of_a_running_input_waits_for_its_result() -> None:
    begun, leave = asyncio.Event(), asyncio.Event()

    @tool
    async def stay() -> str:
        """Wait."""
        begun.set()
        await leave.wait()
        return "left"

    talk = new_session(ScriptedChatModel([asks(("1", "stay", {})), "Done."]), stay)
    first = asyncio.create_task(talk.run("go", input_id="a"))
    await begun.wait()
    second = asyncio.create_task(talk.run("go", input_id="a"))
    with pytest.raises(SessionBusyError):
        await talk.run("else", input_id="b")
    with pytest.raises(InputConflictError):
        await talk.run("else", input_id="a")
    leave.set()

    assert (await second, len(await conversation_events(talk))) == (await first, 2)


async def test_a_stored_result_is_streamed_with_its_events_and_its_answer() -> None:
    talk = new_session(ScriptedChatModel(ECHO_SCRIPT), echo)
    first = [part async for part in talk.stream("Echo hello.", input_id="a")]

    again = [part async for part in talk.stream("Echo hello.", input_id="a")]

    answer = first[-1].result.answer if isinstance(first[-1], Done) else ""
    stored = [part for part in first if not isinstance(part, Token | Progress | Done)]
    assert again == [*stored, Token(answer), first[-1]]


@pytest.mark.parametrize("input_id", ["", "a" * 256, "a\x00", "\ud800", 7])
async def test_an_invalid_input_id_is_refused(input_id: Any) -> None:
    with pytest.raises(InputError) as refused:
        await new_session(ScriptedChatModel([])).run("go", input_id=input_id)

    assert str(refused.value) == f"input_id={input_id!r}: an input id is a text of 1 to 255 printable characters."


async def test_a_failed_input_fails_again_under_its_id() -> None:
    talk = new_session(Unavailable(responses=["never"]))
    strict = new_session(Unavailable(responses=["never"]), config=LoopConfig(on_failure="raise"))

    first, again = [await talk.run("go", input_id="a") for _ in range(2)]
    raised = []
    for _ in range(2):
        with pytest.raises(RunFailedError) as failed:
            await strict.run("go", input_id="a")
        raised.append((str(failed.value), failed.value.kind, failed.value.answer))

    assert (again, raised[1]) == (first, raised[0])


def in_thread(**configurable: Any) -> Any:
    """A run's config for the session `s1`."""
    return {"configurable": {"thread_id": "s1", **configurable}}


@pytest.mark.parametrize("blocking", [False, True])
async def test_the_bare_graph_returns_the_stored_values(blocking: bool) -> None:
    graph = create_graph_agent(ScriptedChatModel(["One.", "Two."]), checkpointer=InMemorySaver())

    async def run(text: str, id_: str) -> Any:
        given, config = says(text), in_thread(graph_agent_input=id_)
        return await (asyncio.to_thread(graph.invoke, given, config) if blocking else graph.ainvoke(given, config))

    first, _, again = await run("1", "a"), await run("2", "b"), await run("1", "a")
    with pytest.raises(InputConflictError):
        await run("2", "a")

    assert (again, len((await graph.aget_state(in_thread())).values["messages"])) == (first, 4)


async def test_the_bare_graph_returns_the_open_question_without_running_a_call() -> None:
    desk = Desk(asks(("1", "write", {"path": "a"})))
    config = in_thread(graph_agent_input="a")

    first, again = [await desk.graph.ainvoke(says("go"), config) for _ in range(2)]
    updates = [chunk async for chunk in desk.graph.astream(says("go"), config, stream_mode=["values", "updates"])]
    typed = await desk.graph.ainvoke(says("go"), config, version="v2")

    assert (again, [mode for mode, _ in updates], typed.interrupts, desk.ran) == (
        first,
        ["values", "updates"],
        tuple(first["__interrupt__"]),
        [],
    )


async def test_a_run_that_a_server_delivers_again_is_completed_once() -> None:
    faults: list[tuple[int, Any]] = []
    number = 0
    for number in itertools.count():
        saver = WatchedMemorySaver(serde=strict_serializer())
        desk = Desk(asks(("1", "write", {"path": "a"})), *["Done."] * 9, approve=None, checkpointer=saver)
        saver.reach = failing_at(number)
        with contextlib.suppress(WriteFailedError):
            await desk.graph.ainvoke(says("go"), in_thread(run_id="r1"))
            break
        saver.reach = nothing

        ended = [await desk.graph.ainvoke(says("go"), in_thread(run_id="r1")) for _ in range(2)]

        inputs = [message.text for message in ended[0]["messages"] if message.type == "human"]
        if (inputs, ended[0]["status"], ended[1], len(desk.ran) <= 1) != (["go"], "COMPLETED", ended[0], True):
            faults.append((number, ended))
    assert (faults, number > 5) == ([], True)


async def test_an_answer_that_a_server_delivers_again_answers_no_other_question() -> None:
    @tool
    async def pack() -> str:
        """Ask twice."""
        return f"{interrupt('Which?')} and {interrupt('Which else?')}"

    calls = asks(("1", "pack", {}))
    model = ScriptedChatModel([calls, asks(("2", "pack", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[marked(pack, effect="read")], checkpointer=InMemorySaver())
    await graph.ainvoke(says("go"), in_thread(run_id="r1"))
    for _ in range(2):
        await graph.ainvoke(Command(resume="socks"), in_thread(run_id="r2"))
    second = await graph.ainvoke(Command(resume="shoes"), in_thread(run_id="r3"))

    again = await graph.ainvoke(Command(resume="shoes"), in_thread(run_id="r3"))

    assert ([each.value for each in again["__interrupt__"]], again["messages"]) == (["Which?"], second["messages"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("server")) as served:
        yield served


VARIANTS = {
    "first-input": {"structured": False, "ledger": False, "input_id": "i1"},
    "later-input": {"structured": False, "ledger": False, "input_id": "i1", "later": True},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("variant", "odd"),
    [
        ("first-input", False),
        ("later-input", True),
        pytest.param("first-input", True, marks=pytest.mark.thorough),
        pytest.param("later-input", False, marks=pytest.mark.thorough),
    ],
)
def test_an_input_killed_at_any_write_is_completed_once_by_another_process(
    variant: str, odd: bool, server: ForkServer, tmp_path: Path
) -> None:
    given, whole = VARIANTS[variant], tmp_path / "whole"
    whole.mkdir()
    server.run("run_to", folder=str(whole), variant=given, kill_at=ALL)
    boundaries = (whole / "reached").read_text().splitlines()

    faults: list[str] = []
    # What follows a write leaves what the next one finds.
    writes = [(at, boundary) for at, boundary in enumerate(boundaries) if boundary.startswith("before ")]
    for kill_at, boundary in writes[odd::2]:
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        killed = server.run("run_to", folder=str(folder), variant=given, kill_at=kill_at)
        server.run("go_on", folder=str(folder), variant=given, ways=["again"])
        found = json.loads((folder / "faults").read_text())["again"]
        faults += [f"killed at {kill_at}, {boundary}: {fault}" for fault in found]
        faults += [f"{boundary}: it lived"] if killed == 0 else []

    assert (faults, len(boundaries) > 10) == ([], True)
