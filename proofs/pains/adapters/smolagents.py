"""smolagents' `ToolCallingAgent`, which is synchronous: it runs in a thread."""

import asyncio
import functools

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

from proofs.pains.worker import Reply

PACKAGE = "smolagents"
LACKS = ("store", "async", "tokens", "deadline_s", "tool_timeout_s", "approvals")
OPT_IN = ""


class Peer:
    def __init__(self, task):
        self.agent = ToolCallingAgent(
            tools=[tool(each) for each in task.functions],
            model=OpenAIServerModel("stub", api_base=task.url, api_key="sk-stub"),
            max_steps=task.limits.get("steps", 20),
            verbosity_level=0,
        )
        self.started = False

    async def ask(self, text):
        # An agent that is not reset continues the conversation.
        run = functools.partial(self.agent.run, text, reset=not self.started, return_full_result=True)
        self.started = True
        result = await asyncio.to_thread(run)
        return Reply(str(result.output), result.token_usage.total_tokens if result.token_usage else 0)

    async def stream(self, text):
        self.agent.stream_outputs = True
        return await self.ask(text)

    async def resume(self):
        return await self.ask("Please continue.")
