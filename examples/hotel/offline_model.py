"""A rule-based substitute for a language model, so that the example runs without a key and without a network.

It understands dates, holidays and rooms, and nothing else. It works as a model does: it receives the messages and
the tools, replies with calls until it needs no more, and then streams an answer composed from their results. Calls are
native, in text, or in structured plans, whichever a request asks for.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import date
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput, ModelProfile
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

if not __package__:  # loaded by its path: be a module of the package that this folder is
    _folder = Path(__file__).resolve().parent
    sys.path.insert(0, str(_folder.parent))
    __package__ = importlib.import_module(_folder.name).__name__
    __spec__ = ModuleSpec(f"{__package__}.{Path(__file__).stem}", None)
    sys.path.remove(str(_folder.parent))

from .answer import write_answer
from .conversation import read_conversation
from .holiday_names import find_names
from .planner import next_calls
from .question import read_questions
from .wave_plan import make_plan
from .ways import Way, way_of

NO_MORE_ACTIONS = "No more actions."
_FINAL = "provide your final response"
_TODAY = re.compile(r"\btoday is (\d{4}-\d{2}-\d{2})\b", re.IGNORECASE)


class OfflineHotelModel(BaseChatModel):
    """A rule-based chat model for the hotel. Asked for its abilities, it answers that it is no language model.

    Today is read from a system message ("Today is 2026-11-21."); without one it is the real today. `stop` is ignored:
    answers are short and end by themselves. Token counts are estimates of four characters a token.
    """

    model_name: str = "offline-rules"
    """Its name in traces."""

    @property
    def _llm_type(self) -> str:
        return "offline-rules-of-the-hotel-example"

    def _resolve_model_profile(self) -> ModelProfile:
        return ModelProfile(tool_calling=True, structured_output=False)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with these tools; with `tool_choice` "none" it answers and calls nothing."""
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **choice, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=reply(messages, **kwargs))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=reply(messages, **kwargs))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from _chunks(reply(messages, **kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _chunks(reply(messages, **kwargs)):
            yield chunk


def make_model() -> OfflineHotelModel:
    """Build the model; its first use in a process writes one line to standard error."""
    _announce()
    find_names("")  # loads the holiday calendars now, outside of any event loop
    return OfflineHotelModel()


def reply(messages: list[BaseMessage], tools: Sequence[dict[str, Any]] = (), **options: Any) -> AIMessage:
    """Return the model's next reply: calls, "No more actions.", or the answer.

    `tools` are OpenAI function schemas. Calls are made in the way that the request asks for: as tool calls where tools
    are given, as a plan where a tool takes one or the system prompt describes it, else as JSON where the system prompt
    describes the tools.

    It is the final answer when nothing can be called, when `tool_choice` is "none", when the last message asks to
    "provide your final response", or, in place of "No more actions.", when the system prompt asks to answer the user.
    """
    asked_for_answer = _asks_for_answer(messages)
    conversation = read_conversation(messages[:-1] if asked_for_answer else messages)
    today = _today(messages)
    request = read_questions(conversation.questions, today)
    done = conversation.outcomes
    way = way_of(_prompt(messages), tools)
    if not way.offered or asked_for_answer or options.get("tool_choice") == "none":
        return _message(messages, write_answer(request, done))
    if way.style is not None:
        plan = make_plan(request, done, way.offered, way.style, way.most_calls, today)
        if not plan["tools"] and way.answers:
            plan["answer"] = write_answer(request, done)
        return _handed_over(messages, plan, way)
    calls = [
        ToolCall(name=way.offered[call.tool], args=call.arguments, id=f"call_{uuid.uuid4().hex[:12]}", type="tool_call")
        for call in next_calls(request, done)
        if call.tool in way.offered
    ]
    if not calls:
        return _message(messages, write_answer(request, done) if way.answers else NO_MORE_ACTIONS)
    return _message(messages, "", calls) if way.native else _message(messages, _envelope(calls))


def _handed_over(messages: list[BaseMessage], plan: dict[str, Any], way: Way) -> AIMessage:
    if way.plan_tool is None:
        return _message(messages, json.dumps(plan))
    call = ToolCall(name=way.plan_tool, args=plan, id=f"call_{uuid.uuid4().hex[:12]}", type="tool_call")
    return _message(messages, "", [call])


def _envelope(calls: Sequence[ToolCall]) -> str:
    return json.dumps({"tool_calls": [{"name": call["name"], "arguments": call["args"]} for call in calls]})


def _message(messages: list[BaseMessage], text: str, calls: Sequence[ToolCall] = ()) -> AIMessage:
    read = sum(len(_text(message)) for message in messages) // 4 + 1
    written = (len(text) + sum(len(json.dumps(call["args"])) for call in calls)) // 4 + 1
    usage = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
    return AIMessage(content=text, tool_calls=list(calls), usage_metadata=usage)


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    """Split a message as a provider streams it: word by word, then its calls, then its usage."""
    for word in re.findall(r"\s*\S+", str(message.content)):
        yield ChatGenerationChunk(message=AIMessageChunk(content=word))
    for i, call in enumerate(message.tool_calls):
        chunk = ToolCallChunk(
            name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=i, type="tool_call_chunk"
        )
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[chunk]))
    yield ChatGenerationChunk(
        message=AIMessageChunk(content="", usage_metadata=message.usage_metadata, chunk_position="last")
    )


def _asks_for_answer(messages: list[BaseMessage]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, HumanMessage | SystemMessage) and _FINAL in _text(last).lower()


def _prompt(messages: list[BaseMessage]) -> str:
    return "\n\n".join(_text(message) for message in messages if isinstance(message, SystemMessage))


def _today(messages: list[BaseMessage]) -> date:
    for message in messages:
        found = _TODAY.search(_text(message)) if isinstance(message, SystemMessage) else None
        if found:
            try:
                return date.fromisoformat(found[1])
            except ValueError:
                continue
    return date.today()


def _text(message: BaseMessage) -> str:
    return str(message.text)


@functools.lru_cache(maxsize=1)
def _announce() -> None:
    print(
        "Offline model: a few rules for dates, holidays and rooms, no language model. Set OPENAI_API_KEY to use one.",
        file=sys.stderr,
    )
