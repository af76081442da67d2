"""Parsing of hand-written YAML, with one-line errors that name the position."""

from __future__ import annotations

from typing import Any

import yaml

from graph_agent.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with duplicate keys as errors."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark)
            if isinstance(key, str | int):
                seen.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        where: Its name in errors, e.g. `Agent file agent.yaml`.

    Raises:
        ConfigError: If it is not valid YAML or holds a duplicate key.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        context = f" ({error.context})" if error.context else ""
        problem = " ".join(str(error.problem or "it cannot be read").split())
        raise ConfigError(f"{where}{place}: not valid YAML: {problem}{context}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not valid YAML: {' '.join(str(error).split())}.") from None
