"""How a call to an MCP server can fail other than by the tool's own error.

The one question that matters is whether the call may have taken effect; each failure here answers it.
"""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.tools import ToolException

from graph_agent._internal.exception_text import leaves
from graph_agent.errors import McpServerError


class McpCallError(McpServerError, ToolException):
    """A call that got no answer from its server. The session, or the next one, serves further calls.

    `may_have_run` is False when it is certain that the tool did not run, and True when nobody can know.
    """

    def __init__(self, message: str, *, may_have_run: bool) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a request will never be answered.

    `session_gone` tells a session that is of no more use from a refusal of this one request.
    """

    reason: str
    may_have_run: bool
    session_gone: bool = True


class NotStartedError(Exception):
    """The process of a server could not be started; the text names the key of the connection, and the fix."""


class LostCallError(Exception):
    """Inside this package: a call was lost, and the policy for that has not been applied yet."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(loss.reason)
        self.loss = loss


def root_cause(error: BaseException) -> str:
    """Say in one line what went wrong, looking through exception groups.

    Returns the text of each of a group's causes, or of the error itself, with its class name where the text alone says
    little.
    """
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(root_cause(leaf) for leaf in leaves(error)))
    text = str(error).strip()
    if isinstance(error, NotStartedError):
        return text
    if isinstance(error, OSError) and error.filename:
        return f"{error.strerror}: {error.filename!r}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
