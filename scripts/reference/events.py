"""The page of a session's events."""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe

from scripts.reference.markdown import code, document, table
from scripts.reference.source import loaded

_MODULE = "graph_agent.base.history.events"
_REQUESTS = "graph_agent.base.approvals.requests"
_PARTS = "graph_agent.base.history.plan_parts"
_COMMON = "_Event"
_HEADER = ("Field", "Type", "Description")


def page() -> str:
    """Return the page."""
    modules = loaded().modules_collection
    module, requests, parts = modules[_MODULE], modules[_REQUESTS], modules[_PARTS]
    union = str(module["Event"].value)
    names = [name.strip() for name in union.strip("()").split("|")]
    return document(
        "Events",
        "A session's history is a list of events, oldest first: `await session.events()`, "
        "`SessionMemory(graph).get_session_events(session_id)`, or `GET /memory/sessions/{session_id}/events`. "
        "Their types are in `graph_agent.state.events`.",
        "Every event has these fields:",
        table(_HEADER, [(code("type"), "text", "The type, a heading below."), *_fields(module[_COMMON])]),
        *(part for name in names for part in _section(module[name])),
        "## Values",
        "### ResultStatus",
        f"{_type(str(module['ResultStatus'].value))}. {docstring(module['ResultStatus'])}",
        "### PlannedCall",
        docstring(module["PlannedCall"]),
        table(_HEADER, _fields(module["PlannedCall"])),
        "### SpeculationSource",
        f"{_type(str(parts['SpeculationSource'].value))}. {docstring(parts['SpeculationSource'])}",
        "### SpeculationCounts",
        docstring(parts["SpeculationCounts"]),
        table(_HEADER, _fields(parts["SpeculationCounts"])),
        "### LeftOutCall",
        docstring(parts["LeftOutCall"]),
        table(_HEADER, _fields(parts["LeftOutCall"])),
        "### HeldCall",
        docstring(requests["HeldCall"]),
        table(_HEADER, _fields(requests["HeldCall"])),
        "### DecisionType",
        f"{_type(str(requests['DecisionType'].value))}. {docstring(requests['DecisionType'])}",
    )


def fields() -> Iterator[str]:
    """Yield each field of each event as `type.field`, with `?` after one that may be absent."""
    module = loaded().modules_collection[_MODULE]
    yield from (f"{name}{'?' if optional else ''}" for name, _, _, optional in _declared(module[_COMMON]))
    for name in str(module["Event"].value).strip("()").split("|"):
        event = module[name.strip()]
        yield _type_name(event)
        for owner in _owners(event):
            for field, _, _, optional in _declared(owner):
                yield f"{_type_name(event)}.{field}{'?' if optional else ''}"


def _section(event: griffe.Class) -> Iterator[str]:
    yield f"## {_type_name(event)}"
    yield docstring(event)
    if rows := [row for owner in _owners(event) for row in _fields(owner)]:
        yield table(_HEADER, rows)


def _type_name(event: griffe.Class) -> str:
    return str(event.members["type"].annotation).removeprefix("Literal[").strip("]'\"")  # type: ignore[union-attr]  # each event declares its type as an attribute


def _owners(event: griffe.Class) -> list[griffe.Class]:
    """Return the classes that declare the fields of an event, the outermost base first, but not that of all events."""
    return [*reversed([base for base in event.mro() if base.name != _COMMON]), event]


def _fields(record: griffe.Class) -> Iterator[tuple[str, ...]]:
    for name, kind, description, optional in _declared(record):
        yield code(name), _type(kind) + (", optional" if optional else ""), description


def _declared(record: griffe.Class) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the name, type and description of each field but `type`, and whether it may be absent."""
    for field in record.members.values():
        if not isinstance(field, griffe.Attribute) or field.name == "type":
            continue
        annotation = str(field.annotation)
        optional = annotation.startswith("NotRequired[")
        kind = annotation.removeprefix("NotRequired[").removesuffix("]") if optional else annotation
        yield field.name, kind, docstring(field), optional


def _type(annotation: str) -> str:
    """Return an annotation as code, without bars, which end the cells of a table."""
    values = re.fullmatch(r"Literal\[(.*)\]", annotation)
    parts = values[1].split(", ") if values else annotation.split(" | ")
    return " or ".join(code(part.replace("'", '"')) for part in parts)


def docstring(item: griffe.Object) -> str:
    """Return the docstring of an item; empty without one."""
    return item.docstring.value if item.docstring else ""
