"""The hotel agent with structured planning: shows each plan, the calls of its waves, and the answers.

Run as `python examples/hotel/waves.py [QUESTION …]`. Without questions it asks the example's three, and the last of
them once more with everything in one plan.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from contextlib import aclosing
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

from graph_agent import GraphAgent
from graph_agent.session.results import Done, EventAdded, Token
from graph_agent.spec import load_spec, open_agent

QUESTIONS = (
    "Check availability for January 17-19",
    "one night in Hanukkah",
    "Check availability for Hanukkah and also next weekend",
)
TODAY = date(2026, 11, 21)

Planner = Literal["wave", "dag"]


class Group:
    """Calls that started together, printed when the last of them has its result."""

    def __init__(self) -> None:
        self._begun: dict[str, Any] = {}
        self._ended: dict[str, Any] = {}

    def begin(self, event: Any) -> None:
        """Take a `tool_call` event."""
        self._begun[event["id"]] = event

    def end(self, event: Any) -> None:
        """Take a `tool_result` event."""
        if event["id"] in self._begun:
            self._ended[event["id"]] = event
            if len(self._ended) == len(self._begun):
                self._print()
                self._begun, self._ended = {}, {}

    def _print(self) -> None:
        count = len(self._begun)
        print(f"  {count} calls in parallel:" if count > 1 else "  1 call:")
        for id_, call in self._begun.items():
            arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in call["arguments"].items())
            took = datetime.fromisoformat(self._ended[id_]["ts"]) - datetime.fromisoformat(call["ts"])
            milliseconds = took.total_seconds() * 1000
            print(f"    {id_}: {call['name']}({arguments}): {self._ended[id_]['status']} after {milliseconds:.0f} ms")


async def show(agent: GraphAgent, session_id: str, question: str, planner: Planner) -> bool:
    """Ask one question and print what happens; whether it was answered."""
    print(f"\n> {question}")
    group, plans, streamed = Group(), 0, ""
    context = {"tool_calling": "wave", "planner": planner}
    async with aclosing(agent.session(session_id).stream(question, context=context)) as parts:
        async for part in parts:
            match part:
                case EventAdded(event) if event["type"] == "plan":
                    plans += 1
                    print(f"plan {plans} ({event['status']}): {event['action'] or event['reasoning']}")
                case EventAdded(event) if event["type"] == "tool_call":
                    group.begin(event)
                case EventAdded(event) if event["type"] == "tool_result":
                    group.end(event)
                case Token(text):
                    print(text, end="", flush=True)
                    streamed += text
                case Done(result):
                    print(result.answer.removeprefix(streamed) or result.error)
                    print(f"[waves: {result.iterations}, plans: {plans}]")
                    return result.status == "COMPLETED"
                case _:
                    pass
    return False


async def main(questions: list[str]) -> int:
    """Ask questions, and return the exit status."""
    spec = load_spec(Path(__file__).with_name("agent.yaml"))
    asked: list[tuple[str, Planner]] = [(question, "wave") for question in questions or QUESTIONS]
    with tempfile.TemporaryDirectory() as folder:
        async with open_agent(spec, today=TODAY, db=f"sqlite:///{folder}/sessions.db") as agent:
            answered = [await show(agent, f"waves-{number}", *each) for number, each in enumerate(asked)]
            if not questions:
                print("\nThe same in one plan: a call waits for those whose results it refers to.")
                answered.append(await show(agent, "one-plan", QUESTIONS[-1], "dag"))
    return 0 if all(answered) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
