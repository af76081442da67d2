"""Calls of a structured plan that begin as soon as the early results that they need are there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_core.tools import tool

from graph_agent import ScriptedChatModel
from graph_agent.session.early_work import early_work_of
from tests.support.early_calls import SlowModel, agent_of, read


def plan(*calls: dict[str, Any], status: str = "continue") -> str:
    return json.dumps({"status": status, "action": "Look.", "tools": list(calls), "reasoning": "So."})


def use(id_: str, name: str, text: str, *needs: str) -> dict[str, Any]:
    return {"id": id_, "tool": name, "args": {"text": text}, "needs": list(needs)}


DONE = plan(status="done")


async def cities(text: str) -> dict[str, Any]:
    return {"cities": [f"{text}-1", f"{text}-2"]}


async def test_a_call_begins_with_the_early_result_that_it_refers_to_while_the_plan_is_streamed() -> None:
    made = plan(use("a", "cities", "x"), use("b", "look", "in ${a.cities[1]}"))
    model = SlowModel(responses=[made, DONE, "Done."], streaming=True)

    async def work(text: str) -> str:
        model.may_end.set()
        return f"found {text}"

    session = agent_of(model, [read("cities", cities), read("look", work)], tool_calling="wave").session("s1")
    result = await session.run("Look it up.")
    events = await session.events()

    early = early_work_of(events)
    assert (early.started, early.used) == (2, 2)
    assert result.results == {"a": {"cities": ["x-1", "x-2"]}, "b": "found in x-2"}


async def test_a_call_begins_with_a_result_of_an_earlier_plan_that_it_refers_to() -> None:
    script = [plan(use("a", "cities", "x")), plan(use("b", "look", "${a.cities[0]}")), DONE, "Done."]
    model = ScriptedChatModel(script, streaming=True)

    async def work(text: str) -> str:
        return f"found {text}"

    session = agent_of(model, [read("cities", cities), read("look", work)], tool_calling="wave").session("s1")
    result = await session.run("Look it up.")

    early = early_work_of(await session.events())
    assert (early.started, early.used, result.results["b"]) == (2, 2, "found x-1")


@pytest.mark.parametrize("order", [["w", "a", "b"], ["a", "b", "w"]], ids=["before", "after"])
async def test_a_call_that_would_run_after_a_write_of_its_plan_sees_what_was_written(order: list[str]) -> None:
    stored: list[str] = []
    calls = {"w": use("w", "save", "new"), "a": use("a", "cities", "x"), "b": use("b", "look", "${a.cities[0]}", "a")}
    model = ScriptedChatModel([plan(*(calls[each] for each in order)), DONE, "Done."], streaming=True)

    async def work(text: str) -> str:
        return f"{text}: {', '.join(stored)}"

    @tool
    async def save(text: str) -> str:
        """Save."""
        await asyncio.sleep(0)
        stored.append(text)
        return "saved"

    agent = agent_of(model, [read("cities", cities), read("look", work), save], tool_calling="wave")
    result = await agent.session("s1").run("Save, and look it up.")

    assert result.results["b"] == "x-1: new"


async def test_a_call_whose_need_failed_early_waits_for_the_plan() -> None:
    attempts: list[str] = []

    async def fails_once(text: str) -> str:
        attempts.append(text)
        if len(attempts) == 1:
            raise OSError("not yet")
        return "found"

    async def work(text: str) -> str:
        return f"looked at {text}"

    model = ScriptedChatModel([plan(use("a", "once", "x"), use("b", "look", "${a}")), DONE, "Done."], streaming=True)
    session = agent_of(model, [read("once", fails_once), read("look", work)], tool_calling="wave").session("s1")
    result = await session.run("Look it up.")

    early = early_work_of(await session.events())
    assert (result.results, early.used) == ({"a": "found", "b": "looked at found"}, 0)


async def test_results_of_an_invalid_plan_serve_its_repair() -> None:
    ran: list[str] = []

    async def work(text: str) -> str:
        ran.append(text)
        return f"found {text}"

    invalid = plan(use("a", "look", "x"), use("b", "look", "y"), use("c", "look", "z", "missing"))
    repaired = plan(use("a", "look", "x"), use("c", "look", "z", "a"))
    model = ScriptedChatModel([invalid, repaired, DONE, "Done."], streaming=True)
    session = agent_of(model, [read("look", work)], tool_calling="wave").session("s1")
    result = await session.run("Look it up.")

    early = early_work_of(await session.events())
    assert (result.results, sorted(ran)) == ({"a": "found x", "c": "found z"}, ["x", "y", "z"])
    assert (early.started, early.used) == (3, 2)
