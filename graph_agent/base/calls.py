"""Reads calls of tools and of delegates, names and compares them, and creates their ids and idempotency keys."""

from __future__ import annotations

import hashlib
import json
import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from contextvars import ContextVar
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, InvalidToolCall, ToolCall

from graph_agent.base._internal.text import clean, excerpt, to_json_safe
from graph_agent.base.errors import InputError
from graph_agent.base.types import MAX_DEPTH, Call

RESULT_MARKER = "<tool_result"
"""Begins a tool result in the text form of requests; also sent as a stop sequence."""
reviewed_together: ContextVar[Sequence[Call]] = ContextVar("graph_agent_reviewed_together", default=())
"""All calls of one reply that are reviewed at once; set while an approval rule is asked about one of them."""

# `json.dumps` with options creates an encoder on each call, which is most of a fingerprint's cost.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


_DELEGATION = "delegate_to_"
"""Prefix of the call name of a delegation; the delegate's name follows."""


def is_delegation(name: str) -> bool:
    """Whether the call with this name is a delegation to another agent, i.e. begins with `delegate_to_`."""
    return name.startswith(_DELEGATION)


def delegation_name(delegate: str) -> str:
    """Return the name of calls that delegate to an agent: `delegate_to_` and the delegate's name."""
    return _DELEGATION + delegate


def delegate_name(call_name: str) -> str:
    """Return the delegate's name from the name of a delegation; any other name is returned unchanged."""
    return call_name.removeprefix(_DELEGATION)


def new_call_id() -> str:
    """Return a unique call id: ``call_`` and 32 hexadecimal digits."""
    return f"call_{uuid.uuid4().hex}"


def with_unique_ids(calls: Iterable[Call]) -> list[Call]:
    """Return the calls in order, each with an id of its own.

    A call with an empty id, or the id of an earlier call, is replaced by a copy with a new id.
    """
    taken: set[str] = set()
    unique: list[Call] = []
    for call in calls:
        id_ = call["id"] if call["id"] and call["id"] not in taken else new_call_id()
        unique.append(call if id_ == call["id"] else {**call, "id": id_})
        taken.add(id_)
    return unique


def canonical_arguments(arguments: Mapping[str, Any] | str) -> str:
    """Serialize arguments to JSON so that equal arguments give equal strings. Never raises.

    Key order, ``1`` versus ``1.0`` and white space around a string do not matter; ``True`` and ``1`` differ. A string
    that is JSON is parsed first. The result is ASCII. Values nested deeper than ``MAX_DEPTH`` levels become null.
    Numbers that are not finite, and values that are not JSON, become their ``str``; an integer of 10,000 bits or more
    becomes a hexadecimal string.
    """
    value: Any = arguments
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = arguments
    return _ENCODER.encode(_canonical(value, 0))


def fingerprint(call: Call) -> str:
    """Return a text that is equal for calls with equal name and arguments: the name, a colon and 16 hexadecimal digits.

    The digits are a hash of the canonical arguments; ids and `needs` are ignored.
    """
    digest = hashlib.sha256(canonical_arguments(call["arguments"]).encode()).hexdigest()
    return f"{call['name']}:{digest[:16]}"


