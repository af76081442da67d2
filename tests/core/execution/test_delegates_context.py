"""What a delegate receives of the context of a run: the user's object and the credentials, and no settings."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import ToolRuntime
from pydantic import BaseModel, SecretStr

from graph_agent import AgentContext, GraphDelegate, LoopConfig, ScriptedChatModel, Session, create_graph_agent
from tests.support.agents import asks, says

Way = Literal["foreground", "background", "two levels", "plain graph"]
WAYS: tuple[Way, ...] = ("foreground", "background", "two levels", "plain graph")


@dataclasses.dataclass
class Customer:
    name: str


class PydanticCustomer(BaseModel):
    name: str


class DictCustomer(TypedDict):
    name: str


class OwnContext(AgentContext):
    name: str = ""


def delegating(child: Any, *, background: bool = False, **options: Any) -> Any:
    """An agent that delegates once, and waits for the task if it is in the background."""
    task = {"task": "Look.", "background": True} if background else {"task": "Look."}
    waits = [asks(("2", "wait_for_background", {}))] if background else []
    model = ScriptedChatModel([asks(("1", "delegate_to_r", task)), *waits, "Done."])
    return create_graph_agent(model, delegates=[GraphDelegate("r", "Looks.", child, background=background)], **options)


def agent_of(way: Way, seen: list[Any], schema: Any, child_schema: Any = None) -> Any:
    """An agent that delegates to one whose tool records its context, once in each of three plans."""

    @tool
    def look(at: int, runtime: ToolRuntime[Any]) -> str:
        """Look."""
        seen.append(runtime.context)
        return f"{at}"

    model = ScriptedChatModel([*(asks((f"k{at}", "look", {"at": at})) for at in range(3)), "Seen."])
    own: dict[str, Any] = {"context_schema": schema, "checkpointer": InMemorySaver()}
    if way == "plain graph":
        return delegating(create_agent(model, [look]), **own)
    child = create_graph_agent(model, [look], context_schema=child_schema)
    if way == "two levels":
        own["config"] = LoopConfig(max_delegation_depth=2)
        return delegating(delegating(child, context_schema=child_schema), **own)
    return delegating(child, background=way == "background", **own)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("child_has_class", [True, False])
@pytest.mark.parametrize("schema", [Customer, PydanticCustomer, DictCustomer])
async def test_a_delegates_tools_receive_the_users_object(schema: Any, child_has_class: bool, way: Way) -> None:
    seen: list[Any] = []
    agent = agent_of(way, seen, schema, schema if child_has_class else None)

    result = await Session(agent, "s1").run("go", context={"name": "Ann", "max_steps": 3})

    assert (result.answer, seen, {type(each) for each in seen}) == (
        "Done.",
        [schema(name="Ann")] * 3,
        {dict if schema is DictCustomer else schema},
    )


@pytest.mark.parametrize("way", ["foreground", "two levels", "plain graph"])
def test_a_delegates_tools_receive_the_users_object_in_a_blocking_run(way: Way) -> None:
    seen: list[Any] = []
    agent, given = agent_of(way, seen, Customer), Customer("Ann")

    agent.invoke(says("go"), {"configurable": {"thread_id": "s1"}}, context=given)

    assert [each is given for each in seen] == [True] * 3


@pytest.mark.parametrize("way", ["foreground", "background", "two levels"])
@pytest.mark.parametrize("child_schema", [OwnContext, None])
async def test_a_delegate_receives_own_fields_and_credentials_but_no_settings(child_schema: Any, way: Way) -> None:
    seen: list[Any] = []
    agent = agent_of(way, seen, OwnContext, child_schema)
    key = SecretStr("k-1")

    # With two steps, the delegate could not call its tool a third time.
    await Session(agent, "s1").run("go", context=OwnContext(name="Ann", credentials={"key": key}, max_steps=2))

    assert seen == [OwnContext(name="Ann", credentials={"key": key})] * 3


@pytest.mark.parametrize("way", ["foreground", "background", "two levels"])
async def test_settings_of_a_run_with_a_users_object_do_not_reach_the_delegate(way: Way) -> None:
    seen: list[Any] = []

    await Session(agent_of(way, seen, Customer), "s1").run("go", context={"name": "Ann", "max_steps": 2})

    assert seen == [Customer("Ann")] * 3
