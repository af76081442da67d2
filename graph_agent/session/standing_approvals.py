"""Reads the approvals of all calls of a kind that a session's events give, and takes one back without a run.

A person gives such an approval with `approve(always=True)`, and anyone with the session revokes it. The revocation is
stored as a note, which the session's next step takes into the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from graph_agent.base._internal.text import visible
from graph_agent.base.errors import InputError
from graph_agent.base.inbox import new_note

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.store.base import BaseStore

ApprovalKey: TypeAlias = tuple[str, str]
"""Kind of calls: the delegate (empty for the agent itself) and the name."""


def standing_approvals(events: Iterable[Mapping[str, Any]]) -> dict[ApprovalKey, str | None]:
    """Return the kinds of calls that were ever always approved → who approved them; None for one that was revoked
    since.

    A kind is a pair of the delegate's name (empty for the agent itself) and the name of the calls.

    Args:
        events: The events of a session in order, with those that no run has taken into the history yet.
    """
    found: dict[ApprovalKey, str | None] = {}
    for entry in events:
        if entry["type"] == "revocation" or (entry["type"] == "approval_decision" and "always" in entry):
            # A revocation has no `decided_by`, so that it replaces the approval by None.
            found[entry.get("delegate", ""), entry["name"]] = entry.get("decided_by")
    return found


async def revoke_standing_approval(
    saver: BaseCheckpointSaver[Any], store: BaseStore | None, session_id: str, kind: ApprovalKey, by: str | None
) -> None:
    """Store a note that revokes an approval which holds for all calls of a kind.

    The next step of a run takes the note into the history.

    Args:
        saver: The checkpointer of the session.
        store: The Store of the agent; None for the one in the checkpointer's database or, without one, this process's
            memory.
        session_id: Id of the session.
        kind: The delegate's name (empty for the agent itself) and the name of the calls.
        by: Name of the person; None for `user`.

    Raises:
        InputError: The session has no such approval, it was revoked before, or `by` is no text.
        ConfigError: There is neither a Store nor a database that can keep the note.
    """
    from graph_agent.session.feedback import person_of, store_note
    from graph_agent.session.importing import read_history
    from graph_agent.session.pending_feedback import feedback_after

    newest = await saver.aget_tuple({"configurable": {"thread_id": session_id, "checkpoint_ns": ""}})
    events: list[Mapping[str, Any]] = []
    if newest is not None:
        stored = (await read_history(saver, session_id, newest))["events"]
        events = [*stored, *await feedback_after(saver, store, newest)]
    standing = standing_approvals(events)
    delegate, name = kind
    if standing.get(kind) is None:
        known = ", ".join(sorted(visible("/".join(filter(None, each))) for each, by_ in standing.items() if by_))
        raise InputError(
            f"Session {session_id!r} has no standing approval of {'/'.join(filter(None, kind))!r}; it has: "
            f"{known or 'none'}."
        )
    fields = {"name": name, "by": person_of(by), **({"delegate": delegate} if delegate else {})}
    await store_note(saver, store, session_id, new_note("revocation", fields))
