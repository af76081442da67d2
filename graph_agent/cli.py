"""The command line: `graph-agent run --config agent.yaml "question"`."""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from graph_agent.errors import ConfigError, GraphAgentError
from graph_agent.events import Event
from graph_agent.history import session_ids
from graph_agent.persistence import open_saver
from graph_agent.results import Done, EventAdded, Progress, Token
from graph_agent.session import Session
from graph_agent.spec import AgentSpec, load_spec, open_agent

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
out = Console(highlight=False, soft_wrap=True)
err = Console(highlight=False, soft_wrap=True, stderr=True)

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The agent file.", show_default=False)]
DbOption = Annotated[str | None, typer.Option("--db", help="Another database than the file's, e.g. sqlite:///my.db.")]


@app.callback()
def _commands() -> None:
    """Run agents that are declared in a file."""


@app.command()
def run(
    questions: Annotated[
        list[str] | None, typer.Argument(help="What to ask, one session each; none for a conversation.")
    ] = None,
    config: ConfigOption = Path("agent.yaml"),
    session: Annotated[str | None, typer.Option("--session", "-s", help="A session to begin or go on with.")] = None,
    today: Annotated[
        datetime | None, typer.Option("--today", formats=["%Y-%m-%d"], help="The date the agent takes for today.")
    ] = None,
    db: DbOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each step.")] = False,
) -> None:
    """Ask an agent, and watch it work."""
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    spec = load_spec(config)
    sys.exit(asyncio.run(_ask(spec, questions or [], session, today.date() if today else None, db)))


@app.command()
def serve(
    config: ConfigOption = Path("agent.yaml"),
    host: Annotated[
        str, typer.Option("--host", help="Any but this machine's own address needs API keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8000,
    db: DbOption = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes on the one database.")] = 1,
    keys_file: Annotated[
        Path | None, typer.Option("--keys-file", help="API keys, one a line, beside GRAPH_AGENT_API_KEYS.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the server, e.g. max_body_bytes=1000000.")
    ] = None,
) -> None:
    """Serve an agent to OpenAI's and Anthropic's clients."""
    try:
        from graph_agent.server import settings as server_settings
        from graph_agent.server.serve import serve as serve_until_stopped
    except ImportError as error:
        raise ConfigError(
            f"graph-agent serve needs an extra ({error.name}): pip install 'graph-agent[server]'"
        ) from None
    given = server_settings.settings_from(settings or [])
    serve_until_stopped(config, host=host, port=port, db=db, workers=workers, keys_file=keys_file, settings=given)


@app.command()
def sessions(config: ConfigOption = Path("agent.yaml"), db: DbOption = None) -> None:
    """List the sessions in an agent's database, the newest first."""

    async def ids() -> list[str]:
        async with open_saver(db or load_spec(config).db) as saver:
            return await session_ids(saver)

    for session_id in asyncio.run(ids()):
        out.print(session_id, markup=False)


async def _ask(spec: AgentSpec, questions: list[str], session: str | None, today: date | None, db: str | None) -> int:
    failed = False
    async with open_agent(spec, today=today, db=db) as graph:
        for question in questions:
            current = Session(graph, session or _new_id())
            out.print(f"\n> {question}", style="bold", markup=False)
            failed |= not await _show(current, question)
        if not questions:
            current = Session(graph, session or _new_id())
            while question := await _read_line():
                failed |= not await _show(current, question)
            err.print(f"Go on with this conversation: --session {current.id}", style="dim", markup=False)
    return 1 if failed else 0


async def _show(session: Session, question: str) -> bool:
    """Print one run as it goes; False when it failed."""
    answering = False
    async for part in session.stream(question):
        match part:
            case Progress():
                out.print(f"  step {part.step}: {part.action} {part.target}", style="dim", markup=False)
            case Token():
                out.print(part.text, end="", markup=False)
                answering = True
            case EventAdded(event):
                _show_trouble(event)
            case Done(result):
                if answering:
                    out.print()
                for interrupt in result.interrupts:
                    err.print(f"waiting for an answer: {interrupt.value}", style="yellow", markup=False)
                return result.status != "FAILED" and not result.interrupts
            case _:
                pass
    return False


def _show_trouble(event: Event) -> None:
    if event["type"] == "warning":
        err.print(f"warning: {event['message']}", style="yellow", markup=False)
    elif event["type"] == "error":
        err.print(f"error: {event['message']}", style="red", markup=False)


async def _read_line() -> str:
    """One line from the terminal; empty at its end."""
    try:
        return (await asyncio.to_thread(out.input, "\n[bold]>[/bold] ")).strip()
    except EOFError:
        return ""


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def main() -> None:
    """Run the command line; what a user must fix is one line on standard error, and exit status 2."""
    try:
        app()
    except GraphAgentError as error:
        err.print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
