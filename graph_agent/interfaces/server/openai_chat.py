"""Implements OpenAI's Chat Completions API: parses request bodies into `ChatRequest`, writes completions and chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from pydantic import Discriminator, Field, Tag, model_validator
from starlette.responses import Response

from graph_agent.base.settings.config import ReasoningEffort
from graph_agent.interfaces.server.admission.body import BodyRoute
from graph_agent.interfaces.server.chat import schemas
from graph_agent.interfaces.server.chat.content_blocks import DATA_URL, document_block, image_at, simplify_blocks
from graph_agent.interfaces.server.chat.function_tools import (
    allowed_functions,
    function_tool,
    not_among,
    parse_arguments,
)
from graph_agent.interfaces.server.chat.handler import AnswerPart, ChatDialect, status_fields
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome, Ending
from graph_agent.interfaces.server.chat.schemas import ChatRequest, check_arguments
from graph_agent.interfaces.server.error_responses import openai_error
from graph_agent.interfaces.server.parameters import ChatEndpoint, RequestServices, Services, chat_endpoint
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError
from graph_agent.interfaces.server.response_models import Completion, Model, ModelList, OpenAIError, error_responses
from graph_agent.interfaces.server.sse import frame
from graph_agent.session.results import Reasoning

_SYSTEM_ROLES = ("system", "developer")
"""Roles of messages that are instructions."""

_FINISH: dict[Ending, str] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "calls": "tool_calls",
    "filtered": "content_filter",
}
"""How an answer ended → OpenAI's `finish_reason`."""
_ERRORS = error_responses(OpenAIError)

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=BodyRoute)
_MODEL_ERRORS = error_responses(OpenAIError, only=(400, 401, 403, 404, 408, 413, 503))


class ImageUrl(schemas.RequestObject):
    """The source of an image."""

    url: str = Field(min_length=1, description="A URL, or a `data:` URL with base64.")


class File(schemas.RequestObject):
    """A document."""

    filename: str | None = None
    file_data: str | None = Field(None, description="A `data:` URL with base64. Files are not stored: no `file_id`.")


class ChatPart(schemas.RequestObject):
    """A piece of a message."""

    type: Literal["text", "image_url", "file", "refusal"]
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None
    file: File | None = None


class FunctionCall(schemas.RequestObject):
    """The function of a call, and its arguments."""

    name: str = Field(min_length=1)
    arguments: str = Field("", description="A JSON object as text.")


class CallInHistory(schemas.RequestObject):
    """A call that the assistant made."""

    id: schemas.CallId = Field(min_length=1)
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(schemas.RequestObject):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | schemas.ListOf[ChatPart] | None = None
    tool_calls: schemas.ListOf[CallInHistory] | None = None
    tool_call_id: schemas.CallId | None = None


