"""OpenAI's Agents SDK, with its `SQLiteSession`, over chat completions."""

import json
from pathlib import Path

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, RunState, SQLiteSession, function_tool
from openai import AsyncOpenAI

from proofs.pains.worker import Reply

PACKAGE = "openai-agents"
LACKS = ("tokens", "deadline_s", "edits")
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
        self.file = Path(task.folder) / "state.json"
        self.options = {"session": SQLiteSession("s1", f"{task.folder}/sessions.db")}
        if "steps" in task.limits:
            self.options["max_turns"] = task.limits["steps"]

    async def ask(self, text):
        return self.reply(await Runner.run(self.agent, text, **self.options))

    async def resume(self):
        return await self.ask("Please continue.")

    def reply(self, result):
        if result.interruptions:
            self.file.write_text(json.dumps(result.to_state().to_json()))
        waiting = [json.loads(each.arguments) for each in result.interruptions]
        return Reply(str(result.final_output or ""), result.context_wrapper.usage.total_tokens, "", waiting)

    async def decide(self, decisions):
        state = await RunState.from_json(self.agent, json.loads(self.file.read_text()))
        for each, made in zip(state.get_interruptions(), decisions, strict=True):
            (state.approve if made else state.reject)(each)
        return self.reply(await Runner.run(self.agent, state, **self.options))

    async def stream(self, text):
        result, answer = Runner.run_streamed(self.agent, text, **self.options), ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                answer += event.data.delta
        return Reply(answer, result.context_wrapper.usage.total_tokens)
