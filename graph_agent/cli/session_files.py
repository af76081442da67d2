"""Commands `graph-agent sessions export`, `import` and `rm`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer

from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, SessionArgument, check_session_id
from graph_agent.cli.options import check_session_ids as check_ids
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import ConfigError, InputError

_STANDARD = Path("-")


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
) -> None:
    """Print a session as JSON lines: messages, events, status, own state, and the checkpoints that an import reads."""
    from graph_agent.cli.database import shared_database
    from graph_agent.session.exporting import export_session
    from graph_agent.spec.agent_file import load_spec

    address = shared_database(db or load_spec(config).db)

    async def write() -> None:
        lines = export_session(address, session, all_checkpoints=all_checkpoints)
        header = await anext(lines)  # before the file is created
        with _output(out) as file:
            file.write(json.dumps(header) + "\n")
            async for line in lines:
                file.write(json.dumps(line) + "\n")

    asyncio.run(write())


def import_(
    file: Annotated[Path, typer.Argument(help="The exported session; `-` for standard input.")],
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as", callback=check_session_id, help="Id of the imported session.", show_default="that of the export"
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Delete a session of the same id first.")] = False,
) -> None:
    """Store an exported session in a database, which may be of another kind, and print its id."""
    from graph_agent.persistence.urls import MEMORY
    from graph_agent.session.importing import import_session
    from graph_agent.spec.agent_file import load_spec

    address = db or load_spec(config).db
    if address == MEMORY:
        raise ConfigError("db='memory:' ends with this process; import into 'sqlite:///FILE' or 'postgresql://…'.")
    with _input(file) as lines:
        try:
            imported = asyncio.run(import_session(address, lines, session_id=as_, replace=replace))
        except UnicodeDecodeError as error:
            raise InputError(f"The export {file} is no text in UTF-8: {error}.") from None
    Terminal().line(imported)


def rm(
    sessions: Annotated[list[str], typer.Argument(callback=check_ids, help="Ids of the sessions to delete.")],
    config: ConfigOption = AGENT_FILE,
    db: DbOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
) -> None:
    """Delete sessions, with their history, their unread notes and their effect ledger; asks first.

    Sessions with a run under way are refused, and then none is deleted.
    """
    from graph_agent.cli.database import no_session, open_sessions, shared_database
    from graph_agent.persistence.open import open_saver, open_store
    from graph_agent.session.importing import remove_session
    from graph_agent.spec.agent_file import load_spec

    address = shared_database(db or load_spec(config).db)
    chosen = [*dict.fromkeys(sessions)]

    async def check() -> None:
        async with open_sessions(address) as (saver, is_running):
            for each in chosen:
                if await saver.aget_tuple({"configurable": {"thread_id": each, "checkpoint_ns": ""}}) is None:
                    raise no_session(each, address)
                if await is_running(each):
                    raise InputError(f"Session {each!r} is running; stop it with `graph-agent abort -s {each}` first.")

    async def remove() -> None:
        async with open_saver(address) as saver, open_store(address) as store:
            for each in chosen:
                if await remove_session(saver, store, each):
                    Terminal(stderr=True).print(f"Deleted {each}.", style="dim")

    asyncio.run(check())
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("Sessions are deleted after a question, and standard input is no terminal; give --yes.")
        typer.confirm(f"Delete {', '.join(chosen)}?", abort=True, err=True)
    asyncio.run(remove())


@contextmanager
def _output(path: Path | None) -> Iterator[TextIO]:
    if path is None or path == _STANDARD:
        yield sys.stdout
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            yield file
    except FileExistsError:
        raise InputError(f"The file {path} exists already; give --out a new one.") from None
    except OSError as error:
        raise InputError(f"The file {path} cannot be written: {error.strerror}.") from None


@contextmanager
def _input(path: Path) -> Iterator[TextIO]:
    if path == _STANDARD:
        yield sys.stdin
        return
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise InputError(f"The file {path} cannot be read: {error.strerror}.") from None
    with file:
        yield file
