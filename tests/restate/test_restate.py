"""An agent behind a real Restate server: killed workers, approvals, cancellation, errors, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.restate.fleet import Fleet, fleet_of_two
from tests.restate.server import WITHIN_S, RestateServer
from tests.support.doc_pages import ROOT, read_blocks
from tests.support.postgres_server import on_postgres

pytestmark = [pytest.mark.restate, pytest.mark.asyncio(loop_scope="module")]

KILLS = int(os.environ.get("TEST_RESTATE_KILLS", "20"))
WITHIN_A_KILL_S = 2.0
GUIDE = ROOT / "docs" / "guides" / "restate.md"
BOOKING = ['{"tool_calls": [{"id": "a", "name": "book", "arguments": {"room": "blue"}}]}', "The blue room is booked."]
UNKNOWN = (
    "The run was interrupted before this call's result was recorded. It is not known whether the call ran or took "
    "effect; check before repeating it."
)
ALREADY_DECIDED = (
    "The calls are already decided, and nothing waits for an answer. Repeat the decision with its input_id for the "
    "result, or read the session's events; after a crash, resume without an answer."
)
ONCE = Counter({"book": 1, "charge": 1, "look": 1})


async def in_mid_wave(fleet: Fleet, session: str, text: str, key: str = "") -> asyncio.Task[Any]:
    """Begin an input, and wait until `book` is finished and the others have taken effect."""
    fleet.close_gate()
    answer = asyncio.create_task(fleet.call(session, "run", {"input": text}, key=key))
    await fleet.until(session, lambda calls: calls == {"book": "finished", "charge": "started", "look": "started"})
    async with asyncio.timeout(WITHIN_S):
        while fleet.effects(text) != ONCE:
            await asyncio.sleep(0.01)
    return answer


async def kill_in_mid_wave(fleet: Fleet, number: int) -> tuple[float, dict[str, Any]]:
    """Kill the owner of a wave; return the seconds to the answer, and what was seen."""
    text, key = f"wave {number}", f"key-{number}"
    answer = await in_mid_wave(fleet, "killed", text, key)
    killed = fleet.owner(text)
    begun = time.monotonic()
    await fleet.kill(killed)
    fleet.open_gate()
    result = await answer
    took = time.monotonic() - begun
    await (await fleet.start()).ready()
    effects = fleet.effects(text)
    repeated = await fleet.call("killed", "run", {"input": text}, key=key)
    return took, {
        "answer": result["answer"],
        "book": result["results"][f"book-wave-{number}"],
        "charge is unknown": result["results"][f"charge-wave-{number}"]["error"] == UNKNOWN,
        "look": result["results"][f"look-wave-{number}"],
        "writes": {name: effects[name] for name in ("book", "charge")},
        "other worker": fleet.owner(text) != killed,
        "same result again": repeated == result and fleet.effects(text) == effects,
    }


async def kills(fleet: Fleet, kind: str, figures: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Kill the owner of several waves; return what was seen of each, and the longest time to an answer."""
    seen = [await kill_in_mid_wave(fleet, number) for number in range(KILLS)]
    times = [took for took, _ in seen]
    figures.append(
        f"{kind}: {KILLS} kills, median {statistics.median(times):.2f} s, worst {max(times):.2f} s to the answer"
    )
    return [found for _, found in seen], max(times)


def survived() -> list[dict[str, Any]]:
    """What is to be seen of each kill."""
    return [
        {
            "answer": f"answer to wave {number}",
            "book": f"booked for wave {number}",
            "charge is unknown": True,
            "look": f"looked up for wave {number}",
            "writes": {"book": 1, "charge": 1},
            "other worker": True,
            "same result again": True,
        }
        for number in range(KILLS)
    ]


async def test_killed_workers_with_sqlite_lose_and_repeat_no_call(fleet: Fleet, figures: list[str]) -> None:
    seen, longest = await kills(fleet, "SQLite", figures)

    assert (seen, longest < WITHIN_A_KILL_S) == (survived(), True)


