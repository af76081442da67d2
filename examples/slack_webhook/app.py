"""An agent behind the webhooks of a chat: approvals are buttons, and each delivery runs once."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from langgraph.store.base import BaseStore
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.slack_webhook.chat import decision_in, mention_in, post, question, signed_body
from graph_agent import LoopConfig, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.compiled import GraphAgent
from graph_agent.errors import InputError
from graph_agent.persistence import open_saver, open_store

APPROVERS = {"U-ADA"}
"""Users of the chat whose buttons count."""
ACCEPTED = ("deliveries",)
"""Where the Store keeps what the chat has delivered."""
log = logging.getLogger(__name__)


def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return f"Refunded {euros} euros for order {order}."


class Bot:
    """Handles deliveries in tasks: each is stored first, and handled again after a crash."""

    def __init__(self, agent: GraphAgent, store: BaseStore) -> None:
        self.agent, self.store = agent, store
        self.tasks: set[asyncio.Task[None]] = set()
        self.accepting = asyncio.Lock()
        self.threads = WeakValueDictionary[str, asyncio.Lock]()

    async def accept(self, id_: str, delivery: dict[str, Any]) -> None:
        """Store a delivery and begin it; one that came before changes nothing."""
        async with self.accepting:
            if await self.store.aget(ACCEPTED, id_) is None:
                await self.store.aput(ACCEPTED, id_, {**delivery, "done": False})
                self.begin(id_, delivery)

    async def begin_rest(self) -> None:
        """Begin what an earlier process accepted and did not finish."""
        rest = await self.store.asearch(ACCEPTED, filter={"done": False}, limit=1000)
        for item in sorted(rest, key=lambda item: item.created_at):
            self.begin(item.key, item.value)

    def begin(self, id_: str, delivery: dict[str, Any]) -> None:
        """Handle a delivery in a task."""
        task = asyncio.create_task(self.handle(id_, delivery))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def handle(self, id_: str, delivery: dict[str, Any]) -> None:
        """Run a delivery and post what follows; the next start repeats what failed."""
        channel, thread = delivery["channel"], delivery["thread"]
        name = f"{channel}:{thread}"
        try:
            # One after the other: a session has one run at a time.
            async with self.threads.setdefault(name, asyncio.Lock()):
                for number, message in enumerate(await self.run(name, id_, delivery)):
                    await post(f"{id_}/{number}", channel, thread, message)
                await self.store.aput(ACCEPTED, id_, {**delivery, "done": True})
        except Exception:  # of any kind: the delivery stays open, and the next start repeats it
            log.exception("The delivery %s failed.", id_)

    async def run(self, name: str, id_: str, delivery: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a delivery as the input with its id, which runs once; return the messages to post."""
        session = self.agent.session(name)
        try:
            if "text" in delivery:
                result = await session.run(delivery["text"], input_id=id_)
            else:
                user = delivery["user"]
                decision = approve() if delivery["approved"] else reject(f"{user} declined.")
                answer = {delivery["question"]: decision}
                result = await session.resume(answer, input_id=id_, decided_by=user)
        except InputError:  # another message came in between
            return [{"text": "This can no longer be answered."}]
        asked = [question(each.id, each.value["action_requests"]) for each in result.interrupts]
        return asked or [{"text": result.answer}]


async def events(request: Request) -> Response:
    """Accept a message of a person."""
    if (body := await signed_body(request)) is None:
        return Response(status_code=401)
    sent = json.loads(body)
    if sent["type"] == "url_verification":
        return JSONResponse({"challenge": sent["challenge"]})
    if mention := mention_in(sent):
        await request.app.state.bot.accept(sent["event_id"], mention)
    return Response()


async def buttons(request: Request) -> Response:
    """Accept a decision; the first one on a question counts."""
    if (body := await signed_body(request)) is None:
        return Response(status_code=401)
    decision = decision_in(body)
    if decision["user"] not in APPROVERS:
        return Response("You may not decide this.", 403)
    await request.app.state.bot.accept(f"answer:{decision['question']}", decision)
    return Response()


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open the database, and go on where the last process ended."""
    url, config = os.environ.get("CHAT_DB", "sqlite:///chat.db"), LoopConfig(approve="refund")
    async with open_saver(url) as saver, open_store(url) as store:
        model = "openai:gpt-4o-mini"
        agent = create_graph_agent(model, [refund], config=config, checkpointer=saver, store=store)
        bot = app.state.bot = Bot(agent, store)
        await bot.begin_rest()
        yield
        for task in bot.tasks:
            task.cancel()
        await asyncio.gather(*bot.tasks, return_exceptions=True)


routes = [Route(f"/{each.__name__}", each, methods=["POST"]) for each in (events, buttons)]
app = Starlette(routes=routes, lifespan=lifespan)
