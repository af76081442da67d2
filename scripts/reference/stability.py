"""The page of the public surface: the policy, and the list that a test compares with the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import griffe

from graph_agent.agent_file.editor_schema import agent_schema
from graph_agent.session.importing import FORMAT as EXPORT_FORMAT
from graph_agent.session.importing import VERSION as EXPORT_VERSION
from graph_agent.storage.checkpoints.format import FORMAT
from scripts.reference import cli, environment, events, http, metrics
from scripts.reference.markdown import document
from scripts.reference.source import ROOT, loaded

PATH = "docs/reference/stability.md"
_POLICY = """
Versions follow [semantic versioning](https://semver.org). The lists below are the public surface. From 1.0 on:

- A patch version repairs behaviour and changes no list.
- A minor version may add to the lists. It removes nothing, and no argument becomes required.
- What is to go is deprecated first: for at least one minor version it works as before, and a `DeprecationWarning`, or a
  command's line on standard error, names the replacement. It goes with the next major version.
- Sessions and exports that any earlier version stored are read by every later one. An older version refuses a newer
  format with an error that names both numbers, and changes nothing.
- Texts for people (log messages, errors, help, the page) may change at any time, and so may everything that is not
  listed. Import paths that no list names are inner ones.
- An event, a part of a stream or a JSON answer may get further fields, and a stream further types of events; programs
  ignore what they do not know.

A version before 1.0 may still change a list, and its changelog names the change.

In the lists, `?` marks an argument or a field that may be left out, and `*` begins the arguments that are passed by
name. `make reference` adds what the code has gained. It removes nothing: a line goes by hand, with an entry of the
changelog, because a removed line is a promise that is not kept any more.
"""
_NO_FIELDS = {"model_config", "removed_fields"}
"""Class variables of pydantic models that hold no value of an instance."""
_MARKERS = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


def page() -> str:
    """Return the page: the policy, and each list of the file with what the code has gained."""
    before = listed((ROOT / PATH).read_text(encoding="utf-8")) if (ROOT / PATH).exists() else {}
    now = surface()
    lists = {title: sorted({*lines, *removed(before.get(title, ()), lines)}) for title, lines in now.items()}
    sections = (f"## {title}\n\n```text\n" + "\n".join(lines) + "\n```" for title, lines in lists.items())
    return document("Stability", _POLICY, *sections)


def listed(text: str) -> dict[str, list[str]]:
    """Return the lists of a page: title → lines."""
    found = re.findall(r"^## ([^\n]+)\n\n```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    return {title: lines.split("\n") for title, lines in found}


def removed(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return the lines of which nothing in the code keeps the promise.

    A function keeps it with the same arguments in the same order, and with more that may be left out.
    """
    current = {line.partition("(")[0]: line for line in now}
    return [line for line in before if not _keeps(current.get(line.partition("(")[0], ""), line)]


def surface() -> dict[str, list[str]]:
    """Return the public surface of the code: title → sorted lines."""
    lists: dict[str, Iterable[str]] = {
        "Python": _names(),
        "Events": events.fields(),
        "HTTP": http.surface(),
        "Command line": cli.surface(),
        "Agent file": _agent_file(),
        "Environment variables": environment.names(),
        "Metrics": metrics.names(),
        "Stored formats": [f"checkpoints {each}" for each in range(1, FORMAT + 1)]
        + [f"{EXPORT_FORMAT} {each}" for each in range(1, EXPORT_VERSION + 1)],
    }
    return {title: sorted(set(lines)) for title, lines in lists.items()}


def _names() -> Iterator[str]:
    """Yield the names that the pages of the Python API describe, with their arguments and members."""
    loader = loaded()
    loader.resolve_aliases(implicit=True)
    for described in sorted((ROOT / "docs/reference/api").glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", described.read_text(encoding="utf-8"), re.MULTILINE):
            item = loader.modules_collection[name]
            item = item.final_target if isinstance(item, griffe.Alias) else item
            yield name + _arguments(item)
            if isinstance(item, griffe.Class):
                yield from _members(name, item)


def _members(name: str, of: griffe.Class) -> Iterator[str]:
    for member, found in of.all_members.items():
        item = found.final_target if isinstance(found, griffe.Alias) else found
        public = not member.startswith("_") and member not in _NO_FIELDS
        if public and (item.is_function or item.is_attribute):
            yield f"{name}.{member}{_arguments(item)}"


def _arguments(item: griffe.Object) -> str:
    """Return the arguments of a function or of a class's constructor, in parentheses; empty for another object."""
    if isinstance(item, griffe.Class):
        given: Iterable[griffe.Parameter] = [each for each in item.parameters if each.name != "self"]
        if not given:
            return ""
    elif isinstance(item, griffe.Function):
        given = [each for each in item.parameters if each.name not in {"self", "cls"}]
    else:
        return ""
    shown, by_name = [], False
    for each in given:
        if each.kind is griffe.ParameterKind.keyword_only and not by_name:
            shown.append("*")
        by_name |= each.kind in {griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional}
        shown.append(_MARKERS.get(each.kind or griffe.ParameterKind.positional_or_keyword, "") + each.name)
        shown[-1] += "?" if each.default is not None and each.kind not in _MARKERS else ""
    return f"({', '.join(shown)})"


def _keeps(now: str, before: str) -> bool:
    if now == before or not (now and before.endswith(")")):
        return now == before
    given, wanted = (line.partition("(")[2].removesuffix(")").split(", ") for line in (now, before))
    added = [each for each in given if each not in wanted]
    kept = [each for each in given if each in wanted]
    return kept == [each for each in wanted if each] and all(
        each.startswith("*") or each.endswith("?") for each in added
    )


def _agent_file() -> Iterator[str]:
    schema = agent_schema()
    yield from _keys("", schema)
    for name, definition in schema["$defs"].items():
        yield from _keys(f"{name}.", definition)


def _keys(prefix: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for key in schema.get("properties", ()):
        yield f"{prefix}{key}" + ("" if key in schema.get("required", ()) else "?")
