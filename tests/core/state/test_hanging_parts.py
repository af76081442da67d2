"""Runs whose parts hang: a cancellation, an abort and the deadline end each of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from graph_agent import LoopConfig, LoopHook, LoopPlan, ScriptedChatModel, Session, create_graph_agent
from graph_agent.base._internal import sync_bridge
from graph_agent.core.state import registry
from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.errors import RunHungError
from graph_agent.session import driver
from tests.support.agents import asks, echo
from tests.support.gates import nothing_under_way, until

CALL = asks(("1", "echo", {"text": "x"}))


class Hang:
    """Code of a user that never returns, unless the test releases it."""

    def __init__(self, suppressed: int) -> None:
        self.armed = True
        self.reached = threading.Event()
        self.waits = 0
        self._released = threading.Event()
        self._suppressed = suppressed

    async def wait(self) -> None:
        """Wait; suppress the first cancellations."""
        self.waits += 1
        while self.armed:
            self.reached.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._suppressed -= 1
                if self._suppressed < 0:
                    raise

    def wait_in_thread(self) -> None:
        """Block the thread."""
        if self.armed:
            self.reached.set()
            self._released.wait()

    def release(self) -> None:
        """Let code that begins to wait from now on, and blocked threads, go on."""
        self.armed = False
        self._released.set()


def _tool(hang: Hang) -> dict[str, Any]:
    @tool
    async def echo(text: str) -> str:
        """Wait."""
        await hang.wait()
        return text

    return {"tools": [echo]}


def _blocking_tool(hang: Hang) -> dict[str, Any]:
    @tool
    def echo(text: str) -> str:
        """Wait."""
        hang.wait_in_thread()
        return text

    return {"tools": [echo]}


def _store(hang: Hang) -> dict[str, Any]:
    class Store(InMemoryStore):
        async def abatch(self, ops: Any) -> list[Any]:
            await hang.wait()
            return await super().abatch(ops)

    return {"store": Store()}


def _blocking_store(hang: Hang) -> dict[str, Any]:
    class Store(InMemoryStore):
        async def abatch(self, ops: Any) -> list[Any]:
            raise NotImplementedError

        def batch(self, ops: Any) -> list[Any]:
            hang.wait_in_thread()
            return super().batch(ops)

    return {"store": Store()}


def _cache(hang: Hang) -> dict[str, Any]:
    class Cache(InMemoryCache[Any]):
        async def aget(self, keys: Any) -> dict[Any, Any]:
            await hang.wait()
            return await super().aget(keys)

    return {"cache": Cache(), "config": {"plan_cache_ttl_s": 60}}


def _loop_hook(hang: Hang) -> dict[str, Any]:
    class Hook(LoopHook):
        def should_run(self, response: Any, request: Any) -> tuple[bool, Any]:
            return True, None

        async def build_plan(self, context: Any, response: Any, request: Any) -> Any:
            await hang.wait()
            return LoopPlan()

    return {"hooks": [Hook()]}


def _middleware(method: str) -> Callable[[Hang], dict[str, Any]]:
    def make(hang: Hang) -> dict[str, Any]:
        async def wrap(self: Any, request: Any, handler: Any) -> Any:
            await hang.wait()
            return await handler(request)

        async def node(self: Any, state: Any, runtime: Any) -> None:
            await hang.wait()

        members = {method: wrap if "wrap" in method else node}
        return {"hooks": [type("Waiting", (AgentMiddleware,), members)()]}

    return make


def _policy(hang: Hang) -> dict[str, Any]:
    async def policy(call: Any) -> bool:
        await hang.wait()
        return False

    return {"config": {"approve": [policy]}}


def _model(hang: Hang) -> dict[str, Any]:
    class Model(ScriptedChatModel):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            await hang.wait()
            return await super()._agenerate(*args, **kwargs)

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            await hang.wait()
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk

    return {"model": Model}


class _Delegate:
    name = "helper"
    description = "Helps."

    def __init__(self, hang: Hang) -> None:
        self._hang = hang

    async def run(self, delegation: Delegation) -> DelegationResult:
        await self._hang.wait()
        return DelegationResult("x")


def _delegate(hang: Hang) -> dict[str, Any]:
    return {"delegates": [_Delegate(hang)], "reply": asks(("1", "delegate_to_helper", {"task": "x"}))}


def _late_delegate(hang: Hang) -> dict[str, Any]:
    class Late(_Delegate):
        async def prepare(self) -> bool:
            await hang.wait()
            return False

    return {"delegates": [Late(hang)]}


def _saver(method: str) -> Callable[[Hang], dict[str, Any]]:
    def make(hang: Hang) -> dict[str, Any]:
        async def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
            await hang.wait()
            return await getattr(InMemorySaver, method)(self, *args, **kwargs)

        return {"checkpointer": type("Saver", (InMemorySaver,), {method: waiting})()}

    return make


PARTS: dict[str, Callable[[Hang], dict[str, Any]]] = {
    "tool": _tool,
    "blocking tool": _blocking_tool,
    "store": _store,
    "blocking store": _blocking_store,
    "cache": _cache,
    "loop hook": _loop_hook,
    "wrap_model_call": _middleware("awrap_model_call"),
    "wrap_tool_call": _middleware("awrap_tool_call"),
    "before_model": _middleware("abefore_model"),
    "after_model": _middleware("aafter_model"),
    "after_agent": _middleware("aafter_agent"),
    "approval policy": _policy,
    "model": _model,
    "delegate": _delegate,
    "late delegate": _late_delegate,
}
SAVERS: dict[str, Callable[[Hang], dict[str, Any]]] = {
    method: _saver(method) for method in ("aget_tuple", "aput", "aput_writes")
}


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("graph_agent.base._internal.sync_bridge", "graph_agent.core.state.registry"):
        monkeypatch.setattr(f"{module}.GRACE_S", 1.0)
    monkeypatch.setattr(registry, "POLL_S", 0.02)
    monkeypatch.setattr(driver, "_FOLLOW_UP_S", 0.3)


@contextlib.contextmanager
def hanging(part: Callable[[Hang], dict[str, Any]], suppressed: int, **config: Any) -> Iterator[tuple[Hang, Session]]:
    hang = Hang(suppressed)
    made = {"tools": [echo], "checkpointer": InMemorySaver(), **part(hang)}
    reply: AIMessage = made.pop("reply", CALL)
    model = made.pop("model", ScriptedChatModel)([reply, "No more actions.", "Done.", "No more actions.", "Done."])
    settings = LoopConfig(**made.pop("config", {}), **config)
    try:
        yield hang, Session(create_graph_agent(model, config=settings, **made), "s1")
    finally:
        hang.release()


async def settled(session: Session) -> bool:
    """Whether the session is free, and each call in its history has a result."""
    state = await session.graph.aget_state({"configurable": {"thread_id": "s1"}})
    messages = state.values.get("messages", [])
    called = [call["id"] for message in messages for call in getattr(message, "tool_calls", ())]
    answered = [message.tool_call_id for message in messages if message.type == "tool"]
    return nothing_under_way() and called == answered


@pytest.mark.parametrize("suppressed", [0, 1000], ids=["hangs", "suppresses always"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
async def test_an_abort_ends_a_run_whose_part_hangs(part: Callable[[Hang], dict[str, Any]], suppressed: int) -> None:
    with hanging(part, suppressed) as (hang, session):
        run = asyncio.create_task(session.run("go"))
        await until(hang.reached.is_set)

        await session.abort()
        result = await asyncio.wait_for(run, 30)

        hang.release()
        assert (result.stop_reason, await settled(session)) == ("aborted", True)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
async def test_the_deadline_ends_a_run_whose_part_suppresses_a_cancellation(
    part: Callable[[Hang], dict[str, Any]],
) -> None:
    with hanging(part, 1, deadline_s=1.5) as (hang, session):
        result = await asyncio.wait_for(session.run("go"), 30)

        hang.release()
        assert (hang.reached.is_set(), result.stop_reason, await settled(session)) == (True, "deadline", True)


async def test_a_store_that_does_not_answer_is_not_asked_again_after_the_deadline() -> None:
    with hanging(_store, 0, deadline_s=1.5) as (hang, session):
        result = await asyncio.wait_for(session.run("go"), 30)

        # The two are the watch for an abort and the look for notes at the first step.
        assert (result.stop_reason, hang.waits) == ("deadline", 2)


@pytest.mark.parametrize("suppressed", [0, 1], ids=["hangs", "suppresses once"])
@pytest.mark.parametrize("part", [*PARTS.values(), *SAVERS.values()], ids=[*PARTS, *SAVERS])
async def test_a_cancellation_ends_a_run_whose_part_hangs(
    part: Callable[[Hang], dict[str, Any]], suppressed: int
) -> None:
    with hanging(part, suppressed) as (hang, session):
        run = asyncio.create_task(session.run("go"))
        await until(hang.reached.is_set)

        run.cancel()
        await asyncio.wait([run], timeout=30)
        ended = run.done() and run.cancelled()

        hang.release()
        second = await session.run("again")
        assert (ended, second.status, await settled(session)) == (True, "COMPLETED", True)


@pytest.mark.parametrize("part", SAVERS.values(), ids=SAVERS)
async def test_an_abort_ends_a_run_whose_checkpointer_hangs(part: Callable[[Hang], dict[str, Any]]) -> None:
    with hanging(part, 0) as (hang, session):
        run = asyncio.create_task(session.run("go"))
        await until(hang.reached.is_set)

        await session.abort()
        with pytest.raises(RunHungError, match="its checkpointer does not answer"):
            await asyncio.wait_for(run, 30)

        hang.release()
        second = await session.run("again")
        assert (second.status, await settled(session)) == ("COMPLETED", True)


class _WithSession(_Delegate):
    """A delegate with a session and a Store of its own."""

    async def run(self, delegation: Delegation) -> DelegationResult:
        inner = create_graph_agent(ScriptedChatModel(["x"]), checkpointer=InMemorySaver(), **_store(self._hang))
        return DelegationResult((await Session(inner, "inner").run("go")).answer)


async def test_the_sessions_of_nested_runs_share_the_wait_for_stores_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    inner, spent = Hang(0), list[float]()

    async def noted(task: Any, what: str, *, cancels: bool, spent_s: float) -> None:
        spent.append(spent_s)
        await sync_bridge.end_or_abandon(task, what, cancels=cancels, spent_s=spent_s)

    def parts(hang: Hang) -> dict[str, Any]:
        hang.armed = False
        call = asks(("1", "delegate_to_helper", {"task": "x"}))
        return {**_store(hang), "delegates": [_WithSession(inner)], "reply": call}

    monkeypatch.setattr("graph_agent.base.inbox.end_or_abandon", noted)
    with hanging(parts, 0) as (outer, session):
        run = asyncio.create_task(session.run("go"))
        await until(inner.reached.is_set)
        outer.armed = True
        await until(outer.reached.is_set)

        run.cancel()
        await asyncio.wait([run], timeout=30)

        # The inner run begins to wait, and the outer one has only what is left.
        assert (run.cancelled(), [each > 0 for each in spent if each < math.inf]) == (True, [False, True])
