"""Formats responses for OpenAI's clients (completions and chunks), and has their routes."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.responses import Response

from graph_agent.server.admission.body import BodyRoute
from graph_agent.server.chat.handler import ChatDialect
from graph_agent.server.chat.outcomes import ChatOutcome, Ending
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.errors.responses import openai_error
from graph_agent.server.openai.requests import ChatCompletionRequest, read_chat_request
from graph_agent.server.parameters import ChatEndpoint, Services, chat_endpoint, error_responses, services
from graph_agent.server.response_models import Completion, Model, ModelList, OpenAIError
from graph_agent.server.sse import frame

_FINISH: dict[Ending, str] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "calls": "tool_calls",
    "filtered": "content_filter",
}


class OpenAIDialect(ChatDialect):
    """Formats one answer as a chat completion.

    Args:
        model: The model's name.
        include_usage: Whether a stream ends with a chunk that has the usage.
    """

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._text: list[str] = []
        """The text so far, in pieces."""
        self._metadata = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def start_frames(self) -> Iterable[str]:
        """See `ChatDialect.start_frames`."""
        yield self._chunk({"role": "assistant", "content": ""})

    def text_frames(self, text: str) -> Iterable[str]:
        """See `ChatDialect.text_frames`."""
        self._text.append(text)
        yield self._chunk({"content": text})

    def progress_frames(self, progress: dict[str, Any]) -> Iterable[str]:
        """See `ChatDialect.progress_frames`: a chunk with an empty delta and the field `progress`."""
        yield self._chunk({}, progress=progress)

    def end_frames(self, outcome: ChatOutcome) -> Iterable[str]:
        """See `ChatDialect.end_frames`."""
        for index, call in enumerate(_calls(outcome)):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, finish=_FINISH[outcome.ending])
        if self._include_usage:
            yield frame({**self._chunks(), "choices": [], "usage": _usage(outcome)})
        yield "data: [DONE]\n\n"

    def error_frames(self, problem: ProblemError) -> Iterable[str]:
        """See `ChatDialect.error_frames`."""
        yield frame(openai_error(problem))

    def body(self, outcome: ChatOutcome, progress: list[dict[str, Any]]) -> dict[str, Any]:
        """See `ChatDialect.body`."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text) or None, "refusal": None}
        if outcome.calls:
            message["tool_calls"] = _calls(outcome)
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[outcome.ending]}
        return {
            **self._metadata,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(outcome),
            **({"progress": progress} if progress else {}),
        }

    def _chunks(self) -> dict[str, Any]:
        return {**self._metadata, "object": "chat.completion.chunk"}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **extra: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._include_usage else {}
        return frame({**self._chunks(), "choices": [choice], **usage, **extra})


def _calls(outcome: ChatOutcome) -> list[dict[str, Any]]:
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for call in outcome.calls
    ]


def _usage(outcome: ChatOutcome) -> dict[str, int]:
    return {
        "prompt_tokens": outcome.input_tokens,
        "completion_tokens": outcome.output_tokens,
        "total_tokens": outcome.input_tokens + outcome.output_tokens,
    }


_ERRORS = error_responses(
    OpenAIError,
    {
        500: "The server failed",
        502: "The model's provider failed",
        503: "The server is stopping, another process holds the session, or the database is locked",
        507: "The database is full",
    },
)

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=BodyRoute)


@router.post(
    "/chat/completions",
    response_model=Completion,
    responses={**_ERRORS, 200: {"content": {"text/event-stream": {}}}},
)
async def create_chat_completion(
    body: ChatCompletionRequest, endpoint: Annotated[ChatEndpoint, Depends(chat_endpoint)]
) -> Response:
    """Answer a conversation."""
    return await endpoint.answer(body, read_chat_request, _dialect)


def _dialect(body: ChatCompletionRequest) -> OpenAIDialect:
    return OpenAIDialect(body.model, include_usage=bool(body.stream_options and body.stream_options.include_usage))


_MODEL_ERRORS: dict[int | str, dict[str, Any]] = {
    status: error for status, error in _ERRORS.items() if status in (400, 401, 403, 404, 408, 413, 503)
}


@router.get("/models", responses=_MODEL_ERRORS)
async def list_models(server: Annotated[Services, Depends(services)]) -> ModelList:
    """List the models; the only model is this agent."""
    model = _model(server)
    return ModelList(object="list", data=[model], has_more=False, first_id=model.id, last_id=model.id)


@router.get("/models/{model_id}", responses=_MODEL_ERRORS)
async def get_model(
    model_id: Annotated[str, Path(description="The agent's name.")], server: Annotated[Services, Depends(services)]
) -> Model:
    """Describe one model."""
    server.check_model(model_id)
    return _model(server)


def _model(server: Services) -> Model:
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
