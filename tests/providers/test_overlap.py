"""Calls that begin while a provider's own client still reads the reply, and plans of several candidates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool

from graph_agent.marks import marked
from tests.providers.exchange import Hold, Reply, Request
from tests.providers.lab import ANSWER, WEATHER, Lab, calls, clock, outcome
from tests.providers.row import Row
from tests.providers.rows import ROWS, SAMPLE

CALLS = calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"}))
RESULTS = ["Sunny in Paris, 21 degrees.", "It is 12:00 in UTC."]
PLAN = Reply(
    json.dumps(
        {
            "status": "done",
            "tools": [
                {"id": "a", "tool": "weather", "args": {"city": "Paris"}},
                {"id": "b", "tool": "clock", "args": {"zone": "UTC"}},
            ],
            "reasoning": "Both are needed.",
        }
    )
)


def rows(least: Callable[[Row], bool]) -> list[Any]:
    """Return the rows of a test; `make test` runs those of the sample."""
    return [
        pytest.param(row, id=row.name, marks=[] if row.name in SAMPLE else [pytest.mark.providers])
        for row in ROWS
        if least(row)
    ]


def streams_calls(row: Row) -> bool:
    """Whether the first of two calls is complete before the event with the finish reason."""
    return row.can("tools") and not getattr(row.shape, "json_for_stream", False)


def begins_early(row: Row, mode: str) -> bool:
    """Whether calls must begin before the end of a reply; not where the client or the provider may keep them."""
    if mode == "native":
        # Mistral sends calls with the finish reason, Cohere's client returns them at the end, and Bedrock's reads
        # the stream in a thread, which may be late.
        return not row.name.startswith(("bedrock", "cohere", "mistral"))
    # Groq streams no reply in a schema.
    return not row.name.startswith("bedrock") and row.name not in ("groq (openai:)", "groq (model without reasoning)")


def held(reply: Reply, row: Row, hold: Hold) -> Callable[[Request], Reply]:
    """Return a reply that waits before the event with the finish reason, until `hold.go_on` is set, if it streams."""

    def step(request: Request) -> Reply:
        if not request.stream:
            return reply
        events = list(row.protocol.stream(reply, request, row.shape))
        hold.after = next(at for at, event in enumerate(events) if row.protocol.finish_mark in event)
        return replace(reply, hold=hold)

    return step


def reading_tools(begin: Callable[[], object]) -> list[BaseTool]:
    """Return the tools of the lab, which only read; that of the weather calls `begin`."""

    @tool
    def weather(city: str) -> str:
        """Return the weather of a city."""
        begin()
        return f"Sunny in {city}, 21 degrees."

    return [marked(weather, effect="read"), marked(clock, effect="read")]


@pytest.mark.every_case  # each provider streams native calls and plans in a way of its own
@pytest.mark.parametrize("mode", ["native", "wave"])
@pytest.mark.parametrize("row", rows(streams_calls))
async def test_a_call_begins_before_the_end_of_the_reply(
    row: Row, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, is_over = Hold(), list[bool]()
    reply = CALLS if mode == "native" else PLAN
    config = {"tool_calling": mode, "dispatch": "streamed"}
    with Lab(row, tmp_path, monkeypatch) as lab:

        def begin() -> None:
            is_over.append(lab.emulator.exchanges[0].done.is_set())
            hold.go_on.set()

        session = lab.session(held(reply, row, hold), Reply(ANSWER), tools=reading_tools(begin), config=config)
        result = await session.run(WEATHER)
        lab.check()

    # A call of the other rows may begin at either time.
    is_late = is_over == [True] and begins_early(row, mode)
    assert (outcome(result), len(is_over), is_late) == (("COMPLETED", ANSWER, RESULTS), 1, False)


@pytest.mark.parametrize("row", rows(lambda row: row.can("tools")))
async def test_a_provider_accepts_the_requests_of_all_candidates(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = reading_tools(lambda: None)

    def brain(request: Request) -> Reply:
        return Reply(ANSWER) if request.results else CALLS

    with Lab(row, tmp_path, monkeypatch) as lab:
        result = await lab.session(brain=brain, tools=tools, config={"candidates": 3}).run(WEATHER)
        lab.check()

    assert outcome(result) == ("COMPLETED", ANSWER, RESULTS)
