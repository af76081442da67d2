"""Validates the calls that a person decides on: the planned call, and the one that replaces it."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError

from graph_agent._internal.validation_text import explain
from graph_agent.errors import ConfigError, SlowSchemaError, ToolArgumentsError, did_you_mean
from graph_agent.tools.invoke import check_finite
from graph_agent.tools.toolbox import Toolbox


def edit_fault(toolbox: Toolbox, name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a call cannot be run; None if it can."""
    if name in toolbox.delegates:
        task = arguments.get("task")
        if set(arguments) == {"task"} and isinstance(task, str) and task.strip():
            return None
        return f"{name} takes {{'task': '…'}}, not {arguments!r}."
    tool = toolbox.tools.get(name)
    if tool is None:
        return f"the agent has no tool {name!r}; {did_you_mean(name, [*toolbox.tools, *toolbox.delegates])}"
    return _arguments_fault(tool, arguments)


def planned_fault(toolbox: Toolbox, name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a planned call fails at its arguments, for the model; None if it may run."""
    if name in toolbox.delegates:
        return None if arguments.get("task") else edit_fault(toolbox, name, arguments)
    if (tool := toolbox.tools.get(name)) is None:
        return None  # a tool of middleware
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        fault = _schema_fault(name, schema, arguments)
        return fault and f"The arguments do not fit the tool {name!r}: {fault}"
    return toolbox.arguments_fault(name, arguments)


def _arguments_fault(tool: BaseTool, arguments: dict[str, Any]) -> str | None:
    # The schema without injected arguments.
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return _schema_fault(tool.name, schema, arguments)
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    known = [field.alias or name for name, field in schema.model_fields.items()]
    if schema.model_config.get("extra") != "allow":
        for name in arguments:
            if name not in known and name not in schema.model_fields:
                return f"{tool.name} has no argument {name!r}; {did_you_mean(name, known)}"
    try:
        schema.model_validate(arguments)
        check_finite(tool, arguments)
    except ValidationError as error:
        return explain(error, tool.name, schema)
    except ToolArgumentsError as error:
        return str(error)
    return None


def _schema_fault(name: str, schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    # Imported where it is used: jsonschema is not a part of a server's start.
    from jsonschema.exceptions import ValidationError as SchemaValidationError

    from graph_agent._internal.json_schema import SchemaCheck

    try:
        SchemaCheck(schema, name)(arguments)
    except SchemaValidationError as error:
        at = "".join(f".{part}" for part in error.absolute_path)
        return f"{name}{at}: {error.message}."
    except (ConfigError, SlowSchemaError, RecursionError):
        return None  # a schema that cannot be checked here; the tool checks the arguments itself
    return None
