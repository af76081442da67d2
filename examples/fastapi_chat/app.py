"""A FastAPI application that streams an agent's answers to its own users as server-sent events."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import FileResponse
from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel
from sse_starlette import EventSourceResponse

from graph_agent import GraphAgent, LoopConfig, Session, SessionMemory, create_graph_agent
from graph_agent.approvals import approve, reject
from graph_agent.errors import GraphAgentError, InputError, SessionBusyError
from graph_agent.persistence import open_saver
from graph_agent.session.results import CallState, Done, Part, Token

USERS = {"token-of-ada": "ada", "token-of-ben": "ben"}
"""Bearer token → user. Put your own login here."""
MODEL: BaseChatModel | str = "openai:gpt-4o-mini"
Parts = asyncio.Queue[Part | None]
"""The parts of a run that its browser has not read; None follows the last one."""
RUNS: set[asyncio.Task[None]] = set()
"""The runs of this process, which go on when their browser leaves."""


def book(room: str, day: str) -> str:
    """Book a room for a day, such as 2026-12-01."""
    return f"Booked {room} for {day}."


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database as long as the application runs."""
    async with open_saver(os.environ.get("CHAT_DB", "sqlite:///chat.db")) as saver:
        config = LoopConfig(approve="book")
        agent = create_graph_agent(MODEL, [book], config=config, checkpointer=saver)
        app.state.agent = agent
        for cut_off in await SessionMemory(agent).list_sessions(status="interrupted"):
            begin(resume(agent.session(cut_off)))
        yield
        for run in RUNS:
            run.cancel()
        await asyncio.gather(*RUNS, return_exceptions=True)


def begin(run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin a run that belongs to the application, and not to a request."""
    task = asyncio.create_task(run)
    RUNS.add(task)
    task.add_done_callback(RUNS.discard)
    return task


async def resume(session: Session) -> None:
    """Continue a run whose process ended, by a crash or for a new version."""
    try:
        await session.resume()
    except GraphAgentError:
        logging.exception("Session %s was not resumed.", session.id)


app = FastAPI(lifespan=lifespan)


def login(authorization: Annotated[str, Header()] = "") -> str:
    """Return the name of the user whose token the browser sent."""
    user = USERS.get(authorization.removeprefix("Bearer "))
    if user is None:
        raise HTTPException(401, "Log in first.")
    return user


User = Annotated[str, Depends(login)]


def session(chat: str, request: Request, user: User) -> Session:
    """Return a session of the user, whose name begins its id, so that chats stay private."""
    agent: GraphAgent = request.app.state.agent
    return agent.session(f"{user}/{chat}")


OwnSession = Annotated[Session, Depends(session)]


class Message(BaseModel):
    """A message, with an id that the browser makes once and sends again when it retries."""

    id: str
    text: str


class Decision(BaseModel):
    """Whether the calls that wait may run, with an id like that of a message."""

    id: str
    approved: bool
    reason: str = ""


@app.get("/")
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(Path(__file__).with_name("index.html"))


@app.get("/chats")
async def chats(user: User, request: Request) -> list[str]:
    """Return the chats of the user, newest first."""
    listed = await SessionMemory(request.app.state.agent).list_sessions(user=user)
    return [id.removeprefix(f"{user}/") for id in listed]


@app.post("/chats/{chat}/messages")
async def send(message: Message, session: OwnSession) -> EventSourceResponse:
    """Answer a message; one that was sent before goes on, and runs nothing twice."""
    return await streamed(session.stream(message.text, input_id=message.id))


@app.get("/chats/{chat}/messages")
async def history(session: OwnSession) -> list[dict[str, Any]]:
    """Return the messages and the calls of a chat, oldest first, for a page that is reloaded."""
    shown: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}

    def add(id: str, **fields: Any) -> None:
        """Add a call, or fields of a call that was added before."""
        if id not in calls:
            calls[id] = {"role": "call"}
            shown.append(calls[id])
        calls[id] |= fields

    for event in await session.events():
        if event["type"] == "user_message":
            shown.append({"role": "user", "content": event["content"]})
        elif event["type"] == "agent_response":
            shown.append({"role": "agent", "content": event["content"]})
        elif event["type"] == "approval_request":
            for call in event["calls"]:
                add(call["id"], name=call["name"], arguments=call["arguments"], status="waiting")
        elif event["type"] == "tool_call":
            add(event["id"], name=event["name"], arguments=event["arguments"], status="running")
        elif event["type"] == "tool_result":
            add(event["id"], name=event["name"], status=event["status"], result=event["content"])
    return shown


@app.get("/chats/{chat}/questions")
async def questions(session: OwnSession) -> list[dict[str, Any]]:
    """Return the calls that wait for the user's decision: the name and the arguments of each."""
    return [call for each in await session.interrupts() for call in each.value["action_requests"]]


@app.post("/chats/{chat}/decisions")
async def decide(decision: Decision, session: OwnSession) -> EventSourceResponse:
    """Run the calls that wait, or not, and stream the rest; a repeated decision is used once."""
    answer = approve() if decision.approved else reject(decision.reason)
    return await streamed(session.stream_resume(answer, input_id=decision.id))


@app.post("/chats/{chat}/stop")
async def stop(session: OwnSession) -> dict[str, bool]:
    """End the run of the chat, or its questions; the model learns which calls were made."""
    return {"stopped": await session.abort()}


async def streamed(parts: AsyncGenerator[Part]) -> EventSourceResponse:
    """Begin a run and return its stream; a refusal comes with the first part, before the status."""
    queue: Parts = asyncio.Queue()
    run = begin(consume(parts, queue))
    first = await queue.get()
    try:
        if first is None:
            await run
    except SessionBusyError as error:
        raise HTTPException(409, str(error)) from error
    except InputError as error:
        raise HTTPException(422, str(error)) from error
    return EventSourceResponse(events(first, queue))


async def consume(parts: AsyncGenerator[Part], queue: Parts) -> None:
    """Run to the end, whether the browser reads or has left."""
    try:
        async for part in parts:
            queue.put_nowait(part)
    finally:
        queue.put_nowait(None)


async def events(part: Part | None, queue: Parts) -> AsyncIterator[dict[str, str]]:
    """Yield the events of a stream that begins with `part`."""
    while part is not None:
        if shown := data(part):
            yield {"event": part.type, "data": json.dumps(shown)}
        part = await queue.get()


def data(part: Part) -> dict[str, Any]:
    """Return what the browser shows of a part; empty for a part that it does not show."""
    match part:
        case Token(text=text):
            return {"text": text}
        case CallState(id=id_, name=name, status=status):
            return {"id": id_, "name": name, "status": status}
        case Done(result=result):
            return {"status": result.status, "waiting": result.waiting, "answer": result.answer}
    return {}
