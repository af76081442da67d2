"""Validates the tools, delegates and hooks passed to an agent's constructor, and the arguments of some calls."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from graph_agent.base._compat import config_parameter
from graph_agent.base._internal.failure_log import exception_text
from graph_agent.base.errors import ConfigError, SlowSchemaError, ToolArgumentsError
from graph_agent.base.marks import tool_of
from graph_agent.core.extensions.delegation import Delegate
from graph_agent.core.extensions.output import misfit_text

_DELEGATE = ("name", "description", "run")
"""Attributes that every delegate has."""
_PLAIN_TYPES = (str, int, float, bool, type(None), Any, list, dict)
"""Types of parameters that certainly have a JSON schema."""
_PLAIN_GENERICS = frozenset({list, dict, Union, UnionType})
"""Generic types that have a JSON schema if their arguments have."""
_LONGEST_NUMBER = 1_000
"""Maximum characters of a text that is checked; a longer one is not a number."""


def checked_tools(given: object) -> list[BaseTool]:
    """Return an agent's tools as a list of LangChain tools; callables are converted. None gives an empty list.

    Args:
        given: An iterable of tools and callables, or a LangGraph `ToolNode`.

    Raises:
        ConfigError: It is no such iterable, or an item cannot become a tool.
    """
    if isinstance(by_name := getattr(given, "tools_by_name", None), Mapping):
        given = by_name.values()  # a `ToolNode`
    return [checked_tool(each, f"tools[{at}]") for at, each in enumerate(_listed(given, "tools"))]


def checked_delegates(given: object) -> list[Delegate]:
    """Return an iterable of delegates as a list; None gives an empty one. The delegates are unchanged.

    Raises `ConfigError` for anything but an iterable of objects that have a delegate's attributes.
    """
    delegates = _listed(given, "delegates")
    for at, each in enumerate(delegates):
        if not all(hasattr(each, name) for name in _DELEGATE):
            raise ConfigError(
                f"delegates[{at}]={each!r} is no delegate; give GraphDelegate(name, description, graph) for a compiled "
                "graph, or A2ADelegate(name, url) for a remote agent."
            )
    return delegates


def checked_hooks(given: object, name: str = "hooks") -> list[Any]:
    """Return the hooks unchanged as a list (None gives an empty one); raise `ConfigError` if they are no list.

    Each hook is validated when it is registered.

    Args:
        name: Name of the parameter, for the error message.
    """
    return _listed(given, name)


def openai_schema(tool: BaseTool) -> dict[str, Any]:
    """Return a tool's schema in OpenAI's function format.

    If LangChain cannot convert a tool's JSON schema, that schema is passed on as it is, because the model's client
    repairs it. For any other tool whose arguments have no JSON schema, `ConfigError` is raised.
    """
    try:
        return convert_to_openai_tool(tool)
    except Exception as error:
        if isinstance(tool.args_schema, dict):
            # A schema that a server publishes may be invalid; the model's client repairs it.
            function = {"name": tool.name, "description": tool.description, "parameters": tool.args_schema}
            return {"type": "function", "function": function}
        raise ConfigError(
            f"The tool {tool.name!r} cannot be offered: {_first_line(error)} Give its parameters types that JSON has: "
            "str, int, float, bool, list, dict, or a pydantic model of these."
        ) from error


def check_schema(tool: BaseTool, hidden: Collection[str]) -> None:
    """Check that a tool can be offered to the model, i.e. that its arguments have a JSON schema.

    Args:
        tool: The tool. A conversion is slow, so it is only tried if the types of the parameters do not suffice.
        hidden: Names of injected parameters, which the model does not see.

    Raises:
        ConfigError: The arguments have no JSON schema.
    """
    schema: Any = tool.args_schema
    is_class = type(tool) is StructuredTool and isinstance(schema, type) and issubclass(schema, BaseModel)
    # LangChain makes the schema of the fields alone; validators of the class have no part in it.
    if is_class and schema.__pydantic_complete__:
        fields = [field for name, field in schema.model_fields.items() if name not in hidden]
        if all(map(_is_plain, fields)):
            return
    openai_schema(tool)


def _is_plain(field: FieldInfo) -> bool:
    """Whether a field certainly has a JSON schema: a type of JSON, and no metadata that may change the schema."""
    return not field.metadata and _is_plain_type(field.annotation)


def _is_plain_type(annotation: Any) -> bool:
    """Whether an annotation is a type of JSON, a `Literal`, or a list, dict or union of such types."""
    if any(annotation is plain for plain in _PLAIN_TYPES):
        return True
    # The arguments of a `Literal` are values.
    origin, arguments = get_origin(annotation), get_args(annotation)
    return origin is Literal or (origin in _PLAIN_GENERICS and all(map(_is_plain_type, arguments)))


def _listed(given: object, name: str) -> list[Any]:
    """Return an iterable as a list (None gives an empty one); raise `ConfigError` for a string, a mapping, a single
    tool, and any value that is not iterable.
    """
    if given is None:
        return []
    # A single tool is a pydantic model, whose iterator yields its fields.
    if isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | BaseModel):
        # The items are read once, as they may come from a generator.
        return list(given)
    raise ConfigError(f"{name}={given!r}: give a list, e.g. {name}=[…].")


def checked_tool(given: object, where: str) -> BaseTool:
    """Return a LangChain tool unchanged, or a callable converted to one; raise `ConfigError` for anything else.

    A callable needs a name, a docstring and type hints; a class of tools is refused, too.

    Args:
        given: The tool or callable.
        where: What was given, such as `tools[2]`, for the error message.
    """
    if isinstance(given, BaseTool):
        return given
    if not callable(given):
        raise ConfigError(f"{where}={given!r} is no tool; give a LangChain tool, or a function.")
    if (name := getattr(given, "__name__", None)) is None:
        raise ConfigError(f"{where}={given!r} has no name; give a function that calls it, with a docstring and types.")
    if isinstance(given, type) and issubclass(given, BaseTool):
        raise ConfigError(f"{where}: {name} is a class of tools; give an object of it: {name}(…).")
    try:
        return tool_of(given)
    except Exception as error:
        raise ConfigError(
            f"{where}: the function {name!r} cannot be a tool: {_first_line(error)} Give it a docstring and type hints."
        ) from error


def _first_line(error: Exception) -> str:
    """Return the first line of an exception's text, with a period at its end."""
    text = str(error) if isinstance(error, ValueError) else exception_text(error)
    return f"{text.strip().splitlines()[0].rstrip('.')}."


