"""This project, as the scenarios use it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from graph_agent import LoopConfig, RunResult, Session, create_graph_agent
from graph_agent.approvals import approve, edit, reject
from graph_agent.persistence import open_saver
from proofs.pains.worker import Reply, Task

PACKAGE = "graph-agent"
LACKS: tuple[str, ...] = ()
OPT_IN = ""
_FIELDS = {
    "steps": "max_steps",
    "tool_timeout_s": "tool_timeout_s",
    "tokens": "max_tokens_total",
    "deadline_s": "deadline_s",
    "parallel": "max_parallel_calls",
}


def _model(url: str) -> ChatOpenAI:
    return ChatOpenAI(model="stub", base_url=url, api_key=SecretStr("sk-stub"))


# What is imported late is so imported once, before the worker forks.
create_graph_agent(_model("http://127.0.0.1"))


class Peer:
    """One session of one agent."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._opened: asyncio.Task[Session] | None = None
        self._exits = contextlib.AsyncExitStack()

    async def _session(self) -> Session:
        if self._opened is None:
            self._opened = asyncio.create_task(self._open())
        return await asyncio.shield(self._opened)

    async def _open(self) -> Session:
        settings: dict[str, Any] = {_FIELDS[name]: value for name, value in self._task.limits.items()}
        if self._task.approve:
            settings["approve"] = self._task.approve
        agent = create_graph_agent(
            _model(self._task.url),
            tools=self._task.functions,
            config=LoopConfig(**settings),
            checkpointer=await self._exits.enter_async_context(
                open_saver(f"sqlite:///{self._task.folder}/sessions.db")
            ),
        )
        return Session(agent, "s1")

    async def ask(self, text: str) -> Reply:
        """Run one input."""
        return _reply(await (await self._session()).run(text))

    async def stream(self, text: str) -> Reply:
        """Run one input, and join its tokens."""
        tokens, result = "", None
        async for part in (await self._session()).stream(text):
            if part.type == "token":
                tokens += part.text
            elif part.type == "done":
                result = part.result
        assert result is not None
        reply = _reply(result)
        return Reply(tokens, reply.tokens, reply.cut_off)

    async def resume(self) -> Reply:
        """Carry on after a crash."""
        return _reply(await (await self._session()).resume())

    async def decide(self, decisions: list[bool | int]) -> Reply:
        """Decide on the waiting calls."""
        made = [
            (approve() if each else reject("No.")) if isinstance(each, bool) else edit({"amount": each})
            for each in decisions
        ]
        return _reply(await (await self._session()).resume({"decisions": made}))


def _reply(result: RunResult[Any]) -> Reply:
    waiting = [each for interrupt in result.interrupts for each in interrupt.value["action_requests"]]
    answer = result.raise_for_status().answer
    return Reply(answer, result.usage["total_tokens"], result.truncated or "", [each["args"] for each in waiting])
