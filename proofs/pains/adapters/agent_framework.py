"""Microsoft's Agent Framework, with its file-backed stores of history and sessions."""

from pathlib import Path

from agent_framework import Agent, AgentSession, FileHistoryProvider, FileSessionStore, Message, tool
from agent_framework.openai import OpenAIChatCompletionClient

from proofs.pains.worker import Reply

PACKAGE = "agent-framework-core"
LACKS = ("tokens", "tool_timeout_s", "edits")
OPT_IN = "require_per_service_call_history_persistence"


class Peer:
    def __init__(self, task):
        client = OpenAIChatCompletionClient("stub", base_url=task.url, api_key="sk-stub")
        names = {"steps": "max_iterations", "deadline_s": "max_duration_seconds"}
        for name, value in task.limits.items():
            if name in names:
                client.function_invocation_configuration[names[name]] = value
        mode = {True: "always_require", False: "never_require"}
        self.agent = Agent(
            client,
            tools=[tool(each, approval_mode=mode[each.__name__ in task.approve]) for each in task.functions],
            context_providers=[FileHistoryProvider(task.folder)],
            require_per_service_call_history_persistence=task.opt_in,
        )
        self.sessions = FileSessionStore(task.folder)
        self.file = Path(task.folder) / "request.json"

    async def session(self):
        return await self.sessions.get("s1") or AgentSession(session_id="s1")

    async def ask(self, given):
        session = await self.session()
        result = await self.agent.run(given, session=session)
        await self.sessions.set("s1", session)
        return self.reply(result)

    def reply(self, result):
        requests = result.user_input_requests
        if requests:
            self.file.write_text(Message("assistant", requests).to_json())
        usage = result.usage_details or {}
        reason = str(getattr(result, "finish_reason", None) or "stop")
        waiting = [each.function_call.parse_arguments() for each in requests]
        return Reply(result.text, usage.get("total_token_count") or 0, "" if reason == "stop" else reason, waiting)

    async def stream(self, text):
        stream, answer = self.agent.run(text, session=await self.session(), stream=True), ""
        async for update in stream:
            answer += update.text
        reply = self.reply(await stream.get_final_response())
        return Reply(answer, reply.tokens, reply.cut_off)

    async def resume(self):
        return await self.ask("Please continue.")

    async def decide(self, decisions):
        asked = Message.from_json(self.file.read_text()).contents
        answers = [each.to_function_approval_response(bool(made)) for each, made in zip(asked, decisions, strict=True)]
        return await self.ask(Message("user", answers))
