"""LangGraph's prebuilt `create_react_agent`."""

from langgraph.prebuilt import ToolNode, create_react_agent

from proofs.pains.adapters._langgraph import LangGraphPeer

PACKAGE = "langgraph"
LACKS = ("tokens", "deadline_s", "tool_timeout_s", "approvals", "history")
OPT_IN = "ToolNode(handle_tool_errors=True)"


class Peer(LangGraphPeer):
    node = "agent"

    def __init__(self, task):
        super().__init__(task)
        if "steps" in task.limits:
            self.config["recursion_limit"] = 2 * task.limits["steps"]

    def build(self, model, saver):
        tools = ToolNode(self.task.functions, handle_tool_errors=True) if self.task.opt_in else self.task.functions
        return create_react_agent(model, tools, checkpointer=saver)
