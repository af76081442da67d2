"""Cost of the loop per turn, compared with `create_agent` and a bare asyncio loop: `python -m benchmarks.loop`.

A turn is one model call that asks for one tool call, and that call. All three get the same scripted model and the same
tool; each round runs them one after the other, and the ratios are medians over the rounds, so that a machine whose
speed drifts does not tilt them. With SQLite all use LangGraph's own saver; two more lines are for a tool
that may write, and with the saver of an agent file's database. `--rounds` sets how many; `--turns` and `--saver` narrow
what is run.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.persistence.open import strict_serializer
from graph_agent.persistence.sqlite_saver import open_sqlite_saver

Run = Callable[..., Awaitable[list[AnyMessage]]]


async def _look_up(key: str) -> str:
    return f"the value of {key}"


lookup = StructuredTool.from_function(
    coroutine=_look_up, name="lookup", description="Look a key up.", metadata={"effect": "read"}
)


@dataclass(frozen=True)
class Case:
    """One thing to time."""

    turns: int
    saver: BaseCheckpointSaver[Any] | None

    def model(self, *tail: str) -> ScriptedChatModel:
        """A model that asks for one call a turn, then replies with `tail`."""
        calls = [
            AIMessage("", tool_calls=[{"id": f"call_{i}", "name": "lookup", "args": {"key": f"k{i}"}}])
            for i in range(self.turns)
        ]
        return ScriptedChatModel([*calls, *tail])

    def config(self) -> Any:
        """The run's config, with room for every turn."""
        return {"configurable": {"thread_id": "bench"}, "recursion_limit": 4 * self.turns + 20}


def graph_agent_run(case: Case) -> Run:
    """This framework, everything on."""
    graph = create_graph_agent(
        case.model("No more actions.", "Done."),
        tools=[lookup],
        config=LoopConfig(max_steps=case.turns + 1),
        checkpointer=case.saver,
    )
    return _graph_run(graph, case)


def graph_agent_sync_run(case: Case) -> Run:
    """The same as with a tool that may write: its plan is stored before it runs."""
    if case.saver is None:
        return graph_agent_run(case)
    run: Run = functools.partial(graph_agent_run(case), durability="sync")
    return run


def create_agent_run(case: Case) -> Run:
    """LangChain's agent."""
    return _graph_run(create_agent(case.model("Done."), tools=[lookup], checkpointer=case.saver), case)


def bare_loop_run(case: Case) -> Run:
    """A loop written by hand: no graph, no saver."""
    model = case.model("Done.").bind_tools([lookup])

    async def run() -> list[AnyMessage]:
        messages: list[AnyMessage] = [HumanMessage("go")]
        while True:
            reply = await model.ainvoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                return messages
            (call,) = reply.tool_calls
            messages.append(ToolMessage(await lookup.ainvoke(call["args"]), tool_call_id=call["id"]))

    return run


def _graph_run(graph: Any, case: Case) -> Run:
    async def run(**options: Any) -> list[AnyMessage]:
        result = await graph.ainvoke({"messages": [HumanMessage("go")]}, case.config(), **options)
        messages: list[AnyMessage] = result["messages"]
        return messages

    return run


BUILDERS: dict[str, Callable[[Case], Run]] = {
    "graph-agent": graph_agent_run,
    " … writing": graph_agent_sync_run,
    " … own saver": graph_agent_run,
    "create_agent": create_agent_run,
    "bare loop": bare_loop_run,
}


@asynccontextmanager
async def saver_at(path: Path | None, *, own: bool = False) -> AsyncIterator[BaseCheckpointSaver[Any] | None]:
    """LangGraph's SQLite saver on a new file, or our own; None for no memory."""
    if path is None:
        yield None
        return
    if own:
        async with open_sqlite_saver(path, strict_serializer()) as saver:
            saver.setup()
            yield saver
        return
    async with aiosqlite.connect(path) as connection:
        stock = AsyncSqliteSaver(connection, serde=strict_serializer())
        await stock.setup()
        yield stock


async def measure(name: str, turns: int, path: Path | None) -> tuple[float, list[AnyMessage]]:
    """Seconds for one run of an agent that is built, and its messages."""
    async with saver_at(path, own=name == " … own saver") as saver:
        case = Case(turns, saver if name != "bare loop" else None)
        run = BUILDERS[name](case)
        gc.collect()
        begun = time.perf_counter()
        messages = await run()
        return time.perf_counter() - begun, messages


def stored_beyond_messages(path: Path, messages: list[AnyMessage]) -> int:
    """Bytes in the database beyond the messages' own size."""
    import sqlite3

    with sqlite3.connect(path) as db:
        (checkpoints,) = db.execute("select sum(length(checkpoint) + length(metadata)) from checkpoints").fetchone()
        (writes,) = db.execute("select sum(length(value)) from writes").fetchone()
    serde = strict_serializer()
    return int(checkpoints + writes - sum(len(serde.dumps_typed(message)[1]) for message in messages))


async def compare(turns: int, *, sqlite: bool, rounds: int) -> None:
    """Time the three in turn, and print one line each."""
    seconds: dict[str, list[float]] = {name: [] for name in BUILDERS}
    extra: dict[str, int] = {}
    names = [name for name in BUILDERS if sqlite or not name.startswith(" … ")]
    for _ in range(rounds):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "bench.db" if sqlite and name != "bare loop" else None
                taken, messages = await measure(name, turns, path)
                seconds[name].append(taken)
                if path:
                    extra[name] = stored_beyond_messages(path, messages)
    for name in names:
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["create_agent"], strict=True))
        per_turn = 1000 * statistics.median(seconds[name]) / turns
        stored = f"{extra[name] / turns / 1024:9.2f}" if name in extra else f"{'-':>9}"
        saver = "sqlite" if sqlite else "none"
        print(f"{saver:7} {turns:6} {name:13} {per_turn:9.3f} {ratio:9.2f} {stored}")


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description="The loop's cost per turn.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--saver", choices=["none", "sqlite", "both"], default="both")
    options = parser.parse_args()
    print(f"{'saver':7} {'turns':>6} {'':13} {'ms/turn':>9} {'ratio':>9} {'KB/turn +':>9}")
    for sqlite in (False, True):
        if options.saver in ("both", "sqlite" if sqlite else "none"):
            for turns in options.turns:
                asyncio.run(measure("graph-agent", 2, None))
                asyncio.run(compare(turns, sqlite=sqlite, rounds=options.rounds))


if __name__ == "__main__":
    main()
