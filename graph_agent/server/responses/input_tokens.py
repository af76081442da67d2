"""Estimated input tokens of a request for a response."""

from __future__ import annotations

from graph_agent.compiled import AgentStateGraph
from graph_agent.errors import ConfigError
from graph_agent.planning.request_size import estimate_request
from graph_agent.server.admission.keys import Caller
from graph_agent.server.chat.request import ChatRequest, new_messages
from graph_agent.server.errors.problems import ProblemError
from graph_agent.server.hosting.host import Host
from graph_agent.server.responses.chain import messages_of


async def count_input_tokens(host: Host, caller: Caller, request: ChatRequest) -> int:
    """Estimate the tokens of the first model request of a chat request; no model is called.

    Args:
        host: The agent.
        caller: The sender.
        request: The request, which names the session that it would continue or create.

    Raises:
        ProblemError: If its tools have names that the agent's have, or the agent's system prompt needs a run.
    """
    builder = host.kept.builder
    assert isinstance(builder, AgentStateGraph), "the server compiles graphs of this package"
    assert builder.deps is not None, "every agent has them"
    host.check_client_tools([tool["function"]["name"] for tool in request.client_tools])
    thread = caller.thread(request.session_id or "")
    state = await host.kept.aget_state({"configurable": {"thread_id": thread}})
    new = request.messages if request.adds_all or not state.values else new_messages(request.messages)
    messages = [*messages_of(state), *new]
    try:
        return await estimate_request(builder.deps, state.values, messages, request.context(), thread)
    except ConfigError:
        message = "The tokens cannot be counted: the agent's system prompt depends on the state of a run."
        raise ProblemError("invalid", message) from None
