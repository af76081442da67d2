"""Calls that begin because they followed in earlier inputs of the agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import PrivateAttr

from graph_agent import GraphAgent, LoopConfig, ScriptedChatModel, create_graph_agent
from graph_agent.errors import ConfigError
from tests.support.examples import many_examples


class Waiting(ScriptedChatModel):
    """Answers once `may_answer` is set."""

    _may_answer: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def _agenerate(self, messages: list[BaseMessage], *given: Any, **kwargs: Any) -> ChatResult:
        await self._may_answer.wait()
        return await super()._agenerate(messages, *given, **kwargs)


def calls(*made: tuple[str, dict[str, Any]]) -> AIMessage:
    return AIMessage(
        "", tool_calls=[{"id": f"c{at}", "name": name, "args": args} for at, (name, args) in enumerate(made)]
    )


HOTELS = {"Bergen": ["B-1", "B-2"], "Oslo": ["O-1", "O-2", "O-3"], "Rome": ["R-7"]}


def tools_with(ran: list[Any]) -> list[BaseTool]:
    @tool
    async def search(city: str, nights: int) -> dict[str, Any]:
        """Search hotels."""
        ran.append(("search", city, nights))
        return {"hotels": [{"id": id_} for id_ in HOTELS[city]]}

    @tool
    async def details(hotel: str) -> str:
        """Return details."""
        ran.append(("details", hotel))
        return f"{hotel} is by the sea"

    @tool
    async def book(hotel: str) -> str:
        """Book."""
        ran.append(("book", hotel))
        return "booked"

    search.metadata = details.metadata = {"effect": "read"}
    return [search, details, book]


def stay(city: str, nights: int) -> list[AIMessage | str]:
    """The replies of a model that searches, reads all details, and books the first hotel."""
    found = HOTELS[city]
    return [
        calls(("search", {"city": city, "nights": nights})),
        calls(*(("details", {"hotel": id_}) for id_ in found)),
        calls(("book", {"hotel": found[0]})),
        "Booked.",
    ]


def agent_of(
    model: ScriptedChatModel, tools: list[BaseTool], store: BaseStore | None = None, **config: Any
) -> GraphAgent[Any, Any]:
    settings = LoopConfig(**{"predict": "table", **config})
    return create_graph_agent(model, tools, config=settings, checkpointer=InMemorySaver(), store=store)


async def counts_of(session: Any) -> list[dict[str, int]]:
    """What became of the calls that began early, by event."""
    events = await session.events()
    return [event["early"]["learned"] for event in events if "learned" in event.get("early", {})]


async def test_what_followed_in_two_inputs_begins_while_the_third_is_planned() -> None:
    ran: list[Any] = []
    script = [reply for city in HOTELS for reply in stay(city, 2)]
    agent = agent_of(ScriptedChatModel(script), tools_with(ran))
    for city in HOTELS:
        session = agent.session(city)
        result = await session.run(f"I need a hotel in {city} for 2 nights.")
    early = {event["name"]: "early_s" in event for event in await session.events() if event["type"] == "tool_result"}

    assert (early, [*result.results.values()][1]) == (
        {"search": True, "details": True, "book": False},
        "R-7 is by the sea",
    )
    assert len(ran) == len(set(ran)) == 12
    assert [each.get("used") for each in await counts_of(session)][-1:] == [1]


async def test_a_likely_call_that_the_model_does_not_make_is_dropped() -> None:
    ran: list[Any] = []
    script = [reply for city in ("Bergen", "Oslo") for reply in stay(city, 2)]
    agent = agent_of(ScriptedChatModel([*script, "No."]), tools_with(ran))
    for city in ("Bergen", "Oslo"):
        await agent.session(city).run(f"I need a hotel in {city} for 2 nights.")
    session = agent.session("Rome")
    result = await session.run("I do not need a hotel in Rome for 2 nights.")

    assert (result.answer, result.results) == ("No.", {})
    assert [(each["started"], each["dropped"]) for each in await counts_of(session)] == [(1, 1)]


async def test_a_call_begins_before_the_model_answers_and_only_one_that_reads() -> None:
    ran: list[Any] = []
    model = Waiting(responses=[calls(("book", {"hotel": "B-1"})), "Done."] * 3)
    model._may_answer.set()
    tools = tools_with(ran)
    agent = agent_of(model, tools)
    for at in range(2):
        await agent.session(str(at)).run('Book "B-1".')
    reads = Waiting(responses=[calls(("details", {"hotel": "B-1"})), "Done."] * 3)
    reads._may_answer.set()
    reading = agent_of(reads, tools)
    for at in range(2):
        await reading.session(str(at)).run('Show "B-1".')
    ran.clear()
    for held in (model, reads):
        held._may_answer.clear()
    runs = [asyncio.ensure_future(each.session("last").run('Book or show "B-1".')) for each in (agent, reading)]
    async with asyncio.timeout(30):
        while not ran:
            await asyncio.sleep(0.01)
    before = [*ran]
    for held in (model, reads):
        held._may_answer.set()
    await asyncio.gather(*runs)

    assert (before, sorted(ran)) == ([("details", "B-1")], [("book", "B-1"), ("details", "B-1")])


async def test_the_store_brings_what_was_learned_to_another_process() -> None:
    ran: list[Any] = []
    store = InMemoryStore()
    for city in HOTELS:
        # A new agent for each input: only the Store knows the others.
        session = agent_of(ScriptedChatModel(stay(city, 2)), tools_with(ran), store).session(city)
        await session.run(f"I need a hotel in {city} for 2 nights.")
    stored = [item.value for item in store.search(("graph_agent", "calls_that_followed"), limit=100)]

    assert [each.get("used") for each in await counts_of(session)][-1:] == [1]
    # One row of each agent for each context, and one item for the stored sessions.
    assert len(stored) == 3 * 4 + 1
    # Values of users are in no shape.
    assert not any(name in json.dumps(stored) for name in ("Bergen", "B-1", "Rome"))


class Broken(InMemoryStore):
    """A Store that is down."""

    async def aget(self, *given: Any, **kwargs: Any) -> Any:
        raise OSError("the Store is down")

    async def asearch(self, *given: Any, **kwargs: Any) -> Any:
        raise OSError("the Store is down")

    async def aput(self, *given: Any, **kwargs: Any) -> Any:
        raise OSError("the Store is down")


async def test_an_agent_works_without_the_table_if_the_store_is_down() -> None:
    session = agent_of(ScriptedChatModel(stay("Rome", 1)), tools_with([]), Broken()).session("s1")
    result = await session.run("I need a hotel in Rome for 1 night.")

    assert (result.answer, len(result.results)) == ("Booked.", 3)


@pytest.mark.parametrize("number", ["0.5", "007", "0", "00.25", "1,200.50"])
async def test_a_message_with_any_number_is_answered(number: str) -> None:
    agent = create_graph_agent(ScriptedChatModel(["Done."]), tools_with([]), config=LoopConfig(predict="table"))

    result = await agent.run(f"Stay for {number} nights.")

    assert (result.status.value, result.answer) == ("COMPLETED", "Done.")


def test_another_value_of_predict_is_refused() -> None:
    with pytest.raises(ConfigError, match="predict='always'"):
        LoopConfig(predict="always")  # type: ignore[arg-type]  # the error is under test


_STAYS = st.lists(st.tuples(st.sampled_from([*HOTELS]), st.integers(1, 2), st.booleans()), min_size=1, max_size=4)


def shown(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event without times, and without what began early."""
    return {
        key: value for key, value in event.items() if key not in {"ts", "early", "model_calls"} and key[-2:] != "_s"
    }


