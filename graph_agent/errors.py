"""What can go wrong, grouped by who must act.

GraphAgentError
├── UserError                the caller changes code, configuration or input
│   ├── ConfigError          a wrong setting, found at construction
│   ├── InputError           a wrong input to a run
│   ├── SessionBusyError     a second run of a session that is running
│   ├── SlowSchemaError      an answer's schema that takes too long to check
│   ├── SyncInLoopError      a blocking call from a running event loop's thread
│   └── ScriptError          a scripted model that ran dry or was not used up
├── RunFailedError           an input failed, and `on_failure="raise"` is set; `kind` says what
│   └── ModelFailedError     a model, or its provider, did not answer
├── CallError                the model chooses another call; it reads the text as a tool result
│   ├── UnknownToolError
│   └── ToolArgumentsError
└── OperatorError            somebody looks after a service
    ├── McpServerError
    ├── SessionLockError     the lock of a session cannot be taken, or not be looked at
    └── SessionLostError     a run ends: its session's lock is lost, or another run has continued the session
    ├── AbandonedCallsError  too many blocking calls hang
    └── McpServerError

A message says what happened, what was given, and the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class GraphAgentError(Exception):
    """The root of every error this package raises on purpose."""


class UserError(GraphAgentError):
    """The caller must change code, configuration or input."""


class ConfigError(UserError, ValueError):
    """A setting that cannot work, found when the agent is built."""


class InputError(UserError, ValueError):
    """An input that a run cannot take."""


class SessionBusyError(UserError, RuntimeError):
    """A session that is running was given another run; nothing of it was begun."""


class SlowSchemaError(UserError):
    """A JSON schema that an answer cannot be checked against in a time that anybody would wait."""


class SyncInLoopError(UserError, RuntimeError):
    """A blocking entry point was called from the thread of a running event loop."""


class ScriptError(UserError, AssertionError):
    """A scripted model was asked for more replies than it has, or for fewer."""


class RunFailedError(GraphAgentError):
    """An input failed, and its run is to raise that (`on_failure="raise"`). The session holds it as `FAILED`.

    Args:
        message: One sentence for a person.
        kind: The `kind` of the `error` event: `planning`, `hook`, `response_format`, `response_schema`, or one of a
            model's.
        answer: The message that ends the input: what failed, and what was done.
    """

    def __init__(self, message: str, *, kind: str, answer: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.answer = answer


class ModelFailedError(RunFailedError):
    """A model, or its provider, did not answer; `kind` is one of `ModelErrorKind`."""


class CallError(GraphAgentError):
    """A call that cannot be run; its text is the result the model reads."""


class UnknownToolError(CallError):
    """The model named a tool that does not exist."""


class ToolArgumentsError(CallError):
    """The model's arguments do not fit the tool's schema."""


class OperatorError(GraphAgentError):
    """A service this process depends on is not answering as it should."""


class AbandonedCallsError(OperatorError):
    """A blocking call that was not started, because too many that were cancelled or timed out still run."""


class McpServerError(OperatorError):
    """An MCP server could not be started, reached or spoken to."""

    may_have_run: bool = False
    """Whether a call that it ended may have taken effect."""


class SessionLockError(OperatorError):
    """The lock of a session could not be taken or inspected, so that no run of it may begin."""


class SessionLostError(OperatorError):
    """A run was ended because its process no longer holds the session; what it had not stored is not stored."""


@contextmanager
def located(where: str) -> Iterator[None]:
    """Put a place in front of the text of each `ConfigError` that is raised inside, unless it is there already.

    Args:
        where: The place, e.g. `Agent file agent.yaml: tools.0`.
    """
    try:
        yield
    except ConfigError as error:
        if str(error).startswith(where):
            raise
        raise ConfigError(f"{where}: {error}") from error


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Say which names are known and which is nearest, as a sentence tail.

    Returns e.g. ``"known: search, echo. Did you mean 'search'?"``; ``"none are known."`` for an empty ``known``.
    """
    names = sorted(known)
    if not names:
        return "none are known."
    near = difflib.get_close_matches(got, names, n=1, cutoff=0.7)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"known: {', '.join(names)}.{hint}"
