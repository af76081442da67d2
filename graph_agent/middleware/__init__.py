"""Support for the `langchain` package's `AgentMiddleware`; imported only for agents with middleware.

`wrap_model_call` runs around each planning and answer request, `wrap_tool_call` around each tool call; the first
middleware is outermost. `request.state` holds the request's `messages` for a model call, and the whole state for a tool
call. A middleware's changes apply to that request only; the history is not changed.
"""

from __future__ import annotations

from graph_agent.middleware.admission import WrapMethods, admit
from graph_agent.middleware.models import AroundModels
from graph_agent.middleware.tools import AroundTools

__all__ = ["AroundModels", "AroundTools", "WrapMethods", "admit"]
