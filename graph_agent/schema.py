"""The shape an answer must have: a pydantic class or a JSON schema, and what is wrong with an answer that has not."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from jsonschema import ValidationError
from pydantic import BaseModel

from graph_agent.config import explain
from graph_agent.errors import ConfigError
from graph_agent.repair import repaired
from graph_agent.schema_check import SchemaCheck
from graph_agent.text import plain


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
        given: A pydantic class or a JSON schema.

    Raises:
        ConfigError: When it is neither, or no valid schema.
    """

    def __init__(self, given: type[BaseModel] | dict[str, Any]) -> None:
        self._model: type[BaseModel] | None = None
        if isinstance(given, type) and issubclass(given, BaseModel):
            self._model = given
            self.json_schema: dict[str, Any] = given.model_json_schema()
        elif isinstance(given, dict):
            self._check = SchemaCheck(given)
            self.json_schema = given
        else:
            raise ConfigError(f"response_format takes a pydantic class or a JSON schema, not {given!r}.")

    def read(self, text: str) -> Any:
        """The answer as plain JSON.

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
            return plain(self._checked(value))
        except RecursionError:
            raise ValueError("The reply is nested too deeply.") from None

    def _checked(self, value: Any) -> Any:
        if self._model is not None:
            try:
                return self._model.model_validate(value).model_dump(mode="json")
            except pydantic.ValidationError as error:
                raise ValueError(explain(error, self._model.__name__, self._model.model_fields)) from None
        try:
            self._check(value)
        except ValidationError as error:
            where = "/".join(str(part) for part in error.absolute_path) or "the reply"
            raise ValueError(f"{where}: {error.message}.") from None
        return value
