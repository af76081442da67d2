"""Failures of a provider: rate limits, errors, broken streams; and a fallback to another provider."""

from __future__ import annotations

from tests.providers.emulator import Emulator
from tests.providers.exchange import Fault, FaultKind, Refusal, Reply
from tests.providers.lab import ANSWER, WEATHER, Lab, Step, called, calls, clock, in_order, outcome, streamed, weather
from tests.providers.rows.fallback import fallback_row
from tests.providers.situations import situation


async def _recovers(lab: Lab, kind: FaultKind) -> None:
    lab.expected.add(lab.row.faults[kind].id)
    replies: list[Step] = [Fault(kind), calls(("weather", {"city": "Paris"})), Fault(kind), Reply(ANSWER)]
    session = lab.session(*replies, tools=[weather])

    result = await session.run(WEATHER)

    assert outcome(result) == ("COMPLETED", ANSWER, ["Sunny in Paris, 21 degrees."])


@situation("failures")
async def rate_limit(lab: Lab) -> None:
    await _recovers(lab, "rate_limit")


@situation("failures")
async def server_error(lab: Lab) -> None:
    await _recovers(lab, "server_error")


async def _fails(lab: Lab, kind: FaultKind) -> None:
    lab.expected.add(lab.row.faults[kind].id)
    session = lab.session(Fault(kind), Reply("Fine."), tools=[weather])

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert [str(first.status), len(lab.emulator.refusals), second.answer] == ["FAILED", 1, "Fine."]


@situation("failures")
async def quota(lab: Lab) -> None:
    """An exhausted quota is not tried again."""
    if "quota" in lab.row.faults:
        await _fails(lab, "quota")


@situation("failures")
async def wrong_key(lab: Lab) -> None:
    if "auth" in lab.row.faults:
        await _fails(lab, "auth")


@situation("failures", needs="abort_in_reply")
async def stream_broken_before_the_text(lab: Lab) -> None:
    session = lab.session(Reply("Never seen.", cut_after=0), Reply(ANSWER), tools=[weather])

    tokens, result = await streamed(session, WEATHER)

    assert [outcome(result), tokens] == [("COMPLETED", ANSWER, []), ANSWER]


@situation("failures", needs="abort_in_reply")
async def error_in_a_stream(lab: Lab) -> None:
    """An overload that is reported inside a reply of status 200, before any text."""
    session = lab.session(Reply("Never seen.", error_after=0), Reply(ANSWER), tools=[weather])

    tokens, result = await streamed(session, WEATHER)

    assert [outcome(result), tokens] == [("COMPLETED", ANSWER, []), ANSWER]


@situation("failures", needs="abort_in_reply")
async def stream_broken_in_a_call(lab: Lab) -> None:
    """No call of a reply without an end runs."""
    broken = calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"}), unfinished=True)
    session = lab.session(broken, Reply("Fine."), Reply("Good."), tools=[weather, clock])

    _, first = await streamed(session, WEATHER)
    second = await session.run("And now?")

    assert [first.results, second.answer] == [{}, "Good." if first.answer == "Fine." else "Fine."]


@situation("failures")
async def odd_answers(lab: Lab) -> None:
    """Errors in place of a reply, and unusual ends of one: tried again, or named; never taken for an answer."""
    for number, odd in enumerate(lab.row.odd):
        if isinstance(odd.answer, Refusal):
            lab.expected.add(odd.answer.rule)
        before = len(lab.emulator.exchanges)
        session = lab.session(odd.answer, Reply(ANSWER), Reply(ANSWER), tools=[weather], session_id=f"s{number}")

        _, result = await streamed(session, WEATHER)

        requests = len(lab.emulator.exchanges) - before
        if odd.outcome == "fails":
            assert (odd.rule, str(result.status), requests) == (odd.rule, "FAILED", 1)
            assert any(odd.words in text for text in (result.error, result.hint, *lab.log))
        elif odd.outcome == "is refused":
            warnings = [event["message"] for event in await session.events() if event["type"] == "warning"]
            assert (odd.rule, requests, any("refused to answer" in text for text in warnings)) == (odd.rule, 1, True)
        elif odd.outcome == "runs the call":
            assert (odd.rule, outcome(result)) == (odd.rule, ("COMPLETED", ANSWER, ["Sunny in Paris, 21 degrees."]))
        elif odd.outcome == "goes on":
            assert (odd.rule, outcome(result)) == (odd.rule, ("COMPLETED", ANSWER, []))
        else:
            assert (odd.rule, "Sunny in Paris" in str(result.results)) == (odd.rule, False)


@situation("fallback")
async def fallback_and_back(lab: Lab) -> None:
    """Another provider continues the conversation, calls tools itself, and hands it back."""
    lab.expected.add(lab.row.faults["server_error"].id)
    other_row = fallback_row(lab.row)
    with Emulator(
        other_row, in_order(calls(("clock", {"zone": "UTC"}), text="A look.", reasoning="Hm."), Reply(ANSWER))
    ) as other:
        lab.connect(other)
        other_model = lab.model_of(other)
        session = lab.session(
            calls(("weather", {"city": "Paris"}), text="I look.", reasoning="I need the weather."),
            *[Fault("server_error")] * 2,
            Reply("Fine."),
            tools=[weather, clock],
            config={"fallback_models": [other_model], "model_retries": 1},
        )

        first = await session.run(WEATHER)
        second = await session.run("And now?")

        assert [outcome(first), second.answer] == [
            ("COMPLETED", ANSWER, ["Sunny in Paris, 21 degrees.", "It is 12:00 in UTC."]),
            "Fine.",
        ]
        assert (other.refusals, other.errors) == ([], [])
        assert [name for name, _ in called(other.requests)] == ["weather", "clock"]
    assert [name for name, _ in called(lab.requests)] == ["weather", "clock"]
