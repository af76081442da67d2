"""`A2ADelegate`, without the SDK that it needs: the SDK takes longer to import than all the rest of an agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graph_agent.delegation import Delegation, DelegationResult
from graph_agent.state.schema import RemoteTask

if TYPE_CHECKING:
    from graph_agent.a2a.client.auth import A2AAuth


class A2ADelegate:
    """Answers delegations with a remote agent, over A2A 1.0 or 0.3.

    Its card is read at first use, so that an agent that is down when ours starts stops nobody. It is reached at the
    configured host alone: a card or a redirect that leads elsewhere is refused. What it says is data that nobody
    vouches for, and is shown to the model as such. The conversation with it (`contextId`) goes on from delegation to
    delegation of a session; delegations that run side by side each have one of their own.

    Args:
        name: The name behind `delegate_to_`.
        url: The agent's address, or its card's own.
        description: What it is good for, for the model; None to take it from the card.
        timeout_s: Seconds the agent may be silent. Whatever it sends counts as a heart-beat.
        auth: Where its token or key is.
        max_response_bytes: Bytes of one response; more is refused.
        allowed_origins: Further addresses that its card may name, e.g. behind a proxy.

    Raises:
        ConfigError: When an address is none.
        ImportError: When the extra `server` is not installed.
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
    ) -> None:
        try:
            # Imported here: see the module.
            from graph_agent.a2a.client.remote_agent import RemoteAgent
        except ModuleNotFoundError as error:
            if error.name != "a2a":
                raise
            raise ImportError(
                "A2ADelegate needs an extra (a2a): pip install 'graph-agent[server]'", name="a2a"
            ) from None
        self.name = name
        self.url = url
        self._agent = RemoteAgent(
            name,
            url,
            description,
            timeout_s=timeout_s,
            auth=auth,
            max_response_bytes=max_response_bytes,
            allowed_origins=allowed_origins,
        )

    @property
    def description(self) -> str:
        """What it is good for: as configured, and as its card says once that was read."""
        return self._agent.description

    async def prepare(self) -> bool:
        """Read the card, unless it is known or was not to be had a moment ago; whether the description has changed."""
        return await self._agent.prepare()

    async def run(self, delegation: Delegation) -> DelegationResult:
        """Send the task with what was said last, and wait for its end or its question."""
        return await self._agent.run(delegation)

    async def resume(self, delegation: Delegation, task: RemoteTask, answer: Any) -> DelegationResult:
        """Send the person's answer to the task that asked for it."""
        return await self._agent.resume(delegation, task, answer)

    async def withdraw(self, task: RemoteTask) -> None:
        """Cancel a task that waits for an answer; never raises."""
        await self._agent.withdraw(task)
