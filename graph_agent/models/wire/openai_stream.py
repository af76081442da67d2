"""Reads streams of OpenAI's chat API as JSON, without the classes of the `openai` package.

The package builds an object from each chunk, which LangChain converts back; together they take most of the time of a
streamed reply. Models made by `direct_streams` also read what the package cannot: errors in other forms than OpenAI's,
and a single JSON body in place of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.language_models import BaseChatModel

from graph_agent.models.wire.failures import failure_in

M = TypeVar("M", bound=BaseChatModel)

_on_piece: ContextVar[Callable[[], None] | None] = ContextVar("graph_agent_on_piece", default=None)
_CHUNK: dict[str, Any] = {"choices": (), "usage": None, "service_tier": None, "system_fingerprint": None}
_CHOICE: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
_DELTA: dict[str, Any] = {"content": None, "function_call": None, "refusal": None, "role": None, "tool_calls": None}
"""Fields that the `openai` package always sets, with their defaults, for chunk, choice and delta."""
_END = "[DONE]"
_LONGEST_REST_S = 0.05
"""Maximum seconds to wait for the end of a response after its last event."""
_BLANK = b"\xef\xbb\xbf \t\r\n"
"""A byte order mark and white space."""
_decode = json.JSONDecoder().raw_decode
_ONE_EVENT = re.compile(rb"data: \{[^\r\n]*+\n\n\Z")
_DATA = (b"data", b"error")
"""Fields of a server-sent event that hold its data."""


@contextlib.contextmanager
def joined_text(on_piece: Callable[[], None]) -> Iterator[None]:
    """Make streams inside the `with` block join consecutive chunks that have only text.

    No reader wants the single tokens.

    Args:
        on_piece: Called for each part of the stream that arrives, e.g. to restart a time limit.
    """
    token = _on_piece.set(on_piece)
    try:
        yield
    finally:
        _on_piece.reset(token)


def direct_streams(model: M) -> M:
    """Return a copy of a model whose streams are read directly; the same object if it has no OpenAI chat client.

    A class of another package with a stream method of its own may need the package's objects, and is also returned
    unchanged.
    """
    client = getattr(model, "async_client", None)
    if type(client).__module__.partition(".")[0] != "openai" or not hasattr(type(client), "create"):
        return model
    owners = [cls.__module__.partition(".")[0] for cls in type(model).__mro__ if "_astream" in vars(cls)]
    if "langchain_openai" not in owners or any(
        name.startswith("langchain_") and name not in {"langchain_openai", "langchain_core"} for name in owners
    ):
        return model
    return model.model_copy(update={"async_client": _DirectClient(client)})


def reads_directly(model: object) -> bool:
    """Whether a model was made by `direct_streams`, so that it accepts a single JSON body in place of a stream."""
    return isinstance(getattr(model, "async_client", None), _DirectClient)


class _DirectClient:
    """Wraps the resource `chat.completions` of the `openai` package; streams are returned as `DirectStream`."""

    _client = None
    """Hides the resource's attribute, from which `without_client_retries` would build an object of another class."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource

    def __getattr__(self, name: str) -> Any:
        return getattr(self._resource, name)

    async def create(self, **request: Any) -> Any:
        """Send a request; a stream is returned as `DirectStream`, any other answer unchanged."""
        answer = await self._resource.create(**request)
        return DirectStream(answer) if request.get("stream") and hasattr(answer, "response") else answer


