"""A FastAPI application that serves an agent over AG-UI, and its page in React."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from pydantic import SecretStr

from graph_agent import LoopConfig, create_graph_agent
from graph_agent.server import ApiKey, ServerSettings, create_app, of_agent

USERS = {"ada": "the-token-of-ada", "ben": "the-token-of-ben"}
"""User → bearer token, at least 16 characters. Each user has sessions of their own."""
PAGE = os.environ.get("CHAT_PAGE", str(Path(__file__).with_name("dist")))


def book(room: str, day: str) -> str:
    """Book a room for a day, such as 2026-12-01."""
    return f"Booked {room} for {day}."


config = LoopConfig(approve="book")
rooms = create_graph_agent("openai:gpt-4o-mini", [book], config=config, name="rooms")
source = of_agent(rooms, "Books rooms.", db=os.environ.get("CHAT_DB", "sqlite:///chat.db"))
keys = tuple(ApiKey(name=name, key=SecretStr(token)) for name, token in USERS.items())
agent = create_app(source, settings=ServerSettings(keys=keys))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Open the agent: a mounted application is not opened by FastAPI."""
    async with agent.router.lifespan_context(agent):
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/agent", agent)
app.mount("/", StaticFiles(directory=PAGE, html=True))
