"""Turns the exception that ended an input into its `error` event, and the event into a report for the user."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AnyMessage

from graph_agent.base._internal.failure_log import (
    IN_HISTORY,
    exception_text,
    get_logger,
    log_traceback,
    log_user_error,
    user_function,
)
from graph_agent.base._internal.text import clean
from graph_agent.base.errors import GraphAgentError, HookError
from graph_agent.base.history.call_events import account
from graph_agent.base.history.events import StoredEvent, event
from graph_agent.base.input_messages import since_input
from graph_agent.base.model_error_text import public_text
from graph_agent.core.planning.compaction import recap
from graph_agent.core.planning.structured_plan import PlanningError
from graph_agent.models.errors import FOR_USERS, classify_model_error, describe_model_error, hint_of, is_raised_by_model
from graph_agent.models.prompts import Prompts

logger = get_logger("graph_agent.nodes.finalize")
_HINTS = {
    "planning": "Try a model that follows the plan's schema, or set `tool_calling` to 'native'.",
    "empty_answer": "Try another model, or set `fallback_models`.",
    "response_format": "Simplify the response format, or try a model with structured output.",
}
"""Advice on errors whose message has none for the developer, by kind."""
_READ = "What was read, the newest last:"
_TRACED = "See the traceback in the log."
_PRIVATE = frozenset({"hook", "middleware", "code", "response_format"})
"""Kinds whose message gives, after its first colon, the text of an exception that is not for the user."""


def error_event(step: int, kind: str, message: str, *, advises: bool = False, hint: str = "") -> StoredEvent:
    """Return the `error` event of a failed input; nothing is logged. NUL characters and lone surrogates in the message
    are replaced.

    The event's hint, advice for the developer, is the first of these: the part of the message after its last semicolon,
    if `advises`; `hint`; the standard advice for the kind; a reference to the log.

    Args:
        step: Number of the plan.
        kind: Category of the error.
        message: What failed, for the user; the event has it in full.
        advises: Whether the message ends in a semicolon and advice for the developer.
        hint: Advice for the developer; empty to use the standard advice.
    """
    what, separator, advice = clean(message).rpartition("; ")
    hint = hint or _HINTS.get(kind, "The log has the details.")
    if advises and separator and what and advice:
        hint = f"{advice[0].upper()}{advice[1:]}"
    return event("error", step, kind=kind, message=clean(message), hint=hint)


def failure_event(error: Exception, step: int, request: str) -> StoredEvent:
    """Log the exception that ended an input, and return its `error` event.

    The kind is `planning` for an invalid plan, that of a hook's error, `code` for an exception of the program's own
    functions (timeouts and errors of this package excepted), or else the class of a model's error. A hook's error with
    a cause has been logged already. The event quotes less of a provider's text than the log.

    Args:
        error: The exception that ended the request or the check of its reply.
        step: Number of the plan.
        request: Text that names the request; it begins the log message of a model's error.
    """
    # The faults of a plan are for the developer to read, and need no traceback.
    if isinstance(error, PlanningError):
        return logged_event(step, "planning", str(error))
    if isinstance(error, HookError):
        if error.__cause__ is None:
            return logged_event(step, error.kind, str(error), advises=True)
        return event("error", step, kind=error.kind, message=clean(str(error)), hint=_TRACED)  # it is in the log
    if not _is_raised_by_model(error) and not isinstance(error, TimeoutError | GraphAgentError):
        what = f"The function {user_function(error)!r} of this agent"
        log_user_error(logger, what, error)
        message = clean(f"{what} failed: {exception_text(error)}")
        return event("error", step, kind="code", message=message, hint=_TRACED)
    kind, message = classify_model_error(error), describe_model_error(error)
    logger.error("%s failed: %s", request, message, extra=IN_HISTORY)
    log_traceback(logger, request, error)
    message = describe_model_error(error, public=True)
    return error_event(step, kind, message, advises=kind not in FOR_USERS, hint=hint_of(error))


def _is_raised_by_model(error: BaseException | None) -> bool:
    """Whether a model raised this exception or one of its causes (`__cause__`)."""
    while error is not None and not is_raised_by_model(error):
        error = error.__cause__
    return error is not None


def logged_event(step: int, kind: str, message: str, *, advises: bool = False) -> StoredEvent:
    """Log a failure that has no exception of its own, and return its `error` event.

    Parameters are those of `error_event`.
    """
    logger.error("The input failed: %s", message, extra=IN_HISTORY)
    return error_event(step, kind, message, advises=advises)


def failure_account(
    error: StoredEvent, prompts: Prompts, events: Sequence[StoredEvent], messages: Sequence[AnyMessage], *, failed: bool
) -> str:
    """Return the report of an error for the user, without texts of the provider and advice for developers.

    It has the error and a list of the input's calls. If the conversation was too long or the answer was empty, the
    beginning of each result follows. For kinds of errors in user code, the text after the first colon is left out,
    because it may hold data of other users.

    Args:
        error: The `error` event.
        prompts: Renders the parts of the report.
        events: The session's events, oldest first.
        messages: The conversation.
        failed: Whether the input failed; False if a limit ended it and only the answer after that failed.
    """
    kind, message = error["kind"], public_text(error["message"])
    # An exception's text may hold data of other users.
    if kind in _PRIVATE:
        message = f"{message.partition(': ')[0].rstrip('.')}."
    elif (hint := error.get("hint")) and message.endswith(hint[1:]):
        message = f"{message[: -len(hint)].rstrip('; ')}."
    parts = [prompts.render("failure", kind=kind, message=message) if failed else message]
    parts.append(prompts.render("account", **account(events)))
    if kind in ("context_overflow", "empty_answer") and (read := recap(since_input(messages))):
        parts.append("\n".join([_READ, *read]))
    return "\n\n".join(filter(None, parts))
