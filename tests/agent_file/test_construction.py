"""Wrong configuration raises one clear error when the agent is built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain.agents.middleware import before_model
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from pydantic import BaseModel, create_model
from pydantic.json_schema import GenerateJsonSchema

import graph_agent
from graph_agent import (
    AgentContext,
    GraphDelegate,
    LoopConfig,
    LoopHook,
    ScriptedChatModel,
    Session,
    build_graph,
    create_graph_agent,
)
from graph_agent.base.settings.config import coerce_context, effective_config
from graph_agent.errors import ConfigError
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import asks, dialogue, echo, says, thread

BLOCKS = SystemMessage([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])
OF_A_RUN = [
    "credentials",
    "caller",
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


def lookup(name: str) -> StructuredTool:
    """Return a tool with parameters of every plain kind, an injected one included."""

    def look_up(
        events: Annotated[Any, InjectedState("events")],
        runtime: ToolRuntime,
        count: int | None = None,
        kinds: Literal["a", "b"] = "a",
        tags: list[dict[str, Any]] | None = None,
    ) -> str:
        return f"{count} of {name}"

    return StructuredTool.from_function(look_up, name=name, description="Look a key up.")


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


def prompt_of_a_run(state: Any, config: Any) -> str:
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
            "Unknown prompt 'planer'; did you mean 'planner'? Known: account, ",
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
        ({"tools": [partial(no_docstring)]}, "tools[0]=functools.partial(<function no_docstring at "),
        ({"interrupt_after": "tools"}, "interrupt_after='tools': give a list, e.g. interrupt_after=['tools']."),
        ({"tools": [ToolClass]}, "tools[0]: ToolClass is a class of tools; give an object of it: ToolClass(…)."),
        ({"delegates": [{"name": "a"}]}, "delegates[0]={'name': 'a'} is no delegate; give GraphDelegate("),
        ({"hooks": 5}, "hooks=5: give a list, e.g. hooks=[…]."),
        ({"prompts": ["x"]}, "prompts=['x']: give a mapping of prompt name → template text."),
        ({"prompts": {"planner": 5}}, "Prompt 'planner': give a template as text, not 5."),
        (
            {"system_prompt": 5},
            "system_prompt=5: give text or a SystemMessage, or a function that returns one of them.",
        ),
        (
            {"system_prompt": prompt_of_a_run},
            "system_prompt: the function prompt_of_a_run needs 'state', 'config', and it is called with the state ",
        ),
        ({"system_prompt": coroutine_prompt}, "system_prompt: coroutine_prompt is a coroutine function; give a plain"),
        ({"context_schema": 5}, "context_schema=5: give a dataclass, a pydantic class or a TypedDict class."),
        ({"checkpointer": "sqlite:///a.db"}, "checkpointer='sqlite:///a.db': pass an object of LangGraph's; "),
        ({"hooks": ["x"]}, "hooks: 'x' is no hook; give a LoopHook, with should_run and build_plan, or an Agent"),
        ({"hooks": [LoopHook]}, "hooks: LoopHook is a class; give an object of it: LoopHook(…)."),
        (
            {"response_format": {"foo": "bar"}},
            "response_format={'foo': 'bar'}: this is no JSON schema, as it has no keyword of one; write e.g. {'type': ",
        ),
        (
            {"response_format": {"type": "nonsense"}},
            "response_format is no valid JSON schema: 'nonsense' is not valid under any of the given schemas.",
        ),
        (
            {"response_format": 5},
            "response_format takes a pydantic class, a dataclass, a TypedDict class, a Union of these or a "
            "JSON schema, not 5.",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_mismatched_parts_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_graph_agent(ScriptedChatModel(["x"]), **options)

    assert str(caught.value).startswith(message)


async def test_schemas_of_tools_are_made_by_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    generate = GenerateJsonSchema.generate

    def counted(self: GenerateJsonSchema, schema: Any, mode: Any = "validation") -> Any:
        found = generate(self, schema, mode)
        made.append(found.get("title", ""))
        return found

    names = [f"lookup_{at}" for at in range(20)]
    model = ScriptedChatModel([asks(("c1", "lookup_1", {"count": 2})), "Done."])
    monkeypatch.setattr(GenerateJsonSchema, "generate", counted)
    graph = create_graph_agent(model, tools=[lookup(name) for name in names])
    built = list(made)

    result = await graph.ainvoke(says("go"))

    assert (built, made, dialogue(result["messages"])[2:]) == (
        [],
        names,
        [("tool", "2 of lookup_1"), ("ai", "Done.")],
    )


@pytest.mark.parametrize(
    "annotation",
    [
        Plain,
        list[Plain],
        dict[str, list[Plain | None]],
        Plain | None,
        Callable[[], int],
    ],
    ids=str,
)
def test_a_parameter_without_a_json_schema_is_refused_when_the_agent_is_built(annotation: Any) -> None:
    odd = create_model("odd", fine=(str, "x"), value=(annotation, ...), __config__={"arbitrary_types_allowed": True})
    given = StructuredTool.from_function(lambda **_: "", name="odd", description="Odd.", args_schema=odd)

    with pytest.raises(ConfigError, match="The tool 'odd' cannot be offered"):
        create_graph_agent(ScriptedChatModel([]), tools=[given])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_steps": 0}, "LoopConfig: max_steps=0: Input should be greater than 0."),
        ({"rollout": 0.1}, "LoopConfig: rollout=0.1 is for structured plans; set tool_calling='wave' as well."),
        (
            {"planner": "dag", "tool_calling": "native"},
            "LoopConfig: planner='dag' is for structured plans; set tool_calling='wave' as well.",
        ),
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


def test_the_other_name_of_the_step_limit_is_pointed_to_it() -> None:
    with pytest.raises(ConfigError, match="'max_rounds' was removed: its name is 'max_steps'"):
        LoopConfig(max_rounds=3)  # type: ignore[call-arg]


def test_another_mode_for_one_run_leaves_the_planner_out() -> None:
    built = LoopConfig(tool_calling="wave", planner="dag", rollout=0.5)

    assert effective_config(built, {"tool_calling": "native"}) == LoopConfig(tool_calling="native")


@pytest.mark.parametrize(("model", "where"), [(LoopConfig, "LoopConfig"), (AgentContext, "context (AgentContext)")])
def test_a_removed_field_names_its_replacement(model: Any, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model(tool_calling_default="text")

    assert str(caught.value) == (
        f"{where}: the field 'tool_calling_default' was removed: set 'tool_calling', or the entry 'tool_calling' of "
        "the model's profile."
    )


def test_a_removed_field_that_a_session_stores_is_ignored() -> None:
    stored = {"tool_calling_default": "text", "max_steps": 3}

    assert effective_config(LoopConfig(), None, changed=stored) == LoopConfig(max_steps=3)


def test_a_misspelt_field_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        LoopConfig(max_step=3)  # type: ignore[call-arg]  # the error is under test

    assert str(caught.value).startswith(
        "LoopConfig: unknown field 'max_step'; did you mean 'max_steps'? Known: answer_reserve, approve, "
    )


def test_the_context_has_every_field_of_the_configuration_that_a_caller_may_set() -> None:
    guards = {"origins", "on_tainted", "predict"}
    assert set(AgentContext.model_fields) - set(OF_A_RUN) == set(LoopConfig.model_fields) - guards


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
        ("name: a\nmodel: x:y\nmodle: z", "unknown field 'modle'; did you mean 'model'? Known: "),
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

    assert load_spec(file).loop_config() == LoopConfig(max_steps=8)


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
            "Candidate",
            "CandidatePlan",
            "ContextFields",
            "GraphAgent",
            "GraphDelegate",
            "LoopConfig",
            "LoopHook",
            "LoopPlan",
            "PlanJudge",
            "RequestPatch",
            "RunResult",
            "ScriptedChatModel",
            "Session",
            "SessionMemory",
            "SessionStatus",
            "SpeculationBudget",
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


# Arguments of create_agent and create_react_agent


@pytest.mark.parametrize(
    ("argument", "fix"),
    [
        (
            "prompt",
            "use system_prompt, with text, a SystemMessage, or a function of the state that returns one.",
        ),
        ("pre_model_hook", "use hooks, with a middleware that has before_model or wrap_model_call."),
        ("post_model_hook", "use hooks, with a middleware that has after_model, or a LoopHook."),
        ("version", "use nothing: each call is a task of its own."),
        ("config_schema", "use context_schema."),
        ("output_type", "use response_format."),
        ("max_steps", "write config=LoopConfig(max_steps=…)."),
        ("sytem_prompt", "did you mean 'system_prompt'? Known: "),
    ],
)
@pytest.mark.parametrize("constructor", [create_graph_agent, build_graph])
def test_an_unknown_argument_names_the_right_one(constructor: Any, argument: str, fix: str) -> None:
    with pytest.raises(TypeError) as caught:
        constructor(ScriptedChatModel(["x"]), **{argument: "x"})

    assert str(caught.value).startswith(f"{constructor.__name__}() has no argument {argument!r}; {fix}")


@before_model(name="before")
def noted(state: Any, runtime: Any) -> Any:
    return {"messages": [AIMessage("noted")]}


async def test_the_arguments_of_create_agent_work() -> None:
    class Answer(BaseModel):
        text: str

    tools: Any = ToolNode([echo])
    model = ScriptedChatModel([asks(("1", "echo", {"text": "a"})), '{"text": "x"}'])
    agent = create_graph_agent(
        model,
        tools,
        middleware=[noted],
        system_prompt=SystemMessage([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]),
        response_format=ToolStrategy(Answer),
        context_schema=None,
        interrupt_before=["tools"],
        interrupt_after=None,
        debug=False,
        transformers=None,
        checkpointer=InMemorySaver(),
        name=None,
    )

    stopped = await agent.ainvoke(says("hi"), thread())
    ended = await agent.ainvoke(None, thread())

    system: Any = model.requests[0].messages[0].content
    assert (
        dialogue(stopped["messages"])[1],
        (await agent.aget_state(thread())).next,
        ended["structured_response"],
        [block.get("cache_control") for block in system],
    ) == (("ai", "noted"), (), {"text": "x"}, [{"type": "ephemeral"}, None])


@pytest.mark.parametrize("tool_calling", ["native", "text", "wave"])
@pytest.mark.parametrize("given", [BLOCKS, lambda: BLOCKS, lambda state: BLOCKS], ids=["message", "function", "state"])
async def test_the_blocks_of_a_system_message_keep_their_cache_marks(tool_calling: Any, given: Any) -> None:
    model = ScriptedChatModel(["Hello."])
    agent = create_graph_agent(
        model, [echo], system_prompt=given, config=LoopConfig(tool_calling=tool_calling), checkpointer=InMemorySaver()
    )

    result = await Session(agent, "s1").run("hi", context={"instructions": "Be polite."})

    blocks: Any = model.requests[0].messages[0].content
    assert (result.answer, blocks[:2], [sorted(block) for block in blocks[2:]]) == (
        "Hello.",
        [*BLOCKS.content, {"type": "text", "text": "Be polite."}],
        [["text", "type"]],
    )


@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy, AutoStrategy])
async def test_a_strategy_of_a_response_format_is_its_schema(strategy: Any) -> None:
    class Answer(BaseModel):
        text: str

    agent = create_graph_agent(
        ScriptedChatModel(['{"text": "x"}']), response_format=strategy(Answer), checkpointer=InMemorySaver()
    )

    assert (await Session(agent, "s1").run("hi")).structured_response == Answer(text="x")


def test_a_stop_at_an_unknown_node_names_the_nodes() -> None:
    with pytest.raises(ConfigError) as caught:
        create_graph_agent(ScriptedChatModel(["x"]), interrupt_before=["tool"])

    assert str(caught.value) == (
        "interrupt_before: there is no node 'tool'; known: delegate, finalize, plan, tools. Did you mean 'tools'?"
    )


def one(before: Any) -> Any:
    return before


def keyword(before: Any, *, new: Any) -> Any:
    return before


def three(before: Any, new: Any, more: Any) -> Any:
    return before


@pytest.mark.parametrize("reducer", [one, keyword, three])
def test_a_reducer_that_does_not_take_two_values_is_refused(reducer: Any) -> None:
    schema = TypedDict("schema", {"n": Annotated[int, reducer]})  # noqa: UP013 - the reducer is a parameter

    with pytest.raises(ConfigError, match=rf"^state_schema: the reducer {reducer.__name__} cannot be called with two"):
        create_graph_agent(ScriptedChatModel(["x"]), state_schema=schema)


def total(*values: int) -> int:
    return sum(values)


class Totalled(TypedDict):
    n: Annotated[int, total]


def test_a_reducer_of_any_two_values_is_used() -> None:
    agent = create_graph_agent(ScriptedChatModel(["x"]), state_schema=Totalled, checkpointer=InMemorySaver())

    agent.invoke({**says("a"), "n": 2}, thread())

    assert agent.get_state(thread()).values["n"] == 2


@pytest.mark.parametrize(
    ("memory", "message"),
    [("{recall: -1}", "memory.recall=-1: "), ("{recal: 1}", "unknown field 'memory.recal'; known: ")],
)
def test_a_fault_in_the_memory_of_an_agent_file_is_one_line(tmp_path: Path, memory: str, message: str) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"name: a\nmodel: x:y\nmemory: {memory}\n", encoding="utf-8")

    with pytest.raises(ConfigError) as caught:
        load_spec(file)

    [line] = str(caught.value).splitlines()
    assert line.startswith(f"Agent file {file}: {message}")
