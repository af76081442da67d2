"""Exports what the tests of an agent need: models without a provider, assertions on calls, and recordings.

The public names are imported on first access, because pytest loads the package for its plugin at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graph_agent.base._internal.lazy import lazy_names

if TYPE_CHECKING:
    from unittest.mock import ANY as ANY

    from graph_agent.devtools.calls import assert_calls, contains
    from graph_agent.devtools.export import export_test
    from graph_agent.devtools.input_differences import Difference
    from graph_agent.devtools.model import TestModel
    from graph_agent.devtools.recorded_session import RecordedRun, RecordedSession
    from graph_agent.devtools.recording import Recording, read_recording
    from graph_agent.devtools.script import call, fail, plan, reply, result, steer, stop
    from graph_agent.devtools.session_replay import Replay, Replayer, replay
    from graph_agent.models.scripted import ScriptedChatModel

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
    "export_test",
    "fail",
    "plan",
    "read_recording",
    "replay",
    "reply",
    "result",
    "steer",
    "stop",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "unittest.mock": "ANY",  # not in `__all__`, because it is documented elsewhere
        "graph_agent.devtools.calls": "assert_calls contains",
        "graph_agent.devtools.export": "export_test",
        "graph_agent.devtools.input_differences": "Difference",
        "graph_agent.devtools.model": "TestModel",
        "graph_agent.devtools.recorded_session": "RecordedRun RecordedSession",
        "graph_agent.devtools.recording": "Recording read_recording",
        "graph_agent.devtools.script": "call fail plan reply result steer stop",
        "graph_agent.devtools.session_replay": "Replay Replayer replay",
        "graph_agent.models.scripted": "ScriptedChatModel",
    },
)
