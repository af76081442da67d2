"""What hooks are shown: copies, so that one that changes them changes nothing of the agent's or another hook's."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from graph_agent.hooks.protocol import HookRequest

T = TypeVar("T")

_WHEN_LOOKED_AT = ("messages", "tools")
"""Fields that may be long, and that most hooks do not read."""


def copied(value: T) -> T:
    """A copy of lists, mappings and messages, all the way down; what is none of these is the same object."""
    return _copy(value)  # type: ignore[no-any-return]  # a copy is of the type of what it copies


def _copy(value: Any) -> Any:
    # Not `copy.deepcopy`, which takes longer, and would copy clients and models that hooks give along.
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, BaseMessage):
        copy = value.model_copy()
        own = vars(copy)
        for name, item in own.items():
            if isinstance(item, dict | list):
                own[name] = _copy(item)
        return copy
    return value


class LentRequest(HookRequest):
    """A request whose messages and tools are copied when they are first looked at."""

    __slots__ = ("_request",)

    @classmethod
    def of(cls, request: HookRequest) -> HookRequest:
        """Lend a request."""
        lent = object.__new__(cls)
        object.__setattr__(lent, "_request", request)
        for field in fields(HookRequest):
            if field.name not in _WHEN_LOOKED_AT:
                object.__setattr__(lent, field.name, copied(getattr(request, field.name)))
        return lent

    def __getattr__(self, name: str) -> Any:
        # Reached for a slot that is empty still, and for what a request does not have.
        if name not in _WHEN_LOOKED_AT:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        copy = copied(getattr(self._request, name))
        object.__setattr__(self, name, copy)
        return copy
