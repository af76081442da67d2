"""Defines the script of a session: replies, steering, stops and failures in their order, and the results of calls.

`script_of` makes the script of a recorded input, and `Playback` plays it. A test that `graph-agent sessions export
--test` writes consists of the functions `reply`, `plan`, `steer`, `stop`, `fail` and `result`. Steering is a message
that a user sends to a running input. A step is one plan with its calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from langchain_core.messages import AIMessage

from graph_agent.base._internal.text import text_of
from graph_agent.base.history.events import ResultStatus, StoredEvent
from graph_agent.base.history.plan_parts import ModelCallRecord, Purpose
from graph_agent.base.model_error_text import ModelErrorKind
from graph_agent.base.types import SessionStatus
from graph_agent.core.extensions.output import StopCause, cut_short
from graph_agent.devtools.recording import RecordedCall, RecordedInput, RecordedReply, RecordedResult, RecordedStep

ReplyContent: TypeAlias = str | list[Any]
"""Text, or LangChain content blocks."""
Tokens: TypeAlias = tuple[int, int] | Mapping[str, Any]
"""Tokens of the request and of the reply, or LangChain's `usage_metadata`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply of the model; see `reply` and `plan`."""

    content: ReplyContent = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    """The calls of the reply, each made by `call`."""
    plan_fields: Mapping[str, Any] | None = None
    """The fields of a structured plan except its calls; None for another reply."""
    tokens: Tokens | None = None
    finish_reason: str = ""
    """Why the provider ended the reply, such as `length`; empty for a complete one."""
    at_s: float | None = None
    """Seconds since the input began; None for no time."""
    purpose: Purpose | None = None
    """What the recorded reply was for; None for a reply written by hand."""
    step: int | None = None
    """The step that it was recorded in; None for a reply written by hand."""
    repeats: int = 0
    """Number of requests before this reply whose replies a hook replaced, so that they are not stored."""

    @property
    def message(self) -> AIMessage:
        """The reply as a chat model's message.

        A structured plan is a text with the JSON that the planner parses, without calls. Without a finish reason, it is
        `tool_calls` or `stop`.
        """
        content, calls, usage = self.content, self.calls, self.tokens
        if self.plan_fields is not None:
            tools = [
                {"id": each["id"], "tool": each["name"], "args": each["arguments"], "needs": [*each["needs"]]}
                for each in calls
            ]
            content, calls = json.dumps({"status": "continue", **self.plan_fields, "tools": tools}), ()
        if isinstance(usage, tuple):
            usage = {"input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": sum(usage)}
        finish = self.finish_reason or ("tool_calls" if calls else "stop")
        return AIMessage(
            content,
            tool_calls=[{"id": each["id"], "name": each["name"], "args": dict(each["arguments"])} for each in calls],
            usage_metadata=usage,
            response_metadata={"model_name": "recorded", "finish_reason": finish},
        )


@dataclass(frozen=True, slots=True)
class Steering:
    """A message to the running input; see `steer`."""

    text: str
    step: int | None = None
    """The step that it was recorded in; None for a script written by hand."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A request that is stopped before its reply; see `stop`."""

    cause: StopCause
    at_s: float | None = None
    """Seconds since the input began; None for no time."""
    step: int | None = None
    """The step that it was recorded in; None for a script written by hand."""


class RecordedFailureError(Exception):
    """Raised by the model in place of a recorded error, and classified as that one was.

    Args:
        kind: Kind of the recorded error, such as `transient`.
        message: Its message; an HTTP status in it (`HTTP 503`) becomes `status_code`.
    """

    def __init__(self, kind: str, message: str) -> None:
        # Errors are classified by their words and their HTTP status; so the recorded kind results from a plain
        # exception.
        super().__init__(_WORDINGS.get(kind, "recorded failure"))
        status = re.search(r"\bHTTP (\d{3})\b", message)
        self.status_code = int(status[1]) if status else None
        self.retry_after = 0
        """Seconds to wait before a retry: 0, as a replay needs no pause."""


