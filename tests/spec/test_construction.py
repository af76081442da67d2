"""Wrong configuration raises one clear error when the agent is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import BaseTool, tool

import graph_agent
from graph_agent import AgentContext, GraphDelegate, LoopConfig, LoopHook, ScriptedChatModel, create_graph_agent
from graph_agent.context import coerce_context, effective_config
from graph_agent.errors import ConfigError
from graph_agent.server.hosting.sources import a2a_context_of
from graph_agent.spec.agent_file import load_spec
from graph_agent.spec.opening import open_agent
from tests.support.agents import echo, says

OF_A_RUN = [
    "credentials",
    "client_tools",
    "client_calls",
    "client_tool_choice",
    "parallel_client_calls",
    "instructions",
    "response_schema",
]


def researcher(name: str = "researcher") -> GraphDelegate:
    return GraphDelegate(name, "Finds things out.", create_graph_agent(ScriptedChatModel(["x"])))


def no_docstring(text: str) -> str:
    return text


class Plain:
    """A class that JSON does not have."""


def with_a_class(plain: Plain) -> str:
    """Take an object."""
    return ""


def with_a_broken_hint(text: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821 - what the test is about
    """Take an undefined type."""
    return ""


class ToolClass(BaseTool):
    name: str = "made"
    description: str = "Is made of a class."

    def _run(self) -> str:
        return ""


def prompt_of_a_state(state: Any) -> str:
    return ""


async def coroutine_prompt() -> str:
    return ""


@tool("delegate_to_nobody")
def pretender() -> str:
    """Look like a delegation."""
    return ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [echo, echo]}, "Two tools are named 'echo'; rename one of them."),
        (
            {"tools": [echo], "delegates": [researcher("echo")]},
            "The delegate 'echo' is named like a tool; rename one of them.",
        ),
        ({"delegates": [researcher(), researcher()]}, "Two delegates are named 'researcher'; rename one of them."),
        (
            {"delegates": [researcher("a b")]},
            "Delegate name 'a b' cannot be used; take 1 to 50 letters, digits, '_' or '-'.",
        ),
        ({"tools": [pretender]}, "The tool name 'delegate_to_nobody' is kept for delegations; rename the tool."),
        ({"tools": ["echo"]}, "tools[0]='echo' is no tool; give a LangChain tool, or a function."),
        (
            {"tools": [no_docstring]},
            "tools[0]: the function 'no_docstring' cannot be a tool: Function must have a docstring if description not "
            "provided. Give it a docstring and type hints.",
        ),
        (
            {"prompts": {"planer": "x"}},
            "Unknown prompt 'planer'; known: account, ",
        ),
        (
            {"prompts": {"planner": "{{ dirct }}"}},
            "Prompt 'planner': unknown variable 'dirct'; known: ",
        ),
        (
            {"prompts": {"planner": "{% if %}"}},
            "Prompt 'planner': line 1: Expected an expression, got 'end of statement block'.",
        ),
        ({"tools": echo}, "tools=StructuredTool("),
        ({"tools": "echo"}, "tools='echo': give a list, e.g. tools=[…]."),
        ({"tools": [with_a_class]}, "The tool 'with_a_class' cannot be offered: "),
        ({"tools": [with_a_broken_hint]}, "tools[0]: the function 'with_a_broken_hint' cannot be a tool: NameError: "),
        ({"tools": [ToolClass]}, "tools[0]: ToolClass is a class of tools; give an object of it: ToolClass(…)."),
        ({"delegates": [{"name": "a"}]}, "delegates[0]={'name': 'a'} is no delegate; give GraphDelegate("),
        ({"hooks": 5}, "hooks=5: give a list, e.g. hooks=[…]."),
        ({"prompts": ["x"]}, "prompts=['x']: give a mapping of prompt name → template text."),
        ({"prompts": {"planner": 5}}, "Prompt 'planner': give a template as text, not 5."),
        ({"system_prompt": 5}, "system_prompt=5: give text, or a function without parameters that returns text."),
        (
            {"system_prompt": prompt_of_a_state},
            "system_prompt: the function prompt_of_a_state needs 'state', and it is called without arguments; ",
        ),
        ({"system_prompt": coroutine_prompt}, "system_prompt: coroutine_prompt is a coroutine function; give a plain"),
        ({"context_schema": 5}, "context_schema must be AgentContext or a subclass of it, not 5."),
        ({"checkpointer": "sqlite:///a.db"}, "checkpointer='sqlite:///a.db': pass an object of LangGraph's; "),
        ({"hooks": ["x"]}, "hooks: 'x' is no hook; give a LoopHook, with should_run and build_plan, or an Agent"),
        ({"hooks": [LoopHook]}, "hooks: LoopHook is a class; give an object of it: LoopHook(…)."),
        (
            {"response_format": {"type": "nonsense"}},
            "response_format is no valid JSON schema: 'nonsense' is not valid under any of the given schemas.",
        ),
        (
            {"response_format": 5},
            "response_format takes a pydantic class, a dataclass, a TypedDict class or a JSON schema, not 5.",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_mismatched_parts_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_graph_agent(ScriptedChatModel(["x"]), **options)

    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_steps": 0}, "LoopConfig: max_steps=0: Input should be greater than 0."),
        ({"on_limit": "stop"}, "LoopConfig: on_limit='stop': Input should be 'answer' or 'message'."),
        (
            {"max_cost": 5.0},
            "LoopConfig: max_cost needs prices, e.g. prices={'gpt-4o-mini': {'input': 0.15, 'output': 0.6}}.",
        ),
    ],
)
def test_an_invalid_configuration_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoopConfig(**values)

    assert str(caught.value) == message


def test_a_misspelt_field_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        LoopConfig(max_step=3)

    assert (str(caught.value).split(";")[0], str(caught.value).rpartition(". ")[2]) == (
        "LoopConfig: unknown field 'max_step'",
        "Did you mean 'max_steps'?",
    )


def test_the_context_has_every_field_of_the_configuration() -> None:
    assert set(AgentContext.model_fields) - set(OF_A_RUN) == set(LoopConfig.model_fields)


@pytest.mark.parametrize(
    ("brought", "steps"),
    [
        (None, 7),
        ({}, 7),
        ({"max_steps": 2}, 2),
        (AgentContext(max_steps=2), 2),
        (AgentContext(), 7),
        ({"tenant": "a", "max_steps": 2}, 7),
        (object(), 7),
    ],
    ids=["none", "empty", "mapping", "model", "unset", "foreign mapping", "foreign object"],
)
def test_the_runs_context_overrides_the_built_configuration(brought: Any, steps: int) -> None:
    assert effective_config(LoopConfig(max_steps=7), brought) == LoopConfig(max_steps=steps)


def test_a_subclass_of_the_context_keeps_its_own_fields() -> None:
    class Mine(AgentContext):
        tenant: str = ""

    brought = Mine(tenant="a", max_steps=2)

    assert coerce_context(brought) is brought


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: a\nmodel: x:y\nmodle: z", "unknown field 'modle'; known: "),
        ("name: a", "the field 'model' is missing."),
        ("name: [", "not valid YAML"),
        ("just text", "expected keys such as 'name' and 'model' at the top, got 'just text'."),
        (
            "name: a\nmodel: x:y\nconfig: {max_steps: 0}",
            "config: max_steps=0: Input should be greater than 0.",
        ),
        (
            "name: a\nmodel: x:y\nconfig: {max_rounds: 0}",
            "config: max_steps=0: Input should be greater than 0.",
        ),
        (
            "name: a\nmodel: x:y\nconfig: {max_rounds: 8, max_steps: 9}",
            "config={'max_rounds': 8, 'max_steps': 9}: max_rounds and max_steps are two names of one field; give one",
        ),
        ("name: a\nmodel: x:y\npath: b", "unknown field 'path'; known: "),
        (
            "name: a\nmodel: x:y\ndelegates: [{name: r}]",
            "delegate 'r': give its 'agent' (an agent file), its 'graph' (as 'module:factory') or its 'url'; one of",
        ),
        (
            "name: a\nmodel: x:y\ndelegates: [{name: r, graph: 'm:g', timeout_s: 5}]",
            "delegate 'r': timeout_s is for a remote agent, with a 'url'.",
        ),
    ],
    ids=["typo", "missing", "yaml", "text", "config", "alias", "both names", "path", "delegate", "local"],
)
def test_an_invalid_agent_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_spec(file)

    assert (str(file) in str(caught.value), message in str(caught.value)) == (True, True)


@pytest.mark.parametrize("name", ["max_steps", "max_rounds"])
def test_an_agent_file_bounds_the_steps_under_either_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"name: a\nmodel: x:y\nconfig: {{{name}: 8}}", encoding="utf-8")

    spec = load_spec(file)

    # The defaults of A2A runs must not override the file's values.
    assert (spec.loop_config(), "max_steps" in a2a_context_of(spec)) == (LoopConfig(max_steps=8), False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: 'my_tools:nothing'", "'my_tools' has no 'nothing'; known: "),
        ("model: 'my_tools:number'", "'my_tools:number' gave 5; a model factory returns a LangChain chat model."),
        ("model: 'my_tools:make'\ntools: ['my_tools:serch']", "'my_tools' has no 'serch'; known: "),
        (
            "model: 'my_tools:make'\ntools: ['nowhere:x']",
            "tools.0: 'nowhere:x': there is no module 'nowhere'; looked in ",
        ),
        ("model: 'my_tools:make'\ntools: ['no dots']", "'no dots' is no dotted name; write 'module:attribute'"),
        ("model: 'my_tools:make'\nsystem_prompt: missing.yaml", "system_prompt: Prompt file "),
        ("model: 'my_tools:make'\nsystem_prompt: typo.yaml", "typo.yaml: unknown variable 'toady'; known: "),
        ("model: 'my_tools:make'\nsystem_prompt: 'It is {{ toady }}.'", "unknown variable 'toady'; known: "),
        (
            "model: 'my_tools:make'\nsystem_prompt: extra.yaml",
            "extra.yaml: unknown key 'more'; a prompt file has one key",
        ),
        ("model: 'my_tools:make'\ndb: 'mysql://x'", "db='mysql://x': no such kind of database; use 'sqlite:///FILE'"),
        ("model: 'openai:gpt-4o-mini'", "OPENAI_API_KEY"),
        (
            "model: 'my_tools:make'\ndelegates: [{name: r, url: 'ftp://x'}]",
            "delegate 'r': 'ftp://x' is no address of an agent; write e.g. 'http://127.0.0.1:9001'.",
        ),
        (
            "model: 'my_tools:make'\ndelegates: [{name: r, url: 'http://x', auth: {}}]",
            "delegate 'r': auth: name one variable: 'bearer_env' for a token, or 'api_key_env' for a key",
        ),
    ],
    ids=[
        "attribute",
        "no model",
        "tool",
        "module",
        "shape",
        "no prompt",
        "variable",
        "inline",
        "key",
        "db",
        "no api key",
        "address",
        "secret",
    ],
)
async def test_an_agent_that_fails_to_open_reports_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("DEBUG_MOCK_RESPONSES", raising=False)
    (tmp_path / "my_tools.py").write_text(
        "from graph_agent import ScriptedChatModel\n"
        "def make():\n    return ScriptedChatModel(['hi'])\n"
        "def number():\n    return 5\n"
        "def search(text: str) -> str:\n    'Search.'\n    return text\n"
    )
    (tmp_path / "typo.yaml").write_text("template: 'It is {{ toady }}.'")
    (tmp_path / "extra.yaml").write_text("template: x\nmore: y")
    file = tmp_path / "agent.yaml"
    file.write_text(f"name: a\n{content}", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        async with open_agent(load_spec(file)):
            pass

    assert message in str(caught.value)


def test_the_facade() -> None:
    offered = {name: getattr(graph_agent, name) for name in graph_agent.__all__}

    assert (set(offered), set(dir(graph_agent)) >= set(offered)) == (
        {
            "A2ADelegate",
            "AgentContext",
            "GraphDelegate",
            "LoopConfig",
            "LoopHook",
            "LoopPlan",
            "RequestPatch",
            "RunResult",
            "ScriptedChatModel",
            "Session",
            "SessionMemory",
            "SessionStatus",
            "build_graph",
            "create_graph_agent",
            "idempotency_key",
        },
        True,
    )


def test_the_facade_has_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        graph_agent.nothing  # noqa: B018 - the access is under test


def test_a_second_copy_of_the_nodes_is_refused() -> None:
    import importlib

    with pytest.raises(ImportError, match=r"Import the nodes as 'graph_agent\.nodes'"):
        importlib.import_module("nodes")


async def test_caches_of_run_values_are_bounded() -> None:
    graph = create_graph_agent(ScriptedChatModel(["No more actions.", "Done."], cycle=True), tools=[echo])
    node: Any = graph.nodes["plan"].bound
    deps = node.afunc.__wrapped__.keywords["deps"]

    for number in range(1, 100):
        await graph.ainvoke(says("hi"), context={"temperature": number / 100, "max_calls_per_wave": number})

    assert (len(deps.client._bound), len(deps._instructions)) == (64, 64)
