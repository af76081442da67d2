"""The `tools` node: run one tool call."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent._compat import read_state
from graph_agent.config import LoopConfig
from graph_agent.deps import AgentDeps, deps_of_run
from graph_agent.events.calls import CallResult, result_event
from graph_agent.events.types import StoredEvent
from graph_agent.execution.approvals import replacement_fault
from graph_agent.execution.ledger import note_refused
from graph_agent.execution.middleware_approvals import answered_approvals
from graph_agent.execution.run_call import CallToRun, call_to_run, run_in_slot
from graph_agent.execution.wave_writes import with_accepted_writes
from graph_agent.runs.run import run_of
from graph_agent.state.remote import after_wave
from graph_agent.state.schema import INITIAL_BOOKKEEPING
from graph_agent.tools.truncation import truncate_output
from graph_agent.types import Call


async def tools_node(call: Call, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps) -> Command[Any]:
    """Run one call and add its result; an error is a result too.

    Returns:
        An update with the result's message and event, as a list of pairs (see `plan_node`).
    """
    deps = deps_of_run(deps, runtime)
    to_run = await call_to_run(call, config, runtime, deps)
    if not isinstance(to_run, CallToRun):
        return Command(update=to_run)
    call = to_run.call
    state = read_state(config, ["loop"])
    loop = state.get("loop", INITIAL_BOOKKEEPING)
    settings = deps.settings(runtime, config, loop)
    approvals: list[StoredEvent] = []
    if "fault" in call:
        output = CallResult(call["fault"], "error")
    else:
        output = await run_in_slot(
            call,
            config,
            runtime,
            state,
            settings,
            deps,
            lambda: _run(call, config, runtime, settings, deps, loop["step"], approvals),
        )
    output = await with_accepted_writes(output, call, config, runtime, deps.toolbox.own)
    content, truncated = truncate_output(output.content, settings, deps.toolbox.marks(call["name"]), call)
    result = ToolMessage(
        content,
        tool_call_id=call["id"],
        name=call["name"],
        status="success" if output.status == "success" else "error",
        artifact=output.artifact,
    )
    recorded = result_event(call["id"], call["name"], output.status, output.content, loop["step"], truncated=truncated)
    recorded |= output.stored
    update: list[tuple[str, Any]] = [
        ("messages", [result]),
        ("events", [*to_run.events, *approvals, recorded]),
        ("arrived", True),
        *output.writes,
    ]
    if output.messages or output.handoff is not None:
        update.append(("remote", after_wave(call["id"], list(output.messages), output.handoff)))
    return Command(update=update)


async def _run(
    call: Call,
    config: RunnableConfig,
    runtime: Runtime[Any],
    settings: LoopConfig,
    deps: AgentDeps,
    step: int,
    approvals: list[StoredEvent],
) -> CallResult:
    """Run the call through the middleware; `approvals` receives the events of the decisions that it asked for."""
    ran = False

    async def run(asked: Call) -> CallResult:
        nonlocal ran
        if (fault := await replacement_fault(call, asked, deps, settings)) is not None:
            return CallResult(fault, "error")
        ran = True
        return await deps.toolbox.run(asked, config, runtime, timeout_s=settings.tool_timeout_s)

    if deps.around_tool is None:
        return await run(call)
    try:
        output = await deps.around_tool(call, config, runtime, run)
    except GraphBubbleUp:
        raise
    except Exception:  # Re-raised: middleware may raise anything, and a refused call must not stay open in the ledger.
        if not ran:
            await note_refused(config, runtime, run_of(config))
        raise
    planned: ToolCall = {"id": call["id"], "name": call["name"], "args": call["arguments"]}
    approvals += await answered_approvals(config, runtime, [planned], step, "HumanInTheLoopMiddleware")
    return output
