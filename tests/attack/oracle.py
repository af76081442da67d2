"""What really happened: effects in a file that no process can take back, and what contradicts them."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Turn = tuple[str, str]
"""A session, and the user's words, which are different in each turn."""


class Effects:
    """A file of effects, one a line, each on the disk before its tool returns. Any process may append to it."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def append(self, session: str, text: str) -> None:
        """Note an effect."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, (json.dumps([session, text]) + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> Counter[Turn]:
        """How often each turn took effect."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return Counter((session, text) for session, text in map(json.loads, lines))


def answer_to(text: str) -> str:
    """What the workers' model answers to a user's words."""
    return f"answer to {text}"


@dataclass
class Record:
    """What the workers reported of an attack's turns."""

    answers: dict[Turn, str] = field(default_factory=dict)
    """The answer that was acknowledged."""
    errors: Counter[str] = field(default_factory=Counter)
    """How often each type of error was reported."""

    def note(self, session: str, text: str, reply: dict[str, Any]) -> None:
        """Note what a worker replied to a turn."""
        if "answer" in reply:
            self.answers[session, text] = reply["answer"]
        elif "error" in reply:
            self.errors[reply["error"].partition(":")[0]] += 1


def violations(record: Record, effects: Counter[Turn], histories: dict[str, list[tuple[str, str]]]) -> list[str]:
    """Everything that is not as it must be.

    Args:
        record: What was acknowledged.
        effects: What really happened.
        histories: Each session's messages, as `(type, text)`.
    """
    found = [f"{turn}: took effect {count} times" for turn, count in sorted(effects.items()) if count > 1]
    found += [
        f"{turn}: acknowledged with {answer!r}"
        for turn, answer in sorted(record.answers.items())
        if answer != answer_to(turn[1])
    ]
    turns = {session: _turns_in(messages) for session, messages in histories.items()}
    for session, texts in turns.items():
        said = Counter(text for text, _ in texts)
        found += [f"{session, text}: in the history {count} times" for text, count in said.items() if count > 1]
        for text, rest in texts:
            results = [content for kind, content in rest if kind == "tool"]
            if effects[session, text] and any(content.startswith("Not run") for content in results):
                found.append(f"{session, text}: took effect, and its history says that it was not run")
            if not effects[session, text] and f"charged for {text}" in results:
                found.append(f"{session, text}: had no effect, and its history says that it was run")
    for session, text in sorted({*record.answers, *effects}):
        rests = [after for said_text, after in turns.get(session, []) if said_text == text]
        if not rests:
            found.append(f"{session, text}: is not in the history")
        elif (session, text) in record.answers and ("ai", answer_to(text)) not in rests[0]:
            found.append(f"{session, text}: was acknowledged, and its answer is not in the history")
    return found


def _turns_in(messages: list[tuple[str, str]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each turn's words, with the messages up to the next one."""
    turns: list[tuple[str, list[tuple[str, str]]]] = []
    for kind, text in messages:
        if kind == "human":
            turns.append((text, []))
        elif turns:
            turns[-1][1].append((kind, text))
    return turns
