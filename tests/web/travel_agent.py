"""An agent without a provider for the page: waves, needs, a delegate, an approval, a failing call, and slow calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.types import interrupt

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.marks import marked

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def _pace() -> float:
    """Seconds of one pause of the agent's model and tools."""
    return float(os.environ.get("TRAVEL_PACE_S", "0.02"))


@tool
async def search_flights(origin: str, destination: str) -> str:
    """Find flights between two cities."""
    await asyncio.sleep(3 * _pace())
    return json.dumps([{"flight": "NA 112", "from": origin, "to": destination, "price": 189}])


@tool
async def search_hotels(city: str) -> str:
    """Find hotels in a city."""
    await asyncio.sleep(5 * _pace())
    return json.dumps([{"hotel": "Fjord House", "city": city, "price": 140}])


@tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    await asyncio.sleep(_pace())
    if city == "Nowhere":
        raise ValueError(f"There is no weather station in {city}.")
    return f"It rains in {city}."


@tool
async def book(item: str) -> str:
    """Book a flight or a hotel."""
    await asyncio.sleep(2 * _pace())
    return f"Booked {item}."


@tool
async def wait_for(file: str) -> str:
    """Wait until a file exists."""
    while not Path(file).exists():  # noqa: ASYNC240 - the file is how the test controls the call
        await asyncio.sleep(0.01)
    return "It exists."


@tool(extras={"graph_agent": {"effect": "read"}})
async def look_for(file: str) -> str:
    """Wait until a file exists; only read."""
    return str(await wait_for.ainvoke({"file": file}))


look_for = marked(look_for, effect="read")


@tool
def ask_person(question: str) -> str:
    """Ask a person."""
    return str(interrupt(question))


@tool
def transfer(account: int, amount: float) -> str:
    """Transfer an amount."""
    return json.dumps({"account": account, "amount": amount})


@tool
def echo(text: str) -> str:
    """Return the text."""
    return text


def _calls(*calls: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    listed = [{"id": f"call_{name}_{n}", "name": name, "args": args} for n, (name, args) in enumerate(calls, 1)]
    return AIMessage(text, tool_calls=listed)


class TravelModel(BaseChatModel):
    """Answers a few sentences from a script, and echoes any other."""

    @property
    def _llm_type(self) -> str:
        return "travel"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Accept tools."""
        return self.bind(**options)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_reply(messages))])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        reply = _reply(messages)
        await asyncio.sleep(2 * _pace())
        if "!late" in str(messages[-1].content):
            await wait_for.ainvoke({"file": str(messages[-1].content).partition("!late ")[2]})
        if re.search("!think|trip", str(messages[-1].content)):
            for thought in ("I **weigh** the ", "routes."):
                yield ChatGenerationChunk(
                    message=AIMessageChunk(content="", additional_kwargs={"reasoning_content": thought})
                )
        words = str(reply.content).split(" ") if reply.content else []
        for n, word in enumerate(words):
            if (found := re.match(r"!until (\S+) ", str(messages[-1].content))) and n == len(words) - 1:
                await wait_for.ainvoke({"file": found[1]})
            elif found and n == len(words) - 2:
                await asyncio.sleep(0.2)  # pieces that follow each other closely are sent with the next one
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
            if n == 0 and "!hold" in str(messages[-1].content):
                await wait_for.ainvoke({"file": str(messages[-1].content).partition("!hold ")[2]})
            await asyncio.sleep(0 if "!until" in str(messages[-1].content) else _pace() / 2)
        chunks = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=n)
            for n, call in enumerate(reply.tool_calls)
        ]
        yield ChatGenerationChunk(
            message=AIMessageChunk(
                content="",
                tool_call_chunks=chunks,
                usage_metadata={"input_tokens": 812, "output_tokens": 64, "total_tokens": 876},
            )
        )


def _reply(messages: list[BaseMessage]) -> AIMessage:
    at = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
    asked, since = str(messages[at].content), messages[at + 1 :]
    results = [str(message.content) for message in since if isinstance(message, ToolMessage)]
    waves = sum(bool(message.tool_calls) for message in since if isinstance(message, AIMessage))
    if asked.startswith("!call"):
        if waves:
            return AIMessage(f"Done: {len(results)} results.")
        return _calls(*[(name, args) for name, args in json.loads(asked.removeprefix("!call"))])
    if found := re.match(r"!until \S+ (.*)", asked, re.DOTALL):
        return AIMessage(found[1])
    if found := re.match(r"!words (\d+)", asked):
        return AIMessage(" ".join(f"word{n}" for n in range(int(found[1]))))
    if not isinstance(messages[at].content, str):
        return AIMessage(f"You sent: {', '.join(block['type'] for block in messages[at].content_blocks)}")
    if "trip" in asked:
        return _trip(waves)
    return AIMessage(f"You said: {asked}")


def _trip(waves: int) -> AIMessage:
    if waves == 0:
        return _calls(
            ("search_flights", {"origin": "Oslo", "destination": "Bergen"}),
            ("search_hotels", {"city": "Bergen"}),
            ("weather", {"city": "Bergen"}),
            ("weather", {"city": "Nowhere"}),
            text="I look for flights, hotels and the weather.",
        )
    if waves == 1:
        return _calls(
            ("delegate_to_guide", {"task": "Suggest one walk in Bergen."}),
            ("search_hotels", {"city": "Voss"}),
            text="The guide knows the walks.",
        )
    if waves == 2:
        return _calls(("book", {"item": "NA 112"}), ("book", {"item": "Fjord House"}), text="Shall I book both?")
    return AIMessage(
        "Your trip is ready.\n\n| Part | When | Price |\n|:--|:--|--:|\n| Flight `NA 112` | 9:40 from Oslo | 189 |\n"
        "| Fjord House | two nights | 280 |\n\n- **Take an umbrella**: it rains in Bergen.\n"
        "- The guide suggests the walk up *Fløyen*.\n"
    )


def make() -> BaseChatModel:
    """Return the model of the agent file."""
    return TravelModel()


def make_guide() -> Any:
    """Return the delegate."""
    script: list[Any] = [
        _calls(("weather", {"city": "Bergen"}), ("echo", {"text": "Fløyen, Ulriken"})),
        "Walk up Fløyen; it takes an hour.",
    ]
    model = ScriptedChatModel(script, cycle=True)
    config = LoopConfig(record_requests=True)
    return create_graph_agent(model, tools=[weather, echo], name="guide", config=config)
