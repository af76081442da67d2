"""Results of delegates that break the protocol: an error of that call alone, or plain JSON."""

from __future__ import annotations

import math
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import ScriptedChatModel, Session, create_graph_agent
from graph_agent.base.history.call_events import CallResult
from graph_agent.delegation import Delegation, DelegationResult
from tests.support.agents import asks, echo

BOTH = asks(("d", "delegate_to_r", {"task": "t"}), ("e", "echo", {"text": "a"}))


class Returning:
    """Returns an object, whatever the task."""

    name, description = "r", "R."

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    async def run(self, delegation: Delegation) -> Any:
        return self.returned


async def results_of(returned: Any) -> tuple[str, dict[str, Any]]:
    model = ScriptedChatModel([BOTH, "No more actions.", "Done."])
    result = await Session(
        create_graph_agent(model, tools=[echo], delegates=[Returning(returned)], checkpointer=InMemorySaver()), "s"
    ).run("go")
    return str(result.status), result.results


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        ("text", "run() returned str; return a DelegationResult"),
        (None, "run() returned NoneType; return a DelegationResult"),
        (CallResult("text"), "run() returned CallResult; return a DelegationResult"),
        (DelegationResult(None), "content=None is neither text nor a list of content blocks"),  # type: ignore[arg-type]  # the fault
        (DelegationResult(5), "content=5 is neither text nor a list of content blocks"),  # type: ignore[arg-type]  # the fault
        (
            DelegationResult("a", "failed"),  # type: ignore[arg-type]  # the fault
            "status='failed' is none of success, error, unknown, invalid, skipped, denied, answered",
        ),
        (DelegationResult("a", history=[object()]), "history holds an entry that is no event"),  # type: ignore[list-item]  # the fault
    ],
    ids=["text", "nothing", "another result", "no content", "a number", "a status", "a history"],
)
async def test_a_malformed_result_is_an_error_of_its_call_alone(returned: Any, fault: str) -> None:
    error = {"error": f"The delegate 'r' failed: TypeError: {fault}"}

    assert await results_of(returned) == ("COMPLETED", {"d": error, "e": "a"})


@pytest.mark.parametrize(
    ("value", "stored"), [({1}, "{1}"), (math.nan, "nan"), ({"a": (1, 2)}, {"a": [1, 2]})], ids=["set", "nan", "tuple"]
)
async def test_a_value_is_stored_as_plain_json(value: Any, stored: Any) -> None:
    returned = DelegationResult("a", value=value, artifact=object())

    assert (await results_of(returned))[1] == {"d": stored, "e": "a"}


async def test_stored_fields_hold_the_value_of_a_result() -> None:
    assert (await results_of(DelegationResult("a", stored={"value": {"n": 1}})))[1] == {"d": {"n": 1}, "e": "a"}
