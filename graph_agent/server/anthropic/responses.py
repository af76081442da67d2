"""Formats responses for Anthropic's clients (messages and stream events), and has their routes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from graph_agent.server.admission.body import BodyRoute, run_in_thread
from graph_agent.server.admission.gate import caller
from graph_agent.server.admission.keys import Caller
from graph_agent.server.anthropic.requests import CountRequest, MessagesRequest, read_messages_request, tokens_of
from graph_agent.server.chat.handler import ChatDialect
from graph_agent.server.chat.outcomes import ChatOutcome, Ending
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.errors.responses import anthropic_error
from graph_agent.server.parameters import ChatEndpoint, Services, chat_endpoint, error_responses, services
from graph_agent.server.response_models import AnthropicError, AnthropicMessage, TokenCount
from graph_agent.server.sse import frame

_STOP: dict[Ending, str] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "calls": "tool_use",
    "filtered": "refusal",
}


class AnthropicDialect(ChatDialect):
    """Formats one answer as a message.

    Args:
        model: The model's name.
        input_tokens: An estimate for the first event; the last event has the actual usage.
    """

    def __init__(self, model: str, input_tokens: int) -> None:
        self._model = model
        self._id = f"msg_{uuid.uuid4().hex}"
        self._input_tokens = input_tokens
        self._blocks = 0
        self._open = False
        self._texts: list[list[str]] = []
        """The text of each text block, in pieces."""

    def start_frames(self) -> Iterable[str]:
        """See `ChatDialect.start_frames`."""
        usage = {"input_tokens": self._input_tokens, "output_tokens": 1}
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=message)
        yield _event("ping")

    def text_frames(self, text: str) -> Iterable[str]:
        """See `ChatDialect.text_frames`."""
        if not self._open:
            self._open = True
            self._texts.append([])
            yield _event("content_block_start", index=self._blocks, content_block={"type": "text", "text": ""})
        self._texts[-1].append(text)
        yield _event("content_block_delta", index=self._blocks, delta={"type": "text_delta", "text": text})

    def break_frames(self) -> Iterable[str]:
        """See `ChatDialect.break_frames`: each message is a block."""
        yield from self._stop_frames()

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """See `ChatDialect.progress_frames`: a `ping`, which every client skips, with the field `progress`."""
        yield _event("ping", progress=progress)

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """See `ChatDialect.end_frames`."""
        yield from self._stop_frames()
        for call in outcome.calls:
            empty = {"type": "tool_use", "id": call["id"], "name": call["name"], "input": {}}
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            yield _event("content_block_start", index=self._blocks, content_block=empty)
            yield _event(
                "content_block_delta",
                index=self._blocks,
                delta={"type": "input_json_delta", "partial_json": arguments},
            )
            self._open = True
            yield from self._stop_frames()
        yield _event("message_delta", delta=_ending(outcome), usage=_usage(outcome))
        yield _event("message_stop")

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """See `ChatDialect.error_frames`."""
        yield frame(anthropic_error(problem), "error")

    def body(self, outcome: ChatOutcome, progress: list[dict[str, Any]]) -> dict[str, Any]:
        """See `ChatDialect.body`."""
        content: list[dict[str, Any]] = [{"type": "text", "text": "".join(text)} for text in self._texts]
        content += [
            {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["arguments"]}
            for call in outcome.calls
        ]
        extra = {"progress": progress} if progress else {}
        return {**self._message(content), **_ending(outcome), "usage": _usage(outcome), **extra}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model, "content": content}

    def _stop_frames(self) -> Iterable[str]:
        if self._open:
            yield _event("content_block_stop", index=self._blocks)
            self._open = False
            self._blocks += 1


def _event(type_: str, **fields: Any) -> str:
    return frame({"type": type_, **fields}, type_)


def _ending(outcome: ChatOutcome) -> dict[str, Any]:
    return {"stop_reason": _STOP[outcome.ending], "stop_sequence": outcome.stop_sequence}


def _usage(outcome: ChatOutcome) -> dict[str, int]:
    return {"input_tokens": outcome.input_tokens, "output_tokens": outcome.output_tokens}


_ERRORS = error_responses(
    AnthropicError,
    {
        500: "The server failed",
        502: "The model's provider failed",
        503: "Another process holds the session, or the database is locked",
        507: "The database is full",
        529: "The server is stopping",
    },
)

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=BodyRoute)


@router.post(
    "",
    response_model=AnthropicMessage,
    responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def create_message(body: MessagesRequest, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)]) -> Response:
    """Answer a conversation."""
    return await endpoint.answer(body, read_messages_request, _dialect)


def _dialect(body: MessagesRequest) -> AnthropicDialect:
    return AnthropicDialect(body.model, tokens_of(body))


@router.post("/count_tokens", responses=_ERRORS)
async def count_tokens(
    request: Request,
    body: CountRequest,
    sender: Annotated[Caller, Depends(caller)],
    server: Annotated[Services, Depends(services)],
) -> TokenCount:
    """Estimate the number of tokens of a request, at 4 characters per token."""
    server.check_body(body)
    with server.chat.limits.slot(sender.name):
        return TokenCount(input_tokens=await run_in_thread(request, tokens_of, body))
