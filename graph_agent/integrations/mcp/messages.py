"""Parses a server's JSON-RPC messages, replaces unreadable ones by error replies, and defines the errors of calls.

The SDK's transports deliver an unreadable message as an exception without its request id, so that the caller waits
until its own timeout. Here the id is extracted from the readable part of the message.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import mcp.types as types
from langchain_core.tools import ToolException
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from graph_agent.base._internal.failure_log import leaves
from graph_agent.base.errors import McpServerError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Default maximum size in bytes of one message from a server."""
UNREADABLE = {"graph_agent": "unreadable"}
"""`data` of an error reply that replaces an unreadable one."""

_HEAD = 65_536
"""Maximum bytes of an unreadable message that are searched for its id."""
_SHOWN = 200
"""Maximum bytes of an unreadable message in an error."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]|-?\d+')
"""The parts of JSON by which an id is found: texts, brackets, colons and integers."""


class UnreadableError(Exception):
    """Raised when a message from a server cannot be parsed.

    Args:
        reason: Why, as a clause that begins with "its" or "it".
        request_id: Id of the request that the message answers; None if unknown.
        stray: Whether the line was not meant as a message, such as the output of a `print`.
    """

    def __init__(self, reason: str, request_id: types.RequestId | None = None, *, stray: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.request_id = request_id
        self.stray = stray


def read_message(raw: bytes, encoding: str, errors: str) -> types.JSONRPCMessage:
    """Parse one JSON-RPC message.

    Args:
        raw: The bytes of the message.
        encoding: Encoding of the bytes.
        errors: How to handle bytes that cannot be decoded, as in `bytes.decode`.

    Raises:
        UnreadableError: It is not a JSON-RPC message.
    """
    try:
        return types.JSONRPCMessage.model_validate_json(raw.decode(encoding, errors))
    except ValueError as error:  # also UnicodeDecodeError and pydantic's ValidationError
        raise unreadable(error, raw) from None


def unreadable(error: ValueError, raw: bytes | None = None) -> UnreadableError:
    """Return the error for a message that could not be parsed.

    It is `stray` if the message begins with no bracket, and is then probably output of the server's code. Otherwise it
    has the id of the request, if the message has one.

    Args:
        error: The error of the parser.
        raw: The message; None to take it from `error`, a pydantic `ValidationError`.
    """
    if raw is None:
        raw = _input_of(error)
    shown = raw[:_SHOWN].decode(errors="replace") + ("…" if len(raw) > _SHOWN else "")
    # Output of the server's own code, e.g. of `print`.
    if not raw.lstrip().startswith((b"{", b"[")):
        return UnreadableError(f"it sent a line that is no JSON-RPC message: {shown!r}", stray=True)
    return UnreadableError(f"its reply is malformed ({_fault(error)}): {shown!r}", request_id_in(raw))


def too_long(head: bytes, limit: int) -> UnreadableError:
    """Return the error for a message that was refused while it arrived.

    Args:
        head: The first bytes of the message, which are searched for the request's id.
        limit: Maximum bytes of a message.
    """
    reason = f"its reply is longer than {limit:,} bytes, the limit of one message (max_message_bytes)"
    return UnreadableError(reason, request_id_in(head))


def error_reply(request_id: types.RequestId, reason: str) -> types.JSONRPCMessage:
    """Return the error reply that replaces an unreadable reply to a request; `is_unreadable` recognizes it."""
    error = types.ErrorData(code=types.PARSE_ERROR, message=reason, data=UNREADABLE)
    return types.JSONRPCMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


def is_unreadable(error: types.ErrorData) -> bool:
    """Whether an error reply was made by `error_reply`."""
    return error.code == types.PARSE_ERROR and error.data == UNREADABLE


def replacement_for(error: UnreadableError) -> SessionMessage | None:
    """Return the error reply that replaces an unreadable message; None if its request is unknown."""
    if error.request_id is None:
        return None
    return SessionMessage(error_reply(error.request_id, error.reason))


def request_id_in(raw: bytes) -> types.RequestId | None:
    """Return the top-level `id` in JSON that may be damaged or incomplete; None if the first 65,536 bytes have none.

    None also if it is neither a number nor a text.
    """
    # By tokens, as a damaged or cut message cannot be parsed.
    depth, key, previous = 0, b"", b""
    for token in _TOKEN.finditer(raw, 0, _HEAD):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif text == b":":
            key = previous
        elif depth == 1 and key == b'"id"':
            return _read_id(text)
        if text != b":":
            previous, key = text, b""
    return None


def _read_id(text: bytes) -> types.RequestId | None:
    """Return an id in JSON as a number or text; None for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, int | str) else None


def _input_of(error: ValueError) -> bytes:
    """Return the message in a validation error of pydantic as bytes, parsed ones as JSON; empty for another error."""
    if not isinstance(error, ValidationError):
        return b""
    given = error.errors(include_url=False, include_context=False)[0]["input"]
    if isinstance(given, bytes):
        return given
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    return text.encode(errors="surrogatepass")


def _fault(error: ValueError) -> str:
    """Return why a message is malformed, in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            return str(first["msg"])
        return "no JSON-RPC message"
    return str(error)


class McpCallError(McpServerError, ToolException):
    """Raised when a call was not answered by its server. Further calls use the same session or a new one."""

    def __init__(self, message: str, *, may_have_run: bool) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run
        """False if the tool certainly did not run; True if that is unknown."""


class UrlsRequiredError(ToolException):
    """Raised when a server refused a call, which did not run, until the user has opened the addresses in
    `elicitations`.
    """

    def __init__(self, server: str, error: types.ErrorData) -> None:
        super().__init__(f"MCP server {server!r}: {error.message}")
        try:
            self.elicitations = types.ElicitationRequiredErrorData.model_validate(error.data).elicitations
        except ValidationError:
            self.elicitations = []


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a request will never be answered.

    `may_have_run` is False if the request certainly had no effect. `session_gone` is False if only this request was
    refused and the session can still be used.
    """

    reason: str
    may_have_run: bool
    session_gone: bool = True


class NotStartedError(Exception):
    """Raised when a server process could not be started; the message names the connection key and the fix."""


class AuthorizationNeededError(Exception):
    """Raised when a server refuses the client until a user authorizes it; the message has the fix."""


class LostCallError(Exception):
    """Raised inside this package when a call was lost, before a retry is decided."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


def root_cause(error: BaseException) -> str:
    """Return the description of an error in one line: the name of its class and its text.

    Without the name for errors whose text explains itself, and for errors of files, which give the reason and the file.
    For an exception group, the texts of all exceptions inside are joined, each once.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(root_cause(leaf) for leaf in leaves(error)))
    text = " ".join(str(error).split())
    if isinstance(error, NotStartedError | AuthorizationNeededError):
        return text
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename!r}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
