"""A greeting, and calls of tools: one, two, unknown, failing."""

from __future__ import annotations

from langchain_core.tools import tool

from tests.providers.exchange import Reply
from tests.providers.lab import ANSWER, WEATHER, Lab, called, calls, clock, outcome, results_in, streamed, weather
from tests.providers.situations import situation

_SUNNY = "Sunny in Paris, 21 degrees."
_NOON = "It is 12:00 in UTC."


@situation("hello")
async def hello(lab: Lab) -> None:
    session = lab.session(Reply("Hello there!"), Reply("Hello again!"))

    first = await session.run("hello")
    tokens, second = await streamed(session, "hello")

    assert [outcome(first), outcome(second), tokens] == [
        ("COMPLETED", "Hello there!", []),
        ("COMPLETED", "Hello again!", []),
        "Hello again!",
    ]


@situation("hello", needs="whole")
async def hello_whole(lab: Lab) -> None:
    session = lab.session(Reply("Hello there!"), whole=True)

    result = await session.run("hello")

    assert outcome(result) == ("COMPLETED", "Hello there!", [])


@situation("calls")
async def one_call(lab: Lab) -> None:
    session = lab.session(calls(("weather", {"city": "Paris"})), Reply(ANSWER), tools=[weather, clock])

    tokens, result = await streamed(session, WEATHER)

    assert (outcome(result), tokens) == (("COMPLETED", ANSWER, [_SUNNY]), ANSWER)
    assert [(call.name, call.arguments) for call in result.calls] == [("weather", {"city": "Paris"})]
    assert (called(lab.requests), results_in(lab.requests[-1])) == (
        [("weather", {"city": "Paris"})],
        [_SUNNY],
    )


@situation("calls", needs="whole")
async def one_call_whole(lab: Lab) -> None:
    session = lab.session(calls(("weather", {"city": "Paris"})), Reply(ANSWER), tools=[weather, clock], whole=True)

    result = await session.run(WEATHER)

    assert outcome(result) == ("COMPLETED", ANSWER, [_SUNNY])


@situation("calls")
async def two_calls_with_text(lab: Lab) -> None:
    reply = calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"}), text="I look both up.")
    session = lab.session(reply, Reply(ANSWER), Reply("You are welcome."), tools=[weather, clock])

    _, result = await streamed(session, WEATHER)
    thanks = await session.run("Thanks!")

    assert [outcome(result), outcome(thanks)] == [
        ("COMPLETED", ANSWER, [_SUNNY, _NOON]),
        ("COMPLETED", "You are welcome.", []),
    ]
    assert results_in(lab.requests[-1]) == [_SUNNY, _NOON]


@situation("calls", needs="whole")
async def two_calls_whole(lab: Lab) -> None:
    reply = calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"}))
    session = lab.session(reply, Reply(ANSWER), tools=[weather, clock], whole=True)

    result = await session.run(WEATHER)

    assert outcome(result) == ("COMPLETED", ANSWER, [_SUNNY, _NOON])


@situation("unknown name")
async def unknown_name(lab: Lab) -> None:
    session = lab.session(
        calls(("browser.tabs.open now", {"url": "x"})), Reply(ANSWER), Reply("Fine."), tools=[weather]
    )

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert [first.answer, second.answer] == [ANSWER, "Fine."]
    assert "browser.tabs.open now" in results_in(lab.requests[1])[0]


@situation("failing tool")
async def failing_tool(lab: Lab) -> None:
    @tool
    def broken(city: str) -> str:
        """Return the weather of a city."""
        raise ValueError(f"no station in {city}")

    session = lab.session(calls(("broken", {"city": "Paris"})), Reply("I could not find out."), tools=[broken])

    result = await session.run(WEATHER)

    assert outcome(result)[:2] == ("COMPLETED", "I could not find out.")
    assert "no station in Paris" in results_in(lab.requests[1])[0]
