"""Asking again with long tool results made short, where a reply came out of a long request."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable

from langchain_core.messages import AnyMessage, ToolMessage

from graph_agent.daemon_threads import call_in_thread
from graph_agent.hooks import HookRequest, HookResponse, LoopHook, LoopPlan, OnError, RequestPatch
from graph_agent.truncation import truncate

Compress = Callable[[str], str | Awaitable[str]]
"""A result's text → what is left of it."""

_MARK = "graph_agent_compressed"


class HistoryCompression(LoopHook):
    """Has the model asked again with each long tool result of the request compressed.

    Only that request holds less: the session's history keeps every result whole. It costs a second request whenever a
    result is long, which pays where a model loses its way in much text; the limits `max_output_chars` and
    `offload_over_chars` of the configuration keep results short from the start.

    Args:
        compress: Gives what is left of a result, a function (run in a thread) or a coroutine function; None keeps its
            beginning and its end, with a line between that says how much is missing.
        over_chars: Characters above which a result is compressed, and to which None's way cuts it.
        keep_newest: So many of the newest results stay whole.
        on_error: As for every hook.
    """

    def __init__(
        self,
        compress: Compress | None = None,
        *,
        over_chars: int = 4_000,
        keep_newest: int = 0,
        on_error: OnError = "fail",
    ) -> None:
        if over_chars < 1 or keep_newest < 0:
            raise ValueError(f"over_chars={over_chars}, keep_newest={keep_newest}: give 1 or more, and 0 or more.")
        self.on_error = on_error
        self._compress = compress or self._cut
        self._over_chars = over_chars
        self._keep_newest = keep_newest

    async def should_run(self, response: HookResponse, request: HookRequest) -> tuple[bool, set[int]]:
        """Whether the request holds long results; the context is their places among its messages."""
        results = [at for at, message in enumerate(request.messages) if isinstance(message, ToolMessage)]
        old = results[: len(results) - self._keep_newest] if self._keep_newest else results
        long = {at for at in old if self._is_long(request.messages[at])}
        return bool(long), long

    async def build_plan(self, context: set[int], response: HookResponse, request: HookRequest) -> LoopPlan:
        """Compress the results, all at once, and ask again."""
        places = sorted(context)
        short = await asyncio.gather(*(self._compressed(request.messages[at]) for at in places))
        by_place = dict(zip(places, short, strict=True))
        messages = [by_place.get(at, message) for at, message in enumerate(request.messages)]
        return LoopPlan(run_agentic_loop=True, request_patch=RequestPatch(messages=messages))

    def _is_long(self, message: AnyMessage) -> bool:
        return len(message.text) > self._over_chars and _MARK not in message.additional_kwargs

    async def _compressed(self, message: AnyMessage) -> AnyMessage:
        text: object
        if inspect.iscoroutinefunction(self._compress):
            text = await self._compress(message.text)
        else:
            text = await call_in_thread(self._compress, message.text)
            text = await text if isinstance(text, Awaitable) else text
        if not isinstance(text, str):
            raise TypeError(f"compress returned {text!r}; return text")
        # Marked, so that one that is long still is not compressed for ever.
        marked = {**message.additional_kwargs, _MARK: True}
        return message.model_copy(update={"content": text, "additional_kwargs": marked})

    def _cut(self, text: str) -> str:
        return truncate(text, max_chars=self._over_chars, max_lines=sys.maxsize).text
