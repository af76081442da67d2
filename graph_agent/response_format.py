"""Response formats: the class or JSON schema of an answer, and its validation."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pydantic
from jsonschema import ValidationError
from pydantic import BaseModel, PydanticUserError, TypeAdapter
from typing_extensions import is_typeddict

from graph_agent._internal.json_schema import SchemaCheck
from graph_agent._internal.text import plain
from graph_agent._internal.validation_text import explain
from graph_agent.calls.lenient_json import parse_lenient_json
from graph_agent.errors import ConfigError


def is_json(text: str) -> bool:
    """Whether a text is valid, complete JSON that needs no repair."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class ResponseSchema:
    """Parses and validates an answer's text by the requested format.

    Args:
        given: A pydantic class, a dataclass, a `TypedDict` class, or a JSON schema.

    Raises:
        ConfigError: When it is none of these, has no JSON schema, or is an invalid one.
    """

    def __init__(self, given: type[Any] | dict[str, Any]) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        if isinstance(given, dict):
            self._check = SchemaCheck(given)
            self.json_schema: dict[str, Any] = given
            return
        if not _is_shape(given):
            raise ConfigError(
                "response_format takes a pydantic class, a dataclass, a TypedDict class or a JSON schema, "
                f"not {given!r}."
            )
        self._name = given.__name__
        try:
            self._adapter = TypeAdapter(given)
            self.json_schema = self._adapter.json_schema()
        except (PydanticUserError, NameError) as error:
            raise ConfigError(f"response_format: {self._name} has no JSON schema: {error}") from None

    def read(self, text: str) -> Any:
        """Parse an answer to plain JSON, from which `instance` makes an object of the class.

        Fields are named by their aliases; fields with a default are included.

        Raises:
            ValueError: When the text does not match the format; the message is for the model.
            SlowSchemaError: When the check against a JSON schema takes too long. As it may block for some seconds, call
                this in a thread from an event loop.
        """
        try:
            value = parse_lenient_json(text)
        except ValueError:
            raise ValueError("The reply holds no JSON.") from None
        try:
            return self._validated(value) if self._adapter is not None else self._checked(value)
        except RecursionError:
            raise ValueError("The reply is nested too deeply.") from None

    def instance(self, value: Any) -> Any:
        """Return an object of the class for what `read` returned; the value itself for a JSON schema.

        A value that the class rejects is returned unchanged: it was stored under an earlier version of the class.
        """
        if self._adapter is None or value is None:
            return value
        try:
            return self._adapter.validate_json(json.dumps(value))
        except pydantic.ValidationError:
            return value

    def _validated(self, value: Any) -> Any:
        assert self._adapter is not None
        try:
            # From JSON: in JSON mode, a strict class accepts a date as text.
            made = self._adapter.validate_json(json.dumps(value))
        except pydantic.ValidationError as error:
            raise ValueError(explain(error, self._name, known=self.json_schema.get("properties", {}))) from None
        dumped = plain(self._adapter.dump_python(made, mode="json", by_alias=True, round_trip=True, warnings=False))
        # A dump may lack data that the class needs (serializers, excluded fields, differing aliases); the reply has it.
        return dumped if self.instance(dumped) == made else plain(value)

    def _checked(self, value: Any) -> Any:
        try:
            self._check(value)
        except ValidationError as error:
            where = "/".join(str(part) for part in error.absolute_path) or "the reply"
            raise ValueError(f"{where}: {error.message}.") from None
        return plain(value)


def _is_shape(given: Any) -> bool:
    if is_typeddict(given):
        return True
    return isinstance(given, type) and (issubclass(given, BaseModel) or dataclasses.is_dataclass(given))
