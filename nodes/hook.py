"""The node of one `before_` or `after_` hook of middleware."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime
from langgraph.types import Command

from graph_agent._compat import read_state
from graph_agent._internal.exception_text import exception_text
from graph_agent._internal.failure_log import IN_HISTORY, log_traceback
from graph_agent._internal.text import clean
from graph_agent.deps import AgentDeps
from graph_agent.errors import UserError
from graph_agent.events.types import StoredEvent, event
from graph_agent.execution.middleware_approvals import answered_approvals
from graph_agent.hooks.pipeline import HookReturnError, NodeHook
from graph_agent.planning.hook_results import message_changes, skips
from graph_agent.runs.run import run_of
from graph_agent.state.own_fields import RESERVED, OwnFields
from graph_agent.state.storable import messages_fault, value_fault
from graph_agent.tools.invoke import belongs_to_run

logger = logging.getLogger(__name__)
_OPEN = ("messages", "jump_to", "structured_response")
"""Fields that every hook may write."""


async def hook_node(
    state: Mapping[str, Any], config: RunnableConfig, runtime: Runtime[Any], *, deps: AgentDeps, hook: NodeHook
) -> Command[Any]:
    """Run one hook, unless the input has failed or there is no reply for it.

    Returns:
        An update as a list of pairs (see `plan_node`): the hook's own, and an event if it changes the messages or
        jumps. An exception of the hook makes the input fail.
    """
    loop = read_state(config, ["loop"])["loop"]
    if skips(hook, loop):
        return Command(update=[("arrived", True)])
    # Copied: LangChain's middleware changes the list of its message.
    planned = _planned(state.get("messages", ()))
    try:
        update = await hook.run(state, config)
        _check(update, deps.toolbox.own)
        if update.get("jump_to") not in hook.jumps:
            update.pop("jump_to", None)  # as in LangChain, a jump that `can_jump_to` does not declare has no effect
        changes = _events(update, state, hook, loop["step"])
    except UserError:
        raise
    except BaseException as error:
        if belongs_to_run(error):
            raise
        # The text of an exception of the hook itself has its type; that of an unusable return value needs none.
        why = str(error) if isinstance(error, HookReturnError) else exception_text(error)
        logger.error("The hook %s failed: %s", hook.node, why, extra=IN_HISTORY)
        log_traceback(logger, f"The hook {hook.node}", error)
        run_of(config).cause = error if isinstance(error, Exception) else None
        failed = event("error", loop["step"], kind="middleware", message=clean(f"{hook.node}: {why}"))
        outcome = {"stop_reason": "failed"}
        return Command(update=[("arrived", True), ("events", [failed]), ("loop", {**loop, "outcome": outcome})])
    approvals = await answered_approvals(config, runtime, planned, loop["step"], hook.owner)
    return Command(update=[*update.items(), ("arrived", True), ("events", [*approvals, *changes])])


def _planned(messages: Sequence[AnyMessage]) -> list[ToolCall]:
    """Return the calls of the newest model message."""
    newest = next((message for message in reversed(messages) if isinstance(message, AIMessage)), None)
    return [*newest.tool_calls] if newest is not None else []


def _check(update: Mapping[str, Any], own: OwnFields) -> None:
    """Check the values that a hook returned.

    Raises:
        HookReturnError: With the field, what is wrong, and the fix.
    """
    for name, value in update.items():
        if name == "jump_to":
            continue
        if name == "messages":
            fault = messages_fault(value)
        elif name == "structured_response":
            fault = value_fault(value)
        elif name in own.names:
            if (own_fault := own.fault(name, value)) is not None:
                raise HookReturnError(f"it wrote {own_fault}.")
            continue
        elif name in RESERVED:
            fault = f"it belongs to the agent itself; a hook may write {', '.join(_OPEN)} and own fields"
        else:
            fault = "it is not declared; add it to the `state_schema` of the middleware or of the agent"
        if fault is not None:
            raise HookReturnError(f"it wrote the state field {name!r}: {fault}.")


def _events(update: Mapping[str, Any], state: Mapping[str, Any], hook: NodeHook, step: int) -> list[StoredEvent]:
    """Return the event of a change of messages or of a jump; an empty list without either."""
    fields: dict[str, Any] = {}
    if "messages" in update:
        fields = message_changes(state.get("messages", ()), update["messages"])
    if jump := update.get("jump_to"):
        fields["jump_to"] = jump
    return [event("middleware", step, name=hook.owner, hook=hook.point, **fields)] if fields else []
