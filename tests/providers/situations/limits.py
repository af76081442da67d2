"""Ends of an input: the step limit, each way to the answer, and the notice of a loop."""

from __future__ import annotations

from typing import Any

from tests.providers.exchange import Reply, Request
from tests.providers.lab import ANSWER, WEATHER, Lab, asks_for_answer, calls, clock, streamed, weather
from tests.providers.situations import situation

_AT_LIMIT = "Reached maximum reasoning steps (2)"


@situation("step limit")
async def step_limit(lab: Lab) -> None:
    def brain(request: Request) -> Reply:
        if asks_for_answer(request):
            return Reply(ANSWER)
        return Reply("Fine.") if "And now?" in request.text else calls(("weather", {"city": "Paris"}))

    session = lab.session(brain=brain, tools=[weather, clock], config={"max_steps": 2})

    tokens, first = await streamed(session, WEATHER)
    second = await session.run("And now?")

    assert (str(first.status), first.answer, tokens) == ("ROUND_LIMIT", f"{_AT_LIMIT}\n\n{ANSWER}", first.answer)
    assert (str(second.status), second.answer) == ("COMPLETED", "Fine.")


@situation("step limit")
async def step_limit_ignored(lab: Lab) -> None:
    """A model that calls again although it was asked for its answer: the user gets what the calls have found."""

    def brain(request: Request) -> Reply:
        return Reply("Fine.") if "And now?" in request.text else calls(("weather", {"city": "Paris"}))

    session = lab.session(brain=brain, tools=[weather, clock], config={"max_steps": 2})

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert str(first.status) == "ROUND_LIMIT"
    assert first.answer.startswith(_AT_LIMIT)
    assert "Sunny in Paris" in first.answer
    assert (len(first.calls), second.answer) == (2, "Fine.")


async def _finalized(lab: Lab, finalize: str, *replies: Reply, **config: Any) -> None:
    session = lab.session(
        calls(("weather", {"city": "Paris"})),
        *replies,
        Reply("Fine."),
        *([Reply("Fine.")] if finalize == "compose" else []),
        tools=[weather, clock],
        config={"finalize": finalize},
    )

    tokens, first = await streamed(session, WEATHER)
    second = await session.run("And now?")

    assert [first.answer, tokens, second.answer] == [ANSWER, ANSWER, "Fine."]


@situation("finalize")
async def finalize_auto(lab: Lab) -> None:
    await _finalized(lab, "auto", Reply("No more actions."), Reply(ANSWER))


@situation("finalize")
async def finalize_compose(lab: Lab) -> None:
    await _finalized(lab, "compose", Reply("No more actions."), Reply(ANSWER))


@situation("finalize")
async def finalize_direct(lab: Lab) -> None:
    await _finalized(lab, "direct", Reply(ANSWER))


@situation("loop notice")
async def loop_notice(lab: Lab) -> None:
    def brain(request: Request) -> Reply:
        if "And now?" in request.text:
            return Reply("Fine.")
        noticed = "Notice from the agent framework" in request.text
        return Reply(ANSWER) if noticed else calls(("weather", {"city": "Paris"}))

    session = lab.session(brain=brain, tools=[weather, clock], config={"max_steps": 12})

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert [first.answer, second.answer] == [ANSWER, "Fine."]
    assert "loop_detected" in [event["type"] for event in await session.events()]
