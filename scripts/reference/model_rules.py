"""The page of `WireRules`: what the endpoints of models accept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import griffe

from graph_agent.models.wire.rules import WireRules
from graph_agent.models.wire.table import PROVIDERS
from scripts.reference.events import docstring
from scripts.reference.markdown import code, document, table
from scripts.reference.source import loaded

_MODULE = "graph_agent.models.wire.rules"
_HIDDEN = frozenset({"in-process"})


def page() -> str:
    """Return the page."""
    known = [rules for name, rules in PROVIDERS.items() if name not in _HIDDEN]
    return document(
        "Rules of model endpoints",
        "What an endpoint accepts is chosen by the class of the model, its base URL and its name. `model_rules` of the "
        "[configuration](config.md) replaces single fields; see [Model providers](../guides/models.md).",
        "## Fields",
        table(("Field", "Default", "Description"), _fields()),
        "## Providers and servers",
        "The fields that differ from the defaults. Any other endpoint has the defaults.",
        table(("Provider", "Fields"), [(code(rules.provider), _changes(rules)) for rules in known]),
    )


def _fields() -> Iterator[tuple[str, ...]]:
    members = loaded().modules_collection[_MODULE]["WireRules"].members
    for field in dataclasses.fields(WireRules):
        member = members[field.name]
        assert isinstance(member, griffe.Attribute)
        yield code(field.name), code(_value(field.default)), docstring(member)


def _changes(rules: WireRules) -> str:
    changed = rules.changes_from(WireRules())
    return ", ".join(code(f"{name}: {_value(value)}") for name, value in changed.items() if name != "provider")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, frozenset | list):
        return f"[{', '.join(sorted(map(str, value)))}]"
    return "null" if value is None else str(value) or '""'
