"""What the adapters of compiled LangGraph graphs share: a thread in LangGraph's SQLite saver."""

import aiosqlite
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from proofs.pains.worker import Reply


def cut_off(message):
    reason = message.response_metadata.get("finish_reason", "stop")
    return "" if reason == "stop" else reason


class LangGraphPeer:
    node = "model"

    def __init__(self, task):
        self.task, self.graph = task, None
        self.config = {"configurable": {"thread_id": "s1"}}
        if "parallel" in task.limits:
            self.config["max_concurrency"] = task.limits["parallel"]

    async def agent(self):
        if self.graph is None:
            saver = AsyncSqliteSaver(await aiosqlite.connect(f"{self.task.folder}/sessions.db"))
            self.graph = self.build(ChatOpenAI(model="stub", base_url=self.task.url), saver)
        return self.graph

    async def ask(self, text):
        return await self.run({"messages": [("user", text)]})

    async def resume(self):
        return await self.run(None)

    async def run(self, given):
        state = await (await self.agent()).ainvoke(given, self.config)
        waiting = [call["args"] for each in state.get("__interrupt__", ()) for call in each.value["action_requests"]]
        last = max((i for i, each in enumerate(state["messages"]) if each.type == "human"), default=0)
        used = [getattr(each, "usage_metadata", None) or {} for each in state["messages"][last:]]
        tokens = sum(each.get("total_tokens", 0) for each in used)
        return Reply(state["messages"][-1].text, tokens, cut_off(state["messages"][-1]), waiting)

    async def stream(self, text):
        answer, tokens, graph = "", 0, await self.agent()
        parts = graph.astream({"messages": [("user", text)]}, self.config, stream_mode="messages")
        async for chunk, metadata in parts:
            if metadata["langgraph_node"] == self.node:
                answer += chunk.text
                tokens += (chunk.usage_metadata or {}).get("total_tokens", 0)
        return Reply(answer, tokens, cut_off(chunk))

    async def decide(self, decisions):
        edited = {"type": "edit", "edited_action": {"name": self.task.approve[0]}}
        made = [
            {"type": "approve" if each else "reject"}
            if isinstance(each, bool)
            else {**edited, "edited_action": {**edited["edited_action"], "args": {"amount": each}}}
            for each in decisions
        ]
        return await self.run(Command(resume={"decisions": made}))
