"""A person who steers, stops, and approves; and a delegate."""

from __future__ import annotations

import asyncio
import json

from langchain_core.tools import BaseTool, tool

from graph_agent import GraphDelegate, create_graph_agent
from graph_agent.approvals import edit
from tests.providers.exchange import Hold, Reply, Request
from tests.providers.lab import ANSWER, WEATHER, Lab, calls, clock, outcome, results_in, streamed, weather
from tests.providers.situations import situation

_WAIT_S = 20


def _slow() -> tuple[BaseTool, asyncio.Event, asyncio.Event]:
    """A tool that waits, the event that it has begun, and the one that lets it go on."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def measure(city: str) -> str:
        """Measure the temperature of a city."""
        begun.set()
        await go_on.wait()
        return f"21 degrees in {city}"

    return measure, begun, go_on


@situation("steering")
async def steering_during_a_call(lab: Lab) -> None:
    measure, begun, go_on = _slow()
    session = lab.session(
        calls(("measure", {"city": "Paris"}), ("weather", {"city": "Rome"})),
        Reply("In Fahrenheit, 70."),
        Reply("Fine."),
        tools=[measure, weather],
    )

    run = asyncio.create_task(session.run(WEATHER))
    await asyncio.wait_for(begun.wait(), _WAIT_S)
    await session.steer("In Fahrenheit, please.")
    go_on.set()
    first = await run
    second = await session.run("And now?")

    assert [first.answer, second.answer] == ["In Fahrenheit, 70.", "Fine."]
    assert "In Fahrenheit, please." in lab.requests[1].text


@situation("cancel")
async def cancel_during_a_call(lab: Lab) -> None:
    measure, begun, _ = _slow()
    session = lab.session(calls(("measure", {"city": "Paris"})), Reply("Fine."), Reply("Good."), tools=[measure])

    run = asyncio.create_task(session.run(WEATHER))
    await asyncio.wait_for(begun.wait(), _WAIT_S)
    await session.abort()
    first = await run
    second = await session.run("And now?")
    third = await session.run("And then?")

    assert [str(first.status), second.answer, third.answer] == ["ABORTED", "Fine.", "Good."]


@situation("cancel", needs="abort_in_reply")
async def cancel_during_a_reply(lab: Lab) -> None:
    hold = Hold(after=2)
    session = lab.session(Reply("A long answer that is cut.", hold=hold), Reply("Fine."), tools=[weather])

    run = asyncio.create_task(streamed(session, WEATHER))
    await asyncio.to_thread(hold.reached.wait, _WAIT_S)
    await session.abort()
    _, first = await run
    second = await session.run("And now?")

    assert [str(first.status), second.answer] == ["ABORTED", "Fine."]


@situation("approval")
async def approval_with_edit(lab: Lab) -> None:
    session = lab.session(
        calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"})),
        Reply(ANSWER),
        Reply("Fine."),
        tools=[weather, clock],
        config={"approve": ["weather"]},
    )

    waiting = await session.run(WEATHER)
    first = await session.resume({"decisions": [edit({"city": "Rome"})]})
    second = await session.run("And now?")

    assert [len(waiting.interrupts), first.answer, second.answer] == [1, ANSWER, "Fine."]
    assert set(first.results.values()) == {"Sunny in Rome, 21 degrees.", "It is 12:00 in UTC."}


@situation("delegate")
async def delegate(lab: Lab) -> None:
    def brain(request: Request) -> Reply:
        if "delegate_to_station" not in json.dumps(request.body):
            return Reply("Sunny, says the station.")
        if "And now?" in request.text:
            return Reply("Fine.")
        return Reply(ANSWER) if results_in(request) else calls(("delegate_to_station", {"task": "Weather in Paris?"}))

    station = create_graph_agent(lab.model(), tools=[weather], name="station")
    session = lab.session(brain=brain, delegates=[GraphDelegate("station", "Knows the weather.", station)])

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert [outcome(first), second.answer] == [("COMPLETED", ANSWER, ["Sunny, says the station."]), "Fine."]


@situation("abort", needs="abort_in_reply")
async def abort_closes_the_stream(lab: Lab) -> None:
    """After the first token, while the server is silent."""
    session = lab.session(Reply("A long answer that is cut. " * 40, hold=Hold(after=20)))

    result = None
    async for part in session.stream(WEATHER):
        if part.type == "token":
            await session.abort()
        elif part.type == "done":
            result = part.result
    exchange = lab.emulator.exchanges[-1]

    assert result is not None
    assert str(result.status) == "ABORTED"
    assert await asyncio.to_thread(exchange.done.wait, 5)
    assert exchange.client_closed


@situation("abort", needs="abort_in_wait")
async def abort_closes_the_wait(lab: Lab) -> None:
    """Before the first byte of a stream."""
    hold = Hold(after=0)
    session = lab.session(Reply("A long answer that is cut.", hold=hold))

    run = asyncio.create_task(streamed(session, WEATHER))
    assert await asyncio.to_thread(hold.reached.wait, _WAIT_S)
    await session.abort()
    _, result = await run
    exchange = lab.emulator.exchanges[-1]

    assert str(result.status) == "ABORTED"
    assert await asyncio.to_thread(exchange.done.wait, 5)
    assert exchange.client_closed


@situation("abort", needs="abort_in_reply")
async def abort_closes_a_stream_that_goes_on(lab: Lab) -> None:
    """A client that reads in a thread can close the connection at the next event only."""
    session = lab.session(Reply("A long answer, word by word. " * 200, pace_s=0.05))

    async for part in session.stream(WEATHER):
        if part.type == "token":
            await session.abort()
            break
    exchange = lab.emulator.exchanges[-1]

    assert await asyncio.to_thread(exchange.done.wait, 3)
    assert exchange.client_closed
