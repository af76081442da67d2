"""Holds the reasons to refuse a request, and the form of each in the APIs.

A *problem* is such a reason, of one of the kinds in `FORMS`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from graph_agent.base._internal.failure_log import is_disconnected, is_out_of_space
from graph_agent.base.errors import DamagedSessionError, EmbeddingFailedError, NewerFormatError, SessionLostError
from graph_agent.base.sqlite_connection import DatabaseLockedError, DatabaseRemovedError

Kind = Literal[
    "invalid", "key", "origin", "model", "not_found", "previous_response", "conflict", "key_reused", "too_large",
    "media_type", "timeout", "busy", "context", "filtered", "refused", "upstream", "stopping", "taken_over", "storage",
    "locked", "newer", "database", "internal",
]  # fmt: skip

_RUN_ERRORS: dict[str, tuple[Kind, str]] = {
    "transient": ("upstream", "The model's provider did not answer as it should; try again later."),
    "auth": ("refused", "The model's provider refused this server; its operator has to look at the model's key."),
    "permission": ("refused", "The model's provider refused this server; its operator has to look at its account."),
    "unknown_model": ("refused", "The model's provider does not know the model this server asks for."),
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
"""`kind` of a failed run's `error` event → kind of the problem, and the text for the client."""


class ProblemForm(NamedTuple):
    """How the APIs report one kind of problem: the HTTP status, and the type and code of the error in OpenAI's and
    Anthropic's format.
    """

    status: int
    openai_type: str
    openai_code: str | None
    anthropic_type: str
    anthropic_status: int | None = None
    """HTTP status of Anthropic's API if it differs; None for `status`."""


