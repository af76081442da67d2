"""A server's requests to a model are answered by the agent's, and it receives the roots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.mcp import McpTools, open_mcp_tools
from tests.support.agents import asks
from tests.support.mcp_servers.running import asking, text

DOCS = Path("docs").resolve().as_uri()
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def tools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpTools]:
    connection = asking(tmp_path_factory.mktemp("sampling"), sampling="model", roots=["docs"])
    async with open_mcp_tools({"hotel": connection}) as tools:
        yield tools


def reply(content: str, tokens: int) -> AIMessage:
    usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
    return AIMessage(content, usage_metadata=usage)


def agent_of(tools: McpTools, *script: Any, **config: Any) -> tuple[Session, ScriptedChatModel]:
    model = ScriptedChatModel([*script])
    graph = create_graph_agent(model, tools=tools, checkpointer=InMemorySaver(), config=LoopConfig(**config))
    return Session(graph, "s1"), model


async def test_the_agents_model_answers_and_its_tokens_count(tools: McpTools) -> None:
    call = asks(("c", "summarise", {"text": "A long story."}))
    agent, model = agent_of(tools, call, reply("Short.", 40), reply("Done.", 2))
    result = await agent.run("go")
    assert result.results == {"c": "Short. (endTurn)"}
    assert model.requests[1].messages == [SystemMessage("Be short."), HumanMessage("A long story.")]
    assert (result.usage["total_tokens"] >= 44, result.usage["model_calls"]) == (True, 3)


async def test_tokens_count_once_if_the_call_asks_a_person_after_it(tools: McpTools) -> None:
    call = asks(("c", "summarise_and_ask", {"text": "A long story."}))
    agent, model = agent_of(tools, call, reply("Short.", 40), reply("Done.", 2))
    await agent.run("go")
    result = await agent.resume("yes")
    assert result.results == {"c": "Short. (endTurn): accept"}
    assert result.usage["model_calls"] == len(model.requests) == 3


async def test_a_spent_budget_refuses_the_request(tools: McpTools) -> None:
    call = asks(("c", "summarise", {"text": "story", "times": 2}))
    agent, _ = agent_of(tools, call, reply("Short.", 5_000), "Best effort.", max_tokens_total=3_000)
    result = await agent.run("go")
    assert "The agent's budget is used up" in str(result.results["c"])


async def test_requests_of_one_call_are_limited(tools: McpTools) -> None:
    call = asks(("c", "summarise", {"text": "story", "times": 17}))
    agent, _ = agent_of(tools, call, *["Short."] * 16, "Done.")
    result = await agent.run("go")
    assert "This call has made 16 requests to the model, which is its limit." in str(result.results["c"])


async def test_sampling_is_refused_by_default(tmp_path: Path) -> None:
    async with open_mcp_tools({"hotel": asking(tmp_path)}) as tools:
        agent, _ = agent_of(tools, asks(("c", "summarise", {"text": "story"})), "Done.")
        assert "Sampling not supported" in str((await agent.run("go")).results["c"])


async def test_roots_are_announced_and_can_change(tools: McpTools, tmp_path: Path) -> None:
    before = await text(tools, "roots")
    await tools.set_roots("hotel", [tmp_path])
    after = await text(tools, "roots")
    with pytest.raises(ConfigError, match="There is no MCP server 'crm'"):
        await tools.set_roots("crm", [])
    assert (before, after) == (DOCS, tmp_path.as_uri())
