"""Commands of the command line, e.g. `graph-agent run --config agent.yaml "question"`."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import traceback
import uuid
from collections.abc import AsyncIterator
from datetime import date, datetime
from importlib import metadata, resources
from typing import Annotated

import typer

from graph_agent._internal.command_log import LogLevelOption, VerboseOption, chosen_level, log_at, log_warnings
from graph_agent._internal.daemon_threads import call_in_thread
from graph_agent._internal.redaction import mask_named_secrets
from graph_agent._internal.text import text_of
from graph_agent.cli.a2a import a2a
from graph_agent.cli.control import send, shared_database, stop
from graph_agent.cli.interrupts import STOPPED, Interrupts, leave_interrupted
from graph_agent.cli.options import (
    AGENT_FILE,
    ConfigOption,
    CredentialOption,
    DbOption,
    HostOption,
    KeysFileOption,
    ListSettingsOption,
    PortOption,
    SessionOption,
    SettingsOption,
    check_session_id,
)
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import ConfigError, GraphAgentError
from graph_agent.events.types import Event
from graph_agent.persistence.open import open_saver
from graph_agent.session.history import list_threads
from graph_agent.session.results import DelegatePart, Done, EventAdded, PlanText, Progress, Token
from graph_agent.session.session import Session
from graph_agent.spec.agent_file import AgentSpec, load_spec, with_sources
from graph_agent.spec.credentials import sources_from
from graph_agent.spec.opening import open_agent

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run, serve and steer agents that are declared in a file.",
    epilog='To start: graph-agent run --config agent.yaml "What can you do?"',
)
out = Terminal()
err = Terminal(stderr=True)


def _print_version(requested: bool) -> None:
    if requested:
        out.line(f"graph-agent {metadata.version('graph-agent')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None: ...


TextArgument = Annotated[str, typer.Argument(help="The message.", show_default=False)]


@app.command()
def run(
    questions: Annotated[
        list[str] | None,
        typer.Argument(
            help="Questions, each in its own session unless --session is given; without any, a conversation."
        ),
    ] = None,
    config: ConfigOption = AGENT_FILE,
    session: Annotated[
        str | None, typer.Option("--session", "-s", callback=check_session_id, help="A session to start or continue.")
    ] = None,
    today: Annotated[
        datetime | None, typer.Option("--today", formats=["%Y-%m-%d"], help="The agent's current date.")
    ] = None,
    db: DbOption = None,
    credential: CredentialOption = None,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Ask an agent, and print its progress and answer."""
    if (level := chosen_level(verbose, log_level)) is not None:
        log_at(level)
    else:
        log_warnings(without_history=True)
    spec = with_sources(load_spec(config), sources_from(credential or []))
    status = asyncio.run(_ask(spec, questions or [], session, today.date() if today else None, db))
    if status == STOPPED:
        leave_interrupted()
    sys.exit(status)


@app.command()
def serve(
    config: ConfigOption = AGENT_FILE,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    db: DbOption = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of processes on the same database.")] = 1,
    keys_file: KeysFileOption = None,
    settings: SettingsOption = None,
    credential: CredentialOption = None,
    list_settings: ListSettingsOption = False,
    verbose: VerboseOption = 0,
    log_level: LogLevelOption = None,
) -> None:
    """Serve an agent to OpenAI's, Anthropic's and A2A clients; needs the extra `server`."""
    try:
        from graph_agent.server import settings as server_settings
        from graph_agent.server.process.serve import serve as serve_until_stopped
    except ImportError as error:
        raise ConfigError(
            f"graph-agent serve needs an extra ({error.name}): pip install 'graph-agent[server]'"
        ) from None
    if list_settings:
        out.print(server_settings.describe_settings())
        return
    serve_until_stopped(
        config,
        host=host,
        port=port,
        db=db,
        workers=workers,
        keys_file=keys_file,
        settings=server_settings.settings_from(settings or []),
        credentials=sources_from(credential or []),
        log_level=chosen_level(verbose, log_level),
    )


