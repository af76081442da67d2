"""The page of `LoopConfig`, `Price`, `SpeculationBudget` and the further fields of `AgentContext`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from graph_agent.base.settings.config import AgentContext, LoopConfig, Price, Unit
from graph_agent.base.settings.speculation import SpeculationBudget
from scripts.reference.markdown import code, default_of, document, table, type_of

_SECTIONS = {"Price": "[`Price`](#price)", "SpeculationBudget": "[`SpeculationBudget`](#speculationbudget)"}
_HEADER = ("Field", "Type", "Unit", "Default", "Description")


def page() -> str:
    """Return the page."""
    of_a_run = [name for name in AgentContext.model_fields if name not in LoopConfig.model_fields]
    return document(
        "Configuration",
        "`LoopConfig(...)` sets the fields for an agent, the key `config` of an [agent file](agent-file.md#config) for "
        "a declared one. `None` is `null` in YAML.",
        table(_HEADER, _rows(LoopConfig, list(LoopConfig.model_fields))),
        "## Price",
        "A value of `prices`, in any one currency per million tokens.",
        table(_HEADER, _rows(Price, list(Price.model_fields))),
        "## SpeculationBudget",
        "The value of `speculation_budget`, an object of `graph_agent.SpeculationBudget`; a mapping in an agent file.",
        table(_HEADER, _rows(SpeculationBudget, list(SpeculationBudget.model_fields))),
        "## Context of a run",
        "`context=` of a run, or of `graph.ainvoke`, is an `AgentContext` or a dict. It has every field of "
        "`LoopConfig`, which replaces the agent's value if set, and these:",
        table(_HEADER, _rows(AgentContext, of_a_run)),
    )


def _rows(model: type[BaseModel], names: list[str]) -> Iterator[tuple[str, ...]]:
    properties = model.model_json_schema()["properties"]
    for name in names:
        field = model.model_fields[name]
        default = "required" if field.is_required() else _default(field.get_default())
        yield code(name), _type(properties[name]), _unit(field), default, properties[name].get("description", "")


def _type(schema: dict[str, Any]) -> str:
    return re.sub(r"\bnull\b", "`None`", type_of(schema, _SECTIONS))


def _default(value: Any) -> str:
    if isinstance(value, BaseModel):
        return code(f"{type(value).__name__}()")  # its own table has the values
    return default_of(value) if isinstance(value, str) else code(repr(value))


def _unit(field: FieldInfo) -> str:
    metadata = [*field.metadata, *(each for member in get_args(field.annotation) for each in _metadata(member))]
    return next((each.name for each in metadata if isinstance(each, Unit)), "")


def _metadata(annotation: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(annotation, "__metadata__", ())
    return found
