"""What other processes can read of a run, at each request and call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.tools import BaseTool, tool

from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import strict_serializer
from tests.support.agents import asks, marked, says, thread

Seen = list[tuple[str, list[str]]]
"""Point of a run → the types of the messages that are committed then."""


class _ObservingModel(ScriptedChatModel):
    """Calls `observe` at each request."""

    observe: Any

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        self.observe("request")
        return super()._reply(messages, stop, kwargs)


def _tools(observe: Callable[[str], None]) -> list[BaseTool]:
    @tool
    async def read() -> str:
        """Read."""
        observe("read")
        return "read"

    @tool
    async def write() -> str:
        """Write."""
        observe("write")
        return "written"

    return [marked(read, effect="read"), marked(write, effect="write")]


def types_of(rows: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return the types of stored messages, without the user's.

    Args:
        rows: Type and value of each stored write.
    """
    serde = strict_serializer()
    messages: list[AnyMessage] = [message for row in rows for message in serde.loads_typed(row)]
    return [message.type for message in messages if message.type != "human"]


async def observed_run(
    saver: Any, called: Sequence[str], committed: Callable[[], list[str]], offered: Collection[str], **options: Any
) -> Seen:
    """Run one call per turn; return the committed messages at each point and at the end.

    Args:
        saver: The saver.
        called: The tools to call: `read` or `write`.
        committed: Reads the types of the committed messages as another process.
        offered: The tools of the agent.
        options: Further options of `ainvoke`.
    """
    seen: Seen = []

    def observe(point: str) -> None:
        seen.append((point, committed()))

    script = [asks((str(number), name, {})) for number, name in enumerate(called)]
    graph = create_graph_agent(
        _ObservingModel(responses=[*script, "No more actions.", "Done."], observe=observe),
        tools=[one for one in _tools(observe) if one.name in offered],
        checkpointer=saver,
    )
    await graph.ainvoke(says("go"), thread(), **options)
    observe("end")
    return seen
