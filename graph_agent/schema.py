"""The shape an answer must have: a pydantic class or a JSON schema, and what is wrong with an answer that has not."""

from __future__ import annotations

from typing import Any

import jsonschema
from pydantic import BaseModel, ValidationError

from graph_agent.config import explain
from graph_agent.errors import ConfigError
from graph_agent.repair import repaired
from graph_agent.text import plain


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
            try:
                jsonschema.Draft202012Validator.check_schema(given)
            except jsonschema.SchemaError as error:
                raise ConfigError(f"response_format is no valid JSON schema: {error.message}.") from None
            self.json_schema = given
        else:
            raise ConfigError(f"response_format takes a pydantic class or a JSON schema, not {given!r}.")

    def read(self, text: str) -> Any:
        """The answer as plain JSON.

        Raises:
            ValueError: When the text does not hold what was asked for; the message is for the model.
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
            except ValidationError as error:
                raise ValueError(explain(error, self._model.__name__, self._model.model_fields)) from None
        try:
            jsonschema.validate(value, self.json_schema)
        except jsonschema.ValidationError as error:
            where = "/".join(str(part) for part in error.absolute_path) or "the reply"
            raise ValueError(f"{where}: {error.message}.") from None
        return value
