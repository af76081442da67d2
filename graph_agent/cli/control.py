"""Implements `steer`, `follow-up` and `abort`, which control sessions of this or another process."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, check_session_id, no_session, open_sessions
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from langgraph.checkpoint.base import BaseCheckpointSaver

    from graph_agent.agent_file.spec import AgentSpec
    from graph_agent.runs.inbox import ControlMessage, NoteKind

RunningSession = Annotated[
    str | None,
    typer.Option(
        "--session", "-s", callback=check_session_id, help="The session's id; by default the only one that is running."
    ),
]
TextArgument = Annotated[str, typer.Argument(help="The message.", show_default=False)]


def steer(
    text: TextArgument, session: RunningSession = None, config: ConfigOption = AGENT_FILE, db: DbOption = None
) -> None:
    """Send a message to a session before its next step, in any process; if it is idle, with its next input."""
    from graph_agent.agent_file.spec import load_spec

    Terminal().line(asyncio.run(send(load_spec(config), db, session, "steer", text)))


def follow_up(
    text: TextArgument, session: RunningSession = None, config: ConfigOption = AGENT_FILE, db: DbOption = None
) -> None:
    """Queue an input to run after the current answer; if the session is idle, after the answer to its next input."""
    from graph_agent.agent_file.spec import load_spec

    Terminal().line(asyncio.run(send(load_spec(config), db, session, "follow_up", text)))


def abort(session: RunningSession = None, config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """Stop a session, even if it runs in another process; exit status 1 if there was nothing to stop."""
    from graph_agent.agent_file.spec import load_spec

    session_id, stopped = asyncio.run(stop(load_spec(config), db, session))
    Terminal().line(f"Session {session_id} {'is stopping' if stopped else 'is not running'}.")
    sys.exit(0 if stopped else 1)


_WHEN: dict[tuple[NoteKind, bool], str] = {
    ("steer", False): "before its next step",
    ("steer", True): "with its next input",
    ("follow_up", False): "after its current answer",
    ("follow_up", True): "after the answer to its next input",
}
"""When a message takes effect, by its kind and whether the session is idle."""


async def send(spec: AgentSpec, db: str | None, session_id: str | None, kind: NoteKind, text: str) -> str:
    """Add a note to a session's inbox, without building the agent's model or starting its servers.

    Args:
        db: A database URL that replaces the file's; None for the file's.
        session_id: The session; None for the only one that is running.
        kind: The kind of the note: `steer` or `follow_up`.

    Returns:
        The queued note, and when it takes effect, in one line.

    Raises:
        ConfigError: If the database does not exist, cannot be opened, or is in the memory of one process.
        InputError: If there is no such session, not exactly one that runs, or the text is empty.
    """
    from graph_agent.runs.inbox import new_note

    address = db or spec.db
    async with open_sessions(address) as (saver, is_running):
        if not text.strip():
            raise InputError("The message is empty.")
        session_id = session_id or await _only_running(saver, is_running)
        if await saver.aget_tuple({"configurable": {"thread_id": session_id}}) is None:
            raise no_session(session_id, address)
        when = _WHEN[kind, not await is_running(session_id)]
        await _deliver(address, session_id, new_note(kind, text))
    return f"Queued for session {session_id}, {when}: {' '.join(text.split())}"


async def _deliver(address: str, session_id: str, note: ControlMessage) -> None:
    from graph_agent.checkpoints.sqlite_reader import put_item
    from graph_agent.checkpoints.urls import file_of, is_postgres
    from graph_agent.runs.inbox import StoreInbox, inbox_namespace

    if not is_postgres(address):
        file = file_of(address)
        if await asyncio.to_thread(put_item, file, inbox_namespace(session_id), note.key, note.as_value()):
            return
    from graph_agent.checkpoints.open import open_store

    async with open_store(address) as store:
        await StoreInbox(store).add(session_id, note)


async def _only_running(saver: BaseCheckpointSaver[Any], is_running: Callable[[str], Awaitable[bool]]) -> str:
    """Return the id of the session that is running; raise `InputError` if none or several are running."""
    from graph_agent.session.history import summarize_sessions

    found = [one.id for one in await summarize_sessions(saver, is_running) if one.activity == "running"]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"Several sessions are running: {', '.join(found)}. Name one with --session.")
    raise InputError("No session is running. Name one with --session; `graph-agent sessions` lists them.")


async def stop(spec: AgentSpec, db: str | None, session_id: str | None) -> tuple[str, bool]:
    """Stop a session in any process; return its id, and False if there was nothing to stop.

    Raises:
        InputError: As `send`.
        ConfigError: As `send`; also if no process runs the session and the agent cannot be opened to settle it.
    """
    from graph_agent.runs.inbox import new_note

    address = db or spec.db
    async with open_sessions(address) as (saver, is_running):
        session_id = session_id or await _only_running(saver, is_running)
        if await is_running(session_id):
            await _deliver(address, session_id, new_note("abort"))
            return session_id, True
        found = await saver.aget_tuple({"configurable": {"thread_id": session_id}})
        if found is None or found.checkpoint["channel_values"].get("status") != "RUNNING":
            return session_id, False
    # The session waits for a person, or its process crashed: the agent settles the open calls.
    from graph_agent.agent_file.factory import open_agent
    from graph_agent.session.session import Session

    async with open_agent(spec, db=db) as graph:
        return session_id, await Session(graph, session_id).abort()
