"""Requests and replies of model providers in one form, whichever protocol carried them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tests.providers.provider_calls import ProviderRun, Source

Kind = Literal["text", "image", "document", "audio", "reasoning", "other"]
_CHARS_PER_TOKEN = 4
_TOKENS_OF_MEDIA = 300


@dataclass(frozen=True)
class Part:
    """One part of a message's content."""

    kind: Kind
    text: str = ""
    raw: Any = None
    """The part as it stood in the request."""


@dataclass(frozen=True)
class Call:
    """A call in a request's history, or in a reply."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """An object, or text that is not converted."""
    id: str = ""
    """Empty in a reply whose protocol makes the id, in the provider's form."""
    raw: Any = None

    def parsed(self) -> Any:
        """Return the arguments as an object; None if they are no JSON."""
        if not isinstance(self.arguments, str):
            return dict(self.arguments)
        try:
            return json.loads(self.arguments)
        except ValueError:
            return None

    def as_text(self) -> str:
        """Return the arguments as JSON text; text is returned unchanged."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True)
class Message:
    """One message, or one tool result of a message that holds several."""

    role: str
    """`system`, `user`, `assistant` or `tool`; other words of a request are kept."""
    parts: tuple[Part, ...] = ()
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """Id of the call that a result belongs to."""
    raw: Any = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.text for part in self.parts if part.kind == "text")

    @property
    def reasoning(self) -> str:
        """The reasoning parts, joined."""
        return "".join(part.text for part in self.parts if part.kind == "reasoning")


@dataclass(frozen=True)
class Tool:
    """A tool that a request offers."""

    name: str
    schema: Any = None
    raw: Any = None


@dataclass(frozen=True)
class Request:
    """One request to a model."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: dict[str, Any]
    model: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: Any = None
    response_format: Any = None
    stream: bool = False

    @property
    def text(self) -> str:
        """The text of all messages, a line for each."""
        return "\n".join(message.text for message in self.messages)

    @property
    def results(self) -> tuple[Message, ...]:
        """The tool results, oldest first."""
        return tuple(message for message in self.messages if message.role == "tool")

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls in the history, oldest first."""
        return tuple(call for message in self.messages for call in message.calls)

    @property
    def tokens(self) -> int:
        """An estimate of the request's tokens; each image, document and recording counts 300."""
        chars = len(json.dumps([tool.raw for tool in self.tools]))
        media = 0
        for message in self.messages:
            chars += sum(len(call.name) + len(call.as_text()) for call in message.calls)
            for part in message.parts:
                if part.kind in ("image", "document", "audio"):
                    media += 1
                else:
                    chars += len(part.text)
        return chars // _CHARS_PER_TOKEN + media * _TOKENS_OF_MEDIA


@dataclass(frozen=True)
class Usage:
    """Tokens of one reply. `cached` is a part of `input`, `reasoning` a part of `output`."""

    input: int = 100
    output: int = 20
    cached: int = 0
    reasoning: int = 0


@dataclass
class Hold:
    """A place in a stream where the server waits for `go_on`, or for the client to close the connection."""

    after: int = 1
    """Events that are sent before."""
    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Reply:
    """What the model replies."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    ran: tuple[ProviderRun, ...] = ()
    """Calls of tools that the provider runs, before the text."""
    sources: tuple[Source, ...] = ()
    """Sources that the text cites."""
    usage: Usage = Usage()
    finish: str | None = None
    """`stop`, `calls`, `length` or `filter`, which protocols translate, or a provider's own word; None to infer it."""
    cut_after: int | None = None
    """Streams only: the connection ends after so many events, without an end of the reply."""
    unfinished: bool = False
    """Streams only: the connection ends before the event with the finish reason."""
    error_after: int | None = None
    """Streams only: after so many events, the provider reports that it is overloaded, and the stream ends."""
    hold: Hold | None = None
    pace_s: float = 0
    """Streams only: seconds between two events."""

    @property
    def reason(self) -> str:
        """The finish reason, inferred if none is given."""
        return self.finish or ("calls" if self.calls else "stop")


FaultKind = Literal["rate_limit", "quota", "server_error", "auth", "filter"]


@dataclass(frozen=True)
class Fault:
    """A failure of the provider, in the words of the row's rule for this kind."""

    kind: FaultKind


@dataclass(frozen=True)
class Refusal:
    """An answer that refuses a request."""

    rule: str
    """The id of the rule that the request broke."""
    status: int
    body: Any
    """JSON, or text that is sent as it stands."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Raw:
    """An answer of HTTP 200 that is not a reply: its events if a stream was asked for, else its body."""

    events: tuple[bytes, ...]
    """Framed, as they are sent."""
    body: bytes


@dataclass(frozen=True)
class Answer:
    """Bytes of an answer that is not streamed."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Brain = Callable[[Request], Reply | Fault | Refusal | Raw]
"""What the model replies to a request that its provider accepts."""


class WireProtocol(Protocol):
    """How one API carries requests and replies. `shape` is the row's variant of it."""

    name: str
    stream_type: str
    """Content type of a streamed reply."""
    finish_mark: bytes
    """What only the event with the finish reason of a stream has."""

    def parse(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Request:
        """Return a request in the common form."""
        ...

    def whole(self, reply: Reply, request: Request, shape: Any) -> Answer:
        """Return a reply that is not streamed."""
        ...

    def stream(self, reply: Reply, request: Request, shape: Any) -> Iterator[bytes]:
        """Yield the events of a streamed reply, framed."""
        ...

    @property
    def error(self) -> bytes:
        """The events of a stream by which the provider reports that it is overloaded."""
        ...

    def plain(self, model: str) -> tuple[str, dict[str, Any]]:
        """Return path and body of a request with one question."""
        ...

    def listing(self, path: str, models: tuple[str, ...], window: int | None) -> Answer | None:
        """Answer a GET request, such as for the list of models; None if the API has no such path."""
        ...