def _canonical(value: Any, depth: int) -> Any:
    """Return a value in which equal arguments are equal JSON, as `canonical_arguments` describes.

    `depth` is the nesting of `value`; deeper than `MAX_DEPTH`, None is returned.
    """
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, dict | Mapping):
        return {str(key): _canonical(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item, depth + 1) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # The interpreter refuses to convert more than 4,300 decimal digits; hexadecimal has no limit.
        return value if value.bit_length() < 10_000 else hex(value)
    return str(value).strip()


UNNAMED = "unnamed"
"""Name given to a call without one, because providers refuse a history with an empty name."""


def known_name(name: str, tools: Set[str] | None) -> str:
    """Return the name of the tool of which `name` is a damaged form; `name` itself if it is known, or no tool fits.

    Recognized are surrounding white space, a prefix `functions.`, a special token after the name
    (`<|channel|>commentary`, from gpt-oss), and repetitions, from providers that send the name in each chunk of a call.

    Args:
        name: The name as the model wrote it.
        tools: The names of the known tools; None to return `name` unchanged.
    """
    if tools is None or not name or name in tools:
        return name
    near = name.partition("<|")[0].strip()
    for nearby in (near, near.removeprefix("functions.")):
        if nearby in tools:
            return nearby
    return next((tool for tool in tools if tool and tool * (len(name) // len(tool)) == name), name)


def call_ids(message: BaseMessage) -> list[str]:
    """Return the ids of a message's structured calls, which may be empty strings; an empty list for other messages."""
    return [call["id"] or "" for call in message.tool_calls] if isinstance(message, AIMessage) else []


def calls_of(message: AIMessage) -> list[Call]:
    """Return the calls of a message that the client parsed, then those whose arguments it could not parse.

    The latter are repaired if possible; otherwise `fault` has the reason. Ids may be empty or duplicate. Empty if the
    message has no calls.
    """
    structured = [checked_call(call["id"] or "", call["name"], call["args"]) for call in message.tool_calls]
    return [*structured, *map(_broken, message.invalid_tool_calls)]


def canonical_calls(calls: list[Call]) -> list[ToolCall]:
    """Convert calls to LangChain's `ToolCall`s; keys that LangChain does not have, such as `fault`, are left out."""
    return [ToolCall(id=call["id"], name=call["name"], args=call["arguments"], type="tool_call") for call in calls]


def checked_call(id_: str, name: str, arguments: Any) -> Call:
    """Build a call from a model's output; the arguments are converted to plain JSON, but their type is not checked.

    Characters that no store accepts are replaced in id and name, and an empty name becomes `UNNAMED`. If the arguments
    have a number that is not finite, or are nested too deeply, `fault` has the reason and `arguments` is empty.
    """
    read: Call = {"id": clean(id_), "name": clean(name) or UNNAMED, "arguments": {}}
    try:
        return {**read, "arguments": to_json_safe(arguments, finite=True)}
    except ValueError as error:
        return {**read, "fault": f"The arguments cannot be used: {error}."}


_EMPTY_START = re.compile(r"\A\s*+\{\s*+\}(?=\s*+\{)")


def _broken(call: InvalidToolCall) -> Call:
    """Convert a call whose arguments the client could not parse; the arguments are repaired if possible.

    Otherwise, and for several JSON objects, which are not repaired, `fault` has the reason and the arguments are empty.
    """
    # Imported here: only a damaged call needs the parser.
    from graph_agent.base._internal.lenient_json import WorkBudget, arguments_of, is_several_objects, parse_lenient_json

    # Some proxies send the empty input with which Anthropic begins a call as a part of its arguments.
    raw = _EMPTY_START.sub("", call["args"] or "")
    try:
        several = is_several_objects(raw)
        arguments = None if several else arguments_of(parse_lenient_json(raw), WorkBudget(len(raw)), strict=True)
    except ValueError:
        several, arguments = False, None
    read = checked_call(call["id"] or "", call["name"] or "", arguments or {})
    if arguments is not None:
        return read
    what = "are several JSON objects" if several else "are no JSON object"
    return {**read, "fault": f"The arguments {what}: {clean(excerpt(raw))!r}. Send one JSON object for each call."}


_current_call: ContextVar[tuple[str, Call, str] | None] = ContextVar("graph_agent_current_call", default=None)
"""The session's id, the call and the id of its wave while a tool runs; None elsewhere."""


def idempotency_key(session_id: str | None = None, call: Call | None = None, wave: str = "") -> str:
    """Return the idempotency key of a call: equal for each run of this call in its session, different for other calls.

    Inside a tool, call it without arguments; without `session_id` or `call`, all three are those of the running call:
    ```python
    @tool
    async def charge(amount: int) -> str:
        return await payments.post(amount, idempotency_key=idempotency_key())
    ```

    Args:
        session_id: The session's id. None inside a tool.
        call: The call. None inside a tool.
        wave: Identifier of the call's parallel batch within the session, because models repeat call ids across inputs.
            Ignored inside a tool.

    Returns:
        64 hexadecimal digits: a hash of the session's id, the wave, and the call's id, name and canonical arguments.

    Raises:
        InputError: Called without `session_id` or `call` outside a tool that an agent runs.
    """
    if session_id is None or call is None:
        current = _current_call.get()
        if current is None:
            raise InputError("idempotency_key() without arguments is for the inside of a tool that an agent runs.")
        session_id, call, wave = current
    parts = [session_id, wave, call["id"], call["name"], canonical_arguments(call["arguments"])]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def key_of_current_call() -> str | None:
    """Return `idempotency_key()` inside a tool that an agent runs; None elsewhere."""
    return idempotency_key() if _current_call.get() is not None else None


def running_call() -> tuple[str, Call, str] | None:
    """Return the session's id, the call and the id of its parallel batch (wave) inside a tool that an agent runs.

    None elsewhere.
    """
    return _current_call.get()


def begin_call(session_id: str, call: Call, wave: str) -> None:
    """Set the call to which `running_call()` and `idempotency_key()` refer in the current context, which must be the
    call's own.

    Args:
        session_id: The session's id.
        wave: Id of the parallel batch to which the call belongs.
    """
    _current_call.set((session_id, call, wave))