async def outcomes(stays: list[tuple[str, int, bool]], mode: str, predict: Any) -> tuple[Any, list[Any]]:
    """The events, messages and results of some inputs, and the calls that ran."""
    ran: list[Any] = []
    script = [reply for city, nights, asks in stays for reply in (stay(city, nights) if asks else ["Which city?"])]
    tools = tools_with(ran)
    agent = agent_of(ScriptedChatModel(script), tools, predict=predict, dispatch=mode)
    found = []
    for at, (city, nights, _) in enumerate(stays):
        session = agent.session(str(at % 2))
        result = await session.run(f"I need a hotel in {city} for {nights} nights.")
        state = await agent.aget_state({"configurable": {"thread_id": str(at % 2)}})
        messages = [(message.type, message.text) for message in state.values["messages"]]
        found.append((result.answer, result.results, messages, [*map(shown, await session.events())]))
    return found, ran


@many_examples
@given(_STAYS, st.sampled_from(["whole", "streamed"]))
async def test_results_and_histories_are_equal_with_and_without_the_table(
    stays: list[tuple[str, int, bool]], dispatch: str
) -> None:
    expected, plain = await outcomes(stays, dispatch, False)
    found, ran = await outcomes(stays, dispatch, "table")

    assert found == expected
    # No writing call has begun early, and each of the history has run.
    assert [each for each in ran if each[0] == "book"] == [each for each in plain if each[0] == "book"]
    assert set(plain) <= set(ran)
