"""The calls that a plan will have, whichever candidate is chosen."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from graph_agent.base.types import NO_USAGE, Call
from graph_agent.core.planning.plan_choice import call_key, certain_calls, plan_key
from graph_agent.core.planning.reply import Planned
from tests.support.examples import many_examples


def plan_of(names: str) -> Planned:
    """A plan with a call for each letter."""
    calls = [Call(id=f"c{at}", name=name, arguments={}) for at, name in enumerate(names)]
    return Planned(AIMessage(""), calls, NO_USAGE, False, "", "")


def winner(plans: list[Planned | None]) -> Planned | None:
    """The plan that is chosen if these are all."""
    counts = Counter(plan_key(plan) for plan in plans if plan is not None)
    valid = [plan for plan in plans if plan is not None]
    return max(valid, key=lambda plan: counts[plan_key(plan)], default=None)


@many_examples
@given(st.lists(st.sampled_from(["", "a", "b", "ab", "ba", "aab", None, "pending"]), min_size=1, max_size=5))
def test_certain_calls_are_those_of_every_plan_that_may_be_chosen(given_plans: list[str | None]) -> None:
    pending = [at for at, each in enumerate(given_plans) if each == "pending"]
    plans = [None if each in (None, "pending") else plan_of(each) for each in given_plans]
    # A pending candidate may fail, have a plan of another, or a new one.
    possible = []
    for futures in itertools.product(
        [None, "new", *{each for each in given_plans if each not in (None, "pending")}], repeat=len(pending)
    ):
        ends = [*plans]
        for at, each in zip(pending, futures, strict=True):
            ends[at] = None if each is None else plan_of("z" if each == "new" else each)
        if (chosen := winner(ends)) is not None:
            possible.append(Counter(map(call_key, chosen.calls)))
    shared = possible[0] if possible else Counter()
    for other in possible[1:]:
        shared &= other
    certain = Counter(map(call_key, certain_calls(plans, pending)))

    assert certain == (shared if any(plan is not None for plan in plans) else Counter())
