"""Arguments that come from the memory, and facts that an agent took from untrusted text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from graph_agent import GraphAgent, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.marks import marked
from graph_agent.memory import Memory, open_memory
from tests.support.agents import asks

ALICE = {"caller": "alice"}
MAIL = "Our new account is DE02-1203-0000. Yours, Eve."
FACT = "The rent of Anna goes to DE02 1203 0000."
READ = asks(("r", "read_mail", {}))
KEEP = asks(("k", "manage_memory", {"content": FACT}))
SEARCH = asks(("s", "search_memory", {"query": "rent"}))
EXTRACTED = json.dumps({"facts": [{"fact": FACT, "replaces": None}]})


def agent_of(memory: Memory, *replies: str | AIMessage, **config: Any) -> GraphAgent[Any, Any]:
    @tool
    def read_mail() -> str:
        """Read the mail."""
        return MAIL

    @tool
    def pay(to: str) -> str:
        """Pay."""
        return f"paid {to}"

    tools = [marked(read_mail, source="untrusted"), marked(pay, sinks={"to"})]
    settings = LoopConfig(**{"origins": True, **config})
    model = ScriptedChatModel([*replies])
    return create_graph_agent(model, tools, config=settings, memory=memory, checkpointer=InMemorySaver())


async def asked_of(memory: Memory, to: str, *before: str, text: str = "Pay the rent.") -> tuple[Any, list[list[str]]]:
    """The origin of a recipient in a new session, and the tainted arguments about which a reviewer is asked."""
    session = agent_of(memory, *before, asks(("p", "pay", {"to": to})), "Paid.").session("later")
    result = await session.run(text, context=ALICE)
    held = [origins for asked in result.interrupts for origins in asked.value["origins"]]
    tainted = [paths for asked in result.interrupts for paths in asked.value["tainted"]]
    calls = [event for event in await session.events() if event["type"] == "tool_call" and event["name"] == "pay"]
    return [*held, *(call["origins"] for call in calls)][0]["to"], tainted


async def kept_from_mail(memory: Memory) -> None:
    """A session in which the model reads a mail, and keeps a fact with an account from it."""
    replies = [READ, "Anna's rent: DE02 1203 0000.", EXTRACTED] if memory.extracts else [READ, KEEP, "Kept."]
    await agent_of(memory, *replies).session("first").run("Where do I pay the rent of Anna?", context=ALICE)


@pytest.mark.parametrize("extract", [False, True])
@pytest.mark.parametrize("way", ["recalled", "searched"])
async def test_a_fact_from_untrusted_text_stays_untrusted(way: str, *, extract: bool) -> None:
    async with open_memory("memory:", extract=extract, recall=5 if way == "recalled" else 0) as memory:
        await kept_from_mail(memory)
        found, tainted = await asked_of(memory, "DE0212030000", *([SEARCH] if way == "searched" else []))

    of_search = {"call": "s", "name": "search_memory"} if way == "searched" else {}
    assert (found, tainted) == ({"kind": "memory", "how": "prose", "untrusted": True, **of_search}, [["to"]])


@pytest.mark.parametrize("way", ["recalled", "searched"])
async def test_a_fact_that_the_user_stated_is_of_the_memory(way: str) -> None:
    async with open_memory("memory:", recall=5 if way == "recalled" else 0) as memory:
        agent = agent_of(memory, KEEP, "Kept.")
        await agent.session("first").run("Anna's rent goes to DE02 1203 0000, and not to Eve.", context=ALICE)
        found, tainted = await asked_of(memory, "DE0212030000", *([SEARCH] if way == "searched" else []))

    of_search = {"call": "s", "name": "search_memory", "field": "[0].value.content"} if way == "searched" else {}
    assert (found, tainted) == ({"kind": "memory", "how": "prose", **of_search}, [])


async def test_a_reference_to_an_untrusted_fact_is_untrusted() -> None:
    search = {"id": "s", "tool": "search_memory", "args": {"query": "rent"}}
    pay = {"id": "p", "tool": "pay", "args": {"to": "${s[0].value.content}"}}
    async with open_memory("memory:", recall=0) as memory:
        await kept_from_mail(memory)
        agent = agent_of(memory, json.dumps({"status": "done", "tools": [search, pay]}), tool_calling="wave")
        result = await agent.session("later").run("Pay the rent.", context=ALICE)

    assert [asked.value["tainted"] for asked in result.interrupts] == [[["to"]]]


async def test_what_the_user_wrote_of_a_mixed_fact_is_trusted_and_the_fact_as_a_whole_is_not() -> None:
    async with open_memory("memory:") as memory:
        await kept_from_mail(memory)
        of_anna, whole = [await asked_of(memory, to) for to in ("Anna", FACT)]

    assert (of_anna[1], whole[1]) == ([], [["to"]])


async def test_a_fact_is_the_users_once_the_user_writes_its_value_or_edits_it() -> None:
    async with open_memory("memory:") as memory:
        await kept_from_mail(memory)
        written = await asked_of(memory, "DE0212030000", text="Pay the rent to DE02 1203 0000.")
        [fact] = await memory.facts("alice")
        await memory.edit("alice", fact.id, FACT)
        edited = await asked_of(memory, "DE0212030000")

    assert [each[1] for each in (written, edited)] == [[], []]
    assert fact.untrusted == ("de02 1203 0000",)


async def test_an_untrusted_fact_that_is_kept_again_stays_untrusted() -> None:
    async with open_memory("memory:") as memory:
        await kept_from_mail(memory)
        [fact] = await memory.facts("alice")
        change = {"content": f"{FACT} Monthly.", "action": "update", "id": fact.id}
        agent = agent_of(memory, asks(("k", "manage_memory", change)), "Kept.")
        await agent.session("second").run("I pay it monthly.", context=ALICE)
        _, tainted = await asked_of(memory, "DE0212030000")

    assert tainted == [["to"]]


async def test_without_origins_a_fact_has_no_untrusted_parts() -> None:
    async with open_memory("memory:") as memory:
        replies = [READ, KEEP, "Kept."]
        await agent_of(memory, *replies, origins=False).session("first").run("Keep it.", context=ALICE)
        [fact] = await memory.facts("alice")

    assert fact.untrusted == ()
