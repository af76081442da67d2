"""OpenAI's Agents SDK, with its `SQLiteSession`, over chat completions."""

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI

from proofs.pains.worker import Reply

PACKAGE = "openai-agents"
LACKS = {"tokens": "no token budget", "deadline_s": "no deadline"}
OPT_IN = ""


class Peer:
    def __init__(self, task):
        options = {}
        if "tool_timeout_s" in task.limits:
            options["timeout"] = task.limits["tool_timeout_s"]
        tools = [
            function_tool(
                each, needs_approval=each.__name__ in task.approve, **(options if each.__name__ == "hang" else {})
            )
            for each in task.functions
        ]
        model = OpenAIChatCompletionsModel("stub", AsyncOpenAI(base_url=task.url))
        self.agent = Agent("agent", tools=tools, model=model, model_settings=ModelSettings(include_usage=True))
        self.options = {"session": SQLiteSession("s1", f"{task.folder}/sessions.db")}
        if "steps" in task.limits:
            self.options["max_turns"] = task.limits["steps"]

    async def ask(self, text):
        return self.reply(await Runner.run(self.agent, text, **self.options))

    async def resume(self):
        return await self.ask("Please continue.")

    def reply(self, result):
        self.result = result
        waiting = [each.arguments for each in result.interruptions]
        return Reply(str(result.final_output or ""), result.context_wrapper.usage.total_tokens, waiting)

    async def stream(self, text):
        result, answer = Runner.run_streamed(self.agent, text, **self.options), ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                answer += event.data.delta
        return Reply(answer, result.context_wrapper.usage.total_tokens)