_WORDINGS: Mapping[ModelErrorKind | str, str] = {
    "transient": "service_unavailable",
    "auth": "invalid_api_key",
    "permission": "insufficient_quota",
    "unknown_model": "model_not_found",
    "context_overflow": "context_length_exceeded",
    "content_filter": "content_filter",
    "tools_rejected": "tools are not supported",
    "other": "recorded failure",
}
"""Kind of a model's error → words in a message by which the error is classified so."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that fails; see `fail`."""

    kind: str
    """Kind of the error, such as `transient`."""
    message: str
    """The message of the recorded `error` event."""
    repeats: bool = False
    """Whether all further requests of the input fail, too."""

    @property
    def error(self) -> RecordedFailureError:
        """A new error for the model to raise."""
        return RecordedFailureError(self.kind, self.message)

    @property
    def is_of_model(self) -> bool:
        """Whether a model's error ended the input, not an error of a hook or of the program."""
        return self.kind in _WORDINGS


ScriptItem: TypeAlias = Reply | Steering | Stop | Failure


def reply(
    *parts: ReplyContent | Mapping[str, Any],
    tokens: Tokens | None = None,
    finish_reason: str = "",
    at_s: float | None = None,
) -> Reply:
    """Return a reply of the model, for a script.

    Args:
        parts: Its text or content blocks, if it has any, and its calls, each made by `call`.
        tokens: Tokens of the request and of the reply, or LangChain's `usage_metadata`; None if unknown.
        finish_reason: Why the provider ended it, such as `length`; empty for a complete reply.
        at_s: Seconds since the input began, for an input with a deadline; None for no time.
    """
    content = next((each for each in parts if not isinstance(each, Mapping)), "")
    calls = tuple(each for each in parts if isinstance(each, Mapping))
    return Reply(content=content, calls=calls, tokens=tokens, finish_reason=finish_reason, at_s=at_s)


