"""Responses of a server to the OpenAI Agents SDK with its defaults, as JSON: URL, key."""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.support.compat import BOTH, CITY, paint, results, write

# Not among the project's development dependencies.
agents: Any = import_module("agents")


class Place(BaseModel):
    city: str


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
    conversation = await AsyncOpenAI(base_url=f"{url}/v1", api_key=key).conversations.create()
    await run(agent, BOTH, conversation_id=conversation.id)
    boss = agents.Agent(name="boss", model="parrot", handoffs=[agent])
    handed_over = await run(boss, "!call transfer_to_a {}")
    report = {
        "whole": first.final_output,
        "second turn": [
            (await run(agent, history)).final_output,
            named.final_output,
            (await run(agent, "two", session=session)).final_output,
            (await run(agent, "two", conversation_id=conversation.id)).final_output.rpartition(" / ")[2],
        ],
        "handed back": [
            results((await run(agent, BOTH)).final_output),
            results((await run(agent, BOTH, auto_previous_response_id=True)).final_output),
            results(streamed.final_output),
            results((await run(agent, BOTH, session=agents.OpenAIConversationsSession())).final_output),
        ],
        "handed over": [handed_over.last_agent.name, results(handed_over.final_output)],
        "streamed": "raw_response_event" in kinds,
        "structured": (await run(shaped(), CITY)).final_output.model_dump(),
    }
    agents.set_default_openai_responses_transport("websocket")
    # Agents keep the transport that they were made with.
    by_socket = agents.Agent(name="a", model="parrot", tools=[agents.function_tool(paint)])
    streamed = agents.Runner.run_streamed(by_socket, BOTH)
    kinds = [event.type async for event in streamed.stream_events()]
    report["over a WebSocket"] = [
        results((await run(by_socket, BOTH)).final_output),
        results(streamed.final_output),
    ]
    write(report)


def shaped() -> Any:
    return agents.Agent(name="b", model="parrot", output_type=Place)


asyncio.run(main(*sys.argv[1:]))
