"""A model that executes the commands in the user's last message, so that one server serves all tests.

`!call NAME {…}` lines ask for calls, all in one wave; `!then NAME {…}` lines for one more wave, when the first has its
results; `!pid` answers with the process id; `!options` answers with the request's options; `!size` answers with the
request's estimated tokens; `!history` answers with the texts of the messages before; `!fail KIND` fails; `!refuse
TEXT` refuses; `!wait FILE` waits for a file; `!think TEXT` answers after some reasoning, and repeats earlier
reasoning; `!endless` has an endless answer; `!empty` has only empty answers. A question for the weather somewhere is a
call of the client's `get_weather`, as public suites expect. Anything else is echoed, with the results of the calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel, ModelProfile
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import ToolCall, tool_call_chunk
from langchain_core.messages.utils import count_tokens_approximately
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt import ToolRuntime
from langgraph.types import interrupt

from graph_agent import AgentContext

_FINAL = "provide your final response"
_WEATHER = re.compile(r"weather like in (.+)\?")
_ORDER = re.compile(r"^!(call|then) (\S+) (\{.*\})$", re.MULTILINE)


class RefusedError(Exception):
    """The error of a refusing provider."""

    def __init__(self, message: str, status_code: int = 401) -> None:
        super().__init__(message)
        self.status_code = status_code


_STATUSES = {"permission": 403, "unknown_model": 404, "context_overflow": 413, "other": 400}
"""The status that a provider fails with; 401 for any other kind."""


class ParrotModel(BaseChatModel):
    """See the module."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(tool_calling=True, structured_output=False)

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Runnable[Any, AIMessage]:
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools], **choice, **kwargs)

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise TypeError("The parrot answers asynchronously only; use ainvoke() or astream().")

    async def _agenerate(self, messages: list[BaseMessage], stop: Any = None, *_: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=await _reply(messages, stop, kwargs))])

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, *_: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        reply = await _reply(messages, stop, kwargs)
        while "endless" in reply.response_metadata:
            await asyncio.sleep(0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="word " * 200))
        for block in reply.content if isinstance(reply.content, list) else ():
            if isinstance(block, dict) and block["type"] == "reasoning":
                for word in re.findall(r"\s*\S+", block["reasoning"]):
                    part: Any = {**block, "reasoning": word, "index": 0}
                    yield ChatGenerationChunk(message=AIMessageChunk(content=[part]))
        for word in re.findall(r"\s*\S+\s*$|\s*\S+", reply.text):
            await asyncio.sleep(0)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))
            if word.strip() == "…break":
                raise RefusedError("sk-secretsecretsecret is no key")
        chunks = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=i)
            for i, call in enumerate(reply.tool_calls)
        ]
        last = AIMessageChunk(
            content="",
            tool_call_chunks=chunks,
            additional_kwargs=reply.additional_kwargs,
            response_metadata=reply.response_metadata,
            usage_metadata=reply.usage_metadata,
        )
        yield ChatGenerationChunk(message=last)


