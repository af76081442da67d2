"""What a request can be refused for, in no API's own words yet.

Each API renders a `ProblemError` in its own shape (see `openai_shapes`, `anthropic_shapes`, `dialects`).
"""

from __future__ import annotations

from typing import Any, Literal

from graph_agent.errors import SessionLostError
from graph_agent.failures import is_out_of_space
from graph_agent.sqlite_connection import DatabaseLockedError

Kind = Literal[
    "invalid",
    "key",
    "origin",
    "model",
    "not_found",
    "conflict",
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
    "internal",
]

STATUS: dict[Kind, int] = {
    "invalid": 400,
    "key": 401,
    "origin": 403,
    "model": 404,
    "not_found": 404,
    "conflict": 409,
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
    "internal": 500,
}


class ProblemError(Exception):
    """Why a request is not answered.

    Args:
        kind: Which kind of reason.
        message: For the person who sent the request; it holds no secret and nothing of the server's inside.
        param: The field that is wrong; None where none is.
        retry_after_s: Seconds after which the same request may work; None where waiting does not help.
        details: What Anthropic's clients read to find their own way on: `{"error_code", …}`; None for nothing.
        category: What of the run has failed, such as `auth` or `transient`: the `kind` of its `error` event; None where
            no run did.
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
        """The headers beside it: when to try again, and whether an official client should by itself."""
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(max(1, round(self.retry_after_s)))
        elif self.kind in ("upstream", "internal", "conflict", "timeout", "taken_over", "storage"):
            headers["x-should-retry"] = "false"
        if self.kind == "key":
            headers["www-authenticate"] = "Bearer"
        return headers


_OF_RUNS: dict[str, tuple[Kind, str]] = {
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
    "response_format": ("upstream", "The model gave no answer that fits the response format."),
}


def problem_of_run(error_kind: str) -> ProblemError:
    """What a caller is told of a run that failed; the details are in the session's history and the server's log.

    Args:
        error_kind: The `kind` of the run's `error` event; empty for none.
    """
    kind, message = _OF_RUNS.get(error_kind, ("upstream", "The agent could not answer."))
    retry_after_s = 5 if error_kind == "transient" else None
    return ProblemError(kind, message, retry_after_s=retry_after_s, category=error_kind or None)


def problem_of_failure(error: BaseException) -> ProblemError:
    """What a caller is told where this server failed; the log has the details.

    Args:
        error: What was raised.
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
    if isinstance(error, DatabaseLockedError):
        return ProblemError("locked", "The server's database is locked by another process; try again.", retry_after_s=5)
    return ProblemError("internal", "The server could not answer; its log says why.")


def stopping() -> ProblemError:
    """What a caller is told when the server stops before its answer is there."""
    return ProblemError(
        "stopping",
        "The server is being stopped. A session it keeps goes on with POST /sessions/{id}/resume, or the next input.",
        retry_after_s=5,
    )
