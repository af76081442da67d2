"""Updates of a task for its subscribers, converted from the parts of a session's stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import Message, Part, Role, Task, TaskState, TaskStatus
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from langgraph.types import Interrupt

from graph_agent._internal.coalesce import TextCoalescer
from graph_agent._internal.text import plain
from graph_agent.a2a.wire import EXTENSION, outcome_metadata
from graph_agent.approvals.requests import request_of
from graph_agent.approvals.text import question_text
from graph_agent.events.json_values import as_value
from graph_agent.models.public_text import public_text, public_value
from graph_agent.session.results import CallState, DelegateProgress, EventAdded, PlanText, Token
from graph_agent.session.results import Part as SessionPart
from graph_agent.session.run_result import RunResult

ARTIFACT = "answer"
_INTERRUPT = "interrupt"
_PROGRESS = frozenset({"plan", "call", "delegation", "output"})
"""Types of progress messages, under our extension's key."""


class TaskReporter:
    """Sends one task's updates to its subscribers.

    Args:
        queue: The SDK's event queue of the task.
        task_id: The task.
        context_id: The task's conversation.
        show_outputs: Whether tool outputs are sent.
    """

    def __init__(self, queue: EventQueue, task_id: str, context_id: str, *, show_outputs: bool) -> None:
        self._queue = queue
        self._updater = TaskUpdater(queue, task_id, context_id)
        self._task_id = task_id
        self._context_id = context_id
        self._show_outputs = show_outputs
        self._streamed = False
        # Coalesced: each event costs a protocol message, a change of the task and a line per subscriber.
        self._pieces = TextCoalescer(self._append)
        self.updates_sent = 0
        """Number of updates sent; a heartbeat is sent while this does not increase."""

    async def submitted(self, message: Message | None) -> None:
        """Report the new task; the protocol requires this event first."""
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
        """Report progress; a heartbeat without arguments.

        Args:
            text: The progress as text.
            about: The progress for programs, under our extension's key.
            data: Additional JSON.
        """
        self.updates_sent += 1
        await self._pieces.flush()
        parts = [*_text_parts(text), *_data_parts(data)]
        message = self._message(parts, about) if parts else None
        await self._updater.start_work(message)

    async def part(self, part: SessionPart) -> None:
        """Convert one part of the session's stream to an update."""
        match part:
            case Token() if not part.reports_failure:
                self.updates_sent += 1
                await self._pieces.add(part.text)
            case PlanText():
                await self._pieces.flush()
                # Text that was streamed as the answer turned out to precede calls, so the artifact starts again.
                self._streamed, self._pieces = False, TextCoalescer(self._append)
                await self.working(part.text, {"type": "plan"})
            case DelegateProgress():
                about = {"type": "delegation", "id": part.id, "target": part.target}
                await self.working(f"{part.target}: {part.text}", about)
            case CallState():
                about = {"type": "call", "id": part.id, "name": part.name, "status": part.status}
                await self.working(f"{part.name}: {part.status}", about)
            case EventAdded(event) if self._show_outputs and (
                event["type"] == "tool_result" or event["type"] == "delegation_response"
            ):
                output = {"id": event["id"], "content": public_value(event["content"])}
                await self.working(data=output, about={"type": "output", "id": event["id"]})
            case _:
                pass

    async def completed(self, result: RunResult) -> None:
        """Report completion, with the whole answer in place of the streamed chunks."""
        await self._pieces.flush()
        parts = [Part(text=public_text(result.answer)), *_data_parts(as_value(result.structured_response))]
        await self._updater.add_artifact(parts, artifact_id=self._artifact_id, name=ARTIFACT, last_chunk=True)
        await self._end(TaskState.TASK_STATE_COMPLETED, None, result)

    async def input_required(self, interrupts: Sequence[Interrupt], result: RunResult) -> None:
        """Report that the graph waits for a person.

        Only the first interrupt is sent; the others are raised again after its answer.
        """
        await self._pieces.flush()
        question = interrupts[0].value
        text = question if isinstance(question, str) else _question_text(interrupts[0])
        # A structured question's other fields, such as choices, are sent as data.
        data = None if question == text or (text and len(question) == 1) else question
        about = {"type": "question", _INTERRUPT: interrupts[0].id}
        message = self._message([*_text_parts(text), *_data_parts(data)], about)
        metadata = outcome_metadata(None, result.usage)
        await self._updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message, metadata=metadata)

    async def repeat_question(self, question: Message, reason: str) -> None:
        """Send the question again, since its answer could not be processed now.

        Args:
            question: The task's question.
            reason: Why the answer was not accepted.
        """
        message = self._message([Part(text=reason), *question.parts], MessageToDict(question.metadata).get(EXTENSION))
        await self._updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message)

    async def failed(self, reason: str, result: RunResult | None = None) -> None:
        """Report that the task failed."""
        await self._end(TaskState.TASK_STATE_FAILED, self._message(_text_parts(public_text(reason))), result)

    async def rejected(self, reason: str) -> None:
        """Report that this agent does not accept the task."""
        await self._pieces.flush()
        await self._updater.reject(self._message(_text_parts(reason)))

    async def cancelled(self, result: RunResult | None = None) -> None:
        """Report that the task was cancelled."""
        await self._end(TaskState.TASK_STATE_CANCELED, None, result)

    async def _end(self, state: TaskState, message: Message | None, result: RunResult | None) -> None:
        """Send the final state with the run's usage, which a delegating run deducts from its budget."""
        await self._pieces.flush()
        metadata = outcome_metadata(result.stop_reason, result.usage) if result is not None else None
        await self._updater.update_status(state, message, metadata=metadata)

    @property
    def _artifact_id(self) -> str:
        return f"{self._task_id}-{ARTIFACT}"

    async def _append(self, text: str) -> None:
        # The first chunk replaces the artifact, also after a restart of the answer.
        append, self._streamed = self._streamed, True
        await self._updater.add_artifact(
            [Part(text=text)], artifact_id=self._artifact_id, name=ARTIFACT, append=append, last_chunk=False
        )

    def _message(self, parts: list[Part], about: Mapping[str, Any] | None = None) -> Message:
        return self._updater.new_agent_message(parts, metadata={EXTENSION: dict(about)} if about else None)


def question_id(task: Task | None) -> str:
    """Return the id of the interrupt that a task has sent as its question; empty for none."""
    return str(_about(task.status.message).get(_INTERRUPT, "")) if task is not None else ""


def is_progress(message: Message) -> bool:
    """Whether a message of the agent is progress, which the next message replaces."""
    return message.role == Role.ROLE_AGENT and _about(message).get("type") in _PROGRESS


def _about(message: Message) -> dict[str, Any]:
    values = MessageToDict(message.metadata).get(EXTENSION) if EXTENSION in message.metadata else None
    return values if isinstance(values, dict) else {}


def _question_text(interrupt: Interrupt) -> str:
    """Return the text of a structured question; empty for none.

    It is the text of an approval request, or else of the first usual key that holds text.
    """
    if (request := request_of(interrupt)) is not None:
        return question_text(request)
    fields = interrupt.value if isinstance(interrupt.value, dict) else {}
    return next((fields[name] for name in ("question", "message", "prompt") if isinstance(fields.get(name), str)), "")


def _text_parts(text: str) -> list[Part]:
    return [Part(text=text)] if text else []


def _data_parts(data: Any) -> list[Part]:
    return [] if data is None else [Part(data=ParseDict(plain(data), Value()))]
