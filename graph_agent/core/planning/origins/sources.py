"""Adds what an agent has read to the index: messages of the user, results, the memory and the system prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage

from graph_agent.base._internal.text import decode, text_of
from graph_agent.base.calls import delegation_name, is_delegation
from graph_agent.base.history.call_events import call_name, call_of, value_of
from graph_agent.base.history.events import StoredEvent, is_own
from graph_agent.base.input_messages import CONTEXT_MARK, HANDED_MARK
from graph_agent.base.origins import ArgumentOrigin
from graph_agent.core.extensions.read_result import READ_RESULT
from graph_agent.core.extensions.source_marks import declared_source
from graph_agent.core.extensions.toolbox import Toolbox
from graph_agent.core.planning.origins.index import Author, ReadText, TextIndex
from graph_agent.core.planning.origins.tokens import leaf_values, match_tokens

_REPEATED = frozenset({READ_RESULT, "wait_for_background"})
"""Tools whose results repeat the text of another result, which is indexed already by its own trust."""
_NEVER_RAN = frozenset({"invalid", "skipped", "denied"})
"""Statuses of results whose text was written by this package or a reviewer, not by the tool."""
_STEP = re.compile(r"\.|\[\d+\]\.?")

OWN = ReadText(Author.USER, "user")
"""The source of what the user and reviewers write."""


class Sources:
    """The texts that the model of a run has read, by author. Values of later calls are searched in them.

    Each event is read once. Results are untrusted by the marks of their tools.

    Args:
        toolbox: The tools and delegates, whose marks determine which results are untrusted.
        memory_tools: Names of the tools that read and write the memory of earlier sessions.
    """

    def __init__(self, toolbox: Toolbox, memory_tools: Iterable[str]) -> None:
        self.index = TextIndex()
        self.calls: dict[str, tuple[str, str]] = {}
        """Id, and plan id, of each call → `(id, name)` of the call.

        A plan id that occurs twice stands for the newest call.
        """
        self.untrusted: dict[tuple[str, ...], ArgumentOrigin] = {}
        """Tokens of an untrusted argument of an earlier call → its origin.

        A tool may return an argument as a value of its own.
        """
        self._toolbox = toolbox
        self.memory_tools = frozenset(memory_tools)
        """Names of the tools that read and write the memory."""
        self._read = 0

    def add_conversation(self, messages: Sequence[AnyMessage], system: str, handed: Sequence[str]) -> None:
        """Add the texts that the model has read before the first event of the session.

        These are the system prompt (the author's), the untrusted parts of the task, and messages that a delegating
        agent has passed on: those of the user count as the user's, those of its model as untrusted, because they may
        quote outsiders.

        Args:
            messages: The history; other messages in it are ignored, except for the untrusted parts of tasks that a
                remote agent has attached to them.
            system: The system prompt.
            handed: The parts of the task that the delegating agent took from untrusted text.
        """
        sent = [part for message in messages for part in message.additional_kwargs.get(HANDED_MARK, ())]
        for part in [*handed, *sent]:
            self.index.add(ReadText(Author.HANDED, "task"), part)
        self.index.add(ReadText(Author.SYSTEM, "system"), system)
        for message in messages:
            if CONTEXT_MARK in message.additional_kwargs:
                # An answer of the delegating agent may quote what outsiders wrote.
                is_own = isinstance(message, HumanMessage)
                self.index.add(OWN if is_own else ReadText(Author.UNTRUSTED, "context"), message.text)

    def add_fact(self, text: str, untrusted: Sequence[str], call: str = "", name: str = "") -> None:
        """Add a fact of the memory. With untrusted parts, the fact as a whole is untrusted, and the text between these
        parts is not.

        Args:
            text: The fact.
            untrusted: The parts that an agent took from untrusted text when it kept the fact, as tokens joined by
                spaces, longest first.
            call: Id of the call that returned the fact; empty for a recalled one.
            name: Name of this call.
        """
        own = ReadText(Author.MEMORY, "memory", call, name)
        if not untrusted:
            self.index.add(own, text)
            return
        self.index.add(ReadText(Author.TAINTED_MEMORY, "memory", call, name, named=True), text)
        rest = f" {' '.join(match_tokens(text))} "
        for part in untrusted:
            rest = rest.replace(f" {part} ", " \n ")
        for each in rest.split("\n"):
            self.index.add(own, each)

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
        """Add the text of one event to the texts of its author; events of other types are ignored.

        - The user's: messages, steering, and the arguments of a call that a reviewer has edited.
        - By the marks of its tool: a result, unless the call never ran.
        - Untrusted: the result of a provider's own tool.
        - Of a call, the id and the untrusted arguments are recorded.
        """
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
        """Record the id and name of a call, also under its planned id, and those of its arguments that come from
        untrusted text.

        Events without a call are ignored, and so are the arguments of delegations.
        """
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
        """Add the fields of the result of a call or delegation, each trusted or not by the marks of its tool.

        Text that is JSON is read as such. A result that a reviewer wrote is the user's. Tools that only repeat other
        results are left out. A fact with untrusted parts that a memory tool found is added with the origins stored in
        it.
        """
        name = call_name(entry) or delegation_name(str(entry.get("target", "")))
        if name in _REPEATED:
            return
        if entry.get("decided_by") is not None and entry["status"] == "answered":
            self._add_value(OWN, text_of(entry["content"]))
            return
        source, fields = self.source_of(entry["id"], name)
        value = value_of(entry)
        # Content blocks of a result without a value are no list of the tool.
        value = _parsed(text_of(value) if value is entry["content"] else value)
        if name in self.memory_tools and isinstance(value, list):
            value = [self._untainted(found, source) for found in value]
        self._add_value(source, value, fields)

    def _untainted(self, found: Any, source: ReadText) -> Any:
        """Add a fact that a tool of the memory found if it has untrusted parts, and return None; otherwise return what
        the tool found.
        """
        fact = found.get("value") if isinstance(found, dict) else None
        if not isinstance(fact, dict) or not fact.get("untrusted"):
            return found
        self.add_fact(str(fact.get("content")), fact["untrusted"], source.call, source.name)
        return None

    def _add_value(self, source: ReadText, value: Any, fields: frozenset[str] = frozenset()) -> None:
        """Add a value to the index; text that is a JSON object or list is parsed first.

        Args:
            source: The source of the value.
            value: Plain JSON or text.
            fields: Names of the only fields that are untrusted, so that the others get a trusted source; empty if
                `source` applies to all.
        """
        value = _parsed(value)
        if not fields:
            self.index.add(source, value)
            return
        trusted = ReadText(Author.TRUSTED, source.kind, source.call, source.name)
        self.index.add(source, value, lambda path: source if is_named(path, fields) else trusted)

    def source_of(self, id_: str, name: str) -> tuple[ReadText, frozenset[str]]:
        """Return the source of a call's result, and the names of the only fields in it that are untrusted.

        The names are empty if all fields are trusted, or untrusted, alike: by the mark `source` of the tool or
        delegate, or because it is a tool of the memory.

        Args:
            id_: Id of the call.
            name: Name of the call.
        """
        if name in self.memory_tools:
            return ReadText(Author.MEMORY, "memory", id_, name), frozenset()
        kind = "delegate" if is_delegation(name) else "result"
        declared = declared_source(self._toolbox, name)
        if isinstance(declared, str):
            group = Author.TRUSTED if declared == "trusted" else Author.UNTRUSTED
            return ReadText(group, kind, id_, name), frozenset()
        return ReadText(Author.UNTRUSTED, kind, id_, name, named=True), declared


def _parsed(value: Any) -> Any:
    """Return the JSON value in a text that is an object or a list; anything else unchanged."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")) and (read := decode(value)) is not None:
        return read[0]
    return value


def is_named(path: str, fields: frozenset[str]) -> bool:
    """Whether a field of a result is one of the named fields, or lies within one.

    Args:
        path: Path of the field; empty for a result that is one text, which counts as named.
        fields: Names of fields.
    """
    return not path or not fields.isdisjoint(_STEP.split(path))
