"""Wraps, one inside the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graph_agent.middleware.admission import Handler, Wrap


async def through(
    wraps: Sequence[Wrap], request: Any, handler: Handler, seen: Callable[[Any], Any] = lambda answer: answer
) -> Any:
    """Answer a request through wraps, the first one outermost.

    Args:
        wraps: What stands around; each may ask what is inside it never, once, or several times.
        request: The request.
        handler: Answers it at the core.
        seen: What the next wrap outside is shown of an answer.
    """
    if not wraps:
        return seen(await handler(request))

    async def inside(again: Any) -> Any:
        return await through(wraps[1:], again, handler, seen)

    return seen(await wraps[0](request, inside))
