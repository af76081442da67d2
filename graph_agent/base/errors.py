"""Defines the errors, grouped by who must act; `graph_agent.errors` exports them, and its docstring draws the tree.

A message states what happened, the value given, and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_FEW_NAMES = 8


class GraphAgentError(Exception):
    """Base class of all errors that this package raises on purpose."""


class UserError(GraphAgentError):
    """The caller must change code, configuration or input."""


class ConfigError(UserError, ValueError):
    """An invalid setting, found when the agent is built."""


class MissingExtraError(ImportError, ConfigError):
    """An optional dependency is not installed; the message has the command that installs it."""


class InputError(UserError, ValueError):
    """An invalid input to a run."""


class DecisionError(InputError):
    """A reviewer's decisions do not fit the calls that wait for approval; the session still waits."""


class InputConflictError(InputError):
    """An input id already belongs to a different input of the session; nothing was run or changed."""


class InputSupersededError(InputError):
    """A repeated input has no answer, because the session received a later input before it was finished."""


class UnknownFactError(InputError):
    """The caller has no fact with this id."""


class SessionBusyError(UserError, RuntimeError):
    """A run was refused before it began, because another run of the session is active."""


class SlowSchemaError(UserError):
    """Checking an answer against its JSON schema takes too long."""


class SyncInLoopError(UserError, RuntimeError):
    """A blocking entry point was called from the thread of a running event loop."""


class ScriptError(UserError, AssertionError):
    """A scripted model received more requests than it has replies, or fewer."""


class RunFailedError(GraphAgentError):
    """An input failed, and the setting is `on_failure="raise"`. The session's status is `FAILED`.

    Args:
        message: One sentence for a user.
        kind: The `kind` of the `error` event: `planning`, `hook`, `middleware`, `code`, `empty_answer`,
            `response_format`, `response_schema`, or a `ModelErrorKind`.
        answer: The message that ends the input in the history; it names the failure and the work done.
    """

    def __init__(self, message: str, *, kind: str, answer: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.answer = answer


class ModelFailedError(RunFailedError):
    """A model, or its provider, did not answer; `kind` is one of `ModelErrorKind`."""


class HookError(GraphAgentError):
    """A hook or middleware raised an exception, which is the `__cause__`, or returned an unusable value.

    Args:
        message: One sentence, `The hook NAME failed: REASON`.
        kind: The `kind` of the `error` event: `hook` or `middleware`.
    """

    def __init__(self, message: str, *, kind: str = "hook") -> None:
        super().__init__(message)
        self.kind = kind


class CallError(GraphAgentError):
    """A tool call cannot be run; the model receives the error's text as the call's result."""


class UnknownToolError(CallError):
    """The model named a tool that does not exist."""


class ToolArgumentsError(CallError):
    """The model's arguments do not fit the tool's schema."""


class OperatorError(GraphAgentError):
    """A service that this process depends on is unavailable or misbehaves."""


class AbandonedCallsError(OperatorError):
    """A blocking call was not started, because too many cancelled or timed-out calls are still running."""


class UnreadableValueError(OperatorError, ValueError):
    """A stored value cannot be decoded; it is raised again as `DamagedSessionError` where the session is known."""


class DamagedSessionError(OperatorError):
    """A part of a stored session is lost or unreadable, so the session is not continued."""

    session_id: str = ""
    """Id of the session; empty if unknown."""


class EmbeddingFailedError(OperatorError):
    """The embedding model of a memory did not answer, so that facts cannot be stored or searched."""


class McpServerError(OperatorError):
    """An MCP server could not be started or reached, or broke the protocol."""

    may_have_run: bool = False
    """Whether the call that failed with this error may have taken effect."""


class NewerFormatError(OperatorError):
    """A session was stored in a format that this version cannot read."""


class RunHungError(OperatorError):
    """A run was stopped but did not end, because its checkpointer does not answer."""


class SessionLockError(OperatorError):
    """The lock of a session could not be acquired or inspected, so no run of the session may begin."""


class SessionLostError(OperatorError):
    """A run was ended because its process no longer holds the session's lock; it stores nothing more."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the text of each `ConfigError` raised in the block with a location, unless it begins with it already.

    Args:
        where: The location, e.g. `Agent file agent.yaml: tools.0`.
    """
    try:
        yield
    except ConfigError as error:
        if str(error).startswith(where):
            raise
        raise ConfigError(f"{where}: {error}") from error


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that lists the known names and suggests the one nearest to `got`.

    For example `known: search, echo. Did you mean 'search'?`, or `none are known.` if `known` is empty. With more than
    eight names, the suggestion comes first.
    """
    names = sorted(known)
    if not names:
        return "none are known."
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.7)
    if near and len(names) > _FEW_NAMES:
        return f"did you mean {near[0]!r}? Known: {', '.join(names)}."
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"known: {', '.join(names)}.{hint}"


for _each in [each for each in vars().values() if isinstance(each, type) and issubclass(each, Exception)]:
    if _each.__module__ == __name__:
        # Tracebacks and traces name the path from which programs import it.
        _each.__module__ = "graph_agent.errors"
