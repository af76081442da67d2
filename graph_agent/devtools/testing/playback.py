"""Plays one input of a recording: gives its replies, results, decisions and steering in their places."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.types import Interrupt, interrupt

from graph_agent.base._internal.text import text_of
from graph_agent.base.types import SessionStatus
from graph_agent.core.approvals.requests import HeldCall, calls_of_request, request_of
from graph_agent.devtools.testing import script
from graph_agent.devtools.testing.input_differences import ABSENT, Difference, DifferenceKind
from graph_agent.devtools.testing.recording import (
    RecordedInput,
    RecordedReply,
    RecordedResult,
    RecordedStep,
    decision_in,
)
from graph_agent.devtools.testing.stand_ins import RecordedCalls
from graph_agent.models.errors import ModelErrorKind
from graph_agent.session.session import Session

_ABORTED = ("skipped", "unknown")
"""Statuses of the results of calls that an abort stopped."""
_RESULTS_S = 5.0
"""Seconds that an abort waits for the results of other calls, which are ready."""


class Playback:
    """The recorded parts of one input, taken in order; replies from `first_step` on.

    With `runs_reading_tools`, a tool marked as reading runs for a call without a recorded result.
    """

    def __init__(
        self, recorded: RecordedInput, session: Session, *, runs_reading_tools: bool = False, first_step: int = 0
    ) -> None:
        self._recorded = recorded
        self._session = session
        self._runs_reading_tools = runs_reading_tools
        self._replies = deque(_repeated_replies(recorded, first_step))
        self._repeats: list[tuple[RecordedStep, RecordedReply]] = []
        """The newest reply, once for each further request that the same node may make."""
        self._task = ""
        """The task of the graph that made the newest request."""
        self._served = 0
        self._steering = _steering(recorded)
        self._calls = RecordedCalls(call for step, call in recorded.calls if step >= first_step)
        self._decisions = [entry for entry in recorded.events if entry["type"] == "approval_decision"]
        self._ended: set[str] = set()
        """Ids of the calls that have a result."""
        self._call_ended = asyncio.Event()
        self.step = max(0, first_step - 1)
        """Number of plans that were requested, counted from the first of the input."""
        self.stopped: asyncio.Future[tuple[str, Difference | None]] = asyncio.get_running_loop().create_future()
        """Why the replay cannot go on, and the difference that is the reason; None if the recording ends there."""
        self._without_result = ""
        """Name of a call that waits because the recording ends before its result; empty if there is none."""
        self.open_step: int | None = None
        """The step that was unfinished when the replay stopped; None if all steps were finished."""
        self.unknown_call: str = ""
        """Id of the call without a recorded result that stopped the replay; empty if none did."""

        self.waits = False
        """Whether the input waits for a person, as it did when it was recorded."""

    async def start(self) -> None:
        """Send the steering that came before the first reply."""
        for text in self._steering.get(0, ()):
            await self._session.steer(text)

    async def reply(self) -> AIMessage:
        """Return the next reply of a model."""
        task, self._task = self._task, str(get_config()["configurable"].get("checkpoint_ns", ""))
        if self._repeats and task == self._task:  # a hook asks again; its first reply is not recorded
            return message_of(*self._repeats.pop())
        if not self._replies:
            if self._recorded.status == SessionStatus.ABORTED:
                await self._abort()
            if (failure := _failure_of(self._recorded)) is not None:
                raise failure
            await self._stop_at_request()
        step, reply, repeats = self._replies.popleft()
        self._repeats = [(step, reply)] * repeats
        self._served += 1
        self.step = max(self.step, step.number)
        for text in self._steering.get(self._served, ()):
            await self._session.steer(text)
        return message_of(step, reply)

    async def _stop_at_request(self) -> NoReturn:
        ended = self._recorded.status in (SessionStatus.FAILED, SessionStatus.RUNNING) or is_late(self._recorded)
        found = None if ended else self._difference("model", "", "a further request")
        await self._stop("The model is asked for a reply that is not recorded.", found)

    def end_call(self, id_: str) -> None:
        """Record that a call has a result."""
        self._ended.add(id_)
        self._call_ended.set()

    async def _abort(self) -> NoReturn:
        """Abort the session once the calls that had a result then have one."""
        before = {
            call.id
            for step, call in self._recorded.calls
            if step == self.step and call.result and call.result.status not in _ABORTED
        }
        with suppress(TimeoutError):
            async with asyncio.timeout(_RESULTS_S):
                while not before <= self._ended:
                    self._call_ended.clear()
                    await self._call_ended.wait()
        await self._session.abort()
        await asyncio.Event().wait()  # The abort cancels this run.
        raise AssertionError

    async def _stop(self, why: str, found: Difference | None) -> NoReturn:
        if not self.stopped.done():
            self.stopped.set_result((why, found))
        await asyncio.Event().wait()  # The replay cancels this run.
        raise AssertionError

    async def result(
        self, id_: str, name: str, arguments: Mapping[str, Any], tool: BaseTool | None
    ) -> RecordedResult | None:
        """Return the recorded result of a call; None if the tool itself may run."""
        if (found := self._calls.take(id_, name, arguments)) is not None:
            result = found.result
            stopped = result is None or result.status in _ABORTED
            if stopped and self._recorded.status == SessionStatus.ABORTED:
                await self._abort()
            if result is None and self._recorded.status != SessionStatus.RUNNING:
                await self._stop(f"The recording ends before the result of {name}.", None)
            if result is None:
                self._without_result = name
                interrupt(f"The recording has no result of {name}.")
            return result
        reads = tool is not None and (tool.metadata or {}).get("effect") == "read"
        if reads and self._runs_reading_tools:
            return None
        self.unknown_call, self.open_step = id_, self.step
        what = "reads" if reads else "may write, so it never runs in a replay"
        why = f"The call {name} has no recorded result; it {what}."
        return await self._stop(why, self._difference("call", name, dict(arguments)))

    def _difference(self, kind: DifferenceKind, name: str, now: Any) -> Difference:
        """Return the difference of something that the recording does not have."""
        return Difference(input=self._recorded.number, step=self.step, kind=kind, name=name, recorded=ABSENT, now=now)

    def answers(self, interrupts: Sequence[Interrupt]) -> dict[str, Any] | None:
        """Return the recorded answers to open interrupts, by id.

        If one has none, return None; unless an abort followed, the replay is then stopped.
        """
        answers: dict[str, Any] = {}
        for each in interrupts:
            calls = calls_of_request(request) if (request := request_of(each)) is not None else []
            decisions = [self._decision(call) for call in calls]
            if not decisions or None in decisions:
                if self._recorded.status == SessionStatus.ABORTED:
                    return None
                name, asked = (calls[0]["name"], calls[0]["arguments"]) if calls else ("", each.value)
                self.waits = is_end = self._recorded.status == SessionStatus.RUNNING
                found = None if is_end else self._difference("approval", name, asked)
                self.open_step = self.step
                why = "The agent asks a person, and no answer is recorded."
                if self._without_result:
                    why = f"The recording ends before the result of {self._without_result}."
                self.stopped.set_result((why, found))
                return None
            answers[each.id] = {"decisions": decisions}
        return answers

    def _decision(self, call: HeldCall) -> dict[str, Any] | None:
        same = [entry for entry in self._decisions if entry["name"] == call["name"]]
        found = next((entry for entry in same if entry["id"] == call["id"]), same[0] if same else None)
        if found is None:
            return None
        self._decisions.remove(found)
        return {**decision_in(found), "decided_by": found["decided_by"]}


def stored_replies(recorded: RecordedInput, first_step: int = 0) -> Iterator[tuple[RecordedStep, RecordedReply]]:
    """Yield the replies that the session has; requests that a hook or a retry repeated have none."""
    for step in recorded.steps:
        if step.number >= first_step:
            yield from ((step, reply) for reply in step.replies if reply.is_stored)


class RecordedFailureError(Exception):
    """A model's error that is classified as the recorded one was; its message has the HTTP status if there was one."""

    def __init__(self, kind: ModelErrorKind, message: str) -> None:
        super().__init__(_WORDINGS[kind])
        status = re.search(r"\bHTTP (\d{3})\b", message)
        self.status_code = int(status[1]) if status else None
        self.retry_after = 0
        """Seconds; retries need no pause."""


