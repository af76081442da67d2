"""The report of a failed input: the error, the calls that were run, and the beginnings of their results."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage

from graph_agent.events.calls import account
from graph_agent.events.types import StoredEvent
from graph_agent.models.public_text import public_text
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
    """Render the report of an error.

    Args:
        error: The `error` event.
        prompts: The agent's prompts.
        events: The session's history, oldest first.
        messages: The conversation. If it was too long for the model, the report holds the beginning of each result of
            the input.
        failed: Whether the input failed; False if a limit ended it and only its answer failed.
    """
    kind, message = error["kind"], error["message"]
    parts = [_render(prompts, kind, message) if failed else message]
    parts.append(prompts.render("account", **account(events)))
    if kind == "context_overflow" and (read := recap(since_input(messages))):
        parts.append("\n".join([_READ, *read]))
    return "\n\n".join(filter(None, parts))


def _render(prompts: Prompts, kind: str, message: str) -> str:
    """Render the template `failure`, without the provider's words if `public_text` could not remove them later.

    A template may change the message, e.g. shorten it, so that the sentence around the provider's words is lost.
    """
    report = prompts.render("failure", kind=kind, message=message)
    public = prompts.render("failure", kind=kind, message=public_text(message))
    return report if public_text(report) == public else public
