"""Selects sessions of a list by their status, tools, cost and dates, and reads what a whole session has used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Query
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.graph.state import CompiledStateGraph

from graph_agent.base._internal.lru import BoundedCache
from graph_agent.core.state.events import StoredEvent
from graph_agent.session.history import EventReader


@dataclass(slots=True)
class SessionTotals:
    """What a session has used, from its events."""

    events: int = 0
    """Number of the events that were read."""
    tools: set[str] = field(default_factory=set)
    """Names of the called tools, and `delegate_to_<name>` of the delegates."""
    total_cost: float = 0.0
    """Cost of all model calls, in the currency of the prices; 0.0 without prices."""
    tokens: int = 0
    """Tokens of the requests and replies of all model calls."""

    def add(self, events: Iterable[StoredEvent]) -> None:
        """Add the events that follow those that were read."""
        for entry in events:
            self.events += 1
            if entry["type"] == "plan":
                self.tools.update(call["name"] for call in entry["calls"])
            for call in entry.get("model_calls", ()):
                self.total_cost += call.get("cost", 0.0)
                self.tokens += call.get("input_tokens", 0) + call.get("output_tokens", 0)

    def as_json(self) -> dict[str, Any]:
        """Return the fields of a session's summary."""
        return {"tools": sorted(self.tools), "total_cost": self.total_cost, "tokens": self.tokens}


class TotalsReader:
    """Reads the totals of sessions, each event once as long as the session is among the newest 1,000 that were read."""

    def __init__(self) -> None:
        self._known = BoundedCache[str, dict[str, SessionTotals]](1000)
        """Thread → an empty dictionary, or `{"totals": …}`."""

    async def read(
        self, graph: CompiledStateGraph[Any, Any, Any, Any], saver: BaseCheckpointSaver[Any], newest: CheckpointTuple
    ) -> SessionTotals:
        """Return the totals of the session with this newest checkpoint."""
        thread = newest.config["configurable"]["thread_id"]
        held = self._known.get(thread, dict)
        totals = held.pop("totals", None) or SessionTotals()
        tail = await EventReader(graph, saver, thread).read_tail(after=totals.events - 1)
        first, events = tail or (0, [])
        if first != totals.events:
            # Another process has deleted the session, and it was begun again.
            totals, whole = SessionTotals(), await EventReader(graph, saver, thread).read_tail()
            events = whole[1] if whole else []
        totals.add(events)
        held["totals"] = totals
        return totals

    def forget(self, thread: str) -> None:
        """Forget the totals of a deleted session."""
        self._known.get(thread, dict).clear()


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions a list has: those that fit each field that is set."""

    search: str = ""
    """Text of the id or the title, in any case."""
    status: str = ""
    """Activity, such as `waiting`, or for an idle session its status, such as `completed`; in any case."""
    tool: str = ""
    """Name of a tool or a delegate that it has called."""
    min_cost: float = 0.0
    """Cost of its model calls, at least."""
    since: datetime | None = None
    """When its newest checkpoint was stored, at the earliest."""
    until: datetime | None = None
    """The same, at the latest."""
    totals: bool = False
    """Whether the summaries have the totals of the whole session."""

    @property
    def needs_totals(self) -> bool:
        """Whether the events of the sessions are read."""
        return self.totals or bool(self.tool) or self.min_cost > 0

    def accepts(self, summary: Mapping[str, Any]) -> bool:
        """Return whether a session is in the list, by its summary with its totals, if they are needed."""
        if self.search.casefold() not in f"{summary['id']}\n{summary['title']}".casefold():
            return False
        shown = summary["status"] if summary["activity"] == "idle" else summary["activity"]
        if self.status and self.status.casefold() != shown.casefold():
            return False
        if self.tool and not {self.tool, f"delegate_to_{self.tool}"} & {*summary["tools"]}:
            return False
        if self.min_cost > 0 and summary["total_cost"] < self.min_cost:
            return False
        updated = datetime.fromisoformat(summary["updated_at"])
        return (self.since is None or updated >= _aware(self.since)) and (
            self.until is None or updated <= _aware(self.until)
        )


def _aware(time: datetime) -> datetime:
    """Return a time with its zone; one without a zone is in UTC."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def session_filter(
    search: Annotated[str, Query(description="Text of the session's id or title; all by default.")] = "",
    status: Annotated[
        str, Query(description="`waiting`, `running` or `interrupted`; or of an idle session, its status.")
    ] = "",
    tool: Annotated[str, Query(description="Name of a tool or a delegate that the session has called.")] = "",
    min_cost: Annotated[float, Query(ge=0, description="Minimum cost of all its model calls.")] = 0.0,
    since: Annotated[datetime | None, Query(description="Only sessions whose newest step is not older.")] = None,
    until: Annotated[datetime | None, Query(description="Only sessions whose newest step is not newer.")] = None,
    totals: Annotated[
        bool, Query(description="Add `tools`, `total_cost` and `tokens` of the whole session; reads its events.")
    ] = False,
) -> SessionFilter:
    """Return the filter of a request; a dependency of routes."""
    return SessionFilter(search, status, tool, min_cost, since, until, totals)
