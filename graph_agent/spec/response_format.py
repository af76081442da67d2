"""Loads the `response_format` of an agent file: a class by dotted name, a schema file, or a JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graph_agent._internal.text import to_json_safe
from graph_agent._internal.yaml_files import parse_yaml
from graph_agent.errors import ConfigError
from graph_agent.settings.response_format import ResponseSchema
from graph_agent.spec.imports import load_attribute

SCHEMA_FILES = (".json", ".yaml", ".yml")


def load_response_format(given: str | dict[str, Any], folder: Path) -> type[Any] | dict[str, Any]:
    """Return the class or JSON schema that an agent file names.

    Args:
        given: `module:Class`, the path of a file with a JSON schema, or the schema itself.
        folder: The agent file's folder, which is searched first for modules and files.

    Raises:
        ConfigError: If there is no such class or file, or it is not a valid schema.
    """
    schema: Any = given
    if isinstance(given, str):
        schema = _read_schema(folder / given) if given.endswith(SCHEMA_FILES) else load_attribute(given, folder)
    if isinstance(schema, dict):
        # YAML may give dates, and keys that are not strings.
        schema = to_json_safe(schema)
    ResponseSchema(schema)
    return schema  # type: ignore[no-any-return]  # `ResponseSchema` has just checked it


def _read_schema(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path} is not there; name a file with a JSON schema, as JSON or YAML.")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else parse_yaml(text, str(path))
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} holds no {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON schema but {content!r}; a schema is an object, e.g. {{type: object}}.")
    return content
