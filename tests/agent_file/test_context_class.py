"""A dataclass, pydantic class or TypedDict class of the user as the agent's `context_schema`."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import pytest
from langchain.agents.middleware import before_model, wrap_model_call
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import get_runtime
from pydantic import BaseModel

from graph_agent import LoopConfig, ScriptedChatModel, Session, create_graph_agent
from graph_agent.errors import ConfigError
from tests.support.agents import asks, dialogue, says, thread


@dataclasses.dataclass
class Customer:
    name: str
    model: str = "sedan"


class PydanticCustomer(BaseModel):
    name: str
    model: str = "sedan"


class DictCustomer(TypedDict):
    name: str
    model: str


CUSTOMERS: list[Any] = [Customer, PydanticCustomer, DictCustomer]


@pytest.mark.parametrize("schema", CUSTOMERS)
@pytest.mark.parametrize("as_mapping", [True, False], ids=["mapping", "object"])
@pytest.mark.parametrize("tool_calling", ["native", "wave"])
async def test_any_class_is_the_context_of_tools_and_middleware(
    schema: Any, as_mapping: bool, tool_calling: Any
) -> None:
    seen: list[Any] = []

    @tool
    async def look(runtime: ToolRuntime[Any]) -> str:
        """Look."""
        seen.append(runtime.context)
        by_runtime: Any = get_runtime().context
        return str(by_runtime["name"] if isinstance(runtime.context, dict) else by_runtime.name)

    @before_model(name="before")
    def before(state: Any, runtime: Any) -> None:
        seen.append(runtime.context)

    @wrap_model_call(name="around")
    async def around(request: Any, handler: Any) -> Any:
        seen.append(request.runtime.context)
        return await handler(request)

    call = '{"status": "continue", "tools": [{"id": "1", "tool": "look", "args": {}}]}'
    script = [call if tool_calling == "wave" else asks(("1", "look", {}))] * 3
    agent = create_graph_agent(
        ScriptedChatModel(script),
        [look],
        middleware=[before, around],
        context_schema=schema,
        config=LoopConfig(max_steps=2, on_limit="message", tool_calling=tool_calling),
        checkpointer=InMemorySaver(),
    )
    fields = {"name": "Ann", "model": "van"}
    context = {**fields, "max_steps": 1} if as_mapping else schema(**fields)

    result = await Session(agent, "s1").run("go", context=context)

    assert (seen[:3], {type(each) for each in seen}, result.results["1"], result.iterations) == (
        [schema(**fields)] * 3,
        {dict if schema is DictCustomer else schema},
        "Ann",
        1 if as_mapping else 2,
    )


@pytest.mark.parametrize("schema", [Customer, PydanticCustomer])
async def test_settings_whose_names_the_class_has_are_below_graph_agent(schema: Any) -> None:
    agent = create_graph_agent(ScriptedChatModel(["Hi."]), context_schema=schema)
    context = {"name": "Ann", "model": "van", "graph_agent": {"model": "nowhere"}}

    with pytest.raises(ConfigError, match="The model 'nowhere' names no provider"):
        await agent.ainvoke(says("hi"), context=context)


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({"nam": "Ann"}, "context (RunContext): unknown field 'nam'"),
        ({"model": "van"}, "context: no Customer can be made of it: "),
        (5, "context: got a int; pass a Customer, or a mapping of its fields."),
        (
            {"name": "Ann", "graph_agent": "van"},
            "context: got a str; pass an AgentContext, or a mapping of its fields.",
        ),
    ],
)
async def test_a_context_that_does_not_fit_the_class_is_refused(context: Any, message: str) -> None:
    agent = create_graph_agent(ScriptedChatModel(["Hi."]), context_schema=Customer, checkpointer=InMemorySaver())

    with pytest.raises(ConfigError) as direct:
        await agent.ainvoke(says("hi"), thread(), context=context)
    with pytest.raises(ConfigError) as by_session:
        await Session(agent, "s1").run("hi", context=context)

    assert [str(caught.value).startswith(message) for caught in (direct, by_session)] == [True, True]


def test_a_blocking_run_has_the_context_too() -> None:
    @tool
    def look(runtime: ToolRuntime[Any]) -> str:
        """Look."""
        return str(runtime.context.name)

    agent = create_graph_agent(ScriptedChatModel([asks(("1", "look", {})), "Done."]), [look], context_schema=Customer)

    state = agent.invoke(says("go"), context=Customer("Ann"))

    assert dialogue(state["messages"])[2] == ("tool", "Ann")
