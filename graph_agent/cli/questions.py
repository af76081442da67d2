"""Converts open interrupts to questions to a person, and the answers to the shape that resumes the session.

Approvals have LangChain's shape: the interrupt's value is a `HITLRequest`, its answer a `HITLResponse`.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from graph_agent._internal.text import visible, visible_json
from graph_agent._internal.yaml_files import load_yaml
from graph_agent.approvals.decisions import DEFAULT_DECIDER
from graph_agent.errors import InputError

if TYPE_CHECKING:
    from langgraph.types import Interrupt

Decision = dict[str, Any]
"""One decision of a `HITLResponse`."""

DECISIONS = ("approve", "edit", "reject", "respond")


@dataclass(frozen=True, slots=True)
class Action:
    """One call that waits for a decision."""

    name: str
    """The tool."""
    args: dict[str, Any]
    """Its arguments."""
    description: str
    """Text for the person; empty if there is none."""
    allowed: tuple[str, ...]
    """The allowed decisions, among `DECISIONS`."""
    delegate: str = ""
    """The delegate whose call it is; empty for a call of the agent itself."""

    @property
    def title(self) -> str:
        """The tool, and the delegate if the call is not of the agent itself."""
        return f"{self.name} (delegate {self.delegate})" if self.delegate else self.name


@dataclass(frozen=True, slots=True)
class Question:
    """One open interrupt."""

    id: str
    """The interrupt's id."""
    value: Any
    """The interrupt's value."""
    actions: tuple[Action, ...]
    """The calls that wait for a decision, in order; empty for a question of another kind."""

    def answer(self, decisions: Sequence[Decision]) -> Any:
        """Return the answer with a decision for each action, in order."""
        return decisions[0] if _is_single(self.value) else {"decisions": [*decisions]}


def user_name() -> str:
    """Return the name of the user of this process, who decides; `user` if it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return DEFAULT_DECIDER


def signed(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return answers in which each approval names the user of this process, for the history.

    Args:
        answers: Interrupt id → answer.
    """
    return {id_: _signed(answer, user_name()) for id_, answer in answers.items()}


def _signed(answer: Any, user: str) -> Any:
    if not isinstance(answer, dict):
        return answer
    if isinstance(decisions := answer.get("decisions"), list):
        return {**answer, "decisions": [_signed(each, user) for each in decisions]}
    # A decision that was made for the person has a name already.
    return {"decided_by": user, **answer} if "decisions" in answer or answer.get("type") in DECISIONS else answer


def questions_of(interrupts: Sequence[Interrupt]) -> list[Question]:
    """Return the questions of open interrupts."""
    return [Question(each.id, each.value, _actions(each.value, each)) for each in interrupts]


def describe(question: Question) -> list[str]:
    """Return a question as lines of text, one for each action."""
    if question.actions:
        return [f"{visible(action.title)} {visible_json(action.args)}" for action in question.actions]
    value = question.value
    return [visible(value) if isinstance(value, str) else visible_json(value)]


def parse_decision(text: str, action: Action) -> Decision:
    """Parse a decision of the command line.

    Args:
        text: `approve`, `reject`, `reject:REASON`, `edit:ARGUMENTS` (a JSON or YAML object) or `respond:TEXT`.

    Raises:
        InputError: If it has another form, or the call does not allow it.
    """
    kind, colon, rest = text.partition(":")
    kind, rest = kind.strip().lower(), rest.strip()
    if kind not in DECISIONS or (kind == "approve" and colon) or (kind in ("edit", "respond") and not rest):
        raise InputError(
            f"The decision {text!r} has another form; write approve, reject, reject:REASON, "
            "edit:{arguments as JSON} or respond:TEXT."
        )
    check_allowed(kind, action)
    if kind == "edit":
        return edit(action, parse_arguments(rest))
    return {"type": kind, "message": rest} if rest else {"type": kind}


def check_allowed(kind: str, action: Action) -> None:
    """Check that a call allows a kind of decision.

    Raises:
        InputError: If it does not.
    """
    if kind not in action.allowed:
        raise InputError(f"The call {action.name} does not allow {kind!r}; allowed: {', '.join(action.allowed)}.")


def edit(action: Action, arguments: dict[str, Any]) -> Decision:
    """Return the decision to run a call with other arguments."""
    return {"type": "edit", "edited_action": {"name": action.name, "args": arguments}}


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a call, as a JSON or YAML object.

    Raises:
        InputError: If the text is not an object with text keys.
    """
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = load_yaml(text)
        except yaml.YAMLError as error:
            raise InputError(f"The arguments are not JSON or YAML: {' '.join(str(error).split())}.") from None
    if value is None:
        value = {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f'The arguments must be an object, such as {{"path": "a.txt"}}; got {value!r}.')
    return value


def _actions(value: Any, interrupt: Interrupt) -> tuple[Action, ...]:
    if _is_single(value):
        return (_action(value, _single_allowed(interrupt)),)
    if not isinstance(value, Mapping) or not isinstance(value.get("action_requests"), list):
        return ()
    delegate = value["delegate"] if isinstance(value.get("delegate"), str) else ""
    requests = [each for each in value["action_requests"] if isinstance(each, Mapping)]
    reviews = [each for each in value.get("review_configs") or () if isinstance(each, Mapping)]
    return tuple(_action(request, _allowed(request, at, reviews), delegate) for at, request in enumerate(requests))


def _allowed(request: Mapping[str, Any], at: int, reviews: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the decisions that the review of a call allows: the one at its place, else one of its name."""
    placed = reviews[at : at + 1] if at < len(reviews) else ()
    for review in (*placed, *reviews):
        if review.get("action_name") == request.get("name"):
            return tuple(review.get("allowed_decisions") or ())
    return ("approve", "edit", "reject")


def _action(request: Mapping[str, Any], allowed: tuple[str, ...], delegate: str = "") -> Action:
    arguments = request.get("args")
    return Action(
        name=str(request.get("name", "")),
        args=dict(arguments) if isinstance(arguments, Mapping) else {},
        description=str(request.get("description") or ""),
        allowed=tuple(kind for kind in DECISIONS if kind in allowed),
        delegate=delegate,
    )


def _is_single(value: Any) -> bool:
    """Whether an interrupt is for one call, as LangChain's middleware raises it in its mode `per_call`."""
    return isinstance(value, Mapping) and value.get("type") == "tool_approval"


def _single_allowed(interrupt: Interrupt) -> tuple[str, ...]:
    # The allowed decisions are published in the schema of the answer only.
    schema = json.dumps(getattr(interrupt, "response_schema", None) or {}, default=str)
    return tuple(kind for kind in DECISIONS if f'"{kind}"' in schema) or ("approve", "edit", "reject")
