"""Without streamed dispatch, candidates, predictions and origins, none of their code runs, and nothing differs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from benchmarks.files_of_a_turn import recorded
from benchmarks.off_checks import CEILINGS, of_mode
from graph_agent import LoopConfig, ScriptedChatModel, SpeculationBudget, create_graph_agent
from tests.support.early_calls import calls, found, read

MEASURED = ("ts", "model_calls", "queued_s", "duration_s")
OFF = LoopConfig(
    dispatch="whole", candidates=1, predict=False, speculation_budget=SpeculationBudget(calls=1, seconds=1)
)


async def session_with(config: LoopConfig | None) -> tuple[Counter[str], Any]:
    """The package's calls of functions in the second of two equal inputs, by file; the requests and events."""
    model = ScriptedChatModel([calls("look"), "Done."], cycle=True, streaming=True)
    agent = create_graph_agent(model, [read("look", found)], config=config, checkpointer=InMemorySaver())
    session = agent.session("s1")
    turn = await recorded(lambda: session.run("Look."))
    events = [{name: each for name, each in event.items() if name not in MEASURED} for event in await session.events()]
    requests = [[message.text for message in request.messages] for request in model.requests]
    return turn.calls, (requests, events)


async def test_a_session_without_overlap_runs_no_function_more() -> None:
    await session_with(None)  # which fills caches of the process
    for _ in range(5):
        without, off = await session_with(None), await session_with(OFF)
        if off == without:
            break  # otherwise, on a busy machine, a timer has run in one of the two

    assert off == without
    assert not any("overlap" in path or "speculation" in path for path in off[0])


@pytest.mark.parametrize("mode", CEILINGS)
async def test_few_instructions_of_a_turn_are_for_features_that_are_off(mode: str) -> None:
    found = await of_mode(mode)

    assert (found.checks <= CEILINGS[mode], found.in_folders) == (True, 0), found.lines
