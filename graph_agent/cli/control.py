"""Control of running sessions from the command line, in this or another process."""

from __future__ import annotations

from graph_agent.errors import ConfigError, InputError
from graph_agent.persistence.open import check_database_exists, open_saver, open_store
from graph_agent.persistence.urls import without_password
from graph_agent.runs.inbox import NoteKind, new_note
from graph_agent.runs.registry import inbox_of, is_idle
from graph_agent.session.session import Session
from graph_agent.spec.agent_file import AgentSpec
from graph_agent.spec.opening import open_agent

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
    address = shared_database(db or spec.db)
    shown = without_password(address)
    if not text.strip():
        raise InputError("The message is empty.")
    async with open_saver(address) as saver, open_store(address) as store:
        if await saver.aget_tuple({"configurable": {"thread_id": session_id}}) is None:
            raise InputError(f"There is no session {session_id!r} in {shown}; `graph-agent sessions` lists them.")
        when = _WHEN[kind, await is_idle(saver, session_id)]
        await (await inbox_of(saver, store)).add(session_id, new_note(kind, text))
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
    address = shared_database(db or spec.db)
    async with open_saver(address) as saver, open_store(address) as store:
        if not await is_idle(saver, session_id):
            await (await inbox_of(saver, store)).add(session_id, new_note("abort"))
            return True
        found = await saver.aget_tuple({"configurable": {"thread_id": session_id}})
        if found is None or found.checkpoint["channel_values"].get("status") != "RUNNING":
            return False
    # The session waits for a person, or its process crashed: the agent settles the open calls.
    async with open_agent(spec, db=db) as graph:
        return await Session(graph, session_id).abort()


def shared_database(address: str) -> str:
    """Return the URL of a database that other processes reach, if it exists; it is not created.

    Args:
        address: The URL.

    Raises:
        ConfigError: If there is no such database, or it is in the memory of one process.
    """
    if address == "memory:":
        raise ConfigError(
            "db='memory:' is this process's alone; sessions are reached through 'sqlite:///FILE' or 'postgresql://…'."
        )
    check_database_exists(address)
    return address
