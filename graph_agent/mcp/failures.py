"""Failures of MCP calls other than the tool's own errors; each states whether the call may have taken effect."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.tools import ToolException

from graph_agent._internal.exception_text import leaves
from graph_agent.errors import McpServerError


class McpCallError(McpServerError, ToolException):
    """A call received no answer from its server. Further calls use the same session or a new one.

    `may_have_run` is False if the tool certainly did not run, True if this is unknown.
    """

    def __init__(self, message: str, *, may_have_run: bool) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run
        """False if the tool certainly did not run."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a request will never be answered.

    `session_gone` is True if the whole session is unusable, False if only this request was refused.
    """

    reason: str
    may_have_run: bool
    session_gone: bool = True


class NotStartedError(Exception):
    """A server process could not be started; the message names the connection key and the fix."""


class LostCallError(Exception):
    """Internal to this package: a call was lost, and the retry policy has not been applied yet."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


def root_cause(error: BaseException) -> str:
    """Describe an error in one line.

    For an exception group the texts of all leaf errors are joined. The class name is included unless the text is
    self-explanatory.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(root_cause(leaf) for leaf in leaves(error)))
    text = str(error).strip()
    if isinstance(error, NotStartedError):
        return text
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename!r}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
