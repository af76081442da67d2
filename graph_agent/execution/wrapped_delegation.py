"""A delegation through what stands around every call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime

from graph_agent.delegation import DelegationResult
from graph_agent.deps import AroundTool
from graph_agent.tools.invoke import meant_for_the_run
from graph_agent.tools.output import Output
from graph_agent.types import Call


class _WaitsError(GraphBubbleUp):
    """The delegate asks a person: no answer yet that anybody could look at. It passes through as an interrupt does."""


async def through_calls(
    around: AroundTool,
    call: Call,
    config: RunnableConfig,
    runtime: Runtime[Any],
    run: Callable[[Call], Awaitable[DelegationResult]],
    failed: Callable[[BaseException], DelegationResult],
) -> DelegationResult:
    """Run a delegation through what stands around calls, which may run it again, or answer in its place.

    Args:
        around: What stands around calls.
        call: The delegation.
        config: The task's config.
        runtime: The task's runtime.
        run: Runs it; what its delegate raises is met by what stands around.
        failed: Words what a delegate raised.

    Raises:
        GraphBubbleUp: When the delegate, or what stands around, interrupts the graph to ask a person.
    """
    newest: DelegationResult | None = None

    async def once(asked: Call) -> Output:
        nonlocal newest
        try:
            newest = await run(asked)
        except BaseException as error:
            if meant_for_the_run(error):
                raise
            newest = failed(error)
            return Output(newest.content, "error", raised=error)
        if newest.waiting is not None:
            raise _WaitsError
        return _shown(newest)

    try:
        output = await around(call, config, runtime, once)
    except _WaitsError:
        assert newest is not None
        return newest
    if newest is None:
        return DelegationResult(output.content, output.status, artifact=output.artifact)
    seen = _shown(newest)
    if (output.content, output.status, output.artifact) == (seen.content, seen.status, seen.artifact):
        return newest
    # Nobody vouches for what was made of words that nobody vouches for.
    return replace(newest, content=output.content, status=output.status, value=None, artifact=output.artifact)


def _shown(result: DelegationResult) -> Output:
    return Output(result.content, "success" if result.status == "success" else "error", result.artifact)
