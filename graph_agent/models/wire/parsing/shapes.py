"""Recognizes calls among JSON values.

A value is *trusted* or *bare*. A trusted value is in a tag, in a fence for calls, or in the ``tool_calls`` envelope; it
is a call regardless of its name. A bare value is by itself in the text; it is a call only if its shape is unambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from graph_agent.base._internal.lenient_json import WorkBudget, arguments_of, read_json, repair_json
from graph_agent.base.calls import delegate_name, delegation_name, known_name

_NAME_KEYS = ("name", "tool", "tool_name", "function_name", "function", "recipient_name", "action")
_ARGUMENT_KEYS = (
    *("arguments", "parameters", "args", "input", "params", "kwargs", "action_input", "tool_input"),
    *("tool_args",),
)
_ID_KEYS = ("id", "call_id", "tool_call_id")
_AGENT_KEYS = ("agent", "delegate", "delegate_to", "agent_name", "target")
_WRAPPERS = ("tool_call", "function_call", "tool_uses", "function_calls", "calls")
_OTHER_KEYS = frozenset(
    (*_ID_KEYS, "type", "index", "needs", "thought", "thoughts", "reasoning", "reason", "explanation")
)
# An object with one of these and arguments describes a tool or records a tool's result.
_NO_CALL = frozenset(("description", "output", "result", "response", "inputSchema", "input_schema"))
_DELEGATE_NAMES = ("delegate", "delegation", "delegate_to")
_TYPES_OF_A_CALL = ("function", "function_call", "tool_call", "tool_use")
_TOOL_NAME = re.compile(r"[^\W\d][\w.:/-]{0,127}")


class ParsedCall(NamedTuple):
    """A parsed call. Its `id` is the one that the model wrote, None if it wrote none."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ParseContext:
    """How a JSON value is to be judged."""

    tools: Set[str] | None
    """Known tool names; None if they are unknown."""
    work: WorkBudget
    trusted: bool = False
    """Whether the value is in a tag, a fence for calls or an envelope, so that any name is accepted."""
    delegate: bool = False
    """Whether an object with an agent and no tool name is a delegation, as in a ``delegate`` fence."""
    complete: bool = True
    """False for a truncated value, whose arguments may be missing."""


def calls_in(value: Any, context: ParseContext) -> list[ParsedCall] | None:
    """Return the calls in a JSON value, in order; None if it is neither a call, a list of calls nor an envelope.

    An envelope (an object with `tool_calls`) without calls gives an empty list. Known wrappers around a call are
    removed.

    Args:
        value: The JSON value.
        context: How to judge it.
    """
    if isinstance(value, list):
        # An unclosed list is more likely a stray bracket before an envelope.
        if is_envelope(value) and context.complete:
            return [call for item in value for call in _envelope_calls(item["tool_calls"], context) or ()]
        return _list_calls(value, context)
    if not isinstance(value, dict):
        return None
    if "tool_calls" in value:
        return _envelope_calls(value["tool_calls"], context)
    for wrapper in _WRAPPERS:
        inner = value.get(wrapper)
        if isinstance(inner, dict | list) and not value.keys() - {wrapper, *_OTHER_KEYS}:
            return calls_in(inner, context)
    call = _object_call(value, context)
    return None if call is None else [call]


