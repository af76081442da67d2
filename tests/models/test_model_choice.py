"""The model of a run: the agent's, the configuration's, or the run's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import AgentContext, LoopConfig, ScriptedChatModel, Session, build_graph, create_graph_agent
from graph_agent.errors import ConfigError
from graph_agent.models.pool import ModelPool
from graph_agent.spec import load_spec, open_agent
from tests.support.agents import ECHO_SCRIPT, echo, says, thread
from tests.support.openai_stub import StubFactory, openai_stub

__all__ = ["openai_stub"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DEBUG_MOCK_RESPONSES"):
        monkeypatch.delenv(name, raising=False)


def named(**scripts: list[str]) -> Any:
    """A resolver of scripted models by name, each created once and requested once."""
    models = {f"test:{name}": ScriptedChatModel(script) for name, script in scripts.items()}

    def find(given: Any) -> BaseChatModel:
        if isinstance(given, BaseChatModel):
            return given
        try:
            return models[given]
        except KeyError:
            raise ConfigError(f"No model {given!r}; known: {', '.join(models)}.") from None

    return find


async def test_a_run_can_change_the_model_from_the_next_call() -> None:
    own = ScriptedChatModel([*ECHO_SCRIPT, "I am the first again."])
    graph = create_graph_agent(
        own, tools=[echo], checkpointer=InMemorySaver(), resolve=named(other=["No more actions.", "I am another."])
    )
    session = Session(graph, "s1")
    contexts: list[Any] = [None, {"model": "test:other"}, {"finalize": "direct"}]

    answers = [(await session.run("go", context=context)).answer for context in contexts]

    assert answers == ["The echo returned: hello", "I am another.", "I am the first again."]


async def test_the_configuration_takes_the_place_of_the_agents_model() -> None:
    own = ScriptedChatModel(["never"])
    config = LoopConfig(model="test:other")

    result = await create_graph_agent(own, config=config, resolve=named(other=["Another."])).ainvoke(says("go"))

    assert (result["messages"][-1].text, own.requests) == ("Another.", [])


async def test_a_name_is_resolved_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(given: Any) -> BaseChatModel:
        if isinstance(given, BaseChatModel):
            return given
        asked.append(given)
        return ScriptedChatModel(["Yes."], cycle=True)

    config = LoopConfig(fallback_models=("test:spare",))
    graph = create_graph_agent(ScriptedChatModel(["Hi."], cycle=True), config=config, resolve=find)
    for _ in range(3):
        await graph.ainvoke(says("go"), context={"model": "test:other"})

    assert asked == ["test:spare", "test:other"]


async def test_models_that_runs_bring_do_not_pile_up() -> None:
    pool = ModelPool(
        ScriptedChatModel(["own"]),
        config=LoopConfig(),
        resolve=lambda _: ScriptedChatModel(["other"]),
        schemas=[],
        plan_schema={},
        plan_tool="plan",
    )

    chains = [await pool.chain(LoopConfig(model=f"test:{n}", fallback_models=(f"test:{n}",))) for n in range(100)]

    assert ([len(chain) for chain in chains], len(pool._run_models)) == ([1] * 100, 32)


async def test_a_wrong_model_in_a_runs_context_is_raised_with_the_fix() -> None:
    graph = create_graph_agent(ScriptedChatModel(["Hello."]), tools=[echo], checkpointer=InMemorySaver())

    with pytest.raises(ConfigError) as refused:
        await graph.ainvoke(says("go"), thread(), context={"model": "gpt-4o"})
    result = await Session(graph, "s1").run("once more", context={"finalize": "direct"})

    assert (str(refused.value), result.answer) == (
        "model: The model 'gpt-4o' names no provider; did you mean 'openai:gpt-4o'? Write it as 'provider:name'.",
        "Hello.",
    )


WITH_RETRY = ScriptedChatModel(["Hi."]).with_retry()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fallback_models": ("gpt-4o",)}, "fallback_models: The model 'gpt-4o' names no provider; did you mean "),
        ({"fallback_models": ("openai:gpt-4o",)}, "fallback_models: The model 'openai:gpt-4o' needs a key: set "),
        ({"fallback_models": (4,)}, "fallback_models: A model is a chat model or a 'provider:name'; got int."),
        ({"fallback_models": (WITH_RETRY,)}, "got RunnableRetry. Give the BaseChatModel itself, with the options of "),
        ({"fallback_models": ("",)}, "fallback_models=('',): each is a 'provider:name' or a chat model"),
        ({"fallback_models": "openai:gpt-4o"}, "fallback_models='openai:gpt-4o': Input should be a valid tuple."),
        ({"model": "gpt-4o"}, "model: The model 'gpt-4o' names no provider; did you mean 'openai:gpt-4o'?"),
        ({"model": ""}, "LoopConfig: model='': String should have at least 1 character."),
    ],
    ids=["name", "key", "object", "runnable", "empty", "no list", "model", "no model"],
)
def test_an_unavailable_configured_model_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create_graph_agent(ScriptedChatModel(["Hi."]), config=LoopConfig(**options))

    assert message in str(refused.value)


def test_a_graph_from_ready_objects_resolves_no_names() -> None:
    with pytest.raises(ConfigError, match=r"^fallback_models: 'openai:x' is not a chat model, and this graph was"):
        build_graph(ScriptedChatModel(["Hi."]), config=LoopConfig(fallback_models=("openai:x",)))


async def test_one_script_stands_for_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG_MOCK_RESPONSES", '["One.", "Two.", "Three."]')
    config = LoopConfig(model="openai:gpt-4o", fallback_models=("openai:gpt-4o-mini", ScriptedChatModel(["no"])))
    graph = create_graph_agent("openai:gpt-4.1", config=config)

    contexts: list[Any] = [None, {"model": "openai:o1"}, {"temperature": 1.0}]
    answers = [(await graph.ainvoke(says("go"), context=context))["messages"][-1].text for context in contexts]

    assert answers == ["One.", "Two.", "Three."]


def test_values_laid_over_a_configuration_leave_its_models_whole() -> None:
    spare = ScriptedChatModel(["Hi."])

    laid = LoopConfig(fallback_models=("openai:x", spare)).with_values({"max_steps": 2})

    assert (laid.max_steps, laid.fallback_models[0], laid.fallback_models[1] is spare) == (2, "openai:x", True)


def test_a_form_asks_for_models_as_text() -> None:
    offered = AgentContext.model_json_schema()["properties"]

    assert (offered["model"]["anyOf"][0], offered["fallback_models"]["anyOf"][0]) == (
        {"minLength": 1, "type": "string"},
        {"items": {"type": "string"}, "type": "array"},
    )


def test_a_context_with_no_model_at_all() -> None:
    with pytest.raises(ConfigError, match="at least 1 character"):
        AgentContext(model="")


MODELS = """
from graph_agent import ScriptedChatModel

