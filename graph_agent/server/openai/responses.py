"""Responses in OpenAI's format: completions and chunks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable
from typing import Any

from graph_agent.server.chat.handler import ChatDialect
from graph_agent.server.chat.outcomes import ChatOutcome, Ending
from graph_agent.server.errors.openai import openai_error
from graph_agent.server.errors.problems import ProblemError
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
        self._metadata = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def start_frames(self) -> Iterable[str]:
        """See `ChatDialect.start_frames`."""
        yield self._chunk({"role": "assistant", "content": ""})

    def text_frames(self, text: str) -> Iterable[str]:
        """See `ChatDialect.text_frames`."""
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
        message: dict[str, Any] = {"role": "assistant", "content": outcome.text or None, "refusal": None}
        if outcome.calls:
            message["tool_calls"] = _calls(outcome)
        elif not outcome.text:
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