class DirectStream:
    """The chunks of one streamed response, as dicts; an async context manager that closes the connection.

    Iteration raises `ReplyFailureError` for an error inside the stream.
    """

    def __init__(self, stream: Any) -> None:
        self.response = stream.response
        self._request = self.response.request

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, tb: TracebackType | None) -> None:
        await self.response.aclose()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        on_piece, events, held = _on_piece.get(), EventBuffer(), _HeldText()
        # Two layers fewer for each part; only an encoded body needs them.
        is_encoded = "content-encoding" in self.response.headers
        parts = aiter(self.response.aiter_bytes() if is_encoded else self.response.stream)
        async for part in parts:
            if on_piece is not None:
                on_piece()
            for data in events.feed(part):
                value = _value_of(data)
                if held.add_text(value):
                    continue
                for chunk in _chunks_in(value):
                    if on_piece is None or not held.add(chunk):
                        for earlier in held.take():
                            yield earlier
                        yield chunk
            if events.is_over:
                break
        for earlier in held.take():
            yield earlier
        for data in events.rest():
            for chunk in _chunks_in(_value_of(data)):
                yield chunk
        # A connection whose answer was read to its end is used again.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_REST_S):
                async for _ in parts:
                    pass


class _HeldText:
    """Collects chunks that have only text into one chunk, and adds the usage that follows them."""

    def __init__(self) -> None:
        self._chunk: dict[str, Any] | None = None
        self._texts: list[str] = []

    def add_text(self, value: Any) -> bool:
        """Add a chunk as sent, and return True, if another chunk is held and this one has only text, as most chunks do.

        Returns False for a chunk with any other field, such as usage or a finish reason.
        """
        if self._chunk is None or not isinstance(value, dict) or value.get("usage") or value.get("error"):
            return False
        choices = value.get("choices")
        if not isinstance(choices, list) or len(choices) != 1:
            return False
        choice = choices[0]
        if choice.get("finish_reason") or choice.get("logprobs") or choice.get("index") or choice.get("error"):
            return False
        delta = choice.get("delta")
        if not isinstance(delta, dict) or len(delta) != 1 or not isinstance(text := delta.get("content"), str):
            return False
        self._texts.append(text)
        return True

    def add(self, chunk: dict[str, Any]) -> bool:
        """Add a chunk in the form of `_chunks_in`; return False if it has more than text, and so must be yielded
        separately.

        Text joins the held chunk. So do a chunk with only usage, and the finish reason of one with text.
        """
        if self._chunk is not None and not chunk["choices"] and chunk["usage"]:
            self._chunk["usage"] = chunk["usage"]
            return True
        if not _is_text(chunk):
            return False
        (choice,) = chunk["choices"]
        self._texts.append(choice["delta"]["content"] or "")
        if self._chunk is None:
            self._chunk = chunk
        elif choice["finish_reason"]:
            role, usage = self._chunk["choices"][0]["delta"]["role"], self._chunk["usage"]
            choice["delta"]["role"] = role or choice["delta"]["role"]
            self._chunk = {**chunk, "usage": usage}
        return True

    def take(self) -> list[dict[str, Any]]:
        """Return the collected chunk in a list, and forget it; empty if there is none."""
        if self._chunk is None:
            return []
        chunk, self._chunk = self._chunk, None
        chunk["choices"][0]["delta"]["content"] = "".join(self._texts)
        self._texts = []
        return [chunk]


