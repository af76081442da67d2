"""Runs the recipe without a key: fixed replies stand in for the model, and the clock is set."""

import asyncio
from datetime import UTC, datetime

from apscheduler.triggers.cron import CronTrigger

from examples.scheduled.agent import run_due
from graph_agent import ScriptedChatModel, create_graph_agent
from graph_agent.persistence import open_saver


async def run_until(day: int) -> None:
    """Start a process at noon of a day: what is due until then runs."""
    async with open_saver("sqlite:///schedule.db") as saver:
        model = ScriptedChatModel([f"The briefing, made on 12-0{day}."], cycle=True)
        agent = create_graph_agent(model, checkpointer=saver)
        noon = datetime(2026, 12, day, 12, tzinfo=UTC)
        await run_due(agent, "briefing", CronTrigger(hour=7, timezone=UTC), "Brief me.", lambda: noon)
        session = agent.session("schedule-briefing")
        answers = [each["content"] for each in await session.events() if each["type"] == "agent_response"]
        print(await session.newest_input_id(), len(answers), answers[-1])


if __name__ == "__main__":
    asyncio.run(run_until(1))
    asyncio.run(run_until(1))  # nothing new is due
    asyncio.run(run_until(4))  # after a stop of two days
