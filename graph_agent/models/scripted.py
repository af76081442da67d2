"""Defines a chat model that replies from a script, for tests, demonstrations and benchmarks.

It is a complete `BaseChatModel` with streaming, tools and structured output, and never contacts a provider. An
exhausted script raises, and `assert_spent` checks for unused steps.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LangSmithParams, LanguageModelInput, ModelProfile
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    InvalidToolCall,
    ToolCall,
    message_chunk_to_message,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from graph_agent.base._internal.media import TOKENS_OF_MEDIUM, media_of
from graph_agent.base._internal.text import excerpt
from graph_agent.base.errors import ConfigError, ScriptError
from graph_agent.base.input_messages import is_example
from graph_agent.models.stream_filters import SENTINEL

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

ScriptedReply: TypeAlias = str | AIMessage | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One reply of a script."""

_CHARS_PER_TOKEN = 4
_TOKEN = re.compile(r"\s*\S{1,16}|\s+")


class ScriptedChatModel(BaseChatModel):
    """A chat model with predefined replies.

    Bound copies (`bind_tools`, `bind`, `with_config`, `with_structured_output`) share the script and its position; each
    constructed instance has its own.

    Args:
        responses: the replies in order. A `dict`, or a `str` with its JSON, of the form
            `{"tool_calls": [{"id", "name", "arguments"}], "content": "…"}` is a message that calls tools, whether tools
            are bound or not; so is one call, or a list of calls, as `dict`. Any other `str` is text. An `AIMessage` is
            returned unchanged, including its usage. May be empty: every request then raises.
        cycle: restart after the last reply. Default False: a further request raises `ScriptError`.
        **kwargs: fields of `BaseChatModel`, such as `profile`; the usual settings of a provider's model (temperature,
            api_key, …) are accepted and ignored.

    Raises:
        ConfigError: if a reply cannot be parsed.
    """

    model_config = ConfigDict(defer_build=True)

    responses: list[Any] = Field(repr=False)
    """The script, as passed to the constructor."""
    cycle: bool = False
    """Whether the script restarts after its last reply."""
    model: str = "scripted"
    """The model name in traces."""
    streaming: bool = False
    """Also stream for callers that wait for the whole reply; an explicit False disables streaming."""
    cache: BaseCache | bool | None = Field(default=False, exclude=True)
    """Off by default: a reply from a process-wide cache would skip its step."""

    _script: ModelScript = PrivateAttr()

    def __init__(self, responses: Sequence[ScriptedReply], cycle: bool = False, **kwargs: Any) -> None:
        script = ModelScript(responses, cycle=cycle)
        super().__init__(**{"responses": list(responses), "cycle": cycle, **kwargs})
        self._script = script

    @property
    def requests(self) -> list[ScriptedRequest]:
        """Every request so far, oldest first, including those that raised."""
        return self._script.requests

    def assert_spent(self) -> None:
        """Raise `ScriptError`, with the steps that are left, unless every reply was returned at least once."""
        self._script.assert_spent()

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools, converted to OpenAI's form, so that `requests` has them as a provider would receive them.

        Raises:
            ValueError: An item is not a tool.
        """
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return super().bind(tools=[_to_openai_tool(tool, strict) for tool in tools], **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type,
        *,
        include_raw: bool = False,
        method: Literal["json_schema", "function_calling", "json_mode"] = "json_schema",
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Parse the reply, JSON text or the arguments of its first call, as `schema`.

        Args:
            schema: a pydantic class (returns an instance), or a `TypedDict` class or JSON schema (returns a dict
                without validation).
            include_raw: return `{"raw", "parsed", "parsing_error"}` and raise no parsing error. Default False.
            method: visible in `requests` only; does not change the parsing.
            strict: as `method`.
            **kwargs: bound to the model.
        """
        # Imported in functions, here and below: a script of text replies needs no tools and no parsers.
        from langchain_core.utils.function_calling import convert_to_json_schema

        traced = {"kwargs": {"method": method, "strict": strict}, "schema": schema}
        if method == "function_calling":
            model = self.bind_tools(
                [schema], tool_choice="any", strict=strict, ls_structured_output_format=traced, **kwargs
            )
        else:
            json_schema = schema if isinstance(schema, dict) else convert_to_json_schema(schema)
            wrapped = {"name": json_schema.get("title", "output"), "schema": json_schema, "strict": strict}
            response_format = (
                {"type": "json_object"} if method == "json_mode" else {"type": "json_schema", "json_schema": wrapped}
            )
            model = self.bind(response_format=response_format, ls_structured_output_format=traced, **kwargs)

        def read(message: AIMessage) -> Any:
            return _read_structured(message, schema, include_raw)

        async def aread(message: AIMessage) -> Any:
            # RunnableLambda would run a lone synchronous function in a thread.
            return read(message)

        return model | RunnableLambda(read, afunc=aread, name="read_structured")

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages, stop, kwargs))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._reply(messages, stop, kwargs))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _split(self._reply(messages, stop, kwargs)):
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in _split(self._reply(messages, stop, kwargs)):
            # Yield to the event loop, as a network call would, so that a reader can cancel between tokens.
            await asyncio.sleep(0)
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        rest = {key: value for key, value in kwargs.items() if key not in {"tools", "tool_choice"}}
        if stop is not None:
            rest["stop"] = stop
        message = self._script.take(
            ScriptedRequest(list(messages), kwargs.get("tools") or [], kwargs.get("tool_choice"), rest)
        )
        message.response_metadata = {
            "model_name": self.model,
            "finish_reason": "tool_calls" if message.tool_calls else "stop",
            **message.response_metadata,
        }
        if message.usage_metadata is None:
            message.usage_metadata = _count_usage(messages, message)
        return message

    def _resolve_model_profile(self) -> ModelProfile:
        return {"tool_calling": True, "tool_choice": True, "tool_call_streaming": True, "structured_output": True}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "scripted"
        return params

    @property
    def _identifying_params(self) -> dict[str, Any]:
        # Without the script: these parameters are part of every trace.
        return {"model": self.model, "cycle": self.cycle}

    @property
    def _llm_type(self) -> str:
        return "scripted"


