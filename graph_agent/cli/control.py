"""Commands `steer`, `follow-up` and `abort`: control of sessions that run in this or another process."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from graph_agent.cli.options import AGENT_FILE, ConfigOption, DbOption, SessionOption
from graph_agent.cli.terminal import Terminal
from graph_agent.errors import InputError

if TYPE_CHECKING:
    from graph_agent.runs.inbox import NoteKind
    from graph_agent.spec.agent_file import AgentSpec

TextArgument = Annotated[str, typer.Argument(help="The message.", show_default=False)]


def steer(text: TextArgument, session: SessionOption, config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """Send a message to a session before its next step, in any process; if it is idle, with its next input."""
    from graph_agent.spec.agent_file import load_spec

    Terminal().line(asyncio.run(send(load_spec(config), db, session, "steer", text)))


def follow_up(
    text: TextArgument, session: SessionOption, config: ConfigOption = AGENT_FILE, db: DbOption = None
) -> None:
    """Queue an input to run after the current answer; if the session is idle, after the answer to its next input."""
    from graph_agent.spec.agent_file import load_spec

    Terminal().line(asyncio.run(send(load_spec(config), db, session, "follow_up", text)))


def abort(session: SessionOption, config: ConfigOption = AGENT_FILE, db: DbOption = None) -> None:
    """Stop a session, even if it runs in another process; exit status 1 if there was nothing to stop."""
    from graph_agent.spec.agent_file import load_spec

    stopped = asyncio.run(stop(load_spec(config), db, session))
    Terminal().line(f"Session {session} {'is stopping' if stopped else 'is not running'}.")
    sys.exit(0 if stopped else 1)


_WHEN: dict[tuple[NoteKind, bool], str] = {
    ("steer", False): "before its next step",
    ("steer", True): "with its next input",
    ("follow_up", False): "after its current answer",
    ("follow_up", True): "after the answer to its next input",
}
"""When a message takes effect, by its kind and whether the session is idle."""


async def send(spec: AgentSpec, db: str | None, session_id: str, kind: NoteKind, text: str) -> str:
    """Add a note to a session's inbox, without building the agent's model or starting its servers.

    Args:
        spec: The agent's file.
        db: A database URL that replaces the file's; None for the file's.
        session_id: The session.
        kind: The kind of the note: `steer` or `follow_up`.
        text: The user's message.

    Returns:
        What was queued, and when it takes effect, in one line.

    Raises:
        ConfigError: If the database does not exist, cannot be opened, or is in the memory of one process.
        InputError: If there is no such session, or the text is empty.
    """
    from graph_agent.cli.database import no_session, open_sessions
    from graph_agent.persistence.open import open_store
    from graph_agent.runs.inbox import StoreInbox, new_note

    address = db or spec.db
    async with open_sessions(address) as (saver, is_running):
        if not text.strip():
            raise InputError("The message is empty.")
        if await saver.aget_tuple({"configurable": {"thread_id": session_id}}) is None:
            raise no_session(session_id, address)
        when = _WHEN[kind, not await is_running(session_id)]
        async with open_store(address) as store:
            await StoreInbox(store).add(session_id, new_note(kind, text))
    return f"Queued for session {session_id}, {when}: {' '.join(text.split())}"


async def stop(spec: AgentSpec, db: str | None, session_id: str) -> bool:
    """Stop a session in any process; return False if there was nothing to stop.

    Args:
        spec: The agent's file.
        db: A database URL that replaces the file's; None for the file's.
        session_id: The session.

    Raises:
        ConfigError: As `send`; also if no process runs the session and the agent cannot be opened to settle it.
    """
    from graph_agent.cli.database import open_sessions
    from graph_agent.persistence.open import open_store

    address = db or spec.db
    async with open_sessions(address) as (saver, is_running):
        if await is_running(session_id):
            from graph_agent.runs.inbox import StoreInbox, new_note

            async with open_store(address) as store:
                await StoreInbox(store).add(session_id, new_note("abort"))
            return True
        found = await saver.aget_tuple({"configurable": {"thread_id": session_id}})
        if found is None or found.checkpoint["channel_values"].get("status") != "RUNNING":
            return False
    # The session waits for a person, or its process crashed: the agent settles the open calls.
    from graph_agent.session.session import Session
    from graph_agent.spec.opening import open_agent

    async with open_agent(spec, db=db) as graph:
        return await Session(graph, session_id).abort()