class EventBuffer:
    """Splits the bytes of a response into the data of its server-sent events.

    If the body is a single JSON value instead, `rest` returns it.
    """

    def __init__(self) -> None:
        self.is_over = False
        """Whether the event `[DONE]`, which ends a stream, was received."""
        self._rest = b""
        self._lines: list[str] = []
        self._is_error = False
        self._is_json: bool | None = None

    def feed(self, part: bytes) -> list[str]:
        """Add bytes, and return the data of the events that they complete; empty if none.

        Events after `[DONE]`, which sets `is_over`, are dropped. The data of an error event is returned as JSON with
        the key `error`. The bytes of a JSON body are kept for `rest`.
        """
        if self._is_json is False and not self._rest and not self._lines and _ONE_EVENT.match(part):
            return [part[6:-2].decode(errors="replace")]
        self._rest += part
        if self._is_json is None and (begin := self._rest.lstrip(_BLANK)):
            self._rest, self._is_json = begin, begin[:1] in b"{["
        if self._is_json is not False:
            return []
        if b"\r" in self._rest:
            # A carriage return at the end may be half of a line's end.
            held = b"\r" if self._rest.endswith(b"\r") else b""
            text = self._rest[: len(self._rest) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            self._rest = text + held
        *lines, self._rest = self._rest.split(b"\n")
        return self._events(lines)

    def rest(self) -> list[str]:
        """Return the data left at the end of the response: a JSON body, or an event without its final blank line."""
        rest, self._rest = self._rest.strip(_BLANK), b""
        if self._is_json:
            return [rest.decode(errors="replace")] if rest else []
        return self._events([rest, b""])

    def _events(self, lines: list[bytes]) -> list[str]:
        """Return the data of the events in some lines; an event without its final blank line waits.

        The data of an error event is JSON with the key `error`. `[DONE]` sets `is_over`; later events are dropped.
        """
        found: list[str] = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name in _DATA:
                self._lines.append(value.decode(errors="replace").removeprefix(" "))
                # llama.cpp's server sends an error in a field of this name.
                self._is_error = self._is_error or name == b"error"
            elif name == b"event" and value.strip() == b"error":
                self._is_error = True
            elif not line:
                data, self._lines = "\n".join(self._lines), []
                if data.startswith(_END):
                    self.is_over = True
                elif data.strip() and not self.is_over:
                    found.append(_as_error(data) if self._is_error else data)
                self._is_error = False
        return found


def _as_error(data: str) -> str:
    """Return the data of an error event as JSON with the key `error`."""
    try:
        value: Any = json.loads(data)
    except ValueError:
        value = data
    return data if isinstance(value, dict) and "error" in value else json.dumps({"error": value})


def _value_of(data: str) -> Any:
    """Parse JSON like `json.loads`, but skip its two searches for white space."""
    value, end = _decode(data)
    return value if end == len(data) else json.loads(data)


def _chunks_in(value: Any) -> list[dict[str, Any]]:
    """Return the chunk in an event's value as a list, with all fields that LangChain reads.

    Empty if the value is no object.

    Raises:
        ReplyFailureError: The value is an error of the server.
    """
    if (failure := failure_in(value)) is not None:
        raise failure
    if not isinstance(value, dict):
        return []
    chunk = {**_CHUNK, **value}
    chunk["choices"] = [_choice(each) for each in chunk["choices"] or () if isinstance(each, dict)]
    return [chunk]


def _choice(given: dict[str, Any]) -> dict[str, Any]:
    """Return a choice with all fields that LangChain reads; the message of a whole reply becomes its delta. Calls
    become fragments, numbered if they are whole.
    """
    # One JSON body in place of a stream has a message, which is its only delta.
    delta = given.get("delta") or given.get("message")
    made = {**_CHOICE, **given, "delta": {**_DELTA, **(delta if isinstance(delta, dict) else {})}}
    calls = made["delta"]["tool_calls"]
    if calls:
        is_message = "delta" not in given
        made["delta"]["tool_calls"] = [
            _fragment(each, at if is_message else None) for at, each in enumerate(calls) if isinstance(each, dict)
        ]
    return made


def _fragment(given: dict[str, Any], index: int | None) -> dict[str, Any]:
    """Return a fragment of a call with all fields that LangChain reads, and its arguments as text. `index` is used if
    the fragment has none.
    """
    function = given.get("function") or {}
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    # LangChain drops all calls of a chunk if one has no index.
    return {"id": None, "index": index, **given, "function": {"name": None, **function, "arguments": arguments}}


def _is_text(chunk: dict[str, Any]) -> bool:
    """Whether a chunk has only text, in one choice."""
    if len(chunk["choices"]) != 1 or chunk["usage"]:
        return False
    (choice,) = chunk["choices"]
    if choice["logprobs"] or choice["index"]:
        return False
    return not any(value for name, value in choice["delta"].items() if name not in ("content", "role"))
