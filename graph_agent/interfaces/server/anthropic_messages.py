"""Implements Anthropic's Messages API: parses request bodies into `ChatRequest`, writes messages and stream events."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool
from pydantic import Field, model_validator
from starlette.responses import Response

from graph_agent.base._internal.media import estimated_tokens
from graph_agent.interfaces.server.admission.body import BodyRoute, run_in_thread
from graph_agent.interfaces.server.anthropic_blocks import AnthropicInput, Block, langchain_messages, text_of_blocks
from graph_agent.interfaces.server.chat import schemas
from graph_agent.interfaces.server.chat.handler import AnswerPart, ChatDialect, make_frames, status_fields
from graph_agent.interfaces.server.chat.outcomes import ChatOutcome, Ending
from graph_agent.interfaces.server.chat.schemas import ChatRequest
from graph_agent.interfaces.server.error_responses import anthropic_error
from graph_agent.interfaces.server.parameters import ChatEndpoint, RequestServices, Sender, chat_endpoint
from graph_agent.interfaces.server.problems import InvalidRequestError, ProblemError
from graph_agent.interfaces.server.response_models import AnthropicError, AnthropicMessage, TokenCount, error_responses
from graph_agent.interfaces.server.sse import frame

_STOP: dict[Ending, str] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "calls": "tool_use",
    "filtered": "refusal",
}
"""How an answer ended → Anthropic's `stop_reason`."""
_ERRORS = error_responses(
    AnthropicError, {503: "Another process holds the session, or the database is locked", 529: "The server is stopping"}
)

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=BodyRoute)


class AnthropicTool(schemas.RequestObject):
    """A tool of the caller. Tools of another type than `custom`, which is the default, cannot be run here."""

    name: str = Field("", description="Letters, digits, `_` and `-`, 64 at most.")
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class AnthropicToolChoice(schemas.RequestObject):
    """Whether the model must call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnswerFormat(schemas.RequestObject):
    """The format of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(schemas.RequestObject):
    """Options of the answer."""

    format: AnswerFormat | None = None
    # Annotated, because `typing` would return an equal union of another package, which may list the values differently.
    effort: Annotated[Literal["low", "medium", "high", "xhigh", "max"], "in this order"] | None = None


class Thinking(schemas.RequestObject):
    """Whether the model's reasoning is a part of the answer; how much it thinks is set by `output_config.effort`."""

    type: str
    """Reasoning is sent for any type but `disabled`."""
    display: str | None = None
    """`omitted` sends none."""


class CountRequest(schemas.RequestObject):
    """A request to count tokens. Fields that are not listed are accepted and have no effect."""

    model: str
    messages: schemas.ListOf[AnthropicInput] = Field(min_length=1)
    system: str | schemas.ListOf[Block] | None = None
    tools: schemas.ListOf[AnthropicTool] | None = None

    _clean = model_validator(mode="before")(schemas.clean_body)


class MessagesRequest(CountRequest):
    """A request for a message. Fields that are not listed are accepted and have no effect."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_p: float | None = Field(None, ge=0, le=1)
    stop_sequences: schemas.ListOf[str] | None = None
    metadata: schemas.SessionMetadata | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: AnswerFormat | None = Field(
        None, description="The older name of `output_config.format`, which overrides it."
    )
    thinking: Thinking | None = None
    thread: dict[str, Any] | None = Field(None, description="Not supported: anything but null is refused.")
    max_agentic_loops: schemas.AgenticLoops = None


def read_messages_request(body: MessagesRequest) -> ChatRequest:
    """Convert the body of a request to a `ChatRequest`.

    With the tool choice `none`, the client's tools are left out; the format in `output_config` takes precedence over
    `output_format`. Headers are not considered, so the session is that of the body's metadata, if any.

    Raises `ProblemError` for an unsupported or invalid value. For a `thread` it has the error code after which
    Anthropic's clients send the whole conversation.
    """
    if body.thread is not None:
        # Clients start threads by default, and send the whole conversation after this error code.
        raise ProblemError(
            "invalid",
            "Threads are not kept here: leave thread out and send the whole conversation, or name a session.",
            param="thread",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
    output = body.output_config or OutputConfig()
    answer_format = output.format or body.output_format
    options: dict[str, Any] = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_output_tokens": body.max_tokens,
        "stop": tuple(body.stop_sequences) if body.stop_sequences else None,
        "reasoning_effort": output.effort,
        "response_schema": schemas.checked_schema(answer_format.schema_, "output_config") if answer_format else None,
        "client_tool_choice": _choice(body),
        "parallel_client_calls": False if body.tool_choice and body.tool_choice.disable_parallel_tool_use else None,
        "max_agentic_loops": body.max_agentic_loops,
    }
    no_tools = body.tool_choice is not None and body.tool_choice.type == "none"
    return ChatRequest(
        messages=[read for message in body.messages for read in langchain_messages(message)],
        instructions=_instructions(body),
        options={name: value for name, value in options.items() if value is not None},
        client_tools=[] if no_tools else _tools(body),
        unsupported_tools=[tool.type or "" for tool in body.tools or [] if not _is_function(tool)],
        session_id=body.metadata.session_id if body.metadata else None,
        stream=bool(body.stream),
        shows_reasoning=body.thinking is not None
        and body.thinking.type != "disabled"
        and body.thinking.display != "omitted",
    )


def tokens_of(body: CountRequest) -> int:
    """Estimate the tokens of a request's messages, instructions and tools at 4 characters per token; at least 1.

    Raises `InvalidRequestError` for a message or tool that cannot be converted.
    """
    messages = [read for message in body.messages for read in langchain_messages(message)]
    tools: list[BaseTool | dict[str, Any]] = [*_tools(body)]
    # Some clients divide by the number.
    return max(1, estimated_tokens([HumanMessage(_instructions(body)), *messages], tools=tools or None))


def _instructions(body: CountRequest) -> str:
    """Return the system prompt of a request and then the texts of its system messages, joined by empty lines.

    Raises `InvalidRequestError` for a block of an unsupported type.
    """
    system = [message.content for message in body.messages if message.role == "system"]
    return "\n\n".join(text for content in (body.system, *system) if (text := text_of_blocks(content)))


def _is_function(tool: AnthropicTool) -> bool:
    """Return whether a tool is a function that the caller runs, and not a tool that Anthropic's servers run."""
    return tool.type in (None, "custom")


