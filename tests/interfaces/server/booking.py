"""An agent that books a room, and whose model can fail afterwards, as the files of a folder demand.

A message `book FOLDER` is a call of `book`, which adds a line to FOLDER/booked. With `quietly` in it, the model adds
no text to the call; with `confirm`, it calls `confirm` next. While FOLDER/hold exists, the tool waits after its
write; while FOLDER/wait exists, the model waits before its last reply. While FOLDER/fail exists, the last reply fails,
with the HTTP status in the file; FOLDER/fail-once is removed by the failure. FOLDER/fail-first fails the first reply.
FOLDER/die ends the process after the write, and is removed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import ToolCall, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool

_ORDER = re.compile(r"book (/\S+)")
_TITLES = "title generator"
"""Words of the system prompt with which a client asks for the title of a conversation."""
TOOL = "tests.interfaces.server.booking:book"
BOOKER: dict[str, Any] = {
    "name": "booker",
    "model": "tests.interfaces.server.booking:make",
    "tools": [TOOL],
    "config": {"model_retries": 0},
}


class FailedProviderError(Exception):
    """The failure of a provider."""

    def __init__(self, status: str) -> None:
        super().__init__("the quota of the account is spent")
        self.status_code = int(status or 400)


class BookingModel(BaseChatModel):
    """See the module."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(tool_calling=True, structured_output=False)

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools], **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise TypeError("The model answers asynchronously only.")

    async def _agenerate(self, messages: list[BaseMessage], stop: Any = None, *_: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=await _reply(messages, kwargs))])

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, *_: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        reply = await _reply(messages, kwargs)
        for word in re.findall(r"\s*\S+", reply.text):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
        chunks = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=i)
            for i, call in enumerate(reply.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=chunks))


async def _reply(messages: list[BaseMessage], options: dict[str, Any]) -> AIMessage:
    at = max(i for i, message in enumerate(messages) if isinstance(message, HumanMessage))
    order, results = messages[at].text, [each for each in messages[at:] if isinstance(each, ToolMessage)]
    found = _ORDER.search(order)
    if found is None or any(_TITLES in message.text for message in messages):
        return AIMessage(f"You said: {order}")
    folder = Path(found[1])
    if not results:
        _fail_if(folder / "fail-first")
        text = "" if "quietly" in order else "I book it."
        return AIMessage(text, tool_calls=[_call("book", {"folder": str(folder)}, "c1")])
    if "confirm" in order and len(results) == 1:
        return AIMessage("", tool_calls=[_call("confirm", {}, "c2")])
    await _while_there(folder / "wait")
    _fail_if(folder / "fail")
    _fail_if(folder / "fail-once", once=True)
    return AIMessage(" and ".join(each.text for each in results))


def _call(name: str, arguments: dict[str, Any], id_: str) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=id_, type="tool_call")


def _fail_if(file: Path, *, once: bool = False) -> None:
    if file.exists():
        status = file.read_text()
        if once:
            file.unlink()
        raise FailedProviderError(status)


def _die_if(file: Path) -> None:
    if file.exists():
        file.unlink()
        os._exit(1)


async def _while_there(file: Path) -> None:
    while file.exists():  # noqa: ASYNC240 - a look takes no time
        file.with_suffix(".reached").touch()
        await asyncio.sleep(0.01)


def make() -> BookingModel:
    """The model, for an agent file."""
    return BookingModel()


@tool
async def book(folder: str) -> str:
    """Book a room."""
    with open(f"{folder}/booked", "a") as booked:  # noqa: ASYNC230 - a few bytes
        booked.write("booked\n")
    _die_if(Path(folder, "die"))
    await _while_there(Path(folder, "hold"))
    return "booked"


def bookings(folder: Path) -> int:
    """How often a room was booked."""
    with contextlib.suppress(FileNotFoundError):
        return len((folder / "booked").read_text().splitlines())
    return 0
