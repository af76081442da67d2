"""Values that hooks return and that the agent cannot use: the input fails, and the session goes on."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent

STRANGE = object()
VALUES: list[tuple[Any, str]] = [
    ([1], "it returned [1]; return a dict of state fields, or None."),
    ({"messages": 5}, "it wrote the state field 'messages': Unsupported message type: <class 'int'>; return messages"),
    ({"messages": [None]}, "Unsupported message type: <class 'NoneType'>"),
    ({"messages": [("nobody", "x")]}, "Unexpected message type: 'nobody'"),
    (
        {"messages": [AIMessage("a", additional_kwargs={"x": STRANGE})]},
        "checkpoints cannot hold a message of type 'ai'",
    ),
    ({"structured_response": STRANGE}, "checkpoints cannot hold it (value is of type object"),
    ({"mood": 1}, "it wrote the state field 'mood': it is not declared; add it to the `state_schema`"),
    ({"events": [1]}, "it wrote the state field 'events': it belongs to the agent itself"),
]


class Once(AgentMiddleware[Any, Any, Any]):
    """Returns a value from its hook once, at one point."""

    def __init__(self, point: str, value: Any) -> None:
        super().__init__()
        self.left = [value]
        setattr(self, f"_{point}", True)

    def _next(self, point: str) -> Any:
        return self.left.pop() if self.left and getattr(self, f"_{point}", False) else None

    async def abefore_model(self, state: Any, runtime: Any) -> Any:
        return self._next("before_model")

    async def aafter_agent(self, state: Any, runtime: Any) -> Any:
        return self._next("after_agent")


def session_of(point: str, value: Any, **config: Any) -> Session:
    graph = create_graph_agent(
        ScriptedChatModel(["Hello.", "Hello."]),
        hooks=[Once(point, value)],
        checkpointer=InMemorySaver(),
        config=LoopConfig(**config),
    )
    return Session(graph, "s1")


@pytest.mark.parametrize("point", ["before_model", "after_agent"])
@pytest.mark.parametrize(("value", "fault"), VALUES, ids=[str(value)[:30] for value, _ in VALUES])
async def test_an_unusable_value_of_a_hook_fails_the_input_with_the_fix(point: str, value: Any, fault: str) -> None:
    session = session_of(point, value)

    failed = await session.run("go")
    again = await session.run("again")

    assert (failed.status, fault in failed.error, failed.error.split(":")[0], again.status, again.answer) == (
        "FAILED",
        True,
        f"The hook Once.{point} failed",
        "COMPLETED",
        "Hello.",
    )


async def test_an_unusable_value_of_a_hook_raises_if_failures_are_to_raise() -> None:
    session = session_of("before_model", {"mood": 1}, on_failure="raise")

    with pytest.raises(Exception, match="'mood': it is not declared"):
        await session.run("go")

    assert await session.status() == "FAILED"