class Function(schemas.RequestObject):
    """A function of the caller."""

    name: str = Field(pattern=schemas.FUNCTION_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ChatTool(schemas.RequestObject):
    """A tool of the caller. Tools of another type than `function` cannot be run here."""

    type: str
    function: Function | None = None


class NamedFunction(schemas.RequestObject):
    """The name of a function."""

    name: str


class NamedTool(schemas.RequestObject):
    """The tool that the model must call."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(schemas.RequestObject):
    """The tools that the model may call, and whether it must call one of them."""

    mode: Literal["auto", "required"] = "auto"
    tools: schemas.ListOf[ChatTool] = Field(min_length=1)


class AllowedChoice(schemas.RequestObject):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(value: Any) -> str:
    """Return the tag of a `tool_choice` value, by which pydantic selects the member of the union that validates it.

    `Mode` for a text, `AllowedChoice` for an object of type `allowed_tools`, and `NamedTool` for anything else.
    """
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if isinstance(value, str):
        return "Mode"
    return "AllowedChoice" if kind == "allowed_tools" else "NamedTool"


ChatToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("Mode")]
    | Annotated[NamedTool, Tag("NamedTool")]
    | Annotated[AllowedChoice, Tag("AllowedChoice")],
    Discriminator(_kind_of_choice),
]


class NamedSchema(schemas.RequestObject):
    """The schema of the answer."""

    name: str = "response"
    schema_: dict[str, Any] = Field(default={"type": "object"}, alias="schema")


class ResponseFormat(schemas.RequestObject):
    """Text, any JSON object, or JSON with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class ChatStreamOptions(schemas.RequestObject):
    """Options of a stream."""

    include_usage: bool | None = None


class ChatCompletionRequest(schemas.RequestObject):
    """A request for a chat completion. Fields that are not listed are accepted and have no effect."""

    model: str
    messages: schemas.ListOf[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | schemas.ListOf[str] | None = None
    reasoning_effort: ReasoningEffort | None = None
    n: Literal[1] | None = None
    metadata: schemas.SessionMetadata | None = None
    response_format: ResponseFormat | None = None
    tools: schemas.ListOf[ChatTool] | None = None
    tool_choice: ChatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = Field(None, description="With false, the request belongs to no session.")
    include_reasoning: bool | None = Field(None, description="Send the model's reasoning, as `reasoning_content`.")
    max_agentic_loops: schemas.AgenticLoops = None

    _clean = model_validator(mode="before")(schemas.clean_body)


def read_chat_request(body: ChatCompletionRequest) -> ChatRequest:
    """Convert the body of a request to a `ChatRequest`.

    System messages become the instructions. The last message, if it is a system message and no other message is
    unanswered, is the user's question. Headers are not considered, so the session is that of the body's metadata, if
    any. `max_completion_tokens` takes precedence over `max_tokens`. Tools that are not functions are listed as
    unsupported.

    Raises `ProblemError` for an unsupported or invalid value, and for calls with too many arguments.
    """
    calls = (call for message in body.messages for call in message.tool_calls or [])
    check_arguments(((call.id, call.function.arguments) for call in calls), "messages")
    # A conversation must end with a message to answer.
    question = _system_question(body.messages)
    history = body.messages[:-1] if question else body.messages
    system = [_text(message) for message in history if message.role in _SYSTEM_ROLES]
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    answer_format = body.response_format
    schema = answer_format.json_schema.schema_ if answer_format and answer_format.json_schema else None
    has_tools = bool(body.tools or body.tool_choice)
    options: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        # Older clients send only the second, which OpenAI has deprecated.
        "max_output_tokens": body.max_completion_tokens or body.max_tokens,
        "stop": tuple(stop) if stop else None,
        "reasoning_effort": body.reasoning_effort,
        "response_schema": answer_format
        and schemas.answer_schema(answer_format.type, schema, "response_format", "json_schema"),
        "client_tool_choice": _choice(body) if has_tools else None,
        "parallel_client_calls": body.parallel_tool_calls,
        "max_agentic_loops": body.max_agentic_loops,
    }
    offered = _offered(body) if has_tools else []
    return ChatRequest(
        messages=[*(read for message in history if (read := _message(message)) is not None), *question],
        instructions="\n\n".join(text for text in system if text),
        options={name: value for name, value in options.items() if value is not None},
        client_tools=[function_tool(given.name, given.description, given.parameters) for given in offered],
        unsupported_tools=[tool.type for tool in body.tools or [] if tool.type != "function"],
        session_id=body.metadata.session_id if body.metadata else None,
        is_stored=body.store is not False,
        stream=bool(body.stream),
        shows_reasoning=bool(body.include_reasoning),
    )


def _system_question(messages: list[ChatMessage]) -> list[HumanMessage]:
    """Return the last message as a user message if it is a system message with text, and no user message or result is
    unanswered; otherwise an empty list.

    Some clients send only a system prompt, and a conversation must end with a message to answer.
    """
    *before, last = messages
    roles = [message.role for message in before if message.role not in _SYSTEM_ROLES]
    open_ended = bool(roles) and roles[-1] != "assistant"
    text = _text(last) if last.role in _SYSTEM_ROLES and not open_ended else ""
    return [HumanMessage(text)] if text else []


def _message(message: ChatMessage) -> AnyMessage | None:
    """Convert a message of the API to a message for the session; None for a system message, whose text is part of the
    instructions.

    Raises `InvalidRequestError` for a user's message without content, a tool's message that names no call, and invalid
    parts or arguments.
    """
    match message.role:
        case "system" | "developer":
            return None
        case "user":
            content = _content(message)
            if not content:
                raise InvalidRequestError("A message of the user's has no content.", "messages")
            return HumanMessage(content)
        case "assistant":
            return AIMessage(_text(message), tool_calls=[_call(call) for call in message.tool_calls or []])
        case "tool":
            if not message.tool_call_id:
                raise InvalidRequestError("A tool's message names no tool_call_id.", "messages")
            return ToolMessage(_content(message), tool_call_id=message.tool_call_id)


def _content(message: ChatMessage) -> str | list[Any]:
    """Return the content of a message: a text (empty if there is none), or LangChain's content blocks if it has several
    parts, or one that is an image or a file.

    Raises `InvalidRequestError` for an incomplete part.
    """
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return simplify_blocks([_block(part) for part in message.content])


def _block(part: ChatPart) -> dict[str, Any]:
    """Convert a part of a message to a LangChain content block: an image, a file with base64, or else text.

    Raises `InvalidRequestError` if an image has no URL, or a file no data URL. A part of type `refusal` is a text, too.
    """
    if part.type == "image_url":
        if part.image_url is None:
            raise InvalidRequestError("A part of type image_url has no image_url.", "messages")
        return image_at(part.image_url.url)
    if part.type == "file":
        found = DATA_URL.fullmatch(part.file.file_data or "") if part.file else None
        if part.file is None or found is None:
            raise InvalidRequestError("A file is given by file_data: a data: URL with base64.", "messages")
        return document_block(mime_type=found[1], base64=found[2], name=part.file.filename)
    return {"type": "text", "text": (part.text if part.type == "text" else part.refusal) or ""}


def _text(message: ChatMessage) -> str:
    """Return the texts and refusals of a message, joined without a separator; empty if it has no content. Other parts,
    such as images, are left out.
    """
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join(part.text or part.refusal or "" for part in message.content)


def _call(call: CallInHistory) -> ToolCall:
    """Convert a call in the client's history to a tool call; raise `InvalidRequestError` if the arguments are not a
    JSON object.
    """
    arguments = parse_arguments(call.id, call.function.arguments, "messages")
    return ToolCall(id=call.id, name=call.function.name, args=arguments, type="tool_call")


def _functions(body: ChatCompletionRequest) -> list[Function]:
    """Return the functions among a request's tools; raise `InvalidRequestError` if a tool of type `function` has no
    function.
    """
    found = [tool.function for tool in body.tools or [] if tool.type == "function"]
    # The field is optional in the schema, because tools of other types do not have it.
    if None in found:
        raise InvalidRequestError("A tool of type function has no function.", "tools")
    return [function for function in found if function is not None]


def _offered(body: ChatCompletionRequest) -> list[Function]:
    """Return the functions that the model may call: the request's functions, restricted by its `tool_choice`; none for
    `none`.

    Raises `InvalidRequestError` if an allowed function is not among the tools, or a tool of type `function` has no
    function.
    """
    functions = _functions(body)
    if body.tool_choice == "none":
        return []
    if not isinstance(body.tool_choice, AllowedChoice):
        return functions
    allowed = allowed_functions(_kinds(body.tool_choice.allowed_tools.tools), _kinds(body.tools or []))
    return [function for function in functions if function.name in allowed]


def _kinds(tools: Iterable[ChatTool]) -> list[tuple[str, str | None]]:
    """Return the type of each tool with the name of its function; the name is None for a tool that is not a
    function.
    """
    return [(tool.type, tool.function.name if tool.function else None) for tool in tools]


def _choice(body: ChatCompletionRequest) -> str | None:
    """Return the name of the function that the model must call, or `any` if it must call one of the allowed ones.

    None if the model may choose, or must not call a tool. Raises `InvalidRequestError` for a name that is not among the
    tools; the names of allowed tools are checked by `_offered`.
    """
    if isinstance(body.tool_choice, AllowedChoice):
        return "any" if body.tool_choice.allowed_tools.mode == "required" else None
    if not isinstance(body.tool_choice, NamedTool):
        return "any" if body.tool_choice == "required" else None
    name = body.tool_choice.function.name
    if name not in {function.name for function in _functions(body)}:
        # The model would be forced to call a tool that it does not have.
        raise not_among(name)
    return name


class _OpenAIDialect(ChatDialect):
    """Formats one answer as a chat completion, whole or as server-sent events.

    Args:
        model: The model's name in the request.
        include_usage: Whether a stream's last chunk has the usage.
    """

    def __init__(self, model: str, token: str, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._metadata = {"id": f"chatcmpl-{token}", "created": int(time.time()), "model": model}

    def resume(self, token: str) -> None:
        """Set the answer's id to `chatcmpl-TOKEN-RANDOM`, made of the token of the request that began the input which
        this request resumes.
        """
        self._metadata["id"] = f"chatcmpl-{token}-{secrets.token_hex(4)}"

    def start_frames(self) -> Iterable[str]:
        """Yield the first chunk, which has the role and an empty text."""
        yield self._chunk({"role": "assistant", "content": ""})

    def text_frames(self, text: str) -> Iterable[str]:
        """Yield a piece of the answer's text as a chunk."""
        yield self._chunk({"content": text})

    def reasoning_frames(self, text: str) -> Iterable[str]:
        """Yield a piece of the model's reasoning as a chunk, in the field `reasoning_content`, which DeepSeek and vLLM
        use.
        """
        yield self._chunk({"reasoning_content": text})

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """Yield a chunk with an empty delta and the progress in the field `progress`."""
        yield self._chunk({}, progress=progress)

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """Yield the last chunks: one for each call of the caller's tools, one for the sources, the finish reason, the
        usage if it was asked for, and `[DONE]`.
        """
        for index, call in enumerate(_calls(outcome)):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        if outcome.citations:
            yield self._chunk({"annotations": _annotations(outcome)})
        yield self._chunk({}, finish=_FINISH[outcome.ending], **status_fields(outcome))
        # The usage has a chunk of its own, without choices, as OpenAI sends it.
        if self._include_usage:
            yield frame({**self._chunks(), "choices": [], "usage": _usage(outcome)})
        yield "data: [DONE]\n\n"

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """Yield an event with a problem in OpenAI's format."""
        yield frame(openai_error(problem))

    def body(self, outcome: ChatOutcome, parts: Sequence[AnswerPart], progress: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the whole completion for a request without a stream.

        The message has the text, or null if there are only calls. Sources, reasoning and calls are in it, and
        `progress` is a field of the completion, only if there are any.
        """
        # Clients expect null only with calls.
        content = outcome.text or (None if outcome.calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if outcome.citations:
            message["annotations"] = _annotations(outcome)
        if reasoning := "".join([part.text for part in parts if isinstance(part, Reasoning)]):
            message["reasoning_content"] = reasoning
        if outcome.calls:
            message["tool_calls"] = _calls(outcome)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[outcome.ending]}
        return {
            **self._metadata,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(outcome),
            **status_fields(outcome),
            **({"progress": progress} if progress else {}),
        }

    def _chunks(self) -> dict[str, Any]:
        """Return the fields that every chunk of the stream has."""
        return {**self._metadata, "object": "chat.completion.chunk"}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **extra: Any) -> str:
        """Return the frame of a chunk.

        Args:
            delta: What the chunk adds to the message.
            finish: The finish reason; None before the end.
            extra: Further fields of the chunk.
        """
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._include_usage else {}
        return frame({**self._chunks(), "choices": [choice], **usage, **extra})


def _annotations(outcome: ChatOutcome) -> list[dict[str, Any]]:
    """Return the sources that an answer cites in the format of the API; empty if it cites none.

    Their positions count from the start of the whole text, and not of the answer, which may follow other messages.
    """
    return [
        {
            "type": "url_citation",
            "url_citation": {
                "url": each["url"],
                "title": each.get("title", ""),
                "start_index": outcome.answer_at + each.get("start", 0),
                "end_index": outcome.answer_at + each.get("end", 0),
            },
        }
        for each in outcome.citations
    ]


def _calls(outcome: ChatOutcome) -> list[dict[str, Any]]:
    """Return the calls of the caller's tools in the format of the API, with the arguments as JSON text."""
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for call in outcome.calls
    ]


def _usage(outcome: ChatOutcome) -> dict[str, int]:
    """Return the input, output and total tokens of an answer in the format of the API."""
    return {
        "prompt_tokens": outcome.input_tokens,
        "completion_tokens": outcome.output_tokens,
        "total_tokens": outcome.input_tokens + outcome.output_tokens,
    }


@router.post(
    "/chat/completions", response_model=Completion, responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}}
)
async def create_chat_completion(
    body: ChatCompletionRequest, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)]
) -> Response:
    """Answer a conversation with one completion, as a whole or, with `stream`, as a stream of chunks."""
    return await endpoint.answer(body, read_chat_request, _dialect)


