"""Reads response formats (the class or JSON schema of an answer), and parses and validates answers."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin

import pydantic
from langchain_core.messages import AIMessage
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from typing_extensions import TypeVar, is_typeddict

from graph_agent.base._internal.failure_log import exception_text, get_logger, log_user_error
from graph_agent.base._internal.lenient_json import parse_lenient_json
from graph_agent.base._internal.text import NotFiniteError, after_reasoning, excerpt, to_json_safe
from graph_agent.base._internal.validation_text import explain
from graph_agent.base.errors import ConfigError

logger = get_logger("graph_agent.settings.response_format")
_STRATEGIES = "langchain.agents.structured_output"
SchemaT = TypeVar("SchemaT", covariant=True)


class ResponseStrategy(Protocol[SchemaT]):
    """LangChain's `ToolStrategy` or `ProviderStrategy`, for type checkers of programs without its package."""

    @property
    def schema(self) -> type[SchemaT] | UnionType | dict[str, Any]:
        """The class or JSON schema of the answer."""
        ...


def is_json(text: str) -> bool:
    """Whether a text is one complete, valid JSON value; False also if it is nested too deeply to be parsed."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_ANNOTATIONS = ("$schema", "$id", "$defs", "definitions", "title", "description")
"""Keywords of JSON Schema that check nothing; a schema with only these permits any answer."""


@functools.lru_cache(64)
def client_schema(text: str) -> ResponseSchema:
    """Return the `ResponseSchema` of a JSON schema, given as JSON text; the newest 64 are cached.

    The first call for a schema may take seconds. Raises `ConfigError` for an invalid schema, and `ValueError` for a
    text that is not JSON.
    """
    return ResponseSchema(json.loads(text))


class ResponseSchema:
    """Parses and validates answers in one response format.

    With several classes, the JSON of an answer names its class in the field `response_type`.

    Args:
        given: A pydantic class, a dataclass, a `TypedDict` class, a `Union` of these, or a JSON schema; or LangChain's
            `ToolStrategy` or `ProviderStrategy` with one of them.

    Raises:
        ConfigError: `given` is none of these, has no JSON schema, or is an invalid one.
    """

    def __init__(self, given: Any) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {}
        """Name of a class → Pydantic's adapter for it; empty for a JSON schema."""
        self._tag = ""
        """Field of the JSON that names the class; empty for a single class."""
        self.is_enforced = _is_provider_strategy(given)
        """Whether the provider must enforce the format, because it was given as a `ProviderStrategy`."""
        given, self._handle_errors = _unwrapped(given)
        if isinstance(given, dict):
            # Imported where it is used: jsonschema takes 5 % of the CPU time of a server's start.
            from jsonschema import Draft202012Validator

            from graph_agent.base._internal.json_schema import SchemaCheck

            if given and not given.keys() & {*Draft202012Validator.VALIDATORS, *_ANNOTATIONS}:
                raise ConfigError(
                    f"response_format={excerpt(repr(given))}: this is no JSON schema, as it has no keyword of one; "
                    "write e.g. {'type': 'object', 'properties': {'total': {'type': 'number'}}, 'required': ['total']}."
                )
            self._check = SchemaCheck(given)
            self.json_schema: dict[str, Any] = given
            """The JSON schema of an answer."""
            return
        shapes = get_args(given) if get_origin(given) in (Union, UnionType) else (given,)
        for shape in shapes:
            if not _is_shape(shape):
                raise ConfigError(
                    "response_format takes a pydantic class, a dataclass, a TypedDict class, a Union of these or a "
                    f"JSON schema, not {shape!r}."
                )
            try:
                self._adapters[shape.__name__] = TypeAdapter(shape)
                self.json_schema = self._adapters[shape.__name__].json_schema()
            except (PydanticUserError, NameError) as error:
                raise ConfigError(f"response_format: {shape.__name__} has no JSON schema: {error}") from None
        if len(shapes) > 1:
            self._tag, self.json_schema = _tagged_schema(self._adapters)
        if len(self._adapters) < len(shapes):
            raise ConfigError(f"response_format: two classes of {given!r} have one name; rename one.")

    def correction(self, error: ValueError, reply: AIMessage) -> str | None:
        """Return the message by which the model is asked for a corrected answer; None to ask for none.

        It depends on `handle_errors` of the `ToolStrategy` with which the format was given: True (also without a
        strategy) gives a message with the error, a text is the message itself, False gives None, classes of errors give
        a message only for errors of them, and a function returns the message.

        Args:
            error: The error raised by `read`.
            reply: The model's reply.

        Raises:
            ConfigError: The `handle_errors` function of the user's `ToolStrategy` failed; the error is also logged.
        """
        handle, fix = self._handle_errors, f"That does not fit: {error} Send the corrected object."
        if isinstance(handle, bool | str):
            return handle if isinstance(handle, str) else fix if handle else None
        raised = sys.modules[_STRATEGIES].StructuredOutputValidationError("response_format", error, reply)
        if isinstance(handle, type | tuple):
            return fix if isinstance(raised, handle) else None
        try:
            return str(handle(raised))
        except Exception as failure:
            log_user_error(logger, "handle_errors of the ToolStrategy", failure)
            raise ConfigError(f"ToolStrategy: handle_errors failed: {exception_text(failure)}") from failure

    def read(self, text: str) -> Any:
        """Parse the text of an answer, check it, and return it as plain JSON.

        For a class, aliases are the keys and defaults are included. Damaged JSON is repaired if possible, and JSON
        inside prose, but not inside reasoning, is found. The check against a JSON schema may block for some seconds, so
        call this in a thread from an event loop.

        Raises:
            ValueError: The text does not fit the format; the message is written for the model.
            SlowSchemaError: The check against a JSON schema takes too long.
        """
        if not text.lstrip().startswith(("{", "[", "`")):
            # Reasoning may hold a draft of the answer.
            text = after_reasoning(text)
        try:
            value = parse_lenient_json(text)
        except ValueError:
            raise ValueError("The reply holds no JSON.") from None
        try:
            to_json_safe(value, finite=True)  # Python parses NaN and infinities, which JSON does not have
            return self._validated(value) if self._adapters else self._checked(value)
        except NotFiniteError:
            raise ValueError("A number is NaN, infinite or out of range; it must be finite.") from None
        except RecursionError:
            raise ValueError("The reply is nested too deeply.") from None

    def instance(self, value: Any) -> Any:
        """Return an object of the class for a value returned by `read`; for a JSON schema, the value itself.

        A value that the class rejects is returned unchanged, because an earlier version of the class may have stored
        it.
        """
        if not self._adapters or value is None:
            return value
        try:
            name, fields = self._class_of(value)
            return self._adapters[name].validate_json(json.dumps(fields))
        except ValueError:
            return value

    def _class_of(self, value: Any) -> tuple[str, Any]:
        """Return the name of an answer's class, and the answer without the field that names it.

        With a single class, the answer is returned unchanged. Raises `ValueError` if the answer names none of several
        classes.
        """
        if not self._tag:
            return next(iter(self._adapters)), value
        name = value.get(self._tag) if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._adapters:
            raise ValueError(f"The field {self._tag!r} must be one of: {', '.join(self._adapters)}.")
        return name, {field: each for field, each in value.items() if field != self._tag}

    def _validated(self, value: Any) -> Any:
        """Return an answer as plain JSON after checking it by its class; raise `ValueError` if it does not fit.

        It is the JSON of the object made by the class; the answer as given if that JSON would not give an equal object
        again.
        """
        name, fields = self._class_of(value)
        adapter = self._adapters[name]
        try:
            # From JSON: in JSON mode, a strict class accepts a date as text.
            made = adapter.validate_json(json.dumps(fields))
        except pydantic.ValidationError as error:
            known = adapter.json_schema().get("properties", {})
            raise ValueError(explain(error, name, known=known)) from None
        dumped = to_json_safe(adapter.dump_python(made, mode="json", by_alias=True, round_trip=True, warnings=False))
        dumped = {self._tag: name, **dumped} if self._tag else dumped
        # A dump may lack data that the class needs (serializers, excluded fields, differing aliases); the reply has it.
        return dumped if self.instance(dumped) == made else to_json_safe(value)

    def _checked(self, value: Any) -> Any:
        """Return an answer as plain JSON after checking it by the JSON schema.

        Raises `ValueError` if it does not fit, and `SlowSchemaError` if the check takes too long.
        """
        from jsonschema import ValidationError

        try:
            self._check(value)
        except ValidationError as error:
            where = "/".join(str(part) for part in error.absolute_path) or "the reply"
            raise ValueError(f"{where}: {error.message}.") from None
        return to_json_safe(value)


