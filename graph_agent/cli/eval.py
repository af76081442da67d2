"""Implements `graph-agent eval`, which runs cases with an agent and checks each run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.cli.options import TodayOption
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime

    from graph_agent.evaluation.runner import Plan, Trial

DATABASE = ".graph_agent_eval.db"
"""Name of the database, next to the cases."""


def eval_(
    cases: Annotated[Path, typer.Argument(help="The file of cases.")],
    agent: Annotated[
        Path | None, typer.Option("--agent", "-a", help="The agent file, in place of the key `agent` of the cases.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--case", help="Only the cases of this name or pattern, as `hotel*`; repeatable."),
    ] = None,
    parallel: Annotated[int, typer.Option("-n", min=1, help="Runs at the same time.")] = 8,
    repeat: Annotated[int, typer.Option("--repeat", "-k", min=1, help="Runs of each case.")] = 1,
    today: TodayOption = None,
    db: Annotated[
        str | None, typer.Option("--db", help=f"Database of the runs; {DATABASE} next to the cases by default.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what an earlier evaluation has run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run cases with an agent, and check each run; exit status 1 if a check fails.

    Each run is a session of the database. After a kill, the same command continues; it runs nothing twice.
    """
    plan = _plan(cases, agent, only or [], repeat, today, db)
    trials = asyncio.run(_evaluate(plan, parallel, fresh=fresh))
    from graph_agent.evaluation.report import report

    made = report(plan, trials)
    if as_json:
        typer.echo(json.dumps(made.as_json()))
    else:
        out = Terminal()
        for line in made.lines():
            out.line(line)
    raise typer.Exit(0 if all(trial.passed for trial in trials if trial.agent == 0) else 1)


def _plan(path: Path, agent: Path | None, only: list[str], repeat: int, today: datetime | None, db: str | None) -> Plan:
    from fnmatch import fnmatchcase

    from graph_agent.evaluation.cases import load_cases
    from graph_agent.evaluation.runner import Plan
    from graph_agent.spec.agent_file import load_spec

    file = load_cases(path)
    if agent is None and file.agent is None:
        raise ConfigError(f"Cases {path}: it names no agent; add the key 'agent', or give --agent FILE.")
    spec = load_spec(agent or path.parent / (file.agent or ""))
    cases = [case for case in file.cases if not only or any(fnmatchcase(case.name, each) for each in only)]
    if not cases:
        names = ", ".join(case.name for case in file.cases)
        raise ConfigError(f"Cases {path}: no case is named {', '.join(only)}; it has {names}.")
    address = db or f"sqlite:///{path.parent / DATABASE}"
    return Plan(cases, [spec], address, path.parent.resolve(), repeat, today.date() if today else None)


async def _evaluate(plan: Plan, parallel: int, *, fresh: bool) -> list[Trial]:
    from graph_agent.evaluation.runner import opened

    async with opened(plan) as runner:
        trials = plan.planned()
        if fresh:
            await runner.delete(trials)
        return await runner.run(trials, parallel=parallel)
