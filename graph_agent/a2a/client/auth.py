"""Authentication to a remote agent by a token or key, read from the environment for each use and never stored."""

from __future__ import annotations

import os
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator

from graph_agent.errors import OperatorError


class A2AAuth(BaseModel):
    """Name of the environment variable with a remote agent's token or key; never the secret itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bearer_env: str | None = None
    """Variable with a token, which is sent as `Authorization: Bearer …`."""
    api_key_env: str | None = None
    """Variable with a key, which is sent in `header`."""
    header: str = "X-API-Key"
    """Header for the key."""

    @model_validator(mode="after")
    def _check_one_variable(self) -> Self:
        if (self.bearer_env is None) == (self.api_key_env is None):
            raise ValueError("name one variable: 'bearer_env' for a token, or 'api_key_env' for a key")
        return self

    def headers(self) -> dict[str, str]:
        """Return the header with the secret.

        Raises:
            OperatorError: If the variable is not set.
        """
        if not (secret := self._secret()):
            raise OperatorError(f"the environment variable {self._name} is not set; it holds the secret for this agent")
        return {"Authorization": f"Bearer {secret}"} if self.bearer_env else {self.header: secret}

    def without_secret(self, value: Any) -> Any:
        """Replace the secret in all strings of a JSON value; an agent may echo it."""
        secret = self._secret()
        if not secret:
            return value
        if isinstance(value, str):
            return value.replace(secret, "[secret]")
        if isinstance(value, list):
            return [self.without_secret(item) for item in value]
        if isinstance(value, dict):
            return {self.without_secret(key): self.without_secret(item) for key, item in value.items()}
        return value

    @property
    def _name(self) -> str:
        return self.bearer_env or self.api_key_env or ""

    def _secret(self) -> str:
        return os.environ.get(self._name, "").strip()
