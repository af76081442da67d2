"""The benchmarks run, in their smallest form, and measure every row of `benchmarks/RESULTS.md`."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from langchain_core.messages import AIMessage, ToolMessage

from benchmarks import instructions, results, work
from benchmarks.harness import Cost, Scale, Spread, Table, cpu_ratio, ratio_row
from benchmarks.profile import Samples, layer_of, profile, report

TINY = Scale(tiny=True)
COMPARISON = Path(__file__).parents[2] / "docs" / "comparison.md"
UNCOUNTED = "instructions"
HEAVY = ("growth", "imports", "long_session", "many_sessions", "memory", "peers", "postgres")
"""The modules that start many processes or fill a database, which takes four fifths of the time of all."""


def cells(page: str) -> list[list[str]]:
    """The rows of all tables on a page, without heads and rules."""
    tables = re.findall(r"(?:^\|.*\n)+", page + "\n", re.MULTILINE)
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table.splitlines()[2:]
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "module",
    [
        pytest.param(name, marks=pytest.mark.thorough if name in HEAVY else [])
        for name in results.MODULES
        if name != UNCOUNTED
    ],
)
async def test_a_benchmark_measures_the_rows_of_the_results(module: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if module == "postgres" else ""
    page = results.sections(results.RESULTS.read_text(encoding="utf-8"))[module]

    tables = await importlib.import_module(f"benchmarks.{module}").tables(Scale(tiny=True, url=url))

    recorded = [row[0] for row in cells(page)]
    # A new row, which may have the name of another table's, is recorded by the next `make bench`.
    rows = (row[0] for table in tables for row in table.rows)
    assert [row for row in recorded if row in rows] == recorded


def test_rows_that_became_worse_than_their_recorded_quartiles_are_named() -> None:
    def table(low: float, high: float, count: float) -> list[Table]:
        timed = [["a turn", f"{(low + high) / 2}", f"{low}–{high}"], ["size", "7 KB", ""]]
        counted = [["turn", f"{count}", "≤ 2", "3 M"]]
        return [
            Table("Times", "Note.", ["work", "CPU ratio", "quartiles"], timed),
            Table("Counts", "Note.", ["work", "ratio", "aim", "instructions"], counted),
        ]

    recorded = results.section("turns", table(0.5, 0.6, 1.0), "2026-01-01")

    assert [
        results.worse(recorded, table(*new)) for new in ((0.62, 0.7, 1.01), (0.64, 0.7, 1.03), (0.3, 0.4, 0.9))
    ] == [
        [],
        ["Times: a turn: 0.64–0.70, recorded 0.50–0.60", "Counts: turn: 1.03–1.05, recorded 1.00–1.02"],
        [],
    ]


async def test_instructions_are_counted_around_each_session(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(instructions, "_control", lambda *arguments: steps.append(" ".join(arguments)))
    # A collection of a worker's objects, which `unfreeze` returns to the collector, takes a second.
    names = ("collect", "freeze", "unfreeze")
    collector = SimpleNamespace(**{name: functools.partial(steps.append, name) for name in names})
    monkeypatch.setattr(instructions, "gc", collector)

    await instructions.count_in_this_process(tiny=True)

    assert steps == ["collect", "freeze", "-i on", "-i off", "-d", "unfreeze"] * 20


async def test_instructions_are_not_counted_without_valgrind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    (table,) = await instructions.tables(TINY)

    assert (table.note, table.rows) == ("Not counted: valgrind is not installed on this machine.", [])


async def test_a_session_has_the_turns_and_sizes_of_the_results() -> None:
    result = await work.graph_agent_session(3)("s")

    replies = [message for message in result["messages"] if isinstance(message, AIMessage)]
    outputs = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    assert ([len(reply.text) for reply in replies], [len(output.text) for output in outputs]) == (
        [200] * 4,
        [1_000] * 3,
    )


async def test_a_session_that_does_not_finish_its_turns_is_an_error() -> None:
    session = work.graph_agent_session(5, settings={"max_turns": 2})

    with pytest.raises(RuntimeError, match="made 2 of 5 tool calls"):
        await session("s")


def test_a_ratio_is_the_median_over_rounds_with_quartiles() -> None:
    costs = {
        "a": [Cost(1, 9), Cost(2, 9), Cost(3, 9), Cost(4, 9), Cost(50, 9)],
        "b": [Cost(1, 3), Cost(1, 3), Cost(1, 3), Cost(1, 3), Cost(10, 3)],
    }

    found = (cpu_ratio(costs, "a", "b"), ratio_row("work", costs, "a", "b", aim="≤ 1", per=10))

    assert found == (Spread(3, 2, 4), ["work", "3.00", "2.00–4.00", "3.00", "≤ 1", "300.00 ms / turn"])


def test_the_results_of_one_module_can_be_replaced() -> None:
    first = results.section(
        "turns", [Table("Turns", "A note.", ["work", "ratio"], [["10 turns", "0.75"]])], "2026-01-01"
    )
    second = results.section(
        "waves", [Table("Waves", "A note.", ["work", "ratio"], [["100 calls", "0.40"]])], "2026-01-01"
    )

    assert results.sections(f"# Head\n\n{first}\n{second}") == {"turns": first, "waves": second}


def test_every_row_of_the_comparison_page_quotes_the_results() -> None:
    measured = {tuple(row[:2]) for row in cells(results.RESULTS.read_text(encoding="utf-8"))}

    quoted = [tuple(row[:2]) for row in cells(COMPARISON.read_text(encoding="utf-8"))]

    assert (len(quoted) > 8, [row for row in quoted if row not in measured]) == (True, [])


def test_the_readme_quotes_the_results() -> None:
    readme = (COMPARISON.parents[1] / "README.md").read_text(encoding="utf-8")
    measured = dict(row[:2] for row in cells(results.RESULTS.read_text(encoding="utf-8")) if row[0].endswith("`auto`"))

    quoted = re.search(r"takes ([\d.]+) \(10 turns\) to ([\d.]+) \(200 turns\)", readme)

    assert quoted is not None
    assert quoted.groups() == (measured["10 turns, `auto`"], measured["200 turns, `auto`"])


def test_a_source_file_belongs_to_the_layer_of_its_distribution() -> None:
    import asyncio
    import json

    import langchain_core.messages
    import langgraph.graph

    import graph_agent.models.client
    import graph_agent.nodes.plan
    import graph_agent.session.agent

    modules = (
        langgraph.graph,
        langchain_core.messages,
        asyncio,
        json,
        graph_agent.session.agent,
        graph_agent.models.client,
        graph_agent.nodes.plan,
        work,
    )

    found = [layer_of(str(module.__file__)) for module in modules]

    assert found == [
        "LangGraph",
        "LangChain core",
        "asyncio",
        "stdlib",
        "graph_agent.session",
        "graph_agent.models",
        "graph_agent.nodes",
        "benchmark",
    ]


async def test_a_profile_attributes_cpu_time_to_this_package() -> None:
    trial = work.sessions_trial(lambda _: work.graph_agent_session(20))

    samples, runs = await profile(trial, 0.5)

    charged = sum(samples.charged.values())
    assert runs > 0
    assert (0 < charged <= samples.total, "graph_agent " in report(samples, runs, "run", 5)) == (True, True)


def test_a_profile_without_samples_is_reported() -> None:
    assert report(Samples(), 1, "turn", 5).startswith("0 samples, 0.0 µs CPU per turn")