ArgumentsCheck = Callable[[Mapping[str, Any]], str | None]
"""Returns why arguments do not fit their tool, for the model; None if they do, or if its schema cannot be evaluated."""


def schema_check(tool: BaseTool, hidden: Collection[str]) -> ArgumentsCheck | None:
    """Return a function that checks the arguments of a tool which LangChain runs without a check; None if none is
    needed.

    LangChain does not check if the tool has a JSON schema, such as a tool of an MCP server, a schema class of pydantic
    1, or no schema, so that `_run` declares the parameters. No check is needed for a pydantic schema, for a `Tool` with
    one text, for a `_run` that accepts any arguments, and for a tool of pydantic 1 that handles its validation errors
    itself.

    Args:
        tool: The tool.
        hidden: Names of injected parameters, which the check skips.
    """
    schema: Any = tool.args_schema
    if isinstance(schema, dict):
        return _JsonCheck(tool.name, schema, hidden)
    if isinstance(tool, Tool) or (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    if schema is not None:
        return None if tool.handle_validation_error else _ClassCheck(tool, hidden)
    kinds = {parameter.kind for parameter in inspect.signature(tool._run).parameters.values()}
    is_open = kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return None if is_open else _ClassCheck(tool, {*hidden, config_parameter(tool._run) or "config"})


class _JsonCheck:
    """Checks arguments against a JSON schema; see `ArgumentsCheck`.

    The first call compiles the schema, which may take seconds.
    """

    def __init__(self, tool: str, schema: dict[str, Any], hidden: Collection[str]) -> None:
        self._tool, self._hidden = tool, hidden
        required = schema.get("required")
        if hidden and isinstance(required, list):
            schema = {**schema, "required": [name for name in required if name not in hidden]}
        self._schema = schema
        self._validate: Callable[[Any], None] | None = None

    def __call__(self, arguments: Mapping[str, Any]) -> str | None:
        # Imported where it is used: jsonschema is not a part of a server's start.
        from jsonschema.exceptions import ValidationError as SchemaValidationError

        from graph_agent.base._internal.json_schema import SchemaCheck

        try:
            if self._validate is None:
                self._validate = SchemaCheck(self._schema, self._tool)
            self._validate({name: value for name, value in arguments.items() if name not in self._hidden})
        except SchemaValidationError as error:
            at = "".join(f".{part}" for part in error.absolute_path)
            return f"The arguments do not fit the tool {self._tool!r}: {self._tool}{at}: {error.message}."
        except (ConfigError, SlowSchemaError, RecursionError):
            return None  # the tool checks the arguments itself
        return None


class _ClassCheck:
    """Checks arguments against a tool's class of pydantic 1, or against the class made from the signature of `_run`."""

    def __init__(self, tool: BaseTool, hidden: Collection[str]) -> None:
        self._tool, self._hidden = tool, hidden

    def __call__(self, arguments: Mapping[str, Any]) -> str | None:
        schema: Any = self._tool.args_schema or self._tool.tool_call_schema
        validate = getattr(schema, "model_validate", None) or schema.parse_obj
        try:
            validate({name: value for name, value in arguments.items() if name not in self._hidden})
        except Exception as error:  # noqa: BLE001 - a validator of the user may raise anything; the call itself reports it
            return misfit_text(self._tool, error, self._hidden) or None if hasattr(error, "errors") else None
        return None


def check_finite(tool: BaseTool, arguments: Mapping[str, Any]) -> None:
    """Raise `ToolArgumentsError` with the names of arguments with a text, also inside lists and dicts, that the schema
    converts to NaN or an infinity.

    Nothing is checked if the schema is no pydantic class, or the arguments do not fit it; long texts are skipped.
    Exceptions of a validator that are no validation error are raised.
    """
    suspects = [name for name, value in arguments.items() if _may_be_not_finite(value)]
    if not suspects:
        return
    # The schema without injected arguments.
    schema = tool.tool_call_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return
    try:
        parsed = vars(schema.model_validate({**arguments}))
    except ValidationError:
        return  # the call itself reports the misfit
    if names := [name for name in suspects if _is_not_finite(parsed.get(name))]:
        raise ToolArgumentsError(
            f"The arguments do not fit the tool {tool.name!r}: {', '.join(names)} must be finite, and was given as "
            f"{', '.join(repr(arguments[name])[:80] for name in names)}. Send a finite number."
        )


def _may_be_not_finite(value: Any) -> bool:
    if isinstance(value, str):
        if len(value) > _LONGEST_NUMBER:
            return False
        try:
            return not math.isfinite(float(value))
        except ValueError:
            return False
    if isinstance(value, Mapping):
        return any(map(_may_be_not_finite, value.values()))
    return isinstance(value, list) and any(map(_may_be_not_finite, value))


def _is_not_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, Mapping):
        return any(map(_is_not_finite, value.values()))
    return isinstance(value, list | tuple | set) and any(map(_is_not_finite, value))
