"""What a cluster does while instances are killed and paused, told by its API, its database and the payments' file."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from deploy.aegra.cluster import Cluster, Instance

WAVE = "charge ann 10, bob 20 and eve 40"
"""Three payments in parallel, of one, two and four times `PAYMENTS_DELAY_S`."""
DONE = "charge of {} EUR for {}: done"
_WITHIN_S = 120


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


@dataclass
class Takeover:
    """What was seen of a run that one instance began and another finished."""

    takeover_s: float = 0.0
    """Seconds from the kill, or the pause, to the end of the run."""
    status: str = ""
    """Aegra's status of the run."""
    answer: str = ""
    inputs: int = 0
    """Messages of the user in the history."""
    repeated: int = 0
    """Payments that were made more than once."""
    false_results: list[str] = field(default_factory=list)
    """Results in the history that the file of payments contradicts."""
    stale_writes: list[str] = field(default_factory=list)
    """Rows of the history that were added or changed after the paused instance had continued."""
    status_after: str = ""
    """Aegra's status of the run after that."""

    @property
    def faults(self) -> list[str]:
        """Descriptions of all that is wrong; empty for none."""
        found = [] if self.status == "success" else [f"the run ended as {self.status!r}"]
        found += [f"{self.repeated} payments repeated"] if self.repeated else []
        found += [f"the input is {self.inputs} times in the history"] if self.inputs != 1 else []
        found += self.false_results
        found += [f"stale write: {write}" for write in self.stale_writes]
        if self.status_after not in ("", "success"):
            found.append(f"the status of the run changed to {self.status_after!r}")
        return found


async def take_over(cluster: Cluster, *, pause: bool) -> Takeover:
    """Kill or pause the owner of a run in the middle of its wave, and watch the run until another has finished it.

    Args:
        cluster: A cluster with two instances or more.
        pause: Whether to pause the owner, and let it continue after the run has ended.
    """
    seen = Takeover()
    client = client_of(cluster.instances[0])
    thread = (await client.threads.create())["thread_id"]
    run = (await client.runs.create(thread, "payments", input=asking(WAVE)))["run_id"]

    async def two_paid() -> bool:
        return len(cluster.payments(thread)) >= 2

    await until(two_paid, "two payments")
    owner = await _owner(cluster, run)
    stopped_at = time.monotonic()
    if pause:
        owner.pause()
    else:
        owner.kill()
    other = client_of(next(each for each in cluster.instances if each is not owner))

    async def ended() -> str:
        status = str((await other.runs.get(thread, run))["status"])
        return status if status not in ("pending", "running") else ""

    seen.status = await until(ended, "the end of the run")
    seen.takeover_s = time.monotonic() - stopped_at
    before = await _rows(cluster, thread)
    if pause:
        owner.go_on()

        async def noticed() -> bool:
            return "Worker finished run" in await asyncio.to_thread(owner.events, run)

        await until(noticed, "the end of the run in the paused instance")

        async def paid() -> bool:
            # A call that was under way before the pause ends after it.
            return len(cluster.payments(thread)) >= 3

        await until(paid, "the payment that was under way")
        seen.status_after = str((await other.runs.get(thread, run))["status"])
    await _read(cluster, other, thread, seen)
    after = await _rows(cluster, thread)
    seen.stale_writes = [str(row) for row in sorted(set(after.items()) ^ set(before.items()))]
    return seen


async def _read(cluster: Cluster, client: LangGraphClient, thread: str, seen: Takeover) -> None:
    state: Any = await client.threads.get_state(thread)
    messages = state["values"]["messages"]
    seen.answer = str(messages[-1]["content"])
    seen.inputs = sum(message["type"] == "human" for message in messages)
    made = Counter((line["customer"], line["amount"]) for line in cluster.payments(thread))
    seen.repeated = sum(times - 1 for times in made.values())
    for message in messages:
        if message["type"] != "tool":
            continue
        content = str(message["content"])
        done = [each for each in made if content == DONE.format(each[1], each[0])]
        if not done and "not known" not in content:
            seen.false_results.append(f"a result without a payment: {content}")
    results = sum(message["type"] == "tool" for message in messages)
    if results != 3:
        seen.false_results.append(f"{results} results for 3 calls")


async def _owner(cluster: Cluster, run: str) -> Instance:
    """Return the instance that has claimed a run; Aegra records `<host>-<pid>-worker-<number>`."""
    async with await psycopg.AsyncConnection.connect(cluster.services.database_url) as connection:
        row = await (await connection.execute("SELECT claimed_by FROM runs WHERE run_id = %s", [run])).fetchone()
    assert row is not None
    pid = int(str(row[0]).rsplit("-", 3)[1])
    return next(instance for instance in cluster.instances if instance.process.pid == pid)


async def _rows(cluster: Cluster, thread: str) -> dict[tuple[Any, ...], str]:
    """Return every row of a thread's history, by its key, with a digest of its content."""
    queries = (
        "SELECT 'checkpoint', checkpoint_ns, checkpoint_id, '', 0, md5(c::text) FROM checkpoints c"
        " WHERE thread_id = %s",
        "SELECT 'write', checkpoint_ns, checkpoint_id, task_id, idx, md5(w::text) FROM checkpoint_writes w"
        " WHERE thread_id = %s",
        "SELECT 'blob', checkpoint_ns, channel, version, 0, md5(b::text) FROM checkpoint_blobs b WHERE thread_id = %s",
    )
    found: dict[tuple[Any, ...], str] = {}
    async with await psycopg.AsyncConnection.connect(cluster.services.database_url) as connection:
        for query in queries:
            async for row in await connection.execute(query, [thread]):
                found[row[:5]] = row[5]
    return found
