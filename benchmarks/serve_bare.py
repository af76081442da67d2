"""The reference of `benchmarks.serve`: FastAPI that streams the same tokens in OpenAI's format, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from benchmarks.serve_model import TOKENS

app = FastAPI()


class Ask(BaseModel):
    """A chat request, as far as it is read here."""

    model: str
    messages: list[dict[str, str]]
    stream: bool = True


@app.get("/ready")
async def ready() -> dict[str, bool]:
    """Answer a health check."""
    return {"ready": True}


@app.post("/v1/chat/completions")
async def answer(ask: Ask) -> StreamingResponse:
    """Stream the tokens."""
    return StreamingResponse(_chunks(ask.model), media_type="text/event-stream")


async def _chunks(model: str) -> AsyncIterator[str]:
    for token in TOKENS:
        await asyncio.sleep(0)
        choice = {"index": 0, "delta": {"content": token}, "finish_reason": None}
        chunk = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "model": model, "choices": [choice]}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"
