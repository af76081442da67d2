"""Costs that must not grow with the size of the work: `python -m benchmarks.growth`.

Each row compares a large size with a small one, or with another framework of the same size, in interleaved rounds.
"""

from __future__ import annotations

import functools
import gc
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Scale, Table, Trial, Work, plain, ratio_row
from benchmarks.long_session import BATCH, build, build_before_prunings
from benchmarks.waves import one_wave
from benchmarks.work import REPLY, CountingModel, begin
from graph_agent import GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver, prune
from graph_agent.server.serve import SERVE_THRESHOLDS

_CA = "`create_agent`"


async def _look_up(key: str, kind: str = "any", limit: int = 10) -> str:
    return f"{limit} of {kind}: {key}"


def _tools(count: int) -> list[BaseTool]:
    return [
        StructuredTool.from_function(coroutine=_look_up, name=f"lookup_{at}", description="Look a key up.")
        for at in range(count)
    ]


def _building(tools: int, *, own: bool) -> Work:
    given = _tools(tools)

    async def build() -> None:
        if own:
            create_graph_agent(CountingModel(), tools=given)
        else:
            create_agent(CountingModel(), tools=given)

    return build


async def building(scale: Scale) -> Table:
    """Compare the time to build an agent, before its first run."""
    rows: list[list[str]] = []
    for nominal in (100, 1_000, 3_000):
        tools = scale.size(nominal)
        trials: dict[str, Trial] = {
            name: plain(functools.partial(_building, tools, own=own))
            for name, own in (("graph-agent", True), (_CA, False))
        }
        costs = await harness.interleaved(trials, scale)
        for name, aim in (("graph-agent", "≤ 2"), (_CA, "")):
            rows.append(ratio_row(f"{nominal:,} tools, {name}", costs, name, _CA, aim=aim, per=tools, unit="tool"))
    note = "The tools exist; their schemas are made when the model is first asked. Ratios to `create_agent`."
    return Table("Building an agent", note, RATIO_COLUMNS, rows)


def answering(url: str, *, has_answered: bool = True) -> Trial:
    """Return a trial of one input of a stored session, in a process that has answered another one, or has read
    nothing."""

    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        async with open_saver(url) as saver:
            session = Session(create_graph_agent(CountingModel(), checkpointer=saver), "s")

            def work() -> Any:
                begin(0)
                return session.run("And now?")

            if has_answered:
                await work()
            yield work

    return trial


async def next_inputs(scale: Scale) -> Table:
    """Compare a session's next input with its first one in a process."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for nominal in (1_000, 10_000, 36_000):
            file = Path(folder) / f"{nominal}.db"
            await build(file, scale.size(nominal))
            url = f"sqlite:///{file}"
            costs = await harness.interleaved(
                {"first": answering(url, has_answered=False), "next": answering(url, has_answered=True)}, scale
            )
            for name, aim in (("first", ""), ("next", "≤ 0.30")):
                rows.append(ratio_row(f"{nominal:,} turns, {name} input", costs, name, "first", aim=aim, unit="input"))
    note = "A stored session gets an input without calls, in SQLite. Ratios to the first input in a process."
    return Table("Inputs of a long session", note, RATIO_COLUMNS, rows)


def _pruning(file: Path) -> Trial:
    """One pruning of a copy of a database."""

    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        with tempfile.TemporaryDirectory() as folder:
            copied = shutil.copy(file, Path(folder) / "s.db")
            yield lambda: prune(f"sqlite:///{copied}", keep_last=1)

    return trial


async def prunings(scale: Scale) -> Table:
    """Compare prunings of a session each time it has grown by 6,000 turns."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = await build_before_prunings(Path(folder), 5, scale.size(BATCH))
        names = [f"{(number + 1) * 6},000 turns" for number in range(len(files))]
        costs = await harness.interleaved(
            {name: _pruning(file) for name, file in zip(names, files, strict=True)}, scale
        )
        for name, aim in zip(names, ("", *["≤ 1.20"] * 4), strict=True):
            rows.append(ratio_row(name, costs, name, names[0], aim=aim, unit="pruning"))
    note = "A session in SQLite is pruned whenever it has grown by 6,000 turns, about 14,400 checkpoints."
    return Table("Prunings of a growing session", note, RATIO_COLUMNS, rows)