def _tools(body: CountRequest) -> list[dict[str, Any]]:
    """Return the caller's functions of a request in OpenAI's format. Other tools are left out.

    Raises `InvalidRequestError` if a function has no schema, or no valid name.
    """
    return [_tool(tool) for tool in body.tools or [] if _is_function(tool)]


def _tool(tool: AnthropicTool) -> dict[str, Any]:
    """Convert a tool to OpenAI's format; raise `InvalidRequestError` if it has no schema, or no valid name."""
    if tool.input_schema is None or not re.fullmatch(schemas.FUNCTION_NAME, tool.name):
        raise InvalidRequestError(f"The tool {tool.name!r} has no input_schema, or no valid name.", "tools")
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _choice(body: MessagesRequest) -> str | None:
    """Return the name of the tool that the model must call, or `any` if it must call one of the client's tools.

    None if the model may choose, or must not call a tool. Raises `InvalidRequestError` for a name that is not among the
    client's functions.
    """
    choice = body.tool_choice
    if choice is None or choice.type in ("auto", "none"):
        return None
    if choice.type == "any":
        return "any"
    if choice.name is None or choice.name not in {tool.name for tool in body.tools or [] if _is_function(tool)}:
        raise InvalidRequestError(f"tool_choice names {choice.name!r}, which is not among the tools.")
    return choice.name


