"""What may be wrong with a request, whichever protocol carried it. Each check gives the values for a rule's body."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from tests.providers.exchange import Message, Request
from tests.providers.rule import Check, Found


def unanswered_calls(request: Request) -> Found | None:
    """Calls of an assistant message that no tool message behind it answers, before another role follows."""
    for at, message in enumerate(request.messages):
        if not message.calls:
            continue
        answered = {result.call_id for result in _results_behind(request, at)}
        missing = [call.id for call in message.calls if call.id not in answered]
        if missing:
            return {"ids": ", ".join(missing), "list": str(missing), "index": at}
    return None


def orphan_results(request: Request) -> Found | None:
    """A tool message that belongs to no call of the assistant message before it."""
    ids: set[str] = set()
    for at, message in enumerate(request.messages):
        if message.role == "tool":
            if message.call_id not in ids:
                return {"index": at, "id": message.call_id}
        else:
            ids = {call.id for call in message.calls}
    return None


def unequal_results(request: Request) -> Found | None:
    """Another number of tool messages than the assistant message before them has calls."""
    for at, message in enumerate(request.messages):
        results = list(_results_behind(request, at))
        if message.calls and len(results) != len(message.calls):
            return {"index": at, "calls": len(message.calls), "results": len(results)}
    return None


def role_behind(role: str, previous: str) -> Check:
    """A message of one role right behind another role."""

    def check(request: Request) -> Found | None:
        for at in range(1, len(request.messages)):
            if request.messages[at].role == role and request.messages[at - 1].role == previous:
                return {"index": at, "role": role, "previous": previous}
        return None

    return check


def roles_do_not_alternate(request: Request) -> Found | None:
    """User and assistant do not take turns behind the system message; results and calls are left out."""
    messages = [message for message in request.messages if message.role != "tool" and not message.calls]
    if messages and messages[0].role == "system":
        messages = messages[1:]
    for at, message in enumerate(messages):
        if message.role != ("user", "assistant")[at % 2]:
            return {"index": at}
    return None


def system_not_first(request: Request) -> Found | None:
    """A system message that is not the first message."""
    late = next((at for at, message in enumerate(request.messages) if at and message.role == "system"), None)
    return None if late is None else {"index": late}


def no_user(request: Request) -> Found | None:
    """No user message."""
    return None if any(message.role == "user" for message in request.messages) else {}


def two_assistants_at_end(request: Request) -> Found | None:
    """The last two messages are the assistant's."""
    roles = [message.role for message in request.messages[-2:]]
    return {} if roles == ["assistant", "assistant"] else None


def no_messages(request: Request) -> Found | None:
    """The request has no message."""
    return None if request.messages else {}


def unknown_role(*known: str) -> Check:
    """A role that the provider does not know; `known` are the words of the request."""

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            role = (message.raw or {}).get("role", message.role)
            if role not in known:
                return {"index": at, "role": role, "known": ", ".join(f"`{word}`" for word in known)}
        return None

    return check


def empty_message(*roles: str) -> Check:
    """A message of one of the roles without text, media and calls."""

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            filled = any(part.text or part.kind not in ("text", "reasoning") for part in message.parts)
            if message.role in roles and not message.calls and not filled:
                return {"index": at, "role": message.role}
        return None

    return check


def parts_in(role: str, *kinds: str) -> Check:
    """A part of one of the kinds in a message of a role; `*` stands for every role."""

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            if role not in ("*", message.role):
                continue
            for place, part in enumerate(message.parts):
                if part.kind in kinds:
                    return {"index": at, "part": place, "role": message.role, "kind": part.kind}
        return None

    return check


def list_as_content(*roles: str) -> Check:
    """The content of a message of one of the roles is a list; `*` stands for every role."""

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            if (message.role in roles or "*" in roles) and isinstance((message.raw or {}).get("content"), list):
                return {"index": at, "role": message.role}
        return None

    return check


def field_of_message(name: str, *roles: str) -> Check:
    """A message of one of the roles (by default, all) has a field, with any value."""

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            if (not roles or message.role in roles) and name in (message.raw or {}):
                return {"index": at, "role": message.role, "name": name, "value": message.raw[name]}
        return None

    return check


def names_of_tools(pattern: str) -> Check:
    """A tool's name that does not match a pattern as a whole."""
    compiled = re.compile(pattern)

    def check(request: Request) -> Found | None:
        for at, tool in enumerate(request.tools):
            if not compiled.fullmatch(tool.name):
                return {"index": at, "name": tool.name, "length": len(tool.name)}
        return None

    return check


def names_of_calls(pattern: str) -> Check:
    """A name of a call in the history that does not match a pattern as a whole."""
    compiled = re.compile(pattern)

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            for place, call in enumerate(message.calls):
                if not compiled.fullmatch(call.name):
                    return {"index": at, "call": place, "name": call.name, "length": len(call.name)}
        return None

    return check


def ids_of_calls(pattern: str) -> Check:
    """An id of a call, or of a result, that does not match a pattern as a whole."""
    compiled = re.compile(pattern)

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            ids = [message.call_id] if message.role == "tool" else [call.id for call in message.calls]
            for id_ in ids:
                if not compiled.fullmatch(id_):
                    return {"index": at, "id": id_}
        return None

    return check


def repeated_ids(request: Request) -> Found | None:
    """An id that two calls of the history have."""
    seen: set[str] = set()
    for at, message in enumerate(request.messages):
        for place, call in enumerate(message.calls):
            if call.id in seen:
                return {"index": at, "call": place, "id": call.id}
            seen.add(call.id)
    return None