def _to_openai_tool(tool: Any, strict: bool | None) -> dict[str, Any]:
    if isinstance(tool, dict) and tool.get("type", "object") not in {"object", "function"}:
        return tool  # a provider's built-in tool, such as a web search, has no schema to convert
    from langchain_core.utils.function_calling import convert_to_openai_tool

    return convert_to_openai_tool(tool, strict=strict)


def _read_structured(message: AIMessage, schema: dict[str, Any] | type, include_raw: bool) -> Any:
    from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser

    model = schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None
    parsed: Any
    try:
        if not message.tool_calls:
            parsed = (PydanticOutputParser(pydantic_object=model) if model else JsonOutputParser()).parse(message.text)
        else:
            args = message.tool_calls[0]["args"]
            parsed = model.model_validate(args) if model else args
    except ValueError as error:
        if not include_raw:
            raise
        return {"raw": message, "parsed": None, "parsing_error": error}
    return {"raw": message, "parsed": parsed, "parsing_error": None} if include_raw else parsed


def _split(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    """Split a message into the chunks that a provider would stream: words, then calls, then usage and metadata.

    Their sum is the message. There is always a last chunk, so that an empty reply can be streamed.
    """
    id_ = message.id
    pieces = (
        _TOKEN.findall(message.content) if isinstance(message.content, str) else [[part] for part in message.content]
    )
    for piece in pieces:
        yield ChatGenerationChunk(message=AIMessageChunk(content=piece, id=id_))
    calls = [
        (call["name"], json.dumps(call["args"], ensure_ascii=False, default=str), call["id"])
        for call in message.tool_calls
    ]
    calls += [(bad["name"] or "", bad["args"] or "", bad["id"]) for bad in message.invalid_tool_calls]
    for index, (name, arguments, call_id) in enumerate(calls):
        half = len(arguments) // 2
        for part in (
            tool_call_chunk(name=name, args="", id=call_id, index=index),
            tool_call_chunk(args=arguments[:half], index=index),
            tool_call_chunk(args=arguments[half:], index=index),
        ):
            yield ChatGenerationChunk(message=AIMessageChunk(content="", id=id_, tool_call_chunks=[part]))
    last = AIMessageChunk(
        content="" if isinstance(message.content, str) else [],
        id=id_,
        additional_kwargs=message.additional_kwargs,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        chunk_position="last",
    )
    yield ChatGenerationChunk(message=last)


def _count_usage(messages: list[BaseMessage], reply: AIMessage) -> UsageMetadata:
    """Estimate the tokens of a call at four characters per token; at least one of each kind."""
    sent = sum([_size(message.content) for message in messages])
    made = _size(reply.content) + sum([len(call["name"]) + len(str(call["args"])) for call in reply.tool_calls])
    input_tokens = sent // _CHARS_PER_TOKEN + 1
    output_tokens = made // _CHARS_PER_TOKEN + 1
    return UsageMetadata(
        input_tokens=input_tokens, output_tokens=output_tokens, total_tokens=input_tokens + output_tokens
    )


def _size(content: str | list[Any]) -> int:
    if isinstance(content, str):
        return len(content)
    medium = TOKENS_OF_MEDIUM * _CHARS_PER_TOKEN
    return sum([len(str(part)) if media_of(part) is None else medium for part in content])


MOCK_VARIABLE = "DEBUG_MOCK_RESPONSES"
_EXAMPLE = """[{"name": "weather", "arguments": {"city": "Bergen"}}, "It rains."]"""


class MockChatModel(ScriptedChatModel):
    """The scripted model made from `DEBUG_MOCK_RESPONSES`; `create_graph_agent` replaces no such model by another."""


def mock_model_from_env(environ: Mapping[str, str] = os.environ) -> MockChatModel | None:
    """Build a scripted model from `DEBUG_MOCK_RESPONSES`, a JSON array of replies.

    A reply is a string, or an object or array of objects with calls, as for `ScriptedChatModel`. `{"cycle": [...]}`
    around the array begins it again after the last reply. Each call of this function returns a new model, which starts
    at the first reply. `environ` is the environment, by default that of the process.

    Returns:
        The model; None if the variable is unset or blank.

    Raises:
        ConfigError: if the variable is not a non-empty JSON array, or an item cannot be parsed as a reply.
    """
    raw = environ.get(MOCK_VARIABLE, "")
    if not raw.strip():
        return None
    try:
        replies = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _refusal(f"is not JSON ({error})", raw) from None
    if cycle := isinstance(replies, dict) and list(replies) == ["cycle"]:
        replies = replies["cycle"]
    if not isinstance(replies, list):
        raise _refusal(f"must be a JSON array, and this is {_kind(replies)}", raw)
    if not replies:
        raise _refusal("holds no replies", raw)
    for number, reply in enumerate(replies, 1):
        if not isinstance(reply, str | dict | list):
            raise _refusal(f"must hold texts and calls, and item {number} is {_kind(reply)}", raw)
    try:
        model = MockChatModel(responses=replies, cycle=cycle)
    except ConfigError as error:
        raise _refusal(f"cannot be used: {error}", raw) from None
    model._script.source = f" of {MOCK_VARIABLE}"
    return model


def _refusal(problem: str, raw: str) -> ConfigError:
    return ConfigError(
        f"{MOCK_VARIABLE} {problem}; got {excerpt(raw, 80)!r}. Set it to a JSON array of replies, such as "
        f"{MOCK_VARIABLE}='{_EXAMPLE}', or unset it to use the real model."
    )


def _kind(value: object) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


_CALL_KEYS = {"id", "type", "name", "arguments", "args", "function"}
_SHOWN_STEPS = 5


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    """One request as the model received it, for assertions in tests."""

    messages: list[BaseMessage]
    """The assembled prompt, in order."""
    tools: list[dict[str, Any]]
    """The bound tools in OpenAI's form; empty if there are none."""
    tool_choice: Any
    """The bound tool choice, unchanged; None if there is none."""
    kwargs: dict[str, Any]
    """All other bound or passed options, including `stop` if set."""

    @property
    def tool_names(self) -> list[str]:
        """The names of the bound tools, in order."""
        return [str(tool.get("function", tool).get("name", tool.get("type"))) for tool in self.tools]


class ModelScript:
    """The steps and the position of one scripted model; safe to share between threads and event loops.

    Args:
        responses: The replies, as for `ScriptedChatModel`.
        cycle: Whether to begin again after the last one.

    Raises:
        ConfigError: A step cannot be parsed, or an empty script is cycled.
    """

    def __init__(self, responses: Sequence[ScriptedReply], *, cycle: bool) -> None:
        if isinstance(responses, str):
            raise ConfigError(
                f"A script is a list of replies, and this is one string: {excerpt(responses)!r} Put it in a list."
            )
        if cycle and not responses:
            raise ConfigError("An empty script cannot be cycled. Give it at least one reply, or leave cycle=False.")
        self._steps = [read_step(response, number) for number, response in enumerate(responses, 1)]
        # Messages with equal ids in a history overwrite each other: the first keeps the id, others get a new one.
        owner = {step.id: at for at, step in reversed(list(enumerate(self._steps)))}
        self._owns_id = [owner[step.id] == at for at, step in enumerate(self._steps)]
        self._cycle = cycle
        self._asked = 0
        self._lock = threading.Lock()
        self.requests: list[ScriptedRequest] = []
        self.source = ""
        """Where the script stands, for errors, such as ` of DEBUG_MOCK_RESPONSES`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelScript:
        """Return the same object, so that deep copies of a model share the position in the script."""
        return self

    def take(self, request: ScriptedRequest) -> AIMessage:
        """Record `request` and return a fresh copy of the next step.

        The id is the step's own on its first use and None afterwards, so that LangChain assigns one. A call without an
        id gets a new one; in later passes of a cycle, call ids get the pass as a suffix (`call_1-2`), so that they are
        unique too. The only reply of a script is returned a second time if the next request composes the answer.

        Raises:
            ScriptError: Every step was returned and the script does not cycle.
        """
        with self._lock:
            index = self._asked
            self._asked += 1
            self.requests.append(request)
            if index == 1 and len(self._steps) == 1 and self._composes_answer():
                index = 0
        size = len(self._steps)
        if index >= size and not self._cycle:
            raise ScriptError(
                f"The script{self.source} has {_count(size)} and was asked for a {_ordinal(index + 1)}. "
                f"Last request: {_show_request(request)} Add a reply to the script, or find out why the "
                "model was asked once more."
            )
        lap, at = divmod(index, size)
        step = self._steps[at]
        # The copy is deep: a change by the caller must not appear in the next pass.
        update = {
            "id": step.id if lap == 0 and self._owns_id[at] else None,
            "content": step.content if isinstance(step.content, str) else copy.deepcopy(step.content),
            "additional_kwargs": copy.deepcopy(step.additional_kwargs),
            "response_metadata": copy.deepcopy(step.response_metadata),
            "usage_metadata": copy.deepcopy(step.usage_metadata),
            "tool_calls": [_renew(call, lap) for call in step.tool_calls],
            "invalid_tool_calls": [_renew(call, lap) for call in step.invalid_tool_calls],
        }
        return step.model_copy(update=update)

    def _composes_answer(self) -> bool:
        """Whether the newest request asks for the answer after the only reply, which ended planning.

        A script of one text answers every request, also with `finalize="compose"`. The sentinel is never the answer.
        """
        sent = [[one for one in each.messages if not is_example(one)] for each in self.requests[-2:]]
        first, newest = ([one for one in messages if one.type != "system"] for messages in sent)
        ends = not self._steps[0].tool_calls and self._steps[0].text.strip() != SENTINEL
        return ends and newest[:-1] == first and newest[-1].type == "human"

    def assert_spent(self) -> None:
        """Raise `ScriptError`, with the steps that are left, unless every step was returned at least once."""
        with self._lock:
            asked = self._asked
        left = self._steps[asked:]
        if not left:
            return
        shown = [f"{_ordinal(asked + n)}: {_show(step)}" for n, step in enumerate(left[:_SHOWN_STEPS], 1)]
        more = f"; and {len(left) - _SHOWN_STEPS} more" if len(left) > _SHOWN_STEPS else ""
        raise ScriptError(
            f"The script has {_count(len(self._steps))} and {len(left)} of them {'was' if len(left) == 1 else 'were'} "
            f"never asked for: {'; '.join(shown)}{more}. "
            "Remove what is not needed, or find out why the run ended early."
        )


def read_step(response: ScriptedReply, number: int) -> AIMessage:
    """Convert one entry of a script to a message. A text without calls is the content; messages are copied.

    The calls of a dict, or of its JSON, may lack `id`, and `content` may be missing; `arguments` may be an object or
    its JSON text; OpenAI's nesting under `function` is accepted. Arguments that are not a JSON object become an invalid
    tool call, as in a provider's client.

    Args:
        response: The entry.
        number: Its position in the script, from 1, for the error message.

    Raises:
        ConfigError: An entry of another type, or a call without a name.
    """
    if isinstance(response, AIMessageChunk):
        return cast("AIMessage", message_chunk_to_message(response)).model_copy(deep=True)
    if isinstance(response, AIMessage):
        return response.model_copy(deep=True)
    envelope = _envelope(response)
    if envelope is None:
        if isinstance(response, str):
            return AIMessage(content=response)
        raise ConfigError(
            f"Step {number} of the script is of type {type(response).__name__} and no call; give a str, an AIMessage, "
            'or {"name": …, "arguments": {…}}. An answer that is a dict is written as json.dumps(…).'
        )
    calls = [_read_call(item, number) for item in envelope.get("tool_calls", ())]
    content = envelope.get("content")
    return AIMessage(
        content=content if isinstance(content, str) else "" if content is None else json.dumps(content),
        tool_calls=[call for call in calls if "error" not in call],
        invalid_tool_calls=[call for call in calls if "error" in call],
    )


def _envelope(response: Any) -> Mapping[str, Any] | None:
    """Return a reply as a dict with `tool_calls` and, if given, `content`; None for text and any other value."""
    if isinstance(response, str):
        found = read_object(response) or {}
        return found if isinstance(found.get("tool_calls"), list) else None
    if isinstance(response, list | tuple):
        return {"tool_calls": response}
    if not isinstance(response, Mapping) or not response:
        return None
    if response.keys() <= {"tool_calls", "content"}:
        return response if isinstance(response.get("tool_calls", []), list | tuple) else None
    return {"tool_calls": [response]} if response.keys() <= _CALL_KEYS else None


def _read_call(item: Any, number: int) -> ToolCall | InvalidToolCall:
    fields: Any = item.get("function", item) if isinstance(item, dict) else None
    name = fields.get("name") if isinstance(fields, dict) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"Step {number} of the script has a tool call without a name: {excerpt(json.dumps(item))} Write "
            '{"tool_calls": [{"id": "call_1", "name": "echo", "arguments": {"text": "hello"}}]}, '
            "or give an AIMessage to have a text sent as it stands."
        )
    # A missing id remains None here: the call gets a new one each time the step is returned.
    id_ = str(item["id"]) if item.get("id") else None
    given: Any = next((fields[key] for key in ("arguments", "args") if fields.get(key) is not None), {})
    args = read_object(given or "{}") if isinstance(given, str) else given
    if isinstance(args, dict):
        return ToolCall(name=name, args=args, id=id_, type="tool_call")
    text = given if isinstance(given, str) else json.dumps(given)
    return InvalidToolCall(name=name, args=text, id=id_, error=None, type="invalid_tool_call")


def _renew(call: Any, lap: int) -> Any:
    """Return a copy of a call. It gets an id if it has none, and another id in each later pass of a cycle."""
    fresh = copy.deepcopy(call)
    if call["id"] is None:
        fresh["id"] = f"call_{uuid.uuid4().hex[:24]}"
    elif lap:
        fresh["id"] = f"{call['id']}-{lap + 1}"
    return fresh


def read_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _show(message: BaseMessage) -> str:
    calls = [call["name"] for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return f"calls {', '.join(calls)}" if calls else json.dumps(excerpt(message.text), ensure_ascii=False)


def _show_request(request: ScriptedRequest) -> str:
    last = f"{request.messages[-1].type} message {_show(request.messages[-1])}" if request.messages else "no messages"
    return f"{last}, with {', '.join(request.tool_names) or 'no tools'}."


def _count(replies: int) -> str:
    return "1 reply" if replies == 1 else f"{replies} replies"


def _ordinal(number: int) -> str:
    teens = 10 <= number % 100 <= 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
