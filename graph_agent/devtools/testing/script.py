"""Constructs the script of a recorded session: replies, steering, stops and failures, and the results of calls.

A test that `graph-agent sessions export --test` writes consists of these functions and `RecordedSession`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage

from graph_agent.core.state.events import ResultStatus
from graph_agent.devtools.testing.recording import RecordedResult

Content: TypeAlias = str | list[Any]
Tokens: TypeAlias = tuple[int, int] | Mapping[str, Any]
Cause = Literal["abort", "deadline"]


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the model; see `reply`."""

    message: AIMessage
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Steering:
    """A message to the running input; see `steer`."""

    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A request that is stopped before its reply; see `stop`."""

    cause: Cause
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that fails; see `fail`."""

    error: Exception


ScriptItem: TypeAlias = Reply | Steering | Stop | Failure


def reply(
    *parts: Content | Mapping[str, Any],
    tokens: Tokens | None = None,
    finish_reason: str = "",
    at_s: float | None = None,
) -> Reply:
    """Return a reply of the model.

    Args:
        parts: Its text or content blocks, if it has any, and its calls, each made by `call`.
        tokens: Tokens of the request and of the reply, or LangChain's `usage_metadata`; None if unknown.
        finish_reason: Why the provider ended it, such as `length`; empty for a complete reply.
        at_s: Seconds since the input began, for an input with a deadline; None for no time.
    """
    usage: Any = tokens
    if isinstance(tokens, tuple):
        usage = {"input_tokens": tokens[0], "output_tokens": tokens[1], "total_tokens": sum(tokens)}
    content = next((each for each in parts if not isinstance(each, Mapping)), "")
    calls = [each for each in parts if isinstance(each, Mapping)]
    made = [{"id": each["id"], "name": each["name"], "args": dict(each["arguments"])} for each in calls]
    finish = finish_reason or ("tool_calls" if calls else "stop")
    message = AIMessage(
        content,
        tool_calls=made,
        usage_metadata=usage,
        response_metadata={"model_name": "recorded", "finish_reason": finish},
    )
    return Reply(message, at_s)


def call(id: str, name: str, arguments: Mapping[str, Any], *, needs: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a call of a reply; `needs` are ids of calls of the same plan, with structured planning."""
    return {"id": id, "name": name, "arguments": arguments, "needs": needs}


def plan(
    *calls: Mapping[str, Any],
    tokens: Tokens | None = None,
    finish_reason: str = "",
    at_s: float | None = None,
    **fields: Any,
) -> Reply:
    """Return a structured plan.

    Args:
        calls: Its calls, each made by `call`.
        fields: `status`, `action`, `reasoning`, `slots` and `answer`, as in the JSON of the plan.
    """
    tools = [
        {"id": each["id"], "tool": each["name"], "args": each["arguments"], "needs": [*each["needs"]]} for each in calls
    ]
    content = json.dumps({"status": "continue", **fields, "tools": tools})
    return reply(content, tokens=tokens, finish_reason=finish_reason, at_s=at_s)


def steer(text: str) -> Steering:
    """Return a message that is sent to the running input with the reply before it."""
    return Steering(text)


def stop(cause: Cause, *, at_s: float | None = None) -> Stop:
    """Return a request that an abort or the deadline stops before its reply."""
    return Stop(cause, at_s)


_FAILURES: Mapping[str, tuple[str, int | None]] = {
    "auth": ("AuthenticationError", 401),
    "permission": ("PermissionDeniedError", 403),
    "unknown_model": ("NotFoundError", 404),
    "context_overflow": ("ContextOverflowError", None),
    "transient": ("APIConnectionError", None),
}
"""Kind of a model's error → class and HTTP status of an exception of this kind."""
_STATUS = re.compile(r"\(HTTP (\d{3})\)")


def fail(kind: str, message: str) -> Failure:
    """Return a request that fails with an error of this kind; `message` is that of its `error` event."""
    name, status = _FAILURES.get(kind, ("ModelError", None))
    found = _STATUS.search(message)
    error = type(name, (Exception,), {"status_code": int(found[1]) if found else status})("recorded failure")
    return Failure(error)


@dataclass(frozen=True, slots=True)
class Result:
    """The recorded result of a call; see `result`."""

    step: int
    id: str
    name: str
    arguments: Mapping[str, Any]
    result: RecordedResult
    stops: Cause | None = None
    at_s: float | None = None
    waits: bool = False


_NOTHING: Any = object()


def result(
    step: int,
    id: str,
    name: str,
    arguments: Mapping[str, Any],
    returns: Any = _NOTHING,
    *,
    content: Content | None = None,
    artifact: Any = None,
    error: str | None = None,
    invalid: str | None = None,
    usage: Mapping[str, Any] | None = None,
    stops: Cause | None = None,
    waits: bool = False,
    at_s: float | None = None,
) -> Result:
    """Return the recorded result of a call, which is found by step, id and canonical arguments.

    Args:
        step: Number of the step, within its input.
        id: The call's id; a call with another id and equal arguments gets the result too.
        name: Name of the tool, or `delegate_to_<name>`.
        arguments: The arguments it ran with.
        returns: The tool's return value as plain JSON, or the text of a delegate.
        content: In place of `returns`: text or content blocks of the tool's message.
        artifact: The artifact of the tool's message; None if there is none.
        error: In place of `returns`: the text of a failure.
        invalid: In place of `returns`: why the tool refuses the arguments.
        usage: Tokens and model calls of a delegate.
        stops: In place of `returns`: what stops the call, and the input with it.
        waits: In place of `returns`: whether the call waits for a person, so that the input does not end.
        at_s: Same as for `reply`.
    """
    status: ResultStatus = "error" if error is not None else "invalid" if invalid is not None else "success"
    event: dict[str, Any] = {}
    text: Content = content if content is not None else error or invalid or ""
    if returns is not _NOTHING:
        text = returns if isinstance(returns, str) else json.dumps(returns, ensure_ascii=False)
        event = {} if isinstance(returns, str) else {"encoding": "json"}
    counts: Any = None if usage is None else dict(usage)
    found = RecordedResult(status=status, content=text, value=returns, artifact=artifact, usage=counts, event=event)
    return Result(step, id, name, arguments, found, stops, at_s, waits)
