"""Caches plans: reuses the plan of an equal request from a LangGraph cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage, message_to_dict, messages_from_dict

from graph_agent._internal.failure_log import get_logger
from graph_agent._internal.text import to_json_safe
from graph_agent.deps import AgentDeps
from graph_agent.models.client import Mode
from graph_agent.models.errors import cut_off
from graph_agent.models.sanitize import without_call_blocks
from graph_agent.planning.reply import Planned, with_free_ids
from graph_agent.settings.config import LoopConfig
from graph_agent.types import NO_USAGE

logger = get_logger(__name__)

_NAMESPACE = ("graph_agent", "plan")


async def through_cache(
    deps: AgentDeps,
    settings: LoopConfig,
    request: Sequence[AnyMessage],
    mode: Mode,
    ask: Callable[[], Awaitable[Planned]],
) -> Planned:
    """Return the plan from the agent's cache, or ask for it and store it.

    A cached plan costs no tokens. Its calls keep their ids, so that results have the same ids as those of the original
    plan. An id that the conversation already holds is replaced, because providers require unique ids; in wave mode
    providers receive no ids, and none is replaced here.

    An invalid plan is not stored: `ask` raises, or a call has a fault. A reply that was cut off is not stored either.
    If the cache fails, the model is asked.

    Args:
        deps: The agent, for which `caches_plans` is true under the run's configuration.
    """
    assert deps.cache is not None
    assert settings.plan_cache_ttl_s is not None
    key = (_NAMESPACE, _key(deps, settings, request, mode))
    try:
        stored = (await deps.cache.aget([key])).get(key)
        planned = _from_stored(stored) if stored else None
    except Exception as error:  # noqa: BLE001 - a cache may fail in any way, and its entries may be of another version
        logger.warning("The plan cache cannot be read, so that the model is asked: %r", error)
        planned = None
    if planned is not None:
        return planned if mode == "wave" else with_free_ids(planned, _call_ids(request))
    planned = await ask()
    if not any("fault" in call for call in planned.calls) and cut_off(planned.message) is None:
        try:
            await deps.cache.aset({key: (_to_stored(planned), settings.plan_cache_ttl_s)})
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("A plan cannot be kept in the plan cache: %r", error)
    return planned


def _call_ids(request: Sequence[AnyMessage]) -> set[str]:
    return {call["id"] or "" for message in request if isinstance(message, AIMessage) for call in message.tool_calls}


def _key(deps: AgentDeps, settings: LoopConfig, request: Sequence[AnyMessage], mode: Mode) -> str:
    """A hash of everything the plan depends on: model, options, tools and messages; ids are excluded."""
    model = deps.client.model
    content = {
        "model": [type(model).__qualname__, to_json_safe(model._get_ls_params())],
        "mode": mode,
        "options": settings.model_options(),
        "most": settings.max_calls_per_wave,
        "tools": list(deps.toolbox.schemas),
        "choice": deps.client_tool_choice,
        "plan": deps.plan_schema.model_json_schema() if mode == "wave" else None,
        "request": _without_ids(request),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _without_ids(request: Sequence[AnyMessage]) -> list[Any]:
    """The messages without ids; each call is identified by its index in the conversation."""
    indexes: dict[str, int] = {}
    entries: list[Any] = []
    for message in request:
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
    return {
        "message": message_to_dict(planned.message),
        "calls": planned.calls,
        "last": planned.last,
        "action": planned.action,
        "reasoning": planned.reasoning,
        "extra": dict(planned.extra),
        "answers": planned.answers,
    }


def _from_stored(stored: dict[str, Any]) -> Planned:
    (message,) = messages_from_dict([stored["message"]])
    assert isinstance(message, AIMessage)
    return Planned(
        # LangGraph assigns an id once, when the message is stored.
        message=message.model_copy(update={"id": None, "usage_metadata": None}),
        calls=stored["calls"],
        usage=NO_USAGE,
        last=stored["last"],
        action=stored["action"],
        reasoning=stored["reasoning"],
        extra={**stored["extra"], "cached": True},
        answers=stored["answers"],
        raw_text=message.text,
    )
