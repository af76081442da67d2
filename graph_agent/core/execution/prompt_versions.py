"""Computes the versions of an agent's prompts and tools, by which runs before and after a change are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph_agent.base._internal.text import version_of
from graph_agent.core.state.plan_parts import VersionsOfPlan
from graph_agent.models.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of an agent's prompts and tools."""

    as_json: VersionsOfPlan
    """The versions as a `plan` event has them."""
    digest: str
    """One hash of all of them."""


def versions_of(system_text: str | None, prompts: Prompts, schemas: Sequence[Mapping[str, Any]]) -> Versions:
    """Return the versions of an agent.

    Args:
        system_text: The system prompt before its variables have values; None if it is not known.
        prompts: The prompts of the package and those that replace them.
        schemas: The offered tools, in OpenAI's function format.
    """
    texts = prompts.texts()
    built_in = [text for name, text in sorted(texts.items()) if name not in prompts.replaced]
    named = {
        **({} if system_text is None else {"system": version_of(system_text)}),
        **{name: version_of(texts[name]) for name in sorted(prompts.replaced)},
        "built-in": version_of(built_in),
    }
    tools = {str(schema["function"]["name"]): version_of(schema) for schema in schemas}
    found: VersionsOfPlan = {"prompts": named, "tools": tools}
    return Versions(found, version_of(found))
