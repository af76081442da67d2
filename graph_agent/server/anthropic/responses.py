"""Responses in Anthropic's format: messages and stream events."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

from graph_agent.server.chat.handler import ChatDialect
from graph_agent.server.chat.outcomes import ChatOutcome, Ending
from graph_agent.server.errors.anthropic import anthropic_error
from graph_agent.server.errors.problems import ProblemError
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
            yield _event("content_block_start", index=self._blocks, content_block={"type": "text", "text": ""})
        yield _event("content_block_delta", index=self._blocks, delta={"type": "text_delta", "text": text})

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
        content: list[dict[str, Any]] = [{"type": "text", "text": outcome.text}] if outcome.text else []
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
