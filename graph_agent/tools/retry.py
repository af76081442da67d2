"""Trying a tool again: the `retry` mark, in the names of LangGraph's `RetryPolicy`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError

from graph_agent._internal.validation_text import explain
from graph_agent.errors import CallError, ConfigError


class ToolRetry(BaseModel):
    """How often, and after which waits, a tool that raised an exception is run again.

    Arguments that do not fit are not tried again, nor what the tool itself returns as an error. A call that was stopped
    at its time limit, or whose MCP server was lost under it, may have taken effect: it is run again only where the tool
    reads, or is marked as idempotent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    max_attempts: int = Field(default=1, ge=1)
    """Attempts in all, the first included."""
    initial_interval: NonNegativeFloat = 0.5
    """Seconds before the second attempt."""
    backoff_factor: float = Field(default=2.0, ge=1)
    """What the wait is multiplied by after each further attempt."""
    max_interval: NonNegativeFloat = 128.0
    """Seconds that a wait may come to."""
    jitter: bool = True
    """Whether each wait is drawn between half and all of its length."""

    @classmethod
    def of(cls, tool: str, marks: Mapping[str, Any]) -> Self:
        """The policy in a tool's marks; one attempt where there is none.

        Args:
            tool: The tool's name, for the message.
            marks: The tool's marks; `retry` is a mapping of this class's fields.

        Raises:
            ConfigError: When the mark is no such mapping.
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
        """Seconds to wait after an attempt, counted from 1."""
        longest = min(self.initial_interval, self.max_interval)
        for _ in range(attempt - 1):
            longest = min(longest * self.backoff_factor, self.max_interval)
        return longest * random.uniform(0.5, 1) if self.jitter else longest

    def again(self, error: BaseException, attempt: int, *, cut_off: bool, marks: Mapping[str, Any]) -> bool:
        """Whether a failed attempt is followed by another.

        Args:
            error: What the tool raised.
            attempt: The attempt that failed, counted from 1.
            cut_off: Whether it may have taken effect: it was stopped at its time limit, or its server was lost.
            marks: The tool's marks.
        """
        if attempt >= self.max_attempts or isinstance(error, CallError) or not isinstance(error, Exception):
            return False
        return not cut_off or marks.get("effect") == "read" or marks.get("idempotent") is True


def after_attempts(text: str, attempts: int) -> str:
    """What the model is told of the last failure: how many attempts there were, where there was more than one."""
    return text if attempts == 1 else f"{text.removesuffix('.')} (after {attempts} attempts)."
