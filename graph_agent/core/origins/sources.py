"""Adds what an agent has read to the index: messages of the user, results, the memory and the system prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage

from graph_agent.base._internal.text import decode, text_of
from graph_agent.base.calls import delegation_name, is_delegation
from graph_agent.base.input_messages import CONTEXT_MARK
from graph_agent.base.origins import ArgumentOrigin
from graph_agent.core.origins.index import Author, ReadText, TextIndex
from graph_agent.core.origins.tokens import leaf_values, match_tokens
from graph_agent.core.state.call_events import call_name, call_of, value_of
from graph_agent.core.state.events import StoredEvent, is_own
from graph_agent.core.tools.read_result import READ_RESULT
from graph_agent.core.tools.source_marks import declared_source
from graph_agent.core.tools.toolbox import Toolbox

_REPEATED = frozenset({READ_RESULT, "wait_for_background"})
"""Tools whose results repeat text of another result, which is searched already with its own trust."""
_NEVER_RAN = frozenset({"invalid", "skipped", "denied"})
"""Statuses of results that the framework or a reviewer has written."""
_STEP = re.compile(r"\.|\[\d+\]\.?")

OWN = ReadText(Author.USER, "user")
"""The source of what the user and reviewers write."""


class Sources:
    """The texts that a run has read, and the values in its calls that came from untrusted text.

    Events are read once, in their order.

    Args:
        toolbox: The tools and delegates, whose marks determine which results are untrusted.
        memory_tools: Names of the tools of the memory.
    """

    def __init__(self, toolbox: Toolbox, memory_tools: Iterable[str]) -> None:
        self.index = TextIndex()
        self.calls: dict[str, tuple[str, str]] = {}
        """Id and plan id of each call → its id and its name; of calls with the same plan id the newest."""
        self.untrusted: dict[tuple[str, ...], ArgumentOrigin] = {}
        """Tokens of an untrusted argument of an earlier call → its origin, as a tool may return it as its own value."""
        self._toolbox = toolbox
        self._memory_tools = frozenset(memory_tools)
        self._read = 0

    def add_conversation(self, messages: Sequence[AnyMessage], system: str, handed: Sequence[str]) -> None:
        """Add what a run has read before its first event.

        Args:
            messages: The history; only messages that a delegating agent has passed on count.
            system: The system prompt.
            handed: The untrusted parts of the task, from the delegating agent.
        """
        for part in handed:
            self.index.add(ReadText(Author.HANDED, "task"), part)
        self.index.add(ReadText(Author.SYSTEM, "system"), system)
        for message in messages:
            if CONTEXT_MARK in message.additional_kwargs:
                # An answer of the delegating agent may quote what outsiders wrote.
                is_own = isinstance(message, HumanMessage)
                self.index.add(OWN if is_own else ReadText(Author.UNTRUSTED, "context"), message.text)

    def add_facts(self, text: str) -> None:
        """Add facts of earlier sessions."""
        self.index.add(ReadText(Author.MEMORY, "memory"), text)

    def follow(self, stored: Sequence[StoredEvent], new: Sequence[StoredEvent]) -> None:
        """Add the events that were not added yet.

        Args:
            stored: The stored events of the session, oldest first.
            new: The events that the running superstep has added.
        """
        count = len(stored)
        for entry in [*stored[self._read :], *new[max(0, self._read - count) :]]:
            self._add(entry)
        self._read = count + len(new)

    def _add(self, entry: StoredEvent) -> None:
        """Add one event."""
        match entry["type"]:
            case "user_message" | "steering":
                self.index.add(OWN, text_of(entry["content"]))
            case "approval_decision" if is_own(entry, "approval_decision") and "arguments" in entry:
                # A reviewer who edits a call answers for all of its arguments.
                for _, value in leaf_values(entry["arguments"]):
                    self.index.add(OWN, value)
            case "tool_call" | "delegation_request":
                self._add_call(entry)
            case "tool_result" | "delegation_response" | "background_result":
                if entry["status"] not in _NEVER_RAN:
                    self._add_result(entry)
            case "provider_call":
                self._add_value(ReadText(Author.UNTRUSTED, "result", entry["id"], entry["name"]), entry["content"])

    def _add_call(self, entry: StoredEvent) -> None:
        """Record the name of a call, and its untrusted arguments."""
        if (call := call_of(entry)) is None:
            return
        found = call["id"], call["name"]
        self.calls[call["id"]] = self.calls[entry.get("plan_id", call["id"])] = found
        untrusted = {path: each for path, each in entry.get("origins", {}).items() if "untrusted" in each}
        if untrusted and not is_delegation(call["name"]):
            for path, value in leaf_values(call["arguments"]):
                if path in untrusted:
                    self.untrusted[tuple(match_tokens(value))] = untrusted[path]

    def _add_result(self, entry: StoredEvent) -> None:
        """Add a result, each field with the trust that the marks of its tool give it."""
        name = call_name(entry) or delegation_name(str(entry.get("target", "")))
        if name in _REPEATED:
            return
        if entry.get("decided_by") is not None and entry["status"] == "answered":
            self._add_value(OWN, text_of(entry["content"]))
            return
        source, fields = self.source_of(entry["id"], name)
        value = value_of(entry)
        # Content blocks of a result without a value are no list of the tool.
        self._add_value(source, text_of(value) if value is entry["content"] else value, fields)

    def _add_value(self, source: ReadText, value: Any, fields: frozenset[str] = frozenset()) -> None:
        """Add a value; with `fields`, only the fields of these names are untrusted."""
        if isinstance(value, str) and value.lstrip().startswith(("{", "[")) and (read := decode(value)) is not None:
            value = read[0]
        if not fields:
            self.index.add(source, value)
            return
        trusted = ReadText(Author.TRUSTED, source.kind, source.call, source.name)
        self.index.add(source, value, lambda path: source if is_named(path, fields) else trusted)

    def source_of(self, id_: str, name: str) -> tuple[ReadText, frozenset[str]]:
        """Return the source of a call's result, and the names of its untrusted fields; empty if all have one trust.

        Args:
            id_: Id of the call.
            name: Name of the call.
        """
        if name in self._memory_tools:
            return ReadText(Author.MEMORY, "memory", id_, name), frozenset()
        kind = "delegate" if is_delegation(name) else "result"
        declared = declared_source(self._toolbox, name)
        if isinstance(declared, str):
            group = Author.TRUSTED if declared == "trusted" else Author.UNTRUSTED
            return ReadText(group, kind, id_, name), frozenset()
        return ReadText(Author.UNTRUSTED, kind, id_, name, named=True), declared


def is_named(path: str, fields: frozenset[str]) -> bool:
    """Whether a field of a result, or an object that contains it, has one of these names; a result that is one text has
    all of them."""
    return not path or not fields.isdisjoint(_STEP.split(path))
