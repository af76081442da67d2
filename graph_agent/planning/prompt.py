"""The messages a model is sent: system prompt, history, and what the phase adds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentParts
from graph_agent.models.client import Mode
from graph_agent.state.failure_message import as_sent
from graph_agent.state.messages import STEERING_MARK
from graph_agent.state.schema import Carried


def plan_request(
    parts: AgentParts, history: Sequence[AnyMessage], settings: LoopConfig, mode: Mode, planner: Planner
) -> list[AnyMessage]:
    """The request for the next wave.

    Args:
        parts: The agent.
        history: The conversation.
        settings: The run's configuration.
        mode: How calls are asked for.
        planner: Which planner the session has; counts in wave mode only.
    """
    sections = [parts.system_prompt()]
    if parts.toolbox:
        sections.append(parts.instructions(settings, mode, planner))
    prompt = "\n\n".join(section for section in sections if section)
    # Of a whole history hardly one message steers, so that looking for it may cost next to nothing.
    said = [
        _steered(message, parts)
        if isinstance(message, HumanMessage) and STEERING_MARK in message.additional_kwargs
        else as_sent(message)
        for message in history
    ]
    return [SystemMessage(prompt), *said] if prompt else said


def with_carried(history: Sequence[AnyMessage], carried: Sequence[Carried]) -> list[AnyMessage]:
    """The history with what hooks keep before the model, each in its place.

    Args:
        history: The conversation.
        carried: In order of their places.
    """
    whole, done = list[AnyMessage](), 0
    for piece in carried:
        whole += [*history[done : piece["at"]], *piece["messages"]]
        done = piece["at"]
    return [*whole, *history[done:]]


def _steered(message: AnyMessage, parts: AgentParts) -> AnyMessage:
    """What steered the agent, as its model is told."""
    told: Any = parts.prompts.render("steering", content=message.text)
    if not isinstance(message.content, str):
        # An image, say, is not told in words: it stays behind them.
        rest = [block for block in message.content if isinstance(block, dict) and block.get("type") != "text"]
        told = [{"type": "text", "text": told}, *rest]
    return message.model_copy(update={"content": told})


def answer_request(
    parts: AgentParts, history: Sequence[AnyMessage], settings: LoopConfig, mode: Mode, planner: Planner
) -> list[AnyMessage]:
    """The request for the answer: the plan's request and one message more, so that a prompt cache holds the rest.

    An agent with nothing to call, and no shape to give its answer, is asked nothing more than the conversation does.
    """
    return [*plan_request(parts, history, settings, mode, planner), *closing(parts, mode)]


def closing(parts: AgentParts, mode: Mode) -> list[AnyMessage]:
    """What the answer's request adds to the plan's: one message, or none.

    Args:
        parts: The agent.
        mode: How calls are asked for.
    """
    if not parts.toolbox and parts.response is None:
        return []
    schema = parts.response.json_schema if parts.response else None
    plan = bool(parts.toolbox) and mode == "wave"
    return [HumanMessage(parts.prompts.render("finalize", schema=schema, plan=plan))]
