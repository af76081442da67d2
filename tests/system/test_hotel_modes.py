"""The hotel's offline model plans in every mode, and gives the same answers in all of them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from examples.hotel.answer import ABILITIES
from graph_agent import RunResult, Session
from graph_agent.compiled import CompiledAgentGraph
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import at_step_limit
from tests.support.warm_process import warm_python

HOTEL = Path(__file__).parents[2] / "examples" / "hotel"
HOLIDAY, HINT, ROOMS, BOOKING = (
    "calendar.resolve_holiday",
    "calendar.resolve_date_hint",
    "pms.get_availability",
    "pms.book_room",
)

JANUARY = "Check availability for January 17-19"
HANUKKAH = "one night in Hanukkah"
BOTH = "Check availability for Hanukkah and also next weekend"

MODES: dict[str, dict[str, Any]] = {
    "native": {"tool_calling": "native"},
    "text": {"tool_calling": "text"},
    "wave": {"tool_calling": "wave"},
    "one plan": {"tool_calling": "wave", "planner": "dag"},
}
FINALIZE: list[dict[str, Any]] = [{}, {"finalize": "compose"}, {"finalize": "direct"}]

pytestmark = pytest.mark.asyncio(loop_scope="module")
in_every_mode = pytest.mark.parametrize("mode", MODES)
in_every_ending = pytest.mark.parametrize("ending", FINALIZE, ids=["default", "compose", "direct"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hotel(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CompiledAgentGraph]:
    folder = tmp_path_factory.mktemp("hotel")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENAI_API_KEY", "DEBUG_MOCK_RESPONSES", "AGENTIC_LOOP_ENABLED"):
            patch.delenv(name, raising=False)
        patch.setenv("HOTEL_DB", str(folder / "hotel.db"))
        patch.setattr("sys.executable", warm_python())  # the MCP server's command is `python`
        spec = load_spec(HOTEL / "agent.yaml")
        async with open_agent(spec, today=date(2026, 11, 21), db=f"sqlite:///{folder}/sessions.db") as graph:
            yield graph


async def asked(
    graph: CompiledAgentGraph, question: str, session: Session | None = None, *, stream: bool = False, **context: Any
) -> tuple[RunResult, str]:
    """One question's result, and the tokens of its answer run together."""
    session = session or Session(graph, uuid4().hex)
    if not stream:
        return await session.run(question, context=context), ""
    parts = [part async for part in session.stream(question, context=context)]
    (result,) = [part.result for part in parts if part.type == "done"]
    return result, "".join(part.text for part in parts if part.type == "token")


async def answer_of(graph: CompiledAgentGraph, question: str) -> str:
    """The answer in the mode that the example has by itself."""
    return (await asked(graph, question))[0].answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@in_every_ending
@pytest.mark.parametrize(
    ("mode", "waves"), [("native", [1, 2, 2]), ("text", [1, 2, 2]), ("wave", [1, 2, 2]), ("one plan", [1, 1, 1])]
)
async def test_the_three_questions_have_their_waves_and_answers(
    hotel: CompiledAgentGraph, mode: str, waves: list[int], ending: dict[str, Any], stream: bool
) -> None:
    came = [
        await asked(hotel, question, stream=stream, **MODES[mode], **ending) for question in (JANUARY, HANUKKAH, BOTH)
    ]

    answers = [await answer_of(hotel, question) for question in (JANUARY, HANUKKAH, BOTH)]
    assert (
        [result.iterations for result, _ in came],
        [result.answer for result, _ in came],
        [tokens for _, tokens in came],
        {(result.status, result.stop_reason) for result, _ in came},
        [len(re.findall(r"^\d+ rooms? (?:is|are) free", answer, re.MULTILINE)) for answer in answers],
    ) == (waves, answers, answers if stream else [""] * 3, {("COMPLETED", "completed")}, [1, 1, 2])


@in_every_ending
@in_every_mode
@pytest.mark.parametrize("question", ["hello", "What is the capital of France?", "thank you!"])
async def test_small_talk_and_unknown_questions_are_answered_without_a_call(
    hotel: CompiledAgentGraph, question: str, mode: str, ending: dict[str, Any]
) -> None:
    result, tokens = await asked(hotel, question, stream=True, **MODES[mode], **ending)

    assert (result.iterations, result.answer, tokens) == (0, ABILITIES, ABILITIES)


