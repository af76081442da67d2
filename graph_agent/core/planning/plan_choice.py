"""Chooses one of several plans for the same step: by their number, their tokens, a function, or a judging model."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from langchain_core.messages import HumanMessage

from graph_agent.base._internal.failure_log import get_logger, log_failure, log_user_error
from graph_agent.base._internal.text import after_reasoning, excerpt, to_json_safe
from graph_agent.base.calls import canonical_arguments
from graph_agent.base.errors import HookError
from graph_agent.base.history.plan_parts import PlanJudgement
from graph_agent.base.settings.candidates import CandidatePlan, ChoosePlan, PlanJudge
from graph_agent.base.types import Call
from graph_agent.base.usage import usage_of
from graph_agent.core.extensions.invoke import belongs_to_run
from graph_agent.core.planning.next_request import NextRequest
from graph_agent.core.planning.reply import Planned
from graph_agent.models.client import ModelClient
from graph_agent.models.errors import classify_model_error, public_exception_text

if TYPE_CHECKING:
    from graph_agent.core.planning.exchange import Exchange

logger = get_logger("graph_agent.planning.candidates")

PlanKey = tuple[str, ...]
"""Key by which equal plans are recognised: their calls as sorted texts; empty for an answer."""
_JUDGE = """\
Here are {count} plans for the next step. Each is a list of calls, which run at the same time, or an answer.

{plans}

Choose the best one. {criterion} Reply with its number alone."""
_CRITERION = "It makes the calls that the user's message needs, with the right arguments, and no others."
_TEXT_CHARS = 2_000
"""Maximum characters of a plan's text that a judging model reads."""
_NUMBER = re.compile(r"\d+")


def plan_key(plan: Planned) -> PlanKey:
    """Return the key by which equal plans are recognised.

    Order and ids of the calls are ignored, and all answers are equal.
    """
    return tuple(sorted(map(call_key, plan.calls)))


def call_key(call: Call) -> str:
    """Return the key by which equal calls are recognised: the tool's name and the canonical arguments."""
    return f"{call['name']} {canonical_arguments(call['arguments'])}"


def is_certain(plans: Sequence[Planned | None], pending: int) -> bool:
    """Whether one plan already has so many candidates that the pending ones cannot change the choice.

    Args:
        plans: The plans of all candidates; None for one that has failed or not answered yet.
        pending: Number of candidates that have not answered yet.
    """
    counts = [count for _, count in Counter(plan_key(plan) for plan in plans if plan is not None).most_common(2)]
    return bool(counts) and counts[0] > (counts[1] if len(counts) > 1 else 0) + pending


def certain_calls(plans: Sequence[Planned | None], pending: Sequence[int]) -> list[Call]:
    """Return the calls that the chosen plan will have, whichever plan most candidates agree on in the end.

    They are the calls that all plans share which may still win. Empty if a plan that no candidate has returned so far
    may still win, or if there is no plan.

    Args:
        plans: The plans of the candidates; None for one that has failed or not answered yet.
        pending: Indexes of the candidates that have not answered yet.
    """
    first: dict[PlanKey, int] = {}
    counts = Counter[PlanKey]()
    for at, plan in enumerate(plans):
        if plan is not None:
            first.setdefault(plan_key(plan), at)
            counts[plan_key(plan)] += 1
    # The greatest wins: the most candidates, and of equally many the first one.
    ranks = {key: (counts[key], -first[key]) for key in first}
    soonest = min(pending, default=len(plans))
    if not ranks or (pending and (len(pending), -soonest) > max(ranks.values())):
        return []
    possible = [
        key
        for key, (count, place) in ranks.items()
        if all((count + len(pending), max(place, -soonest)) > ranks[other] for other in ranks if other != key)
    ]
    return shared_calls([plan for key in possible if (plan := plans[first[key]]) is not None])


def shared_calls(plans: Sequence[Planned]) -> list[Call]:
    """Return the calls that are in all of the given plans, in the order of the first one; empty without plans.

    A call that several plans have twice is returned twice.
    """
    if not plans:
        return []
    shared = Counter(plan_key(plans[0]))
    for plan in plans[1:]:
        shared &= Counter(plan_key(plan))
    calls = []
    for call in plans[0].calls:
        if shared[call_key(call)] > 0:
            shared[call_key(call)] -= 1
            calls.append(call)
    return calls


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """The plan that was chosen, and the judgement of a model about it."""

    place: int
    """Index of the plan's candidate among all candidates."""
    judgement: PlanJudgement | None = None
    """The record of a judging model's request and choice, for the event; None if none was asked."""


