"""Responses of a server to pydantic-ai's `openai:` models, as JSON: URL, key."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from tests.support.compat import BOTH, CITY, paint, results, write

# Not among the project's development dependencies.
pydantic_ai: Any = import_module("pydantic_ai")


class Place(BaseModel):
    city: str


async def main(url: str, key: str) -> None:
    os.environ |= {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": key}
    agent = pydantic_ai.Agent("openai:parrot", instructions="Be brief.", tools=[paint])
    first = await agent.run("hello")
    async with agent.run_stream("hello there") as stream:
        text = "".join([piece async for piece in stream.stream_text(delta=True)])
    native = pydantic_ai.Agent("openai:parrot", output_type=pydantic_ai.NativeOutput(Place))
    by_tool = pydantic_ai.Agent("openai:parrot", output_type=Place)
    report = {
        "api": type(agent.model).__name__,
        "whole": first.output,
        "streamed": text,
        "second turn": (await agent.run("again", message_history=first.all_messages())).output,
        "handed back": results((await agent.run(BOTH)).output),
        "structured": [
            (await native.run(CITY)).output.model_dump(),
            (await by_tool.run('!call final_result {"city": "Bergen"}')).output.model_dump(),
        ],
    }
    write(report)


asyncio.run(main(*sys.argv[1:]))