class _AnthropicDialect(ChatDialect):
    """Formats one answer as a message of the API, whole or as server-sent events.

    The first event has an estimate of the input tokens; the last one has the usage.

    Args:
        model: The model's name in the request.
        token: Names the answer.
        input_tokens: Estimate of the request's tokens.
    """

    def __init__(self, model: str, token: str, input_tokens: int) -> None:
        self._model = model
        self._id = f"msg_{token}"
        self._input_tokens = input_tokens
        self._blocks = 0
        """Index of the open block, or of the next one."""
        self._open: Literal["text", "thinking", "tool_use"] | None = None
        """Type of the open block; None if none is open."""
        self._texts: list[tuple[Literal["text", "thinking"], list[str]]] = []
        """Type and text, in pieces, of each block of text or reasoning."""

    def resume(self, token: str) -> None:
        """Set the answer's id to `msg_TOKEN-RANDOM`, made of the token of the request that began the input which this
        request resumes.
        """
        self._id = f"msg_{token}-{secrets.token_hex(4)}"

    def start_frames(self) -> Iterable[str]:
        """Yield the event `message_start` with the estimated usage, and a `ping`."""
        # The API reports input tokens first; the real ones are known only at the end.
        usage = {"input_tokens": self._input_tokens, "output_tokens": 1}
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=message)
        yield _event("ping")

    def text_frames(self, text: str) -> Iterable[str]:
        """Yield a piece of the answer's text, after the start of a text block unless one is open."""
        yield from self._piece_frames("text", text)

    def reasoning_frames(self, text: str) -> Iterable[str]:
        """Yield a piece of the model's reasoning, after the start of a `thinking` block unless one is open."""
        yield from self._piece_frames("thinking", text)

    def _piece_frames(self, type_: Literal["text", "thinking"], text: str) -> Iterable[str]:
        """Yield a piece of text or reasoning, and keep it for the body of an answer that is not streamed.

        Unless the open block is of this type, it is ended and a new block is started before.
        """
        if self._open != type_:
            yield from self._stop_frames()
            self._open = type_
            self._texts.append((type_, []))
            yield _event("content_block_start", index=self._blocks, content_block=_block(type_, ""))
        self._texts[-1][1].append(text)
        yield _event("content_block_delta", index=self._blocks, delta={"type": f"{type_}_delta", type_: text})

    def break_frames(self) -> Iterable[str]:
        """Yield the end of the open block: each message of the answer is a block of its own."""
        yield from self._stop_frames()

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """Yield a `ping`, which every client skips, with the progress in the field `progress`."""
        yield _event("ping", progress=progress)

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """Yield the last events: the citations, the calls of the caller's tools, the stop reason and the usage, and the
        end.

        Citations are sent only if the last open block is one of text.
        """
        for citation in _citations(outcome) if self._open == "text" else ():
            yield _event(
                "content_block_delta", index=self._blocks, delta={"type": "citations_delta", "citation": citation}
            )
        yield from self._stop_frames()
        for call in outcome.calls:
            empty = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            yield _event("content_block_start", index=self._blocks, content_block=empty)
            yield _event(
                "content_block_delta", index=self._blocks, delta={"type": "input_json_delta", "partial_json": arguments}
            )
            self._open = "tool_use"
            yield from self._stop_frames()
        yield _event("message_delta", delta=_ending(outcome), usage=_usage(outcome), **status_fields(outcome))
        yield _event("message_stop")

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """Yield an `error` event with a problem."""
        yield frame(anthropic_error(problem), "error")

    def body(self, outcome: ChatOutcome, parts: Sequence[AnswerPart], progress: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the whole message for a request without a stream: blocks of text and reasoning in order, then the
        calls.

        Citations are added to the last block before the calls, and only if it is one of text. `progress` is added as a
        field of its own if it is not empty.
        """
        make_frames(self, outcome, parts)
        content = [_block(type_, "".join(pieces)) for type_, pieces in self._texts]
        if (citations := _citations(outcome)) and content and content[-1]["type"] == "text":
            content[-1]["citations"] = citations
        content += [
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
            for call in outcome.calls
        ]
        extra = {**status_fields(outcome), **({"progress": progress} if progress else {})}
        return {**self._message(content), **_ending(outcome), "usage": _usage(outcome), **extra}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the fields that every form of the message has, with its content blocks."""
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}

    def _stop_frames(self) -> Iterable[str]:
        """Yield the end of the open block, and count the block; nothing if none is open."""
        if self._open:
            yield _event("content_block_stop", index=self._blocks)
            self._open = None
            self._blocks += 1


def _block(type_: Literal["text", "thinking"], text: str) -> dict[str, Any]:
    """Return a block of text or reasoning. Reasoning has an empty signature.

    The signature of the provider is stored in the session; reasoning that a client sends back is ignored.
    """
    return {"type": type_, type_: text, **({"signature": ""} if type_ == "thinking" else {})}


def _citations(outcome: ChatOutcome) -> list[dict[str, Any]]:
    """Return the sources that an answer cites in the format of the API. Their encrypted index is empty."""
    return [
        {
            "type": "web_search_result_location",
            "url": each["url"],
            "title": each.get("title"),
            "cited_text": each.get("cited_text", ""),
            "encrypted_index": "",
        }
        for each in outcome.citations
    ]


def _event(type_: str, **fields: Any) -> str:
    """Return the frame of a server-sent event of the type `type_` with further fields."""
    return frame({"type": type_, **fields}, type_)


def _ending(outcome: ChatOutcome) -> dict[str, Any]:
    """Return the fields of the API for how an answer ended: the stop reason and the stop sequence."""
    return {"stop_reason": _STOP[outcome.ending], "stop_sequence": outcome.stop_sequence}


def _usage(outcome: ChatOutcome) -> dict[str, int]:
    """Return the input and output tokens of an answer in the format of the API."""
    return {"input_tokens": outcome.input_tokens, "output_tokens": outcome.output_tokens}


@router.post("", response_model=AnthropicMessage, responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}})
async def create_message(body: MessagesRequest, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)]) -> Response:
    """Answer a conversation with one message, as a whole or, with `stream`, as a stream of events."""
    return await endpoint.answer(body, read_messages_request, _dialect)


def _dialect(body: MessagesRequest, token: str) -> _AnthropicDialect:
    """Return the format of the answer to a request, with an estimate of the request's tokens; `token` is a part of the
    answer's id.

    Raises `InvalidRequestError` for a message or tool that cannot be converted.
    """
    return _AnthropicDialect(body.model, token, tokens_of(body))


@router.post("/count_tokens", responses=_ERRORS)
async def count_tokens(request: Request, body: CountRequest, sender: Sender, server: RequestServices) -> TokenCount:
    """Estimate the number of tokens of a request, at 4 characters per token. No model is asked.

    The body is checked, and the caller's limit of requests at the same time applies.
    """
    server.check_body(body)
    with server.chat.limits.slot(sender.name):
        return TokenCount(input_tokens=await run_in_thread(request, tokens_of, body))
