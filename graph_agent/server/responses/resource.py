"""Builds the response object: the fields of a request that it repeats, its usage and its error."""

from __future__ import annotations

import time
from typing import Any

from graph_agent.server.chat.outcomes import ChatOutcome
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.errors.responses import openai_error
from graph_agent.server.responses.records import response_id
from graph_agent.server.responses.schemas import CreateResponse, FunctionTool


def new_response(body: CreateResponse, token: str) -> dict[str, Any]:
    """Return the response to a request, without output, in the status `in_progress`.

    All fields that Open Responses requires are present, with OpenAI's defaults.
    """
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
    choice = body.tool_choice
    return {
        "id": response_id(token),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "conversation": {"id": body.conversation_id} if body.conversation_id else None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning else None,
            "summary": summary_wanted(body),
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.is_stored,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": "auto"
        if choice is None
        else choice
        if isinstance(choice, str)
        else choice.model_dump(exclude_none=True),
        "tools": [_tool(tool) for tool in body.tools or []],
        "top_logprobs": 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _tool(tool: FunctionTool) -> dict[str, Any]:
    required = {"description": None, "parameters": None, "strict": None} if tool.type == "function" else {}
    return {**required, **tool.model_dump(exclude_none=True)}


def summary_wanted(body: CreateResponse) -> str | None:
    """Return the kind of reasoning summary that a request asks for; None if there is none."""
    return (body.reasoning.summary or body.reasoning.generate_summary) if body.reasoning else None


def usage_of(outcome: ChatOutcome) -> dict[str, Any]:
    """Return the usage of a run."""
    return {
        "input_tokens": outcome.input_tokens,
        "input_tokens_details": {
            "cached_tokens": min(outcome.cached_tokens, outcome.input_tokens),
            "cache_write_tokens": min(outcome.cache_write_tokens, outcome.input_tokens),
        },
        "output_tokens": outcome.output_tokens,
        "output_tokens_details": {"reasoning_tokens": min(outcome.reasoning_tokens, outcome.output_tokens)},
        "total_tokens": outcome.input_tokens + outcome.output_tokens,
    }


def error_of(problem: ProblemError) -> dict[str, Any]:
    """Return the `error` of a failed response; its codes are fewer than those of refused requests."""
    codes = {"busy": "rate_limit_exceeded", "context": "invalid_prompt", "invalid": "invalid_prompt"}
    codes["filtered"] = "invalid_prompt"
    category = {} if problem.category is None else {"category": problem.category}
    return {"code": codes.get(problem.kind, "server_error"), "message": problem.message, **category}


def error_event(problem: ProblemError) -> dict[str, Any]:
    """Return the fields of an `error` event: as published, and with the `error` object that clients raise."""
    error = openai_error(problem)["error"]
    return {"code": error["code"], "message": error["message"], "param": error["param"], "error": error}
