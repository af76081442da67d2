"""What Ollama's own API refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.providers import checks
from tests.providers.exchange import Request
from tests.providers.rule import Found, Rule
from tests.providers.rules.bodies import FUNCTION, USER

_ROLES = ("system", "user", "assistant", "tool")


def _text_as_arguments(request: Request) -> Found | None:
    given = [
        (call.get("function") or {}).get("arguments", {})
        for message in request.body.get("messages") or []
        for call in message.get("tool_calls") or []
    ]
    return {} if any(not isinstance(each, dict) for each in given) else None


def _type_of_content(request: Request) -> Found | None:
    for message in request.body.get("messages") or []:
        content = message.get("content", "")
        if not isinstance(content, str | None):
            return {"type": "array" if isinstance(content, list) else "object"}
    return None


def _thinks(request: Request) -> Found | None:
    return {"model": request.model} if request.body.get("think") else None


def _role(request: Request) -> Found | None:
    known = [message.role in _ROLES for message in request.messages]
    return None if all(known) else {}


def _rule(id_: str, check: Any, words: str, sample: Mapping[str, Any] | None = None, *, status: int = 400) -> Rule:
    return Rule(id_, check, status, {"error": words}, sample)


RULES: tuple[Rule, ...] = (
    _rule(
        "ollama-11",
        _text_as_arguments,
        "json: cannot unmarshal string into Go struct field ToolCallFunction.messages.tool_calls.function.arguments of "
        "type api.ToolCallFunctionArguments",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
    ),
    _rule(
        "ollama-12",
        _type_of_content,
        "json: cannot unmarshal {type} into Go struct field ChatRequest.messages.content of type string",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ),
    _rule("ollama-role", _role, "invalid role", {"messages": [USER, {"role": "model", "content": "hi"}]}),
)
"""Rules of every model."""

NO_TOOLS = _rule(
    "ollama-03",
    checks.tools_offered,
    "registry.ollama.ai/library/gemma:2b does not support tools",
    {"tools": [FUNCTION]},
)
NO_THINKING = _rule("ollama-13", _thinks, '"{model}" does not support thinking', {"think": True})

FAULTS: Mapping[str, Rule] = {
    "rate_limit": _rule(
        "ollama-busy", None, "server busy, please try again.  maximum pending requests exceeded", status=503
    ),
    "quota": _rule(
        "ollama-09",
        None,
        "you (name) have reached your session usage limit, please wait or upgrade to continue",
        status=429,
    ),
    "server_error": _rule("ollama-500", None, "llama runner process has terminated: signal: killed", status=500),
    "auth": _rule("ollama-401", None, "unauthorized", status=401),
}
"""Failures that no request causes. A request that is too long is cut, not refused."""
