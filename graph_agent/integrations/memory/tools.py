"""Gives langmem's two tools the facts of the caller; a call that is run again after a crash writes nothing twice."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, cast

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import get_runtime
from langgraph.store.base import BaseStore, Item, SearchItem

from graph_agent.base._internal.extras import needs_extra
from graph_agent.base.errors import UnknownFactError
from graph_agent.core.state.caller import caller_of_input

if TYPE_CHECKING:
    from graph_agent.integrations.memory.facts import Memory

_KEYS = uuid.UUID("6c0fb0e5-6f6a-4c39-9a3e-8d0b8a1f6c55")
"""Namespace of the ids of facts that calls create."""
_untrusted: ContextVar[Sequence[str]] = ContextVar("graph_agent_untrusted_parts", default=())
"""The parts of the fact of the current call that come from untrusted text."""


class CallerFacts:
    """The methods of a Store that langmem's tools call, on the facts of the caller of the current run.

    The namespace in their arguments is ignored: only the run's context decides whose facts a call reaches.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def _caller(self) -> str:
        """The authenticated caller of the input that is running; raises `ConfigError` if it has none."""
        return caller_of_input(self._memory.caller_of, get_config(), get_runtime())

    async def aput(self, namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> None:
        """Store `value["content"]` as the caller's fact `key`; `namespace` is not used.

        Raises `InputError` if the content is no text, empty or too long, and `UnknownFactError` if the fact was
        forgotten.
        """
        await self._memory.keep(self._caller, value.get("content"), key, untrusted=_untrusted.get())

    async def adelete(self, namespace: tuple[str, ...], key: str) -> None:
        """Forget the caller's fact `key`; raise `UnknownFactError` if the caller never had it. `namespace` is not
        used.
        """
        await self._memory.forget(self._caller, key)

    async def asearch(
        self, namespace: tuple[str, ...], *, query: str, filter: Any = None, limit: int = 10, offset: int = 0
    ) -> list[SearchItem]:
        """Return facts that fit `query`, the best first, without the fields that only the memory reads.

        Args:
            namespace: Ignored.
            query: The text to search; empty for the newest facts.
            filter: Ignored, because facts have no other fields.
            limit: Maximum number of facts; brought into the range from 1 to 100.
            offset: Number of facts to skip; a negative one counts as 0.
        """
        found = await self._memory.found(self._caller, query, limit=max(1, min(limit, 100)), offset=max(0, offset))
        for item in found:
            # Without what only the memory reads.
            item.value = {name: item.value[name] for name in ("content", "untrusted") if name in item.value}
        return found

    async def aget(self, key: str) -> Item | None:
        """Return the fact `key` of the caller; None if there is none."""
        return await self._memory.item(self._caller, key)


def memory_tools(memory: Memory) -> list[BaseTool]:
    """Return `manage_memory` and `search_memory` of langmem for a memory.

    Raises:
        ImportError: The extra `memory` is not installed.
    """
    with needs_extra("The memory of an agent", "memory"), warnings.catch_warnings():
        # Its package imports names that LangGraph has deprecated.
        warnings.simplefilter("ignore")
        from langmem import create_manage_memory_tool, create_search_memory_tool
    facts = CallerFacts(memory)
    namespace, store = ("memories",), cast("BaseStore", facts)
    manage = create_manage_memory_tool(namespace, store=store)
    search = create_search_memory_tool(namespace, store=store)
    write = cast("Any", manage).coroutine

    async def manage_memory(
        content: str | None = None,
        action: Literal["create", "update", "delete"] = "create",
        *,
        id: uuid.UUID | None = None,
        runtime: ToolRuntime[Any, Any],
    ) -> str:
        """Create, replace or forget a fact, and return a sentence about it; a call that runs again has the same effect.

        Raises `ValueError` if a fact to replace or forget has no id or does not exist, or if an id is given for a new
        fact, and `InputError` for a text that is empty or too long.
        """
        _untrusted.set(_untrusted_parts(runtime))
        if action != "create":
            try:
                if id is not None and action == "update" and await facts.aget(str(id)) is None:
                    raise UnknownFactError
                return str(await write(content=content, action=action, id=id))
            except UnknownFactError:
                raise ValueError(f"There is no memory {id}; search for it, or create one without an id.") from None
        if id is not None:
            return str(await write(content=content, id=id))  # which refuses it
        thread = runtime.config["configurable"].get("thread_id")
        # langmem would take a random id, so that a call that runs again after a crash would leave a second fact.
        # The text is a part of it, because other runs of the thread, as those of delegates, may repeat the call's id.
        key = uuid.uuid5(_KEYS, f"{thread}/{runtime.tool_call_id}/{content}") if thread else uuid.uuid4()
        await write(content=content, action="update", id=key)
        return f"created memory {key}"

    return [
        _tool(manage, {"effect": "write", "idempotent": True}, manage_memory),
        _tool(search, {"effect": "read"}, cast("Any", search).coroutine),
    ]


def _untrusted_parts(runtime: ToolRuntime[Any, Any]) -> Sequence[str]:
    """Return the parts of a call's fact that come from untrusted text; empty unless the agent traces origins."""
    for entry in reversed(runtime.state.get("events", ())):
        if entry["type"] == "tool_call" and entry["id"] == runtime.tool_call_id:
            found: Sequence[str] = entry.get("origins", {}).get("content", {}).get("parts", ())
            return found
    return ()


def _tool(given: Any, marks: dict[str, Any], coroutine: Any) -> StructuredTool:
    """Return a tool with the name, description and arguments of another, which can be called in the event loop only.

    `marks` are its metadata, and `coroutine` is what a call runs.
    """
    tool: StructuredTool = given.model_copy(update={"func": None, "coroutine": coroutine, "metadata": marks})
    return tool