@on_postgres
async def test_killed_workers_with_postgres_lose_and_repeat_no_call(postgres_fleet: Fleet, figures: list[str]) -> None:
    seen, longest = await kills(postgres_fleet, "PostgreSQL", figures)

    assert (seen, longest < WITHIN_A_KILL_S) == (survived(), True)


async def test_an_approval_is_a_result_and_resume_answers_it_once_though_its_worker_is_killed(fleet: Fleet) -> None:
    fleet.close_gate()
    approval = {"answer": {"decisions": [{"type": "approve"}]}, "decided_by": "ana"}
    waiting = await fleet.call("approved", "run", {"input": "pay 1"}, key="k")
    decided = asyncio.create_task(fleet.call("approved", "resume", approval, key="k"))
    await fleet.until("approved", lambda calls: calls == {"transfer": "started"})
    async with asyncio.timeout(WITHIN_S):
        while not fleet.effects("pay 1"):
            await asyncio.sleep(0.01)
    await fleet.kill(fleet.owner("pay 1"))
    fleet.open_gate()
    result = await decided
    await (await fleet.start()).ready()

    assert {
        "waits": [request["name"] for request in waiting["interrupts"][0]["value"]["action_requests"]],
        "status": [waiting["status"], result["status"]],
        "answer": result["answer"],
        "transfer is unknown": result["results"]["transfer-pay-1"]["error"] == UNKNOWN,
        "effects": fleet.effects("pay 1"),
        "answered twice": await fleet.refusal("approved", "resume", {"answer": "approve"}),
    } == {
        "waits": ["transfer"],
        "status": ["RUNNING", "COMPLETED"],
        "answer": "answer to pay 1",
        "transfer is unknown": True,
        "effects": Counter({"transfer": 1}),
        "answered twice": (400, ALREADY_DECIDED),
    }


async def test_a_cancelled_invocation_aborts_its_run_and_settles_its_calls(fleet: Fleet) -> None:
    fleet.close_gate()
    invocation = await fleet.server.send(f"{fleet.name}/cancelled/run", {"input": "wave c"})
    await fleet.until("cancelled", lambda calls: calls == {"book": "finished", "charge": "started", "look": "started"})
    queued = await fleet.server.send(f"{fleet.name}/cancelled/run", {"input": "wave c2"})
    await fleet.server.cancel(queued)
    await fleet.server.cancel(invocation)
    output = await fleet.server.output(invocation)
    after = await fleet.call("cancelled", "status")
    fleet.open_gate()

    assert (
        (output.status_code, output.json()["message"]),
        after["status"],
        {call["name"]: call["state"] for call in after["calls"]},
        fleet.effects("wave c2"),
    ) == (
        (409, "cancelled"),
        "ABORTED",
        {"book": "finished", "charge": "unknown", "look": "failed"},
        Counter(),
    )


async def test_a_run_continues_while_the_restate_server_restarts(fleet: Fleet) -> None:
    fleet.close_gate()
    invocation = await fleet.server.send(f"{fleet.name}/restarted/run", {"input": "wave r"})
    await fleet.until("restarted", lambda calls: calls == {"book": "finished", "charge": "started", "look": "started"})
    await fleet.server.kill()
    await fleet.server.start()
    fleet.open_gate()
    result = (await fleet.server.output(invocation)).json()

    assert (result["answer"], result["results"], fleet.effects("wave r")) == (
        "answer to wave r",
        {
            "book-wave-r": "booked for wave r",
            "charge-wave-r": "charged for wave r",
            "look-wave-r": "looked up for wave r",
        },
        ONCE,
    )


