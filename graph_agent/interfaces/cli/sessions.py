"""Implements the commands on stored sessions: `sessions export`, `import` and `rm`, `prune`, `steer`, `follow-up` and
`abort`.

The last three control a running session of this or another process.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from graph_agent.base._internal.text import printable
from graph_agent.base.errors import ConfigError, InputError
from graph_agent.interfaces.cli import run_async
from graph_agent.interfaces.cli.options import (
    AGENT_FILE,
    ConfigOption,
    DbOption,
    SessionArgument,
    check_session_ids,
    database_url_of,
    no_session,
    open_sessions,
    session_option,
    shared_database,
    stored_activity,
)
from graph_agent.interfaces.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph_agent.agent_file.spec import AgentSpec
    from graph_agent.base.inbox import NoteKind
    from graph_agent.storage.checkpoints.maintenance import PruneReport

_STANDARD = Path("-")
_DURATION = re.compile(r"(\d{1,9})\s*([smhdw])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
RunningSession = Annotated[
    str | None,
    typer.Option(
        "--session", "-s", callback=session_option, help="The session's id; by default the only one that is running."
    ),
]
TextArgument = Annotated[str, typer.Argument(help="The message.", show_default=False)]
_WHEN: dict[tuple[NoteKind, bool], str] = {
    ("steer", False): "before its next step",
    ("steer", True): "with its next input",
    ("follow_up", False): "after its current answer",
    ("follow_up", True): "after the answer to its next input",
}
"""(Kind of message, whether the session is idle) → when the message takes effect, as the end of a sentence."""


def _check_form(value: str) -> str:
    """Return the value of `--format` unchanged; raise `typer.BadParameter` for any but `python` and `yaml`."""
    if value not in ("python", "yaml"):
        raise typer.BadParameter(f"{printable(value)!r} is no format; give python or yaml.")
    return value


def export_(
    session: SessionArgument,
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A file to write, which must not exist.", show_default="standard output"),
    ] = None,
    all_checkpoints: Annotated[
        bool, typer.Option("--all-checkpoints", help="Export every checkpoint, not only those needed to continue.")
    ] = False,
    as_html: Annotated[
        bool, typer.Option("--html", help="Write one HTML file that shows the session; no import reads it.")
    ] = False,
    as_test: Annotated[
        bool, typer.Option("--test", help="Write a test for pytest that runs the session again, offline.")
    ] = False,
    as_case: Annotated[bool, typer.Option("--case", help="Write a case for `graph-agent eval`, as YAML.")] = False,
    number: Annotated[
        int | None,
        typer.Option(
            "--input", help="With --test or --case: only this input, from 1; -1 is the newest.", show_default="all"
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", callback=_check_form, help="For --test: python, or yaml, equal to --case.")
    ] = "python",
) -> None:
    """Print a session as JSON lines: messages, events, status, own state, and the checkpoints that an import reads.

    With --test, it is a test that needs no model, no network and no tool. If the agent file exists, the test builds its
    agent; else an agent of stub tools.
    """
    from graph_agent.agent_file.spec import load_spec
    from graph_agent.session.importing import export_session

    if as_html + as_test + as_case > 1:
        raise typer.BadParameter("--html, --test and --case are different files; give one of them.")
    if number is not None and not (as_test or as_case):
        raise typer.BadParameter("it belongs to --test and --case.", param_hint="--input")
    if all_checkpoints and (as_html or as_test or as_case):
        raise typer.BadParameter("it belongs to the lines that an import reads.", param_hint="--all-checkpoints")
    # The page names the agent; the database alone suffices for the lines.
    spec = load_spec(config) if db is None or ((as_html or as_test or as_case) and config.exists()) else None
    address = shared_database(db or (spec.db if spec else ""))
    if as_test or as_case:
        # Relative, so that the test can be moved together with the agent file.
        agent = None if spec is None else _path_from(out, spec.path)
        text = run_async(_exported(address, session, number, agent, as_case=as_case or form == "yaml"))
        with _output(out) as file:
            file.write(text)
        return
    if as_html:
        from graph_agent.base.history.events import read_events
        from graph_agent.web.page import exported_page

        name = (spec.name, spec.description) if spec else ("graph-agent", "")
        stored, activity = run_async(stored_activity(address, session))
        events = read_events(stored, session)
        html = exported_page(session, events, *name, is_interrupted=activity == "interrupted")
        with _output(out) as file:
            file.write(html)
        return

    async def write() -> None:
        """Write the header and the lines of the export as JSON lines.

        The file is created once the session was found.
        """
        async with aclosing(export_session(address, session, all_checkpoints=all_checkpoints)) as lines:
            header = await anext(lines)  # before the file is created
            with _output(out) as file:
                file.write(json.dumps(header) + "\n")
                async for line in lines:
                    file.write(json.dumps(line) + "\n")

    run_async(write())


def _path_from(out: Path | None, agent: Path) -> str:
    """Return the path of an agent file for an exported test, relative to the folder of the test's file `out`.

    The path is absolute if `out` is None or `-`, because the test then goes to standard output.
    """
    if out is None or out == _STANDARD:
        return str(agent.resolve())
    return Path(os.path.relpath(agent.resolve(), out.resolve().parent)).as_posix()


async def _exported(address: str, session: str, number: int | None, agent: str | None, *, as_case: bool) -> str:
    """Return the recording of a session as a Python test or, with `as_case`, as a YAML case of `graph-agent eval`.

    Args:
        address: URL of the database.
        session: Id of the session.
        number: The only input to export, from 1, or negative counted from the newest; None for all.
        agent: Path of the agent file that the test builds; None for an agent of stub tools.
        as_case: Whether to return a case.

    Raises:
        InputError: There is no such session or input.
    """
    from graph_agent.devtools.export import to_case, to_test
    from graph_agent.devtools.recording import read_recording
    from graph_agent.storage.checkpoints.maintenance import open_tables

    async with open_tables(address) as (_, saver):
        recording = await read_recording(saver, session)
    return to_case(recording, number, agent=agent) if as_case else to_test(recording, number, agent=agent)


def import_(
    file: Annotated[Path, typer.Argument(help="The exported session; `-` for standard input.")],
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as", callback=session_option, help="Id of the imported session.", show_default="that of the export"
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a session of the same id.")] = False,
) -> None:
    """Store an exported session in a database, which may be of another kind, and print its id."""
    from graph_agent.base.database_urls import MEMORY
    from graph_agent.session.importing import import_session

    address = database_url_of(config, db)
    if address == MEMORY:
        raise ConfigError("db='memory:' ends with this process; import into 'sqlite:///FILE' or 'postgresql://…'.")
    with _input(file) as lines:
        try:
            imported = run_async(import_session(address, lines, session_id=as_, replace=replace))
        except UnicodeDecodeError as error:
            raise InputError(f"The export {file} is no text in UTF-8: {error}.") from None
    Terminal().line(imported)


def rm(
    sessions: Annotated[list[str], typer.Argument(callback=check_session_ids, help="Ids of the sessions to delete.")],
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> None:
    """Delete sessions, with their history, unread notes, effect ledger and background tasks; asks first.

    Sessions with a run under way are refused, and then none is deleted.
    """
    from graph_agent.session.importing import background_sessions, remove_sessions

    address = shared_database(database_url_of(config, db))
    chosen = [*dict.fromkeys(sessions)]

    async def check() -> None:
        """Raise `InputError` if one of the sessions does not exist, or it or one of its background tasks is running."""
        async with open_sessions(address) as (saver, is_running):
            for each in chosen:
                if await saver.aget_tuple({"configurable": {"thread_id": each, "checkpoint_ns": ""}}) is None:
                    raise no_session(each, address)
                for run in [each, *await background_sessions(saver, each)]:
                    if await is_running(run):
                        raise InputError(
                            f"Session {run!r} is running; stop it with `graph-agent abort -s {run}` first."
                        )

    async def remove() -> None:
        """Delete the sessions one after the other, and print each on standard error."""
        async with aclosing(remove_sessions(address, chosen)) as removed:
            async for each in removed:
                Terminal(stderr=True).print(f"Deleted {each}.", style="dim")

    # All are checked first: an id that is wrong must not leave half of the sessions deleted.
    run_async(check())
    if not yes:
        # A script would wait for an answer that never comes.
        if not sys.stdin.isatty():
            raise InputError("Sessions are deleted after a question, and standard input is no terminal; give --yes.")
        typer.confirm(f"Delete {', '.join(chosen)}?", abort=True, err=True)
    run_async(remove())


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    """Yield the stream to write an export to: standard output for None and `-`, otherwise a new file at `path`.

    An exception within the context deletes the file. Raises `InputError` if the file exists or cannot be written, and
    in place of any `OSError` within the context.
    """
    if path is None or path == _STANDARD:
        yield sys.stdout
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            try:
                yield file
            except BaseException:
                path.unlink()  # a part of an export, which no import accepts
                raise
    except FileExistsError:
        raise InputError(f"The file {path} exists already; give --out a new one.") from None
    except OSError as error:
        raise InputError(f"The file {path} cannot be written: {error.strerror}.") from None


@contextmanager
def _input(path: Path) -> Iterator[TextIO]:
    """Yield the stream to read an export from: standard input for `-`, otherwise the file.

    Raises `InputError` if the file cannot be opened.
    """
    if path == _STANDARD:
        yield sys.stdin
        return
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror}.") from None
    with file:
        yield file


def prune(
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    idle_for: Annotated[
        str | None,
        typer.Option(
            "--idle-for",
            help="Trim sessions that were not used for this time, e.g. 30d, 12h or 90m.",
            show_default="30d",
        ),
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option("--keep-last", help="1 trims sessions that were used just now, too; no other number.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", hidden=True, help="No longer supported: give `--idle-for`.")
    ] = None,
    session: Annotated[
        list[str] | None,
        typer.Option("--session", "-s", callback=check_session_ids, help="Only this session; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per session, and one with the sums.")
    ] = False,
) -> None:
    """Trim the idle sessions of an agent's database to their first and newest checkpoint, and free the space.

    The state, the messages and the events of each session remain. Sessions that wait for an answer or have a run under
    way are skipped. The database may be in use.
    """
    from graph_agent.storage.checkpoints.maintenance import prune as prune_database

    if older_than is not None:
        raise typer.BadParameter(
            "the age of single checkpoints is no rule now; give --idle-for, the time since a session was used.",
            param_hint="--older-than",
        )
    if keep_last not in (None, 1):
        raise typer.BadParameter("a trimmed session has its first and newest checkpoint.", param_hint="--keep-last")
    if keep_last is not None and idle_for is not None:
        raise typer.BadParameter("give one of --keep-last and --idle-for.", param_hint="--idle-for")
    idle = parse_duration(idle_for) if idle_for is not None else None
    address = shared_database(database_url_of(config, db))
    report = run_async(
        prune_database(address, idle_for=idle, keep_last=keep_last, sessions=session or None, dry_run=dry_run)
    )
    if not json_lines:
        _print_report(report)
        return
    for each in report.sessions:
        typer.echo(
            json.dumps({"session": each.id, **{key: value for key, value in asdict(each).items() if key != "id"}})
        )
    typer.echo(json.dumps({key: value for key, value in asdict(report).items() if key != "sessions"}))


def parse_duration(text: str) -> timedelta:
    """Parse a duration of a number and a unit: `45s`, `90m` (minutes), `12h`, `30d` or `2w`, ignoring case.

    Raises `typer.BadParameter`, with `--idle-for` as the option, for any other form and for a duration that is too
    long.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no duration; give a number and a unit, such as 30d, 12h, 90m, 45s or 2w.",
            param_hint="--idle-for",
        )
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long.", param_hint="--idle-for") from None