@contextmanager
def _collecting_as_serve() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.set_threshold(*SERVE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _wave(calls: int, *, stored: bool) -> Trial:
    """One wave whose calls all run at once, with the garbage collection of `serve`."""

    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        with _collecting_as_serve(), tempfile.TemporaryDirectory() as folder:
            async with open_saver(f"sqlite:///{folder}/waves.db") as saver:
                yield one_wave(calls, _tools(1), saver if stored else None)

    return trial


async def waves(scale: Scale) -> Table:
    """Compare the cost of a call in large waves with that in a wave of 100."""
    rows: list[list[str]] = []
    for stored, name in ((False, "no saver"), (True, "SQLite")):
        sizes = {nominal: scale.size(nominal) for nominal in (100, 500, 2_000, 5_000)}
        trials = {str(nominal): _wave(size, stored=stored) for nominal, size in sizes.items()}
        costs = await harness.interleaved(trials, scale)
        for nominal, size in sizes.items():
            row = ratio_row("", costs, str(nominal), "100", per=size, unit="call")
            factor = sizes[100] / size
            cpu = harness.cpu_ratio(costs, str(nominal), "100", factor)
            wall = factor * harness.wall_ratio(costs, str(nominal), "100").median
            ratios = [f"{cpu.median:.2f}", harness.quartiles(cpu), f"{wall:.2f}", "≤ 1.20" if nominal > 100 else ""]
            rows.append([f"{nominal:,} calls, {name}", *ratios, row[-1]])
    note = "One reply asks for calls that return at once, all in parallel. Ratios to a call in a wave of 100."
    return Table("Large waves", note, RATIO_COLUMNS, rows)


_TOKENS = 100
"""Tokens of a model call, as the agents of the tables on delegates report them."""


def _delegating(delegates: int, levels: int) -> Trial:
    """One input whose plan delegates to some agents at once, each of which does the same, down to the last level."""

    def reply(text: str, calls: int) -> AIMessage:
        asked: list[ToolCall] = [
            {"name": f"delegate_to_{at}", "args": {"task": "Look it up."}, "id": f"c{at}", "type": "tool_call"}
            for at in range(calls)
        ]
        used: UsageMetadata = {"input_tokens": _TOKENS - 10, "output_tokens": 10, "total_tokens": _TOKENS}
        return AIMessage(text, tool_calls=asked, usage_metadata=used)

    def agent(level: int, saver: InMemorySaver | None = None) -> CompiledStateGraph[Any, Any, Any, Any]:
        called = [GraphDelegate(f"{at}", "Knows values.", agent(level - 1)) for at in range(delegates if level else 0)]
        script = [reply("", delegates), reply(REPLY, 0)] if level else [reply(REPLY, 0)]
        config = LoopConfig(max_delegation_depth=levels, max_parallel_calls=delegates, max_tokens_total=10**9)
        model = ScriptedChatModel(script, cycle=True)
        return create_graph_agent(model, delegates=called, config=config, checkpointer=saver)

    calls = sum(2 * delegates**level for level in range(levels)) + delegates**levels

    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        session = Session(agent(levels, InMemorySaver()), "s")

        async def work() -> None:
            result = await session.run("What are the values?")
            used = result.usage["total_tokens"], result.usage["model_calls"]
            if (result.answer, used) != (REPLY, (calls * _TOKENS, calls)):
                raise RuntimeError(f"{calls} model calls of {_TOKENS} tokens were counted as {used}: {result}")

        with _collecting_as_serve():
            yield work

    return trial


async def delegations(scale: Scale) -> Table:
    """Compare the cost of an agent's model calls in large waves and deep levels of delegates with a small wave."""
    shapes = {
        "a wave of 8 delegates": (8, 1),
        "a wave of 64 delegates": (64, 1),
        "two levels of 8": (8, 2),
        "three levels of 4": (4, 3),
    }
    sizes = {name: (scale.size(delegates), levels) for name, (delegates, levels) in shapes.items()}
    agents = {name: sum(each**level for level in range(levels + 1)) for name, (each, levels) in sizes.items()}
    costs = await harness.interleaved({name: _delegating(*size) for name, size in sizes.items()}, scale)
    reference, *_ = shapes
    rows: list[list[str]] = []
    for name in shapes:
        factor = agents[reference] / agents[name]
        cpu = harness.cpu_ratio(costs, name, reference, factor)
        wall = factor * harness.wall_ratio(costs, name, reference).median
        each = ratio_row(name, costs, name, reference, per=agents[name], unit="agent")[-1]
        aim = "" if name == reference else "≤ 1.20"
        rows.append([name, f"{cpu.median:.2f}", harness.quartiles(cpu), f"{wall:.2f}", aim, each])
    note = (
        "One input, with a saver in memory and the garbage collection of `serve`; agents above the last level plan "
        "one wave and answer. Each run checks that the usage is the sum of all model calls. Ratios to an agent "
        "of the first row."
    )
    return Table("Delegates", note, RATIO_COLUMNS, rows)


async def tables(scale: Scale) -> list[Table]:
    """Run all comparisons of this module."""
    return [
        await building(scale),
        await next_inputs(scale),
        await prunings(scale),
        await waves(scale),
        await delegations(scale),
    ]


if __name__ == "__main__":
    harness.main(tables, __doc__)
