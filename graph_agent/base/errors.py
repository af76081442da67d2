"""Defines the errors, grouped by who must act; `graph_agent.errors` exports them, and its docstring draws the tree.

A message states what happened, the value given, and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_FEW_NAMES = 8


class GraphAgentError(Exception):
    """Base class of the errors of this package that a program may catch."""


class UserError(GraphAgentError):
    """Base class of errors for which the caller must change code, configuration or input."""


class ConfigError(UserError, ValueError):
    """An invalid setting, found when the agent is built."""


class MissingExtraError(ImportError, ConfigError):
    """Raised if an optional dependency (extra) is not installed; the message has the command that installs it."""


class InputError(UserError, ValueError):
    """An invalid input to a run."""


class DecisionError(InputError):
    """A reviewer's decisions do not fit the calls that wait for approval.

    Nothing is run, and the session still waits.
    """


class InputConflictError(InputError):
    """The caller's id of an input already belongs to a different input of the session; nothing was run or changed."""


class InputSupersededError(InputError):
    """An input was sent again under its id, but has no answer, because a later input began before it was finished."""


class UnknownFactError(InputError):
    """The memory has no fact with this id for this caller."""


class SessionBusyError(UserError, RuntimeError):
    """A run was refused before it began, because another run of the session is active."""


class SlowSchemaError(UserError):
    """Checking a value, such as an answer, against its JSON schema takes too long."""


class SyncInLoopError(UserError, RuntimeError):
    """A blocking method was called from the thread of a running event loop, which it would stop."""


class ScriptError(UserError, AssertionError):
    """A scripted model of `graph_agent.testing` received more requests than it has replies, or fewer."""


class RunFailedError(GraphAgentError):
    """Raised by a run whose input failed, if the setting is `on_failure="raise"`. The session's status is `FAILED`.

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
    """Raised if a model, or its provider, did not answer; `kind` is one of `ModelErrorKind`."""


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
    """Base class of errors because of which a tool call cannot be run; the model gets the text as the call's result."""


class UnknownToolError(CallError):
    """The model named a tool that does not exist."""


class ToolArgumentsError(CallError):
    """The model's arguments do not fit the tool's schema."""


class OperatorError(GraphAgentError):
    """Base class of errors for which the operator must act: a service that this process depends on fails."""


class AbandonedCallsError(OperatorError):
    """A blocking call was not started, because too many calls that were cancelled or timed out are still running."""


class UnreadableValueError(OperatorError, ValueError):
    """A stored value cannot be decoded; code that knows the session raises it again as `DamagedSessionError`."""


class DamagedSessionError(OperatorError):
    """A part of a stored session is lost or unreadable, so the session is not continued."""

    session_id: str = ""
    """Id of the session; empty if unknown."""


class EmbeddingFailedError(OperatorError):
    """The embedding model of the memory did not answer, so that facts cannot be stored or searched."""


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
    """Put a location before the text of each `ConfigError` raised in the `with` block, unless the text begins with it
    already. An error of a subclass becomes a plain `ConfigError`, with the original as its cause.

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
    """Return the end of an error's sentence that lists the known names and suggests the one most similar to `got`.

    For example `known: search, echo. Did you mean 'search'?`, or `none are known.` if `known` is empty. With more than
    eight names, the suggestion comes first. Names are sorted; without a similar one there is no suggestion.
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
