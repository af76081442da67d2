"""Declares fields and checks common to the bodies of the chat APIs."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from mimetypes import MimeTypes
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field

from graph_agent._internal.text import to_json_safe
from graph_agent.errors import ConfigError
from graph_agent.server.errors.problems import ProblemError
from graph_agent.settings.response_format import ResponseSchema

TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
SESSION_ID = r"^[A-Za-z0-9._:-]{1,128}$"
"""Pattern of session ids; a slash would give access to another key's sessions."""

_MIME_TYPES = MimeTypes()  # reads the system's files at import, not during a request


class _FirstFault(FailFast):
    # Members of a union must be hashable, and pydantic's `FailFast` is not.
    def __hash__(self) -> int:
        return hash(self.fail_fast)


_T = TypeVar("_T")


def _between_items(item: Any) -> Any:
    """Return the item; a call of Python code lets a validating thread release the GIL to the event loop."""
    return item


ListOf = Annotated[list[Annotated[_T, BeforeValidator(_between_items)]], _FirstFault()]
"""A list that is validated up to its first fault: a body can hold many, and each message takes about a kilobyte."""

AgenticLoops = Annotated[
    int | None, Field(ge=0, description="Reruns that the agent's hooks may have; at most as many as the agent allows.")
]
"""`max_agentic_loops` for one request, an extension of the chat APIs."""

_SCHEMA_CHARS = 50_000
"""Characters of an answer's schema; checking some hundred thousand takes about a second."""


def _whole_id(text: str) -> str:
    if "\ufffd" in text:  # `clean_body` replaces lone surrogates and NUL with it
        raise ValueError("an id may hold no lone surrogate, NUL or U+FFFD; send the id as it was given")
    return text


CallId = Annotated[str, AfterValidator(_whole_id)]
"""The id of a call; ids that differ only in characters that cannot be stored would become equal."""


class RequestObject(BaseModel):
    """A body, or an object in it. Fields that are not declared are accepted and ignored, in every API."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class SessionMetadata(RequestObject):
    """A request's metadata; only `session_id` has an effect."""

    session_id: str | None = Field(None, pattern=SESSION_ID, description="Id of the session to continue or create.")


def clean_body(data: Any) -> Any:
    """Return a body as JSON that every store accepts: lone surrogates, NUL and non-finite numbers are replaced.

    Raises:
        ValueError: If it is nested too deeply, or holds credentials.
    """
    if isinstance(data, BaseModel):
        return data  # `BodyRoute` has validated it
    if has_credentials(data):
        raise ValueError(NO_CREDENTIALS)
    return to_json_safe(data)


def checked_session_id(id_: str, param: str = "metadata.session_id") -> str:
    """Return a session id from a header or a field without a pattern.

    Raises:
        ProblemError: If it is none.
    """
    if not re.fullmatch(SESSION_ID, id_):
        raise ProblemError("invalid", f"{param}: {id_!r} does not match {SESSION_ID}.", param=param)
    return id_


def check_amount(messages: Sequence[Any], tools: Sequence[Any] | None, max_messages: int, max_tools: int) -> None:
    """Check the number of messages and tools in a chat request, which determine a run's processing time.

    Args:
        messages: The body's messages; content parts and calls count like messages.
        max_messages: Maximum number of messages.
        max_tools: Maximum number of tools.

    Raises:
        ProblemError: If there are more.
    """
    found = sum(1 + _parts(message.content) + len(getattr(message, "tool_calls", None) or ()) for message in messages)
    for name, amount, most in (("messages", found, max_messages), ("tools", len(tools or ()), max_tools)):
        if amount > most:
            counted = "messages, content parts and calls" if name == "messages" else name
            raise ProblemError(
                "too_large", f"{name}: the request has {amount} {counted}; it may have {most}. Send fewer.", param=name
            )


def _parts(content: Any) -> int:
    if not isinstance(content, list):
        return 0
    return sum(1 + _parts(getattr(part, "content", None)) for part in content)


NO_CREDENTIALS = (
    "credentials are not taken from a body, which may be logged and stored on its way; send them in the headers that "
    "the server's credential_headers name, or give them in the agent file"
)
_MAY_HOLD = (("metadata",), ("context",), ("configurable",), ("config", "configurable"), ("extra_body",))


def has_credentials(data: Any) -> bool:
    """Return whether a body has a field `credentials` where clients put fields for the agent."""
    return isinstance(data, dict) and any("credentials" in _inside(data, path) for path in ((), *_MAY_HOLD))


def _inside(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        found = data.get(name)
        data = found if isinstance(found, dict) else {}
    return data


def image(*, url: str | None = None, mime_type: str = "", base64: str = "") -> dict[str, Any]:
    """Return an image as a LangChain content block, from its URL or its bytes.

    Raises:
        ProblemError: If the bytes are not base64, or the URL is not http(s).
    """
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ProblemError("invalid", "An image is given by an http(s) address, or by its bytes in base64.")
        return {"type": "image", "url": url}
    _check_base64(base64, "An image's")
    return {"type": "image", "base64": base64, "mime_type": mime_type}


def document(*, mime_type: str, base64: str, name: str | None = None) -> dict[str, Any]:
    """Return a document, e.g. a PDF, as a LangChain content block with a file name, which some providers require.

    Raises:
        ProblemError: If the bytes are not base64.
    """
    _check_base64(base64, "A document's")
    filename = name or f"document{_MIME_TYPES.guess_extension(mime_type) or ''}"
    return {"type": "file", "base64": base64, "mime_type": mime_type, "filename": filename}


def media_type_of(name: str | None) -> str | None:
    """Return the media type that a file's name shows; None if it shows none."""
    return _MIME_TYPES.guess_type(name)[0] if name else None


def _check_base64(data: str, kind: str) -> None:
    try:
        b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ProblemError("invalid", f"{kind} data are no valid base64.", param="messages") from None


def checked_schema(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """Return a JSON schema after checking that answers can be validated with it.

    Raises:
        ProblemError: If it is invalid, is too long, or has an external reference, which would be fetched.
    """
    if (size := len(json.dumps(schema))) > _SCHEMA_CHARS:
        raise ProblemError(
            "invalid", f"{param}: the schema has {size} characters; it may have {_SCHEMA_CHARS}.", param=param
        )
    for reference in _references(schema):
        if not (isinstance(reference, str) and reference.startswith("#")):
            raise ProblemError(
                "invalid", f"{param}: the reference {reference!r} leads outside the schema.", param=param
            )
    try:
        ResponseSchema(schema)
    except ConfigError as error:
        raise ProblemError("invalid", str(error), param=param) from None
    return schema


def _references(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name in ("$ref", "$dynamicRef", "$recursiveRef") and not isinstance(item, dict):
                yield item
            else:
                yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)