def _dialect(body: ChatCompletionRequest, token: str) -> _OpenAIDialect:
    """Return the format of the answer to a request, with a last chunk for the usage if the request asks for it.

    `token` is a part of the answer's id.
    """
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    return _OpenAIDialect(body.model, token, include_usage=include_usage)


@router.get("/models", responses=_MODEL_ERRORS)
async def list_models(server: RequestServices) -> ModelList:
    """List the models. The only one is this agent."""
    model = _model(server)
    return ModelList(object="list", data=[model], has_more=False, first_id=model.id, last_id=model.id)


@router.get("/models/{model_id}", responses=_MODEL_ERRORS)
async def get_model(model_id: Annotated[str, Path(description="The agent's name.")], server: RequestServices) -> Model:
    """Describe a model, which must be this agent; the status is 404 for any other name."""
    server.check_model(model_id)
    return _model(server)


def _model(server: Services) -> Model:
    """Return this agent as a model, with the fields of OpenAI's and Anthropic's API; it is displayed by its
    description, and created at the start of the server.
    """
    host = server.chat.runs.host
    return Model(
        id=host.source.name,
        object="model",
        created=host.started,
        owned_by="graph-agent",
        type="model",
        display_name=host.source.description or host.source.name,
        created_at=datetime.fromtimestamp(host.started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lifecycle="active",
    )
