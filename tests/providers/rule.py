"""A rule of a provider that refuses requests: which ones, and with which status and body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.providers.exchange import Refusal, Request

Found = Mapping[str, Any]
"""Values for the placeholders of a rule's body, such as the index of the message that broke it."""
MISSING: Any = object()
"""The value of a sample's field that a request must not have."""
Check = Callable[[Request], Found | None]
"""What in a request breaks a rule; None if nothing does."""


@dataclass(frozen=True)
class Rule:
    """A rule, by its id."""

    id: str
    check: Check | None
    """None for a failure that no request causes, such as a rate limit; a situation asks for it."""
    status: int
    body: Any
    """JSON in which `{name}` stands for a value of the check, or text."""
    sample: Mapping[str, Any] | None = None
    """Fields that break the rule if they replace those of a request in the protocol's form; None if it has no check."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, request: Request) -> Refusal | None:
        """Return the refusal of a request; None if the request keeps the rule."""
        found = self.check(request) if self.check is not None else None
        return self.with_values(found) if found is not None else None

    def with_values(self, values: Found) -> Refusal:
        """Return the refusal with values for its placeholders."""
        return Refusal(self.id, self.status, _filled(self.body, values), dict(self.headers))


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def by_id(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Return rules by their ids; an id occurs once."""
    found: dict[str, Rule] = {}
    for rule in rules:
        assert rule.id not in found, rule.id
        found[rule.id] = rule
    return found


def _filled(body: Any, values: Found) -> Any:
    if isinstance(body, str):
        for name, value in values.items():
            if body == f"{{{name}}}":
                return value
            body = body.replace(f"{{{name}}}", str(value))
        return body
    if isinstance(body, Mapping):
        return {key: _filled(value, values) for key, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, values) for value in body]
    return body
