"""Snapshots of the assembled requests, and custom prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graph_agent import LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.models.prompts import VARIABLES, Prompts
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import add, asks, echo, says

SNAPSHOTS = Path(__file__).parent / "snapshots"
WAVE = json.dumps({"status": "continue", "tools": [{"id": "1", "tool": "echo", "args": {"text": "x"}}]})
NATIVE = asks(("1", "echo", {"text": "x"}))


def written(model: ScriptedChatModel) -> str:
    """Every request a model was sent, as a person would read it."""
    parts: list[str] = []
    for number, request in enumerate(model.requests, 1):
        parts.append(f"===== request {number}; tools: {', '.join(request.tool_names) or 'none'}")
        parts += [f"--- {message.type}\n{message.text}" for message in request.messages]
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize(
    ("name", "script", "settings"),
    [
        ("native", [NATIVE, "No more actions.", "Done."], {"tool_calling": "native"}),
        ("compose", [NATIVE, "No more actions.", "Done."], {"tool_calling": "native", "finalize": "compose"}),
        ("direct", [NATIVE, "Done."], {"tool_calling": "native", "finalize": "direct"}),
        ("text", [NATIVE, "No more actions.", "Done."], {"tool_calling": "text"}),
        ("wave", [WAVE, '{"status": "done"}', "Done."], {"tool_calling": "wave"}),
        ("dag", [WAVE, "Done."], {"tool_calling": "wave", "planner": "dag"}),
    ],
    ids=["native", "compose", "direct", "text", "wave", "dag"],
)
async def test_the_assembled_requests(name: str, script: list[str], settings: dict[str, Any]) -> None:
    model = ScriptedChatModel(script)
    graph = create_graph_agent(model, tools=[echo, add], system_prompt="Be brief.", config=LoopConfig(**settings))
    await graph.ainvoke(says("hi"))

    assert written(model) == (SNAPSHOTS / f"requests_{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_each_prompt_can_be_replaced(name: str) -> None:
    prompts = Prompts({name: "mine"})

    assert prompts.render(name, **dict.fromkeys(VARIABLES[name], 1)) == "mine"


async def test_a_prompt_is_replaced_from_the_agents_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limit.yaml").write_text("template: 'Enough after {{ limit }}.'")
    (tmp_path / "my_tools.py").write_text("def echo(text: str) -> str:\n    'Echo.'\n    return text\n")
    (tmp_path / "agent.yaml").write_text(
        "name: a\nmodel: openai:x\ntools: ['my_tools:echo']\nprompts: {limit: limit.yaml}\n"
        "config: {max_steps: 1, on_limit: message}"
    )
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", json.dumps([NATIVE]))

    async with open_agent(load_spec(tmp_path / "agent.yaml"), db="memory:") as graph:
        result = await graph.ainvoke(says("hi"), {"configurable": {"thread_id": "s1"}})

    assert result["messages"][-1].text == "Enough after 1."


async def test_a_prompt_with_an_unknown_variable_is_refused_from_the_agents_file(tmp_path: Path) -> None:
    (tmp_path / "limit.yaml").write_text("template: 'Enough after {{ limits }}.'")
    (tmp_path / "agent.yaml").write_text("name: a\nmodel: openai:x\nprompts: {limit: limit.yaml}")

    with pytest.raises(ConfigError):
        async with open_agent(load_spec(tmp_path / "agent.yaml"), db=""):
            pass
