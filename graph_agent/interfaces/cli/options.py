"""Declares options that several commands have, and the database that they name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graph_agent.base._internal.text import find_lone_surrogate, printable
from graph_agent.base.database_urls import MEMORY, check_database_exists, without_password
from graph_agent.base.errors import ConfigError, InputError

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph_agent.base.history.events import StoredEvent
    from graph_agent.session.activity import Activity


AGENT_FILE = Path("agent.yaml")
"""The default of `ConfigOption`."""
_HIGHEST_PORT = 65535


def session_option(value: str | None) -> str | None:
    """Check a session id of the command line, and return it unchanged; None, for an option that is not given, is valid.

    Raises `typer.BadParameter` for an empty id, and for one with a lone surrogate, which no database can store.
    """
    if value == "":
        raise typer.BadParameter("the id of a session is not empty; leave the option out for none.")
    if value is not None and find_lone_surrogate(value) is not None:
        raise typer.BadParameter(f"{printable(value)!r} is not UTF-8; no session can have such an id.")
    return value


def check_session_ids(values: list[str] | None) -> list[str] | None:
    """Check session ids of the command line, and return them unchanged; None, which means that none is given, is
    permitted.

    Raises `typer.BadParameter` for the first id that is empty or not UTF-8.
    """
    for value in values or ():
        session_option(value)
    return values


def parse_port(value: str | int) -> int:
    """Parse a port from 0 to 65535; raise `typer.BadParameter` for any other text.

    For `tcp://10.0.0.1:80`, which Kubernetes puts into `GRAPH_AGENT_PORT` if a Service is named `graph-agent`, the
    error explains the cause.
    """
    # Typer parses the default, too, which is a number.
    text = str(value)
    if text.startswith("tcp://"):
        raise typer.BadParameter(
            f"{printable(text)!r} is the address of a Kubernetes Service named graph-agent, not a port. Set "
            "enableServiceLinks: false in the pod, or give --port."
        )
    if not text.isascii() or not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise typer.BadParameter(f"{printable(text)!r} is no port; give a number from 0 to {_HIGHEST_PORT}.")
    return int(text)


ConfigOption = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        envvar="GRAPH_AGENT_CONFIG",
        help="The agent file. Variables of the file `.env` next to it are read, unless --no-env is given.",
    ),
]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        envvar="GRAPH_AGENT_DB",
        help="Database in place of the file's: sqlite:///FILE, postgresql://… or memory:.",
    ),
]
CredentialOption = Annotated[
    list[str] | None,
    typer.Option(
        "--credential",
        envvar="GRAPH_AGENT_CREDENTIALS",
        help="A secret for tools: NAME=env:VARIABLE; repeatable.",
        metavar="TEXT",
    ),
]
HostOption = Annotated[
    str,
    typer.Option(
        "--host", envvar="GRAPH_AGENT_HOST", help="Address to bind to; any but a loopback address needs API keys."
    ),
]
PortOption = Annotated[
    int,
    typer.Option(
        "--port",
        "-p",
        envvar="GRAPH_AGENT_PORT",
        parser=parse_port,
        metavar="INTEGER",
        help="Where to listen; 0 for any free port.",
    ),
]
KeysFileOption = Annotated[
    Path | None,
    typer.Option(
        "--keys-file",
        envvar="GRAPH_AGENT_KEYS_FILE",
        help="API keys, one 'name:key' per line, in addition to GRAPH_AGENT_API_KEYS.",
    ),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="A limit or time of the server, e.g. max_body_bytes=1000000; repeatable."),
]
ListSettingsOption = Annotated[
    bool, typer.Option("--list-settings", help="List what --set takes, with the defaults, and exit.")
]
RecordOption = Annotated[
    bool, typer.Option("--record", help="Record what models receive; `graph-agent events --requests` prints it.")
]
ReasoningOption = Annotated[bool, typer.Option("--reasoning", help="Print the model's reasoning.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
TodayOption = Annotated[
    datetime | None, typer.Option("--today", formats=["%Y-%m-%d"], help="The agent's current date.")
]
SessionArgument = Annotated[
    str, typer.Argument(callback=session_option, help="The session's id; `graph-agent sessions` lists them.")
]


def database_url_of(config: Path, db: str | None) -> str:
    """Return the URL of the database: `db` if given, else that of the agent file `config`.

    Raises `ConfigError` if the agent file is needed and is missing or invalid.
    """
    # Imported here: a command that names its database needs no agent file.
    from graph_agent.agent_file.spec import load_spec

    return db or load_spec(config).db


def shared_database(address: str) -> str:
    """Return `address`, the URL of a database, after checking that it exists and that other processes can reach it.

    Raises `ConfigError` for `memory:`, and for a SQLite file that does not exist.
    """
    if address == MEMORY:
        raise ConfigError(
            "db='memory:' is this process's alone; sessions are reached through 'sqlite:///FILE' or 'postgresql://…'."
        )
    # SQLite would create an empty file for a mistyped path.
    check_database_exists(address)
    return address


def no_session(session_id: str, address: str) -> InputError:
    """Return the error for a session that a database does not have; the URL is shown without its password."""
    # Error texts end in logs and terminals.
    shown = without_password(address)
    return InputError(f"There is no session {session_id!r} in {shown}; `graph-agent sessions` lists them.")


@asynccontextmanager
async def open_sessions(
    address: str,
) -> AsyncIterator[tuple[BaseCheckpointSaver[Any], Callable[[str], Awaitable[bool]]]]:
    """Open an existing database for reading, and close it at the end of the context.

    Yields the checkpointer, and an async function that returns whether any process runs the session with a given id.
    Raises `ConfigError` if the database does not exist, cannot be opened, or is `memory:`.
    """
    from graph_agent.session.activity import running_check_at
    from graph_agent.storage.checkpoints.open import open_reader

    async with open_reader(shared_database(address)) as saver:
        yield saver, running_check_at(address, saver)


async def stored_events(address: str, session_id: str) -> list[StoredEvent]:
    """Return all events of a session, oldest first, also those of calls that have ended in a step that still runs.

    Raises `InputError` if the database has no such session, and `ConfigError` if the database cannot be opened.
    """
    return (await stored_activity(address, session_id))[0]


async def stored_activity(address: str, session_id: str) -> tuple[list[StoredEvent], Activity]:
    """Return the stored events of a session, oldest first, and what the session does, e.g. `running` or `interrupted`.

    Raises:
        InputError: There is no such session.
        ConfigError: The database does not exist, cannot be opened, or is `memory:`.
    """
    from graph_agent.session.activity import session_activity
    from graph_agent.session.history import EventReader

    async with open_sessions(address) as (saver, is_running):
        found = await EventReader(None, saver, session_id).read_tail(pending=True)
        newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
        if found is None or newest is None:
            raise no_session(session_id, address)
        return found[1], await session_activity(session_id, newest, is_running)
