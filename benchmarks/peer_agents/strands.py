"""Strands Agents, which keep the whole history, with their `FileSessionManager`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager

from benchmarks.peer_agents.script import REPLY, lookup, next_key

STORES = "its `FileSessionManager`"


class _Scripted(Model):
    def update_config(self, **model_config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {"model_id": "scripted"}

    async def structured_output(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise AssertionError("no run of the benchmark has a response format")
        yield

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        key = next_key()
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": REPLY}}}
        yield {"contentBlockStop": {}}
        if key is not None:
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"call_{key}", "name": "lookup"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"key": key})}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if key is None else "tool_use"}}


@asynccontextmanager
async def opened(turns: int, folder: Path | None) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open agents, one for each session, as an agent runs one input at a time."""

    async def ask(session: str) -> str:
        agent = Agent(
            model=_Scripted(),
            tools=[tool(lookup)],
            conversation_manager=NullConversationManager(),
            session_manager=FileSessionManager(session, storage_dir=str(folder)) if folder else None,
            callback_handler=None,
        )
        result = await agent.invoke_async("go")
        return "".join(block.get("text", "") for block in result.message["content"])

    yield ask