class Silent(ScriptedChatModel):
    async def _agenerate(self, *_, **__):
        raise ConnectionError("nobody there")

def silent():
    return Silent(responses=["never"])

def spare():
    return ScriptedChatModel(["I am the spare."])
"""


async def test_an_agent_file_names_its_fallbacks_as_it_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text(MODELS)
    file = tmp_path / "agent.yaml"
    file.write_text(
        "name: a\nmodel: 'my_models:silent'\nconfig: {model_retries: 0, fallback_models: ['my_models:spare']}\n"
    )

    async with open_agent(load_spec(file), db="") as graph:
        result = await graph.ainvoke(says("go"))

    assert result["messages"][-1].text == "I am the spare."


async def test_a_run_cannot_have_code_imported_by_naming_it(tmp_path: Path) -> None:
    (tmp_path / "my_models.py").write_text(MODELS)
    file = tmp_path / "agent.yaml"
    file.write_text("name: a\nmodel: 'my_models:spare'\n")

    async with open_agent(load_spec(file), db="") as graph:
        with pytest.raises(ConfigError, match=r"^model: Unknown model provider 'my_models'"):
            await graph.ainvoke(says("go"), context={"model": "my_models:silent"})


async def test_a_named_fallback_over_http(openai_stub: StubFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(ScriptedChatModel):
        async def _agenerate(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError("nobody there")

    stub = openai_stub("Hello.")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-stub-key")
    monkeypatch.setenv("OPENAI_BASE_URL", stub.base_url)
    config = LoopConfig(model_retries=0, fallback_models=("openai:spare",))

    result = await create_graph_agent(Silent(responses=["never"]), config=config).ainvoke(says("go"))

    assert (result["messages"][-1].text, [body["model"] for body in stub.bodies]) == ("Hello.", ["spare"])
