"""A real small model, through the shipped defaults for a local server. Nothing here depends on its words."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, Session, create_graph_agent

pytestmark = pytest.mark.real
SHORT = LoopConfig(max_output_tokens=24)
"""A reply of a few words, which takes a second."""


async def test_hello_is_answered_whole_with_the_servers_usage(local_server: str) -> None:
    agent = create_graph_agent("openai:local", config=SHORT, checkpointer=InMemorySaver())

    result = await Session(agent, "s").run("Hello!")

    usage = result.usage
    assert (bool(result.answer), result.status, usage["model_calls"]) == (True, "COMPLETED", 1)
    assert usage["input_tokens"] > 5
    assert 0 < usage["output_tokens"] <= 24


async def test_hello_is_streamed_and_joined_it_is_the_answer(local_server: str) -> None:
    agent = create_graph_agent("openai:local", config=SHORT, checkpointer=InMemorySaver())

    parts = [part async for part in Session(agent, "s").stream("Hello!")]

    tokens = [part.text for part in parts if part.type == "token"]
    done = next(part.result for part in parts if part.type == "done")
    assert ("".join(tokens), len(tokens) > 3) == (done.answer, True)
    assert done.usage["input_tokens"] > 5
