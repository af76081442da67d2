"""What both chat APIs' bodies have in common."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from mimetypes import MimeTypes
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field

from graph_agent.errors import ConfigError
from graph_agent.schema import ResponseSchema
from graph_agent.server.problems import ProblemError
from graph_agent.text import plain

TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
SESSION_ID = r"^[A-Za-z0-9._:-]{1,128}$"
"""What a session may be called; a slash would reach into another key's sessions."""

_MIME_TYPES = MimeTypes()  # read from the system's files when this is imported, and not in a request


class _FirstFault(FailFast):
    # A part of a union must be hashable, and pydantic's own is not.
    def __hash__(self) -> int:
        return hash(self.fail_fast)


_T = TypeVar("_T")


def _between_items(item: Any) -> Any:
    """Return the item; a call of Python code is where a thread that validates lets the event loop's thread run."""
    return item


ListOf = Annotated[list[Annotated[_T, BeforeValidator(_between_items)]], _FirstFault()]
"""A list that is read up to its first fault: a body can hold many of them, each a kilobyte when told."""

AgenticLoops = Annotated[
    int | None, Field(ge=0, description="Reruns that the agent's hooks may have; at most as many as the agent allows.")
]
"""An addition of ours to both chat APIs: `max_agentic_loops` for one request."""

_SCHEMA_CHARS = 50_000
"""Characters of an answer's schema, as checking one takes a second for some hundred thousand."""


def _whole_id(text: str) -> str:
    if "\ufffd" in text:  # what `clean_body` puts in the place of the others
        raise ValueError("an id may hold no lone surrogate, NUL or U+FFFD; send the id as it was given")
    return text


CallId = Annotated[str, AfterValidator(_whole_id)]
"""The id of a call; two ids that differ only in what cannot be kept would be one."""


class SessionMetadata(BaseModel):
    """A request's metadata; only `session_id` means something here."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    session_id: str | None = Field(None, pattern=SESSION_ID, description="The session the server is to keep.")


def clean_body(data: Any) -> Any:
    """A body as JSON that every store takes: lone surrogates, NUL and numbers without end are replaced.

    Raises:
        ValueError: When it is nested too deeply, or holds credentials.
    """
    if isinstance(data, BaseModel):
        return data  # it was read off the loop, and is checked
    if brings_credentials(data):
        raise ValueError(NO_CREDENTIALS)
    return plain(data)


def check_amount(messages: Sequence[Any], tools: Sequence[Any] | None, max_messages: int, max_tools: int) -> None:
    """Check how much of what a run spends time on a chat request holds.

    Args:
        messages: The body's messages; content parts and calls count as messages do.
        tools: The body's tools.
        max_messages: How many messages there may be.
        max_tools: How many tools there may be.

    Raises:
        ProblemError: When there are more.
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


def brings_credentials(data: Any) -> bool:
    """Whether a body has a field for credentials, where clients put what is meant for the agent."""
    return isinstance(data, dict) and any("credentials" in _inside(data, path) for path in ((), *_MAY_HOLD))


def _inside(data: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        found = data.get(name)
        data = found if isinstance(found, dict) else {}
    return data


def image(*, url: str | None = None, mime_type: str = "", base64: str = "") -> dict[str, Any]:
    """An image as a LangChain content block, by its address or its bytes.

    Raises:
        ProblemError: When the bytes are no base64, or the address is not on the web.
    """
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise ProblemError("invalid", "An image is given by an http(s) address, or by its bytes in base64.")
        return {"type": "image", "url": url}
    _check_base64(base64, "An image's")
    return {"type": "image", "base64": base64, "mime_type": mime_type}


def document(*, mime_type: str, base64: str, name: str | None = None) -> dict[str, Any]:
    """A document, e.g. a PDF, as a LangChain content block; it has a file name, as some providers want one.

    Raises:
        ProblemError: When the bytes are no base64.
    """
    _check_base64(base64, "A document's")
    filename = name or f"document{_MIME_TYPES.guess_extension(mime_type) or ''}"
    return {"type": "file", "base64": base64, "mime_type": mime_type, "filename": filename}


def _check_base64(data: str, whose: str) -> None:
    try:
        b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ProblemError("invalid", f"{whose} data are no valid base64.", param="messages") from None


def checked_schema(schema: dict[str, Any], param: str) -> dict[str, Any]:
    """A JSON schema that an answer can be held to.

    Raises:
        ProblemError: When it is none, is too long, or refers to something outside itself, which would be fetched.
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
