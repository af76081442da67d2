"""Prints the parts of a run as JSON, one object per line."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from pydantic_core import to_jsonable_python

from graph_agent.session.results import DelegatePart, Done, Part
from graph_agent.session.run_result import RunResult

_FORMAT = 1
"""Version of the objects; a change that breaks readers increases it."""


class JsonReport:
    """Prints one object per part on standard output; see the guide of the command line for the objects."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        _print({"type": "session", "session_id": session_id, "format": _FORMAT})

    def question(self, text: str) -> None:
        """Print nothing: a `user_message` event has the message."""

    def take(self, part: Part) -> None:
        """Print one part."""
        _print(self._done(part) if isinstance(part, Done) else part_object(part))

    def resume(self) -> None:
        """Print nothing: the history has the answer."""

    def close(self) -> None:
        """Print nothing: each line is complete."""

    def _done(self, part: Done) -> dict[str, Any]:
        return {"type": "done", "session_id": self._session_id, "result": result_object(part.result)}


def part_object(part: Part) -> dict[str, Any]:
    """Return a part as a JSON object with its `type` first."""
    own = {each.name: getattr(part, each.name) for each in fields(part) if each.name != "type"}
    if isinstance(part, DelegatePart):
        own["part"] = part_object(part.part)
    return {"type": part.type, **_plain(own)}


def result_object(result: RunResult) -> dict[str, Any]:
    """Return a result as a JSON object; of an interrupt, its id and its value."""
    own = {each.name: getattr(result, each.name) for each in fields(result) if each.name != "follow_ups"}
    own["interrupts"] = [{"id": each.id, "value": each.value} for each in result.interrupts]
    plain: dict[str, Any] = _plain(own)
    return plain


def print_error(error: BaseException) -> None:
    """Print an error that ended the command."""
    _print({"type": "error", "kind": type(error).__name__, "message": str(error)})


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64", inf_nan_mode="null")


def _print(value: dict[str, Any]) -> None:
    # ASCII only: no character of a model or a tool can control a terminal.
    print(json.dumps(value), flush=True)  # noqa: T201 - the output of the command
