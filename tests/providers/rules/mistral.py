"""What Mistral's chat completions refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.providers import checks
from tests.providers.exchange import Request
from tests.providers.rule import Check, Found, Rule, words
from tests.providers.rules.bodies import CALL, CALLED, IMAGE, USER, flat_error, tool

_FIELDS = words(
    "model messages temperature top_p max_tokens stream stop random_seed metadata response_format tools"
    " tool_choice presence_penalty frequency_penalty n prediction parallel_tool_calls prompt_mode"
    " reasoning_effort safe_prompt guardrails prompt_cache_key"
)
_IN_MESSAGE = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls", "prefix"},
    "tool": {"role", "content", "name", "tool_call_id"},
}
_ORDER = "invalid_request_message_order"


def _last_role(request: Request) -> Found | None:
    last = (request.body.get("messages") or [{}])[-1]
    fine = last.get("role") in {"user", "tool"} or (last.get("role") == "assistant" and last.get("prefix") is True)
    return None if fine else {"role": last.get("role")}


def _unknown_in_message(request: Request) -> Found | None:
    for index, message in enumerate(request.body.get("messages") or []):
        role = message.get("role")
        if unknown := message.keys() - _IN_MESSAGE.get(role, message.keys()):
            return {"index": index, "role": role, "name": min(unknown), "value": message[min(unknown)]}
    return None


def _unequal_results(request: Request) -> Found | None:
    # Another rule refuses a message of a user behind a result.
    found = checks.unequal_results(request)
    return {} if found is not None else None


def _schema_identity(path: tuple[str, ...], schema: dict[str, Any]) -> Found | None:
    return {} if {"$schema", "$id"} & schema.keys() else None


def _detail(*loc: Any) -> dict[str, Any]:
    inner = {
        "type": "extra_forbidden",
        "loc": ["body", *loc],
        "msg": "Extra inputs are not permitted",
        "input": "{value}",
    }
    return flat_error({"detail": [inner]}, kind="invalid_request_error")


def _order(id_: str, check: Check, words: str, sample: Mapping[str, Any]) -> Rule:
    return Rule(id_, check, 400, flat_error(words, kind=_ORDER, code="3230"), sample)


_MINE: dict[str, Any] = {**CALLED, "tool_calls": [{**CALL, "id": "abcdefghi"}]}
_RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "ok"}

RULES: tuple[Rule, ...] = (
    Rule("mistral-17", checks.fields_unknown(*_FIELDS), 422, _detail("{name}"), {"max_completion_tokens": 32000}),
    Rule(
        "mistral-18",
        _unknown_in_message,
        422,
        _detail("messages", "{index}", "{role}", "{name}"),
        {"messages": [{"role": "user", "name": "a", "content": "hi"}]},
    ),
    _order(
        "mistral-02",
        checks.role_behind("tool", "user"),
        "Unexpected role 'tool' after role 'user'",
        {"messages": [USER, _RESULT]},
    ),
    _order(
        "mistral-01",
        checks.role_behind("user", "tool"),
        "Unexpected role 'user' after role 'tool'",
        {"messages": [USER, _MINE, _RESULT, USER]},
    ),
    _order(
        "mistral-system",
        checks.role_behind("system", "tool"),
        "Unexpected role 'system' after role 'tool'",
        {"messages": [USER, _MINE, _RESULT, {"role": "system", "content": "s"}]},
    ),
    Rule(
        "mistral-05",
        checks.empty_message("assistant"),
        400,
        flat_error(
            "Assistant message must have either content or tool_calls, but not none.",
            kind="invalid_request_assistant_message",
            code="3240",
        ),
        {"messages": [USER, {"role": "assistant", "content": ""}, USER]},
    ),
    _order(
        "mistral-04",
        _unequal_results,
        "Not the same number of function calls and responses",
        {"messages": [USER, {**_MINE, "tool_calls": [*_MINE["tool_calls"], {**CALL, "id": "abcdefghj"}]}, _RESULT]},
    ),
    Rule(
        "mistral-06",
        checks.ids_of_calls(r"[a-zA-Z0-9]{9}"),
        400,
        flat_error(
            "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
            kind="invalid_function_call",
            code="3280",
        ),
        {"messages": [USER, CALLED, {**_RESULT, "tool_call_id": "call_1"}]},
    ),
    Rule(
        "mistral-orphan",
        checks.orphan_results,
        400,
        flat_error("Unexpected tool call id {id} in tool results", kind="invalid_request_message_order", code="3230"),
        {"messages": [USER, _MINE, {**_RESULT, "tool_call_id": "zzzzzzzzz"}]},
    ),
    Rule(
        "mistral-names",
        lambda request: (
            checks.names_of_tools(r"[a-zA-Z0-9_-]{1,64}")(request)
            or checks.names_of_calls(r"[a-zA-Z0-9_-]{1,64}")(request)
        ),
        400,
        flat_error(
            "Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and dashes, with "
            "a maximum length of 64.",
            kind="invalid_request_error",
            code="3280",
        ),
        {"tools": [tool(name="db.query")]},
    ),
    Rule(
        "mistral-08",
        checks.schema_of_tool(_schema_identity),
        400,
        flat_error("Invalid tool schema", kind="invalid_request_error"),
        {"tools": [tool(parameters={"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})]},
    ),
    Rule(
        "mistral-09",
        checks.parts_in("tool", "image", "document", "other"),
        400,
        "3 validation errors for ToolMessage content.list[TextChunk].{part}.type Input should be "
        "<ChunkTypes.text: 'text'>",
        {"messages": [USER, _MINE, {**_RESULT, "content": [IMAGE]}]},
    ),
    Rule(
        "mistral-19",
        checks.field_given("tools", values=([],)),
        422,
        flat_error("Extra inputs are not permitted", kind="invalid_request_error", code=3001),
        {"tools": []},
    ),
    Rule(
        "mistral-03",
        _last_role,
        400,
        flat_error(
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got {role}",
            kind="invalid_request_error",
        ),
        {"messages": [USER, {"role": "assistant", "content": "a"}]},
    ),
)
"""Rules of every model; `mistral-10` is one case of `mistral-18`."""

FAULTS: Mapping[str, Rule] = {
    "overflow": Rule(
        "mistral-15",
        None,
        400,
        flat_error(
            "Prompt contains {given} tokens and 0 draft tokens, too large for model with {limit} maximum "
            "context length",
            kind="invalid_request_prompt",
            code="3051",
        ),
    ),
    "rate_limit": Rule(
        "mistral-16",
        None,
        429,
        flat_error(
            "Service tier capacity exceeded for this model.", kind="service_tier_capacity_exceeded", code="3505"
        ),
    ),
    "quota": Rule("mistral-quota", None, 402, flat_error("Payment required.", kind="payment_required", code="1901")),
    "server_error": Rule(
        "mistral-500", None, 503, flat_error("Internal server error", kind="internal_server_error", code="1000")
    ),
    "auth": Rule("mistral-401", None, 401, {"detail": "Unauthorized"}),
}
"""Failures that no request causes."""
