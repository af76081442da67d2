"""The three questions of the hotel example, planned in waves with the real MCP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.tools import BaseTool, StructuredTool

from graph_agent import ScriptedChatModel, SessionStatus
from graph_agent.mcp import open_mcp_tools
from tests.support.warm_process import warm_python
from tests.support.wave_helpers import DONE, of_type, plan, plan_requests, results_of, use, waves

SERVER = Path(__file__).parents[4] / "examples" / "hotel" / "server.py"
HOLIDAY, HINT, ROOMS = "calendar.resolve_holiday", "calendar.resolve_date_hint", "pms.get_availability"

JANUARY = "Check availability for January 17-19"
HANUKKAH = "one night in Hanukkah"
BOTH = "Check availability for Hanukkah and also next weekend"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hotel(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[BaseTool]]:
    env = {"HOTEL_DB": str(tmp_path_factory.mktemp("hotel") / "hotel.db"), "GRAPH_AGENT_TODAY": "2026-11-21"}
    connection = {"transport": "stdio", "command": warm_python(), "args": [str(SERVER)], "env": env}
    async with open_mcp_tools({"hotel": connection}) as tools:
        yield tools


def rooms(id_: str, check_in: str, check_out: str, *needs: str) -> dict[str, Any]:
    return use(id_, ROOMS, *needs, check_in=check_in, check_out=check_out)


# What each question takes: `continue` up to the last wave, and then nothing more to run.
RESOLVE_ONE = plan(use("h", HOLIDAY, name="Hanukkah"))
RESOLVE_BOTH = plan(use("h", HOLIDAY, name="Hanukkah"), use("w", HINT, phrase="next weekend"))
IN_JANUARY = [rooms("r", "2027-01-17", "2027-01-19")]
FIRST_NIGHT = [rooms("r", "2026-12-04", "2026-12-05")]
BOTH_STAYS = [rooms("rh", "2026-12-04", "2026-12-12"), rooms("rw", "2026-11-27", "2026-11-29")]
# The same in one plan: the rooms need the dates.
NEEDS_ONE = [use("h", HOLIDAY, name="Hanukkah"), rooms("r", "${h.first_night}", "${h.first_check_out}")]
NEEDS_BOTH = [
    use("h", HOLIDAY, name="Hanukkah"),
    use("w", HINT, phrase="next weekend"),
    rooms("rh", "${h.start}", "${h.check_out}"),
    rooms("rw", "${w.check_in}", "${w.check_out}", "w"),
]


def levels(events: list[Any]) -> list[list[str]]:
    """Ids of the calls that were begun together, group by group: another event ends a group."""
    groups: list[list[str]] = []
    before = ""
    for event in events:
        if event["type"] == "tool_call":
            if before != "tool_call":
                groups.append([])
            groups[-1].append(event["id"])
        before = event["type"]
    return groups


@pytest.mark.parametrize(
    ("question", "script", "wave_count", "plan_calls", "expected_levels"),
    [
        pytest.param(JANUARY, [plan(*IN_JANUARY), DONE], 1, 2, [["r"]], id="January"),
        pytest.param(JANUARY, [plan(*IN_JANUARY, status="done")], 1, 1, [["r"]], id="January-done"),
        pytest.param(HANUKKAH, [RESOLVE_ONE, plan(*FIRST_NIGHT), DONE], 2, 3, [["h"], ["r"]], id="Hanukkah"),
        pytest.param(
            HANUKKAH, [RESOLVE_ONE, plan(*FIRST_NIGHT, status="done")], 2, 2, [["h"], ["r"]], id="Hanukkah-done"
        ),
        pytest.param(HANUKKAH, [plan(*NEEDS_ONE, status="done")], 1, 1, [["h"], ["r"]], id="Hanukkah-needs"),
        pytest.param(BOTH, [RESOLVE_BOTH, plan(*BOTH_STAYS), DONE], 2, 3, [["h", "w"], ["rh", "rw"]], id="both"),
        pytest.param(
            BOTH, [RESOLVE_BOTH, plan(*BOTH_STAYS, status="done")], 2, 2, [["h", "w"], ["rh", "rw"]], id="both-done"
        ),
        pytest.param(BOTH, [plan(*NEEDS_BOTH, status="done")], 1, 1, [["h", "w"], ["rh", "rw"]], id="both-needs"),
    ],
)
async def test_the_waves_and_plans_of_a_question(
    hotel: list[BaseTool],
    question: str,
    script: list[str],
    wave_count: int,
    plan_calls: int,
    expected_levels: list[list[str]],
) -> None:
    model = ScriptedChatModel([*script, "Here are the rooms."])
    session = waves(model, tools=hotel)

    result = await session.run(question)

    model.assert_spent()
    events = await session.events()
    statuses = {status for (status,) in of_type(events, "tool_result", "status")}
    assert (
        result.iterations,
        len(plan_requests(model)),
        levels(events),
        statuses,
        result.answer,
        result.status,
        result.stop_reason,
    ) == (
        wave_count,
        plan_calls,
        expected_levels,
        {"success"},
        "Here are the rooms.",
        SessionStatus.COMPLETED,
        "completed",
    )


def meeting(tools: list[BaseTool], parties: int) -> list[BaseTool]:
    """The tools, each call of which reaches the server only when `parties` of them are under way."""
    barrier = asyncio.Barrier(parties)

    def meet(tool: BaseTool) -> BaseTool:
        async def call(**arguments: Any) -> Any:
            async with asyncio.timeout(30):
                await barrier.wait()
            answer = await tool.ainvoke(arguments)
            # Nor is a call answered before the others are: each of them was under way while all were.
            async with asyncio.timeout(30):
                await barrier.wait()
            return answer

        return StructuredTool(
            name=tool.name, description=tool.description, args_schema=tool.args_schema or {}, coroutine=call
        )

    return [meet(tool) for tool in tools]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([RESOLVE_BOTH, plan(*BOTH_STAYS, status="done")], id="two-waves"),
        pytest.param([plan(*NEEDS_BOTH, status="done")], id="one-wave-of-two-levels"),
    ],
)
async def test_parallel_calls_overlap_in_time(hotel: list[BaseTool], script: list[str]) -> None:
    session = waves([*script, "Here are the rooms."], tools=meeting(hotel, 2))

    result = await session.run(BOTH)

    events = await session.events()
    begun = {e["id"]: e["ts"] for e in events if e["type"] == "tool_call"}
    ended = {e["id"]: e["ts"] for e in events if e["type"] == "tool_result"}
    pairs = [("h", "w"), ("rh", "rw")]
    overlapping = [max(begun[a], begun[b]) < min(ended[a], ended[b]) for a, b in pairs]
    assert (overlapping, sorted(result.results)) == ([True, True], ["h", "rh", "rw", "w"])


async def test_references_reach_into_the_servers_results(hotel: list[BaseTool]) -> None:
    session = waves([plan(*NEEDS_BOTH, status="done"), "Here are the rooms."], tools=hotel)

    result = await session.run(BOTH)

    events = await session.events()
    looked_up = of_type(events, "tool_call", "id", "arguments")[2:]
    found = [
        (stay["check_in"], stay["nights"], len(stay["rooms"])) for stay in (result.results["rh"], result.results["rw"])
    ]
    assert (looked_up, found) == (
        [
            ("rh", {"check_in": "2026-12-04", "check_out": "2026-12-12"}),
            ("rw", {"check_in": "2026-11-27", "check_out": "2026-11-29"}),
        ],
        [("2026-12-04", 8, 4), ("2026-11-27", 2, 4)],
    )


async def test_server_results_are_rendered_as_json(hotel: list[BaseTool]) -> None:
    model = ScriptedChatModel([RESOLVE_ONE, DONE, "It starts on 4 December."])
    await waves(model, tools=hotel).run(HANUKKAH)

    results = results_of(plan_requests(model)[1])

    assert results == [
        {
            "h": {
                "name": "Hanukkah",
                "country": "IL",
                "start": "2026-12-04",
                "end": "2026-12-11",
                "check_out": "2026-12-12",
                "nights": 8,
                "first_night": "2026-12-04",
                "first_check_out": "2026-12-05",
            }
        }
    ]


async def test_an_unknown_holiday_is_planned_again(hotel: list[BaseTool]) -> None:
    wrong = plan(use("h", HOLIDAY, name="Hanukkah", year=3000), rooms("r", "${h.start}", "${h.check_out}"))
    right = plan(use("h", HOLIDAY, name="Hanukkah"), rooms("r", "${h.start}", "${h.check_out}"), status="done")
    model = ScriptedChatModel([wrong, right, "Here are the rooms."])
    session = waves(model, tools=hotel)

    await session.run(HANUKKAH)

    model.assert_spent()
    (results,) = results_of(plan_requests(model)[1])
    statuses = [status for (status,) in of_type(await session.events(), "tool_result", "status")]
    assert (statuses, "3000" in results["h"]["error"], results["r"]) == (
        ["invalid", "skipped", "success", "success"],
        True,
        {"error": "Not run: it needs 'h', which failed or was not run."},
    )
