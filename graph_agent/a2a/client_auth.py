"""Who we are to a remote agent: a token or key from the environment, read when it is needed and kept nowhere."""

from __future__ import annotations

import os
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from graph_agent.errors import OperatorError


class A2AAuth(BaseModel):
    """Where a remote agent's token or key is: the name of an environment variable, never the secret itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bearer_env: str | None = None
    """Variable with a token, sent as `Authorization: Bearer …`."""
    api_key_env: str | None = None
    """Variable with a key, sent in `header`."""
    header: str = "X-API-Key"
    """The header of the key."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.bearer_env is None) == (self.api_key_env is None):
            raise ValueError("name one variable: 'bearer_env' for a token, or 'api_key_env' for a key")
        return self

    def headers(self) -> dict[str, str]:
        """The header that carries the secret.

        Raises:
            OperatorError: When the variable is not set.
        """
        return {"Authorization": f"Bearer {self.secret()}"} if self.bearer_env else {self.header: self.secret()}

    def secret(self) -> str:
        """The secret itself.

        Raises:
            OperatorError: When the variable is not set.
        """
        name = self.bearer_env or self.api_key_env or ""
        if not (value := os.environ.get(name, "").strip()):
            raise OperatorError(f"the environment variable {name} is not set; it holds the secret for this agent")
        return value
