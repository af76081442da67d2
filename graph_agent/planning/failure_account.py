"""What a user reads when an input fails: the error, what was done until then, and what was read of it."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage

from graph_agent.events.queries import account
from graph_agent.events.types import StoredEvent
from graph_agent.planning.compaction import recap
from graph_agent.prompts import Prompts
from graph_agent.state.messages import since_input

_READ = "What was read, the newest last:"


def failure_account(
    error: StoredEvent,
    prompts: Prompts,
    events: Sequence[StoredEvent],
    messages: Sequence[AnyMessage],
    *,
    failed: bool,
) -> str:
    """The text that reports an error.

    Args:
        error: The `error` event.
        prompts: The agent's prompts.
        events: The session's history, oldest first.
        messages: The conversation. Where it is too long for the model, the text tells how each result of the input
            begins.
        failed: Whether the input has failed; False where a limit has ended it, and only its answer could not be had.
    """
    kind, message = error["kind"], error["message"]
    parts = [prompts.render("failure", kind=kind, message=message) if failed else message]
    parts.append(prompts.render("account", **account(events)))
    if kind == "context_overflow" and (read := recap(since_input(messages))):
        parts.append("\n".join([_READ, *read]))
    return "\n\n".join(filter(None, parts))