@app.command()
def sessions(config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """List the sessions in an agent's database, newest first."""

    address = shared_database(db or load_spec(config).db)

    async def ids() -> list[str]:
        async with open_saver(address) as saver:
            return await list_threads(saver)

    found = asyncio.run(ids())
    for session_id in found:
        out.line(session_id)
    if not found:
        err.print("There are no sessions yet.", style="dim")


@app.command()
def steer(text: TextArgument, session: SessionOption, config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """Send a message to a session before its next step, in any process; if it is idle, with its next input."""
    out.line(asyncio.run(send(load_spec(config), db, session, "steer", text)))


@app.command()
def follow_up(
    text: TextArgument, session: SessionOption, config: ConfigOption = AGENT_FILE, db: DbOption = None
) -> None:
    """Queue an input to run after the current answer; if the session is idle, after the answer to its next input."""
    out.line(asyncio.run(send(load_spec(config), db, session, "follow_up", text)))


@app.command()
def abort(session: SessionOption, config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """Stop a session, even if it runs in another process; exit status 1 if there was nothing to stop."""
    stopped = asyncio.run(stop(load_spec(config), db, session))
    out.line(f"Session {session} {'is stopping' if stopped else 'is not running'}.")
    sys.exit(0 if stopped else 1)


@app.command()
def schema() -> None:
    """Print the JSON schema of agent files, for editors."""
    typer.echo((resources.files("graph_agent.spec") / "agent.schema.json").read_text(encoding="utf-8"), nl=False)


app.command()(a2a)


async def _ask(spec: AgentSpec, questions: list[str], session: str | None, today: date | None, db: str | None) -> int:
    status, started = 0, bool(session)
    with Interrupts.handled() as interrupts:
        async with open_agent(spec, today=today, db=db) as graph:
            current = Session(graph, session or _new_id())
            try:
                async for question in _questions(questions):
                    if questions and session is None:
                        current = Session(graph, _new_id())
                    started = True
                    status = max(status, await _show(current, question, interrupts))
                    if status == STOPPED:
                        break
            except asyncio.CancelledError:
                status = STOPPED
                out.print()
            if started and (not questions or status == STOPPED):
                err.line(f"Go on with this conversation: --session {current.id}", style="dim")
    return status


async def _questions(questions: list[str]) -> AsyncIterator[str]:
    """Yield the given questions, each printed first; without any, the lines of standard input until its end."""
    for question in questions:
        _show_question(question)
        yield question
    while not questions and (question := await _read_line()):
        yield question


async def _show(session: Session, question: str, interrupts: Interrupts) -> int:
    """Print one run and its follow-ups while they are streamed; return the exit status."""
    printed, answered, failed, status = "", False, "", 0
    with interrupts.aborting(session):
        # Failures are printed from their events.
        async for part in session.stream(question, context={"on_failure": "answer"}):
            match part:
                case Progress():
                    out.line(f"  step {part.step}: {part.action} {part.target}", style="dim")
                case DelegatePart(part=Progress() as step):
                    out.line(f"    {part.target}: {step.action} {step.target}", style="dim")
                case Token() if not part.reports_failure:
                    out.print(part.text, end="")
                    printed += part.text
                case PlanText() if printed:
                    out.print()
                    printed = ""
                case EventAdded(event) if event["type"] == "agent_response" and "error" in event:
                    if printed:
                        out.print()
                    _show_account(text_of(event["content"]).removeprefix(printed), failed)
                    printed = ""
                case EventAdded(event) if event["type"] == "agent_response":
                    # The event may have text that was not streamed, e.g. the reason why the answer was cut off.
                    out.print(text_of(event["content"]).removeprefix(printed))
                    printed, answered = "", True
                case EventAdded(event) if event["type"] == "user_message" and answered:
                    _show_question(text_of(event["content"]))
                case EventAdded(event):
                    _show_event(event)
                    failed = event["message"] if event["type"] == "error" else failed
                case Done(result):
                    if printed:
                        out.print()
                        printed = ""
                    for interrupt in result.interrupts:
                        err.print(f"waiting for an answer: {interrupt.value}", style="yellow")
                    if interrupts.count:
                        return STOPPED
                    status = max(status, result.status in ("FAILED", "ABORTED") or bool(result.interrupts))
                case _:
                    pass
    return status


def _show_question(question: str) -> None:
    out.print(f"\n> {question}", style="bold")


def _show_event(event: Event) -> None:
    if event["type"] == "steering":
        out.print(f"  steering: {event['content']}", style="dim")
    elif event["type"] == "warning":
        err.print(f"warning: {mask_named_secrets(event['message'])}", style="yellow")
    elif event["type"] == "error":
        _show_error(f"error: {event['message']}")


def _show_account(report: str, failed: str) -> None:
    """Print the part of a failure report after the error message, which was printed already: the work done."""
    if account := report.rpartition(failed)[2].strip():
        err.print(account)


async def _read_line() -> str:
    """Read one line from the terminal; empty at its end."""
    try:
        return (await call_in_thread(out.input, "\n> ")).strip()
    except EOFError:
        return ""


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def main() -> None:
    """Run the command line; errors for the user to fix are one line on standard error, with exit status 2."""
    log_warnings()
    try:
        app()
    except GraphAgentError as error:
        _show_error(f"error: {error}")
        sys.exit(2)
    except sqlite3.Error as error:
        _show_error(f"error: the database failed: {error}")
        sys.exit(2)
    except (KeyboardInterrupt, asyncio.CancelledError):
        leave_interrupted()
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the interpreter would print it with secrets and control characters
        err.print(mask_named_secrets("".join(traceback.format_exception(error)).rstrip()))
        sys.exit(1)


def _show_error(text: str) -> None:
    err.print(mask_named_secrets(text), style="red")


if __name__ == "__main__":
    main()
