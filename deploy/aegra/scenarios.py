"""Kills and pauses instances of a cluster in the middle of runs, and reads the results.

The state of a run is read from the API, the history from the database, and the effects of tools from the payments file.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import psycopg
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from deploy.aegra.cluster import Cluster, Instance

WAVE = "charge ann 10, bob 20 and eve 40"
"""Three payments in parallel, of one, two and four times `PAYMENTS_DELAY_S`."""
CALLS = 3
DONE = "charge of {} EUR for {}: done"
"""A payment's result, of its amount and its customer."""
_WITHIN_S = 120


@dataclass(frozen=True, slots=True)
class Stop:
    """How and when the owner of a run is stopped."""

    kills: bool
    """Whether it is killed; else it is paused."""
    after_s: float | None = None
    """Seconds after the start of the run; None for the moment when two of the three payments are made."""
    pause_s: float | None = None
    """Seconds of the pause; None to continue once another instance has finished the run."""


@dataclass
class Takeover:
    """What was seen of a run whose owner was stopped."""

    taken: bool = False
    """Whether another instance has finished the run."""
    takeover_s: float = 0.0
    """Seconds from the stop to the end of the run."""
    answer: str = ""
    faults: list[str] = field(default_factory=list)
    """Descriptions of all faults; empty if there are none."""
    repeated: int = 0
    """Payments that were made more than once."""
    stale_writes: int = 0
    """Rows of the history that were added, changed or removed after the run had ended, and forks of the history."""


def client_of(instance: Instance) -> LangGraphClient:
    """Return the LangGraph SDK's client of an instance."""
    return get_client(url=instance.url, api_key=None)


def asking(text: str) -> dict[str, Any]:
    """Return a graph's input with one message of a user."""
    return {"messages": [{"role": "user", "content": text}]}


async def until(found: Callable[[], Awaitable[Any]], what: str) -> Any:
    """Return the first true result of a function, called again until then.

    Raises:
        TimeoutError: After two minutes.
    """
    deadline = time.monotonic() + _WITHIN_S
    while not (result := await found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not seen within {_WITHIN_S} s: {what}")
        await asyncio.sleep(0.05)
    return result


async def take_over(cluster: Cluster, stop: Stop) -> Takeover:
    """Stop the owner of a run, and watch the run until it has ended, and until the owner has noticed it.

    Args:
        cluster: A cluster with two running instances.
        stop: How the owner is stopped.
    """
    async with AsyncExitStack() as stack:
        clients = {each.name: await stack.enter_async_context(client_of(each)) for each in cluster.instances}
        return await _take_over(cluster, stop, clients)


async def _take_over(cluster: Cluster, stop: Stop, clients: dict[str, LangGraphClient]) -> Takeover:
    client = clients[cluster.instances[0].name]
    thread = (await client.threads.create())["thread_id"]
    run = (await client.runs.create(thread, "payments", input=asking(WAVE)))["run_id"]
    owner: Instance = await until(lambda: owner_of(cluster, run), "the owner of the run")

    async def two_paid() -> bool:
        return len(cluster.payments(thread)) >= 2

    if stop.after_s is None:
        await until(two_paid, "two payments")
    else:
        await asyncio.sleep(stop.after_s)
    other = clients[next(each.name for each in cluster.instances if each is not owner)]
    seen, stopped_at = Takeover(), time.monotonic()

    async def ended() -> str:
        status = str((await other.runs.get(thread, run))["status"])
        return status if status not in ("pending", "running") else ""

    if stop.kills:
        owner.kill()
    else:
        owner.pause()
    try:
        if stop.pause_s is not None:
            await asyncio.sleep(stop.pause_s)
            owner.go_on()
        status = await until(ended, "the end of the run")
        seen.takeover_s = time.monotonic() - stopped_at
        before = await _rows(cluster, thread)
    finally:
        if not stop.kills:
            owner.go_on()
    if not stop.kills:

        async def noticed() -> bool:
            return "Worker finished run" in await asyncio.to_thread(owner.events, run)

        await until(noticed, "the end of the run in the paused instance")
    seen.taken = any("Worker finished run" in each.events(run) for each in cluster.instances if each is not owner)
    after = await _rows(cluster, thread)
    parents = Counter(parent for (table, *_), (parent, _) in after.items() if table == "checkpoint")
    seen.stale_writes = len(set(after.items()) ^ set(before.items())) + sum(count - 1 for count in parents.values())
    if seen.stale_writes:
        seen.faults.append(f"{seen.stale_writes} stale writes")
    if (last := await ended()) != "success" or status != "success":
        seen.faults.append(f"the run ended as {status!r}, then {last!r}")
    state: Any = await other.threads.get_state(thread)
    _compare(state["values"]["messages"], cluster.payments(thread), seen)
    return seen


def _compare(messages: list[dict[str, Any]], payments: list[dict[str, Any]], seen: Takeover) -> None:
    """Compare a history with the payments that its tools have made."""
    seen.answer = str(messages[-1]["content"])
    inputs = sum(message["type"] == "human" for message in messages)
    if inputs != 1:
        seen.faults.append(f"the input is {inputs} times in the history")
    made = Counter(DONE.format(line["amount"], line["customer"]) for line in payments)
    seen.repeated = sum(count - 1 for count in made.values())
    if seen.repeated:
        seen.faults.append(f"{seen.repeated} payments repeated")
    results = [str(message["content"]) for message in messages if message["type"] == "tool"]
    if len(results) != CALLS:
        seen.faults.append(f"{len(results)} results for {CALLS} calls")
    for result in results:
        if result not in made and "not known" not in result and "Not run" not in result:
            seen.faults.append(f"a result without a payment: {result}")
    unstarted = sum("Not run" in result for result in results)
    if unstarted > CALLS - len(made):
        seen.faults.append(f"{unstarted} calls are called not run, and {len(made)} payments were made")


async def owner_of(cluster: Cluster, run: str) -> Instance | None:
    """Return the instance that has claimed a run; Aegra records `<host>-<pid>-worker-<number>`."""
    async with await psycopg.AsyncConnection.connect(cluster.services.database_url) as connection:
        row = await (await connection.execute("SELECT claimed_by FROM runs WHERE run_id = %s", [run])).fetchone()
    if row is None or row[0] is None:
        return None
    pid = int(str(row[0]).rsplit("-", 3)[1])
    return next(instance for instance in cluster.instances if instance.process.pid == pid)


async def _rows(cluster: Cluster, thread: str) -> dict[tuple[Any, ...], tuple[Any, str]]:
    """Return every row of a thread's history, by its table and key: its parent, and a digest of its content."""
    queries = (
        "SELECT 'checkpoint', checkpoint_ns, checkpoint_id, '', 0, parent_checkpoint_id, md5(c::text)"
        " FROM checkpoints c WHERE thread_id = %s",
        "SELECT 'write', checkpoint_ns, checkpoint_id, task_id, idx, NULL, md5(w::text)"
        " FROM checkpoint_writes w WHERE thread_id = %s",
        "SELECT 'blob', checkpoint_ns, channel, version, 0, NULL, md5(b::text)"
        " FROM checkpoint_blobs b WHERE thread_id = %s",
    )
    found: dict[tuple[Any, ...], tuple[Any, str]] = {}
    async with await psycopg.AsyncConnection.connect(cluster.services.database_url) as connection:
        for query in queries:
            async for row in await connection.execute(query, [thread]):
                found[row[:5]] = (row[5], row[6])
    return found
