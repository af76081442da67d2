"""Converts the parts of a session's stream to updates of a task for its subscribers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from langgraph.types import Interrupt

from graph_agent.base._internal.closing_stream import TextCoalescer
from graph_agent.base._internal.text import printable, printable_lines, to_json_safe
from graph_agent.base.approvals.elicitation import elicitation_text, is_elicitation
from graph_agent.base.approvals.requests import is_approval_request
from graph_agent.base.approvals.text import question_text
from graph_agent.base.history.call_events import as_value
from graph_agent.base.model_error_text import public_text, public_value
from graph_agent.integrations.delegates.a2a_parts import EXTENSION, data_part, outcome_metadata
from graph_agent.session.interrupts import joint_question
from graph_agent.session.results import CallState, DelegateProgress, EventAdded, PlanText, RunResult, Token
from graph_agent.session.results import Part as SessionPart

ARTIFACT = "answer"
_INTERRUPT = "interrupt"
_PROGRESS = frozenset({"plan", "call", "delegation", "output"})
"""Types of progress messages, in the metadata of this package's A2A extension."""


class TaskReporter:
    """Sends the updates of one task to its subscribers.

    The answer is streamed as an artifact (A2A's term for a result). Its text is sent in larger pieces than the model
    produces.

    Args:
        queue: The SDK's queue of the task.
        task_id: Id of the task.
        context_id: Id of the conversation.
        show_outputs: Whether the outputs of tools are sent.
    """

    def __init__(self, queue: EventQueue, task_id: str, context_id: str, *, show_outputs: bool) -> None:
        self._queue = queue
        self._updater = TaskUpdater(queue, task_id, context_id)
        self._task_id = task_id
        self._context_id = context_id
        self._show_outputs = show_outputs
        self._streamed = False
        """Whether the artifact contains text of the current answer."""
        self._outdated = False
        """Whether the artifact contains text that is not part of the answer after all."""
        # Coalesced: each event costs a protocol message, a change of the task and a line per subscriber.
        self._pieces = TextCoalescer(self._append)
        self.updates_sent = 0
        """Number of updates sent; a heartbeat is sent while this does not increase."""

    async def submitted(self, message: Message | None) -> None:
        """Send the new task, in the state `submitted` and with the message that begins it as its history. The protocol
        requires this event first.
        """
        now = Timestamp()
        now.GetCurrentTime()
        await self._queue.enqueue_event(
            Task(
                id=self._task_id,
                context_id=self._context_id,
                status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED, timestamp=now),
                history=[message] if message is not None else [],
            )
        )

    async def working(self, text: str = "", about: Mapping[str, Any] | None = None, data: Any = None) -> None:
        """Report that the task is working, with progress; without text and data, it is a heartbeat. Text of the answer
        that waits to be sent is sent first.

        Args:
            text: Text for people; may be empty.
            about: Describes the progress for programs, e.g. `{"type": "plan"}`, in the metadata of this package's
                extension.
            data: A JSON value to send; None for no data.
        """
        self.updates_sent += 1
        await self._pieces.flush()
        parts = [*_text_parts(text), *_data_parts(data)]
        message = self._message(parts, about) if parts else None
        await self._updater.start_work(message)

    async def part(self, part: SessionPart) -> None:
        """Send the update for one part of the session's stream.

        Text is added to the artifact. If it turns out to belong to a plan, it is dropped from the artifact, and sent as
        progress. A delegate's text, the state of a call and, with `show_outputs`, the output of a call are sent as
        progress. Other parts, also the text of a failure, are ignored.
        """
        match part:
            case Token() if not part.reports_failure:
                self.updates_sent += 1
                await self._pieces.add(part.text)
            case PlanText():
                # Text that was streamed as the answer turned out to be none, so the artifact starts again.
                await self._pieces.drop()
                self._outdated, self._streamed = self._outdated or self._streamed, False
                await self.working(part.text, {"type": "plan"})
            case DelegateProgress():
                about = {"type": "delegation", "id": part.id, "target": part.target}
                await self.working(f"{printable(part.target)}: {printable_lines(part.text)}", about)
            case CallState():
                about = {"type": "call", "id": part.id, "name": part.name, "status": part.status}
                await self.working(f"{printable(part.name)}: {part.status}", about)
            case EventAdded(event) if self._show_outputs and (
                event["type"] == "tool_result" or event["type"] == "delegation_response"
            ):
                output = {"id": event["id"], "content": public_value(event["content"])}
                await self.working(data=output, about={"type": "output", "id": event["id"]})
            case _:
                pass

    async def completed(self, result: RunResult) -> None:
        """Report that the task is completed, with the whole answer in place of the streamed pieces, and a structured
        response as data.
        """
        await self._pieces.flush()
        parts = [Part(text=public_text(result.answer)), *_data_parts(as_value(result.structured_response))]
        await self._updater.add_artifact(parts, artifact_id=self._artifact_id, name=ARTIFACT, last_chunk=True)
        self._outdated = False
        await self._end(TaskState.TASK_STATE_COMPLETED, None, result)

    async def input_required(self, interrupts: Sequence[Interrupt], result: RunResult) -> None:
        """Send the rest of the text, then report that the graph waits for an answer, with the question of the open
        interrupts and the usage so far.
        """
        # Subscribers must have the whole text before the state that ends their stream.
        await self._end_artifact()
        message, metadata = self.question(interrupts), outcome_metadata(None, result.usage)
        await self._updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message, metadata=metadata)

    def question(self, interrupts: Sequence[Interrupt]) -> Message:
        """Return the message with the question of the open interrupts; questions that are answered together are one
        message.

        The metadata has the ids of the interrupts that it asks about. A structured question whose text is not all it
        has, e.g. with choices, is also sent as data.
        """
        asked, question = joint_question(interrupts)
        text = question if isinstance(question, str) else _question_text(question)
        # A structured question's other fields, such as choices, are sent as data.
        data = None if question == text or (text and len(question) == 1) else question
        about = {"type": "question", _INTERRUPT: [each.id for each in asked]}
        return self._message([*_text_parts(printable_lines(text)), *_data_parts(data)], about)

    async def ask_again(self, question: Message, reason: str) -> None:
        """Report that the graph still waits, with the reason why the answer was not accepted, and then the parts of the
        question that was sent before.
        """
        message = self._message([Part(text=reason), *question.parts], _about(question))
        await self._updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message)

    async def failed(self, reason: str, result: RunResult | None = None) -> None:
        """Report that the task has failed, with the reason and, if there is a result, the usage."""
        await self._end(TaskState.TASK_STATE_FAILED, self._message(_text_parts(public_text(reason))), result)

    async def rejected(self, reason: str) -> None:
        """Send the rest of the answer's text, then report that the agent does not accept the task, with the reason."""
        await self._pieces.flush()
        await self._updater.reject(self._message(_text_parts(reason)))

    async def cancelled(self, result: RunResult | None = None) -> None:
        """Report that the task was cancelled, with the usage if there is a result."""
        await self._end(TaskState.TASK_STATE_CANCELED, None, result)

    async def _end(self, state: TaskState, message: Message | None, result: RunResult | None) -> None:
        """Send the rest of the answer's text, then the final state, with the stop reason and the usage if there is a
        result.

        A delegating agent deducts the usage from its limits.
        """
        await self._end_artifact()
        metadata = outcome_metadata(result.stop_reason, result.usage) if result is not None else None
        await self._updater.update_status(state, message, metadata=metadata)

    @property
    def _artifact_id(self) -> str:
        """Id of the answer's artifact, `<task>-answer`."""
        return f"{self._task_id}-{ARTIFACT}"

    async def _append(self, text: str) -> None:
        """Send a piece of the answer, which is added to the artifact; the first piece of an answer replaces what the
        artifact contains.
        """
        # The first chunk replaces the artifact, also after a restart of the answer.
        append, self._streamed, self._outdated = self._streamed, True, False
        await self._updater.add_artifact(
            [Part(text=text)], artifact_id=self._artifact_id, name=ARTIFACT, append=append, last_chunk=False
        )

    async def _end_artifact(self) -> None:
        """Send the rest of the text, and empty the artifact if it contains no part of the answer; it is not marked as
        complete, as `completed` does that."""
        await self._pieces.flush()
        if self._outdated:
            await self._append("")

    def _message(self, parts: list[Part], about: Mapping[str, Any] | None = None) -> Message:
        """Return a message of the agent; `about` describes it for programs in its metadata."""
        return self._updater.new_agent_message(parts, metadata={EXTENSION: dict(about)} if about else None)


