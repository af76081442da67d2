"""Costs that must not grow with the size of the work: `python -m benchmarks.growth`.

Each row compares a large size with a small one, or with another framework of the same size, in interleaved rounds.
"""

from __future__ import annotations

import functools

from langchain.agents import create_agent
from langchain_core.tools import BaseTool, StructuredTool

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Scale, Table, Trial, Work, plain, ratio_row
from benchmarks.work import CountingModel
from graph_agent import create_graph_agent

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


async def tables(scale: Scale) -> list[Table]:
    """Run all comparisons of this module."""
    return [await building(scale)]


if __name__ == "__main__":
    harness.main(tables, __doc__)
