"""Agents that begin calls before their plans are whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import PrivateAttr

from graph_agent import GraphAgent, LoopConfig, ScriptedChatModel, create_graph_agent


class SlowModel(ScriptedChatModel):
    """Streams each plan up to its last chunk, which waits until `may_end` is set."""

    _may_end: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        held: ChatGenerationChunk | None = None
        async for chunk in super()._astream(messages, stop, run_manager, **kwargs):
            if held is not None:
                yield held
            held = chunk
        await self._may_end.wait()
        if held is not None:
            yield held

    @property
    def may_end(self) -> asyncio.Event:
        return self._may_end


def agent_of(model: ScriptedChatModel, tools: list[BaseTool], **config: Any) -> GraphAgent[Any, Any]:
    settings = LoopConfig(dispatch="streamed", **config)
    return create_graph_agent(model, tools, config=settings, checkpointer=InMemorySaver())


def calls(*names: str, text: str = "a") -> str:
    """A reply with native calls of tools that take a text."""
    made = [{"id": f"c{at}", "name": name, "arguments": {"text": text}} for at, name in enumerate(names)]
    return json.dumps({"tool_calls": made})


def read(name: str, work: Any) -> BaseTool:
    """A tool that only reads, and runs `work`."""
    made: BaseTool = tool(name, description="Read.")(work)
    made.metadata = {"effect": "read"}
    return made


async def found(text: str) -> str:
    return f"found {text}"
