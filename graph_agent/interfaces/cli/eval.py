"""Implements `graph-agent eval`, which runs cases with an agent and checks each run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from graph_agent.base.errors import ConfigError
from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.env_file import NO_ENV, read_env_file
from graph_agent.interfaces.cli.options import AGENT_FILE, TodayOption
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.table import Table

    from graph_agent.agent_file.spec import AgentSpec
    from graph_agent.devtools.case_formats import CaseFormat
    from graph_agent.devtools.cases import CaseFile
    from graph_agent.devtools.evaluation_report import Report
    from graph_agent.devtools.trials import Plan, Trial

DATABASE = ".graph_agent_eval.db"
"""Name of the SQLite file that the runs are stored in, next to the file of cases."""


def eval_(
    cases: Annotated[Path | None, typer.Argument(help="The file of cases; none with --from-feedback.")] = None,
    agent: Annotated[
        Path | None, typer.Option("--agent", "-a", help="The agent file, in place of the key `agent` of the cases.")
    ] = None,
    vs: Annotated[
        list[str] | None,
        typer.Option(
            "--vs",
            help="Another agent file to compare with, or keys of the agent file that replace its own, e.g. "
            "model=openai:gpt-4o or config.max_steps=3; repeatable.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--case", help="Only cases of this name or pattern, as `hotel*`; repeatable.")
    ] = None,
    parallel: Annotated[int, typer.Option("-n", min=1, help="Runs at the same time.")] = 8,
    repeat: Annotated[int, typer.Option("--repeat", "-k", min=1, help="Runs of each case.")] = 1,
    today: TodayOption = None,
    db: Annotated[
        str | None, typer.Option("--db", help=f"Database of the runs; by default {DATABASE} next to the cases.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what an earlier evaluation has run.")] = False,
    from_feedback: Annotated[
        bool,
        typer.Option(
            "--from-feedback", help="The cases are the answers that people have rated, in the database of --agent."
        ),
    ] = False,
    allow_writes: Annotated[
        bool,
        typer.Option(
            "--allow-writes",
            help="Run also cases that were taken from sessions with side-effecting calls: for real, with the approvals "
            "of the session.",
        ),
    ] = False,
    export: Annotated[
        str | None,
        typer.Option(
            "--export",
            metavar="FORMAT:FILE",
            help="Write the cases to a file, and run none; FORMAT is graph-agent, pydantic-evals or langsmith.",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write the outcome to this file as JUnit XML, for CI servers.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the outcome to this file as a page, with the sessions.")
    ] = None,
    no_env: Annotated[bool, typer.Option(NO_ENV, help="Leave out the file `.env` next to the agent file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run cases with an agent, and check each run; exit status 1 if a check fails.

    Each run is a session of the database. After a kill, the same command continues; it runs nothing twice.
    """
    if (cases is None) != from_feedback:
        raise typer.BadParameter("give a file of cases, or --from-feedback.", param_hint="CASES")
    if cases is None:
        agent = agent or AGENT_FILE
        if not no_env:
            read_env_file(agent)
        cases, file = agent.with_suffix(""), run_async(_rated(agent))
    else:
        from graph_agent.devtools.case_formats import read_cases

        file = read_cases(cases)
    if export is not None:
        _export(file, export)
        return
    # Before anything runs, so that a wrong option costs no model call.
    plan = _plan(file, cases, agent, vs or [], only or [], repeat, today, db, no_env=no_env, allow_writes=allow_writes)
    report = run_async(_evaluate(plan, parallel, html, fresh=fresh, quiet=as_json))
    if junit is not None:
        from graph_agent.devtools.evaluation_report import junit_of

        junit.write_text(junit_of(report, cases.stem), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    raise typer.Exit(0 if report.passed else 1)


async def _rated(agent: Path) -> CaseFile:
    """Return the answers that users have rated, in the database of an agent file, as cases.

    Args:
        agent: Path of the agent file.

    Raises:
        ConfigError: The file is invalid, the database does not exist or cannot be opened, or no answer has feedback.
    """
    from graph_agent.agent_file.spec import load_spec
    from graph_agent.devtools.cases import CaseFile
    from graph_agent.devtools.cases_from_feedback import rated_cases
    from graph_agent.interfaces.cli.options import shared_database
    from graph_agent.storage.checkpoints.open import open_saver

    async with open_saver(shared_database(load_spec(agent).db)) as saver:
        found = await rated_cases(saver)
    if not found:
        raise ConfigError(
            f"--from-feedback: no answer in the database of {agent} has feedback yet. Give it on the page, by "
            "`graph-agent feedback`, or by POST /sessions/{id}/feedback."
        )
    return CaseFile(cases=found)


def _plan(
    file: CaseFile,
    path: Path,
    agent: Path | None,
    vs: Sequence[str],
    only: Sequence[str],
    repeat: int,
    today: datetime | None,
    db: str | None,
    *,
    no_env: bool,
    allow_writes: bool,
) -> Plan:
    """Return the evaluation that the options of `eval` ask for: which cases run with which agents, and where runs are
    stored.

    The agents are the agent file and, with `vs`, another one. If both have the same name, ` (--vs)` is added to the
    label of the second. Unless `no_env`, the file `.env` next to the agent file is read into the environment.

    Args:
        file: The cases.
        path: The file that they are in; relative paths and the default database are next to it.
        agent: The agent file; None for the one that the cases name, or else `agent.yaml` in the current folder.
        vs: Path of another agent file to compare with, and `KEY=VALUE` pairs that replace keys of it, or of the agent
            file if no other is named; empty for no comparison.
        only: Names or patterns of cases, such as `hotel*`; empty for all.
        repeat: Runs of each case.
        today: The agent's current date; None for the real one.
        db: URL of the database of the runs; None for a SQLite file next to the cases.
        no_env: Whether to leave out the file `.env`.
        allow_writes: Whether cases taken from sessions that called side-effecting tools may run.

    Raises:
        ConfigError: A file or a key is invalid, no agent is named, or no case matches `only`.
    """
    from fnmatch import fnmatchcase

    from graph_agent.agent_file.spec import load_spec
    from graph_agent.devtools.trials import Plan

    if agent is None and file.agent is None:
        if not AGENT_FILE.exists():
            raise ConfigError(
                f"Cases {path}: it names no agent, and there is no {AGENT_FILE}; add the key 'agent', or give --agent "
                "FILE."
            )
        agent = AGENT_FILE
    chosen = agent or path.parent / (file.agent or "")
    if not no_env:
        read_env_file(chosen)
    spec = load_spec(chosen)
    agents = {chosen.name: spec}
    if vs:
        label, other = _other(spec, vs)
        # Two files of one name, in different folders, need two labels.
        agents[label if label not in agents else f"{label} (--vs)"] = other
    cases = [case for case in file.cases if not only or any(fnmatchcase(case.name, each) for each in only)]
    if not cases:
        names = ", ".join(case.name for case in file.cases)
        raise ConfigError(f"Cases {path}: no case is named {', '.join(only)}; it has {names}.")
    address = db or f"sqlite:///{path.parent / DATABASE}"
    day = today.date() if today else None
    return Plan(cases, agents, address, path.parent.resolve(), repeat, day, allow_writes)


def _export(file: CaseFile, export: str) -> None:
    """Write the cases to a file in another format, replacing the file if it exists.

    Args:
        file: The cases.
        export: The value of `--export`, `FORMAT:FILE`.

    Raises:
        ConfigError: The format is unknown, or no file is named.
        OSError: The file cannot be written.
    """
    from typing import get_args

    from graph_agent.base.errors import did_you_mean
    from graph_agent.devtools.case_formats import CaseFormat, write_cases

    format_, _, target = export.partition(":")
    if format_ not in get_args(CaseFormat) or not target:
        raise ConfigError(f"--export {export}: write FORMAT:FILE; {did_you_mean(format_, get_args(CaseFormat))}")
    text = write_cases(file, cast("CaseFormat", format_))
    Path(target).write_text(text, encoding="utf-8")


def _other(spec: AgentSpec, vs: Sequence[str]) -> tuple[str, AgentSpec]:
    """Return the label and the specification of the agent that `--vs` describes.

    The label is the name of the named file, followed by the pairs, e.g. `fast.yaml model=openai:gpt-4o`.

    Args:
        spec: The agent file whose keys are replaced if `vs` names no other.
        vs: At most one path of an agent file, and any number of `KEY=VALUE`, in any order.

    Raises:
        ConfigError: More than one agent file is named, the file is invalid, or a key is.
    """
    from graph_agent.agent_file.spec import load_spec, with_keys

    files = [each for each in vs if "=" not in each]
    if len(files) > 1:
        raise ConfigError(
            f"--vs names {len(files)} agent files ({', '.join(files)}); two agents are compared at a time."
        )
    keys = dict(each.split("=", 1) for each in vs if "=" in each)
    base = load_spec(files[0]) if files else spec
    label = " ".join([*(Path(file).name for file in files), *(f"{name}={value}" for name, value in keys.items())])
    return label, with_keys(base, keys, "--vs") if keys else base


async def _evaluate(plan: Plan, parallel: int, html: Path | None, *, fresh: bool, quiet: bool) -> Report:
    """Run the cases, display the progress, print the summary, and return the outcome.

    Runs that an earlier evaluation has completed in the same database are not repeated. If the task is cancelled
    (Ctrl-C), a note is printed that the same command goes on with the other runs, and the cancellation is raised.

    Args:
        plan: The cases and agents.
        parallel: Maximum runs at the same time.
        html: File to write the outcome to as a page that contains the sessions; None for no page.
        fresh: Delete the earlier runs first, so that each case runs again.
        quiet: Print no progress and no summary.
    """
    import asyncio

    from graph_agent.devtools.evaluation_report import Report, report_page
    from graph_agent.devtools.trials import opened

    screen = EvaluationProgress(plan, quiet=quiet)
    async with opened(plan) as runner:
        trials = plan.planned()
        # Finished runs of the same case would be taken from the database.
        if fresh:
            await runner.delete(trials)
        try:
            with screen:
                ended = await runner.run(trials, parallel=parallel, on_begin=screen.begin, on_end=screen.end)
        except asyncio.CancelledError:
            Terminal(stderr=True).line("Stopped; the same command goes on with the other runs.")
            raise
        report = Report(plan, tuple(ended))
        if html is not None:
            # The page shows the first trial of each case, and those that failed.
            histories = {trial.session_id: await runner.events(trial) for trial in report.shown}
            await asyncio.to_thread(html.write_text, report_page(report, histories), encoding="utf-8")
    screen.close(report)
    return report


class EvaluationProgress:
    """Displays the progress of an evaluation, whose *trials* are the runs of each case by each agent.

    On a terminal it is a table that is redrawn while the trials run; elsewhere a line for each case that has ended. Use
    it as a context manager, which displays the table, and call `close` after the context.
    """

    def __init__(self, plan: Plan, *, quiet: bool) -> None:
        self._plan, self._quiet = plan, quiet
        self._out = Terminal()
        self._trials: dict[tuple[str, str], dict[int, Trial | None]] = {
            (case.name, label): {} for case in plan.cases for label in plan.agents
        }
        """(Case, agent) → number of the trial → the trial with its outcome; None while it runs."""
        self._printed = 0
        """Number of cases whose lines are printed; lines are printed in the order of the file."""
        self._live: Any = None
        """The live display of the table; None if there is no table."""

    def __enter__(self) -> EvaluationProgress:
        """Display the table, if standard output is a terminal and the evaluation is not quiet."""
        if not self._quiet and self._out.is_terminal:
            from rich.live import Live

            self._live = Live(
                console=self._out.console, get_renderable=self._table, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the live table, if there is one."""
        if self._live is not None:
            self._live.stop()

    def begin(self, trial: Trial) -> None:
        """Record that a trial has begun, so that the table displays it as running."""
        self._trials[trial.case.name, trial.agent][trial.number] = None

    def end(self, trial: Trial) -> None:
        """Record the outcome of a trial. Without a table, print the lines of cases that are complete now."""
        self._trials[trial.case.name, trial.agent][trial.number] = trial
        if not self._quiet and self._live is None:
            self._print_ended()

    def close(self, report: Report) -> None:
        """Print the summary. Prints nothing if quiet.

        If there was a live table, which showed only as many rows as the terminal has, the whole table and the failed
        checks are printed before the summary.
        """
        if self._quiet:
            return
        if self._live is not None:
            from graph_agent.devtools.evaluation_report import failure_lines

            self._out.draw(self._table(every=True))
            for summary in report.cases:
                if lines := [*failure_lines(summary)]:
                    agent = f" ({summary.agent})" if len(self._plan.agents) > 1 else ""
                    self._out.line(f"{summary.name}{agent}")
                    for line in lines:
                        self._out.line(f"  {line}", style="red")
        for line in report.summary():
            self._out.line(line)

    def _print_ended(self) -> None:
        """Print the cases whose runs have all ended and that are not printed yet, each with its failed checks.

        They are printed in the order of the file, so the first case with a missing run stops it.
        """
        from graph_agent.devtools.evaluation_report import CaseSummary, case_line, failure_lines

        # Lines are printed one by one, so the widest name is needed in advance.
        width = max(len(name) for name, _ in self._trials)
        labels = [*self._plan.agents]
        for (name, agent), trials in [*self._trials.items()][self._printed :]:
            ended = [trial for trial in trials.values() if trial is not None]
            if len(ended) < self._plan.trials:
                return
            self._printed += 1
            summary = CaseSummary(name, agent, tuple(ended))
            self._out.line(case_line(summary, width, max(map(len, labels)) if len(labels) > 1 else 0))
            for line in failure_lines(summary):
                self._out.line(f"      {line}")

    def _table(self, *, every: bool = False) -> Table:
        """Return the table of the cases, with the number of ended runs as its caption.

        If the terminal has too few rows, rows are left out in this order: cases that passed or have passed so far,
        cases that have not begun, failed cases, running cases.

        Args:
            every: Return all rows, whatever the height of the terminal.
        """
        from rich.table import Table
        from rich.text import Text

        from graph_agent.base._internal.text import printable
        from graph_agent.devtools.evaluation_report import CaseSummary, cells

        several = len(self._plan.agents) > 1
        rows: list[tuple[int, list[Text]]] = []
        for (name, agent), trials in self._trials.items():
            ended = [trial for trial in trials.values() if trial is not None]
            failed = sum(not trial.passed for trial in ended)
            rank = 0 if len(ended) < len(trials) else 1 if failed else 2 if not trials else 3
            state = {0: "running", 1: "FAIL", 2: "", 3: "pass" if len(ended) == self._plan.trials else "…"}[rank]
            took = cells(CaseSummary(name, agent, tuple(ended))) if ended else []
            style = {"FAIL": "red", "pass": "green"}.get(state, "dim")
            shown = [Text(state, style), Text(printable(name)), *([Text(printable(agent))] if several else [])]
            rows.append((rank, [*shown, Text("  ".join(took), "dim")]))
        # rich would cut off the end of a table that is higher than the terminal.
        room = len(rows) if every else max(4, self._out.console.height - 4)
        kept = {*sorted(range(len(rows)), key=lambda at: rows[at][0])[:room]}
        done = sum(trial is not None for trials in self._trials.values() for trial in trials.values())
        total = len(self._trials) * self._plan.trials
        table = Table(
            box=None, padding=(0, 1), show_header=False, caption=f"{done} of {total} runs", caption_justify="left"
        )
        for at, (_, row) in enumerate(rows):
            if at in kept:
                table.add_row(*row)
        return table