def question_ids(question: Message) -> set[str]:
    """Return the ids of the interrupts that the question of a task is about; empty for any other message."""
    ids = _about(question).get(_INTERRUPT, [])
    # Tasks of an earlier version name one.
    return {ids} if isinstance(ids, str) else set(ids)


def is_progress_message(message: Message) -> bool:
    """Return whether a message is progress of the agent, which the next message replaces."""
    return message.role == Role.ROLE_AGENT and _about(message).get("type") in _PROGRESS


def _about(message: Message) -> dict[str, Any]:
    """Return the description of a message in the metadata of this package's extension, e.g. `{"type": "plan"}`; empty
    if it has none.
    """
    values = MessageToDict(message.metadata).get(EXTENSION) if EXTENSION in message.metadata else None
    return values if isinstance(values, dict) else {}


def _question_text(question: Any) -> str:
    """Return the text of a structured question; empty if it has none.

    It is the text of an approval request or an elicitation; otherwise the first text among the keys `question`,
    `message` and `prompt`.
    """
    if is_approval_request(question):
        return question_text(question)
    if is_elicitation(question):
        return elicitation_text(question)
    fields = question if isinstance(question, dict) else {}
    return next((fields[name] for name in ("question", "message", "prompt") if isinstance(fields.get(name), str)), "")


def _text_parts(text: str) -> list[Part]:
    """Return a list with a text part, or an empty list if the text is empty."""
    return [Part(text=text)] if text else []


def _data_parts(data: Any) -> list[Part]:
    """Return a list with a data part, or an empty list if the data is None."""
    return [] if data is None else [data_part(to_json_safe(data))]