def call(id: str, name: str, arguments: Mapping[str, Any], *, needs: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return a call of a reply, for `reply` and `plan`.

    Args:
        id: Id of the call, as the model gives it.
        name: Name of the tool, or `delegate_to_<name>`.
        arguments: Its arguments.
        needs: Ids of calls of the same plan whose results the call waits for; with structured planning only.
    """
    return {"id": id, "name": name, "arguments": arguments, "needs": needs}


def plan(
    *calls: Mapping[str, Any],
    tokens: Tokens | None = None,
    finish_reason: str = "",
    at_s: float | None = None,
    **fields: Any,
) -> Reply:
    """Return a reply that is a structured plan, for a script.

    Args:
        calls: Its calls, each made by `call`.
        tokens: Tokens of the request and of the reply, or LangChain's `usage_metadata`; None if unknown.
        finish_reason: Why the provider ended it, such as `length`; empty for a complete reply.
        at_s: Seconds since the input began, for an input with a deadline; None for no time.
        fields: `status`, `action`, `reasoning`, `slots` and `answer`, as in the JSON of the plan.
    """
    return Reply(calls=calls, plan_fields=fields, tokens=tokens, finish_reason=finish_reason, at_s=at_s)


def steer(text: str) -> Steering:
    """Return a message that is sent to the running input together with the reply before it, for a script."""
    return Steering(text)


def stop(cause: StopCause, *, at_s: float | None = None) -> Stop:
    """Return a request that is stopped before its reply, for a script.

    Args:
        cause: `abort` or `deadline`.
        at_s: Seconds since the input began, for an input with a deadline; None for no time.
    """
    return Stop(cause, at_s)


def fail(kind: str, message: str) -> Failure:
    """Return a request that fails, for a script.

    Args:
        kind: Kind of the error: `transient`, `auth`, `permission`, `unknown_model`, `context_overflow`,
            `content_filter`, `tools_rejected` or `other`.
        message: The message of the recorded `error` event; an HTTP status in it counts.
    """
    return Failure(kind, message)


@dataclass(frozen=True, slots=True)
class Result:
    """The recorded result of a call; see `result`."""

    step: int
    """Number of the step, within its input."""
    id: str
    name: str
    arguments: Mapping[str, Any]
    """The arguments that the call ran with."""
    result: RecordedResult
    stops: StopCause | None = None
    """What stops the call, and the input with it; None for a result."""
    at_s: float | None = None
    """Seconds since the input began at which the call ends; None for no time."""
    waits: bool = False
    """Whether the call waits for a person, so that the input does not end."""
    questions: tuple[Any, ...] = ()
    """What the call asked a person before its result, in order."""


_NOTHING: Any = object()


def result(
    step: int,
    id: str,
    name: str,
    arguments: Mapping[str, Any],
    returns: Any = _NOTHING,
    *,
    content: ReplyContent | None = None,
    artifact: Any = None,
    error: str | None = None,
    invalid: str | None = None,
    unknown: str | None = None,
    usage: Mapping[str, Any] | None = None,
    stops: StopCause | None = None,
    waits: bool = False,
    at_s: float | None = None,
) -> Result:
    """Return the recorded result of a call, for a script.

    A call gets it if it has this name and these arguments; of several such results, that with its id comes first. With
    none of `returns`, `content`, `error`, `invalid`, `unknown`, `stops` and `waits`, it is an empty text. Of `error`,
    `invalid` and `unknown`, the first in this order decides the status.

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
        unknown: In place of `returns`: the text of a call whose outcome is unknown, such as after a crash.
        usage: Tokens and model calls of a delegate.
        stops: In place of `returns`: what stops the call, and the input with it.
        waits: In place of `returns`: whether the call waits for a person, so that the input does not end.
        at_s: Seconds since the input began, for an input with a deadline; None for no time.
    """
    failures: dict[ResultStatus, str | None] = {"error": error, "invalid": invalid, "unknown": unknown}
    status, failure = next((each for each in failures.items() if each[1] is not None), ("success", ""))
    event: dict[str, Any] = {}
    text: ReplyContent = content if content is not None else failure or ""
    if returns is not _NOTHING:
        text = returns if isinstance(returns, str) else json.dumps(returns, ensure_ascii=False)
        # By the encoding, text that looks like JSON is distinguished from a value, as in events.
        event = {} if isinstance(returns, str) else {"encoding": "json"}
    counts: Any = None if usage is None else dict(usage)
    found = RecordedResult(status=status, content=text, value=returns, artifact=artifact, usage=counts, event=event)
    return Result(step, id, name, arguments, found, stops, at_s, waits)


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that a playback needs: the items in order, and the results of calls."""

    items: Sequence[ScriptItem] = ()
    """What happens in place of the model, in order."""
    results: Sequence[Result] = ()
    """The results of calls, in any order."""


_NO_RESULT = RecordedResult(status="unknown", content="", value="")
"""The result of a call that waits, which has none."""
_LIMITED = (SessionStatus.ROUND_LIMIT, SessionStatus.TURN_LIMIT)
_CUT_OFF = "Not run: the reply that holds this call was cut off"
"""Begin of the result of a call in a reply that the provider cut off."""


def script_of(recorded: RecordedInput, first_step: int = 0) -> Script:
    """Return the script of an input, or of its steps from `first_step` on.

    Replies that a hook or a repair replaced are not stored; the next reply has their number in `repeats`. Steering
    stands where it was received, and a request that an abort or a limit ended is a `Stop`. A failure is the last item,
    and repeats for all further requests.
    """
    items: list[ScriptItem] = []
    repeats = 0
    for step in recorded.steps:
        if step.number < first_step:
            continue
        steering = _steering(step)
        items += steering.get(0, ())
        served = 0
        for each in step.replies:
            if each.is_stored:
                items.append(_reply(recorded, step, each, repeats))
                repeats, served = 0, served + 1
                items += steering.get(served, ())
            else:
                # A failed request was retried by the framework, and is no reply that a hook replaced.
                repeats += not each.error
        if (cause := stop_cause(recorded)) is not None:
            items += [
                Stop(cause, _at_s(recorded, each["started"], each["duration_s"]), step.number)
                for each in stopped_requests(step)
            ]
    newest = next((entry for entry in reversed([*recorded.events]) if entry["type"] == "error"), None)
    if recorded.status == SessionStatus.FAILED and newest is not None:
        items.append(Failure(newest["kind"], newest["message"], repeats=True))
    return Script(items, [_result(recorded, step, each) for step, each in recorded.calls if step >= first_step])


def stop_cause(recorded: RecordedInput) -> StopCause | None:
    """Return `abort` or `deadline` if one of them ended an input; None if another reason did."""
    if recorded.status == SessionStatus.ABORTED:
        return "abort"
    return "deadline" if recorded.stop_reason == "deadline" else None


def stopped_requests(step: RecordedStep) -> list[ModelCallRecord]:
    """Return the requests of a step that were cancelled, in order."""
    records = [each for entry in step.events for each in entry.get("model_calls", ())]
    return [each for each in records if each.get("error") == "cancelled"]


def _steering(step: RecordedStep) -> dict[int, list[Steering]]:
    """Return the steering messages of a step by the number of stored replies that precede them."""
    found: dict[int, list[Steering]] = {}
    served = 0
    for entry in step.events:
        if entry["type"] == "steering":
            found.setdefault(served, []).append(Steering(text_of(entry["content"]), step.number))
            continue
        records = entry.get("model_calls", ())
        served += sum(each["purpose"] == "summary" and "error" not in each for each in records)
        served += entry["type"] == "plan" or (entry["type"] == "agent_response" and bool(records))
    return found


def _reply(recorded: RecordedInput, step: RecordedStep, given: RecordedReply, repeats: int) -> Reply:
    """Return the item of a stored reply; `repeats` is the number of replies before it that are not stored.

    If a limit ended the input, an answer loses its first paragraph, in which the agent named the limit. A plan whose
    calls were not run because it was cut off has the finish reason `length`.
    """
    content, finish = given.content, given.finish_reason
    is_limited = recorded.status in _LIMITED or any(each["type"] == "limit" for each in step.events)
    if given.purpose == "answer" and isinstance(content, str) and is_limited:
        content = content.partition("\n\n")[2] or content  # the agent has put its sentence on the limit before it
    if given.tool_calls and any(
        each.result and text_of(each.result.content).startswith(_CUT_OFF) for each in step.calls
    ):
        # The message of a plan that was cut off may be lost; the results of its calls show it as well.
        finish = finish or "length"
    return Reply(
        content=content,
        calls=tuple(call(**each) for each in given.tool_calls),
        plan_fields=step.plan_fields if given.purpose == "plan" else None,
        tokens=given.usage or (0, 0),
        finish_reason=finish,
        at_s=_reply_at_s(recorded, step, given),
        purpose=given.purpose,
        step=step.number,
        repeats=repeats,
    )


def _result(recorded: RecordedInput, step: int, each: RecordedCall) -> Result:
    """Return the recorded result of a call in a step, for a script.

    A call without a result waits for a person in the replay, or, if its input was aborted, is aborted. A call that a
    stop ended, or that an abort kept from beginning or ending, stops the input in the replay, too.
    """
    found, cause, given = each.result, stop_cause(recorded), (step, each.id, each.name, each.arguments)
    if found is None:
        return Result(*given, _NO_RESULT, stops="abort" if cause == "abort" else None, waits=cause != "abort")
    at_s = _result_at_s(recorded, found.event)
    # An aborted input leaves such results for calls that had not begun or ended, so the replay aborts at them.
    stops = was_stopped(recorded, each) or (cause == "abort" and found.status in ("skipped", "unknown"))
    return Result(*given, found, stops=cause if stops else None, at_s=at_s, questions=each.questions)


def was_stopped(recorded: RecordedInput, each: RecordedCall) -> bool:
    """Whether an abort or the deadline stopped a call while it ran, by the text of its result."""
    if each.result is None or (cause := stop_cause(recorded)) is None:
        return False
    return each.result.content in [cut_short(cause, started=True, writes=writes).content for writes in (True, False)]


def _reply_at_s(recorded: RecordedInput, step: RecordedStep, given: RecordedReply) -> float | None:
    """Return when a reply ended, in seconds since the input began; None unless a deadline stopped the input.

    It is the end of the model call, or else the time of its event.
    """
    kind = "plan" if given.purpose == "plan" else "agent_response"
    entry = next((each for each in step.events if each["type"] == kind), {})
    if calls := entry.get("model_calls"):
        return _at_s(recorded, calls[-1]["started"], calls[-1]["duration_s"])
    return _at_s(recorded, entry.get("ts", ""))


def _result_at_s(recorded: RecordedInput, given: StoredEvent) -> float | None:
    """Return when a call ended, in seconds since the input began; None unless a deadline stopped the input."""
    starts = ("tool_call", "delegation_request")
    # By durations where they are known: they are of the monotonic clock, as deadlines are.
    started = [entry for entry in recorded.events if entry.get("id") == given.get("id") and entry["type"] in starts]
    if not started or "duration_s" not in given:
        return _at_s(recorded, given.get("ts", ""))
    return _at_s(recorded, started[-1]["ts"], given["queued_s"] + given["duration_s"])


def _at_s(recorded: RecordedInput, moment: str, seconds: float = 0.0) -> float | None:
    """Return the seconds from the begin of an input to `seconds` after a moment (ISO 8601), rounded to milliseconds.

    None unless a deadline stopped the input, because no other script depends on times. If the moment is empty or the
    input has no event, `seconds` alone is returned.
    """
    if stop_cause(recorded) != "deadline":
        return None
    began = next((entry["ts"] for entry in recorded.events), "")
    if not began or not moment:
        return seconds
    return round((datetime.fromisoformat(moment) - datetime.fromisoformat(began)).total_seconds() + seconds, 3)
