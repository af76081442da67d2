"""The shape an answer must have: a class or a JSON schema, and what is wrong with an answer that has not."""

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
from graph_agent.calls.lenient_json import repaired
from graph_agent.errors import ConfigError


def is_json(text: str) -> bool:
    """Whether a text is complete JSON, with nothing to mend."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class ResponseSchema:
    """Reads an answer's text as the structure that was asked for.

    Args:
        given: A pydantic class, a dataclass, a `TypedDict` class, or a JSON schema.

    Raises:
        ConfigError: When it is none of these, has no JSON schema, or is no valid one.
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
        """Read an answer as plain JSON, from which `instance` makes an object of the class.

        Fields are under their aliases, those with a default included.

        Raises:
            ValueError: When the text does not hold what was asked for; the message is for the model.
            SlowSchemaError: When a JSON schema takes too long to check it against, some seconds at most; in a running
                event loop, read in a thread.
        """
        try:
            value = repaired(text)
        except ValueError:
            raise ValueError("The reply holds no JSON.") from None
        try:
            return self._validated(value) if self._adapter is not None else self._checked(value)
        except RecursionError:
            raise ValueError("The reply is nested too deeply.") from None

    def instance(self, value: Any) -> Any:
        """Return an object of the class for what `read` returned; the value itself for a JSON schema.

        A value that the class does not take is returned as it is: it was stored under an earlier form of the class.
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
            # From JSON, where a class that is strict takes a date as text.
            made = self._adapter.validate_json(json.dumps(value))
        except pydantic.ValidationError as error:
            raise ValueError(explain(error, self._name, known=self.json_schema.get("properties", {}))) from None
        dumped = plain(self._adapter.dump_python(made, mode="json", by_alias=True, round_trip=True, warnings=False))
        # Serializers, excluded fields and unlike aliases lose what the class needs; the reply itself has it.
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
