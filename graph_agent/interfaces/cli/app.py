"""Registers the commands of `graph-agent`, and handles their errors."""

from __future__ import annotations

import sqlite3
import sys
import traceback
from typing import Annotated

import typer

from graph_agent.base._internal.command_log import log_warnings
from graph_agent.base._internal.secrets import mask_named_secrets
from graph_agent.base.errors import GraphAgentError
from graph_agent.interfaces.cli.agent_file import doctor, graph, new
from graph_agent.interfaces.cli.comparison import report
from graph_agent.interfaces.cli.env_file import AgentCommand, AgentGroup
from graph_agent.interfaces.cli.eval import eval_
from graph_agent.interfaces.cli.events import events
from graph_agent.interfaces.cli.feedback import feedback
from graph_agent.interfaces.cli.kube import kube
from graph_agent.interfaces.cli.memory import edit_fact, forget, memory
from graph_agent.interfaces.cli.replay import replay
from graph_agent.interfaces.cli.run import chat, resume, run
from graph_agent.interfaces.cli.serving import a2a, acp, mcp, serve
from graph_agent.interfaces.cli.session_list import sessions
from graph_agent.interfaces.cli.sessions import abort, export_, follow_up, import_, prune, rm, steer
from graph_agent.interfaces.cli.terminal import Terminal, escape_unencodable, log_stream
from graph_agent.interfaces.cli.trace import trace

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
    """Print `graph-agent VERSION` and exit with status 0, if `--version` was given.

    Called by Typer before other options.
    """
    if requested:
        # Imported here: most commands never print the version.
        from importlib import metadata

        out.line(f"graph-agent {metadata.version('graph-agent')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and exit.")
    ] = False,
) -> None:
    """Declare the options that precede a command's name, such as `--version`; Typer handles them."""


def schema() -> None:
    """Print the JSON schema of agent files, for editors."""
    from importlib import resources

    typer.echo((resources.files("graph_agent.spec") / "agent.schema.json").read_text(encoding="utf-8"), nl=False)


for command in (
    run,
    chat,
    resume,
    events,
    trace,
    report,
    replay,
    prune,
    steer,
    follow_up,
    abort,
    feedback,
    new,
    doctor,
    graph,
    kube,
    schema,
    serve,
    a2a,
    mcp,
    acp,
):
    app.command(cls=AgentCommand)(command)


app.command("eval")(eval_)
sessions_app = typer.Typer(invoke_without_command=True, callback=sessions, cls=AgentGroup)
sessions_app.command("export", cls=AgentCommand)(export_)
sessions_app.command("import", cls=AgentCommand)(import_)
sessions_app.command("rm", cls=AgentCommand)(rm)
app.add_typer(sessions_app, name="sessions")
memory_app = typer.Typer(invoke_without_command=True, callback=memory, cls=AgentGroup)
memory_app.command("edit", cls=AgentCommand)(edit_fact)
memory_app.command("forget", cls=AgentCommand)(forget)
app.add_typer(memory_app, name="memory")


def main() -> None:
    """Run the command line of this process, and exit with the status of its command.

    An error that the user can fix is printed as one red line on standard error, with exit status 2: `GraphAgentError`,
    a failure of SQLite, or an `OSError` with a message, such as a full disk. Ctrl-C ends the process with status 130.
    Any other exception is printed with its traceback, with secrets masked and control characters escaped, and exit
    status 1. Warnings are logged to standard error.
    """
    # First, so that even an error text can be printed.
    escape_unencodable()
    try:
        log_warnings(stream=log_stream)
        app()
    except GraphAgentError as error:
        _show_error(f"error: {error}")
        sys.exit(2)
    except sqlite3.Error as error:
        _show_error(f"error: the database failed: {error}")
        sys.exit(2)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - the interpreter would print it with secrets and control characters
        import asyncio

        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            from graph_agent.interfaces.cli.agent_thread import leave_interrupted

            leave_interrupted()
        if isinstance(error, OSError) and error.strerror:  # e.g. a full disk, or a missing folder of a report
            _show_error(f"error: {f'{error.filename}: ' if error.filename else ''}{error.strerror}.")
            sys.exit(2)
        err.print(mask_named_secrets("".join(traceback.format_exception(error)).rstrip()))
        # Not 2, which marks errors that the user can fix.
        sys.exit(1)


def _show_error(text: str) -> None:
    """Print an error in red on standard error, with secrets of the environment masked."""
    err.print(mask_named_secrets(text), style="red")


if __name__ == "__main__":
    main()