async def _reply(messages: list[BaseMessage], stop: Any, options: dict[str, Any]) -> AIMessage:
    final = _FINAL in messages[-1].text.lower()
    conversation = messages[:-1] if final else messages
    steered = [message.text for message in conversation if "steer" in str(message.additional_kwargs)]
    at = max(
        i for i, message in enumerate(conversation) if isinstance(message, HumanMessage) and message.text not in steered
    )
    order = conversation[at].text
    results = [message for message in conversation[at:] if isinstance(message, ToolMessage)]
    offered = [one["function"]["name"] for one in options.get("tools", ())]
    if waiting := re.search(r"!wait (\S+)", order):
        await _until_there(waiting[1])
    if failing := re.search(r"!fail (\S+)", order):
        raise RefusedError(f"{failing[1]}: sk-secretsecretsecret is no key", _STATUSES.get(failing[1], 401))
    if order == "!history":
        return _message("\n\n".join(f"{each.type}: {each.text}" for each in messages[:at] if each.type != "system"), [])
    if order == "!size":
        return _message(str(count_tokens_approximately(messages, tools=options.get("tools"))), [])
    if not final and offered:
        wave = "then" if results else "call"
        waves = len({message.tool_call_id.rpartition("-")[0] for message in results})
        wanted = [found for found in _ORDER.finditer(order) if found[1] == wave] if waves < 2 else []
        calls = [
            ToolCall(id=f"{wave}{at}-{i}", name=found[2], args=json.loads(found[3]), type="tool_call")
            for i, found in enumerate(wanted)
        ]
        if (place := _WEATHER.search(order)) and "get_weather" in offered and not results:
            calls = [ToolCall(id=f"call{at}-0", name="get_weather", args={"location": place[1]}, type="tool_call")]
        return _message("I call." if calls else "No more actions.", calls)
    if order.startswith("!options"):
        shown = {name: value for name, value in options.items() if name != "tools"}
        system = [message.text for message in messages if isinstance(message, SystemMessage)]
        kinds = [block["type"] for block in conversation[at].content if isinstance(block, dict)]
        return _message(json.dumps({"options": {**shown, "stop": stop}, "system": system, "blocks": kinds}), [])
    if any(message.text == "!empty" for message in conversation):
        return _message("", [])
    if order == "!endless":
        return _message("", [], {"endless": True})
    if order == "!pid":
        return _message(str(os.getpid()), [])
    if json_answer := re.search(r"!json (.*)", order):
        return _message(json_answer[1], [])
    if thinking := re.search(r"!think (.*)", order):
        before = [each["reasoning"] for message in conversation for each in _reasoning(message)]
        blocks: list[Any] = [{"type": "reasoning", "reasoning": thinking[1]}]
        return _message([*blocks, {"type": "text", "text": f"I thought: {' / '.join(before)}."}], [])
    if refusing := re.search(r"!refuse (.*)", order):
        return AIMessage("", additional_kwargs={"refusal": refusing[1]}, response_metadata={"finish_reason": "stop"})
    inputs = [message.text for message in conversation if isinstance(message, HumanMessage)]
    answer = "; ".join(
        ["You said: " + " / ".join(inputs), *(f"{one.name or 'it'} said: {one.text}" for one in results)]
    )
    metadata = {"finish_reason": "length"} if "!length" in order else {}
    return _message(answer, [], metadata)


def _reasoning(message: BaseMessage) -> list[dict[str, Any]]:
    blocks = message.content if isinstance(message, AIMessage) and isinstance(message.content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block["type"] == "reasoning"]


def _message(text: str | list[Any], calls: list[ToolCall], metadata: dict[str, Any] | None = None) -> AIMessage:
    used: Any = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return AIMessage(
        text, tool_calls=calls, usage_metadata=used, response_metadata=metadata or {"finish_reason": "stop"}
    )


def make() -> ParrotModel:
    """The model, for an agent file."""
    return ParrotModel()


@tool
async def look_up(key: str) -> str:
    """Look a key up."""
    return f"the value of {key}"


@tool
async def wait_for(file: str) -> str:
    """Wait until a file exists; the file with the suffix `.pid` then contains the id of the waiting process."""
    with open(f"{file}.pid", "w") as file_of_pid:  # noqa: ASYNC230 - a few bytes
        file_of_pid.write(str(os.getpid()))
    await _until_there(file)
    return f"{file} is there"


@tool
async def vault(runtime: ToolRuntime[AgentContext, Any]) -> str:
    """Name the credentials that this call has, each with a digest of its value."""
    credentials = runtime.context.credentials if runtime.context is not None else {}
    return ", ".join(f"{name}={digest(secret.get_secret_value())}" for name, secret in credentials.items()) or "none"


def digest(secret: str) -> str:
    """A short digest that identifies a secret without revealing it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:8]


@tool
async def ask(question: str) -> str:
    """Ask a person."""
    return f"the answer is {interrupt(question)}"


async def _until_there(file: str) -> None:
    while not os.path.exists(file):  # noqa: ASYNC240 - a look takes no time
        await asyncio.sleep(0.01)
