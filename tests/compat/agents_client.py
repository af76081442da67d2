"""Responses of a server to the OpenAI Agents SDK with its defaults, as JSON: URL, key."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel

# Not among the project's development dependencies.
agents: Any = import_module("agents")
BOTH = '!call look_up {"key": "k"}\n!call paint {"color": "red"}\n!call paint {"color": "blue"}'


class Place(BaseModel):
    city: str


def paint(color: str) -> str:
    """Paint."""
    return f"painted {color}"


async def main(url: str, key: str) -> None:
    agents.set_tracing_disabled(True)
    agents.set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0))
    agent = agents.Agent(name="a", instructions="Be brief.", model="parrot", tools=[agents.function_tool(paint)])
    run = agents.Runner.run
    first = await run(agent, "hello")
    history = [*first.to_input_list(), {"role": "user", "content": "again"}]
    streamed = agents.Runner.run_streamed(agent, BOTH)
    kinds = [event.type async for event in streamed.stream_events()]
    session = agents.OpenAIConversationsSession()
    await run(agent, "one", session=session)
    named = await run(agent, "two", previous_response_id=first.last_response_id)
    told = {
        "whole": first.final_output,
        "second turn": [
            (await run(agent, history)).final_output,
            named.final_output,
            (await run(agent, "two", session=session)).final_output,
        ],
        "handed back": [
            results(await run(agent, BOTH)),
            results(await run(agent, BOTH, auto_previous_response_id=True)),
            results(streamed),
        ],
        "streamed": "raw_response_event" in kinds,
        "structured": (await run(shaped(), '!json Here: {"city": "Bergen"}')).final_output.model_dump(),
    }
    json.dump(told, sys.stdout)


def shaped() -> Any:
    return agents.Agent(name="b", model="parrot", output_type=Place)


def results(result: Any) -> str:
    return str(result.final_output).partition("; ")[2]


asyncio.run(main(*sys.argv[1:]))