def _is_shape(given: Any) -> bool:
    """Whether an object is a class that can be a response format: of Pydantic, a dataclass or a `TypedDict`."""
    if is_typeddict(given):
        return True
    return isinstance(given, type) and (issubclass(given, BaseModel) or dataclasses.is_dataclass(given))


def _is_provider_strategy(given: Any) -> bool:
    """Whether an object is LangChain's `ProviderStrategy`."""
    # Without its module loaded, there is no strategy.
    strategies = sys.modules.get(_STRATEGIES)
    return strategies is not None and isinstance(given, strategies.ProviderStrategy)


def _unwrapped(given: Any) -> tuple[Any, Any]:
    """Return the schema inside one of LangChain's strategies, and how it handles errors (`handle_errors`, or True).

    Any other object is returned unchanged, with True. `oneOf` in a schema of a `ToolStrategy` becomes `anyOf`.

    Raises:
        ConfigError: The strategy has `tool_message_content`, which has no use here.
    """
    # Without its module loaded, there is no strategy.
    strategies = sys.modules.get(_STRATEGIES)
    if strategies is None or not isinstance(given, strategies.ToolStrategy):
        kinds = () if strategies is None else (strategies.ProviderStrategy, strategies.AutoStrategy)
        return (given.schema if isinstance(given, kinds) else given), True
    if given.tool_message_content is not None:
        raise ConfigError(
            "ToolStrategy: tool_message_content has no use here, because the answer is a message with the JSON and not "
            "a tool call; leave it out."
        )
    schema = given.schema
    if isinstance(schema, dict):
        # The strategy takes whichever schema the model chooses, also where an answer fits several.
        schema = {("anyOf" if key == "oneOf" else key): each for key, each in schema.items()}
    return schema, given.handle_errors


