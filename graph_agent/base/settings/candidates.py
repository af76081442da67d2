"""Defines the candidates for a plan: how their requests differ, and what chooses one of the plans."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat, WithJsonSchema

from graph_agent.base._internal.validation_text import CheckedModel, describe_fields
from graph_agent.base.types import Call, Usage

MOST_CANDIDATES = 16
"""Maximum requests for one plan that are sent at once."""
NumberOfCandidates = Annotated[int, Field(ge=1, le=MOST_CANDIDATES)]
Choose = Literal["agreed", "cheapest"]
"""The ways to choose a plan that need neither a function nor a model."""
if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    Model: TypeAlias = str | BaseChatModel
else:
    Model = Annotated[Any, WithJsonSchema({"type": "string"})]


class Candidate(CheckedModel):
    """One of several requests that are sent at once for the same plan. A field that is None is that of the agent.

    Raises:
        ConfigError: On an unknown field, or a value out of range.
    """

    model_config = ConfigDict(json_schema_extra=describe_fields)

    model: Model | None = None
    """A `provider:name` or a chat model that is asked in place of the agent's."""
    prompt: str | None = Field(default=None, min_length=1)
    """Text that is appended to the system prompt of this request."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature of this request."""


class PlanJudge(CheckedModel):
    """A model that chooses one of several different plans.

    If its request fails, or names no plan, the plan is taken that most candidates have, with a `warning` event.

    Raises:
        ConfigError: On an unknown field, or a value out of range.
    """

    model_config = ConfigDict(json_schema_extra=describe_fields)

    model: Model | None = None
    """A `provider:name` or a chat model; None for the agent's own."""
    prompt: str | None = Field(default=None, min_length=1)
    """What a good plan is, in words; None for a general instruction."""


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """One plan of those that the candidates gave, which a function chooses from; equal plans are one."""

    calls: Sequence[Call]
    """The calls of the plan; empty for an answer."""
    text: str
    """The text of the reply: the reasons for the calls, or the answer."""
    votes: int
    """Number of candidates that gave this plan."""
    usage: Usage
    """Usage of the first request that gave it."""


ChoosePlan: TypeAlias = Callable[[Sequence[CandidatePlan]], int | Awaitable[int]]
"""Takes the different plans, in the order of their candidates, and returns the index of one; may be asynchronous."""


def read_candidates(given: Any) -> Any:
    """Return the validated setting `candidates`: a number of equal requests (1 is the default), or a tuple of
    `Candidate`s.

    A mapping becomes a `Candidate`.

    Raises:
        ValueError: `given` is neither a whole number nor a list or tuple of candidates, or not 1 to `MOST_CANDIDATES`.
        ConfigError: A mapping is not a valid `Candidate`.
    """
    if isinstance(given, list | tuple):
        found = []
        for at, each in enumerate(given):
            if not isinstance(each, Candidate | dict):
                raise ValueError(f"item {at} is {each!r}; write Candidate(model=…), or a mapping such as {{model: …}}")
            found.append(Candidate(**each) if isinstance(each, dict) else each)
        result: tuple[Candidate, ...] | int = tuple(found)
        count = len(found)
    elif isinstance(given, int) and not isinstance(given, bool):
        result = count = given
    else:
        raise ValueError("give a number, or a list of Candidate")
    if not 1 <= count <= MOST_CANDIDATES:
        raise ValueError(f"give 1 to {MOST_CANDIDATES} candidates")
    return result


def read_chooser(given: Any) -> Any:
    """Return the validated setting `choose`; a mapping becomes a `PlanJudge`.

    Raises:
        ValueError: `given` is none of the choices, or a function that does not take one argument. A function without a
            known signature passes.
        ConfigError: A mapping is not a valid `PlanJudge`.
    """
    if isinstance(given, dict):
        return PlanJudge(**given)
    if given in ("agreed", "cheapest") or isinstance(given, PlanJudge):
        return given
    if not callable(given):
        raise ValueError("write 'agreed' or 'cheapest', or give a PlanJudge, or a function of the plans")
    try:
        inspect.signature(given).bind([])
    except TypeError as error:
        raise ValueError(f"a function takes one argument, the plans, and {given!r} does not ({error})") from None
    except ValueError:
        pass  # built-in functions may have no signature
    return given


if TYPE_CHECKING:
    # The values that a constructor accepts.
    Candidates: TypeAlias = int | Sequence[Candidate]
    PlanChooser: TypeAlias = Choose | PlanJudge | ChoosePlan
else:
    _List = Annotated[list[Candidate], Field(min_length=1, max_length=MOST_CANDIDATES)]
    Candidates = Annotated[Any, BeforeValidator(read_candidates, json_schema_input_type=NumberOfCandidates | _List)]
    PlanChooser = Annotated[Any, BeforeValidator(read_chooser, json_schema_input_type=Choose | PlanJudge)]


def candidates_of(candidates: Candidates) -> tuple[Candidate, ...]:
    """Return the candidates of a setting as a tuple; for a number, as many without any own field."""
    return (Candidate(),) * candidates if isinstance(candidates, int) else tuple(candidates)


def models_in(candidates: Candidates, choose: PlanChooser) -> dict[str, list[Any]]:
    """Return the models that the settings name: `candidates` → those of the candidates, `choose` → that of a judge.

    A list is empty if no model is named.
    """
    own = [] if isinstance(candidates, int) else [each.model for each in candidates if each.model is not None]
    judge = choose.model if isinstance(choose, PlanJudge) else None
    return {"candidates": own, "choose": [] if judge is None else [judge]}
