"""Runs one tool call of the model, in a task of its own: the `tools` node."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent.base._compat import read_state
from graph_agent.base.history.events import SUCCESSES, event
from graph_agent.base.types import NO_USAGE, Call
from graph_agent.core.execution.deps import AgentDeps, Task
from graph_agent.core.execution.run_call import CallTimer, CallToRun, TaskSampler, call_to_run, run_call
from graph_agent.core.extensions.truncation import truncate_output
from graph_agent.core.state.channels import after_wave


async def tools_node(call: Call, config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps) -> Command[Any]:
    """Run one tool call and return the state update with its result; an error of the tool becomes a result, too.

    The call does not run if it has a result, was removed by a person, waits for a decision, has a `fault`, or may write
    and may have run before; the last two give results that state why.

    Returns:
        An update as a list of pairs (see `plan_node`): the result's message and event, the tool's writes, and usage.

    Raises:
        GraphInterrupt: The tool or middleware asks a person and has no answer yet.
        InputError: Another graph planned the call, on a thread that this agent continues.
        SessionLostError: This process has lost the session's lock.
        Exception: `interrupt()` in middleware refused the person's answer.
    """
    task = Task.of(read_state(config, ["loop", "ready"]), config, runtime, deps)
    to_run = await call_to_run(task, call)
    if not isinstance(to_run, CallToRun):
        return Command(update=to_run)
    call = to_run.call
    sampler = TaskSampler(task)
    with CallTimer() as timer:
        output, approvals = await run_call(task, call, timer)
        timer.report(call["name"], output.status, output.content)
    content, truncated = truncate_output(output.content, task.settings, task.deps.toolbox.marks(call["name"]), call)
    result = ToolMessage(
        content,
        tool_call_id=call["id"],
        name=call["name"],
        status="success" if output.status in SUCCESSES else "error",
        artifact=output.artifact,
    )
    recorded = event(
        "tool_result",
        task.step,
        id=call["id"],
        name=call["name"],
        status=output.status,
        content=output.content,
        truncated=truncated,
        **timer.fields(task, call, output.status),
    )
    # The message holds the text only; other calls refer to the value.
    recorded |= output.stored
    if "decided_by" in recorded and (by := [each["decided_by"] for each in approvals if "decided_by" in each]):
        recorded["decided_by"] = by[-1]
    update: list[tuple[str, Any]] = [
        ("messages", [result]),
        ("events", [*to_run.events, *approvals, recorded]),
        ("wave_finished", True),
        *output.writes,
    ]
    if sampler.usage != NO_USAGE:
        update.append(("usage", sampler.usage))
    if output.messages or output.handoff is not None:
        update.append(("remote", after_wave(call["id"], list(output.messages), output.handoff)))
    return Command(update=update)
