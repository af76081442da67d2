"""Google's Agent Development Kit, with its `DatabaseSessionService`, and LiteLLM for the OpenAI-compatible server."""

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.plugins.reflect_retry_tool_plugin import ReflectAndRetryToolPlugin
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.adk.tools import FunctionTool
from google.genai import types

from proofs.pains.worker import Reply

PACKAGE = "google-adk"
LACKS = ("tokens", "deadline_s", "tool_timeout_s", "edits")
OPT_IN = "ReflectAndRetryToolPlugin"
CONFIRM = "adk_request_confirmation"


class Peer:
    def __init__(self, task):
        self.calls = {"max_llm_calls": task.limits["steps"]} if "steps" in task.limits else {}
        tools = [FunctionTool(each, require_confirmation=each.__name__ in task.approve) for each in task.functions]
        agent = LlmAgent(name="agent", model=LiteLlm("openai/stub", api_base=task.url), tools=tools)
        self.service = DatabaseSessionService(f"sqlite+aiosqlite:///{task.folder}/sessions.db")
        plugins = [ReflectAndRetryToolPlugin()] if task.opt_in else []
        self.runner = Runner(
            app_name="app", agent=agent, session_service=self.service, plugins=plugins, auto_create_session=True
        )

    async def ask(self, text):
        return await self.run(types.Part(text=text))

    async def run(self, *parts, **config):
        message = types.Content(role="user", parts=list(parts))
        run = self.runner.run_async(
            user_id="u", session_id="s1", new_message=message, run_config=RunConfig(**config, **self.calls)
        )
        answer, tokens, cut_off, waiting = "", 0, "", []
        async for event in run:
            if event.partial:
                continue
            tokens += event.usage_metadata.total_token_count or 0 if event.usage_metadata else 0
            waiting += [
                each.args["originalFunctionCall"]["args"] for each in event.get_function_calls() if each.name == CONFIRM
            ]
            if event.is_final_response():
                answer += "".join(part.text or "" for part in event.content.parts) if event.content else ""
                cut_off = event.error_message or (
                    "" if event.finish_reason in (None, "STOP") else str(event.finish_reason)
                )
        return Reply(answer, tokens, cut_off, waiting)

    async def stream(self, text):
        return await self.run(types.Part(text=text), streaming_mode=StreamingMode.SSE)

    async def resume(self):
        return await self.ask("Please continue.")

    async def decide(self, decisions):
        session = await self.service.get_session(app_name="app", user_id="u", session_id="s1")
        asked = [call for event in session.events for call in event.get_function_calls() if call.name == CONFIRM]
        parts = [
            types.Part(
                function_response=types.FunctionResponse(id=call.id, name=CONFIRM, response={"confirmed": bool(made)})
            )
            for call, made in zip(asked, decisions, strict=True)
        ]
        return await self.run(*parts)
