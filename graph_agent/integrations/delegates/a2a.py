"""Sends delegations to one remote agent over A2A.

A delegation is a task that an agent's model hands to another agent. An agent card describes a remote agent at its
address. A remote task may end with a question, which a user answers; one in the background runs on while the delegating
agent continues.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, cast

import anyio
import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import AgentCard, CancelTaskRequest, Message, Part, Role, TaskState
from a2a.utils.constants import TransportProtocol
from a2a.utils.errors import TaskNotFoundError
from langchain_core.messages import AnyMessage, HumanMessage

from graph_agent.base._internal.failure_log import get_logger
from graph_agent.base._internal.text import clean, to_json_safe
from graph_agent.base.delegate_tasks import BackgroundTask, RemoteTask
from graph_agent.base.errors import OperatorError
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.base.usage import add_usage, less_usage
from graph_agent.core.extensions.delegation import Delegation, DelegationResult, started_in_background
from graph_agent.core.extensions.output import effect_text
from graph_agent.integrations.delegates import a2a_parts
from graph_agent.integrations.delegates.a2a_http import A2AAuth, describe_card, open_http, origin_of, read_card
from graph_agent.integrations.delegates.a2a_task import REMOTE_CANCEL_S, FollowedTask, RemoteTimeoutError
from graph_agent.integrations.delegates.approval_request import approval_request_of

logger = get_logger("graph_agent.delegates.a2a")

CARD_TIMEOUT_S = 5.0
"""Maximum seconds for reading an agent card."""
_RETRY_CARD_S = 30.0
"""Seconds after a failed attempt before the card is read again."""
_LOOK_AGAIN_S = 2.0
"""Seconds between two checks of a task in the background that waits."""
_DEFAULT_DESCRIPTION = "A remote agent."

_FAILURES = {
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_REJECTED: "rejected the task",
    TaskState.TASK_STATE_CANCELED: "cancelled the task",
    TaskState.TASK_STATE_AUTH_REQUIRED: "requires an authentication that this agent does not have",
}
"""State of a remote task → the end of a sentence about the agent."""


class RemoteAgent:
    """Sends delegations to one remote agent.

    The parameters are described at `A2ADelegate`. Each delegation opens a connection of its own; the agent card is read
    once, and again after a failure.
    """

    def __init__(
        self,
        name: str,
        url: str,
        description: str | None,
        timeout_s: float,
        auth: A2AAuth | None,
        max_response_bytes: int,
        allowed_origins: Sequence[str],
    ) -> None:
        self.name = name
        self.url = url
        self._own_description = description
        self._timeout_s = timeout_s
        self._auth = auth
        self._max_bytes = max_response_bytes
        self._origins = frozenset({origin_of(url), *map(origin_of, allowed_origins)})
        self._card: AgentCard | None = None
        self._card_description = ""
        self._attempted_at: float | None = None
        self._busy: set[str] = set()
        """Conversation ids of the delegations that are running."""

    @property
    def description(self) -> str:
        """The configured description, followed by that of the agent's card once it was read."""
        return " ".join(filter(None, [self._own_description, self._card_description])) or _DEFAULT_DESCRIPTION

    async def prepare(self) -> bool:
        """Read the agent's card if it is unknown; return True if it was read now, so that `description` may have
        changed.

        False if the card is known already, or cannot be read. A failure is logged, and the next attempt is made after
        `_RETRY_CARD_S` seconds at the earliest; until then False is returned at once.
        """
        now = time.monotonic()
        if self._card is not None or (self._attempted_at is not None and now - self._attempted_at < _RETRY_CARD_S):
            return False
        self._attempted_at = now
        if (fault := await self.fault()) is not None:
            logger.warning("The card of the agent %r cannot be read now: %s", self.name, fault)
        return fault is None

    async def fault(self) -> str | None:
        """Return why the agent's card cannot be read, as a text without the secret; None if it can.

        A card that is known already is not read again, and gives None. Raises only a cancellation.
        """
        try:
            async with open_http(self._origins, self._headers(), self._max_bytes) as http:
                await self._known_card(http)
        except Exception as error:  # noqa: BLE001 - an unreachable agent must not stop a run; a delegation reports it
            return str(self._safe_text(error))
        return None

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Send the task with the latest messages of the conversation, and wait until it ends or asks a question.

        A background task has a conversation of its own, and this returns as soon as it has started. While another
        delegation of the same conversation runs, the task gets a new conversation, and the result has no conversation
        id. A failure of the agent or a timeout is an error result; only cancellation raises, after the remote task was
        cancelled.
        """
        message = self._message([*_conversation(delegation.context), Part(text=delegation.task)], delegation)
        if delegation.background:
            return replace(await self._follow_task(delegation, "", lambda task: task.begin(message)), context_id="")
        # Two delegations of one conversation at the same time would mix their messages, so the second one gets its own.
        context_id = delegation.context_id if delegation.context_id not in self._busy else ""
        message.context_id = context_id
        self._busy.add(context_id)
        try:
            result = await self._follow_task(delegation, "", lambda task: task.start(message))
        finally:
            self._busy.discard(context_id)
        # A concurrent delegation with a conversation of its own does not replace the session's conversation.
        separate = delegation.context_id and not context_id
        return replace(result, context_id="") if separate else result

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Send the user's answer to the task that asked, and wait until it ends or asks again.

        A text is sent as text, any other answer as JSON. If the task does not wait for an answer any more, nothing is
        sent: a running task is followed, and of an ended one the result is read. The result has only the usage since
        the question. A failure of the agent or a timeout is an error result; only cancellation raises, after the remote
        task was cancelled.

        Args:
            delegation: The delegation.
            task: The remote task that waits, as the session has stored it.
            answer: The user's answer.
        """
        part = Part(text=answer) if isinstance(answer, str) else a2a_parts.data_part(to_json_safe(answer))
        message = self._message([part], delegation)
        message.task_id, message.context_id = task["task_id"], task["context_id"]
        used = add_usage(cast("Usage | None", task.get("usage")), None)
        return await self._follow_task(delegation, task["task_id"], lambda remote: remote.answer(message), used)

    async def collect(self, task: BackgroundTask) -> DelegationResult | None:
        """Return the result of a task in the background, or its new question; None while it has neither.

        A question is returned once, without usage: `task["asked"]` names the one that was returned before, and the
        result's `background` is the task with the new `asked`. None is also returned if the agent cannot be reached,
        which is logged; a task that the agent does not have any more has the result `unknown`.
        """
        try:
            remote = await self._watch(task, until_end=False)
        except TaskNotFoundError:
            return DelegationResult(f"The agent {self.name!r} has no such task any more.", "unknown")
        if remote is None or remote.running:
            return None
        result = replace(self._result(remote), context_id="")
        if result.waiting is None:
            return result
        asked = [remote.status.message.message_id]
        if asked == task.get("asked"):
            return None
        return replace(result, waiting=None, usage=NO_USAGE, background={**task, "asked": asked})

    async def wait(self, task: BackgroundTask) -> None:
        """Wait until a task in the background ends, or asks a question that was not returned before.

        Returns also if the agent has no such task any more. While the agent cannot be reached, or the task still waits
        with the question that was returned, the task is read again every two seconds.
        """
        with suppress(TaskNotFoundError):
            while True:
                remote = await self._watch(task, until_end=True)
                known = task.get("asked")
                if remote is not None and (known is None or known != [remote.status.message.message_id]):
                    return
                await anyio.sleep(_LOOK_AGAIN_S)

    async def _watch(self, task: BackgroundTask, *, until_end: bool) -> FollowedTask | None:
        """Read a task, or follow it until its end or question (`until_end`), which may take any time.

        Any error, also a silence of the agent's timeout, is logged, and None is returned, because the task runs on and
        is read again later. Raises only `TaskNotFoundError`, if the agent does not have the task.
        """
        try:
            async with self._client() as (client, streams):
                remote = FollowedTask(
                    client,
                    streams=streams,
                    timeout_s=self._timeout_s,
                    deadline_s=None,
                    on_progress=lambda text: None,
                    task_id=task["session_id"],
                )
                await remote.watch(until_end=until_end)
                return remote
        except TaskNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 - the task goes on, and is read again
            logger.warning("The agent %r cannot be reached now: %s", self.name, self._safe_text(error))
            return None

    async def withdraw(self, task: RemoteTask) -> None:
        """Cancel a task that waits for an answer. Never raises, and takes at most `REMOTE_CANCEL_S` seconds."""
        with anyio.move_on_after(REMOTE_CANCEL_S, shield=True), suppress(Exception):
            async with self._client() as (client, _):
                await client.cancel_task(CancelTaskRequest(id=task["task_id"]))

    async def _follow_task(
        self,
        delegation: Delegation,
        task_id: str,
        follow: Callable[[FollowedTask], Awaitable[None]],
        counted: Usage = NO_USAGE,
    ) -> DelegationResult:
        """Open a connection, follow a task with `follow`, and return its result.

        A task in the background that runs on gives the result that announces it. A task that requires authentication is
        cancelled, and so is one that times out, fails or whose delegation is cancelled.

        - A timeout is an error result with the usage so far, and with the note that the task may have had an effect.
        - Any other exception is logged, and is an error result with this note if the task may have begun; its usage so
          far is recorded in the delegation, and the next delegation reads the card again.
        - A cancellation is raised, after the usage so far was recorded in the delegation.

        Args:
            delegation: The delegation.
            task_id: Id of an existing task; empty for a new one.
            follow: Sends the message, and follows the task.
            counted: The usage that was counted before, which the result leaves out.
        """
        task: FollowedTask | None = None
        try:
            async with self._client() as (client, streams):
                task = FollowedTask(
                    client,
                    streams=streams,
                    timeout_s=self._timeout_s,
                    deadline_s=delegation.budget.deadline_s,
                    on_progress=lambda text: delegation.report_progress(self._safe_text(text)),
                    task_id=task_id,
                )
                try:
                    await follow(task)
                except RemoteTimeoutError:
                    await task.cancel()
                    state = "its task was cancelled" if task.cancel_confirmed else "its task may still be running"
                    silence = f"was silent for {self._timeout_s:g} seconds, or time ran out; {state}"
                    failed = self._error(f"{silence}. {effect_text(writes=True)}")
                    return replace(failed, usage=less_usage(a2a_parts.read_usage(task.metadata), counted))
                except BaseException:
                    await task.cancel()
                    delegation.record_usage(less_usage(a2a_parts.read_usage(task.metadata), counted))
                    raise
                if task.status.state == TaskState.TASK_STATE_AUTH_REQUIRED:
                    await task.cancel()
        except Exception as error:  # noqa: BLE001 - any failure of a remote agent is the result of that call only
            # The agent may have moved, so the next delegation reads its card again.
            self._card = None
            self._attempted_at = None
            logger.warning("The agent %r failed: %s", self.name, self._safe_text(error))
            failure = f"failed to answer: {self._safe_text(error)}"
            return self._error(f"{failure}. {effect_text(writes=True)}" if _may_have_begun(task, error) else failure)
        if delegation.background and task.id and task.running:
            return started_in_background(delegation, self.name, task.id, [])
        result = self._result(task)
        # A task reports its total usage; the usage up to a question is already counted.
        return replace(result, usage=less_usage(result.usage, counted))

    def _result(self, task: FollowedTask) -> DelegationResult:
        """Return the result of a task that has ended or asks a question, by its state.

        A message that came without a task is the answer. A completed task gives its artifacts, or else its message; a
        question gives a waiting result; any other state an error with the text of the agent, if it gave one.
        """
        if task.message is not None:
            return self._success(task, list(task.message.parts))
        match task.status.state:
            case TaskState.TASK_STATE_COMPLETED:
                return self._success(task, task.artifacts.parts() or list(task.status.message.parts))
            case TaskState.TASK_STATE_INPUT_REQUIRED:
                question = self._safe_text(task.text) if task.text else f"The agent {self.name!r} needs an answer."
                waiting: RemoteTask = {
                    "delegate": self.name,
                    "task_id": task.id,
                    "context_id": task.context_id,
                    "question": question,
                }
                if (request := approval_request_of(task.status.message.parts)) is not None:
                    waiting["request"] = self._without_secret(request)
                    waiting["recorded_here"] = True
                used = a2a_parts.read_usage(task.metadata)
                if used["model_calls"]:
                    waiting["usage"] = {**used}
                return DelegationResult(
                    question, usage=used, context_id=task.context_id, waiting=waiting, untrusted=True
                )
            case state:
                outcome = _FAILURES.get(state, "stopped without an answer")
                message = f" Its message: {self._safe_text(task.text)}" if task.text else ""
                failed = self._error(f"{outcome}.{message}")
                used = a2a_parts.read_usage(task.metadata)
                return replace(failed, usage=used, context_id=task.context_id, untrusted=bool(message))

    def _success(self, task: FollowedTask, parts: list[Part]) -> DelegationResult:
        """Return the answer in `parts`, marked as untrusted, in which the secret of the connection is replaced.

        An error result if the parts have no content for the model.
        """
        content = a2a_parts.convert_parts(parts)
        usage = a2a_parts.read_usage(task.metadata)
        if not content.for_model:
            return DelegationResult(
                f"The agent {self.name!r} gave no answer.", "error", usage, context_id=task.context_id
            )
        return DelegationResult(
            self._without_secret(to_json_safe(content.for_model)),
            usage=usage,
            value=self._without_secret(to_json_safe(content.value)),
            artifact=self._without_secret(to_json_safe(content.artifacts)) or None,
            untrusted=True,
            context_id=task.context_id,
        )

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[tuple[Client, bool]]:
        """Open a client for the agent, and yield it with whether the agent streams; close it on exit.

        Raises `OperatorError` or an `A2AClientError` if the card cannot be read.
        """
        # One connection per delegation: a pooled one belongs to one event loop and would never be closed.
        async with open_http(self._origins, self._headers(), self._max_bytes) as http:
            card = await self._known_card(http)
            bindings = [TransportProtocol.JSONRPC.value, TransportProtocol.HTTP_JSON.value]
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=bindings)
            yield ClientFactory(config).create(card), card.capabilities.streaming

    async def _known_card(self, http: Any) -> AgentCard:
        """Return the agent's card, which the first call reads and later ones keep, as well as its description.

        Raises `OperatorError` if it does not come within `CARD_TIMEOUT_S` seconds; errors of `read_card` pass through.
        """
        if self._card is None:
            try:
                with anyio.fail_after(CARD_TIMEOUT_S):
                    self._card = await read_card(http, self.url, self._origins)
            except TimeoutError:
                raise OperatorError(f"its card did not come within {CARD_TIMEOUT_S:g} seconds") from None
            # Not cleared with the card after a failure: the model's tool descriptions must not change.
            self._card_description = describe_card(self._card)
        return self._card

    def _headers(self) -> dict[str, str]:
        """Return the headers with the secret; empty without authentication. `OperatorError` if its variable is not
        set.
        """
        return self._auth.headers() if self._auth else {}

    def _message(self, parts: list[Part], delegation: Delegation) -> Message:
        """Return a new message of the user with `parts`, and with the depth and the budget that the delegation has
        left.
        """
        message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=parts)
        message.metadata.update(a2a_parts.delegation_metadata(delegation))
        return message

    def _error(self, what: str) -> DelegationResult:
        """Return an error result; `what` is the end of a sentence about the agent."""
        return DelegationResult(f"The agent {self.name!r} {what}", "error")

    def _safe_text(self, value: Any) -> str:
        """Return a value or an error as non-empty text without this agent's secret, which the remote agent may echo."""
        return str(self._without_secret(clean(str(value) or type(value).__name__)))

    def _without_secret(self, value: Any) -> Any:
        """Return a JSON value without this agent's secret in its texts."""
        return self._auth.without_secret(value) if self._auth else value


def _conversation(context: Sequence[AnyMessage]) -> list[Part]:
    """Return the conversation as one text part that precedes the task, in a list; empty without a conversation.

    The part has a line `User: …` for each message of the user, and `Assistant: …` for any other.
    """
    if not context:
        return []
    lines = [f"{'User' if isinstance(message, HumanMessage) else 'Assistant'}: {message.text}" for message in context]
    part = Part(text="\n".join(["The conversation so far, for context:", *lines, "", "The task:"]))
    part.metadata.update({a2a_parts.EXTENSION: "context"})
    return [part]


def _may_have_begun(task: FollowedTask | None, error: BaseException) -> bool:
    """Return whether a remote agent may have worked on a task before a failure.

    True if the agent has reported the task, or if the connection was lost after it was established. False if it was
    never established, and for an error that is none of the connection.

    Args:
        task: The task; None if no message was sent.
        error: The failure, whose causes are examined, too.
    """
    if task is None:
        return False
    if task.message is not None or task.status.state != TaskState.TASK_STATE_UNSPECIFIED:
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx.TransportError):
            return not isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        cause = cause.__cause__
    return False
