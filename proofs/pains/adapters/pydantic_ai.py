"""pydantic-ai, whose caller keeps the history: stored after each run, as its documentation shows."""

from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

from proofs.pains.worker import Reply

PACKAGE = "pydantic-ai-slim"
LACKS = {"store": "no store of sessions", "deadline_s": "no deadline"}
OPT_IN = ""


class Peer:
    def __init__(self, task):
        model = OpenAIChatModel("stub", provider=OpenAIProvider(base_url=task.url))
        options = {"tool_timeout": task.limits["tool_timeout_s"]} if "tool_timeout_s" in task.limits else {}
        self.agent = Agent(model, tools=task.functions, **options)
        self.file = Path(task.folder) / "history.json"
        limits = {}
        if "steps" in task.limits:
            limits["request_limit"] = task.limits["steps"] + 1
        if "tokens" in task.limits:
            limits["total_tokens_limit"] = task.limits["tokens"]
        self.options = {"usage_limits": UsageLimits(**limits)} if limits else {}

    def history(self):
        return ModelMessagesTypeAdapter.validate_json(self.file.read_bytes()) if self.file.exists() else []

    async def ask(self, text):
        result = await self.agent.run(text, message_history=self.history(), **self.options)
        self.file.write_bytes(result.all_messages_json())
        return Reply(str(result.output), result.usage.total_tokens)

    async def resume(self):
        return await self.ask("Please continue.")

    async def stream(self, text):
        answer = ""
        async with self.agent.run_stream(text, message_history=self.history(), **self.options) as result:
            async for piece in result.stream_text(delta=True):
                answer += piece
            self.file.write_bytes(result.all_messages_json())
            return Reply(answer, result.usage.total_tokens)