def repeated_tools(request: Request) -> Found | None:
    """A name that two tools have."""
    names = [tool.name for tool in request.tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else {"name": twice}


def arguments_no_object(request: Request) -> Found | None:
    """The arguments of a call in the history are no JSON object, or no JSON."""
    for at, message in enumerate(request.messages):
        for call in message.calls:
            if not isinstance(call.parsed(), dict):
                return {"index": at, "id": call.id, "name": call.name}
    return None


def arguments_no_json(request: Request) -> Found | None:
    """The arguments of a call in the history are no JSON."""
    for at, message in enumerate(request.messages):
        for call in message.calls:
            try:
                json.loads(call.as_text())
            except ValueError:
                return {"index": at, "id": call.id, "name": call.name}
    return None


def calls_without_reasoning_content(request: Request) -> Found | None:
    """An assistant message with calls and without the field `reasoning_content`, in a request that offers tools."""
    return _calls_without(request, "reasoning_content")


def calls_without_reasoning_details(prefix: str) -> Check:
    """An assistant message without `reasoning_details`, whose calls have ids of the provider, which begin so."""

    def check(request: Request) -> Found | None:
        own = [message for message in request.messages if any(call.id.startswith(prefix) for call in message.calls)]
        return _calls_without(replace(request, messages=tuple(own)), "reasoning_details", "reasoning_content")

    return check


def _calls_without(request: Request, *fields: str) -> Found | None:
    for at, message in enumerate(request.messages):
        given = message.raw or {}
        if message.calls and not any(isinstance(given.get(name), str | list) for name in fields):
            return {"index": at}
    return None


def first_call_without_signature(request: Request) -> Found | None:
    """The first call of an assistant message lacks the thought signature of Gemini."""
    for at, message in enumerate(request.messages):
        if message.calls:
            extra = (message.calls[0].raw or {}).get("extra_content") or {}
            if not (extra.get("google") or {}).get("thought_signature"):
                return {"index": at, "name": message.calls[0].name}
    return None


def unknown_result_id(request: Request) -> Found | None:
    """A result whose id no call of the history has."""
    ids = {call.id for call in request.calls}
    lost = next((message.call_id for message in request.results if message.call_id not in ids), None)
    return None if lost is None else {"id": lost}


def too_many_tools(limit: int) -> Check:
    """More tools than the limit."""

    def check(request: Request) -> Found | None:
        return {"count": len(request.tools), "limit": limit} if len(request.tools) > limit else None

    return check


def too_many_calls(limit: int) -> Check:
    """An assistant message with more calls than the limit."""

    def check(request: Request) -> Found | None:
        for at, message in enumerate(request.messages):
            if len(message.calls) > limit:
                return {"index": at, "count": len(message.calls), "limit": limit}
        return None

    return check


def field_given(*names: str, values: Collection[Any] | None = None, allowed: Collection[Any] | None = None) -> Check:
    """A field of the body that the provider refuses: any value, one of `values`, or none of `allowed`."""

    def check(request: Request) -> Found | None:
        for name in names:
            value = request.body.get(name)
            if value is None:
                continue
            if (values is None or value in values) and (allowed is None or value not in allowed):
                return {"name": name, "value": value, "shown": repr(value)}
        return None

    return check


def fields_unknown(*known: str) -> Check:
    """A field of the body that the provider does not know."""

    def check(request: Request) -> Found | None:
        unknown = next((name for name in request.body if name not in known), None)
        return None if unknown is None else {"name": unknown, "value": request.body[unknown]}

    return check


def forced_choice(request: Request) -> Found | None:
    """A tool choice other than auto and none."""
    choice = request.tool_choice
    return None if choice in (None, "auto", "none") else {"choice": choice}


def choice_without_tools(request: Request) -> Found | None:
    """A tool choice, or a word on parallel calls, in a request without tools."""
    given = next((name for name in ("tool_choice", "parallel_tool_calls") if name in request.body), None)
    return {"name": given} if given is not None and not request.tools else None


def choice_as_object(request: Request) -> Found | None:
    """A tool choice that is an object."""
    return {} if isinstance(request.tool_choice, dict) else None


def tools_offered(request: Request) -> Found | None:
    """The request offers tools, which the model or server does not take."""
    return {"name": request.tools[0].name} if request.tools else None


def every(*checks: Check) -> Check:
    """All checks apply; the values of all."""

    def check(request: Request) -> Found | None:
        values: dict[str, Any] = {}
        for one in checks:
            found = one(request)
            if found is None:
                return None
            values |= found
        return values

    return check


def either(*checks: Check) -> Check:
    """The first of the checks that applies."""

    def check(request: Request) -> Found | None:
        return next((found for one in checks if (found := one(request)) is not None), None)

    return check


def schema_nodes(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield each schema in a schema, with its path, the root first."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(schema.get(key), dict):
            for name, value in schema[key].items():
                yield from schema_nodes(value, (*path, key, name))
    for key in ("items", "additionalProperties", "not", "if", "then", "else"):
        yield from schema_nodes(schema.get(key), (*path, key))
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            for at, value in enumerate(schema[key]):
                yield from schema_nodes(value, (*path, key, str(at)))


def schema_of_tool(fault: Callable[[tuple[str, ...], dict[str, Any]], Found | None]) -> Check:
    """A schema in a tool's schema that has a fault, by its path and itself."""

    def check(request: Request) -> Found | None:
        for at, tool in enumerate(request.tools):
            for path, node in schema_nodes(tool.schema):
                if (found := fault(path, node)) is not None:
                    return {"index": at, "name": tool.name, "context": repr(path), **found}
        return None

    return check


def _results_behind(request: Request, at: int) -> Iterator[Message]:
    for message in request.messages[at + 1 :]:
        if message.role != "tool":
            return
        yield message
