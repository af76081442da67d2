"""Exports what the tests of an agent need: models without a provider, assertions on calls, and recordings.

The public names are imported on first access, because pytest loads the package for its plugin at every start.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unittest.mock import ANY as ANY

    from graph_agent.models.scripted import ScriptedChatModel
    from graph_agent.testing.assertions import assert_calls, contains
    from graph_agent.testing.input_differences import Difference
    from graph_agent.testing.model import TestModel
    from graph_agent.testing.recorded_session import RecordedRun, RecordedSession
    from graph_agent.testing.recording import Recording, read_recording
    from graph_agent.testing.script import call, fail, plan, reply, result, steer, stop
    from graph_agent.testing.session_replay import Replay, Replayer, replay

__all__ = [
    "Difference",
    "RecordedRun",
    "RecordedSession",
    "Recording",
    "Replay",
    "Replayer",
    "ScriptedChatModel",
    "TestModel",
    "assert_calls",
    "call",
    "contains",
    "fail",
    "plan",
    "read_recording",
    "replay",
    "reply",
    "result",
    "steer",
    "stop",
]

_MODULES = {
    # Not in `__all__`, because it is documented elsewhere.
    "ANY": "unittest.mock",
    "Difference": "graph_agent.testing.input_differences",
    "Replay": "graph_agent.testing.session_replay",
    "Replayer": "graph_agent.testing.session_replay",
    "ScriptedChatModel": "graph_agent.models.scripted",
    "RecordedRun": "graph_agent.testing.recorded_session",
    "RecordedSession": "graph_agent.testing.recorded_session",
    "Recording": "graph_agent.testing.recording",
    "read_recording": "graph_agent.testing.recording",
    "call": "graph_agent.testing.script",
    "fail": "graph_agent.testing.script",
    "plan": "graph_agent.testing.script",
    "reply": "graph_agent.testing.script",
    "result": "graph_agent.testing.script",
    "steer": "graph_agent.testing.script",
    "stop": "graph_agent.testing.script",
    "TestModel": "graph_agent.testing.model",
    "assert_calls": "graph_agent.testing.assertions",
    "contains": "graph_agent.testing.assertions",
    "replay": "graph_agent.testing.session_replay",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'graph_agent.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
