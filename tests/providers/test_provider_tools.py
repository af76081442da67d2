"""Tools that the provider runs: offered by each client, kept in the history, reported, and never run twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graph_agent import Session, create_graph_agent
from graph_agent.session.results import Reasoning, Token
from tests.providers.emulator import Emulator
from tests.providers.exchange import Reply
from tests.providers.lab import Lab, calls, in_order, streamed, weather
from tests.providers.provider_calls import ProviderRun, Source
from tests.providers.rows import ROWS

TEA = Source("https://tea.example/assam", "Teas of Assam")
ANSWER = "Assam grows black tea."
SEARCH = ProviderRun("search", "tea assam", TEA.title, TEA.url)
WEB_SEARCH: dict[str, Any] = {
    "openai-responses": {"type": "web_search"},
    "openai-responses-unstored": {"type": "web_search"},
    "anthropic": {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    "anthropic-thinking": {"type": "web_search_20250305", "name": "web_search"},
    "gemini-2.5": {"google_search": {}},
    "gemini-3": {"google_search": {}},
}
"""Row → the tool in the form of its API."""
MIXED = [name for name in WEB_SEARCH if not name.startswith("gemini")]
"""Rows that accept the provider's tools together with the agent's."""


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
async def test_a_search_of_the_provider_is_reported_with_its_sources(lab: Lab, whole: bool) -> None:
    reply = Reply(ANSWER, ran=(SEARCH,), sources=(TEA,))
    session = lab.session(reply, tools=[WEB_SEARCH[lab.row.name]], whole=whole)

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


@pytest.mark.parametrize("lab", MIXED, indirect=True)
async def test_a_call_of_the_provider_may_precede_a_call_of_the_agent(lab: Lab) -> None:
    first = calls(("weather", {"city": "Paris"}), ran=(SEARCH,))
    session = lab.session(first, Reply(ANSWER, sources=(TEA,)), tools=[WEB_SEARCH[lab.row.name], weather])

    text, result = await streamed(session, "Which tea, and is it sunny in Paris?")

    assert (text, result.answer, [*result.results.values()], len(reported(result))) == (
        ANSWER,
        ANSWER,
        ["Sunny in Paris, 21 degrees."],
        1,
    )


@pytest.mark.parametrize("lab", ["anthropic", "openai-responses"], indirect=True)
async def test_a_request_that_breaks_off_after_a_call_is_not_sent_again(lab: Lab) -> None:
    cut = Reply(ANSWER, ran=(SEARCH,), cut_after=5)
    session = lab.session(cut, Reply("Never asked."), tools=[WEB_SEARCH[lab.row.name]], config={"model_retries": 2})

    result = await session.run("Which tea?")

    warned = [event["message"] for event in result.events if event["type"] == "warning"]
    seen = [call["status"] for call in reported(result)] or ["web_search) may have run" in warned[0]]
    assert (str(result.status), len(lab.requests), seen) == (
        "FAILED",
        1,
        ["unknown"] if lab.row.name == "anthropic" else [True],
    )


@pytest.mark.parametrize("lab", ["anthropic"], indirect=True)
async def test_a_call_without_its_result_is_unknown(lab: Lab) -> None:
    # Eight events: the start of the message, and the whole call.
    session = lab.session(Reply(ANSWER, ran=(SEARCH,), cut_after=8), tools=[WEB_SEARCH["anthropic"]])

    result = await session.run("Which tea?")

    assert reported(result) == [
        {"name": "web_search", "arguments": {"query": "tea assam"}, "status": "unknown", "content": ""}
    ]
    assert "web_search" in result.answer


@pytest.mark.parametrize("lab", ["anthropic"], indirect=True)
async def test_a_paused_turn_goes_on_with_its_calls(lab: Lab) -> None:
    paused = Reply("", ran=(replace(SEARCH, has_result=False),), finish="pause_turn")
    rest = Reply(ANSWER, sources=(TEA,))
    session = lab.session(paused, rest, Reply("You are welcome."), tools=[WEB_SEARCH["anthropic"]])

    first = await session.run("Which tea?")
    second = await session.run("Thanks.")

    assert (first.answer, second.answer, len(lab.requests)) == (ANSWER, "You are welcome.", 3)
    assert lab.requests[1].body["messages"][-1]["content"][-1]["type"] == "server_tool_use"


@pytest.mark.parametrize("lab", ["anthropic"], indirect=True)
async def test_a_call_that_begins_after_a_pause_and_breaks_off_is_not_sent_again(lab: Lab) -> None:
    paused = Reply("", ran=(SEARCH,), finish="pause_turn")
    cut = Reply(ANSWER, ran=(replace(SEARCH, given="tea nilgiri"),), cut_after=8)
    session = lab.session(paused, cut, Reply("Never asked."), tools=[WEB_SEARCH["anthropic"]])

    result = await session.run("Which tea?")

    calls = [(call["arguments"], call["status"]) for call in reported(result)]
    assert (str(result.status), len(lab.requests), calls) == (
        "FAILED",
        2,
        [({"query": "tea assam"}, "success"), ({"query": "tea nilgiri"}, "unknown")],
    )


@pytest.mark.parametrize("lab", ["anthropic", "openai-responses", "gemini-3"], indirect=True)
async def test_another_model_reads_calls_and_results_as_text(lab: Lab) -> None:
    await lab.session(
        Reply(ANSWER, ran=(SEARCH,), sources=(TEA,)), tools=[WEB_SEARCH[lab.row.name]], checkpointer=lab.saver
    ).run("Which tea?")
    other = next(row for row in ROWS if row.name == ("openai" if lab.row.name == "anthropic" else "anthropic"))
    with Emulator(other, in_order(Reply("You are welcome."))) as emulator:
        session = Session(create_graph_agent(lab.model_of(emulator), checkpointer=lab.saver), "s1")
        answer = (await session.run("Thanks.")).answer

    (sent,) = [message.text for message in emulator.requests[0].messages if message.role == "assistant"]
    assert (answer, emulator.refusals, "tea assam" in sent, TEA.url in sent, ANSWER in sent) == (
        "You are welcome.",
        [],
        True,
        True,
        True,
    )
    assert "encrypted" not in str(emulator.requests[0].body)


CODE = ProviderRun("code", "print(6 * 7)", "42")
BOOKED = ProviderRun("mcp", '{"room": 7}', "Room 7 is booked.")
NOTES = ProviderRun("files", "assam", "Notes on Assam.")
OTHERS: dict[str, tuple[str, Any, ProviderRun, str]] = {
    "openai's code": (
        "openai-responses-unstored",
        {"type": "code_interpreter", "container": {"type": "auto"}},
        CODE,
        "code_interpreter",
    ),
    "openai's files": (
        "openai-responses-unstored",
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        NOTES,
        "file_search",
    ),
    "openai's mcp": (
        "openai-responses-unstored",
        {"type": "mcp", "server_label": "hotel", "server_url": "https://h.example", "require_approval": "never"},
        BOOKED,
        "book",
    ),
    "anthropic's code": (
        "anthropic",
        {"type": "code_execution_20250522", "name": "code_execution"},
        CODE,
        "code_interpreter",
    ),
    "gemini's code": ("gemini-3", {"code_execution": {}}, CODE, "code_interpreter"),
}
"""Name → row, tool in the form of its API, a call of it, and the name in its event."""


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
async def test_each_kind_of_tool_is_reported_and_sent_back(
    name: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row_name, tool, run, shown = OTHERS[name]
    row = next(row for row in ROWS if row.name == row_name)
    with Lab(row, tmp_path, monkeypatch) as lab:
        session = lab.session(Reply(ANSWER, ran=(replace(run, fails=fails),)), Reply("Fine."), tools=[tool])

        text, result = await streamed(session, "Do it.")
        second = await session.run("Thanks.")

        lab.check()
    (call,) = reported(result)
    assert (text, second.answer, call["name"], call["status"]) == (
        ANSWER,
        "Fine.",
        shown,
        "error" if fails else "success",
    )
    assert fails or run.found in call["content"]


@pytest.mark.parametrize("lab", ["openai-responses", "anthropic-thinking"], indirect=True)
async def test_reasoning_and_text_of_a_reply_have_one_id(lab: Lab) -> None:
    session = lab.session(Reply(ANSWER, reasoning="Assam, surely."))

    parts = [part async for part in session.stream("Which tea?", reasoning=True)]

    ids = {part.message_id for part in parts if isinstance(part, Token | Reasoning)}
    thoughts = "".join(part.text for part in parts if isinstance(part, Reasoning))
    assert ("".join(part.text for part in parts if isinstance(part, Token)), thoughts, len(ids)) == (
        ANSWER,
        "Assam, surely.",
        1,
    )
