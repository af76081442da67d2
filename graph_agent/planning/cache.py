"""Plans taken from a LangGraph cache instead of the model, where the request is the very same."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage, message_to_dict, messages_from_dict

from graph_agent._internal.text import plain
from graph_agent.config import LoopConfig
from graph_agent.deps import AgentParts
from graph_agent.models.cleaning import without_call_blocks
from graph_agent.models.client import Mode
from graph_agent.models.finish_reasons import cut_off
from graph_agent.planning.reply import Planned, with_free_ids
from graph_agent.types import NO_USAGE

logger = logging.getLogger(__name__)

_NAMESPACE = ("graph_agent", "plan")


async def through_cache(
    parts: AgentParts,
    settings: LoopConfig,
    request: Sequence[AnyMessage],
    mode: Mode,
    ask: Callable[[], Awaitable[Planned]],
) -> Planned:
    """Take the plan from the agent's cache, or ask for it and keep it.

    A plan from the cache costs no tokens. Its calls keep their ids, so that results have the same ids as those of the
    plan that the model made; an id that the conversation has already is replaced, as providers want them unique. Where
    calls are asked for as a structured plan, providers see no ids, and none is replaced here.

    A plan that cannot be carried out is never kept: `ask` raises then, or some call is at fault. Neither is a reply
    that was cut off. Where the cache fails, the model is asked.

    Args:
        parts: The agent; without a cache every plan is asked for.
        settings: The run's configuration; without a `plan_cache_ttl_s` every plan is asked for.
        request: The messages the model would be sent.
        mode: How calls are asked for.
        ask: Asks the model.
    """
    if parts.cache is None or settings.plan_cache_ttl_s is None:
        return await ask()
    key = (_NAMESPACE, _key(parts, settings, request, mode))
    try:
        kept = (await parts.cache.aget([key])).get(key)
        planned = _restored(kept) if kept else None
    except Exception as error:  # noqa: BLE001 - a cache may fail in any way, and what it keeps may be another version's
        logger.warning("The plan cache cannot be read, so that the model is asked: %r", error)
        planned = None
    if planned is not None:
        return planned if mode == "wave" else with_free_ids(planned, _call_ids(request))
    planned = await ask()
    if not any("fault" in call for call in planned.calls) and cut_off(planned.message) is None:
        try:
            await parts.cache.aset({key: (_kept(planned), settings.plan_cache_ttl_s)})
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("A plan cannot be kept in the plan cache: %r", error)
    return planned


def _call_ids(request: Sequence[AnyMessage]) -> set[str]:
    return {call["id"] or "" for message in request if isinstance(message, AIMessage) for call in message.tool_calls}


def _key(parts: AgentParts, settings: LoopConfig, request: Sequence[AnyMessage], mode: Mode) -> str:
    """A hash of everything the plan depends on: model, options, tools, and what is said; ids are not said."""
    model = parts.client.model
    about = {
        "model": [type(model).__qualname__, plain(model._get_ls_params())],
        "mode": mode,
        "options": settings.model_options(),
        "most": settings.max_calls_per_wave,
        "tools": parts.toolbox.schemas,
        "choice": parts.client_tool_choice,
        "plan": parts.plan_schema.model_json_schema() if mode == "wave" else None,
        "request": _said(request),
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()


def _said(request: Sequence[AnyMessage]) -> list[Any]:
    """The messages without their ids; each call goes by its place in the conversation."""
    places: dict[str, int] = {}
    said: list[Any] = []
    for message in request:
        bare = without_call_blocks(message) if isinstance(message, AIMessage) else message
        entry: dict[str, Any] = {"type": message.type, "content": plain(bare.content)}
        if isinstance(message, AIMessage):
            for call in message.tool_calls:
                places[call["id"] or ""] = len(places)
            entry["calls"] = [
                [places[call["id"] or ""], call["name"], plain(call["args"])] for call in message.tool_calls
            ]
        if isinstance(message, ToolMessage):
            entry["answers"] = [places.get(message.tool_call_id), message.status]
        said.append(entry)
    return said


def _kept(planned: Planned) -> dict[str, Any]:
    return {
        "message": message_to_dict(planned.message),
        "calls": planned.calls,
        "last": planned.last,
        "action": planned.action,
        "reasoning": planned.reasoning,
        "extra": dict(planned.extra),
        "answers": planned.answers,
    }


def _restored(kept: dict[str, Any]) -> Planned:
    (message,) = messages_from_dict([kept["message"]])
    assert isinstance(message, AIMessage)
    return Planned(
        # An id that is None is given by LangGraph, once, when the message is stored.
        message=message.model_copy(update={"id": None, "usage_metadata": None}),
        calls=kept["calls"],
        usage=NO_USAGE,
        last=kept["last"],
        action=kept["action"],
        reasoning=kept["reasoning"],
        extra={**kept["extra"], "cached": True},
        answers=kept["answers"],
        raw_text=message.text,
    )
