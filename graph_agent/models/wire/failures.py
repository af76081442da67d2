"""Finds the error in a reply that a server sends with HTTP status 200, in a body or in an event of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from graph_agent.base._internal.text import excerpt

_SHOWN_CHARS = 1_000
_WORDS = ("message", "msg", "status_msg", "detail", "error", "reason")
"""Keys of an error whose values are its message, in order of precedence."""
_CODES = ("code", "status", "status_code", "http_status")
"""Keys of an error whose values may be an HTTP status."""


class ReplyFailureError(Exception):
    """Raised if a server answered a model request with HTTP status 200 and an error; the text is the server's message.

    It has the attributes by which `graph_agent.models.errors` classifies the exceptions of providers' packages.
    """

    def __init__(self, message: str, *, status_code: int | None, body: Any) -> None:
        super().__init__(message)
        self.status_code = status_code
        """The HTTP status named in the error, from 400 to 599; None if there is none."""
        self.body = body
        """The error as sent: a dict, or a text."""
        self.code = body.get("code") if isinstance(body, Mapping) else None
        """The provider's own code; None if there is none."""


def failure_in(reply: Any) -> ReplyFailureError | None:
    """Return (not raise) the error that a reply, or a chunk of one, contains; None if there is none.

    Known forms are `{"error": …}` with an object or a text, `{"object": "error", …}`, `{"type": "error", …}`,
    `{"status": "error", …}`, MiniMax's `base_resp`, OpenRouter's error in a choice, and `{"detail": …}` or `{"message":
    …}` with an HTTP status from 400 to 599 but no `choices`; also a list of one such object.

    Args:
        reply: The decoded JSON, of any type.
    """
    if isinstance(reply, list):
        reply = reply[0] if len(reply) == 1 else None
    if not isinstance(reply, Mapping):
        return None
    if error := reply.get("error"):
        return _failure(error, reply)
    choices = reply.get("choices")
    if not choices:
        base = reply.get("base_resp")
        if isinstance(base, Mapping) and base.get("status_code"):
            return _failure({"code": base["status_code"], "message": base.get("status_msg")}, reply)
        is_error = "error" in (reply.get("object"), reply.get("type"), reply.get("status"))
        if is_error or ("choices" not in reply and not reply.keys().isdisjoint({"detail", "message"}) and _code(reply)):
            return _failure(reply, reply)
        return None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and (error := choice.get("error")):
            return _failure(error, reply)
    return None


def _failure(error: Any, reply: Mapping[str, Any]) -> ReplyFailureError:
    """Return the exception for an error in a reply.

    Args:
        error: The error: an object or a text.
        reply: The reply, which may have the status.
    """
    if not isinstance(error, Mapping):
        return ReplyFailureError(excerpt(str(error), _SHOWN_CHARS), status_code=_code(reply), body=str(error))
    code = _code(error)
    return ReplyFailureError(
        excerpt(_words_of(error), _SHOWN_CHARS), status_code=code if code is not None else _code(reply), body=error
    )


def _words_of(error: Mapping[str, Any]) -> str:
    """Return the message in an error's fields; the error as JSON if it has none."""
    for name in _WORDS:
        value = error.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, Mapping) and value:
            return _words_of(value)
    return json.dumps(error, ensure_ascii=False, default=str)


def _code(error: Mapping[str, Any]) -> int | None:
    """Return the HTTP status from 400 to 599 in an error's fields; None if there is none."""
    for name in _CODES:
        value = error.get(name)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
            return value
    return None
