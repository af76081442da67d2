"""OpenAI's Agents SDK, without tracing, with its `SQLiteSession`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, SQLiteSession, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from benchmarks.peer_agents.script import REPLY, lookup, next_key

STORES = "its `SQLiteSession`"


class _Scripted(Model):
    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        key = next_key()
        text = ResponseOutputText(annotations=[], text=REPLY, type="output_text")
        output: list[Any] = [
            ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        ]
        if key is not None:
            call = {"call_id": f"call_{key}", "name": "lookup", "arguments": f'{{"key": "{key}"}}'}
            output.append(ResponseFunctionToolCall(type="function_call", **call))
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise AssertionError("no run of the benchmark is streamed")


@asynccontextmanager
async def opened(turns: int, folder: Path | None) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Open an agent."""
    set_tracing_disabled(True)
    agent = Agent("agent", model=_Scripted(), tools=[function_tool(lookup)])

    async def ask(session: str) -> str:
        stored = SQLiteSession(session, folder / "sessions.db") if folder else None
        result = await Runner.run(agent, "go", max_turns=turns + 2, session=stored)
        if stored is not None:
            stored.close()
        return str(result.final_output)

    yield ask
