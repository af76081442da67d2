"""A stand-in for a language model, made of rules, so that the example runs without a key and without a network.

It understands dates, holidays and rooms, and nothing else. It works the way a model does: it is given the messages and
the tools, answers with tool calls until it needs no more, and then streams an answer made from their results.
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
    ToolMessage,
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
from .holiday_names import find_names
from .planner import TOOLS, Call, Outcome, next_calls
from .question import Request, read_questions

NO_MORE_ACTIONS = "No more actions."
_FINAL = "provide your final response"
# A loop that asks for no second call says so in its system prompt.
_DIRECTLY = "when you need no further tools, answer the user"
_TODAY = re.compile(r"\btoday is (\d{4}-\d{2}-\d{2})\b", re.IGNORECASE)
# Earlier questions that a follow-up may refer to.
_QUESTIONS_READ = 10


class OfflineHotelModel(BaseChatModel):
    """A rule-based chat model for the hotel: no language model, and it says so when asked what it can do.

    Today is read from a system message ("Today is 2026-11-21."); without one it is the real today. `stop` is ignored:
    answers are short and end by themselves. Token counts are estimates of four characters a token.
    """

    model_name: str = "offline-rules"
    """What traces call it."""

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
    """Build the model, and say once per process, in one line on standard error, that it is in use."""
    _announce()
    find_names("")  # reads the holiday calendars now, and not within somebody's event loop
    return OfflineHotelModel()


def reply(messages: list[BaseMessage], tools: Sequence[dict[str, Any]] = (), **options: Any) -> AIMessage:
    """Return what the model says next: tool calls, "No more actions.", or the final answer.

    `tools` are OpenAI function schemas. It is the final answer when no tools are given, when `tool_choice` is "none",
    when the last message asks to "provide your final response", or, in place of "No more actions.", when the system
    prompt says to answer the user directly.
    """
    asked_for_answer = _asks_for_answer(messages)
    texts, since = _questions(messages[:-1] if asked_for_answer else messages)
    request = read_questions(texts, _today(messages))
    done = _outcomes(messages[since:])
    plans = bool(tools) and not asked_for_answer and options.get("tool_choice") != "none"
    calls = _calls(request, done, [str(tool.get("function", {}).get("name", "")) for tool in tools]) if plans else []
    if calls:
        return _message(messages, "", calls)
    if plans and not _says(messages, _DIRECTLY):
        return _message(messages, NO_MORE_ACTIONS)
    return _message(messages, write_answer(request, done))


def _calls(request: Request, done: list[Outcome], offered: list[str]) -> list[ToolCall]:
    # Providers forbid dots in names, and loaders may add a server's name in front.
    names = {tool: name for name in offered for tool in [_known_tool(name)] if tool}
    return [
        ToolCall(name=names[call.tool], args=call.arguments, id=f"call_{uuid.uuid4().hex[:12]}", type="tool_call")
        for call in next_calls(request, done)
        if call.tool in names
    ]


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


def _says(messages: list[BaseMessage], words: str) -> bool:
    return any(isinstance(message, SystemMessage) and words in _text(message).lower() for message in messages)


def _today(messages: list[BaseMessage]) -> date:
    for message in messages:
        found = _TODAY.search(_text(message)) if isinstance(message, SystemMessage) else None
        if found:
            try:
                return date.fromisoformat(found[1])
            except ValueError:
                continue
    return date.today()


def _questions(messages: list[BaseMessage]) -> tuple[list[str], int]:
    """Return the questions asked so far, the last one last, and the place of the last one's first message.

    Words that steer a question while it is worked on belong to it; messages for the model alone are no questions.
    """
    asked: list[tuple[list[str], int]] = []
    for i, message in enumerate(messages):
        if isinstance(message, HumanMessage) and not str(message.id or "").startswith("do-not-render-"):
            steers = any("steer" in key or "steer" in str(value) for key, value in message.additional_kwargs.items())
            if not (steers and asked):
                asked.append(([], i))
            asked[-1][0].append(_text(message))
    texts = ["\n".join(texts) for texts, _ in asked]
    return texts[-_QUESTIONS_READ:], asked[-1][1] if asked else len(messages)


def _outcomes(messages: list[BaseMessage]) -> list[Outcome]:
    """Return what came of the calls that were made in some messages."""
    results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
    calls = [call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    found: list[Outcome] = []
    for call in calls:
        tool = _known_tool(call["name"])
        if tool:
            found.append(_outcome(Call(tool, call["args"]), results.get(call["id"] or "")))
    return found


def _outcome(call: Call, message: ToolMessage | None) -> Outcome:
    if message is None:
        return Outcome(call, None, "it has no result.")
    text = _text(message)
    if message.status == "error":
        return Outcome(call, None, re.sub(r"^Error executing tool \S+: ", "", text.strip()) or "the tool failed.")
    try:
        data = json.loads(text)
    except ValueError:
        artifact = message.artifact if isinstance(message.artifact, dict) else {}
        data = artifact.get("structured_content")
    return Outcome(call, data, None) if isinstance(data, dict) else Outcome(call, None, "its result cannot be read.")


def _known_tool(name: str) -> str | None:
    plain = _plain(name)
    return next((tool for tool in TOOLS if _plain(tool) in plain), None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _text(message: BaseMessage) -> str:
    return str(message.text)


@functools.lru_cache(maxsize=1)
def _announce() -> None:
    print(
        "Offline model: a few rules for dates, holidays and rooms, no language model. Set OPENAI_API_KEY to use one.",
        file=sys.stderr,
    )
