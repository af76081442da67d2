"""A user's program that mypy and pyright accept in their strict modes, and whose types are those of its run."""

# pyright: strict

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from langchain.agents.middleware import AgentMiddleware, ModelCallLimitMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from graph_agent import (
    AgentContext,
    Candidate,
    CandidatePlan,
    ContextFields,
    GraphDelegate,
    LoopConfig,
    LoopHook,
    LoopPlan,
    PlanJudge,
    RunResult,
    ScriptedChatModel,
    Session,
    SessionMemory,
    build_graph,
    create_graph_agent,
)
from graph_agent.approvals import approve
from graph_agent.compiled import GraphAgent
from graph_agent.hooks import HookRequest, HookResponse
from graph_agent.marks import marked
from graph_agent.mcp import open_mcp_tools
from graph_agent.persistence import open_saver, open_store, prune
from graph_agent.server import ServerSettings, create_app, of_served
from graph_agent.spec import load_spec, open_agent


class Invoice(BaseModel):
    total: float


@dataclass
class Receipt:
    paid: bool


class Memo(TypedDict):
    text: str


class Tenant(AgentContext):
    tenant: str


@dataclass
class User:
    name: str


class Brief(LoopHook):
    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, int]:
        return len(response.calls) > request.settings.max_calls_per_wave, 8

    def build_plan(self, context: Any, response: HookResponse, request: HookRequest) -> LoopPlan:
        return LoopPlan(terminate=True)


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"It rains in {city}."


def is_large(call: Mapping[str, Any]) -> bool:
    return bool(call["arguments"].get("amount", 0) > 100)


def fewest_calls(plans: Sequence[CandidatePlan]) -> int:
    return min(range(len(plans)), key=lambda at: len(plans[at].calls))


async def most_votes(plans: Sequence[CandidatePlan]) -> int:
    return max(range(len(plans)), key=lambda at: plans[at].votes)


MODEL = ScriptedChatModel(['{"total": 3}'], cycle=True)
PLANNED = [
    LoopConfig(candidates=[Candidate(model=MODEL), Candidate(prompt="Be brief.")], choose=fewest_calls),
    LoopConfig(candidates=[Candidate(model="openai:gpt-4o-mini"), Candidate(temperature=0.8)], choose=most_votes),
    LoopConfig(candidates=3, choose=PlanJudge(model=MODEL)),
]
CONFIG = LoopConfig(
    max_steps=8,
    tool_timeout_s=2.5,
    approve=["weather", is_large],
    fallback_models=[MODEL],
    stop=["END"],
    max_cost=0.05,
    prices={"scripted": {"input": 0.15, "output": 0.6}},
)
SETTINGS = ServerSettings(requests_per_minute=60, cors_origins=["https://my.page"])
SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}}
DOORS = (open_mcp_tools, open_saver, open_store, prune, create_app, of_served, load_spec, open_agent)


async def total(session: Session[Invoice], text: str) -> float:
    context = AgentContext(max_steps=3, credentials={"crm": SecretStr("s")})
    result = await session.run(text, context=context, input_id="i1")
    assert_type(result, RunResult[Invoice])
    assert_type(result.structured_response, Invoice | None)
    assert not [call["name"] for call in result.pending]
    assert not [call.arguments for call in result.calls]
    return result.structured_response.total if result.structured_response is not None else 0.0


def summary(result: RunResult) -> str:
    return f"{result.status}: {result.answer}"


async def main() -> list[str]:
    tools = [marked(weather, effect="read", timeout_s=5)]
    hooks: list[LoopHook | AgentMiddleware[Any, Any, Any]] = [Brief(), ModelCallLimitMiddleware(run_limit=3)]
    saver = InMemorySaver()
    agent = create_graph_agent(MODEL, tools, hooks=hooks, config=CONFIG, response_format=Invoice, checkpointer=saver)
    assert_type(agent, GraphAgent[Invoice, AgentContext])
    session = Session(agent, "s1", on_approval=lambda call: approve() if call["name"] == "weather" else False)
    assert_type(session, Session[Invoice, AgentContext])
    texts = [str(await total(session, "What is the total?"))]
    await session.configure(reasoning_effort="low")
    plain_values: ContextFields = {"credentials": {"crm": "s"}, "stop": ["END"], "model_rules": {}}
    async for part in session.stream("Again.", context={**plain_values, "max_steps": 2, "deadline_s": 60}):
        if part.type == "token":
            texts.append(part.text)
        elif part.type == "done":
            assert_type(part.result.structured_response, Invoice | None)
            texts.append(summary(part.result))
    state = await agent.ainvoke({"messages": [("user", "hi")]}, {"configurable": {"thread_id": "s2"}})
    texts.append(state["messages"][-1].text)
    events = await SessionMemory(agent).get_session_events("s1")
    texts += [str(event["content"]) for event in events if event["type"] == "user_message"]

    assert_type(create_graph_agent(MODEL, response_format=Receipt), GraphAgent[Receipt, AgentContext])
    assert_type(create_graph_agent(MODEL, response_format=Memo), GraphAgent[Memo, AgentContext])
    by_tool = create_graph_agent(MODEL, response_format=ToolStrategy(Invoice))
    assert_type(by_tool, GraphAgent[Invoice, AgentContext])
    by_provider = create_graph_agent(MODEL, response_format=ProviderStrategy(Invoice))
    assert_type(by_provider, GraphAgent[Invoice, AgentContext])
    assert_type(create_graph_agent(MODEL, response_format=SCHEMA), GraphAgent[dict[str, Any], AgentContext])
    assert create_graph_agent(MODEL, response_format=Invoice | Receipt).name == "agent"
    delegates = [GraphDelegate("billing", "Bills.", agent)]
    plain = create_graph_agent(MODEL, [weather], hooks=[Brief()], delegates=delegates, checkpointer=saver)
    assert_type((await Session(plain, "s3").run("hi")).structured_response, None)
    tenants = create_graph_agent(MODEL, context_schema=Tenant, checkpointer=saver)
    await Session(tenants, "s4").run("hi", context=Tenant(tenant="a", max_steps=2))
    users = create_graph_agent(MODEL, context_schema=User, checkpointer=saver)
    assert_type(users, GraphAgent[None, User])
    await Session(users, "s5").run("hi", context=User("Ada"))
    built = build_graph(MODEL).compile(checkpointer=saver)
    assert_type(await Session(built, "s6").run("hi"), RunResult[Any])
    assert_type(agent.session("s7"), Session[Invoice, AgentContext])
    single = create_graph_agent(MODEL, response_format=Invoice)
    assert_type(await single.run("hi", context={"max_steps": 2}), RunResult[Invoice])
    async for part in single.run_stream("hi", on_approval=lambda call: True):
        if part.type == "done":
            assert_type(part.result.structured_response, Invoice | None)
    await create_graph_agent(MODEL, context_schema=User).run("hi", context=User("Ada"))
    return texts