def is_envelope(value: Any) -> bool:
    """Whether ``value`` is an object with the key ``tool_calls``, or a non-empty list of such objects."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and "tool_calls" in item for item in value)
    return isinstance(value, dict) and "tool_calls" in value


def envelope_content(value: Any) -> str:
    """Return the ``content`` of an envelope (an object with ``tool_calls``, as in a whole chat message).

    Empty for any other value, and if the content is no text.
    """
    content = value.get("content") if isinstance(value, dict) and "tool_calls" in value else None
    return content if isinstance(content, str) else ""


def _list_calls(items: list[Any], context: ParseContext) -> list[ParsedCall] | None:
    """Return the calls in a list of objects; None if it is empty, or has other items or no call.

    Without known tools, each object must be a call, unless the list is in a block for calls.
    """
    if not items or not all(isinstance(item, dict) for item in items):
        return None
    found = _object_calls(items, context)
    # Without known names, a list with other items is data.
    if not found or (context.tools is None and not context.trusted and len(found) < len(items)):
        return None
    return found


def _envelope_calls(content: Any, context: ParseContext) -> list[ParsedCall] | None:
    """Return the calls in the value of an envelope's ``tool_calls``, which may also be JSON text.

    None for other values.

    Args:
        content: The value of `tool_calls`: a list of objects, one object, or JSON text.
        context: How to judge the objects.
    """
    if isinstance(content, str) and content.lstrip().startswith(("[", "{")):
        read = read_json(content.strip(), context.work) or repair_json(content.strip(), context.work)
        content = content if read is None else read.value
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        return None
    return _object_calls([item for item in content if isinstance(item, dict)], replace(context, trusted=True))


def _object_calls(items: list[dict[str, Any]], context: ParseContext) -> list[ParsedCall]:
    """Return the calls among objects; those that are no calls are left out. Only the last object may be cut off, as
    `context.complete` states.
    """
    # Only the last of several can be truncated.
    whole = replace(context, complete=True)
    read = [_object_call(item, whole) for item in items[:-1]]
    read += [_object_call(item, context) for item in items[-1:]]
    return [call for call in read if call is not None]


def _object_call(item: dict[str, Any], context: ParseContext) -> ParsedCall | None:
    """Return the call that an object describes, in any of the known shapes; None if it describes none.

    An object under `function` is unwrapped first. In a block for calls, arguments may stand next to the name, if the
    value is complete; elsewhere only the shapes of `_bare_arguments` count. Without a name, the object may be a
    delegation, or a call in Apertus's form.
    """
    function = item.get("function")
    if isinstance(function, dict):
        call = _object_call(function, context)
        return None if call is None else call._replace(id=call.id or _id_of(item))
    name_key = next((key for key in _NAME_KEYS if isinstance(item.get(key), str) and item[key]), None)
    argument_key = next((key for key in _ARGUMENT_KEYS if key in item), None)
    if name_key is None or (argument_key is None and (context.delegate or item[name_key] in _DELEGATE_NAMES)):
        return _delegation(item, context) or _keyed(item, context)
    name = known_name(item[name_key], context.tools)
    if name_key == "recipient_name":
        name = name.removeprefix("functions.")
    if not context.trusted:
        arguments = _bare_arguments(item, name, name_key, argument_key, context)
    elif argument_key is not None:
        arguments = arguments_of(item[argument_key], context.work)
    elif context.complete:
        # Some models write the arguments next to the name, without an object of their own.
        arguments = _others(item, name_key)
    else:
        arguments = None
    return None if arguments is None else ParsedCall(name, arguments, _id_of(item))


def _bare_arguments(
    item: dict[str, Any], name: str, name_key: str, argument_key: str | None, context: ParseContext
) -> dict[str, Any] | None:
    """Return the arguments of an object that stands alone, without a tag; None if its shape is not that of a call.

    Args:
        item: The object.
        name: The name in it.
        name_key: Key of the name.
        argument_key: Key of the arguments; None if it has none.
        context: The known tools and the budget. Without known tools, only an unmistakable shape counts.
    """
    known = context.tools is not None
    if (name not in context.tools) if context.tools is not None else (_TOOL_NAME.fullmatch(name) is None):
        return None
    others = item.keys() - {name_key, argument_key} - _OTHER_KEYS
    if argument_key is None:
        # Without arguments, only a known name makes an object a call.
        return {} if known and not others and context.complete else None
    if others & _NO_CALL or (others and not known) or _is_schema(argument_key, item[argument_key]):
        return None
    return arguments_of(item[argument_key], context.work, strict=not known)


def _is_schema(argument_key: str, value: Any) -> bool:
    """Whether the value under a key such as `parameters` is a JSON schema, as in the description of a tool."""
    if argument_key == "arguments" or not isinstance(value, dict):
        return False
    return "$schema" in value or (value.get("type") == "object" and isinstance(value.get("properties", {}), dict))


def _delegation(item: dict[str, Any], context: ParseContext) -> ParsedCall | None:
    """Return the delegation that an object with an agent and a task describes; None if it describes none, or outside a
    block for calls if the agent has no such delegate. In a block of delegations, `name` and `to` also name the agent.
    """
    keys = (*_AGENT_KEYS, "name", "to") if context.delegate else _AGENT_KEYS
    key = next((key for key in keys if isinstance(item.get(key), str) and item[key]), None)
    if key is None or "task" not in item:
        return None
    name = delegation_name(delegate_name(item[key]))
    if not context.trusted and (context.tools is None or name not in context.tools):
        return None
    return ParsedCall(name, _others(item, key), _id_of(item))


def _keyed(item: dict[str, Any], context: ParseContext) -> ParsedCall | None:
    """Return a call in Apertus's form: an object with one key, the name, and the arguments as its value; else None.

    None also outside of a block for calls, and for an unknown name if tools are known.
    """
    if not context.trusted or len(item) != 1:
        return None
    ((name, arguments),) = item.items()
    is_known = context.tools is None or name in context.tools
    return ParsedCall(name, arguments) if is_known and isinstance(arguments, dict) else None


def _others(item: dict[str, Any], name_key: str) -> dict[str, Any]:
    """Return the members of a call's object that may be arguments: all but name, id and type."""
    left_out = {name_key, "needs", *_ID_KEYS, *(("type",) if item.get("type") in _TYPES_OF_A_CALL else ())}
    if item.get("action") in _DELEGATE_NAMES:
        left_out.add("action")
    return {key: value for key, value in item.items() if key not in left_out}


def _id_of(item: dict[str, Any]) -> str | None:
    """Return the id that a call's object states; None if it has none."""
    return next((item[key] for key in _ID_KEYS if isinstance(item.get(key), str) and item[key]), None)
