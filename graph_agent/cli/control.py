"""The command line's way to a session that is at work, here or in another process."""

from __future__ import annotations

from graph_agent.errors import ConfigError, InputError
from graph_agent.persistence.open import open_saver, open_store
from graph_agent.persistence.urls import without_password
from graph_agent.runs.inbox import NoteKind, new_note
from graph_agent.runs.registry import inbox_of, is_idle
from graph_agent.session.session import Session
from graph_agent.spec.agent_file import AgentSpec, open_agent


async def send(spec: AgentSpec, db: str | None, session_id: str, kind: NoteKind, text: str) -> None:
    """Leave a note for a session; neither the agent's model nor its servers are needed for it.

    Args:
        spec: The agent's file.
        db: Another database than the file's; None for that.
        session_id: The session.
        kind: What the note is: `steer` or `follow_up`.
        text: The user's words.

    Raises:
        ConfigError: When the database cannot be opened, or belongs to one process alone.
        InputError: When there is no such session, or nothing is said.
    """
    address = _shared(spec, db)
    shown = without_password(address)
    if not text.strip():
        raise InputError("There is nothing to say: the text is empty.")
    async with open_saver(address) as saver, open_store(address) as store:
        if await saver.aget_tuple({"configurable": {"thread_id": session_id}}) is None:
            raise InputError(f"There is no session {session_id!r} in {shown}; `graph-agent sessions` lists them.")
        await (await inbox_of(saver, store)).add(session_id, new_note(kind, text))


async def stop(spec: AgentSpec, db: str | None, session_id: str) -> bool:
    """Stop a session, wherever it runs; False when there was nothing to stop.

    Args:
        spec: The agent's file.
        db: Another database than the file's; None for that.
        session_id: The session.

    Raises:
        ConfigError: As `send`; and, for a session that no process runs, when the agent cannot be opened to settle it.
    """
    address = _shared(spec, db)
    async with open_saver(address) as saver, open_store(address) as store:
        if not await is_idle(saver, session_id):
            await (await inbox_of(saver, store)).add(session_id, new_note("abort"))
            return True
        found = await saver.aget_tuple({"configurable": {"thread_id": session_id}})
        if found is None or found.checkpoint["channel_values"].get("status") != "RUNNING":
            return False
    # It waits for a person, or a crash left it in the middle: the agent itself settles what is open.
    async with open_agent(spec, db=db) as graph:
        return await Session(graph, session_id).abort()


def _shared(spec: AgentSpec, db: str | None) -> str:
    address = db or spec.db
    if address == "memory:":
        raise ConfigError(
            "db='memory:' is this process's alone; sessions are reached through 'sqlite:///FILE' or 'postgresql://…'."
        )
    return address
