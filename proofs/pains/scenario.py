"""A scenario: what the model replies, what the user does, and what the user must never suffer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from proofs.pains.stub import Reply, Request

Step = Mapping[str, Any]
NEEDS = {
    "store": "a store of sessions",
    "stream": "streams",
    "async": "asynchronous runs and tools",
    "approvals": "approvals",
    "edits": "edits of calls",
    "steps": "a limit of steps",
    "tokens": "a token budget",
    "deadline_s": "a deadline",
    "tool_timeout_s": "a time limit of a tool",
    "parallel": "a limit of parallel calls",
    "history": "a window of messages",
}
"""What a framework may not have at all."""
ISSUE = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


def ask(text: str) -> Step:
    """One input, whose whole answer is awaited."""
    return {"do": "ask", "with": text}


def stream(text: str) -> Step:
    """One input, whose answer is read from the framework's stream."""
    return {"do": "stream", "with": text}


def cancel(text: str, at: str) -> Step:
    """One input, whose asyncio task is cancelled once the tool `at` has started."""
    return {"do": "ask", "with": text, "cancel_at": at}


def resume() -> Step:
    """Carry on after a crash, in the framework's own way; ask to continue where it has none."""
    return {"do": "resume"}


def decide(*decisions: bool | int) -> Step:
    """Decide on the waiting calls, in order: True approves, False rejects, a number approves that amount instead."""
    return {"do": "decide", "with": list(decisions)}


def together(*steps: Step) -> Step:
    """Several steps at the same time, in one process."""
    return {"do": "together", "steps": list(steps)}


@dataclass(frozen=True)
class Evidence:
    """What an outsider sees of a run."""

    outcomes: Sequence[Mapping[str, Any]]
    """One for each step of the processes that ended: the fields of the worker's `Reply`, and `error`."""
    requests: Sequence[Request]
    effects: Sequence[Mapping[str, Any]]
    """What the tools did: `tool` and its arguments."""
    stored: Sequence[int]
    """Bytes in the session's folder after each process."""
    hung: bool
    """Whether a process had to be ended."""
    refused: Sequence[str] = ()
    """Why the model's server refused requests as invalid."""

    def count(self, tool: str) -> int:
        """How often a tool ran."""
        return sum(each["tool"] == tool for each in self.effects)

    def values(self, tool: str, argument: str) -> list[Any]:
        """An argument of each run of a tool, sorted."""
        return sorted((each[argument] for each in self.effects if each["tool"] == tool), key=str)

    def unanswered(self, answer: str) -> str | None:
        """What the user got in place of an answer that contains a text; None if it was given at the end."""
        if self.hung:
            return "It hung."
        if not self.outcomes:
            return "The process died."
        last = self.outcomes[-1]
        if last["error"]:
            return f"Ended with {last['error']}"
        return None if answer in last["answer"] else f"Answered {last['answer'][:200]!r}, without {answer!r}."


class Scenario:
    """One pain. The docstring of a subclass has a headline and the address of an issue in a public tracker."""

    tools: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[str]] = frozenset()
    """Keys of `NEEDS`; the verdict on a framework that lacks one is "n/a"."""
    limits: ClassVar[Mapping[str, int]] = {}
    approve: ClassVar[tuple[str, ...]] = ()
    processes: ClassVar[tuple[tuple[Step, ...], ...]] = ()
    """The steps of each process; they share one session."""

    def model(self, request: Request) -> Reply:
        """The model's reply to a request."""
        raise NotImplementedError

    def check(self, seen: Evidence) -> str | None:
        """What the user suffered; None for nothing."""
        raise NotImplementedError

    @classmethod
    def name(cls) -> str:
        """The class name in lower case, with hyphens."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def title(cls) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(cls) or "").splitlines()[0]

    @classmethod
    def issue(cls) -> re.Match[str]:
        """The issue: repository and number.

        Raises:
            LookupError: The docstring has no address of an issue.
        """
        found = ISSUE.search(inspect.getdoc(cls) or "")
        if found is None:
            raise LookupError(f"{cls.__name__} names no issue in its docstring.")
        return found
