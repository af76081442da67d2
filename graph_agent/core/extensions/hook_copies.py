"""Copies requests for hooks, which then cannot change the agent or other hooks."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from graph_agent.core.extensions.hook_protocol import HookRequest

T = TypeVar("T")

_LAZY = ("messages", "tools")
"""Fields of a request that may be long and that most hooks do not read; they are copied at first access."""


def copied(value: T) -> T:
    """Return a value with lists, dicts and messages copied recursively; other objects are shared with the original."""
    return _copy(value)  # type: ignore[no-any-return]  # a copy has the type of its original


def _copy(value: Any) -> Any:
    """Return a copy of a value: lists and dicts recursively, and messages with the lists and dicts in their attributes.

    Any other object is returned itself.
    """
    # Not `copy.deepcopy`, which is slower and would copy clients and models that hooks pass along.
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


class LazyRequestCopy(HookRequest):
    """A copy of a request whose messages and tools are copied at the first access, because most hooks read neither."""

    __slots__ = ("_request",)

    @classmethod
    def of(cls, request: HookRequest) -> HookRequest:
        """Return a copy of a request whose fields are copies; `messages` and `tools` are copied when they are first
        read.
        """
        copy = object.__new__(cls)
        # The class is frozen, and its constructor would require every field.
        object.__setattr__(copy, "_request", request)
        for field in fields(HookRequest):
            if field.name not in _LAZY:
                object.__setattr__(copy, field.name, copied(getattr(request, field.name)))
        return copy

    def __getattr__(self, name: str) -> Any:
        # Called for a slot that is not set yet, and for unknown attributes.
        if name not in _LAZY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        copy = copied(getattr(self._request, name))
        object.__setattr__(self, name, copy)
        return copy
