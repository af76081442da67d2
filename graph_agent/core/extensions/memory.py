"""Defines the protocol of a memory: facts of users across sessions, with the tools that keep and search them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from langgraph.runtime import Runtime

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


class RecalledFact(Protocol):
    """A fact, as a memory returns it."""

    @property
    def id(self) -> str:
        """Id of the fact."""
        ...

    @property
    def content(self) -> str:
        """The text; empty for a forgotten fact."""
        ...

    @property
    def untrusted(self) -> Sequence[str]:
        """The parts of the text that an agent with `origins` took from untrusted text when it kept the fact, as tokens
        joined by spaces; empty if there are none, or if no such agent kept it.
        """
        ...


class AgentMemory(Protocol):
    """The facts of users across sessions; `graph_agent.memory.open_memory` opens one."""

    extracts: bool
    """Whether the agent's model extracts facts from each input after its answer."""

    @property
    def tools(self) -> Sequence[BaseTool]:
        """Tools with which the model keeps and searches facts."""
        ...

    def caller_of(self, runtime: Runtime[Any]) -> str:
        """Return the authenticated caller of a run; raise `ConfigError` if it has none."""
        ...

    async def recall(self, caller: str, text: str, *, most: int | None = None) -> Sequence[RecalledFact]:
        """Return the facts about a caller that are most relevant to a text, best first.

        Args:
            caller: Id of the user, as `caller_of` returns it.
            text: The text of an input.
            most: Maximum number of facts; None for the memory's own maximum.
        """
        ...

    async def get(self, caller: str, ids: Iterable[str]) -> Mapping[str, RecalledFact]:
        """Return facts of a caller as id → fact.

        Unknown ids are left out, and facts of other callers are never returned.
        """
        ...

    async def keep(self, caller: str, content: object, id_: str | None = None, *, untrusted: Sequence[str] = ()) -> str:
        """Store a fact of a caller, and return its id.

        Args:
            caller: Id of the user, as `caller_of` returns it.
            content: The text.
            id_: Id of the fact to store or replace; None for a new id.
            untrusted: The `untrusted` parts of the fact.

        Raises:
            InputError: The text cannot be a fact.
        """
        ...

    async def erase(self, caller: str) -> None:
        """Delete all facts of a caller, and all records of facts that were deleted before."""