async def test_an_idempotency_key_that_restate_has_forgotten_returns_the_stored_answer(fleet: Fleet) -> None:
    fleet.open_gate()
    first = await fleet.server.call(f"{fleet.name}/repeated/run", {"input": "wave p"}, key="k")
    await fleet.server.purge(first.headers["x-restate-id"])
    second = await fleet.server.call(f"{fleet.name}/repeated/run", {"input": "wave p"}, key="k")
    await fleet.server.purge(second.headers["x-restate-id"])
    other = await fleet.server.call(f"{fleet.name}/repeated/run", {"input": "wave q"}, key="k")

    assert (second.json(), fleet.effects("wave p"), fleet.effects("wave q"), other.status_code) == (
        first.json(),
        ONCE,
        Counter(),
        400,
    )


async def test_errors_of_the_caller_are_terminal_with_the_agents_text(fleet: Fleet) -> None:
    found = [
        await fleet.refusal("wrong", "run", {"input": " "}),
        await fleet.refusal("wrong", "resume", {"answer": "yes"}),
        await fleet.refusal("wrong", "steer", ""),
    ]

    assert found == [
        (400, "A run takes the user's input, as text that is not empty or as messages; got ' '."),
        (400, "Session 'wrong' has nothing to resume: it has had no input yet."),
        (400, "steer takes the user's input, as text that is not empty; got ''."),
    ]


async def test_an_input_is_answered_when_its_workers_return(fleet: Fleet) -> None:
    fleet.open_gate()
    for worker in list(fleet.workers):
        await fleet.kill(worker.process.pid)
    invocation = await fleet.server.send(f"{fleet.name}/returning/run", {"input": "wave b"})
    for worker in (await fleet.start(), await fleet.start()):
        await worker.ready()

    result = (await fleet.server.output(invocation)).json()
    assert (result["answer"], fleet.effects("wave b")) == ("answer to wave b", ONCE)


async def test_a_worker_ends_its_runs_after_sigterm_and_new_inputs_go_to_the_other(fleet: Fleet) -> None:
    answer = await in_mid_wave(fleet, "drained", "wave d")
    drained = next(worker for worker in fleet.workers if worker.process.pid == fleet.owner("wave d"))
    drained.process.terminate()
    fleet.workers.remove(drained)
    others = [await fleet.call(f"other-{number}", "run", {"input": f"talk {number}"}) for number in range(8)]
    fleet.open_gate()
    result = await answer
    status = await asyncio.wait_for(drained.process.wait(), WITHIN_S)
    await (await fleet.start()).ready()

    assert ([each["answer"] for each in others], result["answer"], fleet.effects("wave d"), status) == (
        [f"answer to talk {number}" for number in range(8)],
        "answer to wave d",
        ONCE,
        0,
    )


async def test_other_invocations_steer_and_abort_a_run(fleet: Fleet) -> None:
    steered = await in_mid_wave(fleet, "steered", "wave s")
    await fleet.call("steered", "steer", "Only double rooms.")
    fleet.open_gate()
    answer = (await steered)["answer"]
    stopped = await in_mid_wave(fleet, "steered", "wave t")
    found = await fleet.call("steered", "abort")
    result = await stopped
    fleet.open_gate()

    assert ("Only double rooms." in answer, found, result["status"], await fleet.call("steered", "abort")) == (
        True,
        True,
        "ABORTED",
        False,
    )


async def test_two_workers_of_the_guide_answer(
    server: RestateServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = [each for each in read_blocks(GUIDE) if each.language == "python"]
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps(BOOKING))

    def command(address: str) -> list[str]:
        (tmp_path / "worker.py").write_text(block.text.replace("127.0.0.1:9080", address))
        return ["worker.py"]

    async with fleet_of_two(server, tmp_path, "hotel", command) as workers:
        result = await workers.call("session-1", "run", {"input": "Book the blue room."}, key="order-7")

    assert (len(block.text.splitlines()) < 30, result["answer"], result["results"]) == (
        True,
        "The blue room is booked.",
        {"a": "Booked blue."},
    )
