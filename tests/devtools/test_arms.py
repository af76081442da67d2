"""The comparison of a rollout's arms."""

from __future__ import annotations

from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.devtools.statistics import InputRow, arms_of, rows_of
from tests.support.agents import echo
from tests.support.wave_helpers import plan, use


async def test_the_arms_of_a_rollout_are_compared_by_their_inputs() -> None:
    config = LoopConfig(tool_calling="wave", rollout=0.1)
    waves_of = {"session-1": 1, "session-2": 1, "session-19": 3}
    rows = list[InputRow]()
    for session_id, waves in waves_of.items():
        script = [plan(use(f"c{number}", "echo", text=f"{number}")) for number in range(waves)]
        last = [plan(status="done")] if waves > 1 else []  # the planner `dag` plans once
        model = ScriptedChatModel([*script, *last, "Done."])
        session = Session(
            create_graph_agent(model, tools=[echo], config=config, checkpointer=InMemorySaver()), session_id
        )
        await session.run("go")
        rows += rows_of(await session.events(), "planner")

    dag, wave = arms_of(rows)

    assert [(arm.name, len(arm.rows), arm.success.value, arm.values("steps")) for arm in (dag, wave)] == [
        ("dag", 2, 1.0, [1, 1]),
        ("wave", 1, 1.0, [3]),
    ]
    assert wave.minus(dag)["steps"].value == 2
