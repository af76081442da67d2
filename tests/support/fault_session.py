"""Sessions in memory, stopped after any number of turns of the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, RunResult, Session, create_graph_agent
from graph_agent.persistence import strict_serializer
from tests.support.fault_agent import ANSWER, WAVES, GoesOn, Reach, Wave, logging_tools, nothing
from tests.support.fault_truth import Before, before, untrue


@dataclass
class Watched:
    """A session, and its tools' log."""

    structured: bool = False
    ledger: bool = False
    blocking: bool = False
    """Whether its tools block, in threads."""
    waves: list[Wave] = field(default_factory=lambda: WAVES)
    saver: BaseCheckpointSaver[Any] = field(default_factory=lambda: InMemorySaver(serde=strict_serializer()))
    reach: Reach = nothing
    log: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = create_graph_agent(
            GoesOn(responses=[], waves=self.waves, structured=self.structured, reach=self.reach),
            tools=logging_tools(lambda stage, id_: self.log.append((stage, id_)), self.reach, blocking=self.blocking),
            config=LoopConfig(
                max_steps=9, tool_calling="wave" if self.structured else "native", effect_ledger=self.ledger
            ),
            checkpointer=self.saver,
        )
        self.begin("s1")

    def begin(self, session_id: str) -> None:
        """Start another session with the same agent, and a log of its own.

        Only where no thread of a tool may still be writing the last one's.
        """
        self.session = Session(self.graph, session_id)
        self.config: Any = {"configurable": {"thread_id": session_id}}
        self.log = []

    async def stored(self) -> Before:
        """The stored state after the session was stopped."""
        values = (await self.graph.aget_state(self.config)).values
        return before(values.get("messages", []), await self.saver.aget_tuple(self.config))

    async def go_on(self, how: str) -> RunResult:
        """Complete a stopped session: by `resume`, or by new `input`."""
        state = await self.graph.aget_state(self.config)
        if how == "resume" and state.tasks:
            return await self.session.resume()
        if how == "resume" and state.created_at:
            return await self.session.driver.result()
        return await self.session.run("go on")

    async def untrue(self, stored: Before, *, ledger: bool) -> list[str]:
        """The violations in the session at the end of its input; see `fault_truth.untrue`."""
        values = (await self.graph.aget_state(self.config)).values
        messages = values["messages"]
        faults = untrue(messages, values["events"], self.log, stored, ledger=ledger)
        if (values["status"], messages[-1].text) != ("COMPLETED", ANSWER):
            faults.append(f"it ended {values['status']} with {messages[-1].text!r}")
        return faults


async def turns(task: asyncio.Task[Any], count: int) -> None:
    """Yield to the event loop `count` times, or until a task is done."""
    for _ in range(count):
        if task.done():
            return
        await asyncio.sleep(0)
