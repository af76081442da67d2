"""Strands Agents, with its `FileSessionManager`."""

from strands import Agent, tool
from strands.hooks import BeforeToolCallEvent, HookProvider
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager

from proofs.pains.worker import Reply

PACKAGE = "strands-agents"
LACKS = ("deadline_s", "tool_timeout_s")
OPT_IN = ""


class Approval(HookProvider):
    def __init__(self, names):
        self.names = names

    def register_hooks(self, registry, **_):
        registry.add_callback(BeforeToolCallEvent, self.ask)

    def ask(self, event):
        if event.tool_use["name"] in self.names:
            given = event.interrupt(f"approve-{event.tool_use['toolUseId']}", reason=event.tool_use["input"])
            if given is False:
                event.cancel_tool = "The user rejected this call."
            elif given is not True:
                event.tool_use["input"]["amount"] = given


class Peer:
    def __init__(self, task):
        names = {"steps": "turns", "tokens": "total_tokens"}
        limits = {names[key]: value for key, value in task.limits.items() if key in names}
        self.options = {"limits": limits} if limits else {}
        self.agent = Agent(
            model=OpenAIModel(client_args={"base_url": task.url}, model_id="stub"),
            tools=[tool(each) for each in task.functions],
            hooks=[Approval(task.approve)] if task.approve else [],
            session_manager=FileSessionManager("s1", storage_dir=task.folder),
            callback_handler=None,
        )

    async def ask(self, given):
        return self.reply(await self.agent.invoke_async(given, **self.options))

    def reply(self, result):
        text = "".join(block.get("text", "") for block in result.message["content"])
        tokens = result.metrics.latest_agent_invocation.usage["totalTokens"]
        cut_off = "" if result.stop_reason == "end_turn" else result.stop_reason
        return Reply(text, tokens, cut_off, [each.reason for each in result.interrupts or ()])

    async def stream(self, text):
        answer = ""
        async for event in self.agent.stream_async(text, **self.options):
            answer += event.get("data", "")
            if "result" in event:
                reply = self.reply(event["result"])
        return Reply(answer, reply.tokens, reply.cut_off)

    async def resume(self):
        return await self.ask("Please continue.")

    async def decide(self, decisions):
        asked = self.agent._interrupt_state.interrupts.values()  # those of a stored session have no other door
        pairs = zip(asked, decisions, strict=True)
        return await self.ask(
            [{"interruptResponse": {"interruptId": each.id, "response": made}} for each, made in pairs]
        )
