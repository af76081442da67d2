"""The messages of a request: system prompt, history, and the closing message of the answer phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from graph_agent.config import LoopConfig, Planner
from graph_agent.deps import AgentDeps
from graph_agent.models.cleaning import SafeMessages, sanitized
from graph_agent.models.client import Mode
from graph_agent.prompts import Prompts
from graph_agent.state.messages import FAILURE_MARK, STEERING_MARK, without_failure_report
from graph_agent.state.schema import Carried


def plan_request(
    deps: AgentDeps, history: Sequence[AnyMessage], settings: LoopConfig, mode: Mode, planner: Planner
) -> SafeMessages:
    """The request for the next wave.

    Args:
        deps: The agent.
        history: The conversation; it is not prepared again if it is the result of a `PreparedHistory`.
        settings: The run's configuration.
        mode: How calls are asked for.
        planner: The session's planner; used in wave mode only.
    """
    sections = [deps.system_prompt()]
    if deps.toolbox:
        sections.append(deps.instructions(settings, mode, planner))
    prompt = "\n\n".join(section for section in sections if section)
    messages = history if isinstance(history, SafeMessages) else PreparedHistory().of(history, deps.prompts)
    system = [sanitized(SystemMessage(prompt))] if prompt else []
    return SafeMessages([*system, *messages], is_text=messages.is_text)


class PreparedHistory:
    """The conversation of one run in the form of its requests; each message is converted once, unless it is edited."""

    def __init__(self) -> None:
        self._source: list[AnyMessage] = []
        self._prepared = SafeMessages()

    def of(self, history: Sequence[AnyMessage], prompts: Prompts) -> SafeMessages:
        """Return the messages in the form of requests.

        Args:
            history: The conversation; usually the one of the last call and some new messages.
            prompts: The agent's prompts.
        """
        known = len(self._prepared)
        # Equal messages are the same objects, which makes this comparison cheap.
        if history[:known] != self._source:
            known, self._source, self._prepared = 0, [], SafeMessages()
        for message in history[known:]:
            # Marked messages are rare.
            is_marked = STEERING_MARK in message.additional_kwargs or FAILURE_MARK in message.response_metadata
            safe = sanitized(_converted(message, prompts) if is_marked else message)
            self._prepared.append(safe)
            self._prepared.is_text = self._prepared.is_text and isinstance(safe.content, str)
        self._source += history[known:]
        return self._prepared


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


def _converted(message: AnyMessage, prompts: Prompts) -> AnyMessage:
    """A message of a person's steering, or of a failed input, in the form in which the model receives it."""
    if not isinstance(message, HumanMessage) or STEERING_MARK not in message.additional_kwargs:
        return without_failure_report(message)
    content: Any = prompts.render("steering", content=message.text)
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
