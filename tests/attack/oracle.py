"""An oracle independent of the agent's database: a file of effects, and the violations found by it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage, ToolMessage

from tests.support.fault_truth import orphans

Turn = tuple[str, str]
"""A session, and the text of a turn or of a call, which is different in each."""

Harm = Literal["lost", "repeated", "invented"]
"""What a fault did to a turn, a call or a result."""


class Violation(NamedTuple):
    """Something that no fault may do."""

    harm: Harm
    what: str


_WAVE = 3
"""Calls of the wave of a turn `wave …`."""


class Effects:
    """A file of effects, one a line, each on the disk before its tool returns. Any process may append to it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def append(self, session: str, text: str) -> None:
        """Record an effect."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (json.dumps([session, text]) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> Counter[Turn]:
        """How often each call took effect."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return Counter((session, text) for session, text in map(json.loads, lines))


def answer_to(text: str) -> str:
    """The answer of the workers' model to a user's text."""
    return f"answer to {text}"


def calls_of(text: str) -> list[str]:
    """The text of each call that the workers' model makes for a user's text."""
    kind = text.partition(" ")[0]
    if kind == "wave":
        return [f"{text}/{number}" for number in range(_WAVE)]
    return [text] if kind in ("pay", "ask", "look") else []


def call_id(text: str) -> str:
    """The id of the call with a text."""
    return f"call-{text.replace(' ', '-').replace('/', '-')}"


@dataclass
class Record:
    """The workers' reports of an attack's turns."""

    answers: dict[Turn, str] = field(default_factory=dict)
    """The answer that was acknowledged."""
    errors: Counter[str] = field(default_factory=Counter)
    """How often each type of error was reported."""

    def note(self, session: str, text: str, reply: dict[str, Any]) -> None:
        """Record the reply of a worker to a turn."""
        if "answer" in reply:
            self.answers[session, text] = reply["answer"]
        elif "error" in reply:
            self.errors[reply["error"].partition(":")[0]] += 1


def violations(
    record: Record, effects: Counter[Turn], histories: Mapping[str, Sequence[BaseMessage]], turns: Sequence[Turn]
) -> list[Violation]:
    """The violations: lost and repeated work, foreign answers, false results, orphan calls.

    Args:
        record: The acknowledged turns.
        effects: The actual effects.
        histories: Each session's messages.
        turns: Every turn that was ordered.
    """
    found = [
        Violation("repeated", f"{turn}: took effect {count} times")
        for turn, count in sorted(effects.items())
        if count > 1
    ]
    found += [
        Violation("invented", f"{turn}: acknowledged with {answer!r}")
        for turn, answer in sorted(record.answers.items())
        if answer != answer_to(turn[1])
    ]
    for session, messages in histories.items():
        found += [Violation("lost", f"{session}: {fault}") for fault in orphans(messages)]
        found += _false_results(session, messages, effects, [text for of, text in turns if of == session])
    stored = {session: _by_turn(messages) for session, messages in histories.items()}
    for session, texts in stored.items():
        times = Counter(text for text, _ in texts)
        found += [
            Violation("repeated", f"{session, text}: in the history {count} times")
            for text, count in times.items()
            if count > 1
        ]
    for session, text in sorted({*record.answers, *((of, call.partition("/")[0]) for of, call in effects)}):
        rests = [after for turn_text, after in stored.get(session, []) if turn_text == text]
        if not rests:
            found.append(Violation("lost", f"{session, text}: is not in the history"))
        elif (session, text) in record.answers and ("ai", answer_to(text)) not in rests[0]:
            what = f"{session, text}: was acknowledged, and its answer is not in the history"
            found.append(Violation("lost", what))
    return found


def _false_results(
    session: str, messages: Sequence[BaseMessage], effects: Counter[Turn], texts: Sequence[str]
) -> list[Violation]:
    results = {message.tool_call_id: message.text for message in messages if isinstance(message, ToolMessage)}
    found: list[Violation] = []
    for call in (call for text in texts for call in calls_of(text)):
        result = results.get(call_id(call), "")
        if effects[session, call] and result.startswith("Not run"):
            found.append(Violation("lost", f"{session, call}: took effect, and its result is {result!r}"))
        if not effects[session, call] and result == f"charged for {call}":
            found.append(Violation("invented", f"{session, call}: had no effect, and its result is {result!r}"))
    return found


def _by_turn(messages: Sequence[BaseMessage]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each turn's text, with the messages up to the next one."""
    turns: list[tuple[str, list[tuple[str, str]]]] = []
    for message in messages:
        if message.type == "human":
            turns.append((message.text, []))
        elif turns:
            turns[-1][1].append((message.type, message.text))
    return turns
