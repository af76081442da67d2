"""Cost of delegation over A2A: `python -m benchmarks.a2a`.

Each measure is compared with the bare SDK over the same loopback. The servers are processes of their own. The bare
client keeps its connection; a delegation opens one, and closes it.

The plain agent sends its 50 words one by one. Ours sends the first at once, and those of the next 16 ms as one event,
because each event is a message, a change of the task and a line to its client.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import uvicorn
from a2a.client import Client, create_client
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import Message, Part, Role, SendMessageRequest, Task, TaskState, TaskStatus
from langchain_core.messages import AIMessage, ToolCall
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette

from benchmarks import harness
from benchmarks.harness import Scale, Spread, Table, Trial, Work, milliseconds, quartiles
from graph_agent import A2ADelegate, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.a2a.server import a2a_app, agent_card
from graph_agent.delegation import Delegation
from graph_agent.interfaces.server.settings import RPC_PATH

WORDS = " ".join(f"word{number}" for number in range(50))
AT_ONCE = 50

Run = Callable[[], Awaitable[float]]
"""Run once; return the seconds."""


class Plain(AgentExecutor):
    """A minimal agent of the SDK: a task, its answer word by word, its end."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer."""
        assert context.task_id is not None
        assert context.context_id is not None
        assert context.message is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        await event_queue.enqueue_event(
            Task(id=context.task_id, context_id=context.context_id, status=status, history=[context.message])
        )
        await updater.start_work()
        for at, word in enumerate(WORDS.split(" ")):
            text = word if at == 0 else f" {word}"
            await updater.add_artifact([Part(text=text)], artifact_id="answer", append=at > 0, last_chunk=False)
        await updater.add_artifact([Part(text=WORDS)], artifact_id="answer", last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Nothing is ever cancelled here."""


def application(kind: str, url: str) -> Starlette:
    """The server of one kind: `plain`, or `ours`."""
    graph = create_graph_agent(ScriptedChatModel([WORDS], cycle=True), checkpointer=InMemorySaver(), name="bench")
    card = agent_card(graph, url)
    if kind == "ours":
        return a2a_app(graph, card)
    handler = DefaultRequestHandler(Plain(), InMemoryTaskStore(), card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, RPC_PATH)])


async def serve(kind: str) -> None:
    """Serve on a free port, and print the address."""
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # before the address is known, or a client may be refused
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(application(kind, url), log_level="error", access_log=False))
        print(url, flush=True)
        await server.serve([listener])


@asynccontextmanager
async def serving(kind: str) -> AsyncIterator[str]:
    """A server in a process of its own; yield its address."""
    command = [sys.executable, "-m", "benchmarks.a2a", "--serve", kind]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def request() -> SendMessageRequest:
    """A message of its own conversation."""
    return SendMessageRequest(
        message=Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[Part(text="Say it.")])
    )


def bare(client: Client) -> Run:
    """The SDK's own round trip."""

    async def run() -> float:
        begun = time.perf_counter()
        async for _ in client.send_message(request()):
            pass
        return time.perf_counter() - begun

    return run


def first_token(client: Client) -> Run:
    """Until the first piece of the answer is there."""

    async def run() -> float:
        begun = time.perf_counter()
        first = 0.0
        async for event in client.send_message(request()):
            if not first and event.HasField("artifact_update"):
                first = time.perf_counter() - begun
        return first

    return run


def delegated(url: str) -> Run:
    """One delegation, without the graph around it."""
    delegate = A2ADelegate("bench", url)

    async def run() -> float:
        begun = time.perf_counter()
        result = await delegate.run(Delegation(uuid.uuid4().hex, "Say it.", [], "s", 0))
        assert result.content == WORDS, result
        return time.perf_counter() - begun

    return run


def wave(url: str, count: int) -> Run:
    """So many delegations in one wave of a graph."""
    calls = [ToolCall(id=f"c{i}", name="delegate_to_bench", args={"task": "Say it."}) for i in range(count)]
    script: list[str | AIMessage] = [AIMessage("", tool_calls=calls), "Done."]
    config = LoopConfig(finalize="direct", max_parallel_calls=count)
    graph = create_graph_agent(
        ScriptedChatModel(script, cycle=True), delegates=[A2ADelegate("bench", url)], config=config
    )

    async def run() -> float:
        begun = time.perf_counter()
        await graph.ainvoke({"messages": [("user", "go")]})
        return time.perf_counter() - begun

    return run


def at_once(client: Client, count: int) -> Run:
    """So many round trips of the SDK side by side."""
    single = bare(client)

    async def run() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*(single() for _ in range(count)))
        return time.perf_counter() - begun

    return run


def _trial(run: Run, times: list[float]) -> Trial:
    @asynccontextmanager
    async def trial() -> AsyncIterator[Work]:
        async def work() -> None:
            times.append(await run())

        yield work

    return trial


async def compare(title: str, reference: Run, ours: Run, scale: Scale) -> list[str]:
    """Measure both in turn; return the row of our time as a ratio to the reference."""
    theirs, mine = list[float](), list[float]()
    costs = await harness.interleaved({"theirs": _trial(reference, theirs), "ours": _trial(ours, mine)}, scale)
    rounds = len(costs["ours"])
    pairs = list(zip(mine[-rounds:], theirs[-rounds:], strict=True))
    ratio = Spread.of([a / b for a, b in pairs])
    medians = [milliseconds(statistics.median(pair[at] for pair in pairs)) for at in (0, 1)]
    return [title, f"{ratio.median:.2f}", quartiles(ratio), *medians]


async def tables(scale: Scale) -> list[Table]:
    """Run all comparisons of this module."""
    scale = dataclasses.replace(scale, seconds=scale.seconds / 4)
    async with AsyncExitStack() as stack:
        plain_url = await stack.enter_async_context(serving("plain"))
        ours_url = await stack.enter_async_context(serving("ours"))
        plain = await stack.enter_async_context(await create_client(plain_url))
        ours = await stack.enter_async_context(await create_client(ours_url))
        many, count = f"{AT_ONCE} at once: one wave of a graph", scale.size(AT_ONCE)
        rows = [
            await compare("a delegation to the same plain agent", bare(plain), delegated(plain_url), scale),
            await compare("our server, asked by the same bare client", bare(plain), bare(ours), scale),
            await compare("a delegation to our server, end to end", bare(plain), delegated(ours_url), scale),
            await compare("first token from our server", first_token(plain), first_token(ours), scale),
            await compare(f"{many}, to the plain agent", at_once(plain, count), wave(plain_url, count), scale),
            await compare(f"{many}, to our server", at_once(plain, count), wave(ours_url, count), scale),
        ]
    note = "Wall time of a task of 50 words; ratios to a client and a server of the A2A SDK alone."
    return [Table("Delegation over A2A", note, ["work", "wall ratio", "quartiles", "graph-agent", "bare SDK"], rows)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(sys.argv[2]))
    else:
        harness.main(tables, __doc__)
