"""Lists the reasons to refuse a request, independent of the API.

Each API formats a `ProblemError` in its own way (see `openai`, `anthropic` and `responses`).
"""

from __future__ import annotations

from typing import Any, Literal

from graph_agent._internal.failure_log import is_disconnected, is_out_of_space
from graph_agent.checkpoints.sqlite_connection import DatabaseLockedError
from graph_agent.errors import DamagedSessionError, NewerFormatError, SessionLostError

Kind = Literal[
    "invalid",
    "key",
    "origin",
    "model",
    "not_found",
    "previous_response",
    "conflict",
    "key_reused",
    "too_large",
    "media_type",
    "timeout",
    "busy",
    "context",
    "filtered",
    "upstream",
    "stopping",
    "taken_over",
    "storage",
    "locked",
    "newer",
    "database",
    "internal",
]

STATUS: dict[Kind, int] = {
    "invalid": 400,
    "key": 401,
    "origin": 403,
    "model": 404,
    "not_found": 404,
    "previous_response": 400,
    "conflict": 409,
    "key_reused": 422,
    "too_large": 413,
    "media_type": 415,
    "timeout": 408,
    "busy": 429,
    "context": 400,
    "filtered": 400,
    "upstream": 502,
    "stopping": 503,
    "taken_over": 503,
    "storage": 507,
    "locked": 503,
    "newer": 503,
    "database": 503,
    "internal": 500,
}


class ProblemError(Exception):
    """The reason why a request is not answered.

    Args:
        kind: The kind of the reason; determines the HTTP status.
        message: Text for the sender of the request, without secrets or internals of the server.
        param: The faulty field; None if there is none.
        retry_after_s: Seconds after which the same request may succeed; None if waiting does not help.
        details: Fields that Anthropic's clients use to recover: `{"error_code", …}`; None if there is none.
        category: The `kind` of the failed run's `error` event, such as `auth` or `transient`; None if no run failed.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        details: dict[str, Any] | None = None,
        category: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.details = details
        self.category = category

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response: when to retry, and whether official clients should retry automatically."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        elif self.kind in ("upstream", "internal", "conflict", "timeout", "taken_over", "storage", "database"):
            headers["x-should-retry"] = "false"
        if self.kind == "key":
            headers["www-authenticate"] = "Bearer"
        return headers


class BusySessionError(ProblemError):
    """Another request runs or has continued the session."""

    def __init__(self, message: str) -> None:
        super().__init__("busy", message, retry_after_s=1)


_RUN_ERRORS: dict[str, tuple[Kind, str]] = {
    "transient": ("upstream", "The model's provider did not answer as it should; try again later."),
    "auth": ("upstream", "The model's provider refused this server; its operator has to look at the model's key."),
    "permission": ("upstream", "The model's provider refused this server; its operator has to look at its account."),
    "unknown_model": ("upstream", "The model's provider does not know the model this server asks for."),
    "context_overflow": ("context", "The conversation is longer than the model can read; shorten it."),
    "content_filter": ("filtered", "The model provider's content filter stopped the request."),
    "response_schema": (
        "invalid",
        "The answer could not be held to the response format: its schema takes too long to check. Write its patterns "
        "without a repeat inside a repeat, and with fewer alternatives.",
    ),
    "empty_answer": ("upstream", "The model gave an empty answer twice; send the request again, or with other words."),
    "response_format": ("upstream", "The model gave no answer that fits the response format."),
}


def problem_of_run(error_kind: str) -> ProblemError:
    """Return the problem for a failed run; the details are in the session's history and the server's log.

    Args:
        error_kind: The `kind` of the run's `error` event; empty if there is none.
    """
    kind, message = _RUN_ERRORS.get(error_kind, ("upstream", "The agent could not answer."))
    retry_after_s = 5 if error_kind == "transient" else None
    return ProblemError(kind, message, retry_after_s=retry_after_s, category=error_kind or None)


def problem_of_failure(error: BaseException) -> ProblemError:
    """Return the problem for an exception of this server; the details are in the log."""
    if isinstance(error, SessionLostError):
        return ProblemError(
            "taken_over",
            "This run was stopped: its process lost the session, which another may have continued. Read the session's "
            "events before you send the input again.",
        )
    if is_out_of_space(error):
        return ProblemError(
            "storage",
            "The server's database is full, so that the run was stopped. What had been stored is kept; the next input "
            "goes on from there.",
        )
    if isinstance(error, NewerFormatError):
        return ProblemError(
            "newer",
            "The session was stored by a newer version of this server; try again, to reach a process of that version.",
            retry_after_s=1,
        )
    if isinstance(error, DamagedSessionError):
        name = error.session_id.rpartition("/")[2]
        return ProblemError(
            "internal",
            f"The session {name!r} is damaged in the server's database and was not continued; its log has the details. "
            "Begin another session.",
        )
    if is_disconnected(error):
        return ProblemError(
            "database",
            "The server lost its database, which may have stored this input. Read the session's events before you send "
            "the input again, or send it with its Idempotency-Key.",
        )
    if isinstance(error, DatabaseLockedError):
        return ProblemError("locked", "The server's database is locked by another process; try again.", retry_after_s=5)
    return ProblemError("internal", "The server could not answer; its log says why.")


def key_reused() -> ProblemError:
    """Return the problem for an idempotency key of a different request."""
    return ProblemError(
        "key_reused",
        "This Idempotency-Key belongs to a different request. Send each new request with a new key.",
        param="Idempotency-Key",
    )


def superseded(session_label: str) -> ProblemError:
    """Return the problem for an idempotency key whose request a later one replaced.

    Args:
        session_label: How the error names the session.
    """
    return ProblemError(
        "conflict",
        f"The request with this Idempotency-Key has no answer. {session_label} received a later request before it was "
        "finished. Read what is stored of it, and send what is still needed with a new key.",
        param="Idempotency-Key",
    )


def stopping(session_id: str | None = None) -> ProblemError:
    """Return the problem for a request that the server cannot answer because it is stopping.

    Args:
        session_id: The session of the stopped run; None for a request without one, or one that has not started.
    """
    advice = "Send the request again."
    if session_id is not None:
        advice = f"Continue the session with POST /sessions/{session_id}/resume, or with the next input."
    return ProblemError("stopping", f"The server is being stopped. {advice}", retry_after_s=5)
