"""Pydantic AI, which stores no sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from benchmarks.peer_agents.script import REPLY, lookup, next_key


def _reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    key = next_key()
    calls = [] if key is None else [ToolCallPart("lookup", {"key": key}, tool_call_id=f"call_{key}")]
    # With a given usage, the scripted model does not count the tokens of the whole history.
    return ModelResponse([TextPart(REPLY), *calls], usage=RequestUsage(input_tokens=1, output_tokens=1))


@asynccontextmanager
async def opened(turns: int, folder: Path | None) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open an agent."""
    agent = Agent(FunctionModel(_reply), tools=[lookup])

    async def ask(session: str) -> str:
        return (await agent.run("go", usage_limits=UsageLimits(request_limit=None))).output

    yield ask
