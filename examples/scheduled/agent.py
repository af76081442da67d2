"""Runs an agent at due times and on webhooks: each due time and each delivery runs once."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.cron import CronTrigger
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from graph_agent import GraphAgent, create_graph_agent
from graph_agent.errors import InputConflictError, SessionBusyError
from graph_agent.persistence import open_saver

SINCE = datetime(2026, 12, 1, tzinfo=UTC)
"""Due times before this are not made up for."""
HEADERS = ("x-webhook-id", "x-webhook-timestamp", "x-webhook-signature")
Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


async def run_due(
    agent: GraphAgent,
    name: str,
    trigger: BaseTrigger,
    text: str,
    now: Clock = utc_now,
) -> None:
    """Run each due time until now that has not run, the oldest first."""
    session, prefix = agent.session(f"schedule-{name}"), f"schedule:{name}:"
    newest = await session.newest_input_id()
    # The newest one again: a crash may have cut it off.
    due = datetime.fromisoformat(newest.removeprefix(prefix)) if newest else SINCE
    due = due if newest else trigger.get_next_fire_time(None, SINCE)
    while due is not None and due <= now():
        try:
            with suppress(InputConflictError):  # it ran with an older text
                await session.run(text, input_id=f"{prefix}{due.isoformat()}")
        except SessionBusyError:
            return  # another process runs the due times
        due = trigger.get_next_fire_time(due, due)


def schedule(agent: GraphAgent, name: str, trigger: BaseTrigger, text: str) -> None:
    """Run what is due now, and then at each due time; call it in a running event loop."""
    scheduler = AsyncIOScheduler(timezone=UTC)
    job = [agent, name, trigger, text]
    scheduler.add_job(run_due, trigger, job, next_run_time=utc_now(), misfire_grace_time=None)
    scheduler.start()


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """Return the signature of a delivery, in hexadecimal."""
    return hmac.new(secret, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def webhook(agent: GraphAgent, secret: bytes, now: Clock = utc_now) -> Starlette:
    """Return an application that runs each delivery of `POST /hook` once."""

    async def deliver(request: Request) -> JSONResponse:
        delivery, timestamp, signed = (request.headers.get(name, "") for name in HEADERS)
        body = await request.body()
        fits = hmac.compare_digest(signature(secret, timestamp, body).encode(), signed.encode())
        if not fits or not delivery or abs(now().timestamp() - int(timestamp)) > 300:
            return JSONResponse({"error": "The signature is wrong or old."}, 401)
        session = agent.session(f"webhook-{delivery}")
        result = await session.run(f"An event came in: {body.decode()}", input_id=delivery)
        return JSONResponse({"answer": result.answer})

    return Starlette(routes=[Route("/hook", deliver, methods=["POST"])])


async def main() -> None:
    """Run the briefing at seven each morning."""
    async with open_saver("sqlite:///schedule.db") as saver:
        agent = create_graph_agent("openai:gpt-4o-mini", checkpointer=saver)
        schedule(agent, "briefing", CronTrigger(hour=7, timezone=UTC), "Brief me on today.")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
