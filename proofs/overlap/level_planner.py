"""A scripted model that plans a level of an item at a time, by the results that its request shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from pydantic import PrivateAttr

from proofs.overlap.items import Item, Step
from proofs.virtual_clock import TimedModel

_PENDING = "PENDING"
"""The beginning of the result of a call that still runs."""


class LevelPlanner(TimedModel):
    """Plans, in each structured plan, all calls of an item that need no result which is not there yet.

    Asked for a predicted plan, it plans the calls that can be planned without the pending result, or waits for it if
    one of the calls that would be planned with it needs it.

    Args:
        item: The item.
        stream_s: Returns the seconds from the first token of a reply to its end.
        first_token_s: Seconds from a request to the first token of its reply.
        waits: Whether it always waits for a pending result.
    """

    _item: Item = PrivateAttr()
    _waits: bool = PrivateAttr()

    def __init__(
        self, item: Item, stream_s: Callable[[AIMessage], float], first_token_s: float, *, waits: bool = False
    ) -> None:
        super().__init__([], stream_s, first_token_s=first_token_s)
        self._item, self._waits = item, waits

    def _reply(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> AIMessage:
        return AIMessage(json.dumps(self._plan(messages)), response_metadata={"finish_reason": "stop"})

    def _plan(self, messages: list[BaseMessage]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for message in messages:
            if message.text.startswith('{"results"'):
                results |= json.loads(message.text)["results"]
        pending = {id_ for id_, result in results.items() if str(result).startswith(_PENDING)}
        level = [step for step in self._item.steps if step.id not in results and results.keys() >= {*step.needs}]
        if pending and (self._waits or not level or any(not pending.isdisjoint(step.needs) for step in level)):
            return {"status": "wait", "tools": []}
        if not level:
            return {"status": "done", "tools": [], "answer": self._item.answer}
        return {"status": "continue", "action": "find out", "slots": {}, "tools": [*map(self._call, level)]}

    def _call(self, step: Step) -> dict[str, Any]:
        return {"id": step.id, "tool": step.tool, "args": self._item.arguments(step)}