_WORDINGS: dict[ModelErrorKind, str] = {
    "transient": "service_unavailable",
    "auth": "invalid_api_key",
    "permission": "insufficient_quota",
    "unknown_model": "model_not_found",
    "context_overflow": "context_length_exceeded",
    "content_filter": "content_filter",
    "tools_rejected": "tools are not supported",
    "other": "recorded failure",
}
"""Kind → words by which an error is classified so."""


def _failure_of(recorded: RecordedInput) -> RecordedFailureError | None:
    """Return the model's error that ended an input; None if another one did, or none."""
    newest = next((entry for entry in reversed([*recorded.events]) if entry["type"] == "error"), None)
    if recorded.status != SessionStatus.FAILED or newest is None or newest["kind"] not in _WORDINGS:
        return None
    return RecordedFailureError(newest["kind"], newest["message"])


def _repeated_replies(recorded: RecordedInput, first_step: int) -> Iterator[tuple[RecordedStep, RecordedReply, int]]:
    """Yield the replies that the session has, each with the number of those before it that a hook replaced.

    After a deadline, only the plans: the time of a replay is another.
    """
    repeats = 0
    for step in recorded.steps:
        for reply in step.replies if step.number >= first_step else ():
            if not reply.is_stored:
                repeats += not reply.error
            elif reply.purpose != "answer" or not is_late(recorded):
                yield step, reply, repeats
                repeats = 0


def is_late(recorded: RecordedInput) -> bool:
    """Whether a deadline stopped an input, which no replay repeats."""
    return recorded.stop_reason == "deadline"


def _steering(recorded: RecordedInput) -> dict[int, list[str]]:
    """Return the texts of steering, by the number of stored replies before it."""
    found: dict[int, list[str]] = defaultdict(list)
    served = 0
    for entry in recorded.events:
        if entry["type"] == "steering":
            found[served].append(text_of(entry["content"]))
            continue
        calls = entry.get("model_calls", ())
        served += sum(call["purpose"] == "summary" and "error" not in call for call in calls)
        served += entry["type"] == "plan" or (entry["type"] == "agent_response" and bool(calls))
    return found


def message_of(step: RecordedStep, reply: RecordedReply) -> AIMessage:
    """Return a reply as a model's message; a structured plan is the JSON that the planner parses."""
    options: dict[str, Any] = {"tokens": reply.usage or (0, 0), "finish_reason": reply.finish_reason}
    calls = [script.call(**each) for each in reply.tool_calls]
    if reply.purpose == "plan" and (fields := step.plan_fields) is not None:
        return script.plan(*calls, **fields, **options).message
    content = reply.content
    if reply.purpose == "answer" and isinstance(content, str) and any(each["type"] == "limit" for each in step.events):
        content = content.partition("\n\n")[2] or content  # the agent has put its sentence on the limit before it
    return script.reply(content, *calls, **options).message
