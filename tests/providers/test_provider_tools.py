"""Tools that the provider runs: offered by each client, kept in the history, reported, and never run twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.providers.exchange import Reply
from tests.providers.lab import Lab, calls, streamed, weather
from tests.providers.provider_calls import ProviderRun, Source
from tests.providers.rows import ROWS

TEA = Source("https://tea.example/assam", "Teas of Assam")
ANSWER = "Assam grows black tea."
SEARCH = ProviderRun("search", "tea assam", TEA.title, TEA.url)
OPENAI = ("openai-responses", "openai-responses-unstored")
WEB_SEARCH: dict[str, Any] = dict.fromkeys(OPENAI, {"type": "web_search"})
"""Row → the tool in the form of its API."""


@pytest.fixture(params=[*WEB_SEARCH])
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The lab of a row whose provider runs tools."""
    row = next(row for row in ROWS if row.name == request.param)
    with Lab(row, tmp_path, monkeypatch) as made:
        yield made
        made.check()


def reported(result: Any) -> list[dict[str, Any]]:
    """Return the calls that the provider ran, from the events of a result."""
    left_out = {"type", "ts", "step", "seq", "session_id", "id"}
    events = [event for event in result.events if event["type"] == "provider_call"]
    return [{name: value for name, value in event.items() if name not in left_out} for event in events]


@pytest.mark.parametrize("whole", [False, True], ids=["streamed", "whole"])
@pytest.mark.parametrize("own", [False, True], ids=["alone", "with own tools"])
async def test_a_search_of_the_provider_is_reported_with_its_sources(lab: Lab, whole: bool, own: bool) -> None:
    if own and lab.row.name.startswith("gemini"):
        pytest.skip("Gemini takes no tools of the agent beside its own")
    given = [WEB_SEARCH[lab.row.name], *([weather] if own else [])]
    session = lab.session(Reply(ANSWER, ran=(SEARCH,), sources=(TEA,)), tools=given, whole=whole)

    text, result = await streamed(session, "Which tea?")

    (call,) = reported(result)
    assert (text, result.answer, str(result.status)) == (ANSWER, ANSWER, "COMPLETED")
    assert (call["status"], "tea assam" in str(call["arguments"]), TEA.url in call["content"]) == (
        "success",
        True,
        True,
    )
    assert [(each["url"], each["title"], each["start"], each["end"]) for each in result.citations] == [
        (TEA.url, TEA.title, 0, len(ANSWER))
    ]


async def test_calls_and_results_of_the_provider_are_sent_back(lab: Lab) -> None:
    session = lab.session(
        Reply(ANSWER, ran=(SEARCH,), sources=(TEA,)), Reply("You are welcome."), tools=[WEB_SEARCH[lab.row.name]]
    )

    await session.run("Which tea?")
    await session.run("Thanks.")

    assert lab.row.name.startswith("gemini") or TEA.url in str(lab.requests[-1].body)
    assert "web_search" in str(lab.requests[-1].body["tools"]) or "googleSearch" in str(lab.requests[-1].body["tools"])


async def test_a_call_of_the_provider_may_precede_a_call_of_the_agent(lab: Lab) -> None:
    if lab.row.name.startswith("gemini"):
        pytest.skip("Gemini takes no tools of the agent beside its own")
    first = calls(("weather", {"city": "Paris"}), ran=(SEARCH,))
    session = lab.session(first, Reply(ANSWER, sources=(TEA,)), tools=[WEB_SEARCH[lab.row.name], weather])

    text, result = await streamed(session, "Which tea, and is it sunny in Paris?")

    assert (text, result.answer, [*result.results.values()], len(reported(result))) == (
        ANSWER,
        ANSWER,
        ["Sunny in Paris, 21 degrees."],
        1,
    )
