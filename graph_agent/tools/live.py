"""An agent's tools, including those of sources whose lists change during a run, such as MCP servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

from langchain_core.tools import BaseTool

logger = logging.getLogger(__name__)


class ToolSource(Protocol):
    """A list of tools that may change."""

    version: int
    """Number of changes so far."""
    announces: bool
    """Whether the source may announce changes."""

    @property
    def pending(self) -> bool:
        """Whether an announced change is not yet in the list."""
        ...

    async def settle(self) -> None:
        """Wait for pending changes, a few seconds at most."""
        ...

    def __iter__(self) -> Iterator[BaseTool]:
        """Iterate over the current tools."""
        ...


class LiveTools:
    """The tools given to an agent, with the tools of each source kept current.

    A source is followed only if all its tools were given; a list filtered by the user does not change.

    Args:
        tools: The tools; names are unique.
    """

    def __init__(self, tools: Sequence[BaseTool]) -> None:
        found: dict[int, Any] = {id(source): source for tool in tools if (source := _source_of(tool)) is not None}
        given = {id(tool) for tool in tools}
        self._sources: list[ToolSource] = [
            source for source in found.values() if all(id(tool) in given for tool in source)
        ]
        followed = {id(source) for source in self._sources}
        self._fixed = [tool for tool in tools if id(_source_of(tool)) not in followed]
        self.announces = any(source.announces for source in self._sources)
        """Whether a source announces changes, which may add tools that write."""

    @property
    def versions(self) -> tuple[int, ...]:
        """The version of each source; a different value means a change."""
        return tuple(source.version for source in self._sources)

    @property
    def pending(self) -> bool:
        """Whether an announced change of a source is not yet in its list."""
        return any(source.pending for source in self._sources)

    async def settle(self) -> None:
        """Wait for pending changes, a few seconds at most."""
        await asyncio.gather(*(source.settle() for source in self._sources if source.pending))

    def current(self, taken: Collection[str]) -> list[BaseTool]:
        """Return the current tools, those of sources last.

        Args:
            taken: Names of delegates; a source's tool with such a name, or a given tool's name, is left out.
        """
        tools = {tool.name: tool for tool in self._fixed}
        for source in self._sources:
            for tool in list(source):
                if tool.name in tools or tool.name in taken:
                    logger.warning("The new tool %r is left out: another one has its name.", tool.name)
                else:
                    tools[tool.name] = tool
        return list(tools.values())


def _source_of(tool: BaseTool) -> Any:
    return getattr(tool, "source", None)
