"""Defines a model with the address, the headers and the key variable of its server."""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from graph_agent.base._internal.failure_log import clause
from graph_agent.base._internal.secrets import SECRET_HEADERS
from graph_agent.base._internal.validation_text import describe_fields, explain
from graph_agent.base._internal.yaml_files import expand
from graph_agent.base.errors import ConfigError

NO_KEY = "not-needed"
"""Key sent to a server that needs none, because clients require some text."""
_SECRET = SECRET_HEADERS | {"api-key", "x-goog-api-key", "x-auth-token"}
"""Names of headers, in lower case, whose values are secrets."""
_SHORT = re.compile(r"(?P<model>[^@\s].*?)@(?P<url>(?:https?://|\$\{).*)")
"""Matches the short form `provider:name@http://…`."""


class ModelEndpoint(BaseModel):
    """A model with the address, headers and key variable of its server.

    The key itself is never stored here, only the name of the environment variable that holds it.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True, json_schema_extra=describe_fields
    )

    model: str = Field(min_length=1)
    """The model as `provider:name`, such as `openai:qwen3` for a server with OpenAI's API."""
    base_url: str | None = Field(default=None, min_length=1)
    """Address of the server, such as `http://localhost:8080/v1`; `${NAME}` or `${NAME:-default}` is read from the
    environment. None for the provider's own."""
    headers: dict[str, str] = {}
    """Headers of every request; values may refer to variables, as `base_url`, and those of secrets must."""
    api_key_env: str | None = Field(default=None, min_length=1)
    """Environment variable that holds the key. Without it, a server at `base_url` receives no key; None without
    `base_url` for the provider's own variable."""

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str | None) -> str | None:
        """Return the address; raise `ValueError` if it is not HTTP or has credentials. One with a variable is checked
        later.
        """
        if url is not None and "${" not in url:
            _check_address(url)
        return url

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers; raise `ValueError` for one that is a secret, unless it is written as a variable
        (`${NAME}`).
        """
        for name, value in headers.items():
            if name.casefold() in _SECRET and "${" not in value:
                raise ValueError(f"{name} is a secret, which does not belong here; write '${{NAME}}' of a variable")
        return headers

    def __str__(self) -> str:
        return self.model if self.base_url is None else f"{self.model} at {self.base_url}"

    def address(self) -> str | None:
        """Return the base URL with environment variables replaced; None for the provider's own address.

        Raises:
            ConfigError: A variable is not set, or the URL is not an http or https address.
        """
        if self.base_url is None:
            return None
        url = self._expanded(self.base_url)
        try:
            _check_address(url)
        except ValueError as error:
            raise ConfigError(f"base_url of {self.model!r}: {error}.") from None
        return url

    def sent_headers(self) -> dict[str, str]:
        """Return the headers of each request, with environment variables replaced; empty by default.

        Raises:
            ConfigError: A variable is not set.
        """
        return {name: self._expanded(value) for name, value in self.headers.items()}

    def key(self) -> str | None:
        """Return the server's key; None lets the client read the provider's own environment variable.

        For a `base_url` without `api_key_env`, this is the placeholder `NO_KEY`.

        Raises:
            ConfigError: The variable named by `api_key_env` is not set or blank.
        """
        if self.api_key_env is None:
            return None if self.base_url is None else NO_KEY
        if not (key := os.environ.get(self.api_key_env, "").strip()):
            raise ConfigError(
                f"The model {self.model!r} needs a key: set the environment variable {self.api_key_env}, which "
                "api_key_env names, or leave api_key_env out for a server without keys."
            )
        return key

    def _expanded(self, text: str) -> str:
        """Replace `${NAME}` and `${NAME:-default}` in a text; raise `ConfigError` if a variable is not set."""
        try:
            return expand(text)
        except ValueError as error:
            raise ConfigError(
                f"The model {self.model!r}: {clause(error)}; set it, or write a default: '${{NAME:-default}}'."
            ) from None


def _check_address(url: str) -> None:
    """Raise `ValueError` if an address is not HTTP or HTTPS with a host, or has a user name or a password in it."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https address; write for example 'http://localhost:8080/v1'")
    if parts.username or parts.password:
        raise ValueError("a password does not belong in the address; name the variable of the key with api_key_env")


def read_endpoint(given: Any) -> ModelEndpoint:
    """Validate the mapping of an endpoint in a file.

    Raises:
        ValueError: A field is invalid; the text has one sentence for each.
    """
    try:
        return ModelEndpoint.model_validate(given)
    except ValidationError as error:
        lines = explain(error, "endpoint", ModelEndpoint).splitlines()
        raise ValueError(" ".join(line.removeprefix("endpoint: ") for line in lines).removesuffix(".")) from None


def endpoint_in(name: str) -> ModelEndpoint | None:
    """Parse the short form `provider:name@http://…` of an endpoint; None for a name without an address.

    Raises:
        ConfigError: The address is not valid.
    """
    found = _SHORT.fullmatch(name.strip())
    if found is None:
        return None
    try:
        return read_endpoint({"model": found["model"], "base_url": found["url"]})
    except ValueError as error:
        raise ConfigError(f"The model {found['model']!r} with an address: {error}.") from None