async def choose_plan(plans: Mapping[int, Planned], request: NextRequest, exchange: Exchange) -> ChosenPlan:
    """Choose one of the plans, as the setting `choose` requires. Of equally good plans the first is taken.

    `cheapest` takes the plan with the fewest tokens, `agreed` the most frequent one. A function and a judging model are
    asked only about plans that differ, and not if all are equal; if the judging model fails or names none, the most
    frequent plan is taken.

    Args:
        plans: Place of a candidate → its plan; at least one.
        request: The request for the plan.
        exchange: The requests of the pass; receives the usage of a judging model, and the warning if it fails.

    Raises:
        HookError: The function raised an exception, or returned no index of a plan.
        ConfigError: The judging model cannot be built.
    """
    choose = request.settings.choose
    if choose == "cheapest":
        return ChosenPlan(min(plans, key=lambda at: (plans[at].usage["total_tokens"], at)))
    first: dict[PlanKey, int] = {}
    counts = Counter(map(plan_key, plans.values()))
    for at, plan in plans.items():
        first.setdefault(plan_key(plan), at)
    agreed = max(first.values(), key=lambda at: (counts[plan_key(plans[at])], -at))
    if choose == "agreed" or len(first) == 1:
        return ChosenPlan(agreed)
    different = [
        CandidatePlan(plan.calls, plan.message.text or plan.reasoning, counts[plan_key(plan)], plan.usage)
        for plan in (plans[at] for at in first.values())
    ]
    if isinstance(choose, PlanJudge):
        judgement = await _judged(choose, different, request, exchange)
        index = judgement.get("index")
        return ChosenPlan(agreed if index is None else [*first.values()][index], judgement)
    return ChosenPlan([*first.values()][await _chosen_by(choose, different)])


async def _chosen_by(function: ChoosePlan, plans: list[CandidatePlan]) -> int:
    """Return the index of the plan that a function of the program chooses; the function may be asynchronous.

    An exception of the function is logged. A cancellation, and other exceptions that belong to the run, are raised
    unchanged.

    Raises:
        HookError: The function raised an exception, or returned no index of a plan.
    """
    name = getattr(function, "__name__", repr(function))
    try:
        given = function(plans)
        index = await given if inspect.isawaitable(given) else given
    except BaseException as error:
        if belongs_to_run(error):
            raise
        log_user_error(logger, f"The function {name}, which chooses a plan,", error)
        text = f"The function {name}, which chooses a plan, failed: {public_exception_text(error)}"
        raise HookError(text) from error
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(plans):
        raise HookError(
            f"The function {name}, which chooses a plan, returned {excerpt(repr(index))}; return the index of one of "
            f"the {len(plans)} plans, from 0 on."
        )
    return index


async def _judged(
    judge: PlanJudge, plans: Sequence[CandidatePlan], request: NextRequest, exchange: Exchange
) -> PlanJudgement:
    """Ask a judging model for the best plan, and return the record of its request and choice for the event.

    The first number in the reply names the plan. If the request fails or names none, the record has no `index`, and
    `exchange` gets a `warning` event; a failure is logged, too. The model reads the request's conversation without the
    agent's system prompt, is offered no tools, and streams nothing.

    Args:
        judge: The setting.
        plans: The different plans.
        request: The request for the plans, whose conversation the judge reads.
        exchange: Receives the usage and the warning.

    Raises:
        ConfigError: The judging model cannot be built.
    """
    # Without its prompt, and with its options: the judge reads the same conversation.
    own = request if judge.model is None else request.override(chain=[await _model_of(judge, request)])
    name = own.model.name
    judgement: PlanJudgement = {"model": name}
    question = _JUDGE.format(
        count=len(plans),
        plans="\n\n".join(f"Plan {at}: {_as_text(plan)}" for at, plan in enumerate(plans, 1)),
        criterion=judge.prompt or _CRITERION,
    )
    messages = [*own.messages()[1 if own.deps.prompt("") else 0 :], HumanMessage(question)]
    try:
        client = ModelClient(own.model.client.model, [], endpoint=own.model.client.endpoint)
        reply = await client.ask("answer", messages, own.settings, mode="text", quiet=True)
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; the plans need no judge
        log_failure(logger, "The judging model", error)
        exchange.warn(
            f"The model {name}, which chooses a plan, did not answer ({classify_model_error(error)}); the "
            "plan is taken that most candidates have."
        )
        return judgement
    judgement["usage"] = usage_of(reply, own.settings.prices)
    exchange.count(judgement["usage"], None)
    found = _NUMBER.search(after_reasoning(reply.text))
    if found is None or not 1 <= int(found[0]) <= len(plans):
        exchange.warn(
            f"The model {name}, which chooses a plan, named none of them; the plan is taken that most candidates have."
        )
    else:
        judgement["index"] = int(found[0]) - 1
    return judgement


async def _model_of(judge: PlanJudge, request: NextRequest) -> Any:
    """Return the judge's model, bound to its client; raise `ConfigError` if it cannot be built."""
    return await request.agent.models.ready(judge.model, "choose", request.settings)


def _as_text(plan: CandidatePlan) -> str:
    """Return a plan as text for a judging model: its calls as JSON without ids, and the reply's text up to 2,000
    characters; for a plan without calls, `answer: ` and the text."""
    if not plan.calls:
        return f"answer: {plan.text[:_TEXT_CHARS]}"
    calls = [{"tool": call["name"], "arguments": to_json_safe(call["arguments"])} for call in plan.calls]
    return f"{json.dumps(calls, ensure_ascii=False)}\n{plan.text[:_TEXT_CHARS]}".rstrip()
