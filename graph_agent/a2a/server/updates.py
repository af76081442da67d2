"""What a task tells those who watch it, worded from the parts of a session's stream."""

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

from graph_agent._internal.coalesce import Pieces
from graph_agent._internal.text import plain
from graph_agent.a2a.wire import EXTENSION, outcome_of
from graph_agent.events.values import as_value
from graph_agent.session.results import CallState, DelegateProgress, EventAdded, PlanText, RunResult, Token
from graph_agent.session.results import Part as SessionPart

ARTIFACT = "answer"
_INTERRUPT = "interrupt"
_PROGRESS = frozenset({"plan", "call", "delegation", "output"})
"""Types of the messages that tell progress, under our extension's key."""


class TaskTeller:
    """Tells one task's watchers how it gets on.

    Args:
        queue: The SDK's queue of the task.
        task_id: The task.
        context_id: Its conversation.
        show_outputs: Whether what tools gave is told too.
    """

    def __init__(self, queue: EventQueue, task_id: str, context_id: str, *, show_outputs: bool) -> None:
        self._queue = queue
        self._updater = TaskUpdater(queue, task_id, context_id)
        self._task_id = task_id
        self._context_id = context_id
        self._show_outputs = show_outputs
        self._streamed = False
        # Each event is a message of the protocol, a change of the task and a line to everyone who watches it.
        self._pieces = Pieces(self._append)
        self.said = 0
        """How many updates were told; a heart-beat is for when this stands still."""

    async def submitted(self, message: Message | None) -> None:
        """The task exists; the protocol wants this first."""
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
        """It is at work; without words it is a heart-beat.

        Args:
            text: What to say.
            about: The same for programs, under our extension's key.
            data: JSON to go along.
        """
        self.said += 1
        await self._pieces.flush()
        parts = [*_text_parts(text), *_data_parts(data)]
        message = self._message(parts, about) if parts else None
        await self._updater.start_work(message)

    async def part(self, part: SessionPart) -> None:
        """Tell what one part of the session's stream means to somebody outside."""
        match part:
            case Token() if not part.reports_failure:
                self.said += 1
                await self._pieces.add(part.text)
            case PlanText():
                await self._pieces.flush()
                # Where plans are streamed, what was taken for the answer has turned out to precede calls.
                self._streamed, self._pieces = False, Pieces(self._append)
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
                output = {"id": event["id"], "content": event["content"]}
                await self.working(data=output, about={"type": "output", "id": event["id"]})
            case _:
                pass

    async def answered(self, result: RunResult) -> None:
        """The whole answer, in place of what was streamed, and the task completed."""
        await self._pieces.flush()
        parts = [Part(text=result.answer), *_data_parts(as_value(result.structured_response))]
        await self._updater.add_artifact(parts, artifact_id=self._artifact_id, name=ARTIFACT, last_chunk=True)
        await self._end(TaskState.TASK_STATE_COMPLETED, None, result)

    async def asks(self, waiting: Sequence[Interrupt], result: RunResult) -> None:
        """The graph waits for a person; the first question counts, the others follow when it is answered."""
        await self._pieces.flush()
        question = waiting[0].value
        text = question if isinstance(question, str) else _words(question)
        # What a question says beside its words, such as the choices, goes along for programs.
        data = None if question == text or (text and len(question) == 1) else question
        about = {"type": "question", _INTERRUPT: waiting[0].id}
        message = self._message([*_text_parts(text), *_data_parts(data)], about)
        told = outcome_of(None, result.usage)
        await self._updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message, metadata=told)

    async def asks_again(self, question: Message, why: str) -> None:
        """An answer could not be taken now; the question stands.

        Args:
            question: What the task has asked.
            why: What the answer was not taken for.
        """
        message = self._message([Part(text=why), *question.parts], MessageToDict(question.metadata).get(EXTENSION))
        await self._updater.update_status(TaskState.TASK_STATE_INPUT_REQUIRED, message)

    async def failed(self, why: str, result: RunResult | None = None) -> None:
        """The task failed."""
        await self._end(TaskState.TASK_STATE_FAILED, self._message(_text_parts(why)), result)

    async def rejected(self, why: str) -> None:
        """The task is none that this agent takes."""
        await self._pieces.flush()
        await self._updater.reject(self._message(_text_parts(why)))

    async def cancelled(self, result: RunResult | None = None) -> None:
        """The task was cancelled."""
        await self._end(TaskState.TASK_STATE_CANCELED, None, result)

    async def _end(self, state: TaskState, message: Message | None, result: RunResult | None) -> None:
        """However it ends, it tells what its run has used: that is taken from a delegating run's budget."""
        await self._pieces.flush()
        told = outcome_of(result.stop_reason, result.usage) if result is not None else None
        await self._updater.update_status(state, message, metadata=told)

    @property
    def _artifact_id(self) -> str:
        return f"{self._task_id}-{ARTIFACT}"

    async def _append(self, text: str) -> None:
        # The first piece begins the artifact, also anew after words that were none of the answer.
        append, self._streamed = self._streamed, True
        await self._updater.add_artifact(
            [Part(text=text)], artifact_id=self._artifact_id, name=ARTIFACT, append=append, last_chunk=False
        )

    def _message(self, parts: list[Part], about: Mapping[str, Any] | None = None) -> Message:
        return self._updater.new_agent_message(parts, metadata={EXTENSION: dict(about)} if about else None)


def question_of(task: Task | None) -> str:
    """The id of the interrupt that a task has told as its question; empty for none."""
    return str(_about(task.status.message).get(_INTERRUPT, "")) if task is not None else ""


def is_progress(message: Message) -> bool:
    """Whether a message of the agent's tells progress, which the next one replaces."""
    return message.role == Role.ROLE_AGENT and _about(message).get("type") in _PROGRESS


def _about(message: Message) -> dict[str, Any]:
    told = MessageToDict(message.metadata).get(EXTENSION) if EXTENSION in message.metadata else None
    return told if isinstance(told, dict) else {}


def _words(question: Any) -> str:
    """The words in a structured question, by the names they usually go under; empty for none."""
    told = question if isinstance(question, dict) else {}
    return next((told[name] for name in ("question", "message", "prompt") if isinstance(told.get(name), str)), "")


def _text_parts(text: str) -> list[Part]:
    return [Part(text=text)] if text else []


def _data_parts(data: Any) -> list[Part]:
    return [] if data is None else [Part(data=ParseDict(plain(data), Value()))]
