"""Sources of credentials: an agent file, the command line, and a run's context."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import SecretStr

from graph_agent import AgentContext, GraphDelegate, ScriptedChatModel, create_graph_agent
from graph_agent.agent_file.credentials import read_credentials, sources_from
from graph_agent.compiled import AgentStateGraph, CompiledAgentGraph
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, open_agent
from tests.interfaces.server.process import ROOT
from tests.support.agents import asks, says, thread
from tests.support.cli import run_cli
from tests.support.unlock_agent import UNLOCK, unlock

CANARY, OWN = "canary-5f0d1c77", "canary-own-90b2"


def agent(**options: Any) -> CompiledAgentGraph:
    """An agent with a credential of its own."""
    graph = create_graph_agent(ScriptedChatModel([UNLOCK, "No more actions.", "Done."]), tools=[unlock], **options)
    assert isinstance(graph.builder, AgentStateGraph)
    graph.builder.credentials = {"door": SecretStr(OWN)}
    return graph


def unlocked(state: dict[str, Any]) -> str:
    return str(next(message.text for message in state["messages"] if message.type == "tool"))


@pytest.mark.parametrize(
    ("context", "found"),
    [
        (None, "door ends in 90b2"),
        ({"max_steps": 3}, "door ends in 90b2"),
        ({"credentials": {"key": CANARY}}, "door ends in 90b2, key ends in 1c77"),
        ({"credentials": {"door": CANARY}}, "door ends in 1c77"),
        (AgentContext(credentials={"door": SecretStr(CANARY)}), "door ends in 1c77"),
    ],
    ids=["none", "no credentials", "another", "the same", "an object"],
)
async def test_a_runs_credentials_override_the_agents(context: Any, found: str) -> None:
    assert unlocked(await agent().ainvoke(says("go"), context=context)) == found


def test_an_agents_own_credentials_reach_a_blocking_run() -> None:
    assert unlocked(agent().invoke(says("go"))) == "door ends in 90b2"


@pytest.mark.parametrize("bad", [{"credentials": 5}, {"credentials": {"door": 5}}, {"max_stepz": 1}], ids=str)
async def test_a_context_that_cannot_be_used_is_still_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))) as refused:
        await agent().ainvoke(says("go"), context=bad)

    assert OWN not in f"{refused.value}{refused.value!r}"


@pytest.mark.parametrize("explicit", [True, False], ids=["as a node", "called in a node"])
@pytest.mark.parametrize(
    ("schema", "context", "found"),
    [
        (AgentContext, AgentContext(credentials={"key": SecretStr(CANARY)}), "door ends in 90b2, key ends in 1c77"),
        (dict, {"tenant": "acme"}, "door ends in 90b2"),
        (AgentContext, None, "door ends in 90b2"),
    ],
    ids=["ours", "foreign", "none"],
)
async def test_an_agent_in_another_graph_has_its_own_credentials(
    explicit: bool, schema: type[Any], context: Any, found: str
) -> None:
    inner = agent()

    async def calling(state: MessagesState) -> dict[str, Any]:
        return {"messages": (await inner.ainvoke({"messages": state["messages"]}))["messages"]}

    parent = StateGraph(MessagesState, context_schema=schema)
    parent.add_node("agent", inner if explicit else calling)
    parent.add_edge(START, "agent")
    parent.add_edge("agent", END)

    graph: Any = parent.compile()
    assert unlocked(await graph.ainvoke(says("go"), context=context)) == found


async def test_an_agents_own_credentials_go_along_to_a_local_delegate() -> None:
    model = ScriptedChatModel([UNLOCK, "No more actions.", "Done."])
    inner = create_graph_agent(model, tools=[unlock])
    script = [asks(("1", "delegate_to_r", {"task": "t"})), "No more actions.", "Done."]
    graph = create_graph_agent(ScriptedChatModel(script), delegates=[GraphDelegate("r", "Researches.", inner)])
    assert isinstance(graph.builder, AgentStateGraph)
    graph.builder.credentials = {"door": SecretStr(OWN)}

    await graph.ainvoke(says("go"))

    assert [message.text for message in model.requests[1].messages if message.type == "tool"] == ["door ends in 90b2"]


def file(folder: Path, **content: Any) -> Path:
    """An agent file whose agent calls `unlock`."""
    (folder / "parts.py").write_text("from tests.support.unlock_agent import make, unlock\n")
    path = folder / "agent.yaml"
    agent = {"name": "a", "model": "parts:make", "tools": ["parts:unlock"], "db": "memory:", **content}
    path.write_text(yaml.safe_dump(agent))
    return path


async def test_an_agent_file_names_the_variables_of_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR", OWN)
    async with open_agent(load_spec(file(tmp_path, credentials={"door": {"env": "DOOR"}}))) as graph:
        state = await graph.ainvoke(says("go"), thread())

    assert unlocked(state) == "door ends in 90b2"


async def test_an_agent_whose_credentials_have_no_value_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOOR", raising=False)
    monkeypatch.setenv("GATE", "")
    spec = load_spec(file(tmp_path, credentials={"door": {"env": "DOOR"}, "gate": {"env": "GATE"}}))

    with pytest.raises(ConfigError, match=r"door \(\$DOOR\), gate \(\$GATE\)"):
        async with open_agent(spec):
            pass


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"token": CANARY}, "credentials.token"),
        ({"token": {"value": CANARY}}, "credentials.token"),
        ({"token": {"env": "NAME", "value": CANARY}}, "credentials.token"),
        ({"token": {"env": ["NAME", CANARY]}}, "credentials.token"),
        ({"token": {"env": ""}}, "credentials.token"),
        ([CANARY], "expected a mapping"),
        (CANARY, "expected a mapping"),
    ],
)
def test_a_secret_in_an_agent_file_is_refused_and_not_shown(tmp_path: Path, given: Any, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_spec(file(tmp_path, credentials=given))

    assert (why in str(refused.value), "{env: NAME}" in str(refused.value), CANARY in str(refused.value)) == (
        True,
        True,
        False,
    )


@pytest.mark.parametrize(
    ("entry", "name"), [(f"token={CANARY}", "token"), (f"token=env:{''}", "token"), (f"token=file:{CANARY}", "token")]
)
def test_a_secret_on_the_command_line_is_refused_and_not_shown(entry: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"--credential {name}: write NAME=env:VARIABLE") as refused:
        sources_from([entry])

    assert CANARY not in str(refused.value)


TOOL = """
from pathlib import Path
from typing import Any
from langgraph.prebuilt import ToolRuntime
from graph_agent import AgentContext

