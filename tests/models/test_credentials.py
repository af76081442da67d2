"""Credentials of a run reach the tool that declares them, and nothing else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolRuntime
from pydantic import SecretStr

from graph_agent import AgentContext, GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.persistence import open_saver
from tests.support.agents import asks, echo, says, thread
from tests.support.wave_helpers import DONE, plan, use

CANARY = "canary-5f0d1c77"
CALLS = [("1", "enter", {"door": "front"}), ("2", "echo", {"text": "hello"}), ("3", "delegate_to_r", {"task": "t"})]
NATIVE = [asks(*CALLS), "No more actions.", "Done."]
TEXT = [
    AIMessage(json.dumps({"tool_calls": [{"name": name, "arguments": arguments} for _, name, arguments in CALLS]})),
    *NATIVE[1:],
]
WAVE = [plan(*(use(id_, name, **arguments) for id_, name, arguments in CALLS)), DONE, "Done."]
BROKEN_WAVE = ['{"status": "maybe"}', *WAVE]

ALL_MODES = ["values", "updates", "custom", "messages", "tasks", "checkpoints", "debug"]


def everything_but_the_run(graph: Any, model: ScriptedChatModel, inner: ScriptedChatModel) -> str:
    """The requests of both models and the drawn graph, as text."""
    requests = [(r.messages, r.tools, r.tool_choice, r.kwargs) for r in [*model.requests, *inner.requests]]
    return f"{requests!r}{graph.get_graph().to_json()}{graph.get_context_jsonschema()}"


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("mode", "script"),
    [
        pytest.param("native", NATIVE, id="native"),
        pytest.param("text", TEXT, id="text"),
        pytest.param("wave", WAVE, id="wave"),
        pytest.param("wave", BROKEN_WAVE, id="wave-repaired"),
    ],
)
async def test_a_credential_reaches_the_tool_that_declares_it_and_nothing_else(
    mode: Any, script: list[str | AIMessage], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    received: list[str] = []

    @tool
    async def enter(door: str, runtime: ToolRuntime[AgentContext, Any]) -> str:
        """Open a door."""
        credentials = runtime.context.credentials
        received.append(credentials["key"].get_secret_value())
        return f"The {door} door is open; {len(credentials)} key used: {credentials!r}"

    model, inner = ScriptedChatModel(script), ScriptedChatModel(["Found."])
    context = AgentContext(credentials={"key": SecretStr(CANARY)}, max_steps=4)
    async with open_saver(f"sqlite:///{tmp_path / 'agent.db'}") as saver:
        graph = create_graph_agent(
            model,
            tools=[enter, echo],
            delegates=[GraphDelegate("r", "Researches.", create_graph_agent(inner))],
            config=LoopConfig(tool_calling=mode),
            checkpointer=saver,
        )
        streamed = [
            part
            async for part in graph.astream(
                says("go"), thread(), context=context, stream_mode=ALL_MODES, subgraphs=True
            )
        ]
        session = Session(graph, "s1")
        state = await graph.aget_state(thread())
        history = [snapshot async for snapshot in graph.aget_state_history(thread())]
        visible = (streamed, await session.events(), await session.driver.result(), state, history)
        # Read before the saver closes: the write-ahead log is there only while it is open.
        stored = [(file.name, file.read_bytes()) for file in files(tmp_path)]

    model.assert_spent()
    seen = {
        "prompts": everything_but_the_run(graph, model, inner),
        "visible": repr(visible),
        "logs": caplog.text + repr([vars(record) for record in caplog.records]),
        **{name: content.decode("latin-1") for name, content in stored},
    }
    assert (received, [name for name, text in seen.items() if CANARY in text], "agent.db" in seen) == (
        [CANARY],
        [],
        True,
    )


async def test_a_credential_is_not_in_the_error_of_a_tool_that_was_given_it() -> None:
    @tool
    async def enter(runtime: ToolRuntime[AgentContext, Any]) -> str:
        """Open a door."""
        raise PermissionError(f"refused: {runtime.context.credentials}")

    model = ScriptedChatModel([asks(("1", "enter", {})), "No more actions.", "Done."])
    graph = create_graph_agent(model, tools=[enter])

    result = await graph.ainvoke(says("go"), context=AgentContext(credentials={"key": SecretStr(CANARY)}))

    assert (result["messages"][2].status, CANARY in repr(result), "**********" in result["messages"][2].text) == (
        "error",
        False,
        True,
    )


@pytest.mark.parametrize("bad", [{"max_steps": 0}, {"max_stepz": 1}, {"temperature": "hot"}], ids=str)
async def test_a_context_that_cannot_be_used_is_refused_without_its_credentials(bad: dict[str, Any]) -> None:
    graph = create_graph_agent(ScriptedChatModel(["Hello."]))

    context: Any = {"credentials": {"key": CANARY}, **bad}
    with pytest.raises(ValueError, match=next(iter(bad))) as refused:
        await graph.ainvoke(says("go"), context=context)

    assert CANARY not in f"{refused.value}{refused.value!r}"
