"""Keeps the plans of equal requests in the agent's cache, so that an equal request costs no tokens.

Parts of the plan cache in other files:

- `core/planning/ask.py`: `through_cache`, the part at a request
- `core/planning/structured_plan.py`: `through_cache`, the part at a request for a structured plan
- `core/execution/deps.py`: the `cache` of an agent
- `base/settings/config.py`: `plan_cache_ttl_s`
- `storage/checkpoints/open.py`: `open_cache`
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage, message_to_dict, messages_from_dict

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.finish import cut_off
from graph_agent.base.types import NO_USAGE
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.reply import Planned
from graph_agent.models.sanitize import without_call_blocks
from graph_agent.models.wire.text_form import as_plans

logger = get_logger("graph_agent.planning.ask")

_NAMESPACE = ("graph_agent", "plan")
_STORED = ("calls", "last", "action", "reasoning", "extra", "answers")
"""Fields of a `Planned` that a cache entry has, in addition to its message."""


async def through_cache(
    request: NextRequest, messages: Sequence[AnyMessage], ask: Callable[[], Awaitable[Planned]]
) -> Planned:
    """Return the plan of an equal earlier request from the agent's cache; otherwise call `ask` and store its plan.

    The calls of a cached plan have the ids of the original plan; it has no usage, and `cached` in `extra`. A plan with
    a `fault` in a call, or from a reply that was cut off, is not stored. If the cache itself fails, a warning is
    logged, and the model is asked or the plan not stored.

    Args:
        request: The request, of an agent that has a cache and settings that use it.
        messages: The messages of the request, with the system prompt.
        ask: Sends the request and returns the plan.

    Raises:
        Exception: `ask` raised it.
    """
    cache = request.deps.cache
    assert cache is not None
    key = (_NAMESPACE, _key(request, messages))
    try:
        stored = (await cache.aget([key])).get(key)
        planned = _from_stored(stored) if stored else None
    except Exception as error:  # noqa: BLE001 - a cache may fail in any way, and its entries may be of another version
        logger.warning("The plan cache cannot be read, so that the model is asked: %r", error)
        planned = None
    if planned is not None:
        return planned
    planned = await ask()
    await _keep(request, key, planned)
    return planned


async def keep_plan(request: NextRequest, messages: Sequence[AnyMessage], planned: Planned) -> None:
    """Store a plan as that of a request which was not sent, because the plan was predicted; see `through_cache`."""
    await _keep(request, (_NAMESPACE, _key(request, messages)), planned)


async def _keep(request: NextRequest, key: tuple[tuple[str, ...], str], planned: Planned) -> None:
    """Store a plan under a key for `plan_cache_ttl_s` seconds; not one with a `fault` in a call or from a cut-off
    reply.

    A failure of the cache is logged.
    """
    cache, lifetime_s = request.deps.cache, request.settings.plan_cache_ttl_s
    assert cache is not None
    assert lifetime_s is not None
    if any("fault" in call for call in planned.calls) or cut_off(planned.message) is not None:
        return
    try:
        await cache.aset({key: (_to_stored(planned), lifetime_s)})
    except Exception as error:  # noqa: BLE001 - a cache may fail in any way
        logger.warning("A plan cannot be kept in the plan cache: %r", error)


def _key(request: NextRequest, messages: Sequence[AnyMessage]) -> str:
    """Return a hash of everything that determines the plan: model, mode, options, tools, tool choice, plan schema and
    messages.

    Ids that the model does not read are left out, so that the same conversation in another session has the same key.
    """
    deps, settings, mode = request.deps, request.settings, request.mode
    model = deps.client.model
    content = {
        "model": [type(model).__qualname__, to_json_safe(model._get_ls_params())],
        "mode": mode,
        "options": settings.model_options(),
        "most": settings.max_calls_per_wave,
        "tools": list(deps.toolbox.schemas),
        "choice": deps.client_tool_choice,
        "plan": deps.plan_schema.model_json_schema() if mode == "wave" else None,
        # A structured plan may refer to earlier calls by the ids that the model reads.
        "request": _without_ids(as_plans(messages) if mode == "wave" else messages),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _without_ids(messages: Sequence[BaseMessage]) -> list[Any]:
    """Return the messages as plain JSON without ids: type and content, the name and arguments of each call, and the
    status of a result.

    A call and its result are identified by the call's number instead.
    """
    indexes: dict[str, int] = {}
    entries: list[Any] = []
    for message in messages:
        bare = without_call_blocks(message) if isinstance(message, AIMessage) else message
        entry: dict[str, Any] = {"type": message.type, "content": to_json_safe(bare.content)}
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                indexes[call["id"] or ""] = len(indexes)
            entry["calls"] = [
                [indexes[call["id"] or ""], call["name"], to_json_safe(call["args"])] for call in message.tool_calls
            ]
        if isinstance(message, ToolMessage):
            entry["answers"] = [indexes.get(message.tool_call_id), message.status]
        entries.append(entry)
    return entries


def _to_stored(planned: Planned) -> dict[str, Any]:
    """Convert a plan to a cache entry of plain JSON; its usage is left out."""
    return {"message": message_to_dict(planned.message), **{name: getattr(planned, name) for name in _STORED}}


def _from_stored(stored: dict[str, Any]) -> Planned:
    """Convert a cache entry to a plan with `extra["cached"]` set. It has no usage, and its message has no id.

    Raises `KeyError` or `TypeError` for an entry of another version.
    """
    (message,) = messages_from_dict([stored["message"]])
    assert isinstance(message, AIMessage)
    # LangGraph assigns an id once, when the message is stored.
    fresh = message.model_copy(update={"id": None, "usage_metadata": None})
    fields = {**stored, "message": fresh, "extra": {**stored["extra"], "cached": True}}
    return Planned(usage=NO_USAGE, raw_text=message.text, **fields)
