"""Cost of a turn in one session, compared with `create_agent`: `python -m benchmarks.turns`.

One input of 10, 50 or 200 turns: without a saver, with LangGraph's SQLite saver, and with this package's own, for a
tool that reads and for one that writes (each plan is then stored before its calls run). `create_agent` has LangGraph's
saver. References: the four nodes without this framework's content, and the same without LangChain's model call.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import RATIO_COLUMNS, Scale, Spread, Table, Trial, ratio_row
from benchmarks.work import (
    Opener,
    Session,
    bare_nodes_session,
    counted,
    create_agent_session,
    graph_agent_session,
    own_saver,
    sessions_trial,
    stock_saver,
    stored_beyond_messages,
)
from graph_agent.base.settings.config import Finalize

_CA = "create_agent"
_FINALIZE_AIMS: dict[Finalize, str] = {"direct": "≤ 0.75", "auto": "≤ 0.75", "compose": "≤ 0.80"}
_OWN_READING = "own SQLite saver, reading tool"
_OWN_WRITING = "own SQLite saver, writing tool"
_STOCK = "LangGraph's SQLite saver, reading tool"
_SAVED_AIMS = {
    (_OWN_READING, 50): "≤ 0.40",
    (_OWN_READING, 200): "≤ 0.30",
    (_OWN_WRITING, 50): "≤ 0.50",
    (_OWN_WRITING, 200): "≤ 0.40",
    (_STOCK, 50): "≤ 0.75",
    (_STOCK, 200): "≤ 0.55",
}


async def without_saver(scale: Scale) -> Table:
    """Compare sessions without a saver."""
    rows: list[list[str]] = []
    for nominal in (10, 50, 200):
        turns = scale.size(nominal)
        # A short input alone would mostly measure the processor's caches, which the other variants have emptied.
        repeats = max(1, 50 // nominal)
        trial = functools.partial(sessions_trial, repeats=repeats)
        trials: dict[str, Trial] = {_CA: trial(functools.partial(create_agent_session, turns))}
        for finalize in _FINALIZE_AIMS:
            trials[finalize] = trial(functools.partial(graph_agent_session, turns, finalize=finalize))
        trials["nodes"] = trial(functools.partial(bare_nodes_session, turns, langchain=True))
        trials["floor"] = trial(functools.partial(bare_nodes_session, turns, langchain=False))
        costs = await harness.interleaved(trials, scale)
        per = turns * repeats
        for finalize, aim in _FINALIZE_AIMS.items():
            rows.append(ratio_row(f"{nominal} turns, `{finalize}`", costs, finalize, _CA, aim=aim, per=per))
        rows.append(ratio_row(f"{nominal} turns, reference: the four nodes bare", costs, "nodes", _CA, per=per))
        rows.append(ratio_row(f"{nominal} turns, reference: LangGraph alone", costs, "floor", _CA, per=per))
        rows.append(ratio_row(f"{nominal} turns, `create_agent`", costs, _CA, _CA, per=per))
    return Table(
        "Turns without a saver",
        "Inputs of one session each, on an agent that has answered before: one of 50 or 200 turns, five of 10 turns, "
        "one after the other; ratios to `create_agent`.",
        RATIO_COLUMNS,
        rows,
    )


async def first_input(scale: Scale) -> Table:
    """Compare the first input of new agents."""
    turns = scale.size(10)
    trials: dict[str, Trial] = {
        _CA: sessions_trial(functools.partial(create_agent_session, turns), first=True),
        "graph-agent": sessions_trial(functools.partial(graph_agent_session, turns), first=True),
    }
    costs = await harness.interleaved(trials, scale)
    rows = [ratio_row(f"10 turns, {name}", costs, name, _CA, per=turns) for name in ("graph-agent", _CA)]
    note = "One input on an agent that was just built, after a garbage collection; ratios to `create_agent`."
    return Table("First input of an agent", note, RATIO_COLUMNS, rows)


def saved_trials(turns: int, scale: Scale) -> dict[str, Trial]:
    """Return a trial of one input with a saver for each variant, by its label; that of LangChain's agent is
    `create_agent`."""
    own: Opener = functools.partial(own_saver, url=scale.url)

    def ours(effect: Any) -> Any:
        return functools.partial(graph_agent_session, turns, effect=effect)

    return {
        _CA: sessions_trial(functools.partial(create_agent_session, turns), opener=stock_saver),
        _OWN_READING: sessions_trial(ours("read"), opener=own),
        _OWN_WRITING: sessions_trial(ours("write"), opener=own),
        _STOCK: sessions_trial(ours("read"), opener=stock_saver),
    }


async def with_saver(scale: Scale) -> Table:
    """Compare sessions with SQLite savers."""
    rows: list[list[str]] = []
    for nominal in (50, 200):
        turns = scale.size(nominal)
        costs = await harness.interleaved(saved_trials(turns, scale), scale)
        for name in costs:
            aim = _SAVED_AIMS.get((name, nominal), "")
            rows.append(ratio_row(f"{nominal} turns, {name}", costs, name, _CA, aim=aim, per=turns))
    return Table(
        "Turns with an SQLite saver",
        "One input of one session, on an agent that has answered before; ratios to `create_agent` on LangGraph's "
        "SQLite saver, both with their default durability.",
        RATIO_COLUMNS,
        rows,
    )


async def storage(scale: Scale) -> Table:
    """Measure what the savers store per turn beyond the messages."""
    rows: list[list[str]] = []
    for nominal in (50, 200):
        turns = scale.size(nominal)
        stored = {}
        for name, make, opener in (
            ("graph-agent, own saver", functools.partial(graph_agent_session, turns), own_saver),
            ("graph-agent, LangGraph's saver", functools.partial(graph_agent_session, turns), stock_saver),
            (f"`{_CA}`, LangGraph's saver", functools.partial(create_agent_session, turns), stock_saver),
        ):
            stored[name] = await _stored(make, opener) / turns / 1024
        rows += [[f"{nominal} turns, {name}", f"{kilobytes:.1f}"] for name, kilobytes in stored.items()]
    return Table("Storage", "KB per turn in an SQLite file beyond the messages themselves.", ["work", "KB/turn"], rows)


async def _stored(make: Any, opener: Opener) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with opener(folder) as saver:
            result = await make(saver)("s")
        return stored_beyond_messages(folder, result["messages"])


async def growth(scale: Scale) -> Table:
    """Measure whether a turn costs more in a long history, with and without the fixed cost of a run."""
    few, many = scale.size(20), scale.size(200)
    variants: dict[str, tuple[Callable[..., Session], str]] = {
        "graph-agent": (graph_agent_session, "≤ 1.05"),
        f"`{_CA}`": (create_agent_session, ""),
        "LangGraph alone": (functools.partial(bare_nodes_session, langchain=False), ""),
    }
    trials: dict[str, Trial] = {}
    for name, (make, _) in variants.items():
        for turns in (few, many):
            trials[f"{name} {turns}"] = sessions_trial(functools.partial(make, turns))
    costs = await harness.interleaved(trials, scale)
    rows: list[list[str]] = []
    for name, (make, aim) in variants.items():
        whole = harness.cpu_ratio(costs, f"{name} {many}", f"{name} {few}", few / many)
        late = Spread.of([await _late_to_early(make(many)) for _ in range(1 if scale.tiny else 7)])
        rows += [
            [f"a run of 200 turns to one of 20, {name}", f"{whole.median:.2f}", harness.quartiles(whole), aim],
            [f"turns 180–199 to turns 10–29 of a run, {name}", f"{late.median:.2f}", harness.quartiles(late), aim],
        ]
    return Table(
        "Growth with the history",
        "CPU time per turn, without a saver. The second kind of row leaves out the fixed cost of a run.",
        ["work", "ratio", "quartiles", "aim"],
        rows,
    )


async def _late_to_early(session: Session) -> float:
    """Return the CPU time of the last 20 turns to that of 20 early ones, from the stamps of the model's calls."""
    await session("s")
    stamps = counted().stamps
    width = min(20, len(stamps) // 3)
    early = stamps[width + width // 2] - stamps[width // 2]
    late = stamps[-1] - stamps[-1 - width]
    return late / early


async def tables(scale: Scale) -> list[Table]:
    """Run all comparisons of this module."""
    return [
        await without_saver(scale),
        await first_input(scale),
        await with_saver(scale),
        await storage(scale),
        await growth(scale),
    ]


if __name__ == "__main__":
    harness.main(tables, __doc__)
