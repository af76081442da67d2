"""Plans a step by several requests at once, and takes one of the plans: `candidates=3`.

Each request is the same, or has a model, a prompt or a temperature of its own. Plans are equal if they have the same
calls, in any order and under any ids; all answers count as equal. By default the plan is taken that most candidates
agree on, so that a single slip of the model is outvoted.

Parts in other files:

- `base/settings/candidates.py`: `Candidate`, `PlanJudge` and `CandidatePlan`, the values of the settings
- `core/planning/plan_choice.py`: the choice of a plan, and which calls are certain before it
- `core/planning/ask.py`: `_send`, which asks for a plan
- `base/history/plan_parts.py`: `candidates` and `judge` of the `plan` event
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from graph_agent.base._internal.failure_log import get_logger, log_failure
from graph_agent.base._internal.text import to_json_safe
from graph_agent.base.history.plan_parts import PlanCandidate
from graph_agent.base.settings.candidates import Candidate, PlanChooser, candidates_of
from graph_agent.base.types import NO_USAGE, Call
from graph_agent.core.planning.exchange import Exchange
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.plan_choice import (
    ChosenPlan,
    call_key,
    certain_calls,
    choose_plan,
    is_certain,
    shared_calls,
)
from graph_agent.core.planning.reply import Planned
from graph_agent.models.errors import classify_model_error
from graph_agent.models.stream_watch import StreamWatch

logger = get_logger("graph_agent.planning.candidates")

AskOnce = Callable[[NextRequest, StreamWatch], Awaitable[Planned]]
"""Sends one request for a plan and returns the plan; the watch receives the stream of the reply."""


async def ask_candidates(
    request: NextRequest, ask: AskOnce, exchange: Exchange, begin: Callable[[Call], object] | None = None
) -> Planned:
    """Send the requests of all candidates at once, and return the plan that is chosen.

    The returned plan records all candidates for the `plan` event. Candidates that fail drop out, and are logged. With
    `choose="agreed"`, requests that cannot change the choice any more are cancelled. A cancellation of the caller
    cancels all.

    Args:
        request: The request, whose settings have the candidates.
        ask: Sends one request.
        exchange: Receives the usage of all requests but that of the returned plan, or of the request whose error is
            raised.
        begin: Called before the choice with each call that all plans have which may still be chosen; None to begin no
            call early.

    Raises:
        Exception: The error of the first candidate that failed, in the order of the setting, if all fail.
        HookError: A function that chooses the plan failed.
        ConfigError: The model of a candidate cannot be built, so that nothing was sent; or a judging model cannot.
    """
    candidates, choose = candidates_of(request.settings.candidates), request.settings.choose
    requests = [await _request_of(request, each) for each in candidates]
    tasks = [asyncio.ensure_future(ask(each, StreamWatch())) for each in requests]
    begun = Counter[str]()
    try:
        pending: set[asyncio.Future[Planned]] = {*tasks}
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if choose == "agreed" and is_certain([*map(_plan_of, tasks)], len(pending)):
                break
            if begin is not None:
                _begin_certain(tasks, choose, begin, begun)
    finally:
        for task in tasks:
            task.cancel()
        # A cancelled request records what it has used.
        await asyncio.wait(tasks)
    plans = {at: plan for at, plan in enumerate(map(_plan_of, tasks)) if plan is not None}
    failures = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    count = partial(exchange.count, last=None)
    for error in failures:
        log_failure(logger, "A candidate", error)
        if plans or error is not failures[0]:
            count(getattr(error, "usage", NO_USAGE))
    if not plans:
        raise failures[0]
    choice = ChosenPlan(-1)  # of none, if the choice fails: all requests have been paid for
    try:
        choice = await choose_plan(plans, request, exchange)
    finally:
        for at, plan in plans.items():
            if at != choice.place:
                count(plan.usage)
    found = plans[choice.place]
    shown = [
        _shown(task, candidate, is_chosen=at == choice.place)
        for at, (task, candidate) in enumerate(zip(tasks, zip(candidates, requests, strict=True), strict=True))
    ]
    judged = {} if choice.judgement is None else {"judge": choice.judgement}
    return replace(found, extra={**found.extra, "candidates": shown, **judged})


def _begin_certain(
    tasks: Sequence[asyncio.Future[Planned]], choose: PlanChooser, begin: Callable[[Call], object], begun: Counter[str]
) -> None:
    """Begin the calls that the chosen plan will have in any case, unless they have begun.

    With a choice other than `agreed`, that is only known when all requests have ended. Calls that need the result of
    another one are left out.

    Args:
        tasks: The requests of the candidates.
        choose: The setting by which the plan will be chosen.
        begin: Begins a call.
        begun: Key of a call → number of equal calls that have begun; changed in place.
    """
    plans = [*map(_plan_of, tasks)]
    pending = [at for at, task in enumerate(tasks) if not task.done()]
    # A function or a judge may choose any plan, also one that is still pending.
    if choose != "agreed" and pending:
        return
    certain = certain_calls(plans, pending) if choose == "agreed" else shared_calls([*filter(None, plans)])
    wanted = Counter[str]()
    for call in certain:
        # A call that needs another one waits for its result.
        if "needs" in call:
            continue
        wanted[call_key(call)] += 1
        if wanted[call_key(call)] > begun[call_key(call)]:
            begun[call_key(call)] += 1
            begin(call)


async def _request_of(request: NextRequest, candidate: Candidate) -> NextRequest:
    """Return a candidate's own request: that of the step with the candidate's model, temperature and addition to the
    system prompt.

    Returns the same object if the candidate has none of these. A model of the candidate has no fallbacks.

    Raises:
        ConfigError: The candidate's model cannot be built.
    """
    changes: dict[str, Any] = {}
    if candidate.model is not None:
        changes["chain"] = [await request.agent.models.ready(candidate.model, "candidates", request.settings)]
    if candidate.temperature is not None:
        changes["settings"] = request.settings.model_copy(update={"temperature": candidate.temperature})
    if candidate.prompt is not None:
        prompt = partial(request.agent.prompt, candidate.prompt)
        is_fixed = not callable(request.agent.system_prompt)
        changes["agent"] = replace(request.agent, system_prompt=prompt() if is_fixed else prompt)
    return request.override(**changes) if changes else request


def _plan_of(task: asyncio.Future[Planned]) -> Planned | None:
    """Return the plan of a candidate's request; None if the request still runs, failed or was cancelled."""
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


def _shown(
    task: asyncio.Future[Planned], candidate: tuple[Candidate, NextRequest], *, is_chosen: bool
) -> PlanCandidate:
    """Return what the `plan` event records of one candidate, i.e. one of several requests for the same plan.

    Its status is `chosen`, `dropped`, `failed` or `cancelled`. A plan has its calls and usage, a failure the kind of
    error. The model is named only if the settings give this candidate a model of its own.

    Args:
        task: The candidate's request, which has ended.
        candidate: The candidate of the settings, and the request made for it.
        is_chosen: Whether its plan was chosen.
    """
    own, request = candidate
    shown: PlanCandidate
    if task.cancelled():
        shown = {"status": "cancelled"}
    elif (error := task.exception()) is not None:
        kind = classify_model_error(error) if isinstance(error, Exception) else "other"
        shown = {"status": "failed", "error": kind}
    else:
        plan = task.result()
        calls = [{"name": call["name"], "arguments": to_json_safe(call["arguments"])} for call in plan.calls]
        shown = {"status": "chosen" if is_chosen else "dropped", "calls": calls, "usage": plan.usage}
    if own.model is not None:
        shown["model"] = request.model.name
    return shown
