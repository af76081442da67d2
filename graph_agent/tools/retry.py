"""Retries of tools: the `retry` mark, with the field names of LangGraph's `RetryPolicy`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from graph_agent._internal.validation_text import explain
from graph_agent.errors import CallError, ConfigError


class ToolRetry(BaseModel):
    """The retry policy for a tool that raises an exception.

    Invalid arguments and errors returned by the tool itself are not retried. A call that was stopped at its time limit,
    or lost its MCP server, may have taken effect: it is retried only if the tool reads or is marked as idempotent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    max_attempts: int = Field(default=1, ge=1)
    """Total attempts, including the first."""
    initial_interval: NonNegativeFloat = 0.5
    """Seconds before the second attempt."""
    backoff_factor: float = Field(default=2.0, ge=1)
    """Factor applied to the wait after each further attempt."""
    max_interval: NonNegativeFloat = 128.0
    """Maximum wait in seconds."""
    jitter: bool = True
    """Whether each wait is a random value between half and all of its length."""

    @classmethod
    def of(cls, tool: str, marks: Mapping[str, Any]) -> Self:
        """Return the policy in a tool's marks; one attempt without a mark.

        Args:
            tool: The tool's name, for the error message.
            marks: The tool's marks; `retry` is a mapping of this class's fields.

        Raises:
            ConfigError: If the mark is not such a mapping.
        """
        given = marks.get("retry")
        if given is None:
            return cls()
        where = f"The tool {tool!r}: retry"
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where}={given!r}: write a mapping, such as {{'max_attempts': 2}}.")
        try:
            return cls(**given)
        except ValidationError as error:
            raise ConfigError(explain(error, where, cls)) from None

    def wait_s(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt, counted from 1."""
        longest = min(self.initial_interval, self.max_interval)
        for _ in range(attempt - 1):
            longest = min(longest * self.backoff_factor, self.max_interval)
        return longest * random.uniform(0.5, 1) if self.jitter else longest

    def again(self, error: BaseException, attempt: int, *, cut_off: bool, marks: Mapping[str, Any]) -> bool:
        """Whether to retry after a failed attempt.

        Args:
            error: The tool's exception.
            attempt: The failed attempt, counted from 1.
            cut_off: Whether it may have taken effect: it was stopped at its time limit, or its server was lost.
            marks: The tool's marks.
        """
        if attempt >= self.max_attempts or isinstance(error, CallError) or not isinstance(error, Exception):
            return False
        return not cut_off or marks.get("effect") == "read" or marks.get("idempotent") is True


def after_attempts(text: str, attempts: int) -> str:
    """Return the text of the last failure, with the number of attempts if more than one."""
    return text if attempts == 1 else f"{text.removesuffix('.')} (after {attempts} attempts)."
