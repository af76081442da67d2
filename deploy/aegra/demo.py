"""Runs agents of `langgraph.json` on two instances of Aegra, kills one and pauses one: `python -m deploy.aegra.demo`.

It needs Aegra in its environment, PostgreSQL and Redis. It prints what it sees, and exits with 1 if that is wrong.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from langgraph_sdk.client import LangGraphClient

from deploy.aegra.cluster import Cluster, cluster
from deploy.aegra.scenarios import Stop, Takeover, asking, client_of, take_over
from deploy.aegra.services import MissingServiceError

STAY = "Check availability for Hanukkah and also next weekend"
NIGHT = "one night in Hanukkah"
REFUND = "refund ann 20"


class DemoError(Exception):
    """The cluster did not do what it should."""


async def _talk(first: LangGraphClient, second: LangGraphClient) -> None:
    """Drive one session through both instances."""
    thread = (await first.threads.create())["thread_id"]
    modes: Any = ["messages-tuple", "values"]
    kinds = [part.event async for part in first.runs.stream(thread, "hotel", input=asking(STAY), stream_mode=modes)]
    print(f"  a  runs.stream: {kinds.count('messages')} tokens of an answer")
    await second.runs.wait(thread, "hotel", input=asking(NIGHT))
    state: Any = await first.threads.get_state(thread)
    print(f"  b  runs.wait: {state['values']['messages'][-1]['content'].splitlines()[0]}")
    history = await second.threads.get_history(thread, limit=100)
    inputs = [message["content"] for message in state["values"]["messages"] if message["type"] == "human"]
    print(f"  a  threads.get_state: {len(state['values']['messages'])} messages")
    print(f"  b  threads.get_history: {len(history)} checkpoints")
    _check(inputs == [STAY, NIGHT] and kinds.count("messages") > 10, "both instances share one session")


async def _approve(first: LangGraphClient, second: LangGraphClient, running: Cluster) -> None:
    """Ask for an approval on one instance, and give it on the other."""
    thread = (await first.threads.create())["thread_id"]
    await first.runs.wait(thread, "payments", input=asking(REFUND))
    waiting: Any = await second.threads.get_state(thread)
    [interrupt] = [each for task in waiting["tasks"] for each in task["interrupts"]]
    [request] = interrupt["value"]["action_requests"]
    print(f"  a  waits for the approval of {request['name']} {request['args']}")
    _check(not running.payments(thread), "nothing is paid before the approval")
    await second.runs.wait(thread, "payments", command={"resume": {"decisions": [{"type": "approve"}]}})
    state: Any = await first.threads.get_state(thread)
    print(f"  b  approved: {state['values']['messages'][-1]['content']}")
    _check(len(running.payments(thread)) == 1, "the approved payment is made once")


def _report(seen: Takeover) -> None:
    print(f"     finished by the other instance after {seen.takeover_s:.1f} s")
    for line in seen.answer.splitlines():
        print(f"     | {line}")
    print(f"     payments repeated: {seen.repeated}; stale writes: {seen.stale_writes}")
    _check(seen.taken and not seen.faults, "; ".join(seen.faults) or "the other instance has not finished the run")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise DemoError(what)


def _step(text: str) -> None:
    print(f"\n{text}", flush=True)


async def _show(running: Cluster) -> None:
    first, second = (client_of(instance) for instance in running.instances)
    async with first, second:
        _step("One session through both instances:")
        await _talk(first, second)
        _step("An approval, requested on one and given on the other:")
        await _approve(first, second, running)
        _step("Three payments in parallel; the owner is paused with SIGSTOP, and continues after the takeover:")
        _report(await take_over(running, Stop(kills=False)))
        _step("Three payments in parallel; the owner is killed with kill -9:")
        _report(await take_over(running, Stop(kills=True)))


def main() -> int:
    """Run the demo; return the exit code."""
    began = time.monotonic()
    try:
        with cluster(sys.executable, PAYMENTS_DELAY_S="1") as running:
            _step("PostgreSQL and Redis are up; two instances start.")
            for name in ("a", "b"):
                print(f"  {name}  {running.start(name).url}", flush=True)
            asyncio.run(_show(running))
    except MissingServiceError as missing:
        print(missing, file=sys.stderr)
        return 1
    except DemoError as wrong:
        print(f"\nWRONG: {wrong}", file=sys.stderr)
        return 1
    print(f"\nAs it should be. {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
