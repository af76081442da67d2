"""Finds the call during which a server asks a person.

Over streamable HTTP a question arrives in the response to its call. Over the other transports nothing in it names the
call. Then it belongs to the only call that runs without a question of its own; while several do, it waits until the
others have ended. If all of them wait for a question, the order decides, within one session only: a person never
receives a question of another session's call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import mcp.types as types

from graph_agent._internal.failure_log import get_logger
from graph_agent.mcp.suspended import Asker, QuestionParams, Reply

logger = get_logger("graph_agent.mcp")

UNSUPPORTED = types.ErrorData(code=types.INVALID_REQUEST, message="Elicitation not supported")
"""The SDK's own answer of a client without a callback."""
NO_SAMPLING = types.ErrorData(code=types.INVALID_REQUEST, message="Sampling not supported")
"""The same for sampling."""
VOID = types.ErrorData(code=types.INVALID_REQUEST, message="The call of this question has ended.")


@dataclass(slots=True, eq=False)
class AskingCall:
    """A running call, as far as questions are concerned."""

    asker: Asker | None = None
    """Asks the person; None if no person can be asked."""
    session_id: str = ""
    """The agent's session; empty if there is none."""
    questions: int = 0
    """Number of its open questions."""
    answered: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolves when the call ends: whether the server has answered it."""


class Questions:
    """The questions of one session with a server."""

    def __init__(self) -> None:
        self._running: list[AskingCall] = []
        self._origins: dict[types.RequestId, AskingCall] = {}
        self._unassigned: list[object] = []
        self._changed = asyncio.Event()

    def begin(self, call: AskingCall) -> None:
        """Add a call whose request is about to be sent."""
        self._running.append(call)

    def end(self, call: AskingCall, *, answered: bool) -> None:
        """Remove a call; its open questions are void, except those that may be of another call."""
        self._running.remove(call)
        if not call.answered.done():
            call.answered.set_result(answered)
        self._changed.set()

    def note_origin(self, question: types.RequestId, call: AskingCall) -> None:
        """Note that a request of the server arrived in the response to a call."""
        if call in self._running:
            self._origins[question] = call

    async def ask(
        self, question: types.RequestId, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Ask the person of the call that the question belongs to, and wait for the answer."""
        reply = await self._ask(question, params)
        return reply if isinstance(reply, types.ElicitResult | types.ErrorData) else UNSUPPORTED

    async def sample(
        self, question: types.RequestId, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        """Ask the model of the agent that made the call, and wait for its reply."""
        reply = await self._ask(question, params)
        return reply if isinstance(reply, types.CreateMessageResult | types.ErrorData) else UNSUPPORTED

    async def _ask(self, question: types.RequestId, params: QuestionParams) -> Reply:
        origin = self._origins.pop(question, None)
        while True:
            call = origin or await self._find()
            if call is None or call.asker is None:
                return UNSUPPORTED if not isinstance(params, types.CreateMessageRequestParams) else NO_SAMPLING
            call.questions += 1
            answer = asyncio.ensure_future(call.asker(params))
            outcomes: set[asyncio.Future[Any]] = {answer, call.answered}
            try:
                await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                call.questions -= 1
                self._changed.set()
                if not answer.done():
                    answer.cancel()
            if answer.done() and not answer.cancelled():
                return answer.result()
            if origin is not None or not call.answered.done() or not call.answered.result():
                return VOID
            # The call ended without the answer, so the question is another call's.

    async def _find(self) -> AskingCall | None:
        """Wait until one call remains that the question can belong to; None if this cannot be known."""
        mark = object()
        self._unassigned.append(mark)
        try:
            while True:
                idle = [call for call in self._running if not call.questions]
                if not idle:
                    return self._running[0] if len(self._running) == 1 else None
                if len(idle) == 1:
                    return idle[0]
                if len(idle) <= len(self._unassigned):
                    if len({call.session_id for call in idle}) > 1 or any(not call.session_id for call in idle):
                        logger.warning("A question was refused, because it may belong to calls of several sessions")
                        return None
                    return idle[min(self._unassigned.index(mark), len(idle) - 1)]
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._unassigned.remove(mark)
            self._changed.set()
