"""Computes the versions of an agent's prompts and tools, by which runs before and after a change are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph_agent.base._internal.text import version_of
from graph_agent.base.history.plan_parts import VersionsOfPlan
from graph_agent.models.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Versions:
    """Hashes of an agent's prompts and tools, by which recorded runs before and after a change are distinguished."""

    as_json: VersionsOfPlan
    """The hashes in the form that a `plan` event stores: `{"prompts": {name: hash}, "tools": {name: hash}}`."""
    digest: str
    """One hash of all the others."""


def versions_of(system_text: str | None, prompts: Prompts, schemas: Sequence[Mapping[str, Any]]) -> Versions:
    """Compute the hash of each prompt and each tool of an agent.

    Prompts are keyed `system`, by the name of each replaced prompt, and `built-in` for all prompts that were not
    replaced.

    Args:
        system_text: The system prompt before its variables are filled in; None if it is not known, which leaves out
            `system`.
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
