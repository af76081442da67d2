"""Nested execution of wrap methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graph_agent.middleware.admission import Handler, Wrap


async def call_chain(
    wraps: Sequence[Wrap], request: Any, handler: Handler, convert: Callable[[Any], Any] = lambda response: response
) -> Any:
    """Process a request by nested wrap methods and a handler.

    Args:
        wraps: The wrap methods, outermost first; each may call the next one any number of times.
        request: The request.
        handler: The innermost handler.
        convert: Converts each response before it is passed outward.
    """
    if not wraps:
        return convert(await handler(request))

    async def call_next(inner: Any) -> Any:
        return await call_chain(wraps[1:], inner, handler, convert)

    return convert(await wraps[0](request, call_next))
