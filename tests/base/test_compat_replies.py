"""LangChain's private names behind the reply to a request."""

from __future__ import annotations

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.pregel._messages import StreamMessagesHandler

from graph_agent import ScriptedChatModel
from graph_agent.base._compat.replies import can_stream, reads_stream
from graph_agent.models.streaming import StreamTap


class Tap(StreamTap, BaseCallbackHandler):
    """A handler that makes LangChain stream."""


def test_handlers_that_make_langchain_stream_are_recognized() -> None:
    handlers = [Tap(), StreamMessagesHandler(lambda _: None, False), BaseCallbackHandler()]

    assert [reads_stream(handler) for handler in handlers] == [True, True, False]


@pytest.mark.parametrize(
    ("disabled", "options", "expected"),
    [(False, {}, True), (True, {}, False), ("tool_calling", {"tools": [1]}, False), (False, {"stream": False}, False)],
)
def test_a_stream_that_is_turned_off_is_recognized(disabled: bool, options: dict[str, object], expected: bool) -> None:
    model = ScriptedChatModel(["Hi."], disable_streaming=disabled)

    assert can_stream(model, options) is expected
