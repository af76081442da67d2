"""Plans a step by several requests at once, and takes one of the plans: `candidates=3`.

Each request is the same, so the plans differ as far as the model samples them. Plans are equal if they have the same
calls, in any order and under any ids; all answers count as equal. By default the plan is taken that most candidates
agree on, so that a single slip of the model is outvoted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.calls import canonical_arguments
from graph_agent.base.settings.config import Choose
from graph_agent.base.types import NO_USAGE, Usage
from graph_agent.core.planning.reply import Planned
from graph_agent.models.errors import classify_model_error
from graph_agent.models.stream_watch import StreamWatch

logger = get_logger("graph_agent.planning.candidates")

AskOnce = Callable[[StreamWatch], Awaitable[Planned]]
"""Sends one request for a plan; the watch is that of its reply."""


async def ask_candidates(ask: AskOnce, count: int, choose: Choose, add: Callable[[Usage], None]) -> Planned:
    """Send the request for a plan several times at once, and return the plan that is chosen.

    Candidates that fail drop out. Requests that cannot change the choice any more are cancelled.

    Args:
        ask: Sends one request.
        count: Number of requests.
        choose: `agreed` for the plan that most candidates have, the first of them; `cheapest` for the one whose request
            used the fewest tokens. The first candidate wins a tie.
        add: Receives the usage of the candidates that are not returned.

    Raises:
        Exception: The error of the first candidate, if all fail.
    """
    tasks = [asyncio.ensure_future(ask(StreamWatch())) for _ in range(count)]
    try:
        pending: set[asyncio.Future[Planned]] = {*tasks}
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if choose == "agreed" and _is_certain([*map(_plan_of, tasks)], len(pending)):
                break
    finally:
        for task in tasks:
            task.cancel()
        # A cancelled request records what it has used.
        await asyncio.wait(tasks)
    plans = [*map(_plan_of, tasks)]
    valid = [at for at, plan in enumerate(plans) if plan is not None]
    failures = [error for task in tasks if (error := _failure_of(task)) is not None]
    for error in failures:
        log_failure(logger, "A candidate", error)
        if valid or error is not failures[0]:
            add(getattr(error, "usage", NO_USAGE))
    if not valid:
        raise failures[0]
    chosen = _chosen([plans[at] for at in valid], valid, choose)
    for at in valid:
        if at != chosen and (plan := plans[at]) is not None:
            add(plan.usage)
    found = plans[chosen]
    assert found is not None
    return replace(
        found, extra={**found.extra, "candidates": [_shown(task, at == chosen) for at, task in enumerate(tasks)]}
    )


def _plan_of(task: asyncio.Future[Planned]) -> Planned | None:
    """Return the plan of a candidate; None if it has none, or none yet."""
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


def _failure_of(task: asyncio.Future[Planned]) -> BaseException | None:
    """Return the error of a candidate that failed; None for one that did not, or was cancelled."""
    return None if task.cancelled() else task.exception()


def _key(plan: Planned) -> tuple[str, ...]:
    """Return what is equal for equal plans: their calls, sorted; nothing for an answer."""
    return tuple(sorted(f"{call['name']} {canonical_arguments(call['arguments'])}" for call in plan.calls))


def _is_certain(plans: Sequence[Planned | None], pending: int) -> bool:
    """Whether the pending candidates cannot change which plan most candidates have."""
    counts = [count for _, count in Counter(_key(plan) for plan in plans if plan is not None).most_common(2)]
    return bool(counts) and counts[0] > (counts[1] if len(counts) > 1 else 0) + pending


def _chosen(plans: Sequence[Planned | None], places: Sequence[int], choose: Choose) -> int:
    """Return the place of the plan to take."""
    found = [(at, plan) for at, plan in zip(places, plans, strict=True) if plan is not None]
    if choose == "cheapest":
        return min(found, key=lambda pair: (pair[1].usage["total_tokens"], pair[0]))[0]
    counts = Counter(_key(plan) for _, plan in found)
    return min(found, key=lambda pair: (-counts[_key(pair[1])], pair[0]))[0]


def _shown(task: asyncio.Future[Planned], is_chosen: bool) -> Mapping[str, Any]:
    """Return a candidate as the `plan` event has it."""
    if task.cancelled():
        return {"status": "cancelled"}
    if (error := task.exception()) is not None:
        return {"status": "failed", "error": classify_model_error(error) if isinstance(error, Exception) else "other"}
    plan = task.result()
    calls = [{"name": call["name"], "arguments": to_json_safe(call["arguments"])} for call in plan.calls]
    return {"status": "chosen" if is_chosen else "dropped", "calls": calls, "usage": plan.usage}
