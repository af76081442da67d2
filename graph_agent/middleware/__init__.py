"""Support for the `langchain` package's `AgentMiddleware`; imported only for agents with middleware.

`wrap_model_call` runs around each planning and answer request, `wrap_tool_call` around each tool call; the first
middleware is outermost. `request.state` is the whole state for a tool call; for a model call, it has the messages of
the request and a copy of the own fields.
Changes of a request apply to that request only. `before_` and `after_` hooks are nodes of the graph; their updates
change the state, the history included.
"""

from __future__ import annotations

from graph_agent.middleware.admission import AdmittedMiddleware, admit
from graph_agent.middleware.hooks import hook_set
from graph_agent.middleware.models import ModelMiddleware
from graph_agent.middleware.tools import ToolMiddleware

__all__ = ["AdmittedMiddleware", "ModelMiddleware", "ToolMiddleware", "admit", "hook_set"]
