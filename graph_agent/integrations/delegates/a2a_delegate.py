"""Defines `A2ADelegate`, which imports the A2A SDK, which loads slowly, only at construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from graph_agent.base._internal.extras import needs_extra

if TYPE_CHECKING:
    from graph_agent.base.delegate_tasks import BackgroundTask, RemoteTask
    from graph_agent.core.extensions.delegation import Delegation, DelegationResult
    from graph_agent.integrations.delegates.a2a_http import A2AAuth


class A2ADelegate:
    """Delegates to a remote agent over A2A 1.0 or 0.3.

    The agent card is read at first use, so that an unreachable agent does not prevent startup. Only the configured
    hosts are contacted; a card or a redirect that names another host is refused. The agent's output is marked as
    untrusted for the model. Consecutive delegations of a session share a conversation (`contextId`); concurrent ones
    get their own.

    Args:
        name: The name after `delegate_to_`.
        url: The agent's address, or the address of its card.
        description: The agent's purpose, for the model; None to use the card's description.
        timeout_s: Seconds without any data from the agent after which the delegation fails.
        auth: Names the environment variable with the agent's token or key; None to send none.
        max_response_bytes: Maximum bytes of one response; a larger one is refused.
        allowed_origins: Additional addresses that the card may name, e.g. behind a proxy.
        background: Whether the model may delegate tasks in the background, with `background=true`.
        source: Whether outsiders can write the answers; for the setting `origins` of the delegating agent.

    Raises:
        ConfigError: An address is invalid.
        ImportError: The extra `server` is not installed.
    """

    def __init__(
        self,
        name: str,
        url: str,
        description: str | None = None,
        *,
        timeout_s: float = 60.0,
        auth: A2AAuth | None = None,
        max_response_bytes: int = 10_000_000,
        allowed_origins: Sequence[str] = (),
        background: bool = False,
        source: Literal["trusted", "untrusted"] = "untrusted",
    ) -> None:
        with needs_extra("A2ADelegate", "server"):
            # Imported here: see the module docstring.
            from graph_agent.integrations.delegates.a2a import RemoteAgent
        self.name = name
        self.url = url
        self.background = background
        self.source = source
        self._agent = RemoteAgent(name, url, description, timeout_s, auth, max_response_bytes, allowed_origins)

    @property
    def description(self) -> str:
        """The configured description, followed by that of the agent's card once it was read."""
        return self._agent.description

    async def prepare(self) -> bool:
        """Read the agent's card if it is unknown; return True if it was read now, so that `description` may have
        changed.

        Never raises. After a failure, False is returned for 30 s without another attempt.
        """
        return await self._agent.prepare()

    async def fault(self) -> str | None:
        """Return why the agent's card cannot be read; None if it can. Never raises."""
        return await self._agent.fault()

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Send the task with the latest messages of the conversation, and wait until it ends or asks a question.

        A task in the background is only started. A failure of the agent is an error result; only cancellation raises,
        after the remote task was cancelled.
        """
        return await self._agent.run(delegation)

    async def collect(self, id_: str, task: BackgroundTask) -> DelegationResult | None:
        """Return the result or a new question of a task in the background; None while it has neither, or the agent is
        unreachable.

        `id_` is the id of the call that started the task; it is not used.
        """
        return await self._agent.collect(task)

    async def wait(self, task: BackgroundTask) -> None:
        """Wait until a background task ends, asks a new question, or is unknown to the agent.

        While the agent cannot be reached, which is logged, the task is read again after 2 s. Only cancellation raises.
        """
        await self._agent.wait(task)

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Send the user's answer to the task that asked, and wait until it ends or asks again.

        The result has only the usage since the question. A failure of the agent is an error result.
        """
        return await self._agent.resume(delegation, task, answer)

    async def withdraw(self, task: RemoteTask) -> None:
        """Cancel a task that waits for an answer, within 3 seconds. Never raises."""
        await self._agent.withdraw(task)
