"""What Cohere's chat API, version 2, refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.providers import checks
from tests.providers.exchange import Request
from tests.providers.rule import Found, Rule, words
from tests.providers.rules.bodies import CALLED, IMAGE, RESULT, USER, tool

_FIELDS = words(
    "model messages tools documents citation_options response_format safety_mode max_tokens stop_sequences"
    " temperature seed frequency_penalty presence_penalty k p logprobs tool_choice strict_tools thinking"
    " priority stream"
)
_IN_TOOL = {"name", "description", "parameters"}
_IN_MESSAGE = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "tool_plan", "citations"},
    "tool": {"role", "content", "tool_call_id"},
}
_UNKNOWN = "unknown field: parameter '{name}' is not a valid field. For proper usage, please refer to https://docs.cohere.com/reference/chat"


def _text_with_calls(request: Request) -> Found | None:
    for index, message in enumerate(request.body.get("messages") or []):
        content = message.get("content") or []
        kinds = ["text"] if isinstance(content, str) else [part.get("type") for part in content]
        if message.get("tool_calls") and "text" in kinds:
            return {"index": index}
    return None


def _unknown_fields(request: Request) -> Found | None:
    for each in request.body.get("tools") or []:
        if unknown := (each.get("function") or {}).keys() - _IN_TOOL:
            return {"name": min(unknown)}
    for message in request.body.get("messages") or []:
        if unknown := message.keys() - _IN_MESSAGE.get(message.get("role"), message.keys()):
            return {"name": min(unknown)}
    return checks.fields_unknown(*_FIELDS)(request)


def _choice(request: Request) -> Found | None:
    return {} if request.tool_choice not in (None, "REQUIRED", "NONE") else None


def _rule(id_: str, check: Any, message: str, sample: Mapping[str, Any] | None = None, *, status: int = 400) -> Rule:
    return Rule(id_, check, status, {"id": "request_1", "message": message}, sample)


RULES: tuple[Rule, ...] = (
    _rule("cohere-03", _unknown_fields, _UNKNOWN, {"tools": [tool(strict=True)]}, status=422),
    _rule(
        "cohere-01",
        _text_with_calls,
        "text content is not allowed when tool_calls are provided. If you wish to pass a tool plan, "
        "either pass thinking content (with thinking enabled) or use 'tool_plan': 'messages[{index}].content[0]'",
        {"messages": [USER, {**CALLED, "content": "I will look."}, RESULT]},
    ),
    _rule(
        "cohere-02",
        checks.empty_message("assistant", "user"),
        "invalid request: message must be at least 1 token long or tool results must be specified.",
        {"messages": [USER, {"role": "assistant", "content": ""}, USER]},
    ),
    _rule(
        "cohere-calls",
        checks.unanswered_calls,
        "invalid request: all elements in tool_calls must have a tool message: missing ids {ids}.",
        {"messages": [USER, CALLED, USER]},
    ),
    _rule(
        "cohere-results",
        checks.orphan_results,
        "invalid request: tool message at messages[{index}] has no tool call with id {id} before it.",
        {"messages": [USER, RESULT]},
    ),
    _rule(
        "cohere-04",
        checks.parts_in("tool", "image", "other"),
        "invalid request: messages[{index}].content[{part}] must be of type text or document.",
        {"messages": [USER, CALLED, {**RESULT, "content": [IMAGE]}]},
    ),
    _rule(
        "cohere-arguments",
        checks.arguments_no_json,
        "invalid request: tool call '{id}' has invalid arguments.",
        {
            "messages": [
                USER,
                {**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "function": {"name": "f", "arguments": "{"}}]},
                RESULT,
            ]
        },
    ),
    _rule(
        "cohere-10",
        _choice,
        "invalid type: parameter tool_choice is of type string but should be one of REQUIRED, NONE",
        {"tool_choice": "none"},
    ),
)
"""Rules of every model."""

FAULTS: Mapping[str, Rule] = {
    "overflow": _rule(
        "cohere-08",
        None,
        "too many tokens: size limit exceeded by {over} tokens. Try using shorter or fewer inputs.",
    ),
    "rate_limit": _rule(
        "cohere-rate",
        None,
        "You are using a Trial key, which is limited to 20 API calls / minute.",
        status=429,
    ),
    "quota": _rule(
        "cohere-quota",
        None,
        "You are using a Trial key, which is limited to 1000 API calls / month. You can continue to use "
        "the Trial key for free or upgrade to a Production key with higher rate limits.",
        status=429,
    ),
    "server_error": _rule("cohere-overload", None, "the service is temporarily unavailable", status=503),
    "auth": _rule("cohere-09", None, "invalid api token", status=401),
}
"""Failures that no request causes."""
