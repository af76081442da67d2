"""A row of the matrix: a provider or server, how its model is built, its rules, and what it cannot do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.language_models import BaseChatModel

from tests.providers.exchange import FaultKind, Raw, Refusal, Reply, Request, WireProtocol
from tests.providers.rule import Rule

Ability = Literal[
    "images",
    "documents",
    "reasoning",
    "overflow_error",
    "stream_usage",
    "whole",
    "tools",
    "abort_in_reply",
    "abort_in_wait",
]
"""What a provider may be unable to do."""


@dataclass(frozen=True)
class OddAnswer:
    """An answer of a provider in place of a reply, and what becomes of the run."""

    rule: str
    """Id of the rule that describes it."""
    answer: Refusal | Raw | Reply
    outcome: Literal["goes on", "fails", "is refused", "runs no call", "runs the call"]
    """The run gets another reply and completes; fails for good, or ends with a refusal, without another request; leaves
    a call that the reply has; runs that call."""
    words: str = ""
    """What the error or the log of a run that fails contains."""


@dataclass(frozen=True)
class Row:
    """One row."""

    name: str
    protocol: WireProtocol
    build: Callable[[str], BaseChatModel | str]
    """Makes the model for an emulator's address without a path; a text is a `provider:name`."""
    package: str
    """The distribution that has the client."""
    model: str
    rules: tuple[Rule, ...] = ()
    """What it refuses; the first that applies counts."""
    faults: Mapping[str, Rule] = field(default_factory=dict)
    """Failures that no request causes, by `FaultKind`, and `overflow`."""
    other_overflows: tuple[Rule, ...] = ()
    """Further forms of the refusal of a request that is too long."""
    shape: Any = None
    """The variant of the protocol's replies."""
    answers: tuple[str, ...] = ()
    """Ids of the rules of replies that `shape` follows."""
    limits: Mapping[Ability, str] = field(default_factory=dict)
    """What the provider cannot do, as a sentence for a user."""
    odd: tuple[OddAnswer, ...] = ()
    """Answers in place of a reply that the provider is known for."""
    host: str = ""
    """The provider's own host name, which then resolves to this machine; empty for a local server."""
    environment: Callable[[str], Mapping[str, str]] = lambda address: {}
    """Environment variables for an address, while the model is built and used."""
    note: str = ""
    """A remark for the matrix, such as why the provider's own package is not used."""
    learned: Mapping[str, str] = field(default_factory=dict)
    """Rules that an agent cannot know before it meets them, by id, and what it learns: each may refuse one request."""

    def can(self, ability: Ability) -> bool:
        """Whether the provider has an ability."""
        return ability not in self.limits

    def refusal(self, request: Request, window: int | None) -> Refusal | None:
        """Return the refusal of a request; None if it is accepted."""
        for rule in self.rules:
            if (refusal := rule.refusal(request)) is not None:
                return refusal
        if window is not None and request.tokens > window and (rule_ := self.faults.get("overflow")) is not None:
            return rule_.with_values({"given": request.tokens, "limit": window, "over": request.tokens - window})
        return None

    def fault(self, kind: FaultKind) -> Refusal:
        """Return the failure of a kind in the provider's words."""
        return self.faults[kind].with_values({})
