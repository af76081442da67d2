"""`AgentMiddleware` of the `langchain` package at work in this loop. Imported only where an agent has some.

`wrap_model_call` runs around each request of planning and of the answer, `wrap_tool_call` around each tool call, the
first one given outermost. `request.state` holds the request's `messages` at a model call, and the whole state at a tool
call. What a middleware changes in a request is for that request alone: the history stays as it is.
"""

from __future__ import annotations

from graph_agent.middleware.admission import Admitted, admit
from graph_agent.middleware.models import AroundModels
from graph_agent.middleware.tools import AroundTools

__all__ = ["Admitted", "AroundModels", "AroundTools", "admit"]
