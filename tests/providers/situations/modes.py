"""Text mode and wave mode, and answers in a schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from tests.providers.exchange import Reply, Request
from tests.providers.lab import (
    ANSWER,
    WEATHER,
    Lab,
    asks_for_answer,
    calls,
    clock,
    outcome,
    results_in,
    streamed,
    weather,
)
from tests.providers.situations import situation

_SUNNY = "Sunny in Paris, 21 degrees."
_TEXT_CALL = json.dumps({"tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}]})


@situation("text and waves")
async def text_mode(lab: Lab) -> None:
    session = lab.session(
        Reply(_TEXT_CALL), Reply(ANSWER), Reply("Fine."), tools=[weather, clock], config={"tool_calling": "text"}
    )

    tokens, first = await streamed(session, WEATHER)
    second = await session.run("And now?")

    assert [outcome(first), tokens, second.answer] == [("COMPLETED", ANSWER, [_SUNNY]), ANSWER, "Fine."]
    assert (lab.requests[1].tools, _SUNNY in lab.requests[1].text) == ((), True)


@situation("text and waves")
async def text_mode_at_the_step_limit(lab: Lab) -> None:
    def brain(request: Request) -> Reply:
        if "And now?" in request.text:
            return Reply("Fine.")
        return Reply(ANSWER) if asks_for_answer(request) else Reply(_TEXT_CALL)

    session = lab.session(brain=brain, tools=[weather], config={"tool_calling": "text", "max_steps": 2})

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert [first.answer.endswith(ANSWER), str(first.status), second.answer] == [True, "ROUND_LIMIT", "Fine."]


@situation("text and waves")
async def text_mode_with_a_loop(lab: Lab) -> None:
    def brain(request: Request) -> Reply:
        return Reply(ANSWER) if "Notice from the agent framework" in request.text else Reply(_TEXT_CALL)

    session = lab.session(brain=brain, tools=[weather], config={"tool_calling": "text", "max_steps": 12})

    result = await session.run(WEATHER)

    assert result.answer == ANSWER


def _plan(*tools: dict[str, Any], status: str = "continue") -> Reply:
    return Reply(json.dumps({"status": status, "action": "look", "reasoning": "r", "tools": list(tools)}))


@situation("text and waves")
async def wave_mode(lab: Lab) -> None:
    planned = [
        {"id": "a", "tool": "weather", "args": {"city": "Paris"}},
        {"id": "b", "tool": "clock", "args": {"zone": "UTC"}, "needs": ["a"]},
    ]

    def brain(request: Request) -> Reply:
        if asks_for_answer(request):
            return Reply(ANSWER)
        return _plan(status="done") if _SUNNY in request.text else _plan(*planned)

    session = lab.session(brain=brain, tools=[weather, clock], config={"tool_calling": "wave"})

    first = await session.run(WEATHER)
    second = await session.run("And now?")

    assert [outcome(first), second.answer] == [("COMPLETED", ANSWER, [_SUNNY, "It is 12:00 in UTC."]), ANSWER]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


_FITTING = '{"city": "Paris", "degrees": 21}'


def _forecasts(request: Request, *, first: str) -> Reply:
    """Call the tool, then answer with `first`, and with what fits if that was sent back."""
    if not results_in(request):
        return calls(("weather", {"city": "Paris"}))
    sent_back = any(first in message.text for message in request.messages if message.role == "assistant")
    return Reply(_FITTING if sent_back else first)


@situation("structured")
async def structured_answer(lab: Lab) -> None:
    session = lab.session(
        brain=lambda request: _forecasts(request, first=_FITTING), tools=[weather], response_format=Weather
    )

    result = await session.run(WEATHER)

    assert (str(result.status), result.structured_response) == ("COMPLETED", Weather(city="Paris", degrees=21))


@situation("structured")
async def structured_answer_repaired(lab: Lab) -> None:
    session = lab.session(
        brain=lambda request: _forecasts(request, first='{"city": "Paris"}'), tools=[weather], response_format=Weather
    )

    result = await session.run(WEATHER)

    assert (str(result.status), result.structured_response) == ("COMPLETED", Weather(city="Paris", degrees=21))


@situation("structured")
async def structured_answer_without_tools(lab: Lab) -> None:
    session = lab.session(Reply(_FITTING), response_format=Weather)

    result = await session.run(WEATHER)

    assert (str(result.status), result.structured_response) == ("COMPLETED", Weather(city="Paris", degrees=21))
