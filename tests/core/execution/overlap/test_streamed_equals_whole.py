"""Streamed dispatch changes nothing but the time: no writing call begins early, and the history is the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from tests.support.early_calls import read
from tests.support.examples import many_examples

MEASURED = {"ts", "model_calls", "early", "early_s", "lead_s", "queued_s", "duration_s", "waited_s"}
"""Fields of events that differ between two equal sessions, or because calls begin early."""
Planned = tuple[str, str, list[int]]
"""Name of a tool, its argument, and the places of the calls of the same plan that it refers to."""

planned = st.tuples(
    st.sampled_from(["look", "search", "save", "ask"]), st.sampled_from("ab"), st.lists(st.integers(0, 3), max_size=2)
)
plans = st.lists(st.lists(planned, min_size=1, max_size=4), max_size=3)


def native(number: int, plan: list[Planned]) -> dict[str, Any]:
    """A reply with native calls; references are left out."""
    calls = [
        {"id": f"{number}-{at}", "name": name, "arguments": {"text": text}} for at, (name, text, _) in enumerate(plan)
    ]
    return {"tool_calls": calls}


def structured(number: int, plan: list[Planned]) -> str:
    """A structured plan; one that refers to a call that it does not have is invalid, and one to itself, too."""

    def of(at: int, name: str, text: str, needs: list[int]) -> dict[str, Any]:
        references = "".join(f" ${{p{number}-{need}}}" for need in needs)
        return {"id": f"p{number}-{at}", "tool": name, "args": {"text": text + references}, "needs": []}

    tools = [of(at, *each) for at, each in enumerate(plan)]
    return json.dumps({"status": "continue", "action": "Go.", "tools": tools, "reasoning": "So."})


async def run(mode: Any, script: list[Any], dispatch: Any) -> tuple[Any, int]:
    """Everything that two equal sessions have in common, and how often tools that may write have run."""
    saved: list[str] = []
    runs = 0

    async def found(text: str) -> str:
        return f"found {text}, {len(saved)} saved"

    @tool
    async def save(text: str) -> str:
        """Save."""
        nonlocal runs
        runs += 1
        # Calls that run at the same time do not see a saved value, whichever begins first.
        for _ in range(300):
            await asyncio.sleep(0)
        saved.append(text)
        return "saved"

    ask = read("ask", found)
    ask.metadata = {"effect": "read", "approve": True}
    model = ScriptedChatModel([*script, "Done.", "Done."], streaming=True)
    config = LoopConfig(dispatch=dispatch, tool_calling=mode, max_steps=4)
    tools = [read("look", found), read("search", found), save, ask]
    session = create_graph_agent(model, tools, config=config, checkpointer=InMemorySaver()).session("s1")
    result = await session.run("Go.")
    while result.interrupts:
        count = len(result.interrupts[0].value["action_requests"])
        result = await session.resume({"decisions": [{"type": "approve"}] * count})
    events = await session.events()
    shown = sorted(str({name: value for name, value in event.items() if name not in MEASURED}) for event in events)
    # The prompt of a structured plan has the order of its fields, in which the calls of a streamed one are first.
    begin = 1 if mode == "wave" else 0
    requests = [[message.text for message in request.messages[begin:]] for request in model.requests]
    early = {event["name"] for event in events if event["type"] == "tool_result" and "early_s" in event}
    assert early <= {"look", "search"}
    return (result.answer, result.results, result.usage["model_calls"], shown, requests), runs


@many_examples
@given(mode=st.sampled_from(["native", "wave"]), plans=plans)
def test_a_session_is_that_of_whole_plans_and_no_writing_call_is_early(mode: str, plans: list[list[Planned]]) -> None:
    reply: Any = native if mode == "native" else structured
    script = [reply(number, plan) for number, plan in enumerate(plans)]

    assert asyncio.run(run(mode, script, "streamed")) == asyncio.run(run(mode, script, "whole"))