FORMS: dict[Kind, ProblemForm] = {
    "invalid": ProblemForm(400, "invalid_request_error", None, "invalid_request_error"),
    "key": ProblemForm(401, "authentication_error", "invalid_api_key", "authentication_error"),
    "origin": ProblemForm(403, "invalid_request_error", "origin_not_allowed", "permission_error"),
    "model": ProblemForm(404, "invalid_request_error", "model_not_found", "not_found_error"),
    "not_found": ProblemForm(404, "invalid_request_error", "not_found", "not_found_error"),
    "previous_response": ProblemForm(
        400, "invalid_request_error", "previous_response_not_found", "invalid_request_error"
    ),
    "conflict": ProblemForm(409, "invalid_request_error", "conflict", "invalid_request_error"),
    "key_reused": ProblemForm(422, "invalid_request_error", "idempotency_key_reused", "invalid_request_error"),
    "too_large": ProblemForm(413, "invalid_request_error", "request_too_large", "request_too_large"),
    "media_type": ProblemForm(415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"),
    "timeout": ProblemForm(408, "invalid_request_error", "request_timeout", "timeout_error"),
    "busy": ProblemForm(429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
    "context": ProblemForm(400, "invalid_request_error", "context_length_exceeded", "invalid_request_error"),
    "filtered": ProblemForm(400, "invalid_request_error", "content_filter", "invalid_request_error"),
    # Coding clients take only 400 as final: Codex CLI repeats a request after any other status, aider after 403, and
    # OpenCode wherever the error has the type `server_error`.
    "refused": ProblemForm(400, "invalid_request_error", "model_failed", "api_error"),
    "upstream": ProblemForm(502, "server_error", "model_failed", "api_error"),
    "stopping": ProblemForm(503, "server_error", "server_stopping", "overloaded_error", 529),
    "taken_over": ProblemForm(503, "server_error", "session_taken_over", "api_error"),
    "storage": ProblemForm(507, "server_error", "storage_full", "api_error"),
    "locked": ProblemForm(503, "server_error", "database_locked", "api_error"),
    "newer": ProblemForm(503, "server_error", "newer_session", "api_error"),
    "database": ProblemForm(503, "server_error", "database_unavailable", "api_error"),
    "internal": ProblemForm(500, "server_error", "internal_error", "api_error"),
}
"""Kind of problem → how the APIs report it."""


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

    def after_write(self, report: str) -> ProblemError:
        """Return a problem of the same kind for a run that may have had side effects, with a message that the same
        request can be repeated safely.

        The seconds to wait and the category are kept; the faulty field and the details are dropped.

        Args:
            report: A sentence about the calls that have run, which begins the message.
        """
        message = f"{report} Send the same request again to continue; nothing is done twice."
        return ProblemError(self.kind, message, retry_after_s=self.retry_after_s, category=self.category)

    @property
    def status(self) -> int:
        """The HTTP status of the response."""
        return FORMS[self.kind].status

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response.

        `retry-after`, at least 1 s, if waiting helps. Otherwise `x-should-retry: false` for kinds whose status official
        clients would repeat by themselves, which would run the input again. `www-authenticate` if a key is missing or
        unknown.
        """
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        elif self.kind in ("upstream", "internal", "conflict", "timeout", "taken_over", "storage", "database"):
            # Official clients repeat such statuses automatically, which would run the input again.
            headers["x-should-retry"] = "false"
        if self.kind == "key":
            headers["www-authenticate"] = "Bearer"
        return headers


class InvalidRequestError(ProblemError):
    """The request, or its field `param`, cannot be used as it is. The status is 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__("invalid", message, param=param)


class BusySessionError(ProblemError):
    """Another request runs the session, or has continued it.

    The status is 429, and the request may be repeated after a second.
    """

    def __init__(self, message: str) -> None:
        super().__init__("busy", message, retry_after_s=1)


def problem_of_run(error_kind: str) -> ProblemError:
    """Return the problem for a run that has failed. Its text has no details, which are in the session's history and the
    server's log.

    Only a `transient` failure may be retried, after 5 s; an unknown kind is a failure of the model's provider
    (`upstream`).

    Args:
        error_kind: `kind` of the run's `error` event, which becomes the category; may be empty.
    """
    kind, message = _RUN_ERRORS.get(error_kind, ("upstream", "The agent could not answer."))
    # The other kinds need a change by the operator or the client, so that waiting does not help.
    retry_after_s = 5 if error_kind == "transient" else None
    return ProblemError(kind, message, retry_after_s=retry_after_s, category=error_kind or None)


def problem_of_failure(error: BaseException) -> ProblemError:
    """Return the problem for an exception of this server. Its text has no details of the exception, which the caller
    must log.

    `taken_over` is for a run that lost its session, `storage` for a full disk, `newer` for a session of a newer
    version, `database` for a database that was lost or removed, `locked` for one that another process locks, and
    `upstream` for a failed embedding model. Anything else, also a damaged session, is `internal`.
    """
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
        # The part before it is the caller's prefix, which only this server uses.
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
    if isinstance(error, EmbeddingFailedError):
        return ProblemError("upstream", "The embedding model of the memory did not answer; try again later.")
    if isinstance(error, DatabaseLockedError):
        return ProblemError("locked", "The server's database is locked by another process; try again.", retry_after_s=5)
    if isinstance(error, DatabaseRemovedError):
        return ProblemError(
            "database",
            "The file of the server's database was removed, and the input was not stored. Tell the server's operator.",
        )
    return ProblemError("internal", "The server could not answer; its log says why.")


def key_reused() -> ProblemError:
    """Return the problem for a request whose idempotency key was used for a different request."""
    return ProblemError(
        "key_reused",
        "This Idempotency-Key belongs to a different request. Send each new request with a new key.",
        param="Idempotency-Key",
    )


def superseded(session_label: str) -> ProblemError:
    """Return the problem for an idempotency key whose request has no answer, because the session received a later
    request.

    Args:
        session_label: The beginning of a sentence that names the session.
    """
    return ProblemError(
        "conflict",
        f"The request with this Idempotency-Key has no answer. {session_label} received a later request before it was "
        "finished. Read what is stored of it, and send what is still needed with a new key.",
        param="Idempotency-Key",
    )


def stopping(session_id: str | None = None) -> ProblemError:
    """Return the problem for a request that ends because the server is starting or stopping; it may be repeated after 5
    s.

    Args:
        session_id: The session whose run was stopped, for the advice how to continue it; None if no run had started.
    """
    advice = "Send the request again."
    if session_id is not None:
        advice = f"Continue the session with POST /sessions/{session_id}/resume, or with the next input."
    return ProblemError("stopping", f"The server is being stopped. {advice}", retry_after_s=5)
