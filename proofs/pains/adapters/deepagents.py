"""LangChain's deepagents."""

from deepagents import create_deep_agent
from langchain.agents.middleware import ModelRetryMiddleware, ToolCallLimitMiddleware, ToolRetryMiddleware

from proofs.pains.adapters._langgraph import LangGraphPeer

PACKAGE = "deepagents"
LACKS = ("tokens", "deadline_s", "tool_timeout_s", "history")
OPT_IN = "ToolRetryMiddleware, ModelRetryMiddleware"


class Peer(LangGraphPeer):
    def build(self, model, saver):
        middleware = []
        if self.task.opt_in:
            middleware += [ToolRetryMiddleware(max_retries=0), ModelRetryMiddleware(initial_delay=0)]
        if "steps" in self.task.limits:
            middleware.append(ToolCallLimitMiddleware(run_limit=self.task.limits["steps"]))
        return create_deep_agent(
            model,
            self.task.functions,
            middleware=middleware,
            interrupt_on=dict.fromkeys(self.task.approve, True) or None,
            checkpointer=saver,
        )
