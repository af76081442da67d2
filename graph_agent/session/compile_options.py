"""Types the arguments of a graph's `compile`, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from langgraph.cache.base import BaseCache
    from langgraph.store.base import BaseStore
    from langgraph.types import All


class CompileOptions(TypedDict, total=False):
    """The keyword arguments of LangGraph's `compile`, except the checkpointer, for type checkers."""

    store: BaseStore | None
    cache: BaseCache[Any] | None
    interrupt_before: All | list[str] | None
    interrupt_after: All | list[str] | None
    debug: bool
    transformers: Sequence[Any] | None
    name: str | None
