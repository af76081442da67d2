"""Long conversations: compaction, overflow, and a session that another process continues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graph_agent.persistence import open_saver
from tests.providers.exchange import Reply, Request
from tests.providers.lab import ANSWER, WEATHER, Lab, called, calls, clock, outcome, weather
from tests.providers.situations import situation

_PROSE = "The committee discussed the matter at length and recorded every word of it. "


def _converses(request: Request) -> Reply:
    """Summarize if asked for it; look the weather up once for each question about it; answer anything else."""
    last = request.messages[-1]
    if "<conversation>" in request.text:
        return Reply("SUMMARY: the user wants the weather.")
    if last.role == "tool" or last.text.rstrip().endswith("</tool_result>"):
        return Reply("It is sunny.")
    return calls(("weather", {"city": "Paris"})) if last.text.rstrip().endswith("The weather?") else Reply("Noted.")


async def _long_conversation(lab: Lab, **config: Any) -> list[str]:
    session = lab.session(brain=_converses, tools=[weather], config=config)
    answers = []
    for number in range(4):
        answers.append((await session.run(f"Note {number}: {_PROSE * 20}")).answer)
        answers.append((await session.run("The weather?")).answer)
    return answers


@situation("compaction")
async def compaction(lab: Lab) -> None:
    answers = await _long_conversation(lab, context_window=2_000)

    assert answers == ["Noted.", "It is sunny."] * 4
    assert "SUMMARY: the user wants the weather." in lab.requests[-1].text


@situation("overflow", needs="overflow_error")
async def overflow(lab: Lab) -> None:
    lab.emulator.window = 1_200
    lab.expected.add(lab.row.faults["overflow"].id)

    answers = await _long_conversation(lab)

    assert answers == ["Noted.", "It is sunny."] * 4
    assert lab.emulator.refusals != []


@situation("overflow", needs="overflow_error")
async def overflow_in_other_words(lab: Lab) -> None:
    row = lab.row
    for rule in row.other_overflows:
        lab.emulator.row = replace(row, faults={**row.faults, "overflow": rule})
        lab.emulator.window = 1_200
        lab.emulator.exchanges.clear()
        lab.expected.add(rule.id)

        answers = await _long_conversation(lab)

        refused = [refusal.rule for refusal in lab.emulator.refusals]
        assert (rule.id, answers, rule.id in refused) == (rule.id, ["Noted.", "It is sunny."] * 4, True)


@situation("reopened")
async def reopened(lab: Lab) -> None:
    url = f"sqlite:///{lab.folder / 'sessions.db'}"
    reply = calls(("weather", {"city": "Paris"}), ("clock", {"zone": "UTC"}), text="I look.", reasoning="Two calls.")
    async with open_saver(url) as saver:
        session = lab.session(reply, Reply(ANSWER), tools=[weather, clock], checkpointer=saver)
        first = await session.run(WEATHER)
    async with open_saver(url) as saver:
        session = lab.session(Reply("Fine."), tools=[weather], checkpointer=saver)
        second = await session.run("And now?")

    assert [first.answer, outcome(second)] == [ANSWER, ("COMPLETED", "Fine.", [])]
    assert [name for name, _ in called(lab.requests)] == ["weather", "clock"]
