"""A stream that a thread reads is closed when its request is cancelled, not when cycles are collected."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
import threading
from binascii import crc32
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import Session, create_graph_agent

pytestmark = pytest.mark.timeout(60)


class Blocking(BaseChatModel):
    """Streams from a blocking source, as clients without an asynchronous interface do."""

    client: Any

    def _words(self) -> Iterator[str]:
        yield from self.client()

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        for word in self._words():
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(self._words())))])

    @property
    def _llm_type(self) -> str:
        return "blocking"


class Bedrock(Blocking):
    def _words(self) -> Iterator[str]:
        reply = self.client.converse_stream(modelId="m", messages=[{"role": "user", "content": [{"text": "hi"}]}])
        for event in reply["stream"]:
            if delta := event.get("contentBlockDelta"):
                yield delta["delta"]["text"]


async def abort_at_first_token(model: BaseChatModel) -> str:
    """Run an input and abort it at its first token; return the session's status."""
    talk = Session(create_graph_agent(model, checkpointer=InMemorySaver()), "s1")
    async for part in talk.stream("hi"):
        if part.type == "token":
            await talk.abort()
    return (await talk.status()).value


async def test_an_abandoned_stream_is_freed_at_its_next_chunk() -> None:
    following, closed = threading.Event(), threading.Event()

    def words() -> Iterator[str]:
        try:
            yield "Hello"
            following.wait()
            yield " again"
            yield "never read"
        finally:
            closed.set()

    gc.collect()
    gc.disable()
    try:
        status = await abort_at_first_token(Blocking(client=words))
        following.set()
        is_closed = await asyncio.to_thread(closed.wait, 20)
    finally:
        gc.enable()

    assert (status, is_closed) == ("ABORTED", True)


def event(kind: str, payload: dict[str, Any]) -> bytes:
    """An event in the binary form of AWS."""
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((":event-type", kind), (":message-type", "event"))
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", crc32(prelude)) + headers + body
    return message + struct.pack(">I", crc32(message))


async def test_an_abort_closes_the_connection_of_a_silent_model_of_bedrock() -> None:
    botocore = pytest.importorskip("botocore.session", reason="boto3 is in the environment of `make providers`")
    closed = threading.Event()

    class Silent(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            hello = event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Hello"}})
            self.wfile.write(b"%x\r\n%s\r\n" % (len(hello), hello))
            # Returns when the client closes the connection.
            self.rfile.read(1)
            closed.set()

        def log_message(self, format: str, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        session = botocore.get_session()
        session.set_credentials("a", "b")
        url = f"http://127.0.0.1:{server.server_port}"
        client = session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=url)

        status = await abort_at_first_token(Bedrock(client=client))
        is_closed = await asyncio.to_thread(closed.wait, 20)
        client.close()
        server.shutdown()

    assert (status, is_closed) == ("ABORTED", True)
