"""The shapes of what this server answers, for its OpenAPI.

The chat APIs' answers, the errors and what `/ready` says are made as plain JSON; the others are built of these.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Reply(BaseModel):
    model_config = ConfigDict(extra="allow")


class OpenAIErrorDetail(_Reply):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None
    code: str | None
    category: str | None = None
    """What of the run has failed, such as `auth` or `transient`; absent where no run did."""


class OpenAIError(_Reply):
    """An error of OpenAI's API."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(_Reply):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str
    category: str | None = None
    """As in `OpenAIErrorDetail`."""


class AnthropicError(_Reply):
    """An error of Anthropic's API."""

    type: str
    error: AnthropicErrorDetail


class ControlError(_Reply):
    """An error of the control API."""

    error: str
    kind: str


class Completion(_Reply):
    """A chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, int]


class AnthropicMessage(_Reply):
    """A message of the assistant's."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(_Reply):
    """How many tokens a request is, about."""

    input_tokens: int


class Model(_Reply):
    """A model, in OpenAI's and Anthropic's words at once."""

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
    """Where a session is."""

    id: str
    status: str
    stop_reason: str | None
    answer: str
    events: int
    pending: list[dict[str, Any]]
    interrupts: list[dict[str, Any]]


class SessionIds(_Reply):
    """Sessions, the one begun last first."""

    sessions: list[str]


class EventList(_Reply):
    """Events of a session, oldest first."""

    events: list[dict[str, Any]]


class Accepted(_Reply):
    """Whether something was to be done."""

    accepted: bool


class Health(_Reply):
    """That the process is alive."""

    status: str


class Readiness(_Reply):
    """Whether requests can be answered, and why not."""

    ready: bool
    checks: dict[str, str]
