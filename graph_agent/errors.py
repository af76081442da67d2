"""Defines the errors, grouped by who must act.

GraphAgentError
├── UserError                the caller changes code, configuration or input
│   ├── ConfigError          a wrong setting, found at construction
│   │   └── MissingExtraError    an optional dependency is not installed; an ImportError too
│   ├── InputError           a wrong input to a run
│   │   ├── DecisionError    a decision that does not fit the call that waits for approval
│   │   ├── InputConflictError   an input id that belongs to a different input
│   │   └── InputSupersededError an input id whose input was replaced by a later one before it was answered
│   ├── SessionBusyError     a second run of a session that is running
│   ├── SlowSchemaError      an answer's schema that takes too long to check
│   ├── SyncInLoopError      a blocking call from a running event loop's thread
│   └── ScriptError          a scripted model that ran dry or was not used up
├── RunFailedError           an input failed, and `on_failure="raise"` is set; `kind` names the failure
│   └── ModelFailedError     a model, or its provider, did not answer
├── HookError                a hook or middleware failed, or returned an unusable value
├── CallError                the model chooses another call; the text is the tool result it gets
│   ├── UnknownToolError
│   └── ToolArgumentsError
└── OperatorError            an operator repairs a service
    ├── AbandonedCallsError  too many blocking calls hang
    ├── DamagedSessionError  a part of a stored session is lost or unreadable
    ├── EmbeddingFailedError the embedding model of a memory does not answer
    ├── McpServerError       an MCP server does not start, answer or follow the protocol
    ├── NewerFormatError     a session was stored by a newer version of this package
    ├── RunHungError         a run was stopped, and its checkpointer keeps it from ending
    ├── SessionLockError     the lock of a session cannot be acquired or inspected
    ├── SessionLostError     a run ends: its session's lock is lost, or another run has continued the session
    └── UnreadableValueError a stored value cannot be decoded

A message states what happened, the value given, and the fix.
"""

from __future__ import annotations

from graph_agent.base.errors import (
    AbandonedCallsError,
    CallError,
    ConfigError,
    DecisionError,
    GraphAgentError,
    InputError,
    McpServerError,
    ModelFailedError,
    OperatorError,
    RunFailedError,
    ScriptError,
    SessionBusyError,
    SessionLockError,
    SessionLostError,
    SlowSchemaError,
    SyncInLoopError,
    ToolArgumentsError,
    UnknownToolError,
    UserError,
)
from graph_agent.base.errors import DamagedSessionError as DamagedSessionError
from graph_agent.base.errors import EmbeddingFailedError as EmbeddingFailedError
from graph_agent.base.errors import HookError as HookError
from graph_agent.base.errors import InputConflictError as InputConflictError
from graph_agent.base.errors import InputSupersededError as InputSupersededError
from graph_agent.base.errors import MissingExtraError as MissingExtraError
from graph_agent.base.errors import NewerFormatError as NewerFormatError
from graph_agent.base.errors import RunHungError as RunHungError
from graph_agent.base.errors import UnreadableValueError as UnreadableValueError
from graph_agent.base.errors import did_you_mean as did_you_mean
from graph_agent.base.errors import located as located

__all__ = [
    "AbandonedCallsError",
    "CallError",
    "ConfigError",
    "DecisionError",
    "GraphAgentError",
    "InputError",
    "McpServerError",
    "ModelFailedError",
    "OperatorError",
    "RunFailedError",
    "ScriptError",
    "SessionBusyError",
    "SessionLockError",
    "SessionLostError",
    "SlowSchemaError",
    "SyncInLoopError",
    "ToolArgumentsError",
    "UnknownToolError",
    "UserError",
]
