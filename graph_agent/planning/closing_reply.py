"""The answer in the reply to a request for the answer, where models also send plans and calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from langchain_core.messages import AIMessage, AnyMessage

from graph_agent.calls import split_tool_calls, unfinished_call
from graph_agent.deps import AgentDeps
from graph_agent.errors import SlowSchemaError
from graph_agent.models.client import Mode
from graph_agent.models.finish_reasons import cut_off
from graph_agent.models.visibility import after_reasoning, may_begin_with_call, without_sentinel
from graph_agent.planning.text_correction import written_call
from graph_agent.response_format import ResponseSchema
from graph_agent.waves.closing import answer_of_plans


def answer_in(reply: AIMessage, deps: AgentDeps, mode: Mode, history: Iterable[AnyMessage]) -> str:
    """Return the answer in a reply; empty if it is blank, the sentinel, only calls, or a plan without an answer.

    Args:
        reply: The reply to a request for the answer.
        deps: The agent.
        mode: How the model returns calls.
        history: The conversation; calls that it quotes may be an answer.
    """
    answer = without_sentinel(reply.text)
    body = after_reasoning(answer).strip()
    if not deps.toolbox or not may_begin_with_call(body):
        return answer
    if mode == "wave" and (planned := answer_of_plans(body)) is not None:
        return without_sentinel(planned)
    names = list(deps.toolbox.names)
    calls, prose = split_tool_calls(body, names)
    if calls:
        return answer if prose or written_call(body, names, history) is None else ""
    unfinished = unfinished_call(body, names) if cut_off(reply) is not None else None
    return "" if unfinished is not None and unfinished[0] in names and not unfinished[1] else answer


async def is_better(answer: str, text: str, response: ResponseSchema | None) -> bool:
    """Whether the result of `answer_in` replaces a structured reply: it is not empty, and the reply does not fit.

    Args:
        answer: The result of `answer_in`.
        text: The text of the reply.
        response: The schema of the answer.
    """
    return bool(answer) and answer != text and not (response is not None and await fits(response, text))


async def fits(response: ResponseSchema, text: str) -> bool:
    """Whether a text fits the schema of the answer."""
    try:
        await asyncio.to_thread(response.read, text)
    except (ValueError, SlowSchemaError):
        return False
    return True
