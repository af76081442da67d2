"""Responses of a server to pydantic-ai's `openai:` models, as JSON: URL, key."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib import import_module
from typing import Any

from pydantic import BaseModel

# Not among the project's development dependencies.
pydantic_ai: Any = import_module("pydantic_ai")
BOTH = '!call look_up {"key": "k"}\n!call paint {"color": "red"}\n!call paint {"color": "blue"}'


class Place(BaseModel):
    city: str


def paint(color: str) -> str:
    return f"painted {color}"


async def main(url: str, key: str) -> None:
    os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}
    agent = pydantic_ai.Agent("openai:parrot", instructions="Be brief.", tools=[paint])
    first = await agent.run("hello")
    async with agent.run_stream("hello there") as stream:
        text = "".join([piece async for piece in stream.stream_text(delta=True)])
    native = pydantic_ai.Agent("openai:parrot", output_type=pydantic_ai.NativeOutput(Place))
    by_tool = pydantic_ai.Agent("openai:parrot", output_type=Place)
    told = {
        "api": type(agent.model).__name__,
        "whole": first.output,
        "streamed": text,
        "second turn": (await agent.run("again", message_history=first.all_messages())).output,
        "handed back": (await agent.run(BOTH)).output.partition("; ")[2],
        "structured": [
            (await native.run('!json Here: {"city": "Bergen"}')).output.model_dump(),
            (await by_tool.run('!call final_result {"city": "Bergen"}')).output.model_dump(),
        ],
    }
    json.dump(told, sys.stdout)


asyncio.run(main(*sys.argv[1:]))
