"""Invariants of a session after any fault, checked against the tools' own log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple

from graph_agent.core.execution.ledger import STARTED
from tests.support.fault_agent import MARKS

Results = dict[str, tuple[str, str]]
"""Call id → status and text of a result."""


@dataclass
class Before:
    """The stored state of a stopped session."""

    results: Results = field(default_factory=dict)
    """Results of finished calls, those of a wave's finished tasks included."""
    noted: set[str] = field(default_factory=set)
    """Ids of the calls that the ledger has as started."""
    planned: set[str] = field(default_factory=set)
    """Ids of the calls that the history holds."""


def before(messages: Sequence[AnyMessage], stopped: CheckpointTuple | None) -> Before:
    """Read the stored state."""
    found = Before(
        results={message.tool_call_id: (message.status, message.text) for message in _results(messages)},
        planned={call["id"] or "" for message in messages for call in getattr(message, "tool_calls", [])},
    )
    for _, channel, value in (stopped.pending_writes or []) if stopped else []:
        if channel == STARTED:
            found.noted |= set(value)
        elif channel == "messages":
            found.results |= {message.tool_call_id: (message.status, message.text) for message in _results(value)}
    return found


def untrue(
    messages: Sequence[AnyMessage],
    events: Sequence[Mapping[str, Any]],
    log: Sequence[tuple[str, str]],
    stored: Before | None = None,
    *,
    ledger: bool = False,
) -> list[str]:
    """The violations in a session at its end; empty for a valid one.

    Args:
        messages: The history.
        events: The session's events.
        log: The tools' own log, over every run.
        stored: The stored state when the session last stopped.
        ledger: Whether the ledger recorded the writing calls.
    """
    stored = stored or Before()
    results = {message.tool_call_id: (message.status, message.text) for message in _results(messages)}
    return [
        *orphans(messages),
        *(f"{id_} had {was}, has {results.get(id_)}" for id_, was in stored.results.items() if results.get(id_) != was),
        *_twice(log),
        *(fault for id_, result in results.items() if (fault := _lie(id_, result, log, stored, ledger=ledger))),
        *_differences(messages, events),
    ]


def orphans(messages: Sequence[BaseMessage]) -> list[str]:
    """Calls without exactly one result right behind them, and results without a call."""
    faults: list[str] = []
    expected: list[str] = []
    for message in [*messages, None]:
        if isinstance(message, ToolMessage):
            if message.tool_call_id in expected:
                expected.remove(message.tool_call_id)
            else:
                faults.append(f"{message.tool_call_id} has a result too many: {message.text}")
            continue
        faults += [f"{id_} has no result" for id_ in expected]
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        expected = [call["id"] or "" for call in calls]
    return faults


def _twice(log: Sequence[tuple[str, str]]) -> list[str]:
    ran = Counter(log)
    return [
        f"{id_} wrote, and has {stage} {times} times in its log"
        for (stage, id_), times in ran.items()
        # A tool with an interrupt starts again after the answer; its later effects happen once.
        if times > 1 and _writes_once(id_) and not (tool_of(id_) == "ask" and stage == "start")
    ]


def _lie(
    id_: str, result: tuple[str, str], log: Sequence[tuple[str, str]], stored: Before, *, ledger: bool
) -> str | None:
    """Results that contradict the log of their call."""
    if tool_of(id_) not in MARKS:
        return None  # a delegation; the calls of its agent have the log
    status, text = result
    started, ended = ("start", id_) in log, ("end", id_) in log
    claim = f"{id_} has the result {text!r}, "
    if status == "success" and not ended:
        return claim + "and never ended"
    if text.startswith("Not run") and started:
        return claim + "and was started"
    if "nothing was changed" in text and MARKS[tool_of(id_)]["effect"] != "read":
        return claim + "and may write"
    if "not known" in text and ledger and not started and stored.planned and id_ not in stored.noted:
        return claim + "and was neither noted nor started"
    return None


def _differences(messages: Sequence[AnyMessage], events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Differences of results between the events and the messages; those of a finished wave are in the calls' order."""
    results = [message for message in _results(messages) if tool_of(message.tool_call_id) in MARKS]
    shown = [(message.tool_call_id, message.text) for message in results]
    recorded = [(event["id"], event["content"]) for event in events if event["type"] == "tool_result"]
    # A call whose needs failed has its event before those that still run, and its message in its place.
    waves = [[id_.partition("-")[0] for id_, _ in each] for each in (shown, recorded)]
    is_same = sorted(shown) == sorted(recorded) and waves[0] == waves[1]
    return [] if is_same else [f"messages have {shown}, events have {recorded}"]


def tool_of(id_: str) -> str:
    """The tool that a call of these tests runs: the end of its id."""
    return id_.rpartition("-")[2]


def _writes_once(id_: str) -> bool:
    marks = MARKS[tool_of(id_)]
    return marks["effect"] != "read" and not marks.get("idempotent")


def _results(messages: Any) -> list[ToolMessage]:
    return [message for message in messages if isinstance(message, ToolMessage)]