def size_text(size: int) -> str:
    """Return a number of bytes in the largest decimal unit that it reaches, up to GB, e.g. `512 B`, `1.5 MB` or `-2.0
    KB`.
    """
    amount, unit = float(abs(size)), "B"
    for larger in ("KB", "MB", "GB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    # A session may grow: its moved writes can take more bytes than were removed.
    sign = "-" if size < 0 else ""
    return f"{sign}{amount:.{0 if unit == 'B' else 1}f} {unit}"


def _print_report(report: PruneReport) -> None:
    """Print the outcome of pruning: a line for each trimmed session, the totals, and the size of the database.

    Each skipped session is printed on standard error, with the reason.
    """
    out, err = Terminal(), Terminal(stderr=True)
    for each in report.sessions:
        if each.checkpoints:
            out.line(
                f"{each.id}: {each.checkpoints} checkpoints with {each.writes} writes ({size_text(each.bytes)}); "
                f"{each.kept} remain"
            )
        if each.skipped is not None:
            err.print(f"{each.id} was skipped: {each.skipped}.", style="yellow")
    verb = "Would remove" if report.dry_run else "Removed"
    out.line(
        f"{verb} {report.checkpoints} checkpoints with {report.writes} writes: "
        f"{size_text(report.bytes)} of stored data."
    )
    if report.reasons:
        why = "; ".join(f"{number} {reason}" for reason, number in report.reasons.items())
        out.line(f"{sum(report.reasons.values())} checkpoints remain: {why}.")
    if not report.dry_run:
        freed = report.size_before - report.size_after
        out.line(
            f"The database takes {size_text(report.size_after)} on disk, {size_text(abs(freed))} "
            f"{'less' if freed >= 0 else 'more'} than before."
        )


def steer(
    text: TextArgument, session: RunningSession = None, config: ConfigOption = AGENT_FILE, db: DbOption = None
) -> None:
    """Send a message that a session in any process reads before its next step; an idle one, with its next input."""
    from graph_agent.agent_file.spec import load_spec

    Terminal().line(run_async(send(load_spec(config), db, session, "steer", text)))


def follow_up(
    text: TextArgument, session: RunningSession = None, config: ConfigOption = AGENT_FILE, db: DbOption = None
) -> None:
    """Queue an input to run after the current answer; if the session is idle, after the answer to its next input."""
    from graph_agent.agent_file.spec import load_spec

    Terminal().line(run_async(send(load_spec(config), db, session, "follow_up", text)))


def abort(session: RunningSession = None, config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """Stop a session, even if it runs in another process; exit status 1 if there was nothing to stop."""
    from graph_agent.agent_file.spec import load_spec

    session_id, stopped = run_async(stop_session(load_spec(config), db, session))
    Terminal().line(f"Session {session_id} {'is stopping' if stopped else 'is not running'}.")
    sys.exit(0 if stopped else 1)


async def send(spec: AgentSpec, db: str | None, session_id: str | None, kind: NoteKind, text: str) -> str:
    """Store a message for a session, which its run reads in whatever process it is; return a line that confirms it.

    The agent's model and servers are not opened. The line is e.g. `Queued for session s1, before its next step: Hurry`.

    Args:
        spec: The agent file.
        db: URL of another database than the file's; None for the file's.
        session_id: Id of the session; None for the only one that is running.
        kind: `steer` for a message before the next step, or `follow_up` for an input after the current answer.
        text: The message.

    Raises:
        ConfigError: The database does not exist, cannot be opened, or is `memory:`.
        InputError: The text is blank; there is no such session; or none is named and not exactly one is running.
    """
    from graph_agent.base.inbox import new_note
    from graph_agent.session.activity import deliver_note

    address = db or spec.db
    async with open_sessions(address) as (saver, is_running):
        if not text.strip():
            raise InputError("The message is empty.")
        session_id = session_id or await _only_running(saver, is_running)
        if await saver.aget_tuple({"configurable": {"thread_id": session_id}}) is None:
            raise no_session(session_id, address)
        # Before the delivery: the run may end as soon as it has read the message.
        when = _WHEN[kind, not await is_running(session_id)]
        await deliver_note(address, session_id, new_note(kind, text))
    return f"Queued for session {session_id}, {when}: {' '.join(text.split())}"


async def _only_running(saver: BaseCheckpointSaver[Any], is_running: Callable[[str], Awaitable[bool]]) -> str:
    """Return the id of the session that is running; raise `InputError` unless exactly one is running."""
    from graph_agent.session.history import summarize_sessions

    found = [one.id for one in await summarize_sessions(saver, is_running) if one.activity == "running"]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"Several sessions are running: {', '.join(found)}. Name one with --session.")
    raise InputError("No session is running. Name one with --session; `graph-agent sessions` lists them.")


async def stop_session(spec: AgentSpec, db: str | None, session_id: str | None) -> tuple[str, bool]:
    """Stop a session that runs in any process; return its id, and whether there was something to stop.

    A running session is sent a request to abort, whose effect is not waited for. If the newest input is unfinished but
    no process runs it (it waits for an answer, or its process crashed), the agent is opened here and settles the open
    calls. There is nothing to stop if the session does not exist or its newest input has ended.

    Args:
        spec: The agent file.
        db: URL of another database than the file's; None for the file's.
        session_id: Id of the session; None for the only one that is running.

    Raises:
        InputError: No session is named, and not exactly one is running.
        ConfigError: The database does not exist, cannot be opened, or is `memory:`; or the agent cannot be opened.
    """
    from graph_agent.base.inbox import new_note
    from graph_agent.session.activity import deliver_note

    address = db or spec.db
    async with open_sessions(address) as (saver, is_running):
        session_id = session_id or await _only_running(saver, is_running)
        if await is_running(session_id):
            await deliver_note(address, session_id, new_note("abort"))
            return session_id, True
        found = await saver.aget_tuple({"configurable": {"thread_id": session_id}})
        if found is None or found.checkpoint["channel_values"].get("status") != "RUNNING":
            return session_id, False
    # The session waits for a person, or its process crashed: the agent settles the open calls.
    from graph_agent.agent_file.factory import open_agent
    from graph_agent.interfaces.cli.dialog import user_name
    from graph_agent.session.session import Session

    async with open_agent(spec, db=db, caller=user_name()) as graph:
        return session_id, await Session(graph, session_id).abort()
