"""LangChain's `create_agent`, with LangGraph's SQLite saver."""

import aiosqlite
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelRetryMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
)
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from proofs.pains.worker import Reply

PACKAGE = "langchain"
LACKS = {
    "tokens": "no token budget",
    "deadline_s": "no deadline",
    "tool_timeout_s": "no time limit of a tool",
    "history": "no window",
}
OPT_IN = "ToolRetryMiddleware, ModelRetryMiddleware, durability='sync'"


class Peer:
    def __init__(self, task):
        self.task, self.graph = task, None
        self.config = {"configurable": {"thread_id": "s1"}}
        if "parallel" in task.limits:
            self.config["max_concurrency"] = task.limits["parallel"]
        self.options = {"durability": "sync"} if task.opt_in else {}

    async def agent(self):
        if self.graph is None:
            task, middleware = self.task, []
            if task.opt_in:
                middleware += [ToolRetryMiddleware(max_retries=0, on_failure="continue"), ModelRetryMiddleware()]
            if "steps" in task.limits:
                middleware.append(ToolCallLimitMiddleware(run_limit=task.limits["steps"], exit_behavior="continue"))
            if task.approve:
                middleware.append(HumanInTheLoopMiddleware(interrupt_on=dict.fromkeys(task.approve, True)))
            saver = AsyncSqliteSaver(await aiosqlite.connect(f"{task.folder}/sessions.db"))
            model = ChatOpenAI(model="stub", base_url=task.url)
            self.graph = create_agent(model, task.functions, middleware=middleware, checkpointer=saver)
        return self.graph

    async def ask(self, text):
        return await self.run({"messages": [("user", text)]})

    async def resume(self):
        return await self.run(None)

    async def decide(self, decisions):
        made = [
            {"type": "approve" if each else "reject"}
            if isinstance(each, bool)
            else {"type": "edit", "edited_action": {"name": self.task.approve[0], "args": {"amount": each}}}
            for each in decisions
        ]
        return await self.run(Command(resume={"decisions": made}))

    async def run(self, given):
        state = await (await self.agent()).ainvoke(given, self.config, **self.options)
        tokens = sum((getattr(each, "usage_metadata", None) or {}).get("total_tokens", 0) for each in state["messages"])
        waiting = [
            each["args"] for interrupt in state.get("__interrupt__", ()) for each in interrupt.value["action_requests"]
        ]
        return Reply(state["messages"][-1].text, tokens, waiting)

    async def stream(self, text):
        answer = ""
        async for chunk, metadata in (await self.agent()).astream(
            {"messages": [("user", text)]}, self.config, stream_mode="messages", **self.options
        ):
            if metadata["langgraph_node"] == "model":
                answer += chunk.text
        return Reply(answer)
