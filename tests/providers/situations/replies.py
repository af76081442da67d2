"""What a reply has in addition to text and calls: usage, cost, reasoning."""

from __future__ import annotations

from graph_agent.base.settings.config import Price
from tests.providers.exchange import Reply, Usage
from tests.providers.lab import ANSWER, WEATHER, Lab, calls, streamed, weather
from tests.providers.situations import situation

_FIRST = Usage(input=1_000, output=50, cached=400)
_SECOND = Usage(input=1_200, output=30, cached=1_000)


async def _used(lab: Lab, *, whole: bool) -> None:
    session = lab.session(
        calls(("weather", {"city": "Paris"}), usage=_FIRST),
        Reply(ANSWER, usage=_SECOND),
        tools=[weather],
        whole=whole,
        config={"prices": {lab.row.model: Price(input=1_000, output=10_000)}},
    )

    _, result = await streamed(session, WEATHER)

    counted = (result.usage["input_tokens"], result.usage["output_tokens"], result.usage["model_calls"])
    assert (counted, result.cost) == ((2_200, 80, 2), 3.0)


@situation("usage", needs="stream_usage")
async def usage_and_cost(lab: Lab) -> None:
    await _used(lab, whole=False)


@situation("usage", needs="whole")
async def usage_and_cost_whole(lab: Lab) -> None:
    await _used(lab, whole=True)


async def _reasons(lab: Lab, *, whole: bool) -> None:
    session = lab.session(
        calls(("weather", {"city": "Paris"}), text="I look.", reasoning="I need the weather first."),
        Reply(ANSWER, reasoning="Now I know it."),
        Reply("Fine.", reasoning="Nothing to do."),
        tools=[weather],
        whole=whole,
    )

    tokens, first = await streamed(session, WEATHER)
    second = await session.run("And now?")

    assert [first.answer, second.answer] == [ANSWER, "Fine."]
    assert (tokens.endswith(ANSWER), "need the weather" in tokens, "Now I know" in tokens) == (True, False, False)


@situation("reasoning", needs="reasoning")
async def reasoning(lab: Lab) -> None:
    await _reasons(lab, whole=False)


@situation("reasoning", needs="whole")
async def reasoning_whole(lab: Lab) -> None:
    await _reasons(lab, whole=True)
