"""Declares the response models of this server for its OpenAPI.

The chat APIs' answers, the errors and the response of `/ready` are built as plain JSON; the other responses use these
models.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_ERRORS = {
    400: "Malformed, or not answerable",
    401: "Missing or unknown API key",
    403: "Sent by a page of another origin to a server without keys",
    404: "No such model",
    408: "The body did not arrive in time",
    409: "Another request of the session came first: it answered the question, or replaced the one with this key",
    413: "The body is too large",
    422: "The idempotency key belongs to a different request",
    429: "Too many requests, or the session is busy",
    500: "The server failed",
    502: "The model's provider failed",
    503: "The server is stopping, another process holds the session, or the database is locked",
    507: "The database is full",
}


# Fields may be added at any time, so that a reply with more of them is valid: clients generated from an older schema
# must not refuse it.
class _Reply(BaseModel):
    model_config = ConfigDict(extra="allow")


class OpenAIErrorDetail(_Reply):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None
    category: str | None = None
    """Kind of the run's failure, such as `auth` or `transient`; absent if no run failed."""


class OpenAIError(_Reply):
    """An error of OpenAI's API."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(_Reply):
    """An error in Anthropic's format."""

    type: str
    message: str
    category: str | None = None
    """Kind of the run's failure, such as `auth` or `transient`; absent if no run failed."""


class AnthropicError(_Reply):
    """An error of Anthropic's API."""

    type: str
    error: AnthropicErrorDetail


class ControlError(_Reply):
    """An error of the control API."""

    error: str
    kind: str


def error_responses(
    model: type[BaseModel], own: Mapping[int, str] | None = None, *, only: Collection[int] = ()
) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an API's routes for FastAPI's OpenAPI document, HTTP status → model and
    description.

    Args:
        model: The model of the errors.
        own: HTTP status → description, for errors whose description differs from the usual one, or that are not usual.
        only: The statuses of the usual errors to include; empty for all.
    """
    # Sorted, so that the order in the published schema does not depend on the caller.
    texts = {status: text for status, text in _ERRORS.items() if not only or status in only} | dict(own or {})
    return {status: {"model": model, "description": text} for status, text in sorted(texts.items())}


def control_errors(more: Mapping[int, str] | None = None) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of routes whose errors are a `ControlError`, HTTP status → model and description.

    Args:
        more: HTTP status → description, for errors that only these routes have.
    """
    # The usual texts of these two are about sessions and answers, which these routes do not have.
    own = {400: "Malformed", 429: "Too many requests", **(more or {})}
    return error_responses(ControlError, own, only=(401, 403, 408, 413, 500, 503, 507))


class Completion(_Reply):
    """A chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int]


class ResponseObject(_Reply):
    """A response of the Responses API."""

    id: str
    object: str
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]


class CompactionObject(_Reply):
    """A compacted conversation of the Responses API."""

    id: str
    object: str
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class DeletedResponse(_Reply):
    """The id of a deleted response or conversation."""

    id: str
    object: str
    deleted: bool


class ConversationObject(_Reply):
    """A conversation of the Responses API."""

    id: str
    object: str
    created_at: int
    metadata: dict[str, str]


class ItemPage(_Reply):
    """A page of items."""

    object: str
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class AnthropicMessage(_Reply):
    """A message of the assistant."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(_Reply):
    """Estimated number of tokens of a request."""

    input_tokens: int


class InputTokenCount(_Reply):
    """Estimated number of tokens of a request for a response."""

    object: str
    input_tokens: int


class Model(_Reply):
    """A model, with the fields of both OpenAI's and Anthropic's API."""

    id: str
    object: str
    created: int
    owned_by: str
    type: str
    display_name: str
    created_at: str
    lifecycle: str


class ModelList(_Reply):
    """All models."""

    object: str
    data: list[Model]
    has_more: bool
    first_id: str
    last_id: str


class SessionInfo(_Reply):
    """The state of a session."""

    id: str
    status: str
    stop_reason: str | None
    answer: str
    events: int
    pending: list[dict[str, Any]]
    waiting: str | None
    """`approval`, `client_tool` or `answer`: what the session waits for; None if it does not wait."""
    activity: str
    """`running`, `waiting` for an answer, `interrupted` in the middle of a run, or `idle`."""
    interrupts: list[dict[str, Any]]


class FactReply(_Reply):
    """A fact that the agent remembers about the caller."""

    id: str
    content: str
    """The text; empty for a forgotten fact."""
    updated: str
    """When it was last changed or forgotten: ISO 8601, UTC."""
    forgotten: bool
    """Whether it was forgotten, so that only its id is left."""


class FactList(_Reply):
    """Facts of the caller."""

    facts: list[FactReply]


class SessionIds(_Reply):
    """Sessions, newest first."""

    sessions: list[str]


class SessionList(_Reply):
    """States of sessions, newest first."""

    sessions: list[SessionInfo]


class SessionSummaries(_Reply):
    """Sessions with `id`, `title`, `updated_at`, `messages`, `model_calls`, `turns`, `status`, `activity`, `cost`,
    `thumbs_up`, `thumbs_down` and `forked_from`, newest first.

    `messages` counts the user's; `model_calls` counts those of every kind, and `turns` those that `max_turns` limits.
    The first two are null in a session that an earlier version began. The cost is that of the newest input, in the
    currency of the prices; None without prices. With `totals`, they have `tools`, `total_cost` and `tokens` of the
    whole session, too.
    """

    sessions: list[dict[str, Any]]
    next: str | None
    """The `after` that continues the list; None at its end."""
    person: str
    """The name under which what the caller does is recorded."""


class EventList(_Reply):
    """Events of a session, oldest first."""

    events: list[dict[str, Any]]
    after: int = Field(
        description="The position to follow from: the seq of the newest event in its final place. Events after it are "
        "of finished calls whose wave still runs or waits, or feedback since then; the seq of such an event may rise."
    )


class OmittedCall(_Reply):
    """A call that may have side effects, after the place of a fork, that ran or may have run in the session."""

    id: str
    name: str
    """Name of the tool, or `delegate_to_<name>`."""
    arguments: dict[str, Any]
    step: int
    """Number of its plan."""
    status: str
    """`success`, or `unknown` if it may have taken effect."""


class OmittedCalls(_Reply):
    """The calls that a fork leaves out, oldest first; a run of the fork may make them again."""

    left_out: list[OmittedCall]


class ForkedSession(OmittedCalls):
    """The id of a new session, and the calls that it leaves out."""

    id: str


class Feedback(_Reply):
    """The `feedback` event of a rating; its `seq` is final when a step of a run has taken it into the history."""

    event: dict[str, Any]


class EvaluationCase(_Reply):
    """A rated answer as a case of an evaluation."""

    name: str
    yaml: str
    """A file of cases with this one, for `graph-agent eval`."""


class QueuedMessages(_Reply):
    """Messages to a session that no run has processed, oldest first.

    Each has `id`, `kind` (`steer` or `follow_up`), `text` and `sent_at` (ISO 8601, UTC).
    """

    queued: list[dict[str, Any]]


class Accepted(_Reply):
    """Whether there was something to do."""

    accepted: bool


class Health(_Reply):
    """Liveness of the process."""

    status: str


class Readiness(_Reply):
    """Readiness of the server, with the state of each part."""

    ready: bool
    checks: dict[str, str]
