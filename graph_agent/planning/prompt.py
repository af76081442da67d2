"""The messages of a request: system prompt, history, and the closing message of the answer phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentDeps
from graph_agent.models.client import Mode
from graph_agent.state.messages import FAILURE_MARK, STEERING_MARK, without_failure_report
from graph_agent.state.schema import Carried


def plan_request(
    deps: AgentDeps, history: Sequence[AnyMessage], settings: LoopConfig, mode: Mode, planner: Planner
) -> list[AnyMessage]:
    """The request for the next wave.

    Args:
        deps: The agent.
        history: The conversation.
        settings: The run's configuration.
        mode: How calls are asked for.
        planner: The session's planner; used in wave mode only.
    """
    sections = [deps.system_prompt()]
    if deps.toolbox:
        sections.append(deps.instructions(settings, mode, planner))
    prompt = "\n\n".join(section for section in sections if section)
    # Marked messages are rare, so the check of each message must be cheap.
    messages = [
        message
        if STEERING_MARK not in message.additional_kwargs and FAILURE_MARK not in message.response_metadata
        else _converted(message, deps)
        for message in history
    ]
    return [SystemMessage(prompt), *messages] if prompt else messages


def with_carried(history: Sequence[AnyMessage], carried: Sequence[Carried]) -> list[AnyMessage]:
    """Insert the messages that hooks carry from request to request into the history.

    Args:
        history: The conversation.
        carried: The messages, ordered by position.
    """
    messages, done = list[AnyMessage](), 0
    for piece in carried:
        messages += [*history[done : piece["at"]], *piece["messages"]]
        done = piece["at"]
    return [*messages, *history[done:]]


def _converted(message: AnyMessage, deps: AgentDeps) -> AnyMessage:
    """A message of a person's steering, or of a failed input, in the form in which the model receives it."""
    if not isinstance(message, HumanMessage) or STEERING_MARK not in message.additional_kwargs:
        return without_failure_report(message)
    content: Any = deps.prompts.render("steering", content=message.text)
    if not isinstance(message.content, str):
        # Blocks that are not text, such as images, follow the text.
        rest = [block for block in message.content if isinstance(block, dict) and block.get("type") != "text"]
        content = [{"type": "text", "text": content}, *rest]
    return message.model_copy(update={"content": content})


def answer_request(
    deps: AgentDeps, history: Sequence[AnyMessage], settings: LoopConfig, mode: Mode, planner: Planner
) -> list[AnyMessage]:
    """The request for the answer: the plan's request and the closing message, so that a prompt cache holds the rest."""
    return [*plan_request(deps, history, settings, mode, planner), *closing(deps, mode)]


def closing(deps: AgentDeps, mode: Mode) -> list[AnyMessage]:
    """The closing message of the request for the answer; empty for an agent without tools and response format.

    Args:
        deps: The agent.
        mode: How calls are asked for.
    """
    if not deps.toolbox and deps.response is None:
        return []
    schema = deps.response.json_schema if deps.response else None
    plan = bool(deps.toolbox) and mode == "wave"
    return [HumanMessage(deps.prompts.render("finalize", schema=schema, plan=plan))]
