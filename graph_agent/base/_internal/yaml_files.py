"""Parses YAML written by hand, with one-line errors that name the position."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import yaml

from graph_agent.base.errors import ConfigError

_MOST_VALUES = 100_000
"""Maximum number of values in a document; a value repeated by aliases counts each time."""
_DEEPEST = 100


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader that also refuses duplicate keys, and documents that are nested too deeply or too large.

    A value repeated by aliases counts each time.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._values = 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # untyped in the stubs
        begun, self._depth = self._values, self._depth + 1
        if self._depth > _DEEPEST:
            raise _fault(f"it is nested more than {_DEEPEST} levels deep", event)
        node = super().compose_node(parent, index)
        if node is not None and isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                raise _fault(f"the alias '*{event.anchor}' is inside the value that it repeats", event)
            self._values += self._sizes[node]
        elif node is not None:
            self._values += 1
            self._sizes[node] = self._values - begun
        if self._values > _MOST_VALUES:
            raise _fault(f"it has more than {_MOST_VALUES:,} values, those that aliases repeat included", event)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            # A merge (`<<`) is no key of the mapping itself.
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark)
            if isinstance(key, str | int):
                seen.add(key)
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """Loads every unquoted scalar as text, so that `1.0`, `yes` and `null` are kept as written."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML declares it so


def _fault(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def load_yaml(text: str, *, texts: bool = False) -> Any:
    """Parse one YAML document and return its value; None if it is empty.

    Args:
        text: The document.
        texts: Whether to keep unquoted scalars, such as `1.0` and `yes`, as text.

    Raises:
        yaml.YAMLError: The text is not valid YAML, has a duplicate key, or is nested too deeply or too large.
    """
    try:
        return yaml.load(text, Loader=_TextLoader if texts else _Loader)
    except ValueError as error:
        # For a date that does not exist, and for a number of more than 4,300 digits.
        raise yaml.YAMLError(str(error)) from None


def parse_yaml(text: str, where: str, *, texts: bool = False) -> Any:
    """Parse one YAML document and return its value, with errors for the user; None if it is empty.

    Args:
        text: The document.
        where: Name of the document, which begins the message of an error; the position follows.
        texts: Whether to keep unquoted scalars, such as `1.0` and `yes`, as text.

    Raises:
        ConfigError: The text is not valid YAML, has a duplicate key, or is nested too deeply or too large.
    """
    try:
        return load_yaml(text, texts=texts)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        context = f" ({error.context})" if error.context else ""
        problem = " ".join(str(error.problem or "it cannot be read").split())
        raise ConfigError(f"{where}{place}: not valid YAML: {problem}{context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}.") from None


# An unclosed reference runs to the end of the text, so that no later one is tried in it.
_REFERENCE = re.compile(r"\$\{(?P<name>\w++)(?::-(?P<default>[^}]*+))?(?P<end>\}|\Z)")


def expand(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return a text with each `${NAME}` or `${NAME:-default}` replaced by the value in `environment`.

    An empty variable counts as unset if the reference has a default. A reference without `}` at the end of the text
    stays.

    Raises:
        ValueError: A variable is not set and has no default; the message has the reference and not the text.
    """
    expanded, missing = expand_known(text, environment)
    if missing is not None:
        name = _REFERENCE.fullmatch(missing)
        raise ValueError(f"the environment variable {name and name['name']} in {missing!r} is not set")
    return expanded


def expand_known(text: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str | None]:
    """Replace each `${NAME}` and `${NAME:-default}` that has a value in `environment` or a default.

    The others are kept, and so is a reference without `}` at the end of the text. An empty variable counts as unset if
    the reference has a default.

    Returns:
        The text, and the first complete reference without a value; None if all have one.
    """
    missing: list[str] = []

    def value(found: re.Match[str]) -> str:
        if not found["end"]:
            return found[0]
        given = environment.get(found["name"]) or found["default"]
        if given is None and (given := environment.get(found["name"])) is None:
            missing.append(found[0])
            return found[0]
        return given

    return _REFERENCE.sub(value, text), missing[0] if missing else None
