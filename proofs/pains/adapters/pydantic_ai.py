"""pydantic-ai, whose caller keeps the history: stored after each run, as its documentation shows."""

from pathlib import Path

from pydantic_ai import Agent, DeferredToolRequests, Tool, capture_run_messages
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.usage import UsageLimits

from proofs.pains.worker import Reply

PACKAGE = "pydantic-ai-slim"
LACKS = ("store", "deadline_s")
OPT_IN = "capture_run_messages"


class Peer:
    def __init__(self, task):
        model = OpenAIChatModel("stub", provider=OpenAIProvider(base_url=task.url))
        options = {"tool_timeout": task.limits["tool_timeout_s"]} if "tool_timeout_s" in task.limits else {}
        tools = [Tool(each, requires_approval=each.__name__ in task.approve) for each in task.functions]
        self.agent = Agent(model, tools=tools, output_type=[str, DeferredToolRequests], **options)
        self.file = Path(task.folder) / "history.json"
        self.opt_in, limits = task.opt_in, {}
        if "steps" in task.limits:
            limits["request_limit"] = task.limits["steps"] + 1
        if "tokens" in task.limits:
            limits["total_tokens_limit"] = task.limits["tokens"]
        self.options = {"usage_limits": UsageLimits(**limits)} if limits else {}

    def history(self):
        return ModelMessagesTypeAdapter.validate_json(self.file.read_bytes()) if self.file.exists() else []

    async def ask(self, text, **more):
        with capture_run_messages() as messages:
            try:
                result = await self.agent.run(text, message_history=self.history(), **more, **self.options)
            finally:
                if self.opt_in:
                    self.file.write_bytes(ModelMessagesTypeAdapter.dump_json(messages))
        self.file.write_bytes(result.all_messages_json())
        asked = result.output.approvals if isinstance(result.output, DeferredToolRequests) else []
        reason = result.response.finish_reason or "stop"
        waiting = [each.args_as_dict() for each in asked]
        return Reply(str(result.output), result.usage.total_tokens, "" if reason == "stop" else reason, waiting)

    async def decide(self, decisions):
        calls = self.history()[-1].tool_calls
        made = [
            (each or ToolDenied("No.")) if isinstance(each, bool) else ToolApproved(override_args={"amount": each})
            for each in decisions
        ]
        approvals = {call.tool_call_id: each for call, each in zip(calls, made, strict=True)}
        return await self.ask(None, deferred_tool_results=DeferredToolResults(approvals=approvals))

    async def resume(self):
        return await self.ask("Please continue.")

    async def stream(self, text):
        answer = ""
        async with self.agent.run_stream(text, message_history=self.history(), **self.options) as result:
            async for piece in result.stream_text(delta=True):
                answer += piece
            self.file.write_bytes(result.all_messages_json())
            reason = result.response.finish_reason or "stop"
            return Reply(answer, result.usage.total_tokens, "" if reason == "stop" else reason)
