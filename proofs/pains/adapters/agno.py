"""Agno, with its SQLite database."""

from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.tools import tool

from proofs.pains.worker import Reply

PACKAGE = "agno"
LACKS = ("tokens", "deadline_s", "tool_timeout_s")
OPT_IN = "checkpoint='tool-batch' with acontinue_run, offload_tool_results"


class Peer:
    def __init__(self, task):
        options = {"checkpoint": "tool-batch", "offload_tool_results": True} if task.opt_in else {}
        if "steps" in task.limits:
            options["tool_call_limit"] = task.limits["steps"]
        self.opt_in = task.opt_in
        self.agent = Agent(
            model=OpenAIChat("stub", base_url=task.url),
            tools=[
                tool(requires_confirmation=True)(each) if each.__name__ in task.approve else each
                for each in task.functions
            ],
            db=SqliteDb(db_file=f"{task.folder}/sessions.db"),
            session_id="s1",
            add_history_to_context=True,
            **options,
        )

    async def ask(self, text):
        return self.reply(await self.agent.arun(text))

    def reply(self, result):
        if result.status == "ERROR":
            raise RuntimeError(result.content)
        waiting = [each.tool_execution.tool_args for each in result.active_requirements]
        return Reply(str(result.content or ""), result.metrics.total_tokens if result.metrics else 0, "", waiting)

    async def stream(self, text):
        answer, last = "", None
        async for event in self.agent.arun(text, stream=True, stream_events=True, yield_run_output=True):
            if getattr(event, "event", "") == "RunContent":
                answer += event.content or ""
            last = event
        return Reply(answer, self.reply(last).tokens)

    async def last_run(self):
        session = await self.agent.aget_session(session_id="s1")
        return session.runs[-1] if session and session.runs else None

    async def resume(self):
        run = await self.last_run() if self.opt_in else None
        if run is None:
            return await self.ask("Please continue.")
        return self.reply(await self.agent.acontinue_run(run_id=run.run_id, session_id="s1"))

    async def decide(self, decisions):
        run = await self.last_run()
        for requirement, made in zip(run.requirements, decisions, strict=True):
            if made is False:
                requirement.reject("No.")
            else:
                requirement.confirm()
            if not isinstance(made, bool):
                requirement.tool_execution.tool_args["amount"] = made
        return self.reply(
            await self.agent.acontinue_run(run_id=run.run_id, requirements=run.requirements, session_id="s1")
        )
