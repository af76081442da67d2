"""The scripted model and the tool of the frameworks on LangChain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.peer_agents.script import REPLY, lookup, next_key


class CountingModel(BaseChatModel):
    """Asks for one tool call per turn, then answers; reads no message."""

    @property
    def _llm_type(self) -> str:
        return "counting"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Bind nothing; the conversion of schemas is the cost of a provider's client."""
        return self.bind(**kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        key = next_key()
        calls = [] if key is None else [{"id": f"call_{key}", "name": "lookup", "args": {"key": key}}]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(REPLY, tool_calls=calls))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._generate(messages)


def lookup_tool() -> BaseTool:
    """Return the tool, which only reads."""
    return StructuredTool.from_function(
        coroutine=lookup, name="lookup", description="Look a key up.", metadata={"effect": "read"}
    )


@asynccontextmanager
async def stock_saver(folder: Path | None) -> AsyncIterator[AsyncSqliteSaver | None]:
    """Open LangGraph's SQLite saver; None without a folder."""
    if folder is None:
        yield None
        return
    async with AsyncSqliteSaver.from_conn_string(str(folder / "sessions.db")) as saver:
        yield saver


def asking(graph: Any, turns: int) -> Callable[[str], Awaitable[str]]:
    """Return the function that answers one input on a compiled graph."""

    async def ask(session: str) -> str:
        config = {"configurable": {"thread_id": session}, "recursion_limit": 10 * turns + 50}
        result = await graph.ainvoke({"messages": [("user", "go")]}, config)
        return str(result["messages"][-1].content)

    return ask
