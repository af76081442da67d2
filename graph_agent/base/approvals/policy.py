"""Selects the calls that a person must approve, by patterns, functions and marks.

A mark is an entry of a tool's `metadata` that this package reads; here `approve`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

from graph_agent.base._internal.failure_log import get_logger, log_failure, log_user_error
from graph_agent.base._internal.text import clean
from graph_agent.base.approvals.requests import DECISIONS, DecisionType
from graph_agent.base.errors import ConfigError, did_you_mean
from graph_agent.base.settings.approval_rule import ApprovalRule
from graph_agent.base.types import Call

logger = get_logger("graph_agent.approvals.policy")

_FAILED = "The approval policy failed for this call, so a person must decide."
"""Description for the person if a policy raised or returned an invalid value."""
_KEYS = {"allowed_decisions", "description"}
"""Keys that a mapping may have which describes a review: see `read_review`."""


@dataclass(frozen=True, slots=True)
class Review:
    """How a person decides on a call that needs approval: the result of a policy."""

    allowed: tuple[DecisionType, ...] = DECISIONS
    """The decisions that the person may choose from, in the order of `DECISIONS`."""
    description: str | None = None
    """Text that the request shows to the person; None if there is none."""


def read_review(value: Any, where: str) -> Review | None:
    """Return the review that a tool's `approve` mark or a policy function requests; None if it requests no approval.

    Args:
        value: True requests approval with every decision allowed; False or None requests none. A text is a description
            for the person. A list holds the allowed decisions. A mapping may have the keys `allowed_decisions` and
            `description`.
        where: Text that names the source of the value, which begins the error message.

    Raises:
        ConfigError: `value` has another form, an unknown key, an unknown decision, or an empty list of decisions.
    """
    if value is None or value is False:
        return None
    if value is True:
        return Review()
    if isinstance(value, str):
        return Review(description=clean(value))
    if isinstance(value, Mapping):
        for key in value:
            if key not in _KEYS:
                raise ConfigError(f"{where}: unknown key {key!r}; {did_you_mean(str(key), _KEYS)}")
        description = value.get("description")
        if description is not None and not isinstance(description, str):
            raise ConfigError(f"{where}: description={description!r}: write text.")
        allowed = value.get("allowed_decisions", DECISIONS)
        return Review(_decisions(allowed, where), clean(description) if description is not None else None)
    if isinstance(value, list | tuple):
        return Review(_decisions(value, where))
    raise ConfigError(
        f"{where}={value!r}: write True, False, a description, or a list of decisions out of {', '.join(DECISIONS)}."
    )


def _decisions(given: Any, where: str) -> tuple[DecisionType, ...]:
    """Return the allowed decisions as a tuple, without repeats, in the order given.

    Raises `ConfigError` if `given` is no list or tuple, is empty, or has an unknown decision; the message begins with
    `where`.
    """
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{where}: the decisions are {given!r}; list one or more of {', '.join(DECISIONS)}.")
    for one in given:
        if one not in DECISIONS:
            raise ConfigError(f"{where}: unknown decision {one!r}; {did_you_mean(str(one), DECISIONS)}")
    return cast("tuple[DecisionType, ...]", tuple(dict.fromkeys(given)))


async def review_of(call: Call, mark: Any, rules: Sequence[ApprovalRule]) -> Review | None:
    """Return the review of a call by all rules that select it; None if no rule does, so that it needs no approval.

    If several rules select the call, the person may take only decisions that all of them allow; if they have none in
    common, the call can only be rejected. The first description is used; the tool's mark comes before the rules. An
    invalid mark, and a rule that raises or returns an invalid value, also select the call and are logged, so that no
    call runs unseen because of a fault.

    Args:
        call: The call, with references in the arguments replaced by their values.
        mark: Value of the tool's metadata key `approve`; None if it has none.
        rules: Name patterns (`fnmatch`, case-sensitive), and policy functions. A function, blocking or asynchronous,
            receives a copy of the call and returns a value that `read_review` accepts.
    """
    found = [_checked(lambda: read_review(mark, f"the mark approve of the tool {call['name']!r}"))]
    for rule in rules:
        if isinstance(rule, str):
            # Case counts, as names of tools differ by it.
            found.append(Review() if fnmatchcase(call["name"], rule) else None)
        else:
            found.append(await _apply(rule, call))
    reviews = [review for review in found if review is not None]
    if not reviews:
        return None
    allowed: tuple[DecisionType, ...] = tuple(
        one for one in DECISIONS if all(one in review.allowed for review in reviews)
    )
    description = next((review.description for review in reviews if review.description is not None), None)
    return Review(allowed or ("reject",), description)


def _checked(read: Callable[[], Review | None]) -> Review | None:
    """Return the result of `read`: a review, or None if no approval is needed.

    If `read` raises `ConfigError`, log it and return a review that asks a person.
    """
    try:
        return read()
    except ConfigError as error:
        log_failure(logger, "An approval policy", error)
        return Review(description=_FAILED)


async def _apply(rule: Callable[[Call], Any], call: Call) -> Review | None:
    """Call a policy function with a copy of the call, await the result if needed, and read it as a review.

    If the function raises, or its result is invalid, this is logged, and a review that asks a person is returned. None
    if the function requests no approval.
    """
    try:
        # A copy, so that the function cannot change the call.
        value = rule(copy.deepcopy(call))
        if inspect.isawaitable(value):
            value = await value
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything; the call must not run then
        log_user_error(logger, f"The approval policy {getattr(rule, '__name__', repr(rule))}", error)
        return Review(description=_FAILED)
    return _checked(lambda: read_review(value, f"the result of the approval policy {rule!r}"))