def unlock(runtime: ToolRuntime[AgentContext, Any]) -> str:
    "Unlock."
    found = {name: secret.get_secret_value() for name, secret in runtime.context.credentials.items()}
    Path(__file__).with_name("found").write_text(repr(found))
    return "unlocked"
"""


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], (2, None)),
        (["--credential", "door=env:KEY"], (0, {"door": CANARY})),
        (["--credential", "door=env:DOOR", "--credential", "key=env:KEY"], (0, {"door": OWN, "key": CANARY})),
    ],
    ids=["missing", "replaced", "added"],
)
def test_the_command_line_adds_to_the_file(tmp_path: Path, options: list[str], found: tuple[int, Any]) -> None:
    (tmp_path / "my_tools.py").write_text(TOOL)
    path = file(tmp_path, credentials={"door": {"env": "NOT_SET"}}, tools=["my_tools:unlock"])
    calls = json.dumps({"tool_calls": [{"name": "unlock", "arguments": {}}]})
    environment = {"DOOR": OWN, "KEY": CANARY, "PYTHONPATH": str(ROOT)}

    done = run_cli(
        tmp_path,
        "run",
        *options,
        "--config",
        str(path),
        "go",
        script=[calls, "No more actions.", "Done."],
        **environment,
    )

    written = tmp_path / "found"
    written_value = ast.literal_eval(written.read_text()) if written.exists() else None
    assert ((done.returncode, written_value), CANARY in done.stdout + done.stderr) == (found, False)


def test_a_value_is_read_from_its_variable() -> None:
    found = read_credentials(sources_from(["token=env:A", "key=env:B"]), {"A": "a=b:c", "B": "x"})

    assert {name: secret.get_secret_value() for name, secret in found.items()} == {"token": "a=b:c", "key": "x"}


async def test_a_missing_variable_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOOR_TOKEN", raising=False)
    file = tmp_path / "agent.yaml"
    file.write_text("name: a\nmodel: openai:gpt-4o-mini\ncredentials: {door: {env: DOOR_TOKEN}}\n")

    with pytest.raises(ConfigError, match=r"agent\.yaml: credentials: These credentials have no value"):
        async with open_agent(load_spec(file), db=""):
            pass
