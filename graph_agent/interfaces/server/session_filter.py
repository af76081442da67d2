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
from graph_agent.base.history.events import StoredEvent
from graph_agent.session.history import EventReader


@dataclass(slots=True)
class SessionTotals:
    """What a whole session has used, summed over its events."""

    events: int = 0
    """Number of events that were added."""
    tools: set[str] = field(default_factory=set)
    """Names of the tools that were called, with `delegate_to_<name>` for each delegate."""
    total_cost: float = 0.0
    """Cost of all model calls, in the currency of the prices; 0.0 without prices."""
    tokens: int = 0
    """Tokens of the requests and replies of all model calls."""

    def add(self, events: Iterable[StoredEvent]) -> None:
        """Add the events that follow those that were added before: their number, the names in their plans, cost and
        tokens.
        """
        for entry in events:
            self.events += 1
            if entry["type"] == "plan":
                self.tools.update(call["name"] for call in entry["calls"])
            for call in entry.get("model_calls", ()):
                self.total_cost += call.get("cost", 0.0)
                self.tokens += call.get("input_tokens", 0) + call.get("output_tokens", 0)

    def as_json(self) -> dict[str, Any]:
        """Return the totals as the fields that a session's summary has."""
        return {"tools": sorted(self.tools), "total_cost": self.total_cost, "tokens": self.tokens}


class TotalsReader:
    """Reads the totals of sessions. For the 1,000 sessions that were read last, each event is read only once."""

    def __init__(self) -> None:
        self._known = BoundedCache[str, dict[str, SessionTotals]](1000)
        """Thread → `{"totals": …}`, or an empty dictionary before the first reading."""

    async def read(
        self, graph: CompiledStateGraph[Any, Any, Any, Any], saver: BaseCheckpointSaver[Any], newest: CheckpointTuple
    ) -> SessionTotals:
        """Return the totals of a session. Only the events that follow those that were counted before are read.

        If the stored events do not continue the counted ones, because the session was deleted and begun again, all are
        read.

        Args:
            graph: The agent.
            saver: The checkpointer of the session.
            newest: The newest checkpoint of the session, which identifies it.
        """
        thread = newest.config["configurable"]["thread_id"]
        held = self._known.get(thread, dict)
        # Taken out while it is read: a concurrent reader then counts anew, and no event is added twice.
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
    """Selects sessions of a list: those that match every field that is set."""

    search: str = ""
    """Text that the id or the title contains, ignoring case."""
    status: str = ""
    """Activity such as `waiting`, or the status of an idle session such as `completed`, ignoring case."""
    rated: bool = False
    """Whether only sessions with feedback on an answer are listed."""
    tool: str = ""
    """Name of a tool or a delegate that the session has called."""
    min_cost: float = 0.0
    """Minimum cost of all model calls of the session."""
    since: datetime | None = None
    """Earliest time at which the newest checkpoint was stored; in UTC if it has no zone."""
    until: datetime | None = None
    """Latest time at which the newest checkpoint was stored; in UTC if it has no zone."""
    totals: bool = False
    """Whether the summaries have the totals of the whole session."""

    @property
    def needs_totals(self) -> bool:
        """Whether the totals of sessions, and so their events, must be read."""
        return self.totals or bool(self.tool) or self.min_cost > 0

    def accepts(self, summary: Mapping[str, Any]) -> bool:
        """Return whether a session matches every field of the filter that is set.

        The search text must occur in the id or the title; its case does not matter. The status is compared with the
        activity of the session or, if that is `idle`, with its status. A tool also matches a delegate's name. The dates
        are compared with `updated_at`, and both bounds belong to the range.

        Args:
            summary: The session's summary, which contains its totals if `needs_totals`.
        """
        if self.search.casefold() not in f"{summary['id']}\n{summary['title']}".casefold():
            return False
        shown = summary["status"] if summary["activity"] == "idle" else summary["activity"]
        if self.status and self.status.casefold() != shown.casefold():
            return False
        if self.rated and not summary["thumbs_up"] + summary["thumbs_down"]:
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
    """Return a time with a zone. A time without one is taken as UTC."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def session_filter(
    search: Annotated[str, Query(description="Text of the session's id or title; all by default.")] = "",
    status: Annotated[
        str, Query(description="`waiting`, `running` or `interrupted`; or of an idle session, its status.")
    ] = "",
    rated: Annotated[bool, Query(description="Only sessions with feedback on an answer.")] = False,
    tool: Annotated[str, Query(description="Name of a tool or a delegate that the session has called.")] = "",
    min_cost: Annotated[float, Query(ge=0, description="Minimum cost of all its model calls.")] = 0.0,
    since: Annotated[datetime | None, Query(description="Only sessions whose newest step is not older.")] = None,
    until: Annotated[datetime | None, Query(description="Only sessions whose newest step is not newer.")] = None,
    totals: Annotated[
        bool, Query(description="Add `tools`, `total_cost` and `tokens` of the whole session; reads its events.")
    ] = False,
) -> SessionFilter:
    """Return the filter in a request's query, as a dependency of routes."""
    return SessionFilter(search, status, rated, tool, min_cost, since, until, totals)
