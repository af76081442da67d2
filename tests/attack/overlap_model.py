"""The model of a worker whose plans overlap their execution, and the phases in which the process can end itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import BaseTool, tool
from pydantic import PrivateAttr

from graph_agent import ScriptedChatModel
from graph_agent.marks import marked
from tests.attack.oracle import answer_to, call_id, calls_of
from tests.support.agents import asks

LOOKS = 2
"""Reading calls of a plan; the call that writes comes after them."""
STREAMED = (
    "an early call runs",
    "the early calls have ended",
    "the plan is whole",
    "before the plan is stored",
    "the plan is stored",
    "the writing call begins",
)
"""Phases of a plan whose calls begin while it is streamed, in their order."""
PREDICTED = (
    "an early call runs",
    "the predicted call has ended",
    *STREAMED[1:],
    "before a count of the table is stored",
    "a count of the table is stored",
)
"""Phases of such a plan whose first call a table proposes before the reply begins, in their order. The table is kept in
a Store."""
SLOW, NEXT = "/slow", "/next"
"""Ends of the texts of a reading call during which the next plan is predicted, and of a reading call of that plan."""
LEARNED = 2
"""Plans of a process after which the table proposes a call."""
CANDIDATES = (
    "one candidate has replied",
    "the late candidate is cancelled",
    "before the plan is stored",
    "the plan is stored",
    "the writing call begins",
)
"""Phases of a plan that is chosen of three candidates, in their order."""
WRITES = 3
"""Writes to the database, from the end of a prediction on, around which the process can end itself."""
AHEAD = (
    "the predicted request is under way",
    "a predicted call runs",
    "the predicted plan is whole",
    *(f"{when} write {number}" for number in range(1, 1 + WRITES) for when in ("before", "after")),
    "the writing call begins",
)
"""Phases of a plan that a model predicts while a call of the wave before still runs, in their order. The first write
after it is that of the result of this call; the plan is stored later."""
_WITHIN_S = 30


class Phases:
    """The phases of the plans of a process; it ends with SIGKILL in a chosen one."""

    def __init__(self) -> None:
        self._wanted = ""
        self._plans_are_whole = False
        self._writes = 0
        """Writes to the database since the predicted plan was whole."""
        self._is_predicted = False
        self._ended: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self.predicted: set[str] = set()
        """Texts of the slow calls that this process has planned, during which the next plan is predicted."""

    def choose(self, phase: str) -> None:
        """Choose the phase, of a plan that begins later."""
        self._wanted, self._plans_are_whole = phase, False
        self._writes, self._is_predicted = 0, False

    def enter(self, phase: str) -> None:
        """Enter a phase."""
        self._is_predicted |= phase == "the predicted plan is whole"
        self._plans_are_whole |= phase in ("the plan is whole", "the late candidate is cancelled")
        if phase == self._wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, phase: str) -> None:
        """Enter a phase of a write to the database, which counts if a plan is whole."""
        if self._plans_are_whole:
            self.enter(phase)
        if self._is_predicted:
            is_begin = phase == "before the plan is stored"
            self._writes += is_begin
            self.enter(f"{'before' if is_begin else 'after'} write {self._writes}")

    async def end_look(self, text: str) -> None:
        """Count the end of a reading call."""
        async with self._changed:
            self._ended[text if text.endswith(NEXT) else text.partition("/")[0]] += 1
            self._changed.notify_all()

    async def looks_ended(self, text: str, count: int = LOOKS) -> None:
        """Return when so many of the reading calls of a plan have ended."""
        async with asyncio.timeout(_WITHIN_S), self._changed:
            await self._changed.wait_for(lambda: self._ended[text] >= count)

    def look(self) -> BaseTool:
        """Return the tool that reads."""

        @tool
        async def look(text: str) -> str:
            """Look."""
            self.enter("a predicted call runs" if text.endswith(NEXT) else "an early call runs")
            if text.endswith(SLOW) and text in self.predicted:
                await self.looks_ended(text.removesuffix(SLOW) + NEXT, 1)
                self.enter("the predicted plan is whole")
            await asyncio.sleep(0)
            await self.end_look(text)
            return f"found {text}"

        return marked(look, effect="read")


class OverlapModel(ScriptedChatModel):
    """Plans reading calls and one that writes for the newest text of the user, once, and then answers it."""

    _phases: Phases = PrivateAttr()
    _candidates: int = PrivateAttr()
    _requests: Counter[str] = PrivateAttr(default_factory=Counter)
    """Text and step of an input → its requests."""

    _predicts: bool = PrivateAttr()
    _plans: int = PrivateAttr(default=0)

    def __init__(self, phases: Phases, *, candidates: int, predicts: bool) -> None:
        super().__init__([], streaming=True)
        self._phases, self._candidates, self._predicts = phases, candidates, predicts

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        text, is_planned = _newest(messages)
        looks = [
            (f"look-{at}-{call_id(text)}", "look", {"text": f"{text}/{at}" if at else text}) for at in range(LOOKS)
        ]
        writes = [(call_id(call), "charge", {"text": call}) for call in calls_of(text)]
        reply = answer_to(text) if is_planned or not writes else asks(*looks, *writes)
        return ScriptedChatModel([reply])._reply(messages, stop, kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        chunks = [chunk async for chunk in super()._astream(messages, stop, run_manager, **kwargs)]
        text, is_planned = _newest(messages)
        is_plan = bool(calls_of(text)) and not is_planned
        self._plans += is_plan
        if is_plan and self._predicts and self._plans > LEARNED:
            # The text of the first call is the user's, and therefore known before the reply.
            await self._phases.looks_ended(text, 1)
            self._phases.enter("the predicted call has ended")
        if self._candidates > 1:
            await self._wait_as_candidate(f"{text} {is_planned}")
        for chunk in chunks:
            if is_plan and self._candidates == 1 and _begins_write(chunk):
                await self._phases.looks_ended(text)
                self._phases.enter("the early calls have ended")
            yield chunk
        if is_plan and self._candidates == 1:
            self._phases.enter("the plan is whole")

    async def _wait_as_candidate(self, step: str) -> None:
        """Wait until a candidate may reply: the first at once, the second after it, the last never."""
        place = self._requests[step] % self._candidates
        self._requests[step] += 1
        if place == 1:
            # The first one's reply is read meanwhile.
            await asyncio.sleep(0.05)
            self._phases.enter("one candidate has replied")
        if place == self._candidates - 1:
            try:
                await asyncio.sleep(_WITHIN_S)
            except asyncio.CancelledError:
                self._phases.enter("the late candidate is cancelled")
                raise


class AheadModel(ScriptedChatModel):
    """Plans two reading calls for the newest text of the user; then, while the slower one runs, a reading call and one
    that writes; and then answers.

    Args:
        phases: The phases of the process.
        structured: Whether its plans are structured.
    """

    _phases: Phases = PrivateAttr()
    _structured: bool = PrivateAttr()

    def __init__(self, phases: Phases, *, structured: bool) -> None:
        super().__init__([], streaming=True)
        self._phases, self._structured = phases, structured

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        inputs = [index for index, each in enumerate(messages) if each.type == "human" and not _holds_results(each)]
        text = messages[inputs[-1]].text
        plans = sum(message.type == "ai" for message in messages[inputs[-1] :])
        if "PENDING" in messages[-1].text or "PENDING" in messages[-2].text:
            self._phases.enter("the predicted request is under way")
        writes = calls_of(text)
        if not writes or plans == len(_PLANS):
            reply: Any = answer_to(text)
            if self._structured:
                reply = json.dumps({"status": "done", "tools": [], "answer": reply})
            return ScriptedChatModel([reply])._reply(messages, stop, kwargs)
        if plans == 0:
            self._phases.predicted.add(f"{text}{SLOW}")
        calls = [
            (f"look{end.replace('/', '-')}-{call_id(text)}", "look", {"text": text + end}) for end in _PLANS[plans]
        ]
        if plans == 1:
            calls += [(call_id(call), "charge", {"text": call}) for call in writes]
        plan = [{"id": id_, "tool": name, "args": arguments} for id_, name, arguments in calls]
        reply = json.dumps({"status": "continue", "tools": plan}) if self._structured else asks(*calls)
        return ScriptedChatModel([reply])._reply(messages, stop, kwargs)


_PLANS = (("/quick", SLOW), (NEXT,))
"""Ends of the texts of the reading calls of each plan."""


def _holds_results(message: BaseMessage) -> bool:
    return message.text.startswith('{"results"')


def _newest(messages: list[BaseMessage]) -> tuple[str, bool]:
    """Return the newest text of the user, and whether a call has a result after it."""
    at = max(index for index, message in enumerate(messages) if message.type == "human")
    return messages[at].text, any(message.type == "tool" for message in messages[at:])


def _begins_write(chunk: ChatGenerationChunk) -> bool:
    return any(piece.get("name") == "charge" for piece in getattr(chunk.message, "tool_call_chunks", ()))