def _tagged_schema(adapters: dict[str, TypeAdapter[Any]]) -> tuple[str, dict[str, Any]]:
    """Return the name of the field that names the class, and the JSON schema of an answer of one of several classes.

    The field, required in each class, is `response_type`, with underscores before it if a class has that field itself.

    Raises `ConfigError` if one of the classes has no fields.
    """
    schemas, shared = TypeAdapter.json_schemas([(name, "validation", adapter) for name, adapter in adapters.items()])
    definitions: dict[str, Any] = shared.get("$defs", {})
    found = {name: schemas[name, "validation"] for name in adapters}
    own = {name: definitions.get(str(each.get("$ref")).rpartition("/")[2], each) for name, each in found.items()}
    if unusable := [name for name, each in own.items() if each.get("type") != "object"]:
        raise ConfigError(f"response_format: {unusable[0]} has no fields; each class of a Union needs some.")
    tag = "response_type"
    while any(tag in each.get("properties", {}) for each in own.values()):
        tag = f"_{tag}"
    variants = [
        {
            **each,
            "properties": {tag: {"const": name, "type": "string"}, **each.get("properties", {})},
            "required": [tag, *each.get("required", ())],
        }
        for name, each in own.items()
    ]
    schema: dict[str, Any] = {"type": "object", "anyOf": variants}
    referred = json.dumps([variants, definitions])
    if used := {name: each for name, each in definitions.items() if f'"#/$defs/{name}"' in referred}:
        schema["$defs"] = used
    return tag, schema