FOLLOW_UPS: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    ("Check availability for January 17-19 for 2 guests", [(ROOMS, {"check_in": "2027-01-17", "guests": 2})]),
    (
        "and next weekend?",
        [(HINT, {"phrase": "next weekend"}), (ROOMS, {"check_in": "2026-11-27", "guests": 2})],
    ),
    ("hello", []),
    ("When is Hanukkah?", [(HOLIDAY, {"name": "Hanukkah"})]),
    ("and Christmas?", [(HOLIDAY, {"name": "Christmas"})]),
    (
        "rooms for the last two nights of Hanukkah",
        [(HOLIDAY, {"name": "Hanukkah"}), (ROOMS, {"check_in": "2026-12-10", "check_out": "2026-12-12"})],
    ),
    (
        "from Christmas until January 2",
        [(HOLIDAY, {"name": "Christmas"}), (ROOMS, {"check_in": "2026-12-25", "check_out": "2027-01-02"})],
    ),
    ("Any rooms over Festivus?", [(HOLIDAY, {"name": "Festivus"})]),
    ("rooms on Feb 30", [(HINT, {"phrase": "Feb 30"})]),
]


@in_every_mode
async def test_a_conversation_takes_the_same_calls_in_every_mode(hotel: CompiledAgentGraph, mode: str) -> None:
    session, before, calls = Session(hotel, uuid4().hex), 0, []
    for question, _ in FOLLOW_UPS:
        await asked(hotel, question, session, **MODES[mode])
        events = await session.events()
        calls.append([(e["name"], e["arguments"]) for e in events[before:] if e["type"] == "tool_call"])
        before = len(events)

    # The other arguments are the same in each mode, too.
    named = [
        [
            (name, {key: arguments[key] for key in expected})
            for (name, arguments), (_, expected) in zip(made, wanted, strict=True)
        ]
        for made, (_, wanted) in zip(calls, FOLLOW_UPS, strict=True)
    ]
    assert named == [wanted for _, wanted in FOLLOW_UPS]


@in_every_mode
async def test_a_room_is_booked_once(hotel: CompiledAgentGraph, mode: str) -> None:
    day = 10 + 3 * list(MODES).index(mode)
    question = f"book the twin for January {day}-{day + 2} for Ada Lovelace"

    first, _ = await asked(hotel, question, **MODES[mode])
    again, _ = await asked(hotel, question.replace("Ada Lovelace", "Grace Hopper"), **MODES[mode])

    assert (first.answer[:29], again.answer[:21]) == ("Booked: Twin room, street sid", "I could not book from")


async def test_a_plan_holds_no_more_calls_than_are_allowed(hotel: CompiledAgentGraph) -> None:
    result, _ = await asked(hotel, BOTH, max_calls_per_wave=1, **MODES["wave"])

    assert (result.iterations, result.answer) == (4, await answer_of(hotel, BOTH))


@in_every_mode
async def test_an_answer_at_a_limit_lists_what_is_missing(hotel: CompiledAgentGraph, mode: str) -> None:
    result, _ = await asked(hotel, HANUKKAH, max_steps=1, **MODES[mode])

    found = await answer_of(hotel, HANUKKAH)
    missing = at_step_limit(
        1,
        "Hanukkah: 8 nights, from Friday 4 December 2026 to Friday 11 December 2026.\n"
        "I did not get to look up rooms from Friday 4 December 2026 to Saturday 5 December 2026 (1 night).",
    )
    assert result.answer == (found if mode == "one plan" else missing)


async def test_the_wave_demo_shows_plans_waves_and_answers(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "DEBUG_"))}

    async with asyncio.timeout(120):
        done = await asyncio.create_subprocess_exec(
            warm_python(),
            str(HOTEL / "waves.py"),
            cwd=tmp_path,
            env={**environment, "HOTEL_DB": str(tmp_path / "hotel.db")},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await done.communicate()

    shown = re.sub(r"after \d+ ms", "after N ms", output.decode()).splitlines()
    begin = shown.index(f"> {BOTH}")
    assert (done.returncode, shown[begin + 1 : begin + 8], [line for line in shown if line.startswith("[")]) == (
        0,
        [
            "plan 1 (continue): find the dates",
            "  2 calls in parallel:",
            '    holiday_1: calendar.resolve_holiday(name="Hanukkah"): success after N ms',
            '    dates_1: calendar.resolve_date_hint(phrase="next weekend"): success after N ms',
            "plan 2 (done): look up rooms",
            "  2 calls in parallel:",
            '    rooms_1: pms.get_availability(check_in="2026-12-04", check_out="2026-12-12"): success after N ms',
        ],
        ["[waves: 1, plans: 1]", "[waves: 2, plans: 2]", "[waves: 2, plans: 2]", "[waves: 1, plans: 1]"],
    )
