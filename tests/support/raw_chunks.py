"""Models that stream prepared chunks: LangChain's client of OpenAI's chat API without a server, and a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI
from pydantic import Field

from graph_agent import ScriptedChatModel

Chunk = dict[str, Any]


class _Stream:
    """An answer of the `openai` package to a streamed request."""

    def __init__(self, chunks: Sequence[Chunk], before: Callable[[], object]) -> None:
        self._chunks = chunks
        self._before = before

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            self._before()
            await asyncio.sleep(0)
            yield chunk


class RawClient:
    """Answers each streamed request with the next list of chunks, and records the requests."""

    def __init__(self, replies: Sequence[Sequence[Chunk]], before: Callable[[], object]) -> None:
        self.requests: list[dict[str, Any]] = []
        self._replies = list(replies)
        self._before = before

    async def create(self, **request: Any) -> _Stream:
        self.requests.append(request)
        return _Stream(self._replies.pop(0), self._before)


def raw_model(*replies: Sequence[Chunk], before: Callable[[], object] = lambda: None) -> ChatOpenAI:
    """Return a `ChatOpenAI` that converts these chunks, one list for each request; `before` is called before each."""
    model = ChatOpenAI(model="raw", api_key="none")  # type: ignore[arg-type]  # converted by Pydantic
    return model.model_copy(update={"async_client": RawClient(replies, before)})


def delta(fields: dict[str, Any], finish: str | None = None, **more: Any) -> Chunk:
    """Return one chunk with this delta."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "raw", "choices": [choice], **more}


def calls_delta(*fragments: dict[str, Any]) -> Chunk:
    """Return one chunk with fragments of calls: `id`, `index`, `name` and `arguments`, all optional."""
    made = []
    for fragment in fragments:
        function = {key: fragment[key] for key in ("name", "arguments") if key in fragment}
        rest = {key: fragment[key] for key in ("id", "index") if key in fragment}
        call: dict[str, Any] = {"type": "function", "index": None, "function": function}
        made.append(call | rest)
    return delta({"tool_calls": made})


def reply_of_calls(*chunks: Chunk) -> list[Chunk]:
    """Return a whole reply: the role, these chunks, and the finish reason of calls."""
    return [delta({"role": "assistant", "content": ""}), *chunks, delta({}, "tool_calls")]


def reply_of_text(*pieces: str) -> list[Chunk]:
    """Return a whole reply that is a text in these pieces."""
    return [*(delta({"role": "assistant", "content": piece}) for piece in pieces), delta({}, "stop")]


class Chunked(ScriptedChatModel):
    """Streams prepared chunks, one list a reply."""

    chunks: list[list[AIMessageChunk]] = Field(default_factory=list)

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self.chunks.pop(0):
            yield ChatGenerationChunk(message=chunk)


def of_chunks(*replies: list[AIMessageChunk]) -> Chunked:
    """Return a scripted model that streams these chunks, one list for each request."""
    made: Any = Chunked
    scripted: Chunked = made([""]).model_copy(update={"chunks": list(replies)})
    return scripted
