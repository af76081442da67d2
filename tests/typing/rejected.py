"""Wrong lines of a user's program: each is marked with the error that mypy and pyright must report.

A mark that suppresses no error is an error itself.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from graph_agent import (
    AgentContext,
    GraphDelegate,
    LoopConfig,
    RunResult,
    ScriptedChatModel,
    Session,
    create_graph_agent,
)
from graph_agent.marks import marked
from graph_agent.server import ServerSettings
from tests.typing.accepted import CONFIG, MODEL, Invoice, Tenant, User, weather

LoopConfig(max_stepz=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
LoopConfig(max_steps="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
LoopConfig(tool_calling="nativ")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
LoopConfig(approve=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
LoopConfig(candidates=["openai:gpt-4o-mini"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
LoopConfig(choose="best")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
LoopConfig(prices=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
LoopConfig(stop="END")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
LoopConfig(fallback_models="openai:gpt-4o-mini")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
AgentContext(max_stepz=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
AgentContext(max_steps="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
AgentContext(credentials={"crm": "s"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
Tenant(tenant=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Tenant(tenat="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ServerSettings(request_per_minute=60)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ServerSettings(keepalive_s="15")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
str(CONFIG.max_step)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
marked(weather, efect="read")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
marked(weather, effect="reed")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

ScriptedChatModel(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
create_graph_agent(MODEL, tool=[weather])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
create_graph_agent(MODEL, hooks=[weather])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
create_graph_agent(MODEL, middleware=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
create_graph_agent(MODEL, config={"max_steps": 3})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
create_graph_agent(MODEL, response_format=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
create_graph_agent(MODEL, context_schema=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
GraphDelegate("billing", "Bills.")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

AGENT = create_graph_agent(MODEL, response_format=Invoice)
SESSION = Session(AGENT, "s1")
USERS = Session(create_graph_agent(MODEL, context_schema=User), "s2")
Session("agent", "s1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
Session(AGENT, session="s1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def main() -> None:
    result = await SESSION.run("hi")
    str(result.structured_response.total)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    if result.structured_response is not None:
        str(result.structured_response.totl)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    str(result.answr)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    str(result.pending[0]["nam"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownArgumentType]
    str(result.status == "COMPLETD")  # pyright: ignore[reportUnnecessaryComparison]
    plain = await USERS.run("hi")
    assert_type(plain.structured_response, Invoice | None)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    await SESSION.run("hi", contxt={"max_steps": 3})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await SESSION.run("hi", context={"max_stepz": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await SESSION.run("hi", context={"max_steps": "3"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SESSION.stream("hi", context={"tool_calling": "nativ"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await SESSION.resume(True, context={"max_stepz": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await AGENT.ainvoke({"messages": []}, context={"max_stepz": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AGENT.stream({"messages": []}, context={"max_stepz": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await SESSION.run("hi", context=CONFIG)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await USERS.run("hi", context=AgentContext())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await SESSION.run(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SESSION.run_sync("hi", inputid="i1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SESSION.run_sync("hi", context=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    SESSION.stream_sync("hi", contxt={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    SESSION.resume_sync(True, decided=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await SESSION.configure(max_stepz=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await SESSION.configure(max_steps="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await AGENT.ainvoke({"messages": []}, context=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await AGENT.run("hi", context={"max_stepz": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await AGENT.run("hi", input_id="i1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AGENT.run_sync(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AGENT.run_stream("hi", contxt={})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    AGENT.session(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await AGENT.run("hi"), RunResult[User])  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]
    async for part in SESSION.stream("hi"):
        str(part.text)  # type: ignore[union-attr]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
        str(part.type == "dun")  # type: ignore[comparison-overlap]  # pyright: ignore[reportUnnecessaryComparison]
