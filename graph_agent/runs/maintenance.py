"""The hold on a session during its maintenance, which excludes runs, and may be lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from graph_agent._internal.sync_bridge import await_thread_future
from graph_agent.errors import SessionLostError


@dataclass(slots=True)
class Maintenance:
    """The hold on a session."""

    session_id: str
    verify: Callable[[], Future[None]] | None
    """Verifies the locks of the process; None if they cannot be lost."""
    is_held: bool = False
    """Whether runs are excluded; false when one is under way."""
    lost: str = ""
    """Why the hold was lost; empty if it was not."""

    async def confirm(self) -> None:
        """Verify that runs are still excluded, and have been since the beginning.

        Raises:
            SessionLostError: If they are not.
        """
        if self.verify is not None:
            await await_thread_future(self.verify())
        if self.lost:
            raise SessionLostError(
                f"The maintenance of session {self.session_id!r} stopped, and its last step was not stored: {self.lost}"
                " Nothing of the session is lost. Run the command again."
            )
